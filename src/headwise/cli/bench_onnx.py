"""``headwise bench onnx``: ONNX's own attention cases through Headwise and beside it two others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN
from headwise.document import Block, Document, Heading, Table, Text
from headwise.errors import TargetError, did_you_mean
from headwise.texts import current_language
from headwise.texts import mark as N_
from headwise.texts import translate as _

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headwise.bench.onnx import Comparison, Tally
    from headwise.integrations.onnx_cases import Case

RESULTS: Mapping[str, str] = {
    "pass": N_("passes"),
    "differs": N_("differs"),
    "unsupported": N_("unsupported"),
    "error": N_("error"),
}
"""What a report calls the result of a case."""


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="onnx",
        cls=messages.Command,
        help=_(
            "Run the 101 cases with which ONNX pins its operators Attention and RotaryEmbedding "
            "through Headwise, through torch's scaled_dot_product_attention with the arguments "
            "passed straight on, and through onnxruntime. Exits with 1 if Headwise fails one, and "
            "with 3 if onnx is missing."
        ),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option(
        "--case", "names", multiple=True, metavar="NAME", help=_("Only this case; repeatable.")
    )
    @options.common_flags
    def onnx(as_json: bool, names: tuple[str, ...], **flags: Any) -> int:
        return _run(names, as_json=as_json, with_traceback=flags["traceback"])

    return onnx


def _run(names: Sequence[str], *, as_json: bool, with_traceback: bool) -> int:
    from headwise.bench import onnx as bench
    from headwise.integrations.onnx_cases import load

    try:
        cases = chosen(load(), names)
    except TargetError as error:
        if as_json:
            _print_json(bench.nothing(error.what))
        messages.show_error(error, with_traceback=with_traceback)
        return CANNOT_RUN
    found = bench.run(cases)
    if as_json:
        _print_json(found)
    else:
        messages.show_document(as_document(found, everything=bool(names)), sys.stdout)
    ours = found.libraries["headwise"]
    return 0 if ours.passed == ours.total else 1


def chosen(cases: Mapping[str, Case], names: Sequence[str]) -> Mapping[str, Case]:
    """The cases of some names, with or without ``test_``; all of them if there is no name.

    Raises:
        UsageError: naming the first that does not exist, and the nearest that does.
    """
    wanted = [name.removeprefix("test_") for name in names]
    for name in wanted:
        if name not in cases:
            near = did_you_mean(name, cases)
            raise messages.usage(
                _("there is no case {name!r}").format(name=name),
                where="--case",
                fix=_("did you mean {near!r}?").format(near=near)
                if near
                else _("headwise bench onnx --json lists them"),
            )
    return {name: cases[name] for name in wanted} if wanted else cases


def as_document(found: Comparison, *, everything: bool) -> Document:
    """The counts of every library, and the cases that it does not pass.

    Args:
        found: the results.
        everything: a row for each case instead.
    """
    blocks: list[Block] = [_counts(found)]
    for name in found.missing:
        text = _("{name} is not installed, so this run is incomplete: {install}")
        blocks.append(Text(text.format(name=name, install=_install()), "warn"))
    for name, tally in found.libraries.items():
        blocks += _each(name, tally) if everything else _failures(name, tally)
    return Document(
        _("Attention cases of onnx {version}").format(version=found.onnx),
        tuple(blocks),
        current_language(),
    )


def _counts(found: Comparison) -> Table:
    rows = []
    for name, tally in found.libraries.items():
        results: list[str] = [outcome.result for outcome in tally.cases.values()]
        counts = (str(results.count(result)) for result in RESULTS)
        rows.append((name, tally.version or "-", *counts, str(tally.total)))
    columns = (_("library"), _("version"), *map(_, RESULTS.values()), _("cases"))
    return Table(columns, tuple(rows), numeric=tuple(range(2, len(columns))))


def _each(name: str, tally: Tally) -> list[Block]:
    """A row for each case."""
    rows = tuple(
        (case, _(RESULTS[outcome.result]), outcome.detail or _largest(outcome.max_gap))
        for case, outcome in tally.cases.items()
    )
    return [Heading(name), Table((_("case"), _("result"), _("why")), rows)] if rows else []


def _failures(name: str, tally: Tally) -> list[Block]:
    """The cases that do not pass, those with one reason together; their names keep their lines."""
    groups: dict[str, list[str]] = {}
    for case, outcome in tally.cases.items():
        if outcome.result != "pass":
            reason = f"{_(RESULTS[outcome.result])}: {outcome.detail}"
            groups.setdefault(reason, []).append(case)
    blocks: list[Block] = [Heading(name)] if groups else []
    for reason, cases in groups.items():
        blocks += [Text(reason), Text("\n".join(f"  {case}" for case in cases), "quiet")]
    return blocks


def _largest(gap: float | None) -> str:
    if gap is None:
        return ""
    return _("largest difference {gap:.1e}").format(gap=gap)


def _install() -> str:
    from headwise.integrations.onnx_cases import INSTALL

    return INSTALL


def _print_json(found: Comparison) -> None:
    from headwise.render.json import render_json

    click.echo(render_json(found.to_json()), nl=False)
