"""Parameters: what a layer stores."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.cost.expression import Expression, Size, Sum
from headwise.cost.figure import Figure
from headwise.cost.sizes import Letters
from headwise.spec import AttentionSpec, Learned, RelativeBias
from headwise.texts import mark as N_

_HEADS = N_("depends on Hq·Dk alone: more heads of the same total width store nothing more")


def parameters(spec: AttentionSpec) -> Figure:
    """Parameters of one attention layer, per projection.

    ``q_proj = Dm·Hq·Dk``, ``k_proj = Dc·Hkv·Dk``, ``v_proj = Dval·Hkv·Dv``, ``out_proj =
    Hq·Dv·Dm``, each with its bias where the spec has one, and what norms, sinks, tables of
    positions and relative biases store.

    Example:
        >>> [parameters(AttentionSpec(d_model=768, num_heads=h)).value for h in (1, 12, 96)]
        [2359296, 2359296, 2359296]
        >>> parameters(AttentionSpec(d_model=768, num_heads=12)).part("q_proj").receipt()
        'Dm·Hq·Dk = 768·12·64 = 589,824 parameter'
    """
    z = Letters(spec)
    parts = [
        _linear("q_proj", z.Dm, z.Hq * z.Dk, bias="q" in spec.biases, note=_HEADS),
        _linear("k_proj", z.Dc, z.Hkv * z.Dk, bias="k" in spec.biases),
        _linear("v_proj", z.Dval, z.Hkv * z.Dv, bias="v" in spec.biases),
        _linear("out_proj", z.Hq * z.Dv, z.Dm, bias="o" in spec.biases),
    ]
    if spec.qk_norm is not None:
        vectors = 2 if spec.qk_norm.kind == "rms" else 4
        note = N_("a gain per channel of a head, for queries and for keys; a layer norm also adds")
        parts.append(Figure("qk_norm", vectors * z.Dk, "parameter", note=note))
    if spec.sinks:
        parts.append(Figure("sinks", z.Hq, "parameter", note=N_("one logit per head")))
    if isinstance(spec.positions, RelativeBias):
        buckets = Size("n", spec.positions.num_buckets)
        note = N_("one number per bucket of distance and head")
        parts.append(Figure("relative_bias", buckets * z.Hq, "parameter", note=note))
    if isinstance(spec.positions, Learned) and spec.positions.max_len:
        rows = Size("P", spec.positions.max_len)
        parts.append(Figure("positions", rows * z.Dm, "parameter"))
    return total("attention", parts, "parameter")


def total(
    name: str, parts: Sequence[Figure], unit: str, *, note: str = "", source: str = ""
) -> Figure:
    """The sum of some figures, as a figure."""
    return Figure(name, Sum(tuple(parts)), unit, note=note, source=source)


def _linear(name: str, wide_in: Expression, wide_out: Expression, *, bias: bool, note: str = ""
            ) -> Figure:  # fmt: skip
    weight = wide_in * wide_out
    return Figure(name, weight + wide_out if bias else weight, "parameter", note=note)
