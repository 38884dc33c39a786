"""BERT's [CLS] and [SEP], counted and seen in heat maps: MiniLM where it is pulled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.stack import Stack
from headwise.explain.detectors import DETECTORS, MapFacts
from headwise.labs.judge import all_of, stated
from headwise.labs.lab import Verdict
from headwise.labs.measures.real_models import TEXTS, is_there, subject
from headwise.labs.parts.lesson import gap
from headwise.labs.parts.small import seeded
from headwise.labs.parts.stack_subject import StackSubject, walk
from headwise.labs.parts.words import WordPieces
from headwise.masks import Padding

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PADS = 2


@dataclass(frozen=True)
class Bert:
    """What an encoder of BERT's kind does with its special tokens.

    Args:
        is_real: the weights are MiniLM's; else they are random and the model is tiny.
        layers, num_heads: of the model.
        shown: the tokens of the short sentence.
        on_pads: largest weight of a real token on a pad.
        cls_sees_sep: smallest weight of [CLS] on [SEP], over layers and heads.
        moved: change of the real rows when the pads are other tokens.
        special: per layer and head, mean weight of ordinary tokens on [CLS] and [SEP] in a longer
            sentence.
        even: what equal weights would give them.
        tokens: of the longer sentence.
        found: heads that rest on special tokens, by the detector.
    """

    is_real: bool
    layers: int
    num_heads: int
    shown: tuple[str, ...]
    on_pads: float
    cls_sees_sep: float
    moved: float
    special: tuple[tuple[float, ...], ...]
    even: float
    tokens: int
    found: int


def bert(sentence: str, seed: int) -> Bert:
    """Run a short sentence with pads, and a longer one without."""
    is_real = is_there("minilm")
    one = subject("minilm") if is_real else random_encoder(sentence, seed)
    read = one.read(sentence)
    count = len(read)
    ids = torch.cat([read.ids, torch.zeros(PADS, dtype=torch.long)])[None]
    keep = (torch.arange(count + PADS) < count)[None]
    other = ids.masked_fill(~keep, one.mask_id)
    hidden, weights = padded(one.stack, ids, keep)
    moved, _weights = padded(one.stack, other, keep)
    long = one.read(TEXTS["minilm"][0])
    marks = torch.tensor(long.is_special)
    _hidden, maps = padded(one.stack, long.ids[None], torch.ones(1, len(long), dtype=torch.bool))
    facts = MapFacts(is_causal=False, is_special=marks, token_ids=long.ids)
    rests = [d.is_found for w in maps for d in DETECTORS["special"].detect(w[0], facts)]
    on_special = [w[0][:, ~marks][..., marks].sum(-1).mean(-1) for w in maps]
    return Bert(
        is_real=is_real,
        layers=one.num_layers,
        num_heads=one.num_heads,
        shown=read.shown,
        on_pads=max(float(w[0, :, :count, count:].max()) for w in weights),
        cls_sees_sep=min(float(w[0, :, 0, count - 1].min()) for w in weights),
        moved=gap(moved[:, :count], hidden[:, :count]),
        special=tuple(tuple(row.tolist()) for row in on_special),
        even=int(marks.sum()) / len(long),
        tokens=len(long),
        found=sum(rest is True for rest in rests),
    )


def padded(stack: Stack, ids: Tensor, keep: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The result (B, T, Dm) of a padded batch, and the weights of every layer (B, H, T, T)."""
    every: list[Tensor] = []

    def attention(layer: MultiHeadAttention, x: Tensor) -> Tensor:
        output, weights = layer(x, mask=Padding(keep), need_weights="per-head")
        every.append(weights)
        found: Tensor = output
        return found

    with torch.no_grad():
        return walk(stack, stack.tokens(ids), attention), every


def random_encoder(sentence: str, seed: int) -> StackSubject:
    """A tiny BERT with random weights that knows the characters of a sentence and little else."""
    words = WordPieces([*SPECIAL, *sorted(set(sentence))])
    sizes: dict[str, Any] = {
        "model_type": "bert",
        "vocab_size": len(SPECIAL) + len(set(sentence)), "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
        "max_position_embeddings": 64,
    }  # fmt: skip
    with seeded(seed):
        stack = Stack(FAMILIES["bert"].spec(sizes), dtype=torch.float64)
    return StackSubject("bert", stack.eval().requires_grad_(False), "encoder", words)


def judged_bert(found: Bert, rows: int) -> Verdict:
    """Whether special tokens count as rows, pads as none, and heads are seen to rest on them.

    *under conditions* if the weights are random: then no head has learned to rest anywhere.
    """
    counted = all_of(
        stated(len(found.shown) == rows and (found.shown[0], found.shown[-1]) == SPECIAL[2:4]),
        stated(found.on_pads == 0.0 == found.moved and found.cls_sees_sep > 0.0),
    )
    if counted != "holds":
        return counted
    return stated(found.found > 0) if found.is_real else "holds-under-conditions"
