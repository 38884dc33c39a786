"""Calls of ``attention`` beside the definition: a grid of them, and what may differ by how much.

Inputs are drawn in float64 and rounded to the dtype of the case; truth is the definition in float64
on the rounded numbers, so that nobody is charged for the rounding of the inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from tests.reference.draws import allowance, draw
from torch import Tensor

from headwise.attend import attention, products, tiles
from headwise.attend.backends.dispatch import BACKENDS
from headwise.attend.call import DistanceBias
from headwise.attend.functional import make_call
from headwise.masks import Causal, Custom, Documents, Padding, Prefix, QueryPadding, Window
from headwise.numerics import compare, largest, low_precision_allowance
from headwise.reference import Inputs, Parameters, attend
from headwise.reference.definition import score
from headwise.spec import AttentionSpec

B = 2
CPU = torch.device("cpu")


class Sizes(NamedTuple):
    """Of one call."""

    Hq: int
    Hkv: int
    Tq: int
    Tk: int
    Dk: int
    Dv: int


# -- levels of the grid -------------------------------------------------------------------------


def bits(*shape: int, name: str, above: float = 0.0) -> Tensor:
    """True where a normal number is above a bound."""
    return draw(*shape, name=name) > above


def keep_rows(s: Sizes, *lengths: float, left: bool = False) -> Padding:
    real = [round(share * s.Tk) for share in lengths]
    return Padding.from_lengths(real, s.Tk, side="left" if left else "right")


def documents(s: Sizes) -> Documents:
    numbers = torch.stack([torch.arange(s.Tk) * 3 // s.Tk, torch.arange(s.Tk) * 2 // s.Tk])
    own = numbers[:, s.Tk - s.Tq :] if s.Tq <= s.Tk else torch.zeros(B, s.Tq).long()
    return Documents(own, numbers)


MASKS: dict[str, Callable[[Sizes], Any]] = {
    "none": lambda s: None,
    "causal": lambda s: Causal(),
    "causal-start": lambda s: Causal(alignment="start"),
    "window": lambda s: Window(2, 1),
    "window-before": lambda s: Window(3, None),
    "window-after": lambda s: Window(None, 1, alignment="start"),
    "causal-window": lambda s: Causal() & Window(2, 0),
    "nothing": lambda s: Causal(alignment="start") & Window(0, 0),
    "left": lambda s: Causal() & keep_rows(s, 1.0, 0.4, left=True),
    "right": lambda s: keep_rows(s, 0.3, 1.0),
    "holes": lambda s: Causal() & Padding(bits(B, s.Tk, name="holes", above=-0.3)),
    "queries": lambda s: keep_rows(s, 1.0, 0.6) & QueryPadding(bits(B, s.Tq, name="queries")),
    "query-slices": lambda s: (
        Causal() & QueryPadding(torch.arange(s.Tq).expand(B, -1) >= s.Tq // 3)
    ),
    "all-padding": lambda s: keep_rows(s, 0.0, 0.8),
    "documents": lambda s: Causal() & documents(s),
    "prefix": lambda s: Causal() | Prefix(2),
    "per-sample": lambda s: Custom(bits(B, 1, s.Tq, s.Tk, name="per-sample")),
    "per-head": lambda s: Custom(bits(1, s.Hq, s.Tq, s.Tk, name="per-head")) & Window(4, 4),
    "per-both": lambda s: Custom(bits(B, s.Hq, s.Tq, s.Tk, name="per-both", above=0.7)),
    "keys": lambda s: Custom(bits(s.Tk, name="keys", above=-0.5)) & Causal(alignment="start"),
}


def hiding(s: Sizes) -> Tensor:
    """A bias with -inf: single cells, and one whole row."""
    bias = draw(B, s.Hq, s.Tq, s.Tk, name="bias")
    bias[bits(B, s.Hq, s.Tq, s.Tk, name="minus-infinity", above=0.8)] = -torch.inf
    bias[0, 1, 0] = -torch.inf
    return bias


BIASES: dict[str, Callable[[Sizes], Tensor]] = {
    "bias": lambda s: draw(B, s.Hq, s.Tq, s.Tk, name="bias"),
    "bias-shared": lambda s: draw(s.Tq, s.Tk, name="bias"),
    "bias-of-keys": lambda s: draw(B, 1, 1, s.Tk, name="bias"),
    "bias-of-heads": lambda s: draw(s.Hq, 1, 1, name="bias"),
    "bias-one-head": lambda s: draw(B, 1, s.Tq, s.Tk, name="bias"),
    "bias-hiding": hiding,
}
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "scale-of-two": {"scale": 0.5},
    "scale-negative": {"scale": -0.4},
    "scale-zero": {"scale": 0.0},
    "softcap": {"softcap": 0.8},
    "sinks": {"sinks": True},
    "distance": {"distance": True},
    "dropout": {"dropout_p": 0.4},
    "everything": {
        "scale": 0.6,
        "softcap": 1.5,
        "sinks": True,
        "distance": True,
        "dropout_p": 0.3,
    },
    **{name: {"bias": name} for name in BIASES},
    "bias-and-cap": {"bias": "bias-hiding", "softcap": 2.0, "sinks": True},
    "weights": {"need_weights": "per-head"},
    "weights-averaged": {"need_weights": "averaged", "sinks": True},
    "weights-dropped": {"need_weights": "per-head", "dropout_p": 0.4, "bias": "bias"},
}
HEADS = {"mha": (6, 6), "gqa": (6, 3), "mqa": (6, 1)}
DIMS = {"equal": (8, 8), "wider": (8, 10), "narrower": (8, 5)}
LENGTHS = [(1, 1), (1, 7), (5, 7), (7, 5), (9, 9), (11, 21)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def contiguous(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def time_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(x: Tensor) -> Tensor:
    n, h, t, d = x.shape
    room = torch.full((n, h, t + 3, d + 2), torch.nan, dtype=x.dtype)
    room[:, :, 1:-2, 1:-1] = x
    return room[:, :, 1:-2, 1:-1]


def channels_first(x: Tensor) -> Tensor:
    return x.transpose(2, 3).contiguous().transpose(2, 3)


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "time-first": time_first,
    "sliced": sliced,
    "time-first-sliced": lambda x: sliced(x.transpose(1, 2)).transpose(1, 2),
    "expanded-heads": lambda x: x[:, :1].clone().expand(x.shape),
    "expanded-batch": lambda x: time_first(x[:1]).expand(x.shape),
    "channels-first": channels_first,
}
TILINGS = {"small": (3, 40), "middle": (4, 400), "as-it-is": None}


@dataclass(frozen=True)
class Case:
    """One level of every factor."""

    dtype: torch.dtype = torch.float64
    mask: str = "none"
    heads: str = "gqa"
    dims: str = "wider"
    lengths: tuple[int, int] = (5, 7)
    strides: str = "contiguous"
    extra: str = "plain"
    tiling: str = "small"

    @property
    def sizes(self) -> Sizes:
        return Sizes(*HEADS[self.heads], *self.lengths, *DIMS[self.dims])

    def __str__(self) -> str:
        q_len, kv_len = self.lengths
        names = (self.mask, self.heads, self.dims, f"{q_len}x{kv_len}", self.strides, self.extra)
        return " ".join((str(self.dtype).removeprefix("torch."), *names, self.tiling))


FACTORS: dict[str, list[Any]] = {
    "dtype": DTYPES,
    "mask": list(MASKS),
    "heads": list(HEADS),
    "dims": list(DIMS),
    "lengths": LENGTHS,
    "strides": list(STRIDES),
    "extra": list(EXTRAS),
    "tiling": list(TILINGS),
}


def pairs_of(case: Case) -> set[tuple[str, Any, str, Any]]:
    """The pairs of levels that a case holds."""
    return {
        (a, getattr(case, a), b, getattr(case, b)) for a, b in itertools.combinations(FACTORS, 2)
    }


@lru_cache(maxsize=1)
def every_pair() -> frozenset[tuple[str, Any, str, Any]]:
    """All pairs of levels of two factors."""
    return frozenset(
        (a, x, b, y)
        for a, b in itertools.combinations(FACTORS, 2)
        for x, y in itertools.product(FACTORS[a], FACTORS[b])
    )


@lru_cache(maxsize=1)
def covering() -> tuple[Case, ...]:
    """Some hundred cases in which every pair of levels occurs; greedy, and always the same ones."""
    chance, open_pairs, found = random.Random(0), set(every_pair()), []
    while open_pairs:
        a, x, b, y = min(open_pairs, key=repr) if len(open_pairs) < 40 else _any(open_pairs)
        best = max(
            (
                Case(
                    **{name: chance.choice(levels) for name, levels in FACTORS.items()}
                    | {a: x, b: y}
                )
                for _try in range(12)
            ),
            key=lambda case: len(pairs_of(case) & open_pairs),
        )
        open_pairs -= pairs_of(best)
        found.append(best)
    return tuple(found)


def _any(pairs: set) -> tuple:
    # The order of a set depends on the process; a count over its sorted names does not.
    return min(pairs, key=lambda pair: (len(str(pair)), repr(pair)))


# -- what is compared ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """The tensors of a case, in its dtype and with its strides, and the upstream gradients."""

    case: Case
    leaves: dict[str, Tensor]
    upstream: Tensor
    of_weights: Tensor | None

    @property
    def options(self) -> dict[str, Any]:
        """What ``attention`` is told beside the tensors."""
        extra = EXTRAS[self.case.extra]
        found = {name: extra[name] for name in ("scale", "softcap", "dropout_p") if name in extra}
        return found | {"mask": MASKS[self.case.mask](self.case.sizes)}

    @property
    def need_weights(self) -> Any:
        return EXTRAS[self.case.extra].get("need_weights", False)

    def fresh(self) -> dict[str, Tensor]:
        """The leaves once more, with the same strides."""
        return {name: leaf.detach().requires_grad_() for name, leaf in self.leaves.items()}


def given_for(case: Case) -> Given:
    """Deterministic inputs of a case."""
    s, extra, strided = case.sizes, EXTRAS[case.extra], STRIDES[case.strides]
    shapes = {
        "query": (B, s.Hq, s.Tq, s.Dk),
        "key": (B, s.Hkv, s.Tk, s.Dk),
        "value": (B, s.Hkv, s.Tk, s.Dv),
    }
    leaves = {n: strided(draw(*shape, name=n).to(case.dtype)) for n, shape in shapes.items()}
    if "bias" in extra:
        leaves["bias"] = BIASES[extra["bias"]](s).to(case.dtype)
    if extra.get("distance"):
        leaves["distance"] = draw(s.Hq, s.Tq + s.Tk - 1, name="distance").to(case.dtype)
    if extra.get("sinks"):
        leaves["sinks"] = draw(s.Hq, name="sinks").to(case.dtype)
    own_layout = strided if not case.strides.startswith("expanded") else time_first
    upstream = own_layout(draw(B, s.Hq, s.Tq, s.Dv, name="upstream").to(case.dtype))
    shape = {"per-head": (B, s.Hq, s.Tq, s.Tk), "averaged": (B, s.Tq, s.Tk), False: None}[
        extra.get("need_weights", False)
    ]
    of_weights = None if shape is None else draw(*shape, name="of-weights").to(case.dtype)
    return Given(case, leaves, upstream, of_weights)


Found = dict[str, Tensor]
"""``output``, ``weights`` if wanted, and ``gradient of …`` for every leaf."""


def gradients(given: Given, leaves: dict[str, Tensor], outputs: list[Tensor]) -> Found:
    upstream = [given.upstream, given.of_weights][: len(outputs)]
    upstream = [g.to(o.dtype) for g, o in zip(upstream, outputs, strict=True)]
    made = torch.autograd.grad(outputs, list(leaves.values()), upstream)
    return {f"gradient of {name}": g for name, g in zip(leaves, made, strict=True)}


def ours(
    given: Given, backend: str, *, seed: int = 3, weights: Any = None, **changes: Any
) -> Found:
    """Context, weights and gradients of a backend."""
    need = given.need_weights if weights is None else weights
    leaves = given.fresh()
    query, key, value, extra = arguments(leaves)
    options = given.options | extra | {"backend": backend, "need_weights": need} | changes
    with seeded(seed):
        made = attention(query, key, value, **options)
    outputs = list(made) if isinstance(made, tuple) else [made]
    found = dict(zip(("output", "weights"), outputs, strict=False))
    return found | gradients(given, leaves, outputs)


def forward_only(given: Given, backend: str, *, seed: int = 3, **changes: Any) -> Found:
    """Context and weights of a backend, nothing recorded."""
    query, key, value, extra = arguments(given.leaves)
    options = given.options | {"need_weights": given.need_weights, "backend": backend}
    with torch.no_grad(), seeded(seed):
        made = attention(query, key, value, **(options | extra | changes))
    outputs = list(made) if isinstance(made, tuple) else [made]
    return dict(zip(("output", "weights"), outputs, strict=False))


def arguments(leaves: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Query, key, value and the options that are tensors."""
    extra: dict[str, Any] = {name: leaves[name] for name in ("bias", "sinks") if name in leaves}
    if "distance" in leaves:
        extra["bias"] = DistanceBias(leaves["distance"])
    return leaves["query"], leaves["key"], leaves["value"], extra


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's global generator, which dropout draws from, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def definition(given: Given, dtype: torch.dtype, dropout: Tensor | None = None):
    """What the definition says in a dtype: ``Found``, and its trace."""
    s, extra = given.case.sizes, EXTRAS[given.case.extra]
    leaves = {n: x.detach().to(dtype).clone().requires_grad_() for n, x in given.leaves.items()}
    scale = extra.get("scale", s.Dk**-0.5)
    spec = AttentionSpec(
        d_model=1,
        num_heads=s.Hq,
        num_kv_heads=s.Hkv,
        head_dim=s.Dk,
        v_head_dim=s.Dv,
        scale=scale or 1.0,
        softcap=extra.get("softcap"),
        sinks="sinks" in leaves,
    )

    def biased(t, setting):
        score(t, setting)
        if "bias" in leaves:
            t.scores = t.scores + leaves["bias"]
        if "distance" in leaves:
            last = s.Tq - 1
            rows = [leaves["distance"][:, last - i : last - i + s.Tk] for i in range(s.Tq)]
            t.scores = t.scores + torch.stack(rows, dim=1)

    query = leaves["query"] if scale else leaves["query"] * 0.0
    inputs = Inputs(
        q=query,
        k=leaves["key"],
        v=leaves["value"],
        mask=given.options["mask"],
        dropout=None if dropout is None else dropout.to(dtype),
    )
    trace = attend(spec, Parameters(sinks=leaves.get("sinks")), inputs, replace={"scores": biased})
    outputs = [trace.context]
    if given.need_weights:
        weights = trace.weights if dropout is None else trace.weights * dropout.to(dtype)
        outputs.append(weights.mean(1) if given.need_weights == "averaged" else weights)
    found = dict(zip(("output", "weights"), outputs, strict=False))
    return found | gradients(given, leaves, outputs), trace, spec


