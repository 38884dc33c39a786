"""Lab 5: what does the causal mask prevent, and where does it matter?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.what_does_the_causal_mask_prevent import (
    LABELS,
    generation_charts,
    influence_charts,
    sheets,
    training_chart,
)
from headwise.labs.judge import all_of, greater, interval, stated, within
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.what_does_the_causal_mask_prevent import (
    RIGHT,
    Facts,
    Kinds,
    Seen,
    Writer,
    facts,
    first_rows,
    influences,
    kinds,
    situations,
    trained,
    triangle,
    writes_the_same,
)
from headwise.labs.parts.drawn import conditional, outcome
from headwise.labs.parts.grammar import entropy_rate
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_

Writers = Mapping[str, Sequence[Writer]]


# ------------------------------------------------------------------ judges
def deceives(right: Sequence[Writer], wrong: Sequence[Writer]) -> Verdict:
    """Whether a missing mask looks better in training and is worse in generation.

    Its loss on whole sequences is lower, its loss on the past alone is higher, and fewer of the
    sentences that it writes are grammatical.
    """
    return all_of(
        greater([w.whole for w in right], [w.whole for w in wrong]),
        greater([w.prefix for w in wrong], [w.prefix for w in right]),
        greater([w.share for w in right], [w.share for w in wrong]),
    )


def where_needed(one_token: float, many: float) -> Verdict:
    """Whether the mask belongs to generation.

    *Holds under conditions* if it makes a difference with several new tokens and none with one.
    """
    if one_token == 0.0 and many > 0.0:
        return "holds-under-conditions"
    return stated(one_token > 0.0)


def first_row(rows: Mapping[str, Sequence[float]]) -> Verdict:
    """Whether position 0 sees itself and the agreed prefix and nothing else."""
    plain, prefix, sink = rows.values()
    return stated(
        plain[0] == 1.0
        and not any(plain[1:])
        and min(prefix[:2]) > 0.0
        and not any(prefix[2:])
        and 0.0 < sink[0] < 1.0
        and not any(sink[1:])
    )


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Influence under right and wrong masks, the mask itself, models trained with and without."""
    with one_thread():
        progress(N_("what influences what"), 0.0)
        seen, exact = influences(params["tokens"], seed), facts(seed)
        rows, places, three = first_rows(seed), situations(seed), kinds(seed)
        cached = writes_the_same(seed, 12)
        writers: dict[str, list[Writer]] = {way: [] for way in LABELS}
        runs = [(way, index) for index in range(params["seeds"]) for way in LABELS]
        for done, (way, index) in enumerate(runs):
            writers[way].append(
                trained(
                    way, steps=params["steps"], length=params["length"], seed=seed * 97 + index,
                    tick=lambda share, done=done: progress(  # type: ignore[misc]
                        N_("training with and without the mask"),
                        0.05 + 0.95 * (done + share) / len(runs),
                    ),
                )
            )  # fmt: skip
    progress(N_("done"), 1.0)
    fails = all_of(*(deceives(writers[RIGHT], writers[way]) for way in ("M05", "M06")))
    return LabResult(
        lab=LAB.name,
        params=params,
        seed=seed,
        verdict=all_of(fails, stated(triangle(seen.stack) == 0.0)),
        conclusion=conclusion(writers, seen),
        outcomes=[
            *judged_mask(seen, exact),
            *judged_use(seen, rows, places, three, cached, writers, fails),
        ],
        charts=[training_chart(writers), *generation_charts(writers), *influence_charts(seen)],
        sheets=sheets(writers, rows, places, exact),
    )


