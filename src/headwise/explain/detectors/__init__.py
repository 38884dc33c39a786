"""What a heat map is good for: kinds of heads and faults that can be read off the weights alone.

None of them says what a head *does* to the output; for that the map has to be measured against
interventions. Adding a detector = one ``Detector`` in a module of this package; adding a family =
a file and the line below.
"""

from __future__ import annotations

from headwise.explain.detectors import induction, mask_faults, positional, sinks
from headwise.explain.detectors.detection import Detection, Detector, detect_all
from headwise.explain.detectors.facts import MapFacts
from headwise.registry import Registry

DETECTORS: Registry[Detector] = Registry("detector")
"""Every detector by its name, in the order in which they are shown."""

for _module in (mask_faults, positional, sinks, induction):
    for _detector in _module.DETECTORS:
        DETECTORS.add(_detector.name, _detector)

__all__ = ["DETECTORS", "Detection", "Detector", "MapFacts", "detect_all"]
