"""``load`` and ``save``: a checkpoint as a model that runs, and a model as a checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise.checkpoints.dtypes import DTYPES
from headwise.checkpoints.families import FAMILIES
from headwise.checkpoints.family import Family, Gguf, Names, with_pairs
from headwise.checkpoints.mapping import Account, Layout, read_state, write_state
from headwise.checkpoints.open import open_checkpoint
from headwise.checkpoints.pairing import Pairing, decide
from headwise.checkpoints.pulled import KNOWN, find, path_of
from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.errors import HeadwiseError, UsageError, did_you_mean
from headwise.spec import Pairs
from headwise.texts import translate as _

Format = Literal["safetensors", "gguf", "state-dict"]
FORMATS: tuple[Format, ...] = ("safetensors", "gguf", "state-dict")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that was loaded, and what is known about it.

    Args:
        stack: it runs, in evaluation mode.
        spec: what it is.
        family: its ``model_type``.
        path: the file or folder.
        format: ``safetensors``, ``gguf`` or ``state-dict``.
        config: ``config.json``, or the metadata of a GGUF file.
        account: what became of every tensor.
        pairing: how the rotated pairs of a GGUF file were decided; None for other formats.
        tokenizer: ``tokenizer.json``, or the GGUF file that holds the vocabulary; None = neither.
    """

    stack: Stack
    spec: StackSpec
    family: str
    path: Path
    format: str
    config: Mapping[str, Any]
    account: Account
    pairing: Pairing | None = None
    tokenizer: Path | None = None

    def lines(self) -> list[str]:
        """What was loaded, in words."""
        dtype = str(self.stack.tokens.weight.dtype).removeprefix("torch.")
        return [
            _("{family} from {path} ({format}), in {dtype}").format(
                family=self.family, path=self.path, format=self.format, dtype=dtype
            ),
            *self.account.lines(),
            *([] if self.pairing is None else [self.pairing.sentence()]),
        ]


