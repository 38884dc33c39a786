"""The cases of ONNX through several libraries: how many of them does each get right?

* ``headwise``: `headwise.integrations.onnx_attention`, every output that a case declares.
* ``sdpa``: torch's ``scaled_dot_product_attention`` with the arguments passed straight on, as a
  person porting code would do; the output Y alone, since it returns nothing else. What has no
  argument there (a window, a softcap, ``nonpad_kv_seqlen``, causal beside a mask) is unsupported,
  though a mask made by hand could say some of it. RotaryEmbedding is not its business.
* ``onnxruntime``: the model of the case on the CPU, every output.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.integrations import onnx_attention
from headwise.integrations.onnx_cases import INSTALL, MODULES, Case
from headwise.texts import translate as _

Result = Literal["pass", "differs", "unsupported", "error"]


class UnsupportedError(Exception):
    """A library has no word for what a case asks."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case in one library.

    Args:
        result: ``pass``; ``differs``: it ran and the numbers are others; ``unsupported``: the
            library can't express it; ``error``: it raised something else.
        detail: why, in one line; for ``pass`` empty, or what is worth knowing.
        max_gap: largest absolute difference over all outputs that were compared; None if nothing
            could be compared or a difference is not finite.
    """

    result: Result
    detail: str = ""
    max_gap: float | None = None


@dataclass(frozen=True)
class Library:
    """One of those that are compared.

    Args:
        name: its key in the results.
        module: what is imported from it.
        operators: those whose cases it gets.
        outputs: those that are compared; None: all that the case declares.
        run: computes the outputs of a case.
    """

    name: str
    module: str
    operators: tuple[str, ...]
    outputs: tuple[str, ...] | None
    run: Callable[[Case], Mapping[str, Tensor]] = field(repr=False)

    @property
    def version(self) -> str | None:
        """Its version, or None if it is not installed."""
        return _version(self.module)


@dataclass(frozen=True)
class Tally:
    """One library on all of its cases.

    Args:
        version: of the library; None if it is missing, and then there are no cases.
        cases: by name.
    """

    version: str | None
    cases: Mapping[str, Outcome]

    @property
    def total(self) -> int:
        """How many cases it got."""
        return len(self.cases)

    @property
    def passed(self) -> int:
        """How many it got right."""
        return sum(outcome.result == "pass" for outcome in self.cases.values())


@dataclass(frozen=True)
class Comparison:
    """All libraries on all cases.

    Args:
        onnx: version of the library that the cases come from; None if there is none.
        libraries: by name, in the order of `LIBRARIES`.
        reason: why there are no cases; empty if there are.
    """

    onnx: str | None
    libraries: Mapping[str, Tally]
    reason: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """What is not installed."""
        versions = {"onnx": self.onnx, **{n: tally.version for n, tally in self.libraries.items()}}
        return tuple(name for name, version in versions.items() if version is None)

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries; ``complete`` is false if something is missing, or did not run.

        Example:
            >>> tally = Tally("0.1", {"attention_4d": Outcome("pass", max_gap=0.0)})
            >>> Comparison("1.23.2", {"headwise": tally}).to_json()["headwise"]["passed"]
            1
        """
        versions = {
            "torch" if name == "sdpa" else name: tally.version
            for name, tally in self.libraries.items()
        }
        return {
            "versions": {"onnx": self.onnx, **versions},
            "complete": not self.missing and not self.reason,
            "reason": self.reason,
            "missing": [{"name": name, "install": INSTALL} for name in self.missing],
            **{
                name: {
                    "passed": tally.passed,
                    "total": tally.total,
                    "cases": {case: asdict(outcome) for case, outcome in tally.cases.items()},
                }
                for name, tally in self.libraries.items()
            },
        }


def run(cases: Mapping[str, Case], libraries: Sequence[Library] | None = None) -> Comparison:
    """Run cases through the libraries that are installed.

    Args:
        cases: as `headwise.integrations.onnx_cases.load` gives them, or some of them.
        libraries: None = `LIBRARIES`.
    """
    tallies = {}
    for library in LIBRARIES.values() if libraries is None else libraries:
        outcomes = {}
        if library.version is not None:
            outcomes = {
                name: judge(case, library)
                for name, case in cases.items()
                if case.operator in library.operators
            }
        tallies[library.name] = Tally(library.version, outcomes)
    return Comparison(_version("onnx"), tallies)


