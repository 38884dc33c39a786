"""Sizes of tiny models beyond those that the verifier uses, by the names of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MORE_SIZES: Mapping[str, int] = {
    # a head, where it is not hidden/heads by itself
    "head_dim": 12,
    "d_head": 12,
    "attention_head_size": 12,
    # heads and layers under other names
    "num_kv_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_layers": 2,
    # widths
    "embedding_size": 24,
    "input_embedding_size": 24,
    "output_embedding_size": 24,
    "word_embed_proj_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_ffn_dim": 40,
    "ffn_dim": 40,
    "ffn_hidden_size": 40,
    "d_ff": 40,
    "dff": 40,
    "d_inner": 40,
    "hidden_dim": 40,
    "feed_forward_size": 40,
    "intermediate_size_mlp": 40,
    "dense_intermediate_size": 40,
    "moe_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_experts_intermediate_size": 32,
    # windows shorter than the texts used here, or they would hide nothing
    "sliding_window": 4,
    "local_attention": 4,
    "window_size": 4,
    "attention_window": 4,
    "attention_chunk_size": 4,
    # positions
    "max_source_positions": 64,
    "max_target_positions": 64,
    "max_seq_len": 64,
    "original_max_position_embeddings": 32,
    # experts: few, and two for each token
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "num_shared_experts": 1,
    "zero_expert_num": 2,
    # keys and values through a narrow layer (latent attention)
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "o_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "index_head_dim": 8,
    "index_n_heads": 4,
    # layers that keep a state in place of attention
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_d_ssm": 96,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "mamba_chunk_size": 8,
    "mamba_dt_rank": 4,
    "ssm_state_size": 8,
    "chunk_size": 8,
    # tables of embeddings that no text here reaches
    "vocab_size_per_layer_input": 61,
    "hidden_size_per_layer_input": 8,
    "entity_vocab_size": 20,
    "entity_emb_size": 8,
}
"""Set where a configuration has a number of its own there: what is off by default stays off."""

MORE_TYPE_SIZES: Mapping[str, Mapping[str, Any]] = {
    # Rotated channels come in pairs: a quarter of a head of 12 is none.
    "stablelm": {"hidden_size": 64},
    "neomme": {"head_dim": 16},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    # No default for what the constructor needs.
    "hunyuan_v1_dense": {"head_dim": 12},
    "hunyuan_v1_moe": {"head_dim": 12, "num_experts": 4, "moe_topk": 2},
    "ministral": {"head_dim": 12},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "t5gemma": {"is_encoder_decoder": False},
    "xmod": {"default_language": "en_XX"},
    # By default only every 8th layer (or none) is attention.
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
    },
    "bailing_hybrid": {"layer_group_size": 2},
    # Kinds of layers are given as a pattern.
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    # Tables of sounds and shapes of characters, cut as the vocabulary is.
    "roc_bert": {"shape_vocab_size": 61, "pronunciation_vocab_size": 61},
}
"""Further fields for one type, with the reason above them."""
