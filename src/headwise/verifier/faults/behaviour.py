"""Faults that show between calls: B. Properties find them, no stage is replaced."""

from __future__ import annotations

from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, register

register(
    Fault(
        code="B01",
        name="dropout-active-in-eval",
        shown_by=("twice",),
        what=N_("two identical calls in evaluation mode differ: dropout is still on"),
        why=N_(
            "results can't be repeated, and part of what the model knows is thrown away at every "
            "call. Usually the probability is passed to a function that does not know the mode"
        ),
        fix=N_(
            "pass the mode along: training=self.training, or a probability of 0.0 in evaluation"
        ),
        bad="out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p)",
        good=(
            "p = self.p if self.training else 0.0\n"
            "out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)"
        ),
    ),
    Fault(
        code="B02",
        name="input-mutated",
        shown_by=("plain",),
        what=N_("the caller's tensor is changed by the call"),
        why=N_(
            "the caller goes on with a tensor that is no longer what it was, for a residual or "
            "another layer; autograd may refuse the backward pass"
        ),
        fix=N_("use operations that return a new tensor on everything that was passed in"),
        bad="x += self.positions(positions)",
        good="x = x + self.positions(positions)",
    ),
    Fault(
        code="B03",
        name="batch-dependent",
        rank=95,
        shown_by=("batch",),
        what=N_("a sample's result depends on the other samples of the batch"),
        why=N_(
            "axes were mixed, statistics shared, or padding read. Evaluations then depend on how "
            "samples were put into batches, and a served request on its neighbours"
        ),
        fix=N_("look for a reshape or a reduction that takes in the batch axis"),
        bad="q = q / q.std()  # over all samples",
        good="q = q / q.std(dim=-1, keepdim=True)",
    ),
    Fault(
        code="B04",
        name="state-kept-between-calls",
        shown_by=("twice",),
        what=N_("an earlier call changes the result of a later one"),
        why=N_(
            "a cache or buffer outlives its call. The first result is right, later ones are not, "
            "and the order of calls matters"
        ),
        fix=N_(
            "let the caller hold the state and pass it in, and start a new sequence without any"
        ),
        bad="k = self.past_k = torch.cat([self.past_k, k], dim=2)",
        good="k = k if past_k is None else torch.cat([past_k, k], dim=2)",
    ),
    Fault(
        code="U00",
        name="unexplained",
        undeclared="unexplained",
        rank=99,
        what=N_("the result differs and nothing in the catalogue explains it"),
        why=N_(
            "the numbers differ by more than rounding, and no known fault gives the same ones. The "
            "cause lies at the first stage that differs, before it, or in what the specification "
            "says about the layer"
        ),
        fix=N_(
            "compare that stage with the definition line by line, and check that the specification "
            "describes the layer"
        ),
        bad="out = fused_attention(q, k, v)  # one call, nowhere to look",
        good=(
            "scores = q @ k.mT * scale  # each stage has a name of its own\n"
            'weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)\n'
            "out = weights @ v"
        ),
    ),
)
