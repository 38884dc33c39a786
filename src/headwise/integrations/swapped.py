"""The attention of a transformers model, computed by ours: what `headwise.swap` puts in.

It stands where the model's own module stood, has the same children, hooks and attributes, takes the
same arguments and returns the same pair. Only what is computed in between is ours::

    hidden_states ─ q_proj, k_proj, v_proj ─ rotate ─ cache.update ─ attention ─ o_proj ─ output
                    the model's own          by its   the model's    ours        the model's
                    parameters               tables   own object

What the model hands over decides, and nothing is read twice:

* ``position_embeddings``: the model's own cosines and sines turn queries and keys. Whatever scaling
  made them (linear, dynamic, YaRN, Llama 3, ...) is right by construction.
* ``attention_mask``: (B, 1, Tq, Tk), bool = may look, or floats that are added; windows and padding
  are in it. None means causal for a causal layer, counted from the first key, as in transformers'
  ``sdpa_attention_forward``; for ``eager`` it means that nothing is hidden.
* ``cache`` (``past_key_values`` in older versions): the model's cache object is updated, so that
  ``generate`` goes on with it.

Source: ``sdpa_attention_forward`` and ``eager_attention_forward`` of transformers 5.24.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.attend import attention
from headwise.attend.layers import merge, split
from headwise.attend.module import MultiHeadAttention
from headwise.attend.positions import rotate
from headwise.errors import UsageError
from headwise.integrations.borrowed import Borrowed
from headwise.masks import Causal, Custom, Mask
from headwise.spec import AttentionSpec
from headwise.texts import translate as _

CACHE_NAMES = ("cache", "past_key_values")
"""What the cache is called, newest version first."""

IMPLEMENTATIONS = ("eager", "sdpa")
"""Values of ``attn_implementation`` under which a model makes masks that are read here."""


class SwappedAttention(nn.Module):
    """A model's attention module, computed by ours.

    Made by `headwise.swap` only, as a subclass of the module's own class: what asks for that class
    (transformers' recording of attentions, for one) finds it. ``attention`` is the
    ``MultiHeadAttention`` that computes, with the model's parameters; ``attention.spec`` says what
    the layer is.
    """

    attention: MultiHeadAttention
    config: Any
    layer_idx: int

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """As the model's own module.

        Args:
            hidden_states: (B, Tq, Dm).
            args, kwargs: what the model hands over, see the top of this module.

        Returns:
            The output, (B, Tq, Dm), or (B, Tq, Hq·Dv) where the output projection is elsewhere;
            and the weights, (B, Hq, Tq, Tk), in eager models, else None.

        Raises:
            UsageError: for another sequence to look at, a bias by position, and a mask of a form
                that only other attention functions have.
        """
        given = {**dict(zip(vars(self)["argument_names"], args, strict=False)), **kwargs}
        self._check(given)
        layer = self.attention
        q, k, v = self._projected(hidden_states)
        tables = given.get("position_embeddings")
        if tables is not None:
            cos, sin = (table[..., : table.shape[-1] // 2] for table in tables)
            q, k = (rotate(x, cos, sin, pairs="halves") for x in (q, k))
        cache = next((given[n] for n in CACHE_NAMES if given.get(n) is not None), None)
        if cache is not None:
            own = getattr(cache, "self_attention_cache", cache)  # beside one of cross attention
            if vars(self)["older_cache"]:
                cos, sin = (None, None) if tables is None else tables
                place = {"sin": sin, "cos": cos, "cache_position": given.get("cache_position")}
                k, v = own.update(k, v, self.layer_idx, place)
            else:
                k, v = own.update(k, v, self.layer_idx, kwargs=kwargs)
        eager = self.config._attn_implementation == "eager"  # noqa: SLF001 - its public name
        mask, bias, k, v = self._mask(given, q, k, v, eager)
        found = attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=layer.spec.scale,
            dropout_p=self._dropout() if self.training else 0.0,
            need_weights="per-head" if eager else False,
        )
        context, weights = found if isinstance(found, tuple) else (found, None)
        output = layer.out_proj(merge(context))
        after = getattr(self, "resid_dropout", None)
        return output if after is None else after(output), weights

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, T, D)."""
        layer, packed = self.attention, vars(self)["packed"]
        if packed is None:
            q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
        else:
            q, k, v = packed(x).chunk(3, dim=-1)
        kv_heads = layer.spec.num_kv_heads
        return split(q, layer.spec.num_heads), split(k, kv_heads), split(v, kv_heads)

    def _mask(
        self, given: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, eager: bool
    ) -> tuple[Mask | None, Tensor | None, Tensor, Tensor]:
        """Who may look at whom, what is added, and the keys and values that there are to see."""
        table = given.get("attention_mask")
        q_len, kv_len = q.shape[2], k.shape[2]
        if table is None:
            causal = given.get("is_causal")
            if causal is None:
                causal = getattr(self, "is_causal", self.attention.spec.is_causal)
            if eager or not causal or q_len == 1:
                return None, None, k, v
            # With an empty static cache there are more keys than queries: the rest is not yet
            # written, and the diagonal starts at the first key.
            return Causal(), None, k[:, :, :q_len], v[:, :, :q_len]
        table = table[..., :kv_len]
        if table.dtype == torch.bool:
            return Custom(table, name="attention_mask"), None, k, v
        return None, table, k, v

    def _dropout(self) -> float:
        """The probability of dropping a weight, as the model has it now."""
        for name in ("attn_dropout", "dropout"):
            module = getattr(self, name, None)
            if module is not None:
                return float(module.p)
        return float(getattr(self, "attention_dropout", 0.0))

    def _check(self, given: dict[str, Any]) -> None:
        """Refuse what can't be honoured."""
        name, table = type(self).__name__, given.get("attention_mask")
        implementation = self.config._attn_implementation  # noqa: SLF001 - its public name
        if implementation not in IMPLEMENTATIONS:
            raise UsageError(
                _("attn_implementation was set to {value!r} after the swap").format(
                    value=implementation
                ),
                where=name,
                why=_("its masks have a form of their own, and its function is not called"),
                fix=_('model.set_attn_implementation("sdpa"), or swap.undo()'),
            )
        if given.get("encoder_hidden_states") is not None and hasattr(self, "is_cross_attention"):
            raise UsageError(
                _("{name} was given another sequence to look at").format(name=name),
                where=f"{name}(encoder_hidden_states)",
                why=_("self attention is what was swapped"),
                fix="swap.undo()",
            )
        for argument in ("position_bias", "head_mask"):
            if given.get(argument) is not None:
                raise UsageError(
                    _("{name} was given {argument}").format(name=name, argument=argument),
                    where=f"{name}({argument})",
                    why=_("none of the families that are swapped makes one by itself"),
                    fix="swap.undo()",
                )
        if table is not None and not (isinstance(table, Tensor) and table.ndim == 4):
            shape = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
            raise UsageError(
                _("attention_mask is {shape}").format(shape=shape),
                where=f"{name}(attention_mask), attn_implementation={implementation!r}",
                why=_("the two forms that are read are (B, 1, Tq, Tk) and None"),
                fix='model.set_attn_implementation("sdpa")',
            )

    def train(self, mode: bool = True) -> SwappedAttention:
        """Set the mode, of the inner layer too."""
        super().train(mode)
        self.attention.train(mode)
        return self

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Copies and pickles name the model's own class: ours is made when it is needed."""
        return _empty, (type(self).__mro__[2],), self.__dict__


def adapt(
    original: nn.Module, spec: AttentionSpec, roles: dict[str, str], *, layer_idx: int
) -> SwappedAttention:
    """The same module, computed by ours.

    Args:
        original: the model's own module. The result shares everything that it has: children,
            parameters, hooks and attributes.
        spec: what it is.
        roles: which child makes what: ``q``, ``k``, ``v`` or ``qkv``, and ``o`` if it is inside.
        layer_idx: the place of the layer in the cache.
    """
    made = _empty(type(original))
    made.__dict__.update(vars(original))
    made.layer_idx = layer_idx
    with torch.device("meta"):  # its own parameters are never used
        layer = MultiHeadAttention(spec)
    width = spec.num_heads * spec.head_dim
    for index, letter in enumerate("qkv"):
        columns = slice(index * width, (index + 1) * width) if "qkv" in roles else None
        child = roles["qkv"] if "qkv" in roles else roles[letter]
        setattr(layer, f"{letter}_proj", Borrowed(made, child, columns))
    layer.out_proj = Borrowed(made, roles["o"]) if "o" in roles else nn.Identity()  # type: ignore[assignment]
    # Beside the children, not among them: names and number of parameters stay as they were.
    made.__dict__["attention"] = layer.train(original.training)
    made.__dict__["packed"] = Borrowed(made, roles["qkv"]) if "qkv" in roles else None
    made.__dict__["argument_names"] = _argument_names(type(original))  # type: ignore[arg-type]
    made.__dict__["older_cache"] = _older_cache()
    return made


@functools.cache
def _class_of(original: Any) -> type[SwappedAttention]:
    return cast(
        "type[SwappedAttention]",
        type(f"Swapped{original.__name__}", (SwappedAttention, original), {"__module__": __name__}),
    )


def _empty(original: type[nn.Module]) -> SwappedAttention:
    """An instance without content."""
    kind = _class_of(original)  # type: ignore[arg-type]
    return kind.__new__(kind)


def _older_cache() -> bool:
    """Whether caches take further arguments as one dictionary, as in the first versions of 5."""
    from transformers.cache_utils import Cache

    return "cache_kwargs" in inspect.signature(Cache.update).parameters


@functools.cache
def _argument_names(original: Any) -> tuple[str, ...]:
    """Names of the arguments after the hidden states, for those that come by their place."""
    return tuple(inspect.signature(original.forward).parameters)[2:]
