"""``attn_implementation="headwise"``: one registration, for speed and for watching.

Transformers keeps two tables under the same names: how attention is computed (`AttentionInterface`)
and how its mask is made (`AttentionMaskInterface`). A name that stands in the first alone gets
``attention_mask=None`` for every call, and a causal model silently turns bidirectional. `register`
therefore fills both, and `attention_forward` refuses to run while its half of the pair is missing.

A call does one of two things. Without a tap it takes the fast path, our ``attention``; the first
call of every kind of module is checked against the model's own eager function, and a module whose
eager function does something else keeps that function. With a tap (``watching``) the model's own
eager function runs, under a mask from which the tap may take cells away.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attend import attention
from headwise.errors import HeadwiseError, TargetError, UsageError
from headwise.explain.tap import Tap
from headwise.masks import Causal, Custom, Mask
from headwise.numerics import eps
from headwise.texts import translate as _

NAME = "headwise"

STANDARD = frozenset(
    "module query key value attention_mask scaling dropout softcap s_aux sinks position_bias "
    "is_causal kwargs sliding_window head_mask".split()
)
"""Parameters of eager functions that the fast path understands."""

CHECKED_CELLS = 2**22
"""Largest number of cells of the weights for which the first call of a module is checked whole;
longer ones are checked on their last queries."""

FIELD = "_attn_implementation_internal"
"""Where a configuration keeps the name of its implementation, once it is checked."""

_tap: ContextVar[Tap | None] = ContextVar("headwise_tap", default=None)


def register() -> None:
    """Make ``headwise`` an attention implementation of transformers; may be called again.

    Example:
        >>> register()
        >>> from transformers import AttentionInterface
        >>> NAME in AttentionInterface()
        True
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionMaskInterface.register(NAME, mask_forward)
    AttentionInterface.register(NAME, attention_forward)


