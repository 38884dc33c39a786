"""Which channels a GGUF file rotates together: read from what its weights say about a text.

Shapes don't show it. Converters of the LLaMA architecture move the rows of queries and keys so that
pairs are neighbours, those of Qwen2 leave halves; a file made by another program may not. So both
readings predict one short text. The right one predicts it clearly better; where neither predicts
anything (weights that were never trained, no vocabulary in the file), the converter's rule holds
and the record says that nothing was shown. Weights that do predict, but not clearly better one
way, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.checkpoints.stack import Stack
from headwise.errors import UsageError
from headwise.spec import Pairs
from headwise.texts import mark as N_
from headwise.texts import translate as _

TEXT = (
    "The sun was going down when the two children came back to the house near the river. Their "
    "mother had put bread and soup on the table, and the old dog was asleep in front of the fire. "
    "They sat down, told her about the boat they had seen that morning, and asked if they could "
    "go to see it again the next day before school."
)
"""Plain English that no model has been trained on word by word."""

_ERRORS = 3.0
"""A difference is clear if it is larger than so many of its standard errors."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """How the pairs of a file were decided.

    Args:
        pairs: as the stack has them.
        rule: what the converter of the architecture leaves.
        losses: mean loss per token of the text, in nats, by pairing; None = the text was not read.
        tokens: predicted tokens of the text.
        errors: how many standard errors lie between the two losses.
        why: why nothing was shown; empty if the text decided.
    """

    pairs: Pairs
    rule: Pairs
    losses: Mapping[Pairs, float] | None = None
    tokens: int = 0
    errors: float = 0.0
    why: str = ""

    def sentence(self) -> str:
        """The decision in words, with the numbers it stands on."""
        parts = []
        if self.losses is not None:
            measured = ", ".join(f"{name} {loss:.3f}" for name, loss in self.losses.items())
            parts.append(
                _("loss of {tokens} tokens by pairing: {measured} ({errors:.1f} standard errors)")
                .format(tokens=self.tokens, measured=measured, errors=self.errors)
            )  # fmt: skip
        if self.why:
            parts.append(_("not shown, {why}: the rule of the converter").format(why=_(self.why)))
        elif self.pairs != self.rule:
            parts.append(_("against the rule of the converter, {rule}").format(rule=self.rule))
        return _("rotated pairs: {pairs}; {how}").format(pairs=self.pairs, how="; ".join(parts))


def decide(
    build: Callable[[Pairs], Stack], rule: Pairs, metadata: Mapping[str, Any], *, where: str
) -> Pairing:
    """Decide the pairing of a file.

    Args:
        build: the model under one of the two readings.
        rule: what the converter of the architecture leaves.
        metadata: of the file; the vocabulary is in it.
        where: the file, for the message.

    Raises:
        UsageError: if the weights predict the text, but not clearly better one way.
    """
    other: Pairs = "halves" if rule == "neighbours" else "neighbours"
    stacks = {pairs: build(pairs) for pairs in (rule, other)}
    size = stacks[rule].spec.vocabulary
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    ids = spell(TEXT, vocabulary[:size]) if isinstance(vocabulary, list | tuple) else None
    if ids is None:
        why = N_("since the file has no vocabulary that spells a text")
        return Pairing(pairs=rule, rule=rule, why=why)
    first = metadata.get("tokenizer.ggml.bos_token_id")
    if (
        isinstance(first, int)
        and 0 <= first < size
        and metadata.get("tokenizer.ggml.add_bos_token", True)
    ):
        ids = [first, *ids]
    by_pairs = {pairs: _losses(stack, ids) for pairs, stack in stacks.items()}
    means = {pairs: float(losses.mean()) for pairs, losses in by_pairs.items()}
    best = min(means, key=means.__getitem__)
    gap = by_pairs[rule] - by_pairs[other]
    errors = abs(float(gap.mean())) / max(_error(gap), 1e-12)
    found = Pairing(pairs=best, rule=rule, losses=means, tokens=len(gap), errors=errors)
    if not means[best] + _ERRORS * _error(by_pairs[best]) < math.log(size):
        why = N_("since the weights predict no text")
        return Pairing(pairs=rule, rule=rule, losses=means, tokens=len(gap), errors=errors, why=why)
    if errors <= _ERRORS:
        raise UsageError(
            _("it can't be told which channels of this file are rotated together"),
            where=where,
            why=found.sentence(),
            fix=_("the Hugging Face form of the same model, where pairs are halves"),
        )
    return found


def spell(text: str, vocabulary: Sequence[Any]) -> list[int] | None:
    """A text as tokens: the longest one that fits, again and again; None = it can't be spelled.

    Not how the model's own tokenizer cuts it, but both readings meet the same tokens.

    Example:
        >>> spell("a cat", ["a", "c", "at", "▁c", "▁"])
        [0, 3, 2]
    """
    known = {one: n for n, one in enumerate(vocabulary) if isinstance(one, str) and one}
    longest = min(max(map(len, known), default=0), 32)
    for space in ("Ġ", "▁"):  # byte-level and sentencepiece vocabularies write a space like this
        written, ids, at = text.replace(" ", space), [], 0
        while at < len(written):
            sizes = range(min(longest, len(written) - at), 0, -1)
            size = next((n for n in sizes if written[at : at + n] in known), 0)
            if not size:
                break
            ids.append(known[written[at : at + size]])
            at += size
        else:
            return ids
    return None


def _losses(stack: Stack, ids: Sequence[int]) -> Tensor:
    """Loss of every token but the first, in nats, float64."""
    tokens = torch.tensor([list(ids)], device=stack.tokens.weight.device)
    with torch.inference_mode():
        logits = stack(tokens)[0, :-1]
    return F.cross_entropy(logits.double(), tokens[0, 1:], reduction="none")


def _error(values: Tensor) -> float:
    """Standard error of a mean."""
    return float(values.std() / math.sqrt(len(values)))
