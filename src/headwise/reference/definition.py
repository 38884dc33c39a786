"""Attention, stage by stage, as it is defined.

Read from top to bottom: each function is one step of the lesson, takes what the steps before it
wrote (``t``) and the setting (``s``), and writes its own tensors. Shapes use the letters of
docs/notation.md: B batch, Hq query heads, Hkv key/value heads, Tq queries, Tk keys, Dk and Dv
channels per head, Dm model width.

    Attention(Q, K, V) = softmax(Q·Kᵀ / √Dk + M) · V          Vaswani et al. 2017, section 3.2.1

Any step can be replaced for one run; that is what a fault is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headwise.errors import ShapeError, UsageError, did_you_mean
from headwise.reference.positions import (
    alibi_bias,
    relative_buckets,
    rotary_angles,
    rotate,
    sinusoidal_table,
)
from headwise.reference.setting import (
    Inputs,
    Parameters,
    Setting,
    Trace,
    check_last_axis,
    share_in_order,
)
from headwise.spec import Alibi, AttentionSpec, Learned, QkNorm, RelativeBias, Sinusoidal
from headwise.stages import STAGE_NAMES
from headwise.texts import translate as _

StageFunction = Callable[[Trace, Setting], None]


# ---------------------------------------------------------------------------------- 1 input
def read_input(t: Trace, s: Setting) -> None:
    """The sequences that queries, keys and values are made from, with absolute positions added."""
    given = s.inputs
    if given.x is None:
        return
    t.x_q = given.x  # (B, Tq, Dm)
    t.x_kv = given.x if given.context is None else given.context  # (B, Tk, Dc)
    t.x_v = t.x_kv if given.values is None else given.values  # (B, Tk, Dval)
    added = None
    if isinstance(s.spec.positions, Learned):
        assert s.parameters.positions is not None
        last = int(s.q_positions.max())
        if last >= len(s.parameters.positions):
            raise ShapeError(
                _("position {last} is not in a table of {rows}").format(
                    last=last, rows=len(s.parameters.positions)
                ),
                where=f"Parameters(positions {tuple(s.parameters.positions.shape)})",
                fix=_("a longer table or a shorter sequence; positions count from 0"),
            )
        added = s.parameters.positions[s.q_positions]
    elif isinstance(s.spec.positions, Sinusoidal):
        added = sinusoidal_table(
            s.q_positions, d_model=s.spec.d_model, base=s.spec.positions.base
        ).to(t.x_q.dtype)
    if added is not None:
        same_keys, same_values = t.x_kv is t.x_q, t.x_v is t.x_q
        t.x_q = t.x_q + added
        t.x_kv = t.x_q if same_keys else t.x_kv
        t.x_v = t.x_q if same_values else t.x_v


# ---------------------------------------------------------------------------------- 2 projection
def project(t: Trace, s: Setting) -> None:
    """Q = X·Wq, K = X·Wk, V = X·Wv (weights are stored out × in, hence the transpose)."""
    if s.inputs.x is None:
        return
    w = s.parameters
    assert w.q is not None and w.k is not None and w.v is not None
    t.q_flat = linear(t.x_q, w.q, w.q_bias)  # (B, Tq, Hq·Dk)
    t.k_flat = linear(t.x_kv, w.k, w.k_bias)  # (B, Tk, Hkv·Dk)
    t.v_flat = linear(t.x_v, w.v, w.v_bias)  # (B, Tk, Hkv·Dv)


# ---------------------------------------------------------------------------------- 3 split
def split_heads(t: Trace, s: Setting) -> None:
    """Cut the channels into heads; the head axis moves before time. Decide who reads which head."""
    if s.inputs.x is None:
        assert s.inputs.q is not None and s.inputs.k is not None and s.inputs.v is not None
        t.q, t.k, t.v = s.inputs.q, s.inputs.k, s.inputs.v
    else:
        t.q = t.q_flat.unflatten(-1, (s.spec.num_heads, -1)).transpose(1, 2)  # (B, Hq, Tq, Dk)
        t.k = t.k_flat.unflatten(-1, (s.spec.num_kv_heads, -1)).transpose(1, 2)  # (B, Hkv, Tk, Dk)
        t.v = t.v_flat.unflatten(-1, (s.spec.num_kv_heads, -1)).transpose(1, 2)  # (B, Hkv, Tk, Dv)
    t.share = share_in_order(s.spec)


# ---------------------------------------------------------------------------------- 4 positions
def apply_positions(t: Trace, s: Setting) -> None:
    """Normalise and rotate queries and keys (values are left alone)."""
    t.q_pos, t.k_pos = t.q, t.k
    norm = s.spec.qk_norm
    if norm is not None and norm.order == "before-rope":
        normalise_heads(t, s, norm)
    if s.spec.rope is not None:
        q_angles, k_angles = angles_of(s)
        t.q_pos = rotate(t.q_pos, *q_angles, pairs=s.spec.rope.pairs)
        t.k_pos = rotate(t.k_pos, *k_angles, pairs=s.spec.rope.pairs)
    if norm is not None and norm.order == "after-rope":
        normalise_heads(t, s, norm)


# ---------------------------------------------------------------------------------- 5 scores
def score(t: Trace, s: Setting) -> None:
    """How well each query matches each key: q·k · scale, capped, plus a bias by distance."""
    t.k_shared = t.share(t.k_pos)  # (B, Hq, Tk, Dk)
    t.scores = t.q_pos @ t.k_shared.transpose(-2, -1) * s.spec.scale  # (B, Hq, Tq, Tk)
    if s.spec.softcap is not None:
        t.scores = s.spec.softcap * torch.tanh(t.scores / s.spec.softcap)
    t.bias = position_bias(s)
    if t.bias is not None:
        t.scores = t.scores + t.bias.to(t.scores.dtype)


# ---------------------------------------------------------------------------------- 6 mask
def apply_mask(t: Trace, s: Setting) -> None:
    """+ M: hidden keys get −∞, before the softmax, so that they take no part in its sum."""
    t.visible = s.visible()  # (B, 1 or Hq, Tq, Tk)
    t.masked_scores = t.scores.masked_fill(~t.visible, -math.inf)


# ---------------------------------------------------------------------------------- 7 softmax
def normalise(t: Trace, s: Setting) -> None:
    """exp(x − row maximum) / sum over keys. A row with nothing visible has weights zero."""
    t.row_max = t.masked_scores.amax(-1, keepdim=True)  # (B, Hq, Tq, 1)
    sink = None
    if s.spec.sinks:
        assert s.parameters.sinks is not None
        sink = s.parameters.sinks.view(1, -1, 1, 1).to(t.scores.dtype)
        t.row_max = torch.maximum(t.row_max, sink)
    empty = t.row_max == -math.inf
    t.row_max = t.row_max.masked_fill(empty, 0.0).detach()
    t.shifted_scores = t.masked_scores - t.row_max
    exponentials = t.shifted_scores.exp()
    total = exponentials.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - t.row_max).exp()
    t.weights = exponentials / total.masked_fill(empty, 1.0)  # (B, Hq, Tq, Tk)


# ---------------------------------------------------------------------------------- 8 aggregate
def aggregate(t: Trace, s: Setting) -> None:
    """The weighted sum of the values."""
    t.v_shared = t.share(t.v)  # (B, Hq, Tk, Dv)
    weights = t.weights if s.inputs.dropout is None else t.weights * s.inputs.dropout
    t.context = weights @ t.v_shared  # (B, Hq, Tq, Dv)


# ---------------------------------------------------------------------------------- 9 merge
def merge_heads(t: Trace, s: Setting) -> None:
    """Put the heads side by side again: time before head, then one row of channels per token."""
    if s.inputs.x is not None:
        t.merged = t.context.transpose(1, 2).flatten(2)  # (B, Tq, Hq·Dv)


# ---------------------------------------------------------------------------------- 10 output
def project_output(t: Trace, s: Setting) -> None:
    """Concat · W_O, back to the model's width."""
    if s.inputs.x is None:
        t.output = t.context
    elif s.parameters.o is None:
        t.output = t.merged
    else:
        t.output = linear(t.merged, s.parameters.o, s.parameters.o_bias)  # (B, Tq, Dm)