def kept_by(given: Given, backend: str) -> Tensor | None:
    """The dropout factors that a backend draws: its weights with dropout over those without.

    The values are a unit matrix, so that the context *is* the weights.
    """
    p = given.options.get("dropout_p", 0.0)
    if not p:
        return None
    s = given.case.sizes
    unit = torch.eye(s.Tk, dtype=given.case.dtype).expand(B, s.Hkv, s.Tk, s.Tk)
    alone = replace(given, leaves=given.leaves | {"value": unit})
    dropped = forward_only(alone, backend, need_weights=False)["output"]
    return (dropped > 0).double() / (1.0 - p)


def allowances(given: Given, truth: Found, trace: Any, spec: Any, dropout: Tensor | None) -> dict:
    """How far each result may be from the truth."""
    dtype, s = given.case.dtype, given.case.sizes
    gradients_ = [value for name, value in truth.items() if name.startswith("gradient")]
    found = {}
    if dtype == torch.float64:
        for name, value in truth.items():
            forward = not name.startswith("gradient")
            found[name] = allowance(
                spec,
                trace,
                # One that is zero by nature cancels in the order of the others: one scale for all.
                [value] if forward else gradients_,
                rows=0 if forward else B * s.Hq * (s.Tq + s.Tk),
            )
        return found
    plain = definition(given, dtype, dropout)[0]
    for name, value in truth.items():
        scale = largest([value] if not name.startswith("gradient") else gradients_)
        error = compare(plain[name], value, allowed=0.0).error
        found[name] = low_precision_allowance(error, dtype, scale)
    return found