def nothing(reason: str) -> Comparison:
    """What there is to say if the cases could not be had: the versions, and why."""
    empty = {name: Tally(library.version, {}) for name, library in LIBRARIES.items()}
    return Comparison(_version("onnx"), empty, reason)


def _version(module: str) -> str | None:
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError:
        return None


def judge(case: Case, library: Library) -> Outcome:
    """Run one case in one library and compare what comes out."""
    try:
        got = library.run(case)
    except UnsupportedError as error:
        return Outcome("unsupported", str(error))
    except HeadwiseError as error:
        return Outcome("error", error.what)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its result
        return Outcome("error", f"{type(error).__name__}: {_first_line(error)}")
    return compare(case, got, library.outputs)


# -- comparing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """How far a value may be off: ``atol + rtol·|expected|``."""

    rtol: float
    atol: float


def band(case: Case) -> Band:
    """The tolerances of a case: onnx's own, widened where its numbers are half precision.

    Those numbers are not the truth rounded: numpy computed them in the dtype of the case and
    rounded after every step. Let eps be the distance from 1 to the next number of that dtype.
    Storing the weights and storing the result are off by up to eps/2 each, relative to sums whose
    terms have one sign here, so that nothing cancels: eps for the expected numbers, and eps again
    for a candidate that does the same. So ``rtol = 2·eps``, 0.002 for float16 and 0.016 for
    bfloat16; scores are below 1 here, and their rounding stays within what is left. Measured on the
    11 cases in half precision: a candidate that rounds at the end only is up to 1.4 eps away.

    float32 is left at onnx's 0.001, thousands of eps.

    Example:
        >>> half = {"Y": np.zeros((2, 3), dtype=np.float16)}
        >>> band(Case("one", "Attention", 25, {}, {}, half, rtol=1e-3, atol=1e-7, model=None))
        Band(rtol=0.001953125, atol=1e-07)
    """
    floats = (as_tensor(array).dtype for array in case.outputs.values())
    eps = max(torch.finfo(dtype).eps for dtype in floats)
    half = eps > torch.finfo(torch.float32).eps
    return Band(rtol=max(case.rtol, 2 * eps) if half else case.rtol, atol=case.atol)


def compare(case: Case, got: Mapping[str, Tensor], outputs: Sequence[str] | None = None) -> Outcome:
    """Whether the outputs are the expected ones: all there, shape, dtype and every number.

    A NaN is never right: no case expects one. -inf, the score of a hidden key, is met by -inf, and
    by the smallest number of the dtype as well, which hides as completely wherever another key is
    visible (onnxruntime writes it); the detail then says so.

    Args:
        case: with what has to come out.
        got: what came out, by the same names.
        outputs: names that are compared; None = all that the case declares.
    """
    allowed = band(case)
    gaps, complaints, remarks = [], [], []
    for name in case.outputs if outputs is None else outputs:
        want, have = as_tensor(case.outputs[name]), got.get(name)
        if have is None:
            complaints.append(_("{output} is missing").format(output=name))
            continue
        if have.shape != want.shape or have.dtype != want.dtype:
            text = _("{output} is {got}, expected {want}")
            complaints.append(text.format(output=name, got=_kind(have), want=_kind(want)))
            continue
        finite = want.isneginf() & (have == torch.finfo(want.dtype).min)
        if bool(finite.any()):
            text = _("{output}: {count} hidden cells hold the smallest number for -inf")
            remarks.append(text.format(output=name, count=int(finite.sum())))
            have = have.masked_fill(finite, float("-inf"))
        gap, complaint = _gap(have.double(), want.double(), allowed)
        gaps.append(gap)
        if complaint:
            complaints.append(f"{name}: {complaint}")
    largest = max(gaps, default=math.inf)
    return Outcome(
        "differs" if complaints else "pass",
        "; ".join(complaints or remarks),
        largest if math.isfinite(largest) else None,
    )


def _gap(have: Tensor, want: Tensor, allowed: Band) -> tuple[float, str]:
    """Largest difference of one output, and what is wrong with it."""
    gap = torch.where(have == want, 0.0, (have - want).abs())
    gap = torch.where(gap.isfinite(), gap, math.inf)
    limit = torch.where(want.isfinite(), allowed.atol + allowed.rtol * want.abs(), 0.0)
    out = gap > limit
    largest = float(gap.max()) if gap.numel() else 0.0
    if not bool(out.any()):
        return largest, ""
    worst = int(torch.where(out, gap, -1.0).argmax())
    at = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), gap.shape))
    text = _(
        "{count} of {total} values differ, most at {position} (got {got:.6g}, expected {want:.6g})"
    ).format(
        count=int(out.sum()),
        total=out.numel(),
        position=at,
        got=float(have[at]),
        want=float(want[at]),
    )
    return largest, text


