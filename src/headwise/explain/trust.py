"""Whether a map may be believed: its rank agreement with interventions, measured on this text.

What is compared: a map that can say which way a token works (``is_signed``) is compared with the
effects as they are; a map that can't, with their size. The effect of a token is the target's value
minus its value with the token taken away, so a positive effect promotes the target.

The verdict is Spearman's. Kendall's tau meets the same orders and the same resamples, and where the
two disagree about chance the words say so. They also say where the agreement is not shown to be
more than that of two things that fade with distance (``beyond_position.py``).

One limit that no number here removes: interventions are a reference, not the truth. They too change
the model's input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.errors import ShapeError
from headwise.explain.agreement import Agreement, BeyondPosition
from headwise.explain.beyond_position import partial_agreement
from headwise.explain.bootstrap import bootstrap_intervals
from headwise.explain.chance import benjamini_hochberg, permutation_null
from headwise.explain.chance_kendall import kendall_null
from headwise.explain.effects import Effects
from headwise.explain.ranks import kendall, spearman
from headwise.explain.verdicts import (
    RULES,
    Evidence,
    Rules,
    decide,
    nothing_to_rank,
    with_remarks,
)
from headwise.numerics import CHAIN, eps
from headwise.texts import translate as _


@dataclass(frozen=True)
class Sampling:
    """How the null and the interval are drawn.

    Args:
        permutations: shuffled orders, at least; with 10000 the share of 5% is known to 0.2%.
        resamples: of the bootstrap.
        seed: of both.
        level: of the null band and of the interval.
    """

    permutations: int = 10000
    resamples: int = 1000
    seed: int = 0
    level: float = 0.95


def agreement(
    scores: Tensor,
    effects: Effects,
    *,
    is_signed: bool,
    precision: torch.dtype = torch.float64,
    sampling: Sampling | None = None,
    rules: Rules = RULES,
) -> Agreement:
    """Agreement of one map with the effects.

    Args:
        scores: (T,), finite.
        effects: measured by interventions.
        is_signed: the map says which way a token works.
        precision: dtype that the scores were computed in: a map whose scores differ by no more
            than its rounding is constant.
        sampling: how chance is drawn.
        rules: of the verdict.

    Raises:
        ShapeError: if there isn't one score per effect.
        TargetError: if a score or an effect is not finite.

    Example:
        >>> effect = torch.arange(20.0).sub(3) / 7
        >>> agreement(effect.abs(), Effects(effect), is_signed=False).words
        'agrees strongly with interventions: its order of the tokens can be used'
        >>> agreement(-effect, Effects(effect), is_signed=True).code.value
        'opposite'
    """
    if scores.dim() != 1:
        raise ShapeError(
            _("one map is one score per token"),
            where=_("shape {shape}").format(shape=tuple(scores.shape)),
            fix=_("agreements(...) takes many maps"),
        )
    (result,) = agreements(
        scores[None],
        effects,
        is_signed=is_signed,
        precision=precision,
        sampling=sampling,
        rules=rules,
    )
    return result


def agreements(
    scores: Tensor,
    effects: Effects,
    *,
    is_signed: bool,
    precision: torch.dtype = torch.float64,
    sampling: Sampling | None = None,
    rules: Rules = RULES,
) -> list[Agreement]:
    """Agreement of many maps (all heads, or all layers) with the same effects.

    Of 270 heads that have nothing to do with the effects, about 13 have p <= 0.05. The verdicts
    therefore use p adjusted over all maps that have an order, so that at most a share alpha of the
    heads that are named agreeing or opposite is so by chance. At least ``2 · maps / alpha`` orders
    are drawn, so that one head alone among all can still be told from chance.

    Args:
        scores: (M, T), finite; flatten layers and heads first.
        effects: measured by interventions.
        is_signed: the maps say which way a token works.
        precision: dtype that the scores were computed in.
        sampling: how chance is drawn.
        rules: of the verdicts.

    Returns:
        M agreements.

    Raises:
        ShapeError: if there isn't one score per effect.
        TargetError: if a score or an effect is not finite.

    Source:
        Benjamini and Hochberg 1995. The test of an attention map by rank agreement with
        interventions: Jain and Wallace 2019, "Attention is not Explanation", section 4.1.
    """
    if scores.dim() != 2:
        raise ShapeError(
            _("many maps are a table, one row per map and one column per token"),
            where=_("shape {shape}").format(shape=tuple(scores.shape)),
            fix=_("flatten layers and heads into the first dimension"),
        )
    sampling = sampling or Sampling()
    rows, y = _without_rounding(effects.chosen(scores), precision), effects.compared
    if not is_signed:
        y = y.abs()
    m, n = rows.shape
    draws, seed = max(sampling.permutations, math.ceil(2 * m / rules.alpha)), sampling.seed
    rho, tau = spearman(rows, y), kendall(rows, y)
    null = permutation_null(
        rows, y, draws=draws, seed=seed, level=sampling.level, large=rules.strong
    )
    pairs = kendall_null(rows, y, draws=draws, seed=seed, level=sampling.level)
    spans = bootstrap_intervals(
        rows, y, resamples=sampling.resamples, seed=seed, level=sampling.level
    )
    beyond = None
    if effects.distance is not None:
        distance = effects.chosen(effects.distance)
        beyond = partial_agreement(rows, y, distance, draws=draws, seed=seed)
    columns = {
        "spearman": rho,
        "kendall": tau,
        "low": spans.spearman.low,
        "high": spans.spearman.high,
        "null_low": null.low,
        "null_high": null.high,
        "p": null.p,
        "p_adjusted": benjamini_hochberg(null.p),
        "smallest_p": null.smallest_p,
        "large_by_chance": null.large_by_chance,
        "kendall_low": spans.kendall.low,
        "kendall_high": spans.kendall.high,
        "kendall_null_low": pairs.low,
        "kendall_null_high": pairs.high,
        "kendall_p": pairs.p,
        "kendall_p_adjusted": benjamini_hochberg(pairs.p),
    }
    if beyond is not None:
        columns["beyond"], columns["beyond_p"] = beyond.value, beyond.p
        columns["beyond_p_adjusted"] = benjamini_hochberg(beyond.p)
    table = torch.stack(list(columns.values()), -1).tolist()
    family = int((~rho.isnan()).sum())
    found = []
    for row, values, by_tail in zip(rows, table, pairs.by_tail.tolist(), strict=True):
        named = dict(zip(columns, values, strict=True))
        defined = not math.isnan(named["spearman"])
        left = None
        if beyond is not None and defined:
            left = BeyondPosition(
                *(_known(named[key]) for key in ("beyond", "beyond_p", "beyond_p_adjusted"))
            )
        if not defined:
            verdict = nothing_to_rank(n=n, has_order=len(row.unique()) > 1)
        else:
            evidence = Evidence(
                n,
                named["spearman"],
                named["p_adjusted"],
                (named["low"], named["high"]),
                named["smallest_p"],
                named["large_by_chance"],
            )
            verdict = with_remarks(
                decide(evidence, rules),
                kendall_p=named["kendall_p_adjusted"],
                has_position=effects.distance is not None,
                beyond_p=None if left is None else left.p_adjusted,
                is_beyond_known=left is not None,
                n=n,
                rules=rules,
            )
        found.append(
            Agreement(
                spearman=_known(named["spearman"]),
                kendall=_known(named["kendall"]),
                interval=_ends(named, "low", "high"),
                null=_ends(named, "null_low", "null_high"),
                p=_known(named["p"]),
                p_adjusted=_known(named["p_adjusted"]),
                kendall_interval=_ends(named, "kendall_low", "kendall_high"),
                kendall_null=_ends(named, "kendall_null_low", "kendall_null_high"),
                kendall_p=_known(named["kendall_p"]),
                kendall_p_adjusted=_known(named["kendall_p_adjusted"]),
                orders=null.orders,
                kendall_orders=pairs.orders,
                kendall_by_tail=by_tail,
                beyond_position=left,
                n=n,
                family=family,
                is_signed=is_signed,
                verdict=verdict,
            )
        )
    return found


def _without_rounding(rows: Tensor, precision: torch.dtype) -> Tensor:
    """Rows whose entries differ by no more than the rounding of their sizes become constant."""
    if rows.shape[-1] == 0:
        return rows
    allowed = CHAIN * eps(precision) * rows.abs().amax(-1)
    spread = rows.amax(-1) - rows.amin(-1)
    return torch.where((spread <= allowed)[:, None], rows[:, :1], rows)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _ends(named: Mapping[str, float], low: str, high: str) -> tuple[float, float] | None:
    return None if math.isnan(named[low]) else (named[low], named[high])
