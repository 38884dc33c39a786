"""Pages: examples run, links lead somewhere, and what they list is what the code has."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from headwise import __version__
from headwise.cli.main import COMMANDS
from headwise.report import EXIT_CODES
from headwise.stages import PLACES, STAGES

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/notation.md",
         "docs/numerics.md", "docs/conventions.md", "docs/faults.md", "docs/cache.md",
         "docs/attention.md", "docs/cost.md", "docs/benchmarks.md", "docs/explain.md",
         "docs/generate.md", "docs/architectures.md", "docs/explain-minilm.md",
         "docs/explain-smollm2-135m.md", "docs/checkpoints.md", "docs/others.md"]  # fmt: skip
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    missing = [
        link
        for link in LINK.findall(read(page))
        if not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert missing == []


def test_a_dead_link_would_be_found():
    assert LINK.findall("see [a](docs/a.md#part), [b](https://x), [c](#here)") == ["docs/a.md"]


def test_the_examples_on_numerics_run():
    failed, tried = doctest.testfile(str(ROOT / "docs" / "numerics.md"), module_relative=False)
    assert failed == 0
    assert tried > 5


def test_the_notation_lists_every_stage_as_the_code_has_it():
    page = read("docs/notation.md")
    for number, stage in enumerate(STAGES, 1):
        tensors = ", ".join(f"`{name}`" for name in stage.tensors)
        shapes = ", ".join(f"({shape.replace(' ', ', ')})" for shape in stage.shapes)
        start = f"| {number} | `{stage.name}` | {tensors} | {shapes} |"
        (row,) = [line for line in page.splitlines() if line.startswith(start)]
        assert row.endswith(f"| {stage.letter} |".replace("  ", " "))
    for letter, place in PLACES.items():
        assert f"`{place}` ({letter})" in page.replace("\n", " ")


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_both_readmes_list_every_command_and_verdict(page):
    text = read(page)
    for name in COMMANDS:
        assert f"`headwise {name}" in text
    for verdict, code in EXIT_CODES.items():
        assert re.search(rf"\| `{verdict}` \|.*\| {code} \|", text)


def test_both_readmes_have_the_same_sections_and_commands():
    english, chinese = read("README.md"), read("README.zh-CN.md")
    assert english.count("\n## ") == chinese.count("\n## ")
    fence = re.compile(r"^(?:make|python -m|\.venv).*$", re.MULTILINE)
    assert fence.findall(english) == fence.findall(chinese)


def test_the_changelog_knows_this_version():
    assert f"## {__version__}" in read("CHANGELOG.md")


def test_the_package_named_for_the_demo_is_the_one_in_the_makefile():
    pinned = re.search(r"torch==[\d.]+", read("constraints.txt")).group()
    for page in ("README.md", "README.zh-CN.md", "Makefile"):
        assert f"install torch={pinned.removeprefix('torch=')} " in read(page).replace(
            "install --quiet", "install"
        )
