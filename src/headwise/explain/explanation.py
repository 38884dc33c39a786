"""One question about one text: every map, every intervention, and how far to trust them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwise.errors import HeadwiseError, UsageError
from headwise.explain import methods as _methods  # noqa: F401 - registers every method
from headwise.explain.agreement import Agreement
from headwise.explain.curves import Curve, curves
from headwise.explain.detectors import DETECTORS, Detection, MapFacts
from headwise.explain.effects import Effects
from headwise.explain.measuring import noise, with_hidden
from headwise.explain.method import METHODS, Attribution, Progress, Settings, silent
from headwise.explain.question import Question
from headwise.explain.sign_errors import SignError, sign_errors
from headwise.explain.subject import Subject, Text
from headwise.explain.trust import Sampling, agreement, agreements
from headwise.texts import current_language
from headwise.texts import translate as _

REFERENCE = "hidden"
"""The intervention that the maps are compared with."""

TOP = 10
"""Predictions that are listed."""

AFTER = 5
"""Predictions that are listed for every token taken away."""


@dataclass(frozen=True)
class Trust:
    """How far each map agrees with the interventions.

    Args:
        tokens: how many are compared.
        noise: what rounding explains of an effect.
        maps: per map of the whole model.
        layers: of the attention weights, per layer.
        heads: of the attention weights, per layer and head.
        sign_errors: per map, heavy tokens that work the other way.
        curves: deletion and insertion.
    """

    tokens: int
    noise: float
    maps: Mapping[str, Agreement]
    layers: tuple[Agreement, ...]
    heads: tuple[tuple[Agreement, ...], ...]
    sign_errors: Mapping[str, tuple[SignError, ...]]
    curves: tuple[Curve, ...]


@dataclass(eq=False)
class Explanation:
    """Everything that was found about one text and one question.

    Args:
        subject: the model.
        text: as it was read.
        question: what was asked.
        value: of the target.
        top: the most likely tokens, (id, logit, probability); empty without logits.
        found: per method.
        trust: None where no intervention was made.
        detected: per layer and head, what the detectors say.
        notes: for the reader.
        seed: of all randomness.
        elapsed_s: it took.
    """

    subject: Subject
    text: Text
    question: Question
    value: float
    top: tuple[tuple[int, float, float], ...]
    found: dict[str, Attribution]
    trust: Trust | None
    detected: tuple[tuple[tuple[Detection, ...], ...], ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    elapsed_s: float = 0.0
    repeat: str = ""
    _payload: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def question_words(self) -> str:
        """What was asked, in words."""
        words = self.question.target.words(self.subject.token)
        query = self.question.query
        if query is None:
            return words
        pattern = (
            _("{target}, made from token {index} {token!r} alone")
            if self.question.position is None
            else _("{target}, predicted at token {index} {token!r}")
        )
        return pattern.format(target=words, index=query, token=self.text.shown[query])

    def to_payload(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers: what page and JSON show."""
        from headwise.explain.payload import payload_of

        language = current_language()
        if self._payload.get("language") != language:
            self._payload = payload_of(self)
        return self._payload

    def to_html(self) -> str:
        """One self-contained page."""
        from headwise.explain.page import render_page

        return render_page(self.to_payload())

    def _repr_html_(self) -> str:
        from headwise.explain.page import repr_html

        return repr_html(self.to_payload())


def explain(
    subject: Subject,
    text: str,
    question: Question,
    *,
    methods: Sequence[str] | None = None,
    settings: Settings | None = None,
    with_curves: bool = True,
    progress: Progress = silent,
    repeat: str = "",
) -> Explanation:
    """Explain one text.

    Args:
        subject: the model.
        text: what it reads.
        question: what is asked of it.
        methods: names; None = all. Without ``hidden`` there is nothing to compare with, and so no
            verdict.
        settings: of the methods.
        with_curves: measure deletion and insertion curves.
        progress: told what is done, and the share of all of it.
        repeat: the command that does this again.

    Raises:
        UsageError: for an unknown method, a position outside the text, or numbers that are none.
    """
    started = time.perf_counter()
    settings = settings or Settings()
    read = subject.read(text)
    names = list(METHODS) if methods is None else list(dict.fromkeys(methods))
    chosen = [METHODS[name] for name in names]
    position = question.position
    if position is not None and not 0 <= position < len(read):
        raise UsageError(
            _("there is no token {position}").format(position=position),
            why=_("the text has {count} tokens, 0 to {last}").format(
                count=len(read), last=len(read) - 1
            ),
        )
    plain = subject.run(read.ids[None], position=position)
    value = float(question.value(plain)[0])
    if not torch.isfinite(torch.tensor(value)):
        raise UsageError(
            _("the target is not a number: {value}").format(value=value),
            why=_("the model itself gives NaN or infinity on this text"),
            fix=_("check the model's weights and its dtype: float16 overflows above 65504"),
        )
    top = _top(plain.logits, TOP) if question.target.kind.startswith("logit") else ()
    found: dict[str, Attribution] = {}
    notes: list[str] = list(subject.remarks)
    steps = len(chosen) + 1
    for index, method in enumerate(chosen):

        def told(what: str, share: float, index: int = index) -> None:
            progress(what, (index + share) / steps)

        try:
            found[method.name] = method.explain(
                subject, read, question, settings=settings, progress=told
            )
        except UsageError:
            raise
        except HeadwiseError as error:  # this model has no such thing; the others go on
            notes.append(
                _("{method} is missing: {what}").format(method=_(method.label), what=str(error))
            )
    trust = None
    if REFERENCE in found:

        def last(what: str, share: float) -> None:
            progress(what, (len(chosen) + share) / steps)

        trust = _trust(subject, read, question, found, settings, last, with_curves=with_curves)
    result = Explanation(
        subject,
        read,
        question,
        value,
        top,
        found,
        trust,
        _detected(subject, read, found),
        tuple(notes),
        settings.seed,
        repeat=repeat or shlex.join(["headwise", "explain", subject.name, text]),
    )
    result.elapsed_s = time.perf_counter() - started
    progress("", 1.0)
    return result


