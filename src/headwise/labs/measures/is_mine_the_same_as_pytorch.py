"""Measurements of ``is-mine-the-same-as-pytorch``: implementations, precisions, faults, masks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.labs.parts.lesson import (
    LessonLayer,
    definition_of,
    future,
    gap,
    lesson_layer,
    normal,
    official,
    padding,
    seeded,
)
from headwise.numerics import (
    compare,
    float64_allowance,
    largest,
    low_precision_allowance,
)
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec
from headwise.verifier.faults import FAULTS
from headwise.verifier.faults.masking import NothingToDoError

PARTS = ("output", "x", "qkv", "out")
"""What is compared: the output, and the gradients of the input and of both weights."""

KINDS = ("lesson", "official", "sdpa")


def literal() -> dict[str, float]:
    """The course's comparison, with its seed and its sizes."""
    with seeded(17):
        b, t, d, h = 2, 5, 16, 4
        x1 = torch.randn(b, t, d, dtype=torch.float64, requires_grad=True)
        x2 = x1.detach().clone().requires_grad_(True)
        mine = LessonLayer(d, h).double()
        ref = nn.MultiheadAttention(d, h, bias=False, batch_first=True).double()
    with torch.no_grad():
        ref.in_proj_weight.copy_(mine.qkv.weight)
        ref.out_proj.weight.copy_(mine.out.weight)
    mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
    y1, _ = mine(x1)
    y2, _ = ref(x2, x2, x2, attn_mask=mask, need_weights=False)
    y1.sum().backward()
    y2.sum().backward()
    assert x1.grad is not None and x2.grad is not None
    with torch.no_grad():
        opposite, _ = ref(x2, x2, x2, attn_mask=~mask, need_weights=False)
    return {
        "forward": gap(y1, y2),
        "gradient": gap(x1.grad, x2.grad),
        "inverted": gap(y1[:, :-1], opposite[:, :-1]),
    }


def run(
    kind: str, layer: LessonLayer, x: Tensor, pad: Tensor | None, upstream: Tensor
) -> dict[str, Tensor]:
    """Output and gradients of one implementation with the weights of ``layer``."""
    x = x.detach().clone().requires_grad_(True)
    layer = copy.deepcopy(layer)
    qkv, out = layer.qkv.weight, layer.out.weight
    t = x.shape[1]
    if kind == "official":
        module = official(layer)
        y, _ = module(x, x, x, attn_mask=future(t), key_padding_mask=pad, need_weights=False)
        qkv, out = module.in_proj_weight, module.out_proj.weight
    elif kind == "sdpa":
        seen = ~future(t)[None, None]
        if pad is not None:
            seen = seen & ~pad[:, None, None, :]
        context = F.scaled_dot_product_attention(*layer.heads(x), attn_mask=seen)
        y = layer.out(context.transpose(1, 2).flatten(2))
    elif kind == "definition":
        spec, _ = definition_of(layer)
        q, k, v = qkv.chunk(3)
        keep = None if pad is None else ~pad
        y = attend(spec, Parameters(q=q, k=k, v=v, o=out), Inputs(x=x, keep=keep)).output
    else:
        y, _ = layer(x, pad)
    grads = torch.autograd.grad((y * upstream).sum(), (x, qkv, out))
    return dict(zip(PARTS, (y.detach(), *grads), strict=True))


def precisions(seed: int, *, draws: int, d: int, h: int) -> list[dict[str, Any]]:
    """Error against float64 of each implementation by dtype, mask and part, worst of the draws."""
    found: dict[tuple[str, str, str, str], list[tuple[float, float, float]]] = {}
    for draw in range(draws):
        g = torch.Generator().manual_seed(seed * 1000 + draw)
        b, t = 3, 9
        x, up = normal(g, b, t, d), normal(g, b, t, d)
        layer = lesson_layer(d, h, seed=seed * 1000 + draw)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            low = copy.deepcopy(layer).to(dtype)
            exact, lx, lup = copy.deepcopy(low).double(), x.to(dtype), up.to(dtype)
            for mask, keys in (("causal", None), ("causal+padding", padding([t, t - 4, 2], t))):
                truth = run("definition", exact, lx.double(), keys, lup.double())
                plain = run("definition", low, lx, keys, lup)
                mine = run("lesson", low, lx, keys, lup)
                for kind in KINDS:
                    got = mine if kind == "lesson" else run(kind, low, lx, keys, lup)
                    for part in PARTS:
                        allowed = allowance(truth[part], plain[part], dtype, layer, (b, t), part)
                        key = (str(dtype).removeprefix("torch."), mask, part, kind)
                        found.setdefault(key, []).append(
                            (gap(got[part], truth[part]), allowed, gap(got[part], mine[part]))
                        )
    return [
        {
            **dict(zip(("dtype", "mask", "part", "kind"), key, strict=True)),
            "error": max(error for error, _a, _d in values),
            "allowed": min(allowed for _e, allowed, _d in values),
            "difference": max(difference for _e, _a, difference in values),
        }
        for key, values in found.items()
    ]


