"""Switch off one head at a time: its context set to zero, or to its mean over the text."""

from __future__ import annotations

from typing import Literal

import torch

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
        after = torch.empty(L, H, dtype=torch.float64)
        for layer in range(L):
            for start in range(0, H, settings.batch):
                progress(_("heads switched off"), (layer * H + start) / (L * H))
                heads = torch.arange(start, min(start + settings.batch, H), device=ids.device)
                mine = torch.zeros(len(heads), H, dtype=torch.bool, device=ids.device)
                mine[torch.arange(len(heads)), heads] = True
                if self.fill == "zero":
                    change = Change(factors={layer: (~mine).double()})
                else:
                    mean = whole.seen.contexts[layer].mean(2, keepdim=True)
                    change = Change(replaced={layer: (mine, mean)})
                run = subject.run(ids.expand(len(heads), -1), position=position, change=change)
                after[layer, start : start + len(heads)] = question.value(run).double().cpu()
        return Attribution(self.name, None, heads=before - after, is_signed=True)