def judged_mask(seen: Seen, exact: Facts) -> list[Outcome]:
    """Claims about what the mask is."""
    right, wrong = triangle(seen.layer[RIGHT]), triangle(seen.layer["M05"])
    formula = {"own": exact.formula, "sdpa": exact.sdpa, "ok": exact.allowed}
    return [
        outcome(
            "A1.1", stated(seen.patterns == seen.masks), "influence-right",
            N_(
                "∂y_i/∂x_j is non-zero exactly where the mask allows (i, j) and exactly 0 "
                "elsewhere, for {patterns} of {masks} masks (causal, two windows, a prefix); "
                "through several layers visibility composes"
            ),
            {"patterns": seen.patterns, "masks": seen.masks},
        ),
        outcome(
            "A4.1", all_of(stated(right == 0.0), stated(seen.moved == 0.0), stated(wrong > 0.0)),
            "influence-right",
            N_(
                "largest ∂y_i/∂x_j for j > i: {right:.1g} with the mask, {wrong:.2g} without; "
                "changing a later token by 100 moves earlier rows by {moved:.1g} (not a bit)"
            ),
            {"right": right, "wrong": wrong, "moved": seen.moved},
        ),
        outcome(
            "A4.2", stated(exact.literal), "diagonals",
            N_("the course's 4 × 4 matrix is the additive causal mask, cell by cell"),
        ),
        outcome(
            "A4.3", conditional(exact.shapes_equal, exact.start_aligned == 0.0), "places",
            N_(
                "[T,T], [1,1,T,T] and [B,H,T,T] give the same bits and hold {a}, {b} and {c} "
                "numbers; with a cache the matrix is no longer square, and aligned to the first "
                "key (HW-M08) instead of the last the result is off by {gap:.2g}"
            ),
            {
                "a": exact.numbers[0], "b": exact.numbers[1], "c": exact.numbers[2],
                "gap": exact.start_aligned,
            },
            N_("queries and keys are equally many; else it is [1,1,Tq,Tk], aligned to the end"),
        ),
        outcome(
            "A5.6", all_of(stated(exact.triu), stated(exact.empty == (1, 0, 0))), "diagonals",
            N_(
                "hidden = triu(diagonal=1) leaves the {b} right cells of 4 × 4; diagonal 0 leaves "
                "{a} and {rows} row without any key; diagonal 2 leaves {c} and shows the next token"
            ),
            {
                "a": exact.visible[0], "b": exact.visible[1], "c": exact.visible[2],
                "rows": exact.empty[0],
            },
        ),
        outcome(
            "B4.1", within(max(exact.formula, exact.sdpa), exact.allowed), "influence-right",
            N_(
                "softmax(QKᵀ/√d + M)·V differs from the definition by {own:.1e}, PyTorch's causal "
                "attention by {sdpa:.1e} (float64, allowed {ok:.1e})"
            ),
            formula,
        ),
        outcome(
            "B4.2", conditional(exact.triu and exact.literal, exact.nan_rows == 0), "diagonals",
            N_(
                "strictly above the diagonal it is; with the diagonal included {rows} row has "
                "nothing to see and comes out as NaN"
            ),
            {"rows": exact.nan_rows},
            N_("“upper triangular” means strictly: the diagonal, a token's view of itself, is 0"),
        ),
        outcome(
            "B4.3", stated(exact.hidden_weight == 0.0), "first-row",
            N_("the largest weight on a hidden key is exactly {weight:.1g}"),
            {"weight": exact.hidden_weight},
        ),
    ]  # fmt: skip