def refusal(given: Given, backend: str, **changes: Any) -> str:
    """Why a backend can't compute the case with gradients; empty if it can."""
    query, key, value, extra = arguments(given.fresh())
    options = given.options | extra | {"need_weights": given.need_weights} | changes
    return BACKENDS[backend].refuses(make_call(query, key, value, **options))


def differences(given: Given, found: Found, expected: tuple[Found, dict]) -> list[str]:
    """What differs from the truth by more than its allowance, in words."""
    truth, allowed = expected
    wrong = []
    for name, value in found.items():
        if name == "output" and value.dtype != given.case.dtype:
            wrong.append(f"output is {value.dtype}")
        outcome = compare(value, truth[name], allowed=allowed[name])
        if not outcome.passed:
            wrong.append(f"{name}: {outcome.sentence()}")
    return wrong


def expected_for(given: Given, dropout: Tensor | None = None) -> tuple[Found, dict]:
    """Truth and allowances."""
    truth, trace, spec = definition(given, torch.float64, dropout)
    truth = {name: value.detach() for name, value in truth.items()}
    return truth, allowances(given, truth, trace, spec, dropout)


# -- routes of the products ---------------------------------------------------------------------


def routes_for(dtype: torch.dtype) -> dict[str, products.Route]:
    """Every route that some machine takes for a dtype, where it can be had and is exact here."""
    single = {"own": (dtype, False)}
    if dtype == torch.float32:
        single["onednn"] = (torch.float32, True)
    if dtype.itemsize == 2:
        single["through-float32"] = (torch.float32, False)
        single["through-onednn"] = (torch.float32, True)
        single["own-and-onednn"] = (dtype, True)
    return {
        name: products.Route(dtype, compute, onednn, name)
        for name, (compute, onednn) in single.items()
        if not onednn or products.onednn_is_exact()
    }


