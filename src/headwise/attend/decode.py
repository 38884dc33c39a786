"""New tokens beside cached ones: what a mask says about both, and where the new ones stand.

A cache holds real tokens only, so its keys have other indices than the tokens had when they were
given. A mask is therefore read before anything is stored (``prepare``), and moved to the keys that
the cache hands out afterwards (``finish``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.attend.cache import KVCache
from headwise.attend.parts import MaskParts, conjunction, take_apart
from headwise.attend.positions import Places, Row, since_first
from headwise.attend.store import Cached
from headwise.errors import MaskError, UsageError
from headwise.masks import And, Causal, Mask, Padding, Window
from headwise.spec import AttentionSpec
from headwise.texts import translate as _

WHERE = "MultiHeadAttention(mask, cache)"


class Step(NamedTuple):
    """New tokens, before they are stored.

    Args:
        keep: (B, Tq) bool, real ones; None = all.
        row: their positions.
        limit: all positions are below it.
        left, right: distances that spec and mask allow together; None = any.
        rest: the other rules, over all tokens so far; only where no token was padding.
    """

    keep: Tensor | None
    row: Row
    limit: int
    left: int | None
    right: int | None
    rest: MaskParts


def prepare(
    spec: AttentionSpec,
    mask: Mask | None,
    cache: KVCache,
    *,
    batch: int,
    q_len: int,
    device: torch.device,
) -> Step:
    """Read a mask that covers all tokens so far, the new ones last.

    Raises:
        UsageError: if the layer is not causal, or the cache holds a narrower window.
        MaskError: if padding contradicts what the cache was given, or a rule can't be moved to
            rows of different lengths.
    """
    rules = mask.parts if isinstance(mask, And) else () if mask is None else (mask,)
    bands = [r for r in rules if isinstance(r, Causal | Window) and r.alignment == "end"]
    paddings = [r for r in rules if isinstance(r, Padding)]
    others = [r for r in rules if r not in bands and r not in paddings]
    _check_causal(spec, bands)
    left, right = _window(spec, bands)
    _check_window(cache, left)
    keep = _new_keep(paddings, cache, batch, q_len, device)
    plain = cache.rows_are_equal and keep is None
    if others and not plain:
        raise MaskError(
            _("{rules} can't be combined with a cache of rows of different lengths").format(
                rules=", ".join(repr(rule) for rule in others)
            ),
            where=WHERE,
            why=_("padding is not stored, so tokens have other slots there than in the mask"),
            fix=_("Padding, Causal and Window; or one call without a cache"),
        )
    before = len(cache)
    rest = MaskParts()
    if others:
        rest = take_apart(
            And(tuple(others)),
            q_len=q_len,
            kv_len=before + q_len,
            batch=batch,
            num_heads=spec.num_heads,
            device=device,
            where=WHERE,
        )
    if rest.k_documents is not None:
        row = Row(q_len, given=since_first(rest.k_documents)[:, before:])
    elif plain:
        row = Row(q_len, before)
    else:
        row = Row(q_len, given=cache.next_positions(q_len, keep))
    return Step(keep, row, before + q_len, left, right, rest)


def finish(step: Step, cached: Cached) -> tuple[MaskParts, Places]:
    """The mask over the keys that the cache hands out, and where queries and keys stand."""
    q_len, kv_len = step.row.length, cached.key.shape[2]
    last, gone = kv_len - q_len, step.limit - kv_len
    where = Places(Row(q_len, last), Row(kv_len), step.limit)
    rest = _last_keys(step.rest, kv_len, gone)
    if rest.k_documents is not None:
        assert step.rest.k_documents is not None
        keys = Row(kv_len, given=since_first(step.rest.k_documents)[:, gone:])
        where = Places(step.row, keys, step.limit)
    elif not cached.slots_are_positions:
        where = Places(
            Row(q_len, given=step.row.tensor(cached.key.device)),
            Row(kv_len, given=cached.k_positions),
            step.limit,
        )
    window = MaskParts(
        lowest=None if step.left is None else last - step.left,
        highest=None if step.right is None else last + step.right,
    )
    if not cached.slots_are_positions and not window.hides_nothing:
        window = _by_position(step, where, cached.key.device)
    return conjunction(conjunction(cached.mask, window), rest), where


def _check_causal(spec: AttentionSpec, bands: list[Causal | Window]) -> None:
    if spec.is_causal or any(isinstance(rule, Causal) for rule in bands):
        return
    raise UsageError(
        _("a cache needs a causal layer"),
        where="MultiHeadAttention(AttentionSpec(is_causal=False))(x, cache=…)",
        why=_("without the causal rule, a new token changes what earlier ones see"),
        fix=_("spec.replace(is_causal=True), or mask=Causal()"),
    )


def _window(spec: AttentionSpec, bands: list[Causal | Window]) -> tuple[int | None, int | None]:
    """The narrowest distances of the spec and of the mask."""
    pairs = [(rule.left, rule.right) for rule in bands if isinstance(rule, Window)]
    pairs += [] if spec.window is None else [spec.window]
    sides = zip(*pairs, strict=True) if pairs else ((), ())
    left, right = ([n for n in side if n is not None] for side in sides)
    return min(left, default=None), min(right, default=None)


def _check_window(cache: KVCache, left: int | None) -> None:
    held = None if cache.window is None else cache.window[0]
    if held is None or (left is not None and left <= held):
        return
    raise UsageError(
        _("the cache shows {held} earlier tokens, the layer looks at {left}").format(
            held=held, left=_("all") if left is None else left
        ),
        where=f"KVCache(window={cache.window})",
        why=_("a ring has dropped what the layer would need"),
        fix="KVCache.for_spec(layer.spec, batch=…)",
    )


def _new_keep(
    paddings: list[Padding], cache: KVCache, batch: int, q_len: int, device: torch.device
) -> Tensor | None:
    """Which of the new tokens are real, if not all: the last columns of the padding."""
    found: Tensor | None = None
    for rule in paddings:
        keep = rule.keep.to(device)
        if keep.shape[0] not in (1, batch):
            raise MaskError(
                _("Padding(keep) has {has} samples, but x has {batch}").format(
                    has=keep.shape[0], batch=batch
                ),
                where=WHERE,
                why=_("there is one row per sample, or one for all"),
            )
        if found is not None and keep.shape[1] != found.shape[1]:
            raise MaskError(
                _("two paddings cover {one} and {other} tokens").format(
                    one=found.shape[1], other=keep.shape[1]
                ),
                where=WHERE,
                why=_("both cover all tokens so far"),
            )
        found = keep if found is None else found & keep
    if found is None:
        return None
    keep = found.expand(batch, -1)
    before = keep[:, : max(0, keep.shape[1] - q_len)].sum(1)
    lengths = cache.lengths
    if keep.shape[1] < q_len or (batch == cache.batch and bool((before != lengths).any())):
        row = int((before != lengths).long().argmax()) if batch == cache.batch else 0
        raise MaskError(
            _(
                "Padding(keep) covers {has} tokens, {real} of them real and earlier than the "
                "{new} new ones in row {row}; the cache has had {length} there"
            ).format(
                has=keep.shape[1],
                real=int(before[row]),
                new=q_len,
                row=row,
                length=int(lengths[row]) if batch == cache.batch else 0,
            ),
            where=WHERE,
            why=_("padding covers all tokens so far in the order they were given"),
            fix=_("torch.cat([earlier_keep, new_keep], dim=1)"),
        )
    new = keep[:, keep.shape[1] - q_len :]
    return None if bool(new.all()) else new


def _last_keys(parts: MaskParts, kv_len: int, gone: int) -> MaskParts:
    """The parts for the last keys; ``gone`` ones were before them."""
    return parts._replace(
        lowest=None if parts.lowest is None else parts.lowest - gone,
        highest=None if parts.highest is None else parts.highest - gone,
        k_documents=None if parts.k_documents is None else parts.k_documents[:, gone:],
        table=None if parts.table is None else parts.table[..., -kv_len:],
    )


def _by_position(step: Step, where: Places, device: torch.device) -> MaskParts:
    """A window by positions, as a table."""
    step_size = where.k.tensor(device)[:, None, :] - where.q.tensor(device)[:, :, None]
    visible = torch.ones_like(step_size, dtype=torch.bool)
    if step.left is not None:
        visible = visible & (step_size >= -step.left)
    if step.right is not None:
        visible = visible & (step_size <= step.right)
    return MaskParts(table=visible[:, None])