STAGE_FUNCTIONS: dict[str, StageFunction] = dict(
    zip(
        STAGE_NAMES,
        (
            read_input,
            project,
            split_heads,
            apply_positions,
            score,
            apply_mask,
            normalise,
            aggregate,
            merge_heads,
            project_output,
        ),
        strict=True,
    )
)


def attend(
    spec: AttentionSpec,
    parameters: Parameters,
    inputs: Inputs,
    *,
    replace: Mapping[str, StageFunction] | None = None,
) -> Trace:
    """Run the ten stages and return all of them.

    Computes in the dtype of the inputs: float64 for the truth, a lower precision for the plain
    baseline that low-precision allowances are derived from. Differentiable.

    Args:
        spec: what the layer is.
        parameters: weights, in the definition's layout.
        inputs: x (or q, k, v) and masks.
        replace: stage functions to use instead, by stage name, for this run.

    Returns:
        A ``Trace`` with every stage.

    Raises:
        ShapeError: sizes that do not fit the spec, with both numbers, or a tensor that the spec
            needs and nobody gave.
        UsageError: a stage name in ``replace`` that does not exist.

    Example:
        One head, no weights to learn. Query 0 gives key 1 twice the weight of key 0: 2/3 · 3 = 2.

        >>> import torch
        >>> spec = AttentionSpec(d_model=1, num_heads=1)
        >>> heads = lambda *x: torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1)
        >>> q, k, v = heads(1, 0), heads(0, math.log(2)), heads(0, 3)
        >>> attend(spec, Parameters(), Inputs(q=q, k=k, v=v)).context.flatten().tolist()
        [2.0, 1.5]
    """
    replace = replace or {}
    for name in replace:
        if name not in STAGE_FUNCTIONS:
            near = did_you_mean(name, STAGE_NAMES)
            raise UsageError(
                _("there is no stage {name!r} to replace").format(name=name),
                fix=_("did you mean {near!r}?").format(near=near)
                if near
                else ", ".join(STAGE_NAMES),
            )
    check_inputs(spec, inputs)
    check_parameters(spec, parameters, inputs)
    trace, setting = Trace(), Setting(spec, parameters, inputs)
    for name, function in STAGE_FUNCTIONS.items():
        replace.get(name, function)(trace, setting)
    return trace