def is_registered() -> bool:
    """Both tables hold our functions."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    return (
        AttentionInterface().get(NAME) is attention_forward
        and AttentionMaskInterface().get(NAME) is mask_forward
    )


@contextmanager
def watching(tap: Tap) -> Iterator[Tap]:
    """Send the attention calls inside the block through a tap.

    The model has to run on the ``headwise`` implementation; see ``implementation``.
    """
    token = _tap.set(tap)
    try:
        yield tap
    finally:
        _tap.reset(token)


@contextmanager
def implementation(model: nn.Module, name: str = NAME) -> Iterator[None]:
    """Run a model on another attention implementation inside the block, and as before after it.

    Every configuration in the model is switched, since vision and text towers have their own. A
    layer that chose its attention when it was built is not reached, and is not seen by a tap.
    """
    if name == NAME:
        register()
    configs = {id(c): c for c in _configs(model)}
    before = {key: getattr(config, FIELD) for key, config in configs.items()}
    try:
        for config in configs.values():
            setattr(config, FIELD, name)
        yield
    finally:
        for key, config in configs.items():
            setattr(config, FIELD, before[key])


def _configs(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, FIELD):
            yield config


def mask_forward(*args: Any, **kwargs: Any) -> Tensor | None:
    """The mask of one forward pass: boolean, True = may look, (B, 1, Tq, Tk).

    Under a tap the mask is always made; on the fast path a plain causal or empty mask is left out,
    as it is for ``sdpa``, and only for models that ``sdpa`` runs too: a layer then has to say
    ``is_causal`` itself, and the decoder of BigBird-Pegasus says no.
    """
    from transformers.masking_utils import sdpa_mask

    _require_pair()
    if _tap.get() is not None:
        kwargs["allow_is_causal_skip"] = False
        kwargs["allow_is_bidirectional_skip"] = False
    elif not _runs_on_sdpa(type(kwargs.get("config")).__module__):
        kwargs["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


@functools.cache
def _runs_on_sdpa(configurations: str) -> bool:
    """Every model class beside a file of configurations says that it runs on ``sdpa``."""
    from transformers import PreTrainedModel

    source = configurations.replace(".configuration_", ".modeling_")
    classes: list[Any] = [
        found
        for found in vars(sys.modules.get(source, sys)).values()
        if isinstance(found, type)
        and issubclass(found, PreTrainedModel)
        and found.__module__ == source
    ]
    return bool(classes) and all(found._supports_sdpa for found in classes)  # noqa: SLF001


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """One attention call of a model.

    Args:
        module: the model's attention layer.
        query: (B, Hq, Tq, Dk).
        key: (B, Hkv, Tk, Dk).
        value: (B, Hkv, Tk, Dv).
        attention_mask: boolean (True = may look), additive, or None.
        kwargs: whatever the model hands to its attention functions.

    Returns:
        The context (B, Tq, Hq, Dv), and None or the weights.
    """
    _require_pair()
    tap = _tap.get()
    if tap is not None:
        return _watched(tap, module, query, key, value, attention_mask, kwargs)
    plan = _plans.get(_plan_key(module, kwargs))
    if plan is None:
        plan = _check(module, query, key, value, attention_mask, kwargs)
        _plans[_plan_key(module, kwargs)] = plan
    if plan.reason:
        own = own_attention(module)
        context, weights = own(
            module,
            query,
            key,
            value,
            _additive(attention_mask, module, query, key, kwargs),
            **kwargs,
        )
        return context, weights
    return _fast(module, query, key, value, attention_mask, kwargs), None


# ------------------------------------------------------------------------------------ fast path
@dataclass(frozen=True)
class Plan:
    """How the calls of one kind of module are computed.

    Args:
        module: name of its class.
        reason: why the model's own eager function runs instead of ours; empty = ours runs.
        error: largest difference of the first call from the model's own function.
        allowed: what rounding explains of it.
    """

    module: str
    reason: str = ""
    error: float = 0.0
    allowed: float = 0.0


_plans: dict[tuple[Any, ...], Plan] = {}


def plans() -> tuple[Plan, ...]:
    """What was decided so far in this process, one entry per kind of module."""
    return tuple(_plans.values())


def _plan_key(module: nn.Module, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    given = frozenset(name for name, value in kwargs.items() if value is not None)
    return type(module), given


def _fast(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Our attention, (B, Tq, Hq, Dv)."""
    q_len, kv_len = query.shape[2], key.shape[2]
    mask: Mask | None = None
    bias = kwargs.get("position_bias")
    if attention_mask is None:
        if _is_causal(module, kwargs) and q_len > 1:
            # Prefill into a cache that is longer than the text: its places beyond are empty.
            key, value = key[:, :, :q_len], value[:, :, :q_len]
            bias = None if bias is None else bias[..., :q_len]
            mask = Causal()
    elif attention_mask.dtype == torch.bool:
        mask = Custom(attention_mask[..., :kv_len])
    else:
        additive = attention_mask[..., :kv_len]
        bias = additive if bias is None else bias + additive
    sinks = kwargs.get("s_aux")
    if sinks is None:
        sinks = kwargs.get("sinks")
    context = attention(
        query,
        key,
        value,
        mask=mask,
        scale=kwargs.get("scaling"),
        bias=bias,
        softcap=kwargs.get("softcap"),
        sinks=sinks,
        dropout_p=float(kwargs.get("dropout") or 0.0),
    )
    assert isinstance(context, Tensor)
    return context.transpose(1, 2).contiguous()


