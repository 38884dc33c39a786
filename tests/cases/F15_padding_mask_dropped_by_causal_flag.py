"""F15 padding mask dropped by causal flag

Fault: When the causal flag is set the explicit mask is set aside in favour of the fused causal kernel; the
padding part is lost. With right padding a causal layer never shows it.
Report: https://github.com/pytorch/pytorch/issues/131254
Report: https://github.com/pytorch/pytorch/pull/178588
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal yes, RoPE none
Mask convention: forward(x, keep): keep (B,T) bool, True = real token; causal by flag
Weights: one nn.Linear giving [all q | all k | all v], head-major inside each block; output nn.Linear
Expected diagnosis: padding mask is ignored whenever the causal flag is set
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F15', kind='mask/ignored', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=True,
            rope=None, layout='chunked', names={'qkv': 'c_attn', 'o': 'c_proj'}, shows=['leftpad'],
            quiet=['plain', 'padded'])


class Attn(nn.Module):
    def __init__(self, dim=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def heads(self, x):
        B, T, D = x.shape
        q, k, v = self.c_attn(x).split(D, dim=-1)
        return [t.view(B, T, self.n_head, D // self.n_head).transpose(1, 2) for t in (q, k, v)]

    def forward(self, x, keep=None, is_causal=True):
        q, k, v = self.heads(x)
        mask = None if keep is None else keep[:, None, None, :]
        if is_causal:
            mask = None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return self.c_proj(y.transpose(1, 2).flatten(2))


def build():
    torch.manual_seed(0)
    return Attn().double().eval()


def run(layer, x, keep=None):
    return layer(x) if keep is None else layer(x, keep)


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'causal': True,
 'padding_mask': 'keep',
 'weights': {'layout': 'packed-chunks', 'qkv': 'c_attn', 'o': 'c_proj'}}
headwise_build = build
headwise_run = run
