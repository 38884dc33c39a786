"""What a Hugging Face configuration says about its attention layers, read field by field.

A configuration does not say everything: which families are causal, rotate, or pair halves is a
fact of their code. Those facts stand in ``FAMILIES`` with nothing guessed for other families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwise.errors import SpecError
from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.spec import RopeScaling


@dataclass(frozen=True)
class Family:
    """Facts of a model family that its configuration leaves out.

    Args:
        causal: whether its self-attention is causal.
        positions: "rope-halves", "rope-neighbours", "learned-outside" (added before the first
            layer, so not part of it) or "none".
        biases: a function of the getter that names the projections with a bias.
    """

    causal: bool
    positions: str
    biases: Callable[[Callable[..., Any]], str]


FAMILIES: dict[str, Family] = {
    "bert": Family(False, "learned-outside", lambda get: "qkv"),
    "gpt2": Family(True, "learned-outside", lambda get: "qkvo"),
    "llama": Family(True, "rope-halves", lambda get: "qkvo" if get("attention_bias") else ""),
    "mistral": Family(True, "rope-halves", lambda get: ""),
    "qwen2": Family(True, "rope-halves", lambda get: "qkv"),
    "qwen3": Family(True, "rope-halves", lambda get: "qkvo" if get("attention_bias") else ""),
    "smollm3": Family(True, "rope-halves", lambda get: "qkvo" if get("attention_bias") else ""),
}


def spec_fields(config: Any, *, layer: int = 0) -> dict[str, Any]:
    """The fields of an ``AttentionSpec`` for one layer of a configuration.

    Args:
        config: a configuration object or a mapping.
        layer: index of the layer.

    Returns:
        Keyword arguments for ``AttentionSpec``.

    Raises:
        SpecError: an unknown family, missing sizes, or a rotary scaling that is not covered.
    """
    from headwise.spec import QkNorm, Rope

    def get(*names: str, default: Any = None) -> Any:
        for name in names:
            value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if value is not None:
                return value
        return default

    kind = get("model_type")
    if kind not in FAMILIES:
        raise SpecError(
            _("the attention of model type {kind!r} is not described here").format(kind=kind),
            where="AttentionSpec.from_hf_config",
            why=_("whether a family is causal or rotates is a fact of its code, not of its config"),
            fix=_("build AttentionSpec(…) by hand, or use one of: {families}").format(
                families=", ".join(FAMILIES)
            ),
        )
    family = FAMILIES[kind]
    if get("position_embedding_type", default="absolute") != "absolute":
        raise SpecError(
            _("position_embedding_type={kind!r} is not covered").format(
                kind=get("position_embedding_type")
            ),
            where=f"model_type={kind!r}",
            why=_("its scores depend on products of queries, keys and a table of distances"),
        )
    num_layers = get("num_hidden_layers", "n_layer")
    if layer < 0 or (num_layers is not None and layer >= num_layers):
        raise SpecError(
            _("there is no layer {layer}").format(layer=layer),
            where=f"AttentionSpec.from_hf_config(…, layer={layer})",
            why=_("the configuration has {count} layers, counted from 0").format(count=num_layers),
        )
    d_model, num_heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    if d_model is None or num_heads is None:
        raise SpecError(
            _("the configuration states no hidden size or no number of heads"),
            where=f"model_type={kind!r}",
            fix=_("fields hidden_size and num_attention_heads (or n_embd and n_head)"),
        )
    fields: dict[str, Any] = {
        "d_model": d_model,
        "num_heads": num_heads,
        "num_kv_heads": get("num_key_value_heads", default=num_heads),
        "head_dim": get("head_dim"),
        "is_causal": family.causal or bool(get("is_decoder", default=False)),
        "dropout": float(
            get("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", default=0.0)
        ),
        "biases": family.biases(get),
    }
    if kind == "gpt2":
        if get("scale_attn_weights", default=True) is False:
            fields["scale"] = 1.0
        if get("scale_attn_by_inverse_layer_idx", default=False):
            head_dim = d_model // num_heads
            fields["scale"] = fields.get("scale", head_dim**-0.5) / (layer + 1)
    if _slides(kind, get, layer):
        fields["window"] = (get("sliding_window") - 1, 0)
    if family.positions.startswith("rope") and _rotates(kind, get, layer):
        _check_all_channels_turn(kind, get)
        fields["positions"] = Rope(
            pairs=family.positions.removeprefix("rope-"),  # type: ignore[arg-type]
            base=_rope_base(get),
            scaling=_rope_scaling(get),
        )
    if kind == "qwen3":
        fields["qk_norm"] = QkNorm(eps=get("rms_norm_eps", default=1e-6))
    return fields


def _slides(kind: str, get: Callable[..., Any], layer: int) -> bool:
    """Whether a layer has the sliding window, by the rules of the families' configurations."""
    if get("sliding_window") is None or not get("use_sliding_window", default=kind == "mistral"):
        return False
    kinds = get("layer_types")
    if kinds is not None:
        return bool(kinds[layer] == "sliding_attention")
    if kind in ("qwen2", "qwen3"):
        return bool(layer >= get("max_window_layers", default=28))
    return kind == "mistral" or not _rotates(kind, get, layer)


