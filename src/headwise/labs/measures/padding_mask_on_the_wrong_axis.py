"""Measurements of ``padding-mask-on-the-wrong-axis``: where the T axis goes, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.labs.parts.lesson import (
    LessonLayer,
    definition_of,
    future,
    gap,
    lesson_layer,
    normal,
    padding,
)
from headwise.reference import Inputs, Trace, attend
from headwise.verifier.faults import find_fault

PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "[B,1,1,T]": lambda pad: pad[:, None, None, :],
    "[B,1,T,1]": lambda pad: pad[:, None, :, None],
    "[B,T,1,1]": lambda pad: pad[:, :, None, None],
    "[T,B,1,1]": lambda pad: pad.T[:, :, None, None],
    "[B,T]": lambda pad: pad,
}
"""The four places of the T axis, and the mask as it is (it then lies on queries × keys)."""

HOWS = ("masked_fill", "masked_fill_", "addition", "SDPA")
FILLS = {"-inf": -math.inf, "-1e9": -1e9}
STATUSES = ("raises", "fails later", "silently wrong", "right")
WRONG = "[B,T,1,1]"
"""The error that the course injects; M03 in the catalogue."""


def attempt(
    layer: LessonLayer, x: Tensor, pad: Tensor, place: str, how: str, fill: float
) -> dict[str, Any]:
    """What happens with a mask in a place: status, error message, NaN among real rows."""
    hidden = PLACES[place](pad)
    q, k, v = layer.heads(x)
    scores = layer.scores(q, k)
    found: dict[str, Any] = {"status": "raises", "message": "", "nan": None}
    try:
        if how == "SDPA":
            mask = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill(hidden, fill)
            context = F.scaled_dot_product_attention(
                q, k, v, attn_mask=~hidden if fill == -math.inf else mask
            )
            output = layer.merge(context, v)
        else:
            masked = masked_scores(scores, hidden, how, fill)
            found["status"] = "fails later"
            output = layer.finish(masked.softmax(dim=-1), v)
    except RuntimeError as error:
        return {**found, "message": str(error).splitlines()[0]}
    right = PLACES["[B,1,1,T]"](pad).expand(scores.shape)
    same = bool((hidden.expand(scores.shape) == right).all())
    bad = output[~pad].isnan().any(-1).double().mean()
    return {"status": "right" if same else "silently wrong", "message": "", "nan": float(bad)}


def masked_scores(scores: Tensor, hidden: Tensor, how: str, fill: float) -> Tensor:
    """Hidden scores filled out of place, in place, or by an addend."""
    if how == "masked_fill_":
        return scores.clone().masked_fill_(hidden, fill)
    if how == "addition":
        return scores + torch.zeros(hidden.shape, dtype=scores.dtype).masked_fill(hidden, fill)
    return scores.masked_fill(hidden, fill)


def grid(sizes: Sequence[tuple[int, int, int]], seed: int, d: int) -> Iterator[dict[str, Any]]:
    """Every size, place, way and fill on a layer without causality."""
    for b, t, h in sizes:
        layer = lesson_layer(d, h, seed=seed, is_causal=False)
        x = normal(torch.Generator().manual_seed(seed), b, t, d)
        pad = padding([max(t - 2 * (i % 2), 1) for i in range(b)], t)
        for place in PLACES:
            for how in HOWS:
                for name, fill in FILLS.items():
                    with torch.no_grad():
                        found = attempt(layer, x, pad, place, how, fill)
                    yield {
                        "B": b,
                        "T": t,
                        "H": h,
                        "place": place,
                        "how": how,
                        "fill": name,
                        **found,
                    }


# ---------------------------------------------------------------------------------- two real tokens
Run = Callable[[Inputs], Trace]
VARIANTS = {
    "right axis": ("", ""),
    "no mask": ("M04", "fill lowest"),
    "query axis": ("M02", "fill lowest"),
    "head axis, finite fill": ("M03", "fill lowest"),
    "head axis, finite addend": ("M03", "add -1e9"),
    "head axis, -inf": ("M03", "fill -inf"),
}
"""The definition and faults of the catalogue, by code and variant."""


def runner(layer: LessonLayer, name: str) -> Run:
    """The definition, or one of the catalogue's faults, with the weights of a layer."""
    spec, parameters = definition_of(layer)
    code, label = VARIANTS[name]
    if not code:
        return lambda inputs: attend(spec, parameters, inputs)
    variant = next(v for v in find_fault(code).variants(spec) if v.label == label)
    return lambda inputs: variant.run(spec, parameters, inputs)


SETTINGS = (("not causal", False, False), ("causal, right padding", True, False),
            ("causal, left padding", True, True))  # fmt: skip


def movements(seed: int, draws: int, d: int) -> dict[tuple[str, str], list[float]]:
    """How far real rows move when the pad tokens change: T = H = 4, two real tokens; per draw."""
    found: dict[tuple[str, str], list[float]] = {}
    for draw in range(draws):
        g = torch.Generator().manual_seed(1000 * seed + draw)
        x, noise = normal(g, 2, 4, d), normal(g, 2, 4, d)
        for setting, causal, left in SETTINGS:
            layer = lesson_layer(d, 4, seed=1000 * seed + draw, is_causal=causal)
            pad = padding([4, 2], 4, left=left)
            changed = torch.where(pad[..., None], noise, x)
            for name in VARIANTS:
                run = runner(layer, name)
                a, b = (run(Inputs(x=y, keep=~pad)).output[1][~pad[1]] for y in (x, changed))
                found.setdefault((name, setting), []).append(gap(a, b))
    return found


