"""What a peer is: a name, what it refuses, and a call ready to be timed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headwise.bench.cases import Case
from headwise.bench.shapes import Shape

Kind = Literal["torch", "library", "shown"]
"""``torch``: one call of torch, counted; ``library``: another library, counted; ``shown``: a way
around (a loop over samples, zeros appended), measured and printed, but never the best peer."""

INSTALL = 'pip install "headwise[bench]"'


class Output(NamedTuple):
    """What a call computed.

    Args:
        context: (B, Hq, Tq, Dv), or (B, T, Dm) of a module.
        weights: (B, Hq, Tq, Tk) or averaged (B, Tq, Tk), if they were wanted.
        gradients: of the inputs, if the case is training.
    """

    context: Tensor
    weights: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()


class Prepared(NamedTuple):
    """A call without arguments, and how to read what it returned."""

    call: Callable[[], Any]
    read: Callable[[Any], Output]


class Function(NamedTuple):
    """A differentiable way to compute a case.

    Args:
        run: inputs of the case -> the context, or (context, weights).
        parameters: tensors beside the inputs that a backward reaches.
    """

    run: Callable[..., Any]
    parameters: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Peer:
    """A way to compute attention that is not ours.

    Args:
        name: what ``--peers`` calls it.
        kind: whether it counts, and as what.
        refuses: shape and dtype -> why it can't, or "" if it can.
        make: everything that is done once: converting, compiling, building a mask.
        modules: Python modules that must be importable.
        install: how to get what is missing.
        blocked: beside the modules, why it can't be used on this machine; "" if it can.
    """

    name: str
    kind: Kind
    refuses: Callable[[Shape, torch.dtype], str]
    make: Callable[[Case], Prepared]
    modules: tuple[str, ...] = ()
    install: str = INSTALL
    blocked: Callable[[], str] = lambda: ""

    def prepare(self, case: Case) -> Prepared:
        """The call to be timed. What libraries warn of is not our user's affair."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.make(case)

    def missing(self) -> str:
        """What keeps this peer from being used here; "" if nothing does."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return ", ".join(absent) if absent else self.blocked()


def prepared(case: Case, function: Function) -> Prepared:
    """The timed call of a differentiable function: forward, or forward and backward."""
    if not case.shape.training:
        return Prepared(lambda: function.run(*case.inputs), as_output)
    wanted = (*case.inputs, *function.parameters)

    def both() -> tuple[Any, Sequence[Tensor]]:
        context = function.run(*case.inputs)
        return context, torch.autograd.grad(context, wanted, case.grad_output)

    def read(raw: Any) -> Output:
        context, gradients = raw
        return Output(context.detach(), None, tuple(gradients[: len(case.inputs)]))

    return Prepared(both, read)


def as_output(raw: Any) -> Output:
    """A context, or a context and weights."""
    return Output(raw[0], raw[1]) if isinstance(raw, tuple) else Output(raw)


def only(*reasons: tuple[bool, str]) -> str:
    """The first reason whose condition holds; "" if none does."""
    return next((reason for holds, reason in reasons if holds), "")
