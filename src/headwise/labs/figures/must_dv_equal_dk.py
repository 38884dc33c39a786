"""Charts of lab 16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwise.labs.judge import interval
from headwise.labs.lab import Chart, Phrase, Series
from headwise.labs.parts.drawn import spread
from headwise.texts import mark as N_


def charts(
    losses: Mapping[int, Sequence[float]], counted: Sequence[Mapping[str, int]], payload: int
) -> list[Chart]:
    """Loss against d_v with the bound; sizes."""
    widths = sorted(losses)
    bound = [max(0.0, 1 - w / payload) for w in widths]
    return [
        Chart(
            "lost",
            "line",
            Phrase(
                N_("A head carries d_v numbers: from d_v = {payload} on nothing is lost"),
                {"payload": payload},
            ),
            Phrase(N_("value width d_v")),
            Phrase(N_("share of the payload's variance lost")),
            Phrase(
                N_(
                    "Falling line from {a:.2f} to {b:.2f}, on the theoretical bound 1 − "
                    "d_v/{payload}."
                ),
                {
                    "a": interval(losses[widths[0]]).mean,
                    "b": interval(losses[widths[-1]]).mean,
                    "payload": payload,
                },
            ),
            (
                spread(N_("trained"), widths, [losses[w] for w in widths]),
                Series(Phrase(N_("bound 1 − d_v/payload")), widths, bound, style="dashed"),
            ),
            log_x=True,
        ),
        Chart(
            "parameters",
            "line",
            Phrase(N_("Each value channel costs 2·H·d_model parameters")),
            Phrase(N_("value width d_v")),
            Phrase(N_("parameters of the layer (thousands)")),
            Phrase(
                N_("Straight line from {a} to {b} parameters."),
                {"a": counted[0]["parameters"], "b": counted[-1]["parameters"]},
            ),
            (
                Series(
                    Phrase(N_("counted")),
                    [c["d_v"] for c in counted],
                    [c["parameters"] / 1000 for c in counted],
                ),
                Series(
                    Phrase(N_("2·H·d_model·(d_k + d_v)")),
                    [c["d_v"] for c in counted],
                    [c["formula"] / 1000 for c in counted],
                    style="dashed",
                ),
            ),
        ),
    ]
