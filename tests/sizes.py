"""Sizes by name. Within a preset no two axes agree, so that a swapped axis can't go unnoticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwise.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The letters of docs/notation.md, and the widths of context and values."""

    B: int
    Hq: int
    Hkv: int
    Tq: int
    Tk: int
    Dk: int
    Dv: int
    Dm: int
    Dc: int
    Dval: int

    def spec(self, **changes: Any) -> AttentionSpec:
        """Self-attention of these sizes (queries, keys and values all from Dm)."""
        fields = {
            "d_model": self.Dm,
            "num_heads": self.Hq,
            "num_kv_heads": self.Hkv,
            "head_dim": self.Dk,
            "v_head_dim": self.Dv,
        }
        return AttentionSpec(**(fields | changes))

    def cross_spec(self, **changes: Any) -> AttentionSpec:
        """Cross attention of these sizes: keys from Dc, values from Dval."""
        return self.spec(**({"d_context": self.Dc, "d_values": self.Dval} | changes))


TINY = Sizes(B=1, Hq=2, Hkv=1, Tq=3, Tk=4, Dk=4, Dv=3, Dm=5, Dc=6, Dval=7)
"""For checks that are expensive per number (finite differences). B = Hkv and Tk = Dk are forced
by how small it is; everything that is compared by axis uses AWKWARD."""

AWKWARD = Sizes(B=2, Hq=6, Hkv=3, Tq=5, Tk=7, Dk=8, Dv=10, Dm=11, Dc=13, Dval=14)
"""The usual choice."""

WIDE = Sizes(B=3, Hq=12, Hkv=4, Tq=9, Tk=13, Dk=16, Dv=10, Dm=21, Dc=23, Dval=26)
"""Longer sums, for allowances that have to grow with them."""
