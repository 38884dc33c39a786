"""Marks as data, and as a document. No torch: the command line reads this file.

The object that ``headwise grade --json`` prints::

    {"headwise": "0.1.0",
     "file": "attention.py",
     "verdict": "right",         or "wrong", or "incomplete": nothing wrong, not all is written
     "right": 11, "wrong": 0, "not_written": 0,
     "marks": [{"part": "scores", "stage": "scores", "status": "right" | "wrong" | "not-written",
                "line": 31,         of the function; null if it is not in the file
                "trials": [{"case": "sizes that all differ", "sizes": "B2 T5 …", "passed": true,
                            "forward": {"error": 1e-16, "allowed": 1e-13} | null,
                            "gradient": {"error": 1e-16, "allowed": 1e-13} | null,
                            "exception": ""}],
                "problem": "", "where": "", "hint": "",
                "fault": "HW-S01" | null, "fault_name": "scale-missing" | null,
                "equivalents": [], "remarks": []}],
     "elapsed_s": 0.4}

Numbers that are not finite are null.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headwise.document import Block, Document, Heading, Pairs, Table, Text, Tone
from headwise.grading.skeleton import PARTS
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

Status = Literal["right", "wrong", "not-written"]
Verdict = Literal["right", "wrong", "incomplete"]

WORDS: Mapping[str, str] = {
    "right": N_("right"),
    "wrong": N_("WRONG"),
    "not-written": N_("not written"),
}
EXIT_CODES: Mapping[str, int] = {"right": 0, "wrong": 1, "incomplete": 1}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One input that a function was tried on.

    Args:
        case: what is special about it.
        sizes: in letters.
        passed: whether numbers and gradients are right.
        forward, gradient: ``{"error", "allowed"}`` of the worst tensor; None = not compared.
        exception: what was raised, one line.
    """

    case: str
    sizes: str
    passed: bool
    forward: Mapping[str, float] | None = None
    gradient: Mapping[str, float] | None = None
    exception: str = ""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What came out for one function.

    Args:
        part: its name.
        stage: its stage.
        status: the mark.
        line: where the function begins; None = it is not in the file.
        trials: the inputs that it was tried on.
        problem: what differs, in a sentence.
        where: file and line to look at.
        hint: where to think, without the answer.
        fault, fault_name: of the catalogue, if one gives the same numbers.
        equivalents: other codes that do.
        remarks: what is not wrong and worth knowing.
    """

    part: str
    stage: str
    status: Status
    line: int | None = None
    trials: tuple[Trial, ...] = ()
    problem: str = ""
    where: str = ""
    hint: str = ""
    fault: str | None = None
    fault_name: str | None = None
    equivalents: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """All marks of a file."""

    file: str
    marks: tuple[Mark, ...]
    elapsed_s: float = 0.0

    def count(self, status: Status) -> int:
        """How many functions have a mark."""
        return sum(mark.status == status for mark in self.marks)

    @property
    def verdict(self) -> Verdict:
        """The mark of the file."""
        if self.count("wrong"):
            return "wrong"
        return "incomplete" if self.count("not-written") else "right"

    def to_json(self) -> dict[str, Any]:
        """The object at the head of this file."""
        from headwise import __version__

        return {
            "headwise": __version__,
            "file": self.file,
            "verdict": self.verdict,
            "right": self.count("right"),
            "wrong": self.count("wrong"),
            "not_written": self.count("not-written"),
            "marks": [_plain(dataclasses.asdict(mark)) for mark in self.marks],
            "elapsed_s": self.elapsed_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The result that ``to_json`` wrote."""
        marks = []
        for item in data["marks"]:
            lists = {name: tuple(item[name]) for name in ("equivalents", "remarks")}
            trials = tuple(Trial(**trial) for trial in item["trials"])
            marks.append(Mark(**{**item, **lists, "trials": trials}))
        return cls(file=data["file"], marks=tuple(marks), elapsed_s=data["elapsed_s"])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def document(result: Result, *, explain: bool = False) -> Document:
    """The marks for people.

    Args:
        result: what came out.
        explain: name the fault of the catalogue as well.
    """
    blocks: list[Block] = [_table(result)]
    for mark in result.marks:
        if mark.status == "wrong":
            blocks += _wrong(mark, explain=explain)
    remarks = [(mark.part, text) for mark in result.marks for text in mark.remarks]
    if remarks:
        blocks += [Heading(_("Remarks")), Pairs(tuple(remarks))]
    blocks += [Text(""), _next(result)]
    tone: Tone = "good" if result.verdict == "right" else "strong"
    title = _("{file}: {right} of {all} right").format(
        file=result.file, right=result.count("right"), all=len(result.marks)
    )
    return Document(title, tuple(blocks), current_language(), tone)


def _table(result: Result) -> Table:
    rows = []
    for mark in result.marks:
        number = [part.name for part in PARTS].index(mark.part) + 1
        tried = (
            _("{passed} of {all}").format(
                passed=sum(trial.passed for trial in mark.trials), all=len(mark.trials)
            )
            if mark.trials
            else "-"
        )
        line = "-" if mark.line is None else str(mark.line)
        rows.append((str(number), mark.part, line, tried, _(WORDS[mark.status])))
    columns = ("", _("function"), _("line"), _("inputs right"), _("mark"))
    return Table(columns, tuple(rows), numeric=(0, 2))


def _wrong(mark: Mark, *, explain: bool) -> list[Block]:
    rows = [(_("what"), mark.problem), (_("where"), mark.where)]
    if mark.hint:
        rows.append((_("hint"), mark.hint))
    if explain and mark.fault:
        rows.append((_("fault"), f"{mark.fault} {mark.fault_name}"))
        rows.append((_("more"), f"headwise fault {mark.fault}"))
    return [Heading(mark.part, tone="bad"), Pairs(tuple(row for row in rows if row[1]))]


def _next(result: Result) -> Text:
    if result.verdict == "right":
        if len(result.marks) == len(PARTS):
            text = _("Everything is right: this is attention, and it is yours.")
        else:
            text = _("Right. Without --stage all functions are graded.")
        return Text(text, "good")
    if result.verdict == "wrong":
        first = next(mark for mark in result.marks if mark.status == "wrong")
        text = _("Next: repair {part}, then run the same command again.")
        if not first.fault:
            return Text(text.format(part=first.part))
        more = _("With --explain the fault is named, and its card shows the answer.")
        return Text(text.format(part=first.part) + " " + more)
    first = next(mark for mark in result.marks if mark.status == "not-written")
    return Text(
        _("Next: write {part}. Until then the definition stands in for it.").format(part=first.part)
    )
