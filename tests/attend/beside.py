"""A cache beside the definition: rows of tokens are kept as lists and recomputed in one shot."""

from __future__ import annotations

import torch
from tests.reference.draws import allowance, draw
from torch import Tensor

from headwise import KVCache
from headwise.attend.functional import make_call, run
from headwise.numerics import compare
from headwise.reference import Inputs, Parameters, attend
from headwise.reference.positions import rotary_angles, rotate
from headwise.spec import AttentionSpec


def spec_of(heads: int = 4, kv_heads: int = 2, **fields) -> AttentionSpec:
    """A causal layer with Dk 4 and Dv 3."""
    return AttentionSpec(
        d_model=8,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=4,
        v_head_dim=3,
        is_causal=True,
        **fields,
    )


def cache_of(spec: AttentionSpec, **fields) -> KVCache:
    """A float64 cache of two rows with 64 tokens at most."""
    return KVCache.for_spec(spec, **({"batch": 2, "max_len": 64, "dtype": torch.float64} | fields))


class Beside:
    """Tokens go to a cache and to lists; every new query is compared with the definition.

    Args:
        spec: what is computed; rotary positions and windows count.
        cache: under test.
        leave_out: "rotation" or "mask", to see that the comparison notices.
    """

    def __init__(self, spec: AttentionSpec, cache: KVCache, *, leave_out: str = "") -> None:
        self.spec, self.cache, self.leave_out = spec, cache, leave_out
        self.rows: list[list[tuple[Tensor, Tensor]]] = [[] for _row in range(cache.batch)]
        self.drawn = 0

    def heads(self, count: int, new: int, size: int) -> Tensor:
        """Numbers that were not drawn before."""
        self.drawn += 1
        return draw(len(self.rows), count, new, size, name=f"{self.drawn}")

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotated if the spec rotates."""
        rope = self.spec.rope
        if rope is None or self.leave_out == "rotation":
            return x
        angle = rotary_angles(positions, rotary_dim=self.spec.rotary_dim, base=rope.base)
        return rotate(x, angle.cos(), angle.sin(), pairs=rope.pairs)

    def say(self, new: int, keep: Tensor | None = None) -> list[str]:
        """New tokens in every row; returns where a real one got something else than in one shot."""
        spec, B = self.spec, len(self.rows)
        q = self.heads(spec.num_heads, new, spec.head_dim)
        k = self.heads(spec.num_kv_heads, new, spec.head_dim)
        v = self.heads(spec.num_kv_heads, new, spec.v_head_dim)
        real = torch.ones(B, new, dtype=torch.bool) if keep is None else keep
        before = [len(row) for row in self.rows]
        positions = self.cache.next_positions(new, keep).expand(B, -1)
        cached = self.cache.append(self.turned(k, positions), v, keep)
        mask = cached.mask._replace(highest=None) if self.leave_out == "mask" else cached.mask
        call = make_call(self.turned(q, positions), cached.key, cached.value, mask=mask)
        context, _weights = run(call, "eager")
        assert context.isfinite().all()
        wrong = []
        for b, row in enumerate(self.rows):
            here = real[b]
            row += [(k[b, :, t], v[b, :, t]) for t in range(new) if here[t]]
            assert positions[b][here].tolist() == list(range(before[b], len(row)))
            if here.any():
                keys, values = (torch.stack(x, 1)[None] for x in zip(*row, strict=True))
                given = Inputs(q=q[b : b + 1, :, here], k=keys, v=values)
                truth = attend(spec, Parameters(), given)
                allowed = allowance(spec, truth, [truth.context])
                outcome = compare(context[b : b + 1, :, here], truth.context, allowed=allowed)
                wrong += [] if outcome.passed else [f"row {b}: {outcome.sentence()}"]
        lengths = [len(row) for row in self.rows]
        assert self.cache.lengths.tolist() == lengths
        assert len(self.cache) == max(lengths)
        if self.cache.rows_are_equal:
            assert len(set(lengths)) == 1
        assert not self.left_over().any()
        return wrong

    def left_over(self) -> Tensor:
        """What is stored in slots that hold no token: zeros, or a stale NaN could come back."""
        store = self.cache._store
        held = store.rows.held_by_row(self.cache.device)
        unused = torch.arange(store.slots) >= held[:, None]
        return torch.cat(
            [buffer.transpose(1, 2)[unused].flatten() for buffer in (store.key, store.value)]
        )

    def truncate(self, length: int | Tensor) -> None:
        """Go back, in the cache and in the lists."""
        self.cache.truncate(length)
        ends = [length] * len(self.rows) if isinstance(length, int) else length.tolist()
        self.rows = [row[:end] for row, end in zip(self.rows, ends, strict=True)]

    def reorder(self, indices: list[int]) -> None:
        """Other rows, in the cache and in the lists."""
        self.cache.reorder(indices)
        self.rows = [list(self.rows[index]) for index in indices]
