"""The thing under test, in one call form, however it was declared or bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.reference import Inputs
from headwise.texts import translate as _

TargetKind = Literal["layer", "function"]
Polarity = Literal["keep", "ignore"]


@dataclass(frozen=True)
class PadStyle:
    """How a padding mask is handed to the target.

    Args:
        shape: ``2d`` (B, Tk), ``key4d`` (B, 1, 1, Tk), ``full4d`` (B, 1, Tq, Tk), ``3d``
            (B, Tq, Tk), ``adapter`` (the file's own adapter takes (B, Tk), True = real), or
            ``mask`` (a ``Mask`` value is made of it).
        polarity: whether True (or 1) means real.
        dtype: ``bool``, ``int``, ``float`` (0/1), or ``added`` (0 and −inf).
    """

    shape: str
    polarity: Polarity = "keep"
    dtype: str = "bool"

    def make(self, keep: Tensor, q_len: int, dtype: torch.dtype) -> Tensor:
        """The mask tensor for a (B, Tk) bool mask, True = real."""
        b, kv_len = keep.shape
        mask = keep
        if self.shape == "key4d":
            mask = keep[:, None, None, :]
        elif self.shape == "full4d":
            mask = keep[:, None, None, :].expand(b, 1, q_len, kv_len)
        elif self.shape == "3d":
            mask = keep[:, None, :].expand(b, q_len, kv_len)
        if self.dtype == "added":
            return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))
        mask = mask if self.polarity == "keep" else ~mask
        return (
            mask.clone()
            if self.dtype == "bool"
            else mask.to(torch.long if self.dtype == "int" else dtype)
        )

    def code(self, name: str = "keep") -> str:
        """An expression for the mask, from a (B, Tk) bool tensor, True = real."""
        shape = {
            "key4d": "[:, None, None, :]",
            "full4d": "[:, None, None, :].expand(-1, 1, x.shape[1], -1)",
            "3d": "[:, None, :].expand(-1, x.shape[1], -1)",
        }.get(self.shape, "")
        mask = f"{name}{shape}"
        if self.dtype == "added":
            return f"torch.zeros({mask}.shape).double().masked_fill(~{mask}, float('-inf'))"
        mask = mask if self.polarity == "keep" else f"~{mask}"
        return {"bool": mask, "int": f"({mask}).long()", "float": f"({mask}).double()"}[self.dtype]

    def sentence(self) -> str:
        """The style in words."""
        if self.shape == "mask":
            return "Padding(keep)"
        shapes = {
            "2d": "(B, Tk)",
            "key4d": "(B, 1, 1, Tk)",
            "full4d": "(B, 1, Tq, Tk)",
            "3d": "(B, Tq, Tk)",
            "adapter": "(B, Tk)",
        }
        meaning = {
            ("keep", "bool"): _("True = real token"),
            ("ignore", "bool"): _("True = ignore"),
            ("keep", "int"): _("1 = real token"),
            ("ignore", "int"): _("1 = ignore"),
            ("keep", "float"): _("1.0 = real token"),
            ("ignore", "float"): _("1.0 = ignore"),
        }.get((self.polarity, self.dtype), _("added to the scores, −inf = hidden"))
        return f"{shapes[self.shape]}, {meaning}"


ADAPTER_STYLE = PadStyle("adapter")
MASK_STYLE = PadStyle("mask")
"""A ``headwise.masks.Mask``; the call makes it."""


@dataclass(frozen=True)
class Options:
    """How to call the target once.

    Args:
        style: how to hand over the padding mask.
        training: training mode (dropout on).
        weights: ask for the attention weights, in the target's own word for it (None = the
            target's default).
        causal_flag: value of the target's causal switch (None = leave it alone).
        time_first: hand over (T, B, D) instead of (B, T, D).
        layout: of a function's tensors, ``BHTD`` or ``BTHD``.
        lifted: float32 casts inside are dropped.
        steps: sizes of steps in which the sequence is taken, with a cache; empty = at once.
        recent: a step is handed the padding mask of its own tokens alone.
    """

    style: PadStyle | None = None
    training: bool = False
    weights: Any = None
    causal_flag: bool | None = None
    time_first: bool = False
    layout: str = "BHTD"
    lifted: bool = False
    steps: tuple[int, ...] = ()
    recent: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a person would write the call, for tests to paste.

    Args:
        imports: lines that bring the target in.
        build: an expression that makes it.
        call: (inputs, options) → an expression that calls ``target`` on variables named as the
            fields of ``Inputs``; None where two lines can't say it.
    """

    imports: tuple[str, ...]
    build: str
    call: Callable[[Inputs, Options], str | None]


@dataclass(frozen=True)
class Evidence:
    """What the provider of a target has seen of a fault, besides the numbers.

    Args:
        sentences: what was seen, for the report.
        file: where the cause lies, if that is known.
        lines: lines to change in it, the best one first.
        reason: why these lines.
    """

    sentences: tuple[str, ...]
    file: str | None = None
    lines: tuple[int, ...] = ()
    reason: str = ""


Caller = Callable[[Any, Inputs, Options], Any]


@dataclass
class Subject:
    """A target, ready to be called.

    Args:
        label: as the user named it.
        kind: ``layer`` (takes x) or ``function`` (takes q, k, v).
        make: builds a fresh object.
        call: (object, inputs, options) → what the target returns.
        words: what is known about the layer, in the words of the specification.
        declared: the words that the user or a configuration declared.
        notes: what was inferred, to be printed.
        offers: any of ``self``, ``padding``, ``cross``, ``documents``, ``weights``, ``dropout``,
            ``causal-flag``, ``query-mask``, ``grouped``, ``steps`` (a sequence can be taken in
            steps, with a cache), ``padded-steps`` (with a padding mask as well).
        styles: ways of handing over a padding mask, likeliest first.
        strong_polarity: what the mask argument's own name says True means, if anything.
        weights: declared weight layout.
        weight_requests: what to say to be given the attention weights.
        file, first_line: where the target is defined.
        own_files: source files that count as the target's own code.
        adapters: code objects in them that only call the target.
        angles: (inputs, lifted) → rotary tables that the target is handed, for the definition.
        mask_from: name of the mask argument, for texts.
        ends_before_output: the layer leaves the output projection to another module.
        fixed_sizes: the sizes can't be chosen by us.
        keeps_weights: its parameters are what is verified, so they are not drawn at random.
        time_first: (T, B, D); None = unknown.
        recipe: how to write a call of it in a test.
        import_s: seconds spent on importing what the target needs, where its provider knows.
        evidence: codes of faults that only their cause tells from others, and what was seen of it.
    """

    label: str
    kind: TargetKind
    make: Callable[[], Any]
    call: Caller
    words: dict[str, Any] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    notes: dict[str, str] = field(default_factory=dict)
    offers: frozenset[str] = frozenset({"self"})
    styles: tuple[PadStyle, ...] = ()
    strong_polarity: Polarity | None = None
    weights: Mapping[str, str] | None = None
    weight_requests: tuple[Any, ...] = (True,)
    file: str | None = None
    first_line: int | None = None
    own_files: frozenset[str] = frozenset()
    adapters: frozenset[CodeType] = frozenset()
    angles: Callable[[Inputs, bool], tuple[Tensor, Tensor] | None] | None = None
    mask_from: str = ""
    ends_before_output: bool = False
    fixed_sizes: bool = True
    keeps_weights: bool = False
    recipe: Recipe | None = None
    import_s: float = 0.0
    time_first: bool | None = False
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
