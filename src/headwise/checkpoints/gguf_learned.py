"""Metadata of GGUF files with learned positions: GPT-2 and BERT, read and written."""

from __future__ import annotations

from typing import Any

from headwise.checkpoints.gguf_metadata import Metadata, sizes, unsaid
from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.stack import Activation, StackSpec
from headwise.errors import UsageError
from headwise.texts import translate as _

_ACTIVATIONS: dict[str, tuple[Activation, str]] = {
    "gpt2": ("gelu-tanh", "gelu_new"),
    "bert": ("gelu", "gelu"),
}
"""The only activation that an architecture has there, as we and as Hugging Face call it."""


def config_of(source: TensorSource) -> dict[str, Any]:
    """The configuration that a GGUF file states, as a ``config.json`` would.

    Raises:
        UsageError: for keys that are missing, and for what is not covered.
    """
    metadata = Metadata(source)
    layers, width, inner, heads, longest, eps = (
        metadata.get(key, needed=True)
        for key in (
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
            "context_length", "attention.layer_norm_epsilon",
        )
    )  # fmt: skip
    for key, usual in (
        ("attention.head_count_kv", heads),
        ("attention.key_length", width // heads if _is_size(width) and _is_size(heads) else None),
    ):
        if metadata.get(key, usual) != usual:
            raise UsageError(
                _("the file says {key}={value!r}, a {family} has {usual!r}").format(
                    key=key, value=metadata.get(key), family=metadata.arch, usual=usual
                ),
                where=f"{source.path}: {metadata.arch}.{key}",
            )
    vocabulary, (_ours, activation) = metadata.vocabulary(), _ACTIVATIONS[metadata.arch]
    if metadata.arch == "gpt2":
        return {
            "model_type": "gpt2",
            "vocab_size": vocabulary,
            "n_positions": longest,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner,
            "activation_function": activation,
            "layer_norm_epsilon": eps,
            "tie_word_embeddings": "output.weight" not in source.tensors,
        }
    if metadata.get("attention.causal", False):
        raise UsageError(
            _("a causal BERT is not covered"), where=f"{source.path}: bert.attention.causal"
        )
    types = source.tensors.get("token_types.weight")
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_act": activation,
        "max_position_embeddings": longest,
        "type_vocab_size": types.shape[0] if types is not None and types.shape else 2,
        "layer_norm_eps": eps,
    }


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


def metadata_of(spec: StackSpec, arch: str) -> dict[str, Any]:
    """The metadata of a model.

    Raises:
        UsageError: for what no key can say.
    """
    if spec.activation != _ACTIVATIONS[arch][0]:
        raise unsaid(f"activation={spec.activation!r}")
    one = spec.attention[0]
    for layer, other in enumerate(spec.attention):
        if other.scale not in (None, one.head_dim**-0.5):
            raise unsaid(f"layer {layer}: scale={other.scale}")
    if spec.pooler:
        raise unsaid("pooler=True")
    found = sizes(spec, arch)
    found[f"{arch}.attention.layer_norm_epsilon"] = spec.norm_eps
    if arch == "bert":
        found[f"{arch}.attention.causal"] = False
        found["tokenizer.ggml.token_type_count"] = spec.token_types
    return found
