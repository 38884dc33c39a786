"""A layer that really runs, forward and backward, on any device, by the step-by-step path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attend.module import MultiHeadAttention
from headwise.spec import AttentionSpec, Learned
from headwise.texts import translate as _


@dataclass(frozen=True)
class LayerRun:
    """One attention layer with its inputs.

    Args:
        layer: the layer, in training mode.
        x: (B, Tq, Dm).
        context: the sequences that keys and values come from, or None for x itself.
    """

    layer: MultiHeadAttention
    x: Tensor
    context: tuple[Tensor, Tensor] | None

    @classmethod
    def make(
        cls,
        spec: AttentionSpec,
        *,
        batch: int,
        q_len: int,
        kv_len: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> LayerRun:
        """A layer of a specification with random parameters, and inputs of some lengths."""
        generator = None if device == "meta" else torch.Generator().manual_seed(0)

        def drawn(length: int, width: int) -> Tensor:
            shape = (batch, length, width)
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)

        if isinstance(spec.positions, Learned) and spec.positions.max_len is None:
            spec = spec.replace(positions=Learned(max_len=max(q_len, kv_len or q_len)))
        layer = MultiHeadAttention(spec, dtype=dtype, device=device)
        own = spec.d_context == spec.d_values == spec.d_model and kv_len is None
        context = None
        if not own:
            length = kv_len or q_len
            context = drawn(length, spec.d_context), drawn(length, spec.d_values)
        return cls(layer, drawn(q_len, spec.d_model), context)

    def first(self, q_len: int) -> LayerRun:
        """The same layer with the first tokens of the same inputs."""
        context = self.context
        if context is not None:
            context = context[0][:, :q_len], context[1][:, :q_len]
        return LayerRun(self.layer, self.x[:, :q_len], context)

    def forward(self) -> Tensor:
        """The output of the ``eager`` path, with inputs made anew, so that nothing is shared."""
        x = self.x.clone().requires_grad_()
        if self.context is None:
            return self._output(x)
        keys = self.context[0].clone().requires_grad_()
        if self.layer.spec.d_values == self.layer.spec.d_context:
            return self._output(x, keys)
        return self._output(x, (keys, self.context[1].clone().requires_grad_()))

    def train(self) -> None:
        """Forward and backward; the gradients are dropped."""
        output = self.forward()
        output.backward(torch.ones_like(output))
        self.layer.zero_grad(set_to_none=True)

    def _output(self, *inputs: Any) -> Tensor:
        return self.layer.stages(*inputs)["output"]

    def infer(self) -> None:
        """Forward, without keeping anything."""
        with torch.no_grad():
            if self.context is None:
                self._output(self.x)
            else:
                self.forward()

    @property
    def batch(self) -> int:
        """B."""
        return self.x.shape[0]

    @property
    def q_len(self) -> int:
        """Tq."""
        return self.x.shape[1]

    @property
    def kv_len(self) -> int | None:
        """Tk, or None where the layer attends to x itself."""
        return None if self.context is None else self.context[0].shape[1]

    @property
    def sizes(self) -> str:
        """In words."""
        lengths = f"T={self.q_len}"
        if self.kv_len is not None:
            lengths = f"Tq={self.q_len}, Tk={self.kv_len}"
        dtype = str(self.x.dtype).removeprefix("torch.")
        alone = _(", shapes alone") if self.x.device.type == "meta" else ""
        return f"B={self.batch}, {lengths}, {dtype}{alone}"

    @property
    def parameters(self) -> int:
        """Stored numbers."""
        return sum(parameter.numel() for parameter in self.layer.parameters())
