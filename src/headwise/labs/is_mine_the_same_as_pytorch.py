"""Lab 7: is my attention the same as PyTorch's, and how would I know?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headwise.errors import SpecError
from headwise.labs.figures.is_mine_the_same_as_pytorch import charts, sheets
from headwise.labs.judge import all_of, stated, within
from headwise.labs.lab import (
    Lab,
    LabResult,
    Progress,
    Verdict,
    register,
)
from headwise.labs.measures import is_mine_the_same_as_pytorch as sameness
from headwise.labs.measures import what_true_means as polarity
from headwise.labs.parts.lesson import (
    future,
    gap,
    judged,
    lesson_layer,
    normal,
    official,
    padding,
    say,
)
from headwise.labs.parts.small import one_thread
from headwise.numerics import float64_allowance
from headwise.spec import AttentionSpec
from headwise.texts import mark as N_
from headwise.texts import translate as _


def separates(right: Sequence[float], faults: Sequence[float]) -> Verdict:
    """Whether an allowance passes what is right and fails what is wrong (errors over allowance)."""
    if not right or not faults:
        return "not-enough-data"
    return stated(max(right) <= 1 < min(faults))


def gradient_test(under_sum: float, at_random: float, allowed: float) -> Verdict:
    """Whether a test by ``sum()`` sees a fault of the backward pass that another test sees."""
    if at_random <= allowed:
        return "not-enough-data"
    return "holds-under-conditions" if under_sum <= allowed else "holds"


def opposite_meanings(measured: Sequence[str | None]) -> Verdict:
    """Whether APIs that were measured disagree on what True means."""
    found = [m for m in measured if m is not None]
    return "not-enough-data" if len(found) < 2 else stated(len(set(found)) > 1)


def block_orders(seed: int, *, d: int, h: int) -> list[tuple[str, float]]:
    """Difference to the official layer for each order of the three weight blocks."""
    layer = lesson_layer(d, h, seed=seed)
    x = normal(torch.Generator().manual_seed(seed), 2, 5, d)
    rows = []
    with torch.no_grad():
        mine = layer(x)[0]
        for a, b, c in itertools.permutations((0, 1, 2)):
            module = official(layer, (a, b, c))
            theirs = module(x, x, x, attn_mask=future(5), need_weights=False)[0]
            rows.append(("".join("qkv"[i] for i in (a, b, c)), gap(mine, theirs)))
    return rows


def weights_paths(seed: int, *, d: int, h: int) -> dict[str, float]:
    """need_weights both ways: difference on ordinary rows, NaN and size on an empty row."""
    layer = lesson_layer(d, h, seed=seed)
    module = official(layer)
    x = normal(torch.Generator().manual_seed(seed), 2, 5, d)
    pad = padding([5, 3], 5, left=True)
    with torch.no_grad():
        a, b = (
            module(x, x, x, attn_mask=future(5), key_padding_mask=pad, need_weights=want)[0]
            for want in (True, False)
        )
    real = ~pad
    return {
        "ordinary": gap(a[real], b[real]),
        "nan_with": float(a[pad].isnan().double().mean()),
        "nan_without": float(b[pad].isnan().double().mean()),
        "size_without": float(b[pad].nan_to_num(0.0).abs().max()),
    }


def sizes_of(d: int) -> dict[str, float]:
    """Parameters of layer and official, and the fused projection against three of its blocks."""
    layer = lesson_layer(d, 12, seed=0)
    x = normal(torch.Generator().manual_seed(0), 1, 4, d)
    with torch.no_grad():
        separate = torch.cat([x @ w.T for w in layer.qkv.weight.chunk(3)], dim=-1)
        return {
            "count": sum(p.numel() for p in layer.parameters()),
            "formula": 4 * d * d,
            "official": sum(
                p.numel() for p in nn.MultiheadAttention(d, 12, bias=False).parameters()
            ),
            "fused": gap(layer.qkv(x), separate),
        }


def real_error() -> str:
    """What our own check says of 10 channels and 3 heads."""
    try:
        AttentionSpec(d_model=10, num_heads=3)
    except SpecError as error:
        return str(error).splitlines()[0]
    return ""


@one_thread()
def run(params: Mapping[str, Any], seed: int, progress: Progress) -> LabResult:
    """Run the lab."""
    began = time.perf_counter()
    d, h = params["d_model"], params["num_heads"]
    progress(_("the course's comparison"), 0.0)
    literal = sameness.literal()
    orders = block_orders(seed, d=d, h=h)
    paths, sizes = weights_paths(seed, d=d, h=h), sizes_of(params["wide"])
    progress(_("three precisions"), 0.1)
    rows = sameness.precisions(seed, draws=params["draws"], d=d, h=h)
    progress(_("faults"), 0.35)
    right = list(sameness.right_layers(seed, d=d, h=h))
    seen = []
    for sighting in sameness.sightings(seed, d=d, h=h, variants=params["variants"]):
        seen.append(sighting)
        progress(_("faults"), min(0.35 + 0.0008 * len(seen), 0.85))
    progress(_("masks"), 0.9)
    meanings, mistakes = polarity.meanings(seed), polarity.mistaken(seed, d=d, h=h)
    dtypes = polarity.mask_dtypes(seed, d=d, h=h)
    back = sameness.reversed_gradient(seed, d=d, h=h)
    plain, optimised = polarity.assertion(), polarity.assertion("-O")

    codes = sorted({s.code for s in seen if s.changes})
    of_code = {code: [s for s in seen if s.code == code] for code in codes}
    margins = {c: max(_margin(s) for s in found) for c, found in of_code.items()}
    quiet = [c for c, found in of_code.items() if _keeps_shape(found)]
    right_margins = [max(s.forward, s.gradient) for s in right]
    course_sees = {s.code for s in seen if s.case == "course" and s.by_course}
    cases = list(dict.fromkeys(s.case for s in seen))
    counts = [_count(case, codes, seen) for case in cases]
    exact = [r for r in rows if r["dtype"] == "float64"]
    forward = {t: _worst(rows, t, ("output",)) for t in ("float64", "float32", "bfloat16")}
    backward = {t: _worst(rows, t, ("x", "qkv", "out")) for t in forward}
    all_within = all_of(*(within(r["error"], r["allowed"]) for r in rows))
    small = float64_allowance(terms=3 * d + 10, scale=10.0, sharpness=sameness.SHARPNESS)
    right_order = next(v for name, v in orders if name == "qkv")
    wrong_orders = [v for name, v in orders if name != "qkv"]
    share = len(quiet) / max(len(codes), 1)
    axis = {case: _kind("M03", case, seen) for case in ("left-padding", "T=H")}
    bad_keys = [r for r in dtypes if r[0].startswith("bool, inverted")]
    refused = [name for name, is_refused, _gap, _nan in dtypes if is_refused]

    outcomes = [
        judged("A6.1", all_of(within(right_order, small), stated(min(wrong_orders) > small)),
            say(N_("forward difference {right:.1e} after copying the weights as the course does; "
                   "with the blocks in another order between {low:.2g} and {high:.2g}"),
                right=right_order, low=min(wrong_orders), high=max(wrong_orders)), "block-order"),
        judged("A5.3", all_of(within(right_order, small), stated(min(wrong_orders) > small)),
            say(N_("of the 6 orders of the blocks only q, k, v matches nn.MultiheadAttention "
                   "({right:.1e}); the others are off by at least {low:.2g}. Other code bases pack "
                   "per head or as q, v, k"), right=right_order, low=min(wrong_orders)),
            "block-order"),
        judged("A6.2", all_of(all_within, stated(literal["forward"] < small)),
            say(N_("run literally: forward {f:.1e}, gradient {g:.1e}. Over {n} draws, padding and "
                   "parameter gradients included: output {f64:.1e} / {f32:.1e} / {bf16:.1e} and "
                   "gradients {g64:.1e} / {g32:.1e} / {g16:.1e} in float64 / float32 / bfloat16, "
                   "all within the allowance. The course leaves the parameter gradients out"),
                f=literal["forward"], g=literal["gradient"], n=params["draws"],
                f64=forward["float64"], f32=forward["float32"], bf16=forward["bfloat16"],
                g64=backward["float64"], g32=backward["float32"], g16=backward["bfloat16"]),
            "differences"),
        judged("A9.4", all_within,
            say(N_("{n} comparisons over dtype, mask, part and implementation, all against "
                   "float64: the largest uses {share:.0%} of its allowance"),
                n=len(rows), share=max(r["error"] / r["allowed"] for r in rows)), "precision"),
        judged("A6.3", stated(literal["inverted"] > 1e6 * small),
            say(N_("with the opposite mask the difference jumps from {right:.1e} to {wrong:.2g}: "
                   "True forbids"), right=literal["forward"], wrong=literal["inverted"]),
            "conventions"),
        judged("A6.4", _paths_verdict(paths, small),
            say(N_("need_weights on and off differ by {gap:.1e} on ordinary rows; on an empty row "
                   "{nan:.0%} of the numbers are NaN with weights and {zero:.0%} without "
                   "(the largest is {size:.1g} there)"),
                gap=paths["ordinary"], nan=paths["nan_with"], zero=paths["nan_without"],
                size=paths["size_without"]),
            "precision", say(N_("every row sees a key"))),
        judged("A6.5", _sizes_verdict(axis, literal["forward"], small),
            say(N_("run as given: {gap:.1e}. Here T is not H: of {n} faults that show anywhere, "
                   "this input shows {seen}. A padding mask on the wrong axis raises at T ≠ H "
                   "({raises}) and is accepted with wrong numbers at T = H ({silent})"),
                gap=literal["forward"], n=len(codes), seen=len(course_sees),
                raises="✓" if axis["left-padding"] == "raises" else "✗",
                silent="✓" if axis["T=H"] == "silently wrong" else "✗"), "sizes",
            say(N_("for faults that show at these sizes; run T = H, T = B and B = H as well"))),
        judged("A6.6", gradient_test(back["sum"], back["random"], small),
            say(N_("a backward pass that reverses the incoming gradient in time moves the gradient "
                   "of x by {zero:.1e} under sum() and by {seen:.2g} under a random upstream: ones "
                   "look the same in every order"), zero=back["sum"], seen=back["random"]),
            "faults", say(N_("use a random upstream gradient: (y * g).sum()"))),
        judged("A6.7", separates(right_margins, list(margins.values())),
            say(N_("the derived allowance passes every right layer (they use at most {used:.1%} of "
                   "it) and fails each of {n} faults (the smallest by a factor of {low:.1e}). The "
                   "course gives no number for small enough; from {lo:.0e} to {hi:.0e} every "
                   "tolerance would do here in float64"),
                used=max(right_margins, default=0.0), n=len(codes), low=min(margins.values()),
                lo=max(s.error for s in right), hi=_least_error(of_code)), "tolerance"),
        judged("A6.8", stated(share > 0),
            say(N_("{quiet} of {n} faults that change this layer's numbers ({share:.0%}) return "
                   "the right output shape"), quiet=len(quiet), n=len(codes), share=share),
            "faults"),
        judged("A4.6", opposite_meanings([r["measured"] for r in meanings]),
            say(N_("measured: True hides in nn.MultiheadAttention (weight {mha:.0f}) and shows in "
                   "scaled_dot_product_attention (weight {sdpa:.0f}). By their records: Keras, "
                   "JAX, Hugging Face and ONNX True = look"),
                mha=meanings[1]["weight"], sdpa=meanings[2]["weight"]), "conventions"),
        judged("A4.7", stated(min(m[2] for m in mistakes) > small),
            say(N_("each of {n} masks read with the wrong convention moves the result, by at "
                   "least {low:.2g}, and nothing raises. In the course's layer True = hide"),
                n=len(mistakes), low=min(m[2] for m in mistakes)), "mistakes"),
        judged("A5.1", _assert_verdict(plain[0], optimised[0]),
            say(N_("10 channels over 3 heads: refused by python ({first}), accepted by python -O "
                   "(head size {second}), which drops assertions. A real error stays and names "
                   "both: {error}"), first=plain[1], second=optimised[1], error=real_error()),
            "mask-dtypes", say(N_("python without -O; raise an error instead of asserting"))),
        judged("A5.2", all_of(stated(sizes["count"] == sizes["formula"] == sizes["official"]),
                               within(sizes["fused"], small)),
            say(N_("{count:,} parameters for D = {d}, which is 4·D² and what nn.MultiheadAttention "
                   "has; the fused projection equals three products to {gap:.1e}"),
                count=sizes["count"], d=params["wide"], gap=sizes["fused"]), "precision"),
        judged("A5.7", _dtype_verdict(dtypes),
            say(N_("bool is accepted; {refused} raise. A bool mask with the opposite meaning is "
                   "accepted too: without causality the numbers are off by {gap:.2g}, with it "
                   "{nan} of 7 real rows are NaN"),
                refused=", ".join(refused), gap=bad_keys[0][2], nan=bad_keys[1][3]),
            "mask-dtypes", say(N_("the mask is bool and True means hide"))),
        judged("A5.15", all_of(within(literal["forward"], small), stated(bool(codes))),
            say(N_("it runs as it is and equals nn.MultiheadAttention to {gap:.1e}. A full layer "
                   "has besides: a causal switch, biases, dropout, a cache, cross attention, "
                   "grouped heads, values of another width"), gap=literal["forward"]),
            "differences", None),
        judged("S2", all_of(*(within(r["error"], r["allowed"]) for r in exact
                               if r["kind"] == "official")),
            say(N_("output and all gradients within the allowance in float64, causal and padded; "
                   "largest error {gap:.1e}"),
                gap=max(r["error"] for r in exact if r["kind"] == "official")), "precision"),
        judged("S3", all_of(*(within(r["error"], r["allowed"]) for r in exact
                               if r["kind"] == "lesson")),
            say(N_("the course's layer equals the definition in float64 within the allowance; "
                   "largest error {gap:.1e}"),
                gap=max(r["error"] for r in exact if r["kind"] == "lesson")), "precision"),
    ]  # fmt: skip
    progress(_("done"), 1.0)
    return LabResult(
        lab=LAB.name,
        params=dict(params),
        seed=seed,
        verdict=all_of(all_within, separates(right_margins, list(margins.values()))),
        conclusion=(
            say(
                N_(
                    "The course's layer and PyTorch's agree as far as rounding allows: {f:.1e} in "
                    "the output and {g:.1e} in the gradients in float64, {b:.1e} in bfloat16."
                ),
                f=forward["float64"],
                g=backward["float64"],
                b=forward["bfloat16"],
            ),
            say(
                N_(
                    "The right tolerance follows from the dtype and the length of the sums, not "
                    "from taste; it fails {failed} of the {n} faults of the catalogue that change "
                    "this layer, {share:.0%} of which keep the output's shape."
                ),
                failed=sum(m > 1 for m in margins.values()),
                n=len(codes),
                share=share,
            ),
            say(
                N_(
                    "Two habits of the comparison hide faults: sum() as the loss, and sizes in "
                    "which no two letters coincide (or all masks are full)."
                )
            ),
        ),
        outcomes=outcomes,
        charts=charts(forward, backward, rows, of_code, right, counts, cases),
        sheets=sheets(rows, orders, of_code, margins, meanings, mistakes, dtypes),
        seconds=time.perf_counter() - began,
    )


def _keeps_shape(found: Sequence[sameness.Sighting]) -> bool:
    """Somewhere it runs through, and wherever it does the output has the right shape."""
    ran = [s for s in found if not s.raised]
    return bool(ran) and all(s.same_shape for s in ran)


def _margin(s: sameness.Sighting) -> float:
    return float("inf") if s.raised or not s.same_shape else max(s.forward, s.gradient)


def _worst(rows: Sequence[Mapping[str, Any]], dtype: str, parts: tuple[str, ...]) -> float:
    return max(float(r["difference"]) for r in rows if r["dtype"] == dtype and r["part"] in parts)


def _least_error(of_code: Mapping[str, Sequence[sameness.Sighting]]) -> float:
    return min(max(s.error for s in found) for found in of_code.values())


def _kind(code: str, case: str, seen: Sequence[sameness.Sighting]) -> str:
    found = [s for s in seen if s.code == code and s.case == case]
    if any(s.raised for s in found):
        return "raises"
    return "silently wrong" if any(s.seen for s in found) else "unseen"


def _count(case: str, codes: Sequence[str], seen: Sequence[sameness.Sighting]) -> dict[str, int]:
    kinds = [_kind(code, case, seen) for code in codes]
    return {name: kinds.count(name) for name in ("raises", "silently wrong", "unseen")}


def _paths_verdict(paths: Mapping[str, float], allowed: float) -> Verdict:
    if not paths["ordinary"] <= allowed:
        return "does-not-hold"
    return "holds-under-conditions" if paths["nan_with"] != paths["nan_without"] else "holds"


def _sizes_verdict(axis: Mapping[str, str], forward: float, allowed: float) -> Verdict:
    if not forward <= allowed:
        return "does-not-hold"
    return "holds" if axis["left-padding"] == axis["T=H"] else "holds-under-conditions"


def _assert_verdict(refused: bool, refused_optimised: bool) -> Verdict:
    if not refused:
        return "does-not-hold"
    return "holds" if refused_optimised else "holds-under-conditions"


def _dtype_verdict(rows: Sequence[tuple[str, bool, float, int]]) -> Verdict:
    by_name = {name: (refused, off, nan) for name, refused, off, nan in rows}
    if by_name["bool"][0] or by_name["bool"][1] > 0:
        return "does-not-hold"
    others = [refused for name, (refused, _o, _n) in by_name.items() if not name.startswith("bool")]
    inverted = [v for name, v in by_name.items() if "inverted" in name]
    limits = any(others) or any(off > 1e-9 or nan for _r, off, nan in inverted)
    return "holds-under-conditions" if limits else "holds"


LAB = register(
    Lab(
        name="is-mine-the-same-as-pytorch",
        number=7,
        question=N_("Is my attention the same as PyTorch's, and how would I know?"),
        hypothesis=N_(
            "With the same weights, masks and inputs the course's layer equals "
            "nn.MultiheadAttention and SDPA to rounding, in the output and in every "
            "gradient; a tolerance derived from rounding passes right layers and fails every fault."
        ),
        varied=N_("precision, mask, implementation, injected fault, sizes, upstream gradient"),
        fixed=N_("weights and inputs within a comparison; PyTorch's default initialisation"),
        claims=tuple(
            "A4.6 A4.7 A5.1 A5.2 A5.3 A5.7 A5.15 A6.1 A6.2 A6.3 A6.4 A6.5 A6.6 A6.7 A6.8 A9.4 "
            "S2 S3".split()
        ),
        quick={"d_model": 16, "num_heads": 4, "draws": 5, "variants": 2, "wide": 768},
        full={"d_model": 16, "num_heads": 4, "draws": 30, "variants": 50, "wide": 768},
        minutes=(0.1, 0.6),
        run=run,
        needs=("is-the-right-shape-enough", "what-does-the-causal-mask-prevent"),
    )
)