def load(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Model:
    """Load a model: a folder in the manner of Hugging Face, a GGUF file, a plain state dict.

    Every tensor of the file is used exactly once, or declared by its family and checked.

    Args:
        path_or_name: where it is, or the name of a model that was pulled.
        dtype: of the parameters; None = as stored, float32 for quantised blocks.
        device: of the parameters.
        config: what ``config.json`` would say, for a state dict without one.

    Raises:
        UsageError: if there is no such file, if it can't be read, if its family is not covered,
            or if its tensors are not those of its configuration.
        SpecError: for sizes that contradict each other.
    """
    source = open_checkpoint(_resolve(path_or_name))
    try:
        return from_source(source, dtype=dtype, device=device, config=config)
    finally:
        source.close()


def from_source(
    source: TensorSource,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Model:
    """The same from an opened checkpoint."""
    family, fields, gguf = _family(source, config)
    spec = _spec(source, family, fields)
    rule: Pairs = "halves" if gguf is None else gguf.pairs
    spec = with_pairs(spec, rule)
    layout_of = family.layout if gguf is None else gguf.layout
    empty = _empty(source, spec)
    shapes = {name: tuple(value.shape) for name, value in empty.state_dict().items()}
    layout = layout_of(Names(spec=spec, parameters=shapes, has=source.tensors.keys(), pairs=rule))
    dtype = _stored_dtype(source, layout) if dtype is None else dtype
    state, account = read_state(source, layout, shapes, dtype=dtype)

    def build(pairs: Pairs) -> Stack:
        made = _empty(source, with_pairs(spec, pairs))
        made.load_state_dict(state, assign=True)
        return made.eval()

    pairing = None
    if gguf is not None and any(one.rope is not None for one in spec.attention):
        pairing = decide(build, rule, source.config, where=str(source.path))
    if device is not None:
        state = {name: value.to(device) for name, value in state.items()}
    stack = build(rule if pairing is None else pairing.pairs)
    return Model(
        stack=stack,
        spec=stack.spec,
        family=family.name,
        path=Path(source.path),
        format=source.format,
        config=dict(fields if gguf is None else source.config),
        account=account,
        pairing=pairing,
        tokenizer=_tokenizer(source),
    )


def save(
    model: Model,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    shard_bytes: int | None = None,
) -> None:
    """Write a model: its parameters as they are now, under the names of its family.

    Loading it again gives equal tensors. A model in its own format keeps its configuration, and a
    GGUF file its vocabulary.

    Args:
        model: what to write.
        path: a folder that is new or empty, for ``safetensors`` and ``state-dict`` (which get a
            ``config.json``); a file for ``gguf``.
        format: None = that of the model.
        shard_bytes: largest file of safetensors; None = one file.

    Raises:
        UsageError: for a format that the family or its dtype has no form in, and if it can't be
            written.
    """
    kind = model.format if format is None else format
    if kind not in FORMATS:
        near = did_you_mean(str(kind), FORMATS)
        raise UsageError(
            _("unknown format {word!r}").format(word=kind),
            where="save(model, path, format=…)",
            fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(FORMATS),
        )
    family = FAMILIES[model.family]
    state = model.stack.state_dict()
    if kind == "gguf":
        _save_gguf(model, family, state, Path(path))
        return
    names = Names(spec=model.spec, parameters=state)
    tensors = write_state(state, family.layout(names))
    fields = _config(model, family)
    if kind == "safetensors":
        from headwise.checkpoints.safetensors_files import write_safetensors

        write_safetensors(Path(path), tensors, fields, shard_bytes=shard_bytes)
        return
    import json

    from headwise.checkpoints.state_dicts import write_state_dict
    from headwise.checkpoints.writing import whole_folder

    with whole_folder(Path(path)) as folder:
        write_state_dict(folder / "pytorch_model.bin", tensors)
        text = json.dumps(fields, indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")


# ---------------------------------------------------------------------------------- reading
def _resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The path that is meant; a pulled model by its name."""
    path = Path(path_or_name)
    name = str(path_or_name)
    if path.exists() or (name not in KNOWN and (len(path.parts) > 1 or path.suffix)):
        return path
    folder = path_of(name)
    weights = find(name).weights
    return folder / weights if weights.endswith(".gguf") else folder


def _family(
    source: TensorSource, config: Mapping[str, Any] | None
) -> tuple[Family, Mapping[str, Any], Gguf | None]:
    """The family of a file and its configuration."""
    if source.format == "gguf":
        arch = source.config.get("general.architecture")
        one = next(
            (f.gguf for f in FAMILIES.values() if f.gguf and f.gguf.architecture == arch), None
        )
        if one is None:
            known = sorted({f.gguf.architecture for f in FAMILIES.values() if f.gguf})
            raise UsageError(
                _("the architecture {name!r} is not covered in GGUF files").format(name=arch),
                where=f"{source.path}: general.architecture",
                fix=_("one of {names}").format(names=", ".join(known)),
            )
        with _nobody_checked(source):
            fields: Mapping[str, Any] = one.config(source)
        family = FAMILIES[fields["model_type"]]
        return family, fields, family.gguf
    fields = source.config if config is None else config
    if not fields:
        raise UsageError(
            _("the checkpoint has no configuration"),
            where=str(source.path),
            why=_("tensors alone do not say how many heads there are, or who may look at whom"),
            fix=_("a config.json beside it, or load(path, config=…)"),
        )
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        near = did_you_mean(str(kind), FAMILIES)
        raise UsageError(
            _("the model type {kind!r} is not covered").format(kind=kind),
            where=f"{source.path}: model_type",
            fix=_("did you mean {near!r}?").format(near=near)
            if near
            else _("one of {names}").format(names=", ".join(FAMILIES)),
        )
    return FAMILIES[kind], fields, None


def _spec(source: TensorSource, family: Family, fields: Mapping[str, Any]) -> StackSpec:
    """The model of a configuration."""
    longest = max((n for info in source.tensors.values() for n in info.shape), default=0)
    limits = {
        **dict.fromkeys(_LAYERS, (len(source.tensors), _("the file has {limit} tensors"))),
        **dict.fromkeys(_WIDTHS, (longest, _("no axis of a tensor is longer than {limit}"))),
    }
    for name, (limit, why) in limits.items():
        value = fields.get(name)
        if isinstance(value, int | float) and value > limit:
            raise UsageError(
                _("the configuration says {name}={value!r}").format(name=name, value=value),
                where=str(source.path),
                why=why.format(limit=limit),
            )
    with _nobody_checked(source):
        spec = family.spec(fields)
    return family.fit(spec, source.tensors.keys())


@contextlib.contextmanager
def _nobody_checked(source: TensorSource) -> Iterator[None]:
    """Values of any kind may stand in a configuration: what trips over one says so."""
    try:
        yield
    except HeadwiseError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            _("the configuration can't be read"),
            where=str(source.path),
            why=f"{type(error).__name__}: {error}",
            fix=_("the configuration that came with the model"),
        ) from error


def _empty(source: TensorSource, spec: StackSpec) -> Stack:
    """A stack without memory for its parameters."""
    try:
        with _NoDraws():
            return Stack(spec, device="meta")
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise UsageError(
            _("no model can have the sizes of the configuration"),
            where=str(source.path),
            why=str(error).partition("\n")[0],
        ) from error


_LAYERS = ("num_hidden_layers", "n_layer")
_WIDTHS = (
    "hidden_size", "n_embd", "intermediate_size", "n_inner", "vocab_size",
    "num_attention_heads", "n_head", "num_key_value_heads", "head_dim",
)  # fmt: skip
"""Sizes that some tensor of the file must have, or a multiple of them."""


class _NoDraws(TorchFunctionMode):
    """Inside, no random numbers are drawn: without memory there is nothing to fill.

    To draw none takes torch seconds otherwise, the first time: it loads its compiler.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "xavier_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _stored_dtype(source: TensorSource, layout: Layout) -> torch.dtype:
    """The narrowest dtype that holds all parameters as they are stored."""
    found: torch.dtype | None = None
    for entry in layout.entries:
        info = source.tensors.get(entry.theirs)
        if info is not None:
            stored = DTYPES.get(info.dtype, torch.float32)
            plain = stored.is_floating_point and stored.itemsize > 1
            one = stored if plain else torch.float32
            found = one if found is None else torch.promote_types(found, one)
    return found or torch.float32


def _tokenizer(source: TensorSource) -> Path | None:
    path = Path(source.path)
    if source.format == "gguf":
        return path if source.config.get("tokenizer.ggml.tokens") else None
    beside = (path if path.is_dir() else path.parent) / "tokenizer.json"
    return beside if beside.is_file() else None


# ---------------------------------------------------------------------------------- writing
_FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
"""``general.file_type`` of GGUF: which dtype most tensors have."""


def _save_gguf(model: Model, family: Family, state: Mapping[str, Tensor], path: Path) -> None:
    from headwise.checkpoints.gguf_files import write_gguf

    gguf = family.gguf
    if gguf is None:
        raise UsageError(
            _("a {family} can't be written as GGUF").format(family=family.name),
            where="save(model, format='gguf')",
            fix="format='safetensors'",
        )
    own = model.format == "gguf"
    metadata = dict(model.config) if own else gguf.metadata(model.spec)
    metadata = {key: value for key, value in metadata.items() if value != []}  # have no type
    dtype = model.stack.tokens.weight.dtype
    if dtype in _FILE_TYPES:
        metadata["general.file_type"] = _FILE_TYPES[dtype]
    metadata.pop("general.quantization_version", None)
    rope = model.spec.attention[0].rope
    pairs = rope.pairs if own and rope is not None else gguf.pairs
    names = Names(spec=model.spec, parameters=state, pairs=pairs)
    write_gguf(path, write_state(state, gguf.layout(names)), metadata)


def _config(model: Model, family: Family) -> dict[str, Any]:
    """A configuration that says what the model is, and is read so."""
    own = model.format != "gguf"
    fields = dict(model.config) if own else family.config(model.spec)
    wanted = with_pairs(model.spec, "halves")
    found = replace(family.spec(fields), pooler=wanted.pooler)
    if found != wanted:
        differ = [name for name in vars(wanted) if getattr(found, name) != getattr(wanted, name)]
        raise UsageError(
            _("the configuration of a {family} can't say what this model is").format(
                family=family.name
            ),
            where="save(model, …)",
            why=", ".join(f"{name}={getattr(wanted, name)!r}" for name in differ),
        )
    fields["dtype"] = str(model.stack.tokens.weight.dtype).removeprefix("torch.")
    fields.pop("torch_dtype", None)
    return fields
