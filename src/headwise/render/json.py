"""A document or a report as JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headwise.document import Document


def render_json(content: Document | Mapping[str, Any]) -> str:
    """One JSON object and a line break.

    Raises:
        ValueError: if a number is not finite; JSON has no word for it.
    """
    data = content.to_json() if isinstance(content, Document) else content
    return json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
