"""Lab 13: how many key/value heads, what sharing them saves and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.how_many_kv_heads import (
    NAMED,
    TASK_LABELS,
    Qualities,
    memory_charts,
    quality_chart,
    sheets,
    speed_chart,
)
from headwise.labs.judge import all_of, greater, interval, stated, within
from headwise.labs.lab import Lab, LabResult, Outcome, Phrase, Progress, Verdict, register
from headwise.labs.measures.how_many_heads import Quality
from headwise.labs.measures.how_many_kv_heads import (
    GIB,
    RealCache,
    Relations,
    of_model,
    qualities,
    real_caches,
    relations,
    step_times,
    variants,
)
from headwise.labs.parts.architectures import Architecture, architecture
from headwise.labs.parts.counting import log_ratios
from headwise.labs.parts.drawn import conditional, outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_

TENS = 10 * GIB
"""“Tens of GB” begins here."""


# ------------------------------------------------------------------ judges
def loses(full: Sequence[Quality], shared: Sequence[Quality]) -> Verdict:
    """Whether sharing answers fewer questions rightly, seed by seed."""
    return greater([q.right for q in full], [q.right for q in shared])


def some_loss(comparisons: Sequence[Verdict]) -> Verdict:
    """Whether sharing costs quality, over several comparisons.

    *holds* if all show it, *holds under conditions* if at least half do and none shows the
    opposite, *does not hold* the other way round, else *not enough data*: one interval of many
    that excludes zero may be chance.
    """
    some = {v: v in comparisons for v in ("holds", "does-not-hold")}
    half = {v: 2 * comparisons.count(v) >= len(comparisons) for v in some}
    if half["holds"] and not some["does-not-hold"]:
        return "holds" if set(comparisons) == {"holds"} else "holds-under-conditions"
    opposite = half["does-not-hold"] and not some["holds"]
    return "does-not-hold" if opposite else "not-enough-data"


def grouped(models: Sequence[Architecture]) -> Verdict:
    """Whether all models share key/value heads in groups."""
    kinds = {model.kind for model in models}
    return "holds" if kinds == {"GQA"} else conditional("GQA" in kinds, False)


def tens_of_gb(usual: int, others: Sequence[int]) -> Verdict:
    """Whether a cache takes 10 GiB and more: as it usually is, or under other conditions only."""
    if usual >= TENS:
        return "holds"
    return "holds-under-conditions" if max(others) >= TENS else "does-not-hold"


def quicker(full: Sequence[float], shared: Sequence[float]) -> Verdict:
    """Whether a step with shared heads takes less time, round by round."""
    return greater(log_ratios(full, shared), [0.0] * len(full))


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Bytes, exact relations, time of a step, quality."""
    heads = int(params["heads"])
    shared = [heads, max(heads // 4, 1), 1]
    with one_thread():
        progress(N_("bytes and exact relations"), 0.0)
        exact = relations(seed)
        real = real_caches(4, (4, 2, 1), tokens=7, seed=seed)
        progress(N_("time of a decoding step"), 0.05)
        times = step_times(
            heads, shared, length=params["length"], rounds=params["rounds"], seed=seed
        )
        found = qualities(
            list(TASK_LABELS), steps=params["steps"], seeds=params["seeds"], seed=seed,
            tick=lambda share: progress(N_("training"), 0.1 + 0.9 * share),
        )  # fmt: skip
    progress(N_("done"), 1.0)
    ways = variants()
    costs = {
        (task, name): loses(found[task, "MHA"], found[task, name])
        for task in TASK_LABELS
        for name in ("MQA", "MQA =", "GQA", "GQA =")
    }
    outcomes = [
        *judged_exact(exact, real),
        judged_settings(exact, times, params["length"]),
        *judged_models(),
        judged_quality(found, costs),
    ]
    verdicts = {o.claim: o.verdict for o in outcomes}
    return LabResult(
        lab=LAB.name,
        params=params,
        seed=seed,
        verdict=all_of(*(verdicts[c] for c in ("B6.3", "B6.4", "B6.7", "B9.3"))),
        conclusion=conclusion(found, params["steps"]),
        outcomes=outcomes,
        charts=[
            *memory_charts(),
            quality_chart(found, [w.name for w in ways], costs["recall", "MQA"]),
            speed_chart(times, params["length"]),
        ],
        sheets=sheets(exact, real, times, ways, found),
    )


def judged_exact(exact: Relations, real: Sequence[RealCache]) -> list[Outcome]:
    """Claims that hold to rounding or to the byte."""
    mha, gqa, mqa = exact.distinct
    plain = {r.kv_heads: r for r in real if r.v_head_dim == 8}
    off = max(abs(r.formula - r.real) for r in real)
    return [
        outcome(
            "B6.1", stated(mha == 6 and exact.full == 0.0), "relations",
            N_("six query heads read {mha} different key/value heads in MHA, {gqa} in GQA, {mqa} "
               "in MQA"),
            {"mha": mha, "gqa": gqa, "mqa": mqa},
        ),
        outcome(
            "B6.3",
            all_of(stated(mqa == 1), within(max(exact.single, exact.gradient), exact.allowed)),
            "relations",
            N_(
                "MQA differs by {gap:.1e} from MHA whose key and value heads are copies, and the "
                "gradient of its one K matrix by {gradient:.1e} from the sum over the copies "
                "(allowed {ok:.1e})"
            ),
            {"gap": exact.single, "gradient": exact.gradient, "ok": exact.allowed},
        ),
        outcome(
            "B6.6",
            all_of(stated(exact.order == (0, 0, 1, 1, 2, 2)), stated(exact.other > 0.01)),
            "relations",
            N_(
                "six query heads over three groups read {order}: head h reads h // group size. The "
                "order is a convention: h % groups (HW-H03) has the same shapes and is off by "
                "{other:.2g}"
            ),
            {"order": " ".join(map(str, exact.order)), "other": exact.other},
        ),
        outcome(
            "B6.7",
            all_of(
                stated(exact.full == 0.0),
                within(max(exact.single, exact.grouped), exact.allowed),
                stated(plain[4].real > plain[2].real > plain[1].real),
            ),
            "relations",
            N_(
                "with as many key/value heads as heads it is MHA bit for bit ({full:.1g}), with "
                "one it is MQA; real caches of 4, 2 and 1 key/value heads hold {a}, {b} and {c} "
                "bytes"
            ),
            {
                "full": exact.full, "a": plain[4].real, "b": plain[2].real, "c": plain[1].real,
            },
        ),
        outcome(
            "B9.3", stated(off == 0), "real-caches",
            N_(
                "bytes = layers · kv heads · (d_k + d_v) · bytes per number · tokens · batch: one "
                "key and one value per token, layer and key/value head (2·d only if d_v = d_k). "
                "Against {count} caches that a model really filled it is off by {off} bytes"
            ),
            {"count": len(real), "off": off},
        ),
        outcome(
            "S19", stated(off == 0), "real-caches",
            N_(
                "the formula gives the bytes of real tensors exactly (here in the memory of the "
                "CPU); a GPU's allocator rounds each block up"
            ),
        ),
    ]  # fmt: skip


def judged_settings(exact: Relations, times: Mapping[int, Sequence[float]], length: int) -> Outcome:
    """One layer in three settings, and what a decoding step takes in each."""
    full, single = (list(times.values())[place] for place in (0, -1))
    return outcome(
        "S13",
        all_of(
            within(max(exact.single, exact.grouped, exact.sdpa), exact.allowed),
            quicker(full, single),
        ),
        "speed",
        N_(
            "one layer in three settings: GQA agrees with MHA of copied heads to {gap:.1e} and "
            "with PyTorch's enable_gqa to {sdpa:.1e}. A decoding step against {length} cached "
            "tokens took {ratio:.1f} times as long with MHA as with MQA"
        ),
        {
            "gap": exact.grouped,
            "sdpa": exact.sdpa,
            "length": length,
            "ratio": statistics.median(full) / statistics.median(single),
        },
        timed=True,
    )


def judged_models() -> list[Outcome]:
    """Claims about published models: formula and cited facts."""
    big = architecture("LLaMA-2 70B")
    one = {kv: of_model(big, kv_heads=kv, tokens=4096) for kv in (64, 8, 1)}
    mha_8 = of_model(big, kv_heads=64, tokens=4096, batch=8)
    gqa_32 = of_model(big, kv_heads=8, tokens=4096, batch=32)
    gqa_long = of_model(big, kv_heads=8, tokens=131072)
    per_token = {name: of_model(architecture(name), kv_heads=architecture(name).num_kv_heads,
                                tokens=1) for name in NAMED}  # fmt: skip
    family = [architecture(name) for name in (
        "LLaMA-2 7B", "LLaMA-2 13B", "LLaMA-2 34B", "LLaMA-2 70B", "LLaMA-3 8B", "LLaMA-3 70B",
        "LLaMA-3 405B", "Mistral 7B",
    )]  # fmt: skip
    full, single = (2 * big.d_model * big.head_dim * (64 + kv) for kv in (64, 1))
    return [
        outcome(
            "B6.2", tens_of_gb(one[8], (one[64], mha_8, gqa_32, gqa_long)), "memory",
            N_(
                "LLaMA-2 70B, 16 bit, 4,096 tokens: {mha:.3g} GiB if it were MHA, {gqa:.3g} GiB as "
                "it is (8 key/value heads), {mqa:.2g} GiB if MQA. MHA with batch 8: {mha8:.0f} "
                "GiB; 8 key/value heads with batch 32 {gqa32:.0f} GiB, at 131,072 tokens "
                "{long:.0f} GiB"
            ),
            {
                "mha": one[64] / GIB, "gqa": one[8] / GIB, "mqa": one[1] / GIB,
                "mha8": mha_8 / GIB, "gqa32": gqa_32 / GIB, "long": gqa_long / GIB,
            },
            N_("full heads, a batch, or a long context; one short sequence of the real model no"),
        ),
        outcome(
            "B6.4", stated(one[64] == 64 * one[1]), "cache-size",
            N_(
                "by the factor of the number of heads: {factor:.0f} for the shape of LLaMA-2 70B. "
                "Cache bytes per token as published: LLaMA-2 70B {a}, LLaMA-3 8B {b}, Mistral 7B "
                "{c}. Parameters of an attention layer fall too, to {share:.0%}"
            ),
            {
                "factor": one[64] / one[1], "a": per_token[NAMED[0]], "b": per_token[NAMED[1]],
                "c": per_token[NAMED[2]], "share": single / full,
            },
        ),
        outcome(
            "B6.8", grouped(family), "published",
            N_(
                "by their papers: LLaMA-2 7B and 13B {small}, 34B and 70B {large}; LLaMA-3 8B, 70B "
                "and 405B {third}; Mistral 7B {mistral} ({kv} key/value heads)"
            ),
            {
                "small": family[0].kind, "large": family[3].kind, "third": family[4].kind,
                "mistral": family[7].kind, "kv": family[7].num_kv_heads,
            },
            N_("LLaMA-2 in the sizes 34B and 70B only; LLaMA-3 and Mistral 7B in general"),
        ),
    ]  # fmt: skip


def gap_of(found: Qualities, task: str, name: str) -> dict[str, float]:
    """Right answers of a way of sharing minus those of MHA, with the interval."""
    pairs = zip(found[task, name], found[task, "MHA"], strict=True)
    gap = interval([a.right - b.right for a, b in pairs])
    return {"mean": gap.mean, "low": gap.low, "high": gap.high}


def judged_quality(found: Qualities, costs: Mapping[tuple[str, str], Verdict]) -> Outcome:
    """MQA against MHA, at equal width and at equal parameters."""
    used = [costs[task, name] for task in TASK_LABELS for name in ("MQA", "MQA =")]
    fields = {}
    for task in TASK_LABELS:
        for name, short in (("MQA", "w"), ("MQA =", "p")):
            for end, value in gap_of(found, task, name).items():
                fields[f"{task}_{short}_{end}"] = value
    return outcome(
        "B6.5", some_loss(used), "quality",
        N_(
            "MQA minus MHA, right predictions (95 %): recall at equal width {recall_w_mean:+.1%} "
            "({recall_w_low:+.1%} to {recall_w_high:+.1%}), at equal parameters "
            "{recall_p_mean:+.1%} ({recall_p_low:+.1%} to {recall_p_high:+.1%}); text "
            "{text_w_mean:+.1%} ({text_w_low:+.1%} to {text_w_high:+.1%}) and {text_p_mean:+.1%} "
            "({text_p_low:+.1%} to {text_p_high:+.1%}). An interval that contains 0 is noise. "
            "Published for T5-XXL (Ainslie et al. 2023, table 1): MHA 47.2, GQA-8 47.1, MQA 46.6"
        ),
        fields,
        Phrase(
            N_("{count} of {total} comparisons show a loss; the others are within noise"),
            {"count": used.count("holds"), "total": len(used)},
        ),
    )  # fmt: skip


def conclusion(found: Qualities, steps: int) -> list[Phrase]:
    """The answer in a few sentences."""
    big = architecture("LLaMA-2 70B")
    gap = gap_of(found, "recall", "MQA")
    return [
        Phrase(
            N_(
                "The cache is proportional to the number of key/value heads, not of query heads: "
                "per token of LLaMA-2 70B {mha} bytes with 64, {gqa} with its 8, {mqa} with 1."
            ),
            {
                "mha": of_model(big, kv_heads=64, tokens=1),
                "gqa": of_model(big, kv_heads=8, tokens=1),
                "mqa": of_model(big, kv_heads=1, tokens=1),
            },
        ),
        Phrase(
            N_(
                "MHA and MQA are the two ends of GQA: with all heads it is MHA bit for bit, with "
                "one it is MHA whose heads are copies, and its K gradient is the copies' sum."
            )
        ),
        Phrase(
            N_(
                "Quality on a tiny recall task after {steps} steps, MQA minus MHA at equal width: "
                "{mean:+.1%} (95 %: {low:+.1%} to {high:+.1%}). Tiny tasks can't say what sharing "
                "costs a large model; the published figures can."
            ),
            {"steps": steps, **gap},
        ),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="how-many-kv-heads",
        number=13,
        question=N_("How many key/value heads?"),
        hypothesis=N_(
            "Sharing key/value heads shrinks the cache by the number of heads that share, contains "
            "MHA and MQA as its two ends exactly, and costs little quality."
        ),
        varied=N_("number of key/value heads; at equal width and at equal parameters"),
        fixed=N_("data, steps, seeds, head size"),
        needs=("how-many-heads", "does-the-cache-change-anything"),
        claims=(
            "B6.1", "B6.2", "B6.3", "B6.4", "B6.5", "B6.6", "B6.7", "B6.8", "B9.3", "S13", "S19",
        ),
        quick={"heads": 16, "length": 2048, "rounds": 15, "seeds": 5, "steps": 150},
        full={"heads": 32, "length": 16384, "rounds": 41, "seeds": 20, "steps": 300},
        minutes=(0.5, 5.0),
        run=run,
    )
)  # fmt: skip
