"""Pages whose examples run."""

import doctest
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def run_page(page: Path) -> doctest.TestResults:
    """Run the examples of a page."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.testfile(str(page), module_relative=False, optionflags=flags)


def run_changed(page: Path, folder: Path, right: str, wrong: str) -> doctest.TestResults:
    """The same with one answer changed, in a copy."""
    text = page.read_text("utf-8")
    assert right in text
    changed = folder / "page.md"
    changed.write_text(text.replace(right, wrong), "utf-8")
    return run_page(changed)
