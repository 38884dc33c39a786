"""Finding out how to call a target from its signature. Everything inferred is printed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import TargetError, UsageError
from headwise.masks import Causal, Documents, Mask, Padding
from headwise.reference import Inputs
from headwise.reference.positions import rotary_angles
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _
from headwise.verifier import names as nm
from headwise.verifier.annotations import annotations_of, classes_in, maker_from_spec, values_in
from headwise.verifier.caches import CachePlan, cache_plans, in_steps, takes_back
from headwise.verifier.construct import spec_code
from headwise.verifier.layouts import find_parts
from headwise.verifier.subject import (
    MASK_STYLE,
    Options,
    PadStyle,
    Polarity,
    Recipe,
    Subject,
)


# ------------------------------------------------------------------ signatures
@dataclass
class Plan:
    """Which argument of a signature carries what."""

    x: str | None = None
    key: str | None = None
    value: str | None = None
    context: str | None = None
    padding: str | None = None
    mask_value: str | None = None
    cache: str | None = None
    query_mask: str | None = None
    full_mask: str | None = None
    documents: str | None = None
    position_ids: str | None = None
    tables: str | None = None
    cos_sin: tuple[str, str] | None = None
    causal: str | None = None
    weights: str | None = None
    dropout: str | None = None
    training: str | None = None
    grouped: str | None = None
    required: list[str] = field(default_factory=list)


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Named parameters of a signature, without ``*args`` and ``**kwargs``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return {n: p for n, p in signature.parameters.items() if p.kind in kinds}


def _first(options: Iterable[str], parameters: Iterable[str]) -> str | None:
    there = list(parameters)
    return next((name for name in options if name in there), None)


def plan_call(
    parameters: Mapping[str, inspect.Parameter],
    *,
    layer: bool,
    annotations: Mapping[str, Any] | None = None,
) -> Plan:
    """Assign the arguments of a signature: by annotated type, then by name, then by place."""
    plan, left = Plan(), list(parameters)
    for name in left:
        for cls in classes_in((annotations or {}).get(name)):
            if issubclass(cls, Mask) and plan.mask_value is None:
                plan.mask_value = name
            elif plan.cache is None and maker_from_spec(cls, AttentionSpec) is not None:
                plan.cache = name
    left = [name for name in left if name not in (plan.mask_value, plan.cache)]

    def take(options: Iterable[str]) -> str | None:
        name = _first(options, left)
        if name is not None:
            left.remove(name)
        return name

    query = _first(nm.QUERIES, left)
    key, value = _first(nm.KEYS, left), _first(nm.VALUES, left)
    if query and key and value:
        plan.x, plan.key, plan.value = query, key, value
        for name in (query, key, value):
            left.remove(name)
    elif key and value and layer and left and left[0] not in (key, value):
        plan.x, plan.key, plan.value = left.pop(0), key, value
        left.remove(key)
        left.remove(value)
    else:
        plan.x = take(nm.INPUTS) if layer else None
        if plan.x is None and left:
            plan.x = left.pop(0)
        if not layer and plan.x is not None:
            plan.key = left.pop(0) if left else None
            plan.value = left.pop(0) if left else None
        else:
            plan.context = take(nm.CONTEXTS)
    plan.query_mask = take(nm.QUERY_MASKS)
    if plan.key is not None and layer:
        plan.padding = take(nm.IGNORE_NAMES) or take(nm.KEEP_NAMES)
        plan.full_mask = take(nm.FULL_MASKS)
        plan.padding = plan.padding or take(nm.NEUTRAL_MASKS)
    elif plan.mask_value is None:
        plan.padding = take(nm.IGNORE_NAMES) or take(nm.KEEP_NAMES) or take(nm.NEUTRAL_MASKS)
    plan.documents = take(nm.DOCUMENTS)
    plan.tables = take(nm.ROTARY_TABLES)
    if {"cos", "sin"} <= set(left):
        plan.cos_sin = ("cos", "sin")
        left = [n for n in left if n not in ("cos", "sin")]
    plan.position_ids = take(nm.POSITION_IDS)
    plan.causal = take(nm.CAUSAL_FLAGS)
    plan.weights = take(nm.WEIGHT_FLAGS)
    plan.training = take(("training", "train", "is_training"))
    plan.dropout = take(nm.DROPOUTS)
    plan.grouped = take(("enable_gqa",))
    plan.required = [n for n in left if parameters[n].default is inspect.Parameter.empty]
    return plan


def polarity_of(name: str | None) -> Polarity | None:
    """What a mask argument's name says True means, if it says anything."""
    if name in nm.KEEP_NAMES:
        return "keep"
    return "ignore" if name in nm.IGNORE_NAMES else None


