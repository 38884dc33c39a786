"""Weights times what they carry: the norm of α·W_O·v."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.methods.rows import look, row
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


class Norms:
    """How long the vector is that a token sends through a head: ‖α·W_O·v‖.

    A token with a large weight and a value that the output projection ignores gets next to
    nothing. Per layer the vectors of all heads are added before their length is taken.
    """

    name = "norms"
    label = N_("norms of weighted values")
    promises = frozenset({Promise.NOT_NEGATIVE, Promise.ZERO_FOR_IGNORED})
    source = "Kobayashi et al. 2020 (arXiv 2004.10102), section 3"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("norms of weighted values"), 0.0)
        seen = look(subject, text, question, values=True)
        cells, layers = [], []
        for layer in sorted(seen.weights):
            weights, values = seen.weights[layer][0].double(), seen.values[layer][0].double()
            H = weights.shape[0]
            values = values.repeat_interleave(H // values.shape[0], 0)  # (H, Tk, Dv)
            moved = values @ subject.output_projection(layer).double().transpose(1, 2)  # (H, Tk, D)
            cells.append(row(weights, question) * moved.norm(dim=-1))
            if question.query is None:
                # Mean over the queries of ‖Σ_h α·W_O·v‖; one query at a time, to save memory.
                sizes = [
                    (weights[:, i, :, None] * moved).sum(0).norm(dim=-1)
                    for i in range(weights.shape[1])
                ]
                layers.append(torch.stack(sizes).mean(0))
            else:
                alpha = weights[:, question.query, :, None]
                layers.append((alpha * moved).sum(0).norm(dim=-1))
        return Attribution(
            self.name,
            layers[-1],
            cells=torch.stack(cells),
            layers=torch.stack(layers),
            notes=(_("shown for the whole model: the last layer, its heads added"),),
        )
