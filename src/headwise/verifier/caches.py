"""Finding out how a layer is run in steps with a cache. What works is printed as inferred.

Three protocols bind by themselves: a cache object whose class makes one for a specification; one
that is made without arguments and filled by the layer (transformers' ``DynamicCache``); and a state
that the layer returns and takes back. Whether a cache is filled or comes back is found by trying.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.reference import Inputs
from headwise.spec import AttentionSpec
from headwise.verifier import names as nm
from headwise.verifier.annotations import classes_in, maker_from_spec
from headwise.verifier.session import tensors_in

Make = Callable[..., Any]


@dataclass(frozen=True)
class CachePlan:
    """How a layer takes a cache.

    Args:
        argument: that carries it.
        make: makes an empty cache from a specification and the tokens of a run; None: the layer
            starts without and returns one.
        for_spec: the cache is made for the specification.
        switches: arguments that ask for the cache to be returned.
        start: argument that takes the number of tokens so far.
    """

    argument: str
    make: Callable[[AttentionSpec | None, Tensor], Any] | None = None
    for_spec: bool = False
    switches: tuple[str, ...] = ()
    start: str | None = None


def cache_plans(
    parameters: Mapping[str, inspect.Parameter], annotations: Mapping[str, Any], typed: str | None
) -> Iterator[CachePlan]:
    """Ways of handing a cache to a signature, likeliest first: by its class, then by its name."""
    if typed is not None:
        for cls in classes_in(annotations.get(typed)):
            maker = maker_from_spec(cls, AttentionSpec)
            filled = None if maker is None else _maker(maker)
            if filled is not None:
                yield CachePlan(typed, filled, for_spec=True)
    named = [n for n in nm.CACHES if n in parameters and parameters[n].default is None]
    if not named:
        return
    switches = tuple(n for n in nm.CACHE_FLAGS if n in parameters)
    start = next((n for n in nm.STARTS if n in parameters), None)
    if start is not None and not isinstance(parameters[start].default, int):
        start = None
    for cls in classes_in(annotations.get(named[0])):
        empty = _without_arguments(cls)
        if empty is not None:
            yield CachePlan(named[0], _ignoring(empty), False, switches, start)
    yield CachePlan(named[0], None, False, switches, start)


def _ignoring(empty: Callable[[], Any]) -> Callable[[AttentionSpec | None, Tensor], Any]:
    """A maker that needs to know nothing."""
    return lambda spec, x: empty()


def _without_arguments(cls: type) -> Callable[[], Any] | None:
    """What makes an empty cache of a class, or of one derived from it in the same module."""
    if cls.__module__ == "builtins" or issubclass(cls, Tensor | tuple):
        return None
    module = sys.modules.get(cls.__module__)
    home = {} if module is None else vars(module)
    derived = [c for c in home.values() if inspect.isclass(c) and issubclass(c, cls)]
    for option in (cls, *derived):
        with contextlib.suppress(Exception):
            option()
            made: Callable[[], Any] = option
            return made
    return None


def _maker(maker: Make) -> Callable[[AttentionSpec | None, Tensor], Any] | None:
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

    def make(spec: AttentionSpec | None, x: Tensor) -> Any:
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
        state = None if plan.make is None else plan.make(spec, x)
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
            elif not plan.for_spec and not _holds_tensors(state):
                raise ValueError("the cache is not filled")
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
        tensors = list(tensors_in(item))
        if not isinstance(item, Tensor) and tensors and all(t.dim() >= 3 for t in tensors):
            return item
        if isinstance(item, Tensor) and item.dim() == 5:  # keys and values in one tensor
            return item
    return None


def _holds_tensors(item: Any, depth: int = 4) -> bool:
    """Whether an object holds tensors, in its attributes or in lists of such objects."""
    if isinstance(item, Tensor):
        return True
    if depth == 0 or item is None or isinstance(item, int | float | str | type):
        return False
    if isinstance(item, Mapping):
        return any(_holds_tensors(value, depth - 1) for value in item.values())
    if isinstance(item, tuple | list):
        return any(_holds_tensors(value, depth - 1) for value in item)
    return _holds_tensors(getattr(item, "__dict__", None), depth - 1)


def takes_back(module: nn.Module, run: Callable[..., Tensor], width: int) -> bool:
    """Whether a layer runs in steps, tried on a copy and three tokens."""
    x = torch.zeros(2, 3, width, dtype=next((p.dtype for p in module.parameters()), None))
    with contextlib.suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
        tried = run(copy.deepcopy(module), Inputs(x=x), (2, 1))
        return tuple(tried.shape[:2]) == (2, 3)
    return False
