"""What a recording is: operations, the values they read and made, and who read what."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.verifier.watcher import Rebind


class Frame(NamedTuple):
    """A place in the target's own code; ``offset`` tells instructions of one line apart."""

    file: str
    line: int
    function: str
    offset: int


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor at one moment.

    Args:
        key: identity: storage, version of the storage, offset, shape, strides.
        storage: identity of the memory, shared by views.
        data: a contiguous copy, or None (too large, not strided).
        stride: strides that the tensor itself had.
        contiguous: whether the tensor itself was contiguous.
        requires_grad: as seen where it was recorded.
    """

    key: tuple[Any, ...]
    storage: int
    data: Tensor | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    contiguous: bool
    requires_grad: bool


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of the dispatcher, or one call in Python.

    Args:
        index: position in the order of execution.
        name: name of the operator without namespace and overload (``masked_fill_``).
        frames: own frames, innermost first; empty for code that no own line asked for.
        inputs: tensors that went in.
        outputs: tensors that came out.
        written: for in-place operations, the whole tensor whose memory was written, afterwards.
        mutated: storages written.
        backward: ran in the backward pass.
        in_function: ran inside a ``torch.autograd.Function``.
        view: the output shares memory with an input and nothing was written.
        details: arguments that are numbers, booleans or None, by position or name.
    """

    index: int
    name: str
    frames: tuple[Frame, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    written: tuple[Value, ...] = ()
    mutated: frozenset[int] = frozenset()
    backward: bool = False
    in_function: bool = False
    view: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def in_place(self) -> bool:
        """Whether memory of an argument was written."""
        return bool(self.mutated)

    @property
    def results(self) -> tuple[Value, ...]:
        """What the operation made: outputs, and the tensors it wrote into."""
        return self.outputs + self.written


@dataclass(frozen=True, eq=False)
class Recording:
    """What was recorded.

    Args:
        ops: operations of the dispatcher, in order.
        calls: calls in Python, in order; ``index`` is that of the first operation inside.
        rebinds: variables and attributes that lost the tensor they held.
        executed: own lines that ran.
        nothing: names that were None when a line was reached, by (file, line).
        latest: of the last time that a line was reached: the number of operations before it, and
            the names that were None.
        result: what the target returned; None if it raised.
        error: what it raised, or None.
        grads: gradients by position in ``wrt``, if asked for.
        seconds: wall time.
    """

    ops: tuple[Operation, ...]
    calls: tuple[Operation, ...]
    rebinds: tuple[Rebind, ...]
    executed: frozenset[tuple[str, int]]
    nothing: dict[tuple[str, int], frozenset[str]]
    result: Any
    error: Exception | None
    grads: tuple[Tensor | None, ...]
    seconds: float
    result_storages: frozenset[int]
    latest: dict[tuple[str, int], tuple[int, frozenset[str]]] = field(default_factory=dict)

    def since(self, start: int) -> Recording:
        """What happened from an operation on; all operations stay, since later ones read them."""
        lines = {place: names for place, (at, names) in self.latest.items() if at >= start}
        return replace(
            self,
            calls=tuple(call for call in self.calls if call.index >= start),
            rebinds=tuple(bound for bound in self.rebinds if bound.at >= start),
            executed=frozenset(lines),
            nothing=lines,
        )

    @cached_property
    def readers(self) -> dict[int, tuple[int, ...]]:
        """For every storage, the positions in ``ops`` of the operations that read it."""
        found: dict[int, list[int]] = {}
        for op in self.ops:
            for storage in {value.storage for value in op.inputs}:
                found.setdefault(storage, []).append(op.index)
        return {storage: tuple(places) for storage, places in found.items()}

    @cached_property
    def producers(self) -> dict[int, tuple[int, ...]]:
        """For every storage, the positions of the operations that made or wrote it."""
        found: dict[int, list[int]] = {}
        for op in self.ops:
            made = op.mutated or (frozenset() if op.view else {v.storage for v in op.outputs})
            for storage in made:
                found.setdefault(storage, []).append(op.index)
        return {storage: tuple(places) for storage, places in found.items()}

    def consumers(self, op: Operation) -> tuple[Operation, ...]:
        """Later operations that read what ``op`` made, also through views of it."""
        places = {
            place
            for value in op.results
            for place in self.readers.get(value.storage, ())
            if place > op.index
        }
        return tuple(self.ops[place] for place in sorted(places))

    def is_used(self, op: Operation) -> bool:
        """Whether anything reads what ``op`` made, or the target returned it."""
        if any(value.storage in self.result_storages for value in op.results):
            return True
        later = self.consumers(op)
        return any(not reader.view or self.is_used(reader) for reader in later)

    def descendants(self, storages: Collection[int]) -> frozenset[int]:
        """Storages that hold, or were computed from, the given ones."""
        reached = set(storages)
        for op in self.ops:
            if any(value.storage in reached for value in op.inputs):
                reached.update(value.storage for value in op.results)
        return frozenset(reached)
