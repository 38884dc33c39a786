"""The flags that describe a layer, shared by ``verify`` and ``trace``, and the request they make.

Only what the user said goes into a request, so that the verifier knows what was left open.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from headwise.checkpoints.places import is_checkpoint
from headwise.cli import messages
from headwise.errors import did_you_mean
from headwise.texts import current_language
from headwise.texts import translate as _

F = TypeVar("F", bound=Callable[..., Any])

SPEC_FLAGS: Mapping[str, str] = {
    "d_model": "d_model",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "v_head_dim": "v_head_dim",
    "d_context": "d_context",
    "d_values": "d_values",
    "causal": "causal",
    "window": "window",
    "rope": "rope",
    "rope_base": "rope_base",
    "rotary_dim": "rotary_dim",
    "scale": "scale",
    "softcap": "softcap",
    "padding_mask": "padding_mask",
    "cross": "cross",
}
"""Parameter of the command line -> word of a specification."""

_SIZE = click.IntRange(min=1)


def spec_flags(function: F) -> F:
    """Add the flags that describe a layer to a command."""
    options = [
        click.option(
            "--d-model", type=_SIZE, metavar="N", help=_("Width of the input and of the output.")
        ),
        click.option("--heads", type=_SIZE, metavar="N", help=_("Number of query heads.")),
        click.option("--kv-heads", type=_SIZE, metavar="N", help=_("Number of key/value heads.")),
        click.option(
            "--head-dim", type=_SIZE, metavar="N", help=_("Size of a query and key head.")
        ),
        click.option("--v-head-dim", type=_SIZE, metavar="N", help=_("Size of a value head.")),
        click.option(
            "--d-context", type=_SIZE, metavar="N", help=_("Width of the sequence of the keys.")
        ),
        click.option(
            "--d-values", type=_SIZE, metavar="N", help=_("Width of the sequence of the values.")
        ),
        click.option(
            "--causal/--no-causal", default=None, help=_("Whether later keys are hidden.")
        ),
        click.option(
            "--window",
            callback=_window,
            metavar="L,R",
            help=_("Inclusive distances to the left and right that are visible; '-' is no limit."),
        ),
        click.option(
            "--rope",
            type=click.Choice(["halves", "neighbours"]),
            help=_("Rotary positions: which channels form a pair."),
        ),
        click.option(
            "--rope-base", type=float, metavar="X", help=_("Frequency base of the rotation.")
        ),
        click.option(
            "--rotary-dim", type=_SIZE, metavar="N", help=_("Channels that are turned, if not all.")
        ),
        click.option(
            "--scale", type=float, metavar="X", help=_("Factor of the scores, if not 1/√head_dim.")
        ),
        click.option(
            "--softcap", type=float, metavar="X", help=_("Scores become cap·tanh(scores/cap).")
        ),
        click.option(
            "--padding-mask",
            type=click.Choice(["keep", "ignore"]),
            help=_("What True means in the padding mask: a real token, or padding."),
        ),
        click.option(
            "--cross",
            is_flag=True,
            default=None,
            help=_("Keys and values come from another sequence."),
        ),
        click.option(
            "--init",
            multiple=True,
            callback=_assignments,
            metavar="NAME=VALUE",
            help=_("A further constructor argument, as a Python literal; repeatable."),
        ),
        click.option(
            "--attn-implementation",
            metavar="NAME",
            help=_(
                "For hf: targets, which code computes the attention: eager, sdpa, headwise, or "
                "what was registered with transformers under a name."
            ),
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), metavar="N", help=_("Seed of the random values.")
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0.1),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help=_("After this time the target is ended."),
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def import_flag(function: F) -> F:
    """Add the flag that names what is imported before the target."""
    return click.option(
        "--import",
        "imports",
        multiple=True,
        metavar="FILE_OR_MODULE",
        help=_(
            "Import this before the target is built, such as code that registers an "
            "implementation; repeatable."
        ),
    )(function)


def common_flags(function: F) -> F:
    """Add the flags of every command: language and traceback."""
    function = click.option(
        "--traceback", is_flag=True, help=_("Show the traceback behind an error.")
    )(function)
    return messages.language_flag(function)


def request(verb: str, target: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The request for the child process (its form: ``headwise.cli.process``).

    Raises:
        UsageError: if the target is a file that does not exist, or is not written as a target.
    """
    check_target(target)
    spec = {word: flags[name] for name, word in SPEC_FLAGS.items() if flags.get(name) is not None}
    return {
        "verb": verb,
        "target": target,
        "spec": spec,
        "init": flags.get("init") or {},
        "attn_implementation": flags.get("attn_implementation"),
        "imports": list(flags.get("imports") or ()),
        "case": flags.get("case"),
        "seed": flags.get("seed"),
        "language": current_language(),
        "timeout": flags["timeout"],
        "command": _command(verb, target, spec, flags),
    }