def _check(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: Mapping[str, Any],
) -> Plan:
    """Decide by a comparison on the first call whether our attention is what this module means."""
    name = type(module).__name__
    try:
        own = own_attention(module)
    except UsageError:
        return Plan(name)  # nothing to compare with: ours is the only one
    others = set(inspect.signature(own).parameters) - STANDARD
    extra = sorted(n for n in others if kwargs.get(n) is not None)
    if extra:
        return Plan(name, _("it takes {names}").format(names=", ".join(extra)))
    rows = max(1, CHECKED_CELLS // max(1, query.shape[0] * query.shape[1] * key.shape[2]))
    with torch.no_grad():
        full = _additive(attention_mask, module, query, key, kwargs)
        part = {**kwargs, "dropout": 0.0}
        bias = part.get("position_bias")
        if bias is not None and bias.shape[-2] > 1:
            part["position_bias"] = bias[..., -rows:, :]
        # Ours is given the same dense mask: the last rows alone carry no alignment of their own.
        last = None if full is None else full[..., -rows:, :] if full.shape[-2] > 1 else full
        few = query[:, :, -rows:]
        theirs, _weights = own(module, few, key, value, last, **part)
        if theirs.shape[:3] != (query.shape[0], few.shape[2], query.shape[1]):
            return Plan(name, _("its result has another shape"))
        open_cells = None if last is None else last > torch.finfo(last.dtype).min / 2
        try:
            ours = _fast(module, few, key, value, open_cells, {**part, "is_causal": False})
        except HeadwiseError as error:
            return Plan(name, error.what)
        real = torch.ones_like(ours[..., :1], dtype=torch.bool)
        if open_cells is not None:  # a row with nothing visible: zeros here, a mean of V there
            real = open_cells.any(-1).transpose(1, 2)[..., None]
        gap = float(((ours - theirs) * real).abs().max()) if ours.numel() else 0.0
        sharp = 1.0 + float(_scores_scale(few, key, kwargs))
        scale = float(value.abs().max()) if value.numel() else 0.0
        # Rounding of two ways to compute it: scores off by eps times their size move the weights
        # by as much, and half precision rounds the weights themselves.
        allowed = 8.0 * eps(_coarsest(query.dtype)) * sharp * scale
    if not gap <= allowed:
        return Plan(
            name,
            _(
                "its own function computes something else: {gap:.3g} apart, rounding explains "
                "{allowed:.3g}"
            ).format(gap=gap, allowed=allowed),
            gap,
            allowed,
        )
    return Plan(name, "", gap, allowed)


def _coarsest(dtype: torch.dtype) -> torch.dtype:
    """Models pin their softmax to float32, so a float64 model is float32 there."""
    return torch.float32 if dtype == torch.float64 else dtype


def _scores_scale(query: Tensor, key: Tensor, kwargs: Mapping[str, Any]) -> float:
    scaling = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    longest = query.float().norm(dim=-1).max() * key.float().norm(dim=-1).max()
    return abs(float(longest) * scale)


def _is_causal(module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


# ------------------------------------------------------------------------------------ watched
def _watched(
    tap: Tap,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The model's own eager attention under a tap."""
    own = own_attention(module)
    tap.callers.append(module)
    full = _additive(attention_mask, module, query, key, kwargs)
    lowest = torch.finfo(query.dtype).min
    allowed = None
    if full is not None and not tap.change.is_empty:
        allowed = full > torch.finfo(full.dtype).min / 2

    def run(open_cells: Tensor | None) -> tuple[Tensor, Tensor]:
        mask = full
        if open_cells is not None and open_cells is not allowed:
            # The model's own numbers stay where it has some (a bias may be merged into its mask).
            floor = torch.zeros((), dtype=query.dtype, device=query.device)
            mask = torch.where(open_cells, floor if full is None else full, lowest)
        context, weights = own(module, query, key, value, mask, **kwargs)
        if weights is None:
            raise TargetError(
                _("the attention of {module} returns no weights").format(
                    module=type(module).__name__
                )
            )
        return context.transpose(1, 2), weights

    context = tap.attend(run, value, allowed, q_len=query.shape[2])
    return context.transpose(1, 2).contiguous(), None


def _additive(
    mask: Tensor | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    kwargs: Mapping[str, Any],
) -> Tensor | None:
    """A mask as eager functions take it: 0 where a query may look, the lowest number elsewhere."""
    lowest = torch.finfo(query.dtype).min
    q_len, kv_len = query.shape[2], key.shape[2]
    if mask is None:
        if _tap.get() is not None or not (_is_causal(module, kwargs) and q_len > 1):
            return None
        # Left out because it is plainly causal; the places beyond the text are empty.
        slots = torch.arange(kv_len, device=query.device)
        mask = (slots <= slots[:q_len, None])[None, None]
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        return torch.where(mask, zero, lowest)
    return mask


def own_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function in the source file of a module's class, or of its bases.

    Raises:
        UsageError: if there is none.
    """
    for base in type(module).__mro__:
        source = sys.modules.get(base.__module__)
        function = getattr(source, "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    raise UsageError(
        _("{module} has no eager attention function beside it").format(
            module=type(module).__name__
        ),
        where=type(module).__module__,
        why=_("its weights can be watched only where the model itself can compute them"),
    )


def _require_pair() -> None:
    """Both halves of the registration are there, or nothing runs."""
    if is_registered():
        return
    from transformers import AttentionInterface

    half = AttentionInterface().get(NAME) is attention_forward
    missing = "AttentionMaskInterface" if half else "AttentionInterface"
    raise TargetError(
        _("attention is registered without its mask"),
        where=f"{missing}[{NAME!r}]",
        why=_(
            "without it the mask arrives as None, and a causal model would silently look at the "
            "future (HW-M30)"
        ),
        fix="headwise.integrations.registration.register()",
    )
