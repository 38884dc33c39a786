"""Faults of positions: R."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import (
    angles_of,
    apply_positions,
    read_input,
    score,
)
from headwise.reference.positions import alibi_slopes, rotate, sinusoidal_table
from headwise.reference.setting import Setting
from headwise.spec import Alibi, AttentionSpec, Learned, Rope, Sinusoidal
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register, under

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 5000000.0, 1000.0, 100.0, 10.0, 1e7)
"""Frequency bases in use, tried for R03."""


# ------------------------------------------------------------------ rotation
def pairs_swapped(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is not None:
        other = "neighbours" if spec.rope.pairs == "halves" else "halves"
        rope = dataclasses.replace(spec.rope, pairs=other)
        yield Variant(f"{other} pairs", {"positions": under(apply_positions, positions=rope)})


def wrong_base(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return
    for base in BASES:
        if base != spec.rope.base:
            rope = dataclasses.replace(spec.rope, base=base)
            yield Variant(f"base {base:g}", {"positions": under(apply_positions, positions=rope)})


def values_rotated(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None or spec.rotary_dim > spec.v_head_dim:
        return
    pairs = spec.rope.pairs

    def stage(t: Trace, s: Setting) -> None:
        apply_positions(t, s)
        t.v = rotate(t.v, *angles_of(s)[1], pairs=pairs)

    yield Variant("", {"positions": stage})


def one_side(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return

    def only(name: str) -> StageFunction:
        def stage(t: Trace, s: Setting) -> None:
            apply_positions(t, s)
            kept = getattr(t, name)
            apply_positions(t, s.with_spec(positions=None))
            setattr(t, name, kept)

        return stage

    yield Variant("queries only", {"positions": only("q_pos")})
    yield Variant("keys only", {"positions": only("k_pos")})


def not_rotated(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is not None:
        yield Variant("", {"positions": under(apply_positions, positions=None)})


Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def turning(turn: Turn, change: Callable[[Setting], Setting] = lambda s: s) -> StageFunction:
    """The positions stage with another rotation of q and of k: turn(x, cos, sin)."""

    def stage(t: Trace, s: Setting) -> None:
        apply_positions(t, s.with_spec(positions=None))
        q_angles, k_angles = angles_of(change(s))
        t.q_pos, t.k_pos = turn(t.q_pos, *q_angles), turn(t.k_pos, *k_angles)

    return stage


def tables_disagree(spec: AttentionSpec) -> Iterable[Variant]:
    rope, n = spec.rope, spec.rotary_dim
    if rope is None or (spec.qk_norm is not None and spec.qk_norm.order == "after-rope"):
        return

    def mixed(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, rest = x[..., :n], x[..., n:]
        if rope.pairs == "halves":
            cos, sin = (a.repeat_interleave(2, -1)[:, None] for a in (cos, sin))
            partner = torch.cat([-x[..., n // 2 :], x[..., : n // 2]], -1)
        else:
            cos, sin = (torch.cat([a, a], -1)[:, None] for a in (cos, sin))
            partner = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return torch.cat([x * cos + partner * sin, rest], -1)

    yield Variant("", {"positions": turning(mixed)})


def wrong_dim(spec: AttentionSpec) -> Iterable[Variant]:
    rope, n = spec.rope, spec.rotary_dim
    if rope is None or (spec.qk_norm is not None and spec.qk_norm.order == "after-rope"):
        return
    dims = {"d_model": spec.d_model, "head_dim": spec.head_dim, "rotary_dim / 2": n // 2}
    dims["2 · rotary_dim"] = 2 * n
    for label, dim in dims.items():
        if dim != n:
            # base ** (-2i/dim) is the formula with another base
            base = rope.base ** (n / dim)
            changed = dataclasses.replace(rope, base=base)
            yield Variant(label, {"positions": under(apply_positions, positions=changed)})


def opposite(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None or (spec.qk_norm is not None and spec.qk_norm.order == "after-rope"):
        return
    pairs = spec.rope.pairs

    def stage(t: Trace, s: Setting) -> None:
        apply_positions(t, s.with_spec(positions=None))
        (q_cos, q_sin), (k_cos, k_sin) = angles_of(s)
        t.q_pos = rotate(t.q_pos, q_cos, q_sin * sign, pairs=pairs)
        t.k_pos = rotate(t.k_pos, k_cos, -k_sin * sign, pairs=pairs)

    sign = 1.0
    yield Variant("", {"positions": stage})


# ------------------------------------------------------------------ positions added to the input
def slots_of(inputs_len: int, batch: int) -> Tensor:
    """Positions counted from the first slot."""
    return torch.arange(inputs_len).expand(batch, -1)


def added(t: Trace, s: Setting, positions: Tensor, times: float) -> None:
    """Add the absolute encoding of given positions to the input."""
    assert s.inputs.x is not None
    if isinstance(s.spec.positions, Learned):
        assert s.parameters.positions is not None
        table = s.parameters.positions[positions]
    else:
        table = sinusoidal_table(positions, d_model=s.spec.d_model)
    own_keys, own_values = s.inputs.context is None, s.inputs.values is None
    t.x_q = s.inputs.x + times * table.to(s.inputs.x.dtype)
    t.x_kv = t.x_q if own_keys else s.inputs.context  # type: ignore[assignment]
    t.x_v = t.x_kv if own_values else s.inputs.values  # type: ignore[assignment]


def absolute(spec: AttentionSpec) -> bool:
    return isinstance(spec.positions, Learned | Sinusoidal)


def left_padding_ignored(spec: AttentionSpec) -> Iterable[Variant]:
    if absolute(spec):

        def stage(t: Trace, s: Setting) -> None:
            if s.inputs.x is not None:
                added(t, s, slots_of(s.inputs.q_len, s.inputs.batch), 1.0)

        yield Variant("", {"input": stage})


def missing_or_doubled(spec: AttentionSpec) -> Iterable[Variant]:
    if not absolute(spec):
        return
    yield Variant("missing", {"input": under(read_input, positions=None)})

    def stage(t: Trace, s: Setting) -> None:
        if s.inputs.x is not None:
            added(t, s, s.q_positions, 2.0)

    yield Variant("doubled", {"input": stage})


# ------------------------------------------------------------------ ALiBi
def slopes_of(spec: AttentionSpec) -> tuple[float, ...] | None:
    if not isinstance(spec.positions, Alibi):
        return None
    return spec.positions.slopes or tuple(alibi_slopes(spec.num_heads))


def with_slopes(slopes: Iterable[float]) -> StageFunction:
    return under(score, positions=Alibi(slopes=tuple(slopes)))


def sign_flipped(spec: AttentionSpec) -> Iterable[Variant]:
    slopes = slopes_of(spec)
    if slopes is not None:
        yield Variant("", {"scores": with_slopes(-slope for slope in slopes)})


def wrong_slopes(spec: AttentionSpec) -> Iterable[Variant]:
    slopes = slopes_of(spec)
    if slopes is None:
        return
    h = spec.num_heads
    nearest = 2 ** math.floor(math.log2(h))
    series = {
        "power-of-two formula": [2.0 ** (-8.0 * (i + 1) / h) for i in range(h)],
        "formula of the lower power of two": [
            2.0 ** (-8.0 * (i + 1) / nearest) for i in range(h)
        ],
        "series starts at 1": [2.0 ** (-8.0 * i / h) for i in range(h)],
        "heads in reverse order": list(slopes)[::-1],
        "one slope for all heads": [slopes[0]] * h,
        "1/h": [1.0 / (i + 1) for i in range(h)],
        "2^-h": [2.0 ** -(i + 1) for i in range(h)],
    }
    for label, values in series.items():
        if tuple(values) != slopes:
            yield Variant(label, {"scores": with_slopes(values)})


def bias_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if slopes_of(spec) is not None:
        yield Variant("", {"scores": under(score, positions=None)})


def rope_of(spec: AttentionSpec) -> Rope | None:
    return spec.rope


register(
    Fault(
        code="R01",
        name="rotary-pairs-swapped",
        undeclared="convention",
        point="rope",
        shown_by=("two",),
        what=N_("the rotation pairs other channels than the specification says"),
        variants=pairs_swapped,
    ),
    Fault(
        code="R03",
        name="rotary-wrong-base",
        point="rope_base",
        rank=60,
        shown_by=("plain",),
        what=N_("the frequency base differs from the specification"),
        variants=wrong_base,
    ),
    Fault(
        code="R04",
        name="rotary-applied-to-values",
        shown_by=("plain",),
        what=N_("the values are rotated too"),
        variants=values_rotated,
    ),
    Fault(
        code="R05",
        name="rotary-query-only",
        shown_by=("two",),
        what=N_("only one of queries and keys is rotated"),
        variants=one_side,
    ),
    Fault(
        code="R06",
        name="rotary-angles-and-pairs-disagree",
        shown_by=("two",),
        what=N_("the angle table is laid out for one pairing and the rotation done with the other"),
        variants=tables_disagree,
    ),
    Fault(
        code="R07",
        name="rotary-frequencies-wrong-dim",
        shown_by=("two",),
        what=N_("the exponent of the frequencies uses another size than the rotated one"),
        variants=wrong_dim,
    ),
    Fault(
        code="R09",
        name="rotary-sign-flipped-on-one-side",
        shown_by=("two",),
        what=N_("queries and keys are turned in opposite directions"),
        variants=opposite,
    ),
    Fault(
        code="R10",
        name="rotary-stale-table",
        shown_by=("twice",),
        what=N_("the rotary table is kept with too small a key, so results depend on earlier calls"),
    ),
    Fault(
        code="R11",
        name="positions-ignore-left-padding",
        shown_by=("left",),
        what=N_("positions are counted from the first slot instead of the first real token"),
        variants=left_padding_ignored,
    ),
    Fault(
        code="R13",
        name="alibi-sign-flipped",
        shown_by=("plain",),
        what=N_("the ALiBi bias has the wrong sign, so far keys are favoured"),
        variants=sign_flipped,
    ),
    Fault(
        code="R14",
        name="alibi-wrong-slopes",
        shown_by=("plain",),
        what=N_("the ALiBi slopes follow another series than the one for this number of heads"),
        variants=wrong_slopes,
    ),
    Fault(
        code="R16",
        name="absolute-positions-missing-or-doubled",
        shown_by=("plain",),
        what=N_("absolute positions are not added to the input, or added twice"),
        variants=missing_or_doubled,
    ),
    Fault(
        code="R17",
        name="rotary-missing",
        point="rope",
        shown_by=("two",),
        what=N_("rotation is specified and neither queries nor keys are turned"),
        variants=not_rotated,
    ),
    Fault(
        code="R18",
        name="alibi-missing",
        shown_by=("plain",),
        what=N_("ALiBi is specified and nothing is added to the scores"),
        variants=bias_missing,
    ),
)
