"""A small grammar: text made inside the labs, its lowest possible loss, a test of sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NOUNS = ("cat", "dog", "bird", "girl", "king")
VERBS = ("see", "like", "hear", "find")
ADJECTIVES = ("old", "small", "red")
WORDS = (
    ".", "that", "the", "a", "some", *ADJECTIVES, *NOUNS, *(f"{n}s" for n in NOUNS), *VERBS,
    *(f"{v}s" for v in VERBS),
)  # fmt: skip
"""The vocabulary of the small grammar; a token is an index into it."""


def sentence(g: torch.Generator) -> list[str]:
    """One sentence of the small grammar.

    Subject and verb agree in number, also across a relative clause: "the old cat that dogs hear"
    needs "sees", not "see". So the next word depends on words far back.
    """

    def pick(options: Sequence[str]) -> str:
        return options[int(torch.randint(len(options), (1,), generator=g))]

    def chance(p: float) -> bool:
        return float(torch.rand(1, generator=g)) < p

    def noun_phrase() -> tuple[list[str], bool]:
        many = chance(0.5)
        words = [pick(("the", "some") if many else ("the", "a"))]
        words += [pick(ADJECTIVES)] if chance(0.4) else []
        return [*words, pick(NOUNS) + ("s" if many else "")], many

    def verb(many: bool) -> str:
        return pick(VERBS) + ("" if many else "s")

    words, many = noun_phrase()
    if chance(0.5):
        inner, _many = noun_phrase()
        words += ["that", verb(many), *inner]
    words.append(verb(many))
    return [*words, *noun_phrase()[0], "."]


def entropy_rate() -> float:
    """Nats per word of the small grammar: no honest prediction can have a lower loss, on average.

    A sentence shows every choice that made it, so its entropy is the sum over the choices.
    """

    def coin(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    adjective = coin(0.4) + 0.4 * math.log(len(ADJECTIVES))
    phrase = math.log(2) + math.log(2) + adjective + math.log(len(NOUNS))
    clause = coin(0.5) + 0.5 * (phrase + math.log(len(VERBS)))
    nats = phrase + clause + math.log(len(VERBS)) + phrase
    phrase_length = 2 + 0.4
    words = phrase_length + 0.5 * (2 + phrase_length) + 1 + phrase_length + 1
    return nats / words


def is_sentence(words: Sequence[str]) -> bool:
    """Whether the small grammar makes this sentence (with its full stop).

    Example:
        >>> is_sentence("the cat that sees some dogs likes a bird .".split())
        True
        >>> is_sentence("the cat that sees some dogs like a bird .".split())
        False
    """
    rest = list(words)

    def noun_phrase() -> bool | None:
        first = rest.pop(0) if rest else ""
        if rest and rest[0] in ADJECTIVES:
            rest.pop(0)
        noun = rest.pop(0) if rest else ""
        many = noun not in NOUNS
        if noun.removesuffix("s") not in NOUNS or first not in ("the", "some" if many else "a"):
            return None
        return many

    def verb(many: bool) -> bool:
        word = rest.pop(0) if rest else ""
        return word in (VERBS if many else [f"{v}s" for v in VERBS])

    many = noun_phrase()
    if many is None:
        return False
    if rest and rest[0] == "that":
        rest.pop(0)
        if not verb(many) or noun_phrase() is None:
            return False
    return verb(many) and noun_phrase() is not None and rest == ["."]


def text(sentences: int, seed: int) -> Tensor:
    """Many sentences in a row, as tokens (N,)."""
    number = {word: index for index, word in enumerate(WORDS)}
    g = torch.Generator().manual_seed(seed)
    return torch.tensor([number[w] for _ in range(sentences) for w in sentence(g)])


def sentences_in(tokens: Tensor) -> list[list[str]]:
    """The finished sentences of one sequence of words, without the first and last, cut ones."""
    found, words = [], []
    for index in tokens.tolist():
        words.append(WORDS[index])
        if WORDS[index] == ".":
            found.append(words)
            words = []
    return found[1:]
