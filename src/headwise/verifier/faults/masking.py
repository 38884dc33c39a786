"""Faults of the mask: M."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from headwise.reference import StageFunction, Trace
from headwise.reference.definition import aggregate, normalise, project_output
from headwise.reference.setting import Setting
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.verifier.faults.catalogue import Fault, Variant, register
from headwise.verifier.faults.decoding import Decoding, Step, labelled, table

Rule = Callable[[Setting], Tensor]
NEAR_ZERO = (1e-9, -1e-9, 1e-6, -1e-6, -1.0, -10.0)
"""Numbers seen where a very large negative one was meant, tried for M14."""


class NothingToDoError(Exception):
    """A variant does not apply to this run: it would not change anything."""


# ------------------------------------------------------------------ how cells are hidden
def plain_softmax(t: Trace, s: Setting) -> None:
    """Softmax as most code has it: a row of −∞ gives NaN."""
    if s.spec.sinks:
        normalise(t, s)
    else:
        t.weights = t.masked_scores.softmax(-1)


FILLS: dict[str, tuple[str, float]] = {
    "empty rows zero": ("zero", -math.inf),
    "fill -inf": ("fill", -math.inf),
    "fill lowest": ("fill", torch.finfo(torch.float64).min),
    "fill -1e9": ("fill", -1e9),
    "add lowest": ("add", torch.finfo(torch.float64).min),
    "add -1e9": ("add", -1e9),
    "add -1e4": ("add", -1e4),
}
"""How a hidden cell is written, by label: replaced or added, and with which number."""

FILL_TEXTS: dict[str, str] = {
    "empty rows zero": N_("rows without a visible key are zero"),
    "fill -inf": N_("rows without a visible key are NaN: hidden scores are −∞"),
    "fill lowest": N_("rows without a visible key average all values: hidden scores are equal"),
    "fill -1e9": N_("rows without a visible key average all values: hidden scores are equal"),
    "add lowest": N_("rows without a visible key average all values: hidden scores are equal"),
    "add -1e9": N_("rows without a visible key attend to hidden keys by their scores"),
    "add -1e4": N_("rows without a visible key attend to hidden keys by their scores"),
}
"""What each way of hiding does to a row without a visible key."""


def hiding(rule: Rule, how: str) -> dict[str, StageFunction]:
    """Stages that hide what ``rule`` does not allow, in one of the ways of ``FILLS``."""
    kind, value = FILLS[how]

    def mask(t: Trace, s: Setting) -> None:
        t.visible = rule(s)
        if kind == "add":
            t.masked_scores = t.scores + torch.zeros_like(t.scores).masked_fill(~t.visible, value)
        else:
            t.masked_scores = t.scores.masked_fill(~t.visible, value)

    return {"mask": mask, "softmax": normalise if kind == "zero" else plain_softmax}


def variants(rule: Rule, label: str = "", hows: Iterable[str] = FILLS) -> Iterable[Variant]:
    """One variant per way of hiding."""
    for how in hows:
        yield Variant(f"{label}, {how}" if label else how, hiding(rule, how))


def swap_rule(name: str, new: Callable[[Setting], Tensor]) -> Rule:
    """All rules of the definition, with one replaced."""

    def rule(s: Setting) -> Tensor:
        if name not in s.rules:
            raise NothingToDoError(name)
        return s.visible((), **{name: new(s)})

    return rule


def drop_rule(*names: str) -> Rule:
    """All rules of the definition, without some."""

    def rule(s: Setting) -> Tensor:
        if not set(names) & set(s.rules):
            raise NothingToDoError(str(names))
        return s.visible(without=names)

    return rule


FEW = ("empty rows zero", "fill -inf", "fill lowest", "add -1e9", "add lowest")


# ------------------------------------------------------------------ padding masks
def keep_of(s: Setting) -> Tensor:
    if s.inputs.keep is None:
        raise NothingToDoError("padding")
    return s.inputs.keep


def graded(rule: Rule, spec: AttentionSpec, label: str = "") -> Iterable[Variant]:
    """A faulty padding rule beside a causal one that is written with another number.

    A row whose keys are all hidden then falls back on those that the stronger rule leaves.
    """
    if not (spec.is_causal or spec.window is not None):
        return
    lowest = torch.finfo(torch.float64).min

    def mask(t: Trace, s: Setting, padding_wins: bool = False) -> None:
        t.visible = rule(s)
        strong = s.visible(without=("padding",))
        if padding_wins:
            strong = rule(s.with_spec(is_causal=False, window=None))
        hidden = t.scores.masked_fill(~t.visible, lowest)
        t.masked_scores = hidden.masked_fill(~strong, -math.inf)

    def mask_padding(t: Trace, s: Setting) -> None:
        mask(t, s, padding_wins=True)

    def padding_last(t: Trace, s: Setting) -> None:
        t.visible = rule(s)
        keys = rule(s.with_spec(is_causal=False, window=None))
        first = t.scores.masked_fill(~s.visible(without=("padding",)), -math.inf)
        t.masked_scores = first.masked_fill(~keys, lowest)

    def causal_last(t: Trace, s: Setting) -> None:
        t.visible = rule(s)
        keys = rule(s.with_spec(is_causal=False, window=None))
        first = t.scores.masked_fill(~keys, -math.inf)
        t.masked_scores = first.masked_fill(~s.visible(without=("padding",)), lowest)

    for which, stage in (
        ("padding finite", mask),
        ("causal finite", mask_padding),
        ("padding finite and last", padding_last),
        ("causal finite and last", causal_last),
    ):
        name = f"{label}, {which}" if label else which
        yield Variant(name, {"mask": stage, "softmax": plain_softmax})


def polarity(spec: AttentionSpec) -> Iterable[Variant]:
    for name in ("padding", "custom"):
        rule = swap_rule(name, lambda s, name=name: ~s.rules[name])  # type: ignore[misc]
        yield from variants(rule, "" if name == "padding" else "mask argument", FEW)
        if name == "padding":
            yield from graded(rule, spec)

    def hidden_wins(s: Setting) -> Tensor:
        # a large number with the wrong sign: where it is added, nothing else counts
        keep = keep_of(s)
        return torch.where(keep.all(-1, keepdim=True), keep, ~keep)[:, None, None, :]

    yield from variants(swap_rule("padding", hidden_wins), "sign of the fill", FEW[:2])


def on_query_axis(spec: AttentionSpec) -> Iterable[Variant]:
    rule = swap_rule("padding", lambda s: keep_of(s)[:, None, :, None])
    yield from variants(rule, hows=FEW)
    yield from graded(rule, spec)


def on_head_axis(spec: AttentionSpec) -> Iterable[Variant]:
    rule = swap_rule("padding", lambda s: keep_of(s)[:, :, None, None])
    yield from variants(rule, hows=FEW)
    yield from graded(rule, spec)


def ignored(spec: AttentionSpec) -> Iterable[Variant]:
    yield from variants(drop_rule("padding"), hows=("empty rows zero", "fill lowest"))


def dropped_by_causal(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.is_causal:
        yield from variants(drop_rule("padding"), "causal wins", ("empty rows zero", "fill lowest"))

        def causal_gone(s: Setting) -> Tensor:
            keep_of(s)
            return s.visible(without=("causal",))

        yield from variants(causal_gone, "padding wins", FEW)


def other_samples(spec: AttentionSpec) -> Iterable[Variant]:
    def per_head(s: Setting) -> Tensor:
        keep, heads = keep_of(s), s.spec.num_heads
        index = torch.arange(keep.shape[0] * heads) % keep.shape[0]
        return keep[index].view(keep.shape[0], heads, 1, -1)

    yield from variants(swap_rule("padding", per_head), hows=FEW)
    yield from graded(swap_rule("padding", per_head), spec)


def query_mask(spec: AttentionSpec) -> Iterable[Variant]:
    def rule(s: Setting) -> Tensor:
        if s.inputs.query_keep is None or s.inputs.context is None:
            raise NothingToDoError("cross")
        return s.inputs.query_keep[:, None, None, :]

    yield from variants(swap_rule("padding", rule), hows=FEW)


def rows_blanked(spec: AttentionSpec) -> Iterable[Variant]:
    def rows_of(s: Setting) -> Tensor:
        keep, q_len = keep_of(s), s.inputs.q_len
        rows = torch.zeros(keep.shape[0], q_len, dtype=torch.bool)
        shared = min(q_len, keep.shape[1])
        rows[:, :shared] = keep[:, :shared]
        return rows

    def blanked_context(t: Trace, s: Setting) -> None:
        aggregate(t, s)
        t.context = t.context * rows_of(s)[:, None, :, None]

    def blanked_output(t: Trace, s: Setting) -> None:
        project_output(t, s)
        rows = rows_of(s)
        t.output = t.output * (
            rows[..., None] if s.inputs.x is not None else rows[:, None, :, None]
        )

    def one_index_set(t: Trace, s: Setting) -> None:
        # the last Tq entries of the key mask choose rows of queries, keys and values alike
        keep, q_len, kv_len = keep_of(s), s.inputs.q_len, s.inputs.kv_len
        chosen = keep[:, -q_len:]
        keys = torch.zeros(keep.shape[0], kv_len, dtype=torch.bool)
        rows = torch.zeros(keep.shape[0], q_len, dtype=torch.bool)
        keys[:, : chosen.shape[1]], rows[:, : chosen.shape[1]] = chosen, chosen
        t.visible = s.visible(padding=keys[:, None, None, :]) & rows[:, None, :, None]
        t.masked_scores = t.scores.masked_fill(~t.visible, -math.inf)

    def square(s: Setting) -> Tensor:
        if s.inputs.x is not None and s.inputs.context is None:
            raise NothingToDoError("cross")  # in self attention the rows it blanks are never read
        keep = keep_of(s)
        return s.visible(padding=keep[:, None, :, None] & keep[:, None, None, :])

    yield from variants(square, "mask × mask", FEW)
    yield Variant("rows of the context are zero", {"aggregate": blanked_context})
    yield Variant("rows of the output are zero", {"output": blanked_output})
    yield Variant("one index set for queries and keys", {"mask": one_index_set})


# ------------------------------------------------------------------ causal masks
def distance(s: Setting) -> Tensor:
    """Key slot minus query slot, (Tq, Tk), the last query at the last key."""
    q_len, kv_len = s.inputs.q_len, s.inputs.kv_len
    return torch.arange(kv_len)[None] - (torch.arange(q_len)[:, None] + kv_len - q_len)


def causal_missing(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.is_causal:
        yield from variants(drop_rule("causal"), hows=FEW)


def causal_only_beside_others(spec: AttentionSpec) -> Iterable[Variant]:
    """The causal rule acts only where another one hides something; else no mask is made."""
    if not spec.is_causal:
        return

    def others_idle(s: Setting) -> Tensor:
        if not torch.equal(s.visible(), s.rules["causal"].expand_as(s.visible())):
            raise NothingToDoError("others")
        return torch.ones_like(s.visible())

    def within_window(s: Setting) -> Tensor:
        left = None if s.spec.window is None else s.spec.window[0]
        if left is None or s.inputs.kv_len > left:
            raise NothingToDoError("window")
        return others_idle(s)

    yield from variants(others_idle, "without another rule", FEW[:1])
    yield from variants(within_window, "in texts shorter than the window", FEW[:1])


def causal_moved(offset: int) -> Callable[[AttentionSpec], Iterable[Variant]]:
    def moved(spec: AttentionSpec) -> Iterable[Variant]:
        if spec.is_causal:
            yield from variants(swap_rule("causal", lambda s: distance(s) <= offset))

    return moved


def from_start(s: Setting) -> Tensor:
    q_len, kv_len = s.inputs.q_len, s.inputs.kv_len
    return torch.arange(kv_len)[None] <= torch.arange(q_len)[:, None]


def causal_from_start(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.is_causal:
        yield from variants(swap_rule("causal", from_start), hows=FEW)


def causal_reversed(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.is_causal:
        yield from variants(swap_rule("causal", lambda s: distance(s) > 0), "strictly later")
        yield from variants(swap_rule("causal", lambda s: distance(s) >= 0), "itself and later")


def causal_not_wanted(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.is_causal:
        return

    def always(s: Setting) -> Tensor:
        return s.visible() & (distance(s) <= 0)

    def started(s: Setting) -> Tensor:
        return s.visible() & from_start(s)

    def without_mask(s: Setting) -> Tensor:
        return s.visible() & from_start(s) if not s.rules else s.visible()

    yield from variants(always, "", FEW)
    yield from variants(started, "from the start", FEW)
    yield from variants(without_mask, "only when no mask is given", FEW)


# ------------------------------------------------------------------ how a mask is applied
def rules_in_use(s: Setting, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """(what the named rules allow, what the other rules allow)."""
    chosen = [name for name in names if name in s.rules]
    if not chosen:
        raise NothingToDoError(str(names))
    others = s.visible(without=tuple(chosen))
    these = s.visible(without=tuple(name for name in s.rules if name not in chosen))
    return these, others


SCOPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all", ("causal", "window", "padding", "documents", "custom")),
    ("padding", ("padding",)),
    ("causal", ("causal",)),
)


def after_softmax(spec: AttentionSpec) -> Iterable[Variant]:
    for label, names in SCOPES:

        def mask(t: Trace, s: Setting, names: tuple[str, ...] = names) -> None:
            _these, others = rules_in_use(s, names)
            t.visible = others
            t.masked_scores = t.scores.masked_fill(~others, -math.inf)

        def softmax(t: Trace, s: Setting, names: tuple[str, ...] = names) -> None:
            normalise(t, s)
            t.weights = t.weights * rules_in_use(s, names)[0]

        yield Variant(label, {"mask": mask, "softmax": softmax})


def applied(change: Callable[[Tensor, Tensor], Tensor], label: str) -> Iterable[Variant]:
    """Variants that change the scores by a rule in another way than hiding: change(x, allowed)."""
    for scope, names in SCOPES:

        def mask(t: Trace, s: Setting, names: tuple[str, ...] = names) -> None:
            these, others = rules_in_use(s, names)
            t.visible = others
            t.masked_scores = change(t.scores, these).masked_fill(~others, -math.inf)

        yield Variant(f"{scope}, {label}" if label else scope, {"mask": mask})


def multiplied(spec: AttentionSpec) -> Iterable[Variant]:
    yield from applied(lambda x, allowed: x * allowed, "")


def near_zero(spec: AttentionSpec) -> Iterable[Variant]:
    for value in NEAR_ZERO:
        yield from applied(
            lambda x, allowed, value=value: x.masked_fill(~allowed, value),  # type: ignore[misc]
            f"filled with {value:g}",
        )
        if abs(value) < 1:
            yield from applied(
                lambda x, allowed, value=value: x + value * ~allowed,  # type: ignore[misc]
                f"{value:g} added",
            )


def filled(value: float, scope: str, *, added: bool) -> Variant:
    """A finite number that hides nothing, filled in or added, for the rules of one scope."""
    if added:
        made = applied(lambda x, allowed: x + value * ~allowed, f"{value:.6g} added")
    else:
        label = f"filled with {value:.6g}"
        made = applied(lambda x, allowed: x.masked_fill(~allowed, value), label)
    return next(v for v in made if v.label.startswith(f"{scope}, "))


def as_numbers(spec: AttentionSpec) -> Iterable[Variant]:
    yield from applied(lambda x, allowed: x + allowed.to(x.dtype), "1 added where visible")
    yield from applied(lambda x, allowed: x + (~allowed).to(x.dtype), "1 added where hidden")


# ------------------------------------------------------------------ windows, documents
def window_off(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.window is None:
        return
    left, right = spec.window
    for label, a, b in (("left", 1, 0), ("left", -1, 0), ("right", 0, 1), ("right", 0, -1)):

        def moved(s: Setting, a: int = a, b: int = b) -> Tensor:
            gap = distance(s)
            seen = torch.ones_like(gap, dtype=torch.bool)
            if left is not None:
                seen = seen & (-gap <= left + a)
            if right is not None:
                seen = seen & (gap <= right + b)
            return seen

        yield from variants(swap_rule("window", moved), f"{label} {a + b:+d}", FEW)


def window_ignored(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.window is not None:
        yield from variants(drop_rule("window"), hows=FEW)


def documents_leak(spec: AttentionSpec) -> Iterable[Variant]:
    yield from variants(drop_rule("documents"), hows=FEW)

    def slots(function: StageFunction) -> StageFunction:
        def stage(t: Trace, s: Setting) -> None:
            function(t, s.with_inputs(documents=None))

        return stage

    from headwise.reference.definition import apply_positions, read_input, score

    rule = hiding(drop_rule("documents"), "fill -inf")
    yield Variant(
        "positions not restarted",
        {
            "input": slots(read_input),
            "positions": slots(apply_positions),
            "scores": slots(score),
            **rule,
        },
    )


# ------------------------------------------------------------------ rows without a visible key
def doubled_planes(t: Trace, s: Setting) -> None:
    """One plane of the lowest number per rule, all added: two make −∞."""
    t.visible = s.visible()
    lowest = torch.finfo(t.scores.dtype).min
    plane = torch.zeros_like(t.scores)
    for rule in s.rules.values():
        plane = plane + torch.zeros_like(t.scores).masked_fill(~rule, lowest)
    t.masked_scores = t.scores + plane


# ------------------------------------------------------------------ in steps, with a cache
def later_table(
    label: str, *, always: bool = False, padded: bool = False, **changes: object
) -> Variant:
    """Other rules as soon as there is a cache, or in every step.

    Args:
        label: of the variant.
        always: in the first step as well.
        padded: only under a padding mask.
        changes: of ``table``.
    """

    def seen(step: Step, length: int) -> Tensor:
        there = not padded or step.inputs.keep is not None
        changed = changes if there and (step.later or always) else {}
        return table(step, length, **changed)  # type: ignore[arg-type]

    return Variant(label, decoding=Decoding(seen=seen))


WITH_CACHED = N_("as soon as there are cached keys")
WITH_CACHE = N_("whenever there is a cache")


def causal_dropped(spec: AttentionSpec) -> Iterable[Variant]:
    if not spec.is_causal:
        return
    for label, always in ((WITH_CACHED, False), (WITH_CACHE, True)):
        yield later_table(label, always=always, causal=None)
        if spec.window is not None:
            name = labelled(label, N_("the window too"))
            yield later_table(name, always=always, causal=None, window=False)
        name = labelled(label, N_("every mask"))
        yield later_table(name, always=always, causal=None, window=False, padding=False)
    yield later_table(labelled(WITH_CACHED, N_("one token too far")), causal=1)


def causal_from_start_in_steps(spec: AttentionSpec) -> Iterable[Variant]:
    if not spec.is_causal:
        return

    def seen(step: Step, length: int) -> Tensor:
        return table(step, length, causal=-(length - step.rows))

    yield Variant(WITH_CACHED, decoding=Decoding(seen=seen))


def window_dropped_in_steps(spec: AttentionSpec) -> Iterable[Variant]:
    if spec.window is not None:
        yield later_table(WITH_CACHED, window=False)
        yield later_table(WITH_CACHE, always=True, window=False)


def padding_dropped_in_steps(spec: AttentionSpec) -> Iterable[Variant]:
    yield later_table(WITH_CACHED, padded=True, padding=False)
    yield later_table(WITH_CACHE, always=True, padded=True, padding=False)
    if spec.window is not None:
        name = labelled(WITH_CACHED, N_("the window too"))
        yield later_table(name, padded=True, window=False, padding=False)

    def of_new_tokens(step: Step, length: int) -> Tensor:
        if step.later and step.rows > 1 and step.inputs.keep is not None:
            raise ValueError("the mask of the new tokens does not fit the cache")
        return table(step, length, padding=not step.later)

    yield Variant(N_("the mask of the new tokens alone"), decoding=Decoding(seen=of_new_tokens))


register(
    Fault(
        code="M01",
        name="mask-polarity-inverted",
        undeclared="convention",
        point="padding_mask",
        shown_by=("pad", "plain"),
        what=N_("visible and hidden are exchanged in a mask argument"),
        why=N_(
            "what should be read is hidden and what should be hidden is read: padded batches give "
            "outputs that hardly vary, and batches without padding have nothing visible. Libraries "
            "disagree: True means may look in F.scaled_dot_product_attention, ignore in "
            "nn.MultiheadAttention"
        ),
        fix=N_(
            "hide where the token is padding, and invert the mask on its way to a function of the "
            "other convention"
        ),
        bad='scores = scores.masked_fill(keep[:, None, None, :], float("-inf"))',
        good='scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))',
        variants=polarity,
    ),
    Fault(
        code="M02",
        name="padding-mask-on-query-axis",
        shown_by=("pad",),
        what=N_("the padding mask lies on the query axis, [B,1,T,1]: it hides no key"),
        why=N_(
            "it blanks the rows of padded queries, which nobody uses, and real queries still read "
            "the padding: results change with the amount of padding. A finite fill keeps it quiet, "
            "−∞ turns those rows into NaN"
        ),
        fix=N_("give the mask the shape [B,1,1,T], so that it lies along the keys"),
        bad='scores = scores.masked_fill(~keep[:, None, :, None], float("-inf"))',
        good='scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))',
        variants=on_query_axis,
    ),
    Fault(
        code="M03",
        name="padding-mask-on-head-axis",
        shown_by=("collide", "pad"),
        what=N_("the padding mask lies on the head axis, [B,T,1,1]: it hides whole heads"),
        why=N_(
            "an entry of the mask switches a whole head on or off. This broadcasts only if there "
            "are as many heads as tokens, or one of either: other sizes raise, these are silently "
            "wrong"
        ),
        fix=N_("give the mask the shape [B,1,1,T], so that it lies along the keys"),
        bad="mask = keep[:, :, None, None]",
        good="mask = keep[:, None, None, :]",
        variants=on_head_axis,
    ),
    Fault(
        code="M04",
        name="padding-mask-ignored",
        rank=60,
        shown_by=("pad",),
        what=N_("the padding mask is accepted and has no effect"),
        why=N_(
            "padding counts like real tokens, so a text's result depends on the longest text of "
            "its batch. Nothing fails; a typical cause is masked_fill without its underscore, "
            "whose result is thrown away"
        ),
        fix=N_("use what masked_fill returns, and pass the mask on to where the scores are"),
        bad='scores.masked_fill(~keep[:, None, None, :], float("-inf"))',
        good='scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))',
        variants=ignored,
    ),
    Fault(
        code="M05",
        name="causal-mask-missing",
        point="causal",
        shown_by=("plain",),
        what=N_("the layer sees the future"),
        why=N_(
            "training shows each token what it is to predict, so the loss falls far too low and "
            "generation is poor"
        ),
        fix=N_("hide later keys, and make sure that the flag reaches the kernel"),
        bad="out = F.scaled_dot_product_attention(q, k, v)",
        good="out = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        variants=causal_missing,
        with_evidence=causal_only_beside_others,
    ),
    Fault(
        code="M06",
        name="causal-sees-next-token",
        shown_by=("plain",),
        what=N_("the causal mask is off by one and shows the next token"),
        why=N_(
            "the one token too many is the one to be predicted: the loss collapses while training, "
            "and generation fails"
        ),
        fix=N_("keep the diagonal and what lies below it: tril(), without an offset"),
        bad="mask = torch.ones(T, T, dtype=torch.bool).tril(diagonal=1)",
        good="mask = torch.ones(T, T, dtype=torch.bool).tril()",
        variants=causal_moved(1),
    ),
    Fault(
        code="M07",
        name="causal-hides-self",
        shown_by=("plain",),
        what=N_("the causal mask is off by one and hides the token itself; row 0 is empty"),
        why=N_(
            "no token can read itself, and the first one has nothing to read: its row is NaN, or "
            "with a finite fill the mean over all tokens, the future included"
        ),
        fix=N_("the diagonal belongs to what is visible: hide triu(diagonal=1)"),
        bad="hidden = torch.ones(T, T, dtype=torch.bool).triu()",
        good="hidden = torch.ones(T, T, dtype=torch.bool).triu(diagonal=1)",
        variants=causal_moved(-1),
    ),
    Fault(
        code="M08",
        name="causal-aligned-to-start",
        undeclared="convention",
        point="alignment",
        shown_by=("Tq<Tk",),
        what=N_(
            "the causal mask starts at the first key although there are fewer queries than keys"
        ),
        why=N_(
            "a single new query after a cache sees the first key only, and generation is wrong "
            "from the first cached step. F.scaled_dot_product_attention(is_causal=True) aligns "
            "like this; equal lengths hide it"
        ),
        fix=N_(
            "show key j to query i if j <= i + Tk − Tq, so that the last query sees the last key"
        ),
        bad="out = F.scaled_dot_product_attention(q_new, k, v, is_causal=True)",
        good=(
            "mask = torch.ones(Tq, Tk, dtype=torch.bool).tril(diagonal=Tk - Tq)\n"
            "out = F.scaled_dot_product_attention(q_new, k, v, attn_mask=mask)"
        ),
        variants=causal_from_start,
        in_steps=causal_from_start_in_steps,
    ),
    Fault(
        code="M09",
        name="causal-reversed",
        shown_by=("plain",),
        what=N_("the causal mask is reversed: only the future is visible"),
        why=N_(
            "every token reads what comes after it and nothing that came before. Usually the "
            "triangle of hidden keys was taken for that of visible ones"
        ),
        fix=N_("show the lower triangle and hide the upper one"),
        bad=(
            "visible = torch.ones(T, T, dtype=torch.bool).tril()\n"
            'scores = scores.masked_fill(visible, float("-inf"))'
        ),
        good=(
            "visible = torch.ones(T, T, dtype=torch.bool).tril()\n"
            'scores = scores.masked_fill(~visible, float("-inf"))'
        ),
        variants=causal_reversed,
    ),
    Fault(
        code="M10",
        name="causal-not-wanted",
        shown_by=("plain",),
        what=N_("a bidirectional layer is causal"),
        why=N_(
            "a token can't read what follows it, and the first knows only itself: embeddings and "
            "rankings degrade. Often a flag is on by default, or is set whenever no mask is given"
        ),
        fix=N_("pass is_causal=False, and check the default of the kernel or module"),
        bad="out = F.scaled_dot_product_attention(q, k, v, is_causal=attn_mask is None)",
        good="out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)",
        variants=causal_not_wanted,
    ),
    Fault(
        code="M11",
        name="causal-dropped-with-cache",
        rank=30,
        shown_by=("cache",),
        what=N_(
            "with a cache the causal mask is left out, and a step of several tokens looks ahead"
        ),
        why=N_(
            "one new token needs no causal mask, since all keys lie before it; several do. A "
            "prompt that is read with a cache, or a draft of several tokens, sees its own future"
        ),
        fix=N_("mask by positions in every step: a key is hidden if it lies after the query"),
        bad='if past_k is None:\n    scores = scores.masked_fill(~causal, float("-inf"))',
        good='scores = scores.masked_fill(~causal[-scores.shape[2] :], float("-inf"))',
        in_steps=causal_dropped,
    ),
    Fault(
        code="M12",
        name="mask-after-softmax",
        shown_by=("pad",),
        what=N_("weights are zeroed after the softmax without renormalising"),
        why=N_(
            "hidden keys have already taken their share of the denominator, so a row sums to less "
            "than one and outputs shrink the more is hidden"
        ),
        fix=N_("set hidden scores to −∞ before the softmax"),
        bad="weights = scores.softmax(dim=-1) * mask",
        good='weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)',
        variants=after_softmax,
    ),
    Fault(
        code="M13",
        name="mask-multiplied-into-scores",
        rank=45,
        shown_by=("pad",),
        what=N_("the mask is multiplied into the scores: hidden keys get score 0, not −∞"),
        why=N_(
            "exp(0) is 1, so a hidden key gets real weight, more than any key with a negative "
            "score. Where nothing is hidden nothing shows"
        ),
        fix=N_("replace hidden scores by −∞ with masked_fill or where"),
        bad="scores = scores * mask",
        good='scores = scores.masked_fill(~mask, float("-inf"))',
        variants=multiplied,
    ),
    Fault(
        code="M14",
        name="mask-fill-near-zero",
        shown_by=("pad",),
        what=N_("hidden scores are filled with a small number instead of −∞"),
        why=N_(
            "a tiny number stands where a huge one was meant, 1e-9 for −1e9: hidden keys are left "
            "with a score about zero and get as much weight as the others"
        ),
        fix=N_("fill with −∞, or with the lowest number of the dtype"),
        bad="scores = scores.masked_fill(~mask, -1e-9)",
        good='scores = scores.masked_fill(~mask, float("-inf"))',
        variants=near_zero,
    ),
    Fault(
        code="M15",
        name="mask-fill-too-weak",
        undeclared="hazard",
        shown_by=("big", "pad"),
        what=N_("the number that hides a score is finite and weaker than real scores can be"),
        why=N_(
            "a key is hidden only as far as real scores stay well above the number. With large "
            "scores they come close to it or fall below, and hidden keys get weight"
        ),
        fix=N_("fill with −∞, or with the lowest number of the dtype, written once"),
        bad="scores = scores.masked_fill(~mask, -1e4)",
        good="scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)",
    ),
    Fault(
        code="M16",
        name="mask-added-as-numbers",
        shown_by=("pad",),
        what=N_("a 0/1 or boolean mask is added to the scores"),
        why=N_(
            "an addition of 0 or 1 hides nothing: it changes a key's weight by a factor of e at "
            "most"
        ),
        fix=N_("make 0 and −∞ of the boolean mask before adding it, or use masked_fill"),
        bad="scores = scores + mask",
        good='scores = scores.masked_fill(~mask, float("-inf"))',
        variants=as_numbers,
    ),
    Fault(
        code="M17",
        name="padding-dropped-by-causal-flag",
        rank=55,
        shown_by=("left",),
        what=N_("one of causal and padding mask replaces the other instead of being combined"),
        why=N_(
            "only one of the two rules acts. Padding on the right lies in the hidden future and "
            "shows nothing; batches padded on the left, as in generation, read their padding"
        ),
        fix=N_("combine both as booleans with & and apply the result"),
        bad="mask = causal if is_causal else keep[:, None, None, :]",
        good="mask = causal & keep[:, None, None, :]",
        variants=dropped_by_causal,
    ),
    Fault(
        code="M18",
        name="padding-mask-batch-order",
        shown_by=("pad",),
        what=N_(
            "the padding mask's copies per head are in the wrong order: samples use each other's"
        ),
        why=N_(
            "the copies are ordered 0 1 0 1 by sample where the scores are ordered 0 0 1 1, so a "
            "sample is masked with another one's padding. A single sample and equal lengths hide "
            "it"
        ),
        fix=N_("repeat each sample's mask in place, or broadcast a mask of shape [B,1,1,T]"),
        bad="mask = keep.repeat(H, 1)[:, None, :]  # scores are (B * H, T, T)",
        good="mask = keep.repeat_interleave(H, dim=0)[:, None, :]",
        variants=other_samples,
    ),
    Fault(
        code="M19",
        name="padding-only-in-prefill",
        rank=34,
        shown_by=("left", "cache"),
        what=N_("the padding mask counts for the prompt, and steps after it see the padding"),
        why=N_(
            "the keys of the padding are in the cache as well, and every new token gives them a "
            "part of its attention. Texts of the same length are right; in a batch the shorter "
            "ones are not"
        ),
        fix=N_("keep the padding mask of the whole sequence, and use it in every step"),
        bad='if past_k is None:\n    scores = scores.masked_fill(~padding, float("-inf"))',
        good='scores = scores.masked_fill(~padding, float("-inf"))',
        in_steps=padding_dropped_in_steps,
    ),
    Fault(
        code="M20",
        name="mask-lost-on-weights-path",
        shown_by=("weights",),
        what=N_("asking for the weights takes a path without the mask"),
        why=N_(
            "a fused kernel returns no weights, so there is a second path, and it was left without "
            "the mask: heat maps show padding and future, and asking for them changes the output"
        ),
        fix=N_(
            "build the mask once, use it on both paths, and test that both give the same output"
        ),
        bad=(
            "if need_weights:\n"
            "    weights = (q @ k.mT * scale).softmax(dim=-1)\n"
            "else:\n"
            "    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
        ),
        good=(
            "if need_weights:\n"
            '    weights = (q @ k.mT * scale).masked_fill(~mask, float("-inf")).softmax(dim=-1)\n'
            "else:\n"
            "    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
        ),
    ),
    Fault(
        code="M21",
        name="window-off-by-one",
        undeclared="convention",
        point="window",
        shown_by=("plain",),
        what=N_("the window is one key too wide or too narrow"),
        why=N_(
            "libraries differ in whether a window of w keys includes the token itself. Every row "
            "that is longer than the window then has one key too many or too few, a small change "
            "that no shape shows"
        ),
        fix=N_(
            "count distances: w keys with the token itself reach back w − 1 places, which is "
            "window=(w − 1, 0)"
        ),
        bad="mask = (j <= i) & (i - j <= w)  # w + 1 keys",
        good="mask = (j <= i) & (i - j < w)  # w keys",
        variants=window_off,
    ),
    Fault(
        code="M22",
        name="window-ignored",
        shown_by=("plain",),
        what=N_("a sliding window is specified and not applied"),
        why=N_(
            "every token sees all that came before. Texts shorter than the window agree; longer "
            "ones read keys that training never showed"
        ),
        fix=N_("hide keys that lie further back than the window, in every layer that has one"),
        bad="mask = j <= i",
        good="mask = (j <= i) & (i - j < w)",
        variants=window_ignored,
        in_steps=window_dropped_in_steps,
    ),
    Fault(
        code="M23",
        name="documents-leak",
        shown_by=("docs",),
        what=N_("packed documents see each other"),
        why=N_(
            "a document reads those that were packed before it. The loss falls as usual, but "
            "unrelated text enters every context, and a result depends on what shared its row"
        ),
        fix=N_(
            "show a query only the keys of its own document, and start positions anew for each "
            "document"
        ),
        bad="mask = causal",
        good="mask = causal & (documents[:, :, None] == documents[:, None, :])[:, None]",
        variants=documents_leak,
    ),
    Fault(
        code="M24",
        name="cross-uses-query-mask",
        shown_by=("cross",),
        what=N_("the context is masked with the padding mask of the queries"),
        why=N_(
            "padding of the context is read, and real context is hidden wherever the query has "
            "padding. Equal lengths let every shape pass"
        ),
        fix=N_("mask the keys with the padding mask of the context"),
        bad="mask = query_keep[:, None, None, :]",
        good="mask = context_keep[:, None, None, :]",
        variants=query_mask,
    ),
    Fault(
        code="M25",
        name="key-mask-zeroes-queries",
        shown_by=("cross",),
        what=N_("the padding mask of the keys also blanks rows of queries"),
        why=N_(
            "the mask speaks of keys, yet queries at the same places return zero or the bare "
            "output bias: the context has no effect on them. With unequal lengths even a mask of "
            "only True can change the result"
        ),
        fix=N_("apply the key mask along the keys and leave the queries alone"),
        bad="out = (weights @ v) * keep[:, None, :, None]",
        good="out = weights @ v",
        variants=rows_blanked,
    ),
    Fault(
        code="M26",
        name="empty-row-nan",
        undeclared="hazard",
        shown_by=("left", "grad"),
        what=N_("a query with nothing visible gives NaN, in the output or in the gradient"),
        why=N_(
            "the softmax of nothing but −∞ is 0/0. The NaN spreads in the next layer, and even if "
            "the row is left out of the loss, 0 · NaN in the backward pass ruins the gradients of "
            "the whole batch"
        ),
        fix=N_(
            "leave such rows unmasked in the softmax and set their weights to zero afterwards, so "
            "that gradients stay finite"
        ),
        bad='weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)',
        good=(
            "empty = ~mask.any(dim=-1, keepdim=True)\n"
            'weights = scores.masked_fill(~mask & ~empty, float("-inf")).softmax(dim=-1)\n'
            "weights = weights.masked_fill(empty, 0.0)"
        ),
    ),
    Fault(
        code="M27",
        name="empty-row-uniform",
        undeclared="convention",
        point="empty_rows",
        shown_by=("left",),
        what=N_("a query with nothing visible gives an average of values instead of zero"),
        why=N_(
            "with a finite fill all scores of such a row are equal, so it becomes a mean of the "
            "values, padding and future included. Nothing looks wrong, and an empty sample's "
            "output depends on its padding"
        ),
        fix=N_("set the weights to zero where nothing is visible"),
        bad=(
            "lowest = torch.finfo(scores.dtype).min\n"
            "weights = scores.masked_fill(~mask, lowest).softmax(dim=-1)"
        ),
        good=(
            "lowest = torch.finfo(scores.dtype).min\n"
            "weights = scores.masked_fill(~mask, lowest).softmax(dim=-1)\n"
            "weights = weights * mask.any(dim=-1, keepdim=True)"
        ),
    ),
    Fault(
        code="M28",
        name="additive-masks-overflow",
        undeclared="hazard",
        shown_by=("half", "left"),
        what=N_("additive masks are summed and overflow to −∞: empty rows become NaN"),
        why=N_(
            "the lowest number added twice is −∞, and in float16 a single one plus a strongly "
            "negative score is, too. A row in which every key ends there is NaN, often from the "
            "first step on"
        ),
        fix=N_("combine the rules as booleans and write the lowest number once"),
        bad="scores = scores + causal_bias + padding_bias  # both hold the lowest number",
        good="scores = scores.masked_fill(~(causal & padding), torch.finfo(scores.dtype).min)",
    ),
    Fault(
        code="M29",
        name="hidden-values-leak-nan",
        undeclared="hazard",
        shown_by=("pad",),
        what=N_("0 · NaN from hidden positions reaches the output"),
        why=N_(
            "a weight of exactly zero does not remove a NaN or an infinity. Uninitialised padding, "
            "or an overflow in a hidden token, reaches every query"
        ),
        fix=N_("set the values of hidden tokens to zero before the product"),
        bad="out = weights @ v",
        good="out = weights @ v.masked_fill(~keep[:, None, :, None], 0.0)",
    ),
)
