"""Faults of positions: R."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import (
    angles_of,
    apply_positions,
    normalise_heads,
    read_input,
    score,
)
from headwise.reference.positions import alibi_slopes, rotate, sinusoidal_table
from headwise.reference.setting import Setting
from headwise.spec import Alibi, AttentionSpec, Learned, Pairs, RelativeBias, Sinusoidal
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register, under
from headwise.verifier.faults.decoding import Decoding, Places, Slots, Step, labelled

BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 5000000.0, 1000.0, 100.0, 10.0, 1e7)
"""Frequency bases in use, tried for R03."""


# ------------------------------------------------------------------ rotation
def pairs_swapped(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is not None:
        other: Pairs = "neighbours" if spec.rope.pairs == "halves" else "halves"
        rope = dataclasses.replace(spec.rope, pairs=other)
        yield Variant(f"{other} pairs", {"positions": under(apply_positions, positions=rope)})


def wrong_base(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return
    for base in BASES:
        if base != spec.rope.base:
            rope = dataclasses.replace(spec.rope, base=base)
            yield Variant(f"base {base:g}", {"positions": under(apply_positions, positions=rope)})


def with_base(spec: AttentionSpec, base: float) -> Variant:
    """A rotation with another frequency base."""
    assert spec.rope is not None
    rope = dataclasses.replace(spec.rope, base=base)
    return Variant(f"base {base:g}", {"positions": under(apply_positions, positions=rope)})


def values_rotated(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None or spec.rotary_dim > spec.v_head_dim:
        return
    pairs = spec.rope.pairs

    def stage(t: Trace, s: Setting) -> None:
        apply_positions(t, s)
        t.v = rotate(t.v, *angles_of(s)[1], pairs=pairs)

    yield Variant("", {"positions": stage})


def one_side(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return

    def only(name: str) -> StageFunction:
        def stage(t: Trace, s: Setting) -> None:
            apply_positions(t, s)
            kept = getattr(t, name)
            apply_positions(t, s.with_spec(positions=None))
            setattr(t, name, kept)

        return stage

    yield Variant("queries only", {"positions": only("q_pos")})
    yield Variant("keys only", {"positions": only("k_pos")})


def not_rotated(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is not None:
        yield Variant("", {"positions": under(apply_positions, positions=None)})


Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def turning(turn_q: Turn, turn_k: Turn) -> StageFunction:
    """The positions stage with another rotation of q and of k: turn(x, cos, sin)."""

    def stage(t: Trace, s: Setting) -> None:
        t.q_pos, t.k_pos = t.q, t.k
        norm = s.spec.qk_norm
        if norm is not None and norm.order == "before-rope":
            normalise_heads(t, s, norm)
        q_angles, k_angles = angles_of(s)
        t.q_pos, t.k_pos = turn_q(t.q_pos, *q_angles), turn_k(t.k_pos, *k_angles)
        if norm is not None and norm.order == "after-rope":
            normalise_heads(t, s, norm)

    return stage


def tables_disagree(spec: AttentionSpec) -> Iterable[Variant]:
    rope, n = spec.rope, spec.rotary_dim
    if rope is None:
        return

    def mixed(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x, rest = x[..., :n], x[..., n:]
        if rope.pairs == "halves":
            cos, sin = (a.repeat_interleave(2, -1)[:, None] for a in (cos, sin))
            partner = torch.cat([-x[..., n // 2 :], x[..., : n // 2]], -1)
        else:
            cos, sin = (torch.cat([a, a], -1)[:, None] for a in (cos, sin))
            partner = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return torch.cat([x * cos + partner * sin, rest], -1)

    yield Variant("", {"positions": turning(mixed, mixed)})


def wrong_dim(spec: AttentionSpec) -> Iterable[Variant]:
    rope, n = spec.rope, spec.rotary_dim
    if rope is None:
        return
    dims = {"d_model": spec.d_model, "head_dim": spec.head_dim, "rotary_dim / 2": n // 2}
    dims["2 · rotary_dim"] = 2 * n
    for label, dim in dims.items():
        if dim != n:
            # base ** (-2i/dim) is the formula with another base
            base = rope.base ** (n / dim)
            changed = dataclasses.replace(rope, base=base)
            yield Variant(label, {"positions": under(apply_positions, positions=changed)})


def opposite(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return
    pairs = spec.rope.pairs

    def forth(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, sin, pairs=pairs)

    def back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, -sin, pairs=pairs)

    yield Variant("keys", {"positions": turning(forth, back)})
    yield Variant("queries", {"positions": turning(back, forth)})


# ------------------------------------------------------------------ positions added to the input
def slots_of(inputs_len: int, batch: int) -> Tensor:
    """Positions counted from the first slot."""
    return torch.arange(inputs_len).expand(batch, -1)


def added(t: Trace, s: Setting, positions: Tensor, times: float) -> None:
    """Add the absolute encoding of given positions to the input."""
    assert s.inputs.x is not None
    if isinstance(s.spec.positions, Learned):
        assert s.parameters.positions is not None
        table = s.parameters.positions[positions]
    else:
        table = sinusoidal_table(positions, d_model=s.spec.d_model)
    own_keys, own_values = s.inputs.context is None, s.inputs.values is None
    t.x_q = s.inputs.x + times * table.to(s.inputs.x.dtype)
    t.x_kv = t.x_q if own_keys else s.inputs.context  # type: ignore[assignment]
    t.x_v = t.x_kv if own_values else s.inputs.values  # type: ignore[assignment]


def absolute(spec: AttentionSpec) -> bool:
    return isinstance(spec.positions, Learned | Sinusoidal)


def left_padding_ignored(spec: AttentionSpec) -> Iterable[Variant]:
    if absolute(spec):

        def stage(t: Trace, s: Setting) -> None:
            if s.inputs.x is not None:
                added(t, s, slots_of(s.inputs.q_len, s.inputs.batch), 1.0)

        yield Variant("", {"input": stage})


def missing_or_doubled(spec: AttentionSpec) -> Iterable[Variant]:
    if not absolute(spec):
        return
    yield Variant("missing", {"input": under(read_input, positions=None)})

    def stage(t: Trace, s: Setting) -> None:
        if s.inputs.x is not None:
            added(t, s, s.q_positions, 2.0)

    yield Variant("doubled", {"input": stage})


# ------------------------------------------------------------------ ALiBi
def slopes_of(spec: AttentionSpec) -> tuple[float, ...] | None:
    if not isinstance(spec.positions, Alibi):
        return None
    return spec.positions.slopes or tuple(alibi_slopes(spec.num_heads))


def with_slopes(spec: AttentionSpec, slopes: Iterable[float]) -> StageFunction:
    assert isinstance(spec.positions, Alibi)
    return under(score, positions=dataclasses.replace(spec.positions, slopes=tuple(slopes)))


def sign_flipped(spec: AttentionSpec) -> Iterable[Variant]:
    slopes = slopes_of(spec)
    if slopes is not None:
        yield Variant("", {"scores": with_slopes(spec, (-slope for slope in slopes))})


def wrong_slopes(spec: AttentionSpec) -> Iterable[Variant]:
    slopes = slopes_of(spec)
    if slopes is None:
        return
    h = spec.num_heads
    nearest = 2 ** math.floor(math.log2(h))
    series = {
        "power-of-two formula": [2.0 ** (-8.0 * (i + 1) / h) for i in range(h)],
        "formula of the lower power of two": [2.0 ** (-8.0 * (i + 1) / nearest) for i in range(h)],
        "series starts at 1": [2.0 ** (-8.0 * i / h) for i in range(h)],
        "heads in reverse order": list(slopes)[::-1],
        "one slope for all heads": [slopes[0]] * h,
        "1/h": [1.0 / (i + 1) for i in range(h)],
        "2^-h": [2.0 ** -(i + 1) for i in range(h)],
    }
    for label, values in series.items():
        if tuple(values) != slopes:
            yield Variant(label, {"scores": with_slopes(spec, values)})


def bias_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if slopes_of(spec) is not None:
        yield Variant("", {"scores": under(score, positions=None)})


# ------------------------------------------------------------------ in steps, with a cache
def later(function: Places) -> Places:
    """Positions that are right in the first step and given by a function in later ones."""
    return lambda step: function(step) if step.later else step.right


def offset_lost(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None and not absolute(spec):
        return
    zero = later(lambda step: step.counted(0))
    yield Variant(N_("queries and keys"), decoding=Decoding(queries=zero, keys=zero))
    if spec.rope is not None:
        yield Variant(N_("queries only"), decoding=Decoding(queries=zero))
        yield Variant(N_("keys only"), decoding=Decoding(keys=zero))
    prompt = later(lambda step: step.counted(step.sizes[0]))
    stopped = Decoding(queries=prompt, keys=prompt)
    yield Variant(N_("the offset stays at the length of the prompt"), decoding=stopped)
    if spec.window is not None and spec.window[0] is not None:
        for kept in (spec.window[0], spec.window[0] + 1):
            label = N_("the offset is the length of a cache that was cut")
            yield Variant(label, decoding=rolled(kept))


def rolled(kept: int) -> Decoding:
    """A rolling cache of a number of keys, whose length is taken for the number of tokens."""

    def store(step: Step, new: Slots) -> tuple[Slots, Slots]:
        both = step.held + new
        return both, both.cut(max(both.length - kept, 0), None)

    by_length = later(lambda step: step.counted(step.held.length))
    return Decoding(queries=by_length, keys=by_length, store=store)


def turned_again(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None:
        return

    def own(step: Step) -> Tensor:
        return step.places.gather(1, step.held.tokens)

    def newest(step: Step) -> Tensor:
        if step.rows > 1:
            raise ValueError("the angles of the new tokens do not fit the cache")
        return step.right.expand(-1, step.held.length)

    for label, more in (
        (N_("by their own positions"), own),
        (N_("by the newest position"), newest),
    ):

        def again(
            step: Step, new: Slots, more: Places = more, keep: bool = True
        ) -> tuple[Slots, Slots]:
            held = step.held
            if step.later:
                held = dataclasses.replace(held, places=held.places + more(step))
            return held + new, (held if keep else step.held) + new

        yield Variant(labelled(label, N_("at every step")), decoding=Decoding(store=again))
        once = functools.partial(again, keep=False)
        yield Variant(labelled(label, N_("when they are read")), decoding=Decoding(store=once))


def jumping(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.rope is None and not absolute(spec):
        return

    def slots(step: Step) -> Tensor:
        return step.counted(step.start)

    def prompt_slots(step: Step) -> Tensor:
        return step.right if step.later else slots(step)

    ways: dict[str, Places] = {
        N_("steps count slots, the prompt real tokens"): later(slots),
        N_("the prompt counts slots, steps real tokens"): prompt_slots,
        N_("one too far after the prompt"): later(lambda step: step.right + 1),
        N_("one too near after the prompt"): later(lambda step: step.right - 1),
        N_("one step behind"): later(lambda step: step.right - step.sizes[step.number - 1]),
    }
    for label, way in ways.items():
        yield Variant(label, decoding=Decoding(queries=way, keys=way))
    if spec.rope is not None:
        for label, way in ways.items():
            yield Variant(labelled(label, N_("queries only")), decoding=Decoding(queries=way))


def bias_lost(spec: AttentionSpec) -> Iterable[Variant]:
    if not isinstance(spec.positions, Alibi | RelativeBias):
        return

    def level(step: Step, length: int) -> tuple[Tensor, Tensor]:
        batch = step.inputs.batch
        return step.counted(0)[:, :1].expand(-1, step.rows), torch.zeros(
            batch, length, dtype=torch.long
        )

    def of_new_tokens(step: Step, length: int) -> tuple[Tensor, Tensor]:
        if step.rows == length:
            return step.counted(0), step.counted(0)
        if step.rows > 1:
            raise ValueError("the bias of the new tokens does not fit the cache")
        return level(step, length)

    def without(step: Step, length: int) -> tuple[Tensor, Tensor]:
        return level(step, length) if step.later else (step.counted(0), step.counted(0))

    def from_zero(step: Step, length: int) -> tuple[Tensor, Tensor]:
        return step.counted(0), torch.arange(length).expand(step.inputs.batch, -1)

    yield Variant(N_("made of the new tokens alone"), decoding=Decoding(bias=of_new_tokens))
    yield Variant(N_("left out with a cache"), decoding=Decoding(bias=without))
    yield Variant(N_("queries counted from 0"), decoding=Decoding(bias=from_zero))


register(
    Fault(
        code="R01",
        name="rotary-pairs-swapped",
        undeclared="convention",
        point="rope",
        shown_by=("two",),
        what=N_("the rotation pairs other channels than the specification says"),
        why=N_(
            "a channel is turned with another partner than in training. Either layout is right "
            "with weights made for it; with the other, the scores between different positions are "
            "wrong and a converted checkpoint writes gibberish"
        ),
        fix=N_(
            "use the checkpoint's layout and declare it with Rope(pairs=...), or permute the rows "
            "of W_Q and W_K within each head when loading"
        ),
        bad=(
            "a, b = q[..., 0::2], q[..., 1::2]  # the weights expect halves\n"
            "q = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)"
        ),
        good="a, b = q.chunk(2, dim=-1)\nq = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)",
        variants=pairs_swapped,
    ),
    Fault(
        code="R02",
        name="rotary-offset-lost",
        rank=42,
        shown_by=("cache",),
        what=N_("decoding with a cache counts the positions of new tokens from 0 again"),
        why=N_(
            "a new token is placed at the start of the text instead of after it, so its distance "
            "to every cached key is wrong, and more so with every token. The prompt is right, "
            "and so is any run without a cache"
        ),
        fix=N_("count new tokens from the number of tokens that the cache has seen"),
        bad="positions = torch.arange(k_new.shape[2])",
        good="positions = torch.arange(length, length + k_new.shape[2])",
        in_steps=offset_lost,
    ),
    Fault(
        code="R03",
        name="rotary-wrong-base",
        point="rope_base",
        rank=60,
        shown_by=("plain",),
        what=N_("the frequency base differs from the specification"),
        why=N_(
            "each pair turns at another speed than in training. Close tokens look almost right and "
            "distant ones do not, so the damage grows with the length of the text"
        ),
        fix=N_("take the base from the model's configuration (rope_theta)"),
        bad="inv_freq = 10000.0 ** (-torch.arange(0, D, 2) / D)  # configured: 500000",
        good="inv_freq = config.rope_theta ** (-torch.arange(0, D, 2) / D)",
        variants=wrong_base,
    ),
    Fault(
        code="R04",
        name="rotary-applied-to-values",
        shown_by=("plain",),
        what=N_("the values are rotated too"),
        why=N_(
            "what a token hands over is turned by its absolute position, so the output no longer "
            "depends on distances alone. A token at position 0 shows nothing"
        ),
        fix=N_("rotate queries and keys only"),
        bad="q, k, v = (rotate(a, cos, sin) for a in (q, k, v))",
        good="q, k = (rotate(a, cos, sin) for a in (q, k))",
        variants=values_rotated,
    ),
    Fault(
        code="R05",
        name="rotary-query-only",
        shown_by=("two",),
        what=N_("only one of queries and keys is rotated"),
        why=N_(
            "the rotations of both sides should cancel up to the distance. With one side alone the "
            "scores depend on absolute positions, and shifting a whole text changes its result"
        ),
        fix=N_("rotate both, each by its own positions"),
        bad="scores = rotate(q, cos, sin) @ k.mT * scale",
        good="scores = rotate(q, cos, sin) @ rotate(k, cos, sin).mT * scale",
        variants=one_side,
    ),
    Fault(
        code="R06",
        name="rotary-angles-and-pairs-disagree",
        shown_by=("two",),
        what=N_("the angle table is laid out for one pairing and the rotation done with the other"),
        why=N_(
            "channels meet angles that are meant for others: the table repeats each angle for "
            "neighbours while the rotation exchanges halves, or the reverse. This is no rotation "
            "any more; lengths change, and scores depend on absolute positions"
        ),
        fix=N_(
            "lay the table out for the same pairs: two copies one after the other for halves, each "
            "angle twice for neighbours"
        ),
        bad=(
            "angles = angles.repeat_interleave(2, dim=-1)  # for neighbours\n"
            "q = q * angles.cos() + rotate_half(q) * angles.sin()"
        ),
        good=(
            "angles = torch.cat([angles, angles], dim=-1)  # for halves\n"
            "q = q * angles.cos() + rotate_half(q) * angles.sin()"
        ),
        variants=tables_disagree,
    ),
    Fault(
        code="R07",
        name="rotary-frequencies-wrong-dim",
        shown_by=("two",),
        what=N_("the exponent of the frequencies uses another size than the rotated one"),
        why=N_(
            "the exponent runs over another range than from 0 to 1, so the frequencies lie too "
            "close together or too far apart, as with another base"
        ),
        fix=N_(
            "divide by the number of channels that are rotated: rotary_dim, or head_dim where all "
            "are"
        ),
        bad="inv_freq = base ** (-torch.arange(0, D, 2) / d_model)",
        good="inv_freq = base ** (-torch.arange(0, D, 2) / D)",
        variants=wrong_dim,
    ),
    Fault(
        code="R08",
        name="rotary-applied-twice",
        rank=44,
        shown_by=("cache",),
        what=N_("cached keys are rotated again"),
        why=N_(
            "a key that was stored rotated is turned further each time the cache is read, so that "
            "it stands for a later and later position. The prompt is right, and the error grows "
            "with each token"
        ),
        fix=N_(
            "rotate new keys once, before they are stored; or store keys unrotated and rotate all "
            "of them when they are read"
        ),
        bad=(
            "k_all = torch.cat([past_k, k_new], dim=2)  # past_k is rotated already\n"
            "k_all = rotate(k_all, cos, sin)"
        ),
        good=(
            "k_new = rotate(k_new, cos[length:], sin[length:])\n"
            "k_all = torch.cat([past_k, k_new], dim=2)"
        ),
        in_steps=turned_again,
    ),
    Fault(
        code="R09",
        name="rotary-sign-flipped-on-one-side",
        shown_by=("two",),
        what=N_("queries and keys are turned in opposite directions"),
        why=N_(
            "the scores depend on the sum of two positions instead of their difference, so the "
            "same distance means something else at every place"
        ),
        fix=N_(
            "turn queries and keys with the same sign; the product takes care of the difference"
        ),
        bad="scores = rotate(q, cos, sin) @ rotate(k, cos, -sin).mT * scale",
        good="scores = rotate(q, cos, sin) @ rotate(k, cos, sin).mT * scale",
        variants=opposite,
    ),
    Fault(
        code="R10",
        name="rotary-stale-table",
        shown_by=("twice",),
        what=N_(
            "the rotary table is kept with too small a key, so results depend on earlier calls"
        ),
        why=N_(
            "a table made for one call is used again for another length, base, dtype or device. "
            "Results then depend on what was called before, and a test in a fresh process passes"
        ),
        fix=N_("let the key of the stored table hold everything that the table depends on"),
        bad="if self.table is None:\n    self.table = make_table(T, base)",
        good=(
            "if self.key != (T, base, x.dtype, x.device):\n"
            "    self.key = (T, base, x.dtype, x.device)\n"
            "    self.table = make_table(T, base).to(x)"
        ),
    ),
    Fault(
        code="R11",
        name="positions-ignore-left-padding",
        shown_by=("left",),
        what=N_("positions are counted from the first slot instead of the first real token"),
        why=N_(
            "padding on the left moves a text to other positions, so its result depends on the "
            "longest text of the batch. A text alone and padding on the right are right; "
            "generation in batches is not"
        ),
        fix=N_("count real tokens: the running sum of the padding mask, minus one"),
        bad="positions = torch.arange(T).expand(B, T)",
        good="positions = (keep.long().cumsum(-1) - 1).clamp(min=0)",
        variants=left_padding_ignored,
    ),
    Fault(
        code="R12",
        name="positions-jump-after-prefill",
        rank=43,
        shown_by=("left", "cache"),
        what=N_("decoding counts positions otherwise than the prompt did"),
        why=N_(
            "between the prompt and the first new token the positions jump: by the padding on the "
            "left that one of them counts and the other does not, or by one. All distances across "
            "that place are wrong; a text without padding may be right"
        ),
        fix=N_(
            "count the same way in both: real tokens, by the running sum of the whole padding "
            "mask, cached tokens included"
        ),
        bad="positions = torch.arange(length, length + 1)  # the prompt counted real tokens",
        good="positions = keep.long().sum(-1, keepdim=True) - 1",
        in_steps=jumping,
    ),
    Fault(
        code="R13",
        name="alibi-sign-flipped",
        shown_by=("plain",),
        what=N_("the ALiBi bias has the wrong sign, so far keys are favoured"),
        why=N_(
            "the penalty has become a reward that grows with distance, so attention prefers what "
            "is long past. The layer trains and is only worse"
        ),
        fix=N_(
            "add slope · (key position − query position), which is never positive for earlier keys"
        ),
        bad="bias = slopes[:, None, None] * (positions[:, None] - positions[None, :])",
        good="bias = slopes[:, None, None] * (positions[None, :] - positions[:, None])",
        variants=sign_flipped,
    ),
    Fault(
        code="R14",
        name="alibi-wrong-slopes",
        shown_by=("plain",),
        what=N_("the ALiBi slopes follow another series than the one for this number of heads"),
        why=N_(
            "the heads forget at other rates than in training. The short formula 2^(−8h/H) is "
            "meant for powers of two; other numbers of heads take the slopes of the power below "
            "and fill up from the power above"
        ),
        fix=N_(
            "use the rule for this number of heads, or the slopes that the checkpoint was trained "
            "with"
        ),
        bad="slopes = [2 ** (-8 * (h + 1) / H) for h in range(H)]  # H = 6",
        good=(
            "p = 2 ** int(math.log2(H))\n"
            "slopes = [2 ** (-8 * (h + 1) / p) for h in range(p)]\n"
            "slopes += [2 ** (-4 * (2 * h + 1) / p) for h in range(H - p)]"
        ),
        variants=wrong_slopes,
    ),
    Fault(
        code="R15",
        name="alibi-lost-in-decoding",
        rank=41,
        shown_by=("cache",),
        what=N_("the bias by distance is made of the new tokens alone, so decoding has none"),
        why=N_(
            "with a cache there is one query and many keys; a bias for one token is a single zero "
            "that is added to all scores. Near and far keys are treated alike as soon as the "
            "prompt is over"
        ),
        fix=N_("make the bias from the positions of all keys, cached ones included"),
        bad="bias = slopes[:, None, None] * torch.arange(k_new.shape[2])",
        good="bias = slopes[:, None, None] * torch.arange(length + k_new.shape[2])",
        in_steps=bias_lost,
    ),
    Fault(
        code="R16",
        name="absolute-positions-missing-or-doubled",
        shown_by=("plain",),
        what=N_("absolute positions are not added to the input, or added twice"),
        why=N_(
            "without them the layer can't tell one order of the tokens from another; added twice "
            "they are stronger against the embeddings than in training"
        ),
        fix=N_("add them exactly once, in the embedding or in the layer"),
        bad=(
            "x = embedded + self.positions(positions)\n"
            "q = self.q_proj(x + self.positions(positions))"
        ),
        good="x = embedded + self.positions(positions)\nq = self.q_proj(x)",
        variants=missing_or_doubled,
    ),
    Fault(
        code="R17",
        name="rotary-missing",
        point="rope",
        shown_by=("two",),
        what=N_("rotation is specified and neither queries nor keys are turned"),
        why=N_(
            "the scores know nothing of the order of the tokens. Weights trained with rotation "
            "give wrong scores between any two different positions"
        ),
        fix=N_("rotate queries and keys before they are multiplied"),
        bad="scores = q @ k.mT * scale",
        good="scores = rotate(q, cos, sin) @ rotate(k, cos, sin).mT * scale",
        variants=not_rotated,
    ),
    Fault(
        code="R18",
        name="alibi-missing",
        shown_by=("plain",),
        what=N_("ALiBi is specified and nothing is added to the scores"),
        why=N_(
            "near and far keys are treated alike, while the weights were trained with a penalty "
            "that grows with distance: attention spreads too far back"
        ),
        fix=N_(
            "add the bias to the scaled scores; to a fused kernel, pass it as the additive mask"
        ),
        bad="weights = (q @ k.mT * scale).softmax(dim=-1)",
        good="weights = (q @ k.mT * scale + bias).softmax(dim=-1)",
        variants=bias_missing,
    ),
)
