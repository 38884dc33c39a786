"""F19 cross attention unpads queries with key mask

Fault: An unpadding path written for self attention removes the *query* rows named by the *key* mask and writes
zeros for the rest.
Report: https://github.com/vllm-project/vllm-omni/issues/5865
Report: https://github.com/huggingface/transformers/issues/35032
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, ctx, ctx_mask): (B,Tk) bool, True = real token
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: key padding mask is also applied to the query rows (outputs of unmasked queries are zeroed)
in cross attention
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = dict(id='F19', kind='mask/cross', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False,
            rope=None, layout='separate', names={'q': 'to_q', 'k': 'to_k', 'v': 'to_v', 'o': 'to_out'},
            shows=['cross_long'], quiet=['cross_nomask'])


class Cross(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.unflatten(-1, (self.h, self.d)).transpose(1, 2)

    def forward(self, x, ctx, ctx_mask=None):
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(ctx)), self.split(self.to_v(ctx))
        if ctx_mask is None:
            return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = torch.zeros_like(q)
        for b in range(x.shape[0]):
            idx = ctx_mask[b, -q.shape[2]:].nonzero()[:, 0]
            y[b][:, idx] = F.scaled_dot_product_attention(q[b][:, idx], k[b][:, idx], v[b][:, idx])
        return self.to_out(y.transpose(1, 2).flatten(2))


def run_cross(layer, x, memory, values, memory_keep, query_keep):
    return layer(x, memory, memory_keep)


def build():
    torch.manual_seed(0)
    return Cross().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'd_context': 32,
 'd_values': 32,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'to_q', 'k': 'to_k', 'v': 'to_v', 'o': 'to_out'}}
headwise_build = build
headwise_cross = run_cross
