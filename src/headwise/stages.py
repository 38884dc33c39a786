"""The ten stages of attention: the skeleton of definition, trace, faults, cost, labs and page."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.errors import UsageError
from headwise.texts import translate as _


@dataclass(frozen=True)
class Stage:
    """One step of attention.

    Args:
        name: the stage's id.
        tensors: names of the tensors it produces.
        shapes: their shapes, in the letters of docs/notation.md.
        letter: first letter of the codes of the faults that live here ("" for none).
    """

    name: str
    tensors: tuple[str, ...]
    shapes: tuple[str, ...]
    letter: str


STAGES: tuple[Stage, ...] = (
    Stage("input", ("x_q", "x_kv"), ("B Tq Dm", "B Tk Dm"), ""),
    Stage(
        "projection",
        ("q_flat", "k_flat", "v_flat"),
        ("B Tq Hq·Dk", "B Tk Hkv·Dk", "B Tk Hkv·Dv"),
        "P",
    ),
    Stage("split", ("q", "k", "v"), ("B Hq Tq Dk", "B Hkv Tk Dk", "B Hkv Tk Dv"), "H"),
    Stage("positions", ("q_pos", "k_pos"), ("B Hq Tq Dk", "B Hkv Tk Dk"), "R"),
    Stage("scores", ("scores",), ("B Hq Tq Tk",), "S"),
    Stage("mask", ("masked_scores",), ("B Hq Tq Tk",), "M"),
    Stage("softmax", ("weights",), ("B Hq Tq Tk",), "X"),
    Stage("aggregate", ("context",), ("B Hq Tq Dv",), "A"),
    Stage("merge", ("merged",), ("B Tq Hq·Dv",), "G"),
    Stage("output", ("output",), ("B Tq Dm",), "O"),
)

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)

PLACES: dict[str, str] = {"C": "cache", "D": "precision", "B": "behaviour", "T": "gradient"}
"""Places beside the ten stages that a fault can have, by letter."""


def place_of(code: str) -> str:
    """The stage or place of a fault code.

    Raises:
        UsageError: for a letter that no stage or place has.

    Example:
        >>> place_of("M02"), place_of("HW-T01")
        ('mask', 'gradient')
    """
    letter = code.removeprefix("HW-")[:1]
    by_letter = {stage.letter: stage.name for stage in STAGES if stage.letter}
    places = {**by_letter, **PLACES}
    if letter not in places:
        raise UsageError(
            _("the fault code {code!r} belongs to no stage").format(code=code),
            fix=_("codes begin with one of {letters}").format(letters=" ".join(places)),
        )
    return places[letter]
