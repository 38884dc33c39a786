"""A sequence in steps, with a cache, and the ways in which that goes wrong.

Each step is a run of the definition's ten stages with few queries and with the keys that the cache
gives. What can be wrong is how the cache is kept (which token lies in which slot), where tokens
are said to be (positions), and what a step may see. Each is a function here, so that a fault
replaces one and leaves the others right.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import ShapeError
from headwise.reference.definition import (
    STAGE_FUNCTIONS,
    StageFunction,
    apply_mask,
    check_parameters,
    normalise,
    split_heads,
)
from headwise.reference.positions import sinusoidal_table
from headwise.reference.setting import Inputs, Parameters, Setting, Trace
from headwise.spec import Alibi, AttentionSpec, Learned, RelativeBias, Sinusoidal
from headwise.texts import translate as _


# ------------------------------------------------------------------ what a cache holds
@dataclass(frozen=True)
class Slots:
    """The slots of a cache.

    Args:
        rows: (B, N), whose token it is.
        tokens: (B, N), which token; -1 = never written, zeros.
        places: (B, N), the position by which its key was turned, or that was added to it.
    """

    rows: Tensor
    tokens: Tensor
    places: Tensor

    @property
    def length(self) -> int:
        """N."""
        return int(self.tokens.shape[1])

    def __add__(self, other: Slots) -> Slots:
        """These slots and then others."""
        return Slots(
            *(torch.cat([getattr(self, n), getattr(other, n)], 1) for n in ("rows", "tokens",
                                                                            "places"))
        )  # fmt: skip

    def cut(self, start: int | None, end: int | None) -> Slots:
        """Some of the slots, by Python's rules for slices."""
        return Slots(*(t[:, start:end] for t in (self.rows, self.tokens, self.places)))

    def last(self, count: int) -> Slots:
        """The last slots, at most a number of them."""
        return self.cut(max(self.length - count, 0), None)

    def written(self, at: int, new: Slots) -> Slots:
        """These slots with others written over them from a slot on; gaps are zeros."""
        size = max(self.length, at + new.length)
        batch = self.tokens.shape[0]
        grown = self + empty_slots(batch, size - self.length)
        parts = [grown.cut(None, at), new, grown.cut(at + new.length, None)]
        return parts[0] + parts[1] + parts[2]


def empty_slots(batch: int, size: int) -> Slots:
    """Slots that nothing was written to."""
    rows = torch.arange(batch)[:, None].expand(-1, size)
    nothing = torch.full((batch, size), -1)
    return Slots(rows, nothing, torch.zeros(batch, size, dtype=torch.long))


@dataclass(frozen=True)
class Step:
    """One step: tokens ``start`` … ``start + rows - 1``.

    Args:
        number: from 0.
        sizes: of all steps.
        spec, inputs: of the whole sequence.
        places: (B, T), the right positions.
        held: what the cache holds before the step.
    """

    number: int
    start: int
    rows: int
    sizes: tuple[int, ...]
    spec: AttentionSpec
    inputs: Inputs
    places: Tensor
    held: Slots

    @property
    def later(self) -> bool:
        """Whether anything came before."""
        return self.number > 0

    @property
    def seen(self) -> int:
        """Tokens there are after this step."""
        return self.start + self.rows

    @property
    def right(self) -> Tensor:
        """(B, rows), the right positions of the new tokens."""
        return self.places[:, self.start : self.seen]

    def counted(self, first: int) -> Tensor:
        """(B, rows), positions counted from a number on."""
        return torch.arange(first, first + self.rows).expand(self.inputs.batch, -1)


Empty = Literal["zero", "nan", "mean"]
Places = Callable[[Step], Tensor]
Store = Callable[[Step, Slots], tuple[Slots, Slots]]
Bias = Callable[[Step, int], tuple[Tensor, Tensor]]
Table = Callable[[Step, int], Tensor]


# ------------------------------------------------------------------ how it is right
def right_places(step: Step) -> Tensor:
    """Positions go on where the last step ended."""
    return step.right


def append(step: Step, new: Slots) -> tuple[Slots, Slots]:
    """(what this step reads, what is kept): everything so far and the new tokens, in order."""
    both = step.held + new
    return both, both


