"""Faults that a heat map shows: weight where there must be none, and rows that do not add up.

These are no matters of degree. A cell hidden by a score of minus infinity, or of any score low
enough to hide it, has the weight 0 exactly: exp underflows. Rows that see nothing, and rows of
padding, are nobody's business and do not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.explain.detectors.chance import explained
from headwise.explain.detectors.detection import Detection, Detector, cannot_tell, strongest
from headwise.explain.detectors.facts import MapFacts
from headwise.explain.detectors.rows import too_few
from headwise.numerics import eps
from headwise.texts import mark as N_
from headwise.texts import translate as _


def future(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The largest part of a row that lies after the query, in a layer meant to be causal."""
    heads, q_len, kv_len = weights.shape
    if not facts.is_causal:
        return cannot_tell("future", heads, _("the layer is not meant to be causal"))
    later = torch.arange(kv_len) > facts.slots(q_len, kv_len)
    return _hidden("future", weights, facts, later, _("later tokens"))


def padding(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The largest part of a row that lies on padding."""
    heads, q_len, kv_len = weights.shape
    padded = ~facts.kept(kv_len)
    if not padded.any():
        return cannot_tell("padding", heads, _("there is no padding"))
    return _hidden("padding", weights, facts, padded.expand(q_len, kv_len), _("padding"))


def window(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The largest part of a row that lies outside of the window."""
    heads, q_len, kv_len = weights.shape
    if facts.window is None:
        return cannot_tell("window", heads, _("the layer has no window"))
    outside = ~facts.window.allows(facts.slots(q_len, kv_len), torch.arange(kv_len))
    if facts.is_causal:  # what lies after the query is another fault
        outside &= torch.arange(kv_len) <= facts.slots(q_len, kv_len)
    return _hidden("window", weights, facts, outside, _("tokens outside of the window"))


def _hidden(
    name: str, weights: Tensor, facts: MapFacts, cells: Tensor, what: str
) -> tuple[Detection, ...]:
    heads, q_len, kv_len = weights.shape
    cells = cells & facts.rows(q_len, kv_len)[:, None]
    if not cells.any():
        reason = _("no query has {what} to ignore").format(what=what)
        return cannot_tell(name, heads, reason)
    parts = (weights.double() * cells).sum(-1)  # (H, Tq)
    touched = (weights > 0) & cells
    found = []
    for head in range(heads):
        part, row = (float(parts[head].max()), int(parts[head].argmax()))
        bad = int(touched[head].any(-1).sum())
        words = (
            _(
                "{bad} of {rows} rows have weight on {what}, at most {part:.3g} of a row, in row "
                "{row}; a hidden cell has the weight 0"
            ).format(bad=bad, rows=int(cells.any(-1).sum()), what=what, part=part, row=row)
            if bad
            else _("no weight on {what} in {rows} rows").format(
                what=what, rows=int(cells.any(-1).sum())
            )
        )
        found.append(
            Detection(
                name,
                head,
                score=min(part, 1.0),
                threshold=0.0,
                evidence=words,
                positions=strongest(weights[head], touched[head]),
                figures={"rows": int(cells.any(-1).sum()), "bad_rows": bad},
            )
        )
    return tuple(found)


def sums(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The largest distance of a row's sum from 1; with a learned sink, only an excess counts.

    Each weight is rounded, twice if softmax itself ran in that dtype: 2 · eps of the sum; and the
    softmax's own sum of n terms is off by n · eps(float32) at most.
    """
    heads, q_len, kv_len = weights.shape
    rows = facts.rows(q_len, kv_len)
    if not rows.any():
        return cannot_tell("sums", heads, _("no query sees anything"))
    allowed = 2.0 * _grid(weights) + kv_len * eps(torch.float32)
    gaps = weights.double().sum(-1) - 1.0
    gaps = gaps.clamp(min=0.0) if facts.has_sink else gaps
    gaps = torch.where(rows, gaps, torch.zeros_like(gaps))
    columns = weights.double().sum(1)
    found = []
    for head in range(heads):
        row = int(gaps[head].abs().argmax())
        gap = float(gaps[head][row])
        words = _("row {row} sums to {total:.6g}; rounding explains {allowed:.1g} around 1").format(
            row=row, total=1.0 + gap, allowed=allowed
        )
        if abs(gap) > allowed and float((columns[head] - 1.0).abs().max()) <= allowed:
            words += "; " + _("the columns sum to 1: the softmax runs over the queries")
        found.append(
            Detection(
                "sums",
                head,
                score=min(abs(gap), 1.0),
                threshold=allowed,
                evidence=words,
                positions=strongest(
                    weights[head], torch.arange(q_len)[:, None].expand(q_len, kv_len) == row
                )
                if abs(gap) > allowed
                else (),
                figures={"row": row, "sum": 1.0 + gap},
            )
        )
    return tuple(found)


def _grid(weights: Tensor) -> float:
    """Eps of the narrowest dtype that holds these numbers exactly: the one they came in."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if torch.equal(weights.to(dtype).to(weights.dtype), weights):
            return eps(dtype)
    return eps(weights.dtype)


def self_hidden(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The share of rows in which the query's own cell is 0 and no other visible cell is.

    A very sharp head underflows to exact zeros, so rows with another zero say nothing. In the rows
    that are left, an accident would hit each of n cells alike: 1/n for the query's own.
    """
    heads, q_len, kv_len = weights.shape
    visible = facts.visible(q_len, kv_len) & facts.rows(q_len, kv_len)[:, None]
    own = visible & (torch.arange(kv_len) == facts.slots(q_len, kv_len))
    counts = own.any(-1) & (visible.sum(-1) > 1)
    found = []
    for head in range(heads):
        others = ((weights[head] > 0) | own | ~visible).all(-1) & counts
        rows = int(others.sum())
        if rows == 0:
            reason = _("in every row that counts, other visible weights are 0 as well")
            found.append(cannot_tell("self-hidden", head + 1, reason)[-1])
            continue
        chances = tuple((1.0 / visible.sum(-1)[others]).tolist())
        limit = explained(chances)
        if limit is None:
            found.append(cannot_tell("self-hidden", head + 1, too_few(chances))[-1])
            continue
        hit = (weights[head] == 0) & own & others[:, None]
        count = int(hit.sum())
        words = _(
            "{count} of {rows} queries give themselves the weight 0 exactly and every other "
            "visible token more; up to {limit} could be an accident"
        ).format(count=count, rows=rows, limit=int(limit * rows + 1e-9))
        found.append(
            Detection(
                "self-hidden",
                head,
                score=count / rows,
                threshold=limit,
                evidence=words,
                positions=strongest(weights[head], hit),
                figures={"rows": rows, "wins": count},
            )
        )
    return tuple(found)


DETECTORS = (
    Detector(
        "future",
        N_("sees later tokens although the layer should be causal"),
        N_("a layer that is meant to be causal"),
        is_fault=True,
        rule=future,
    ),
    Detector(
        "padding",
        N_("looks at padding"),
        N_("a text with padding"),
        is_fault=True,
        rule=padding,
    ),
    Detector(
        "window",
        N_("looks outside of its window"),
        N_("a layer with a window shorter than the text"),
        is_fault=True,
        rule=window,
    ),
    Detector(
        "sums",
        N_("has rows that do not sum to 1"),
        N_("queries that see something"),
        is_fault=True,
        rule=sums,
    ),
    Detector(
        "self-hidden",
        N_("hides every token from itself"),
        N_("rows whose other visible weights are not 0"),
        is_fault=True,
        rule=self_hidden,
    ),
)
