"""The projections of one head as views of a model's own weights, for two ways of laying them out.

Every view has the shape (head size, Dm) or, for the output, (Dm, head size), and y = W x: what is
written into it is in the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from headwise.errors import TargetError
from headwise.texts import translate as _


class Projections(ABC):
    """Views of the weights of a language model.

    Args:
        model: laid out as the subclass says.
    """

    layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_model: int
    norm_eps: float
    frequency: float
    slow: int
    embedding: Tensor
    head: Tensor

    @abstractmethod
    def query(self, layer: int, head: int) -> Tensor:
        """(Dk, Dm)."""

    @abstractmethod
    def key(self, layer: int, head: int) -> Tensor:
        """(Dk, Dm), of the key/value head that this head reads."""

    @abstractmethod
    def value(self, layer: int, head: int) -> Tensor:
        """(Dk, Dm), of the key/value head that this head reads."""

    @abstractmethod
    def output(self, layer: int, head: int) -> Tensor:
        """(Dm, Dk)."""

    @abstractmethod
    def is_norm(self, name: str) -> bool:
        """Whether a parameter belongs to a norm."""


class LlamaProjections(Projections):
    """``model.model.layers[i].self_attn.{q,k,v,o}_proj``, RMSNorm, rotary positions in halves.

    The slowest rotary pair is channels Dk/2 - 1 and Dk - 1.
    """

    def __init__(self, model: Any) -> None:
        config, self._layers = model.config, model.model.layers
        self.layers = len(self._layers)
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.d_model = config.hidden_size
        self.head_dim = self._layers[0].self_attn.q_proj.weight.shape[0] // self.num_heads
        self.norm_eps = config.rms_norm_eps
        self.frequency = float(model.model.rotary_emb.inv_freq[-1])
        self.slow = self.head_dim // 2 - 1
        self.embedding = model.model.embed_tokens.weight
        self.head = model.lm_head.weight

    def query(self, layer: int, head: int) -> Tensor:
        return self._rows(layer, "q_proj", head)

    def key(self, layer: int, head: int) -> Tensor:
        return self._rows(layer, "k_proj", head * self.num_kv_heads // self.num_heads)

    def value(self, layer: int, head: int) -> Tensor:
        return self._rows(layer, "v_proj", head * self.num_kv_heads // self.num_heads)

    def output(self, layer: int, head: int) -> Tensor:
        found: Tensor = self._layers[layer].self_attn.o_proj.weight
        return found[:, head * self.head_dim : (head + 1) * self.head_dim]

    def _rows(self, layer: int, name: str, head: int) -> Tensor:
        found: Tensor = getattr(self._layers[layer].self_attn, name).weight
        return found[head * self.head_dim : (head + 1) * self.head_dim]

    def is_norm(self, name: str) -> bool:
        return "norm" in name


class Gpt2Projections(Projections):
    """``model.transformer.h[i].attn.{c_attn, c_proj}``, LayerNorm, learned positions.

    ``c_attn`` holds q, k and v side by side, (Dm, 3·Dm), and computes x W.
    """

    def __init__(self, model: Any) -> None:
        config, self._layers = model.config, model.transformer.h
        self.layers = len(self._layers)
        self.num_heads = self.num_kv_heads = config.n_head
        self.d_model = config.n_embd
        self.head_dim = self.d_model // self.num_heads
        self.norm_eps = config.layer_norm_epsilon
        self.frequency, self.slow = 0.0, 0
        self.embedding = model.transformer.wte.weight
        self.head = model.lm_head.weight

    def query(self, layer: int, head: int) -> Tensor:
        return self._columns(layer, 0, head)

    def key(self, layer: int, head: int) -> Tensor:
        return self._columns(layer, 1, head)

    def value(self, layer: int, head: int) -> Tensor:
        return self._columns(layer, 2, head)

    def output(self, layer: int, head: int) -> Tensor:
        found: Tensor = self._layers[layer].attn.c_proj.weight
        return found[head * self.head_dim : (head + 1) * self.head_dim].T

    def _columns(self, layer: int, part: int, head: int) -> Tensor:
        found: Tensor = self._layers[layer].attn.c_attn.weight
        first = part * self.d_model + head * self.head_dim
        return found[:, first : first + self.head_dim].T

    def is_norm(self, name: str) -> bool:
        return ".ln_" in name


LAYOUTS: Mapping[str, type[LlamaProjections | Gpt2Projections]] = {
    "llama": LlamaProjections,
    "gpt2": Gpt2Projections,
}
"""By the ``model_type`` of the configuration: models that are laid out alike may add norms or
factors that the working by hand does not have."""


def projections(model: nn.Module) -> Projections:
    """The views of a model.

    Raises:
        TargetError: if it is none of ``LAYOUTS``, or has no head that gives logits.
    """
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    if kind in LAYOUTS and hasattr(model, "lm_head"):
        return LAYOUTS[kind](model)
    raise TargetError(
        _("heads cannot be planted into a {kind}").format(kind=type(model).__name__),
        why=_("the working by hand is for language models of the types {known}").format(
            known=", ".join(LAYOUTS)
        ),
        fix="LlamaForCausalLM, GPT2LMHeadModel",
    )
