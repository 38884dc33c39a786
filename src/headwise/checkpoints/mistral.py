"""Mistral: a LLaMA whose tokens see a window of earlier ones.

Source: Jiang et al. 2023 (arXiv 2310.06825), section 2.
"""

from __future__ import annotations

from typing import Any

from headwise.checkpoints import llama
from headwise.checkpoints.family import Family, Gguf
from headwise.checkpoints.gguf_llama import config_of, metadata_of
from headwise.checkpoints.stack import StackSpec


def hf_config(spec: StackSpec) -> dict[str, Any]:
    """The configuration of a model."""
    window = spec.attention[0].window
    found = llama.hf_config(spec)
    del found["attention_bias"], found["mlp_bias"]
    return found | {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": None if window is None or window[0] is None else window[0] + 1,
    }


MISTRAL = Family(
    name="mistral",
    spec=llama.stack_spec,
    config=hf_config,
    layout=llama.hf_layout,
    gguf=Gguf(
        architecture="llama",  # told apart from a LLaMA by its window
        pairs="neighbours",
        config=config_of,
        metadata=lambda spec: metadata_of(spec, "llama"),
        layout=llama.gguf_layout,
    ),
)
