"""The exception tree: four parts, exit codes' classes, suggestions."""

from __future__ import annotations

import pytest

from headwise.errors import (
    HeadwiseError,
    MaskError,
    ShapeError,
    SpecError,
    TargetError,
    UsageError,
    did_you_mean,
)

ALL = (SpecError, MaskError, ShapeError, UsageError, TargetError)


@pytest.mark.parametrize("kind", ALL)
def test_one_except_clause_catches_all(kind):
    with pytest.raises(HeadwiseError, match="what went wrong"):
        raise kind("what went wrong")


@pytest.mark.parametrize("kind", [SpecError, MaskError, ShapeError])
def test_wrong_values_are_value_errors(kind):
    with pytest.raises(ValueError, match="x=3"):
        raise kind("x=3")


@pytest.mark.parametrize("kind", [UsageError, TargetError])
def test_the_others_are_not(kind):
    assert not issubclass(kind, ValueError)


def test_message_has_its_parts_in_order():
    error = SpecError("what", where="here", why="because", fix="so")
    assert str(error) == "what\n  where  here\n  why    because\n  fix    so"
    assert (error.what, error.where, error.why, error.fix) == ("what", "here", "because", "so")


@pytest.mark.parametrize("part", ["where", "why", "fix"])
def test_parts_that_are_not_given_take_no_line(part):
    assert str(UsageError("what", **{part: "text"})) == f"what\n  {part:<6} text"
    assert str(UsageError("what")) == "what"


def test_the_first_line_stands_alone_for_tools_that_show_only_it():
    assert SpecError("what", why="because").args == ("what",)


@pytest.mark.parametrize(
    ("word", "near"),
    [("sofmax", "softmax"), ("projections", "projection"), ("zebra", None), ("", None)],
)
def test_did_you_mean(word, near):
    assert did_you_mean(word, iter(["softmax", "scores", "projection"])) == near


def test_did_you_mean_of_nothing():
    assert did_you_mean("softmax", []) is None
