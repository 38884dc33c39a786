"""The place where attention is watched and changed, one call after the other.

A `Tap` knows nothing about any library. Whoever runs the model (``headwise.integrations``) hands it
each attention call: the cells that may be looked at, the values, and a function that computes the
model's own attention under a mask. The tap takes away what the `Change` hides, lets the model's own
function run, keeps what was asked for and hands the context back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.errors import TargetError, UsageError
from headwise.explain.change import Change
from headwise.numerics import eps
from headwise.texts import translate as _

Own = Callable[[Tensor | None], tuple[Tensor, Tensor]]
"""The model's own attention: allowed cells (B or 1, H or 1, Tq, Tk) bool or None for all, to the
context (B, H, Tq, Dv) and the weights (B, H, Tq, Tk)."""


@dataclass(frozen=True)
class Watch:
    """What to keep of a run; nothing else is kept.

    Args:
        weights, values, contexts: which tensors.
        layers: of which layers; None = all.
        heads: of which heads; None = all. Values stay those of the key/value heads.
        keeps_graph: leave the tensors in the autograd graph, and make the output depend on the
            kept weights, so that gradients with respect to them exist.
    """

    weights: bool = False
    values: bool = False
    contexts: bool = False
    layers: frozenset[int] | None = None
    heads: tuple[int, ...] | None = None
    keeps_graph: bool = False

    def wants(self, layer: int) -> bool:
        """Something of this layer is kept."""
        any_kind = self.weights or self.values or self.contexts
        return any_kind and (self.layers is None or layer in self.layers)


@dataclass(eq=False)
class Seen:
    """What was kept, by layer.

    Args:
        weights: (B, H, Tq, Tk).
        values: (B, Hkv, Tk, Dv).
        contexts: (B, H, Tq, Dv), after any change.
        num_layers: attention calls counted, kept or not.
        num_heads: query heads of each call.
        num_kv_heads: key/value heads of each call.
    """

    weights: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    contexts: dict[int, Tensor] = field(default_factory=dict)
    num_layers: int = 0
    num_heads: list[int] = field(default_factory=list)
    num_kv_heads: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Tap:
    """Watch and change the attention of one forward pass.

    Layers are numbered in the order of their calls, so a layer that a model runs several times
    (ALBERT) is several layers.

    Args:
        watch: what to keep.
        change: what to change.
        seen: what was kept.
        callers: the module behind each call, in order, where the caller tells.
    """

    watch: Watch = field(default_factory=Watch)
    change: Change = field(default_factory=Change)
    seen: Seen = field(default_factory=Seen)
    callers: list[object] = field(default_factory=list)

    def attend(self, own: Own, value: Tensor, allowed: Tensor | None, *, q_len: int) -> Tensor:
        """Run one attention call under this tap.

        Args:
            own: the model's own attention under a mask.
            value: (B, Hkv, Tk, Dv), as the model hands it over.
            allowed: cells that the model's own masks leave, bool, or None for all.
            q_len: Tq.

        Returns:
            The context (B, H, Tq, Dv).

        Raises:
            TargetError: if weights times values is not the context that the model computes, where
                the change or a gradient needs it to be.
        """
        layer, kv_len = self.seen.num_layers, value.shape[2]
        self.seen.num_layers += 1
        cut = self.change.cut(layer, q_len=q_len, kv_len=kv_len, device=value.device)
        renormalised = self.change.is_renormalised
        open_cells = allowed
        if cut is not None and renormalised:
            open_cells = ~cut if allowed is None else allowed & ~cut
        context, weights = own(open_cells)
        self.seen.num_heads.append(weights.shape[1])
        self.seen.num_kv_heads.append(value.shape[1])
        if cut is not None and renormalised:
            empty = ~open_cells.any(-1, keepdim=True)  # type: ignore[union-attr]
            if bool(empty.any()):  # a row with nothing visible gets zeros
                weights, context = weights.masked_fill(empty, 0), context.masked_fill(empty, 0)
        is_scaled = cut is not None and not renormalised
        if is_scaled or (self.watch.keeps_graph and self.watch.weights):
            self._check_product(context, weights, value, layer)
            if is_scaled:
                weights = weights.masked_fill(cut, 0)  # type: ignore[arg-type]
            context = product(weights, value)
        context = self.change.apply_to_context(layer, context)
        if self.watch.wants(layer):
            self._keep(layer, weights, value, context)
        return context

    def _keep(self, layer: int, weights: Tensor, value: Tensor, context: Tensor) -> None:
        def kept(tensor: Tensor, *, by_head: bool) -> Tensor:
            if by_head and self.watch.heads is not None:
                _require_heads(self.watch.heads, tensor.shape[1])
                tensor = tensor[:, list(self.watch.heads)]
            return tensor if self.watch.keeps_graph else tensor.detach()

        if self.watch.weights:
            self.seen.weights[layer] = kept(weights, by_head=True)
        if self.watch.values:
            self.seen.values[layer] = kept(value, by_head=False)
        if self.watch.contexts:
            self.seen.contexts[layer] = kept(context, by_head=True)

    def _check_product(self, context: Tensor, weights: Tensor, value: Tensor, layer: int) -> None:
        """Weights times values has to be what the model itself computes."""
        with torch.no_grad():
            ours = product(weights, value)
            gap = float((ours - context).abs().max()) if context.numel() else 0.0
            scale = float(value.abs().max()) if value.numel() else 0.0
        # Each of two sums of Tk products is off by at most Tk·eps·Σ|w||v| (Higham 2002, 3.1).
        allowed = 2 * value.shape[2] * eps(context.dtype) * scale
        if not gap <= allowed:
            raise TargetError(
                _("the attention of layer {layer} is not weights times values").format(layer=layer),
                why=_(
                    "its output differs from that product by {gap:.3g}, where rounding explains "
                    "{allowed:.3g}"
                ).format(gap=gap, allowed=allowed),
                fix=_("use a method that changes no weights, such as hidden or replaced tokens"),
            )


def _require_heads(heads: tuple[int, ...], count: int) -> None:
    wrong = [head for head in heads if not 0 <= head < count]
    if wrong:
        raise UsageError(
            _("there is no head {head}").format(head=wrong[0]),
            why=_("the layer has {count} heads, 0 to {last}").format(count=count, last=count - 1),
        )


def product(weights: Tensor, value: Tensor) -> Tensor:
    """Weights (B, H, Tq, Tk) times values (B, Hkv, Tk, Dv), grouped heads included.

    Example:
        >>> product(torch.ones(1, 4, 1, 2), torch.ones(1, 2, 2, 3)).shape
        torch.Size([1, 4, 1, 3])
    """
    B, H, Tq, Tk = weights.shape
    Hkv = value.shape[1]
    if Hkv == H:
        return weights @ value
    grouped = weights.reshape(B, Hkv, H // Hkv * Tq, Tk) @ value
    return grouped.reshape(B, H, Tq, value.shape[-1])
