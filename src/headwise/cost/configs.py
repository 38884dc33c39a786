"""A model read from a Hugging Face ``config.json``.

A configuration states sizes; which parts have a bias or a gate is a fact of the family's code
(`headwise.cost.families`). A family that is not there is read as a LLaMA if it has the fields of
one, and the report says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.cost.families import FAMILIES, Family, Get, llama_like
from headwise.cost.models import Block, FeedForward, Model, same_layers
from headwise.errors import UsageError, did_you_mean
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim")
_DROPOUT = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Names under which families state the same size."""

_REFUSED: Mapping[str, str] = {
    "kv_lora_rank": N_("keys and values are stored compressed, which is not covered"),
    "num_local_experts": N_("of a mixture of experts only some work on a token: not covered"),
    "num_experts": N_("of a mixture of experts only some work on a token: not covered"),
    "n_routed_experts": N_("of a mixture of experts only some work on a token: not covered"),
}


def read_config(path: Path) -> Model:
    """The model of a configuration file.

    Raises:
        UsageError: if there is no such file, or no configuration in it.
        SpecError: for sizes that contradict each other.
    """
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        folder = path.parent
        near = did_you_mean(path.name, [other.name for other in folder.glob("*")])
        raise UsageError(
            _("the configuration can't be read: {path}").format(path=path),
            why=str(error.strerror or error),
            fix=_("did you mean {near!r}?").format(near=str(folder / near)) if near else "",
        ) from error
    except ValueError as error:
        raise UsageError(
            _("{path} is not JSON").format(path=path),
            why=str(error),
            fix=_("the config.json of a Hugging Face model"),
        ) from error
    if not isinstance(config, dict):
        raise UsageError(
            _("{path} holds no configuration").format(path=path),
            why=_("a configuration is an object of names and values"),
        )
    return from_config(config, name=str(config.get("_name_or_path") or path), source=str(path))


def from_config(config: Mapping[str, Any], *, name: str, source: str = "") -> Model:
    """The model that a Hugging Face configuration describes.

    Args:
        config: its fields.
        name: how to call the model.
        source: where the configuration is from.

    Raises:
        UsageError: for a family that can't be read, or fields that are missing.
        SpecError: for sizes that contradict each other.

    Example:
        >>> tiny = {
        ...     "model_type": "llama",
        ...     "hidden_size": 64,
        ...     "num_hidden_layers": 2,
        ...     "num_attention_heads": 4,
        ...     "intermediate_size": 128,
        ...     "vocab_size": 100,
        ... }
        >>> model = from_config(tiny, name="tiny")
        >>> model.layers, model.blocks[0].ffn
        (2, FeedForward(width=128, gated=True, bias=False))
    """
    if isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]

    def get(*names: str, default: Any = None) -> Any:
        return next((config[one] for one in names if config.get(one) is not None), default)

    kind = str(get("model_type", default=""))
    family, notes = _family(kind, get, name)
    layers = _required(get, name, *_LAYERS)
    d_model = _required(get, name, *_WIDTH)
    specs = [_spec(config, get, kind, family, layer, name) for layer in range(layers)]
    ffn = FeedForward(
        width=get(*_HIDDEN, default=4 * d_model),
        gated=family.gated,
        bias=family.ffn_bias or bool(get("mlp_bias", default=False)),
    )
    rows = get(family.positions_field) if family.positions_field else 0
    tied = bool(get("tie_word_embeddings", default=family.tied))
    return Model(
        name=name,
        source=source,
        blocks=tuple(
            Block(count=count, attention=spec, ffn=ffn, norms=family.norms)
            for count, spec in same_layers(specs)
        ),
        vocabulary=get("vocab_size", default=0),
        head=("tied" if tied else "untied") if family.head == "lm" else family.head,
        head_bias=family.head_bias and not tied,
        learned_positions=(rows or 0) + family.extra_positions,
        token_types=0 if family.causal else get("type_vocab_size", default=0),
        outer_norms=family.outer_norms,
        norm_vectors=family.norm_vectors,
        longest=get("max_position_embeddings", "n_positions", "n_ctx"),
        notes=tuple(notes),
    )


def _family(kind: str, get: Get, name: str) -> tuple[Family, list[str]]:
    for field, reason in _REFUSED.items():
        if get(field):
            raise UsageError(
                _("the model type {kind!r} is not covered").format(kind=kind),
                where=f"{name}: {field}={get(field)}",
                why=_(reason),
            )
    if get("is_encoder_decoder", default=False):
        raise UsageError(
            _("the model type {kind!r} is not covered").format(kind=kind),
            where=f"{name}: is_encoder_decoder=true",
            why=_("its configuration does not describe two stacks in a form common to families"),
            fix=_("built in are transformer-base, transformer-big and t5-11b"),
        )
    if kind in FAMILIES:
        return FAMILIES[kind], []
    if get("rms_norm_eps") is not None and get("intermediate_size") is not None:
        note = _("the model type {kind!r} is not known: it was read as a LLaMA").format(kind=kind)
        return Family(spec=llama_like), [note]
    near = did_you_mean(kind, FAMILIES)
    raise UsageError(
        _("the model type {kind!r} is not known").format(kind=kind),
        where=name,
        why=_("which parts have a bias or a gate is a fact of a family's code, not of its config"),
        fix=(_("did you mean {near!r}?").format(near=near) if near else _("one of: {families}"))
        .format(families=", ".join(FAMILIES)),
    )  # fmt: skip


def _spec(
    config: Mapping[str, Any], get: Get, kind: str, family: Family, layer: int, name: str
) -> AttentionSpec:
    if family.spec is None:
        # How the angles of a rotation are scaled costs nothing, so it need not be understood.
        plain = {key: value for key, value in config.items() if key != "rope_scaling"}
        if isinstance(plain.get("rope_parameters"), Mapping):
            theta = plain["rope_parameters"].get("rope_theta")
            plain["rope_parameters"] = {"rope_type": "default"}
            if theta is not None:
                plain["rope_theta"] = theta
        return AttentionSpec.from_hf_config(plain, layer=layer).replace(**_bert_output(kind))
    heads = _required(get, name, *_HEADS)
    fields: dict[str, Any] = {
        "d_model": _required(get, name, *_WIDTH),
        "num_heads": heads,
        "num_kv_heads": get("num_key_value_heads", default=heads),
        "head_dim": get("head_dim"),
        "is_causal": family.causal,
        "dropout": float(get(*_DROPOUT, default=0.0)),
    }
    return AttentionSpec(**(fields | family.spec(get, layer)))


def _bert_output(kind: str) -> dict[str, Any]:
    """BERT's output projection has a bias; its code keeps it outside of the self-attention."""
    return {"biases": "qkvo"} if kind == "bert" else {}


def _required(get: Get, name: str, *fields: str) -> int:
    value = get(*fields)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            _("the configuration states no {field}").format(field=fields[0]),
            where=f"{name}: {fields[0]}={value!r}",
            fix=_("a count from 1 up under one of the names {names}").format(
                names=", ".join(fields)
            ),
        )
    return value
