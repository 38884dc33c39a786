"""The error that the course injects: a padding mask shaped [B, T, 1, 1].

Against scores [B, H, T, T] it only broadcasts when T = H, and then it hides whole heads.

    headwise verify examples/padding_on_the_head_axis.py:WithInfinity --heads 4
    headwise verify examples/padding_on_the_head_axis.py:WithFiniteFill --heads 4
"""

import math

import torch
from minimal_attention import MinimalSelfAttention
from torch import Tensor


class WithInfinity(MinimalSelfAttention):
    """Hidden scores are −∞: every padded sample turns into NaN."""

    fill = float("-inf")

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, T, D) → output (B, T, D) and weights (B, H, T, T)."""
        tokens = x.shape[1]
        q, k, v = (self.split(z) for z in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_head)
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, :, None, None], self.fill)
        weights = scores.softmax(dim=-1)
        context = (weights @ v).transpose(1, 2).contiguous().view(x.shape)
        return self.out(context), weights


class WithFiniteFill(WithInfinity):
    """Hidden scores are a large finite number: those heads become uniform, future included."""

    fill = -1e9
