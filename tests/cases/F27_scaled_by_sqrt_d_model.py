"""F27 scaled by sqrt d model

Fault: Scores are divided by sqrt(d_model) instead of sqrt(d_head): softer attention by a factor sqrt(n_heads).
Report: https://github.com/lucidrains/vit-pytorch/issues/65
Report: https://github.com/omihub777/ViT-CIFAR/pull/11
Report: https://github.com/Graylab/DL4Proteins-notebooks/issues/12
Report: https://github.com/juho-lee/set_transformer/issues/18
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: no mask argument
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: scores are scaled by 1/sqrt(d_model) rather than 1/sqrt(d_head)
"""
import torch
import torch.nn as nn

CASE = dict(id='F27', kind='scale', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='separate', shows=['plain', 'one'], quiet=[])


class Attn(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], self.h, self.d).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).flatten(2)

    def forward(self, x):
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(-1, -2) / self.q.in_features ** 0.5
        return self.o(self.merge(s.softmax(-1) @ v))


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
 'weights': {'layout': 'separate', 'q': 'q', 'k': 'k', 'v': 'v', 'o': 'o'}}
headwise_build = build
headwise_run = run
