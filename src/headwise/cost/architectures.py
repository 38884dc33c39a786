"""Published models and machines as facts with their sources, in ``data/*.json``.

Models are written as their authors publish them: as a Hugging Face configuration, read like any
other, or as two stacks for the encoder-decoder models. Names are found in any case, with spaces or
hyphens, by key, by name or by address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from headwise.cost.configs import from_config
from headwise.cost.models import Block, FeedForward, Model
from headwise.errors import UsageError, did_you_mean
from headwise.spec import AttentionSpec, RelativeBias
from headwise.texts import translate as _


@dataclass(frozen=True)
class Architecture:
    """A published model.

    Args:
        key: what the command line calls it.
        name: as its authors write it.
        source: where its sizes are written down.
        also: further names, such as its address on Hugging Face.
        facts: what is written there.
    """

    key: str
    name: str
    source: str
    also: tuple[str, ...]
    facts: Mapping[str, Any]

    def model(self) -> Model:
        """It as a model whose cost can be told.

        Example:
            >>> find_architecture("LLaMA-2 70B").model().spec.num_kv_heads
            8
        """
        if "config" in self.facts:
            return from_config(self.facts["config"], name=self.name, source=self.source)
        return _two_stacks(self.name, self.source, self.facts["stacks"])


@lru_cache(maxsize=1)
def architectures() -> Mapping[str, Architecture]:
    """All of them by key, in the order of the file.

    Example:
        >>> len(architectures()) >= 16, architectures()["gpt2"].name
        (True, 'GPT-2 small')
    """
    return {
        entry["key"]: Architecture(
            entry["key"], entry["name"], entry["source"], tuple(entry["also"]), entry
        )
        for entry in read_data("architectures.json")["architectures"]
    }


def find_architecture(name: str) -> Architecture:
    """The published model of a name.

    Raises:
        UsageError: if it is unknown, with the nearest name.

    Example:
        >>> find_architecture("llama 2 70b").source.startswith("arXiv 2307.09288")
        True
    """
    known = {
        _plain(word): one.key
        for one in architectures().values()
        for word in (one.key, one.name, *one.also)
    }
    if _plain(name) in known:
        return architectures()[known[_plain(name)]]
    near = did_you_mean(_plain(name), known)
    raise UsageError(
        _("there is no built-in model {name!r}").format(name=name),
        where=f"headwise cost {name}",
        fix=_("did you mean {near!r}?").format(near=known[near])
        if near
        else _("--config FILE for a configuration, or one of: {names}").format(
            names=", ".join(architectures())
        ),
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def read_data(file: str) -> Any:
    """A data file of this package."""
    text = resources.files("headwise.cost").joinpath("data", file).read_text(encoding="utf-8")
    return json.loads(text)


def _two_stacks(name: str, source: str, facts: Mapping[str, Any]) -> Model:
    """An encoder and a decoder of equal sizes, as in the original Transformer."""
    buckets = facts["relative_buckets"]
    shared = {
        "d_model": facts["d_model"],
        "num_heads": facts["num_heads"],
        "head_dim": facts["head_dim"],
        "dropout": facts["dropout"],
    }
    looking = AttentionSpec(**shared)
    writing = AttentionSpec(**shared, is_causal=True)
    ffn = FeedForward(width=facts["ffn_width"], bias=facts["ffn_bias"])

    def stack(count: int, *, first: bool, decoder: bool) -> Block:
        spec = writing if decoder else looking
        if first:  # the others share the table of the first layer
            table = RelativeBias(num_buckets=buckets, bidirectional=not decoder)
            spec = spec.replace(positions=table)
        return Block(
            count=count,
            attention=spec,
            cross=looking if decoder else None,
            ffn=ffn,
            norms=3 if decoder else 2,
            stack="decoder" if decoder else "encoder",
        )

    layers = facts["layers"]
    blocks = []
    for decoder in (False, True):
        if buckets:
            blocks.append(stack(1, first=True, decoder=decoder))
        blocks.append(stack(layers - bool(buckets), first=False, decoder=decoder))
    is_rms = facts["norm"] == "rms"
    return Model(
        name=name,
        source=source,
        blocks=tuple(blocks),
        vocabulary=facts["vocabulary"],
        head="tied",
        outer_norms=2 if is_rms else 0,  # before the blocks, the last sum is normed once more
        norm_vectors=1 if is_rms else 2,
    )
