"""Faults that show between calls: B. Properties find them, no stage is replaced."""

from __future__ import annotations

from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, register

register(
    Fault(
        code="B01",
        name="dropout-active-in-eval",
        shown_by=("twice",),
        what=N_("two identical calls in evaluation mode differ: dropout is still on"),
    ),
    Fault(
        code="B02",
        name="input-mutated",
        shown_by=("plain",),
        what=N_("the caller's tensor is changed by the call"),
    ),
    Fault(
        code="B03",
        name="batch-dependent",
        rank=95,
        shown_by=("batch",),
        what=N_("a sample's result depends on the other samples of the batch"),
    ),
    Fault(
        code="B04",
        name="state-kept-between-calls",
        shown_by=("twice",),
        what=N_("an earlier call changes the result of a later one"),
    ),
    Fault(
        code="U00",
        name="unexplained",
        undeclared="unexplained",
        rank=99,
        what=N_("the result differs and nothing in the catalogue explains it"),
    ),
)
