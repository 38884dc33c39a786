"""Lab 6: how many heads, at a fixed width?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.errors import UsageError
from headwise.labs.figures.how_many_heads import PUBLISHED, Qualities, charts, sheets
from headwise.labs.judge import all_of, greater, interval, stated
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.how_many_heads import (
    TASKS,
    Layer,
    Quality,
    exercise,
    free_sizes,
    layers,
    quality,
    times,
)
from headwise.labs.parts.architectures import ARCHITECTURES
from headwise.labs.parts.drawn import conditional, outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_
from headwise.texts import translate as _


# ------------------------------------------------------------------ judges
def same_parameters(found: Sequence[Layer]) -> Verdict:
    """Whether no count of parameters depends on the number of heads."""
    counts = {(one.parameters, one.official) for one in found}
    return stated(len(counts) == 1 and all(a == b for a, b in counts))


def rearranged(found: Sequence[Layer]) -> Verdict:
    """Whether projections agree to the bit while outputs differ."""
    return stated(
        all(one.projections == 0.0 for one in found) and all(one.output > 1e-6 for one in found[1:])
    )


def better(many: Sequence[Quality], few: Sequence[Quality]) -> Verdict:
    """Whether the first answers more questions rightly, seed by seed."""
    return greater([q.right for q in many], [q.right for q in few])


def an_effect(verdict: Verdict) -> Verdict:
    """Whether a comparison shows a difference, in whichever direction."""
    return "not-enough-data" if verdict == "not-enough-data" else "holds"


def in_words(verdict: Verdict) -> str:
    """A comparison of many heads with one, as a sentence (marked for translation)."""
    return {
        "holds": N_("More heads are better here, and the interval excludes zero."),
        "does-not-hold": N_("More heads are worse here, and the interval excludes zero."),
    }.get(verdict, N_("This difference is within noise."))


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Sizes, memory, time and quality over the number of heads."""
    heads, width = [int(h) for h in params["heads"]], int(params["d_model"])
    for count in heads:
        if width % count or 32 % count:
            raise UsageError(
                _("d_model={d_model} and 32 can't both be divided into {heads} heads").format(
                    d_model=width, heads=count
                ),
                fix=_("heads that divide both"),
            )
    with one_thread():
        progress(N_("sizes and memory"), 0.0)
        found = layers(heads, d_model=width, tokens=params["tokens"], seed=seed)
        dim, shape = exercise()
        progress(N_("time"), 0.05)
        taken = times(
            heads, d_model=width, tokens=params["tokens"], rounds=params["rounds"], seed=seed
        )
        qualities: dict[tuple[str, int], list[Quality]] = {
            (task, h): [] for task in TASKS for h in heads
        }
        runs = [(t, h, i) for i in range(params["seeds"]) for t in TASKS for h in heads]
        for done, (task, count, index) in enumerate(runs):
            qualities[task, count].append(
                quality(
                    task, steps=params["steps"], seed=seed * 97 + index,
                    changes={"num_heads": count},
                    tick=lambda share, done=done: progress(  # type: ignore[misc]
                        N_("training"), 0.15 + 0.85 * (done + share) / len(runs)
                    ),
                )
            )  # fmt: skip
    progress(N_("done"), 1.0)
    outcomes = judged(found, taken, qualities, dim, shape)
    verdicts = {o.claim: o.verdict for o in outcomes}
    return LabResult(
        lab=LAB.name,
        params=params,
        seed=seed,
        verdict=all_of(*(verdicts[c] for c in ("A10.3", "A10.4", "A9.3"))),
        conclusion=conclusion(found, qualities, params["steps"]),
        outcomes=outcomes,
        charts=charts(found, taken, qualities),
        sheets=sheets(found, taken, qualities),
    )


