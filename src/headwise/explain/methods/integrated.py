"""Integrated gradients, with the gap of its completeness."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.texts import mark as N_
from headwise.texts import translate as _

GRAPH_TOKENS = 1024
"""Most tokens in one run with gradients: every layer keeps its activations for them."""

ROUGH = 0.05
"""A gap above this share of the change is said to break the promise (the recommendation of the
paper's section 5 is 5 %)."""


class Integrated:
    """Gradients summed along the straight path from a baseline text to the text.

    The baseline is the same number of mask tokens. Points and weights of the path are those of
    Gauss and Legendre. The scores sum to the target minus its value at the baseline, up to a gap
    that gets smaller with more steps; it is shown.
    """

    name = "integrated"
    label = N_("integrated gradients")
    promises = frozenset({Promise.SUMS_TO_CHANGE, Promise.ZERO_FOR_IGNORED, Promise.SYMMETRIC})
    source = "Sundararajan et al. 2017 (arXiv 1703.01365), section 3"

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        x = subject.embed(text.ids[None]).detach()
        base = subject.embed(torch.full_like(text.ids, subject.mask_id)[None]).detach()
        points, shares = path(settings.steps)
        total = torch.zeros_like(x[0], dtype=torch.float64)
        batch = max(1, min(settings.batch, GRAPH_TOKENS // len(text)))
        for start in range(0, len(points), batch):
            progress(_("integrated gradients"), start / len(points))
            at = points[start : start + batch].to(x)[:, None, None]
            inside = (base + at * (x - base)).requires_grad_()
            run = subject.run(inside, position=question.position, keeps_graph=True)
            (gradient,) = torch.autograd.grad(question.value(run).sum(), inside)
            part = shares[start : start + batch].to(x.device)[:, None, None]
            total += (part * gradient.double()).sum(0)
        scores = (total * (x - base)[0].double()).sum(-1)
        ends = [
            float(question.value(subject.run(ids, position=question.position))[0])
            for ids in (text.ids[None], torch.full_like(text.ids, subject.mask_id)[None])
        ]
        change = ends[0] - ends[1]
        gap = float(scores.sum()) - change
        rough: tuple[str, ...] = ()
        if abs(gap) > ROUGH * abs(change):
            rough = (
                _(
                    "the gap is more than {share:.0%} of the change: {steps} steps are too few for "
                    "this path, and these scores do not add up to the target; try --steps {more}"
                ).format(share=ROUGH, steps=settings.steps, more=4 * settings.steps),
            )
        return Attribution(
            self.name,
            scores,
            is_signed=True,
            notes=(
                _("baseline: every token replaced by {token!r}; {steps} steps").format(
                    token=subject.mask_words, steps=settings.steps
                ),
                _(
                    "the scores sum to {total:.4g}, the target changed by {change:.4g}: "
                    "gap {gap:.2g}"
                ).format(total=float(scores.sum()), change=change, gap=gap),
                *rough,
            ),
            figures={"gap": gap, "change": change, "at_baseline": ends[1]},
        )


def path(steps: int) -> tuple[Tensor, Tensor]:
    """Points between 0 and 1 and their weights, which sum to 1 (Gauss-Legendre).

    Example:
        >>> points, shares = path(2)
        >>> [round(p, 4) for p in points.tolist()], shares.tolist()
        ([0.2113, 0.7887], [0.5, 0.5])
    """
    points, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((1 + points) / 2), torch.from_numpy(weights / 2)
