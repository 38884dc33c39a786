"""``headwise cost``: FLOPs, bytes, seconds and cache, each figure with its receipt."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise import files
from headwise.cli import messages, options
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.cost.hardware import Hardware
    from headwise.cost.models import Model
    from headwise.document import Block
    from headwise.receipts.check import Check

_NOT_ABOUT_COST = ("padding_mask", "cross", "init", "attn_implementation", "seed", "timeout")
_CHANGEABLE = ("kv_heads", "causal", "window")
"""What can be changed in a named model; everything else hangs together with its other sizes."""

_LAYOUT = re.compile(r"(mha|mqa|gqa-?\d+|\d+)(,(mha|mqa|gqa-?\d+|\d+))*", re.IGNORECASE)
_DEFAULT_MACHINES = ("a100", "h100")


class _Command(messages.Command):
    """A command whose ``--compare`` takes several words: ``--compare mha gqa-8 mqa``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        comparing = False
        for word in args:
            if comparing and _LAYOUT.fullmatch(word) and spread[-1] != "--compare":
                spread.append("--compare")
            elif comparing and not _LAYOUT.fullmatch(word):
                comparing = False
            comparing = comparing or word == "--compare"
            spread.append(word)
        return super().parse_args(ctx, spread)


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="cost",
        cls=_Command,
        help=_(
            "What attention costs, with receipts. NAME is a built-in model (llama-2-70b, gpt2, …); "
            "without it, --config names a Hugging Face configuration, or the flags describe one "
            "layer. Nothing is allocated unless --check runs a layer for real."
        ),
    )
    @click.argument("name", required=False)
    @click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=_("A config.json of Hugging Face."),
    )
    @click.option(
        "--layers", type=click.IntRange(min=1), metavar="N", help=_("Layers, for a layer by flags.")
    )
    @click.option(
        "--ffn",
        type=click.IntRange(min=1),
        metavar="N",
        help=_("Hidden width of a feed-forward part, for a layer by flags."),
    )
    @options.spec_flags
    @click.option(
        "--batch", type=int, default=1, show_default=True, metavar="N", help=_("Sequences.")
    )
    @click.option(
        "--context", type=int, metavar="N", help=_("Tokens per sequence; up to 4096 by default.")
    )
    @click.option(
        "--dtype",
        default="bfloat16",
        show_default=True,
        metavar="NAME",
        help=_("Of weights, activations and cache."),
    )
    @click.option(
        "--hardware",
        multiple=True,
        metavar="NAME",
        help=_("A machine for the roofline; 'this' is measured once; repeatable."),
    )
    @click.option("--training", is_flag=True, help=_("Price a training step."))
    @click.option(
        "--compare",
        multiple=True,
        metavar="HEADS…",
        help=_("Other numbers of key/value heads: mha, gqa-N, mqa or N."),
    )
    @click.option("--check", is_flag=True, help=_("Check the formulas against a real run."))
    @click.option("--receipts", is_flag=True, help=_("Open every figure into its formula."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @click.option(
        "--html",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=_("Write the report, with all receipts, as one HTML file."),
    )
    @options.common_flags
    def cost(name: str | None, **flags: Any) -> int:
        return _run(name, flags)

    cost.params = [param for param in cost.params if param.name not in _NOT_ABOUT_COST]
    return cost


def _run(name: str | None, flags: dict[str, Any]) -> int:
    from headwise.cost.report import document
    from headwise.cost.summary import estimate

    model = _model(name, flags)
    compare = [word for words in flags["compare"] for word in words.split(",") if word]
    found = estimate(
        model,
        batch=flags["batch"],
        context=flags["context"],
        dtype=flags["dtype"],
        training=flags["training"],
        hardware=_machines(flags["hardware"]),
        compare=compare,
    )
    check = _check(found, flags) if flags["check"] else None
    if flags["html"]:
        from headwise.render.html import render_html

        page = document(found, receipts=True, more=_check_blocks(check))
        _write(flags["html"], render_html(page))
    if flags["as_json"]:
        from headwise.render.json import render_json

        data = found.to_json() | ({"check": check.to_json()} if check else {})
        click.echo(render_json(data), nl=False)
    elif flags["html"]:
        click.echo(_("report: {path}").format(path=flags["html"]))
    else:
        page = document(found, receipts=flags["receipts"], more=_check_blocks(check))
        messages.show_document(page, sys.stdout)
    return 1 if check is not None and not check.passed else 0


def _model(name: str | None, flags: dict[str, Any]) -> Model:
    from headwise.cost.architectures import architectures, find_architecture
    from headwise.cost.configs import read_config
    from headwise.cost.models import of_spec
    from headwise.spec import AttentionSpec

    given = {flag: flags[flag] for flag in options.SPEC_FLAGS if flags.get(flag) is not None}
    if name and flags["config"]:
        raise messages.usage(
            _("a built-in model and a configuration are two models"),
            where=f"{name}, --config {flags['config']}",
            fix=_("one of the two"),
        )
    if name or flags["config"]:
        model = find_architecture(name).model() if name else read_config(flags["config"])
        return _changed(model, given, flags)
    if "d_model" not in given or "heads" not in given:
        raise messages.usage(
            _("there is nothing to price"),
            why=_("a layer needs at least its width and its number of heads"),
            fix=_("--d-model N --heads N, --config FILE, or a model: {names}").format(
                names=", ".join(architectures())
            ),
        )
    words = {options.SPEC_FLAGS[flag]: value for flag, value in given.items()}
    spec = AttentionSpec.from_flags(**words)
    return of_spec(spec, layers=flags["layers"] or 1, ffn_width=flags["ffn"])


def _changed(model: Model, given: dict[str, Any], flags: dict[str, Any]) -> Model:
    """A named model with other key/value heads or another mask."""
    wrong = [flag for flag in given if flag not in _CHANGEABLE]
    wrong += [flag for flag in ("layers", "ffn") if flags[flag] is not None]
    if wrong:
        raise messages.usage(
            _("{flag} can't be changed in a named model").format(
                flag="--" + wrong[0].replace("_", "-")
            ),
            where=model.name,
            why=_("its other sizes hang together with it"),
            fix=_("change {flags}, or describe a layer by flags alone").format(
                flags=", ".join("--" + flag.replace("_", "-") for flag in _CHANGEABLE)
            ),
        )
    if "kv_heads" in given:
        model = model.with_kv_heads(given["kv_heads"])
    mask: dict[str, Any] = {}
    if "causal" in given:
        mask["is_causal"] = given["causal"]
    if "window" in given:
        mask["window"] = tuple(given["window"])
    if not mask:
        return model
    blocks = tuple(
        dataclasses.replace(block, attention=block.attention.replace(**mask))
        for block in model.blocks
    )
    return dataclasses.replace(model, blocks=blocks)


def _machines(names: Sequence[str]) -> list[Hardware]:
    from headwise.cost.hardware import THIS, find_machine

    words = [word for name in names for word in name.split(",") if word]
    if words:
        return [_this() if word == THIS else find_machine(word) for word in words]
    from headwise.cost.measured import load

    here = load()
    return [*([here] if here else []), *(find_machine(name) for name in _DEFAULT_MACHINES)]


def _this() -> Hardware:
    """This machine: as measured before, or measured now."""
    from headwise.cost.measured import load

    here = load()
    if here is not None:
        return here
    from headwise.receipts.machine import measure

    click.echo(_("measuring this machine once …"), err=True)
    return measure()


def _check(found: Any, flags: dict[str, Any]) -> Check:
    from headwise.receipts.check import check_model

    return check_model(found, hardware=_this(), training=flags["training"])


def _check_blocks(check: Check | None) -> list[Block]:
    if check is None:
        return []
    from headwise.receipts.report import blocks

    return blocks(check)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text)
    except OSError as error:
        raise messages.usage(
            _("{path} can't be written").format(path=path), why=str(error.strerror or error)
        ) from error
