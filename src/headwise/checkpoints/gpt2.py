"""GPT-2: norms first, learned positions, one packed projection for queries, keys and values.

Its files hold matrices as (in, out), after the layer that its first code called ``Conv1D``.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from __future__ import annotations

import itertools
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
from headwise.checkpoints.mapping import Known, Layout, Packed, Template, expand, prefix_of
from headwise.checkpoints.stack import StackSpec
from headwise.errors import UsageError
from headwise.texts import mark as N_
from headwise.texts import translate as _


def stack_spec(config: Config) -> StackSpec:
    """The model of a configuration.

    Raises:
        UsageError, SpecError: for fields that are missing, wrong or not covered.
    """
    only(config, "add_cross_attention", False)
    positions = count(config, "n_positions", default=1024)
    return StackSpec(
        vocabulary=count(config, "vocab_size"),
        attention=attentions(config, count(config, "n_layer")),
        ffn_width=count(config, "n_inner", default=4 * count(config, "n_embd")),
        activation=activation(config, "activation_function", default="gelu_new"),
        ffn_bias=True,
        norm_eps=number(config, "layer_norm_epsilon", default=1e-5),
        learned_positions=positions,
        head="untied" if config.get("tie_word_embeddings") is False else "tied",
        longest=positions,
    )


def hf_config(spec: StackSpec) -> dict[str, Any]:
    """The configuration of a model.

    Raises:
        UsageError: if no option of the family gives the scales of its layers.
    """
    one = spec.attention[0]
    found: dict[str, Any] = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocabulary,
        "n_positions": spec.learned_positions,
        "n_embd": spec.d_model,
        "n_layer": spec.layers,
        "n_head": one.num_heads,
        "n_inner": spec.ffn_width,
        "activation_function": {"gelu-tanh": "gelu_new"}.get(spec.activation, spec.activation),
        "attn_pdrop": one.dropout,
        "layer_norm_epsilon": spec.norm_eps,
        "tie_word_embeddings": spec.head == "tied",
    }
    for scaled, by_layer in itertools.product((True, False), (False, True)):
        found["scale_attn_weights"] = scaled
        found["scale_attn_by_inverse_layer_idx"] = by_layer
        if attentions(found, spec.layers) == spec.attention:
            return found
    raise UsageError(
        _("the attention of this model is not that of a GPT-2"),
        where="save(model, …)",
        why=str(one),
    )


def hf_layout(names: Names) -> Layout:
    """Names of Hugging Face files: with a prefix for a model with a head, without in older ones."""
    spec = names.spec
    prefix = prefix_of(names.has, ("transformer.", ""), "wte.weight")
    block = f"{prefix}h.{{n}}."
    one = spec.attention[0]
    keys = one.num_kv_heads * one.head_dim
    rows = (one.num_heads * one.head_dim, keys, keys)
    packed = tuple(f"blocks.{{n}}.attention.{letter}_proj" for letter in "qkv")
    lines = [
        Template(f"{prefix}wte", ("tokens",)),
        Template(f"{prefix}wpe", ("positions",)),
        Template(f"{block}ln_1", ("blocks.{n}.attention_norm",)),
        Template(f"{block}attn.c_attn", packed, lambda leaf: Packed(rows, transposed=True)),
        _turned(f"{block}attn.c_proj", "blocks.{n}.attention.out_proj", spec.d_model),
        Template(f"{block}ln_2", ("blocks.{n}.ffn_norm",)),
        _turned(f"{block}mlp.c_fc", "blocks.{n}.ffn.up", spec.ffn_width),
        _turned(f"{block}mlp.c_proj", "blocks.{n}.ffn.down", spec.d_model),
        Template(f"{prefix}ln_f", ("norm",)),
        Template("lm_head", ("head",)),
    ]
    size = spec.learned_positions
    known = []
    for n in range(spec.layers):
        at = block.format(n=n)
        known += [
            Known(
                f"{at}attn.bias",
                N_("the causal mask as a table, which the specification gives"),
                shape=(1, 1, size, size),
                value=lambda: torch.ones(1, 1, size, size, dtype=torch.bool).tril(),
            ),
            Known(f"{at}attn.masked_bias", N_("the number of hidden scores; here they are hidden")),
        ]
    if spec.head == "tied":
        why = N_("a copy of the token table, to which the head is tied")
        known.append(Known("lm_head.weight", why, copy_of=f"{prefix}wte.weight"))
    return Layout(expand(lines, names.parameters), tuple(known))


def _turned(theirs: str, ours: str, rows: int) -> Template:
    return Template(theirs, (ours,), lambda leaf: Packed((rows,), transposed=True))


def gguf_layout(names: Names) -> Layout:
    """Names of GGUF files, which hold matrices as (out, in)."""
    one = names.spec.attention[0]
    keys = one.num_kv_heads * one.head_dim
    packed = tuple(f"blocks.{{n}}.attention.{letter}_proj" for letter in "qkv")
    rows = Packed((one.num_heads * one.head_dim, keys, keys))
    lines = [
        Template("token_embd", ("tokens",)),
        Template("position_embd", ("positions",)),
        Template("blk.{n}.attn_norm", ("blocks.{n}.attention_norm",)),
        Template("blk.{n}.attn_qkv", packed, lambda leaf: rows),
        Template("blk.{n}.attn_output", ("blocks.{n}.attention.out_proj",)),
        Template("blk.{n}.ffn_norm", ("blocks.{n}.ffn_norm",)),
        Template("blk.{n}.ffn_up", ("blocks.{n}.ffn.up",)),
        Template("blk.{n}.ffn_down", ("blocks.{n}.ffn.down",)),
        Template("output_norm", ("norm",)),
        Template("output", ("head",)),
    ]
    return Layout(expand(lines, names.parameters), ())


GPT2 = Family(
    name="gpt2",
    spec=stack_spec,
    config=hf_config,
    layout=hf_layout,
    gguf=Gguf(
        architecture="gpt2",
        pairs="halves",
        config=config_of,
        metadata=lambda spec: metadata_of(spec, "gpt2"),
        layout=gguf_layout,
    ),
)
