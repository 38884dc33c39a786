"""Running labs: each finished result is on disk before the next begins.

A run that is interrupted, or that fills the disk, loses nothing that was finished; started again
with the same seed and parameters, it goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise import __version__, files
from headwise.errors import HeadwiseError, UsageError
from headwise.labs.catalogue import all_labs
from headwise.labs.lab import LABS, Lab, LabResult, Sheet, Value
from headwise.texts import translate as _

Notify = Callable[[Lab, str, float], None]
"""Told the lab, what it is doing, and the share of it that is finished."""


@dataclass(frozen=True)
class Job:
    """One lab with its parameters.

    Args:
        lab: the experiment.
        params: of this run.
        seed: of this run.
    """

    lab: Lab
    params: Mapping[str, Any]
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """What a stored result must agree with to be used again."""
        plain: dict[str, Any] = json.loads(json.dumps(dict(self.params)))
        return {"headwise": __version__, "lab": self.lab.name, "seed": self.seed, "params": plain}


def chosen(names: Sequence[str]) -> list[Lab]:
    """Labs by name, in learning order; ``all`` means all.

    Raises:
        UsageError: an unknown name, with the nearest one.
    """
    labs = all_labs()
    wanted = {LABS[name].name for name in names if name != "all"}
    if "all" in names:
        return list(labs)
    return [lab for lab in labs if lab.name in wanted]


def plan(
    names: Sequence[str], *, full: bool, seed: int, changes: Mapping[str, Any] | None = None
) -> list[Job]:
    """The jobs for some labs.

    Raises:
        UsageError: an unknown lab, or a parameter that a lab does not have.
    """
    return [Job(lab, lab.params(full=full, changes=changes), seed) for lab in chosen(names)]


def result_path(out: Path, lab: Lab) -> Path:
    """Where the result of a lab is kept."""
    return out / "results" / f"{lab.name}.json"


def stored(out: Path, job: Job) -> LabResult | None:
    """The finished result of a job from an earlier run, if there is one."""
    try:
        data = json.loads(result_path(out, job.lab).read_text(encoding="utf-8"))
        if data["key"] == job.key:
            return LabResult.from_json(data["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def run(job: Job, notify: Notify) -> LabResult:
    """Run one lab.

    Raises:
        HeadwiseError: parameters that the lab refuses.
    """
    import torch

    def told(text: str, share: float) -> None:
        notify(job.lab, text, min(max(share, 0.0), 1.0))

    notify(job.lab, "", 0.0)  # whatever happens from here on is this lab's
    started, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    try:
        result = job.lab.run(job.params, job.seed, told)
    finally:
        torch.set_num_threads(threads)
    notify(job.lab, "", 1.0)
    data = result.to_json()
    return LabResult.from_json({**data, "seconds": time.perf_counter() - started})


def run_all(
    jobs: Iterable[Job], out: Path, notify: Notify, *, again: bool = False
) -> Iterable[LabResult]:
    """Run jobs one after the other, storing each result before the next begins.

    Raises:
        UsageError: the folder can't be written.
    """
    prepare(out)
    for job in jobs:
        found = None if again else stored(out, job)
        if found is None:
            found = run(job, notify)
            text = json.dumps({"key": job.key, "result": found.to_json()}, allow_nan=False)
            write_whole(result_path(out, job.lab), text)
        yield found


def prepare(out: Path) -> None:
    """Make the output folders.

    Raises:
        UsageError: they can't be made or written.
    """
    try:
        for name in ("results", "data", "figures"):
            (out / name).mkdir(parents=True, exist_ok=True)
        probe = out / ".headwise-can-write"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            _("can't write into {path}").format(path=out),
            why=error.strerror or str(error),
            fix=_("choose another folder with --out"),
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step: it is there as a whole or not at all.

    Raises:
        UsageError: it can't be written (a full disk, for one); what was finished stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8") if isinstance(content, str) else content
        files.write_whole(path, data)
    except OSError as error:
        raise UsageError(
            _("can't write {path}").format(path=path),
            why=error.strerror or str(error),
            fix=_("free some space or choose another folder with --out; finished labs are kept"),
        ) from error


def sheet_csv(sheet: Sheet) -> str:
    """A sheet as CSV, with a header row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(sheet.columns)
    writer.writerows([_cell(v) for v in row] for row in sheet.rows)
    return stream.getvalue()


def _cell(value: Value) -> Value:
    return repr(value) if isinstance(value, float) else value


def untimed(result: LabResult) -> dict[str, Any]:
    """Everything in a result that two runs with one seed must repeat exactly."""
    data = result.to_json()
    data.pop("seconds")
    for sheet in data["sheets"]:
        keep = [i for i, c in enumerate(sheet["columns"]) if c not in sheet["timed"]]
        sheet["rows"] = [[row[i] for i in keep] for row in sheet["rows"]]
    timed = {o["claim"] for o in data["outcomes"] if o["timed"]}
    data["outcomes"] = [o for o in data["outcomes"] if o["claim"] not in timed]
    if timed:
        for name in ("conclusion", "charts", "verdict"):
            data.pop(name)
    return data


def problem(error: Exception, lab: Lab) -> HeadwiseError:
    """A lab's own failure as a message that says what is safe."""
    return UsageError(
        _("the lab {lab} stopped: {kind}: {message}").format(
            lab=lab.name, kind=type(error).__name__, message=error
        ),
        fix=_("finished labs are kept; report this with --traceback"),
    )