def allowance(
    truth: Tensor,
    plain: Tensor,
    dtype: torch.dtype,
    layer: LessonLayer,
    sizes: tuple[int, int],
    part: str,
) -> float:
    """What rounding explains for one part: derived in float64, from plain code below."""
    scale = largest([truth])
    if dtype != torch.float64:
        return low_precision_allowance(gap(plain, truth), dtype, scale)
    b, t = sizes
    d = layer.qkv.weight.shape[1]
    rows = 0 if part == "output" else b * t
    return float64_allowance(
        terms=d + layer.head_dim + t + d + rows, scale=scale, sharpness=SHARPNESS
    )


SHARPNESS = 4.0
"""1 + the largest absolute score of these draws, rounded up (default initialisation)."""


# ---------------------------------------------------------------------------------- faults
NO_EMPTY_ROWS = ("course", "right-padding")
"""Inputs on which plain code has gradients; elsewhere rows are empty and it gives NaN (lab 8)."""


@dataclass(frozen=True)
class Sighting:
    """What one variant of a fault did on one input.

    Args:
        code: of the fault.
        case: name of the input.
        raised: an error instead of a result.
        same_shape: the output has the right shape.
        forward: largest error of the output over the allowance, real rows only.
        gradient: the same for all gradients under a random upstream, where the output is right.
        sum_gradient: for the gradient of x under ``sum()``, where the output is right.
        error: largest absolute error of output or gradients.
    """

    code: str
    case: str
    raised: bool = False
    same_shape: bool = True
    forward: float = 0.0
    gradient: float = 0.0
    sum_gradient: float = 0.0
    error: float = 0.0

    @property
    def seen(self) -> bool:
        """Any sign at all."""
        return self.raised or not self.same_shape or max(self.forward, self.gradient) > 1

    @property
    def changes(self) -> bool:
        """It is not the same function here: far beyond rounding, whatever the allowance."""
        return self.raised or not self.same_shape or self.error > 1e-6

    @property
    def by_course(self) -> bool:
        """What the course compares: the output and the gradient of x under ``sum()``."""
        return self.raised or not self.same_shape or max(self.forward, self.sum_gradient) > 1


def fault_cases(seed: int, d: int, h: int) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The course's sizes, padding on both sides, and coinciding sizes."""
    g = torch.Generator().manual_seed(seed)
    return {
        "course": (normal(g, 2, h + 1, d), None),
        "right-padding": (normal(g, 3, h + 3, d), padding([h + 3, h, 2], h + 3)),
        "left-padding": (normal(g, 3, h + 3, d), padding([h + 3, h, 2], h + 3, left=True)),
        "T=H": (normal(g, 3, h, d), padding([h, h - 1, 2], h, left=True)),
        "T=B": (normal(g, 3, 3, d), padding([3, 2, 1], 3, left=True)),
        "B=H": (normal(g, h, h + 2, d), padding([h + 2, 3, 2, 5] * h, h + 2, left=True)[:h]),
    }


def sightings(seed: int, *, d: int, h: int, variants: int) -> Iterator[Sighting]:
    """Every fault of the catalogue that applies to the course's layer, on every input."""
    layer = lesson_layer(d, h, seed=seed)
    spec, parameters = definition_of(layer)
    for case, (x, pad) in fault_cases(seed, d, h).items():
        keep = None if pad is None else ~pad
        truth = _run_with_gradients(spec, parameters, x, keep, None, seed)
        with_gradients = case in NO_EMPTY_ROWS
        for fault in FAULTS.values():
            for index, variant in enumerate(fault.variants(spec)):
                if index >= variants:
                    break
                try:
                    got = _run_with_gradients(
                        spec, parameters, x, keep, (variant, truth["output"], with_gradients), seed
                    )
                except NothingToDoError:
                    continue
                except (RuntimeError, ValueError, IndexError):
                    yield Sighting(fault.code, case, raised=True)
                    continue
                yield _sighting(fault.code, case, got, truth, layer, keep)


