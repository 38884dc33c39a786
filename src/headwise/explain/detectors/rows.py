"""In how many rows does the largest weight lie where the rule says?

Every pattern detector names cells and asks this. A row counts if it sees such a cell and another
one; it is won if the largest weight of its competing cells lies on a named cell, alone, and stands
out (`headwise.explain.detectors.chance`). Equal weights win nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.explain.detectors.chance import at_least, explained, typical_largest
from headwise.explain.detectors.detection import Detection, cannot_tell, strongest
from headwise.explain.detectors.facts import MapFacts
from headwise.texts import translate as _


@dataclass(frozen=True, eq=False)
class Pattern:
    """Cells in which a kind of head has its largest weights.

    Args:
        cells: (Tq, Tk) bool, where the rule says.
        ignored: (Tq, Tk) bool, cells that compete on neither side: places of rest, and cells that
            another kind of head would have too.
        what: the cells in words, translated.
        reason: why nobody can tell if no row counts, translated.
        note: added to the evidence, translated.
    """

    cells: Tensor
    ignored: Tensor
    what: str
    reason: str
    note: str = ""


def judge(name: str, weights: Tensor, facts: MapFacts, pattern: Pattern) -> tuple[Detection, ...]:
    """One detection per head: the share of rows won, against what chance explains.

    Args:
        name: of the detector.
        weights: (H, Tq, Tk), checked.
        facts: of the map.
        pattern: the cells.
    """
    heads, q_len, kv_len = weights.shape
    compete = facts.visible(q_len, kv_len) & ~pattern.ignored
    cells = pattern.cells & compete
    counts = facts.rows(q_len, kv_len) & cells.any(-1) & (compete & ~cells).any(-1)
    rows = int(counts.sum())
    if rows == 0:
        return cannot_tell(name, heads, pattern.reason)
    chances = tuple((cells.sum(-1) / compete.sum(-1))[counts].tolist())
    threshold = explained(chances)
    if threshold is None:
        return cannot_tell(name, heads, too_few(chances))
    best = weights.masked_fill(~cells, -1.0).amax(-1)
    rest = weights.masked_fill(~compete | cells, -1.0).amax(-1)
    wins = counts & (best > rest) & stands_out(best, facts, kv_len)
    means = (weights * cells).sum(-1)[:, counts].mean(-1)
    tail = at_least(chances)
    is_beside = bool(pattern.ignored.all(0).any())
    found = []
    for head in range(heads):
        won = int(wins[head].sum())
        words = sentence(
            won, rows, pattern.what, float(means[head]), threshold, is_beside=is_beside
        )
        top = weights[head] == best[head][:, None]
        found.append(
            Detection(
                name,
                head,
                score=won / rows,
                threshold=threshold,
                evidence=f"{words}; {pattern.note}" if pattern.note else words,
                positions=strongest(weights[head], cells & top & wins[head][:, None]),
                figures={
                    "rows": rows,
                    "wins": won,
                    "chance": tail[won],
                    "mean_weight": float(means[head]),
                },
            )
        )
    return tuple(found)


def stands_out(weights: Tensor, facts: MapFacts, kv_len: int) -> Tensor:
    """Whether one weight per row is at least the largest weight of a row of random scores.

    Args:
        weights: (H, Tq).
        facts: of the map.
        kv_len: Tk.
    """
    keys = facts.visible(weights.shape[-1], kv_len).sum(-1).clamp(min=1)
    found: Tensor = weights >= typical_largest(keys)
    return found


def winners(weights: Tensor, compete: Tensor, facts: MapFacts) -> Tensor:
    """The key that wins every row, (H, Tq) int64, -1 where none does.

    Args:
        weights: (H, Tq, Tk), checked.
        compete: (Tq, Tk) bool.
        facts: of the map.
    """
    kv_len = weights.shape[-1]
    if kv_len < 2:
        return torch.full(weights.shape[:2], -1)
    values, keys = weights.masked_fill(~compete, -1.0).topk(2, dim=-1)
    alone = (values[..., 0] > values[..., 1]) & (compete.sum(-1) > 1)
    won = alone & stands_out(values[..., 0], facts, kv_len)
    return torch.where(won & facts.rows(*weights.shape[1:]), keys[..., 0], -1)


def sentence(
    won: int, rows: int, what: str, mean: float, threshold: float, *, is_beside: bool = False
) -> str:
    """The evidence of a pattern, with both numbers.

    Args:
        won: rows won.
        rows: rows that count.
        what: the cells in words, translated.
        mean: weight on them.
        threshold: share that chance explains.
        is_beside: the first token and special ones did not compete.
    """
    text = (
        _(
            "in {won} of {rows} rows the largest weight beside the first and special tokens lies "
            "on {what} (mean weight {mean:.2f}); up to {limit} rows could be chance or are no "
            "majority"
        )
        if is_beside
        else _(
            "in {won} of {rows} rows the largest weight lies on {what} (mean weight {mean:.2f}); "
            "up to {limit} rows could be chance or are no majority"
        )
    )
    limit = int(threshold * rows + 1e-9)  # a share of rows is a quotient, so an ulp may be missing
    return text.format(won=won, rows=rows, what=what, mean=mean, limit=limit)


def too_few(chances: tuple[float, ...]) -> str:
    """Why so few rows cannot tell."""
    return _(
        "too few rows count ({rows}): chance alone would do it in all of them with probability "
        "{p:.2g}; a longer text is needed"
    ).format(rows=len(chances), p=at_least(chances)[-1])