def _rotates(kind: str, get: Callable[..., Any], layer: int) -> bool:
    """Whether a layer rotates: in SmolLM3 some layers do not."""
    if kind != "smollm3":
        return True
    rotating = get("no_rope_layers")  # 1 means that the layer does rotate
    if rotating is None:
        return bool((layer + 1) % get("no_rope_layer_interval", default=4) != 0)
    return bool(rotating[layer])


def _check_all_channels_turn(kind: str, get: Callable[..., Any]) -> None:
    """Refuse a part of the channels: the code of these families turns all of them.

    With ``partial_rotary_factor`` below 1, transformers 5 turns all channels of a llama all the
    same, or fails where its angles are scaled.
    """
    own = _rope_parameters(get).get("partial_rotary_factor")
    factor = get("partial_rotary_factor") if own is None else own
    if factor is not None and factor != 1:
        raise SpecError(
            _("partial_rotary_factor={factor!r} is not covered for a {kind}").format(
                factor=factor, kind=kind
            ),
            where="partial_rotary_factor" if own is None else "rope_parameters",
            why=_("the configuration says that some channels are turned; the code turns all"),
            fix=_("AttentionSpec(…, positions=Rope(pairs=…, rotary_dim=…)) says it by hand"),
        )


def _rope_parameters(get: Callable[..., Any]) -> Mapping[str, Any]:
    return get("rope_parameters", "rope_scaling", default={}) or {}


def _rope_base(get: Callable[..., Any]) -> float:
    return float(_rope_parameters(get).get("rope_theta", get("rope_theta", default=10000.0)))


def _rope_scaling(get: Callable[..., Any]) -> RopeScaling | None:
    """How the angles are scaled, from ``rope_parameters`` or, in older files, ``rope_scaling``."""
    from headwise.spec import LinearScaling, Llama3Scaling

    parameters = _rope_parameters(get)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return None
    needed = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
    if kind not in needed:
        raise SpecError(
            _("rotary scaling {rope_type!r} is not covered yet").format(rope_type=kind),
            where="rope_parameters",
            fix=_("a configuration with rope_type {known}").format(
                known=", ".join(("default", *needed))
            ),
        )
    values: dict[str, Any] = {name: parameters.get(name) for name in needed[kind]}
    if kind == "llama3":
        length = parameters.get("original_max_position_embeddings")
        other = get("original_max_position_embeddings", "max_position_embeddings")
        values["original_max_position_embeddings"] = other if length is None else length
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise SpecError(
            _("rotary scaling {rope_type!r} is given without {names}").format(
                rope_type=kind, names=", ".join(missing)
            ),
            where="rope_parameters",
        )
    if kind == "linear":
        return LinearScaling(factor=values["factor"])
    original = int(values.pop("original_max_position_embeddings"))
    return Llama3Scaling(**values, original_max_len=original)
