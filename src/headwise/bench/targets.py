"""What was promised, and whether this run shows it: geometric means beside their targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.texts import translate as _

FLOOR = 0.95
"""No shape above ``FLOOR_ABOVE`` tokens may be slower than this share of the best torch call."""
FLOOR_ABOVE = 64
OVERHEAD_US = 15.0
"""What a call of at most ``FLOOR_ABOVE`` tokens may take longer than the best torch call."""
GRADIENTS = 1.05
"""How much larger than SDPA's our gradient errors may be and still count as no worse."""


@dataclass(frozen=True)
class Target:
    """A promise, made for two cores with AVX-512.

    Args:
        ratio: time of the others over ours, geometric mean over the shapes.
        against: names of the peers it is about; empty = the best torch call of each shape.
        gradients: whether our gradients must also be no worse than SDPA's.
    """

    ratio: float
    against: tuple[str, ...] = ()
    gradients: bool = False


MASKED = ("sdpa-bool-mask", "sdpa-float-mask")
TARGETS: Mapping[tuple[str, str], tuple[Target, ...]] = {
    ("prefill", "float32"): (Target(1.5),),
    ("prefill", "bfloat16"): (Target(1.5),),
    ("head-sizes", "float32"): (Target(5.0),),
    ("head-sizes", "bfloat16"): (Target(2.0),),
    ("padded", "float32"): (Target(4.0),),
    ("padded", "bfloat16"): (Target(4.0),),
    ("window", "float32"): (Target(1.2, ("flex-attention",)), Target(10.0, MASKED)),
    ("window", "bfloat16"): (Target(1.2, ("flex-attention",)), Target(10.0, MASKED)),
    ("decode", "float32"): (Target(1.5),),
    ("decode", "bfloat16"): (Target(10.0),),
    ("train", "float32"): (Target(1.3, gradients=True),),
    ("train", "bfloat16"): (Target(1.0, gradients=True),),
    ("weights", "float32"): (Target(1.2),),
    ("weights", "bfloat16"): (Target(1.2),),
    ("weights-averaged", "float32"): (Target(3.0),),
    ("weights-averaged", "bfloat16"): (Target(3.0),),
    ("module-train", "float32"): (Target(1.25),),
}
"""The ratios of the issue, per workload and dtype."""


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean; None if there is nothing, or something is not known.

    Example:
        >>> geometric_mean([1.0, 4.0]), geometric_mean([1.0, None])
        (2.0, None)
    """
    found = list(values)
    known = [value for value in found if value is not None and value > 0]
    if not found or len(known) < len(found):
        return None
    return math.exp(math.fsum(math.log(value) for value in known) / len(known))


def summary(
    rows: Sequence[Mapping[str, Any]],
    cpu: Mapping[str, Any],
    missing: Sequence[Mapping[str, str]] = (),
) -> list[dict[str, Any]]:
    """One entry per workload and dtype, in the order of the rows."""
    return []
