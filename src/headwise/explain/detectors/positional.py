"""Heads that look at a place: previous, next or first token, themselves, a fixed distance.

Source: such heads are described for BERT by Clark et al. 2019 (arXiv 1906.04341, section 3.1) and
Voita et al. 2019 (arXiv 1905.09418, section 5.1).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headwise.explain.detectors.chance import MOST, at_least, explained
from headwise.explain.detectors.detection import Detection, Detector, cannot_tell, strongest
from headwise.explain.detectors.facts import MapFacts
from headwise.explain.detectors.rows import Pattern, judge, sentence, too_few, winners
from headwise.texts import mark as N_
from headwise.texts import translate as _

PREVIOUS, NEXT, ITSELF = N_("the previous token"), N_("the next token"), N_("the token itself")
NAMED = (-1, 0, 1)
"""Distances that have a detector of their own."""


def at_distance(
    name: str, what: str, weights: Tensor, facts: MapFacts, *, back: int
) -> tuple[Detection, ...]:
    """The share of rows won by the key ``back`` places before the query."""
    q_len, kv_len = weights.shape[1:]
    cells = torch.arange(kv_len) == facts.slots(q_len, kv_len) - back
    resting = facts.resting(kv_len).expand(q_len, kv_len)
    reason = _("no query may look at {what} and at another token").format(what=_(what))
    return judge(name, weights, facts, Pattern(cells, resting, _(what), reason))


def first(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The share of rows won by the first token that is no padding."""
    q_len, kv_len = weights.shape[1:]
    cells = torch.zeros(q_len, kv_len, dtype=torch.bool)
    cells[:, facts.first(kv_len)] = True
    what = _("the first token")
    reason = _("no query may look at {what} and at another token").format(what=what)
    pattern = Pattern(cells, torch.zeros_like(cells), what, reason)
    return judge("first", weights, facts, pattern)


def offset(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The distance that wins its rows most clearly, among those without a name of their own.

    Any distance could have been the one, so the level is divided by their number.
    """
    heads, q_len, kv_len = weights.shape
    compete = facts.visible(q_len, kv_len) & ~facts.resting(kv_len)
    back = facts.slots(q_len, kv_len) - torch.arange(kv_len)  # (Tq, Tk)
    usable = compete & (compete.sum(-1) > 1)[:, None] & facts.rows(q_len, kv_len)[:, None]
    distances, rows = back[usable].unique(return_counts=True)
    other = torch.tensor([d not in NAMED for d in distances.tolist()], dtype=torch.bool)
    distances, rows = distances[other], rows[other]
    if len(distances) == 0:
        return cannot_tell("offset", heads, _("no query sees a token two or more places away"))
    won = winners(weights, compete, facts)
    found = []
    for head in range(heads):
        top = usable & (torch.arange(kv_len) == won[head][:, None])
        wins = (back[top] == distances[:, None]).sum(-1)
        best = int((wins - MOST * rows).argmax()) if wins.any() else int(rows.argmax())
        cells = usable & (back == distances[best])
        chances = tuple((1.0 / compete.sum(-1)[cells.any(-1)]).tolist())
        limit = explained(chances, tries=len(distances))
        if limit is None:
            found.append(cannot_tell("offset", head + 1, too_few(chances))[-1])
            continue
        count, number = int(wins[best]), int(rows[best])
        mean = float(weights[head][cells].mean())
        what = _distance(int(distances[best]))
        words = sentence(count, number, what, mean, limit, is_beside=True)
        found.append(
            Detection(
                "offset",
                head,
                score=count / number,
                threshold=limit,
                evidence=words,
                positions=strongest(weights[head], top & cells),
                figures={
                    "rows": number,
                    "wins": count,
                    "chance": min(1.0, len(distances) * at_least(chances)[count]),
                    "mean_weight": mean,
                    "offset": -int(distances[best]),
                },
            )
        )
    return tuple(found)


def _distance(back: int) -> str:
    if back > 0:
        return _("the token {count} places before").format(count=back)
    return _("the token {count} places after").format(count=-back)


DETECTORS = (
    Detector(
        "previous",
        N_("looks at the previous token"),
        N_("queries that see the previous token and others"),
        is_fault=False,
        rule=partial(at_distance, "previous", PREVIOUS, back=1),
    ),
    Detector(
        "next",
        N_("looks at the next token"),
        N_("queries that may look ahead"),
        is_fault=False,
        rule=partial(at_distance, "next", NEXT, back=-1),
    ),
    Detector(
        "first",
        N_("looks at the first token"),
        N_("queries that see the first token and others"),
        is_fault=False,
        rule=first,
    ),
    Detector(
        "diagonal",
        N_("looks at the token itself"),
        N_("queries that see themselves and others"),
        is_fault=False,
        rule=partial(at_distance, "diagonal", ITSELF, back=0),
    ),
    Detector(
        "offset",
        N_("looks at a fixed distance"),
        N_("queries that see tokens two or more places away"),
        is_fault=False,
        rule=offset,
    ),
)
