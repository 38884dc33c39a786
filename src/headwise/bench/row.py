"""One row: a case prepared for everybody, compared with the truth, timed in turns, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from headwise.bench import memory, ours
from headwise.bench.cases import Case, make_case
from headwise.bench.limits import Limits, name_of
from headwise.bench.peers.base import Peer, Prepared
from headwise.bench.shapes import Shape
from headwise.bench.timing import Timings, interleave
from headwise.bench.truth import Error, Truth, distance, find_truth
from headwise.bench.workloads import Workload
from headwise.texts import translate as _


class OursFailedError(Exception):
    """Our own call raised something or computed something else; the row can't be measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured.

    Args:
        rows: workload and shape and dtype, in order.
        peers: the peers that take part where they can.
        asked: names of peers that were asked for one by one.
        backends: backends of ours that are timed beside the chosen one, shown, never counted.
        seed: of the inputs.
        budget_s: seconds of timing per row.
        with_memory: whether peak memory is measured, in child processes.
        quick: whether only the smallest shape of each workload is planned.
    """

    rows: tuple[tuple[Workload, Shape, torch.dtype], ...]
    peers: tuple[Peer, ...]
    asked: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    seed: int = 0
    budget_s: float = 5.0
    with_memory: bool = True
    quick: bool = False


def measure_row(
    workload: Workload, shape: Shape, dtype: torch.dtype, plan: Plan, limits: Limits
) -> dict[str, Any] | None:
    """One row of the result; None if it was interrupted before anything was timed."""
    case = make_case(shape, dtype, plan.seed)
    with torch.inference_mode(not shape.training):
        truth = find_truth(case)
        state, ready = _prepare(workload, case, plan)
        errors: dict[str, Error] = {}
        for name, candidate in list(ready.items()):
            try:
                errors[name] = distance(case, truth, candidate.read(candidate.call()))
                why = wrong_result(errors[name], dtype)
            except Exception as error:  # noqa: BLE001 - a peer that fails is named, not hidden
                why = _first_line(error)
            if why:
                if name == ours.NAME:
                    raise OursFailedError(why)
                del ready[name]
                state[name]["failed"] = why
        timings = interleave(
            {name: candidate.call for name, candidate in ready.items()}, budget_s=plan.budget_s
        )
    if ours.NAME in timings.failed:
        raise OursFailedError(timings.failed[ours.NAME])
    for name, why in timings.failed.items():
        state[name]["failed"] = why
    if timings.median(ours.NAME) is None:
        return None
    for name in ready:
        _record(state[name], name, timings, errors)
    return _row(workload, case, truth, plan, limits, state, timings.interrupted)


def wrong_result(error: Error, dtype: torch.dtype) -> str:
    """What is said of a result that is no rounding away from the truth; "" if it is right."""
    if not error.is_wrong(dtype):
        return ""
    return _("its result is wrong: relative error {error:.2g}").format(error=error.rms)


def _prepare(
    workload: Workload, case: Case, plan: Plan
) -> tuple[dict[str, dict[str, Any]], dict[str, Prepared]]:
    """What is said about each candidate, and the calls of those that can take part."""
    state: dict[str, dict[str, Any]] = {ours.NAME: {"kind": "ours"}}
    try:
        ready = {ours.NAME: ours.prepare(case)}
    except Exception as error:
        raise OursFailedError(_first_line(error)) from error
    for name, kind, prepare in _others(workload, case, plan, state):
        try:
            ready[name] = prepare(case)
        except Exception as error:  # noqa: BLE001 - a peer that fails is named, not hidden
            state[name] = {"kind": kind, "failed": _first_line(error)}
        else:
            state[name] = {"kind": kind}
    return state, ready


def _others(
    workload: Workload, case: Case, plan: Plan, state: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str, Callable[[Case], Prepared]]]:
    for backend in plan.backends:
        if not case.shape.module:
            yield f"{ours.NAME} {backend}", "backend", partial(ours.prepare, backend=backend)
    for peer in plan.peers:
        if peer.name in workload.without:
            continue
        refused = peer.refuses(case.shape, case.dtype)
        missing = "" if refused else peer.missing()
        if refused:
            state[peer.name] = {"kind": peer.kind, "refused": refused}
        elif missing:
            state[peer.name] = {"kind": peer.kind, "missing": missing}
        else:
            yield peer.name, peer.kind, peer.prepare


def _record(
    entry: dict[str, Any], name: str, timings: Timings, errors: Mapping[str, Error]
) -> None:
    median = timings.median(name)
    if median is None:
        return
    entry["ms"] = _ms(median)
    entry["min_ms"] = _ms(timings.least(name))
    entry["spread"] = timings.spread(name)
    entry["calls"] = len(timings.seconds(name))
    ratio = timings.ratio(name, ours.NAME)
    entry["ratio"] = None if ratio is None else round(ratio, 3)
    entry["error"] = _error(errors.get(name))


def _row(
    workload: Workload,
    case: Case,
    truth: Truth,
    plan: Plan,
    limits: Limits,
    state: dict[str, dict[str, Any]],
    interrupted: bool,
) -> dict[str, Any]:
    shape = case.shape
    mine = state[ours.NAME]
    best, best_torch = best_of(state, ("torch", "library")), best_of(state, ("torch",))
    itemsize = case.grad_output.element_size()
    limit = limits.seconds(case.dtype, shape.flops(), shape.bytes_moved(itemsize)) * 1e3
    backend, why = ours.choice(case)
    peak, peak_note = None, _("not measured in a quick run")
    torch_peak = None
    if plan.with_memory and not interrupted:
        peak, peak_note = memory.peak_of(shape, case.dtype, plan.seed, ours.NAME)
        if best_torch:
            torch_peak, _note = memory.peak_of(shape, case.dtype, plan.seed, best_torch)
    row: dict[str, Any] = {
        "workload": workload.name,
        "shape": shape.label,
        "dtype": name_of(case.dtype),
        "sizes": shape.to_json(),
        "ours_ms": mine["ms"],
        "ours_spread": mine["spread"],
        "backend": backend,
        "backend_reason": why,
        "limit_ms": round(limit, 4),
        "limit_share": round(limit / mine["ms"], 3),
        "peak_bytes": peak,
        "peak_note": peak_note,
        "torch_peak_bytes": torch_peak,
        "interrupted": interrupted,
        "peers": {name: entry for name, entry in state.items() if name != ours.NAME},
    }
    for prefix, name in (("best_peer", best), ("best_torch", best_torch)):
        entry = state[name] if name else {}
        row[prefix] = name
        row[f"{prefix}_ms"] = entry.get("ms")
        row["ratio" if prefix == "best_peer" else "torch_ratio"] = entry.get("ratio")
    if workload.overhead:
        torch_ms = row["best_torch_ms"]
        row["overhead_us"] = None if torch_ms is None else round((mine["ms"] - torch_ms) * 1e3, 1)
    row["error"] = {
        "ours": mine["error"],
        "best_peer": state[best]["error"] if best else None,
        "best_torch": state[best_torch]["error"] if best_torch else None,
        "against": truth.against,
    }
    return row


def best_of(state: Mapping[str, Mapping[str, Any]], kinds: tuple[str, ...]) -> str | None:
    """The fastest timed peer of some kinds."""
    timed = {n: e["ms"] for n, e in state.items() if e["kind"] in kinds and "ms" in e}
    return min(timed, key=lambda name: timed[name]) if timed else None


def _error(error: Error | None) -> dict[str, Any] | None:
    if error is None:
        return None
    data: dict[str, Any] = {"max": _short(error.max), "rms": _short(error.rms)}
    if error.gradients:
        data["gradients"] = [_short(value) for value in error.gradients]
    return data


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if value == value and abs(value) != float("inf") else None


def _ms(seconds: float | None) -> float:
    return float(f"{(seconds or 0.0) * 1e3:.4g}")


def _first_line(error: Exception) -> str:
    words = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {words[0] if words else ''}"[:200]
