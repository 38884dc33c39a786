"""What a measured call computes, as plain sizes: comparable, printable, and without any tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of one case.

    Args:
        batch: B.
        num_heads: Hq.
        num_kv_heads: Hkv.
        q_len: Tq; the queries are the newest tokens.
        kv_len: Tk.
        head_dim: Dk.
        v_head_dim: Dv.
        causal: later keys are hidden.
        window: number of keys that a query sees, up to its own; 0 = no limit.
        lengths: real tokens of each sample, padded on the right; empty = all are real.
        documents: lengths of the texts that are packed into one row; empty = one text.
        need_weights: whether the weights are wanted too, and in which form.
        training: forward and backward instead of forward alone.
        module: a whole layer with its four projections, d_model = Hq·Dk.

    Example:
        >>> Shape(
        ...     batch=1, num_heads=32, num_kv_heads=8, q_len=1, kv_len=64, head_dim=8, v_head_dim=8
        ... ).label
        'B1 H32/8 S64 D8'
    """

    batch: int
    num_heads: int
    num_kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    causal: bool = False
    window: int = 0
    lengths: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    need_weights: Literal["", "per-head", "averaged"] = ""
    training: bool = False
    module: bool = False

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_plain(self) -> bool:
        """Whether no mask but the causal one is needed."""
        return not (self.window or self.lengths or self.documents)

    @property
    def is_decode(self) -> bool:
        """Whether one new token looks at a filled cache."""
        return self.q_len == 1 and self.kv_len > 1

    @property
    def label(self) -> str:
        """The sizes in a line, in the letters of the notation (S = length of the cache)."""
        heads = str(self.num_heads)
        if self.num_kv_heads != self.num_heads:
            heads += f"/{self.num_kv_heads}"
        width = str(self.head_dim)
        if self.v_head_dim != self.head_dim:
            width += f"/{self.v_head_dim}"
        if self.lengths:
            length = f"T{min(self.lengths)}-{max(self.lengths)}"
        elif self.is_decode:
            length = f"S{self.kv_len}"
        else:
            length = f"T{self.kv_len}"
        words = [f"B{self.batch}", f"H{heads}", length, f"D{width}"]
        if self.window:
            words.append(f"window {self.window}")
        if self.documents:
            words.append(f"{len(self.documents)} documents")
        if self.causal and not self.is_decode:
            words.append("causal")
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "lengths": [*self.lengths], "documents": [*self.documents]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """The shape that ``to_json`` wrote.

        Example:
            >>> shape = self_attention(2, 4, 8, 16, lengths=(3, 8))
            >>> Shape.from_json(shape.to_json()) == shape
            True
        """
        lists = {name: tuple(data[name]) for name in ("lengths", "documents")}
        return cls(**{**data, **lists})

    def visible_cells(self) -> int:
        """Cells (query, key) that are computed for one query head, over the whole batch.

        Padding queries count as nothing: nobody reads them.

        Example:
            >>> self_attention(2, 4, 3, 16, causal=True).visible_cells()
            12
        """
        if self.documents:
            return self.batch * sum(self._cells(n, n) for n in self.documents)
        if self.lengths:
            return sum(self._cells(n, n) for n in self.lengths)
        return self.batch * self._cells(self.q_len, self.kv_len)

    def _cells(self, q_len: int, kv_len: int) -> int:
        total = 0
        for slot in range(kv_len - q_len, kv_len):
            last = slot + 1 if self.causal else kv_len
            first = max(0, slot - self.window + 1) if self.window else 0
            total += last - first
        return total

    @property
    def d_model(self) -> int:
        """Width of the layer."""
        return self.num_heads * self.head_dim

    def flops(self) -> float:
        """Multiplications and additions that cannot be avoided; a backward counts 2.5 forwards."""
        attend = 2.0 * self.num_heads * self.visible_cells() * (self.head_dim + self.v_head_dim)
        total = attend * (3.5 if self.training else 1.0)
        if self.module:
            project = 8.0 * self.batch * self.q_len * self.d_model**2
            total += project * (3.0 if self.training else 1.0)
        return total

    def bytes_moved(self, itemsize: int) -> float:
        """Bytes of all inputs and results, each once; a backward moves them twice more."""
        queries = self.batch * self.num_heads * self.q_len
        keys = self.batch * self.num_kv_heads * self.kv_len
        if self.lengths:
            queries = self.num_heads * sum(self.lengths)
            keys = self.num_kv_heads * sum(self.lengths)
        count = (queries + keys) * (self.head_dim + self.v_head_dim)
        if self.module:
            count = 2 * self.batch * self.q_len * self.d_model + 4 * self.d_model**2
        if self.need_weights:
            heads = 1 if self.need_weights == "averaged" else self.num_heads
            count += self.batch * heads * self.q_len * self.kv_len
        return float(itemsize * count * (3 if self.training else 1))


def self_attention(
    batch: int,
    heads: int | tuple[int, int],
    length: int,
    width: int | tuple[int, int],
    **options: Any,
) -> Shape:
    """A shape with as many queries as keys.

    Args:
        batch: B.
        heads: Hq = Hkv, or both.
        length: Tq = Tk.
        width: Dk = Dv, or both.
        options: as in ``Shape``.
    """
    num_heads, num_kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    head_dim, v_head_dim = width if isinstance(width, tuple) else (width, width)
    return Shape(
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        q_len=length,
        kv_len=length,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        **options,
    )


def decode(batch: int, heads: tuple[int, int], cache: int, width: int) -> Shape:
    """One new token per sample against a filled cache."""
    return Shape(
        batch=batch,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        q_len=1,
        kv_len=cache,
        head_dim=width,
        v_head_dim=width,
    )
