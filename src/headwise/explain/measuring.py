"""The target with sets of tokens hidden, and how exact a measurement of it is."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.explain.change import Change
from headwise.explain.method import Progress
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.numerics import CHAIN
from headwise.texts import translate as _


def with_hidden(
    subject: Subject,
    text: Text,
    question: Question,
    hidden: Tensor,
    *,
    batch: int,
    progress: Progress,
) -> Tensor:
    """The target with sets of tokens hidden from the attention of all others.

    Args:
        subject: the model.
        text: T tokens.
        question: the target.
        hidden: (N, T) bool, one set per row.
        batch: rows per run.
        progress: told after every run.

    Returns:
        (N,) float64.
    """
    ids = text.ids[None]
    if subject.kind == "causal" and question.position is not None:
        ids = ids[:, : question.position + 1]  # what comes after changes nothing
    hidden = hidden[:, : ids.shape[1]].to(ids.device)
    found = torch.empty(len(hidden), dtype=torch.float64)
    for start in range(0, len(hidden), batch):
        progress(_("tokens taken away in order"), start / len(hidden))
        part = hidden[start : start + batch]
        run = subject.run(
            ids.expand(len(part), -1), position=question.position, change=Change(hidden=part)
        )
        found[start : start + len(part)] = question.value(run).double().cpu()
    return found


def noise(subject: Subject, text: Text, question: Question, *, batch: int) -> float:
    """What rounding moves the target by, measured: the same question asked in several ways.

    Alone and in a batch, with the model's own attention and with ours, from the start and through
    a prefix. Nothing is changed, so all differences are rounding. Effects are compared against
    ``CHAIN`` times the largest.
    """
    ids, position = text.ids[None], question.position
    if subject.kind == "causal" and position is not None:
        ids = ids[:, : position + 1]
    none = torch.zeros(1, ids.shape[1], dtype=torch.bool, device=ids.device)
    runs = [
        subject.run(ids, position=position),
        subject.run(ids, position=position, change=Change(hidden=none)),
        subject.run(ids.expand(batch, -1), position=position, change=Change(hidden=none)),
    ]
    prefixes = subject.prefixes(ids) if position is not None and ids.shape[1] > 2 else None
    if prefixes is not None:
        half = ids.shape[1] // 2
        runs.append(subject.run(ids[:, half:], position=position, prefix=prefixes.first(half, 1)))
    values = torch.cat([question.value(run).double().cpu() for run in runs])
    spread = float(values.max() - values.min())
    least = torch.finfo(getattr(torch, subject.dtype)).eps * float(values.abs().max())
    return float(CHAIN * max(spread, least))
