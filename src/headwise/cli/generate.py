"""``headwise generate``: text from a real model, token by token."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from headwise.cli import messages, options
from headwise.cli.messages import CANNOT_RUN, INTERRUPTED
from headwise.document import Document, Pairs
from headwise.errors import TargetError
from headwise.texts import current_language
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.checkpoints.load import Model
    from headwise.generate.decoding import Run
    from headwise.generate.prompts import Prompts
    from headwise.generate.stats import Stats

DTYPES = ("float32", "bfloat16", "float16", "float64")


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="generate",
        cls=messages.Command,
        help=_(
            "Text from a real model, as it comes. MODEL is the name of a pulled model "
            "(headwise models), a folder of Hugging Face or a GGUF file; PROMPT is the beginning "
            "of the text, or - for what stands on the standard input. Several prompts are "
            "generated together, each gets the text it would get alone. Ctrl-C ends it and keeps "
            "the text so far."
        ),
    )
    @click.argument("model")
    @click.argument("prompts", nargs=-1, required=True, metavar="PROMPT…")
    @click.option(
        "--max-tokens",
        type=int,
        default=100,
        show_default=True,
        metavar="N",
        help=_("Most new tokens for each prompt."),
    )
    @click.option(
        "--temperature",
        type=float,
        metavar="X",
        help=_("0 takes the likeliest token; 0 if left out, 1 with --top-k or --top-p."),
    )
    @click.option(
        "--top-k", type=int, metavar="N", help=_("Draw from the N likeliest tokens only.")
    )
    @click.option(
        "--top-p",
        type=float,
        metavar="X",
        help=_("Draw from the fewest likeliest tokens that have this probability together."),
    )
    @click.option(
        "--seed", type=int, default=0, show_default=True, metavar="N", help=_("Seed of the draws.")
    )
    @click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        help=_("Of parameters and cache; as stored if left out."),
    )
    @click.option(
        "--no-cache", is_flag=True, help=_("Compute all earlier tokens again for each new one.")
    )
    @click.option(
        "--chat/--no-chat",
        default=False,
        help=_("Ask PROMPT as a question, by the chat template of the model."),
    )
    @click.option(
        "--stats",
        is_flag=True,
        help=_("Speed, memory and the share of the bandwidth bound, on the error stream."),
    )
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help=_("Threads of torch."))
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object at the end."))
    @options.common_flags
    def generate(model: str, prompts: tuple[str, ...], **flags: Any) -> int:
        try:
            return _run(model, _read(prompts), flags)
        except TargetError as error:
            messages.show_error(error, with_traceback=flags["traceback"])
            return CANNOT_RUN

    return generate


def _run(name: str, texts: Sequence[str], flags: dict[str, Any]) -> int:
    import torch

    from headwise.checkpoints.load import load
    from headwise.generate.decoding import Decoder, check_causal, check_count
    from headwise.generate.prompts import read_prompts
    from headwise.generate.sampling import Sampling
    from headwise.generate.stats import reading_bytes_per_s, stats_of

    check_count("max_tokens", flags["max_tokens"])
    drawn = {word: flags[word] for word in ("temperature", "top_k", "top_p", "seed")}
    sampling = Sampling(**drawn)
    if flags["threads"]:
        torch.set_num_threads(flags["threads"])
    dtype = getattr(torch, flags["dtype"]) if flags["dtype"] else None
    model = load(name, dtype=dtype)
    check_causal(model.stack)
    words = read_prompts(model)
    encode = words.encode_chat if flags["chat"] else words.encode
    bandwidth = reading_bytes_per_s() if flags["stats"] else None
    run = Decoder(model.stack).start(
        [encode(text) for text in texts],
        max_tokens=flags["max_tokens"],
        sampling=sampling,
        stop=words.stop,
        use_cache=not flags["no_cache"],
    )
    live = len(texts) == 1 and not flags["as_json"]
    try:
        for piece in _pieces(run, words):
            if live:
                _echo(piece, end="")
    except KeyboardInterrupt:
        run.interrupt()
    stats = stats_of(run.clock, bytes_per_s=bandwidth)
    _show(run, words, texts, model, stats, flags | {"live": live, "heat": sampling.heat})
    return INTERRUPTED if any(row.stopped == "interrupted" for row in run.rows) else 0


def _pieces(run: Run, words: Prompts) -> Iterator[str]:
    """The text of the first row, as it comes."""
    pieces = words.pieces()
    for new in run:
        for row, token in new:
            if row == 0:
                yield pieces.push(token)


def _show(
    run: Run,
    words: Prompts,
    texts: Sequence[str],
    model: Model,
    stats: Stats,
    flags: dict[str, Any],
) -> None:
    if flags["as_json"]:
        from headwise.render.json import render_json

        data = as_json(run, words, texts, model, stats, flags)
        click.echo(render_json(data), nl=False)
    elif flags["live"]:
        click.echo()
    else:
        for number, (text, row) in enumerate(zip(texts, run.rows, strict=True), 1):
            _echo(f"[{number}/{len(texts)}] {_short(text)}")
            _echo(words.text(row.tokens))
    for number, row in enumerate(run.rows, 1):
        if row.stopped in ("full", "interrupted"):
            reason = {
                "full": _("the model takes no more tokens"),
                "interrupted": _("interrupted"),
            }[row.stopped]
            text = _("prompt {number}: {reason}, after {tokens} new tokens")
            click.echo(text.format(number=number, reason=reason, tokens=len(row.tokens)), err=True)
    if flags["stats"] and not flags["as_json"]:
        messages.show_document(
            Document("", (Pairs(tuple(_rows(stats))),), current_language()), sys.stderr
        )


def as_json(
    run: Run,
    words: Prompts,
    texts: Sequence[str],
    model: Model,
    stats: Stats,
    flags: dict[str, Any],
) -> dict[str, Any]:
    """A run as plain data."""
    return {
        "model": str(model.path),
        "family": model.family,
        "dtype": str(model.stack.tokens.weight.dtype).removeprefix("torch."),
        "options": {
            "max_tokens": flags["max_tokens"],
            "temperature": flags["heat"],
            "top_k": flags["top_k"],
            "top_p": flags["top_p"],
            "seed": flags["seed"],
            "chat": flags["chat"],
            "cache": not flags["no_cache"],
        },
        "rows": [
            {
                "prompt": text,
                "prompt_tokens": list(row.prompt),
                "tokens": row.tokens,
                "text": words.text(row.tokens),
                "stopped": row.stopped,
            }
            for text, row in zip(texts, run.rows, strict=True)
        ],
        "stats": stats.to_json(),
    }


def _rows(stats: Stats) -> Iterator[tuple[str, str]]:
    """The figures in words."""
    from headwise.cost.figure import human_value

    def per_s(value: float | None) -> str:
        return "–" if value is None else _("{rate:.1f} tokens/s").format(rate=value)

    if stats.first_token_s is not None:
        yield (
            _("prefill"),
            _("{tokens} tokens, {rate}; first token after {seconds:.2f} s").format(
                tokens=stats.prompt_tokens,
                rate=per_s(stats.prefill_tokens_per_s),
                seconds=stats.first_token_s,
            ),
        )
    if stats.decode_tokens_per_s is not None and stats.step_s is not None:
        yield (
            _("decode"),
            _("{tokens} new tokens, {rate}, {ms:.1f} ms per step").format(
                tokens=stats.new_tokens,
                rate=per_s(stats.decode_tokens_per_s),
                ms=stats.step_s * 1e3,
            ),
        )
    yield _("cache"), human_value(stats.cache_bytes, "byte") if stats.cache_bytes else _("none")
    if stats.read_bytes_per_step is not None and stats.bytes_per_s and stats.bound_share:
        yield (
            _("bound"),
            _(
                "{read} read per step at {speed} would take {ms:.1f} ms: {share:.0%} of the bound"
            ).format(
                read=human_value(round(stats.read_bytes_per_step), "byte"),
                speed=f"{stats.bytes_per_s / 1e9:.1f} GB/s",
                ms=stats.read_bytes_per_step / stats.bytes_per_s * 1e3,
                share=stats.bound_share,
            ),
        )


def shown(text: str, *, on_terminal: bool) -> str:
    r"""Text of a model: on a terminal control characters are shown, not obeyed.

    Example:
        >>> print(shown("a" + chr(27) + "[2J", on_terminal=True))
        a\x1b[2J
    """
    if not on_terminal:
        return text
    return "".join(
        letter
        if letter in "\n\t" or unicodedata.category(letter) != "Cc"
        else f"\\x{ord(letter):02x}"
        for letter in text
    )


def _echo(text: str, *, end: str = "\n") -> None:
    click.echo(shown(text, on_terminal=sys.stdout.isatty()) + end, nl=False)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


def _read(prompts: Sequence[str]) -> list[str]:
    """The prompts; ``-`` stands for the standard input."""
    if prompts.count("-") > 1:
        raise messages.usage(
            _("the standard input can be one prompt only"), where=_("PROMPT - twice")
        )
    return [_from_stdin() if text == "-" else text for text in prompts]


def _from_stdin() -> str:
    found: bytes = sys.stdin.buffer.read()
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise messages.usage(
            _("the standard input is no text in UTF-8"),
            why=_("byte {place}: {why}").format(place=error.start, why=error.reason),
        ) from error
