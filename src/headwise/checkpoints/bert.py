"""BERT: both directions, norms last, learned positions and segments, a pooler over [CLS].

Source: Devlin et al. 2019 (arXiv 1810.04805), section 3 and appendix A.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from headwise.checkpoints.family import (
    Config,
    Family,
    Gguf,
    Names,
    activation,
    attentions,
    count,
    number,
    only,
)
from headwise.checkpoints.gguf_learned import config_of, metadata_of
from headwise.checkpoints.mapping import Known, Layout, Template, expand, prefix_of
from headwise.checkpoints.stack import StackSpec
from headwise.texts import mark as N_


def stack_spec(config: Config) -> StackSpec:
    """The encoder of a configuration.

    Raises:
        UsageError, SpecError: for fields that are missing, wrong or not covered.
    """
    only(config, "add_cross_attention", False)
    only(config, "is_decoder", False)
    positions = count(config, "max_position_embeddings", default=512)
    layers = attentions(config, count(config, "num_hidden_layers"))
    return StackSpec(
        vocabulary=count(config, "vocab_size"),
        # The bias of the output projection stands outside of what its code calls self-attention.
        attention=tuple(one.replace(biases="qkvo") for one in layers),
        ffn_width=count(config, "intermediate_size"),
        activation=activation(config, "hidden_act", default="gelu"),
        ffn_bias=True,
        norm_eps=number(config, "layer_norm_eps", default=1e-12),
        norm_first=False,
        learned_positions=positions,
        token_types=count(config, "type_vocab_size", default=2),
        head=None,
        pooler=True,
        longest=positions,
    )


def hf_config(spec: StackSpec) -> dict[str, Any]:
    """The configuration of an encoder."""
    one = spec.attention[0]
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.d_model,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": one.num_heads,
        "intermediate_size": spec.ffn_width,
        "hidden_act": {"gelu-tanh": "gelu_new"}.get(spec.activation, spec.activation),
        "attention_probs_dropout_prob": one.dropout,
        "max_position_embeddings": spec.learned_positions,
        "type_vocab_size": spec.token_types,
        "layer_norm_eps": spec.norm_eps,
    }


_HEADS = (
    "predictions.bias",
    "predictions.transform.dense.weight",
    "predictions.transform.dense.bias",
    "predictions.transform.LayerNorm.weight",
    "predictions.transform.LayerNorm.bias",
    "predictions.transform.LayerNorm.gamma",
    "predictions.transform.LayerNorm.beta",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
    "seq_relationship.weight",
    "seq_relationship.bias",
)
"""Heads of the two tasks of pretraining, after ``cls.``."""


def hf_layout(names: Names) -> Layout:
    """Names of Hugging Face files: with a prefix beside heads, without for an encoder alone.

    The first files of the family call the gain of a norm gamma and its offset beta.
    """
    spec, has = names.spec, names.has
    prefix = prefix_of(has, ("", "bert."), "embeddings.word_embeddings.weight")
    first = f"{prefix}embeddings.LayerNorm.gamma" in has
    norm = ("gamma", "beta") if first else ("weight", "bias")
    block = f"{prefix}encoder.layer.{{n}}."
    inner = f"{block}attention."
    lines = [
        Template(f"{prefix}embeddings.word_embeddings", ("tokens",)),
        Template(f"{prefix}embeddings.position_embeddings", ("positions",)),
        Template(f"{prefix}embeddings.token_type_embeddings", ("types",)),
        Template(f"{prefix}embeddings.LayerNorm", ("embedding_norm",), leaves=norm),
        Template(f"{inner}self.query", ("blocks.{n}.attention.q_proj",)),
        Template(f"{inner}self.key", ("blocks.{n}.attention.k_proj",)),
        Template(f"{inner}self.value", ("blocks.{n}.attention.v_proj",)),
        Template(f"{inner}output.dense", ("blocks.{n}.attention.out_proj",)),
        Template(f"{inner}output.LayerNorm", ("blocks.{n}.attention_norm",), leaves=norm),
        Template(f"{block}intermediate.dense", ("blocks.{n}.ffn.up",)),
        Template(f"{block}output.dense", ("blocks.{n}.ffn.down",)),
        Template(f"{block}output.LayerNorm", ("blocks.{n}.ffn_norm",), leaves=norm),
        Template(f"{prefix}pooler.dense", ("pooler",)),
    ]
    size = spec.learned_positions
    known = [
        Known(
            f"{prefix}embeddings.position_ids",
            N_("the numbers of the positions, counted here"),
            shape=(1, size),
            value=lambda: torch.arange(size)[None],
        ),
        Known(
            f"{prefix}embeddings.token_type_ids",
            N_("the segment of a text without segments, 0 here too"),
            shape=(1, size),
            value=lambda: torch.zeros(1, size, dtype=torch.long),
        ),
        *(
            Known(f"cls.{name}", N_("a head of pretraining, not part of the encoder"))
            for name in _HEADS
        ),
    ]
    return Layout(expand(lines, names.parameters), tuple(known))


def fit(spec: StackSpec, has: Collection[str]) -> StackSpec:
    """The encoder of a file: the pooler is left out where only words were predicted."""
    pooled = any(name.endswith("pooler.dense.weight") for name in has)
    return replace(spec, pooler=pooled)


def gguf_layout(names: Names) -> Layout:
    """Names of GGUF files."""
    lines = {
        "token_embd": "tokens",
        "token_types": "types",
        "position_embd": "positions",
        "token_embd_norm": "embedding_norm",
        "blk.{n}.attn_q": "blocks.{n}.attention.q_proj",
        "blk.{n}.attn_k": "blocks.{n}.attention.k_proj",
        "blk.{n}.attn_v": "blocks.{n}.attention.v_proj",
        "blk.{n}.attn_output": "blocks.{n}.attention.out_proj",
        "blk.{n}.attn_output_norm": "blocks.{n}.attention_norm",
        "blk.{n}.ffn_up": "blocks.{n}.ffn.up",
        "blk.{n}.ffn_down": "blocks.{n}.ffn.down",
        "blk.{n}.layer_output_norm": "blocks.{n}.ffn_norm",
    }
    templates = [Template(theirs, (ours,)) for theirs, ours in lines.items()]
    return Layout(expand(templates, names.parameters), ())


BERT = Family(
    name="bert",
    spec=stack_spec,
    config=hf_config,
    layout=hf_layout,
    fit=fit,
    gguf=Gguf(
        architecture="bert",
        pairs="halves",
        config=config_of,
        metadata=lambda spec: metadata_of(spec, "bert"),
        layout=gguf_layout,
    ),
)
