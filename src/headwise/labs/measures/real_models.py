"""Explanations of models whose weights somebody else trained, where they are pulled.

The methods, the interventions and the verdicts are those of `headwise.explain`; the models run on
our own stack.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.checkpoints.load import load
from headwise.checkpoints.pulled import path_of, state
from headwise.errors import UsageError
from headwise.explain.asking import ask
from headwise.explain.explanation import Explanation, Trust, explain
from headwise.explain.method import Progress
from headwise.explain.question import Question
from headwise.explain.verdicts import Code
from headwise.labs.measures.planted import PATTERNS
from headwise.labs.parts.lesson import normal
from headwise.labs.parts.small import generator
from headwise.labs.parts.stack_subject import StackSubject
from headwise.labs.parts.words import WholeWords, WordPieces
from headwise.numerics import eps
from headwise.texts import translate as _

METHODS = ("weights", "rollout", "gradient-input", "gradient-weights", "integrated", "hidden")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "gradients": ("gradient-input", "gradient-weights"),
    "attribution": ("integrated",),
    "rollout": ("rollout",),
    "hiding": ("hidden",),
}
"""The four families that the course names, and the methods that stand for them."""
TEXTS: Mapping[str, tuple[str, ...]] = {
    "minilm": (
        "The old bridge was closed because the river had risen, so we took the train.",
        "A doctor told the nervous patient that the small operation would not hurt at all.",
        "Nobody in the village had seen the two brothers since the long winter began.",
        "If the committee accepts the plan, the new library will open before summer.",
        "She sold her car last week and now rides a red bicycle to the office.",
        "The central bank raised interest rates for the third time this year, the paper said.",
    ),
    "smollm2-135m": (
        "The old bridge was closed because the river had risen, so we took the",
        "A doctor told the nervous patient that the small operation would not hurt at",
        "Nobody in the village had seen the two brothers since the long winter",
        "Water freezes in winter and the snow melts in spring when the weather gets",
        "She sold her car last week and now rides a red bicycle to the",
        "The cat chased the mouse around the house until the mouse ran under the",
    ),
}
"""Whole sentences for the encoder; beginnings for the language model, all words of which are
tokens."""


@dataclass(frozen=True)
class RealModel:
    """What the methods found on one model.

    Args:
        name: as ``headwise models pull`` takes it.
        layers, num_heads: of the model.
        texts: how many.
        tokens: of all texts.
        agreement: per method, rank agreement with hiding, one number per text where it exists.
        null: upper end of the band of shuffled tokens, per method the mean over the texts.
        codes: per method, how many texts got each verdict of `headwise.explain`.
        head_codes: the same of the weights of single heads, all texts together.
        finite: every method gave a finite number for every token.
        gradient_gap: relative difference of a directional derivative from finite differences, in
            float64.
        completeness: per text, what integrated gradients miss, relative to their magnitudes.
        rollout_gap, rollout_allowed: how far rollout's rows are from a sum of 1, and rounding.
        felt: share of tokens whose hiding moves the target beyond rounding.
        named: heads that each detector names on the first text.
        labelled: heads that at least one of the detectors of ``PATTERNS`` names there.
    """

    name: str
    layers: int
    num_heads: int
    texts: int
    tokens: int
    agreement: Mapping[str, tuple[float, ...]]
    null: Mapping[str, float]
    codes: Mapping[str, Mapping[str, int]]
    head_codes: Mapping[str, int]
    finite: bool
    gradient_gap: float
    completeness: tuple[float, ...]
    rollout_gap: float
    rollout_allowed: float
    felt: float
    named: Mapping[str, int]
    labelled: int


def is_there(name: str) -> bool:
    """Whether a model is pulled and whole.

    Raises:
        UsageError: if no model has that name.
    """
    if name not in TEXTS:
        raise UsageError(
            _("the lab has no texts for the model {name!r}").format(name=name),
            fix=", ".join(TEXTS),
        )
    try:
        return state(name) == "pulled"
    except UsageError:  # there is no cache folder
        return False


def subject(name: str) -> StackSubject:
    """A pulled model in float32, on our own stack.

    Raises:
        UsageError: if it is not pulled or damaged.
    """
    model = load(name, dtype=torch.float32)
    if name == "minilm":
        words = WordPieces.from_file(path_of(name) / "vocab.txt")
        return StackSubject.of(name, model, words)
    return StackSubject.of(name, model, WholeWords(model.config["tokenizer.ggml.tokens"]))


def measure_real(one: StackSubject, texts: Sequence[str], seed: int, tell: Progress) -> RealModel:
    """Explain some texts with every family of methods.

    Args:
        one: the model.
        texts: what it reads.
        seed: of the direction of the finite difference.
        tell: told what is done and the share.
    """
    found = []
    for index, text in enumerate(texts):
        tell(one.name, index / len(texts))
        question = ask(one, one.read(text))
        found.append(explain(one, text, question, methods=METHODS, with_curves=False))
    heads: Counter[str] = Counter()
    for each in found:
        heads.update(map.code.value for row in _trust(each).heads for map in row)
    length = max(len(each.text) for each in found)
    detected = found[0].detected
    return RealModel(
        name=one.name,
        layers=one.num_layers,
        num_heads=one.num_heads,
        texts=len(found),
        tokens=sum(len(each.text) for each in found),
        agreement={
            name: tuple(a for e in found if (a := _trust(e).maps[name].spearman) is not None)
            for name in METHODS
            if name != "hidden"
        },
        null={
            name: _mean([b[1] for e in found if (b := _trust(e).maps[name].null) is not None])
            for name in METHODS
            if name != "hidden"
        },
        codes={
            name: Counter(_trust(e).maps[name].code.value for e in found)
            for name in METHODS
            if name != "hidden"
        },
        head_codes={code.value: heads[code.value] for code in Code},
        finite=all(bool(_scores(e, name).isfinite().all()) for e in found for name in METHODS),
        gradient_gap=gradient_gap(one, texts[0], seed),
        completeness=tuple(
            abs(e.found["integrated"].figures["gap"]) / float(_scores(e, "integrated").abs().sum())
            for e in found
        ),
        rollout_gap=max(abs(float(_scores(e, "rollout").sum()) - 1.0) for e in found),
        # per layer a sum of heads, a division and a product of rows, each of up to T terms
        rollout_allowed=3 * one.num_layers * length * eps(torch.float64),
        felt=_mean(
            [float((_scores(e, "hidden").abs() > _trust(e).noise).double().mean()) for e in found]
        ),
        named=Counter(d.name for heads in detected for said in heads for d in said if d.is_found),
        labelled=sum(
            any(d.is_found and d.name in PATTERNS for d in said)
            for heads in detected
            for said in heads
        ),
    )


def _trust(found: Explanation) -> Trust:
    assert found.trust is not None
    return found.trust


def _scores(found: Explanation, name: str) -> Tensor:
    scores = found.found[name].scores
    assert scores is not None
    return scores


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def gradient_gap(one: StackSubject, text: str, seed: int) -> float:
    """Relative difference of the target's slope along a direction from a central difference.

    The model runs in float64; the step is a ten thousandth of the size of the embeddings.
    """
    exact = copy.copy(one)
    exact.stack = copy.deepcopy(one.stack).double()
    read = exact.read(text)
    question = ask(exact, read)
    x = exact.embed(read.ids[None]).detach()
    direction = normal(generator(seed), *x.shape) * float(x.square().mean().sqrt())
    leaf = x.clone().requires_grad_()
    run = exact.run(leaf, position=question.position, keeps_graph=True)
    (gradient,) = torch.autograd.grad(question.value(run).sum(), leaf)
    slope = float((gradient * direction).sum())
    step = 1e-4
    ahead, behind = (value_at(exact, question, x + s * direction) for s in (step, -step))
    return abs((ahead - behind) / (2 * step) - slope) / abs(slope)


def value_at(one: StackSubject, question: Question, x: Tensor) -> float:
    """The target for some embeddings (1, T, D)."""
    return float(question.value(one.run(x, position=question.position))[0])
