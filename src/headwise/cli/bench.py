"""``headwise bench``: what Headwise measures about itself; each measurement is its own command."""

from __future__ import annotations

from collections.abc import Mapping

import click

from headwise.cli import messages
from headwise.cli.lazy import LazyGroup
from headwise.texts import mark as N_
from headwise.texts import translate as _

COMMANDS: Mapping[str, tuple[str, str]] = {
    "attention": (
        "headwise.cli.bench_attention",
        N_("How fast attention is, beside other libraries in the same run."),
    ),
    "decode": (
        "headwise.cli.bench_decode",
        N_("How fast text is decoded, beside transformers in the same run."),
    ),
    "onnx": (
        "headwise.cli.bench_onnx",
        N_("The conformance cases of ONNX, through Headwise and other libraries."),
    ),
    "faults": (
        "headwise.cli.bench_faults",
        N_("How well the verifier does on a folder of known cases."),
    ),
}
"""Module and short help of every measurement."""


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.group(
        name="bench",
        cls=LazyGroup,
        commands=COMMANDS,
        no_args_is_help=True,
        help=_("Measure Headwise: its speed, its conformance, its verdicts."),
    )
    @messages.language_flag
    def bench() -> None:
        pass

    return bench
