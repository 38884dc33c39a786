"""``attention``: the function that a user calls instead of ``scaled_dot_product_attention``."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.attend.backends import eager
from headwise.attend.backends.dispatch import BACKENDS, SMALL, Choice, choose, pick
from headwise.attend.backends.eager import Stages
from headwise.attend.call import Call, DistanceBias, NeedWeights
from headwise.attend.checks import check_mask, check_options, explain_misfit, fit
from headwise.attend.parts import MaskParts, take_apart
from headwise.masks import Causal, Mask


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: Tensor | DistanceBias | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: NeedWeights = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(Q·Kᵀ·scale + bias, hidden cells out)·V.

    Args:
        query: (B, Hq, Tq, Dk), any floating-point dtype.
        key: (B, Hkv, Tk, Dk); query head h reads key/value head h // (Hq/Hkv).
        value: (B, Hkv, Tk, Dv); Dv may differ from Dk.
        mask: ``Causal()``, ``Window(left, right)``, ``Padding(keep)``, ``Documents(numbers)``,
            ``Custom(tensor)``, combined with ``&`` and ``|``; True = may look. A mask of another
            library comes in through ``from_convention``. None: everybody sees everything.
        scale: factor of the scores; None = 1/sqrt(Dk).
        bias: added to the scores: a tensor that broadcasts to (B, Hq, Tq, Tk), or a
            ``DistanceBias``.
        softcap: scores become cap·tanh(scores/cap), before mask and bias.
        sinks: (Hq,) logits that take part in the denominator only.
        dropout_p: probability of dropping a weight; 0 outside of training.
        need_weights: ``"per-head"`` or ``"averaged"`` returns the weights as well.
        backend: name of a backend, to overrule the choice; see ``explain_backend``.

    Returns:
        The context, (B, Hq, Tq, Dv); with ``need_weights`` also the weights, (B, Hq, Tq, Tk) or
        averaged over the heads (B, Tq, Tk), after dropout. A query that sees nothing gets zeros.

    Raises:
        ShapeError, UsageError, MaskError: for tensors, options or masks that do not fit.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1; grouped heads: Ainslie et al.
        2023 (arXiv 2305.13245), section 2.2.

    Example:
        >>> import torch
        >>> from headwise.masks import Causal
        >>> x = torch.ones(1, 2, 3, 4)
        >>> attention(x, x, torch.arange(3.0).view(1, 1, 3, 1).expand(1, 2, 3, 1), mask=Causal())[
        ...     0, 0
        ... ].flatten().tolist()
        [0.0, 0.5, 1.0]
    """
    is_plain = bias is None and softcap is None and sinks is None and dropout_p == 0.0
    if is_plain and need_weights is False and backend is None:
        small = _small(query, key, value, mask, scale)
        if small is not None:
            return small
    call = make_call(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        need_weights=need_weights,
    )
    context, weights = run(call, backend)
    return context if weights is None else (context, weights)


def _small(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, scale: float | None
) -> Tensor | None:
    """The context of a small plain call, straight from SDPA; None for any other.

    Such a call takes some microseconds, and the choice would come out the same: see ``pick``.
    """
    if torch.compiler.is_compiling() or not fit(query, key, value):
        return None
    B, Hq, Tq, _Dk = query.shape
    Tk = key.shape[2]
    if not 0 < B * Hq * Tq * Tk <= SMALL or Tq == 1 or 0 in value.shape or 0 in query.shape:
        return None
    if mask is not None and (type(mask) is not Causal or Tq != Tk):
        return None
    if scale is not None and not (isinstance(scale, int | float) and 0.0 < scale < math.inf):
        return None
    if _is_autocast(query):
        return None
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        is_causal=mask is not None,
        scale=scale,
        enable_gqa=Hq != key.shape[1],
    )


def run(call: Call, backend: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Compute a call by the backend that ``pick`` names."""
    return BACKENDS[pick(call, backend).backend].run(call)


def stages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: Tensor | DistanceBias | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Stages:
    """The same as ``attention``, stage by stage; arguments as there.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 1, 2, 4)
        >>> stages(x, x, x).scores.flatten().tolist()
        [2.0, 2.0, 2.0, 2.0]
    """
    return eager.stages(
        make_call(
            query,
            key,
            value,
            mask=mask,
            scale=scale,
            bias=bias,
            softcap=softcap,
            sinks=sinks,
            dropout_p=dropout_p,
        )
    )


def explain_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: Tensor | DistanceBias | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: NeedWeights = False,
    backend: str | None = None,
) -> Choice:
    """Which backend ``attention`` takes for these arguments, and why; nothing is computed.

    Example:
        >>> import torch
        >>> x = torch.ones(1, 1, 2, 4)
        >>> explain_backend(x, x, x, need_weights="per-head").others["sdpa"]
        'it returns no weights'
    """
    call = make_call(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        need_weights=need_weights,
    )
    return choose(call, backend)


def make_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | MaskParts | None = None,
    scale: float | None = None,
    bias: Tensor | DistanceBias | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: NeedWeights = False,
    is_clean: bool = False,
) -> Call:
    """The arguments of ``attention``, checked and taken apart.

    Args:
        query, key, value, mask, scale, bias, softcap, sinks, dropout_p, need_weights: as there;
            a mask may have been taken apart before.
        is_clean: padded keys and values are known to be finite, as those of a cache.

    Raises:
        ShapeError, UsageError, MaskError: as ``attention``.
    """
    if not fit(query, key, value):
        explain_misfit(query, key, value)
    if not torch.compiler.is_compiling() and _is_autocast(query):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    check_options(
        query,
        key,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        need_weights=need_weights,
        scale=scale,
    )
    if isinstance(mask, MaskParts):
        parts = mask
    else:
        check_mask(mask)
        parts = take_apart(
            mask,
            q_len=query.shape[2],
            kv_len=key.shape[2],
            batch=query.shape[0],
            num_heads=query.shape[1],
            device=query.device,
        )
    parts = parts.without_idle_bounds(query.shape[2], key.shape[2])
    return Call(
        query=query,
        key=key,
        value=value,
        mask=parts,
        scale=max(1, query.shape[3]) ** -0.5 if scale is None else scale,
        bias=bias,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        need_weights=need_weights,
        is_clean=is_clean,
    )


def _is_autocast(query: Tensor) -> bool:
    """Whether torch's autocast would lower the products: no backend may depend on its own ways."""
    kind = query.device.type
    return (
        kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind) and query.dtype != torch.float64
    )
