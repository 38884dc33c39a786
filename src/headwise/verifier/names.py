"""Names that attention code uses for things, so that a signature can be bound without asking.

Names only propose; whatever they propose is confirmed by measurement or printed as inferred.
"""

from __future__ import annotations

import re

SIZES: dict[str, tuple[str, ...]] = {
    "d_model": (
        "d_model", "embed_dim", "dim", "hidden_size", "n_embd", "emb_dim", "model_dim",
        "n_state", "embedding_dim", "hidden_dim", "hidden", "width", "channels", "d_embed",
        "input_dim", "in_dim", "in_features", "features", "d_in", "embed_size", "emb_size",
        "query_dim", "size", "d",
    ),
    "num_heads": (
        "num_heads", "n_heads", "heads", "n_head", "nhead", "num_head", "num_attention_heads",
        "nheads", "h", "head", "head_num", "q_heads", "num_q_heads", "num_query_heads",
    ),
    "num_kv_heads": (
        "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head", "kv",
        "num_kv", "n_kv", "nheads_k", "num_groups", "n_query_groups", "groups", "kvh", "g",
    ),
    "head_dim": (
        "head_dim", "d_head", "dim_head", "d_k", "dk", "head_size", "dim_per_head", "qk_dim",
        "attention_head_size", "head_width", "depth", "hd",
    ),
    "v_head_dim": ("v_head_dim", "d_v", "dv", "value_head_dim", "v_dim"),
    "d_context": ("d_context", "kdim", "context_dim", "memory_dim", "d_mem", "cross_dim", "kv_dim"),
    "d_values": ("d_values", "vdim", "value_dim", "d_val"),
    "max_len": (
        "max_len", "max_seq_len", "block_size", "context_length", "seq_len", "n_ctx",
        "max_position_embeddings", "max_length", "context_size", "ctx_len", "maxlen",
    ),
}  # fmt: skip
"""Constructor arguments and attributes, by the word of the specification that they carry."""

SPEC_WORDS = (
    "d_model", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "d_context", "d_values",
    "causal", "window", "rope", "rotary_dim", "rope_base", "positions", "alibi", "softcap",
    "sinks", "scale", "dropout", "qk_norm", "biases",
)  # fmt: skip
"""Words that describe a layer, as ``AttentionSpec.from_flags`` takes them."""

DROPOUTS = (
    "dropout", "p", "attn_dropout", "attention_dropout", "dropout_p", "drop", "attn_drop",
    "proj_drop", "resid_dropout", "dropout_rate", "attn_pdrop", "resid_pdrop",
)  # fmt: skip
CAUSAL_FLAGS = ("is_causal", "causal", "use_causal_mask", "masked", "autoregressive")

INPUTS = (
    "x", "hidden_states", "query", "inputs", "input", "src", "q", "tokens", "h", "embeddings",
    "queries", "hidden_state", "tgt", "inp", "x_q", "seq", "z", "embeds",
)  # fmt: skip
QUERIES = ("q", "query", "queries", "query_states", "Q", "xq", "query_layer")
KEYS = ("k", "key", "keys", "key_states", "K", "xk", "key_layer")
VALUES = ("v", "value", "values", "value_states", "V", "xv", "value_layer")
CONTEXTS = (
    "context", "ctx", "memory", "mem", "encoder_hidden_states", "key_value_states", "kv",
    "encoder_out", "cond", "y", "x_kv", "encoder_output", "cross", "source", "kv_states",
)  # fmt: skip
DOCUMENTS = (
    "documents",
    "docs",
    "doc",
    "segment_ids",
    "document_ids",
    "doc_ids",
    "seq_ids",
    "segments",
)
POSITION_IDS = ("position_ids", "positions", "pos_ids", "input_pos", "pos", "token_positions")
ROTARY_TABLES = ("position_embeddings", "rotary_emb", "rope_tables", "cos_sin", "rotary_tables")
WEIGHT_FLAGS = ("need_weights", "output_attentions", "return_weights", "return_attention",
                "return_attn", "return_attention_scores", "need_attn")  # fmt: skip

CACHES = ("past", "past_kv", "past_key_value", "past_key_values", "layer_past", "kv_cache",
          "cache", "past_kvs", "kv_past", "state", "prev", "previous", "memory_kv")  # fmt: skip
CACHE_FLAGS = ("use_cache", "return_cache", "return_past", "return_kv", "return_state",
               "use_kv_cache")  # fmt: skip
STARTS = ("start", "start_pos", "offset", "past_len", "past_length", "pos_offset", "cache_len",
          "position", "seen")  # fmt: skip
CACHE_SIZES: dict[str, tuple[str, ...]] = {
    "batch": ("batch", "batch_size", "max_batch", "max_batch_size", "b"),
    "length": ("max_len", "max_length", "max_seq_len", "length", "capacity", "max_tokens", "size"),
    "dtype": ("dtype",),
    "device": ("device",),
}
"""Arguments of a function that makes a cache."""

