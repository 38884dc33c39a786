"""Receipts as blocks of a document: every figure opens into its formula and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwise.cost.expression import number_text
from headwise.cost.figure import Figure, exact, human
from headwise.cost.sizes import LEGEND
from headwise.cost.summary import Estimate
from headwise.document import Block, Heading, Pairs, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _

PHASES = {
    "prefill": N_("prefill"),
    "decode": N_("decode, one token each"),
    "training": N_("training step"),
}
CROSSINGS = {
    "projections": N_("the four projections"),
    "linear": N_("projections and feed-forward part"),
}
_INDENT = "\N{NO-BREAK SPACE}" * 2


def all_receipts(found: Estimate) -> list[Block]:
    """Every figure of an estimate, down to the last part."""
    figures: list[tuple[str, Figure]] = [
        (_("Parameters"), found.parameters),
        (_("FLOPs"), found.main_flops),
    ]
    if not found.is_training:
        figures.append((_("FLOPs without what the mask hides"), found.flops["forward_saving"]))
    figures += [
        (_("Bytes moved, plain attention"), found.bytes_moved["naive"]),
        (_("Bytes moved, tiled attention"), found.bytes_moved["tiled"]),
        (_("KV cache"), found.cache),
    ]
    figures += [
        (_("Activations kept: {how}").format(how=name), figure)
        for name, figure in found.activations.items()
    ]
    for name, crossing in found.crossovers.items():
        if crossing.rule is not None:
            title = _("Attention takes more than {what}").format(what=_(CROSSINGS[name]))
            figures.append((title, crossing.rule_causal or crossing.rule))
    figures += [
        (
            _("{machine}, {phase}").format(
                machine=bound.hardware.name, phase=_(PHASES[bound.phase])
            ),
            bound.tokens_per_s,
        )
        for bound in found.bounds
    ]
    blocks: list[Block] = [Heading(_("Receipts")), _legend(figure for _title, figure in figures)]
    shown: set[tuple[str, str, str]] = set()
    for title, figure in figures:
        blocks += [Heading(title, level=3), receipt_pairs(figure, shown)]
    return blocks


def short_receipts(found: Estimate) -> list[Block]:
    """The formulas of the main figures, one level deep."""
    rows = []
    for title, figure in (
        (_("parameters"), found.parameters),
        (_("FLOPs"), found.main_flops),
        (_("KV cache"), found.cache),
    ):
        rows.append((title, receipt_text(figure)))
        rows += [(_INDENT + part.name, receipt_text(part)) for part in figure.parts]
    more = Text(_("--receipts opens every figure, down to the last part"), "quiet")
    return [Heading(_("Receipts")), _legend([found.parameters, found.main_flops, found.cache]),
            Pairs(tuple(rows)), more]  # fmt: skip


def _legend(figures: Iterable[Figure]) -> Pairs:
    letters: dict[str, set[str]] = {}
    for figure in figures:
        for letter, values in figure.sizes().items():
            letters.setdefault(letter, set()).update(number_text(value) for value in values)
    rows = []
    for letter in LEGEND:
        if letter in letters:
            numbers = ", ".join(sorted(letters[letter], key=lambda n: (len(n), n)))
            rows.append((letter, f"{_(LEGEND[letter])}: {numbers}"))
    return Pairs(tuple(rows))


def receipt_pairs(figure: Figure, shown: set[tuple[str, str, str]] | None = None) -> Pairs:
    """A figure and everything below it, indented by depth.

    Args:
        figure: what to open.
        shown: what has been opened before and is only named again; added to.
    """
    known = set() if shown is None else shown
    return Pairs(tuple(_opened(figure, 0, known)))


def _opened(
    figure: Figure, depth: int, shown: set[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    key = (figure.name, figure.formula.text(), figure.formula.filled())
    label = _INDENT * depth + figure.name
    if key in shown and figure.parts:
        yield label, _("{amount}, as above").format(amount=_amount(figure))
        return
    shown.add(key)
    yield label, receipt_text(figure)
    for part in figure.parts:
        yield from _opened(part, depth + 1, shown)


def _amount(figure: Figure) -> str:
    number, short = exact(figure.value), human(figure)
    amount = f"{number} {figure.unit}"
    return amount if short.partition(" ")[0] == number else f"{amount} ({short})"


def receipt_text(figure: Figure) -> str:
    """Value, formula, the formula with numbers, note and source of one figure."""
    lines = [_amount(figure)]
    if not figure.is_fact:
        formula, filled = figure.formula.text(), figure.formula.filled()
        lines.append(f"= {formula}")
        if filled not in (formula, exact(figure.value)):
            lines.append(f"= {filled}")
    if figure.note:
        lines.append(_(figure.note))
    if figure.source:
        lines.append(figure.source)
    return "\n".join(lines)
