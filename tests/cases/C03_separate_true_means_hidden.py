"""C03 separate true means hidden

Style: Separate projections, no key bias (Whisper), True = hidden, -inf with rows lacking any key set to zero.
Layer: d_model 32, n_heads 4, n_kv_heads 4, d_head 8, causal no, RoPE none
Mask convention: forward(x, pad): pad (B,T) bool, True = padding (hidden)
Weights: separate nn.Linear for q, k, v, o (weight is out x in); head h owns rows h*d_head:(h+1)*d_head
Expected diagnosis: none (agrees with the reference)
"""
import torch
import torch.nn as nn

CASE = dict(id='C03', kind='correct', d_model=32, n_heads=4, n_kv_heads=4, d_head=8, causal=False, rope=None,
            layout='separate', names={'q': 'query', 'k': 'key', 'v': 'value', 'o': 'out'}, shows=[],
            quiet=['plain', 'padded', 'leftpad', 'grad_padded', 'fullmask_grad'])


class Attention(nn.Module):
    def __init__(self, n_state=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.query, self.value, self.out = (nn.Linear(n_state, n_state) for _ in range(3))
        self.key = nn.Linear(n_state, n_state, bias=False)

    def forward(self, x, pad=None):
        q, k, v = (f(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if pad is not None:
            hidden = pad[:, None, None, :].expand_as(s)
            dead = hidden.all(-1, keepdim=True)
            s = s.masked_fill(hidden & ~dead, float("-inf"))
            return self.out((s.softmax(-1).masked_fill(dead, 0.0) @ v).transpose(1, 2).flatten(2))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


def run(layer, x, keep=None):
    return layer(x, None if keep is None else ~keep)


def build():
    torch.manual_seed(0)
    return Attention().double().eval()


HEADWISE = {'kind': 'layer',
 'd_model': 32,
 'num_heads': 4,
 'num_kv_heads': 4,
 'head_dim': 8,
 'v_head_dim': 8,
 'padding_mask': 'keep',
 'weights': {'layout': 'separate', 'q': 'query', 'k': 'key', 'v': 'value', 'o': 'out'}}
headwise_build = build
headwise_run = run
