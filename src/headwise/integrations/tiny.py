"""Tiny random models of transformers, built from the configuration class alone."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, TargetError, UsageError, did_you_mean
from headwise.explain.subject import Kind
from headwise.integrations.library import quiet, require_transformers
from headwise.integrations.subject import HfSubject
from headwise.integrations.tiny_sizes import MORE_SIZES, MORE_TYPE_SIZES
from headwise.integrations.tokens import WordTokenizer
from headwise.integrations.transformers import SIZES, TYPE_SIZES
from headwise.texts import translate as _

LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")
"""Fields with one entry per layer."""

NOT_TEXT_FIELDS = frozenset({"num_mel_bins", "image_size"})
"""Fields of configurations without parts: of sound and pictures."""

LARGEST = 10_000_000
"""Most parameters of a tiny model."""

NOT_TEXT = ("vision", "audio", "vq", "image", "video", "depth")
"""In the names of the parts of a configuration: what reads something else than text."""


def tiny(model_type: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> HfSubject:
    """A small random instance of a model type; every parameter is filled with random numbers.

    Args:
        model_type: a type that reads text: a causal or masked language model, or an encoder. Of a
            type with an encoder and a decoder, the encoder where transformers offers it for text
            alone, and else the decoder as a language model of its own.
        dtype: of the weights.
        seed: of the weights.

    Raises:
        UsageError: if there is no such type, or it reads more than text.
        TargetError: if it can't be built or run, or has no attention that can be watched.

    Example:
        >>> tiny("gpt2").num_layers
        2
    """
    require_transformers()
    name, kind = model_class_of(model_type)
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        with quiet():
            model = build(model_type, name, dtype)
            fill(model)
            vocabulary = int(model.get_input_embeddings().weight.shape[0])
            return HfSubject(f"hf:{model_type}", model, WordTokenizer(vocabulary), kind)
    except HeadwiseError:
        raise
    except Exception as error:
        raise TargetError(
            _("a tiny {type} can't be built and run").format(type=model_type),
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        ) from error
    finally:
        torch.set_rng_state(state)


def model_class_of(model_type: str) -> tuple[str, Kind]:
    """The class that is built for a type, and what it predicts.

    Raises:
        UsageError: if there is no such type, or none of its classes reads text alone.

    Example:
        >>> model_class_of("bert"), model_class_of("t5")
        (('BertForMaskedLM', 'masked'), ('T5EncoderModel', 'encoder'))
    """
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING_NAMES:
        near = did_you_mean(model_type, CONFIG_MAPPING_NAMES)
        raise UsageError(
            _("transformers has no model type {type!r}").format(type=model_type),
            fix=_("did you mean {near!r}?").format(near=near) if near else "hf:llama, hf:bert, …",
        )
    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    masked = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(model_type)
    encoder = auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(model_type)
    base = auto.MODEL_MAPPING_NAMES.get(model_type)
    config_class = _config_class(model_type)
    _require_text(model_type, config_class)
    has_both = bool(getattr(config_class, "is_encoder_decoder", False)) and not (
        getattr(config_class, "is_decoder", False)
    )
    if has_both:
        masked, base = None, None
    offers: list[tuple[Any, Kind]] = [(masked, "masked"), (causal, "causal")]
    offers.insert(0 if has_both else 2, (encoder, "encoder"))
    offers.append((base, "encoder"))
    for found, kind in offers:
        if found:
            return (found if isinstance(found, str) else found[0]), kind
    raise UsageError(
        _("{type} is not a model of one text").format(type=model_type),
        why=_("it reads one sequence and writes another (encoder and decoder)"),
        fix="hf:t5, hf:llama, hf:bert, …",
    )


def _require_text(model_type: str, config_class: Any) -> None:
    """Raise for a type with towers for pictures or sound."""
    parts = dict(getattr(config_class, "sub_configs", {}) or {})
    others = sorted(name for name in parts if any(word in name for word in NOT_TEXT))
    fields = {field.name for field in dataclasses.fields(config_class)}
    others += sorted(fields & NOT_TEXT_FIELDS)
    if not others:
        return
    text = parts.get("text_config")
    twin = str(getattr(text, "model_type", "")) if text is not None else ""
    raise UsageError(
        _("{type} reads more than text").format(type=model_type),
        where=", ".join(others),
        why=_("only models that read nothing but text can be explained by type"),
        fix=f"hf:{twin}" if twin and twin != model_type else "hf:llama, hf:bert, …",
    )


def build(model_type: str, class_name: str, dtype: torch.dtype) -> Any:
    """An instance of a class with its tiny configuration, in eval mode."""
    import transformers

    config = tiny_config(model_type)
    model_class = getattr(transformers, class_name)
    with contextlib.suppress(NotImplementedError, RuntimeError), torch.device("meta"):
        # Some constructors compute on real numbers; their sizes are then not known beforehand.
        count = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
        if count > LARGEST:
            raise TargetError(
                _("{type} is not made tiny by the sizes known here").format(type=model_type),
                why=_("{count} parameters, {limit} are allowed").format(count=count, limit=LARGEST),
            )
    # Experts as plain matrix products: the grouped kernels refuse float64 and odd sizes.
    model = model_class._from_config(config, experts_implementation="eager")  # noqa: SLF001
    return model.to(dtype).eval()


# ---------------------------------------------------------------------------- configuration
def tiny_config(model_type: str) -> Any:
    """The configuration of a tiny instance.

    Sizes come from the verifier's table first, then from ours; a list with an entry per layer is
    cut to one layer of each kind, so that a hybrid still has its attention.
    """
    config_class = _config_class(model_type)
    alias = dict(getattr(config_class, "attribute_map", {}) or {})
    fields = {field.name for field in dataclasses.fields(config_class)}
    own = {**TYPE_SIZES.get(model_type, {}), **MORE_TYPE_SIZES.get(model_type, {})}
    usual = config_class(**MORE_TYPE_SIZES.get(model_type, {}))
    values: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    for name, size in {**MORE_SIZES, **SIZES}.items():
        field = alias.get(name, name)
        if field in fields and (name in SIZES or _is_size(_read(usual, field))):
            values[field] = size
    if _is_size(values.get("kv_lora_rank")):  # latent attention makes keys and values of all heads
        values["num_key_value_heads"] = SIZES["num_attention_heads"]
        values["head_dim"] = MORE_SIZES["qk_rope_head_dim"]
    values = {name: value for name, value in values.items() if name in fields or "token" in name}
    layers = alias.get("num_hidden_layers", "num_hidden_layers")
    lists = {name: found for name in LISTS if name in fields and (found := _list(usual, name))}
    if lists and layers not in own:
        chosen = list(one_of_each(lists))
        values[layers] = len(chosen)
        values.update({name: [entries[i] for i in chosen] for name, entries in lists.items()})
    values.update({alias.get(name, name): value for name, value in own.items()})
    return config_class(**values)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _list(config: Any, name: str) -> list[Any]:
    found = _read(config, name)
    return list(found) if isinstance(found, list | tuple) else []


def one_of_each(lists: Mapping[str, Sequence[Any]]) -> Iterator[int]:
    """Layers that together show every kind there is in any of the lists; at least two.

    Example:
        >>> list(one_of_each({"layer_types": ["linear", "linear", "full", "linear"]}))
        [0, 2]
    """
    count = min(len(entries) for entries in lists.values())
    seen: set[tuple[str, Any]] = set()
    found = []
    for layer in range(count):
        kinds = {(name, entries[layer]) for name, entries in lists.items()}
        if kinds - seen:
            found.append(layer)
            seen |= kinds
    if len(found) < 2:
        found = list(range(min(2, count)))
    yield from found


_MISSING = object()


def _read(config: Any, name: str) -> Any:
    """An attribute; some raise where it differs from layer to layer."""
    try:
        return getattr(config, name, _MISSING)
    except Exception:  # noqa: BLE001 - configurations of transformers raise many things here
        return _MISSING


def _config_class(model_type: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


# ---------------------------------------------------------------------------- weights
def fill(model: nn.Module) -> None:
    """Give every parameter random numbers: fresh layers have zero biases and unit gains."""
    with torch.no_grad():
        for module in model.modules():
            is_norm = "norm" in type(module).__name__.lower()
            for parameter in module.parameters(recurse=False):
                if not parameter.is_floating_point():
                    continue
                if parameter.ndim > 1:
                    parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
                elif is_norm:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                else:
                    parameter.normal_(0.0, 0.1)