# ---------------------------------------------------------------------------------- small parts
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b, with W stored out × in."""
    y = x @ weight.transpose(0, 1)
    return y if bias is None else y + bias


def normalise_heads(t: Trace, s: Setting, norm: QkNorm) -> None:
    """qk-norm: every head of q and of k by itself, times a gain."""
    w = s.parameters
    t.q_pos = normalise_last(t.q_pos, norm, w.q_norm, w.q_norm_bias)
    t.k_pos = normalise_last(t.k_pos, norm, w.k_norm, w.k_norm_bias)


def normalise_last(
    x: Tensor, norm: QkNorm, gain: Tensor | None, offset: Tensor | None = None
) -> Tensor:
    """Normalise the last axis by its root mean square (``layer``: after removing its mean)."""
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / torch.sqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    x = x if gain is None else x * gain
    return x if offset is None else x + offset


def angles_of(s: Setting) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(cos, sin) for the queries and for the keys: handed over, or from the formula."""
    if s.inputs.angles is not None:
        return s.inputs.angles, s.inputs.angles
    rope = s.spec.rope
    assert rope is not None
    found = []
    for positions in (s.q_positions, s.k_positions):
        angle = rotary_angles(
            positions, rotary_dim=s.spec.rotary_dim, base=rope.base, scaling=rope.scaling
        )
        found.append((angle.cos(), angle.sin()))
    return found[0], found[1]


def position_bias(s: Setting) -> Tensor | None:
    """What positions add to the scores: ALiBi or a learned bias by distance, (B, Hq, Tq, Tk)."""
    positions = s.spec.positions
    if isinstance(positions, Alibi):
        return alibi_bias(positions, s.spec.num_heads, s.q_positions, s.k_positions)
    if isinstance(positions, RelativeBias):
        assert s.parameters.relative_bias is not None
        buckets = relative_buckets(positions, s.q_positions, s.k_positions)
        return s.parameters.relative_bias[buckets].movedim(-1, 1)
    return None


