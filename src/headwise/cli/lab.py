"""``headwise lab``: list the experiments; run some of them and write a report."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import messages
from headwise.cli.progress import progress
from headwise.document import Document, Table, Text
from headwise.errors import HeadwiseError, UsageError
from headwise.texts import current_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.labs.lab import Lab, LabResult


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="lab",
        cls=messages.Command,
        help=_(
            "Measure what the course says. Without a name: the list of experiments, in learning "
            "order. With names, or `all`: run them and write a report, the data and the figures. "
            "Interrupted, it goes on where it stopped."
        ),
    )
    @click.argument("names", nargs=-1)
    @click.option("--quick/--full", default=True, show_default=True, help=_("Size of the run."))
    @click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help=_("Seed of all randomness."),
    )
    @click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("headwise-labs"),
        show_default=True,
        metavar="DIR",
        help=_("Folder for everything written."),
    )
    @click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="NAME=VALUE",
        help=_("Change a parameter of the lab, as a Python literal; repeatable."),
    )
    @click.option("--again", is_flag=True, help=_("Measure anew what is already finished."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @messages.language_flag
    @click.option("--traceback", is_flag=True, help=_("Show the traceback behind an error."))
    def lab(names: tuple[str, ...], **flags: Any) -> int:
        if not names:
            return _list(as_json=flags["as_json"])
        return _run(names, flags)

    return lab


def _list(*, as_json: bool) -> int:
    from headwise.labs.catalogue import all_labs

    labs = all_labs()
    if as_json:
        from headwise.render.json import render_json

        data = {
            "labs": [
                {
                    "name": lab.name,
                    "number": lab.number,
                    "question": _(lab.question),
                    "needs": list(lab.needs),
                    "minutes": {"quick": lab.minutes[0], "full": lab.minutes[1]},
                    "claims": list(lab.claims),
                }
                for lab in labs
            ]
        }
        click.echo(render_json(data), nl=False)
        return 0
    numbers = {lab.name: lab.number for lab in labs}
    rows = tuple(
        (
            str(lab.number),
            f"{lab.name}\n{_(lab.question)}",
            ", ".join(str(numbers[n]) for n in lab.needs if n in numbers),
            f"{lab.minutes[0]:g} / {lab.minutes[1]:g}",
            str(len(lab.claims)),
        )
        for lab in labs
    )
    columns = ("#", _("lab"), _("after"), _("minutes\nquick / full"), _("claims"))
    blocks = (Table(columns, rows), Text(_("headwise lab NAME… or: headwise lab all"), "quiet"))
    messages.show_document(Document(_("Experiments"), blocks, current_language()), sys.stdout)
    return 0


def _run(names: tuple[str, ...], flags: dict[str, Any]) -> int:
    from headwise.labs.runner import plan, problem, run_all

    changes = dict(_assignment(text) for text in flags["changes"])
    jobs = plan(names, full=not flags["quick"], seed=flags["seed"], changes=changes)
    out: Path = flags["out"]
    results: list[LabResult] = []
    current: list[Lab] = [jobs[0].lab]
    with _progress(len(jobs)) as notify:

        def told(lab: Lab, text: str, share: float) -> None:
            current[0] = lab
            notify(len(results), lab.name, text, share)

        try:
            for result in run_all(jobs, out, told, again=flags["again"]):
                results.append(result)
                notify(len(results), result.lab, "", 0.0)
        except HeadwiseError:
            _note_finished(results, out)
            raise
        except KeyboardInterrupt:
            _note_finished(results, out)
            raise
        except Exception as error:
            _note_finished(results, out)
            if flags["traceback"]:
                raise
            raise problem(error, current[0]) from error
    _write(results, out)
    if flags["as_json"]:
        from headwise.render.json import render_json

        data = {"out": str(out), "results": [r.to_json() for r in results]}
        click.echo(render_json(data), nl=False)
        return 0
    from headwise.labs.book import summary

    blocks = (
        summary(results),
        Text(_("report: {path}").format(path=out / "report.html")),
        Text(_("data: {path}").format(path=out / "data"), "quiet"),
        Text(_("figures: {path}").format(path=out / "figures"), "quiet"),
    )
    messages.show_document(Document(_("Results"), blocks, current_language()), sys.stdout)
    return 0


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, literal = text.partition("=")
    if not equals:
        raise UsageError(_("{text!r} is not written NAME=VALUE").format(text=text), where="--set")
    try:
        return name.strip(), ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return name.strip(), literal


def _note_finished(results: list[LabResult], out: Path) -> None:
    if results:
        click.echo(
            _(
                "{count} finished labs are kept in {path}; the same command goes on from there"
            ).format(count=len(results), path=out),
            err=True,
        )


def _write(results: list[LabResult], out: Path) -> None:
    """The report, the data and the figures of finished labs."""
    import json

    from headwise.labs.book import book, ledger_csv, ledger_data
    from headwise.labs.plots import draw
    from headwise.labs.runner import sheet_csv, write_whole
    from headwise.render.html import render_html

    pictures: dict[tuple[str, str], str] = {}
    for result in results:
        for sheet in result.sheets:
            write_whole(out / "data" / result.lab / f"{sheet.name}.csv", sheet_csv(sheet))
        for chart in result.charts:
            svg, png = draw(chart)
            pictures[result.lab, chart.name] = svg
            header = '<?xml version="1.0" encoding="utf-8"?>\n'
            write_whole(out / "figures" / result.lab / f"{chart.name}.svg", header + svg)
            write_whole(out / "figures" / result.lab / f"{chart.name}.png", png)
    ledger = json.dumps(ledger_data(results), ensure_ascii=False, indent=1)
    write_whole(out / "ledger.json", ledger + "\n")
    write_whole(out / "ledger.csv", ledger_csv(results))
    write_whole(out / "report.html", render_html(book(results, pictures)))


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Any]:
    with progress("{task.completed:.1f}/{task.total:.0f}") as told:

        def notify(done: int, name: str, text: str, share: float) -> None:
            line = f"[{min(done + 1, total)}/{total}] {name}"
            words = f"{name}: {text}" if text else name
            told(name, line, words, min(done + share, total), total)

        yield notify
