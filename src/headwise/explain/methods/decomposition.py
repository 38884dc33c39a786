"""The target as a sum of what heads, feed-forward parts and the embedding wrote."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


class Decomposition:
    """What each head adds to the target by itself, the sizes of all norms held fixed.

    Paths through later layers are not counted: a head that matters only because a later head reads
    it gets little here, and much when it is switched off.
    """

    name = "decomposition"
    label = N_("the target taken apart")
    promises = frozenset({Promise.SUMS_TO_CHANGE})
    source = "Elhage et al. 2021, A Mathematical Framework for Transformer Circuits"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("the target taken apart"), 0.0)
        ids = text.ids[None]
        if subject.kind == "causal" and question.position is not None:
            ids = ids[:, : question.position + 1]
        parts = subject.decompose(ids, question)
        return Attribution(
            self.name,
            None,
            heads=torch.tensor(parts.heads, dtype=torch.float64),
            is_signed=True,
            notes=(
                _("sum of all parts {total:.5g}, the target {value:.5g}: gap {gap:.2g}").format(
                    total=parts.total, value=parts.value, gap=parts.gap
                ),
            ),
            figures={"gap": parts.gap, "total": parts.total, "value": parts.value},
            extra={"parts": parts},
        )