def by_slots(step: Step, length: int) -> tuple[Tensor, Tensor]:
    """(query positions, key positions) of a bias: slots, the last query at the last key."""
    batch = step.inputs.batch
    keys = torch.arange(length).expand(batch, -1)
    return torch.arange(length - step.rows, length).expand(batch, -1), keys


def table(
    step: Step,
    length: int,
    *,
    causal: int | None = 0,
    window: bool = True,
    padding: bool = True,
) -> Tensor:
    """(B, 1, rows, N), which slots each query sees, by slots.

    Args:
        step: the step.
        length: N.
        causal: how far beyond the diagonal that ends at the last key may be seen; None = anywhere.
        window: whether the window counts.
        padding: whether the padding mask counts; it has one entry per token.

    Raises:
        ShapeError: more slots than tokens under a padding mask.
    """
    keep, spec = step.inputs.keep, step.spec
    slot = torch.arange(length)[None]
    distance = slot - (torch.arange(step.rows)[:, None] + length - step.rows)
    seen = torch.ones(step.rows, length, dtype=torch.bool)
    if spec.is_causal and causal is not None:
        seen = seen & (distance <= causal)
    if spec.window is not None and window:
        left, right = spec.window
        seen = seen & (distance >= -left) if left is not None else seen
        if right is not None and (causal is not None or not spec.is_causal):
            seen = seen & (distance <= right)
    full = seen.expand(step.inputs.batch, 1, -1, -1)
    if keep is not None and padding:
        if length > keep.shape[1]:
            raise ShapeError(f"{length} slots under a mask of {keep.shape[1]}")
        full = full & keep[:, None, None, :length]
    return full


def right_table(step: Step, length: int) -> Tensor:
    """The rules of the definition, the last query at the last slot."""
    return table(step, length)


@dataclass(frozen=True)
class Decoding:
    """How a sequence is decoded; each part is right unless it is replaced.

    Args:
        queries: positions of a step's tokens as queries.
        keys: positions under which they enter the cache.
        store: what a step reads of the cache and what it keeps in it.
        bias: positions that a bias on the scores is made from.
        seen: which slots a step's queries may look at.
        from_slots: positions count slots and not real tokens; where only distances matter, both
            are right under left padding.
        empty: what a row without a visible key gives: ``zero``, ``nan`` or ``mean``.
    """

    queries: Places = right_places
    keys: Places = right_places
    store: Store = append
    bias: Bias = by_slots
    seen: Table = right_table
    from_slots: bool = False
    empty: Empty = "zero"

    def changed(self) -> frozenset[str]:
        """Names of the parts that are replaced."""
        right = Decoding()
        names = ("queries", "keys", "store", "bias", "seen")
        return frozenset(n for n in names if getattr(self, n) is not getattr(right, n))

    def with_parts_of(self, other: Decoding) -> Decoding:
        """Both replacements at once."""
        return dataclasses.replace(self, **{n: getattr(other, n) for n in other.changed()})


def labelled(*parts: str) -> str:
    """A label of several phrases, each translated by itself (``label_text``)."""
    return "; ".join(part for part in parts if part)


def label_text(label: str) -> str:
    """A label in the language of the reader."""
    return _("; ").join(_(part) for part in label.split("; "))


# ------------------------------------------------------------------ the run
@dataclass(frozen=True)
class StepSetting(Setting):
    """What the stages read in one step: positions and mask come from the step."""

    own_queries: Tensor = None  # type: ignore[assignment]
    own_keys: Tensor = None  # type: ignore[assignment]
    table: Tensor = None  # type: ignore[assignment]

    @property
    def q_positions(self) -> Tensor:
        """(B, rows)."""
        return self.own_queries

    @property
    def k_positions(self) -> Tensor:
        """(B, N)."""
        return self.own_keys

    def visible(self, without: tuple[str, ...] = (), **instead: Tensor) -> Tensor:
        """Which slots are seen."""
        return self.table

    def with_spec(self, **changes: object) -> StepSetting:
        """The same step under a changed spec."""
        return dataclasses.replace(self, spec=self.spec.replace(**changes))


@dataclass(frozen=True)
class Stretch:
    """One step that was run.

    Args:
        step: which tokens.
        queries: (B, rows), the positions that they were given.
        trace: of the ten stages, with the keys that the step read.
    """

    step: Step
    queries: Tensor
    trace: Trace


