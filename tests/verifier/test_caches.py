"""Layers with a cache bind by their signature; what works is printed, and nothing else is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise
from headwise.reference import Inputs
from headwise.verifier.annotations import annotations_of
from headwise.verifier.binding import parameters_of
from headwise.verifier.caches import CachePlan, cache_plans, in_steps, returned_state


class Past:
    """What a layer fills; the base class can't be made."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class GrowingPast(Past):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__("growing")
        self.held: list[Tensor] = []

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.held:
            k, v = torch.cat([self.held[0], k], 2), torch.cat([self.held[1], v], 2)
        self.held = [k, v]
        return k, v


class Base(nn.Module):
    """Causal attention over whatever keys there are."""

    def __init__(self, d_model: int = 24, num_heads: int = 3) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def heads(self, x: Tensor) -> list[Tensor]:
        layers = (self.q, self.k, self.v)
        return [f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in layers]

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.o(y.transpose(1, 2).flatten(2))


class Filled(Base):
    def forward(self, x: Tensor, past_key_values: Past | None = None) -> Tensor:
        q, k, v = self.heads(x)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v)
        return self.attended(q, k, v)


class FilledTwice(Base):
    def forward(self, x: Tensor, past_key_values: Past | None = None) -> Tensor:
        q, k, v = self.heads(x)
        if past_key_values is not None:
            past_key_values.update(k, v)
            k, v = past_key_values.update(k, v)
        return self.attended(q, k, v)


class Ignored(Base):
    """Takes a cache for the sake of an interface and never fills it."""

    def forward(self, x: Tensor, past_key_values: Past | None = None, cache: Any = None) -> Tensor:
        return self.attended(*self.heads(x))


class Returned(Base):
    def forward(self, x: Tensor, layer_past: Any = None, use_cache: bool = False) -> Any:
        q, k, v = self.heads(x)
        if layer_past is not None:
            k, v = (torch.cat([a, b], 2) for a, b in zip(layer_past, (k, v), strict=True))
        out = self.attended(q, k, v)
        return (out, (k, v)) if use_cache else out


class Counted(Base):
    """A tensor for keys and values, and the number of tokens handed over."""

    def forward(self, x: Tensor, start_pos: int = 0, cache: Tensor | None = None) -> Any:
        q, k, v = self.heads(x)
        b, h, n, d = k.shape
        cache = torch.zeros(2, b, h, 16, d, dtype=x.dtype) if cache is None else cache.clone()
        cache[:, :, :, start_pos : start_pos + n] = torch.stack([k, v])
        k, v = cache[:, :, :, : start_pos + n]
        return self.attended(q, k, v), cache


@pytest.mark.parametrize(
    ("layer", "argument"),
    [(Filled, "past_key_values"), (Returned, "layer_past"), (Counted, "cache")],
)
def test_a_cache_binds_by_its_signature(layer: type[nn.Module], argument: str) -> None:
    report = headwise.verify(layer, causal=True)
    assert report.verdict == "matches"
    assert report.inferred["steps"] == f"with a cache, through the argument {argument}"
    stepped = [check for check in report.checks if check.name == "steps"]
    assert len(stepped) >= 3
    assert all(check.passed for check in stepped)


def test_a_cache_that_is_filled_twice_is_named() -> None:
    report = headwise.verify(FilledTwice, causal=True)
    assert [f.code for f in report.findings] == ["HW-C02"]
    assert report.inferred["steps"] == "with a cache, through the argument past_key_values"


@pytest.mark.parametrize("layer", [Ignored, Base])
def test_nothing_is_tried_where_no_cache_comes_back(layer: type[nn.Module]) -> None:
    if layer is Base:
        layer = type("Plain", (Base,), {"forward": lambda s, x: s.attended(*s.heads(x))})
    report = headwise.verify(layer, causal=True)
    assert report.verdict == "matches"
    assert "steps" not in report.inferred
    assert not any(check.name == "steps" for check in report.checks)


def test_a_finished_module_is_left_as_it_was() -> None:
    layer = Counted()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    headwise.verify(layer, causal=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())


def plans(layer: type[nn.Module]) -> list[CachePlan]:
    return list(cache_plans(parameters_of(layer.forward), annotations_of(layer.forward), None))


def test_the_plans_of_a_signature() -> None:
    assert [(p.argument, p.make is None) for p in plans(Filled)] == [
        ("past_key_values", False), ("past_key_values", True)
    ]  # fmt: skip
    assert plans(Returned) == [CachePlan("layer_past", None, switches=("use_cache",))]
    assert plans(Counted) == [CachePlan("cache", None, start="start_pos")]
    assert plans(Base) == []


def test_which_of_what_was_returned_is_the_cache() -> None:
    out, k, weights = torch.zeros(2, 3, 8), torch.zeros(2, 4, 3, 2), torch.zeros(2, 4, 3, 3)
    assert returned_state((out, (k, k)), out) == (k, k)
    assert returned_state((out, weights, {"k": k}), out) == {"k": k}
    whole = torch.zeros(2, 2, 4, 3, 2)
    assert returned_state((out, whole), out) is whole
    assert returned_state((out, weights), out) is None
    assert returned_state((out, None), out) is None
    assert returned_state(out, out) is None


def test_steps_hand_over_what_each_step_needs() -> None:
    seen = []

    def once(obj: Any, part: Inputs, more: dict[str, Any], before: int) -> Any:
        assert part.x is not None
        assert part.keep is not None
        seen.append((part.x.shape[1], part.keep.shape[1], before, more["start"]))
        return part.x, ("state", torch.zeros(1, 1, 1, 1))

    plan = CachePlan("cache", None, start="start")
    inputs = Inputs(x=torch.arange(5.0).view(1, 5, 1), keep=torch.ones(1, 5).bool())
    run = in_steps(plan, None, once)
    assert run(None, inputs, (3, 1, 1)).flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert seen == [(3, 3, 0, 0), (1, 4, 3, 3), (1, 5, 4, 4)]
    seen.clear()
    run(None, inputs, (3, 2), recent=True)
    assert seen == [(3, 3, 0, 0), (2, 2, 3, 3)]
