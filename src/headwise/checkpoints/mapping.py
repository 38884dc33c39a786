"""Names and shapes of a file against those of a stack, in both directions, every tensor accounted.

A family states `Template` lines; `expand` makes an `Entry` per tensor of the file. What a file may
hold beside them (`Known`) is declared with its reason and, where it can be computed, its value.
Everything else that does not fit is one error that lists it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headwise.checkpoints.source import TensorSource
from headwise.errors import UsageError
from headwise.numerics import eps
from headwise.texts import translate as _

Shapes = Mapping[str, tuple[int, ...]]


# ---------------------------------------------------------------------------------- transforms
class Transform(Protocol):
    """How one tensor of a file becomes one or more of ours, and exactly back."""

    def load(self, theirs: Tensor) -> tuple[Tensor, ...]:
        """A tensor of the file → ours."""

    def save(self, ours: Sequence[Tensor]) -> Tensor:
        """Ours → the tensor of the file."""


@dataclass(frozen=True)
class Same:
    """One tensor, as it is."""

    def load(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs,)

    def save(self, ours: Sequence[Tensor]) -> Tensor:
        (one,) = ours
        return one


@dataclass(frozen=True)
class Packed:
    """Some matrices or biases one below the other, possibly transposed as a whole.

    Args:
        rows: rows of each of ours.
        transposed: the file holds matrices as (in, out), while ours are (out, in).

    Example:
        >>> packed = Packed((2, 1), transposed=True)
        >>> [tuple(part.shape) for part in packed.load(torch.zeros(5, 3))]
        [(2, 5), (1, 5)]
    """

    rows: tuple[int, ...]
    transposed: bool = False

    def load(self, theirs: Tensor) -> tuple[Tensor, ...]:
        whole = theirs.t() if self.transposed and theirs.dim() == 2 else theirs
        return tuple(whole.split(self.rows))

    def save(self, ours: Sequence[Tensor]) -> Tensor:
        whole = torch.cat(tuple(ours))
        return whole.t().contiguous() if self.transposed and whole.dim() == 2 else whole


@dataclass(frozen=True)
class Paired:
    """Rows of rotated heads, in the order of the other pairing of channels.

    ::

        halves      0 1 2 3 4 5      pairs (0, 3) (1, 4) (2, 5)
        neighbours  0 3 1 4 2 5      the same pairs, side by side

    Args:
        heads: heads in the rows.
        to: pairing that ``load`` makes, ``halves`` or ``neighbours``; the file has the other one.

    Example:
        >>> rows = torch.tensor([0, 3, 1, 4, 2, 5])
        >>> Paired(1, "halves").load(rows)[0].tolist()
        [0, 1, 2, 3, 4, 5]
    """

    heads: int
    to: str

    def load(self, theirs: Tensor) -> tuple[Tensor, ...]:
        return (self._order(theirs, self.to),)

    def save(self, ours: Sequence[Tensor]) -> Tensor:
        (one,) = ours
        return self._order(one, "neighbours" if self.to == "halves" else "halves")

    def _order(self, rows: Tensor, to: str) -> Tensor:
        split = (self.heads, -1, 2) if to == "halves" else (self.heads, 2, -1)
        found: Tensor = rows.unflatten(0, split).transpose(1, 2).flatten(0, 2)
        return found


# ---------------------------------------------------------------------------------- names
@dataclass(frozen=True)
class Template:
    """Names of a file beside names of a stack, without ``.weight`` and ``.bias``.

    Args:
        theirs: name in the file; ``{n}`` is the number of the layer.
        ours: names in the stack that it holds.
        transform: from ``"weight"`` or ``"bias"`` to how it is held.
        leaves: how the file calls weight and bias.
    """

    theirs: str
    ours: tuple[str, ...]
    transform: Callable[[str], Transform] = lambda leaf: Same()
    leaves: tuple[str, str] = ("weight", "bias")


@dataclass(frozen=True)
class Entry:
    """One tensor of a file and what it is in the stack."""

    theirs: str
    ours: tuple[str, ...]
    transform: Transform


@dataclass(frozen=True)
class Known:
    """A tensor that a file may hold, though the model needs none: declared, checked, counted.

    Args:
        name: name in the file.
        why: what it is.
        shape: what it has to have, where that is known.
        value: what it has to hold, where that can be computed.
        copy_of: another tensor of the file that it has to equal.
        is_written: whether a saved file holds it too.
    """

    name: str
    why: str
    shape: tuple[int, ...] | None = None
    value: Callable[[], Tensor] | None = None
    copy_of: str = ""
    is_written: bool = False


@dataclass(frozen=True)
class Layout:
    """All names of a file of some family and format."""

    entries: tuple[Entry, ...]
    known: tuple[Known, ...] = ()


def expand(templates: Sequence[Template], parameters: Collection[str]) -> tuple[Entry, ...]:
    """An entry for every parameter of a stack.

    Args:
        templates: lines of a family; those without a parameter here are left out.
        parameters: names in the state dict of the stack.

    Raises:
        ValueError: if a parameter has no template or two: a mistake in a family.

    Example:
        >>> line = Template("h.{n}.mlp.c_fc", ("blocks.{n}.ffn.up",))
        >>> [entry.theirs for entry in expand([line], ["blocks.0.ffn.up.bias"])]
        ['h.0.mlp.c_fc.bias']
    """
    numbers = {int(name.split(".")[1]) for name in parameters if name.startswith("blocks.")}
    found = []
    for line in templates:
        for n in sorted(numbers) if "{n}" in line.theirs else [0]:
            for leaf, theirs in zip(("weight", "bias"), line.leaves, strict=True):
                ours = tuple(f"{name.format(n=n)}.{leaf}" for name in line.ours)
                if set(ours) & set(parameters):
                    name = f"{line.theirs.format(n=n)}.{theirs}"
                    found.append(Entry(name, ours, line.transform(leaf)))
    counted = Counter(name for entry in found for name in entry.ours)
    wrong = {name for name in parameters if counted[name] != 1} | set(counted) - set(parameters)
    if wrong:
        raise ValueError(f"parameters without exactly one template: {sorted(wrong)}")
    return tuple(found)


def prefix_of(names: Collection[str], prefixes: Sequence[str], probe: str) -> str:
    """The first of some prefixes under which a file has the tensor ``probe``, else the first.

    Example:
        >>> prefix_of({"wte.weight"}, ("transformer.", ""), "wte.weight")
        ''
    """
    return next((one for one in prefixes if f"{one}{probe}" in names), prefixes[0])


# ---------------------------------------------------------------------------------- both ways
@dataclass(frozen=True)
class Account:
    """What became of every tensor of a file.

    Args:
        used: tensors that are in the stack now.
        values: numbers in them.
        known: reasons of the declared others, with how many there are.
    """

    used: int
    values: int
    known: tuple[tuple[str, int], ...] = ()

    def lines(self) -> list[str]:
        """In words, one line per kind."""
        return [
            _("{count} tensors used, {values} numbers").format(count=self.used, values=self.values),
            *(
                _("{count} not needed: {why}").format(count=count, why=_(why))
                for why, count in self.known
            ),
        ]


def read_state(
    source: TensorSource, layout: Layout, shapes: Shapes, *, dtype: torch.dtype | None = None
) -> tuple[dict[str, Tensor], Account]:
    """Every tensor of a stack, from a file that holds exactly these.

    Args:
        source: the file.
        layout: what it should hold.
        shapes: of the parameters of the stack.
        dtype: of the result; None = as stored.

    Raises:
        UsageError: one, that lists what is missing, unused, misshaped or has another value than
            it must have.
    """
    check_names(source, layout, shapes)
    state: dict[str, Tensor] = {}
    for entry in layout.entries:
        parts = entry.transform.load(source.read(entry.theirs, dtype=dtype))
        for name, part in zip(entry.ours, parts, strict=True):
            whole = len(parts) == 1 and part.is_contiguous()
            state[name] = part if whole else part.clone(memory_format=torch.contiguous_format)
    reasons = Counter(known.why for known in layout.known if known.name in source.tensors)
    values = sum(part.numel() for part in state.values())
    return state, Account(len(layout.entries), values, tuple(reasons.items()))


def write_state(state: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The tensors of a file, by its names: the inverse of ``read_state``."""
    made = {
        entry.theirs: entry.transform.save([state[name] for name in entry.ours]).contiguous()
        for entry in layout.entries
    }
    for known in layout.known:
        if known.is_written and known.value is not None:
            made[known.name] = known.value()
    return made