def judged(
    found: Sequence[Layer],
    taken: Mapping[int, Sequence[float]],
    qualities: Qualities,
    dim: int,
    shape: tuple[int, ...],
) -> list[Outcome]:
    """One outcome per claim."""
    first, last = found[0], found[-1]
    uneven = [a.name for a in ARCHITECTURES if not a.is_even]
    sizes = ", ".join(f"{o.heads} × {o.head_dim}" for o in found)
    width = first.heads * first.head_dim
    even = all(o.heads * o.head_dim == width for o in found)
    recall = better(qualities["recall", last.heads], qualities["recall", first.heads])
    speed = statistics.median(taken[first.heads]) / statistics.median(taken[last.heads])
    narrow, wide = free_sizes()

    def right(task: str, heads: int) -> float:
        return interval([q.right for q in qualities[task, heads]]).mean

    return [
        outcome(
            "A3.1", conditional(even, not uneven), "head-sizes",
            N_(
                "heads × size: {sizes}. A convention: {count} of {total} cited models set the size "
                "freely ({names}); only the merge and W_O must fit"
            ),
            {
                "sizes": sizes, "count": len(uneven), "total": len(ARCHITECTURES),
                "names": ", ".join(uneven),
            },
            N_("the size of a head is not set by itself"),
        ),
        outcome(
            "A9.3",
            all_of(same_parameters(found), stated(even), an_effect(recall)),
            "quality",
            N_(
                "{a} → {b} heads: size of a head {da} → {db}, throughput × {speed:.2f}, bytes of "
                "the weights × {memory:.0f}, operations × {ops:.2f}; right answers in associative "
                "recall {ra:.0%} → {rb:.0%}, next words {ta:.1%} → {tb:.1%}"
            ),
            {
                "a": first.heads, "b": last.heads, "da": first.head_dim, "db": last.head_dim,
                "speed": speed, "memory": last.weights_bytes / first.weights_bytes,
                "ops": last.batched / first.batched,
                "ra": right("recall", first.heads), "rb": right("recall", last.heads),
                "ta": right("text", first.heads), "tb": right("text", last.heads),
            },
            timed=True,
        ),
        outcome(
            "A10.1", stated(dim == 64 and shape[-2:] == (5, 5)), "layers",
            N_("by the spec {dim}; for T = 5 the scores have the shape {shape}"),
            {"dim": dim, "shape": str(shape)},
        ),
        outcome(
            "A10.3", same_parameters(found), "layers",
            N_(
                "{count} parameters for every number of heads, in the course's layer and in "
                "nn.MultiheadAttention. Only if the size of a head is kept instead of the width do "
                "they grow: {narrow} → {wide} for 4 → 8 heads of 8"
            ),
            {"count": first.parameters, "narrow": narrow, "wide": wide},
        ),
        outcome(
            "A10.4", rearranged(found), "layers",
            N_(
                "q, k and v from one matrix differ by {projections:.1g} (no bit), whatever the "
                "number of heads; outputs differ by up to {output:.2g}: the same parameters, "
                "another function"
            ),
            {
                "projections": max(o.projections for o in found),
                "output": max(o.output for o in found),
            },
        ),
    ]  # fmt: skip


def conclusion(found: Sequence[Layer], qualities: Qualities, steps: int) -> list[Phrase]:
    """The answer in a few sentences."""
    first, last = found[0], found[-1]
    phrases = [
        Phrase(
            N_(
                "At a fixed width the number of heads changes neither parameters ({count}) nor "
                "operations; it changes the function, and the weights take {times:.0f} times the "
                "memory with {b} heads."
            ),
            {
                "count": first.parameters, "b": last.heads,
                "times": last.weights_bytes / first.weights_bytes,
            },
        )
    ]  # fmt: skip
    names = {
        "text": N_(
            "Text, after {steps} steps: {gap:+.1%} right predictions from {a} to {b} heads "
            "(95 %: {low:+.1%} to {high:+.1%})."
        ),
        "recall": N_(
            "Associative recall, after {steps} steps: {gap:+.1%} right answers from {a} to {b} "
            "heads (95 %: {low:+.1%} to {high:+.1%})."
        ),
    }
    for task, sentence in names.items():
        many, few = qualities[task, last.heads], qualities[task, first.heads]
        gap = interval([a.right - b.right for a, b in zip(many, few, strict=True)])
        fields = {
            "gap": gap.mean, "low": gap.low, "high": gap.high, "a": first.heads, "b": last.heads,
            "steps": steps,
        }  # fmt: skip
        phrases += [Phrase(sentence, fields), Phrase(in_words(better(many, few)))]
    best = max(PUBLISHED, key=lambda row: row[1])
    phrases.append(
        Phrase(
            N_(
                "Published for translation (Vaswani et al. 2017, table 3): {one} BLEU with one "
                "head, {best} with {heads}, {most} with {many}: too few and too many both lose."
            ),
            {
                "one": PUBLISHED[0][1], "best": best[1], "heads": best[0],
                "most": PUBLISHED[-1][1], "many": PUBLISHED[-1][0],
            },
        )
    )  # fmt: skip
    return phrases


LAB = register(
    Lab(
        name="how-many-heads",
        number=6,
        question=N_("How many heads, at a fixed width?"),
        hypothesis=N_(
            "The number of heads changes neither parameters nor operations; it changes the "
            "function, the memory of the weights, and quality where several things must be found."
        ),
        varied=N_("number of heads"),
        fixed=N_("width, matrices, data, steps, seeds"),
        needs=("what-are-n-and-d",),
        claims=("A3.1", "A9.3", "A10.1", "A10.3", "A10.4"),
        quick={
            "heads": [1, 2, 4, 8], "d_model": 64, "tokens": 128, "rounds": 15, "seeds": 5,
            "steps": 150,
        },
        full={
            "heads": [1, 2, 4, 8], "d_model": 256, "tokens": 512, "rounds": 41, "seeds": 20,
            "steps": 300,
        },
        minutes=(0.5, 5.0),
        run=run,
    )
)  # fmt: skip
