"""A map that looks at nothing: how near a token is. The others have to beat it."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


class Nearness:
    """1 / (1 + distance to the question's token); to the end of the text where there is none.

    Attention and effects both tend to fade with distance, and then agree for that reason alone. A
    map that agrees with the interventions no better than this one says nothing about the text.
    """

    name = "nearness"
    label = N_("nearness (knows no text)")
    promises = frozenset({Promise.NOT_NEGATIVE})
    source = N_("a control of ours")

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        place = len(text) - 1 if question.query is None else question.query
        distance = (torch.arange(len(text), dtype=torch.float64) - place).abs()
        return Attribution(
            self.name,
            1.0 / (1.0 + distance),
            notes=(
                _(
                    "a control: maps and effects that both fade with distance agree for that "
                    "reason alone; a map has to agree better than this one"
                ),
            ),
        )
