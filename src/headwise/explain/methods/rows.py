"""The part of the weights that a question is about."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import TargetError, UsageError
from headwise.explain.question import Question
from headwise.explain.subject import Subject, Text
from headwise.explain.tap import Seen, Watch
from headwise.texts import translate as _

WEIGHTS_BYTES = 2 * 2**30
"""Most bytes of float32 weights that are kept; several methods hold a copy for a while."""


def look(subject: Subject, text: Text, question: Question, *, values: bool = False) -> Seen:
    """Run a text once and keep its weights (and values); weights that are no numbers are refused.

    Raises:
        UsageError: for weights with NaN, with the layer and head.
        TargetError: if a layer has more keys than the text has tokens.
    """
    needed = 4 * subject.num_layers * subject.num_heads * len(text) ** 2
    if needed > WEIGHTS_BYTES:
        longest = int((WEIGHTS_BYTES / (4 * subject.num_layers * subject.num_heads)) ** 0.5)
        raise UsageError(
            _("the weights of this text are too many to be kept"),
            why=_(
                "{layers} layers of {heads} heads on {count} tokens take {needed:.1f} GiB, the "
                "limit is {limit:.1f}"
            ).format(
                layers=subject.num_layers,
                heads=subject.num_heads,
                count=len(text),
                needed=needed / 2**30,
                limit=WEIGHTS_BYTES / 2**30,
            ),
            fix=_(
                "a text of at most {longest} tokens, or methods without weights: --method hidden"
            ).format(longest=longest),
        )
    seen = subject.run(
        text.ids[None], position=question.position, watch=Watch(weights=True, values=values)
    ).seen
    for layer, weights in seen.weights.items():
        if tuple(weights.shape[-2:]) != (len(text), len(text)):
            raise TargetError(
                _("layer {layer} does not attend from token to token").format(layer=layer),
                why=_(
                    "its weights have {rows} queries and {columns} keys for {count} tokens"
                ).format(rows=weights.shape[-2], columns=weights.shape[-1], count=len(text)),
            )
        bad = ~torch.isfinite(weights)
        if bool(bad.any()):
            head = int(bad[0].flatten(1).any(-1).int().argmax())
            raise UsageError(
                _("the weights of layer {layer}, head {head} are not numbers").format(
                    layer=layer, head=head
                ),
                why=_("{count} of {total} cells are NaN or infinite").format(
                    count=int(bad[0, head].sum()), total=bad[0, head].numel()
                ),
                fix=_("check the model's weights and its dtype: float16 overflows above 65504"),
            )
    return seen


def row(weights: Tensor, question: Question) -> Tensor:
    """Weights of the question's token on all others, (…, Tk); the mean over queries without one.

    Args:
        weights: (…, Tq, Tk).
        question: whose token counts.

    Example:
        >>> from headwise.explain.question import Logit
        >>> w = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        >>> row(w, Question(Logit(0), 1)).tolist(), row(w, Question(Logit(0), None)).tolist()
        ([0.25, 0.75], [0.625, 0.375])
    """
    query = question.query
    found = weights.mean(-2) if query is None else weights[..., query, :]
    return found.double()


def shown_scores(cells: Tensor) -> Tensor:
    """One map for people from (L, H, T): the last layer, the mean over its heads, (T,)."""
    return cells[-1].mean(0)
