"""What a model family tells: how its configuration and its files are read and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from headwise.checkpoints.mapping import Layout
from headwise.checkpoints.source import TensorSource
from headwise.checkpoints.stack import Activation, StackSpec
from headwise.errors import UsageError
from headwise.spec import AttentionSpec, Pairs
from headwise.texts import translate as _

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Names:
    """What the names in a file depend on.

    Args:
        spec: the model.
        parameters: names in the state dict of its stack.
        has: names that the file has; empty where one is written.
        pairs: how the file pairs rotated channels.
    """

    spec: StackSpec
    parameters: Collection[str]
    has: Collection[str] = ()
    pairs: Pairs = "halves"


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """A family in GGUF files.

    Args:
        architecture: its ``general.architecture``.
        pairs: how its converter leaves rotated channels.
        config: metadata and tensors → a configuration as in ``config.json``.
        metadata: a model → its metadata.
        layout: the names.
    """

    architecture: str
    pairs: Pairs
    config: Callable[[TensorSource], dict[str, Any]]
    metadata: Callable[[StackSpec], dict[str, Any]]
    layout: Callable[[Names], Layout]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family.

    Args:
        name: its ``model_type``.
        spec: a configuration → the model.
        config: the model → a configuration.
        layout: the names in Hugging Face files.
        gguf: the same for GGUF; None = not covered.
        fit: the model and the names in a file → the model without parts that files may lack.
    """

    name: str
    spec: Callable[[Config], StackSpec]
    config: Callable[[StackSpec], dict[str, Any]]
    layout: Callable[[Names], Layout]
    gguf: Gguf | None = None
    fit: Callable[[StackSpec, Collection[str]], StackSpec] = lambda spec, has: spec


# ---------------------------------------------------------------------------------- configurations
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


def activation(config: Config, *names: str, default: str) -> Activation:
    """The activation that a configuration names.

    Raises:
        UsageError: for one that is not covered.
    """
    word = next((config[name] for name in names if config.get(name) is not None), default)
    if not isinstance(word, str) or word not in _ACTIVATIONS:
        raise UsageError(
            _("the activation {word!r} is not covered").format(word=word),
            where=f"config.json: {names[0]}",
            fix=", ".join(_ACTIVATIONS),
        )
    return _ACTIVATIONS[word]


def count(config: Config, name: str, *, default: int | None = None) -> int:
    """A whole number from 1 up in a configuration.

    Raises:
        UsageError: if it is missing or anything else.
    """
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
        refuse(config, name, _("a whole number from 1 up"))
    return value


def number(config: Config, name: str, *, default: float) -> float:
    """A positive number in a configuration.

    Raises:
        UsageError: if it is anything else.
    """
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        refuse(config, name, _("a positive number"))
    return float(value)


def refuse(config: Config, name: str, wanted: str) -> NoReturn:
    """Refuse a field of a configuration."""
    raise UsageError(
        _("the configuration says {name}={value!r}").format(name=name, value=config.get(name)),
        where=f"config.json: {name}",
        fix=wanted,
    )


def only(config: Config, name: str, *allowed: Any) -> None:
    """Refuse an option that the stack can't express, so that none is passed over.

    Raises:
        UsageError: if the field is there and has another value.
    """
    if config.get(name) is not None and config[name] not in allowed:
        refuse(config, name, _("{values}: others are not covered").format(
            values=", ".join(repr(one) for one in allowed)
        ))  # fmt: skip


def attentions(config: Config, layers: int) -> tuple[AttentionSpec, ...]:
    """The attention of every layer."""
    return tuple(AttentionSpec.from_hf_config(config, layer=layer) for layer in range(layers))


def with_pairs(spec: StackSpec, pairs: Pairs) -> StackSpec:
    """The same model with its rotated channels paired the other way."""
    return replace(
        spec,
        attention=tuple(
            one if one.rope is None else one.replace(positions=replace(one.rope, pairs=pairs))
            for one in spec.attention
        ),
    )
