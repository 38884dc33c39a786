"""Masks: rules on positions that compose, explain themselves and convert by name. True = may look.

* ``mask``: what every mask can do, where queries sit among the keys, ``&`` and ``|``.
* ``rules``: kinds that need positions alone: causal, window, prefix.
* ``samples``: kinds that need the sample: padding, documents, custom.
* ``provenance``: which rule hid which cell.
* ``picture``: a mask as text for the terminal.
* ``convert``: to and from the convention of every API, by the name of the convention.
* ``conventions``: the record of each convention.
* ``checks``: what is refused before anything is computed.
"""

from headwise.masks.conventions import CONVENTIONS, Convention
from headwise.masks.convert import (
    from_convention,
    key_count_from_window,
    to_convention,
    window_from_key_count,
)
from headwise.masks.mask import Alignment, And, Mask, Or, query_slots
from headwise.masks.provenance import Provenance
from headwise.masks.rules import Causal, Prefix, Window
from headwise.masks.samples import Custom, Documents, Padding, QueryPadding

__all__ = [
    "CONVENTIONS",
    "Alignment",
    "And",
    "Causal",
    "Convention",
    "Custom",
    "Documents",
    "Mask",
    "Or",
    "Padding",
    "Prefix",
    "Provenance",
    "QueryPadding",
    "Window",
    "from_convention",
    "key_count_from_window",
    "query_slots",
    "to_convention",
    "window_from_key_count",
]
