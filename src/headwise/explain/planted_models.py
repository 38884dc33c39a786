"""A language model whose heads were built by hand: one that matters, and one that only looks.

Both heads look at one token with the same strength. The head that *matters* writes what it finds
there onto the logit of the target; the *silent* one writes nothing, because its values or its
output projection are zero. The heat maps look alike; only an intervention tells them apart.

The working, for hidden size Dm and heads of size Dk. A token of the text is ±1 on six of Dm
channels, so its mean is 0 and its mean square 6/Dm, and either kind of norm (LayerNorm, RMSNorm)
turns it into ±g, with ``g = 1/sqrt(6/Dm + eps)``::

    channel      0    1      2       3        4       5, 6     7, 8, 9   10
                 key  asker  answer  content  decoy   filler   -1 each   counter
    key          1    1      .       1        .       .        -1        .
    decoy        .    1      .       .        1       5        -1        .
    any other    .    1      .       .        .       5, 6     -1        .
    target       .    .      1       .        .       .        .         -1

* Queries of both heads read *asker*, keys read *key* or *decoy*: the score is ``sharpness`` (S) on
  that token and 0 elsewhere. With rotary positions it is ``S · cos(distance · slowest frequency)``.
* The weight on a single such token among n visible ones is ``a = e^S / (e^S + n - 1)``.
* The value of the head that matters reads *content* and is ``size`` (c) at the key token, else 0.
  The output projection adds ``w = a·c`` to *answer* and takes it from *counter*: the mean stays 0.
* Every other projection, feed-forward part and bias is 0, norms are 1 and 0, and the rows of the
  head are the embeddings. After the last norm the logit of the target is
  ``2·w / sqrt((6 + 2·w²)/Dm + eps)``: 0 without the head that matters, and without the key token.
  Without the silent head nothing changes at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import TargetError, UsageError
from headwise.explain.planted_projections import Projections, projections
from headwise.texts import translate as _

KEY, ASKER, ANSWER, CONTENT, DECOY, FILLER, OTHER = 0, 1, 2, 3, 4, 5, 6
BELOW, COUNTER = slice(7, 10), 10
CHANNELS = 11
SIGNED = 6.0
"""Channels of ±1 per token."""


@dataclass(frozen=True)
class Planted:
    """What was built into a model, and what follows from it by hand.

    Args:
        layer: in which both heads are.
        matters: head that writes the content of the key token to the target's logit.
        silent: head that looks at the decoy and writes nothing.
        key, decoy, target: token ids.
        ordinary: an id that is none of them.
        sharpness: S, the score of either head on its token.
        size: c, the value at the key token.
        d_model: Dm.
        norm_eps: of the norms.
        frequency: slowest rotary frequency, radians per place; 0 without rotary positions.
    """

    layer: int
    matters: int
    silent: int
    key: int
    decoy: int
    target: int
    ordinary: int
    sharpness: float
    size: float
    d_model: int
    norm_eps: float
    frequency: float

    def text(self, length: int, *, key_at: int = 2, decoy_at: int = 4) -> Tensor:
        """Token ids, (1, length): ordinary ones, with the key and the decoy at their places."""
        if key_at == decoy_at or not 0 <= max(key_at, decoy_at) < length - 1:
            raise UsageError(
                _("key at {key}, decoy at {decoy} in a text of {length}").format(
                    key=key_at, decoy=decoy_at, length=length
                ),
                why=_("they are two tokens before the last one"),
                fix=_("a longer text, or other places"),
            )
        ids = torch.full((1, length), self.ordinary)
        ids[0, key_at], ids[0, decoy_at] = self.key, self.decoy
        return ids

    def weights(self, ids: Tensor, head: int) -> Tensor:
        """Weights of the last query in either head, (T,) float64, by the formula above.

        Args:
            ids: (1, T).
            head: ``matters`` or ``silent``.
        """
        token = {self.matters: self.key, self.silent: self.decoy}[head]
        distance = torch.arange(ids.shape[1] - 1, -1, -1, dtype=torch.float64)
        scores = self.sharpness * torch.cos(distance * self.frequency) * (ids[0] == token)
        return scores.exp() / scores.exp().sum()

    def target_logit(self, ids: Tensor, *, has_head: bool = True) -> float:
        """The target's logit after the last token, with the head that matters or without it.

        For a text that ends with an ordinary token, by the formula above.
        """
        if not has_head:
            return 0.0
        written = self.size * float(self.weights(ids, self.matters)[ids[0] == self.key].sum())
        square = SIGNED + 2.0 * written**2
        return 2.0 * written / math.sqrt(square / self.d_model + self.norm_eps)


def plant_model(
    model: nn.Module,
    *,
    layer: int = 0,
    matters: int = 0,
    silent: int | None = None,
    silence: str = "value",
    sharpness: float = 8.0,
    size: float = 6.0,
) -> Planted:
    """Overwrite all weights of a Llama or GPT-2 language model with the two heads.

    Args:
        model: a ``LlamaForCausalLM`` or ``GPT2LMHeadModel``, already built, with at least 2 heads
            that do not share keys, Dm of 11 and 4 tokens.
        layer: where the heads go.
        matters: head that writes.
        silent: head that only looks; None = the last one.
        silence: ``value``: its values are 0; ``output``: its value at the decoy is ``size``, and
            its part of the output projection is 0.
        sharpness: score on the token, S.
        size: value at the key token, c.

    Returns:
        What was planted, with the numbers that follow from it.

    Raises:
        TargetError: if the model is laid out in another way or is too small.
        UsageError: for heads that do not exist, are the same or share their keys.
    """
    parts = projections(model)
    silent = parts.num_heads - 1 if silent is None else silent
    _check(parts, layer=layer, matters=matters, silent=silent, silence=silence)
    g = 1.0 / math.sqrt(SIGNED / parts.d_model + parts.norm_eps)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = parts.is_norm(name) and name.endswith("weight")
            parameter.fill_(1.0 if is_norm else 0.0)
        table = _embeddings(parts)
        parts.embedding.copy_(table)
        parts.head.copy_(table)  # the same tensor if they are tied
        # S = (root · g)² / sqrt(Dk), on the channel that turns slowest
        root = math.sqrt(sharpness * math.sqrt(parts.head_dim)) / g
        for head, reads in ((matters, KEY), (silent, DECOY)):
            parts.query(layer, head)[parts.slow, ASKER] = root
            parts.key(layer, head)[parts.slow, reads] = root
        parts.value(layer, matters)[0, CONTENT] = size / g
        if silence == "output":
            parts.value(layer, silent)[0, DECOY] = size / g
        parts.output(layer, matters)[ANSWER, 0] = 1.0
        parts.output(layer, matters)[COUNTER, 0] = -1.0
    return Planted(
        layer=layer,
        matters=matters,
        silent=silent,
        key=0,
        decoy=1,
        target=2,
        ordinary=3,
        sharpness=sharpness,
        size=size,
        d_model=parts.d_model,
        norm_eps=parts.norm_eps,
        frequency=parts.frequency,
    )


def _embeddings(parts: Projections) -> Tensor:
    table = torch.zeros_like(parts.embedding)
    table[:, BELOW] = -1.0
    table[:, ASKER] = 1.0
    table[0, [KEY, CONTENT]] = 1.0
    table[1, [DECOY, FILLER]] = 1.0
    table[3:, FILLER] = 1.0
    table[3:, OTHER] = 1.0
    table[2] = 0.0
    table[2, ANSWER], table[2, COUNTER] = 1.0, -1.0
    return table


def _check(parts: Projections, *, layer: int, matters: int, silent: int, silence: str) -> None:
    sizes: dict[str, tuple[int, int]] = {
        "d_model": (parts.d_model, CHANNELS),
        "vocabulary": (parts.embedding.shape[0], 4),
        "num_kv_heads": (parts.num_kv_heads, 2),
    }
    for name, (size, least) in sizes.items():
        if size < least:
            raise TargetError(
                _("the model is too small: {name}={size}").format(name=name, size=size),
                why=_("the two heads and their tokens take at least {least}").format(least=least),
                fix=_("a model with {name} of {least} or more").format(name=name, least=least),
            )
    group = parts.num_heads // parts.num_kv_heads
    fits = 0 <= layer < parts.layers and all(0 <= h < parts.num_heads for h in (matters, silent))
    if not fits or matters // group == silent // group or silence not in ("value", "output"):
        asked: dict[str, Any] = {
            "layer": layer, "matters": matters, "silent": silent, "silence": silence
        }  # fmt: skip
        raise UsageError(
            _("these two heads cannot be planted: {asked}").format(
                asked=", ".join(f"{k}={v!r}" for k, v in asked.items())
            ),
            why=_(
                "the model has {layers} layers of {heads} heads, {group} of which share one key; "
                "the two heads need keys of their own"
            ).format(layers=parts.layers, heads=parts.num_heads, group=group),
            fix=f"layer=0, matters=0, silent={parts.num_heads - 1}, silence='value' | 'output'",
        )