def hidden_heads(seed: int, d: int) -> dict[str, Any]:
    """What the mask on the head axis hides (T = H = 4, two real tokens), and the weights."""
    x = normal(torch.Generator().manual_seed(seed), 1, 4, d)
    pad = padding([2], 4)
    layer = lesson_layer(d, 4, seed=seed)
    cells = {
        name: PLACES[place](pad).expand(1, 4, 4, 4)[0].double().mean(1)  # (H, Tk)
        for name, place in (("right", "[B,1,1,T]"), ("wrong", WRONG))
    }
    inputs = Inputs(x=x, keep=~pad)
    filled = runner(layer, "head axis, finite fill")(inputs).weights[0, 2:]
    with_nan = runner(layer, "head axis, -inf")(inputs).output
    added = {}
    for dtype in (torch.float64, torch.float32):
        low = lesson_layer(d, 4, seed=seed, is_causal=False).to(dtype)
        q, k, _ = low.heads(x.to(dtype))
        scores = low.scores(q, k).detach()
        weights = masked_scores(scores, PLACES[WRONG](pad), "addition", -1e9).softmax(-1)[0, 2:]
        name = str(dtype).removeprefix("torch.")
        added[f"{name} unmasked"] = gap(weights, scores.softmax(-1)[0, 2:])
        added[f"{name} uniform"] = gap(weights, torch.full_like(weights, 0.25))
    return {
        "cells": cells,
        "uniform": gap(filled, torch.full_like(filled, 0.25)),
        "future": float(filled.masked_select(future(4)).min()),
        "nan": float(with_nan.isnan().double().mean()),
        **added,
    }


# ---------------------------------------------------------------------------------- right masks
def needed(seed: int, d: int) -> list[tuple[str, bool, float, int]]:
    """Where a right mask matters: (padding, causal, change of real rows, empty rows)."""
    g = torch.Generator().manual_seed(seed)
    x = normal(g, 1, 6, d)
    pads = {
        "right": torch.tensor([[0, 0, 0, 0, 1, 1]]).bool(),
        "left": torch.tensor([[1, 1, 0, 0, 0, 0]]).bool(),
        "middle": torch.tensor([[0, 0, 1, 1, 0, 0]]).bool(),
    }
    rows = []
    for causal in (True, False):
        layer = lesson_layer(d, 4, seed=seed, is_causal=causal)
        spec, parameters = definition_of(layer)
        for name, pad in pads.items():
            masked = attend(spec, parameters, Inputs(x=x, keep=~pad))
            plain = attend(spec, parameters, Inputs(x=x))
            empty = ~masked.visible.any(-1)[0, 0]
            change = gap(masked.output[~pad], plain.output[~pad])
            rows.append((name, causal, change, int(empty.sum())))
    return rows


def poisoned(seed: int, d: int) -> list[dict[str, Any]]:
    """The course's layer on padded batches, loss on real rows: share of NaN, part by part."""
    g = torch.Generator().manual_seed(seed)
    x = normal(g, 2, 6, d)
    up = normal(g, 2, 6, d)
    rows = []
    for side in ("right", "left"):
        layer = lesson_layer(d, 4, seed=seed)
        spec, parameters = definition_of(layer)
        pad = padding([6, 3], 6, left=side == "left")
        leaf = x.clone().requires_grad_(True)
        y, _ = layer(leaf, pad)
        truth = attend(spec, parameters, Inputs(x=x, keep=~pad)).output
        (y[~pad] * up[~pad]).sum().backward()
        assert layer.qkv.weight.grad is not None and leaf.grad is not None
        assert layer.out.weight.grad is not None
        q, k, v = layer.qkv.weight.grad.chunk(3)
        parts = {
            "output, real rows": y[~pad], "output, pad rows": y[pad], "gradient of W_q": q,
            "gradient of W_k": k, "gradient of W_v": v, "gradient of W_o": layer.out.weight.grad,
            "gradient of x, full sample": leaf.grad[0],
            "gradient of x, padded sample": leaf.grad[1],
        }  # fmt: skip
        share = {name: float(t.isnan().double().mean()) for name, t in parts.items()}
        rows.append({"side": side, "real_error": gap(y[~pad], truth[~pad]), **share})
    return rows


def causal_shapes(seed: int, d: int) -> dict[str, Any]:
    """[T,T], [1,1,T,T] and the expanded mask: the same result; bytes of each at full size."""
    b, h, t = 3, 4, 6
    layer = lesson_layer(d, h, seed=seed, is_causal=False)
    q, k, v = layer.heads(normal(torch.Generator().manual_seed(seed), b, t, d))
    square = future(t)
    masks = {
        "[T,T]": square,
        "[1,1,T,T]": square[None, None],
        "[B,H,T,T]": square.expand(b, h, t, t).contiguous(),
    }
    with torch.no_grad():
        out = {
            name: layer.finish(layer.scores(q, k).masked_fill(m, -math.inf).softmax(-1), v)
            for name, m in masks.items()
        }
    one_query = layer.scores(q[:, :, -1:], k)
    try:
        one_query.masked_fill_(square[None, None], -math.inf)
        square_fits = True
    except RuntimeError:
        square_fits = False
    return {
        "gap": max(gap(out["[T,T]"], o) for o in out.values()),
        "bytes": {name: m.nelement() * m.element_size() for name, m in masks.items()},
        "fits_one_query": square_fits,
    }


def pad_queries(seed: int, d: int) -> tuple[bool, float]:
    """Rows of padded queries under the right mask: all finite? their largest value."""
    layer = lesson_layer(d, 4, seed=seed)
    pad = padding([4, 2], 4)
    with torch.no_grad():
        rows = layer(normal(torch.Generator().manual_seed(seed), 2, 4, d), pad)[0][pad]
    return bool(rows.isfinite().all()), float(rows.abs().max())
