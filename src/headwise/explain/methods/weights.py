"""The weights as they are."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.methods.rows import look, row, shown_scores
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


class Weights:
    """Attention weights of every layer and head, from the question's token.

    The map shown for the whole model is the mean over the heads of the last layer.
    """

    name = "weights"
    label = N_("attention weights")
    promises = frozenset({Promise.SUMS_TO_ONE, Promise.NOT_NEGATIVE, Promise.ZERO_FOR_IGNORED})
    source = "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("attention weights"), 0.0)
        seen = look(subject, text, question)
        whole = torch.stack([seen.weights[layer][0].float() for layer in sorted(seen.weights)])
        cells = row(whole, question)
        sums = whole.sum(-1)
        notes = [_("shown for the whole model: the last layer, mean over its heads")]
        if float(sums.min()) < 1.0 - 1e-3:
            notes.append(
                _("rows sum to {low:.3f} to {high:.3f}: the rest goes to a sink").format(
                    low=float(sums.min()), high=float(sums.max())
                )
            )
        return Attribution(
            self.name,
            shown_scores(cells),
            cells=cells,
            layers=cells.mean(1),
            notes=tuple(notes),
            figures={"smallest_row_sum": float(sums.min()), "largest_row_sum": float(sums.max())},
            extra={"weights": whole},
        )
