"""Which of two backends is quicker on this machine: measured at first use, once per process.

How tiles and torch's fused kernel compare depends on the processor, its matrix library and the
dtype: on one machine tiles are twice as fast, on another one a quarter slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attend.backends import sdpa, tiled
from headwise.attend.call import Call
from headwise.attend.parts import MaskParts
from headwise.attend.products import in_turn
from headwise.texts import translate as _


class Timed(NamedTuple):
    """A call that is timed: causal, one sample.

    Args:
        heads, length, head_dim: its sizes.
        rounds: how often both are called in turn.
    """

    heads: int
    length: int
    head_dim: int
    rounds: int

    @property
    def cells(self) -> int:
        """Scores of all heads."""
        return self.heads * self.length * self.length


SHORT, LONG = Timed(8, 128, 64, 15), Timed(4, 1024, 64, 5)
"""What stands for short calls, where overhead counts, and for long ones."""

FASTER = 1.05
"""Tiles are taken if they are faster by this factor."""


class Verdict(NamedTuple):
    """What was measured.

    Args:
        tiles: milliseconds in tiles, the quickest of the rounds.
        fused: milliseconds of torch's fused kernel, likewise.
        ratio: how many times faster tiles are; the median over rounds.
        training: whether a backward pass is part of it.
        dtype: of the tensors.
        call: what was timed.
    """

    tiles: float
    fused: float
    ratio: float
    training: bool
    dtype: torch.dtype
    call: Timed = LONG

    @property
    def tiles_win(self) -> bool:
        """Whether tiles are the better choice here."""
        return self.ratio >= FASTER

    def __str__(self) -> str:
        return _(
            "measured here once, {what} of {heads} × {length} × {head_dim} in {dtype}: "
            "{tiles:.2f} ms in tiles, {fused:.2f} ms in SDPA"
        ).format(
            what=_("causal training") if self.training else _("causal attention"),
            heads=self.call.heads,
            length=self.call.length,
            head_dim=self.call.head_dim,
            dtype=str(self.dtype).removeprefix("torch."),
            tiles=self.tiles,
            fused=self.fused,
        )


@lru_cache(maxsize=32)
def tiles_against_sdpa(
    dtype: torch.dtype, *, training: bool, threads: int, of: Timed = LONG
) -> Verdict:
    """Time both on one call, in turn.

    Args:
        dtype: of the tensors.
        training: with the backward pass.
        threads: torch's number of threads; another number is another measurement.
        of: the call that is timed.
    """
    del threads
    generator = torch.Generator().manual_seed(0)

    def tensor() -> Tensor:
        shape = (1, of.heads, of.length, of.head_dim)
        made = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        return made.to(dtype).requires_grad_(training)

    q, k, v, grad = tensor(), tensor(), tensor(), tensor().detach()
    call = Call(q, k, v, MaskParts(highest=0), of.head_dim**-0.5)

    def once(run: Callable[[Call], tuple[Tensor, Tensor | None]]) -> None:
        context = run(call)[0]
        if training:
            torch.autograd.grad(context, (q, k, v), grad)

    with torch.set_grad_enabled(training), torch.inference_mode(mode=False):
        fused, tiles, ratio = in_turn(
            lambda: once(sdpa.run), lambda: once(tiled.run), rounds=of.rounds
        )
    return Verdict(tiles, fused, ratio, training, dtype, of)
