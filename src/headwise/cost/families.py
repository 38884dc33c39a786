"""What Hugging Face configurations leave out: facts of the code of model families.

Which parts have a bias, whether the feed-forward part has a gate, how many norms a block has and
how many vectors a norm stores: none of it is in a ``config.json``. Every entry is compared by the
tests with the parameters of the model that transformers builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headwise.spec import Alibi, QkNorm, Rope

Get = Callable[..., Any]
Read = Callable[[Get, int], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the configurations of a family leave out.

    Args:
        gated: the feed-forward part has a gate.
        ffn_bias: it has biases.
        norm_vectors: numbers per channel that a norm stores: 1 (gain), 2 (gain and bias) or 0.
        norms: norms per block.
        outer_norms: norms before or after all blocks.
        head: ``lm`` (a product with the vocabulary), ``pooler``, or None.
        head_bias: whether an untied head has a bias.
        tied: whether the head shares the embedding if the configuration does not say.
        causal: whether self-attention is causal.
        spec: what differs in its attention, by layer; None = read it by
            ``AttentionSpec.from_hf_config``.
        positions_field: name of the field with the rows of a learned table of positions.
        extra_positions: rows that the table has beyond those.
    """

    gated: bool = True
    ffn_bias: bool = False
    norm_vectors: int = 1
    norms: int = 2
    outer_norms: int = 1
    head: Literal["lm", "pooler"] | None = "lm"
    head_bias: bool = False
    tied: bool = False
    causal: bool = True
    spec: Read | None = None
    positions_field: str = ""
    extra_positions: int = 0


def rotary(get: Get, biases: str = "", **more: Any) -> dict[str, Any]:
    """The attention of a rotary decoder; a window if the configuration has one."""
    window = get("sliding_window")
    return {
        "biases": biases,
        "positions": Rope(pairs="halves"),
        "window": None if window is None else (window - 1, 0),
        **more,
    }


def llama_like(get: Get, layer: int) -> dict[str, Any]:
    """A rotary decoder whose configuration says whether its projections have a bias."""
    del layer
    return rotary(get, "qkvo" if get("attention_bias") else "")


def _rotary(biases: str = "") -> Read:
    return lambda get, layer: rotary(get, biases)


def _plain(biases: str = "") -> Read:
    return lambda get, layer: {"biases": biases}


def _gemma2(get: Get, layer: int) -> dict[str, Any]:
    found = rotary(get, window=None, softcap=get("attn_logit_softcapping"))
    kinds = get("layer_types")
    slides = kinds[layer] == "sliding_attention" if kinds else layer % 2 == 0
    if slides and get("sliding_window"):
        found["window"] = (get("sliding_window") - 1, 0)
    return found


def _gemma3(get: Get, layer: int) -> dict[str, Any]:
    found = _gemma2(get, layer) | {"softcap": None, "qk_norm": QkNorm()}
    every = get("sliding_window_pattern", "_sliding_window_pattern", default=6)
    if not get("layer_types") and (layer + 1) % every == 0:
        found["window"] = None
    return found


def _gpt_neo(get: Get, layer: int) -> dict[str, Any]:
    kinds = get("attention_layers", default=[])
    local = layer < len(kinds) and kinds[layer] == "local"
    return {"biases": "o", "window": (get("window_size") - 1, 0) if local else None}


def _falcon(get: Get, layer: int) -> dict[str, Any]:
    del layer
    heads = get("num_attention_heads", "n_head")
    grouped = get("num_kv_heads", default=heads) if get("new_decoder_architecture") else None
    several = 1 if get("multi_query", default=True) else heads
    return {
        "biases": "qkvo" if get("bias") else "",
        "num_kv_heads": several if grouped is None else grouped,
        "positions": Alibi() if get("alibi") else Rope(pairs="halves"),
    }


def _bigcode(get: Get, layer: int) -> dict[str, Any]:
    del layer
    heads = get("num_attention_heads", "n_head")
    return {"biases": "qkvo", "num_kv_heads": 1 if get("multi_query", default=True) else heads}


def _stablelm(get: Get, layer: int) -> dict[str, Any]:
    del layer
    return rotary(get, "qkv" if get("use_qkv_bias") else "")


_POSITIONS = "max_position_embeddings"
_PLAIN = {"gated": False, "ffn_bias": True, "norm_vectors": 2}
_ENCODER = {**_PLAIN, "causal": False, "positions_field": _POSITIONS, "head": "pooler"}


def _family(shared: Mapping[str, Any], **more: Any) -> Family:
    return Family(**{**shared, **more})


FAMILIES: Mapping[str, Family] = {
    "bert": _family(_ENCODER),
    "roberta": _family(_ENCODER, spec=_plain("qkvo")),
    "xlm-roberta": _family(_ENCODER, spec=_plain("qkvo")),
    "distilbert": _family(_ENCODER, spec=_plain("qkvo"), head=None),
    "gpt2": _family(_PLAIN, tied=True, positions_field="n_positions"),
    "gpt_neo": _family(_PLAIN, tied=True, positions_field=_POSITIONS, spec=_gpt_neo),
    "gpt_bigcode": _family(_PLAIN, tied=True, positions_field="n_positions", spec=_bigcode),
    "gptj": _family(_PLAIN, norms=1, head_bias=True, spec=_rotary()),
    "codegen": _family(_PLAIN, norms=1, head_bias=True, spec=_rotary()),
    "gpt_neox": _family(_PLAIN, spec=_rotary("qkvo")),
    "opt": _family(
        _PLAIN, tied=True, positions_field=_POSITIONS, extra_positions=2, spec=_plain("qkvo")
    ),
    "bloom": _family(_PLAIN, tied=True, outer_norms=2, spec=_plain("qkvo")),
    "falcon": Family(gated=False, norm_vectors=2, norms=1, tied=True, spec=_falcon),
    "phi": _family(_PLAIN, norms=1, head_bias=True, spec=_rotary("qkvo")),
    "starcoder2": _family(_PLAIN, tied=True, spec=_rotary("qkvo")),
    "stablelm": Family(norm_vectors=2, spec=_stablelm),
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "smollm3": Family(tied=True),
    "phi3": Family(spec=llama_like),
    "granite": Family(spec=llama_like),
    "helium": Family(spec=llama_like),
    "olmo": Family(norm_vectors=0, spec=llama_like),
    "cohere": Family(norms=1, tied=True, spec=llama_like),
    "gemma": Family(tied=True, spec=_rotary()),
    "gemma2": Family(tied=True, norms=4, spec=_gemma2),
    "gemma3_text": Family(tied=True, norms=4, spec=_gemma3),
}
"""Families by ``model_type``."""
