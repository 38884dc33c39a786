"""``headwise explain``: what a model looks at in a text, and whether the maps may be believed."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwise import files
from headwise.cli import messages
from headwise.cli.progress import progress
from headwise.errors import TargetError
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.explain.explanation import Explanation

DTYPES = ("float32", "float64", "bfloat16")


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="explain",
        cls=messages.Command,
        help=_(
            "What a model looks at in TEXT, by every method, and how far each map agrees with what "
            "happens when tokens are really taken away. MODEL is smollm2-135m or minilm (see: "
            "headwise models), a folder of Hugging Face, a .gguf file, or hf:TYPE for a tiny "
            "random model."
        ),
    )
    @click.argument("model")
    @click.argument("text")
    @click.option(
        "--target",
        metavar="WHAT",
        help=_("A token (as in ' Paris', or #7042), class:N, norm, norm:first."),
    )
    @click.option(
        "--against", metavar="TOKEN", help=_("Ask for the difference to this token's logit.")
    )
    @click.option(
        "--position",
        type=int,
        metavar="N",
        help=_("The token after which is asked, from 0; negative from the end."),
    )
    @click.option(
        "--method", "methods", multiple=True, metavar="NAME", help=_("Only this; repeatable.")
    )
    @click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        metavar="N",
        help=_("Points on the path of integrated gradients."),
    )
    @click.option(
        "--batch",
        type=click.IntRange(min=1),
        default=6,
        show_default=True,
        metavar="N",
        help=_("Questions per run of the model."),
    )
    @click.option(
        "--no-curves", is_flag=True, help=_("Leave out the deletion and insertion curves.")
    )
    @click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="float32",
        show_default=True,
        help=_("Of the model."),
    )
    @click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help=_("Seed of all randomness."),
    )
    @click.option(
        "--html",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=_("Write the page: maps, heads, tokens to click."),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @messages.language_flag
    @click.option("--traceback", is_flag=True, help=_("Show the traceback behind an error."))
    def explain(model: str, text: str, **flags: Any) -> int:
        return _run(model, text, flags)

    return explain


def _run(model: str, text: str, flags: dict[str, Any]) -> int:
    path: Path | None = flags["html"]
    if path is not None and not path.parent.is_dir():
        raise messages.usage(
            _("the page can't be written"),
            where=str(path),
            why=_("there is no folder {folder}").format(folder=path.parent),
        )
    try:
        found = _explain(model, text, flags)
    except TargetError as error:
        messages.show_error(error, with_traceback=flags["traceback"])
        return messages.CANNOT_RUN
    if path is not None:
        _write(path, found.to_html())
    if flags["as_json"]:
        from headwise.render.json import render_json

        click.echo(render_json(found.to_payload()), nl=False)
        return 0
    from headwise.explain.summary import summary

    messages.show_document(summary(found), sys.stdout)
    if path is not None:
        click.echo(_("page: {path}").format(path=path))
    return 0


def _explain(model: str, text: str, flags: dict[str, Any]) -> Explanation:
    with _progress() as told:
        told(_("loading {name}").format(name=model), 0.0)
        import torch

        from headwise.explain.asking import ask
        from headwise.explain.explanation import explain
        from headwise.explain.method import METHODS, Settings
        from headwise.integrations.loading import load

        for name in flags["methods"]:
            METHODS[name]  # an unknown name is an error before anything is loaded
        subject = load(model, dtype=getattr(torch, flags["dtype"]), seed=flags["seed"])
        question = ask(
            subject,
            subject.read(text),
            target=flags["target"],
            against=flags["against"],
            position=flags["position"],
        )
        return explain(
            subject,
            text,
            question,
            methods=flags["methods"] or None,
            settings=Settings(steps=flags["steps"], batch=flags["batch"], seed=flags["seed"]),
            with_curves=not flags["no_curves"],
            progress=told,
            repeat=_repeat(model, text, flags),
        )


def _repeat(model: str, text: str, flags: dict[str, Any]) -> str:
    words = ["headwise", "explain", model, text]
    for name in ("target", "against", "position"):
        if flags[name] is not None:
            words += [f"--{name}", str(flags[name])]
    for name in flags["methods"]:
        words += ["--method", name]
    for name, usual in (("steps", 32), ("batch", 6), ("seed", 0), ("dtype", "float32")):
        if flags[name] != usual:
            words += [f"--{name}", str(flags[name])]
    return shlex.join(words)


def _write(path: Path, page: str) -> None:
    try:
        files.write_whole(path, page)
    except OSError as error:
        raise messages.usage(
            _("the page can't be written"), where=str(path), why=error.strerror or str(error)
        ) from error


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    with progress("{task.percentage:3.0f} %") as told:

        def notify(what: str, share: float) -> None:
            told(what, f"… {what}" if what else "", what, share, 1.0)

        yield notify
