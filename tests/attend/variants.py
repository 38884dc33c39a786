"""Every variant of a layer, and everything that a mask can say, in sizes that are all different."""

from __future__ import annotations

import torch
from tests.sizes import AWKWARD

from headwise.masks import Causal, Custom, Prefix, Window
from headwise.spec import (
    Alibi,
    Learned,
    LinearScaling,
    Llama3Scaling,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)

LLAMA3 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=64)
"""With base 100 and 8 channels: one pair fast, two between, one slow."""

VARIANTS = {
    "plain": {},
    "biases": {"biases": "qkvo"},
    "some-biases": {"biases": "ko"},
    "one-kv-head": {"num_kv_heads": 1},
    "as-many-kv-heads": {"num_kv_heads": 6},
    "causal": {"is_causal": True},
    "window": {"window": (2, 1)},
    "causal-window": {"is_causal": True, "window": (2, 0)},
    "half-window": {"window": (None, 2)},
    "scale": {"scale": -0.3},
    "softcap": {"softcap": 0.8},
    "sinks": {"sinks": True, "is_causal": True},
    "halves": {"positions": Rope(pairs="halves")},
    "neighbours": {"positions": Rope(pairs="neighbours", base=100.0), "is_causal": True},
    "partial-halves": {"positions": Rope(pairs="halves", rotary_dim=6)},
    "partial-neighbours": {"positions": Rope(pairs="neighbours", rotary_dim=2), "biases": "k"},
    "linear-scaling": {"positions": Rope(pairs="halves", scaling=LinearScaling(factor=3.0))},
    "llama3-scaling": {"positions": Rope(pairs="halves", base=100.0, scaling=LLAMA3)},
    "alibi": {"positions": Alibi(), "is_causal": True},
    "alibi-both-ways": {"positions": Alibi(symmetric=True)},
    "alibi-with-sinks": {"positions": Alibi(slopes=(0.5, 0.4, 0.3, 0.2, 0.1, 0.0)), "sinks": True},
    "sinusoidal": {"positions": Sinusoidal(base=50.0)},
    "learned": {"positions": Learned(max_len=7)},
    "relative": {"positions": RelativeBias(num_buckets=8, max_distance=5)},
    "relative-one-sided": {
        "positions": RelativeBias(num_buckets=4, max_distance=4, bidirectional=False),
        "is_causal": True,
        "sinks": True,
    },
    "rms-norm": {"qk_norm": QkNorm(eps=0.0)},
    "layer-norm": {"qk_norm": QkNorm(kind="layer", eps=0.01)},
    "norm-then-rope": {"positions": Rope(pairs="halves"), "qk_norm": QkNorm()},
    "rope-then-layer-norm": {
        "positions": Rope(pairs="neighbours"),
        "qk_norm": QkNorm(order="after-rope", kind="layer"),
    },
    "everything": {
        "is_causal": True,
        "window": (4, None),
        "positions": Rope(pairs="halves", rotary_dim=4, scaling=LinearScaling(factor=2.0)),
        "scale": 0.4,
        "softcap": 5.0,
        "sinks": True,
        "qk_norm": QkNorm(),
        "biases": "qkvo",
    },
}
"""Changes of a spec, by name."""

KEEP = {
    "right": [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]],
    "left": [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]],
    "holes": [[1, 1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 1, 1, 0]],
    "empty": [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1]],
}
DOCUMENTS = [[7, 7, 8, 8, 8, 9, 9], [5, 5, 5, 5, 2, 5, 2]]


def mask_words(name: str) -> dict[str, object]:
    """What the definition is told, by a word: see ``MASKS``."""
    words: dict[str, dict[str, object]] = {
        "none": {},
        "documents": {"documents": torch.tensor(DOCUMENTS)},
        "padded-documents": {
            "documents": torch.tensor(DOCUMENTS),
            "keep": torch.tensor(KEEP["right"]).bool(),
        },
        "prefix": {"mask": Causal() | Prefix(3)},
        "per-head": {"mask": Custom(_per_head())},
        "band": {"mask": Causal() & Window(3, None) & Window(None, 1)},
        "start": {"mask": Causal(alignment="start")},
    }
    words |= {name: {"keep": torch.tensor(rows).bool()} for name, rows in KEEP.items()}
    return words[name]


MASKS = ("none", *KEEP, "documents", "padded-documents", "prefix", "per-head", "band", "start")


def _per_head() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(AWKWARD.B, AWKWARD.Hq, AWKWARD.Tk, AWKWARD.Tk, generator=generator) > 0.3
