"""Qwen2: a LLaMA with biases on queries, keys and values; some layers may have a window.

Source: Yang et al. 2024 (arXiv 2407.10671), section 2.2.
"""

from __future__ import annotations

from typing import Any

from headwise.checkpoints import llama
from headwise.checkpoints.family import Family, Gguf
from headwise.checkpoints.gguf_llama import config_of, metadata_of
from headwise.checkpoints.stack import StackSpec
from headwise.errors import UsageError
from headwise.texts import translate as _


def hf_config(spec: StackSpec) -> dict[str, Any]:
    """The configuration of a model."""
    lefts = {one.window[0] for one in spec.attention if one.window is not None}
    found = llama.hf_config(spec)
    del found["attention_bias"], found["mlp_bias"]
    found |= {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": bool(lefts),
    }
    if lefts:
        (left,) = lefts
        found["sliding_window"] = None if left is None else left + 1
        found["layer_types"] = [
            "full_attention" if one.window is None else "sliding_attention"
            for one in spec.attention
        ]
    return found


def gguf_metadata(spec: StackSpec) -> dict[str, Any]:
    """The metadata of a model.

    Raises:
        UsageError: if some layers have a window: the format has no key for which.
    """
    if any(one.window is not None for one in spec.attention):
        raise UsageError(
            _("a Qwen2 with a window can't be written as GGUF"),
            where="save(model, format='gguf')",
            why=_("the format does not say which layers have one"),
            fix=_("format='safetensors'"),
        )
    return metadata_of(spec, "qwen2")


QWEN2 = Family(
    name="qwen2",
    spec=llama.stack_spec,
    config=hf_config,
    layout=llama.hf_layout,
    gguf=Gguf(
        architecture="qwen2",
        pairs="halves",
        config=config_of,
        metadata=gguf_metadata,
        layout=llama.gguf_layout,
    ),
)
