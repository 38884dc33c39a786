"""Captum as the oracle: gradient × input, integrated gradients and replaced tokens."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.integrations.hf_models import questions_of, subject_of, text_of

from headwise.checkpoints.pulled import state
from headwise.explain.method import Settings, silent
from headwise.explain.methods import METHODS
from headwise.explain.question import EmbeddingNorm, Logit, Question
from headwise.explain.subject import Run
from headwise.integrations.loading import load
from headwise.numerics import compare, eps
from headwise.verifier.lift import Lift

captum = pytest.importorskip("captum.attr")
pytest.importorskip("transformers")

STEPS = 8
EXACT = 2**14 * eps(torch.float64)
"""As in the tests of the promises."""


def target_of(subject, question):
    """The target as captum calls it, (B,): the model itself, none of our code but the formula."""

    def forward(x):
        name = "inputs_embeds" if x.is_floating_point() else "input_ids"
        out = subject.model(**{name: x})
        if question.position is None:
            hidden = out.last_hidden_state
            pooled = hidden.mean(1) if question.target.pool == "mean" else hidden[:, 0]
            return pooled.norm(dim=-1)
        return question.target.value(Run(None, out.logits[:, question.position]))

    return forward


def ours(name, subject, text, question):
    return (
        METHODS[name]
        .explain(subject, text, question, settings=Settings(steps=STEPS), progress=silent)
        .scores
    )


def theirs(name, subject, text, question):
    forward = target_of(subject, question)
    base = torch.full_like(text.ids, subject.mask_id)[None]
    if name == "replaced":

        def without_graph(ids):
            with torch.no_grad():
                return forward(ids)

        return captum.FeatureAblation(without_graph).attribute(text.ids[None], baselines=base)[0]
    x = subject.embed(text.ids[None]).detach().requires_grad_()
    if name == "gradient-input":
        return captum.InputXGradient(forward).attribute(x).sum(-1)[0]
    with default_dtype(x.dtype):
        found = captum.IntegratedGradients(forward).attribute(
            x,
            subject.embed(base).detach(),
            n_steps=STEPS,
            method="gausslegendre",
            internal_batch_size=4,
        )
    return found.sum(-1)[0]


@contextlib.contextmanager
def default_dtype(dtype):
    """Captum makes the shares of its path in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def disagreement(name, subject, text, question, *, allowed):
    """Empty, or the difference in words; ``allowed`` is relative to the largest score."""
    want = theirs(name, subject, text, question).detach().double()
    found = compare(
        ours(name, subject, text, question).double(),
        want,
        allowed=allowed * max(float(want.abs().max()), 1.0),
    )
    return "" if found.passed else found.sentence()


NAMES = ("gradient-input", "integrated", "replaced")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mistral", "gemma2", "qwen3", "bert"])
def test_tiny_models_default_dtype(name, model_type):
    subject = subject_of(model_type, dtype=torch.float64)
    text = text_of(subject)
    with Lift():
        for question in questions_of(subject, position=6).values():
            assert disagreement(name, subject, text, question, allowed=EXACT) == ""


@pytest.mark.parametrize("name", NAMES)
def test_another_question_would_be_seen(name):
    subject = subject_of("llama", dtype=torch.float64)
    text = text_of(subject)
    with Lift():
        want = theirs(name, subject, text, Question(Logit(8), 6)).detach()
        got = ours(name, subject, text, Question(Logit(7), 6))
    assert not compare(got, want, allowed=EXACT * float(want.abs().max())).passed


# ------------------------------------------------------------------------------------ real models
SENTENCES = {
    "smollm2-135m": "The capital of France is",
    "minilm": "The cat sat on the mat because it was warm.",
}
ROUNDED = 2**12 * eps(torch.float32)
"""Thirty layers at most; each adds sums of 1536 products, whose errors grow like the square root of
their number (Higham 2002, section 3.1): about 30 · 40 · eps, and batches sum in another order."""


@pytest.fixture(scope="module", params=SENTENCES)
def real(request):
    """One of the real models; loaded once for all tests of this file."""
    if state(request.param) != "pulled":
        pytest.skip(f"{request.param} is not in the cache folder: headwise models pull")
    if request.param.startswith("smollm2"):
        pytest.importorskip("gguf")
    return load(request.param)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_real_models(name, real):
    text = real.read(SENTENCES[real.name])
    if real.kind == "causal":
        last = len(text) - 1
        best = int(real.run(text.ids[None], position=last).logits.argmax())
        question = Question(Logit(best), last)
    else:
        question = Question(EmbeddingNorm(), None)
    assert disagreement(name, real, text, question, allowed=ROUNDED) == ""
