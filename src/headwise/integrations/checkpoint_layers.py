"""A layer inside a checkpoint as a target of ``verify``: our layer, with the weights of the file.

The target's parameters are the tensors of the file, as they are. On every call they go through the
mapping of the loader into our layer; the definition reads the same tensors by a table of its own
(`HOMES`). So a wrong mapping, a wrong pairing or a lost bias makes the two differ, in results and
in gradients.

Weights as they are can hide a fault: where a bias is zero, no result shows whether it is used. So
the two ways of reading are also compared on numbers that are all different (`compare_mappings`);
where they differ, the verdict rests on random parameters, which hide nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attend.module import MultiHeadAttention
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Names, with_pairs
from headwise.checkpoints.load import Model, load
from headwise.checkpoints.mapping import Entry
from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.source import TensorSource
from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.reference import Parameters
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _
from headwise.verifier.binding import bind_layer
from headwise.verifier.faults import FAULTS
from headwise.verifier.layouts import declared_layout
from headwise.verifier.subject import Evidence, Subject


@dataclass(frozen=True)
class Home:
    """Where the files of a family keep a layer, beside what the loader says of it.

    Args:
        module: its path in a model of transformers, ``{n}`` for the number.
        parts: attributes under it, by role.
        layout: how they are stored, in the words of ``HEADWISE["weights"]``.
        prefixes: what may stand before the path in a file.
        other: further paths that mean the layer.
    """

    module: str
    parts: Mapping[str, str]
    layout: str = "separate"
    prefixes: tuple[str, ...] = ("", "model.")
    other: tuple[str, ...] = ()


_LLAMA = Home("layers.{n}.self_attn", {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"})
HOMES: Mapping[str, Home] = {
    "gpt2": Home("h.{n}.attn", {"qkv": "c_attn", "o": "c_proj"}, "conv1d", ("", "transformer.")),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "bert": Home(
        "encoder.layer.{n}.attention",
        {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"},
        prefixes=("", "bert."),
        other=("encoder.layer.{n}.attention.self",),
    ),
}
"""By ``model_type``. Source: the modules of transformers, ``modeling_gpt2.py`` and so on."""

_SEPARATE = Home(
    "blk.{n}",
    {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"},
    prefixes=("",),
)
GGUF: Mapping[str, Home] = dict.fromkeys(HOMES, _SEPARATE) | {
    "gpt2": Home("blk.{n}", {"qkv": "attn_qkv", "o": "attn_output"}, "packed-chunks", ("",))
}
"""The same in GGUF files. Source: ``gguf.constants.TENSOR_NAMES``."""

OURS = "blocks.{n}.attention"
"""Path of a layer in our stack."""


class FileLayer(nn.Module):
    """One attention layer of a stack, whose parameters are the tensors of a file.

    Args:
        tensors: by their names in the file.
        entries: what each of them is in our layer.
        layer: where it stands in the stack, ``blocks.3.attention``.
        spec: of our layer.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        entries: tuple[Entry, ...],
        layer: str,
        spec: AttentionSpec,
    ) -> None:
        super().__init__()
        self._entries, self._layer = entries, layer
        # Not a child: it has no memory, its parameters are handed over with every call.
        self._empty = (MultiHeadAttention(spec, device="meta"),)
        for name, tensor in tensors.items():
            place: nn.Module = self
            *path, leaf = name.split(".")
            for part in path:
                if not hasattr(place, part):
                    place.add_module(part, nn.Module())
                place = getattr(place, part)
            place.register_parameter(leaf, nn.Parameter(tensor))

    def mapped(self) -> dict[str, Tensor]:
        """The parameters of our layer, made of those of the file."""
        held = dict(self.named_parameters())
        found = {}
        for entry in self._entries:
            parts = entry.transform.load(held[entry.theirs])
            for name, part in zip(entry.ours, parts, strict=True):
                found[name.removeprefix(f"{self._layer}.")] = part
        return found

    @functools.wraps(MultiHeadAttention.forward)  # the arguments are found by its signature
    def forward(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        (layer,) = self._empty
        layer.train(self.training)
        return torch.func.functional_call(layer, self.mapped(), args, kwargs)


@dataclass(frozen=True, kw_only=True)
class LayerTarget:
    """A layer of a checkpoint that was read in both ways.

    Args:
        model: what was loaded.
        index: number of the layer.
        layer: ours, on the tensors of the file.
        spec: what the configuration says the layer is.
        weights: where the definition finds its parameters, in the words of a declaration.
        tensors: names in the file.
        differences: what the mapping of the loader takes from elsewhere than the definition.
    """

    model: Model
    index: int
    layer: FileLayer
    spec: AttentionSpec
    weights: Mapping[str, str]
    tensors: tuple[str, ...]
    differences: tuple[str, ...] = field(default=())


def layer_of(place: str, name: str) -> LayerTarget:
    """Load a checkpoint and read one of its attention layers in both ways.

    Args:
        place: a folder, a file, or the name of a pulled model.
        name: ``layers.3.self_attn`` as transformers calls it, or ``blocks.3.attention`` as our
            stack does.

    Raises:
        UsageError: there is no such layer, or the checkpoint can't be loaded.
        TargetError: the file does not hold the layer where its family keeps it.
    """
    model = load(place)
    index = _index(model, place, name)
    source = open_checkpoint(model.path)
    try:
        return _read(model, source, index, f"{place}:{name}")
    finally:
        source.close()


def _index(model: Model, place: str, name: str) -> int:
    """The number of the layer that a path means."""
    home, count = HOMES[model.family], model.spec.layers
    known: dict[str, int] = {}
    for n in range(count):
        for path in (home.module, *home.other):
            known.update({f"{prefix}{path.format(n=n)}": n for prefix in home.prefixes})
        known[OURS.format(n=n)] = n
    if name in known:
        return known[name]
    near = did_you_mean(name, known)
    first, last = (home.module.format(n=n) for n in (0, count - 1))
    raise UsageError(
        _("{place} has no attention layer {name!r}").format(place=place, name=name),
        where=f"{place}:{name}",
        why=_("it has {count} layers, {first} to {last}, or {ours} in our names").format(
            count=count, first=first, last=last, ours=OURS.format(n=0)
        ),
        fix=_("did you mean {near!r}?").format(near=f"{place}:{near}")
        if near
        else f"{place}:{first}",
    )


def _read(model: Model, source: TensorSource, index: int, label: str) -> LayerTarget:
    family = FAMILIES[model.family]
    gguf = family.gguf if source.format == "gguf" else None
    spec, pairs, layout_of = model.spec, "halves", family.layout
    fields: Mapping[str, Any] = model.config
    if gguf is not None:
        pairs, layout_of, fields = gguf.pairs, gguf.layout, gguf.config(source)
        spec = with_pairs(spec, gguf.pairs)
    names = Names(
        spec=spec,
        parameters=model.stack.state_dict(),
        has=source.tensors.keys(),
        pairs=pairs,  # type: ignore[arg-type]
    )
    ours = OURS.format(n=index)
    entries = tuple(
        entry
        for entry in layout_of(names).entries
        if any(name.startswith(f"{ours}.") for name in entry.ours)
    )
    home = (HOMES if gguf is None else GGUF)[model.family]
    weights = _weights(source, home, index, label)
    tensors = [entry.theirs for entry in entries]
    for attribute in (value for role, value in weights.items() if role != "layout"):
        tensors += [f"{attribute}.{leaf}" for leaf in ("weight", "bias")]
    present = [name for name in dict.fromkeys(tensors) if name in source.tensors]
    dtype = model.stack.blocks[index].attention.q_proj.weight.dtype  # type: ignore[union-attr]
    held = {name: source.read(name, dtype=dtype) for name in present}  # type: ignore[arg-type]
    layer = FileLayer(held, entries, ours, model.spec.attention[index]).eval()
    stated = AttentionSpec.from_hf_config(fields, layer=index)
    if stated.rope is not None and model.pairing is not None:
        rope = dataclasses.replace(stated.rope, pairs=model.pairing.pairs)
        stated = stated.replace(positions=rope)
    return LayerTarget(
        model=model,
        index=index,
        layer=layer,
        spec=stated,
        weights=weights,
        tensors=tuple(present),
        differences=compare_mappings(layer, stated, weights),
    )


def _weights(source: TensorSource, home: Home, index: int, label: str) -> dict[str, str]:
    """Where the definition finds its parameters."""
    for prefix in home.prefixes:
        path = prefix + home.module.format(n=index)
        parts = {role: f"{path}.{name}" for role, name in home.parts.items()}
        if all(f"{attribute}.weight" in source.tensors for attribute in parts.values()):
            return {"layout": home.layout, **parts}
    raise TargetError(
        _("the tensors of {label} are not where the files of its family keep them").format(
            label=label
        ),
        where=str(source.path),
        why=_("expected {names}").format(
            names=", ".join(
                f"{home.module.format(n=index)}.{name}.weight" for name in home.parts.values()
            )
        ),
    )


# ---------------------------------------------------------------------------------- comparing
def compare_mappings(
    layer: FileLayer, spec: AttentionSpec, weights: Mapping[str, str]
) -> tuple[str, ...]:
    """Parameters that the loader's mapping takes from elsewhere than the definition does.

    The tensors of the file are filled with numbers that are all different, and both ways of
    reading have to give the same, exactly.

    Args:
        layer: ours, on the tensors of the file.
        spec: what the configuration says.
        weights: where the definition finds its parameters.

    Returns:
        Names in our layer, ``k_proj.weight``; empty if all are the same.
    """
    start, numbered = 0, {}
    for name, tensor in layer.named_parameters():
        numbers = torch.arange(start, start + tensor.numel(), dtype=torch.float64)
        numbered[name] = numbers.reshape(tensor.shape)
        start += tensor.numel()
    wanted = declared_layout(layer, spec, weights).read(numbered)
    found = torch.func.functional_call(
        _Mapped(layer), {f"layer.{n}": t for n, t in numbered.items()}
    )
    return tuple(
        f"{ours}.{leaf}"
        for role, ours in _OURS.items()
        for leaf in ("weight", "bias")
        if not _same(found.get(f"{ours}.{leaf}"), _of(wanted, role, leaf))
    )


_OURS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


class _Mapped(nn.Module):
    """Calls ``mapped`` where ``forward`` would be called."""

    def __init__(self, layer: FileLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> dict[str, Tensor]:
        return self.layer.mapped()


def _of(parameters: Parameters, role: str, leaf: str) -> Tensor | None:
    found: Tensor | None = getattr(parameters, role if leaf == "weight" else f"{role}_bias")
    return found


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


# ---------------------------------------------------------------------- as a target of `verify`
_WORDS = {"causal": "is_causal", "scale": "scale", "softcap": "softcap"}
_SIZES = (
    "d_model", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "d_context", "d_values",
)  # fmt: skip


def subject(place: str, name: str, *, words: Mapping[str, Any], init: Mapping[str, Any]) -> Subject:
    """The subject for ``PATH:LAYER``: our layer on the tensors of the file.

    Args:
        place: a folder, a file, or the name of a pulled model.
        name: path of the layer.
        words: words of the specification that the user declared; they win over the configuration.
        init: has to be empty: the file says everything.

    Raises:
        UsageError: there is no such layer, the checkpoint can't be loaded, or a declared size is
            not that of the file.
        TargetError: the file does not hold the layer where its family keeps it.
    """
    label = f"{place}:{name}"
    if init:
        raise UsageError(
            _("--init says nothing about a layer of a checkpoint"),
            where=label,
            why=_("its configuration and its tensors say what it is"),
        )
    target = layer_of(place, name)
    spec = _declared(target.spec, words, label)
    bound = bind_layer(
        target.layer,
        label,
        {"spec": spec, "weights": dict(target.weights)},
        make=lambda: target.layer,
        padding_mask=None,
        cross=False,
        used={},
    )
    file = inspect.getsourcefile(MultiHeadAttention)
    return dataclasses.replace(
        bound,
        notes={**bound.notes, **_notes(target)},
        # A layer of these families is only ever called on its own sequence.
        offers=bound.offers - {"cross"},
        file=file,
        first_line=inspect.getsourcelines(MultiHeadAttention)[1],
        own_files=frozenset({file} if file else ()),
        keeps_weights=not target.differences,
        evidence=_evidence(target),
    )


def _declared(spec: AttentionSpec, words: Mapping[str, Any], label: str) -> AttentionSpec:
    """The specification with what the user declared."""
    if isinstance(words.get("spec"), AttentionSpec):
        given: AttentionSpec = words["spec"]
        return given
    for size in _SIZES:
        if words.get(size) is not None and words[size] != getattr(spec, size):
            raise UsageError(
                _("the file says {name}={value}, and {given} was declared").format(
                    name=size, value=getattr(spec, size), given=words[size]
                ),
                where=label,
                fix=_("leave it out: sizes are read from the checkpoint"),
            )
    changes = {field: words[word] for word, field in _WORDS.items() if words.get(word) is not None}
    if words.get("window") is not None:
        changes["window"] = tuple(words["window"])
    turned = {"rope": "pairs", "rope_base": "base", "rotary_dim": "rotary_dim"}
    rope = {field: words[word] for word, field in turned.items() if words.get(word) is not None}
    if rope and spec.rope is None:
        raise UsageError(
            _("the layer has no rotary positions"),
            where=label,
            fix=_("leave out {flags}").format(
                flags=", ".join(f"--{word}".replace("_", "-") for word in turned if word in words)
            ),
        )
    if rope and spec.rope is not None:
        changes["positions"] = dataclasses.replace(spec.rope, **rope)
    return spec.replace(**changes)


def _notes(target: LayerTarget) -> dict[str, str]:
    """What was found out, for the report."""
    model = target.model
    notes = {
        N_("checkpoint"): _("{ours} of the {family} in {path} ({format})").format(
            ours=OURS.format(n=target.index),
            family=model.family,
            path=model.path.name,
            format=model.format,
        ),
        N_("parameters"): (
            _("as they are in the file, not random: {names}")
            if not target.differences
            else _("random, since those of the file could hide the wrong mapping: {names}")
        ).format(names=", ".join(target.tensors)),
        "calls": "forward(x)",
        N_("mapping"): _("the loader puts every number where the definition takes it from")
        if not target.differences
        else _mapping_sentence(target),
    }
    flat = [
        name
        for name, tensor in target.layer.named_parameters()
        if tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
    ]
    if flat:
        notes[N_("shows nothing")] = _("{names}: all numbers in it are equal").format(
            names=", ".join(flat)
        )
    if model.pairing is not None:
        notes[N_("pairs")] = model.pairing.sentence()
    return notes


def _mapping_sentence(target: LayerTarget) -> str:
    return _("the loader fills {names} with other numbers of the file than the definition").format(
        names=", ".join(target.differences)
    )


def _evidence(target: LayerTarget) -> dict[str, Evidence]:
    """Where the mapping is known to be wrong, it is the place to look for whatever is found."""
    if not target.differences:
        return {}
    family = FAMILIES[target.model.family]
    made = (
        family.layout
        if target.model.format != "gguf" or family.gguf is None
        else (family.gguf.layout)
    )
    file = inspect.getsourcefile(made)
    lines = inspect.getsourcelines(made)[1]
    found = Evidence(
        (_mapping_sentence(target),), file, (lines,), _("it maps the names of the file")
    )
    return dict.fromkeys(FAULTS, found)
