"""The catalogue of faults: one file per stage, one record per fault."""

from headwise.verifier.faults import (
    behaviour,
    cache,
    gradient,
    heads,
    masking,
    positions,
    projection,
    registration,
    scores,
    softmax,
)
from headwise.verifier.faults.catalogue import FAULTS, Fault, Kind, Variant, find_fault

__all__ = [
    "FAULTS",
    "Fault",
    "Kind",
    "Variant",
    "behaviour",
    "cache",
    "find_fault",
    "gradient",
    "heads",
    "masking",
    "positions",
    "projection",
    "registration",
    "scores",
    "softmax",
]
