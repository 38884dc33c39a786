"""Figures and tables of ``is-mine-the-same-as-pytorch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.labs.lab import Chart, Series, Sheet
from headwise.labs.measures import is_mine_the_same_as_pytorch as sameness
from headwise.labs.parts.lesson import say
from headwise.texts import mark as N_


def charts(
    forward: Mapping[str, float],
    backward: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    of_code: Mapping[str, Sequence[sameness.Sighting]],
    right: Sequence[sameness.Sighting],
    counts: Sequence[Mapping[str, int]],
    cases: Sequence[str],
) -> list[Chart]:
    """The charts."""
    names = list(forward)
    short = [case.removesuffix("-padding") for case in cases]
    allowed = [max(r["allowed"] for r in rows if r["dtype"] == t) for t in names]
    tolerances = [10.0**k for k in range(-17, 3, 2)]
    errors = [max(s.error for s in found) for found in of_code.values()]
    rounding = [s.error for s in right]
    low, high = max(rounding), min(errors)
    caught = [100.0 * sum(e > t for e in errors) / len(errors) for t in tolerances]
    passed = [100.0 * sum(e <= t for e in rounding) / len(rounding) for t in tolerances]
    return [
        Chart(
            name="differences",
            kind="bar",
            title=say(N_("The course's layer and PyTorch's differ by rounding only")),
            x_label=say(N_("precision")),
            y_label=say(N_("largest difference")),
            series=[
                Series(say(N_("output")), names, list(forward.values())),
                Series(say(N_("gradients of x and weights")), names, list(backward.values())),
                Series(say(N_("largest derived allowance")), names, allowed),
            ],
            log_y=True,
            alt=say(
                N_(
                    "Bars for float64, float32 and bfloat16 on a logarithmic axis: differences of "
                    "{a:.0e}, {b:.0e} and {c:.0e} in the output, each below its allowance."
                ),
                a=forward["float64"],
                b=forward["float32"],
                c=forward["bfloat16"],
            ),
        ),
        Chart(
            name="tolerance",
            kind="line",
            title=say(
                N_("Between {low:.0e} and {high:.0e} a tolerance tells right from wrong (float64)"),
                low=low,
                high=high,
            ),
            x_label=say(N_("absolute tolerance of the comparison")),
            y_label=say(N_("share, %")),
            series=[
                Series(say(N_("right layers that pass")), tolerances, passed),
                Series(say(N_("faults that fail")), tolerances, caught, style="dashed"),
            ],
            log_x=True,
            alt=say(
                N_(
                    "Two lines over the tolerance. Right layers pass from {low:.0e} on; all "
                    "faults fail up to {high:.0e}, and ever fewer above."
                ),
                low=low,
                high=high,
            ),
        ),
        Chart(
            name="sizes",
            kind="bar",
            title=say(
                N_("The course's own input leaves {first} of {n} faults without a sign"),
                first=counts[0]["unseen"],
                n=len(of_code),
            ),
            x_label=say(N_("input of the test (right, left: side of its padding)")),
            y_label=say(N_("faults of the catalogue")),
            series=[
                Series(say(label), short, [float(c[name]) for c in counts])
                for name, label in (
                    ("unseen", N_("no sign at all")),
                    ("raises", N_("an error instead of wrong numbers")),
                )
            ],
            alt=say(
                N_(
                    "Grouped bars for six inputs. The course's input leaves {first} of {n} faults "
                    "without a sign, left padding leaves {left}."
                ),
                first=counts[0]["unseen"],
                n=len(of_code),
                left=counts[list(cases).index("left-padding")]["unseen"],
            ),
        ),
    ]


def sheets(
    rows: Sequence[Mapping[str, Any]],
    orders: Sequence[tuple[str, float]],
    of_code: Mapping[str, Sequence[sameness.Sighting]],
    margins: Mapping[str, float],
    meanings: Sequence[Mapping[str, Any]],
    mistakes: Sequence[tuple[str, str, float]],
    dtypes: Sequence[tuple[str, bool, float, int]],
) -> list[Sheet]:
    """The tables."""
    return [
        Sheet("conventions", say(N_("What True means in a boolean mask")),
              ("api", "stated", "weight", "measured", "source"),
              [tuple(r[k] for k in ("api", "stated", "weight", "measured", "source"))
               for r in meanings],
              (say(N_("argument")), say(N_("True means, by its record")),
               say(N_("measured weight of the key that True marks")), say(N_("measured")),
               say(N_("source")))),
        Sheet("mask-dtypes", say(N_("What the course's layer does with a padding mask")),
              ("mask", "refused", "difference", "nan_rows"), dtypes,
              (say(N_("mask")), say(N_("raises")), say(N_("difference on real rows")),
               say(N_("real rows that are NaN")))),
        Sheet("mistakes", say(N_("A mask read with the wrong convention")),
              ("written", "read", "difference"), mistakes,
              (say(N_("written for")), say(N_("read as")), say(N_("change of the output")))),
        Sheet("block-order", say(N_("Order of the weight blocks")), ("order", "difference"), orders,
              (say(N_("order")), say(N_("difference to nn.MultiheadAttention")))),
        Sheet("precision", say(N_("Errors against float64, and what is allowed")),
              ("dtype", "mask", "part", "implementation", "error", "allowed", "to_mine"),
              [(r["dtype"], r["mask"], r["part"], r["kind"], r["error"], r["allowed"],
                r["difference"]) for r in rows], shown=False),
        Sheet("faults", say(N_("Faults of the catalogue on the course's layer")),
              ("code", "case", "raised", "same_shape", "error", "over_allowance", "largest_margin"),
              [(s.code, s.case, s.raised, s.same_shape, s.error, max(s.forward, s.gradient),
                margins[c]) for c, found in of_code.items() for s in found], shown=False),
    ]  # fmt: skip