@contextlib.contextmanager
def forced(route: products.Route | None = None, tiling: str = "as-it-is") -> Iterator[None]:
    """Products by one route, and tiles of a size."""
    with pytest.MonkeyPatch.context() as patch:
        if route is not None:
            patch.setattr(products, "route", lambda _dtype, _device: route)
        if TILINGS[tiling] is not None:
            block, cells = TILINGS[tiling]
            patch.setattr(tiles, "block_size", lambda _call: block)
            patch.setattr(tiles, "TILE_ELEMENTS", cells)
        yield


def wrong_in(case: Case) -> list[str]:
    """Everything in which any backend by any route differs from the definition."""
    given, wrong = given_for(case), []
    without_dropout = expected_for(given) if "dropout_p" not in given.options else None
    for backend in BACKENDS:
        routes = routes_for(case.dtype) if backend not in ("eager", "sdpa") else {"": None}
        for name, route in routes.items():
            with forced(route, case.tiling):
                refused = refusal(given, backend)
                if refused and refusal_without_gradients(given, backend):
                    continue
                expected = without_dropout or expected_for(given, kept_by(given, backend))
                # With weights wanted, tiles compute what they refuse to carry gradients through.
                found = (forward_only if refused else ours)(given, backend)
                lines = differences(given, found, expected)
                if lines and backend == "sdpa" and not refused:
                    lines = differences(given, found, as_near_as_torch(given, expected))
                wrong += [f"{case}: {backend} {name}: {line}" for line in lines]
    return wrong


