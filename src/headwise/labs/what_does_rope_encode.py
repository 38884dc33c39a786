"""Lab 11: what does RoPE encode, and does it decay?"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.labs.judge import Interval, all_of, greater, interval, stated, within
from headwise.labs.lab import (
    Chart,
    Lab,
    LabResult,
    Progress,
    Series,
    Sheet,
    Verdict,
    register,
)
from headwise.labs.measures import what_does_rope_encode as turning
from headwise.labs.parts.lesson import judged, say
from headwise.labs.parts.small import one_thread
from headwise.numerics import eps, float64_allowance
from headwise.spec import AttentionSpec, Rope
from headwise.texts import mark as N_
from headwise.texts import translate as _

Profiles = Mapping[str, Tensor]
WINDOW = 16


def decays(profiles: Profiles) -> Verdict:
    """Whether scores fall with distance for every kind of input, as a decay term would make them.

    Per kind, each draw's mean score over the first 16 distances against its mean over every later
    octave (16 to 31, 32 to 63 and so on), by more than a tenth of the spread. *Does not hold* as
    soon as one octave of one kind is not lower, *not enough data* if one leaves it open.
    """
    found: list[Verdict] = []
    for scores in profiles.values():
        near = scores[:, :WINDOW].mean(-1)
        start = WINDOW
        while start < scores.shape[1] - 1:
            far = scores[:, start : 2 * start].mean(-1)
            spread = float((near - far).std()) if len(near) > 1 else 0.0
            found.append(greater(near.tolist(), far.tolist(), by=0.1 * spread))
            start *= 2
    return all_of(*found) if found else "not-enough-data"


def derived(steps: Sequence[turning.Step], allowed: float) -> Verdict:
    """Whether every step of a derivation holds in numbers."""
    if not steps:
        return "not-enough-data"
    return all_of(*(within(step.error, allowed) for step in steps))


def acts_on_scores(stages: Mapping[str, float]) -> Verdict:
    """Whether q, k and scores change while the projections and the values do not."""
    still = all(stages[name] == 0 for name in ("q_flat", "k_flat", "v"))
    moved = all(stages[name] > 1e-6 for name in ("q_pos", "k_pos", "scores"))
    return stated(still and moved)


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    d, length = params["head_dim"], params["length"]
    AttentionSpec(d_model=d, num_heads=1, positions=Rope(pairs="halves"))  # refuses an odd head_dim
    progress(_("distance alone"), 0.0)
    relative: dict[str, dict[str, float]] = {
        p: turning.relative(seed, d, params["places"], p) for p in turning.PAIRS
    }
    stages: dict[str, dict[str, float]] = {
        p: turning.values_and_place(seed, 16, p) for p in turning.PAIRS
    }
    progress(_("pairings and derivation"), 0.4)
    pairs, steps = turning.pairings(seed, 16), turning.derivation(seed, d)
    progress(_("scores by distance"), 0.5)
    profiles = turning.profiles(seed, d=d, base=10000.0, draws=params["draws"], length=length)
    limit = turning.bound(d, 10000.0, length)
    progress(_("bases"), 0.9)
    bases = turning.bases(d, params["bases"], params["context"])

    # The angle is position · θ; its rounding grows with the position, and so does the score's.
    size = relative["halves"]["size"]
    allowed = float64_allowance(terms=d, scale=size) + size * 5000 * eps(torch.float64) * math.sqrt(
        d
    )
    ones = profiles["same"][0]
    course = turning.course(ones.tolist())
    spread = profiles["independent"].std(0)
    peak = int(profiles["turned"].mean(0).argmax())
    alibi = turning.course(turning.alibi_profile(64).tolist())
    off = max(r["off"] for r in relative.values())
    chain = derived(steps, allowed)
    both = all_of(*(within(r["off"], allowed) for r in relative.values()))
    small, large = bases[0], bases[-1]

    outcomes = [
        judged("B3.7", all_of(both, *(acts_on_scores(s) for s in stages.values()),
                               *(within(r["norm"], allowed) for r in relative.values())),
            say(N_("at {count} pairs of positions up to 5,000 the score depends on m − n alone, to "
                   "{off:.0e}, in both pairings; exchanging m and n changes it by {sign:.2g} on "
                   "average; norms are kept to {norm:.0e}; values and projections change by "
                   "{v:.0f}"),
                count=params["places"], off=off, sign=relative["halves"]["sign"],
                norm=max(r["norm"] for r in relative.values()),
                v=max(max(s["v"], s["q_flat"], s["k_flat"]) for s in stages.values())), "stages"),
        judged("B3.8", decays(profiles),
            say(N_("no decay term. q = k = 1: falls on average, yet rises in {rises:,} of "
                   "{steps:,} steps and changes sign {signs} times. Random q and k: the spread is "
                   "{near:.2g} at distance 0 and {far:.2g} at {last:,}. k turned by {turn}: the "
                   "score peaks at distance {peak}. Only an upper bound falls, from {first:.3g} "
                   "to {bound:.2g} times the score at 0 and itself not steadily ({brises:,} "
                   "rises); ALiBi has a penalty term ({alibi} rises in {asteps} steps)"),
                rises=course["rises"], steps=course["steps"], signs=course["signs"],
                near=float(spread[0]), far=float(spread[-1]), last=length - 1,
                turn=turning.TURN, peak=peak, first=limit[0], bound=limit[-1],
                brises=turning.course(limit)["rises"], alibi=alibi["rises"],
                asteps=alibi["steps"]), "three-inputs"),
        judged("B9.2", chain,
            say(N_("the course promises a derivation and leaves it out. Ours has {n} steps, from "
                   "the plane to the frequencies; the largest gap between two sides is {gap:.0e}"),
                n=len(steps), gap=max(s.error for s in steps)), "derivation"),
        judged("S10", all_of(both, chain, within(pairs["permutation"], allowed)),
            say(N_("both pairings run and agree after a permutation of channels (to {perm:.0e}; "
                   "with permuted weights the whole layer to {layer:.0e}); the wrong pairing on "
                   "the same weights changes the output by {wrong:.2g}"),
                perm=pairs["permutation"], layer=pairs["weights_permuted"], wrong=pairs["wrong"]),
            "pairings"),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params={**params, "bases": list(params["bases"])},
        seed=seed,
        verdict=all_of(both, chain),
        conclusion=(
            say(
                N_(
                    "RoPE turns q and k, so that a score depends on the distance m − n (to "
                    "{off:.0e}) and on its sign. It is no decay: the score may rise, stay or peak "
                    "far away, as q and k have learned it."
                ),
                off=off,
            ),
            say(
                N_(
                    "A larger base slows the turning: of {pairs} channel pairs {a} do not turn "
                    "once within {context:,} tokens at base {low:,.0f}, {b} at base {high:,.0f}."
                ),
                pairs=d // 2,
                a=small["slow_pairs"],
                b=large["slow_pairs"],
                context=params["context"],
                low=small["base"],
                high=large["base"],
            ),
            say(
                N_(
                    "The two pairings are the same rotation up to an order of channels; weights "
                    "trained with one and run with the other are wrong by {wrong:.2g}, in right "
                    "shapes."
                ),
                wrong=pairs["wrong"],
            ),
        ),
        outcomes=outcomes,
        charts=_charts(profiles, limit, bases, params["context"]),
        sheets=_sheets(relative, stages, pairs, steps, bases, ones, limit),
        seconds=time.perf_counter() - began,
    )


def _charts(
    profiles: Profiles, limit: Sequence[float], bases: Sequence[Mapping[str, Any]], context: int
) -> list[Chart]:
    length = len(limit)
    ones = profiles["same"][0] / profiles["same"][0, 0]
    sampled = list(range(0, length, max(length // 128, 1)))
    marks = [2**k for k in range(int(math.log2(length)))] + [turning.TURN, length - 1]
    distances = [x for x in sorted(set(marks)) if x < length]
    pair = list(range(len(bases[0]["waves"])))
    return [
        Chart(
            "bound", "line",
            say(N_("What falls is an upper bound far above the score; the score goes up and down")),
            say(N_("distance in tokens")), say(N_("share of the score at distance 0")),
            say(N_("The score of q = k = 1 falls steeply at first, then swings around 0. The bound "
                   "lies far above it, falls on average and swings too.")),
            series=[
                Series(say(N_("|score|, q = k = 1")), sampled,
                       [abs(float(ones[x])) for x in sampled]),
                Series(say(N_("RoFormer's bound")), sampled, [limit[x] for x in sampled],
                       style="dashed"),
            ],
            log_y=True,
        ),
        Chart(
            "three-inputs", "line",
            say(N_("Falls, stays or peaks at {turn}: distance alone does not decide the score"),
                turn=turning.TURN),
            say(N_("distance in tokens")), say(N_("mean score / √d (band: ± 1 sd)")),
            say(N_("Three lines. With k = q the mean falls, with independent q and k it stays at "
                   "0 with a band of constant width, with k turned by {turn} it peaks there."),
                turn=turning.TURN),
            series=[
                _profile(say(label, turn=turning.TURN), profiles[name], distances)
                for name, label in (
                    ("same", N_("k = q")), ("independent", N_("q and k independent")),
                    ("turned", N_("k = q turned by {turn}")))
            ],
            log_x=True,
        ),
        Chart(
            "wavelengths", "line",
            say(N_("A larger base: more channel pairs that never turn once in {context:,} tokens"),
                context=context),
            say(N_("channel pair i")), say(N_("tokens per turn")),
            say(N_("Straight lines on a logarithmic axis from 6.3 tokens up to {a:.1g} and "
                   "{b:.1g}; a dashed line marks the context."),
                a=bases[0]["longest"], b=bases[-1]["longest"]),
            series=[
                *(Series(say(N_("base {base:,.0f}"), base=row["base"]), pair, row["waves"])
                  for row in bases),
                Series(say(N_("context")), [pair[0], pair[-1]], [float(context)] * 2,
                       style="dashed"),
            ],
            log_y=True,
        ),
    ]  # fmt: skip


def _profile(label: Any, scores: Tensor, distances: Sequence[int]) -> Series:
    found: list[Interval] = [interval(scores[:, x].tolist()) for x in distances]
    spread = [float(scores[:, x].std()) for x in distances]
    return Series(
        label,
        [max(x, 1) for x in distances],
        [i.mean for i in found],
        [i.mean - s for i, s in zip(found, spread, strict=True)],
        [i.mean + s for i, s in zip(found, spread, strict=True)],
    )


def _sheets(
    relative: Mapping[str, Mapping[str, float]],
    stages: Mapping[str, Mapping[str, float]],
    pairs: Mapping[str, float],
    steps: Sequence[turning.Step],
    bases: Sequence[Mapping[str, Any]],
    ones: Tensor,
    limit: Sequence[float],
) -> list[Sheet]:
    columns = ("base", "shortest", "longest", "slow_pairs", "first_negative", "at_the_end")
    names = list(stages["halves"])
    return [
        Sheet("derivation", say(N_("The derivation, step by step in numbers")),
              ("step", "formula", "error"),
              [(i + 1, s.formula, s.error) for i, s in enumerate(steps)],
              (say(N_("step")), say(N_("statement")), say(N_("gap between its sides")))),
        Sheet("stages", say(N_("What rotation changes, stage by stage")), ("stage", *stages),
              [(n, *(s[n] for s in stages.values())) for n in names],
              (say(N_("stage")), say(N_("halves")), say(N_("neighbours")))),
        Sheet("pairings", say(N_("Halves against neighbours")), ("quantity", "difference"),
              list(pairs.items()), (say(N_("quantity")), say(N_("difference")))),
        Sheet("bases", say(N_("Base and length")), columns,
              [tuple(row[c] for c in columns) for row in bases],
              (say(N_("base")), say(N_("fastest pair, tokens per turn")),
               say(N_("slowest pair, tokens per turn")), say(N_("pairs that never turn once")),
               say(N_("first distance with a negative score (q = k = 1)")),
               say(N_("score at the end of the context")))),
        Sheet("relative", say(N_("Scores against their distance alone")),
              ("pairs", "off", "norm", "sign", "size"),
              [(p, *r.values()) for p, r in relative.items()], shown=False),
        Sheet("by-distance", say(N_("Score of q = k = 1 and the bound, by distance")),
              ("distance", "score", "bound"),
              [(i, float(v), b) for i, (v, b) in enumerate(zip(ones, limit, strict=True))],
              shown=False),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="what-does-rope-encode",
        number=11,
        question=N_("What does RoPE encode, and does it decay with distance?"),
        hypothesis=N_(
            "Scores depend on the distance m − n and its sign alone, in both pairings; there is no "
            "decay term, only an upper bound that falls for equal vectors."
        ),
        varied=N_("positions, pairing, kind of q and k, distance, frequency base"),
        fixed=N_("head size, q and k within a comparison"),
        claims=("B3.7", "B3.8", "B9.2", "S10"),
        least={"head_dim": 2, "draws": 2},
        quick={
            "head_dim": 128, "places": 200, "draws": 1000, "length": 4097, "context": 8192,
            "bases": (10000.0, 500000.0, 1000000.0),
        },
        full={
            "head_dim": 128, "places": 5000, "draws": 5000, "length": 4097, "context": 131072,
            "bases": (10000.0, 100000.0, 500000.0, 1000000.0),
        },
        minutes=(0.1, 0.5),
        run=run,
        needs=("does-order-matter",),
    )
)  # fmt: skip
