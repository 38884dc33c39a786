"""Rules that need to know the sample: padding, documents, tables and functions of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.checks import Sizes, check_is_tensor, check_sizes, four_axes, keep_table
from headwise.masks.mask import Alignment, Leaf, query_slots
from headwise.texts import translate as _

Predicate = Callable[[Tensor, Tensor], Tensor]


class _PerSample(Leaf):
    """A rule that needs to know the sample."""

    @property
    def is_positional(self) -> bool:
        """No."""
        return False

    @property
    def alignments(self) -> frozenset[Alignment]:
        """Slots play no part."""
        return frozenset()

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """Refused: the answer depends on the sample."""
        raise MaskError(
            _("the rule {name!r} can't be asked by slots").format(name=self.name),
            where="mask.allows(q_slot, k_slot)",
            why=_("its answer depends on the sample"),
            fix="mask.dense(q_len, kv_len, batch=...)",
        )


@dataclass(frozen=True, eq=False, repr=False)
class _RealTokens(_PerSample):
    """A rule that says of each token of each sample whether it is real."""

    keep: Tensor

    def _check(self, misshapen: str, why: str) -> None:
        """Replace ``keep`` by a checked copy.

        Args:
            misshapen: what to say of a tensor that does not have two axes, with its ``{shape}``.
            why: what the two axes are.
        """
        where = f"{type(self).__name__}(keep)"
        keep = check_is_tensor(self.keep, where)
        if keep.ndim != 2:
            raise MaskError(
                misshapen.format(shape=tuple(keep.shape)),
                where=where,
                why=why,
                fix=_(
                    "keep with two axes; a mask with more is Custom(tensor) or from_convention(...)"
                ),
            )
        object.__setattr__(self, "keep", keep_table(keep, where).detach().clone())

    @property
    def batch(self) -> int:
        """B."""
        return int(self.keep.shape[0])

    @property
    def device(self) -> torch.device | None:
        """Where ``keep`` is."""
        return self.keep.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keep={tuple(self.keep.shape)})"


@dataclass(frozen=True, eq=False, repr=False)
class Padding(_RealTokens):
    """Padded keys are hidden from every query; padded *queries* still look around.

    ::

        keep           every query of the sample
        [[1 1 .]   ->  1 1 .
         [1 1 1]]      1 1 1

    Args:
        keep: (B, Tk), True or 1 = real, False or 0 = padding; floats 0.0 and 1.0 are read too.
            It covers all keys, cached ones included. Copied.

    Raises:
        MaskError: for another shape, or numbers other than 0 and 1.

    Source:
        The polarity of Hugging Face's attention_mask; nn.MultiheadAttention's key_padding_mask
        is the opposite, see ``from_convention``.

    Example:
        >>> Padding(torch.tensor([[1, 1, 0]])).dense(2, 3)[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 0]]
    """

    name = "padding"

    def __post_init__(self) -> None:
        self._check(
            _("padding has shape {shape}, not (B, Tk)"),
            _(
                "padding says of each sample which keys are real; "
                "it knows neither queries nor heads"
            ),
        )

    @classmethod
    def from_lengths(
        cls,
        lengths: Tensor | Sequence[int],
        kv_len: int,
        side: Literal["right", "left"] = "right",
    ) -> Padding:
        """Padding from the number of real tokens of each sample.

        Args:
            lengths: (B,) whole numbers from 0 to ``kv_len``.
            kv_len: Tk.
            side: where the padding is.

        Raises:
            MaskError: if a length is out of range or no whole number, or the side is unknown.

        Example:
            >>> Padding.from_lengths([1, 3], 3).keep.int().tolist()
            [[1, 0, 0], [1, 1, 1]]
            >>> Padding.from_lengths([1, 3], 3, side="left").keep.int().tolist()
            [[0, 0, 1], [1, 1, 1]]
        """
        where = f"Padding.from_lengths(lengths, kv_len={kv_len}, side={side!r})"
        check_sizes(where, kv_len=kv_len)
        if side not in ("right", "left"):
            raise MaskError(
                _("side={side!r} is not a side").format(side=side),
                where=where,
                why=_("padding comes after the real tokens (right) or before them (left)"),
                fix='side="right", side="left"',
            )
        count = torch.as_tensor(lengths)
        whole = not (count.is_floating_point() or count.is_complex() or count.dtype == torch.bool)
        if count.ndim != 1 or not whole:
            raise MaskError(
                _("lengths have shape {shape} and dtype {dtype}").format(
                    shape=tuple(count.shape), dtype=count.dtype
                ),
                where=where,
                why=_("there is one whole number per sample, (B,)"),
                fix=_("keep.sum(dim=1), if you have a keep mask"),
            )
        wrong = (count < 0) | (count > kv_len)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0, 0])
            raise MaskError(
                _("sample {at} has length {length}, outside of 0 .. {kv_len}").format(
                    at=at, length=int(count[at]), kv_len=kv_len
                ),
                where=where,
                why=_("a sample can't have more real keys than there are keys, or fewer than none"),
                fix=_("kv_len is the padded length, the largest of all lengths"),
            )
        slot = torch.arange(kv_len, device=count.device)[None]
        real = count[:, None]
        return cls(slot < real if side == "right" else slot >= kv_len - real)

    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        _check_row(self.keep, "kv_len", sizes.kv_len, sizes, "Padding(keep)")
        return self.keep.to(device)[:, None, None, :]


@dataclass(frozen=True, eq=False, repr=False)
class QueryPadding(_RealTokens):
    """Padded *queries* see nothing: their rows are zeros, which nobody reads and nobody computes.

    ``Padding`` alone leaves padded queries looking around, as most libraries do. Where keys and
    queries are the same tokens, ``Padding(keep) & QueryPadding(keep)`` costs the least.

    ::

        keep 1 1 .      1 1 1
                        1 1 1
                        . . .

    Args:
        keep: (B, Tq), True or 1 = real, False or 0 = padding. Copied.

    Raises:
        MaskError: for another shape, or numbers other than 0 and 1.

    Example:
        >>> keep = torch.tensor([[1, 0]])
        >>> (Padding(keep) & QueryPadding(keep)).dense(2, 2)[0, 0].int().tolist()
        [[1, 0], [0, 0]]
    """

    name = "query-padding"

    def __post_init__(self) -> None:
        self._check(
            _("padding has shape {shape}, not (B, Tq)"),
            _(
                "padding of queries says of each sample which queries are real; "
                "it knows neither keys nor heads"
            ),
        )

    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        _check_row(self.keep, "q_len", sizes.q_len, sizes, "QueryPadding(keep)")
        return self.keep.to(device)[:, None, :, None].expand(-1, 1, -1, sizes.kv_len)


@dataclass(frozen=True, eq=False)
class Documents(_PerSample):
    """Several documents packed into one row: a query sees the keys of its own document.

    ::

        documents 7 7 8      1 1 .
                             1 1 .
                             . . 1

    Numbers are only compared: a -1 for padding is a document like any other, so add ``Padding``.

    Args:
        q_documents: (B, Tq) integers, one document number per query.
        k_documents: (B, Tk), one per key; None: the queries are the keys (Tq = Tk). With a cache,
            ``Documents(documents[:, -q_len:], documents)``. Copied.

    Raises:
        MaskError: for another shape or dtype, or different numbers of samples.

    Example:
        >>> from headwise.masks import Causal
        >>> (Causal() & Documents(torch.tensor([[7, 7, 8]]))).dense(3, 3)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """

    q_documents: Tensor
    k_documents: Tensor | None = None
    name = "documents"

    def __post_init__(self) -> None:
        where = "Documents(q_documents, k_documents)"
        given = (
            [self.q_documents] if self.k_documents is None else [self.q_documents, self.k_documents]
        )
        for numbers in given:
            check_is_tensor(numbers, where)
            fractional = numbers.is_floating_point() or numbers.is_complex()
            if numbers.ndim != 2 or fractional or numbers.dtype == torch.bool:
                raise MaskError(
                    _("document numbers have shape {shape} and dtype {dtype}").format(
                        shape=tuple(numbers.shape), dtype=numbers.dtype
                    ),
                    where=where,
                    why=_("each token of each sample has one whole number: (B, Tq), (B, Tk)"),
                    fix="documents.long().reshape(B, T)",
                )
        queries, keys = given[0], given[-1]
        if len({1, queries.shape[0], keys.shape[0]}) > 2:
            raise MaskError(
                _("queries have documents for {q} samples, keys for {k}").format(
                    q=queries.shape[0], k=keys.shape[0]
                ),
                where=where,
                why=_("both describe the same samples"),
                fix=_("the same first axis, or one row for all"),
            )
        object.__setattr__(self, "q_documents", queries.detach().clone())
        if self.k_documents is not None:
            object.__setattr__(self, "k_documents", keys.detach().clone())

    @property
    def batch(self) -> int:
        """B."""
        return max(int(self.q_documents.shape[0]), int(self._keys.shape[0]))

    @property
    def device(self) -> torch.device | None:
        """Where the numbers are."""
        return self.q_documents.device

    @property
    def _keys(self) -> Tensor:
        return self.q_documents if self.k_documents is None else self.k_documents

    def __repr__(self) -> str:
        return f"Documents({tuple(self.q_documents.shape)}, {tuple(self._keys.shape)})"

    def check(self, sizes: Sizes) -> None:
        """Refuse numbers that do not fit a call, without making a table.

        Raises:
            MaskError: as ``dense``.
        """
        _check_row(self.q_documents, "q_len", sizes.q_len, sizes, "Documents(q_documents)")
        _check_row(self._keys, "kv_len", sizes.kv_len, sizes, "Documents(k_documents)")

    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        self.check(sizes)
        queries, keys = self.q_documents.to(device), self._keys.to(device)
        return (queries[:, :, None] == keys[:, None, :])[:, None]


@dataclass(frozen=True, eq=False)
class Custom(_PerSample):
    """A rule of your own: a table, or a function of slots. True = may look.

    Args:
        rule: a bool tensor that broadcasts to (B, H, Tq, Tk) and has all Tk keys (copied), or a
            function ``(q_slot, k_slot) -> bool tensor`` that broadcasts its two int64 tensors.
            Queries sit at the last slots (alignment ``end``).
        name: what provenance and pictures call it.

    Raises:
        MaskError: if the rule is neither; if the tensor is not bool. Shapes are checked by
            ``dense``, when the lengths are known: a mask whose key axis is 1 would act on heads
            ([B, T, 1, 1]) or queries ([B, 1, T, 1], [T, 1]), and is refused.

    Example:
        >>> every_other = Custom(lambda q, k: (q - k) % 2 == 0, name="strided")
        >>> every_other.dense(2, 4)[0, 0].int().tolist()
        [[1, 0, 1, 0], [0, 1, 0, 1]]
    """

    rule: Tensor | Predicate
    name: str = "custom"

    def __post_init__(self) -> None:
        where = f"Custom(rule, name={self.name!r})"
        if isinstance(self.rule, Tensor):
            _check_bool(self.rule, where)
            object.__setattr__(self, "rule", self.rule.detach().clone())
        elif not callable(self.rule):
            raise MaskError(
                _("a custom rule is a bool tensor or a function, not {kind}").format(
                    kind=type(self.rule).__name__
                ),
                where=where,
                why=_("it has to answer for every query and key"),
                fix="Custom(torch.tensor(...)), Custom(lambda q_slot, k_slot: ...)",
            )

    @property
    def is_positional(self) -> bool:
        """Only a function of slots is."""
        return not isinstance(self.rule, Tensor)

    @property
    def alignments(self) -> frozenset[Alignment]:
        """A function gets slots aligned at the end."""
        return frozenset(("end",)) if self.is_positional else frozenset()

    @property
    def batch(self) -> int:
        """B of a table with four axes, else 1."""
        table = self.rule
        return int(table.shape[0]) if isinstance(table, Tensor) and table.ndim == 4 else 1

    @property
    def device(self) -> torch.device | None:
        """Where the table is; None for a function."""
        return self.rule.device if isinstance(self.rule, Tensor) else None

    def allows(self, q_slot: Tensor, k_slot: Tensor) -> Tensor:
        """The function's answer, checked; a table refuses."""
        if isinstance(self.rule, Tensor):
            return super().allows(q_slot, k_slot)
        where = f"Custom(rule, name={self.name!r})"
        answer = _check_bool(check_is_tensor(self.rule(q_slot, k_slot), where), where)
        wanted = (q_slot + k_slot).shape
        sizes = zip(answer.shape, wanted, strict=False)
        if answer.ndim != len(wanted) or any(has not in (1, size) for has, size in sizes):
            raise MaskError(
                _("the custom rule {name!r} answered with shape {shape}, not {wanted}").format(
                    name=self.name, shape=tuple(answer.shape), wanted=tuple(wanted)
                ),
                where=where,
                why=_("one answer per query and key: its two arguments broadcast"),
                fix=_("compare the arguments as they come, as in (q_slot - k_slot) < 4"),
            )
        return answer.expand(wanted)

    def __repr__(self) -> str:
        rule = tuple(self.rule.shape) if isinstance(self.rule, Tensor) else "function"
        return f"Custom({rule}, name={self.name!r})"

    def _table(self, sizes: Sizes, device: torch.device | None) -> Tensor:
        if isinstance(self.rule, Tensor):
            return four_axes(self.rule, sizes).to(device)
        q_slot = query_slots(sizes.q_len, sizes.kv_len, device=device)
        k_slot = torch.arange(sizes.kv_len, device=device)
        return self.allows(q_slot[:, None], k_slot[None])[None, None]


def _check_bool(table: Tensor, where: str) -> Tensor:
    if table.dtype == torch.bool:
        return table
    raise MaskError(
        _("a custom rule has dtype {dtype}, not bool").format(dtype=table.dtype),
        where=where,
        why=_("in numbers, 0 can mean look (additive) or ignore (keep)"),
        fix=_("table.bool() if 1 = may look; from_convention(name, table, ...) for anything else"),
    )


def _check_row(row: Tensor, size: str, length: int, sizes: Sizes, what: str) -> None:
    """Refuse a (B, T) tensor that has another T or another B than the call."""
    if row.shape[1] != length:
        raise MaskError(
            _("{what} covers {has} tokens, but {size}={length}").format(
                what=what, has=row.shape[1], size=size, length=length
            ),
            where=sizes.where,
            why=_("every token needs its entry, cached ones included"),
            fix=_("{length} entries per sample").format(length=length),
        )
    if row.shape[0] not in (1, sizes.batch):
        raise MaskError(
            _("{what} has {has} samples, but batch={batch}").format(
                what=what, has=row.shape[0], batch=sizes.batch
            ),
            where=sizes.where,
            why=_("there is one row per sample, or one for all"),
            fix=f"mask.dense(..., batch={row.shape[0]})",
        )
