"""The definition of attention, in float64, stage by stage."""

from headwise.reference.definition import STAGE_FUNCTIONS, StageFunction, attend
from headwise.reference.setting import Inputs, Parameters, Setting, Trace

__all__ = [
    "STAGE_FUNCTIONS",
    "Inputs",
    "Parameters",
    "Setting",
    "StageFunction",
    "Trace",
    "attend",
]
