"""A document as one self-contained HTML file.

No script, no request to any network: the content security policy in the page forbids both, so that
even a string that slipped through the escaping could do nothing. Pictures are embedded as images.
"""

from __future__ import annotations

import base64
import math
from functools import lru_cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from headwise.document import Document, Figure
from headwise.texts import HTML_LANGUAGES

_TEMPLATES = __file__.removesuffix("html.py") + "templates"


def render_html(document: Document) -> str:
    """The document as an HTML page."""
    return _template().render(
        document=document,
        language=HTML_LANGUAGES.get(document.language, document.language),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = _data_uri
    environment.filters["cell"] = _cell
    environment.filters["shade"] = _shade
    environment.tests["finite"] = math.isfinite
    return environment.get_template("document.html")


def _data_uri(figure: Figure) -> Markup:
    encoded = base64.b64encode(figure.svg.encode()).decode("ascii")
    return Markup("data:image/svg+xml;base64,{}").format(encoded)


def _cell(value: float | None) -> str:
    return "·" if value is None else f"{value:.3g}"


def _shade(value: float | None, largest: float) -> int:
    """Strength of a cell's colour in percent."""
    if value is None or not math.isfinite(value) or not largest:
        return 0
    return round(abs(value) / largest * 60)
