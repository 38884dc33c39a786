"""Second sources: torch's own counter, other paths, and a published formula, beside ours.

Free counters see operations from outside. A fused attention kernel is one operation to them, so
they report nothing for it unless somebody has taught them its formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise import cost
from headwise.attend import attention
from headwise.attend.backends.dispatch import BACKENDS
from headwise.cost.figure import Figure, json_number
from headwise.errors import HeadwiseError
from headwise.masks import Causal, Mask, Window
from headwise.receipts.counting import kept_bytes
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _


@dataclass(frozen=True)
class Second:
    """A figure of ours beside that of somebody else.

    Args:
        name: what is compared, marked for translation.
        source: who says the other number.
        ours: by our formula.
        theirs: the other number.
        must_agree: whether a difference is an error (of one of the two).
        why: where a difference comes from, marked for translation.
    """

    name: str
    source: str
    ours: Figure
    theirs: int
    must_agree: bool
    why: str = ""

    @property
    def difference(self) -> int:
        """Theirs less ours."""
        return int(self.theirs - self.ours.value)

    @property
    def is_right(self) -> bool:
        """Whether they agree where they must."""
        return not self.must_agree or self.difference == 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "source": self.source,
            "ours": json_number(self.ours.value),
            "theirs": self.theirs,
            "difference": self.difference,
            "must_agree": self.must_agree,
            "passed": self.is_right,
            "why": _(self.why),
            "receipt": self.ours.to_json(),
        }


_WIDTH, _HEADS = 512, 8
"""A layer of nn.MultiheadAttention that has a fused path."""

_FUSED = N_("one fused operation: the counter does not know what is inside and adds nothing")
_PLAIN = N_("this path keeps a number per pair of query and key, as plain code does")
_OTHER = N_("this path stores its tensors in its own way; the formula is that of the algorithm")


def second_sources(
    spec: AttentionSpec, *, batch: int, q_len: int, dtype: torch.dtype = torch.float32
) -> tuple[Second, ...]:
    """Everything that can be compared at these sizes.

    Example:
        >>> spec = AttentionSpec(d_model=32, num_heads=4)
        >>> found = second_sources(spec, batch=1, q_len=8)
        >>> all(one.is_right for one in found)
        True
    """
    return (
        *_counters(spec, batch, q_len),
        *_backends(spec, batch, q_len, dtype),
        published(spec, batch=batch, q_len=q_len),
    )


def published(spec: AttentionSpec, *, batch: int, q_len: int) -> Second:
    """Activations of a standard block in 16 bit with dropout: ours, and sbh(34 + 5·a·s/h).

    Source: Korthikanti et al. 2022 (arXiv 2205.05198), equation 2: s tokens, b samples, h width,
        a heads.
    """
    block = AttentionSpec(d_model=spec.num_heads * spec.head_dim, num_heads=spec.num_heads)
    ours = cost.block_activations(
        block, ffn_width=4 * block.d_model, batch=batch, q_len=q_len, dropout=True, textbook=True
    )
    s, b, h, a = q_len, batch, block.d_model, block.num_heads
    theirs = 34 * s * b * h + 5 * a * s * s * b
    name = N_("activations of a block, F = 4·Dm, 16 bit, dropout")
    return Second(name, "arXiv 2205.05198, eq. 2: sbh(34 + 5as/h)", ours, theirs, must_agree=True)


def _counters(spec: AttentionSpec, batch: int, q_len: int) -> tuple[Second, ...]:
    """What FlopCounterMode of torch finds on the products of attention, path by path."""
    z = cost.flops(spec, batch=batch, q_len=q_len)
    core = Figure("core", z.part("scores") + z.part("aggregate"), "FLOP")
    both = Figure("core_both", 3 * core, "FLOP")
    q, k, v = _drawn(spec, batch, q_len, torch.float32)

    def math(*, backward: bool) -> None:
        with sdpa_kernel(SDPBackend.MATH):
            out = _sdpa(q, k, v, spec)
            if backward:
                out.sum().backward()

    def fused() -> None:
        with torch.no_grad():
            _sdpa(q, k, v, spec)

    name = N_("FLOPs of scores and aggregate, forward")
    found = [
        Second(name, "FlopCounterMode, math kernel", core, _count(lambda: math(backward=False)),
               must_agree=True),
        Second(N_("FLOPs of scores and aggregate, forward and backward"),
               "FlopCounterMode, math kernel", both, _count(lambda: math(backward=True)),
               must_agree=True),
    ]  # fmt: skip
    return (*found, *_free_counters(spec, batch, q_len))


def _free_counters(spec: AttentionSpec, batch: int, q_len: int) -> tuple[Second, ...]:
    """The same counter on what people call: SDPA, and nn.MultiheadAttention in eval.

    With Dv = Dk, the sizes for which SDPA has a fused kernel.
    """
    even = spec.replace(v_head_dim=spec.head_dim)
    z = cost.flops(even, batch=batch, q_len=q_len)
    core = Figure("core", z.part("scores") + z.part("aggregate"), "FLOP")
    q, k, v = _drawn(even, batch, q_len, torch.float32)
    plain = AttentionSpec(d_model=_WIDTH, num_heads=_HEADS)
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True).eval()
    x = torch.ones(batch, q_len, _WIDTH)

    def fused() -> None:
        with torch.no_grad():
            _sdpa(q, k, v, even)

    def fast() -> None:
        with torch.no_grad():
            layer(x, x, x, need_weights=False)

    whole = cost.flops(plain, batch=batch, q_len=q_len)
    return (
        _free(N_("FLOPs of scores and aggregate, Dv = Dk, forward"),
              "FlopCounterMode, F.scaled_dot_product_attention", core, _count(fused)),
        _free(N_("FLOPs of a whole multi-head layer in eval, forward"),
              f"FlopCounterMode, nn.MultiheadAttention({_WIDTH}, {_HEADS})", whole, _count(fast)),
    )  # fmt: skip


def _free(name: str, source: str, ours: Figure, theirs: int) -> Second:
    why = _FUSED if theirs != ours.value else ""
    return Second(name, source, ours, theirs, must_agree=False, why=why)


def _count(function: Callable[[], object]) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        function()
    return int(counter.get_total_flops())


def _sdpa(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    grouped = spec.num_heads != spec.num_kv_heads
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=spec.is_causal, scale=spec.scale, enable_gqa=grouped
    )


def _drawn(
    spec: AttentionSpec, batch: int, q_len: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (
        (spec.num_heads, spec.head_dim),
        (spec.num_kv_heads, spec.head_dim),
        (spec.num_kv_heads, spec.v_head_dim),
    )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, heads, q_len, size, generator=generator).to(dtype).requires_grad_()
        for heads, size in sizes
    )
    return q, k, v


def _backends(
    spec: AttentionSpec, batch: int, q_len: int, dtype: torch.dtype
) -> tuple[Second, ...]:
    """Bytes that the other ways to compute attention keep: q, k, v, context and row sums."""
    mask: Mask | None = Causal() if spec.is_causal else None
    if spec.window is not None:
        window = Window(*spec.window)
        mask = window if mask is None else mask & window
    name = str(dtype).removeprefix("torch.")
    layer = cost.activations(spec, batch=batch, q_len=q_len, dtype=name, keeping="tiled")
    wanted = ("q", "k", "v", "context", "row_sums")
    parts = [part for part in layer.parts if part.name in wanted]
    ours = cost.total("tiled", parts, "byte")
    q, k, v = _drawn(spec, batch, q_len, dtype)
    found = []
    for backend in BACKENDS:
        if backend == "eager":
            continue

        def call(backend: str = backend) -> object:
            fresh = (t.detach().clone().requires_grad_() for t in (q, k, v))
            return attention(*fresh, mask=mask, scale=spec.scale, backend=backend)

        try:
            kept = kept_bytes(call).bytes
        except HeadwiseError:
            continue  # it can't express this call, and says so itself
        why = "" if kept == ours.value else _reason(kept, parts, spec, batch, q_len, name)
        found.append(
            Second(
                N_("bytes kept by scores, softmax and aggregate"),
                f"headwise.attention(backend={backend!r})", ours, kept, must_agree=False, why=why,
            )
        )  # fmt: skip
    return tuple(found)


def _reason(
    kept: int, parts: list[Figure], spec: AttentionSpec, batch: int, q_len: int, dtype: str
) -> str:
    """Why a path keeps something else than the formula of the tiled algorithm says."""
    for count in range(1, len(parts)):
        for some in combinations(parts, count):
            if kept == sum(part.value for part in some):
                names = ", ".join(part.name for part in some)
                text = _("a path that keeps {names} alone computes the rest again")
                return text.format(names=names)
    plain = cost.activations(spec, batch=batch, q_len=q_len, dtype=dtype).part("weights")
    return _PLAIN if kept >= plain.value else _OTHER
