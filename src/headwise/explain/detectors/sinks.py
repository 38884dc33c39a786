"""Keys on which most queries rest: the first token, special tokens, or any other key.

Source: Xiao et al. 2023 (arXiv 2309.17453, section 3.1) for the first token of causal models,
Clark et al. 2019 (arXiv 1906.04341, section 3.2) for [CLS], [SEP] and punctuation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.explain.detectors.chance import at_least, explained
from headwise.explain.detectors.detection import Detection, Detector, cannot_tell, strongest
from headwise.explain.detectors.facts import MapFacts
from headwise.explain.detectors.rows import Pattern, judge, sentence, too_few, winners
from headwise.texts import mark as N_
from headwise.texts import translate as _


def sink(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The one key that wins most of all rows, whether or not they all see it.

    All keys are tried, so the level is divided by their number.
    """
    heads, q_len, kv_len = weights.shape
    compete = facts.visible(q_len, kv_len)
    counts = facts.rows(q_len, kv_len) & (compete.sum(-1) > 1)
    rows, tries = int(counts.sum()), int(facts.kept(kv_len).sum())
    if rows == 0:
        return cannot_tell("sink", heads, _("no query sees more than one token"))
    won = winners(weights, compete, facts)
    found = []
    for head in range(heads):
        keys = won[head][won[head] >= 0]
        key = int(keys.bincount().argmax()) if len(keys) else facts.first(kv_len)
        seen = compete[counts][:, key]
        chances = tuple((seen / compete[counts].sum(-1)).tolist())
        limit = explained(chances, tries=tries)
        if limit is None:
            found.append(cannot_tell("sink", head + 1, too_few(chances))[-1])
            continue
        cells = torch.zeros_like(compete)
        cells[:, key] = won[head] == key
        wins = int(cells.sum())
        mean = float(weights[head][counts][:, key].mean())
        found.append(
            Detection(
                "sink",
                head,
                score=wins / rows,
                threshold=limit,
                evidence=sentence(wins, rows, _kind(key, facts, kv_len), mean, limit),
                positions=strongest(weights[head], cells),
                figures={
                    "rows": rows,
                    "wins": wins,
                    "chance": min(1.0, tries * at_least(chances)[wins]),
                    "mean_weight": mean,
                    "key": key,
                },
            )
        )
    return tuple(found)


def _kind(key: int, facts: MapFacts, kv_len: int) -> str:
    """A key in words, with its place."""
    if facts.is_special is not None and bool(facts.is_special[key]):
        return _("the special token at place {key}").format(key=key)
    if key == facts.first(kv_len):
        return _("the first token, at place {key}").format(key=key)
    if facts.is_punctuation is not None and bool(facts.is_punctuation[key]):
        return _("the punctuation at place {key}").format(key=key)
    return _("the token at place {key}").format(key=key)


def special(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The share of rows whose largest weight lies on some special or punctuation token."""
    heads, q_len, kv_len = weights.shape
    marked = facts.marked()
    if marked is None or not bool((marked & facts.kept(kv_len)).any()):
        reason = _("no special or punctuation token is known in this text")
        return cannot_tell("special", heads, reason)
    cells = marked.expand(q_len, kv_len)
    pattern = Pattern(
        cells,
        torch.zeros_like(cells),
        _("a special or punctuation token"),
        _("no query sees such a token and another one"),
    )
    return judge("special", weights, facts, pattern)


DETECTORS = (
    Detector(
        "sink",
        N_("rests on one token"),
        N_("queries that see more than one token"),
        is_fault=False,
        rule=sink,
    ),
    Detector(
        "special",
        N_("looks at special or punctuation tokens"),
        N_("special or punctuation tokens in the text"),
        is_fault=False,
        rule=special,
    ),
)
