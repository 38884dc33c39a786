"""Gradient times input."""

from __future__ import annotations

import torch

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _


class GradientInput:
    """The gradient of the target with respect to a token's embedding, times that embedding."""

    name = "gradient-input"
    label = N_("gradient × input")
    promises = frozenset({Promise.ZERO_FOR_IGNORED})
    source = "Shrikumar et al. 2016 (arXiv 1605.01713), section 2"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        progress(_("gradients"), 0.0)
        x = subject.embed(text.ids[None]).detach().requires_grad_()
        run = subject.run(x, position=question.position, keeps_graph=True)
        (gradient,) = torch.autograd.grad(question.value(run).sum(), x)
        scores = (gradient * x.detach()).sum(-1)[0].double()
        return Attribution(
            self.name,
            scores,
            is_signed=True,
            notes=(_("the effect of a small change, extended to removing the whole token"),),
            figures={"sum": float(scores.sum())},
        )