def styles_for(name: str, declared: str | None) -> tuple[PadStyle, ...]:
    """Ways of handing over a padding mask in an argument of this name, likeliest first."""
    likely: Polarity = polarity_of(name) or "keep"
    if declared in ("keep", "ignore"):
        likely = "keep" if declared == "keep" else "ignore"
    other: Polarity = "ignore" if likely == "keep" else "keep"
    shapes = ("2d", "key4d", "full4d", "3d")
    order = [likely] if declared else [likely, other]
    styles = [PadStyle(shape, p, "bool") for p in order for shape in shapes]
    styles += [PadStyle("key4d", "keep", "added"), PadStyle("full4d", "keep", "added")]
    styles += [PadStyle("2d", p, dtype) for p in order for dtype in ("int", "float")]
    return tuple(styles)


# ------------------------------------------------------------------ layers
def words_of(
    module: nn.Module, words: Mapping[str, Any], used: Mapping[str, Any]
) -> dict[str, Any]:
    """What the module's attributes and shapes say about its sizes, under the declared words."""
    seen: dict[str, Any] = {}
    for name, value in vars(module).items():
        if isinstance(value, bool) or name.startswith("_") or name == "training":
            continue
        word = nm.word_of(name)
        if word is not None and isinstance(value, int) and word not in seen:
            seen[word] = value
    ambiguous = {"d": "head_dim", "h": "num_heads"}
    for name, word in ambiguous.items():
        if isinstance(vars(module).get(name), int):
            if name == "d":
                seen.pop("d_model", None) if "d_model" in seen and vars(module)["d"] == seen[
                    "d_model"
                ] else None
            seen.setdefault(word, vars(module)[name])
    found = {**seen, **used, **{k: v for k, v in words.items() if v is not None}}
    stated = getattr(module, "spec", None)
    if isinstance(stated, AttentionSpec) and not set(words) & set(nm.SPEC_WORDS):
        found.setdefault("spec", stated)
    if isinstance(found.get("spec"), AttentionSpec):
        sizes = ("d_model", "num_heads", "num_kv_heads", "head_dim", "v_head_dim")
        found.update({n: getattr(found["spec"], n) for n in (*sizes, "d_context", "d_values")})
        return found
    for name in nm.CAUSAL_FLAGS:
        flag = getattr(module, name, None)
        if isinstance(flag, bool) and "causal" not in found:
            found["causal"] = flag
    _complete(module, found)
    return found


