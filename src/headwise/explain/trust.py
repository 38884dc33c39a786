"""Whether a map may be believed: its rank agreement with interventions, measured on this text.

What is compared: a map that can say which way a token works (``is_signed``) is compared with the
effects as they are; a map that can't, with their size. The effect of a token is the target's value
minus its value with the token taken away, so a positive effect promotes the target.

Two limits that no number here removes. Interventions are a reference, not the truth: they too
change the model's input. And tokens of one sentence are not fully exchangeable: a map and an effect
that both fade with distance agree for that reason alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.errors import ShapeError, UsageError
from headwise.explain.chance import benjamini_hochberg, bootstrap_interval, permutation_null
from headwise.explain.ranks import finite, kendall, spearman
from headwise.explain.verdicts import RULES, Code, Evidence, Rules, Verdict, decide, nothing_to_rank
from headwise.numerics import CHAIN, eps
from headwise.texts import translate as _

HEAVY = 2.0
"""A token is heavily attended from this many even shares (1/n) on."""


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


@dataclass(frozen=True, eq=False)
class Effects:
    """What interventions on the tokens did to the target.

    Args:
        values: (T,), the target's value minus its value without the token.
        allowed: what rounding explains of a value; effects up to it count as 0.
        keep: (T,) bool, the tokens that are compared; None = all. Leave out tokens that cannot
            influence the target (those after the question's position) and those that weren't taken
            away: their zeros on both sides would pass for agreement.

    Raises:
        ShapeError: if the shapes differ.
    """

    values: Tensor
    allowed: float = 0.0
    keep: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if len(shape) != 1 or (self.keep is not None and tuple(self.keep.shape) != shape):
            raise ShapeError(
                _("effects are one number per token"),
                where=_("shapes {x} and {y}").format(
                    x=shape, y=None if self.keep is None else tuple(self.keep.shape)
                ),
                why=_("both have to be (T,)"),
            )

    def chosen(self, per_token: Tensor) -> Tensor:
        """The entries (..., n) of (..., T) that are compared; all have to be finite."""
        if per_token.shape[-1:] != self.values.shape:
            raise ShapeError(
                _("a map has one score per token"),
                where=_("scores for {got} tokens, effects of {want}").format(
                    got=tuple(per_token.shape)[-1:], want=tuple(self.values.shape)
                ),
            )
        per_token = finite(per_token)
        return per_token if self.keep is None else per_token[..., self.keep.cpu()]

    @property
    def compared(self) -> Tensor:
        """(n,) float64: the effects that are compared, 0 where rounding explains them."""
        values = self.chosen(self.values)
        return torch.where(values.abs() <= self.allowed, 0.0, values)


@dataclass(frozen=True)
class Agreement:
    """How far a map agrees with interventions.

    Args:
        spearman: rank correlation, None where it is undefined.
        kendall: tau-b, None where it is undefined.
        interval: bootstrap interval of ``spearman``.
        null: the band that holds ``Sampling.level`` of the correlations with a shuffled order.
        p: two-sided, against shuffled orders.
        p_adjusted: p after Benjamini and Hochberg over all maps judged together; the verdict uses
            it. For one map alone it is ``p``.
        n: tokens compared.
        family: maps judged together.
        is_signed: compared with the effects; False: with their size.
        verdict: code and words.
    """

    spearman: float | None
    kendall: float | None
    interval: tuple[float, float] | None
    null: tuple[float, float] | None
    p: float | None
    p_adjusted: float | None
    n: int
    family: int
    is_signed: bool
    verdict: Verdict

    @property
    def code(self) -> Code:
        """What the verdict says."""
        return self.verdict.code

    @property
    def words(self) -> str:
        """The verdict in the language of the user."""
        return self.verdict.words

    def to_payload(self) -> dict[str, Any]:
        """The record as JSON values; every number is finite or None."""
        return {
            "spearman": self.spearman,
            "kendall": self.kendall,
            "interval": None if self.interval is None else list(self.interval),
            "null": None if self.null is None else list(self.null),
            "p": self.p,
            "p_adjusted": self.p_adjusted,
            "n": self.n,
            "family": self.family,
            "compared": "effect" if self.is_signed else "size",
            "verdict": self.code.value,
            "words": self.words,
        }


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
    rho, tau = spearman(rows, y), kendall(rows, y)
    null = permutation_null(
        rows,
        y,
        draws=max(sampling.permutations, math.ceil(2 * m / rules.alpha)),
        seed=sampling.seed,
        level=sampling.level,
        large=rules.strong,
    )
    span = bootstrap_interval(
        rows, y, resamples=sampling.resamples, seed=sampling.seed, level=sampling.level
    )
    adjusted = benjamini_hochberg(null.p)
    family = int((~rho.isnan()).sum())
    table = torch.stack(
        (
            rho,
            tau,
            span.low,
            span.high,
            null.low,
            null.high,
            null.p,
            adjusted,
            null.smallest_p,
            null.large_by_chance,
        ),
        -1,
    )
    found = []
    for row, values in zip(rows, table.tolist(), strict=True):
        if math.isnan(values[0]):
            verdict = nothing_to_rank(n=n, has_order=len(row.unique()) > 1)
            found.append(
                Agreement(None, None, None, None, None, None, n, family, is_signed, verdict)
            )
            continue
        r, t, low, high, null_low, null_high, p, p_adjusted, smallest_p, large = values
        verdict = decide(Evidence(n, r, p_adjusted, (low, high), smallest_p, large), rules)
        ends, band = (low, high), (null_low, null_high)
        found.append(Agreement(r, t, ends, band, p, p_adjusted, n, family, is_signed, verdict))
    return found


@dataclass(frozen=True)
class SignError:
    """A token that a map holds for important and that works the other way.

    Args:
        token: its place in the text.
        share: its share of the map's total (of the sizes, for a signed map).
        score: what the map gives it.
        effect: what taking it away showed.
    """

    token: int
    share: float
    score: float
    effect: float


def sign_errors(scores: Tensor, effects: Effects, *, is_signed: bool) -> list[SignError]:
    """Heavy tokens of a map that work the other way, the heaviest first.

    A token is heavy if its share of the map is at least ``HEAVY / n``, twice the even share of the
    n tokens compared. For a map without signs, the error is that a heavy token *suppresses* the
    target: its effect is negative beyond rounding. For a signed map, it is that score and effect
    have opposite signs.

    Args:
        scores: (T,), finite; not negative unless ``is_signed``.
        effects: measured by interventions.
        is_signed: the map says which way a token works.

    Raises:
        ShapeError: if there isn't one score per effect.
        TargetError: if a score or an effect is not finite.
        UsageError: if a map without signs has negative scores.

    Source:
        Liu et al. 2022, arXiv 2201.12114, the faithfulness violation test.

    Example:
        >>> effect = Effects(torch.tensor([1.0, -0.5, 0.1, 0.0]))
        >>> sign_errors(torch.tensor([0.1, 0.7, 0.1, 0.1]), effect, is_signed=False)[0].token
        1
    """
    chosen, y = effects.chosen(scores), effects.compared
    if not is_signed and bool((chosen < 0).any()):
        raise UsageError(
            _("a map without signs has a negative score, {score:.3g}").format(
                score=float(chosen.min())
            ),
            fix="is_signed=True",
        )
    total = float(chosen.abs().sum())
    if total == 0.0:
        return []
    share = chosen.abs() / total
    wrong = (y < 0) if not is_signed else (y * chosen < 0)
    heavy = share >= HEAVY / len(y)
    places = torch.arange(len(scores))
    places = places if effects.keep is None else places[effects.keep.cpu()]
    errors = [
        SignError(int(places[i]), float(share[i]), float(chosen[i]), float(y[i]))
        for i in (wrong & heavy).nonzero()[:, 0].tolist()
    ]
    return sorted(errors, key=lambda error: (-error.share, error.token))


def count_codes(found: Sequence[Agreement]) -> dict[Code, int]:
    """How many maps got each verdict, in the order of the codes.

    Example:
        >>> effect = Effects(torch.arange(20.0))
        >>> count_codes([agreement(torch.arange(20.0), effect, is_signed=True)])[Code.STRONG]
        1
    """
    codes = [each.code for each in found]
    return {code: codes.count(code) for code in Code}


def _without_rounding(rows: Tensor, precision: torch.dtype) -> Tensor:
    """Rows whose entries differ by no more than the rounding of their sizes become constant."""
    if rows.shape[-1] == 0:
        return rows
    allowed = CHAIN * eps(precision) * rows.abs().amax(-1)
    spread = rows.amax(-1) - rows.amin(-1)
    return torch.where((spread <= allowed)[:, None], rows[:, :1], rows)
