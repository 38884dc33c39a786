"""Attention layers of Hugging Face transformers, run as targets the way their own model runs them.

A layer taken out of its model is not yet runnable: the mask and the rotary tables are made by the
model and handed over with the call. So the whole (tiny, random) model is run once on token ids,
the arguments of its first attention layer are recorded, and the layer is then called with those
arguments and with our hidden states. Nothing about masks is assumed: what the model makes is used.

Built from the configuration class alone; nothing is downloaded. ``transformers`` is imported when
`load` is called.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.errors import TargetError, UsageError, did_you_mean
from headwise.hf_config import FAMILIES
from headwise.integrations.implementations import Implementation, look_up, raised_at
from headwise.reference.setting import Inputs
from headwise.spec import AttentionSpec
from headwise.texts import translate as _
from headwise.verifier.lift import Lift
from headwise.verifier.subject import ADAPTER_STYLE, Evidence, Options, Subject

SIZES: Mapping[str, int] = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
"""Sizes of a tiny model by the names that most configurations use, different wherever they can be;
a head has 12 channels."""

TYPE_SIZES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"n_inner": 40},
    "mistral": {"sliding_window": 4},
    "qwen3": {"head_dim": 10},
    "smollm3": {"pad_token_id": 0},
}
"""Further fields for one type. Mistral's window is shorter than the texts used here, or it would
hide nothing; Qwen3's default head of 128 channels is cut to one that is not hidden/heads; SmolLM3's
default padding token lies outside a tiny vocabulary."""

ROLES: Mapping[str, tuple[str, ...]] = {
    "qkv": ("c_attn", "qkv_proj"),
    "q": ("q_proj", "query"),
    "k": ("k_proj", "key"),
    "v": ("v_proj", "value"),
    "o": ("o_proj", "c_proj"),
    "q_norm": ("q_norm",),
    "k_norm": ("k_norm",),
}
"""What a submodule of an attention layer is for, by the names that transformers gives it."""


@dataclass(frozen=True)
class Call:
    """The arguments that a model hands to its attention layer, without the hidden states.

    Args:
        args: positional arguments after the hidden states.
        kwargs: named arguments; caches are taken out, so that calls leave nothing behind.
        keyword: the name under which hidden states are passed, or None if they come first.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keyword: str | None

    def arguments(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh copies of the arguments, with ``x`` as the hidden states."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        if self.keyword is None:
            return (x, *args), kwargs
        return args, {**kwargs, self.keyword: x}


@dataclass(kw_only=True)
class HfTarget:
    """The first softmax attention layer of a tiny random model, and how that model calls it.

    Args:
        label: as on the command line, ``hf:llama``.
        layer: the layer, float64, in eval mode.
        layer_name: where it sits in the model, ``layers.0.self_attn``.
        file: its source file.
        spec: what the configuration says about it.
        config: the configuration of the model.
        implementation: what computes the attention, and what is registered with it.
        ends_before_output: the output projection belongs to another module (BERT).
        dropped: casts to float32 inside one call of the layer, by name (what lifting drops).
        notes: what was found out, to be printed: name and sentence.
        import_s: seconds spent on importing transformers and the model's code.
    """

    label: str
    layer: nn.Module
    layer_name: str
    file: str | None
    spec: AttentionSpec
    config: Any
    implementation: Implementation
    ends_before_output: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    import_s: float = 0.0
    _models: dict[torch.dtype, nn.Module] = field(default_factory=dict, repr=False)
    _calls: dict[tuple[Any, ...], Call] = field(default_factory=dict, repr=False)

    @property
    def attn_implementation(self) -> str:
        """Name of what computes the attention."""
        return self.implementation.name

    @property
    def window(self) -> tuple[int | None, int | None] | None:
        """Inclusive distances (left, right) that the layer looks, or None for no limit."""
        return self.spec.window

    def call(self, layer: nn.Module, inputs: Inputs, *, lifted: bool = False) -> Tensor:
        """Run a layer as the model runs it, on hidden states of ours.

        Args:
            layer: ``self.layer`` or a copy of it, with any weights.
            inputs: ``x`` (B, T, Dm), in the dtype of the layer, and ``keep`` (B, T) or None.
            lifted: drop the casts to float32 on the way, in the model's masks and tables too.

        Returns:
            (B, T, Dm), or (B, T, Hq·Dv) where the layer ends before the output projection.

        Raises:
            UsageError: inputs that the model has no argument for, or more tokens than it takes.
            TargetError: the model itself can't be run.

        Example:
            >>> target = load("llama")
            >>> x = torch.zeros(2, 5, 48, dtype=torch.float64)
            >>> target.call(target.layer, Inputs(x=x), lifted=True).shape
            torch.Size([2, 5, 48])
        """
        x, call = self._prepared(inputs, lifted=lifted)
        args, kwargs = call.arguments(x)
        with Lift() if lifted else contextlib.nullcontext():
            result = layer(*args, **kwargs)
        return _first_tensor(result, type(layer).__name__)

    def angles(self, inputs: Inputs, *, lifted: bool = False) -> tuple[Tensor, Tensor] | None:
        """The rotary tables that the model hands over for these inputs, in our form.

        The tables of an unlifted run are computed in float32 even in a float64 model. Lifted, the
        angles are float64 products of the float32 frequencies. Either way they are not the
        formula's to rounding, so a comparison takes them from here (``Inputs.angles``).

        Args:
            inputs: as for `call`.
            lifted: as for `call`: the two give slightly different tables.

        Returns:
            (cos, sin), each (B or 1, T, rotary_dim/2) and float64; None for a layer that does not
            rotate.

        Raises:
            TargetError: tables in a form that is not known.
        """
        rope = self.spec.rope
        if rope is None:
            return None
        _x, call = self._prepared(inputs, lifted=lifted)
        tables = call.kwargs.get("position_embeddings")
        if not (isinstance(tables, tuple) and len(tables) == 2):
            raise TargetError(
                _("the model hands no cos and sin to its attention layer"),
                where=f"{self.label}: position_embeddings = {type(tables).__name__}",
            )
        cos, sin = (table.double() for table in tables)
        # One column per channel, so that each pair's angle is there twice.
        half = self.spec.rotary_dim // 2
        halves = rope.pairs == "halves"
        first = slice(0, half) if halves else slice(0, None, 2)
        second = slice(half, None) if halves else slice(1, None, 2)
        for table in (cos, sin):
            if table.shape[-1] != 2 * half or not table[..., first].equal(table[..., second]):
                raise TargetError(
                    _("rotary tables of shape {shape} are not one angle per pair, twice").format(
                        shape=tuple(table.shape)
                    ),
                    where=self.label,
                )
        return cos[..., first], sin[..., first]

    def parameter_names(self, layer: nn.Module | None = None) -> dict[str, str]:
        """Which submodule of a layer makes what: role to name.

        Args:
            layer: a layer of this class; None = ``self.layer``.

        Returns:
            Roles ``q``, ``k``, ``v``, ``o``, ``qkv`` (all three packed), ``q_norm``, ``k_norm``.

        Example:
            >>> load("llama").parameter_names()
            {'q': 'q_proj', 'k': 'k_proj', 'v': 'v_proj', 'o': 'o_proj'}
            >>> load("gpt2").parameter_names()
            {'qkv': 'c_attn', 'o': 'c_proj'}
        """
        return _roles(self.layer if layer is None else layer)

    # ------------------------------------------------------------------ recording
    def _prepared(self, inputs: Inputs, *, lifted: bool) -> tuple[Tensor, Call]:
        """The hidden states, checked, and the recorded call for their size and padding."""
        x, keep = inputs.x, inputs.keep
        extra = [
            name
            for name in ("context", "values", "q", "k", "v", "documents", "mask", "dropout")
            if getattr(inputs, name) is not None
        ]
        if x is None or extra:
            raise UsageError(
                _("a transformers layer is run on hidden states and padding only"),
                where=f"{self.label}: Inputs({', '.join(extra) or 'x=None'})",
                fix="Inputs(x=…, keep=…)",
            )
        limit = getattr(self.config, "max_position_embeddings", None)
        if limit is not None and x.shape[1] > limit:
            raise UsageError(
                _("{tokens} tokens are more than the {limit} positions of the model").format(
                    tokens=x.shape[1], limit=limit
                ),
                where=self.label,
                fix=f"--init max_position_embeddings={x.shape[1]}",
            )
        if keep is not None and keep.shape != x.shape[:2]:
            raise UsageError(
                _("keep {keep} does not fit x {x}").format(
                    keep=tuple(keep.shape), x=tuple(x.shape)
                ),
                where=self.label,
                why=_("padding is (B, T), True = real token"),
            )
        pattern = None if keep is None else tuple(keep.bool().flatten().tolist())
        key = (x.shape[0], x.shape[1], pattern, lifted, x.dtype)
        if key not in self._calls:
            self._calls[key] = self._record(x, keep, lifted=lifted)
        return x, self._calls[key]

    def _record(self, x: Tensor, keep: Tensor | None, *, lifted: bool) -> Call:
        """Run the whole model on random tokens and keep what its attention layer was given."""
        model = self._model(x.dtype)
        layer = model.get_submodule(self.layer_name)
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append((args, dict(kwargs)))

        handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            with Lift() if lifted else contextlib.nullcontext():
                _run_model(model, x.shape[0], x.shape[1], keep, label=self.label)
        finally:
            handle.remove()
        args, kwargs = seen[0]
        keyword = None if args else "hidden_states"
        if keyword is not None:
            kwargs.pop(keyword)
        # The model is run without a cache; a cache object would change with every call.
        kwargs = {
            name: None if type(value).__name__.endswith("Cache") else value
            for name, value in kwargs.items()
        }
        return Call(args[1:], kwargs, keyword)

    def _model(self, dtype: torch.dtype) -> nn.Module:
        """The model in a dtype: masks hold that dtype's own minimum, tables its own rounding."""
        if dtype not in self._models:
            model = copy.deepcopy(self._models[torch.float64])
            # Parameters only: rotary frequencies are buffers, and a model that is loaded in half
            # precision keeps them in float32 (they were float32 before they became float64).
            for parameter in model.parameters():
                parameter.data = parameter.data.to(dtype)
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    buffer.data = buffer.data.float()
            self._models[dtype] = model
        return self._models[dtype]


def load(
    model_type: str,
    *,
    attn_implementation: str = "eager",
    init: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> HfTarget:
    """A tiny random model of a Hugging Face type, ready to have its attention layer called.

    Args:
        model_type: ``gpt2``, ``llama``, ``mistral``, ``bert``, … (`headwise.hf_config.FAMILIES`).
        attn_implementation: ``eager``, ``sdpa``, ``headwise``, or a name that was registered with
            transformers' ``AttentionInterface``.
        init: fields of the configuration to set otherwise, by name.
        seed: of the weights and of the token ids.

    Returns:
        An `HfTarget`; its float64 model has every parameter moved off its initial value, so that
        zero biases and unit gains hide nothing.

    Raises:
        UsageError: transformers is missing, or the type, the implementation, a field or a value
            does not exist.
        TargetError: the type exists but its attention is not described here, or it can't be built.

    Example:
        >>> target = load("mistral", attn_implementation="sdpa")
        >>> type(target.layer).__name__, target.window
        ('MistralAttention', (3, 0))
    """
    started = time.perf_counter()
    transformers = _import()
    label = f"hf:{model_type}"
    config_class = _config_class(transformers, model_type)
    implementation = look_up(attn_implementation)
    with _quiet(transformers):
        config = _config(config_class, model_type, dict(init or {}))
        model_class = _model_class(transformers, config_class)
        import_s = time.perf_counter() - started
        model = _build(transformers, model_class, config, attn_implementation, label, seed)
        layer_name = _first_attention(model, label, implementation)
    layer = model.get_submodule(layer_name)
    target = HfTarget(
        label=label,
        layer=layer,
        layer_name=layer_name,
        file=inspect.getsourcefile(type(layer)),
        spec=AttentionSpec.from_hf_config(config, layer=getattr(layer, "layer_idx", None) or 0),
        config=config,
        implementation=implementation,
        ends_before_output="o" not in _roles(layer),
        import_s=import_s,
    )
    target._models[torch.float64] = model  # noqa: SLF001 - still part of its construction
    _look_around(target)
    return target


# ---------------------------------------------------------------------------------- building
def _import() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            _("hf: targets need the transformers library"),
            why=str(error),
            fix="pip install 'headwise[hf]'",
        ) from error
    return transformers


def _config_class(transformers: Any, model_type: str) -> Any:
    """The configuration class of a type whose attention is described here."""
    known = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in known:
        near = did_you_mean(model_type, FAMILIES) or did_you_mean(model_type, known)
        raise UsageError(
            _("transformers {version} has no model type {kind!r}").format(
                version=transformers.__version__, kind=model_type
            ),
            where=f"hf:{model_type}",
            fix=_("did you mean {near!r}?").format(near=near) if near else ", ".join(FAMILIES),
        )
    if model_type not in FAMILIES:
        raise TargetError(
            _("the attention of model type {kind!r} is not described here").format(kind=model_type),
            where=f"hf:{model_type}",
            why=_("whether a family is causal or rotates is a fact of its code, not of its config"),
            fix=_("one of: {families}").format(families=", ".join(FAMILIES)),
        )
    return transformers.CONFIG_MAPPING[model_type]


def _config(config_class: Any, model_type: str, init: dict[str, Any]) -> Any:
    """A configuration, from keyword arguments: fields set later leave derived ones stale."""
    aliases = dict(getattr(config_class, "attribute_map", None) or {})
    if dataclasses.is_dataclass(config_class):
        known = {f.name for f in dataclasses.fields(config_class)}
    else:  # transformers 4
        known = set(inspect.signature(config_class.__init__).parameters) - {"self", "kwargs"}
    values = {aliases.get(name, name): value for name, value in SIZES.items()}
    values = {name: value for name, value in values.items() if name in known}
    values.update(TYPE_SIZES.get(model_type, {}))
    for name, value in init.items():
        field_name = aliases.get(name, name)
        if field_name not in known:
            near = did_you_mean(name, known | set(aliases))
            raise UsageError(
                _("{config} has no field {name!r}").format(config=config_class.__name__, name=name),
                where=f"--init {name}={value}",
                fix=_("did you mean {near!r}?").format(near=near) if near else "",
            )
        values[field_name] = value
    try:
        return config_class(**values)
    except Exception as error:
        raise UsageError(
            _("{config} refuses these values").format(config=config_class.__name__),
            where=", ".join(f"{name}={value}" for name, value in (init or values).items()),
            why=" ".join(str(error).split()),
        ) from error


def _model_class(transformers: Any, config_class: Any) -> Any:
    """The bare model of a type; the lookup imports its code."""
    try:
        return transformers.MODEL_MAPPING[config_class]
    except (KeyError, ImportError) as error:
        raise TargetError(
            _("transformers has no bare model for {config}").format(config=config_class.__name__),
            why=str(error),
        ) from error


def _build(
    transformers: Any,
    model_class: Any,
    config: Any,
    attn_implementation: str,
    label: str,
    seed: int,
) -> nn.Module:
    """The model in float64, in eval mode, with every parameter moved off its initial value."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = transformers.AutoModel.from_config(
                config, attn_implementation=attn_implementation
            )
    except Exception as error:
        raise TargetError(
            _("{model} can't be built").format(model=model_class.__name__),
            where=label,
            why=f"{type(error).__name__}: {' '.join(str(error).split())}",
        ) from error
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # 0.15 ≈ 1/√48: projections of unit hidden states, and so scores, are of order one.
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise, alpha=0.15)
    found: nn.Module = model
    return found


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No log lines of transformers inside: special token ids beyond a tiny vocabulary, and such."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


# ---------------------------------------------------------------------------------- running
def _run_model(
    model: nn.Module, batch: int, length: int, keep: Tensor | None, *, label: str
) -> None:
    """One forward pass on random token ids, without cache and gradients."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    tokens = torch.randint(0, vocabulary, (batch, length), generator=generator)
    mask = None if keep is None else keep.long()
    import transformers

    try:
        with torch.no_grad(), _quiet(transformers):
            model(input_ids=tokens, attention_mask=mask, use_cache=False)
    except Exception as error:
        raise TargetError(
            _("the model of {label} can't be run on {batch} x {length} tokens").format(
                label=label, batch=batch, length=length
            ),
            where=raised_at(error),
            why=f"{type(error).__name__}: {' '.join(str(error).split())}",
        ) from error


class _SoftmaxWatch(TorchFunctionMode):
    """Notes which modules are being run when the first softmax is computed."""

    SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax, F.scaled_dot_product_attention)

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.first: list[str] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.SOFTMAXES and self.first is None:
            self.first = list(self.running)
        return func(*args, **(kwargs or {}))


