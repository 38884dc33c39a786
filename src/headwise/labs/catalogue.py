"""All labs, one line each. Adding an experiment = adding its file and its line here."""

from __future__ import annotations

import importlib
from functools import lru_cache

from headwise.labs.lab import Lab, in_order

MODULES: tuple[str, ...] = (
    "why_project_at_all",
    "what_are_n_and_d",
    "is_the_right_shape_enough",
    "why_divide_by_sqrt_dk",
    "what_does_the_causal_mask_prevent",
    "how_many_heads",
    "is_mine_the_same_as_pytorch",
    "padding_mask_on_the_wrong_axis",
    "mask_before_or_after_softmax",
    "does_order_matter",
    "what_does_rope_encode",
    "does_the_cache_change_anything",
    "how_many_kv_heads",
    "why_subtract_the_maximum",
    "where_does_the_time_go",
    "must_dv_equal_dk",
    "by_hand",
    "how_heads_are_split",
    "is_attention_an_explanation",
    "the_whole_flow",
    "exercises",
    "what_do_real_models_use",
)


@lru_cache(maxsize=1)
def all_labs() -> tuple[Lab, ...]:
    """Every lab, in learning order."""
    for name in MODULES:
        importlib.import_module(f"headwise.labs.{name}")
    return tuple(in_order())
