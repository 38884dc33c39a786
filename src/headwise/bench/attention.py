"""One run: every planned row measured in turns with its peers, checked, and recorded.

A row that was interrupted is dropped; those before it stay, and the run says that it is incomplete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headwise.bench import limits as machine_limits
from headwise.bench import ours
from headwise.bench.limits import Limits, name_of
from headwise.bench.machine import Others, describe_cpu, versions
from headwise.bench.peers import PEERS
from headwise.bench.row import OursFailedError, Plan, measure_row
from headwise.bench.targets import floor, summary
from headwise.bench.workloads import WORKLOADS
from headwise.texts import translate as _

Notify = Callable[[int, int, str], None]
"""Told before each row: its number (0 before the first), how many there are, and what it is."""


def plan(
    *,
    workloads: Sequence[str] = (),
    peers: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    quick: bool = False,
    **options: Any,
) -> Plan:
    """The rows for some names; no names = all.

    Raises:
        UsageError: for an unknown workload or peer, with the nearest known one.
    """
    chosen = [WORKLOADS[name] for name in workloads or WORKLOADS]
    rows = tuple(
        (workload, shape, getattr(torch, dtype))
        for workload in chosen
        for dtype in workload.dtypes
        if not dtypes or dtype in dtypes
        for shape in ((workload.quick,) if quick else workload.shapes)
    )
    return Plan(
        rows=rows,
        peers=tuple(PEERS[name] for name in peers or PEERS),
        asked=tuple(peers),
        quick=quick,
        **options,
    )


def missing_peers(plan: Plan) -> list[dict[str, str]]:
    """Peers that would take part in a plan but can't be used here, and how to get them."""
    return [
        {"name": peer.name, "kind": peer.kind, "missing": missing, "install": peer.install}
        for peer in plan.peers
        if any(
            peer.name not in workload.without and not peer.refuses(shape, dtype)
            for workload, shape, dtype in plan.rows
        )
        and (missing := peer.missing())
    ]


@dataclass
class Run:
    """What was measured so far; ``to_json`` is what ``--json`` prints."""

    plan: Plan
    missing: list[dict[str, str]]
    limits: Limits | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    others: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every planned row was measured beside every planned peer that takes such rows."""
        broken = any(
            "failed" in peer and peer["kind"] != "backend"
            for row in self.rows
            for peer in row["peers"].values()
        )
        return not (self.interrupted or self.missing or self.skipped or broken)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        cpu = describe_cpu()
        return {
            "cpu": cpu,
            "versions": versions(),
            "seed": self.plan.seed,
            "quick": self.plan.quick,
            "budget_s": self.plan.budget_s,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "missing": self.missing,
            "skipped": self.skipped,
            "limits": self.limits.to_json() if self.limits else None,
            "seconds": round(self.seconds, 1),
            "others_share": self.others,
            "rows": self.rows,
            "summary": summary(self.rows, cpu, self.missing, self.others),
            "floor": floor(self.rows, cpu, self.missing, self.others),
        }


def run(plan: Plan, notify: Notify = lambda done, total, what: None) -> Run:
    """Measure everything that is planned; an interruption keeps the rows that are finished."""
    found = Run(plan, missing_peers(plan))
    start, others = time.perf_counter(), Others()
    try:
        _measure(found, notify)
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds, found.others = time.perf_counter() - start, others.share()
    return found


def _measure(found: Run, notify: Notify) -> None:
    plan = found.plan
    dtypes = tuple(dict.fromkeys(dtype for _workload, _shape, dtype in plan.rows))
    notify(0, len(plan.rows), _("limits of this machine"))
    found.limits = machine_limits.measure(dtypes)
    for number, (workload, shape, dtype) in enumerate(plan.rows, start=1):
        notify(number, len(plan.rows), f"{workload.name} {shape.label} {name_of(dtype)}")
        entry = {"workload": workload.name, "shape": shape.label, "dtype": name_of(dtype)}
        if shape.module and not ours.has_module():
            reason = _("headwise.MultiHeadAttention is not there")
            found.skipped.append({**entry, "reason": reason})
            continue
        try:
            row = measure_row(workload, shape, dtype, plan, found.limits)
        except OursFailedError as error:
            found.skipped.append({**entry, "reason": str(error)})
            continue
        if row is not None:
            found.rows.append(row)
        if row is None or row["interrupted"]:
            found.interrupted = True
            return
