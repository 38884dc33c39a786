"""Faults of the projections: P (what q, k and v are made from) and O (the way back)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.reference import Inputs, Parameters, StageFunction, Trace, attend
from headwise.reference.definition import (
    apply_positions,
    normalise_last,
    project,
    project_output,
    read_input,
)
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, one, register, under


# ------------------------------------------------------------------ which matrix is which
def swapped(first: str, second: str) -> StageFunction:
    """Two of q, k, v exchanged after the projection."""

    def stage(t: Trace, s: Setting) -> None:
        project(t, s)
        a, b = f"{first}_flat", f"{second}_flat"
        was_a, was_b = getattr(t, a), getattr(t, b)
        setattr(t, a, was_b)
        setattr(t, b, was_a)

    return stage


def query_key_swapped(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.num_heads == spec.num_kv_heads:
        yield Variant("", {"projection": swapped("q", "k")})


def key_value_swapped(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.head_dim == spec.v_head_dim:
        yield Variant("", {"projection": swapped("k", "v")})


def packed_sizes(spec: AttentionSpec) -> tuple[int, int, int]:
    """Rows of q, k and v in a fused matrix."""
    return (
        spec.num_heads * spec.head_dim,
        spec.num_kv_heads * spec.head_dim,
        spec.num_kv_heads * spec.v_head_dim,
    )


def per_head_index(spec: AttentionSpec) -> Tensor:
    """Positions, in the order q | k | v, of what a matrix packed per key/value head holds."""
    n_q, n_k, _n_v = packed_sizes(spec)
    groups, r = spec.num_kv_heads, spec.group_size
    q = torch.arange(n_q).view(groups, r * spec.head_dim)
    k = n_q + torch.arange(n_k).view(groups, spec.head_dim)
    v = n_q + n_k + torch.arange(groups * spec.v_head_dim).view(groups, spec.v_head_dim)
    return torch.cat([q, k, v], dim=1).flatten()


def repacked(index: Tensor) -> StageFunction:
    """The fused projection read through a permutation of its channels."""

    def stage(t: Trace, s: Setting) -> None:
        project(t, s)
        fused = torch.cat([t.q_flat, t.k_flat, t.v_flat], dim=-1)[..., index]
        t.q_flat, t.k_flat, t.v_flat = fused.split(packed_sizes(s.spec), dim=-1)

    return stage


def packed_order(spec: AttentionSpec) -> Iterable[Variant]:
    index = per_head_index(spec)
    yield Variant("per head, read as blocks", {"projection": repacked(index)})
    yield Variant("blocks, read per head", {"projection": repacked(index.argsort())})
    sizes = packed_sizes(spec)
    if len(set(sizes)) == 1:
        blocks = torch.arange(sum(sizes)).split(sizes)
        for order in ((1, 2, 0), (2, 0, 1)):
            name = "".join("qkv"[i] for i in order)
            turned = torch.cat([blocks[i] for i in order])
            yield Variant(f"blocks in order {name}", {"projection": repacked(turned)})


# ------------------------------------------------------------------ matrices and biases
def with_parameters(function: StageFunction, **names: str) -> StageFunction:
    """A stage that sees changed parameters: ``transpose`` or ``drop`` by name."""

    def stage(t: Trace, s: Setting) -> None:
        changes: dict[str, Tensor | None] = {}
        for name, action in names.items():
            value = getattr(s.parameters, name)
            if value is not None:
                changes[name] = value.transpose(0, 1) if action == "transpose" else None
        function(t, s.with_parameters(**changes))

    return stage


def weight_transposed(spec: AttentionSpec) -> Iterable[Variant]:
    square = {
        "q": spec.d_model == spec.num_heads * spec.head_dim,
        "k": spec.d_context == spec.num_kv_heads * spec.head_dim,
        "v": spec.d_values == spec.num_kv_heads * spec.v_head_dim,
    }
    names = [name for name, is_square in square.items() if is_square]
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            action = dict.fromkeys(chosen, "transpose")
            yield Variant("".join(chosen), {"projection": with_parameters(project, **action)})
    if spec.d_model == spec.num_heads * spec.v_head_dim:
        turned = with_parameters(project_output, o="transpose")
        yield Variant("o", {"output": turned})
        if len(names) == 3:
            action = dict.fromkeys(names, "transpose")
            yield Variant(
                "qkvo", {"projection": with_parameters(project, **action), "output": turned}
            )


def bias_dropped(spec: AttentionSpec) -> Iterable[Variant]:
    for count in range(1, 4):
        for chosen in itertools.combinations("qkv", count):
            action = {f"{name}_bias": "drop" for name in chosen}
            yield Variant("".join(chosen), {"projection": with_parameters(project, **action)})


def rotary_rows(heads: int, width: int) -> Tensor | None:
    """Order of rows that turns neighbours into halves, for a matrix cut into ``heads``."""
    if width % (2 * heads):
        return None
    return torch.arange(width).view(heads, -1, 2).transpose(1, 2).flatten()


def rows_permuted_wrongly(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None or spec.group_size == 1:
        return
    width = spec.num_kv_heads * spec.head_dim
    right, wrong = rotary_rows(spec.num_kv_heads, width), rotary_rows(spec.num_heads, width)
    if right is None or wrong is None:
        return
    for label, index in (
        ("to halves", right.argsort()[wrong]),
        ("to neighbours", right[wrong.argsort()]),
    ):

        def stage(t: Trace, s: Setting, index: Tensor = index) -> None:
            project(t, s)
            t.k_flat = t.k_flat[..., index]

        yield Variant(label, {"projection": stage})


# ------------------------------------------------------------------ qk-norm
def gains_unused(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.qk_norm is None:
        return
    for chosen in (("q_norm", "k_norm"), ("q_norm",), ("k_norm",)):
        action = dict.fromkeys(chosen, "drop")
        yield Variant(
            " and ".join(chosen), {"positions": with_parameters(apply_positions, **action)}
        )


def norm_across_heads(spec: AttentionSpec) -> Iterable[Variant]:
    norm = spec.qk_norm
    if norm is None:
        return

    def all_heads(x: Tensor, gain: Tensor | None) -> Tensor:
        flat = normalise_last(x.transpose(1, 2).flatten(2), norm, None)
        heads: Tensor = flat.unflatten(2, (x.shape[1], -1)).transpose(1, 2)
        return heads if gain is None else heads * gain

    def stage(t: Trace, s: Setting) -> None:
        plain = under(apply_positions, qk_norm=None)
        w = s.parameters
        if norm.order == "before-rope":
            t.q, t.k = all_heads(t.q, w.q_norm), all_heads(t.k, w.k_norm)
            plain(t, s)
        else:
            plain(t, s)
            t.q_pos, t.k_pos = all_heads(t.q_pos, w.q_norm), all_heads(t.k_pos, w.k_norm)

    yield Variant("", {"positions": stage})


def norm_other_side(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.qk_norm is not None and spec.rope is not None:
        before = spec.qk_norm.order == "before-rope"
        norm = dataclasses.replace(spec.qk_norm, order="after-rope" if before else "before-rope")
        yield Variant("", {"positions": under(apply_positions, qk_norm=norm)})


# ------------------------------------------------------------------ cross attention
def context_ignored(spec: AttentionSpec) -> Iterable[Variant]:
    def from_queries(*names: str) -> StageFunction:
        def stage(t: Trace, s: Setting) -> None:
            read_input(t, s)
            if s.inputs.context is not None:
                for name in names:
                    setattr(t, name, t.x_q)

        return stage

    def self_attention(spec: AttentionSpec, parameters: Parameters, inputs: Inputs) -> Trace:
        if inputs.context is None:
            return attend(spec, parameters, inputs)
        return attend(spec, parameters, inputs.replace(context=None, values=None))

    if spec.d_model == spec.d_context == spec.d_values:
        yield Variant("keys and values", around=self_attention)
    yield Variant("keys", {"input": from_queries("x_kv")})
    yield Variant("values", {"input": from_queries("x_v")})


# ------------------------------------------------------------------ output
def output_missing(t: Trace, s: Setting) -> None:
    t.output = t.context if s.inputs.x is None else t.merged


def output_bias_dropped(t: Trace, s: Setting) -> None:
    project_output(t, Setting(s.spec, _without_output_bias(s.parameters), s.inputs))


def _without_output_bias(parameters: Parameters) -> Parameters:
    return dataclasses.replace(parameters, o_bias=None)


def residual_included(t: Trace, s: Setting) -> None:
    project_output(t, s)
    if s.inputs.x is not None:
        t.output = t.output + s.inputs.x


register(
    Fault(
        code="P01",
        name="query-key-swapped",
        point="weights",
        shown_by=("two",),
        what=N_("the query and key projections are exchanged, so the scores come out transposed"),
        why=N_(
            "the score of query i and key j becomes that of query j and key i, so every token "
            "attends to those that should attend to it. Shapes are right, and training from "
            "scratch can't tell; loaded weights give wrong scores from two tokens on"
        ),
        fix=N_(
            "make queries with W_Q and keys with W_K; when loading weights, check which name goes "
            "to which projection"
        ),
        bad="q, k, v = self.k_proj(x), self.q_proj(x), self.v_proj(x)",
        good="q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)",
        variants=query_key_swapped,
    ),
    Fault(
        code="P02",
        name="key-value-swapped",
        undeclared="convention",
        point="weights",
        shown_by=("one",),
        what=N_("the key and value projections are exchanged"),
        why=N_(
            "each token is compared by what it should hand over, and hands over what it should be "
            "compared by. Training from scratch can't tell, since names are free; with the weights "
            "of a checkpoint the output is noise, even for a single token"
        ),
        fix=N_("keep the order of the checkpoint, or declare the order that you use"),
        bad="q, v, k = self.qkv(x).chunk(3, dim=-1)",
        good="q, k, v = self.qkv(x).chunk(3, dim=-1)",
        variants=key_value_swapped,
    ),
    Fault(
        code="P03",
        name="packed-order-mismatch",
        undeclared="convention",
        point="weights",
        shown_by=("one", "plain"),
        what=N_("the fused qkv matrix is packed in one order and read in another"),
        why=N_(
            "rows of the fused matrix are taken for those of another projection, so queries, keys "
            "and values are mixtures of all three. Every shape fits, only the numbers show it"
        ),
        fix=N_(
            "unpack in the order of the checkpoint: three blocks one after the other, or q, k and "
            "v within each head"
        ),
        bad="q, k, v = self.qkv(x).chunk(3, dim=-1)  # the weights are packed per head",
        good="q, k, v = self.qkv(x).view(B, T, H, 3 * D).chunk(3, dim=-1)",
        variants=packed_order,
    ),
    Fault(
        code="P04",
        name="weight-transposed",
        point="weights",
        shown_by=("one",),
        what=N_("a projection multiplies with its weight transposed; square sizes hide it"),
        why=N_(
            "nn.Linear stores its weight as out × in and multiplies with the transpose; GPT-2's "
            "Conv1D stores in × out. Where both sizes are equal the wrong one fits too, and is "
            "another matrix"
        ),
        fix=N_(
            "multiply with the transpose of an out × in weight, as F.linear does, and transpose "
            "once when converting"
        ),
        bad="q = x @ self.q_proj.weight",
        good="q = F.linear(x, self.q_proj.weight)",
        variants=weight_transposed,
    ),
    Fault(
        code="P05",
        name="projection-bias-dropped",
        shown_by=("one", "plain"),
        what=N_("the bias of a q, k or v projection exists and has no effect"),
        why=N_(
            "the result is right while the bias is zero, as in a fresh layer, and off in every "
            "channel once the bias is trained or loaded"
        ),
        fix=N_("add the biases of q, k and v wherever their weights are used by hand"),
        bad="v = F.linear(x, self.v_proj.weight)",
        good="v = F.linear(x, self.v_proj.weight, self.v_proj.bias)",
        variants=bias_dropped,
    ),
    Fault(
        code="P06",
        name="rope-permutation-wrong-heads",
        shown_by=("plain",),
        what=N_("the rows of W_K are permuted for rotary with the wrong number of heads"),
        why=N_(
            "converting from one rotary layout to the other reorders rows within each head. With "
            "the number of query heads the rows of grouped keys cross the borders of heads; layers "
            "without grouping stay right, which hides it"
        ),
        fix=N_("permute W_Q with num_heads and W_K with num_kv_heads"),
        bad="w_k = w_k.view(H, -1, 2, d_model).transpose(1, 2).reshape(-1, d_model)",
        good="w_k = w_k.view(Hkv, -1, 2, d_model).transpose(1, 2).reshape(-1, d_model)",
        variants=rows_permuted_wrongly,
    ),
    Fault(
        code="P07",
        name="unused-parameter",
        rank=80,
        shown_by=("plain",),
        what=N_("a parameter that the definition uses never influences the output"),
        why=N_(
            "it receives no gradient and never learns, and its value from a checkpoint is lost "
            "without a message. A typical case is the gain of qk-norm, created and never "
            "multiplied in"
        ),
        fix=N_("use the parameter at its place in the forward pass, or remove it"),
        bad="q = F.rms_norm(q, (D,))  # self.q_gain is used nowhere",
        good="q = F.rms_norm(q, (D,), self.q_gain)",
        variants=gains_unused,
    ),
    Fault(
        code="P08",
        name="qk-norm-across-heads",
        shown_by=("plain",),
        what=N_("the statistics of qk-norm are shared by all heads"),
        why=N_(
            "one mean square is taken over the channels of all heads, so a head with large queries "
            "shrinks the scores of all others. Weights trained head by head give other weights of "
            "attention everywhere"
        ),
        fix=N_("split the heads first, then normalise over the last axis, which is head_dim"),
        bad="q = F.rms_norm(self.q_proj(x), (H * D,))\nq = q.view(B, T, H, D).transpose(1, 2)",
        good="q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)\nq = F.rms_norm(q, (D,))",
        variants=norm_across_heads,
    ),
    Fault(
        code="P09",
        name="qk-norm-wrong-side-of-rope",
        undeclared="convention",
        point="qk_norm",
        shown_by=("plain",),
        what=N_("queries and keys are normalised on the other side of the rotation"),
        why=N_(
            "the gain belongs to channels, and the rotation mixes channels, so the two steps can't "
            "be exchanged. The numbers come close, and a converted model looks slightly worse "
            "rather than broken"
        ),
        fix=N_("follow the order of the checkpoint and declare it with QkNorm(order=...)"),
        bad="q = F.rms_norm(rotate(q, cos, sin), (D,), self.q_gain)  # trained the other way",
        good="q = rotate(F.rms_norm(q, (D,), self.q_gain), cos, sin)",
        variants=norm_other_side,
    ),
    Fault(
        code="P10",
        name="context-ignored",
        shown_by=("cross",),
        what=N_("cross attention takes keys or values from the queries' sequence"),
        why=N_(
            "part or all of the context is never read, and changing it changes too little or "
            "nothing. Sequences of equal length and width let every shape pass"
        ),
        fix=N_("project keys and values from the context"),
        bad="q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)",
        good="q, k, v = self.q_proj(x), self.k_proj(context), self.v_proj(context)",
        variants=context_ignored,
    ),
    Fault(
        code="O01",
        name="output-projection-missing",
        shown_by=("one",),
        what=N_("the context is returned without the output projection"),
        why=N_(
            "the heads lie side by side and are never mixed, and what W_O has learned is lost. The "
            "shape is right where heads × v_head_dim equals d_model"
        ),
        fix=N_("multiply the merged heads with W_O before returning them"),
        bad="output = out.transpose(1, 2).flatten(2)",
        good="output = self.o_proj(out.transpose(1, 2).flatten(2))",
        variants=one("output", output_missing),
    ),
    Fault(
        code="O02",
        name="output-bias-dropped",
        shown_by=("one",),
        what=N_("the bias of the output projection has no effect"),
        why=N_(
            "every token's output is off by the same vector. The bias of a fresh layer is often "
            "zero, so only trained or loaded weights show it"
        ),
        fix=N_("apply the whole linear layer, or pass its bias to F.linear"),
        bad="output = F.linear(merged, self.o_proj.weight)",
        good="output = F.linear(merged, self.o_proj.weight, self.o_proj.bias)",
        variants=one("output", output_bias_dropped),
    ),
    Fault(
        code="O03",
        name="residual-included",
        shown_by=("one",),
        what=N_("the input is added to the output inside the layer"),
        why=N_(
            "the block around the layer adds the input as well, so it enters twice; a caller who "
            "wants attention alone gets something else"
        ),
        fix=N_("return the projected context alone and leave the residual to the block"),
        bad="output = x + self.o_proj(merged)",
        good="output = self.o_proj(merged)  # the block adds x",
        variants=one("output", residual_included),
    ),
)
