"""A step for one row in float32 on a CPU, on numpy's arrays.

The same as ``headwise.generate.fused``, for machines on which numpy multiplies a row faster (see
``headwise.generate.libraries``). Between products that read megabytes of weights nothing small
stays in a cache, and an operation of numpy finds its way there in a third of the time of one of
torch. Keys and values are stored by ``KVCache``; few of them are attended to by torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.attend.cache import KVCache
from headwise.generate.matrix import Matrix

if TYPE_CHECKING:
    from headwise.checkpoints.stack import Block
    from headwise.generate.fused import Layer, Turn

Array = np.ndarray[Any, np.dtype[np.float32]]
Apply = Callable[[Array], Array]

MANY_KEYS = 512
"""From so many keys on numpy's products were as fast as ``scaled_dot_product_attention``."""


class RowLayer:
    """A block, prepared for one row.

    Args:
        layer: its matrices, which are shared.
        block: its norms.
    """

    def __init__(self, layer: Layer, block: Block) -> None:
        spec = layer.spec
        self.qkv, self.out = multiply(layer.qkv), multiply(layer.out)
        self.gate = None if layer.gate is None else multiply(layer.gate)
        assert layer.up is not None
        self.up, self.down = multiply(layer.up), multiply(layer.down)
        self.attention_norm, self.ffn_norm = norm(block.attention_norm), norm(block.ffn_norm)
        self.act = activation(layer.act)
        self.turned, self.scale = layer.turned, layer.scale
        self.qk_shape = (layer.heads, spec.head_dim)
        self.v_shape = (spec.num_kv_heads, spec.v_head_dim)
        self.q_heads = spec.num_heads

    def __call__(self, x: Array, turn: RowTurn | None, cache: KVCache) -> Array:
        """(Dm,) → (Dm,)."""
        qkv = self.qkv(self.attention_norm(x))
        qk = qkv[: self.turned].reshape(self.qk_shape)
        if turn is not None:
            qk = turn(qk)
        q, k, v = qk[: self.q_heads], qk[self.q_heads :], qkv[self.turned :].reshape(self.v_shape)
        cached = cache.append_row(k, v)
        context = self.padded(q, k, v, cache) if cached is None else self.attend(q, *cached)
        x = self.out(context) + x
        inner = self.ffn_norm(x)
        if self.gate is None:
            return self.down(self.act(self.up(inner))) + x
        inner = self.act(self.gate(inner)) * self.up(inner)
        return self.down(inner) + x

    def attend(self, q: Array, key: Array, value: Array, keep: Tensor | None = None) -> Array:
        """(Hq, Dk) → (Hq·Dv,), over keys of which ``keep``, (1, Tk), are seen."""
        if keep is None and key.shape[1] >= MANY_KEYS:
            return attend_row(q, key, value, self.scale)
        context = F.scaled_dot_product_attention(
            torch.from_numpy(q).view(1, self.v_shape[0], -1, q.shape[1]),
            torch.from_numpy(key)[None],
            torch.from_numpy(value)[None],
            attn_mask=None if keep is None else keep[:, None, None],
            scale=self.scale,
        )
        found: Array = context.numpy().reshape(-1)
        return found

    def padded(self, q: Array, k: Array, v: Array, cache: KVCache) -> Array:
        """What a token sees in a cache that has to move or to mask something."""
        key, value = (torch.from_numpy(one)[None, :, None] for one in (k, v))
        cached = cache.append(key, value)
        return self.attend(q, cached.key.numpy()[0], cached.value.numpy()[0], cached.mask.keep)


def multiply(matrix: Matrix) -> Apply:
    """x·Wᵀ + b for (in,), a function to (out,).

    Example:
        >>> made = Matrix([(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, 0.0]))])
        >>> multiply(made)(np.array([1.0, 10.0], np.float32)).tolist()
        [21.5, 43.0]
    """
    array = matrix.weight.detach().numpy()
    if matrix.bias is not None:
        bias = matrix.bias.detach().numpy()
        if matrix.layout == "rows":
            return lambda x: np.dot(array, x) + bias
        return lambda x: np.dot(x, array) + bias
    if matrix.layout == "rows":
        return lambda x: np.dot(array, x)
    return lambda x: np.dot(x, array)


