"""Lab 18: how 4096 channels become 32 heads of 128, what that costs, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.figures.how_heads_are_split import charts, sheets
from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Value,
    register,
)
from headwise.labs.measures.how_heads_are_split import (
    Step,
    assert_survives,
    catalogue_splits,
    copy_times,
    course_layer,
    indivisible,
    journey,
    judged_cost,
    judged_view,
    libraries,
    places,
    reshape_hides,
    view_raises,
)
from headwise.labs.parts.drawn import conditional, outcome
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_

ROUNDING = 1e-13
SIZES = (
    (2, 5, 4, 8),
    (1, 5, 4, 8),
    (2, 2, 2, 8),
    (2, 5, 4, 1),
    (2, 1, 4, 8),
    (2, 5, 1, 8),
    (1, 1, 4, 8),
)


def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    progress("4096 → 32 × 128", 0.0)
    d_model, heads, tokens = params["d_model"], params["heads"], params["tokens"]
    AttentionSpec(d_model=d_model, num_heads=heads)  # refuses what can't be divided
    steps = journey(d_model, heads, tokens)
    raised = {size: view_raises(*size) for size in SIZES}
    progress("wrong splits", 0.2)
    mixed, where = catalogue_splits(seed), places(8, 4)
    layer = {**course_layer(seed), **reshape_hides(), "assert_under_o": assert_survives()}
    progress("time of the copy", 0.3)
    times = copy_times(params["lengths"], d_model, heads, params["repeats"])
    progress("LLaMA and GPT-2", 0.6)
    real = libraries(seed)
    progress("done", 1.0)
    there = steps[3].tensor
    total = sum(step.copied for step in steps)
    facts: dict[str, Any] = {
        **mixed,
        **layer,
        "copied_bytes": total,
        "copied_splitting": sum(s.copied for s in steps[:6]),
        "back": float(steps[5].tensor.eq(steps[1].tensor).all()),
    }
    verdict = all_of(within(mixed["split"], 0.0), stated(facts["copied_splitting"] == 0))
    return LabResult(
        "how-heads-are-split",
        dict(params),
        seed,
        verdict,
        [
            Phrase(
                N_(
                    "Splitting {d_model} channels into {heads} heads copies nothing: view and "
                    "transpose only change the strides, to {strides}."
                ),
                {"d_model": d_model, "heads": heads, "strides": str(there.stride())},
            ),
            Phrase(
                N_(
                    "The way back is free for an untouched split; merging the context copies "
                    "{bytes} bytes for {tokens} tokens, since the heads lie in another order in "
                    "memory."
                ),
                {"bytes": total, "tokens": tokens},
            ),
            Phrase(
                N_(
                    "A bare view has the right shape and the wrong contents: head 0 then holds "
                    "{tokens_in_head:.0f} of 5 tokens, with channels of {heads_in_head:.0f} heads."
                ),
                mixed,
            ),
        ],
        [
            *about_layer(facts),
            *about_memory(steps, raised, facts, times),
            *about_sizes(facts, steps, real, params),
        ],
        charts(where, times, params),
        sheets(steps, raised, facts, real, times, params),
    )


def about_layer(facts: Mapping[str, Any]) -> list[Outcome]:
    """A5.1 to A5.4, A5.9, A10.4."""
    message = indivisible()
    named = "10" in message and "3" in message
    fused = all_of(
        within(facts["fused"], ROUNDING), stated(facts["parameters"] == facts["four_squares"])
    )
    return [
        outcome(
            "A5.1",
            conditional(named, facts["assert_under_o"] == 1.0),
            "facts",
            N_(
                "10 channels in 3 heads must be refused, and the message must name both numbers. "
                "Ours: {message}. Compiled as with -O, the course's assert is gone"
            ),
            {"message": message},
            N_("as long as Python runs without -O, which removes assert; a real error is needed"),
        ),
        outcome(
            "A5.2",
            fused,
            "facts",
            N_(
                "{parameters:.0f} parameters for D = 64, that is 4·D²; the fused product equals "
                "three separate ones to {fused:.1g}"
            ),
            facts,
        ),
        outcome(
            "A5.3",
            all_of(within(facts["order_right"], ROUNDING), stated(facts["order_wrong"] > 1e-3)),
            "facts",
            N_(
                "of the six orders of the blocks only q, k, v agrees with nn.MultiheadAttention "
                "({order_right:.1g}; the others are off by at least {order_wrong:.2g}). Other "
                "code bases pack per head or as q, v, k"
            ),
            facts,
        ),
        outcome(
            "A5.4",
            all_of(within(facts["split"], 0.0), stated(facts["H01_off"] > 1e-3)),
            "split-wrong",
            N_(
                "view and transpose equal a loop over heads and rows to {split:.1g}, also on the "
                "chunk, which is not contiguous; the bare view of catalogue fault H01 is off by "
                "{H01_off:.2g}"
            ),
            facts,
        ),
        outcome(
            "A5.9",
            all_of(
                within(facts["merge"], 0.0),
                within(facts["output"], ROUNDING),
                within(facts["weights"], ROUNDING),
            ),
            "facts",
            N_(
                "the merged tensor equals a loop to {merge:.1g}, the output the definition's to "
                "{output:.1g}, the returned weights to {weights:.1g}. Returning them keeps "
                "B·H·T² numbers alive ({weights_kept_bytes:.0f} bytes here)"
            ),
            facts,
        ),
        outcome(
            "A10.4",
            stated(
                facts["projection_by_heads"] == 0.0
                and facts["output_by_heads"] > 1e-3
                and facts["parameters_spread"] == 0.0
            ),
            "facts",
            N_(
                "the same matrices with 1, 2, 4 and 8 heads: projections differ by "
                "{projection_by_heads:.1g}, parameters by {parameters_spread:.0f}, outputs by at "
                "least {output_by_heads:.2g}. Same numbers, another function"
            ),
            facts,
        ),
    ]


def about_memory(
    steps: Sequence[Step],
    raised: Mapping[tuple[int, int, int, int], str],
    facts: Mapping[str, Any],
    times: Sequence[Mapping[str, float]],
) -> list[Outcome]:
    """A5.11 to A5.14, S1."""
    before, after = steps[2].tensor, steps[3].tensor
    same_memory = before.data_ptr() == after.data_ptr() and before.stride() != after.stride()
    view = judged_view({size: bool(message) for size, message in raised.items()})
    free = [f"T={t} H={h} d={d}" for (_b, t, h, d), message in raised.items() if not message]
    strides: dict[str, Value] = {"before": str(before.stride()), "after": str(after.stride())}
    hides = facts["view_raised"] == 1.0 and facts["reshape_off"] > 0.0
    last = times[-1]
    return [
        outcome(
            "A5.11",
            stated(same_memory),
            "steps",
            N_(
                "the same memory address, strides {before} before and {after} after; nothing copied"
            ),
            strides,
        ),
        outcome(
            "A5.12",
            view,
            "view",
            N_(
                "view raises for {raising} of {all} sizes tried, and works without a copy for "
                "{free}"
            ),
            {
                "raising": sum(map(bool, raised.values())),
                "all": len(raised),
                "free": ", ".join(free),
            },
            N_(
                "unless T = 1, H = 1 or a head has one channel, where it works without a copy: a "
                "test with such sizes proves nothing"
            ),
        ),
        outcome(
            "A5.13",
            stated(facts["reshape_copied"] > 0 and facts["right_copied"] == 0),
            "facts",
            N_(
                "reshape copies where view can't ({reshape_copied:.0f} bytes) and copies nothing "
                "where it can ({right_copied:.0f}). So with a forgotten transpose, where view "
                "raises, it silently mixes tokens (off by {reshape_off:.0f}): it can hide an "
                "error"
            ),
            facts,
        ),
        outcome(
            "A5.14",
            judged_cost([t["copy"] for t in times], [t["view"] for t in times]),
            "times",
            N_(
                "one merge copies {bytes:.0f} bytes at T = {tokens:.0f} and takes {ratio:.0f} "
                "times as long as the view alone; one such copy per layer in the course's layer"
            ),
            {**last, "ratio": last["copy"] / last["view"]},
            timed=True,
        ),
        outcome(
            "S1",
            all_of(stated(same_memory and hides), within(facts["output"], ROUNDING)),
            "steps",
            N_(
                "Linear, chunk, view, transpose, contiguous, reshape, triu, masked_fill and "
                "softmax, each used as in the course; together they equal the definition to "
                "{output:.1g}"
            ),
            facts,
        ),
    ]


def about_sizes(
    facts: Mapping[str, Any],
    steps: Sequence[Step],
    real: Mapping[str, str] | None,
    params: Mapping[str, Any],
) -> list[Outcome]:
    """B13.1 to B13.3, B16.1."""
    missing = N_("transformers is not installed, so no library layer was looked at")
    flat, split = steps[1].tensor, steps[3].tensor
    shapes: dict[str, Value] = {
        "flat": str(tuple(flat.shape)),
        "split": str(tuple(split.shape)),
        "strides": str(split.stride()),
        "bytes": facts["copied_bytes"],
        "splitting": facts["copied_splitting"],
    }
    per_head = split.shape[-1] == params["d_model"] // params["heads"]
    if real is None:
        one = outcome("B13.1", "not-enough-data", "libraries", missing)
        two = outcome("B13.2", "not-enough-data", "libraries", missing)
    else:
        texts: dict[str, Value] = {
            "llama": real["LLaMA"],
            "gpt": real["GPT-2"],
            "sizes": real["LLaMA 7B"],
        }
        right = real["LLaMA"] == "(1, 4, 5, 8)" and real["GPT-2"] == "(1, 4, 5, 12)"
        one = outcome(
            "B13.1",
            stated(right),
            "libraries",
            N_(
                "keys of a small LLaMA (d_model 32, 4 heads): {llama}; of a small GPT-2 (d_model "
                "48, 4 heads): {gpt}. The last number is d_model / heads"
            ),
            texts,
        )
        two = outcome(
            "B13.2",
            stated(real["LLaMA 7B"] == "4096 = 32 × 128"),
            "libraries",
            N_(
                "the library's default LLaMA configuration, that of the 7B model: {sizes} "
                "(Touvron et al. 2023, table 2)"
            ),
            texts,
        )
    return [
        one,
        two,
        outcome(
            "B13.3",
            conditional(per_head, flat.shape[-1] == split.shape[-1]),
            "steps",
            N_("after the projection Q is {flat}, all heads at once; only after the split {split}"),
            shapes,
            N_("per head: real code projects all heads at once and then cuts"),
        ),
        outcome(
            "B16.1",
            all_of(within(facts["split"], 0.0), stated(facts["back"] == 1.0 and per_head)),
            "steps",
            N_(
                "drawn from tensors of a run: strides {strides} after the transpose; splitting "
                "copies {splitting} bytes, the untouched way back none and gives the same "
                "numbers, merging the context {bytes}"
            ),
            shapes,
        ),
    ]


LAB = register(
    Lab(
        name="how-heads-are-split",
        number=18,
        question=N_("How are 4096 channels cut into 32 heads of 128, and what does it cost?"),
        hypothesis=N_(
            "The split copies nothing and changes only strides; the merge copies once; a bare "
            "view has the right shape and the wrong contents."
        ),
        varied=N_(
            "the operation; the sizes at which view is tried; the order of the blocks; the "
            "number of tokens"
        ),
        fixed=N_(
            "d_model 4096 and 32 heads where memory is looked at; small layers from the seed "
            "where numbers are"
        ),
        needs=("what-are-n-and-d",),
        claims=(
            "A5.1",
            "A5.2",
            "A5.3",
            "A5.4",
            "A5.9",
            "A5.11",
            "A5.12",
            "A5.13",
            "A5.14",
            "A10.4",
            "B13.1",
            "B13.2",
            "B13.3",
            "B16.1",
            "S1",
        ),
        quick={"d_model": 4096, "heads": 32, "tokens": 6, "lengths": (16, 64, 256), "repeats": 20},
        full={
            "d_model": 4096,
            "heads": 32,
            "tokens": 6,
            "lengths": (16, 64, 256, 1024),
            "repeats": 100,
        },
        minutes=(0.15, 0.4),
        run=run,
    )
)
