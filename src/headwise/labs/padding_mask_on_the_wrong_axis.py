"""Lab 8: what happens if the padding mask is put on the wrong axis?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.judge import all_of, interval, stated
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
from headwise.labs.measures import padding_mask_on_the_wrong_axis as placing
from headwise.labs.parts.lesson import judged, say
from headwise.labs.parts.small import one_thread
from headwise.texts import mark as N_
from headwise.texts import translate as _

Rows = Sequence[Mapping[str, Any]]
Moves = Mapping[tuple[str, str], Sequence[float]]


def counter_example(right: Sequence[float], wrong: Sequence[float]) -> Verdict:
    """Whether pad tokens move real rows under the wrong mask and never under the right one."""
    if len(wrong) < 3 or len(right) < 3:
        return "not-enough-data"
    if max(right) != 0:
        return "does-not-hold"
    found = interval(wrong)
    return "holds" if found.low > 0 else "not-enough-data"


def may_broadcast(rows: Rows) -> Verdict:
    """Whether a misplaced mask passes unnoticed always, sometimes or never."""
    statuses = [r["status"] for r in rows]
    if not statuses:
        return "not-enough-data"
    passed = [s in ("silently wrong", "right") for s in statuses]
    if all(passed):
        return "holds"
    return "holds-under-conditions" if any(passed) else "does-not-hold"


def only_place(moves: Mapping[str, Sequence[float]], right: str = "right axis") -> Verdict:
    """Whether one place alone makes real rows independent of the padding."""
    if any(len(values) < 3 for values in moves.values()):
        return "not-enough-data"
    still = {name for name, values in moves.items() if all(v == 0 for v in values)}
    return stated(still == {right})


def matters(rows: Sequence[tuple[str, bool, float, int]]) -> Verdict:
    """Whether a padding mask changes real rows always, in some settings, or in none."""
    changes = [change > 1e-9 for _name, _causal, change, _empty in rows]
    if all(changes):
        return "holds"
    return "holds-under-conditions" if any(changes) else "does-not-hold"


def any_mask(rows: Rows) -> Verdict:
    """Whether the layer stays finite, forwards and backwards, with each padding."""
    if not rows:
        return "not-enough-data"
    names = [name for name in rows[0] if name not in ("side", "real_error")]
    return stated(all(r[name] == 0 for r in rows for name in names))


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    d = params["d_model"]
    sizes = [(int(b), int(t), int(h)) for b, t, h in params["sizes"]]
    grid: list[dict[str, Any]] = []
    for index, size in enumerate(sizes):
        progress(_("sizes {size}").format(size=size), 0.5 * index / len(sizes))
        grid += placing.grid([size], seed, d)
    progress(_("two real tokens"), 0.5)
    moves = placing.movements(seed, params["draws"], d)
    progress(_("right masks"), 0.9)
    heads, needed = placing.hidden_heads(seed, d), placing.needed(seed, d)
    poison, shapes = placing.poisoned(seed, d), placing.causal_shapes(seed, d)
    finite, largest = placing.pad_queries(seed, d)

    wrong = [r for r in grid if r["place"] == placing.WRONG]
    kinds = Counter(r["status"] for r in wrong)
    silent = sorted({(r["B"], r["T"], r["H"]) for r in wrong if r["status"] == "silently wrong"})
    later = [r for r in wrong if r["status"] == "fails later"]
    free = {name: moves[name, "not causal"] for name in placing.VARIANTS if "-inf" not in name}
    finite_fill = moves["head axis, finite fill", "causal, left padding"]
    trap = moves["no mask", "causal, right padding"]
    by = {(name, causal): change for name, causal, change, _e in needed}
    left = next(r for r in poison if r["side"] == "left")
    right_free = moves["right axis", "not causal"]

    outcomes = [
        judged("A4.3", "holds-under-conditions" if shapes["gap"] == 0
                and not shapes["fits_one_query"] else stated(shapes["gap"] == 0),
            say(N_("[T,T], [1,1,T,T] and the expanded mask give results that differ by {gap:.0e}; "
                   "bytes for B 3, H 4, T 6: {small} and {large}. With one query and a cache the "
                   "square mask does not fit"), gap=shapes["gap"],
                small=shapes["bytes"]["[1,1,T,T]"], large=shapes["bytes"]["[B,H,T,T]"]),
            "masks-needed", say(N_("as many queries as keys; else say where the queries sit"))),
        judged("A4.4", only_place(free),
            say(N_("real rows move by {right:.0f} with [B,1,1,T] when pad tokens change, and on "
                   "average by {query:.2g} with [B,1,T,1] and {head:.2g} with [B,T,1,1]"),
                right=max(right_free), query=interval(free["query axis"]).mean,
                head=interval(free["head axis, finite fill"]).mean), "real-rows-move"),
        judged("A4.5", all_of(stated(max(right_free) == 0), stated(finite)),
            say(N_("changing padded inputs moves real rows by {gap:.0f}, to the bit. Padded "
                   "queries still give rows (up to {size:.2g}), which the loss must skip"),
                gap=max(right_free), size=largest), "real-rows-move"),
        judged("A4.8", matters(needed),
            say(N_("change of real rows by the padding mask under causality: right padding "
                   "{right:.0f}, left {left:.2g}, middle {middle:.2g}; without causality right "
                   "{free:.2g}. Left padding leaves {empty} rows empty"),
                right=by["right", True], left=by["left", True], middle=by["middle", True],
                free=by["right", False],
                empty=next(e for n, c, _change, e in needed if n == "left" and c)),
            "masks-needed",
            say(N_("without causality, or with padding on the left or in the middle"))),
        judged("A5.10", any_mask(poison),
            say(N_("left padding: {rows:.0%} of the padded rows' numbers are NaN; with a loss on "
                   "real rows alone, {o:.0%} of the gradient of W_o, {v:.0%} of that of W_v and "
                   "{x:.0%} of that of x in the padded sample are NaN, {q:.0%} and {k:.0%} of "
                   "those of W_q and W_k. Real rows are right to {err:.0e}"),
                rows=left["output, pad rows"], o=left["gradient of W_o"],
                v=left["gradient of W_v"], x=left["gradient of x, padded sample"],
                q=left["gradient of W_q"], k=left["gradient of W_k"], err=left["real_error"]),
            "nan-share"),
        judged("A9.5", stated(len(wrong) > 0 and len(kinds) > 1),
            say(N_("[B,T,1,1] in {n} runs over {sizes} sizes, 4 ways and 2 fills: {raises} raise, "
                   "{later} fail later, {silent} are silently wrong, {right} are right (T = 1)"),
                n=len(wrong), sizes=len(sizes), raises=kinds["raises"],
                later=kinds["fails later"], silent=kinds["silently wrong"],
                right=kinds["right"]), "wrong-axis-grid"),
        judged("A9.6", may_broadcast(wrong),
            say(N_("silent at (B,T,H) = {silent}, where T = H. With H = 1 an out-of-place fill "
                   "grows the scores and the error comes later, in view: {message}"),
                silent=", ".join(map(str, silent)),
                message=later[0]["message"] if later else "-"), "wrong-axis-grid",
            say(N_("T = H or T = 1 (and with H = 1 the error comes late)"))),
        judged("A9.7", stated(heads["uniform"] < 1e-12
                               and bool((heads["cells"]["wrong"][2:] == 1).all())),
            say(N_("it hides heads 2 and 3 of the sample with pad tokens 2 and 3, for all queries "
                   "and keys, and no key in the others. −∞: {nan:.0%} of the sample is NaN. A "
                   "finite fill: those heads are uniform to {uni:.0e}, future included (weight "
                   "{fut:.2g}). A finite addend: {same:.0e} from unmasked in float64, "
                   "uniform to {low:.0e} in float32"),
                nan=heads["nan"], uni=heads["uniform"], fut=heads["future"],
                same=heads["float64 unmasked"], low=heads["float32 uniform"]), "hidden-cells"),
        judged("A9.8", _proof(moves),
            say(N_("T = H = 4, two real tokens, pad tokens changed: real rows move by {wrong:.2g} "
                   "[{low:.2g}, {high:.2g}] on the wrong axis and by {right:.0f} on the right one. "
                   "Under causality with right padding no mask at all gives {trap:.0f} too"),
                wrong=interval(finite_fill).mean, low=interval(finite_fill).low,
                high=interval(finite_fill).high,
                right=max(moves["right axis", "causal, left padding"]), trap=max(trap)),
            "real-rows-move",
            say(N_("T = H and a finite fill; left padding or no causality for the counter-check"))),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params={**params, "sizes": [list(s) for s in sizes]},
        seed=seed,
        verdict=all_of(
            counter_example(right_free, free["head axis, finite fill"]), may_broadcast(wrong)
        ),
        conclusion=(
            say(
                N_(
                    "Of {n} ways to write the padding mask as [B,T,1,1], {raises} raise at once, "
                    "{later} fail later with another message and {silent} run with wrong numbers: "
                    "those with T = H."
                ),
                n=len(wrong),
                raises=kinds["raises"],
                later=kinds["fails later"],
                silent=kinds["silently wrong"],
            ),
            say(
                N_(
                    "It then hides whole heads, no key. Changing the pad tokens moves real rows by "
                    "{wrong:.2g}; with [B,1,1,T] by {right:.0f}."
                ),
                wrong=interval(free["head axis, finite fill"]).mean,
                right=max(right_free),
            ),
            say(
                N_(
                    "Under the course's built-in causality a padding mask changes nothing on the "
                    "right ({right:.0f}) and on the left makes rows empty: {v:.0%} of the "
                    "gradients of W_v and W_o are then NaN."
                ),
                right=by["right", True],
                v=left["gradient of W_v"],
            ),
        ),
        outcomes=outcomes,
        charts=_charts(wrong, sizes, heads, moves, poison),
        sheets=_sheets(grid, needed, poison, moves),
        seconds=time.perf_counter() - began,
    )


def _proof(moves: Moves) -> Verdict:
    """A9.8, with its conditions: −∞ gives NaN, and right padding under causality proves nothing."""
    shown = counter_example(
        moves["right axis", "causal, left padding"],
        moves["head axis, finite fill", "causal, left padding"],
    )
    nothing = max(moves["no mask", "causal, right padding"]) == 0
    return "holds-under-conditions" if shown == "holds" and nothing else shown


def _charts(
    wrong: Rows,
    sizes: Sequence[tuple[int, int, int]],
    heads: Mapping[str, Any],
    moves: Moves,
    poison: Rows,
) -> list[Chart]:
    code = {name: float(i) for i, name in enumerate(placing.STATUSES)}
    status = {
        ((r["B"], r["T"], r["H"]), r["how"]): code[r["status"]]
        for r in wrong
        if r["fill"] == "-1e9"
    }
    parts = [n for n in poison[0] if n.startswith("gradient")]
    return [
        Chart(
            "wrong-axis-grid", "heat",
            say(N_("[B,T,1,1] is silent where T = H: 0 raises, 1 fails later, 2 wrong, 3 right")),
            say(N_("how the mask is applied (fill −1e9)")), say(N_("B, T, H")),
            say(N_("Table of sizes by ways. Only T = H runs with wrong numbers; T = 1 is right; "
                   "H = 1 fails late with masked_fill and addition; all others raise at once.")),
            grid=[[status[s, how] for how in placing.HOWS] for s in sizes],
            row_labels=[", ".join(map(str, s)) for s in sizes], column_labels=list(placing.HOWS),
        ),
        Chart(
            "hidden-cells", "heat",
            say(N_("Tokens 2 and 3 are padding: [B,1,1,T] hides these keys, [B,T,1,1] heads")),
            say(N_("key")), say(N_("mask and head")),
            say(N_("Eight rows, four per mask. With the right mask each head hides the last two "
                   "keys; with the wrong one the last two heads hide everything and the first two "
                   "nothing.")),
            grid=[*heads["cells"]["right"].tolist(), *heads["cells"]["wrong"].tolist()],
            row_labels=[f"{p} h{i}" for p in ("[B,1,1,T]", placing.WRONG) for i in range(4)],
            column_labels=[str(i) for i in range(4)],
        ),
        Chart(
            "real-rows-move", "bar",
            say(N_("Only the right axis keeps real rows still when the pad tokens change")),
            say(N_("padding mask (— none)")), say(N_("largest change of a real row (95 %)")),
            say(N_("Bars per mask and setting. The right axis is at 0 everywhere; without a mask, "
                   "causal attention with right padding is at 0 too; a mask on the head axis moves "
                   "real rows in each setting.")),
            series=[_bars(setting, label, moves) for (setting, _c, _l), label in zip(
                placing.SETTINGS, (N_("not causal"), N_("causal, right padding"),
                                   N_("causal, left padding")), strict=True)],
        ),
        Chart(
            "nan-share", "bar",
            say(N_("Left padding, causal: a loss on real rows only, and gradients are NaN")),
            say(N_("gradient of (sample 0 is full, sample 1 padded)")), say(N_("share of NaN, %")),
            say(N_("With right padding no gradient is NaN. With left padding those of W_v, W_o and "
                   "of x in the padded sample are NaN entirely, those of W_q and W_k not at all.")),
            series=[
                Series(say(label), ["W_q", "W_k", "W_v", "W_o", "x[0]", "x[1]"],
                       [100.0 * r[p] for p in parts])
                for r, label in zip(poison, (N_("right padding"), N_("left padding")), strict=True)
            ],
        ),
    ]  # fmt: skip


AXES = {
    "right axis": "[B,1,1,T]",
    "no mask": "—",
    "query axis": "[B,1,T,1]",
    "head axis, finite fill": "[B,T,1,1]",
}
"""Names of the masks that need no translation."""


def _bars(setting: str, label: str, moves: Moves) -> Series:
    found = [interval(moves[name, setting]) for name in AXES]
    return Series(
        say(label),
        list(AXES.values()),
        [i.mean for i in found],
        [i.low for i in found],
        [i.high for i in found],
    )


def _sheets(
    grid: Rows, needed: Sequence[tuple[str, bool, float, int]], poison: Rows, moves: Moves
) -> list[Sheet]:
    columns = ("B", "T", "H", "place", "how", "fill", "status", "message", "nan")
    counts = Counter((r["place"], r["status"]) for r in grid)
    return [
        Sheet("places", say(N_("What becomes of each place of the T axis, over all sizes")),
              ("place", "raises", "fails_later", "silently_wrong", "right"),
              [(place, *(counts[place, s] for s in placing.STATUSES)) for place in placing.PLACES],
              (say(N_("place of T")), say(N_("raises")), say(N_("fails later")),
               say(N_("silently wrong")), say(N_("right")))),
        Sheet("masks-needed", say(N_("What a right padding mask changes in real rows")),
              ("padding", "causal", "change", "empty_rows"), needed,
              (say(N_("padding")), say(N_("causal")), say(N_("change")), say(N_("empty rows")))),
        Sheet("poisoned", say(N_("Share of NaN in the course's layer, loss on real rows only")),
              tuple(poison[0]), [tuple(r.values()) for r in poison], shown=False),
        Sheet("movements", say(N_("Change of real rows, draw by draw")),
              ("mask", "setting", "draw", "change"),
              [(*key, i, v) for key, values in moves.items() for i, v in enumerate(values)],
              shown=False),
        Sheet("grid", say(N_("All runs")), columns,
              [tuple(r[c] for c in columns) for r in grid], shown=False),
    ]  # fmt: skip


SIZES = ((2, 4, 4), (2, 5, 4), (2, 5, 1), (2, 1, 4), (4, 4, 2), (5, 5, 4), (1, 5, 4), (3, 6, 2))

LAB = register(
    Lab(
        name="padding-mask-on-the-wrong-axis",
        number=8,
        question=N_("What happens if the padding mask is put on the wrong axis?"),
        hypothesis=N_(
            "Only [B,1,1,T] makes real rows independent of the padding. [B,T,1,1] raises unless T "
            "happens to equal the number of heads, and then hides whole heads."
        ),
        varied=N_(
            "sizes, place of the T axis, way of masking, fill, side of the padding, causality"
        ),
        fixed=N_("weights, inputs, two real tokens in the padded sample"),
        claims=tuple("A4.3 A4.4 A4.5 A4.8 A5.10 A9.5 A9.6 A9.7 A9.8".split()),
        quick={"d_model": 16, "draws": 8, "sizes": SIZES},
        full={"d_model": 64, "draws": 40, "sizes": (*SIZES, (8, 8, 8), (2, 8, 8), (3, 16, 1))},
        minutes=(0.1, 0.3),
        run=run,
        needs=("is-mine-the-same-as-pytorch",),
    )
)
