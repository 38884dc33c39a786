"""Faults of the key/value cache: C. They show when a sequence is taken in steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register
from headwise.verifier.faults.decoding import Decoding, Slots, Step, Store, append, table


# ------------------------------------------------------------------ which slot is written
def writing(
    at: str, read: str, *, first_too: bool = False, places: bool = False
) -> Decoding:
    """A preallocated cache that is written at a wrong slot.

    Args:
        at: ``-1`` or ``+1`` beside the right slot, ``prompt`` (always where the prompt ended), or
            ``0`` (always at the start).
        read: ``tokens`` (as many slots as there are tokens) or ``written`` (up to the last one
            written in this step).
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
        "-1": "one slot too early",
        "+1": "one slot too late",
        "prompt": "always where the prompt ended",
        "0": "always at the start",
    }
    moves = spec.rope is not None
    for at, label in labels.items():
        for read in ("tokens", "written"):
            for places in (False, True)[: 1 + moves]:
                more = ", positions too" if places else ""
                name = f"{label}, {read} read{more}"
                yield Variant(name, decoding=writing(at, read, places=places))
    yield Variant("one slot too late from the first step", decoding=writing("+1", "written",
                                                                          first_too=True))  # fmt: skip


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
        "new keys, with a cache": later_twice,
        "new keys, from the first step": twice,
        "new keys, for this step alone": read_twice,
        "new keys, for later steps": kept_twice,
        "the cache itself": past_twice,
        "the cache itself, for this step alone": past_read_twice,
    }
    for label, store in stores.items():
        yield Variant(label, decoding=Decoding(store=store))
        if spec.rope is not None and store not in (read_twice, past_read_twice):
            moved = Decoding(store=store, queries=by_length, keys=by_length)
            yield Variant(f"{label}, positions by its length", decoding=moved)


def by_length(step: Step) -> Tensor:
    """Positions counted from the number of slots that the cache has."""
    return step.counted(step.held.length) if step.later else step.right


# ------------------------------------------------------------------ where its length is read
def wrong_length(spec: AttentionSpec) -> Iterable[Variant]:
    sizes = {
        "key/value heads": lambda step: spec.num_kv_heads,
        "query heads": lambda step: spec.num_heads,
        "samples": lambda step: step.inputs.batch,
        "channels of a head": lambda step: spec.head_dim,
        "width": lambda step: spec.d_model,
        "half of the channels": lambda step: spec.head_dim // 2,
    }
    if spec.num_kv_heads == spec.num_heads:
        del sizes["query heads"]
    moves = spec.rope is not None or _absolute(spec)
    for label, size in sizes.items():

        def moved(step: Step, size=size) -> Tensor:  # type: ignore[no-untyped-def]
            return step.counted(size(step)) if step.later else step.right

        def seen(step: Step, length: int, size=size) -> Tensor:  # type: ignore[no-untyped-def]
            if not step.later:
                return table(step, length)
            return table(step, length, causal=size(step) - (length - step.rows))

        if moves:
            places = Decoding(queries=moved, keys=moved)
            yield Variant(f"positions from the number of {label}", decoding=places)
            both = Decoding(queries=moved, keys=moved, seen=seen)
            yield Variant(f"positions and mask from the number of {label}", decoding=both)
        if spec.is_causal:
            yield Variant(f"mask from the number of {label}", decoding=Decoding(seen=seen))


def _absolute(spec: AttentionSpec) -> bool:
    return type(spec.positions).__name__ in ("Learned", "Sinusoidal")


# ------------------------------------------------------------------ what a rolling cache keeps
def evicted(spec: AttentionSpec) -> Iterable[Variant]:
    left = None if spec.window is None else spec.window[0]
    if left is None:
        return

    def keeping(count: int) -> Store:
        def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
            both = step.held + new
            return both, both.cut(max(both.length - count, 0), None)

        return store

    def cutting(count: int, *, later: bool) -> Store:
        def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
            both = step.held + new
            if later and not step.later:
                return both, both.cut(max(both.length - count, 0), None)
            both = both.cut(max(both.length - count, 0), None)
            return both, both

        return store

    def oldest(count: int, *, read: bool) -> Store:
        def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
            both = step.held + new
            kept = both.cut(None, count)
            return (kept if read and step.later else both), kept

        return store

    def unwindowed(step: Step, length: int) -> Tensor:
        return table(step, length, window=not step.later)

    stores = {
        "one key too few is kept": keeping(left - 1) if left > 0 else None,
        "one key too few, before the step reads": cutting(left, later=True),
        "one key too few, before any step reads": cutting(left, later=False),
        "cut before a step of several tokens reads": cutting(left + 1, later=True),
        "cut before the prompt is read": cutting(left + 1, later=False),
        "the oldest keys are kept": oldest(left, read=False),
        "the oldest keys are kept, one more": oldest(left + 1, read=False),
        "the newest keys are cut off": oldest(left + 1, read=True),
    }
    for label, store in stores.items():
        if store is not None:
            yield Variant(label, decoding=Decoding(store=store))
            free = Decoding(store=store, seen=unwindowed)
            yield Variant(f"{label}, no window in steps", decoding=free)
    more = Decoding(store=keeping(left + 1), seen=unwindowed)
    yield Variant("one key too many is kept", decoding=more)
    more = Decoding(store=cutting(left + 2, later=True), seen=unwindowed)
    yield Variant("one key too many, before the step reads", decoding=more)


# ------------------------------------------------------------------ whose cache it is
def shared(spec: AttentionSpec) -> Iterable[Variant]:
    for label, choose in (
        ("the first sample's for all", lambda rows: torch.zeros_like(rows)),
        ("the previous sample's", lambda rows: rows.roll(1, 0)),
        ("the next sample's", lambda rows: rows.roll(-1, 0)),
        ("samples in reverse order", lambda rows: rows.flip(0)),
        ("the last sample's for all", lambda rows: torch.full_like(rows, rows.shape[0] - 1)),
    ):

        def store(step: Step, new: Slots, choose=choose) -> tuple[Slots, Slots]:  # type: ignore[no-untyped-def]
            both = dataclasses.replace(step.held, rows=choose(step.held.rows)) + new
            return both, step.held + new

        def kept(step: Step, new: Slots, choose=choose) -> tuple[Slots, Slots]:  # type: ignore[no-untyped-def]
            both = dataclasses.replace(step.held, rows=choose(step.held.rows)) + new
            return both, both

        yield Variant(label, decoding=Decoding(store=store))
        if "previous" in label or "next" in label or "reverse" in label:
            yield Variant(f"{label}, in every step again", decoding=Decoding(store=kept))


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
        bad="cache[:, :, length - 1 : length - 1 + q_new.shape[2]] = q_new",
        good="cache[:, :, length : length + q_new.shape[2]] = q_new",
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
            "k_all = torch.cat([past_k, q_new], dim=2)\n"
            "k_all = torch.cat([k_all, q_new], dim=2)  # the caller has done it already"
        ),
        good="k_all = torch.cat([past_k, q_new], dim=2)",
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
        bad="past_k = torch.cat([past_k, q_new], dim=2)[:, :, :w]  # the oldest",
        good="past_k = torch.cat([past_k, q_new], dim=2)[:, :, -(w - 1) :]",
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
        bad="past_k = past_k[:1].expand_as(past_k)",
        good="past_k = past_k[[0, 1]]  # each sample its own",
        in_steps=shared,
    ),
)