def as_near_as_torch(given: Given, expected: tuple[Found, dict]) -> tuple[Found, dict]:
    """The allowances of torch's kernel, from its own errors when it is called by hand.

    On a CPU its exponentials are rougher than those of plain code: float32 gradients with one key
    or few have up to nine times the error of the definition in float32.
    """
    truth, allowed = expected
    extra, dtype = EXTRAS[given.case.extra], given.case.dtype
    if dtype == torch.float64 or set(extra) - {"scale"} or not extra.get("scale", 1.0):
        return expected
    visible = definition(given, torch.float64)[1].visible
    leaves = given.fresh()
    query, key, value = (leaves[name] for name in ("query", "key", "value"))
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    mask = visible.expand(*query.shape[:3], key.shape[2])
    made = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=extra.get("scale")
    )
    made = made.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    found = {"output": made} | gradients(given, leaves, [made])
    wider = dict(allowed)
    for name, one in found.items():
        error = compare(one.detach(), truth[name], allowed=0.0).error
        own = low_precision_allowance(error, dtype, largest([truth[name]]))
        wider[name] = max(allowed[name], own) if math.isfinite(own) else allowed[name]
    return truth, wider


def refusal_without_gradients(given: Given, backend: str) -> str:
    """Why a backend can't compute the case at all."""
    with torch.no_grad():
        return refusal(given, backend)
