"""Keys and values grow: the layer returns them and takes them back. Binds without adapters."""

import math

import torch
from torch import nn


class DecoderAttention(nn.Module):
    def __init__(self, hidden_size=32, num_attention_heads=4, num_key_value_heads=2):
        super().__init__()
        self.heads, self.kv_heads = num_attention_heads, num_key_value_heads
        self.size = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, hidden_size, bias=False)

    def rotate(self, x, positions):
        steps = torch.arange(0, self.size, 2, dtype=torch.float64) / self.size
        angle = positions[:, None, :, None].double() * 10000.0**-steps
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def forward(self, hidden_states, attention_mask=None, past_key_value=None, use_cache=False):
        b, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, n, self.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.kv_heads, self.size).transpose(1, 2)
        seen = 0 if past_key_value is None else past_key_value[0].shape[-2]
        positions = torch.arange(seen, seen + n).expand(b, -1)
        if attention_mask is not None:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -n:]
        q = self.rotate(q, positions)
        k = self.rotate(k, positions)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=-2)
            v = torch.cat((past_key_value[1], v), dim=-2)
        present = (k, v) if use_cache else None
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        lowest = torch.finfo(scores.dtype).min
        total = k.shape[-2]
        rows = torch.arange(total - n, total)
        scores = scores.masked_fill(torch.arange(total) > rows[:, None], lowest)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[:, None, None, :], lowest)
        out = scores.softmax(dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(b, n, -1)), present
