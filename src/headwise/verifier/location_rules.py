"""Which rules of ``locate`` are tried for which fault, before the general ones."""

from __future__ import annotations

from headwise.verifier.evidence import Rule
from headwise.verifier.rules_beyond import (
    backward_end,
    backward_product,
    backward_without_mask,
    cut_gradient,
    dropout_on_scores,
    fill_number,
    first_infinity,
    first_nan,
    half_softmax,
    kept_state,
    leaking_product,
    mutated_input,
    narrowing,
    random_call,
)
from headwise.verifier.rules_cache import (
    first_stale,
    stale_bias,
    stale_mask,
    wrong_length,
    wrong_positions,
)
from headwise.verifier.rules_forward import (
    late_cap,
    one_sided,
    outermost_departure,
    rebound_mask,
    rotary_table,
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
    "R03": (rotary_table,),
    "R05": (one_sided,),
    "R07": (rotary_table,),
    "S09": (late_cap,),
    "R08": (first_stale,),
    "R15": (stale_bias,),
    **dict.fromkeys(("R02", "R10", "R11", "R12"), (wrong_positions, first_stale)),
    **dict.fromkeys(("C01", "C02", "C04", "C05"), (first_stale,)),
    "C03": (wrong_length, wrong_positions, first_stale),
    **dict.fromkeys(("S02", "S03", "S04", "S05", "S06", "S07"), (wrong_factor,)),
    **dict.fromkeys(("M04", "M05", "M17", "M20", "M22", "M23"), _MASK_MISSING),
    **dict.fromkeys(("M11", "M19"), (*_MASK_MISSING, stale_mask)),
    "M15": (fill_number,),
    "M26": (first_nan,),
    "M27": (fill_number,),
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
