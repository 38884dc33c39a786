"""What an experiment is, and what it returns: data first, words and pictures made from them later.

A ``Lab`` asks one question. Its ``run`` returns a ``LabResult``: plain data that can be written to
JSON and read back, with every sentence as a ``Phrase`` (source text and numbers apart), so that one
run can be reported in any language.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headwise.errors import UsageError, did_you_mean
from headwise.registry import Registry
from headwise.texts import mark as N_
from headwise.texts import translate as _

Verdict = Literal["holds", "holds-under-conditions", "does-not-hold", "not-enough-data"]
VERDICTS: dict[str, str] = {
    "holds": N_("holds"),
    "holds-under-conditions": N_("holds under conditions"),
    "does-not-hold": N_("does not hold"),
    "not-enough-data": N_("not enough data"),
}
Value = str | int | float | bool | None
Progress = Callable[[str, float], None]
"""Told what is being done and which share (0 to 1) of the lab is finished."""


@dataclass(frozen=True)
class Phrase:
    """A sentence and its numbers.

    Args:
        text: English source text with ``{name}`` fields, marked with ``N_`` where it is written.
        fields: values of the fields.

    Example:
        >>> str(Phrase("{n} rows, largest gap {gap:.1e}", {"n": 3, "gap": 2e-16}))
        '3 rows, largest gap 2.0e-16'
    """

    text: str
    fields: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        return _(self.text).format(**self.fields)


@dataclass(frozen=True)
class Series:
    """One line or group of bars.

    Args:
        label: in the legend.
        x: positions (numbers or names).
        y: values.
        low, high: ends of the interval over seeds, or empty.
        style: ``solid``, ``dashed`` (theory), ``points``.
    """

    label: Phrase
    x: Sequence[Value]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    style: str = "solid"


@dataclass(frozen=True)
class Chart:
    """A figure as data.

    Args:
        name: id within the lab, kebab case.
        kind: ``line``, ``bar`` or ``heat``.
        title: what it shows, with the answer in it where there is one.
        x_label, y_label: axes, with units.
        series: for line and bar.
        grid: for heat: rows of numbers, None = empty.
        row_labels, column_labels: for heat.
        log_x, log_y: logarithmic axes.
        alt: the figure in words, for those who can't see it.
    """

    name: str
    kind: Literal["line", "bar", "heat"]
    title: Phrase
    x_label: Phrase
    y_label: Phrase
    alt: Phrase
    series: Sequence[Series] = ()
    grid: Sequence[Sequence[float | None]] = ()
    row_labels: Sequence[str] = ()
    column_labels: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table of numbers; becomes a CSV file and a table of the report.

    Args:
        name: id within the lab, kebab case; the name of the CSV file.
        title: what it shows.
        columns: ids of the columns (headings of the CSV).
        rows: values.
        headings: headings for people, in the order of ``columns``; empty = the ids.
        shown: whether the report shows it (large raw data stay in the CSV).
        timed: ids of columns with times or memory, which two runs need not repeat.
    """

    name: str
    title: Phrase
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    headings: Sequence[Phrase] = ()
    shown: bool = True
    timed: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: {len(row)} cells for {len(self.columns)} columns")


@dataclass(frozen=True)
class Outcome:
    """What a lab measured about one claim of the ledger.

    Args:
        claim: id in the ledger, such as ``A2.2``.
        verdict: computed from data.
        measured: the numbers that decide, in a sentence.
        figure: name of the chart or sheet that shows it.
        conditions: for ``holds-under-conditions``: which.
        timed: the verdict or the numbers rest on time and may change from run to run.
    """

    claim: str
    verdict: Verdict
    measured: Phrase
    figure: str
    conditions: Phrase | None = None
    timed: bool = False


