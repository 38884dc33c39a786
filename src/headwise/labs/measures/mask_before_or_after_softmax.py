"""Measurements of ``mask-before-or-after-softmax``: numbers that hide, and when to write them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.labs.parts.lesson import definition_of, gap, lesson_layer, normal, padding
from headwise.masks import Causal, to_convention
from headwise.reference import Inputs, attend
from headwise.verifier.faults import find_fault
from headwise.verifier.faults.masking import NEAR_ZERO

DTYPES = (torch.float64, torch.float32, torch.float16)
VALUES = ("-inf", "finfo.min", "-1e9", "-1e4", "-1e-09", "1e-09")
SCORES = ("ordinary", "all near -2e4", "hidden near +2e4")
HIDDEN = 3
"""Of eight keys, the last three are hidden."""


def name_of(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def value_of(name: str, dtype: torch.dtype) -> float:
    """The number behind a name; ±1e-9 are those of the catalogue (M14)."""
    if name == "finfo.min":
        return float(torch.finfo(dtype).min)
    return next((v for v in NEAR_ZERO if f"{v:g}" == name), float(name))


def hide(scores: Tensor, hidden: Tensor, value: float, how: str, times: int = 1) -> Tensor:
    """Scores with hidden cells filled, or with an addend written ``times`` times.

    Raises:
        RuntimeError: where the dtype can't hold a fill.
    """
    if how == "fill":
        return scores.masked_fill(hidden, value)
    zero = torch.zeros((), dtype=scores.dtype)
    addend = torch.where(hidden, torch.tensor(value, dtype=torch.float64).to(scores.dtype), zero)
    for _ in range(times):
        scores = scores + addend
    return scores


def scores_of(kind: str, g: torch.Generator, rows: int, dtype: torch.dtype) -> Tensor:
    """(rows, 8) scores of one kind."""
    scores = normal(g, rows, 8)
    if kind == "all near -2e4":
        scores = scores * 100 - 2e4
    elif kind == "hidden near +2e4":
        scores[:, -HIDDEN:] += 2e4
    return scores.to(dtype)


def after_empty(weights: Tensor, scores: Tensor) -> str:
    """What became of a row in which all keys are hidden."""
    if weights.isnan().any():
        return "NaN"
    if float(weights.abs().max()) == 0:
        return "zero"
    if gap(weights, torch.full_like(weights, 1 / weights.shape[-1])) < 1e-3:
        return "uniform"
    return "by score" if gap(weights, scores.double().softmax(-1)) < 1e-2 else "other"


def fills(seed: int, rows: int) -> Iterator[dict[str, Any]]:
    """Every number, way, precision and kind of scores."""
    hidden = (torch.arange(8) >= 8 - HIDDEN).expand(rows, -1)
    for dtype in DTYPES:
        for kind in SCORES:
            scores = scores_of(kind, torch.Generator().manual_seed(seed), rows, dtype)
            truth = scores.double().masked_fill(hidden, -math.inf).softmax(-1)
            for name in VALUES:
                for how in ("fill", "addend"):
                    row: dict[str, Any] = {
                        "dtype": name_of(dtype), "scores": kind, "value": name, "how": how,
                        "result": "", "hidden": None, "visible_error": None, "empty": "",
                    }  # fmt: skip
                    value = value_of(name, dtype)
                    try:
                        weights = hide(scores, hidden, value, how).softmax(-1).double()
                        everything = torch.ones_like(hidden)
                        empty = hide(scores, everything, value, how).softmax(-1).double()
                    except RuntimeError:
                        yield {**row, "result": "raises"}
                        continue
                    row["hidden"] = float(weights[:, -HIDDEN:].sum(-1).max())
                    row["visible_error"] = gap(weights, truth)
                    row["empty"] = after_empty(empty, scores)
                    yield {**row, "result": "ok"}


def twice(seed: int) -> dict[str, str]:
    """finfo.min added twice: what becomes of an empty row, per precision."""
    found = {}
    for dtype in DTYPES:
        scores = scores_of("ordinary", torch.Generator().manual_seed(seed), 4, dtype)
        lowest = value_of("finfo.min", dtype)
        weights = hide(scores, torch.ones_like(scores).bool(), lowest, "addend", 2).softmax(-1)
        found[name_of(dtype)] = after_empty(weights.double(), scores)
    return found


# ---------------------------------------------------------------------------------- before, after
def orders(seed: int, draws: int, d: int) -> list[dict[str, float]]:
    """Row sums of visible weights before and after, renormalised, and the reach of hidden keys.

    "After" is M12 of the catalogue, on a causal layer with left padding; rows with a visible key.
    """
    after = next(v for v in find_fault("M12").variants(definition_of(lesson_layer(d, 4, seed=0))[0])
                 if v.label == "all")  # fmt: skip
    rows = []
    for draw in range(draws):
        g = torch.Generator().manual_seed(1000 * seed + draw)
        spec, parameters = definition_of(lesson_layer(d, 4, seed=1000 * seed + draw))
        x, noise = normal(g, 2, 8, d), normal(g, 2, 8, d)
        pad = padding([8, 5], 8, left=True)
        real = ~pad
        changed = torch.where(pad[..., None], noise, x)
        seen = attend(spec, parameters, Inputs(x=x, keep=real)).visible

        before, before_moved, late, late_moved = (
            run(spec, parameters, Inputs(x=y, keep=real)).weights
            for run in (attend, after.run)
            for y in (x, changed)
        )
        rows_with_keys = seen.any(-1).expand(before.shape[:-1])
        sums = late.sum(-1, keepdim=True)
        again = torch.where(sums > 0, late / sums, torch.zeros_like(late))
        rows.append({
            "before": float((before.sum(-1)[rows_with_keys] - 1).abs().max()),
            "sum_before": float(before.sum(-1)[rows_with_keys].mean()),
            "sum_after": float(late.sum(-1)[rows_with_keys].mean()),
            "least_after": float(late.sum(-1)[rows_with_keys].min()),
            "sum_again": float(again.sum(-1)[rows_with_keys].mean()),
            "renormalised": gap(again, before),
            "reach_before": gap(before_moved, before),
            "reach_after": gap(late_moved, late),
        })  # fmt: skip
    return rows


VISIBLE = (0.0, -1.0)
"""Visible scores of the search for the gap; a hidden key lies above them."""


def renormalised(distance: float, dtype: torch.dtype) -> Tensor:
    """Visible weights when the mask is multiplied after the softmax and the row renormalised."""
    scores = torch.tensor([*VISIBLE, distance], dtype=dtype)
    kept = scores.softmax(-1) * torch.tensor([1, 1, 0], dtype=dtype)
    return (kept / kept.sum())[:2].double()


def renormalising_error(distance: float, dtype: torch.dtype) -> float:
    """Relative error of those weights; NaN once they are 0/0."""
    truth = torch.tensor(VISIBLE, dtype=torch.float64).softmax(-1)
    return float(((renormalised(distance, dtype) - truth) / truth).abs().max())


def breaking_gap(dtype: torch.dtype, allowed: float = math.inf) -> float:
    """Smallest gap at which the relative error exceeds a number or is NaN, by bisection.

    Args:
        dtype: precision of the softmax.
        allowed: largest error that passes; infinity = anything but NaN.
    """

    def fails(distance: float) -> bool:
        return not renormalising_error(distance, dtype) <= allowed

    low, high = 0.0, 2000.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


# ---------------------------------------------------------------------------------- causal matrices
def causal_matrix() -> tuple[bool, bool]:
    """Whether the course's 4×4 matrix is ours, and whether its −∞ lie strictly above."""
    inf = -math.inf
    literal = torch.tensor(
        [[0, inf, inf, inf], [0, 0, inf, inf], [0, 0, 0, inf], [0, 0, 0, 0]], dtype=torch.float64
    )
    ours = to_convention(
        "onnx-additive", Causal(), q_len=4, kv_len=4, batch=1, dtype=torch.float64
    )[0, 0]
    strictly = torch.full((4, 4), inf, dtype=torch.float64).triu(1)
    return bool((literal == ours).all()), bool((literal == strictly).all())


