"""``headwise.swap(model)``: the attention of a loaded transformers model becomes ours, in place.

Nothing is copied. The new modules use the very parameters of the old ones, under the same names:
a state dict, an optimiser and a saved folder are what they would be without the swap, and training
while swapped trains the model. ``undo`` puts the very same modules back.

What is swapped is a list of classes (``KINDS``), and what was left alone is said with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from torch import nn

from headwise.errors import SpecError, UsageError
from headwise.integrations.swapped import IMPLEMENTATIONS, SwappedAttention, adapt
from headwise.integrations.transformers import ROLES
from headwise.spec import AttentionSpec
from headwise.texts import translate as _

KINDS: Mapping[str, str] = {
    "BertSelfAttention": "bert",
    "GPT2Attention": "gpt2",
    "LlamaAttention": "llama",
    "MistralAttention": "mistral",
    "Qwen2Attention": "qwen2",
}
"""The classes that are swapped, each with the type of its model."""

OLDEST = 5
"""The oldest version of transformers: eager GPT-2 and BERT of version 4 hide by other means."""


@dataclass(frozen=True)
class Swapped:
    """A module that was swapped.

    Args:
        name: where it is in the model, ``model.layers.0.self_attn``.
        kind: its class, ``LlamaAttention``.
        spec: what it is, as the configuration says.
        note: what the configuration says otherwise than the model does; empty = nothing.
    """

    name: str
    kind: str
    spec: AttentionSpec
    note: str = ""


@dataclass(frozen=True)
class Kept:
    """An attention module that was left alone.

    Args:
        name: where it is in the model.
        kind: its class.
        why: the reason, one sentence.
    """

    name: str
    kind: str
    why: str


@dataclass
class Swap:
    """What was swapped, and the way back. Also a context manager: at its end, it is undone.

    Args:
        model: the model.
        swapped: the modules that ours compute now.
        kept: attention modules that were left alone, with the reason.
    """

    model: nn.Module = field(repr=False)
    swapped: tuple[Swapped, ...]
    kept: tuple[Kept, ...]
    _pairs: dict[str, tuple[nn.Module, SwappedAttention]] = field(default_factory=dict, repr=False)

    def undo(self) -> None:
        """Put the very same modules back; a second time, nothing happens.

        Raises:
            UsageError: if another module stands in one of the places by now; nothing is changed.
        """
        for name, (_original, ours) in self._pairs.items():
            found = self.model.get_submodule(name)
            if found is not ours:
                raise UsageError(
                    _("{name} is another module by now").format(name=name),
                    where=f"{type(found).__name__}",
                    why=_("what was put there after the swap would be lost"),
                    fix=_("take it out again, then undo"),
                )
        for name, (original, ours) in self._pairs.items():
            original.training = ours.training
            _put(self.model, name, original)
        self._pairs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        lines = [
            _("attention modules swapped: {count}; parameters copied: none").format(
                count=len(self.swapped)
            )
        ]
        lines += [
            f"  {one.name}: {one.kind}" + (f" ({one.note})" if one.note else "")
            for one in self.swapped
        ]
        lines += [
            _("  {name}: {kind} kept: {why}").format(name=one.name, kind=one.kind, why=one.why)
            for one in self.kept
        ]
        return "\n".join(lines)


def swap(model: nn.Module) -> Swap:
    """Let our attention compute in a loaded transformers model, in place.

    Logits, gradients, ``generate`` and its caches stay what they are, to rounding. Parameters are
    shared: no tensor is copied, and every name in the state dict stays. Positions are turned by the
    cosines and sines that the model hands over, and masks are those that it makes. Dropout in
    training draws other random numbers than the model's own code would.

    Args:
        model: a GPT-2, LLaMA, Mistral, Qwen2 or BERT model of transformers, bare or with a head.

    Returns:
        A `Swap`: what was swapped, what was not and why, and ``undo()``.

    Raises:
        UsageError: if there is nothing to swap, with the reason for each attention module found.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"vocab_size": 61, "hidden_size": 48, "intermediate_size": 40}
        >>> heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
        >>> tokens = torch.arange(7)[None]
        >>> with torch.no_grad():
        ...     before = model(tokens).logits
        ...     with swap(model) as record:
        ...         after = model(tokens).logits
        >>> print(record)
        attention modules swapped: 1; parameters copied: none
          model.layers.0.self_attn: LlamaAttention
        >>> torch.allclose(after, before, atol=1e-6)
        True
    """
    found = {name: part for name, part in model.named_modules() if _is_attention(part)}
    done: list[Swapped] = []
    kept: list[Kept] = []
    pairs: dict[str, tuple[nn.Module, SwappedAttention]] = {}
    for name, part in found.items():
        kind = type(part).__name__
        why = _why_not(part)
        spec, note = None, ""
        if not why:
            try:
                spec, note = _spec_of(part)
            except SpecError as error:
                why = error.what
        if spec is None:
            kept.append(Kept(name, kind, why))
            continue
        roles = _roles(part)
        pairs[name] = part, adapt(part, spec, roles, layer_idx=int(part.layer_idx or 0))
        done.append(Swapped(name, kind, spec, note))
    if not done:
        listed = "; ".join(f"{one.name or kind_of(model)}: {one.why}" for one in kept)
        raise UsageError(
            _("there is no attention to swap in {kind}").format(kind=kind_of(model)),
            where="headwise.swap(model)",
            why=listed or _("no module has an attention class of transformers"),
            fix=_("a transformers model with one of: {kinds}").format(kinds=", ".join(KINDS)),
        )
    for name, (_original, ours) in pairs.items():
        _put(model, name, ours)
    return Swap(model, tuple(done), tuple(kept), pairs)


def kind_of(model: nn.Module) -> str:
    """The class of a model, by name."""
    return type(model).__name__


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _dot, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


# -- what is there ------------------------------------------------------------------------------


def _is_attention(part: nn.Module) -> bool:
    """Whether a module is an attention layer, and no wrapper of one.

    Told by its name and by what it has: projections of its own.
    """
    return "Attention" in type(part).__name__ and bool({"q", "qkv"} & set(_roles(part)))


def _roles(part: nn.Module) -> dict[str, str]:
    """Which child makes what, by the names that transformers gives it."""
    children = {name for name, _child in part.named_children()}
    found = {role: next((n for n in names if n in children), "") for role, names in ROLES.items()}
    return {role: name for role, name in found.items() if name}


def _why_not(part: nn.Module) -> str:
    """Why a module can't be swapped; empty if it can."""
    kind = type(part)
    if isinstance(part, SwappedAttention):
        return _("it is swapped already")
    model_type = KINDS.get(kind.__name__)
    if model_type is None:
        return _("its class is not one of {kinds}").format(kinds=", ".join(KINDS))
    home = f"transformers.models.{model_type}."
    if not kind.__module__.startswith(home):
        return _("its class comes from {module}, not from {home}").format(
            module=kind.__module__, home=home.removesuffix(".")
        )
    import transformers

    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        return _(
            "transformers {version} calls its layers in another way, {oldest} is needed"
        ).format(version=transformers.__version__, oldest=OLDEST)
    if getattr(part, "is_cross_attention", False):
        return _("it is cross attention, whose keys come from another sequence")
    if "forward" in vars(part):
        return _("another library has replaced its forward method")
    config: Any = part.config
    if getattr(config, "reorder_and_upcast_attn", False):
        return _("reorder_and_upcast_attn asks for scores in float32")
    implementation = config._attn_implementation  # noqa: SLF001 - its public name
    if implementation == "headwise":
        return _("attn_implementation='headwise' computes by ours already")
    if implementation not in IMPLEMENTATIONS:
        return _("with attn_implementation={name!r} masks have a form of their own").format(
            name=implementation
        )
    return ""


def _spec_of(part: nn.Module) -> tuple[AttentionSpec, str]:
    """What a module is, and what of that the model does otherwise."""
    config: Any = part.config
    layer = int(part.layer_idx or 0)  # type: ignore[arg-type]
    try:
        return AttentionSpec.from_hf_config(config, layer=layer), ""
    except SpecError as error:
        # A rotary scaling that a spec can't say: the model's tables have it all the same.
        plain = {**config.to_dict(), "rope_parameters": None, "rope_scaling": None}
        spec = AttentionSpec.from_hf_config(plain, layer=layer).replace(positions=None)
        return spec, _("{what}: the model's own tables turn").format(what=error.what)
