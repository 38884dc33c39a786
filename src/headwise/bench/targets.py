"""What was promised, and whether this run shows it: geometric means beside their targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.bench.workloads import WORKLOADS
from headwise.texts import translate as _

CORES = 2
"""Threads that the promises are about."""
FLOOR = 0.95
"""No shape above ``FLOOR_ABOVE`` tokens may be slower than this share of the best torch call."""
FLOOR_ABOVE = 64
OVERHEAD_US = 15.0
"""What a call of at most ``FLOOR_ABOVE`` tokens may take longer than the best torch call."""
MOST_OTHERS = 0.05
"""Share of our cores that other processes may take in a run that claims something."""
GRADIENTS = 1.0
"""How much larger than SDPA's our gradient errors may be and still count as no worse."""


@dataclass(frozen=True)
class Target:
    """A promise, made for two cores with AVX-512.

    Args:
        ratio: time of the others over ours, geometric mean over the shapes.
        against: names of the peers it is about; empty = the best torch call of each shape.
        gradients: whether our gradients must also be no worse than SDPA's.
    """

    ratio: float
    against: tuple[str, ...] = ()
    gradients: bool = False


MASKED = ("sdpa-bool-mask", "sdpa-float-mask")
TARGETS: Mapping[tuple[str, str], tuple[Target, ...]] = {
    ("prefill", "float32"): (Target(1.5),),
    ("prefill", "bfloat16"): (Target(1.5),),
    ("head-sizes", "float32"): (Target(5.0),),
    ("head-sizes", "bfloat16"): (Target(2.0),),
    ("padded", "float32"): (Target(4.0),),
    ("padded", "bfloat16"): (Target(4.0),),
    ("window", "float32"): (Target(1.2, ("flex-attention",)), Target(10.0, MASKED)),
    ("window", "bfloat16"): (Target(1.2, ("flex-attention",)), Target(10.0, MASKED)),
    ("decode", "float32"): (Target(1.5),),
    ("decode", "bfloat16"): (Target(10.0),),
    ("train", "float32"): (Target(1.3),),
    ("train", "bfloat16"): (Target(1.0, gradients=True),),
    ("weights", "float32"): (Target(1.2),),
    ("weights", "bfloat16"): (Target(1.2),),
    ("weights-averaged", "float32"): (Target(3.0),),
    ("weights-averaged", "bfloat16"): (Target(3.0),),
    ("module-train", "float32"): (Target(1.25),),
}
"""The ratios of the issue, per workload and dtype."""


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean; None if there is nothing, or something is not known.

    Example:
        >>> geometric_mean([1.0, 4.0]), geometric_mean([1.0, None])
        (2.0, None)
    """
    found = list(values)
    known = [value for value in found if value is not None and value > 0]
    if not found or len(known) < len(found):
        return None
    return math.exp(math.fsum(math.log(value) for value in known) / len(known))


def summary(
    rows: Sequence[Mapping[str, Any]],
    cpu: Mapping[str, Any],
    missing: Sequence[Mapping[str, str]] = (),
    others: float | None = None,
) -> list[dict[str, Any]]:
    """What each workload came to, per dtype, in the order of the rows, and the floor of all.

    Args:
        rows: of a run.
        cpu: of a run; only on a machine like the promised one is anything claimed.
        missing: peers that were planned and are not there.
        others: share of our cores that other processes took.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["dtype"]), []).append(row)
    found = []
    for (workload, dtype), members in groups.items():
        total = len(WORKLOADS[workload].shapes) if workload in WORKLOADS else len(members)
        barred = _barred(cpu, missing, others, measured=len(members), total=total)
        entry: dict[str, Any] = {
            "workload": workload,
            "dtype": dtype,
            "shapes": len(members),
            "of": total,
            "torch_ratio": _round(geometric_mean(row["torch_ratio"] for row in members)),
            "ratio": _round(geometric_mean(row["ratio"] for row in members)),
            "lowest_torch_ratio": _least(row["torch_ratio"] for row in members),
            "targets": [
                _judge(target, members, barred) for target in TARGETS.get((workload, dtype), ())
            ],
        }
        if entry["targets"] and any(target["gradients"] is not None for target in entry["targets"]):
            entry["gradient_ratio"] = _round(gradient_ratio(members))
        small = [row for row in members if is_small(row)]
        overheads = [row["overhead_us"] for row in small if "overhead_us" in row]
        if overheads:
            entry["overhead_us"] = max((x for x in overheads if x is not None), default=None)
            entry["targets"].append(_judge_overhead(entry["overhead_us"], barred))
        found.append(entry)
    return found