def diagonals(seed: int) -> list[tuple[int, float, float, float]]:
    """triu(diagonal=0, 1, 2): (diagonal, NaN rows, future weight, weight of hidden cells)."""
    scores = normal(torch.Generator().manual_seed(seed), 4, 4)
    after = torch.ones(4, 4, dtype=torch.bool).triu(1)
    rows = []
    for diagonal in (0, 1, 2):
        hidden = torch.ones(4, 4, dtype=torch.bool).triu(diagonal)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        bad = weights.isnan().any(-1)
        rows.append((
            diagonal, float(bad.sum()), float(weights[~bad][after[~bad]].max()),
            float(weights[~bad][hidden[~bad]].max()),
        ))  # fmt: skip
    return rows


def axis_sums(seed: int, d: int) -> dict[str, float]:
    """Largest distance of a query's weights from summing to 1, for the softmax over each axis."""
    layer = lesson_layer(d, 4, seed=seed, is_causal=False)
    spec, parameters = definition_of(layer)
    inputs = Inputs(x=normal(torch.Generator().manual_seed(seed), 2, 5, d))
    found = {"keys": attend(spec, parameters, inputs).weights}
    for name, code in (("queries", "X01"), ("heads", "X02")):
        variant = next(iter(find_fault(code).variants(spec)))
        found[name] = variant.run(spec, parameters, inputs).weights
    return {name: float((w.sum(-1) - 1).abs().max()) for name, w in found.items()}
