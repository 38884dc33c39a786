"""The ledger: everything that the course asserts, shows, orders, asks or names, row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PATH = Path(__file__).with_name("claims.json")


@dataclass(frozen=True)
class Row:
    """One row of the ledger.

    Args:
        id: ``A2.2``, or ``S3`` for a system.
        claim_en, claim_zh: what the course says, in both languages.
        kind: formula, shape, behaviour, experiment, exercise, system, warning, picture, extension.
        tag: true, cond, loose, wrong, gap, view; empty for systems.
        truth_en, truth_zh: what is exactly true.
    """

    id: str
    claim_en: str
    claim_zh: str
    kind: str
    tag: str
    truth_en: str
    truth_zh: str

    def claim(self, language: str) -> str:
        """The claim in a language."""
        return self.claim_zh if language == "zh" else self.claim_en

    def truth(self, language: str) -> str:
        """What is exactly true, in a language."""
        return self.truth_zh if language == "zh" else self.truth_en


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """All rows by id, in the order of the course."""
    data = json.loads(PATH.read_text(encoding="utf-8"))
    return {item["id"]: Row(**item) for item in data}
