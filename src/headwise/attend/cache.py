"""``KVCache``: keys and values of earlier tokens, written in place into buffers made once.

::

    full      slots    0 1 2 3 4 5 6 7        capacity = max_len
              tokens   a b c d · · · ·        the next token goes into slot 4

    ring      slots    0 1 2 3 4 5            capacity = left + 1 + room
              tokens   c d e f g h            full: the last ``left`` tokens move to the front,
                       f g h · · ·            and the next token goes behind them

A ring keeps its tokens in order, so that a slice is always enough and distances between slots are
distances between tokens. The move costs one copy of the window per ``room`` tokens.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from headwise.attend.cache_checks import (
    INTEGERS,
    check_keep,
    check_sizes,
    dropped,
    explain_misfit,
    fits,
    overflow,
    wrong_indices,
    wrong_length,
)
from headwise.attend.rows import Rows, Tally, rows_of, tally
from headwise.attend.store import Array, Cached, Store
from headwise.errors import SpecError
from headwise.spec import AttentionSpec, Learned
from headwise.texts import translate as _

ROOM = 128
"""Slots of a ring beyond its window: one move of the window per so many tokens."""


class KVCache:
    """Keys and values of earlier tokens, for decoding and for prompts in chunks.

    Only real tokens are stored, one after the other in each row; padding never enters. Rows may
    have different lengths. Attending to what ``append`` returns gives the same as attending once
    to everything, for every way to cut the tokens into chunks.

    Args:
        batch: rows (B).
        num_kv_heads: key/value heads (Hkv).
        head_dim: size of a key head (Dk).
        v_head_dim: size of a value head (Dv); None = head_dim.
        max_len: most tokens a row can have; may be None with a window that is limited to the left.
        window: inclusive distances (left, right), as in ``Window``; a query sees its own token and
            ``left`` earlier ones, and only about so many are stored. Right has no meaning here.
        room: slots of a ring beyond its window. New tokens that do not fit are still attended
            right, through a copy.
        dtype: float64, float32, bfloat16 or float16; nothing is converted.
        device: where the buffers are.

    Raises:
        UsageError: for sizes and dtypes that can't be.

    Example:
        >>> cache = KVCache(batch=1, num_kv_heads=3, head_dim=64, max_len=2048)
        >>> print(cache.memory())
        2 tensors × B 1 × Hkv 3 × 2048 × 64 × 4 bytes = 3.0 MiB
        one token of one row: 1536 bytes; the longest row has 0 of 2048
        >>> k = v = torch.ones(1, 3, 5, 64)
        >>> cache.next_positions(5).tolist()
        [[0, 1, 2, 3, 4]]
        >>> cached = cache.append(k, v)
        >>> cached.key.shape, cached.mask.highest, len(cache)
        (torch.Size([1, 3, 5, 64]), 0, 5)
    """

    def __init__(
        self,
        *,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
        max_len: int | None = None,
        window: tuple[int | None, int | None] | None = None,
        room: int = ROOM,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        check_sizes(
            {"batch": batch, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
            | {"v_head_dim": v_head_dim}
            | ({} if max_len is None else {"max_len": max_len}),
            window=window,
            room=room,
            max_len=max_len,
            dtype=dtype,
        )
        self.max_len = max_len
        self.window = window
        self._left = None if window is None else window[0]
        limits = [max_len, None if self._left is None else self._left + 1 + room]
        self._capacity = min(limit for limit in limits if limit is not None)
        with torch.inference_mode(False):  # the buffers outlive the block they are made in
            key, value = (
                torch.zeros((batch, num_kv_heads, self._capacity, size), dtype=dtype, device=device)
                for size in (head_dim, v_head_dim)
            )
        self._store = Store(key, value, self._left)

    @classmethod
    def for_spec(
        cls,
        spec: AttentionSpec,
        *,
        batch: int,
        max_len: int | None = None,
        room: int = ROOM,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> KVCache:
        """A cache for one layer of a specification; a ring if its window is limited to the left.

        Args:
            spec: a causal layer.
            batch: rows (B).
            max_len: most tokens a row can have; None = as many as learned positions allow, or
                any number with a window.
            room, dtype, device: as for the class.

        Raises:
            SpecError: if the layer is not causal: earlier tokens would have to change.
            UsageError: as the class.

        Example:
            >>> spec = AttentionSpec(d_model=8, num_heads=4, is_causal=True, window=(255, 0))
            >>> KVCache.for_spec(spec, batch=2)
            KVCache(ring, B 2, Hkv 4, Dk 2, Dv 2, 0 tokens, capacity 384, float32)
        """
        if not spec.is_causal:
            raise SpecError(
                _("a cache needs a causal layer"),
                where="KVCache.for_spec(AttentionSpec(is_causal=False))",
                why=_("without the causal rule, a new token changes what earlier ones see"),
                fix=_("spec.replace(is_causal=True), or no cache"),
            )
        if max_len is None and isinstance(spec.positions, Learned):
            max_len = spec.positions.max_len
        return cls(
            batch=batch,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            v_head_dim=spec.v_head_dim,
            max_len=max_len,
            window=spec.window,
            room=room,
            dtype=dtype,
            device=device,
        )

    # ------------------------------------------------------------------ what it is
    @property
    def batch(self) -> int:
        """B."""
        return self._store.rows.batch

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self._capacity

    @property
    def is_ring(self) -> bool:
        """Whether tokens that no later query can see make room for new ones."""
        return self._left is not None and self._capacity != self.max_len

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._store.key.dtype

    @property
    def device(self) -> torch.device:
        """Of keys and values."""
        return self._store.key.device

    @property
    def lengths(self) -> Tensor:
        """(B,) int64: real tokens each row has had, those a ring has dropped included."""
        return self._store.rows.lengths(self.device)

    @property
    def rows_are_equal(self) -> bool:
        """Whether all rows are known to have the same length; then it is ``len(cache)``."""
        return self._store.rows.are_equal

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return self._store.key.nbytes + self._store.value.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token of one row: Hkv · (Dk + Dv) · bytes of a number."""
        heads, sizes = (
            self._store.key.shape[1],
            self._store.key.shape[3] + self._store.value.shape[3],
        )
        return heads * sizes * self._store.key.element_size()

    def __len__(self) -> int:
        """Tokens of the longest row."""
        return self._store.rows.longest

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def __repr__(self) -> str:
        B, Hkv, _slots, Dk = self._store.key.shape
        kind = "ring" if self.is_ring else "full"
        rows = self._store.rows
        tokens = f"{rows.longest}" if rows.are_equal else f"{rows.shortest} to {rows.longest}"
        return (
            f"KVCache({kind}, B {B}, Hkv {Hkv}, Dk {Dk}, Dv {self._store.value.shape[3]}, "
            f"{tokens} tokens, capacity {self._capacity}, {str(self.dtype).split('.')[1]})"
        )

    def memory(self) -> str:
        """What the buffers take, with the formula filled in."""
        B, Hkv, slots, Dk = self._store.key.shape
        Dv, size = self._store.value.shape[3], self._store.key.element_size()
        if Dk == Dv:
            product = f"{_('2 tensors')} × B {B} × Hkv {Hkv} × {slots} × {Dk}"
        else:
            product = f"B {B} × Hkv {Hkv} × {slots} × (Dk {Dk} + Dv {Dv})"
        limit = _("any number") if self.max_len is None else self.max_len
        return "\n".join(
            [
                _("{product} × {size} bytes = {total}").format(
                    product=product, size=size, total=_in_words(self.nbytes)
                ),
                _(
                    "one token of one row: {size} bytes; the longest row has {has} of {limit}"
                ).format(size=self.bytes_per_token, has=len(self), limit=limit),
            ]
        )

    # ------------------------------------------------------------------ new tokens
    def next_positions(self, q_len: int, keep: Tensor | None = None) -> Tensor:
        """Positions of the next tokens: how many real tokens of the row come before each.

        Args:
            q_len: new tokens per row (Tq), padding included.
            keep: (B, Tq) bool, True = real; None = all real. Padding has the position of the last
                real token before it, or 0.

        Returns:
            (1, Tq) if all rows are equally long and nothing is padded, else (B, Tq); int64.

        Raises:
            ShapeError, UsageError: for a ``keep`` that is not (B, Tq) bool on the same device.

        Example:
            >>> cache = KVCache(batch=2, num_kv_heads=1, head_dim=2, max_len=8)
            >>> cache.next_positions(3, torch.tensor([[True] * 3, [False, True, True]])).tolist()
            [[0, 1, 2], [0, 0, 1]]
        """
        if keep is not None:
            check_keep(keep, self._store.key, q_len, "KVCache.next_positions(keep)")
            return (self.lengths[:, None] + keep.cumsum(1) - 1).clamp(min=0)
        rows = self._store.rows
        if rows.are_equal and isinstance(rows.first, int):
            return torch.arange(rows.longest, rows.longest + q_len, device=self.device)[None]
        return self.lengths[:, None] + torch.arange(q_len, device=self.device)

    def append(self, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Cached:
        """Store new tokens and return what their queries attend to.

        Args:
            k: (B, Hkv, T, Dk), rotated already if keys are.
            v: (B, Hkv, T, Dv).
            keep: (B, T) bool, True = real; None = all real.

        Returns:
            A ``Cached``. Its tensors are views: the next ``append`` may move what they show.

        Raises:
            ShapeError: for sizes that are not the cache's, with both numbers.
            UsageError: for a dtype or a device that is not the cache's, for tensors that need
                gradients, and if there is no room (*overflow*). Nothing is stored then.

        Example:
            Two rows of three and of two tokens, the second padded on the left, and a step.

            >>> cache = KVCache(batch=2, num_kv_heads=1, head_dim=2, max_len=8)
            >>> heads = torch.ones(2, 1, 3, 2)
            >>> cached = cache.append(heads, heads, torch.tensor([[1, 1, 1], [0, 1, 1]]).bool())
            >>> cache.lengths.tolist()
            [3, 2]
            >>> cached = cache.append(heads[:, :, :1], heads[:, :, :1])
            >>> cached.mask.keep.int().tolist()
            [[1, 1, 1, 1], [1, 1, 1, 0]]
        """
        store = self._store
        if not fits(store.key, store.value, k, v):
            explain_misfit(store.key, store.value, k, v)
        if keep is not None:
            check_keep(keep, store.key, k.shape[2], "KVCache.append(keep)")
        new = k.shape[2]
        counted: Tally | None = None
        if keep is not None and k.numel():
            counted = tally(keep, store.rows, self._left)
            if counted.fewest == new:
                keep, counted = None, None
        after = store.rows.plus(new) if counted is None else counted.after
        limit = self._capacity if self._left is None else self.max_len
        if limit is not None and after.longest > limit:
            raise overflow(store.rows, after, new, limit)
        return store.append(k, v, keep, counted)

    def append_row(self, k: Array, v: Array) -> tuple[Array, Array] | None:
        """Store one token of a cache of one row on a CPU, from numpy and with its eyes closed.

        A quarter of what ``append`` took (5 and 20 µs), much where a token takes milliseconds.
        Nothing is checked: sizes and dtype have to be the cache's.

        Args:
            k: (Hkv, Dk).
            v: (Hkv, Dv).

        Returns:
            Keys (Hkv, Tk, Dk) and values (Hkv, Tk, Dv) that the token attends to, all of them, as
            views of the cache; None if ``append`` has to be asked: a ring is to be moved, its row
            has had padding, or there is no room. Nothing is stored then.

        Example:
            >>> cache = KVCache(batch=1, num_kv_heads=1, head_dim=2, max_len=8)
            >>> ones = torch.ones(1, 2).numpy()
            >>> key, value = cache.append_row(ones, ones)
            >>> key.tolist(), len(cache)
            ([[[1.0, 1.0]]], 1)
        """
        store = self._store
        limit = self._capacity if self._left is None else self.max_len
        if limit is not None and store.rows.longest >= limit:
            return None
        return store.append_row(k, v)

    # ------------------------------------------------------------------ other changes
    def reset(self) -> None:
        """Forget everything; the buffers stay."""
        self._store.put(Rows(self.batch))

    def truncate(self, length: int | Tensor) -> None:
        """Forget the newest tokens, for instance drafts that were not accepted.

        Args:
            length: tokens that stay: a number for all rows (shorter ones stay as they are), or
                (B,) whole numbers, at most ``lengths``.

        Raises:
            UsageError: if there are fewer tokens, or if a ring has dropped what the next query
                would see. The tokens of the last ``append`` can always be taken back, unless there
                were more than the room and the ring had to start anew.

        Example:
            >>> cache = KVCache(batch=1, num_kv_heads=1, head_dim=2, max_len=8)
            >>> cached = cache.append(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2))
            >>> cache.truncate(3)
            >>> len(cache)
            3
        """
        rows = self._store.rows
        if isinstance(length, int):
            if not 0 <= length <= rows.longest:
                raise wrong_length(length, rows)
            plain = rows.are_equal and isinstance(rows.first, int)
            wanted: int | Tensor = length if plain else self.lengths.clamp(max=length)
        else:
            good = isinstance(length, Tensor) and tuple(length.shape) == (self.batch,)
            if not good or length.dtype not in INTEGERS:
                raise wrong_length(length, rows)
            wanted = length.to(self.device, torch.int64)
            if bool(((wanted < 0) | (wanted > self.lengths)).any()):
                raise wrong_length(length, rows)
        self._store.put(self._cut(rows, wanted))

    def _cut(self, rows: Rows, lengths: int | Tensor) -> Rows:
        """Rows with fewer tokens, if what they see is still there."""
        first, left = rows.first, self._left
        if isinstance(lengths, int):
            assert isinstance(first, int)
            if left and lengths and first > max(0, lengths - left):
                raise dropped(lengths, first, left)
            held = max(0, lengths - first)
            return Rows(rows.batch, held, held, lengths, lengths, first=lengths - held)
        if left:
            lost = (lengths > 0) & (first > (lengths - left).clamp(min=0))
            if bool(lost.any()):
                row = int(lost.long().argmax())
                begin = first if isinstance(first, int) else int(first[row])
                raise dropped(int(lengths[row]), begin, left)
        by_row = (lengths - first).clamp(min=0)
        is_full = isinstance(first, int) and first == 0
        return rows_of(by_row, 0 if is_full else lengths - by_row)

    def reorder(self, indices: Tensor | list[int]) -> None:
        """Row b becomes what row ``indices[b]`` was: beam search, or other rows than before.

        Args:
            indices: (B',) whole numbers below B; the cache has B' rows from then on.

        Raises:
            UsageError: for a row that does not exist (not looked for on an accelerator).

        Example:
            >>> cache = KVCache(batch=2, num_kv_heads=1, head_dim=1, max_len=8)
            >>> k = torch.tensor([3.0, 4.0]).view(2, 1, 1, 1)
            >>> cached = cache.append(k, k)
            >>> cache.reorder([1, 1])
            >>> cache.append(k, k).key.flatten(1).tolist()
            [[4.0, 3.0], [4.0, 4.0]]
        """
        try:
            chosen = torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError):
            raise wrong_indices(indices, self.batch) from None
        if chosen.ndim != 1 or chosen.dtype not in INTEGERS or not chosen.numel():
            raise wrong_indices(indices, self.batch)
        if chosen.device.type == "cpu":
            lowest, highest = chosen.aminmax()
            if lowest < 0 or highest >= self.batch:
                raise wrong_indices(indices, self.batch)
        self._store.choose(chosen.to(self.device, torch.int64))

    def clone(self) -> KVCache:
        """A cache with the same content that goes its own way."""
        twin = copy.copy(self)
        twin._store = self._store.clone()  # noqa: SLF001
        return twin


def _in_words(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
