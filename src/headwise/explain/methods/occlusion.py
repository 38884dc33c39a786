"""Take a token away and measure: hidden from attention, or replaced by another.

In a causal model everything before the token stays as it was. So all prefixes of the text come from
one run, and each question runs only from its token on, a few questions at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.explain.change import Change
from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Prefixes, Run, Subject, Text
from headwise.explain.tap import Watch
from headwise.texts import translate as _

How = Literal["hidden", "replaced"]


@dataclass(frozen=True, eq=False)
class Occluded:
    """What taking each token away did.

    Args:
        before: the target of the whole text.
        after: (T,) the target without each token, float64.
        logits: (T, V) without each token, or None where there are none.
        logits_before: (V,) or None.
        runs: rows of each run, for the reader who wonders what it cost.
    """

    before: float
    after: Tensor
    logits: Tensor | None
    logits_before: Tensor | None
    runs: tuple[tuple[int, int], ...]

    @property
    def effect(self) -> Tensor:
        """Before minus after: positive where the token promotes the target."""
        return self.before - self.after


def occlude(
    subject: Subject,
    text: Text,
    question: Question,
    how: How,
    *,
    settings: Settings,
    progress: Progress,
) -> Occluded:
    """Take every token away, one at a time.

    Args:
        subject: the model.
        text: with T tokens.
        question: the target.
        how: ``hidden`` from all other tokens in every layer, so that the other weights grow; or
            ``replaced`` by the model's mask token.
        settings: rows per run.
        progress: told after every run.
    """
    ids, length = text.ids[None], len(text)
    end = length if question.position is None else question.position + 1
    prefixes = None
    if subject.kind == "causal" and question.position is not None:
        ids, prefixes = ids[:, :end], subject.prefixes(ids[:, :end])
    elif subject.kind != "causal":
        end = length
    # The same way of computing on both sides: what hides nothing has exactly no effect.
    if how == "hidden":
        whole = subject.run(ids, position=question.position, watch=Watch())
    elif prefixes is not None:
        whole = Run(hidden=None, logits=prefixes.logits)
    else:
        whole = subject.run(ids, position=question.position)
    before = float(question.value(whole)[0])
    after = torch.full((length,), before, dtype=torch.float64)
    kept: list[Tensor] = []
    runs: list[tuple[int, int]] = []
    for start in range(0, end, settings.batch):
        progress(_("tokens taken away"), start / end)
        places = torch.arange(start, min(start + settings.batch, end), device=ids.device)
        run, rows = _take_away(subject, ids, question, how, places, prefixes)
        runs.append(rows)
        after[start : start + len(places)] = question.value(run).double().cpu()
        if run.logits is not None:
            kept.append(run.logits.detach())
    if how == "hidden" and subject.kind == "causal" and question.position is not None:
        after[question.position] = before  # nobody before it could see it: rounding alone
    logits = None
    if whole.logits is not None and kept:
        logits = torch.cat(kept)
        if end < length:  # tokens after the question change nothing in a causal model
            logits = torch.cat([logits, whole.logits.expand(length - end, -1)])
    return Occluded(
        before, after, logits, None if whole.logits is None else whole.logits[0], tuple(runs)
    )


def _take_away(
    subject: Subject,
    ids: Tensor,
    question: Question,
    how: How,
    places: Tensor,
    prefixes: Prefixes | None,
) -> tuple[Run, tuple[int, int]]:
    """One run with a row per place; also its number of rows and of tokens."""
    count, start = len(places), 0
    prefix = None
    if prefixes is not None and int(places[0]) > 0:
        start = int(places[0])
        prefix = prefixes.first(start, count)
    x = ids[:, start:].repeat(count, 1)
    change = None
    row = torch.arange(count, device=ids.device)
    if how == "replaced":
        x[row, places - start] = subject.mask_id
    else:
        hidden = torch.zeros(count, ids.shape[1], dtype=torch.bool, device=ids.device)
        hidden[row, places] = True
        change = Change(hidden=hidden)
    run = subject.run(x, position=question.position, change=change, prefix=prefix)
    return run, (count, x.shape[1])


class Occlusion:
    """The fall of the target when a token is taken away."""

    source = "Zeiler and Fergus 2014 (arXiv 1311.2901), section 4.2"
    promises = frozenset({Promise.MEASURED, Promise.ZERO_FOR_IGNORED})

    def __init__(self, how: How, label: str) -> None:
        self.how: How = how
        self.name: str = how
        self.label = label

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        found = occlude(subject, text, question, self.how, settings=settings, progress=progress)
        if self.how == "hidden":
            notes = [
                _(
                    "hidden from the attention of all other tokens in every layer; the weights "
                    "that are left are renormalised, so the others get more"
                )
            ]
            if subject.kind == "causal" and question.position is not None:
                notes.append(_("the question's own token can't be hidden from itself: 0 there"))
            elif question.query is not None:
                notes.append(_("the question's own token still sees itself; it is not compared"))
            elif question.target.kind == "embedding-norm":
                notes.append(_("a hidden token is left out of the mean over tokens too"))
        else:
            notes = [_("replaced by {token!r}").format(token=subject.mask_words)]
        return Attribution(
            self.name,
            found.effect,
            is_signed=True,
            notes=tuple(notes),
            figures={"before": found.before},
            extra={"occluded": found},
        )
