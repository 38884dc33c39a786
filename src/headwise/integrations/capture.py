"""Keep the attention weights of any model while it runs, whatever kernel it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from headwise.errors import TargetError, UsageError
from headwise.explain.tap import Seen, Tap, Watch
from headwise.integrations.registration import implementation, watching
from headwise.texts import translate as _


@dataclass(eq=False)
class Captured:
    """What was kept, one entry per forward pass: a prefill and every decoded token are one each."""

    steps: list[Seen] = field(default_factory=list)

    @property
    def last(self) -> Seen:
        """Of the last forward pass; an error before the first."""
        if not self.steps:
            raise UsageError(
                _("nothing was captured"),
                why=_("the model did not run inside the block"),
                fix="with capture(model) as seen: model(ids)",
            )
        return self.steps[-1]


@contextmanager
def capture(
    model: nn.Module,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    values: bool = False,
) -> Iterator[Captured]:
    """Capture attention weights inside the block; outside of it the model is as it was.

    The model's own eager attention runs inside the block, so that the weights are those that it
    uses; its logits change by rounding only. ``generate`` works, with one entry per step.

    Args:
        model: a model of transformers whose attention goes through ``AttentionInterface``.
        layers: which layers to keep; None = all.
        heads: which heads to keep; None = all.
        values: keep the values too.

    Raises:
        TargetError: at the end of the block, if no attention of the model can be watched.
        UsageError: for a layer or a head that the model has not.

    Example:
        >>> import torch
        >>> from headwise.integrations.loading import tiny
        >>> model = tiny("llama").model
        >>> with torch.no_grad(), capture(model, layers=[1]) as found:
        ...     _output = model(torch.tensor([[5, 6, 7]]))
        >>> {layer: tuple(w.shape) for layer, w in found.last.weights.items()}
        {1: (1, 4, 3, 3)}
    """
    watch = Watch(
        weights=True,
        values=values,
        layers=None if layers is None else frozenset(layers),
        heads=None if heads is None else tuple(heads),
    )
    found = Captured()
    open_passes: list[ExitStack] = []

    def begin(_module: nn.Module, _args: Any, _kwargs: Any) -> None:
        tap = Tap(watch)
        found.steps.append(tap.seen)
        stack = ExitStack()
        stack.enter_context(watching(tap))
        open_passes.append(stack)

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        open_passes.pop().close()

    handles = [
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end, always_call=True),
    ]
    try:
        with implementation(model):
            yield found
        for seen in found.steps[-1:]:
            _require_layers(seen, watch, model)
    finally:
        for handle in handles:
            handle.remove()
        while open_passes:  # a forward pass that raised before its hook
            open_passes.pop().close()


def _require_layers(seen: Seen, watch: Watch, model: nn.Module) -> None:
    """A pass that ran had attention, and the layers that were asked for."""
    count = seen.num_layers
    if not count:
        raise TargetError(
            _("{name} has no attention that can be watched").format(name=type(model).__name__),
            why=_("none of its layers goes through the AttentionInterface of transformers"),
        )
    wrong = sorted(i for i in watch.layers or () if not 0 <= i < count)
    if wrong:
        raise UsageError(
            _("there is no layer {layer}").format(layer=wrong[0]),
            why=_("the model has {count} layers, 0 to {last}").format(count=count, last=count - 1),
        )
