"""Which rules of ``locate`` are tried for which fault, before the general ones."""

from __future__ import annotations

from headwise.verifier.evidence import Rule
from headwise.verifier.rules_beyond import (
    backward_end,
    backward_product,
    backward_without_mask,
    cut_gradient,
    dropout_on_scores,
    first_infinity,
    first_nan,
    half_softmax,
    kept_state,
    leaking_product,
    mutated_input,
    narrowing,
    random_call,
)
from headwise.verifier.rules_forward import (
    one_sided,
    outermost_departure,
    rebound_mask,
    skipped_branch,
    swapped,
    unmasked_softmax,
    unread_result,
    wrong_factor,
)

_MASK_MISSING: tuple[Rule, ...] = (unread_result, rebound_mask, skipped_branch, unmasked_softmax)

RULES: dict[str, tuple[Rule, ...]] = {
    "P01": (swapped,),
    "P02": (swapped,),
    "P07": (outermost_departure,),
    "R05": (one_sided,),
    **dict.fromkeys(("S02", "S03", "S04", "S05", "S06", "S07"), (wrong_factor,)),
    **dict.fromkeys(("M04", "M05", "M11", "M17", "M19", "M20", "M22", "M23"), _MASK_MISSING),
    "M26": (first_nan,),
    "M28": (first_infinity,),
    "M29": (leaking_product,),
    "X04": (first_infinity,),
    "X07": (dropout_on_scores,),
    "D01": (first_infinity,),
    "D02": (narrowing,),
    "D03": (half_softmax,),
    "B01": (random_call,),
    "B02": (mutated_input,),
    "B04": (kept_state,),
    "T01": (cut_gradient,),
    "T02": (backward_without_mask,),
    "T03": (backward_product,),
    "T04": (backward_end,),
}
"""Rules to try before the general ones."""
