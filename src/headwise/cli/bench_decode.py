"""``headwise bench decode``: speed of decoding beside transformers, measured in one process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN, INTERRUPTED
from headwise.document import Block, Document, Table, Text
from headwise.texts import current_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.bench.decoding import Found

DTYPES = ("float32", "bfloat16")


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="decode",
        cls=messages.Command,
        help=_(
            "Time decoding of MODEL (smollm2-135m if left out) beside transformers with its "
            "dynamic and its static cache, in turns in one process, and compare the tokens. The "
            "processor must have nothing else to do."
        ),
    )
    @click.argument("model", required=False)
    @click.option(
        "--prompt",
        "prompts",
        multiple=True,
        type=click.IntRange(min=1),
        metavar="N",
        help=_("Tokens of the prompt; repeatable; 32 and 1536 if left out."),
    )
    @click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        type=click.Choice(DTYPES),
        help=_("Only this dtype; repeatable."),
    )
    @click.option(
        "--rounds",
        type=click.IntRange(min=2),
        default=12,
        show_default=True,
        metavar="N",
        help=_("Turns of each."),
    )
    @click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=8,
        show_default=True,
        metavar="N",
        help=_("Tokens in a turn."),
    )
    @click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help=_("Threads of torch; its own choice if left out."),
    )
    @click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help=_("Seed of the prompts."),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @options.common_flags
    def decode(**flags: Any) -> int:
        return _run(flags)

    return decode


def _run(flags: dict[str, Any]) -> int:
    import torch

    from headwise.bench.decoding import Plan, run

    if flags["threads"]:
        torch.set_num_threads(flags["threads"])
    given = {name: flags[name] for name in ("model", "prompts", "dtypes") if flags[name]}
    plan = Plan(rounds=flags["rounds"], steps=flags["steps"], seed=flags["seed"], **given)
    found = run(plan, lambda what: click.echo(what, err=True))
    if flags["as_json"]:
        from headwise.render.json import render_json

        click.echo(render_json(found.to_json()), nl=False)
    else:
        messages.show_document(as_document(found), sys.stdout)
    if found.interrupted:
        return INTERRUPTED
    return CANNOT_RUN if found.missing else 0


def as_document(found: Found) -> Document:
    """The rows beside what was promised."""
    rows = []
    for row in found.rows:
        first = (
            f"{row['prompt_tokens']} {row['dtype']}",
            f"{row['step_ms']:.1f}",
            "–" if row["bound_share"] is None else f"{row['bound_share']:.0%}",
        )
        others = list(row["others"].items()) or [("–", None)]
        for index, (name, entry) in enumerate(others):
            rows.append((*(first if index == 0 else ("", "", "")), *_other(name, entry, row)))
    columns = (
        _("prompt"),
        _("ours,\nms"),
        _("of the\nbound"),
        _("their\ncache"),
        _("ms"),
        "×",
        _("target"),
        _("same\ntokens"),
    )
    caption = _(
        "milliseconds per token, medians; ×: their time / ours, taken in every round; the bound: "
        "{speed:.1f} GB/s, measured here"
    ).format(speed=found.bytes_per_s / 1e9)
    blocks: list[Block] = [Table(columns, tuple(rows), caption, numeric=(1, 2, 4, 5, 6))]
    if found.missing:
        text = _("{name} is not installed, so there is nothing to compare with")
        blocks.append(Text(text.format(name=found.missing), "warn"))
    if found.others:
        text = _("other processes took {share:.0%} of the processor")
        blocks.append(Text(text.format(share=found.others), "quiet"))
    title = _("Decoding with {model}").format(model=found.plan.model)
    return Document(title, tuple(blocks), current_language())


def _other(name: str, entry: dict[str, Any] | None, row: dict[str, Any]) -> tuple[str, ...]:
    if entry is None:
        return name, "", "", "", ""
    target = "–" if entry["target"] is None else f"{entry['target']:g}"
    mark = {True: " ✓", False: " ✗", None: ""}[entry["reached"]]
    same = _("{same} of {all}").format(same=entry["same_tokens"], all=row["tokens"])
    if entry["gap"] is not None:
        same += "\n" + _("then a gap of {gap:.1e}").format(gap=entry["gap"])
    return name, f"{entry['step_ms']:.1f}", f"{entry['ratio']:.2f}", target + mark, same
