"""Lab 20: the course's flow chart as one trace, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import (
    Chart,
    Lab,
    LabResult,
    Outcome,
    Phrase,
    Progress,
    Sheet,
    Value,
    Verdict,
    register,
)
from headwise.labs.measures.the_whole_flow import (
    SECTIONS,
    by_formula,
    coverage,
    dependence,
    encoder_padding,
    judged_complete,
    judged_coverage,
    judged_entry,
    judged_order,
    left_out,
    minimal,
    positions_enter,
    steps,
    three_kinds,
)
from headwise.labs.parts.drawn import conditional, listing, outcome
from headwise.stages import STAGES
from headwise.texts import mark as N_


# ------------------------------------------------------------------ the run
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Measure, judge, and put into words."""
    progress("one trace", 0.0)
    trace, formulas, changes = steps(seed), by_formula(seed), dependence(seed)
    parts, kinds, plain = left_out(seed), three_kinds(seed), minimal(seed)
    progress("GPT-2 and LLaMA", 0.3)
    entry = positions_enter(seed)
    progress("labs by section", 0.9)
    covered = coverage()
    progress("done", 1.0)
    order = judged_order(changes)
    facts = {**formulas, **{f"without {n}": v for n, v in parts.items()}, **kinds, **plain,
             "encoder_padding": encoder_padding(seed), **(entry or {})}  # fmt: skip
    names = [stage.name for stage in STAGES]
    verdict = all_of(order, within(formulas["torch"], formulas["allowed"]))
    return LabResult(
        "the-whole-flow",
        dict(params),
        seed,
        verdict,
        [
            Phrase(
                N_(
                    "The chart's order is the order of the calculation: each step follows from "
                    "the one before by its formula (largest difference {worst:.1g}), and "
                    "replacing a step changes it and exactly the later ones."
                ),
                {
                    "worst": max(
                        formulas[n]
                        for n in (
                            "input",
                            "projection",
                            "split",
                            "scores",
                            "softmax",
                            "aggregate",
                            "merge",
                            "output",
                        )
                    )
                },
            ),
            Phrase(
                N_(
                    "It is not the whole picture: {parts} are missing, and each of them changes "
                    "the output."
                ),
                {"parts": ", ".join(parts)},
            ),
        ],
        [*about_steps(formulas, facts, entry), *about_whole(order, parts, kinds, plain, covered)],
        [
            Chart(
                "dependence",
                "heat",
                Phrase(N_("Replacing a step changes exactly the later ones (grey: no change)")),
                Phrase(N_("step looked at (numbers as on the left)")),
                Phrase(N_("step replaced")),
                Phrase(
                    N_(
                        "Square of ten by ten steps: zeros (grey) below the diagonal, changes on "
                        "it and above."
                    )
                ),
                grid=[[v if v > 0.0 else None for v in row] for row in changes],
                row_labels=[f"{i} {name}" for i, name in enumerate(names, 1)],
                column_labels=[str(i) for i in range(1, len(names) + 1)],
            ),
        ],
        [
            Sheet(
                "trace",
                Phrase(N_("The flow, step by step (B = 1, T = 4, D = 8, H = 2)")),
                tuple(trace[0]),
                [tuple(step.values()) for step in trace],
                (
                    Phrase(N_("no.")),
                    Phrase(N_("step of the chart")),
                    Phrase(N_("tensor")),
                    Phrase(N_("shape")),
                    Phrase(N_("smallest")),
                    Phrase(N_("largest")),
                    Phrase(N_("−∞ entries")),
                    Phrase(N_("first numbers")),
                ),
            ),
            listing(
                "facts",
                N_("Each step once more by its formula, and what is left out: differences"),
                facts,
            ),
            Sheet(
                "coverage",
                Phrase(N_("Labs by section of the course")),
                ("section", "labs"),
                [(s, ", ".join(found)) for s, found in covered.items()],
                (Phrase(N_("section")), Phrase(N_("labs"))),
            ),
        ],
    )


