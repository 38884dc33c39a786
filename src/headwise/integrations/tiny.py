"""Tiny random models of transformers, built from the configuration class alone."""

from __future__ import annotations

from typing import Any

import torch

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.explain.subject import Kind
from headwise.integrations.library import quiet, require_transformers
from headwise.integrations.subject import HfSubject
from headwise.integrations.tokens import WordTokenizer
from headwise.integrations.transformers import SIZES, TYPE_SIZES
from headwise.texts import translate as _


def tiny(model_type: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> HfSubject:
    """A small random instance of a model type; every parameter is filled with random numbers.

    Example:
        >>> tiny("gpt2").num_layers
        2
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    require_transformers()
    if model_type not in CONFIG_MAPPING_NAMES:
        near = did_you_mean(model_type, CONFIG_MAPPING_NAMES)
        raise UsageError(
            _("transformers has no model type {type!r}").format(type=model_type),
            fix=_("did you mean {near!r}?").format(near=near) if near else "hf:llama, hf:bert, …",
        )
    kind: Kind = "encoder"
    loader = "AutoModel"
    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind, loader = "causal", "AutoModelForCausalLM"
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        kind, loader = "masked", "AutoModelForMaskedLM"
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        with quiet():
            config = tiny_config(model_type)
            model = getattr(transformers, loader).from_config(config).to(dtype).eval()
            fill(model)
    except Exception as error:
        raise TargetError(
            _("a tiny {type} can't be built").format(type=model_type),
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        ) from error
    finally:
        torch.set_rng_state(state)
    table = model.get_input_embeddings()
    return HfSubject(f"hf:{model_type}", model, WordTokenizer(int(table.weight.shape[0])), kind)


def tiny_config(model_type: str) -> Any:
    """The configuration of a tiny instance, as the verifier builds it."""
    from transformers import AutoConfig

    sizes = {**SIZES, **TYPE_SIZES.get(model_type, {})}
    base = AutoConfig.for_model(model_type)
    known = {**base.to_dict(), **dict.fromkeys(getattr(base, "attribute_map", {}))}
    return AutoConfig.for_model(
        model_type,
        **{name: value for name, value in sizes.items() if name in known},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def fill(model: torch.nn.Module) -> None:
    """Give every parameter random numbers: fresh layers have zero biases and unit gains."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
            elif "norm" in name.lower() or name.lower().endswith("ln_f.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.normal_(0.0, 0.1)
