"""Targets that say themselves what they are: ``HEADWISE = {…}`` and the ``headwise_*`` adapters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from headwise.errors import UsageError, did_you_mean
from headwise.reference import Inputs
from headwise.texts import translate as _
from headwise.verifier.subject import ADAPTER_STYLE, Options, Recipe, Subject

WORDS = (
    "kind", "d_model", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "d_context",
    "d_values", "causal", "window", "rope", "rotary_dim", "rope_base", "positions", "alibi",
    "softcap", "sinks", "scale", "dropout", "qk_norm", "padding_mask", "weights", "empty_rows",
    "batch_first",
)  # fmt: skip
"""Keys of ``HEADWISE``."""

NOT_SPEC = ("kind", "padding_mask", "weights", "empty_rows", "batch_first")


def check_words(declared: Mapping[str, Any], label: str) -> None:
    """An error for a key of ``HEADWISE`` that does not exist."""
    for key in declared:
        if key not in WORDS:
            near = did_you_mean(key, WORDS)
            raise UsageError(
                _("HEADWISE has an unknown key {key!r}").format(key=key),
                where=label,
                fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(WORDS),
            )


def declared_subject(
    module: ModuleType,
    label: str,
    make: Callable[[], Any],
    adapters: Mapping[str, Callable[..., Any]],
    declared: Mapping[str, Any],
    words: Mapping[str, Any],
    *,
    padding_mask: str | None,
) -> Subject:
    """A subject whose calls go through the file's own adapters.

    What ``HEADWISE`` states is declared; so is what it leaves out, since a key that would be
    None, False or 0 is left out by its convention.
    """
    check_words(declared, label)
    merged = {**declared, **words}
    is_function = merged.get("kind") == "function"
    run, cross, documents, steps = (adapters.get(n) for n in ("run", "cross", "documents", "steps"))
    takes = _keywords(run)
    offers = set()
    if run is not None:
        offers.add("self")
    asked = merged.get("padding_mask") or padding_mask or not declared
    if asked and ("keep" in takes or cross is not None):
        offers.add("padding")
    if cross is not None:
        offers.add("cross")
    if documents is not None:
        offers.add("documents")
    if "weights" in adapters:
        offers.add("weights")
    if "training" in takes:
        offers.add("dropout")
    if steps is not None and run is not None and not is_function:
        offers.add("steps")
        if "padding" in offers and "keep" in _keywords(steps):
            offers.add("padded-steps")

    def call(obj: Any, inputs: Inputs, options: Options) -> Any:
        if options.training and isinstance(obj, nn.Module) and not obj.training:
            obj.train()
            try:
                return run_adapter(obj, inputs, options)
            finally:
                obj.eval()
        return run_adapter(obj, inputs, options)

    def run_adapter(obj: Any, inputs: Inputs, options: Options) -> Any:
        if inputs.x is None:
            assert run is not None
            extra = {"training": True} if options.training else {}
            return run(obj, inputs.q, inputs.k, inputs.v, **extra)
        if options.steps:
            assert steps is not None
            padding = {} if inputs.keep is None else {"keep": inputs.keep}
            return steps(obj, inputs.x, list(options.steps), **padding)
        if inputs.documents is not None:
            assert documents is not None
            return documents(obj, inputs.x, inputs.documents)
        if inputs.context is not None:
            assert cross is not None
            values = inputs.context if inputs.values is None else inputs.values
            return cross(obj, inputs.x, inputs.context, values, inputs.keep, inputs.query_keep)
        if options.weights:
            return adapters["weights"](obj, inputs.x)
        assert run is not None
        if inputs.keep is None:
            return run(obj, inputs.x)
        return run(obj, inputs.x, keep=inputs.keep)

    def written(inputs: Inputs, options: Options) -> str | None:
        if inputs.context is not None:
            names = ["x", "context", "values" if inputs.values is not None else "context"]
            names += ["keep" if inputs.keep is not None else "None", "None"]
            return f"headwise_cross(target, {', '.join(names)})"
        if options.steps:
            keep = "" if inputs.keep is None else ", keep=keep"
            return f"headwise_steps(target, x, {list(options.steps)}{keep})"
        if inputs.documents is not None:
            return "headwise_documents(target, x, documents)"
        if inputs.x is None:
            return "headwise_run(target, q, k, v)"
        return "headwise_run(target, x" + (")" if inputs.keep is None else ", keep=keep)")

    file = getattr(module, "__file__", None)
    adapter_names = ", ".join(
        f"headwise_{n}" for n in adapters if n in ("build", "run", "cross", "documents", "steps")
    )
    recipe = None
    if file is not None and "build" in adapters:
        stem = Path(file).stem
        recipe = Recipe((f"from {stem} import {adapter_names}",), "headwise_build()", written)
    stated = frozenset(merged) | (
        frozenset({"alignment", "causal", "rope", "scale", "window", "padding_mask", "qk_norm"})
        if declared
        else frozenset()
    )
    return Subject(
        label=label,
        kind="function" if is_function else "layer",
        make=make,
        call=call,
        words={k: v for k, v in merged.items() if k not in NOT_SPEC},
        declared=stated,
        notes={"calls": _("through the file's own adapters")},
        offers=frozenset(offers),
        styles=(ADAPTER_STYLE,),
        strong_polarity="keep",
        weights=merged.get("weights"),
        file=file,
        own_files=frozenset({file} if file else ()),
        adapters=frozenset(a.__code__ for a in adapters.values() if inspect.isfunction(a)),
        mask_from="keep",
        recipe=recipe,
    )


def _keywords(function: Callable[..., Any] | None) -> set[str]:
    if function is None:
        return set()
    signature = inspect.signature(function)
    return set(signature.parameters)
