"""Which backend computes a call, and why. The choice is never silent: ``explain_backend``.

Adding a backend = one module with ``name``, ``refuses(call)`` and ``run(call)``, one line in
``BACKENDS``, and its place among the rules of ``pick``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from headwise.attend import products
from headwise.attend.backends import eager, ragged, sdpa, split_keys, tiled
from headwise.attend.backends.measured import LONG, SHORT, Verdict, tiles_against_sdpa
from headwise.attend.call import Call, DistanceBias, Result
from headwise.attend.tracing import is_traced
from headwise.errors import UsageError
from headwise.registry import Registry
from headwise.texts import mark as N_
from headwise.texts import translate as _


class Backend(Protocol):
    """A way to compute attention."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def refuses(self, call: Call) -> str:
        """Why it can't compute this call; empty if it can."""
        ...

    def run(self, call: Call) -> Result:
        """Context and, if asked for, weights."""
        ...


BACKENDS: Registry[Backend] = Registry("backend")
for _module in (eager, sdpa, tiled, ragged, split_keys):
    BACKENDS.add(_module.name, _module)

SMALL = 8 * 64 * 64
"""Scores of all heads up to which nothing but a call's overhead matters."""

FEW_KEYS = 256
"""Keys up to which a single query is a small call."""

LONG_FROM = 1 << 20
"""Scores of all heads from which on the measurement for long calls counts."""


class Pick(NamedTuple):
    """A choice in short form: nothing is put into words before somebody asks.

    Args:
        backend: its name.
        reason: a text, not yet translated.
        verdict: what was measured, if that decided.
    """

    backend: str
    reason: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Choice:
    """Which backend, and why; printed as sentences.

    Args:
        backend: the name of the backend.
        reason: why this one.
        others: the other backends, and why not.
    """

    backend: str
    reason: str
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.reason}"]
        lines += [f"  {_('not')} {name}: {why}" for name, why in self.others.items()]
        return "\n".join(lines)


def pick(call: Call, backend: str | None = None) -> Pick:
    """The backend for a call, by the first rule that applies.

    Raises:
        UsageError: if the one that was asked for is unknown or can't compute the call.
    """
    if backend is not None:
        _check_asked(call, backend)
        return Pick(backend, N_("it was asked for"))
    fused_can = not sdpa.refuses(call)
    if is_traced(call.query):
        if fused_can:
            return Pick("sdpa", N_("the call is traced: a graph gets one operation"))
        return Pick("eager", N_("the call is traced: a graph gets plain operations"))
    if call.query.device.type != "cpu":
        if fused_can:
            return Pick("sdpa", N_("torch's fused kernels are made for this device"))
        return Pick("eager", N_("plain operations run on every device"))
    if call.need_weights is not False and call.needs_grad:
        return Pick("eager", N_("gradients have to pass through the returned weights"))
    if is_small(call):
        if fused_can:
            return Pick("sdpa", N_("the call is small: the least overhead wins"))
        return Pick("eager", N_("the call is small: plain operations have the least overhead"))
    if not fused_can:
        return Pick("tiled", N_("SDPA can't express the call, and tiles store no Tq × Tk tensor"))
    return _by_speed(call)


def _by_speed(call: Call) -> Pick:
    """Between SDPA and tiles, where both can compute a call on the CPU."""
    if call.head_dim != call.v_head_dim:
        return Pick("tiled", N_("SDPA stores the scores if Dk and Dv differ"))
    if call.dropout_p:
        return Pick("tiled", N_("SDPA stores the scores if there is dropout"))
    if isinstance(call.bias, DistanceBias):
        return Pick("tiled", N_("SDPA would need the bias as a Tq × Tk tensor"))
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return Pick("tiled", N_("SDPA stores the scores if the bias has a gradient"))
    if call.q_len == 1:
        return _decode(call)
    if call.bias is None and not (call.mask.hides_nothing or sdpa.is_causal_from_the_start(call)):
        return _skipping(call)
    verdict = _measured(call)
    if verdict.tiles_win:
        return Pick("tiled", N_("tiles are quicker on this machine"), verdict)
    return Pick("sdpa", N_("torch's fused kernel is quicker on this machine"), verdict)


def _decode(call: Call) -> Pick:
    """One query per sample."""
    half = call.query.dtype.itemsize == 2
    if half and products.route(call.query.dtype, call.query.device).compute == call.query.dtype:
        if not split_keys.refuses(call):
            return Pick(
                "split-keys", N_("one query: this processor multiplies half precision quickly")
            )
    elif call.batch * call.num_kv_heads < torch.get_num_threads() and not split_keys.refuses(call):
        return Pick("split-keys", N_("one query and few heads: the keys are split among threads"))
    return Pick("sdpa", N_("one query: the heads of a group become rows of one product"))


def _skipping(call: Call) -> Pick:
    """A mask that hides much of the keys."""
    if ragged.refuses(call):
        return Pick("tiled", N_("SDPA computes what the mask hides, tiles skip it"))
    verdict = _measured(call)
    if verdict.tiles_win:
        return Pick("tiled", N_("SDPA computes what the mask hides, tiles skip it"), verdict)
    return Pick("ragged", N_("padding is left out, and the fused kernel is quicker"), verdict)


def is_small(call: Call) -> bool:
    """Whether nothing but the overhead of a call matters; a long cache is no small matter."""
    if call.is_empty:
        return True
    return cells_of(call) <= SMALL and (call.q_len > 1 or call.kv_len <= FEW_KEYS)


def cells_of(call: Call) -> int:
    """Scores of all samples and heads."""
    return call.batch * call.num_heads * call.q_len * call.kv_len


def _measured(call: Call) -> Verdict:
    return tiles_against_sdpa(
        call.query.dtype,
        training=call.needs_grad,
        threads=torch.get_num_threads(),
        of=LONG if cells_of(call) >= LONG_FROM else SHORT,
    )


def choose(call: Call, backend: str | None = None) -> Choice:
    """The backend for a call, in words.

    Raises:
        UsageError: as ``pick``.
    """
    found = pick(call, backend)
    reason = _(found.reason)
    if found.verdict is not None:
        reason = f"{reason} ({found.verdict})"
    others = {
        name: other.refuses(call) or _("another rule came first")
        for name, other in BACKENDS.items()
        if name != found.backend
    }
    return Choice(found.backend, reason, others)


def _check_asked(call: Call, backend: str) -> None:
    refused = BACKENDS[backend].refuses(call)
    if refused:
        raise UsageError(
            _("backend {name!r} can't compute this call").format(name=backend),
            where=f"attention(backend={backend!r})",
            why=refused,
            fix=_("leave the backend out, and explain_backend(...) says which one is taken"),
        )