def as_tensor(array: np.ndarray) -> Tensor:
    """A copy as a tensor; bfloat16, which numpy has from ml_dtypes, by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _first_line(error: Exception) -> str:
    """Without its middle where it is long: onnxruntime puts the whole C++ signature there."""
    line = next(iter(str(error).splitlines()), "")
    return line if len(line) <= 160 else f"{line[:60]} … {line[-97:]}"


# -- the libraries ------------------------------------------------------------------------------


def run_headwise(case: Case, *, backend: str | None = None) -> dict[str, Tensor]:
    """A case through our library.

    Args:
        case: of either operator.
        backend: as for `headwise.attend.attention`.
    """
    inputs: dict[str, Any] = {name: as_tensor(array) for name, array in case.inputs.items()}
    if case.operator == "RotaryEmbedding":
        return {"Y": onnx_attention.rotary_embedding(**inputs, **case.attributes)}
    found = onnx_attention.attention(
        **inputs,
        **case.attributes,
        with_qk_matmul_output="qk_matmul_output" in case.outputs,
        backend=backend,
    )
    return {name: tensor for name, tensor in found._asdict().items() if tensor is not None}


def run_sdpa(case: Case) -> dict[str, Tensor]:
    """A case with its arguments passed straight to torch.

    Raises:
        UnsupportedError: naming what SDPA has no argument for.
    """
    attributes, inputs = case.attributes, case.inputs
    lacking = [
        name
        for name in ("softcap", "softmax_precision", "left_window_size", "right_window_size")
        if attributes.get(name, _IDLE[name]) != _IDLE[name]
    ]
    if "nonpad_kv_seqlen" in inputs:
        lacking.append("nonpad_kv_seqlen")
    if attributes.get("is_causal") and "attn_mask" in inputs:
        lacking.append(_("is_causal beside attn_mask"))
    if lacking:
        raise UnsupportedError(_("it has no {names}").format(names=", ".join(lacking)))
    query, key, value = (as_tensor(inputs[name]) for name in "QKV")
    flat = query.ndim == 3
    if flat:
        heads = (attributes["q_num_heads"], *2 * (attributes["kv_num_heads"],))
        query, key, value = (
            x.unflatten(-1, (count, -1)).transpose(1, 2)
            for x, count in zip((query, key, value), heads, strict=True)
        )
    if "past_key" in inputs:
        key = torch.cat([as_tensor(inputs["past_key"]), key], dim=2)
        value = torch.cat([as_tensor(inputs["past_value"]), value], dim=2)
    mask = inputs.get("attn_mask")
    y = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if mask is None else as_tensor(mask),
        is_causal=bool(attributes.get("is_causal")),
        scale=attributes.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return {"Y": y.transpose(1, 2).flatten(2) if flat else y}


_IDLE: Mapping[str, float | None] = {
    "softcap": 0.0,
    "softmax_precision": None,
    "left_window_size": -1,
    "right_window_size": -1,
}
"""Values of attributes that ask for nothing."""


def run_onnxruntime(case: Case) -> dict[str, Tensor]:
    """The model of a case on onnxruntime's CPU provider, in one thread.

    Raises:
        UnsupportedError: if it has no implementation of an operator for a dtype.
    """
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised as well
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        # The classes of its exceptions are private, their names are not.
        if type(error).__name__ == "NotImplemented":
            raise UnsupportedError(_first_line(error).rpartition(" : ")[2]) from error
        raise
    arrays = session.run(None, case.feeds())
    return {name: as_tensor(array) for name, array in zip(case.outputs, arrays, strict=True)}


def _libraries() -> Iterator[Library]:
    both = tuple(MODULES)
    yield Library("headwise", "headwise", both, None, run_headwise)
    yield Library("sdpa", "torch", ("Attention",), ("Y",), run_sdpa)
    yield Library("onnxruntime", "onnxruntime", both, None, run_onnxruntime)


LIBRARIES: Mapping[str, Library] = {library.name: library for library in _libraries()}
"""Those that are compared, in the order of a report."""
