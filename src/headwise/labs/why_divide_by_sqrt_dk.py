"""Lab 4: why are the scores divided by √d_k, and what happens to the gradients if they are not?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.why_divide_by_sqrt_dk import (
    gradient_charts,
    pooled,
    sheets,
    size_charts,
    training_charts,
)
from headwise.labs.judge import all_of, greater, interval, log_slope, same, stated, within
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.why_divide_by_sqrt_dk import (
    WAYS,
    Draws,
    Formula,
    History,
    Initial,
    formula,
    initialisations,
    over_sizes,
    tail,
    trained,
)
from headwise.labs.parts.drawn import outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_


# ------------------------------------------------------------------ judges
def proportional(exponents: Sequence[float]) -> Verdict:
    """Whether a quantity grows like d_k: its exponent is 1 within 0.05, seed by seed."""
    return same(exponents, [1.0] * len(exponents), within=0.05)


def stable(first: Sequence[float], last: Sequence[float]) -> Verdict:
    """Whether a quantity is the same, within a tenth, at the largest and the smallest d_k."""
    ratios = [b / a for a, b in zip(first, last, strict=True)]
    return same(ratios, [1.0] * len(ratios), within=0.1)


def sharpness(
    tails: Mapping[str, Sequence[float]], medians: Mapping[str, Sequence[float]]
) -> Verdict:
    """What large logits do to gradients.

    *holds* if tails grow and the typical gradient does not fall, *holds under conditions* if tails
    grow while the typical gradient falls (then "sharp" must mean heavy-tailed).
    """
    heavier = greater(tails["raw"], tails["scaled"])
    smaller = greater(medians["scaled"], medians["raw"])
    return "holds-under-conditions" if heavier == smaller == "holds" else heavier


def learns_worse(losses: Mapping[str, Sequence[float]]) -> Verdict:
    """Whether undivided scores end with the higher loss."""
    return greater(losses["raw"], losses["scaled"])


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Scores, weights and gradients over d_k; initialisations; a model trained both ways."""
    dims = [int(d) for d in params["dims"]]
    with one_thread():
        progress(N_("the formula"), 0.0)
        exact = formula(seed)
        draws = over_sizes(
            dims, rows=params["rows"], keys=params["keys"], seeds=params["seeds"], seed=seed,
            tick=lambda share: progress(N_("scores and gradients over d_k"), 0.02 + 0.4 * share),
        )  # fmt: skip
        initials = initialisations(d_model=256, heads=4, tokens=params["rows"], seed=seed)
        histories: dict[str, list[History]] = {way: [] for way in WAYS}
        runs = [(way, index) for index in range(params["seeds"]) for way in WAYS]
        for done, (way, index) in enumerate(runs):
            histories[way].append(
                trained(
                    way, d_k=params["trained_d_k"], steps=params["steps"], seed=seed * 97 + index,
                    every=max(params["steps"] // 10, 1),
                    tick=lambda share, done=done: progress(  # type: ignore[misc]
                        N_("training both ways"), 0.45 + 0.55 * (done + share) / len(runs)
                    ),
                )
            )  # fmt: skip
    progress(N_("done"), 1.0)
    exponents = [
        log_slope(dims, [draws["raw", d][i].variance for d in dims])[0]
        for i in range(params["seeds"])
    ]
    outcomes = judged(draws, dims, exponents, exact, initials, histories, params["keys"])
    verdicts = {o.claim: o.verdict for o in outcomes}
    losses = {w: [h.final[0] for h in histories[w]] for w in WAYS}
    return LabResult(
        lab=LAB.name,
        params=params,
        seed=seed,
        verdict=all_of(*(verdicts[c] for c in ("A2.2", "A2.4", "A2.7")), learns_worse(losses)),
        conclusion=conclusion(draws, dims, exponents, initials, histories),
        outcomes=outcomes,
        charts=[
            *size_charts(draws, dims, params["keys"], interval(exponents).mean),
            *gradient_charts(draws, dims),
            *training_charts(histories, params["trained_d_k"]),
        ],
        sheets=sheets(draws, dims, exact, initials, histories),
    )


def judged(
    draws: Draws,
    dims: Sequence[int],
    exponents: Sequence[float],
    exact: Formula,
    initials: Sequence[Initial],
    histories: Mapping[str, Sequence[History]],
    keys: int,
) -> list[Outcome]:
    """One outcome per claim."""
    first, last = dims[0], dims[-1]

    def values(name: str, way: str, d: int) -> list[float]:
        return [getattr(one, name) for one in draws[way, d]]

    def mean(name: str, way: str, d: int) -> float:
        return interval(values(name, way, d)).mean

    tails = {w: [tail(x.gradient).ratio for x in draws[w, last]] for w in WAYS}
    medians = {w: [tail(x.gradient).median for x in draws[w, last]] for w in WAYS}
    pooled_last = {w: pooled(draws, w, last, "gradient") for w in WAYS}
    jacobians = {w: pooled(draws, w, last, "jacobian").median for w in WAYS}
    growth = interval(exponents)
    ratio = [x.variance / last for x in draws["raw", last]]
    roots = [x.size / (2.0 * last / 3.141592653589793) ** 0.5 for x in draws["raw", last]]
    saturates = all_of(
        greater(values("entropy", "scaled", last), values("entropy", "raw", last)),
        greater(values("top", "raw", last), values("top", "raw", first)),
        stable(values("entropy", "scaled", first), values("entropy", "scaled", last)),
    )
    default = initials[0]
    heavy = sharpness(tails, medians)
    observed = all_of(
        greater(values("variance", "raw", last), values("variance", "scaled", last)),
        greater(values("entropy", "scaled", last), values("entropy", "raw", last)),
        greater(tails["raw"], tails["scaled"]),
    )
    return [
        outcome(
            "A2.1",
            within(max(exact.cell, abs(exact.doubled - 2)), exact.allowed),
            "formula",
            N_(
                "one cell recomputed number by number differs by {gap:.1e}; a key twice as long "
                "scores {double:.3g} times as high, so length counts: it is not a cosine"
            ),
            {"gap": exact.cell, "double": exact.doubled},
        ),
        outcome(
            "A2.2",
            all_of(proportional(exponents), same(ratio, [1.0] * len(ratio), within=0.1)),
            "logit-variance",
            N_(
                "variance ~ d_k^{p:.3f} (95 %: {low:.3f} to {high:.3f}), variance / d_k = "
                "{ratio:.3f} at {last}. q and k must be independent of each other too. Under "
                "PyTorch's nn.Linear the components start with variance {component:.2f}, not 1, "
                "so a scaled logit starts with {logit:.2f}"
            ),
            {
                "p": growth.mean, "low": growth.low, "high": growth.high,
                "ratio": interval(ratio).mean, "last": last,
                "component": default.components, "logit": default.logits,
            },
        ),
        outcome(
            "A2.3",
            all_of(
                greater(values("size", "raw", last), values("size", "raw", first)),
                same(roots, [1.0] * len(roots), within=0.05),
            ),
            "logit-size",
            N_(
                "mean |q·k| rises from {small:.2f} at d_k = {first} to {large:.1f} at {last}; "
                "that is {share:.3f} of √(2·d_k/π)"
            ),
            {
                "small": mean("size", "raw", first), "large": mean("size", "raw", last),
                "first": first, "last": last, "share": interval(roots).mean,
            },
        ),
        outcome(
            "A2.4",
            saturates,
            "entropy",
            N_(
                "{keys} keys, d_k = {last}: entropy {scaled:.2f} divided, {raw:.2f} not; largest "
                "weight {scaled_top:.2f} and {raw_top:.2f}"
            ),
            {
                "keys": keys, "last": last,
                "scaled": mean("entropy", "scaled", last), "raw": mean("entropy", "raw", last),
                "scaled_top": mean("top", "scaled", last), "raw_top": mean("top", "raw", last),
            },
        ),
        outcome(
            "A2.5",
            heavy,
            "gradient-tails",
            N_(
                "d_k = {last}, divided → not: median of |∂L/∂q| {m0:.2g} → {m1:.2g}, mean {a0:.2g} "
                "→ {a1:.2g}, largest {t0:.2g} → {t1:.2g}, 90 % point over median {r0:.2g} → "
                "{r1:.2g}; median norm of the softmax Jacobian {j0:.2g} → {j1:.2g}"
            ),
            {
                "last": last, "m0": pooled_last["scaled"].median, "m1": pooled_last["raw"].median,
                "a0": pooled_last["scaled"].mean, "a1": pooled_last["raw"].mean,
                "t0": pooled_last["scaled"].top, "t1": pooled_last["raw"].top,
                "r0": pooled_last["scaled"].ratio, "r1": pooled_last["raw"].ratio,
                "j0": jacobians["scaled"], "j1": jacobians["raw"],
            },
            N_(
                "“sharp” means heavy-tailed: most gradients all but vanish while a few become very "
                "large. Neither “they vanish” nor “they grow” is the whole truth"
            ),
        ),
        outcome(
            "A2.6",
            all_of(within(exact.loop, exact.allowed), within(exact.sdpa, exact.allowed)),
            "formula",
            N_(
                "with and without M, float64: definition against a loop over single numbers "
                "{loop:.1e}, against F.scaled_dot_product_attention {sdpa:.1e} (allowed {ok:.1e})"
            ),
            {"loop": exact.loop, "sdpa": exact.sdpa, "ok": exact.allowed},
        ),
        outcome(
            "A2.7",
            stable(values("variance", "scaled", first), values("variance", "scaled", last)),
            "logit-variance",
            N_(
                "variance after division {a:.3f} at d_k = {first} and {b:.3f} at {last}. It is 1 "
                "only for components of variance 1: with nn.Linear {linear:.2f}, with "
                "nn.MultiheadAttention's own initialisation {official:.2f}"
            ),
            {
                "a": mean("variance", "scaled", first), "b": mean("variance", "scaled", last),
                "first": first, "last": last,
                "linear": default.logits, "official": initials[1].logits,
            },
        ),
        outcome(
            "A5.5",
            all_of(within(exact.ratio, exact.allowed), stated(exact.fault == 0.0)),
            "formula",
            N_(
                "raw over scaled scores is √d_head everywhere (largest deviation {gap:.1e}); "
                "leaving the division out is HW-S01, the same as scale = 1 to the bit"
            ),
            {"gap": exact.ratio},
        ),
        outcome(
            "A9.1",
            observed,
            "training-loss",
            N_(
                "all three move: logit variance {v1:.0f} against {v0:.2f}, entropy {e1:.2f} "
                "against {e0:.2f}, gradients in the tail {r1:.2g} against {r0:.2g} medians; "
                "trained, the loss is {l1:.2f} not divided and {l0:.2f} divided"
            ),
            {
                "v1": mean("variance", "raw", last), "v0": mean("variance", "scaled", last),
                "e1": mean("entropy", "raw", last), "e0": mean("entropy", "scaled", last),
                "r1": pooled_last["raw"].ratio, "r0": pooled_last["scaled"].ratio,
                "l1": interval([h.final[0] for h in histories["raw"]]).mean,
                "l0": interval([h.final[0] for h in histories["scaled"]]).mean,
            },
        ),
    ]  # fmt: skip


def conclusion(
    draws: Draws,
    dims: Sequence[int],
    exponents: Sequence[float],
    initials: Sequence[Initial],
    histories: Mapping[str, Sequence[History]],
) -> list[Phrase]:
    """The answer in a few sentences."""
    last = dims[-1]
    raw, scaled = (pooled(draws, way, last, "gradient") for way in ("raw", "scaled"))
    losses = {w: [h.final[0] for h in histories[w]] for w in WAYS}
    worse = interval([a - b for a, b in zip(losses["raw"], losses["scaled"], strict=True)])
    growth = interval(exponents)
    return [
        Phrase(
            N_(
                "A dot product of d_k independent parts has a variance that grows like d_k "
                "(exponent {p:.3f}, 95 % {low:.3f} to {high:.3f}); the division by √d_k removes "
                "exactly this growth."
            ),
            {"p": growth.mean, "low": growth.low, "high": growth.high},
        ),
        Phrase(
            N_(
                "Without it softmax saturates, and gradients become heavy-tailed rather than just "
                "small: at d_k = {d} the median of |∂L/∂q| is {m:.2g} instead of {n:.2g}, the "
                "largest {t:.3g} instead of {u:.2g}."
            ),
            {"d": last, "m": raw.median, "n": scaled.median, "t": raw.top, "u": scaled.top},
        ),
        Phrase(
            N_(
                "A small model trained without the division ends with a loss higher by {gap:.2f} "
                "(95 %: {low:.2f} to {high:.2f})."
            ),
            {"gap": worse.mean, "low": worse.low, "high": worse.high},
        ),
        Phrase(
            N_(
                "“Variance 1” is an assumption about the inputs: with PyTorch's default "
                "initialisation a scaled logit starts with variance {v:.2f}. The division makes "
                "the start independent of d_k, not equal to 1."
            ),
            {"v": initials[0].logits},
        ),
    ]


LAB = register(
    Lab(
        name="why-divide-by-sqrt-dk",
        number=4,
        question=N_("Why are scores divided by √d_k?"),
        hypothesis=N_(
            "Undivided, the variance of the scores grows like d_k, softmax saturates, gradients "
            "become heavy-tailed and training suffers; divided, nothing depends on d_k."
        ),
        varied=N_("d_k, the division, the initialisation"),
        fixed=N_("number of keys, the draws of q and k, data and seeds of the trained models"),
        needs=("what-are-n-and-d",),
        claims=("A2.1", "A2.2", "A2.3", "A2.4", "A2.5", "A2.6", "A2.7", "A5.5", "A9.1"),
        least={"keys": 2},
        quick={
            "dims": [8, 16, 32, 64, 128, 256, 512, 1024],
            "rows": 256,
            "keys": 64,
            "seeds": 5,
            "trained_d_k": 256,
            "steps": 150,
        },
        full={
            "dims": [8, 16, 32, 64, 128, 256, 512, 1024],
            "rows": 512,
            "keys": 64,
            "seeds": 20,
            "trained_d_k": 256,
            "steps": 600,
        },
        minutes=(0.2, 3.0),
        run=run,
    )
)
