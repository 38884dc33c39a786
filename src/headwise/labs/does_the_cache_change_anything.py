"""Lab 12: does a cache of keys and values change the result, what does it save, what is still read?

The cache is the few lines of ``labs/cached.py``; recomputation is the definition. Counts and bytes
are exact; times are ratios measured side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from headwise.labs.figures.does_the_cache_change_anything import (
    breaks_chart,
    bytes_chart,
    difference_sheet,
    growth_chart,
    moved_chart,
    small_sheets,
    time_chart,
    time_sheets,
)
from headwise.labs.judge import all_of, log_slope, stated
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    register,
)
from headwise.labs.measures.cache_judges import (
    avoids_square,
    exponents,
    keys_stay,
    largest_gain,
    mask_needed,
    only_query,
    same_result,
)
from headwise.labs.measures.does_the_cache_change_anything import (
    WINDOW,
    Difference,
    Growth,
    Moved,
    Written,
    breaks,
    cache_sizes,
    earlier_keys,
    equality,
    growth,
    lengths_kept,
    parts_of_a_step,
    read_times,
    saving,
    step_times,
    without_mask,
    write_text,
)
from headwise.labs.parts.drawn import outcome
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure all of it; see the module."""
    with one_thread():
        return _run(params, seed, progress)


def _run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    length = int(params["length"])
    equal = equality(length, seed, lambda s: progress(N_("cached against recomputed"), 0.15 * s))
    progress(N_("earlier keys and values"), 0.16)
    moved = {
        causal: earlier_keys(length, seed + 1, layers=3, is_causal=causal)
        for causal in (True, False)
    }
    broken = breaks(length, seed + 2)
    mask = without_mask(length, seed + 3)
    counted = growth(
        int(params["tokens"]), seed + 4, lambda s: progress(N_("operations"), 0.2 + 0.2 * s)
    )
    parts = parts_of_a_step(int(params["tokens"]), seed + 5)
    progress(N_("bytes of the cache"), 0.42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {
        str(dtype).removeprefix("torch."): cache_sizes(length, seed + 6, dtype, device)
        for dtype in (torch.float32, torch.float16)
    }
    kept = lengths_kept(length, seed + 7)
    progress(N_("time per token"), 0.45)
    rounds = int(params["rounds"])
    every_time = step_times(
        params["step_lengths"], seed + 8, d_model=params["width"], rounds=rounds
    )
    progress(N_("time to read the cache"), 0.7)
    reading = read_times(params["read_lengths"], seed + 9, rounds=rounds)
    text = write_text(
        steps=int(params["train_steps"]),
        words=16,
        seed=seed + 10,
        progress=lambda s: progress(N_("a text written twice"), 0.75 + 0.24 * s),
    )
    powers = exponents(counted)
    times = [{name: median(taken) for name, taken in t.items()} for t in every_time]
    gains = {
        "cache": [t["recomputed"] / t["cached"] for t in times],
        "batch": [t["cached"] / t["batch"] for t in times],
    }
    outcomes = [
        *_same_outcomes(equal, moved, broken, mask, text, kept),
        *_cost_outcomes(counted, powers, parts, sizes, device),
        *_time_outcomes(params, every_time, gains, reading),
    ]
    verdict = all_of(same_result(equal), stated(avoids_square(*powers) != "does-not-hold"))
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=verdict,
        conclusion=_conclusion(equal, moved, broken, powers, gains, params),
        outcomes=outcomes,
        charts=[
            breaks_chart(broken),
            moved_chart(moved),
            growth_chart(counted, powers),
            bytes_chart(sizes["float16"]),
            time_chart(params["step_lengths"], times),
        ],
        sheets=[
            difference_sheet("equality", N_("Cached against recomputed, float64"), equal),
            difference_sheet(
                "breaks", N_("What makes a cache wrong (scores of the last token)"), broken
            ),
            *small_sheets(mask, parts, kept, sizes, text),
            *time_sheets(params, times, reading),
        ],
    )


