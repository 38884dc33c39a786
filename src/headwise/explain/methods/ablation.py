"""Switch off one head at a time: its context set to zero, or to its mean over the text."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headwise.explain.change import Change
from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.explain.tap import Watch
from headwise.texts import translate as _

Fill = Literal["zero", "mean"]


class Ablation:
    """The fall of the target when a head says nothing, or always the same.

    ``zero`` sets the head's context to zero at every token; ``mean`` sets it to its mean over the
    tokens of this text, which keeps what the head says everywhere and takes away the differences.
    """

    promises = frozenset({Promise.MEASURED})
    source = "Michel et al. 2019 (arXiv 1905.10650), section 3"

    def __init__(self, name: str, label: str, fill: Fill) -> None:
        self.name, self.label, self.fill = name, label, fill

    def explain(
        self,
        subject: Subject,
        text: Text,
        question: Question,
        *,
        settings: Settings,
        progress: Progress,
    ) -> Attribution:
        ids, position = text.ids[None], question.position
        if subject.kind == "causal" and position is not None:
            ids = ids[:, : position + 1]
        L, H = subject.num_layers, subject.num_heads
        whole = subject.run(ids, position=position, watch=Watch(contexts=self.fill == "mean"))
        before = float(question.value(whole)[0])
        means = [whole.seen.contexts[i].mean(2, keepdim=True) for i in sorted(whole.seen.contexts)]
        after = torch.empty(L * H, dtype=torch.float64)
        for start in range(0, L * H, settings.batch):
            progress(_("heads switched off"), start / (L * H))
            units = torch.arange(start, min(start + settings.batch, L * H), device=ids.device)
            change = self._change(units, H, means)
            run = subject.run(ids.expand(len(units), -1), position=position, change=change)
            after[start : start + len(units)] = question.value(run).double().cpu()
        after = after.view(L, H)
        return Attribution(self.name, None, heads=before - after, is_signed=True)

    def _change(self, units: Tensor, num_heads: int, means: list[Tensor]) -> Change:
        """A row per unit, which is layer · num_heads + head."""
        factors: dict[int, Tensor] = {}
        replaced: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in sorted(set((units // num_heads).tolist())):
            mine = torch.zeros(len(units), num_heads, dtype=torch.bool, device=units.device)
            rows = (units // num_heads == layer).nonzero()[:, 0]
            mine[rows, units[rows] % num_heads] = True
            if self.fill == "zero":
                factors[layer] = (~mine).double()
            else:
                replaced[layer] = (mine, means[layer])
        return Change(factors=factors, replaced=replaced)
