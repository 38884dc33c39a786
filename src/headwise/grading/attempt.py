"""One function on one input: what it returned, what its gradients are, what it raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.grading.cases import Sample
from headwise.grading.limits import OverTimeError, at_most
from headwise.grading.parts import ADAPTERS, Outputs, in_use, shape_of, truth
from headwise.texts import translate as _

Gradients = Mapping[str, Tensor | None]


class _ReturnedError(Exception):
    """What a function returned can't be compared."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """What came out.

    Args:
        sample: the input.
        leaves: what the function was called with.
        outputs: what it returned; None = it raised, or returned no tensors.
        gradients: of each leaf, under a random upstream gradient; None = not computed.
        right_gradients: those of the definition.
        exception: one line, if it raised.
        line: of the learner's file, where it did.
        is_unwritten: it raised ``NotImplementedError``.
        is_over_time: it did not end in time.
        changed: leaves that it changed in place.
        is_unsteady: two calls with the same input differ.
    """

    sample: Sample
    leaves: Mapping[str, Tensor]
    outputs: Outputs | None = None
    gradients: Gradients | None = None
    right_gradients: Gradients = field(default_factory=dict)
    exception: str = ""
    line: int | None = None
    is_unwritten: bool = False
    is_over_time: bool = False
    changed: tuple[str, ...] = ()
    is_unsteady: bool = False


def attempt(
    stage: str, function: Callable[..., Any], sample: Sample, path: Path, *, seconds: float
) -> Attempt:
    """Call a learner's function on an input, once for its numbers and once for its gradients."""
    leaves = ADAPTERS[stage].leaves(sample)
    given = {name: tensor.clone() for name, tensor in leaves.items()}
    try:
        with torch.no_grad():
            outputs = _called(stage, function, sample, given, seconds)
        changed = tuple(name for name in leaves if not torch.equal(given[name], leaves[name]))
        tracked = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
        handed = {name: tensor.clone() for name, tensor in tracked.items()}
        again = _called(stage, function, sample, handed, seconds)
        fits = all(
            tuple(tensor.shape) == shape_of(stage, sample, index)
            for index, tensor in enumerate(outputs)
        )
        if not fits or sample.only:
            return Attempt(sample, leaves, outputs, changed=changed)
        with at_most(seconds):
            gradients = _gradients(stage, sample, tracked, again)
    except OverTimeError as error:
        text = _("does not end within {seconds:g} s").format(seconds=seconds)
        return Attempt(
            sample, leaves, exception=text, line=place_of_error(error, path), is_over_time=True
        )
    except NotImplementedError as error:
        return Attempt(
            sample, leaves, exception=_one_line(error), line=place_of_error(error, path),
            is_unwritten=True,
        )  # fmt: skip
    except _ReturnedError as error:
        return Attempt(sample, leaves, exception=str(error))
    except BaseException as error:  # noqa: BLE001 - the learner's code may raise or exit
        text = _("raises {error}").format(error=_one_line(error))
        return Attempt(sample, leaves, exception=text, line=place_of_error(error, path))
    right = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
    return Attempt(
        sample,
        leaves,
        outputs,
        gradients,
        _gradients(stage, sample, right, truth(stage, sample, right)),
        changed=changed,
        is_unsteady=any(
            not torch.equal(a.nan_to_num(), b.detach().nan_to_num())
            for a, b in zip(outputs, again, strict=True)
        ),
    )


def _called(
    stage: str,
    function: Callable[..., Any],
    sample: Sample,
    leaves: Mapping[str, Tensor],
    seconds: float,
) -> Outputs:
    """The tensors that a call returns.

    Raises:
        _ReturnedError: something else is returned.
    """
    adapter = ADAPTERS[stage]
    with at_most(seconds):
        value = adapter.call(function, sample, leaves)
    values = value if isinstance(value, tuple | list) else (value,)
    if any(item is None for item in values):
        raise _ReturnedError(_("returns None: is a return missing?"))
    if len(values) != len(adapter.writes):
        raise _ReturnedError(
            _("returns {got} result(s), expected {want}").format(
                got=len(values), want=len(adapter.writes)
            )
        )
    for item in values:
        if not isinstance(item, Tensor):
            raise _ReturnedError(
                _("returns {kind}, expected a tensor").format(kind=type(item).__name__)
            )
    return tuple(values)


def _gradients(
    stage: str, sample: Sample, leaves: Mapping[str, Tensor], outputs: Outputs
) -> dict[str, Tensor | None]:
    """The gradient of every leaf under a fixed random upstream gradient."""
    generator = torch.Generator().manual_seed(5)
    reached, upstream = [], []
    for output in outputs:
        noise = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        noise = noise * in_use(stage, sample, output)
        if output.requires_grad:
            reached.append(output)
            upstream.append(noise.to(output.dtype))
    if not reached:
        return dict.fromkeys(leaves)
    found = torch.autograd.grad(reached, list(leaves.values()), upstream, allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    short = text if len(text) <= 160 else text[:159] + "…"
    return type(error).__name__ + (f": {short}" if short else "")


def place_of_error(error: BaseException, path: Path) -> int | None:
    """The line of the innermost frame of an exception that lies in a file."""
    found, trace, own = None, error.__traceback__, path.resolve()
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == own:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