def _conclusion(
    equal: Sequence[Difference],
    moved: Mapping[bool, Moved],
    broken: Sequence[Difference],
    powers: tuple[tuple[float, float], tuple[float, float]],
    gains: Mapping[str, Sequence[float]],
    params: Mapping[str, Any],
) -> list[Phrase]:
    wrong = [d.error for d in broken if d.error > d.allowed]
    return [
        Phrase(
            N_(
                "A cache changes the cost and not the result: {runs} cached runs of {variants} "
                "kinds of layer equal recomputation within {error:.1e}, in float64."
            )
            if same_result(equal) == "holds"
            else N_(
                "Some of the {runs} cached runs of {variants} kinds of layer differ from "
                "recomputation beyond rounding, by up to {error:.1e}."
            ),
            {
                "runs": len(equal),
                "variants": len({d.case for d in equal}),
                "error": max(d.error for d in equal),
            },
        ),
        Phrase(
            N_(
                "That rests on earlier keys and values staying what they were. In causal layers "
                "they do; where tokens also look ahead they moved by up to {open:.2g}, and "
                "wherever old keys should have changed (another rotary base, renumbered or "
                "forgotten tokens) the cached scores were off by {low:.2g} to {high:.2g}."
            ),
            {
                "open": max(moved[False].appended),
                "low": min(wrong, default=0.0),
                "high": max(wrong, default=0.0),
            },
        ),
        Phrase(
            N_(
                "For a text of n tokens attention costs about n to the power {a:.2f} without and "
                "{b:.2f} with a cache, the linear layers {c:.2f} and {d:.2f}: one power of n is "
                "saved, and each step still reads everything that is kept."
            ),
            {"a": powers[0][0], "b": powers[0][1], "c": powers[1][0], "d": powers[1][1]},
        ),
        Phrase(
            N_("At {n} tokens a cached step took {gain:.3g} times less time, side by side."),
            {"n": params["step_lengths"][-1], "gain": gains["cache"][-1]},
        ),
    ]


# ------------------------------------------------------------------ outcomes
def _same_outcomes(
    equal: Sequence[Difference],
    moved: Mapping[bool, Moved],
    broken: Sequence[Difference],
    mask: Mapping[str, float],
    text: Written,
    kept: Mapping[str, Sequence[int]],
) -> list[Outcome]:
    by_case = {d.case: d for d in broken}
    grows = kept["all"] == list(range(1, len(kept["all"]) + 1))
    return [
        outcome(
            "S12",
            same_result(equal),
            "equality",
            N_(
                "one shot, in chunks and token by token, with MHA, GQA, MQA, RoPE and windows: "
                "largest difference {error:.1e}, allowed {allowed:.1e}"
            ),
            {
                "error": max(d.error for d in equal),
                "allowed": min(d.allowed for d in equal),
            },
        ),
        outcome(
            "B5.3",
            keys_stay(moved[True], moved[False]),
            "earlier-keys",
            N_(
                "replacing the last token moves earlier keys and values by {causal:.1g} in "
                "causal layers; where tokens look ahead by up to {open:.2g}, from layer 2 on. "
                "A rotary base that depends on the length: scores off by {base:.2g}; "
                "renumbered positions: {renumbered:.2g}"
            ),
            {
                "causal": max(moved[True].replaced),
                "open": max(moved[False].replaced),
                "base": by_case["dynamic-scaling"].error,
                "renumbered": by_case["dropped-renumbered"].error,
            },
            condition=N_("causal layers, and positions that are not renumbered or rescaled"),
        ),
        outcome(
            "B5.1",
            stated(grows),
            "lengths",
            N_(
                "the cache grew by one token in each of {steps} steps; with a rolling window "
                "it stopped at {window}"
            ),
            {"steps": len(kept["all"]), "window": max(kept["rolling"])},
        ),
        outcome(
            "B5.2",
            all_of(stated(grows), stated(max(kept["rolling"]) == WINDOW)),
            "lengths",
            N_(
                "step t has one query against t keys and values (1 to {steps} here); a "
                "sliding window limits both to {window}"
            ),
            {"steps": kept["all"][-1], "window": max(kept["rolling"])},
        ),
        outcome(
            "B4.5",
            mask_needed(mask),
            "mask",
            N_(
                "leaving the mask out changes the scores by {one:.1g} for one new token, by "
                "{chunk:.2g} for a chunk and by {prompt:.2g} for a whole prompt, as in training"
            ),
            {
                "one": mask["one-token"],
                "chunk": mask["chunk"],
                "prompt": mask["whole-prompt"],
            },
            condition=N_("in training, prompts and chunks; one new token has no future to hide"),
        ),
        outcome(
            "S15",
            stated(text.cached == text.recomputed and text.loss_after < text.loss_before),
            "text",
            N_(
                "a small causal model, trained here, continues “{prompt}” with “{text}”, "
                "word for word the same with a cache and without"
            )
            if text.cached == text.recomputed
            else N_("“{prompt}” was continued with “{text}” and with “{other}”"),
            {"prompt": text.prompt, "text": text.cached, "other": text.recomputed},
        ),
    ]


