"""Tiny random models of transformers for tests, and their own numbers to hold ours against."""

from __future__ import annotations

import copy
import functools

import torch

from headwise.explain.question import EmbeddingNorm, Logit, LogitDifference, Question
from headwise.explain.subject import Text
from headwise.integrations.registration import implementation, own_attention
from headwise.integrations.tiny import tiny
from headwise.numerics import eps

DECODERS = (
    "gpt2",
    "llama",
    "mistral",  # a window, grouped heads
    "gemma2",  # windows in every other layer, scores capped
    "gpt_oss",  # sinks, windows
    "qwen2",
    "qwen3",
    "opt",
    "gpt_neox",
    "phi3",
)
ENCODERS = ("bert", "roberta", "distilbert", "electra", "modernbert")
LENGTH = 9  # longer than Mistral's window of 4


@functools.cache
def _made(model_type, dtype, seed):
    return tiny(model_type, dtype=dtype, seed=seed)


def subject_of(model_type, *, dtype=torch.float32, seed=0):
    """A subject that no test changes: the same one for all of them."""
    return _made(model_type, dtype, seed)


def model_of(model_type, *, dtype=torch.float32, seed=0):
    """A model of its own, to be changed at will."""
    return copy.deepcopy(_made(model_type, dtype, seed).model)


def ids_of(batch=2, length=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 60, (batch, length), generator=generator)


def left_padded(batch=2, length=LENGTH, padding=3):
    """(B, T) of 0 and 1: every second row starts with padding."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1::2, :padding] = 0
    return mask


def lifted(model):
    """A copy in float64."""
    found = copy.deepcopy(model).double()
    if hasattr(found, "set_experts_implementation"):
        found.set_experts_implementation("eager")  # the grouped product knows no float64
    return found


def register_truth():
    """``truth``: the model's own eager attention for float64.

    Eager masks of transformers hold float64's lowest number, which the float32 softmax reads as
    -inf: a row with nothing visible is NaN there, and spoils every row after it.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    def mask(*args, **kwargs):
        found = eager_mask(*args, **kwargs)
        return None if found is None else found.clamp(min=-1e30)

    def attention(module, *args, **kwargs):
        return own_attention(module)(module, *args, **kwargs)

    AttentionInterface.register("truth", attention)
    AttentionMaskInterface.register("truth", mask)


def run_as(model, name, **inputs):
    """What a model gives on an attention implementation."""
    with implementation(model, name), torch.no_grad():
        return model(**inputs)


def rounding(want, *, terms=400):
    """What float32 rounding explains between two runs of one tiny model.

    Every softmax of transformers is float32, in float64 models too. Two layers of sums of at most
    ``terms`` products each (widths 48 and 61, keys, heads) follow one another, and each can magnify
    the error of the one before (Higham 2002, section 3.1).
    """
    return terms * eps(torch.float32) * float(want.detach().abs().max())


def questions_of(subject, *, position):
    """A question of every kind that a model of this sort can answer, by name."""
    if subject.kind == "encoder":
        return {
            "norm": Question(EmbeddingNorm(), None),
            "first": Question(EmbeddingNorm("first"), None),
        }
    return {
        "logit": Question(Logit(7), position),
        "difference": Question(LogitDifference(7, 9), position),
    }


def text_of(subject, length=LENGTH, seed=0):
    """A text of random tokens that differ from the one that replaces others."""
    ids = ids_of(1, length, seed)[0]
    return Text("", ids, tuple(subject.token(int(i)) for i in ids), (False,) * length)
