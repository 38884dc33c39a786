"""The page on generation: its examples run, and it names what the command has."""

from __future__ import annotations

import doctest
from pathlib import Path

import click

from headwise.cli.generate import command
from headwise.generate import vocabulary

PAGE = Path(__file__).parents[2] / "docs" / "generate.md"


def test_the_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried > 8


def test_every_way_to_choose_is_explained():
    text = PAGE.read_text(encoding="utf-8")
    names = [
        name
        for option in command().params
        if isinstance(option, click.Option)
        for name in option.opts
    ]
    plain = {"--dtype", "--threads", "--lang", "--traceback", "--no-chat"}
    assert [name for name in names if name not in text and name not in plain] == []
    for name in vocabulary.cuts():
        assert f"`{name}`" in text