KEEP_NAMES = ("keep", "valid", "is_real", "real", "attention_mask", "keep_mask", "valid_mask",
              "token_mask", "nonpad", "key_keep")  # fmt: skip
IGNORE_NAMES = ("key_padding_mask", "padding_mask", "pad", "pad_mask", "hide", "hidden", "ignore",
                "src_key_padding_mask", "padding", "mask_out", "is_pad", "ignore_mask",
                "memory_key_padding_mask", "blocked")  # fmt: skip
NEUTRAL_MASKS = ("mask", "attn_mask", "src_mask", "m", "attention_bias", "key_mask", "kv_mask",
                 "ctx_mask", "context_mask", "memory_mask", "encoder_attention_mask",
                 "input_mask", "bias_mask")  # fmt: skip
QUERY_MASKS = ("query_mask", "q_mask", "query_keep", "query_padding_mask", "x_mask")
FULL_MASKS = ("attn_mask", "src_mask")
"""Mask arguments that carry a (Tq, Tk) mask in torch's own layers."""


def word_of(name: str) -> str | None:
    """The word of the specification that an argument or attribute name carries.

    Example:
        >>> word_of("n_kv_heads"), word_of("colour")
        ('num_kv_heads', None)
    """
    for word, names in SIZES.items():
        if name.lstrip("_") in names:
            return word
    return None


_FILLER = {"proj", "projection", "linear", "lin", "layer", "w", "to", "fc", "net", "weight",
           "weights", "bias", "b", "matrix", "mat", "transform"}  # fmt: skip
_OUT = {"o", "wo", "out", "output", "dense", "final", "unifyheads", "unify", "merge", "outproj",
        "linearout", "combine", "back", "mix", "post"}  # fmt: skip


def tokens(name: str) -> list[str]:
    """A name cut at dots, underscores and capitals, in lower case.

    Example:
        >>> tokens("attn.W_Q"), tokens("queryProj"), tokens("to_out.0.weight")
        (['attn', 'w', 'q'], ['query', 'proj'], ['to', 'out', '0', 'weight'])
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [t for t in re.split(r"[._]+", spaced.lower()) if t]


def role_of(name: str) -> str | None:
    """What a parameter is, by its name: q, k, v, o, qkv, kv, q_norm, k_norm, sinks or positions.

    Example:
        >>> [role_of(n) for n in ("q_proj.weight", "Wqkv.weight", "to_out.0.bias", "c_proj.weight")]
        ['q', 'qkv', 'o', 'o']
    """
    words = tokens(name)
    while words and (words[-1] in ("weight", "bias") or words[-1].isdigit()):
        words.pop()
    if name.rsplit(".", maxsplit=1)[-1] in ("in_proj_weight", "in_proj_bias"):
        return "qkv"
    return _role(words[-3:])


def _role(words: list[str]) -> str | None:
    seen = {w.removeprefix("to") if len(w) > 3 else w for w in words}  # "toqueries"
    letters = {
        w[1:] if len(w) > 1 and w[0] == "w" and set(w[1:]) <= set("qkvo") else w for w in seen
    }
    has_q = bool(letters & {"q", "query", "queries", "qs"})
    has_k = bool(letters & {"k", "key", "keys", "ks"})
    has_v = bool(letters & {"v", "value", "values", "vs"})
    if seen & {"norm", "ln", "layernorm", "rmsnorm", "gain", "gamma"} or any(
        "norm" in w for w in seen
    ):
        if has_q or any(w.startswith("q") and "norm" in w for w in seen):
            return "q_norm"
        if has_k or any(w.startswith("k") and "norm" in w for w in seen):
            return "k_norm"
        return None
    if seen & {"sink", "sinks"}:
        return "sinks"
    if seen & {"wpe", "pos", "position", "positions", "positional"}:
        return "positions"
    if seen & {"relative", "rel"}:
        return "relative_bias"
    if (has_q and has_k and has_v) or any(sorted(w) == list("kqv") for w in letters):
        return "qkv"
    if (has_k and has_v) or any(sorted(w) == list("kv") for w in letters):
        return "kv"
    if has_q:
        return "q"
    if has_k:
        return "k"
    if has_v:
        return "v"
    if letters & _OUT:
        return "o"
    if {"in", "proj"} <= seen or {"c", "attn"} <= seen or words[-1:] == ["attn"]:
        return "qkv"
    if {"c", "proj"} <= seen or words[-1:] in (["proj"], ["projection"], ["fc"]):
        return "o"
    return None


def fused_order(name: str) -> str | None:
    """The order of blocks that a fused parameter's own name spells, such as ``kqv``."""
    for word in tokens(name):
        letters = word.removeprefix("w")
        if sorted(letters) == list("kqv"):
            return letters
    return None
