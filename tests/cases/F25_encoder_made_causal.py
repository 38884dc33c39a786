"""F25 encoder made causal

Fault: A bidirectional encoder layer is run through a kernel whose causal flag is on (a default left in place,
or a flag taken when the mask is None).
Report: https://github.com/sgl-project/sglang/pull/35434
Report: https://github.com/huggingface/transformers/pull/42820
Report: https://github.com/huggingface/transformers/issues/46077
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, keep), True = real token; no mask means 'all visible'
Weights: one nn.Linear giving [all q | all k | all v], head-major inside each block; output nn.Linear
Expected diagnosis: layer is causal although it is declared bidirectional
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F25', kind='mask/causal', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='chunked', names={'qkv': 'c_attn', 'o': 'c_proj'}, shows=['plain'],
            quiet=['padded'])


class Attn(nn.Module):
    def __init__(self, dim=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def heads(self, x):
        B, T, D = x.shape
        q, k, v = self.c_attn(x).split(D, dim=-1)
        return [t.view(B, T, self.n_head, D // self.n_head).transpose(1, 2) for t in (q, k, v)]

    is_causal = True

    def forward(self, x, keep=None):
        q, k, v = self.heads(x)
        m = None if keep is None else keep[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=self.is_causal and m is None)
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
 'padding_mask': 'keep',
 'weights': {'layout': 'packed-chunks', 'qkv': 'c_attn', 'o': 'c_proj'}}
headwise_build = build
headwise_run = run