def norm(module: nn.Module) -> Apply:
    """A norm of (D,).

    Example:
        >>> x = torch.tensor([1.0, -2.0, 4.0])
        >>> for module in nn.RMSNorm(3), nn.LayerNorm(3):
        ...     torch.allclose(torch.from_numpy(norm(module)(x.numpy())), module(x))
        True
        True
    """
    if isinstance(module, nn.RMSNorm):
        gain = module.weight.detach().numpy()
        least = float(np.finfo(np.float32).eps) if module.eps is None else module.eps

        def rms_norm(x: Array) -> Array:
            scale = 1.0 / math.sqrt(float(np.dot(x, x)) / x.shape[0] + least)
            found: Array = gain * np.float32(scale) * x
            return found

        return rms_norm
    assert isinstance(module, nn.LayerNorm)
    gain, shift, eps = module.weight.detach().numpy(), module.bias.detach().numpy(), module.eps

    def layer_norm(x: Array) -> Array:
        x = x - x.mean()
        scale = 1.0 / math.sqrt(float(np.dot(x, x)) / x.shape[0] + eps)
        found: Array = gain * np.float32(scale) * x + shift
        return found

    return layer_norm


def activation(act: Callable[[Tensor], Tensor]) -> Apply:
    """An activation; all but SiLU are torch's.

    Example:
        >>> x = torch.tensor([-200.0, -1.0, 0.0, 3.0])
        >>> torch.allclose(torch.from_numpy(activation(F.silu)(x.numpy())), F.silu(x))
        True
    """
    if act is F.silu:
        return silu

    def by_torch(x: Array) -> Array:
        found: Array = act(torch.from_numpy(x)).numpy()
        return found

    return by_torch


def silu(x: Array) -> Array:
    """SiLU, x / (1 + exp(-x)); below -88, where the exponential is infinite, that is 0."""
    with np.errstate(over="ignore"):
        found: Array = np.exp(-x)
    found += np.float32(1.0)
    return np.divide(x, found, out=found)


class RowTurn:
    """A rotation of one step on (H, D); see ``headwise.generate.fused.Turn``.

    Args:
        turn: of one row.
    """

    def __init__(self, turn: Turn) -> None:
        self.first = turn.first.numpy().reshape(-1)
        self.second = None if turn.second is None else turn.second.numpy().reshape(-1)
        self.half = self.first.shape[0] // (1 if turn.second is None else 2)

    def __call__(self, x: Array) -> Array:
        """(H, D) → (H, D)."""
        half = self.half
        found: Array = np.empty_like(x)
        found[:, 2 * half :] = x[:, 2 * half :]
        if self.second is None:
            pairs = x[:, : 2 * half].astype(np.float32, order="C").view(np.complex64)
            found[:, : 2 * half] = (pairs * self.first).view(np.float32)
            return found
        one, other = x[:, :half], x[:, half : 2 * half]
        np.multiply(x[:, : 2 * half], self.first, out=found[:, : 2 * half])
        found[:, :half] += other * self.second[:half]
        found[:, half : 2 * half] += one * self.second[half:]
        return found


def attend_row(q: Array, k: Array, v: Array, scale: float) -> Array:
    """What the heads of one new token see.

    Args:
        q: (Hq, Dk).
        k: (Hkv, T, Dk), each head in one piece.
        v: (Hkv, T, Dv), likewise.
        scale: of the scores.

    Returns:
        (Hq·Dv,).

    Example:
        >>> k, v = np.zeros((1, 2, 4), np.float32), np.array([[[1.0], [3.0]]], np.float32)
        >>> attend_row(np.ones((2, 4), np.float32), k, v, 0.5).tolist()
        [2.0, 2.0]
    """
    heads, per_group = q.shape[0], q.shape[0] // k.shape[0]
    q = q * np.float32(scale)
    scores: Array = np.empty((heads, k.shape[1]), np.float32)
    for head in range(heads):
        np.dot(k[head // per_group], q[head], out=scores[head])
    weights = torch.from_numpy(scores).softmax(-1).numpy()
    context: Array = np.empty((heads, v.shape[2]), np.float32)
    for head in range(heads):
        np.dot(weights[head], v[head // per_group], out=context[head])
    return context.reshape(-1)