def check_inputs(spec: AttentionSpec, inputs: Inputs) -> None:
    """Errors with both numbers for inputs that do not fit the spec."""
    if inputs.x is not None:
        check_last_axis("x", inputs.x, spec.d_model, "d_model")
        context, from_context = (
            (inputs.x, "x") if inputs.context is None else (inputs.context, "context")
        )
        values, from_values = (
            (context, from_context) if inputs.values is None else (inputs.values, "values")
        )
        check_last_axis(from_context, context, spec.d_context, "d_context")
        check_last_axis(from_values, values, spec.d_values, "d_values")
        check_same_keys(from_context, context, from_values, values, axis=1)
        return
    if inputs.q is None or inputs.k is None or inputs.v is None:
        raise ShapeError(
            _("neither x nor all of q, k and v are given"),
            where="Inputs",
            fix=_("Inputs(x=…) for a layer, Inputs(q=…, k=…, v=…) for a function"),
        )
    check_last_axis("q", inputs.q, spec.head_dim, "head_dim")
    check_last_axis("k", inputs.k, spec.head_dim, "head_dim")
    check_last_axis("v", inputs.v, spec.v_head_dim, "v_head_dim")
    check_same_keys("k", inputs.k, "v", inputs.v, axis=2)
    heads = (
        ("q", inputs.q, spec.num_heads),
        ("k", inputs.k, spec.num_kv_heads),
        ("v", inputs.v, spec.num_kv_heads),
    )
    for name, tensor, count in heads:
        if tensor.shape[1] != count:
            raise ShapeError(
                _("{name} has {got} heads, not {want}").format(
                    name=name, got=tensor.shape[1], want=count
                ),
                where=f"{name} {tuple(tensor.shape)}",
                why=_("axis 1 of a (B, H, T, D) tensor is the head"),
            )


def check_same_keys(k_name: str, k: Tensor, v_name: str, v: Tensor, *, axis: int) -> None:
    """An error if keys and values do not come from the same number of tokens."""
    if k.shape[axis] != v.shape[axis]:
        raise ShapeError(
            _("{k} has {k_len} tokens and {v} has {v_len}").format(
                k=k_name, k_len=k.shape[axis], v=v_name, v_len=v.shape[axis]
            ),
            where=f"{k_name} {tuple(k.shape)}, {v_name} {tuple(v.shape)}",
            why=_("every key has one value"),
        )


def check_parameters(spec: AttentionSpec, parameters: Parameters, inputs: Inputs) -> None:
    """Errors with both numbers for parameters that do not fit the spec, or that are missing."""
    q_rows = spec.num_heads * spec.head_dim
    k_rows, v_rows = spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.v_head_dim
    wanted: dict[str, tuple[int, ...]] = {}
    if inputs.x is not None:
        wanted |= {
            "q": (q_rows, spec.d_model),
            "k": (k_rows, spec.d_context),
            "v": (v_rows, spec.d_values),
        }
    if spec.sinks:
        wanted["sinks"] = (spec.num_heads,)
    if isinstance(spec.positions, RelativeBias):
        wanted["relative_bias"] = (spec.positions.num_buckets, spec.num_heads)
    if isinstance(spec.positions, Learned) and inputs.x is not None:
        table = parameters.positions
        rows = spec.positions.max_len or (inputs.q_len if table is None else table.shape[0])
        wanted["positions"] = (rows, spec.d_model)
    for name, shape in wanted.items():
        given = getattr(parameters, name)
        if given is None or tuple(given.shape) != shape:
            raise ShapeError(
                _("parameter {name} is missing").format(name=name)
                if given is None
                else _("parameter {name} has shape {got}, not {want}").format(
                    name=name, got=tuple(given.shape), want=shape
                ),
                where=f"Parameters({name}=…)",
                why=_("the spec asks for it, with shape {want}").format(want=shape),
            )