def _first_attention(model: nn.Module, label: str, implementation: Implementation) -> str:
    """Name of the innermost module with parameters in which the first softmax is computed.

    A function that was registered may have no softmax: the model's own code is looked at then.
    """
    if implementation.name not in ("eager", "sdpa"):
        from headwise.integrations.registration import implementation as running_on

        with running_on(model, "eager"):
            return _first_attention(model, label, look_up("eager"))
    watch = _SoftmaxWatch()
    handles = []
    for name, module in model.named_modules():

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
            watch.running.append(name)

        def leave(_module: nn.Module, _args: Any, _result: Any) -> None:
            watch.running.pop()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with watch:
            _run_model(model, 1, 3, None, label=label)
    finally:
        for handle in handles:
            handle.remove()
    for name in reversed(watch.first or []):
        if name and any(True for _p in model.get_submodule(name).parameters()):
            return name
    raise TargetError(
        _("no softmax attention layer was called in one run of {label}").format(label=label),
        where=type(model).__name__,
    )


def _first_tensor(result: Any, name: str) -> Tensor:
    """The output of a layer: the result, or the first tensor in it."""
    parts = result.values() if isinstance(result, Mapping) else result
    for part in [result] if isinstance(result, Tensor) else parts:
        if isinstance(part, Tensor):
            return part
    raise TargetError(_("{name} returned no tensor").format(name=name))