def _complete(module: nn.Module, found: dict[str, Any]) -> None:
    """Fill sizes from the shapes of the weights."""
    parts = find_parts(module)
    shapes = dict(module.named_parameters())

    def shape(role: str) -> tuple[int, ...] | None:
        groups = parts.get(role)
        if not groups:
            return None
        part = groups[0][0]
        return tuple(part.turn(shapes[part.weight].detach()).shape)

    q, k, v, qkv = (shape(role) for role in ("q", "k", "v", "qkv"))
    raw_q = parts["q"][0][0].weight if "q" in parts else None
    if raw_q is not None and shapes[raw_q].dim() == 3:
        found.setdefault("num_heads", shapes[raw_q].shape[0])
    inputs = q or qkv
    if inputs is not None:
        found.setdefault("d_model", inputs[1])
        if found["d_model"] != inputs[1] and inputs[0] != found["d_model"]:
            found["d_model"] = inputs[1]
    if k is not None and "d_context" not in found and k[1] != found.get("d_model"):
        found["d_context"] = k[1]
    if v is not None and k is not None and "d_values" not in found and v[1] != k[1]:
        found["d_values"] = v[1]
    heads = found.get("num_heads")
    if heads and q is not None and "head_dim" not in found and q[0] % heads == 0:
        found["head_dim"] = q[0] // heads
    if not heads and found.get("head_dim") and q is not None:
        found["num_heads"] = heads = q[0] // found["head_dim"]
    head_dim = found.get("head_dim") or (
        found["d_model"] // heads if heads and found.get("d_model") else None
    )
    if head_dim and k is not None and k[0] % head_dim == 0:
        found.setdefault("num_kv_heads", k[0] // head_dim)
    if heads and head_dim and qkv is not None and k is None:
        rows = qkv[0] - heads * head_dim
        if "num_kv_heads" not in found and rows > 0 and rows % (2 * head_dim) == 0:
            found["num_kv_heads"] = rows // (2 * head_dim)
    kv_heads = found.get("num_kv_heads") or heads
    if v is not None and kv_heads and v[0] % kv_heads == 0 and "v_head_dim" not in found:
        found["v_head_dim"] = v[0] // kv_heads


def bind_layer(
    module: nn.Module,
    label: str,
    words: Mapping[str, Any],
    *,
    make: Callable[[], nn.Module],
    padding_mask: str | None,
    cross: bool,
    used: Mapping[str, Any],
    built: Mapping[str, Any] | None = None,
) -> Subject:
    """A subject for a module whose ``forward`` takes a sequence.

    Raises:
        TargetError: an argument of ``forward`` that can't be filled.
        UsageError: sizes that can't be found out.
    """
    parameters, annotations = parameters_of(module.forward), annotations_of(module.forward)
    plan = plan_call(parameters, layer=True, annotations=annotations)
    refuse_extra_keys(module, label)
    if plan.x is None:
        raise TargetError(_("forward of {label} takes no input").format(label=label))
    if plan.required:
        raise TargetError(
            _("forward of {label} needs {names}, and nothing says what to give").format(
                label=label, names=", ".join(plan.required)
            ),
            where=f"forward({', '.join(parameters)})",
            fix=_("write an adapter: def headwise_run(layer, x, keep=None): …"),
        )
    known = words_of(module, words, used)
    file, line = source_of(type(module))
    notes: dict[str, str] = {}
    spec = known.get("spec")
    if isinstance(spec, AttentionSpec) and "spec" in used:
        notes[N_("built from")] = spec_code(spec)
    if plan.key is not None:
        notes["calls"] = f"forward({plan.x}, {plan.key}, {plan.value})"
    elif plan.context is not None:
        notes["calls"] = f"forward({plan.x}), forward({plan.x}, {plan.context})"
    else:
        notes["calls"] = f"forward({plan.x})"
    first = getattr(module, "batch_first", None)
    time_first: bool | None = None if first is None else not first
    if first is not None:
        notes["layout"] = "(B, T, D)" if first else "(T, B, D): batch_first=False"
    offers = {"self"}
    stated = isinstance(spec, AttentionSpec)  # then both kinds of calls are specified
    if cross or (plan.context is not None and stated) or plan.key is not None:
        offers.add("cross")
    required_context = plan.context is not None and (
        parameters[plan.context].default is inspect.Parameter.empty
    )
    if cross or required_context:
        offers.discard("self")
        offers.add("cross")
    width = known.get("d_model")
    if {known.get("d_context", width), known.get("d_values", width)} != {width}:
        offers.discard("self")  # keys or values of another width can't be the queries' sequence
    if plan.padding is not None:
        offers.add("padding")
        notes["padding argument"] = plan.padding
    if plan.mask_value is not None:
        offers |= {"padding", "documents"}
        notes[N_("mask argument")] = _("{name}: a Mask, made from what a case hides").format(
            name=plan.mask_value
        )
    if plan.documents is not None:
        offers.add("documents")
    if plan.query_mask is not None:
        offers.add("query-mask")
    requests: tuple[Any, ...] = (True,)
    if plan.weights is not None:
        offers.add("weights")
        listed = values_in(annotations.get(plan.weights))
        requests = tuple(v for v in listed if v) or requests
    switchable = plan.causal is not None and parameters[plan.causal].default is False
    always = True if switchable and words.get("causal") else None
    if switchable and not always:
        offers.add("causal-flag")

    def call(obj: Any, inputs: Inputs, options: Options) -> Any:
        if not options.steps:
            return call_once(obj, inputs, options, {}, 0)
        assert cache_plan is not None

        def once(obj: Any, part: Inputs, more: Mapping[str, Any], before: int) -> Any:
            return call_once(obj, part, options, more, before)

        given = spec if isinstance(spec, AttentionSpec) else None
        run = in_steps(cache_plan, given, once)
        return run(obj, inputs, options.steps, recent=options.recent)

    def call_once(
        obj: Any, inputs: Inputs, options: Options, more: Mapping[str, Any], before: int
    ) -> Any:
        x = _turn(inputs.x, options.time_first)
        context = _turn(inputs.context, options.time_first)
        values = _turn(inputs.values, options.time_first)
        arguments: dict[str, Any] = {plan.x or "x": x}
        if plan.key is not None and plan.value is not None:
            arguments[plan.key] = x if context is None else context
            arguments[plan.value] = arguments[plan.key] if values is None else values
        elif inputs.context is not None:
            arguments[plan.context or "context"] = context
        elif required_context:
            arguments[plan.context or "context"] = x
        if inputs.keep is not None and plan.padding is not None and options.style is not None:
            assert inputs.x is not None
            arguments[plan.padding] = options.style.make(inputs.keep, inputs.q_len, inputs.x.dtype)
        arguments.update(more)
        if plan.mask_value is not None:
            arguments[plan.mask_value] = mask_of(inputs)
        handed = arguments.get(plan.padding or "")
        handed = handed.clone() if isinstance(handed, Tensor) else None
        if inputs.query_keep is not None and plan.query_mask is not None:
            arguments[plan.query_mask] = inputs.query_keep
        if inputs.documents is not None and plan.documents is not None:
            arguments[plan.documents] = inputs.documents
        _positions(arguments, plan, parameters, inputs, known, before)
        if plan.weights is not None and options.weights is not None:
            arguments[plan.weights] = options.weights
        switch = options.causal_flag if options.causal_flag is not None else always
        if plan.causal is not None and switch is not None:
            arguments[plan.causal] = switch
            if plan.full_mask is not None and switch:
                past = Causal().dense(inputs.q_len, inputs.kv_len)[0, 0]
                arguments[plan.full_mask] = ~past if plan.full_mask in HIDING else past
        training = obj.training
        if options.training:
            obj.train()
        try:
            result = obj(**arguments)
        finally:
            obj.train(training)
        if handed is not None and not torch.equal(handed, arguments[plan.padding or ""]):
            assert inputs.keep is not None
            inputs.keep.logical_not_()  # the caller's mask was written into: show it
        return result

    cache_plan: CachePlan | None = None
    whole = Options(steps=(2, 1))
    for option in cache_plans(parameters, annotations, plan.cache):
        if "self" not in offers or time_first or width is None:
            break
        if option.for_spec and spec is None:
            continue
        cache_plan = option
        if option.for_spec or takes_back(module, lambda o, i, _sizes: call(o, i, whole), width):
            offers |= {"steps", "padded-steps"} if "padding" in offers else {"steps"}
            notes[N_("steps")] = _("with a cache, through the argument {name}").format(
                name=option.argument
            )
            break

    def written(inputs: Inputs, options: Options) -> str | None:
        if options.steps:
            return None
        if options.time_first or plan.tables or plan.cos_sin or options.causal_flag or always:
            return None
        words_of_call = ["x"]
        if plan.key is not None:
            key = "x" if inputs.context is None else "context"
            words_of_call += [key, "values" if inputs.values is not None else key]
        elif inputs.context is not None or required_context:
            words_of_call.append("context" if inputs.context is not None else "x")
        if inputs.keep is not None and options.style is not None and plan.padding is not None:
            words_of_call.append(f"{plan.padding}={options.style.code()}")
        if inputs.documents is not None and plan.documents is not None:
            words_of_call.append(f"{plan.documents}=documents")
        masks = [f"Padding({n})" for n in ("keep",) if inputs.keep is not None]
        masks += [f"Documents({n})" for n in ("documents",) if inputs.documents is not None]
        if plan.mask_value is not None and masks:
            words_of_call.append(f"{plan.mask_value}={' & '.join(masks)}")
        return f"target({', '.join(words_of_call)})"

    return Subject(
        label=label,
        kind="layer",
        make=make,
        call=call,
        words=known,
        declared=frozenset(k for k, v in words.items() if v is not None)
        | (frozenset((*nm.SPEC_WORDS, "alignment")) if spec is not None else frozenset()),
        notes=notes,
        offers=frozenset(offers),
        styles=styles_for(plan.padding, padding_mask or words.get("padding_mask"))
        if plan.padding
        else ((MASK_STYLE,) if plan.mask_value else ()),
        weight_requests=requests,
        strong_polarity=polarity_of(plan.padding),
        weights=words.get("weights"),
        file=file,
        first_line=line,
        own_files=frozenset({file} if file else ()),
        mask_from=plan.padding or "",
        time_first=time_first,
        recipe=recipe_of(type(module), built, written),
    )


def mask_of(inputs: Inputs) -> Mask | None:
    """What a case hides beyond the layer's own rules, as a ``Mask``."""
    mask: Mask | None = None if inputs.keep is None else Padding(inputs.keep)
    if inputs.documents is not None:
        own = inputs.documents[:, max(inputs.kv_len - inputs.q_len, 0) :]
        documents = Documents(own, inputs.documents)
        mask = documents if mask is None else mask & documents
    if inputs.mask is not None:
        mask = inputs.mask if mask is None else mask & inputs.mask
    return mask


def _turn(x: Tensor | None, time_first: bool) -> Tensor | None:
    return x.transpose(0, 1) if x is not None and time_first else x


def _positions(
    arguments: dict[str, Any],
    plan: Plan,
    parameters: Mapping[str, inspect.Parameter],
    inputs: Inputs,
    words: Mapping[str, Any],
    before: int = 0,
) -> None:
    """Hand over position ids or rotary tables where the signature asks for them."""
    positions = torch.arange(before, before + inputs.q_len).expand(inputs.batch, -1)
    if inputs.documents is not None:
        docs = inputs.documents
        positions = positions - (docs[:, :, None] == docs[:, None, :]).long().argmax(-1)
    needed = plan.position_ids is not None and (
        parameters[plan.position_ids].default is inspect.Parameter.empty
    )
    if needed and plan.position_ids is not None:
        arguments[plan.position_ids] = positions
    if plan.tables is None and plan.cos_sin is None:
        return
    head_dim = words.get("head_dim") or words["d_model"] // words["num_heads"]
    dim = words.get("rotary_dim") or head_dim
    angle = rotary_angles(positions, rotary_dim=dim, base=words.get("rope_base") or 10000.0)
    pairs = words.get("rope") or "halves"
    full = torch.cat([angle, angle], -1) if pairs == "halves" else angle.repeat_interleave(2, -1)
    tables = (full.cos(), full.sin())
    if plan.cos_sin is not None:
        arguments.update(zip(plan.cos_sin, tables, strict=True))
    elif plan.tables is not None:
        arguments[plan.tables] = tables


HIDING = ("attn_mask", "src_mask")
"""Full masks of torch's own layers, in which True hides."""


def refuse_extra_keys(module: nn.Module, label: str) -> None:
    """nn.MultiheadAttention's options that add keys the definition does not have."""
    for name, option in (("bias_k", "add_bias_kv"), ("add_zero_attn", "add_zero_attn")):
        value = getattr(module, name, None)
        if value is not None and value is not False:
            raise TargetError(
                _("{label} is built with {option}=True, which appends a key of its own").format(
                    label=label, option=option
                ),
                why=_(
                    "the definition attends to the keys of the sequence and nothing else, so every "
                    "comparison would differ by that extra key"
                ),
                fix=_("build it with {option}=False").format(option=option),
            )


def recipe_of(
    cls: type[Any],
    built: Mapping[str, Any] | None,
    written: Callable[[Inputs, Options], str | None],
) -> Recipe | None:
    """How to write the construction of a class, if its arguments are plain values."""
    file, _line = source_of(cls)
    if built is None or file is None:
        return None
    specs = [v for v in built.values() if isinstance(v, AttentionSpec)]
    plain = int | float | str | bool | None
    if not all(isinstance(v, plain) or v in specs for v in built.values()):
        return None
    home = cls.__module__
    if home.startswith("headwise_target_"):
        home = Path(file).stem
    texts = {n: spec_code(v) if isinstance(v, AttentionSpec) else repr(v) for n, v in built.items()}
    arguments = ", ".join(f"{name}={text}" for name, text in texts.items())
    imports = [f"from {home} import {cls.__qualname__}"]
    if specs:
        names = [n for n in SPEC_NAMES if f"{n}(" in arguments]
        imports.append(f"from headwise.spec import {', '.join(names)}")
        imports.append("from headwise.masks import Documents, Padding")
    return Recipe(tuple(imports), f"{cls.__qualname__}({arguments})", written)


SPEC_NAMES = ("Alibi", "AttentionSpec", "Learned", "QkNorm", "RelativeBias", "Rope", "Sinusoidal")
"""Classes that the expression for a specification may name."""


def source_of(thing: Any) -> tuple[str | None, int | None]:
    """File and first line of a class or function, None where there is no source."""
    with contextlib.suppress(TypeError, OSError):
        return inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    return None, None


# ------------------------------------------------------------------ functions
TABLE: dict[str, Plan] = {
    "scaled_dot_product_attention": Plan(
        x="query",
        key="key",
        value="value",
        padding="attn_mask",
        causal="is_causal",
        dropout="dropout_p",
        grouped="enable_gqa",
    )
}
"""Builtins without a signature, by name."""


def bind_function(
    function: Callable[..., Any],
    label: str,
    words: Mapping[str, Any],
    *,
    padding_mask: str | None,
) -> Subject:
    """A subject for a function of projected heads, (B, H, T, D)."""
    name = getattr(function, "__name__", "")
    parameters = parameters_of(function)
    builtin = name in TABLE and not parameters
    plan = (
        TABLE[name]
        if builtin
        else plan_call(parameters, layer=False, annotations=annotations_of(function))
    )
    if plan.x is None or plan.key is None or plan.value is None:
        raise TargetError(
            _("{label} does not take q, k and v").format(label=label),
            where=f"{name}({', '.join(parameters)})",
            fix=_("write an adapter: def headwise_run(fn, q, k, v): …"),
        )
    if plan.required:
        raise TargetError(
            _("{label} needs {names}, and nothing says what to give").format(
                label=label, names=", ".join(plan.required)
            ),
            fix=_("write an adapter: def headwise_run(fn, q, k, v): …"),
        )
    file, line = source_of(function)
    notes = {"calls": f"{name}({plan.x}, {plan.key}, {plan.value})"}
    offers = {"self"}
    if plan.padding is not None:
        offers.add("padding")
        notes["padding argument"] = plan.padding
    elif plan.mask_value is not None:
        offers |= {"padding", "documents"}
        notes[N_("mask argument")] = _("{name}: a Mask, made from what a case hides").format(
            name=plan.mask_value
        )
    if plan.causal is not None and (
        plan.causal not in parameters or parameters[plan.causal].default is False
    ):
        offers.add("causal-flag")
    if plan.training is not None:
        offers.add("dropout")
    if plan.grouped is not None:
        offers.add("grouped")
    styles: tuple[PadStyle, ...] = ()
    if plan.padding is not None:
        if name == "scaled_dot_product_attention":
            styles = (PadStyle("key4d", "keep"),)
        else:
            styles = tuple(s for s in styles_for(plan.padding, padding_mask))
            styles = tuple(sorted(styles, key=lambda s: s.shape == "2d"))
    elif plan.mask_value is not None:
        styles = (MASK_STYLE,)
    sizes = {"num_heads": 4, "head_dim": 8}
    known = {**sizes, **{k: v for k, v in words.items() if v is not None}}
    known.setdefault("d_model", known["num_heads"] * known["head_dim"])
    switchable = "causal-flag" in offers
    always = True if switchable and words.get("causal") else None
    if always:
        offers.discard("causal-flag")
        notes["causal"] = _("through the argument {name}").format(name=plan.causal)
    positional = {
        n
        for n in (plan.x, plan.key, plan.value)
        if n in parameters and parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY
    }

    def call(obj: Any, inputs: Inputs, options: Options) -> Any:
        qkv = [inputs.q, inputs.k, inputs.v]
        if options.layout == "BTHD":
            qkv = [None if t is None else t.transpose(1, 2) for t in qkv]
        extra: dict[str, Any] = {}
        switch = options.causal_flag if options.causal_flag is not None else always
        if inputs.keep is not None and plan.padding is not None and options.style is not None:
            assert inputs.q is not None
            extra[plan.padding] = options.style.make(inputs.keep, inputs.q_len, inputs.q.dtype)
            if always and name in TABLE:
                past = Causal().dense(inputs.q_len, inputs.kv_len)
                extra[plan.padding], switch = extra[plan.padding] & past, None
        if plan.mask_value is not None:
            mask, rule = mask_of(inputs), Causal() if words.get("causal") else None
            extra[plan.mask_value] = mask & rule if mask and rule else mask or rule
        if plan.causal is not None and switch is not None:
            extra[plan.causal] = switch
        if plan.training is not None and options.training:
            extra[plan.training] = True
        heads = [t.shape[1] for t in (inputs.q, inputs.k) if t is not None]
        if plan.grouped is not None and len(set(heads)) == 2:
            extra[plan.grouped] = True
        if positional or not parameters:
            result = obj(*qkv, **extra)
        else:
            names = (str(plan.x), str(plan.key), str(plan.value))
            result = obj(**dict(zip(names, qkv, strict=True)), **extra)
        if options.layout == "BTHD" and isinstance(result, Tensor):
            result = result.transpose(1, 2)
        return result

    def written(inputs: Inputs, options: Options) -> str | None:
        if inputs.keep is not None or options.causal_flag or options.layout != "BHTD" or always:
            return None
        return "target(q, k, v)"

    recipe = None
    if file is not None:
        home = function.__module__
        home = Path(file).stem if home.startswith("headwise_target_") else home
        recipe = Recipe((f"from {home} import {name}",), name, written)
    if "d_context" in words:
        raise UsageError(_("d_context says nothing about a function of q, k and v"), where=label)
    return Subject(
        label=label,
        kind="function",
        make=lambda: function,
        call=call,
        words=known,
        declared=frozenset(k for k, v in words.items() if v is not None),
        notes=notes,
        offers=frozenset(offers),
        styles=styles,
        strong_polarity=polarity_of(plan.padding),
        file=file,
        first_line=line,
        own_files=frozenset({file} if file else ()),
        mask_from=plan.padding or "",
        fixed_sizes=False,
        recipe=recipe,
    )