def right_layers(seed: int, *, d: int, h: int) -> Iterator[Sighting]:
    """The right implementations on the same inputs, compared in the same way."""
    layer = lesson_layer(d, h, seed=seed)
    spec, parameters = definition_of(layer)
    for case, (x, pad) in fault_cases(seed, d, h).items():
        if case not in NO_EMPTY_ROWS:
            continue
        keep = None if pad is None else ~pad
        truth = _run_with_gradients(spec, parameters, x, keep, None, seed)
        for kind in KINDS:
            got = {}
            for name, upstream in _upstreams(x, keep, seed).items():
                values = run(kind, layer, x, pad, upstream)
                got["output"] = values["output"]
                blocks = values["qkv"].chunk(3)
                grads = dict(zip(("q", "k", "v"), blocks, strict=True))
                grads |= {"x": values["x"], "o": values["out"]}
                got |= {f"{name} {part}": grad for part, grad in grads.items()}
            yield _sighting(kind, case, got, truth, layer, keep)


def _upstreams(x: Tensor, keep: Tensor | None, seed: int) -> dict[str, Tensor]:
    real = torch.ones(*x.shape[:2], 1) if keep is None else keep[..., None]
    g = torch.Generator().manual_seed(seed + 77)
    return {"random": normal(g, *x.shape) * real, "sum": torch.ones_like(x) * real}


def _run_with_gradients(
    spec: AttentionSpec,
    parameters: Parameters,
    x: Tensor,
    keep: Tensor | None,
    faulty: tuple[Any, Tensor, bool] | None,
    seed: int,
) -> dict[str, Tensor]:
    """Output, and gradients too unless the output is wrong already."""
    x = x.detach().requires_grad_(True)
    leaves = parameters.map(lambda p: p.detach().requires_grad_(True))
    inputs = Inputs(x=x, keep=keep)
    if faulty is None:
        output = attend(spec, leaves, inputs).output
    else:
        output = faulty[0].run(spec, leaves, inputs).output
        want = faulty[1]
        if not faulty[2] or output.shape != want.shape or _gap_of_rows(output, want, keep) > 1e-9:
            return {"output": output.detach()}
    got = {"output": output.detach()}
    wanted = {"x": x, **dict(leaves.items())}
    for name, upstream in _upstreams(x, keep, seed).items():
        grads = torch.autograd.grad(
            (output * upstream).sum(), list(wanted.values()), retain_graph=True, allow_unused=True
        )
        for (part, leaf), grad in zip(wanted.items(), grads, strict=True):
            got[f"{name} {part}"] = torch.zeros_like(leaf) if grad is None else grad
    return got


def _gap_of_rows(a: Tensor, b: Tensor, keep: Tensor | None) -> float:
    if keep is not None:
        a, b = a[keep], b[keep]
    found = gap(a, b)
    return math.inf if math.isnan(found) else found


def _sighting(
    code: str,
    case: str,
    got: dict[str, Tensor],
    truth: dict[str, Tensor],
    layer: LessonLayer,
    keep: Tensor | None,
) -> Sighting:
    worst = {"forward": 0.0, "gradient": 0.0, "sum_gradient": 0.0}
    error = 0.0
    b, t = truth["output"].shape[:2]
    for name, value in got.items():
        part = "output" if name == "output" else "gradient"
        allowed = allowance(truth[name], truth[name], torch.float64, layer, (b, t), part)
        where = keep[..., None] if keep is not None and name == "output" else None
        found = compare(value, truth[name], allowed=allowed, where=where)
        keys = ["forward"] if name == "output" else ["gradient"]
        if name == "sum x":
            keys.append("sum_gradient")
        for key in keys:
            worst[key] = max(worst[key], found.error / allowed)
        error = max(error, found.error)
    shape = got["output"].shape == truth["output"].shape
    return Sighting(
        code,
        case,
        same_shape=shape,
        error=error,
        forward=worst["forward"],
        gradient=worst["gradient"],
        sum_gradient=worst["sum_gradient"],
    )


class Reversed(torch.autograd.Function):
    """The identity whose backward reverses the incoming gradient in time."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        """(B, T, D), unchanged."""
        del ctx
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The gradient, last token first."""
        del ctx
        return grads[0].flip(1)


def reversed_gradient(seed: int, *, d: int, h: int) -> dict[str, float]:
    """How far the gradient of x moves if the upstream is reversed: under sum() and at random."""
    g = torch.Generator().manual_seed(seed)
    x = normal(g, 2, 5, d).requires_grad_(True)
    layer = lesson_layer(d, h, seed=seed)
    y, _ = layer(x)
    wrong: Tensor = Reversed.apply(y)  # type: ignore[no-untyped-call]
    found = {}
    for name, upstream in (("sum", torch.ones_like(y)), ("random", normal(g, *y.shape))):
        right, bad = (
            torch.autograd.grad((out * upstream).sum(), x, retain_graph=True)[0]
            for out in (y, wrong)
        )
        found[name] = gap(right, bad)
    return found