# ---------------------------------------------------------------------------------- describing
def _roles(layer: nn.Module) -> dict[str, str]:
    children = {name for name, _module in layer.named_children()}
    found = {role: next((n for n in names if n in children), "") for role, names in ROLES.items()}
    return {role: name for role, name in found.items() if name}


def _look_around(target: HfTarget) -> None:
    """Run the layer on a few tokens, plain and padded, and note what was inferred from it."""
    dtype = torch.float64
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, target.spec.d_model, generator=generator, dtype=dtype)
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[0, :2] = False  # left padding
    _x, plain = target._prepared(Inputs(x=x), lifted=False)  # noqa: SLF001 - same file
    _x, padded = target._prepared(Inputs(x=x, keep=keep), lifted=False)  # noqa: SLF001
    args, kwargs = plain.arguments(x)
    with torch.no_grad(), Lift() as lift:
        target.layer(*args, **kwargs)
    target.dropped = lift.dropped

    notes = target.notes
    notes["layer"] = f"{type(target.layer).__name__} ({target.layer_name})"
    notes["attn_implementation"] = target.implementation.sentence
    notes["mask"] = _("{plain}; with padding: {padded}").format(
        plain=_mask_kind(plain, target.layer, target.attn_implementation),
        padded=_mask_kind(padded, target.layer, target.attn_implementation),
    )
    if target.spec.rope is not None:
        notes["positions"] = _("cos and sin handed over by the model (float32 tables)")
    elif FAMILIES[target.config.model_type].positions == "learned-outside":
        notes["positions"] = _("added to the embeddings, outside the layer")
    else:
        notes["positions"] = _("none in this layer")
    if target.ends_before_output:
        notes["output"] = _("output projection outside")
    if "qkv" in target.parameter_names():
        packed = target.layer.get_submodule(target.parameter_names()["qkv"])
        notes["weights"] = (
            _("q, k and v packed in {name}, stored in × out (Conv1D)")
            if type(packed).__name__ == "Conv1D"
            else _("q, k and v packed in {name}")
        ).format(name=target.parameter_names()["qkv"])
    if target.dropped:
        notes["float32"] = _("casts to float32 inside the layer: {casts}").format(
            casts=", ".join(f"{name} × {count}" for name, count in target.dropped.items())
        )


