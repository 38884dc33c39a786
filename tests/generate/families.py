"""Tiny official models and what transformers itself generates with them."""

from __future__ import annotations

import functools
import warnings

import torch
from tests.checkpoints import tiny

from headwise.checkpoints.load import from_source
from headwise.generate import Decoder

PROMPTS = [tiny.text(batch=1, seed=s)[0, :n].tolist() for s, n in ((1, 13), (2, 3), (3, 8))]
"""Three prompts of different lengths, one longer than any window."""

NEW = 14


@functools.lru_cache(maxsize=4)
def official(name, dtype):
    return tiny.official(name).to(dtype)


def decoder(name, dtype):
    return Decoder(from_source(tiny.source_of(official(name, dtype))).stack)


def tokens(rows):
    return [row.tokens for row in rows]


def generated(name, dtype, prompt, new=NEW):
    """What ``generate`` of transformers continues a prompt with."""
    model = official(name, dtype)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new,
            do_sample=False,
        )
    return found[0, len(prompt) :].tolist()