def floor(
    rows: Sequence[Mapping[str, Any]],
    cpu: Mapping[str, Any],
    missing: Sequence[Mapping[str, str]] = (),
    others: float | None = None,
) -> dict[str, Any]:
    """Whether some shape above ``FLOOR_ABOVE`` tokens is slower than the best torch call."""
    judged = [row for row in rows if not is_small(row) and row["torch_ratio"] is not None]
    below = [
        {key: row[key] for key in ("workload", "shape", "dtype", "torch_ratio")}
        for row in judged
        if row["torch_ratio"] < FLOOR
    ]
    barred = _barred(cpu, missing, others, measured=1, total=1)
    state = _state(not below if judged else None, barred)
    return {"ratio": FLOOR, "shapes": len(judged), "below": below, "state": state, "why": barred}


def is_small(row: Mapping[str, Any]) -> bool:
    """Whether a row has so few tokens that microseconds count instead of ratios."""
    sizes = row["sizes"]
    return bool(max(sizes["q_len"], sizes["kv_len"]) <= FLOOR_ABOVE)


def gradient_ratio(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """Our gradient error over SDPA's: the worst over shapes and inputs; None if not measured."""
    found = []
    for row in rows:
        theirs = (row["peers"].get("sdpa", {}).get("error") or {}).get("gradients")
        mine = (row["error"]["ours"] or {}).get("gradients")
        if not theirs or not mine:
            return None
        found += [a / b for a, b in zip(mine, theirs, strict=True) if a is not None and b]
    return max(found, default=None)


def ratio_against(row: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """Time of the fastest of some peers over ours; of the best torch call if none is named."""
    if not names:
        ratio: float | None = row["torch_ratio"]
        return ratio
    timed = [entry for name in names if "ms" in (entry := row["peers"].get(name, {}))]
    if not timed:
        return None
    fastest = min(timed, key=lambda entry: entry["ms"])
    found: float | None = fastest["ratio"]
    return found


def _judge(target: Target, rows: Sequence[Mapping[str, Any]], barred: str) -> dict[str, Any]:
    measured = geometric_mean(ratio_against(row, target.against) for row in rows)
    gradients = gradient_ratio(rows) if target.gradients else None
    met: bool | None = None
    if measured is not None:
        met = measured >= target.ratio
        if target.gradients:
            met = met and gradients is not None and gradients <= GRADIENTS
    return {
        "ratio": target.ratio,
        "against": list(target.against) or ["best torch call"],
        "measured": _round(measured),
        "gradients": _round(gradients) if target.gradients else None,
        "state": _state(met, barred),
        "why": barred or ("" if met is not None else _("it was not timed")),
    }


def _judge_overhead(overhead: float | None, barred: str) -> dict[str, Any]:
    met = None if overhead is None else overhead <= OVERHEAD_US
    return {
        "overhead_us": OVERHEAD_US,
        "against": ["best torch call"],
        "measured": overhead,
        "gradients": None,
        "state": _state(met, barred),
        "why": barred or ("" if met is not None else _("it was not timed")),
    }


def _state(met: bool | None, barred: str) -> str:
    if barred or met is None:
        return "not claimed"
    return "met" if met else "not met"


def _barred(
    cpu: Mapping[str, Any],
    missing: Sequence[Mapping[str, str]],
    others: float | None,
    *,
    measured: int,
    total: int,
) -> str:
    """Why a run claims nothing; "" if it may."""
    absent = [entry["name"] for entry in missing if entry.get("kind") == "torch"]
    if "avx512f" not in cpu["flags"]:
        return _("no AVX-512 here")
    if cpu["threads"] != CORES:
        return _("{threads} threads, not {cores}").format(threads=cpu["threads"], cores=CORES)
    if others is not None and others > MOST_OTHERS:
        return _("other processes took {share:.0%} of the processor").format(share=others)
    if absent:
        return _("{names} is missing").format(names=", ".join(absent))
    if measured < total:
        return _("{measured} of {total} shapes").format(measured=measured, total=total)
    return ""


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
