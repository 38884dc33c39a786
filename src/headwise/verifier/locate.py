"""From a diagnosis to the source line.

``evidence`` holds the general rule (the first operation that makes a tensor of the faulty
definition alone), ``location_rules`` those for faults that leave no such operation, by code.
"""

from __future__ import annotations

from headwise.reference.setting import Inputs, Trace
from headwise.spec import AttentionSpec
from headwise.stages import place_of
from headwise.texts import translate as _
from headwise.verifier.alignment import Alignment
from headwise.verifier.evidence import Case, Location, Rule, departure, missing_step, unexplained
from headwise.verifier.location_rules import RULES
from headwise.verifier.recorder import Recording
from headwise.verifier.rules_cache import first_stale, steps_of

__all__ = ["Location", "locate"]


def locate(
    recording: Recording,
    *,
    correct: Trace,
    faulty: Trace | None,
    code: str,
    inputs: Inputs | None = None,
    spec: AttentionSpec | None = None,
) -> Location:
    """Find the source line of a diagnosed fault.

    Args:
        recording: of the target, on the inputs of the traces.
        correct: the definition's trace.
        faulty: the definition's trace with the fault, which equals the target's numbers; None for
            a fault that is no stage's (cache, gradient, behaviour) or is unexplained.
        code: the fault's code, with or without prefix.
        inputs: what the layer was called with; masks are followed by their values.
        spec: what the layer is.

    Returns:
        A ``Location``; without a line, if no operation of the target proves one.
    """
    code = code.removeprefix("HW-")
    case = Case(Alignment(recording, correct, faulty), code, inputs, spec)
    stage = None if code == "U00" else place_of(code)
    if not any(op.frames for op in (*recording.ops, *recording.calls)):
        reason = _("no line of the target's own files took part in the computation")
        return Location(None, None, (), stage, reason)
    rules: tuple[Rule, ...] = (*RULES.get(code, ()), departure, missing_step)
    if code == "U00":
        rules = (first_stale,) if len(steps_of(case)) > 1 else (unexplained,)
    for rule in rules:
        found = rule(case)
        if found is not None:
            return found
    reason = _("none of the target's operations makes a tensor that only the fault explains")
    return Location(None, None, (), stage, reason)
