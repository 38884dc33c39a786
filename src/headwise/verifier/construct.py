"""Building a layer from its class: constructor arguments filled from the specification."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.spec import AttentionSpec, Learned
from headwise.texts import translate as _
from headwise.verifier.annotations import annotations_of, classes_in
from headwise.verifier.names import CAUSAL_FLAGS, DROPOUTS, SPEC_WORDS, word_of

SMALL: dict[str, Any] = {
    "d_model": 24,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 6,
    "v_head_dim": 6,
    "d_context": 24,
    "d_values": 24,
    "max_len": 32,
}
"""Sizes for arguments that nobody gave: small, and different from each other where they can be."""


class ConfigGuess:
    """A stand-in for a configuration object: answers to the common names of its fields."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        word = word_of(name)
        if word is not None and word in self._values:
            return self._values[word]
        if name in DROPOUTS or "drop" in name:
            return 0.0
        if name in CAUSAL_FLAGS:
            return bool(self._values.get("causal", False))
        if "bias" in name:
            return True
        raise AttributeError(name)


def sizes_for(words: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that the words give, completed with small ones that fit them."""
    sizes = {**SMALL, **{k: v for k, v in words.items() if k in SMALL and v is not None}}
    if "num_heads" in words or "d_model" in words or "head_dim" in words:
        if "head_dim" not in words:
            if "d_model" not in words:
                sizes["d_model"] = sizes["num_heads"] * 6
            sizes["head_dim"] = max(1, sizes["d_model"] // sizes["num_heads"])
        elif "d_model" not in words:
            sizes["d_model"] = sizes["num_heads"] * sizes["head_dim"]
    if "num_kv_heads" not in words:
        heads = sizes["num_heads"]
        sizes["num_kv_heads"] = heads // 2 if heads % 2 == 0 else heads
    for name, source in (("v_head_dim", "head_dim"), ("d_context", "d_model")):
        if name not in words:
            sizes[name] = sizes[source]
    if "d_values" not in words:
        sizes["d_values"] = sizes["d_context"]
    return sizes


# ------------------------------------------------------------------ layers made from a spec
def spec_parameter(cls: type[nn.Module], parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """The constructor argument that takes an ``AttentionSpec``: by annotation, else by name."""
    found = annotations_of(cls.__init__)
    for name in parameters:
        if AttentionSpec in classes_in(found.get(name)):
            return name
    spec = parameters.get("spec")
    plain = spec is not None and spec.annotation is spec.empty and spec.default is spec.empty
    return "spec" if plain else None


def spec_for(words: Mapping[str, Any], init: Mapping[str, Any]) -> AttentionSpec:
    """The specification that words give, completed with small sizes; ``init`` adds to it.

    Raises:
        SpecError: a contradiction.

    Example:
        >>> spec = spec_for({"num_heads": 4, "rope": "halves"}, {"sinks": True})
        >>> spec.d_model, spec.num_kv_heads, spec.rope.pairs, spec.sinks
        (24, 4, 'halves', True)
    """
    ready = words.get("spec")
    if isinstance(ready, AttentionSpec):
        return AttentionSpec.from_flags(**{**spec_words(ready), **init}) if init else ready
    given = {k: v for k, v in {**words, **init}.items() if k in SPEC_WORDS and v is not None}
    sizes = sizes_for(given)
    given.setdefault("d_model", sizes["d_model"])
    if "num_heads" not in given:
        given["num_heads"] = sizes["num_heads"]
        given.setdefault("num_kv_heads", sizes["num_kv_heads"])
    spec = AttentionSpec.from_flags(**given)
    if isinstance(spec.positions, Learned) and spec.positions.max_len is None:
        spec = spec.replace(positions=Learned(max_len=2 * SMALL["max_len"]))
    return spec


def spec_words(spec: AttentionSpec) -> dict[str, Any]:
    """A specification in the flat words that ``AttentionSpec.from_flags`` takes."""
    words = {spot.name: getattr(spec, spot.name) for spot in dataclasses.fields(spec)}
    return {**words, "causal": words.pop("is_causal")}


def spec_code(spec: AttentionSpec) -> str:
    """An expression for a specification, without what follows from the rest.

    Example:
        >>> spec_code(AttentionSpec(d_model=24, num_heads=4, num_kv_heads=2, is_causal=True))
        'AttentionSpec(d_model=24, num_heads=4, num_kv_heads=2, is_causal=True)'
    """
    given = {"d_model": repr(spec.d_model), "num_heads": repr(spec.num_heads)}
    whole = spec.num_heads * spec.head_dim == spec.d_model
    plain = AttentionSpec(
        d_model=spec.d_model,
        num_heads=spec.num_heads,
        head_dim=spec.head_dim,
        d_context=spec.d_context,
    )
    follow = {"head_dim": whole, "d_context": spec.d_context == spec.d_model}
    for spot in dataclasses.fields(spec):
        name, value = spot.name, getattr(spec, spot.name)
        follows = follow.get(name, value == getattr(plain, name))
        if name not in given and not follows:
            given[name] = _short(value)
    return f"AttentionSpec({', '.join(f'{name}={text}' for name, text in given.items())})"


def _short(value: Any) -> str:
    """An expression for a value; of a dataclass without the fields that have their default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    given = [
        f"{spot.name}={_short(getattr(value, spot.name))}"
        for spot in dataclasses.fields(value)
        if getattr(value, spot.name) != spot.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


# ------------------------------------------------------------------ construction
def construct(
    cls: type[nn.Module],
    words: Mapping[str, Any],
    init: Mapping[str, Any],
    *,
    cross: bool,
    seed: int,
) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """An instance of a layer class, the words that its arguments carried, and the arguments.

    Arguments are filled by name from the words; what has a default and was not declared keeps it.

    Raises:
        UsageError: an argument that can't be filled, or an ``--init`` name that does not exist.
        TargetError: the constructor raises although every argument was given or known.
    """
    sizes = sizes_for(words)
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    parameters = {
        name: p
        for name, p in signature.parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    takes_spec = spec_parameter(cls, parameters)
    inside: dict[str, Any] = {}
    if takes_spec is not None:
        inside = {k: v for k, v in init.items() if k in SPEC_WORDS and k not in parameters}
        init = {k: v for k, v in init.items() if k not in inside}
    for name in init:
        if name not in parameters and not takes_any:
            near = did_you_mean(name, parameters)
            raise UsageError(
                _("{cls} takes no argument {name!r}").format(cls=cls.__name__, name=name),
                where=f"--init {name}=…",
                fix=_("did you mean {near!r}?").format(near=near)
                if near
                else ", ".join(parameters),
            )
    arguments: dict[str, Any] = {}
    used: dict[str, Any] = {}
    missing = []
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty
        word = word_of(name)
        if name in init:
            arguments[name] = init[name]
        elif name == takes_spec:
            arguments[name] = used["spec"] = spec_for(words, inside)
        elif word is not None and (word in words or not optional):
            arguments[name] = sizes[word]
        elif name in CAUSAL_FLAGS and ("causal" in words or not optional):
            arguments[name] = bool(words.get("causal", False))
        elif not optional and (name in DROPOUTS or "drop" in name):
            arguments[name] = 0.0
        elif not optional and "bias" in name:
            arguments[name] = True
        elif not optional and name in ("config", "cfg", "args", "conf"):
            arguments[name] = _config(parameter.annotation, sizes, words)
        elif not optional:
            missing.append(name)
        value = arguments.get(name, parameter.default)
        if word is not None and isinstance(value, int) and not isinstance(value, bool):
            used[word] = value
        if name in CAUSAL_FLAGS and isinstance(value, bool):
            used["causal"] = value
    if missing:
        raise UsageError(
            _("{cls} needs {names}, and nothing says what to give").format(
                cls=cls.__name__, names=", ".join(missing)
            ),
            where=f"{cls.__name__}{signature}",
            fix=" ".join(f"--init {name}=…" for name in missing),
        )
    arguments.update({k: v for k, v in init.items() if k not in arguments})
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        return cls(**arguments), used, arguments
    except Exception as error:
        given = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        raise UsageError(
            _("{cls} can't be built: {kind}: {message}").format(
                cls=cls.__name__, kind=type(error).__name__, message=error
            ),
            where=f"{cls.__name__}({given})",
            fix=_("give fitting sizes (--d-model, --heads, …) or --init NAME=VALUE"),
        ) from error
    finally:
        torch.random.set_rng_state(state)


def _config(annotation: Any, sizes: Mapping[str, Any], words: Mapping[str, Any]) -> Any:
    """A configuration: the annotated dataclass filled by name, or a stand-in."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        values = {}
        for spot in dataclasses.fields(annotation):
            word = word_of(spot.name)
            required = (
                spot.default is dataclasses.MISSING and spot.default_factory is dataclasses.MISSING
            )
            if word is not None and (word in words or required):
                values[spot.name] = sizes[word]
            elif required and "drop" in spot.name:
                values[spot.name] = 0.0
        try:
            return annotation(**values)
        except TypeError as error:
            raise TargetError(
                _("{cls} can't be built: {kind}: {message}").format(
                    cls=annotation.__name__, kind="TypeError", message=error
                )
            ) from error
    return ConfigGuess({**sizes, **words})
