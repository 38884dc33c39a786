"""Targets: one number per row, and what they are called."""

from __future__ import annotations

import math

import pytest
import torch

from headwise.errors import UsageError
from headwise.explain.question import ClassLogit, EmbeddingNorm, Logit, LogitDifference, Question
from headwise.explain.subject import Run

LOGITS = torch.tensor([[1.0, 4.0, -2.0], [0.5, 0.25, 8.0]])
HIDDEN = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [0.0, 8.0]], [[0.0, 1.0], [0.0, 2.0], [0.0, 6.0]]])


def name(token):
    return "abc"[token]


@pytest.mark.parametrize(
    ("target", "want", "words"),
    [
        (Logit(1), [4.0, 0.25], "the logit of 'b'"),
        (LogitDifference(1, 2), [6.0, -7.75], "the logit of 'b' minus that of 'c'"),
        (ClassLogit(2), [-2.0, 8.0], "the logit of class 2"),
    ],
)
def test_targets_of_logits(target, want, words):
    question = Question(target, 0)
    assert question.value(Run(None, LOGITS)).tolist() == want
    assert target.words(name) == words
    with pytest.raises(UsageError, match="gives no logits"):
        question.value(Run(HIDDEN, None))


def test_length_of_the_mean_and_of_the_first():
    assert EmbeddingNorm().value(Run(HIDDEN, None)).tolist() == pytest.approx(
        [math.hypot(4 / 3, 4), 3.0]
    )
    assert EmbeddingNorm("first").value(Run(HIDDEN, None)).tolist() == [5.0, 1.0]
    assert EmbeddingNorm("first").words(name) != EmbeddingNorm().words(name)
    with pytest.raises(UsageError, match="no hidden states"):
        EmbeddingNorm().value(Run(None, LOGITS))


def test_hidden_tokens_leave_the_mean():
    keep = torch.tensor([[True, False, True], [False, False, False]])
    got = EmbeddingNorm().value(Run(HIDDEN, None, keep))
    assert got.tolist() == pytest.approx([math.hypot(1.5, 6), 0.0])


def test_values_keep_their_graph():
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(LogitDifference(1, 2).value(Run(None, logits)).sum(), logits)
    assert gradient.tolist() == [[0.0, 1.0, -1.0]] * 2
