"""From what a user asks for to a question."""

from __future__ import annotations

import dataclasses
import re

import torch

from headwise.errors import TargetError, UsageError
from headwise.explain.question import (
    ClassLogit,
    EmbeddingNorm,
    Logit,
    LogitDifference,
    Question,
    Target,
)
from headwise.explain.subject import Subject, Text
from headwise.explain.tap import Watch
from headwise.texts import translate as _

_NUMBER = re.compile(r"#(\d+)")
_CLASS = re.compile(r"class:(\d+)")


def ask(
    subject: Subject,
    text: Text,
    *,
    target: str | None = None,
    against: str | None = None,
    position: int | None = None,
) -> Question:
    """The question that the words mean; without words, the natural one for this kind of model.

    Args:
        subject: the model.
        text: as read.
        target: a token (``" Paris"`` or ``#7042``), ``class:N``, ``norm`` or ``norm:first``. None:
            the most likely token, the most likely class, or the norm of the mean embedding.
        against: a second token: the difference of the two logits is asked.
        position: token after which a logit is asked, from 0, or from the end if negative. None:
            the last token; in a masked model the masked one.

    Raises:
        UsageError: for a target that this model has not, or a position outside the text.
    """
    if subject.kind == "encoder" or (target is not None and target.split(":")[0] == "norm"):
        return _norm(subject, target, against, position)
    if subject.kind == "classifier":
        if position is not None:
            raise UsageError(
                _("a class belongs to the whole text and takes no position"),
                fix=_("leave --position out"),
            )
        asked = Question(_class(subject, text, target, against), None)
        return dataclasses.replace(asked, reads=only_token_read(subject, text, asked))
    if target is not None and _CLASS.fullmatch(target):
        raise UsageError(
            _("{name} has no classes").format(name=subject.name),
            why=_("it predicts tokens"),
            fix=_('a token, such as --target " Paris"'),
        )
    place = _position(subject, text, position)
    if target is None:
        run = subject.run(text.ids[None], position=place)
        assert run.logits is not None
        token = int(run.logits[0].argmax())
    else:
        token = _token(subject, target)
    if against is None:
        return Question(Logit(token), place)
    return Question(LogitDifference(token, _token(subject, against)), place)


def only_token_read(subject: Subject, text: Text, question: Question) -> int | None:
    """The only token whose last attention a target depends on, measured; None if there are several.

    A classifier may read its first token, its last one, or a mean; which is nowhere declared. The
    gradient of the target at the contexts of the last layer is zero where nothing is read.
    """
    x = subject.embed(text.ids[None]).detach().requires_grad_()
    watch = Watch(contexts=True, layers=frozenset({subject.num_layers - 1}), keeps_graph=True)
    try:
        run = subject.run(x, position=question.position, watch=watch, keeps_graph=True)
    except TargetError:  # a model that takes no embeddings
        return None
    context = run.seen.contexts[subject.num_layers - 1]
    if not context.requires_grad:
        return None
    [gradient] = torch.autograd.grad(question.value(run).sum(), [context], allow_unused=True)
    if gradient is None:
        return None
    read = gradient[0].abs().sum((0, 2)).nonzero()[:, 0].tolist()  # (H, T, Dv) to (T,)
    return int(read[0]) if len(read) == 1 else None


def _norm(
    subject: Subject, target: str | None, against: str | None, position: int | None
) -> Question:
    if target not in {None, "norm", "norm:mean", "norm:first"}:
        raise UsageError(
            _("{name} has no target {target!r}").format(name=subject.name, target=target),
            why=_("it gives an embedding and predicts no tokens"),
            fix="--target norm, norm:first",
        )
    if against is not None or position is not None:
        raise UsageError(
            _("the norm of an embedding takes no position and no second token"),
            fix="--target norm",
        )
    if target == "norm:first":
        return Question(EmbeddingNorm("first"), None)
    return Question(EmbeddingNorm("mean"), None)


def _class(subject: Subject, text: Text, target: str | None, against: str | None) -> Target:
    run = subject.run(text.ids[None])
    assert run.logits is not None
    count = run.logits.shape[-1]
    if target is None and against is None:
        return ClassLogit(int(run.logits[0].argmax()))
    found = None if target is None else _CLASS.fullmatch(target)
    if against is not None:
        raise UsageError(
            _("a class takes no second token"),
            why=_("{name} predicts classes").format(name=subject.name),
            fix=f"--target class:0 … class:{count - 1}",
        )
    if found is None or int(found[1]) >= count:
        raise UsageError(
            _("{name} has no target {target!r}").format(name=subject.name, target=target),
            why=_("it knows {count} classes").format(count=count),
            fix=f"--target class:0 … class:{count - 1}",
        )
    return ClassLogit(int(found[1]))


def _token(subject: Subject, word: str) -> int:
    number = _NUMBER.fullmatch(word)
    if number is None:
        return subject.token_id(word)
    token = int(number[1])
    if token >= subject.vocab_size:
        raise UsageError(
            _("token {token} is outside the vocabulary of {name}").format(
                token=token, name=subject.name
            ),
            why=_("it has {count} tokens, 0 to {last}").format(
                count=subject.vocab_size, last=subject.vocab_size - 1
            ),
        )
    return token


def _position(subject: Subject, text: Text, position: int | None) -> int:
    length = len(text)
    if position is not None:
        place = position + length if position < 0 else position
        if not 0 <= place < length:
            raise UsageError(
                _("there is no token {position}").format(position=position),
                why=_("the text has {count} tokens, 0 to {last}").format(
                    count=length, last=length - 1
                ),
            )
        return place
    if subject.kind == "masked":
        masked = (text.ids == subject.mask_id).nonzero()[:, 0].tolist()
        if masked:
            return int(masked[0])
        ordinary = [i for i, special in enumerate(text.is_special) if not special]
        return ordinary[-1] if ordinary else length - 1
    return length - 1