def file_shapes(layout: Layout, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes that the tensors of a file must have."""
    found = {}
    for entry in layout.entries:
        ours = [torch.empty(shapes[name], device="meta") for name in entry.ours]
        found[entry.theirs] = tuple(entry.transform.save(ours).shape)
    return found


def check_names(source: TensorSource, layout: Layout, shapes: Shapes) -> None:
    """Refuse a file that does not hold exactly what it should.

    Raises:
        UsageError: with every tensor concerned and both shapes.
    """
    wanted = file_shapes(layout, shapes)
    has = {name: info.shape for name, info in source.tensors.items()}
    declared = {known.name for known in layout.known}
    missing = [name for name in wanted if name not in has]
    unused = [name for name in has if name not in wanted and name not in declared]
    misshaped = [name for name in wanted if name in has and has[name] != wanted[name]]
    broken = [
        f"{known.name}: {fault}"
        for known in layout.known
        if known.name in has and (fault := _fault(source, known))
    ]
    kinds = {
        _("missing"): [f"{name} {wanted[name]}" for name in missing],
        _("unused"): [f"{name} {has[name]}" for name in unused],
        _("misshaped"): [
            _("{name}: the file has {has}, the model {wants}").format(
                name=name, has=has[name], wants=wanted[name]
            )
            for name in misshaped
        ],
        _("contradicting"): broken,
    }
    found = {kind: lines for kind, lines in kinds.items() if lines}
    if not found:
        return
    counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in found.items())
    raise UsageError(
        _("the tensors of the file are not those of the model: {counts}").format(counts=counts),
        where=str(source.path),
        why="\n         ".join(
            f"{kind}: {line}" for kind, lines in found.items() for line in lines
        ),
        fix=_("a file of this model, whole, with its own configuration"),
    )


def _fault(source: TensorSource, known: Known) -> str:
    """What is wrong with a declared tensor, or nothing."""
    has = source.tensors[known.name].shape
    if known.copy_of:
        other = source.tensors.get(known.copy_of)
        if other is None:
            return ""  # listed as missing
        if other.shape != has:
            return _("{has}, but {other} is {shape}").format(
                has=has, other=known.copy_of, shape=other.shape
            )
        same = source.read(known.name).equal(source.read(known.copy_of))
        return "" if same else _("its values are not those of {other}").format(other=known.copy_of)
    if known.shape is not None and known.shape != has:
        return _("the file has {has}, the model {wants}").format(has=has, wants=known.shape)
    if known.value is None:
        return ""
    want = known.value()
    stored = source.read(known.name)
    got = stored.double()
    # Tables made in float32 by a power: the rounding of its exponent grows by ln(base) < 20.
    coarse = stored.dtype if stored.is_floating_point() else torch.float32
    allowed = 32 * max(eps(coarse), eps(torch.float32)) * want.double().abs()
    exact = not want.is_floating_point()
    gap = (got - want.double()).abs()
    good = bool(gap.eq(0).all()) if exact else bool((gap <= allowed).all())
    return "" if good else _("its values are not what they have to be")