def about_steps(
    formulas: Mapping[str, float], facts: Mapping[str, Any], entry: Mapping[str, float] | None
) -> list[Outcome]:
    """A5.5, B8.1 to B8.10."""
    allowed = formulas["allowed"]

    def step(claim: str, name: str, text: str) -> Outcome:
        return outcome(
            claim, within(formulas[name], allowed), "trace", text, {"gap": formulas[name]}
        )

    if entry is None:
        where = outcome(
            "B8.1",
            "not-enough-data",
            "facts",
            N_("transformers is not installed, so no GPT-2 and no LLaMA was looked at"),
        )
    else:
        where = outcome(
            "B8.1",
            judged_entry(entry),
            "facts",
            N_(
                "other positions change the first projection of a small GPT-2 by "
                "{gpt2_projection:.2g}: they are part of X. In a small LLaMA they change the "
                "query projection by exactly {llama_projection:.1g} and the output by "
                "{llama_output:.2g}: they enter after it, on Q and K"
            ),
            entry,
            N_("for added encodings (GPT-2, the original); rotary positions enter after the split"),
        )
    ratio = max(abs(facts["ratio_low"] - facts["root"]), abs(facts["ratio_high"] - facts["root"]))
    return [
        outcome(
            "A5.5",
            within(ratio, 1e-9),
            "facts",
            N_(
                "raw scores over scaled ones, wherever visible: {ratio_low:.6f} to "
                "{ratio_high:.6f}; √d_head = {root:.6f}"
            ),
            facts,
        ),
        where,
        step("B8.2", "projection", N_("Q, K and V equal X·Wᵀ to {gap:.1g}")),
        step(
            "B8.3",
            "split",
            N_("equal to cutting the channels by hand to {gap:.1g}: reshape and transpose"),
        ),
        step("B8.4", "scores", N_("equal to the formula, cell by cell, to {gap:.1g}")),
        outcome(
            "B8.5",
            conditional(formulas["mask"] == 0.0, facts["encoder_padding"] == 0.0),
            "trace",
            N_(
                "adding M (0 and −∞) gives the masked scores bit for bit; in an encoder, without "
                "causality, a padding mask moves real rows by {encoder_padding:.2g}"
            ),
            facts,
            N_("for the causal part; padding masks belong here as well, in encoders too"),
        ),
        outcome(
            "B8.6",
            all_of(
                within(formulas["row maximum"], 0.0),
                stated(formulas["largest_shifted"] == 0.0),
                stated(formulas["mask_after_maximum"] == 1.0),
            ),
            "trace",
            N_(
                "row maximum and shifted scores are values of the trace: after it the largest "
                "score is {largest_shifted:.1g} and the largest exponential "
                "{largest_exponential:.1g}. It must follow the mask: with a hidden score 200 "
                "above, the other order gives NaN in float32"
            ),
            facts,
        ),
        outcome(
            "B8.7",
            all_of(within(formulas["softmax"], allowed), within(formulas["row_sums"], allowed)),
            "trace",
            N_("A equals e^x/Σe^x to {softmax:.1g}; its rows sum to 1 within {row_sums:.1g}"),
            facts,
        ),
        step("B8.8", "aggregate", N_("A·V, summed by hand, to {gap:.1g}")),
        step("B8.9", "merge", N_("heads side by side, to {gap:.1g}")),
        outcome(
            "B8.10",
            all_of(within(formulas["output"], allowed), within(formulas["torch"], allowed)),
            "trace",
            N_(
                "the concatenation times W_O, to {output:.1g}; the whole against PyTorch's "
                "function {torch:.1g}. The course uses the letter O for two things: A·V and the "
                "end"
            ),
            facts,
        ),
    ]


def about_whole(
    order: Verdict,
    parts: Mapping[str, float],
    kinds: Mapping[str, float],
    plain: Mapping[str, float],
    covered: Mapping[str, Sequence[str]],
) -> list[Outcome]:
    """A0.1, A5.15, B0.1, B8.11, B9.1, S16."""
    missing = [s for s, labs in covered.items() if not labs]
    seven = {s: covered[s] for s in SECTIONS["B"][:7]}
    counted: dict[str, Value] = {
        "sections": len(covered),
        "covered": len(covered) - len(missing),
        "missing": ", ".join(missing) or "-",
        "seven": sum(bool(labs) for labs in seven.values()),
        "labs": len({lab for labs in seven.values() for lab in labs}),
    }
    names = ", ".join(f"{n} ({v:.2g})" for n, v in parts.items())
    whole = all_of(order, judged_complete(parts))
    return [
        outcome(
            "A0.1",
            judged_coverage(covered),
            "coverage",
            N_(
                "{covered} of {sections} sections have a lab (without: {missing}). The list of "
                "outcomes is cut off in the course's file; we write none into its mouth"
            ),
            counted,
        ),
        outcome(
            "A5.15",
            all_of(within(plain["layer"], 1e-12), conditional(True, not parts)),
            "facts",
            N_("run as it is, the course's layer equals the definition to {layer:.1g}"),
            plain,
            Phrase(
                N_(
                    "as minimal causal self-attention; a full layer also has: {names}; a switch "
                    "for causality, a cache and Dv ≠ Dk"
                ),
                {"names": ", ".join(parts)},
            ),
        ),
        outcome(
            "B0.1",
            judged_coverage(seven),
            "coverage",
            N_(
                "{seven} of the seven topics have a lab ({labs} labs). The earlier answer that "
                "is referred to is not in the files"
            ),
            counted,
        ),
        outcome(
            "B8.11",
            whole,
            "dependence",
            N_(
                "one trace shows all steps with shapes and numbers, and replacing any step "
                "changes exactly the later ones; parts that it leaves out, with the change of "
                "the output: {names}"
            ),
            {"names": names},
            N_(
                "for one plain layer; dropout, grouped heads, a cache, biases and positions "
                "after the split are left out"
            ),
        ),
        outcome(
            "B9.1",
            judged_coverage(seven),
            "coverage",
            N_(
                "{seven} of the seven points are covered by {labs} labs; {covered} of all "
                "{sections} sections"
            ),
            counted,
        ),
        outcome(
            "S16",
            within(max(kinds.values()), 1e-12),
            "facts",
            N_(
                "one definition, three kinds, against nn.MultiheadAttention with its weights: "
                "encoder {encoder:.1g}, decoder {decoder:.1g}, cross attention {cross:.1g}"
            ),
            kinds,
        ),
    ]


LAB = register(
    Lab(
        name="the-whole-flow",
        number=20,
        question=N_("How does the whole flow look, step by step, and is it the whole?"),
        hypothesis=N_(
            "Each step of the chart follows from the one before by its formula; replacing one "
            "changes exactly the later ones; real layers have more parts."
        ),
        varied=N_(
            "the step that is replaced; the part that the chart leaves out; the model in which "
            "positions are moved"
        ),
        fixed=N_(
            "one causal layer with sinusoidal positions, weights and input from the seed, float64"
        ),
        needs=("why-project-at-all", "is-the-right-shape-enough"),
        claims=(
            "A0.1",
            "A5.5",
            "A5.15",
            "B0.1",
            "B8.1",
            "B8.2",
            "B8.3",
            "B8.4",
            "B8.5",
            "B8.6",
            "B8.7",
            "B8.8",
            "B8.9",
            "B8.10",
            "B8.11",
            "B9.1",
            "S16",
        ),
        quick={},
        full={},
        minutes=(0.2, 0.2),
        run=run,
    )
)
