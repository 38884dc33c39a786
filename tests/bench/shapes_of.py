"""Small shapes, one of every kind that is measured."""

from __future__ import annotations

from headwise.bench.shapes import decode, self_attention

SHAPES = {
    "causal": self_attention(1, 4, 24, 16, causal=True),
    "full": self_attention(2, 4, 24, 16),
    "grouped": self_attention(1, (4, 2), 24, 16, causal=True),
    "train": self_attention(2, 4, 24, 16, causal=True, training=True),
    "decode": decode(2, (4, 2), 40, 16),
    "decode-mqa": decode(1, (4, 1), 40, 16),
    "head-sizes": self_attention(2, 4, 24, (16, 32), causal=True),
    "head-sizes-full": self_attention(2, 4, 24, (32, 16)),
    "padded": self_attention(3, 4, 24, 16, lengths=(5, 17, 24)),
    "padded-causal": self_attention(3, 4, 24, 16, lengths=(5, 17, 24), causal=True),
    "window": self_attention(1, 4, 48, 16, causal=True, window=7),
    "documents": self_attention(1, 4, 24, 16, causal=True, documents=(5, 9, 10)),
    "weights": self_attention(2, 4, 24, 16, need_weights="per-head"),
    "weights-causal": self_attention(2, 4, 24, 16, need_weights="per-head", causal=True),
    "averaged": self_attention(2, 4, 24, 16, need_weights="averaged", causal=True),
    "module": self_attention(2, 4, 24, 16, module=True),
    "module-causal": self_attention(2, 4, 24, 16, module=True, causal=True),
    "module-train": self_attention(2, 4, 24, 16, module=True, causal=True, training=True),
}