def _evidence(target: HfTarget) -> dict[str, Evidence]:
    """What the registry, and a mask that should be plainly causal, prove of faults."""
    found = target.implementation.evidence()
    if target.spec.is_causal:
        length = 6 if target.spec.window is None else 2  # a window hides nothing
        x = torch.zeros(1, length, target.spec.d_model, dtype=torch.float64)
        _x, call = target._prepared(Inputs(x=x), lifted=False)  # noqa: SLF001 - same file
        mask = call.kwargs.get("attention_mask")
        if mask is None or isinstance(mask, Tensor):
            found |= target.implementation.evidence_of_mask(mask)
    return found


def _mask_kind(call: Call, layer: nn.Module, attn_implementation: str) -> str:
    """The mask that a model hands over, in words."""
    mask = call.kwargs.get("attention_mask")
    if mask is None:
        by_flag = attn_implementation in ("sdpa", "headwise")
        causal = by_flag and getattr(layer, "is_causal", False)
        return _("none, is_causal instead") if causal else _("none")
    if not isinstance(mask, Tensor):
        return type(mask).__name__
    if mask.dtype is torch.bool:
        return _("boolean, True = may look")
    if mask.min() == torch.finfo(mask.dtype).min:
        return _("additive float, finfo.min")
    return _("additive float, smallest value {value:.3g}").format(value=float(mask.min()))