@dataclass(frozen=True)
class LabResult:
    """Everything that one run of a lab found.

    Args:
        lab: name of the lab.
        params: sizes, counts of seeds and so on, as used.
        seed: of all randomness.
        verdict: the answer to the lab's hypothesis.
        conclusion: the answer in words, with its numbers; a few sentences.
        outcomes: one per claim.
        charts, sheets: figures and tables, in the order of the report.
        seconds: how long it took.
    """

    lab: str
    params: Mapping[str, Any]
    seed: int
    verdict: Verdict
    conclusion: Sequence[Phrase]
    outcomes: Sequence[Outcome]
    charts: Sequence[Chart]
    sheets: Sequence[Sheet]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``from_json`` gives an equal result back. Not-a-number becomes a string."""
        data: dict[str, Any] = _plain(dataclasses.asdict(self))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LabResult:
        """The result that ``to_json`` wrote."""
        d = _revived(dict(data))
        return cls(
            lab=d["lab"],
            params=d["params"],
            seed=d["seed"],
            verdict=d["verdict"],
            conclusion=tuple(Phrase(**p) for p in d["conclusion"]),
            outcomes=tuple(
                Outcome(
                    **{
                        **o,
                        "measured": Phrase(**o["measured"]),
                        "conditions": Phrase(**o["conditions"]) if o["conditions"] else None,
                    }
                )
                for o in d["outcomes"]
            ),
            charts=tuple(_chart(c) for c in d["charts"]),
            sheets=tuple(
                Sheet(
                    **{
                        **s,
                        "title": Phrase(**s["title"]),
                        "headings": tuple(Phrase(**h) for h in s["headings"]),
                    }
                )
                for s in d["sheets"]
            ),
            seconds=d["seconds"],
        )


def _chart(data: Mapping[str, Any]) -> Chart:
    phrases = {k: Phrase(**data[k]) for k in ("title", "x_label", "y_label", "alt")}
    series = tuple(Series(**{**s, "label": Phrase(**s["label"])}) for s in data["series"])
    return Chart(**{**data, **phrases, "series": series})


_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _revived(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"float"}:
            return _SPECIAL[value["float"]]
        return {k: _revived(v) for k, v in value.items()}
    return [_revived(v) for v in value] if isinstance(value, list) else value


Run = Callable[[Mapping[str, Any], int, Progress], LabResult]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One experiment.

    Args:
        name: the question in kebab case, ``why-divide-by-sqrt-dk``.
        number: place in the learning order.
        question: as a person asks it.
        hypothesis: what is expected, so that it can fail.
        varied, fixed: what changes and what does not.
        needs: names of the labs to see before.
        claims: ids of the ledger that it measures.
        quick, full: parameters of the two sizes.
        minutes: (quick, full), on two cores, roughly.
        run: (params, seed, progress) → result.
        least: smallest value of parameters for which 1 is too small.
    """

    name: str
    number: int
    question: str
    hypothesis: str
    varied: str
    fixed: str
    claims: tuple[str, ...]
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    minutes: tuple[float, float]
    run: Run
    needs: tuple[str, ...] = ()
    least: Mapping[str, int] = field(default_factory=dict)

    def params(self, *, full: bool, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The parameters of a size, with changes.

        Raises:
            UsageError: a parameter that the lab does not have, or a value of another kind.
        """
        base = dict(self.full if full else self.quick)
        for name, value in (changes or {}).items():
            if name not in base:
                near = did_you_mean(name, base)
                raise UsageError(
                    _("the lab {lab} has no parameter {name!r}").format(lab=self.name, name=name),
                    fix=_("did you mean {near!r}?").format(near=near)
                    if near
                    else ", ".join(base) or _("it has none"),
                )
            least = self.least.get(name, 0)
            if not _alike(value, base[name], least):
                raise UsageError(
                    _("the lab {lab} can't take {name} = {value!r}").format(
                        lab=self.name, name=name, value=value
                    ),
                    why=_("numbers from {least} on").format(least=least)
                    if least
                    else _("numbers are finite and above zero, lists are not empty"),
                    fix=_("a value like {name} = {value!r}").format(name=name, value=base[name]),
                )
            base[name] = value
        return base


def _alike(value: Any, model: Any, least: int = 0) -> bool:
    """Whether a value is of the same kind as a model of it, and possible as a size or count.

    Example:
        >>> _alike([3, 5], (1, 2, 4)), _alike(8, (1, 2, 4)), _alike(0, 4), _alike(1.5, 4)
        (True, False, False, False)
    """
    if isinstance(model, list | tuple):
        return (
            isinstance(value, list | tuple)
            and len(value) > 0
            and all(_alike(item, model[0], least) for item in value)
            and (not isinstance(model[0], list | tuple) or _lengths(value) == _lengths(model))
        )
    if isinstance(model, bool | str):
        return type(value) is type(model)
    kinds = int | float if isinstance(model, float) else int
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return math.isfinite(value) and value > 0 and value >= least


def _lengths(rows: Any) -> set[int]:
    return {len(row) for row in rows}


LABS: Registry[Lab] = Registry("lab")


def register(lab: Lab) -> Lab:
    """Add a lab to the registry; called once at the end of its file."""
    LABS.add(lab.name, lab)
    return lab


def in_order() -> list[Lab]:
    """All labs in learning order."""
    return sorted(LABS.values(), key=lambda lab: lab.number)
