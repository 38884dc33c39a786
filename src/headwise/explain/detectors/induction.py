"""Heads that follow repetition: to the same token before, or to what came after it.

::

    tokens        A  B  C  A          the query is the second A
    duplicate     x                   the earlier A
    induction        x                the token after the earlier A: "A B ... A" continues with B

Source: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*, section "Induction
heads"; Olsson et al. 2022 (arXiv 2209.11895); duplicate-token heads are named by Wang et al. 2022
(arXiv 2211.00593, section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.explain.detectors.detection import Detection, Detector, cannot_tell
from headwise.explain.detectors.facts import MapFacts
from headwise.explain.detectors.rows import Pattern, judge
from headwise.texts import mark as N_
from headwise.texts import translate as _


def induction_cells(facts: MapFacts, q_len: int, kv_len: int) -> Tensor:
    """Keys right after an earlier occurrence of the query's token, (Tq, Tk) bool.

    Example:
        >>> facts = MapFacts(is_causal=True, token_ids=torch.tensor([5, 6, 7, 5]))
        >>> induction_cells(facts, 4, 4).nonzero().tolist()
        [[3, 1]]
    """
    after = duplicate_cells(facts, q_len, kv_len).roll(1, dims=1)
    after[:, 0] = False
    return after & (torch.arange(kv_len) < facts.slots(q_len, kv_len))


def duplicate_cells(facts: MapFacts, q_len: int, kv_len: int) -> Tensor:
    """Earlier occurrences of the query's token, (Tq, Tk) bool; padding repeats nothing.

    Example:
        >>> facts = MapFacts(is_causal=True, token_ids=torch.tensor([5, 6, 7, 5]))
        >>> duplicate_cells(facts, 4, 4).nonzero().tolist()
        [[3, 0]]
    """
    assert facts.token_ids is not None
    ids, slots = facts.token_ids.cpu(), facts.slots(q_len, kv_len)
    earlier = torch.arange(kv_len) < slots
    return (ids[slots] == ids) & earlier & facts.kept(kv_len)


def induction(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The share of rows of repeated tokens won by what followed the token before."""
    return _repeats("induction", weights, facts)


def duplicate(weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    """The share of rows of repeated tokens won by the same token before."""
    return _repeats("duplicate", weights, facts)


def _repeats(name: str, weights: Tensor, facts: MapFacts) -> tuple[Detection, ...]:
    heads, q_len, kv_len = weights.shape
    if facts.token_ids is None:
        return cannot_tell(name, heads, _("the tokens are not known"))
    if not bool(duplicate_cells(facts, q_len, kv_len).any()):
        return cannot_tell(name, heads, _("no token repeats"))
    if name == "induction":
        cells = induction_cells(facts, q_len, kv_len)
        what = _("the token after an earlier occurrence")
    else:
        cells = duplicate_cells(facts, q_len, kv_len)
        what = _("an earlier occurrence of the same token")
    back = facts.slots(q_len, kv_len) - torch.arange(kv_len)
    ambiguous = cells & (back == 1)  # a previous-token head would look there too
    ignored = facts.resting(kv_len) | ambiguous
    reason = _("every such place is also the previous token or the first one")
    used = cells & ~ignored & facts.visible(q_len, kv_len)
    distances = back[used].unique()
    note = (
        _("every such place is {count} tokens back, so a head of fixed distance looks the same")
        if len(distances) == 1
        else ""
    )
    note = note.format(count=int(distances[0])) if note else ""
    return judge(name, weights, facts, Pattern(cells, ignored, what, reason, note))


DETECTORS = (
    Detector(
        "induction",
        N_("looks at what followed the same token before"),
        N_("tokens that occur more than once"),
        is_fault=False,
        rule=induction,
    ),
    Detector(
        "duplicate",
        N_("looks at the same token before"),
        N_("tokens that occur more than once"),
        is_fault=False,
        rule=duplicate,
    ),
)
