"""LLaMA 1, 2 and 3: norms first, gated silu, rotary positions, grouped heads from 2 on.

Mistral and Qwen2 differ in a window and in biases; their files use the functions of this one.

Source: Touvron et al. 2023 (arXiv 2302.13971), section 2.2; grouped heads: Touvron et al. 2023
    (arXiv 2307.09288), section 2.2; scaling of version 3: Grattafiori et al. 2024
    (arXiv 2407.21783), section 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.attend.positions import frequencies
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
from headwise.checkpoints.gguf_llama import config_of, metadata_of
from headwise.checkpoints.mapping import Known, Layout, Paired, Same, Template, expand, prefix_of
from headwise.checkpoints.stack import StackSpec
from headwise.spec import Llama3Scaling, Rope
from headwise.texts import mark as N_


def stack_spec(config: Config) -> StackSpec:
    """The model of a configuration.

    Raises:
        UsageError, SpecError: for fields that are missing, wrong or not covered.
    """
    only(config, "partial_rotary_factor", 1.0)
    only(config, "pretraining_tp", 1)
    return StackSpec(
        vocabulary=count(config, "vocab_size"),
        attention=attentions(config, count(config, "num_hidden_layers")),
        ffn_width=count(config, "intermediate_size"),
        activation=activation(config, "hidden_act", default="silu"),
        gated=True,
        ffn_bias=bool(config.get("mlp_bias")),
        norm="rms",
        norm_eps=number(config, "rms_norm_eps", default=1e-6),
        head="tied" if config.get("tie_word_embeddings") else "untied",
        longest=count(config, "max_position_embeddings", default=2048),
    )


def hf_config(spec: StackSpec) -> dict[str, Any]:
    """The configuration of a model."""
    one = spec.attention[0]
    rope = one.rope
    assert rope is not None
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": one.num_heads,
        "num_key_value_heads": one.num_kv_heads,
        "head_dim": one.head_dim,
        "hidden_act": "silu" if spec.activation == "silu" else _TO_HF[spec.activation],
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.head == "tied",
        "max_position_embeddings": spec.longest,
        "attention_bias": "o" in one.biases,
        "attention_dropout": one.dropout,
        "mlp_bias": spec.ffn_bias,
        "rope_theta": rope.base,
        "rope_scaling": _scaling_fields(rope),
    }


_TO_HF = {"gelu": "gelu", "gelu-tanh": "gelu_new"}


def _scaling_fields(rope: Rope) -> dict[str, Any] | None:
    how = rope.scaling
    if how is None:
        return None
    if isinstance(how, Llama3Scaling):
        return {
            "rope_type": "llama3",
            "factor": how.factor,
            "low_freq_factor": how.low_freq_factor,
            "high_freq_factor": how.high_freq_factor,
            "original_max_position_embeddings": how.original_max_len,
        }
    return {"rope_type": "linear", "factor": how.factor}


# ---------------------------------------------------------------------------------- names
def hf_layout(names: Names) -> Layout:
    """Names of Hugging Face files: with a prefix for a model with a head, without for one alone."""
    spec = names.spec
    prefix = prefix_of(names.has, ("model.", ""), "embed_tokens.weight")
    block = f"{prefix}layers.{{n}}."
    lines = {
        f"{prefix}embed_tokens": "tokens",
        f"{block}input_layernorm": "blocks.{n}.attention_norm",
        f"{block}self_attn.q_proj": "blocks.{n}.attention.q_proj",
        f"{block}self_attn.k_proj": "blocks.{n}.attention.k_proj",
        f"{block}self_attn.v_proj": "blocks.{n}.attention.v_proj",
        f"{block}self_attn.o_proj": "blocks.{n}.attention.out_proj",
        f"{block}post_attention_layernorm": "blocks.{n}.ffn_norm",
        f"{block}mlp.gate_proj": "blocks.{n}.ffn.gate",
        f"{block}mlp.up_proj": "blocks.{n}.ffn.up",
        f"{block}mlp.down_proj": "blocks.{n}.ffn.down",
        f"{prefix}norm": "norm",
        "lm_head": "head",
    }
    rotary = [f"{prefix}layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(spec.layers)]
    known = [
        Known(
            name,
            N_("angles per position, which the specification gives"),
            shape=(spec.attention[0].rotary_dim // 2,),
            value=_turns(spec),
        )
        for name in (*rotary, f"{prefix}rotary_emb.inv_freq")
    ]
    if spec.head == "tied":
        why = N_("a copy of the token table, to which the head is tied")
        known.append(Known("lm_head.weight", why, copy_of=f"{prefix}embed_tokens.weight"))
    return Layout(expand(_templates(lines, names), names.parameters), tuple(known))


def gguf_layout(names: Names) -> Layout:
    """Names of GGUF files."""
    lines = {
        "token_embd": "tokens",
        "blk.{n}.attn_norm": "blocks.{n}.attention_norm",
        "blk.{n}.attn_q": "blocks.{n}.attention.q_proj",
        "blk.{n}.attn_k": "blocks.{n}.attention.k_proj",
        "blk.{n}.attn_v": "blocks.{n}.attention.v_proj",
        "blk.{n}.attn_output": "blocks.{n}.attention.out_proj",
        "blk.{n}.ffn_norm": "blocks.{n}.ffn_norm",
        "blk.{n}.ffn_gate": "blocks.{n}.ffn.gate",
        "blk.{n}.ffn_up": "blocks.{n}.ffn.up",
        "blk.{n}.ffn_down": "blocks.{n}.ffn.down",
        "output_norm": "norm",
        "output": "head",
    }
    rope = names.spec.attention[0].rope
    assert rope is not None
    factors = Known(
        "rope_freqs.weight",
        N_("factors of the rotary angles, read into the specification"),
        shape=(names.spec.attention[0].rotary_dim // 2,),
        value=lambda: slowdowns(rope, names.spec.attention[0].head_dim),
        is_written=isinstance(rope.scaling, Llama3Scaling),
    )
    return Layout(expand(_templates(lines, names), names.parameters), (factors,))


def _templates(lines: Mapping[str, str], names: Names) -> list[Template]:
    """Lines of one name for one name; rotated rows in the order that the file has."""
    one = names.spec.attention[0]
    differ = one.rope is not None and one.rope.pairs != names.pairs
    heads = {"q_proj": one.num_heads, "k_proj": one.num_kv_heads} if differ else {}
    found = []
    for theirs, ours in lines.items():
        rows = heads.get(ours.rpartition(".")[2])
        how = Same() if rows is None else Paired(rows, one.rope.pairs if one.rope else "halves")
        found.append(Template(theirs, (ours,), lambda leaf, how=how: how))  # type: ignore[misc]
    return found


def _turns(spec: StackSpec) -> Any:
    """Makes the table of unscaled angles that older files hold."""
    one = spec.attention[0]
    assert one.rope is not None
    plain = replace(one.rope, scaling=None)
    return lambda: torch.tensor(frequencies(plain, one.rotary_dim), dtype=torch.float64)


def slowdowns(rope: Rope, head_dim: int) -> Tensor:
    """By what each rotary angle is divided, (Dk/2,) float32: one where nothing is scaled.

    Example:
        >>> slowdowns(Rope(pairs="halves"), 4).tolist()
        [1.0, 1.0]
    """
    how = rope.scaling if isinstance(rope.scaling, Llama3Scaling) else None
    plain = frequencies(replace(rope, scaling=None), head_dim)
    scaled = frequencies(replace(rope, scaling=how), head_dim)
    return torch.tensor([a / b for a, b in zip(plain, scaled, strict=True)], dtype=torch.float32)


LLAMA = Family(
    name="llama",
    spec=stack_spec,
    config=hf_config,
    layout=hf_layout,
    gguf=Gguf(
        architecture="llama",
        pairs="neighbours",
        config=config_of,
        metadata=lambda spec: metadata_of(spec, "llama"),
        layout=gguf_layout,
    ),
)