def judged_use(
    seen: Seen,
    rows: Mapping[str, Sequence[float]],
    places: Mapping[str, tuple[int, int, float]],
    three: Kinds,
    cached: tuple[bool, float],
    writers: Writers,
    fails: Verdict,
) -> list[Outcome]:
    """Claims about what the mask does."""
    mean = {
        (way, name): interval([getattr(w, name) for w in writers[way]]).mean
        for way in LABELS
        for name in ("whole", "prefix", "share")
    }
    plain, prefix, sink = rows.values()
    above, open_above = triangle(seen.stack), triangle(seen.stack_open)
    a, b, c = three.total
    tokens = math.isqrt(a)
    learned = {
        "w": mean[RIGHT, "whole"], "p": mean[RIGHT, "prefix"], "s": mean[RIGHT, "share"],
        "w5": mean["M05", "whole"], "p5": mean["M05", "prefix"], "s5": mean["M05", "share"],
        "w6": mean["M06", "whole"], "p6": mean["M06", "prefix"], "s6": mean["M06", "share"],
        "floor": entropy_rate(),
    }  # fmt: skip
    return [
        outcome(
            "A9.2", fails, "two-losses",
            N_(
                "loss in training → on the past alone, grammatical sentences: right mask {w:.2f} → "
                "{p:.2f}, {s:.0%}; no mask {w5:.2f} → {p5:.2f}, {s5:.0%}; off by one {w6:.2f} → "
                "{p6:.2f}, {s6:.0%}. Less than {floor:.2f} is impossible without peeking: a loss "
                "that is too good is the symptom"
            ),
            learned,
        ),
        outcome(
            "A10.5", first_row(rows), "first-row",
            N_(
                "weight of position 0 on itself: {plain:.3g} with a causal mask, {prefix:.3f} "
                "where a prefix of two tokens is agreed, {sink:.3f} beside a learned sink; every "
                "other key has exactly 0"
            ),
            {"plain": plain[0], "prefix": prefix[0], "sink": sink[0]},
        ),
        outcome(
            "B4.4", all_of(stated(above == 0.0), stated(open_above > 0.0)), "influence-stack",
            N_(
                "through a model of two layers the future has influence {above:.1g}; without the "
                "mask up to {open:.2g}"
            ),
            {"above": above, "open": open_above},
        ),
        outcome(
            "B4.5", where_needed(places["one-token"][2], places["training"][2]), "places",
            N_(
                "difference that the mask makes: training and prefill {many:.2g}, a chunk of three "
                "after a cache {chunk:.2g}, one new token {one:.1g}. An encoder has none, and in "
                "cross attention it would hide part of the other sequence ({cross:.2g})"
            ),
            {
                "many": places["training"][2], "chunk": places["chunk"][2],
                "one": places["one-token"][2], "cross": places["cross"][2],
            },
            N_(
                "several positions are computed at once: training, prefill, chunks. One new token "
                "has no future to hide"
            ),
        ),
        outcome(
            "S15", all_of(stated(cached[0]), within(cached[1], 1e-12), fails), "good-sentences",
            N_(
                "a small causal model writes {s:.0%} grammatical sentences; greedy text is the "
                "same with and without a cache (largest difference of scores {gap:.1e})"
            ),
            {"s": mean[RIGHT, "share"], "gap": cached[1]},
        ),
        outcome(
            "S16",
            stated(
                (three.encoder, three.decoder, three.cross) == (a, tokens * (tokens + 1) // 2, c)
            ), "places",
            N_(
                "one layer, three uses: an encoder reads {e} of {a} (query, key) cells, a decoder "
                "{d} of {b}, cross attention {x} of {c}"
            ),
            {"e": three.encoder, "d": three.decoder, "x": three.cross, "a": a, "b": b, "c": c},
        ),
        outcome(
            "S20", first_row(rows), "first-row",
            N_(
                "a prefix mask shows position 0 the agreed tokens (weight {other:.3f} on the "
                "second); a learned sink takes {sink:.3f} of the row without being a token"
            ),
            {"other": prefix[1], "sink": 1.0 - sum(sink)},
        ),
    ]  # fmt: skip


def conclusion(writers: Writers, seen: Seen) -> list[Phrase]:
    """The answer in a few sentences."""
    right, none = writers[RIGHT], writers["M05"]
    gap = interval([b.prefix - a.prefix for a, b in zip(right, none, strict=True)])
    return [
        Phrase(
            N_(
                "The mask keeps a row from reading the word that it is to predict: without it "
                "∂y_i/∂x_j is up to {wrong:.2g} for j > i, with it exactly 0, also through a stack."
            ),
            {"wrong": triangle(seen.layer["M05"])},
        ),
        Phrase(
            N_(
                "Without it training looks splendid (loss {low:.2f}, below the {floor:.2f} that "
                "the text allows) and generation fails: on the past alone the loss is higher by "
                "{gap:.2f} (95 %: {from_:.2f} to {to:.2f})."
            ),
            {
                "low": interval([w.whole for w in none]).mean, "floor": entropy_rate(),
                "gap": gap.mean, "from_": gap.low, "to": gap.high,
            },
        ),
        Phrase(
            N_(
                "It matters wherever several positions are computed at once. For one new token "
                "after a cache it changes nothing; encoders and cross attention have none."
            )
        ),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="what-does-the-causal-mask-prevent",
        number=5,
        question=N_("What does the causal mask prevent?"),
        hypothesis=N_(
            "Without the mask each row reads the word it has to predict: the training loss falls "
            "below what is possible, and generation, where there is nothing to read, fails."
        ),
        varied=N_("the mask: right, missing (HW-M05), off by one (HW-M06), reversed (HW-M09)"),
        fixed=N_("weights at the start, text, number of steps, seeds"),
        needs=("is-the-right-shape-enough",),
        claims=(
            "A1.1", "A4.1", "A4.2", "A4.3", "A5.6", "A9.2", "A10.5", "B4.1", "B4.2", "B4.3",
            "B4.4", "B4.5", "S15", "S16", "S20",
        ),
        quick={"tokens": 6, "seeds": 5, "steps": 200, "length": 16},
        full={"tokens": 8, "seeds": 10, "steps": 800, "length": 24},
        minutes=(0.5, 6.0),
        run=run,
    )
)  # fmt: skip
