"""Faults of the key/value cache: C. They show when a sequence is taken in steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register
from headwise.verifier.faults.decoding import (
    Decoding,
    Places,
    Slots,
    Step,
    Store,
    Table,
    append,
    labelled,
    table,
)


# ------------------------------------------------------------------ which slot is written
def writing(at: str, read: str, *, first_too: bool = False, places: bool = False) -> Decoding:
    """A preallocated cache that is written at a wrong slot.

    Args:
        at: ``-1`` or ``+1`` beside the right slot, ``prompt`` (always where the prompt ended), or
            ``0`` (always at the start).
        read: ``tokens`` (as many slots as there are tokens), ``written`` (up to the last one
            written in this step) or ``before`` (up to the first one written).
        first_too: the first step is written there as well.
        places: positions follow the slot.
    """

    def slot(step: Step) -> int:
        if not step.later:
            return 1 if first_too else 0
        index = {"-1": step.start - 1, "+1": step.start + 1, "prompt": step.sizes[0], "0": 0}
        return index[at]

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        begin = slot(step)
        kept = step.held.written(begin, new)
        if read == "tokens":
            missing = step.seen - kept.length
            seen = kept.written(kept.length, _nothing(new, missing)) if missing > 0 else kept
            return seen.cut(None, step.seen), kept
        if read == "before" and step.later:
            return kept.cut(None, begin), kept
        return kept.cut(None, begin + step.rows), kept

    def moved(step: Step) -> Tensor:
        return step.counted(slot(step)) if step.later else step.right

    if places:
        return Decoding(store=store, queries=moved, keys=moved)
    return Decoding(store=store)


def _nothing(new: Slots, size: int) -> Slots:
    rows = torch.arange(new.tokens.shape[0])[:, None].expand(-1, size)
    return Slots(rows, torch.full_like(rows, -1), torch.zeros_like(rows))


def overwritten(spec: AttentionSpec) -> Iterable[Variant]:
    labels = {
        "-1": N_("written one slot too early"),
        "+1": N_("written one slot too late"),
        "prompt": N_("always written where the prompt ended"),
        "0": N_("always written at the start"),
    }
    reads = {
        "tokens": N_("as many slots are read as there are tokens"),
        "written": N_("slots are read up to the last one written"),
        "before": N_("new keys are not read"),
    }
    moves = spec.rope is not None
    for (at, label), (read, how), places in itertools.product(
        labels.items(), reads.items(), (False, True)[: 1 + moves]
    ):
        name = labelled(label, how, N_("positions follow the slot") if places else "")
        yield Variant(name, decoding=writing(at, read, places=places))
    early = writing("+1", "written", first_too=True)
    yield Variant(labelled(labels["+1"], N_("from the first step on")), decoding=early)


# ------------------------------------------------------------------ what is appended
def appended(spec: AttentionSpec) -> Iterable[Variant]:
    def twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + new + new
        return both, both

    def later_twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        return twice(step, new) if step.later else append(step, new)

    def read_twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        return (step.held + new + new, step.held + new) if step.later else append(step, new)

    def kept_twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        return step.held + new, step.held + new + new

    def past_twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + step.held + new
        return both, both

    def past_read_twice(step: Step, new: Slots) -> tuple[Slots, Slots]:
        return step.held + step.held + new, step.held + new

    stores: dict[str, Store] = {
        N_("new keys twice as soon as there are cached ones"): later_twice,
        N_("new keys twice in every step"): twice,
        N_("new keys twice for the step that brings them"): read_twice,
        N_("new keys twice for the steps after it"): kept_twice,
        N_("the whole cache twice"): past_twice,
        N_("the whole cache twice for one step"): past_read_twice,
    }
    for label, store in stores.items():
        yield Variant(label, decoding=Decoding(store=store))
        if spec.rope is not None and store not in (read_twice, past_read_twice):
            moved = Decoding(store=store, queries=by_length, keys=by_length)
            name = labelled(label, N_("positions by the length of the cache"))
            yield Variant(name, decoding=moved)


def by_length(step: Step) -> Tensor:
    """Positions counted from the number of slots that the cache has."""
    return step.counted(step.held.length) if step.later else step.right


# ------------------------------------------------------------------ where its length is read
Size = Callable[[Step], int]


def counted_from(size: Size) -> Places:
    """Positions after the first step counted from a number."""
    return lambda step: step.counted(size(step)) if step.later else step.right


def diagonal_from(size: Size) -> Table:
    """A causal rule after the first step whose diagonal starts at a number."""

    def seen(step: Step, length: int) -> Tensor:
        moved = size(step) - (length - step.rows) if step.later else 0
        return table(step, length, causal=moved)

    return seen


def wrong_length(spec: AttentionSpec) -> Iterable[Variant]:
    sizes: dict[str, Size] = {
        N_("the number of key/value heads"): lambda step: spec.num_kv_heads,
        N_("the number of query heads"): lambda step: spec.num_heads,
        N_("the number of samples"): lambda step: step.inputs.batch,
        N_("the channels of a head"): lambda step: spec.head_dim,
        N_("the width of the model"): lambda step: spec.d_model,
        N_("half of the channels of a head"): lambda step: spec.head_dim // 2,
    }
    moves = spec.rope is not None or _absolute(spec)
    for label, size in sizes.items():
        places, seen = counted_from(size), diagonal_from(size)
        moved = Decoding(queries=places, keys=places)
        masked = Decoding(seen=seen)
        if moves:
            yield Variant(labelled(label, N_("for positions")), decoding=moved)
        if spec.is_causal:
            yield Variant(labelled(label, N_("for the mask")), decoding=masked)
        if moves and spec.is_causal:
            name = labelled(label, N_("for positions"), N_("for the mask"))
            yield Variant(name, decoding=moved.with_parts_of(masked))


def _absolute(spec: AttentionSpec) -> bool:
    return type(spec.positions).__name__ in ("Learned", "Sinusoidal")


# ------------------------------------------------------------------ what a rolling cache keeps
def evicted(spec: AttentionSpec) -> Iterable[Variant]:
    left = None if spec.window is None else spec.window[0]
    if left is None:
        return

    stores = {
        N_("the oldest keys are kept"): oldest(left, read=False),
        N_("the oldest keys are kept, one more than needed"): oldest(left + 1, read=False),
        N_("the newest keys are cut off"): oldest(left + 1, read=True),
        N_("cut before a step of several tokens has read"): cutting(left + 1, later=True),
        N_("cut before the prompt has been read"): cutting(left + 1, later=False),
        N_("one key too few, cut before the step reads"): cutting(left, later=True),
        N_("one key too few, cut before any step reads"): cutting(left, later=False),
    }
    if left > 0:
        stores[N_("one key too few is kept")] = keeping(left - 1)
    for label, store in stores.items():
        yield Variant(label, decoding=Decoding(store=store))
        free = Decoding(store=store, seen=unwindowed)
        yield Variant(labelled(label, N_("no window in steps")), decoding=free)
    for label, store in (
        (N_("one key too many is kept"), keeping(left + 1)),
        (N_("one key too many, cut before the step reads"), cutting(left + 2, later=True)),
    ):
        yield Variant(label, decoding=Decoding(store=store, seen=unwindowed))


def keeping(count: int) -> Store:
    """A step reads everything and keeps the last keys, a number of them."""

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + new
        return both, both.last(count)

    return store


def cutting(count: int, *, later: bool) -> Store:
    """Keys are cut to the last ones before the step reads them, or before later steps do."""

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + new
        kept = both.last(count)
        return (both if later and not step.later else kept), kept

    return store


def oldest(count: int, *, read: bool) -> Store:
    """The first keys are kept, and in later steps perhaps nothing else is read."""

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + new
        kept = both.cut(None, count)
        return (kept if read and step.later else both), kept

    return store


def unwindowed(step: Step, length: int) -> Tensor:
    """No window as soon as there are cached keys."""
    return table(step, length, window=not step.later)


# ------------------------------------------------------------------ whose cache it is
def shared(spec: AttentionSpec) -> Iterable[Variant]:
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        N_("all samples have that of the first"): torch.zeros_like,
        N_("a sample has that of the one before"): lambda rows: rows.roll(1),
        N_("a sample has that of the next"): lambda rows: rows.roll(-1),
        N_("the samples are in reverse order"): lambda rows: rows.flip(0),
        N_("all samples have that of the last"): lambda rows: rows[-1:].expand_as(rows),
    }
    for label, choose in ways.items():
        yield Variant(label, decoding=Decoding(store=borrowing(choose, again=False)))
        again = Decoding(store=borrowing(choose, again=True))
        yield Variant(labelled(label, N_("once more at every step")), decoding=again)


def borrowing(choose: Callable[[Tensor], Tensor], *, again: bool) -> Store:
    """Cached keys of other samples are read, and perhaps kept like that."""

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        held = step.held
        index = choose(torch.arange(held.rows.shape[0]))
        both = Slots(held.rows[index], held.tokens[index], held.places[index]) + new
        return both, both if again else held + new

    return store


register(
    Fault(
        code="C01",
        name="cache-slot-overwritten",
        rank=45,
        shown_by=("cache",),
        what=N_("new keys are written to the wrong slot of the cache, over others or past a gap"),
        why=N_(
            "a token that was written over is forgotten, and a slot that nobody wrote is read as a "
            "key of zeros. The prompt is right and the text falls apart after it, step by step"
        ),
        fix=N_(
            "write at the number of tokens that the cache holds, and advance that number by the "
            "tokens of each step"
        ),
        bad="cache[:, :, length - 1 : length - 1 + k_new.shape[2]] = k_new",
        good="cache[:, :, length : length + k_new.shape[2]] = k_new",
        in_steps=overwritten,
    ),
    Fault(
        code="C02",
        name="cache-appended-twice",
        rank=46,
        shown_by=("cache",),
        what=N_("keys and values enter the cache twice"),
        why=N_(
            "a key that is there twice gets twice its share of the attention, and the cache grows "
            "faster than the text, so that positions counted from its length run ahead"
        ),
        fix=N_("append in one place: either the layer or its caller updates the cache, not both"),
        bad=(
            "k_all = torch.cat([past_k, k_new], dim=2)  # the caller\n"
            "k_all = torch.cat([k_all, k_new], dim=2)  # the layer"
        ),
        good="k_all = torch.cat([past_k, k_new], dim=2)",
        in_steps=appended,
    ),
    Fault(
        code="C03",
        name="cache-length-from-wrong-axis",
        rank=40,
        shown_by=("cache",),
        what=N_("the length of the cache is read from another axis than time"),
        why=N_(
            "the number of heads, samples or channels is taken for the number of cached tokens. It "
            "is the same in every step, so all new tokens get nearly the same positions or the "
            "same mask; where the sizes coincide nothing shows"
        ),
        fix=N_(
            "read the axis of time: shape[-2] of (B, H, T, D), shape[1] of (B, T, H, D); or let "
            "the cache keep its length"
        ),
        bad="offset = past_k.shape[1]  # (B, H, T, D): heads",
        good="offset = past_k.shape[2]  # (B, H, T, D): time",
        in_steps=wrong_length,
    ),
    Fault(
        code="C04",
        name="cache-window-evicts-wrong",
        rank=47,
        shown_by=("cache",),
        what=N_("a rolling cache drops a key that the window still needs, or keeps one too many"),
        why=N_(
            "a window of w keys needs the last w − 1 before each new token; what is dropped too "
            "early can't be seen any more, and dropping from the wrong end keeps the oldest. As "
            "long as the text is shorter than the window nothing shows"
        ),
        fix=N_(
            "attend first, then keep the last w − 1 tokens; a step of several tokens needs as many "
            "before its first"
        ),
        bad="past_k = torch.cat([past_k, k_new], dim=2)[:, :, :w]  # the oldest",
        good="past_k = torch.cat([past_k, k_new], dim=2)[:, :, -(w - 1) :]",
        in_steps=evicted,
    ),
    Fault(
        code="C05",
        name="cache-shared-between-sequences",
        rank=48,
        shown_by=("cache", "twice"),
        what=N_("samples of a batch, or one sequence after another, see each other's cache"),
        why=N_(
            "a text is continued with somebody else's past. A single sequence in a fresh process "
            "is right; batches and servers leak what others wrote"
        ),
        fix=N_(
            "give each sequence a cache of its own, start it empty, and reorder it along the batch "
            "axis only where the samples themselves are reordered"
        ),
        bad="k_all = torch.cat([past_k[:1].expand_as(past_k), k_new], dim=2)",
        good="k_all = torch.cat([past_k, k_new], dim=2)",
        in_steps=shared,
    ),
)
