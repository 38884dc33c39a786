"""A layer that runs, trains, has every shape right, and is wrong. Which line is it?

headwise verify examples/broken_attention.py:BrokenAttention
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BrokenAttention(nn.Module):
    """Grouped-query attention, 8 query heads over 2 key/value heads."""

    def __init__(self, d_model: int = 32, n_heads: int = 8, n_kv_heads: int = 2) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        batch, tokens, _ = x.shape
        q = self.q_proj(x).view(batch, tokens, self.n_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(batch, tokens, self.n_kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, self.n_kv_heads, -1).transpose(1, 2)
        copies = self.n_heads // self.n_kv_heads
        k, v = torch.cat([k] * copies, dim=1), torch.cat([v] * copies, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))