def decode(
    spec: AttentionSpec,
    parameters: Parameters,
    inputs: Inputs,
    sizes: Sequence[int],
    how: Decoding,
    replace: Mapping[str, StageFunction] | None = None,
) -> Trace:
    """A sequence in steps; the trace has the outputs of all steps, one after the other.

    Args:
        spec: what the layer is.
        parameters: its weights.
        inputs: ``x`` (B, T, Dm) and ``keep`` (B, T) or None.
        sizes: of the steps; they add up to T.
        how: what is done otherwise than by the definition.
        replace: stages of a convention under which the whole is read.
    """
    found = stretches(spec, parameters, inputs, sizes, how, replace)
    return Trace(output=torch.cat([each.trace.output for each in found], 1))


def stretches(
    spec: AttentionSpec,
    parameters: Parameters,
    inputs: Inputs,
    sizes: Sequence[int],
    how: Decoding,
    replace: Mapping[str, StageFunction] | None = None,
) -> list[Stretch]:
    """As ``decode``, with everything that each step computed."""
    check_parameters(spec, parameters, inputs)
    places = Setting(spec, parameters, inputs).k_positions
    batch = inputs.batch
    if how.from_slots:
        places = torch.arange(inputs.q_len).expand(batch, -1)
    held, start = empty_slots(batch, 0), 0
    found = []
    for number, rows in enumerate(sizes):
        step = Step(number, start, rows, tuple(sizes), spec, inputs, places, held)
        new = Slots(
            torch.arange(batch)[:, None].expand(-1, rows), step.counted(start), how.keys(step)
        )
        read, held = how.store(step, new)
        trace = _run(step, read, parameters, how, replace or {})
        found.append(Stretch(step, how.queries(step), trace))
        start += rows
    return found


def _run(
    step: Step,
    read: Slots,
    parameters: Parameters,
    how: Decoding,
    replace: Mapping[str, StageFunction],
) -> Trace:
    spec, x = step.spec, step.inputs.x
    assert x is not None
    queries, keys = how.queries(step), read.places
    source = x[read.rows, read.tokens.clamp(min=0)]
    if isinstance(spec.positions, Alibi | RelativeBias):
        bias = how.bias(step, read.length)
    else:
        bias = (queries, keys)

    def read_step(t: Trace, s: Setting) -> None:
        t.x_q, t.x_kv = x[:, step.start : step.seen], source
        if isinstance(spec.positions, Learned):
            assert s.parameters.positions is not None
            t.x_q = t.x_q + s.parameters.positions[queries]
            t.x_kv = t.x_kv + s.parameters.positions[keys]
        elif isinstance(spec.positions, Sinusoidal):
            base = spec.positions.base
            tables = (
                sinusoidal_table(p, d_model=spec.d_model, base=base).to(x.dtype)
                for p in (queries, keys)
            )
            t.x_q, t.x_kv = (a + b for a, b in zip((t.x_q, t.x_kv), tables, strict=True))
        t.x_v = t.x_kv

    def split(t: Trace, s: Setting) -> None:
        replace.get("split", split_heads)(t, s)
        hole = (read.tokens < 0)[:, None, :, None]
        t.k, t.v = t.k.masked_fill(hole, 0.0), t.v.masked_fill(hole, 0.0)

    trace = Trace()
    setting = StepSetting(
        spec,
        parameters,
        Inputs(x=x[:, step.start : step.seen], context=source),
        own_queries=bias[0],
        own_keys=bias[1],
        table=how.seen(step, read.length),
    )

    def mask(t: Trace, s: Setting) -> None:
        apply_mask(t, s)
        if how.empty == "mean":
            lowest = torch.finfo(t.scores.dtype).min
            t.masked_scores = t.scores.masked_fill(~t.visible, lowest)

    def softmax(t: Trace, s: Setting) -> None:
        replace.get("softmax", normalise)(t, s)
        empty = ~t.visible.any(-1, keepdim=True)
        if how.empty == "nan":
            t.weights = t.weights.masked_fill(empty, math.nan)
        elif how.empty == "mean":
            t.weights = torch.where(empty, 1.0 / t.scores.shape[-1], t.weights)

    own = {"input": read_step, "split": split, "mask": mask, "softmax": softmax}
    for name, function in STAGE_FUNCTIONS.items():
        own.get(name, replace.get(name, function))(trace, setting)
    return trace
