"""Keeps the documents that are made from the source in step with it.

    python scripts/docs.py write        write them
    python scripts/docs.py check        exit 1 and name those that are not up to date

Made is docs/faults.md, from the catalogue of faults (in English, the language of the source).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headwise.stages import PLACES, STAGES
from headwise.verifier.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent

EXPERIMENTS: Mapping[str, str] = {
    "one": "a single token: the softmax is 1, so only the path of the values counts",
    "two": "two tokens without a mask: the path of the scores",
    "two sizes": "the same code at two head sizes",
    "plain": "several tokens, nothing special",
    "batch": "the same sample alone and beside others",
    "batch > 1": "more than one sample",
    "pad": "padding on the right, without a causal mask",
    "left": "padding on the left",
    "collide": "sizes that coincide (T = H, T = B, B = H)",
    "Tq<Tk": "fewer queries than keys",
    "cross": "keys and values from another sequence",
    "docs": "several documents packed into one row",
    "cache": "a sequence in steps, with a cache",
    "weights": "the weights are asked for",
    "big": "large scores",
    "half": "float16 or bfloat16",
    "grad": "the backward pass",
    "dropout": "dropout in training mode",
    "twice": "the same call again, or another before it",
    "in the model": "the layer inside its own model, which makes the mask",
}
"""The words of ``Fault.shown_by``, explained."""

KINDS: Mapping[str, str] = {
    "bug": "wrong, proved by numbers: the verdict is *differs*",
    "convention": "right under another convention, on a point that nobody declared: said, and no "
    "more. Once the point is declared it is a bug",
    "hazard": "right on ordinary inputs and wrong on special ones; `--fail-on hazard` makes it "
    "count",
    "numerics": "a floor of accuracy, not a wrong formula; `--fail-on numerics` makes it count",
    "unexplained": "differs, and nothing in the catalogue fits",
}
"""The kinds of a finding, explained."""

INTRODUCTION = """\
# Faults

<!-- Made by scripts/docs.py from the catalogue in src/headwise/verifier/faults: edit it there. -->

A fault is one stage of attention replaced by a wrong one. Its name states the bad pattern, the
letter of its code the stage. `headwise fault CODE` shows a card of this page, and reports refer to
the codes, with or without `HW-`.

In the code on this page B is the batch, T the length (Tq queries, Tk keys), H the number of query
heads and Hkv that of key/value heads, D the channels of a head. `q`, `k` and `v` are (B, H, T, D)
unless a line says otherwise. A boolean mask says `True` where a query may look, and `keep` (B, T)
is `True` for real tokens.
"""


def faults_page(faults: Iterable[Fault]) -> str:
    """The text of docs/faults.md."""
    ordered = sorted(faults, key=position)
    parts = [INTRODUCTION, kinds(ordered), experiments(ordered), contents(ordered)]
    stage = None
    for fault in ordered:
        if place(fault) != stage:
            stage = place(fault)
            parts.append(f"## Stage: {stage}\n")
        parts.append(card(fault))
    return "\n".join(parts)


def position(fault: Fault) -> tuple[int, int]:
    """Stages in the order of the data, then the other places; numbers within a letter."""
    letters = [stage.letter for stage in STAGES if stage.letter] + list(PLACES)
    letter = fault.code[0]
    return (letters.index(letter) if letter in letters else len(letters), int(fault.code[1:]))


def place(fault: Fault) -> str:
    """The stage or place of a fault; what is unexplained has none of its own."""
    return "any" if fault.undeclared == "unexplained" else fault.stage


def kinds(faults: Iterable[Fault]) -> str:
    """The kinds that occur, as a list."""
    return "## Kinds\n\n" + listed(KINDS, (fault.undeclared for fault in faults))


def experiments(faults: Iterable[Fault]) -> str:
    """The experiments that occur, as a list."""
    used = (word for fault in faults for word in fault.shown_by)
    return "## Experiments\n\nWhat a card is *shown by*:\n\n" + listed(EXPERIMENTS, used)


def listed(meanings: Mapping[str, str], used: Iterable[str]) -> str:
    """The words in use with their meanings, in the order of the meanings."""
    words = set(used)
    if words - set(meanings):
        raise ValueError(
            f"without an explanation in scripts/docs.py: {sorted(words - set(meanings))}"
        )
    lines = [f"- **{plain(word)}**: {text}." for word, text in meanings.items() if word in words]
    return "\n".join(lines) + "\n"


def contents(faults: Iterable[Fault]) -> str:
    """A table with a link to every card."""
    rows = ["## All faults", "", "| code | name | stage | kind |", "| --- | --- | --- | --- |"]
    for fault in faults:
        link = f"[{fault.name}](#{fault.full_code.lower()}-{fault.name})"
        rows.append(f"| {fault.full_code} | {link} | {place(fault)} | {fault.undeclared} |")
    return "\n".join(rows) + "\n"


def card(fault: Fault) -> str:
    """The section of one fault."""
    kind = fault.undeclared
    if kind == "convention":
        kind += f" (a bug once `{fault.point}` is declared)" if fault.point else ""
    lines = [f"### {fault.full_code} {fault.name}", "", f"{sentence(fault.what)}", ""]
    lines += [f"*Stage*: {place(fault)}. *Kind*: {kind}."]
    if fault.shown_by:
        lines[-1] += f" *Shown by*: {plain(', '.join(fault.shown_by))}."
    lines += ["", f"**Why.** {sentence(fault.why)}", ""]
    lines += ["Wrong:", "", *block(fault.bad), "", "Right:", "", *block(fault.good), ""]
    lines += [f"**Fix.** {sentence(fault.fix)}", ""]
    return "\n".join(lines)


def block(code: str) -> tuple[str, ...]:
    """Code between fences."""
    return ("```python", *code.strip("\n").split("\n"), "```")


def sentence(text: str) -> str:
    """A text of the catalogue as a sentence: reports show it after a label, without a full stop."""
    return plain(text[:1].upper() + text[1:]) + ("" if text.endswith((".", "?")) else ".")


def plain(text: str) -> str:
    """A text in which Markdown finds nothing to interpret."""
    return re.sub(r"([\\`*<>|]|(?<!\w)_|_(?!\w))", r"\\\1", text)


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/faults.md": lambda: faults_page(FAULTS.values()),
}
"""The documents that are made, by path."""


def stale(root: Path = ROOT) -> list[str]:
    """Paths of the documents that differ from what the source makes of them."""
    return [path for path, make in PAGES.items() if _read(root / path) != make()]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def write() -> int:
    """Write every document."""
    for path in stale():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(PAGES[path](), encoding="utf-8")
        print(f"wrote {path}")
    return 0


def check() -> int:
    """Name the documents that are not up to date."""
    found = stale()
    for path in found:
        print(f"{path} is not up to date: run python scripts/docs.py write")
    return 1 if found else 0


COMMANDS: dict[str, Callable[[], int]] = {"write": write, "check": check}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    sys.exit(COMMANDS[sys.argv[1]]())
