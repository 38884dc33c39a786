"""Small tokenizers, trained here, and models that have nothing but them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.generate import vocabulary

pytest.importorskip("tokenizers")

TEXTS = [
    "",
    " ",
    "   the",
    "the cat  sat\n\n on 2024 mats",
    "  12  345 ",
    "I'll DON'T 's",
    "你好，世界",
    "👋🏽 naïve e\u0301",
    "\ttabs\r\n\u00a0\u2028x",
    "<|im_start|>user\nthe<|im_end|>",
    "\x00\x7f",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.lru_cache(maxsize=8)
def trained(pre):
    """A byte-level tokenizer of 300 tokens, made by ``tokenizers`` alone."""
    import tokenizers
    from tokenizers import models, normalizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = vocabulary.cuts()[pre]()
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator(TEXTS * 20 + ["12 345 2024 the cat\n\n  7"] * 20, trainer)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def gguf_model(original, pre):
    """A model whose metadata describe a tokenizer as GGUF files do."""
    said = json.loads(original.to_str())
    vocab = said["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    merges = [one if isinstance(one, str) else " ".join(one) for one in said["model"]["merges"]]
    path = Path("tiny.gguf")
    config = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }
    return SimpleNamespace(format="gguf", config=config, path=path, tokenizer=path)


GGUF_WORDS = gguf_model(trained("smollm"), "smollm")


def word_tokenizer(kind):
    """A tokenizer that isn't byte-level: tokens look at their neighbours when they are decoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if kind == "metaspace":
        words = ["<unk>", "▁", "▁the", "▁cat", "▁sat", "▁a", "the"]
        made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        return made
    words = ["[UNK]", "the", "ca", "##t", "sat", "a"]
    made = Tokenizer(models.WordPiece({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return made


def saved_tokenizer(folder, kind):
    """A model whose tokenizer lies in a folder."""
    path = folder / "tokenizer.json"
    word_tokenizer(kind).save(str(path))
    return SimpleNamespace(format="safetensors", config={}, path=folder, tokenizer=path)
