"""C07 gqa expand rope half cache

Style: Llama style: GQA by expand + reshape, half-split RoPE, growing KV cache, bottom-right causal mask.
Layer: d_model 32, n_heads 4, n_kv_heads 2, d_head 8, causal yes, RoPE half
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='C07', kind='correct', d_model=32, n_heads=4, n_kv_heads=2, d_head=8, causal=True, rope='half',
            layout='separate', names={'q': 'q_proj', 'k': 'k_proj', 'v': 'v_proj', 'o': 'o_proj'}, shows=[],
            quiet=['plain', 'steps', 'chunk', 'one_by_one', 'grad'])


def angles(pos, d, base=10000.0):
    f = pos[..., None].double() * base ** (-torch.arange(0, d, 2).double() / d)
    return f.cos(), f.sin()

def turn(x, cos, sin):                         # half-split pairs (i, i + d/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def repeat_kv(t, n):
    b, g, s, d = t.shape
    return t[:, :, None].expand(b, g, n, s, d).reshape(b, g * n, s, d)

class LlamaAttention(nn.Module):
    def __init__(self, hidden=32, heads=4, kv=2):
        super().__init__()
        self.d, self.n_rep = hidden // heads, heads // kv
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = nn.Linear(hidden, kv * self.d, bias=False), nn.Linear(hidden, kv * self.d, bias=False)

    def forward(self, x, past=None):
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, self.d).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        t = 0 if past is None else past[0].shape[-2]
        c, s = angles(torch.arange(t, t + n), self.d)
        q, k = turn(q, c, s), turn(k, c, s)
        if past is not None:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        ok = torch.ones(n, t + n, dtype=torch.bool).tril(diagonal=t)
        y = F.scaled_dot_product_attention(q, repeat_kv(k, self.n_rep), repeat_kv(v, self.n_rep), attn_mask=ok)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1)), (k, v)


def run(layer, x):
    return layer(x)[0]


def run_steps(layer, x, sizes, keep=None):
    past, out = None, []
    for part in x.split(sizes, 1):
        y, past = layer(part, past)
        out.append(y)
    return torch.cat(out, 1)


def build():
    torch.manual_seed(0)
    return LlamaAttention().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 2,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'rope': 'halves',
 'rope_base': 10000.0,
 'weights': {'layout': 'separate', 'q': 'q_proj', 'k': 'k_proj', 'v': 'v_proj', 'o': 'o_proj'}}
headwise_build = build
headwise_run = run
headwise_steps = run_steps