def check_target(target: str) -> None:
    """What can be said about a target without importing anything.

    Raises:
        UsageError: with a suggestion where one is near.
    """
    place, _colon, name = target.rpartition(":")
    if name and is_checkpoint(place):
        return
    if is_checkpoint(target):
        raise messages.usage(
            _("{target!r} does not say which layer to verify").format(target=target),
            fix=f"{target}:blocks.0.attention",
        )
    if not place or (len(place) == 1 and name[:1] in "/\\"):  # no colon, or a Windows drive
        place, name = target, ""
    if place.endswith(".py") or "/" in place or "\\" in place:
        path = Path(place)
        if path.is_dir():
            raise messages.usage(
                _("{path} is a folder").format(path=place),
                fix=_("name a file and what is in it: path/to/file.py:Name"),
            )
        if not path.is_file():
            raise messages.usage(
                _("there is no file {path}").format(path=place), fix=_near_file(path, name)
            )
    elif not name:
        raise messages.usage(
            _("{target!r} does not say what to verify").format(target=target),
            why=_(
                "a target is path/to/file.py:Name, package.module:Name, hf:MODEL_TYPE or "
                "CHECKPOINT:LAYER"
            ),
            fix=_("add a colon and the name of the class or function"),
        )


def _near_file(path: Path, name: str) -> str:
    folder = path.parent
    if not folder.is_dir():
        return _("the folder {folder} does not exist either").format(folder=folder)
    files = [other.name for other in folder.glob("*.py")]
    near = did_you_mean(path.name, files)
    if near:
        target = f"{folder / near}:{name}" if name else str(folder / near)
        return _("did you mean {near!r}?").format(near=target)
    return _("check the path; the working directory is {folder}").format(folder=Path.cwd())


def _window(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> list[int | None] | None:
    if value is None:
        return None
    sides = value.split(",")
    try:
        window = [None if side.strip() in {"-", ""} else int(side) for side in sides]
    except ValueError:
        window = []
    if len(window) != 2 or any(side is not None and side < 0 for side in window):
        raise click.BadParameter(
            _("{value!r} is not two distances, such as 3,0 for four keys that end here").format(
                value=value
            )
        )
    return window


def _assignments(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for text in values:
        name, equals, literal = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise click.BadParameter(_("{text!r} is not written NAME=VALUE").format(text=text))
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = literal  # a bare word is a string: --init norm=rms
        result[name.strip()] = _plain(value, text)
    return result


def _plain(value: Any, text: str) -> Any:
    """The value if JSON can carry it to the child process; tuples become lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item, text) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, text) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise click.BadParameter(
        _("{text!r}: only numbers, strings, lists, dictionaries, True, False and None").format(
            text=text
        )
    )


def _command(verb: str, target: str, spec: Mapping[str, Any], flags: Mapping[str, Any]) -> str:
    """A command that asks the same again."""
    words = ["headwise", verb, target]
    for name, word in SPEC_FLAGS.items():
        if word not in spec:
            continue
        value, flag = spec[word], f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{name}")
        elif name == "window":
            words += [flag, ",".join("-" if side is None else str(side) for side in value)]
        else:
            words += [flag, str(value)]
    for name, value in (flags.get("init") or {}).items():
        words += ["--init", f"{name}={value!r}"]
    if flags.get("attn_implementation"):
        words += ["--attn-implementation", flags["attn_implementation"]]
    for name in flags.get("imports") or ():
        words += ["--import", name]
    return shlex.join(words)
