"""What several labs draw: weights for any spec, a matrix as a sheet, a verdict with a condition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headwise.labs.judge import interval, stated
from headwise.labs.lab import Outcome, Phrase, Series, Sheet, Value, Verdict
from headwise.labs.parts.lesson import normal
from headwise.numerics import float64_allowance, largest
from headwise.reference import Parameters, Trace
from headwise.spec import AttentionSpec, Learned, RelativeBias
from headwise.texts import mark as N_


def generator(seed: int) -> torch.Generator:
    """A generator of one's own."""
    return torch.Generator().manual_seed(seed)


def parameters(spec: AttentionSpec, generator: torch.Generator, *, max_len: int = 16) -> Parameters:
    """Every parameter that a spec has; matrices with entries of size 1/√(row length)."""
    rows = {
        "q": spec.num_heads * spec.head_dim,
        "k": spec.num_kv_heads * spec.head_dim,
        "v": spec.num_kv_heads * spec.v_head_dim,
        "o": spec.d_model,
    }
    columns = {
        "q": spec.d_model,
        "k": spec.d_context,
        "v": spec.d_values,
        "o": spec.num_heads * spec.v_head_dim,
    }
    made = {n: normal(generator, rows[n], columns[n], factor=columns[n] ** -0.5) for n in rows}
    made |= {f"{name}_bias": normal(generator, rows[name]) for name in spec.biases}
    if spec.sinks:
        made["sinks"] = normal(generator, spec.num_heads)
    if spec.qk_norm is not None:
        made |= {f"{name}_norm": 1.0 + normal(generator, spec.head_dim) / 2 for name in "qk"}
    if isinstance(spec.positions, Learned):
        made["positions"] = normal(generator, spec.positions.max_len or max_len, spec.d_model)
    if isinstance(spec.positions, RelativeBias):
        made["relative_bias"] = normal(generator, spec.positions.num_buckets, spec.num_heads)
    return Parameters(**made)


def allowance(spec: AttentionSpec, trace: Trace, *tensors: Tensor) -> float:
    """What rounding may do to float64 results of a run; the scale is the largest of ``tensors``."""
    terms = spec.d_model + spec.head_dim + trace.scores.shape[-1] + trace.v.shape[1] * spec.d_model
    seen = trace.scores.detach().masked_fill(~trace.visible, 0.0)
    return float64_allowance(
        terms=terms, scale=max(largest(tensors), 1.0), sharpness=1.0 + largest([seen])
    )


def conditional(inside: bool, outside: bool) -> Verdict:
    """A statement that was tried where it is meant and beyond.

    Example:
        >>> conditional(True, True), conditional(True, False), conditional(False, False)
        ('holds', 'holds-under-conditions', 'does-not-hold')
    """
    return "holds-under-conditions" if inside and not outside else stated(inside)


def matrix(
    name: str, title: Phrase, numbers: Tensor, rows: Sequence[str], columns: Sequence[str]
) -> Sheet:
    """A matrix with a label for every row and column."""
    body: list[list[Value]] = [
        [label, *map(float, row)]
        for label, row in zip(rows, numbers.detach().tolist(), strict=True)
    ]
    headings = (Phrase(N_("row")), *(Phrase(c) for c in columns))
    return Sheet(name, title, ("row", *columns), body, headings)


def listing(
    name: str, title: str, quantities: Mapping[str, Value], *, shown: bool = False
) -> Sheet:
    """Named numbers, one a row: ids for the CSV, so not in the report unless asked for."""
    headings = (Phrase(N_("quantity")), Phrase(N_("value")))
    rows = list(quantities.items())
    return Sheet(name, Phrase(title), ("quantity", "value"), rows, headings, shown)


def outcome(
    claim: str,
    verdict: Verdict,
    figure: str,
    text: str,
    fields: Mapping[str, Value] | None = None,
    condition: Phrase | str | None = None,
    *,
    timed: bool = False,
) -> Outcome:
    """An ``Outcome`` whose condition is named only where the verdict has one."""
    if isinstance(condition, str):
        condition = Phrase(condition)
    used = condition if verdict == "holds-under-conditions" else None
    return Outcome(claim, verdict, Phrase(text, fields or {}), figure, used, timed)


def spread(label: str, x: Sequence[Value], groups: Sequence[Sequence[float]]) -> Series:
    """A series of means with their 95 % intervals."""
    found = [interval(list(values)) for values in groups]
    mean, low, high = ([getattr(f, end) for f in found] for end in ("mean", "low", "high"))
    return Series(Phrase(label), list(x), mean, low, high)


def mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """Mean of a quantity over draws."""
    return math.fsum(row[name] for row in rows) / len(rows)


def orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows that span the same, by Gram and Schmidt, twice.

    Library factorisations may differ in the last digit from call to call; this one repeats exactly.

    Example:
        >>> orthonormal(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))[0].tolist()
        [0.6000000238418579, 0.800000011920929]
    """
    made: list[Tensor] = []
    for row in rows:
        rest = row
        for other in [*made, *made]:
            rest = rest - (rest * other).sum() * other
        made.append(rest / rest.square().sum().sqrt())
    return torch.stack(made)
