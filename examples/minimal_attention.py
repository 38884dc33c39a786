"""The smallest causal multi-head self-attention, as the course teaches it.

headwise verify examples/minimal_attention.py:MinimalSelfAttention --heads 4
headwise trace  examples/minimal_attention.py:MinimalSelfAttention --heads 4
"""

import math

import torch
from torch import Tensor, nn


class MinimalSelfAttention(nn.Module):
    """One fused projection, causal mask always on, optional padding mask (True = padding)."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} can't be divided into n_heads={n_heads}")
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def split(self, z: Tensor) -> Tensor:
        """(B, T, D) → (B, H, T, D/H)."""
        return z.view(*z.shape[:2], self.n_heads, self.d_head).transpose(1, 2)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) → output (B, T, D) and weights (B, H, T, T)."""
        tokens = x.shape[1]
        q, k, v = (self.split(z) for z in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None, None, :], float("-inf"))
        weights = scores.softmax(dim=-1)
        context = (weights @ v).transpose(1, 2).contiguous().view(x.shape)
        return self.out(context), weights