def compared(subject: Subject, text: Text, question: Question) -> Tensor:
    """(T,) bool: tokens whose effect can be compared with a map.

    Left out: the question's own token, which can't be hidden from itself, and in a causal model
    the tokens after it, which can't influence it.
    """
    keep = torch.ones(len(text), dtype=torch.bool)
    query = question.query
    if query is not None:
        keep[query] = False
        if subject.kind == "causal":
            keep[query:] = False
    return keep


def distances(text: Text, question: Question) -> Tensor | None:
    """(T,) how many tokens each stands from the question's; None where it has no place."""
    if question.query is None:
        return None
    return (torch.arange(len(text), dtype=torch.float64) - question.query).abs()


def _trust(
    subject: Subject,
    text: Text,
    question: Question,
    found: Mapping[str, Attribution],
    settings: Settings,
    progress: Progress,
    *,
    with_curves: bool,
) -> Trust | None:
    scores = found[REFERENCE].scores
    assert scores is not None
    keep = compared(subject, text, question)
    if not bool(keep.any()):
        return None
    rounding = noise(subject, text, question, batch=settings.batch)
    effects = Effects(scores.cpu(), allowed=rounding, keep=keep, distance=distances(text, question))
    sampling = Sampling(seed=settings.seed)
    precision = getattr(torch, subject.dtype)
    maps: dict[str, Agreement] = {}
    errors: dict[str, tuple[SignError, ...]] = {}
    ranked: dict[str, Tensor] = {}
    for name, attribution in found.items():
        if name == REFERENCE or attribution.scores is None:
            continue
        theirs = attribution.scores.cpu()
        maps[name] = agreement(
            theirs,
            effects,
            is_signed=attribution.is_signed,
            precision=precision,
            sampling=sampling,
        )
        errors[name] = tuple(sign_errors(theirs, effects, is_signed=attribution.is_signed))
        ranked[name] = theirs
    layers: tuple[Agreement, ...] = ()
    heads: tuple[tuple[Agreement, ...], ...] = ()
    weights = found.get("weights")
    if weights is not None and weights.cells is not None and weights.layers is not None:
        cells = weights.cells.cpu()
        L, H, T = cells.shape
        layers = tuple(
            agreements(
                weights.layers.cpu(),
                effects,
                is_signed=False,
                precision=precision,
                sampling=sampling,
            )
        )
        flat = agreements(
            cells.reshape(L * H, T),
            effects,
            is_signed=False,
            precision=precision,
            sampling=sampling,
        )
        heads = tuple(tuple(flat[layer * H : layer * H + H]) for layer in range(L))
    drawn: tuple[Curve, ...] = ()
    if with_curves and ranked:

        def measure(hidden: Tensor) -> Tensor:
            return with_hidden(
                subject, text, question, hidden, batch=settings.batch, progress=progress
            )

        drawn = tuple(curves(ranked, measure, keep=keep, seed=settings.seed, allowed=rounding))
    return Trust(int(keep.sum()), rounding, maps, layers, heads, errors, drawn)


def _detected(
    subject: Subject, text: Text, found: Mapping[str, Attribution]
) -> tuple[tuple[tuple[Detection, ...], ...], ...]:
    """Per layer and head, what each detector says."""
    weights = found.get("weights")
    if weights is None:
        return ()
    whole = weights.extra["weights"]
    facts = MapFacts(
        is_causal=subject.kind == "causal",
        has_sink=weights.figures["smallest_row_sum"] < 1.0 - 1e-3,
        token_ids=text.ids.cpu(),
        is_special=torch.tensor(text.is_special),
        is_punctuation=torch.tensor(
            [bool(t.strip()) and not any(c.isalnum() for c in t) for t in text.shown]
        ),
    )
    layers = []
    for layer in range(whole.shape[0]):
        by_detector = [d.detect(whole[layer].cpu(), facts) for d in DETECTORS.values()]
        layers.append(tuple(zip(*by_detector, strict=True)))
    return tuple(layers)


def _top(logits: Tensor | None, count: int) -> tuple[tuple[int, float, float], ...]:
    if logits is None:
        return ()
    return top_of(logits[0], count)


def top_of(logits: Tensor, count: int) -> tuple[tuple[int, float, float], ...]:
    """The most likely tokens of logits (V,): id, logit, probability."""
    values, ids = logits.float().topk(min(count, logits.shape[-1]))
    shares = logits.float().softmax(-1)[ids]
    return tuple(zip(ids.tolist(), values.tolist(), shares.tolist(), strict=True))