# ---------------------------------------------------------------------- as a target of `verify`
def subject(
    model_type: str,
    *,
    words: Mapping[str, Any],
    init: Mapping[str, Any],
    attn_implementation: str,
    seed: int,
) -> Subject:
    """The subject for ``hf:TYPE``: the layer, called as its own model calls it.

    Args:
        model_type: type of the model, ``llama``.
        words: words of the specification that the user declared; they win over the configuration.
        init: fields of the configuration.
        attn_implementation: name of what computes the attention.
        seed: of the random model.
    """
    target = load(model_type, attn_implementation=attn_implementation, init=init, seed=seed)
    spec = target.spec
    changes: dict[str, Any] = {}
    for word, name in (("causal", "is_causal"), ("scale", "scale"), ("softcap", "softcap")):
        if words.get(word) is not None:
            changes[name] = words[word]
    if words.get("window") is not None:
        changes["window"] = tuple(words["window"])
    if words.get("rope") is not None and spec.rope is not None:
        changes["positions"] = dataclasses.replace(spec.rope, pairs=words["rope"])
    spec = spec.replace(**changes)

    own = target.implementation.file

    def call(layer: Any, inputs: Inputs, options: Options) -> Tensor:
        return target.call(layer, inputs, lifted=options.lifted)

    return Subject(
        label=target.label,
        kind="layer",
        make=lambda: target.layer,
        call=call,
        words={"spec": spec},
        declared=frozenset({"causal", "window", "rope", "scale", "positions", "padding_mask"}),
        notes=dict(target.notes),
        offers=frozenset({"self", "padding"}),
        styles=(ADAPTER_STYLE,),
        strong_polarity="keep",
        file=target.file,
        own_files=frozenset(file for file in [own or target.file] if file),
        angles=None
        if spec.rope is None
        else lambda inputs, lifted: target.angles(inputs, lifted=lifted),
        mask_from="attention_mask",
        ends_before_output=target.ends_before_output,
        import_s=target.import_s,
        evidence=_evidence(target),
    )
