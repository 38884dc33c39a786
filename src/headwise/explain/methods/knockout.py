"""Cut single edges of attention: one query, one key, one head."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.explain.change import Change
from headwise.explain.method import Attribution, Progress, Promise, Settings
from headwise.explain.question import Question
from headwise.explain.subject import Prefix, Subject, Text
from headwise.explain.tap import Watch
from headwise.texts import mark as N_
from headwise.texts import translate as _

PREFIX_TOKENS = 2**13
"""Most tokens of prefixes in one run: their keys and values are copied for every row."""


class Knockout:
    """The fall of the target when the question's token can't look at one key in one head.

    Without a position (the mean embedding of a text) no query can look at the key in that head.
    Where heads times tokens are more than ``settings.edges``, an edge is cut in all heads of a
    layer at once, and the result is per layer.
    """

    name = "edges"
    label = N_("single edges cut")
    promises = frozenset({Promise.MEASURED, Promise.ZERO_FOR_IGNORED})
    source = "Geva et al. 2023 (arXiv 2304.14767), section 4 (attention knockout)"

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
        L, H, T = subject.num_layers, subject.num_heads, len(text)
        end = T
        if subject.kind == "causal" and position is not None:
            end = position + 1
            ids = ids[:, :end]
        by_head = L * H * end <= settings.edges
        before = float(question.value(subject.run(ids, position=position, watch=Watch()))[0])
        prefixes = subject.prefixes(ids) if position == end - 1 else None
        units = [
            (layer, head, key)
            for layer in range(L)
            for head in (range(H) if by_head else (-1,))
            for key in range(end)
        ]
        # A row of one token costs little where a prefix holds the others, but each has its copy.
        size = settings.batch
        if prefixes is not None:
            size = max(1, min(settings.batch * end, PREFIX_TOKENS // end))
        after = torch.full((len(units),), before, dtype=torch.float64)
        for start in range(0, len(units), size):
            progress(_("edges cut"), start / len(units))
            part = units[start : start + size]
            prefix = None
            x = ids.expand(len(part), -1)
            if prefixes is not None and end > 1:
                prefix, x = prefixes.first(end - 1, len(part)), x[:, -1:]
            run = subject.run(
                x,
                position=position,
                change=Change(edges=edges(part, H, end, question, prefix, ids.device)),
                prefix=prefix,
            )
            after[start : start + len(part)] = question.value(run).double().cpu()
        effect = torch.zeros(L, H if by_head else 1, T, dtype=torch.float64)
        effect[:, :, :end] = (before - after).view(L, -1, end)
        notes = [_("each edge is cut before the softmax, so the other weights of its row grow")]
        if not by_head:
            notes.append(
                _(
                    "{count} edges are more than {limit}: each is cut in all heads of its layer "
                    "at once"
                ).format(count=L * H * end, limit=settings.edges)
            )
        return Attribution(
            self.name,
            effect.sum((0, 1)),
            cells=effect if by_head else None,
            layers=effect.sum(1),
            is_signed=True,
            notes=(*notes, _("shown for the whole model: the sum over all single cuts")),
            figures={"cuts": float(len(units))},
        )


def edges(
    units: list[tuple[int, int, int]],
    num_heads: int,
    kv_len: int,
    question: Question,
    prefix: Prefix | None,
    device: torch.device,
) -> dict[int, Tensor]:
    """Cells to cut, per layer, with a row of the batch for each unit (layer, head or -1, key)."""
    found: dict[int, Tensor] = {}
    q_len = kv_len if prefix is None else kv_len - prefix.length
    for index, (layer, head, key) in enumerate(units):
        if layer not in found:
            found[layer] = torch.zeros(
                len(units), num_heads, q_len, kv_len, dtype=torch.bool, device=device
            )
        heads = slice(None) if head < 0 else head
        if question.position is None:
            found[layer][index, heads, :, key] = True
            if key < q_len:
                found[layer][index, heads, key, key] = False  # a token keeps the sight of itself
        else:
            query = question.position - (kv_len - q_len)
            if key != question.position:
                found[layer][index, heads, query, key] = True
    return found
