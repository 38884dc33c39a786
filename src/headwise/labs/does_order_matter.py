"""Lab 10: does the order of the tokens matter?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.judge import Interval, all_of, greater, interval, stated
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
from headwise.labs.measures import does_order_matter as ordering
from headwise.labs.parts.lesson import judged, say
from headwise.labs.parts.small import one_thread
from headwise.numerics import float64_allowance
from headwise.texts import mark as N_
from headwise.texts import translate as _

Draws = Mapping[str, Sequence[float]]


def invariance(unchanged: Sequence[float], put_back: Sequence[float], allowed: float) -> Verdict:
    """Invariant (*holds*), equivariant only (*under conditions*) or neither."""
    if len(unchanged) < 3:
        return "not-enough-data"
    if max(unchanged) <= allowed:
        return "holds"
    return "holds-under-conditions" if max(put_back) <= allowed else "does-not-hold"


def matters(changes: Sequence[float], allowed: float) -> Verdict:
    """Whether order changes a result by more than rounding."""
    if len(changes) < 3:
        return "not-enough-data"
    if max(changes) <= allowed:
        return "does-not-hold"
    return greater(changes, [allowed] * len(changes))


def only_before_projection(by_place: Mapping[str, Verdict]) -> Verdict:
    """Whether positions work at the input alone: false once another place works as well."""
    if by_place.get("x") != "holds":
        return "not-enough-data"
    others = [v for place, v in by_place.items() if place != "x"]
    return "does-not-hold" if "holds" in others else stated(bool(others))


def told_apart(shifts: Draws, absolute: Mapping[str, bool], allowed: float) -> Verdict:
    """Whether a shift changes the scores of absolute encodings and of no others."""
    if not any(absolute.values()) or all(absolute.values()):
        return "not-enough-data"
    return stated(all((max(shifts[name]) > allowed) == wanted for name, wanted in absolute.items()))


def generally_rotary(found: Sequence[tuple[str, str, str]]) -> Verdict:
    """Whether all, some or none of the LLaMA and GPT families rotate."""
    known = [kind for name, kind, _s in found
             if name.startswith(("LLaMA", "GPT-", "gpt-")) and kind not in UNKNOWN]  # fmt: skip
    if not known or not any(name == "LLaMA" and kind not in UNKNOWN for name, kind, _s in found):
        return "not-enough-data"
    rotary = [kind == "rotary" for kind in known]
    if all(rotary):
        return "holds"
    return "holds-under-conditions" if any(rotary) else "does-not-hold"


UNKNOWN = ("not measured", "unpublished")


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    d, draws, tokens = params["d_model"], params["draws"], params["tokens"]
    progress(_("permutations"), 0.0)
    moved = ordering.permuted(seed, draws, d, tokens)
    progress(_("two sentences"), 0.2)
    people = ordering.characters(seed, draws, d)
    progress(_("all orders of four tokens"), 0.3)
    pooled = ordering.all_orders(seed, d)
    progress(_("shifts"), 0.4)
    shifts = tuple(params["shifts"])
    shift = ordering.shifted(seed, d, tokens, shifts)
    progress(_("families of models"), 0.5)
    families = ordering.families()

    allowed = float64_allowance(terms=4 * d, scale=10.0, sharpness=10.0)
    none, causal = moved["none"], moved["causal mask"]
    places = {
        place: all_of(*(matters(moved[name]["outputs put back"], allowed)
                        for name, kind in ordering.KINDS.items() if kind.enters == place))
        for place in ("x", "q, k", "scores", "mask")
    }  # fmt: skip
    worst = {name: [max(c) for c in zip(*chars, strict=True)] for name, chars in people.items()}
    absolute = {n: k.absolute for n, k in ordering.KINDS.items() if k.positions is not None}
    told = [matters(worst[name], allowed) for name in ordering.KINDS if name != "none"]
    rotary = [name for name, kind, _source in families if kind == "rotary"]
    learned = [n for n, kind, _s in families if kind == "learned" and n in ordering.FAMILIES]

    outcomes = [
        judged("B3.1", all_of(
                invariance(none["weights"], none["weights put back"], allowed),
                invariance(none["outputs put back"], none["outputs put back"], allowed)),
            say(N_("shuffled, the weights change by {off:.2g} on average; put back on both axes "
                   "they agree to {same:.0e}: equivariant, not invariant. Outputs move with their "
                   "tokens ({out:.0e}); a pooled output stays ({pool:.0e}). With a causal mask "
                   "even the weights that are put back are off by {causal:.2g}"),
                off=_mean(none["weights"]), same=max(none["weights put back"]),
                out=max(none["outputs put back"]), pool=max(none["pooled"]),
                causal=_mean(causal["weights put back"])), "equivariance",
            say(N_("weights and outputs are permuted with the tokens; no causal mask"))),
        judged("B3.2", _bag(pooled, allowed),
            say(N_("over the 24 orders of 4 tokens the pooled output takes {none} value without "
                   "positions (spread {spread:.0e}), and {causal} with a causal mask"),
                none=pooled["none"][1], spread=pooled["none"][0], causal=pooled["causal mask"][1]),
            "orders", say(N_("of the pooled output, without positions and without causality"))),
        judged("B3.3", _sentences(worst, allowed),
            say(N_("each character's vector is the same in 我爱你 and 你爱我 (to {same:.0e}), and "
                   "their sequence is reversed. With positions the largest change is {low:.2g} "
                   "({low_name}) to {high:.2g} ({high_name}); with a causal mask alone it is "
                   "{causal:.2g}"),
                same=max(worst["none"]), causal=_mean(worst["causal mask"]), **_range(worst)),
            "characters",
            say(N_("token by token, without positions and without a causal mask"))),
        judged("B3.4", only_before_projection(places),
            say(N_("order changes the output by {x:.2g} with positions at X, {qk:.2g} on q and k "
                   "(rotary), {s:.2g} on the scores (ALiBi), and {m:.2g} with a causal mask and no "
                   "positions: X is one place of several"),
                x=_mean(moved["sinusoidal"]["outputs put back"]),
                qk=_mean(moved["rotary"]["outputs put back"]),
                s=_mean(moved["ALiBi"]["outputs put back"]),
                m=_mean(causal["outputs put back"])), "places"),
        judged("B3.5", told_apart(shift, absolute, allowed),
            say(N_("all positions shifted: scores change by up to {sin:.2g} (sinusoidal) and "
                   "{learned:.2g} (learned), and by {rope:.0e} (rotary), {alibi:.0e} (ALiBi) and "
                   "{bias:.0e} (relative bias)"),
                sin=max(shift["sinusoidal"]), learned=max(shift["learned"]),
                rope=max(shift["rotary"]), alibi=max(shift["ALiBi"]),
                bias=max(shift["relative bias"])), "shift"),
        judged("B3.6", generally_rotary(families),
            say(N_("tiny instances in transformers: rotary in {rotary}; learned positions in "
                   "{learned}. GPT-3 by its paper as GPT-2; newer closed GPTs are unpublished"),
                rotary=", ".join(rotary) or "-", learned=", ".join(learned) or "-"),
            "families", say(N_("open models since about 2022; not GPT-2 and GPT-3"))),
        judged("S11", all_of(told_apart(shift, absolute, allowed), *told),
            say(N_("five encodings run in the definition; each tells 我爱你 from 你爱我, and only "
                   "sinusoidal and learned ones react to a shift of all positions")), "places"),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params={**params, "shifts": list(shifts)},
        seed=seed,
        verdict=all_of(
            stated(
                invariance(none["weights"], none["weights put back"], allowed)
                == "holds-under-conditions"
            ),
            *told,
        ),
        conclusion=(
            say(
                N_(
                    "Without positions and without a mask attention is permutation equivariant: "
                    "vectors move with their tokens (to {same:.0e}); what changes is where they "
                    "stand."
                ),
                same=max(none["outputs put back"]),
            ),
            say(
                N_(
                    "Every encoding breaks this, wherever it enters: at X, at q and k, or at the "
                    "scores. A causal mask alone breaks it too, by {causal:.2g}."
                ),
                causal=_mean(causal["outputs put back"]),
            ),
        ),
        outcomes=outcomes,
        charts=_charts(people, moved, shift, shifts),
        sheets=_sheets(moved, people, pooled, shift, shifts, families),
        seconds=time.perf_counter() - began,
    )


def _mean(values: Sequence[float]) -> float:
    return interval(values).mean


def _range(worst: Draws) -> dict[str, str | float]:
    means = {n: _mean(v) for n, v in worst.items() if ordering.KINDS[n].positions is not None}
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return {"low": means[low], "low_name": low, "high": means[high], "high_name": high}


def _bag(pooled: Mapping[str, tuple[float, int]], allowed: float) -> Verdict:
    if not pooled["none"][0] <= allowed:
        return "does-not-hold"
    return "holds" if pooled["causal mask"][0] <= allowed else "holds-under-conditions"


def _sentences(worst: Draws, allowed: float) -> Verdict:
    if not max(worst["none"]) <= allowed:
        return "does-not-hold"
    return (
        "holds-under-conditions" if matters(worst["causal mask"], allowed) == "holds" else "holds"
    )


def _series(label: Any, names: Sequence[str], found: Sequence[Interval]) -> Series:
    return Series(
        label, list(names), [i.mean for i in found], [i.low for i in found], [i.high for i in found]
    )


def _charts(
    people: Mapping[str, Sequence[Sequence[float]]],
    moved: Mapping[str, Draws],
    shift: Draws,
    shifts: Sequence[int],
) -> list[Chart]:
    names = list(ordering.KINDS)
    short = ["none", "sine", "learned", "rotary", "ALiBi", "relative", "causal"]
    marked = (N_("wo (first, then last)"), N_("ai (in the middle)"), N_("ni (last, then first)"))
    kinds = ["weights", "weights put back", "outputs put back", "pooled"]
    return [
        Chart(
            "characters", "bar",
            say(N_("wo ai ni against ni ai wo: the same vectors, unless positions are told")),
            say(N_("what tells positions apart")),
            say(N_("change of a character's output (95 % interval)")),
            say(N_("Bars for seven ways and three characters. Without positions all three are at "
                   "0; each encoding and the causal mask alone are above 0.")),
            series=[_series(say(label), short, [interval(people[n][i]) for n in names])
                    for i, label in enumerate(marked)],
        ),
        Chart(
            "equivariance", "heat",
            say(N_("Shuffled tokens: weights change, but put back they agree to rounding")),
            say(N_("change of: 1 weights, 2 weights put back, 3 outputs put back, 4 pooled")),
            say(N_("— no mask · ◣ causal mask")),
            say(N_("Table of two rows. Without a mask the weights change and all else is at "
                   "rounding (1e-16); with a causal mask nothing is.")),
            grid=[[_mean(moved[name][kind]) for kind in kinds] for name in ("none", "causal mask")],
            row_labels=["—", "◣"], column_labels=["1", "2", "3", "4"],
        ),
        Chart(
            "shift", "line",
            say(N_("Shift all positions: absolute encodings change the scores, relative ones not")),
            say(N_("shift in tokens")), say(N_("largest change of a score")),
            say(N_("Two lines near 1 to 10 (sinusoidal, learned), three at rounding below 1e-14 "
                   "(rotary, ALiBi, relative bias).")),
            series=[
                Series(say(label), list(shifts), [max(v, 1e-17) for v in shift[name]])
                for name, label in (
                    ("sinusoidal", N_("sinusoidal")), ("learned", N_("learned")),
                    ("rotary", N_("rotary")), ("ALiBi", N_("ALiBi")),
                    ("relative bias", N_("relative bias")),
                )
            ],
            log_x=True, log_y=True,
        ),
    ]  # fmt: skip


def _sheets(
    moved: Mapping[str, Draws],
    people: Mapping[str, Sequence[Sequence[float]]],
    pooled: Mapping[str, tuple[float, int]],
    shift: Draws,
    shifts: Sequence[int],
    families: Sequence[tuple[str, str, str]],
) -> list[Sheet]:
    return [
        Sheet("places", say(N_("Where positions enter, and what order then changes")),
              ("kind", "enters", "output_change", "shift_change"),
              [(name, kind.enters or "—", _mean(moved[name]["outputs put back"]), max(shift[name]))
               for name, kind in ordering.KINDS.items()],
              (say(N_("positions")), say(N_("enter at")),
               say(N_("mean change of an output by shuffling")),
               say(N_("largest change of a score by a shift")))),
        Sheet("orders", say(N_("The pooled output over all orders of 4 tokens")),
              ("kind", "spread", "values"), [(n, s, v) for n, (s, v) in pooled.items()],
              (say(N_("positions")), say(N_("spread")), say(N_("different values")))),
        Sheet("families", say(N_("Positions of named families")), ("family", "positions", "found"),
              families,
              (say(N_("family")), say(N_("positions")), say(N_("module or source")))),
        Sheet("permutations", say(N_("Shuffled tokens, draw by draw")),
              ("kind", "quantity", "draw", "change"),
              [(n, q, i, v) for n, by in moved.items() for q, vs in by.items()
               for i, v in enumerate(vs)], shown=False),
        Sheet("sentences", say(N_("我爱你 against 你爱我, draw by draw")),
              ("kind", "character", "draw", "change"),
              [(n, "我爱你"[c], i, v) for n, by in people.items() for c, vs in enumerate(by)
               for i, v in enumerate(vs)], shown=False),
        Sheet("shifts", say(N_("Change of the scores by a shift")), ("kind", "shift", "change"),
              [(n, s, v) for n, vs in shift.items() for s, v in zip(shifts, vs, strict=True)],
              shown=False),
    ]  # fmt: skip


LAB = register(
    Lab(
        name="does-order-matter",
        number=10,
        question=N_("Does the order of the tokens matter?"),
        hypothesis=N_(
            "Without positions and masks attention is permutation equivariant; sinusoidal, "
            "learned, rotary and ALiBi positions break this, and so does a causal mask alone."
        ),
        varied=N_("order of the tokens, kind of positions, causal mask, shift of all positions"),
        fixed=N_("tokens, weights"),
        claims=tuple("B3.1 B3.2 B3.3 B3.4 B3.5 B3.6 S11".split()),
        quick={"d_model": 16, "tokens": 6, "draws": 10, "shifts": (1, 2, 4, 8, 16, 32, 64)},
        full={"d_model": 64, "tokens": 12, "draws": 100, "shifts": (1, 4, 16, 64, 256, 1024)},
        minutes=(0.1, 0.3),
        run=run,
        needs=("what-does-the-causal-mask-prevent",),
    )
)
