"""Finding out how a layer is run in steps with a cache. What works is printed as inferred.

Two protocols bind by themselves: a cache object whose class makes one for a specification, and a
state that the layer returns and takes back. Whether a state comes back is found by trying.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.reference import Inputs
from headwise.spec import AttentionSpec
from headwise.verifier import names as nm
from headwise.verifier.annotations import classes_in, maker_from_spec

Make = Callable[..., Any]


@dataclass(frozen=True)
class CachePlan:
    """How a layer takes a cache.

    Args:
        argument: that carries it.
        make: makes an empty cache from a specification and the sizes of a run; None: the layer
            starts without and returns one.
        switches: arguments that ask for the cache to be returned.
        start: argument that takes the number of tokens so far.
    """

    argument: str
    make: Callable[[AttentionSpec, Tensor], Any] | None = None
    switches: tuple[str, ...] = ()
    start: str | None = None


def plan_cache(
    parameters: Mapping[str, inspect.Parameter], annotations: Mapping[str, Any], typed: str | None
) -> CachePlan | None:
    """The cache argument of a signature: by its class, else by its name."""
    if typed is not None:
        for cls in classes_in(annotations.get(typed)):
            maker = maker_from_spec(cls, AttentionSpec)
            filled = None if maker is None else _maker(maker)
            if filled is not None:
                return CachePlan(typed, filled)
    named = [n for n in nm.CACHES if n in parameters and parameters[n].default is None]
    if not named:
        return None
    switches = tuple(n for n in nm.CACHE_FLAGS if n in parameters)
    start = next((n for n in nm.STARTS if n in parameters), None)
    whole = start is not None and isinstance(parameters[start].default, int)
    return CachePlan(named[0], None, switches, start if whole else None)


def _maker(maker: Make) -> Callable[[AttentionSpec, Tensor], Any] | None:
    """A cache from (spec, x of the whole sequence); None if an argument can't be filled."""
    signature = inspect.signature(maker)
    first, *rest = signature.parameters.values()
    known = {
        "batch": lambda x: x.shape[0],
        "length": lambda x: x.shape[1],
        "dtype": lambda x: x.dtype,
        "device": lambda x: x.device,
    }
    fill: dict[str, Callable[[Tensor], Any]] = {}
    for parameter in rest:
        what = next((w for w, options in nm.CACHE_SIZES.items() if parameter.name in options), None)
        if what is not None:
            fill[parameter.name] = known[what]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            return None

    def make(spec: AttentionSpec, x: Tensor) -> Any:
        return maker(**{first.name: spec}, **{name: take(x) for name, take in fill.items()})

    return make


Once = Callable[[Any, Inputs, Mapping[str, Any], int], Any]
"""(object, inputs of one step, further arguments, tokens seen before it) → what it returns."""


def in_steps(plan: CachePlan, spec: AttentionSpec | None, once: Once) -> Callable[..., Tensor]:
    """A function (object, inputs, sizes, recent) → (B, T, Dm): the outputs of all steps.

    A padding mask covers all tokens so far, or with ``recent`` the new ones alone.

    Args:
        plan: how the cache is handed over.
        spec: of the layer, for caches that are made from it.
        once: calls the layer once.
    """

    def run(obj: Any, inputs: Inputs, sizes: tuple[int, ...], *, recent: bool = False) -> Tensor:
        x = inputs.x
        assert x is not None
        state = None if plan.make is None or spec is None else plan.make(spec, x)
        start, outputs = 0, []
        for rows in sizes:
            end, first = start + rows, start if recent else 0
            keep = None if inputs.keep is None else inputs.keep[:, first:end]
            part = inputs.replace(x=x[:, start:end], keep=keep)
            more: dict[str, Any] = {plan.argument: state}
            more.update(dict.fromkeys(plan.switches, True))
            if plan.start is not None:
                more[plan.start] = start
            result = once(obj, part, more, start)
            output = _output(result, part)
            outputs.append(output)
            if plan.make is None:
                state = returned_state(result, output)
                if state is None:
                    raise ValueError("no cache among what was returned")
            start = end
        return torch.cat(outputs, 1)

    return run


def _output(result: Any, part: Inputs) -> Tensor:
    """The first tensor with a row for each sample and token of the step."""
    assert part.x is not None
    for item in result if isinstance(result, tuple | list) else (result,):
        if isinstance(item, Tensor) and item.dim() == 3 and item.shape[:2] == part.x.shape[:2]:
            return item
    raise ValueError("no output among what was returned")


def returned_state(result: Any, output: Tensor) -> Any:
    """What a layer returned beside its output and weights, to be handed in again; or None."""
    if not isinstance(result, tuple | list):
        return None
    beside = [item for item in result if item is not output and item is not None]
    for item in reversed(beside):
        tensors = list(_tensors(item))
        if not isinstance(item, Tensor) and tensors and all(t.dim() >= 3 for t in tensors):
            return item
        if isinstance(item, Tensor) and item.dim() == 5:  # keys and values in one tensor
            return item
    return None


def _tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from _tensors(value)
    elif isinstance(item, tuple | list):
        for value in item:
            yield from _tensors(value)


def takes_back(module: nn.Module, run: Callable[..., Tensor], width: int) -> bool:
    """Whether a layer runs in steps, tried on three tokens."""
    x = torch.zeros(2, 3, width, dtype=next((p.dtype for p in module.parameters()), None))
    with contextlib.suppress(Exception), torch.no_grad():
        return tuple(run(module, Inputs(x=x), (2, 1)).shape[:2]) == (2, 3)
    return False
