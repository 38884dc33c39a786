"""Agreement given distance: planted fades, planted agreement, and what is nothing but distance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headwise.errors import ShapeError, TargetError, UsageError
from headwise.explain.beyond_position import FEWEST, partial_agreement
from headwise.explain.chance import permutation_null
from headwise.explain.ranks import spearman

SIGMAS = 4.0  # a share is allowed this many of its standard deviations: 6e-5 by chance


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def far(n: int) -> Tensor:
    """Distances of the tokens before the last one."""
    return torch.arange(n, 0, -1, dtype=torch.float64)


FADES = {
    "line": lambda d: -3 * d / len(d),
    "fast": lambda d: 8 * torch.exp(-d / 5),
    "slow": lambda d: 4 * torch.exp(-3 * d / len(d)),
    "inverse": lambda d: 8 / d,
    "log": lambda d: -2 * d.log(),
}


def share_found(fade: str, *, n: int, seed: int, kinship: float = 0.0) -> tuple[float, float]:
    """Share of maps with p <= 0.05, before and after distance is accounted for.

    Maps and effects fade with distance and have noise of their own; ``kinship`` of the noise of
    the effects is in the maps too. 40 effects with 20 maps each.
    """
    d = far(n)
    raw = given = 0.0
    for trial in range(40):
        own = numbers(n, seed=seed + trial)
        effect = FADES[fade](d) + own
        maps = FADES[fade](d) + kinship * own + numbers(20, n, seed=1000 * seed + trial)
        raw += float((permutation_null(maps, effect, draws=300).p <= 0.05).double().mean())
        found = partial_agreement(maps, effect, d, draws=300)
        assert found is not None
        given += float((found.p <= 0.05).double().mean())
    return raw / 40, given / 40


# Maps that share an effect are not independent given it, but their p are: each map has its own
# noise, and under the null p is uniform given the effect. 800 maps, and the 300 orders of each
# effect (40 sets) add to the deviation.
ALLOWED = 0.05 + SIGMAS * math.sqrt(0.05 * 0.95 * (1 / 800 + 1 / (40 * 300)))


@pytest.mark.parametrize("fade", sorted(FADES))
@pytest.mark.parametrize("n", [24, 80])
def test_two_fades_agree_for_that_alone(fade: str, n: int) -> None:
    raw, given = share_found(fade, n=n, seed=1)
    assert raw > 4 * ALLOWED
    assert given <= ALLOWED


def test_agreement_besides_the_fade_is_found() -> None:
    """The twin: the check above fails where maps and effects share more than distance."""
    raw, given = share_found("fast", n=80, seed=1, kinship=1.0)
    assert raw > 0.9
    assert given > 0.9 > ALLOWED


def test_a_straight_line_over_ranks_would_not_do() -> None:
    """Why the curve: the usual partial rank correlation of two fast fades finds agreement."""
    d = far(300)
    effect = FADES["fast"](d) + numbers(300, seed=5)
    maps = FADES["fast"](d) + numbers(400, 300, seed=6)
    xy, xd, yd = spearman(maps, effect), spearman(maps, d), spearman(effect, d)
    line = (xy - xd * yd) / ((1 - xd * xd) * (1 - yd * yd)).sqrt()
    t = line * math.sqrt(300 - 3)  # of 300 tokens, normal up to 1%
    assert float((t.abs() > 1.96).double().mean()) > ALLOWED
    found = partial_agreement(maps, effect, d)
    assert found is not None
    t = found.value * math.sqrt(300 - 6)
    assert float((t.abs() > 1.96).double().mean()) < float((line.abs() > 0.114).double().mean())


def test_value_by_regression() -> None:
    """The correlation of the remainders of a least-squares fit written out."""
    n = 30
    d, x, y = far(n), numbers(n, seed=1), numbers(n, seed=2)
    columns = torch.stack(
        (torch.ones(n).double(), d, d.square(), d.log1p(), d.log1p().square()), -1
    )
    rest = []
    for values in (x, y):
        ranks = values.argsort().argsort().double()[:, None]
        rest.append((ranks - columns @ torch.linalg.lstsq(columns, ranks).solution)[:, 0])
    want = float(rest[0] @ rest[1] / (rest[0].norm() * rest[1].norm()))
    got = partial_agreement(x, y, d)
    assert got is not None
    # the columns span 1 to 900: a condition of about 1e6 of their squares times eps is 1e-9
    assert got.value.item() == pytest.approx(want, abs=1e-9)
    assert abs(want - spearman(x, y).item()) > 1e-3


@pytest.mark.parametrize("sides", ["map", "effect"])
def test_nothing_but_distance(sides: str) -> None:
    d, noise = far(40), numbers(40, seed=3)
    found = partial_agreement(*((1 / d, noise) if sides == "map" else (noise, -d)), d)
    assert found is not None
    assert found.value.isnan()
    assert found.p.isnan()


def test_distances_on_both_sides() -> None:
    """An encoder: two tokens at every distance."""
    d = (torch.arange(41) - 20).abs().double()
    own = numbers(41, seed=4)
    found = partial_agreement(torch.stack((-d + own, 1 / (1 + d))), -d + own, d, draws=500)
    assert found is not None
    assert found.p[0].item() == 1 / 501
    assert found.value[0].item() == pytest.approx(1.0, rel=1e-12)
    assert found.value[1].isnan()


def test_no_distance_is_spearman() -> None:
    """Where all tokens are equally far, nothing is taken away."""
    x, y = numbers(3, 25, seed=1), numbers(25, seed=2)
    found = partial_agreement(x, y, torch.ones(25))
    assert found is not None
    assert found.value.tolist() == pytest.approx(spearman(x, y).tolist(), abs=1e-12)


def test_few_tokens_and_no_maps() -> None:
    few = FEWEST - 1
    assert partial_agreement(numbers(few, seed=1), numbers(few, seed=2), far(few)) is None
    none = partial_agreement(torch.ones(0, 20), numbers(20, seed=2), far(20))
    assert none is not None
    assert none.p.shape == (0,)


def test_seeded() -> None:
    x, y = numbers(2, 30, seed=1), numbers(30, seed=2)
    results = [partial_agreement(x, y, far(30), draws=500, seed=s) for s in (0, 0, 1)]
    p = [each.p.tolist() for each in results if each is not None]
    assert p[0] == p[1] != p[2]


def test_messages() -> None:
    x = torch.arange(20.0)
    with pytest.raises(ShapeError, match="different lengths"):
        partial_agreement(x, x, x[:3])
    with pytest.raises(TargetError, match="is nan"):
        partial_agreement(x, x, x / 0 * 0)
    with pytest.raises(UsageError, match="0 draws"):
        partial_agreement(x, x, x, draws=0)