def _cost_outcomes(
    counted: Growth,
    powers: tuple[tuple[float, float], tuple[float, float]],
    parts: Mapping[str, int],
    sizes: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]],
    device: str,
) -> list[Outcome]:
    exact = (
        counted.cached == counted.cached_formula
        and counted.recomputed == counted.recomputed_formula
    )
    pairs = [pair for by_layer in sizes.values() for rows in by_layer.values() for pair in rows]
    right = stated(all(got == want for got, want in pairs))
    named, total = parts["query"] + parts["scores"], sum(parts.values())
    last = {name: rows[-1][0] for name, rows in sizes["float16"].items()}
    linear_bytes = log_slope(
        range(1, len(sizes["float16"]["MHA"]) + 1), [r[0] for r in sizes["float16"]["MHA"]]
    )[0]
    return [
        outcome(
            "B5.6",
            all_of(stated(exact), avoids_square(*powers)),
            "operations",
            N_(
                "counted over a text of n tokens: attention n^{a:.2f} without, n^{b:.2f} with "
                "a cache; linear layers n^{c:.2f} and n^{d:.2f}; the counts equal the formulas"
            ),
            {"a": powers[0][0], "b": powers[0][1], "c": powers[1][0], "d": powers[1][1]},
            condition=N_(
                "per step attention falls from n² to n and the linear layers from n to 1; "
                "with a cache attention over the whole text is still n²"
            ),
        ),
        outcome(
            "B5.5",
            only_query(parts),
            "step",
            N_(
                "of {total} operations of a step the query and its scores take {share:.0%}; "
                "the rest projects and appends the new key and value, sums the values and "
                "projects the output"
            ),
            {"total": total, "share": named / total},
            condition=N_("plus the new token's own key and value, the sum of values, and W_O"),
        ),
        outcome(
            "B5.4",
            right,
            "cache-bytes",
            N_(
                "bytes of the real tensors on {device} equal 2 · layers · kv heads · head size "
                "· tokens · bytes in all {cases} cases"
            ),
            {"device": device, "cases": len(pairs)},
        ),
        outcome(
            "S19",
            right,
            "cache-bytes",
            N_(
                "memory of the device present ({device}): {mha} bytes for MHA, {gqa} for GQA, "
                "{mqa} for MQA after {tokens} tokens in 16 bit, as the formula says"
            ),
            {
                "device": device,
                "mha": last["MHA"],
                "gqa": last["GQA"],
                "mqa": last["MQA"],
                "tokens": len(sizes["float16"]["MHA"]),
            },
        ),
        outcome(
            "A7.6",
            all_of(right, stated(abs(linear_bytes - 1.0) < 1e-9)),
            "bytes-per-step",
            N_(
                "past keys and values are reused, and each step reads all of them: bytes "
                "per step grow as t^{power:.2f}"
            ),
            {"power": linear_bytes},
        ),
    ]


def _time_outcomes(
    params: Mapping[str, Any],
    every_time: Sequence[Mapping[str, Sequence[float]]],
    gains: Mapping[str, Sequence[float]],
    reading: Sequence[float],
) -> list[Outcome]:
    lengths = params["step_lengths"]
    return [
        outcome(
            "B5.7",
            largest_gain(every_time),
            "time-per-token",
            N_(
                "a cached step is {short:.3g} times faster at {first} tokens and {long:.3g} "
                "times at {last}; serving 8 texts together gains another {batch:.3g} times "
                "per token at {first} and {batch_last:.3g} at {last}. Reading a cache "
                "{more:.3g} times as long takes {slower:.3g} times the time. By the formula "
                "(width 768) a cache saves {small:.0f} times the operations at 128 tokens, "
                "{large:.0f} times at 1024"
            ),
            {
                "short": gains["cache"][0],
                "first": lengths[0],
                "long": gains["cache"][-1],
                "last": lengths[-1],
                "batch": gains["batch"][0],
                "batch_last": gains["batch"][-1],
                "more": params["read_lengths"][-1] / params["read_lengths"][0],
                "slower": reading[-1] / reading[0],
                "small": saving(768, 128),
                "large": saving(768, 1024),
            },
            condition=N_(
                "for long texts; for short ones serving several texts together saves more"
            ),
            timed=True,
        )
    ]


LAB = register(
    Lab(
        name="does-the-cache-change-anything",
        number=12,
        question=N_("Does a cache of keys and values change the result, and what does it save?"),
        hypothesis=N_(
            "Cached decoding equals recomputation to rounding as long as earlier keys and values "
            "are fixed, and lowers the cost of a text by one power of its length."
        ),
        varied=N_(
            "Kind of layer (MHA, GQA, MQA, rotary, window), pieces of text, length, what happens "
            "to positions"
        ),
        fixed=N_("Weights, text, and for times the machine, one thread, side by side"),
        claims=tuple("A7.6 B4.5 B5.1 B5.2 B5.3 B5.4 B5.5 B5.6 B5.7 S12 S15 S19".split()),
        least={"length": 2, "tokens": 2},
        quick={
            "length": 18,
            "tokens": 48,
            "width": 128,
            "step_lengths": (16, 64, 256, 512),
            "read_lengths": (1024, 4096, 16384),
            "rounds": 7,
            "train_steps": 120,
        },
        full={
            "length": 40,
            "tokens": 128,
            "width": 256,
            "step_lengths": (16, 64, 256, 1024, 2048),
            "read_lengths": (1024, 4096, 16384, 65536),
            "rounds": 15,
            "train_steps": 400,
        },
        minutes=(0.2, 1.5),
        needs=("what-does-the-causal-mask-prevent", "what-does-rope-encode"),
        run=run,
    )
)
