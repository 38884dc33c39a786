"""Measurements of ``what-does-rope-encode``: the rotation, its derivation, its reach."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.labs.parts.lesson import gap, normal
from headwise.reference import Inputs, Parameters, attend
from headwise.reference.positions import rotary_angles, rotate
from headwise.spec import Alibi, AttentionSpec, Pairs, Rope
from headwise.verifier.faults import find_fault

PAIRS: tuple[Pairs, ...] = ("halves", "neighbours")


def turned(x: Tensor, position: int, pairs: Pairs, base: float = 10000.0) -> Tensor:
    """A vector (d,) turned to a position by the definition."""
    angle = rotary_angles(torch.tensor([[position]]), rotary_dim=x.shape[0], base=base)
    return rotate(x[None, None, None], angle.cos(), angle.sin(), pairs=pairs)[0, 0, 0]


def matrix(d: int, position: int, pairs: Pairs) -> Tensor:
    """The rotation to a position as a matrix, written out block by block."""
    found = torch.zeros(d, d, dtype=torch.float64)
    for i in range(d // 2):
        a, b = (i, i + d // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
        angle = position * 10000.0 ** (-2 * i / d)
        found[a, a] = found[b, b] = math.cos(angle)
        found[a, b], found[b, a] = -math.sin(angle), math.sin(angle)
    return found


def reorder(d: int) -> Tensor:
    """Channel order that takes halves to neighbours: 0, d/2, 1, d/2 + 1 and so on."""
    return torch.arange(d).view(2, d // 2).T.flatten()


def relative(seed: int, d: int, count: int, pairs: Pairs) -> dict[str, float]:
    """Scores at many pairs of positions against their distance alone; norms; sign."""
    g = torch.Generator().manual_seed(seed)
    q, k = normal(g, d), normal(g, d)
    places = torch.randint(0, 5000, (count, 2), generator=g).tolist()
    off = norm = 0.0
    sign = []
    for m, n in places:
        score = float(turned(q, m, pairs) @ turned(k, n, pairs))
        off = max(off, abs(score - float(q @ turned(k, n - m, pairs))))
        norm = max(norm, abs(float(turned(q, m, pairs).norm() - q.norm())))
        sign.append(abs(score - float(q @ turned(k, m - n, pairs))))
    return {
        "off": off,
        "norm": norm,
        "sign": sum(sign) / len(sign),
        "size": float(q.norm() * k.norm()),
    }


def values_and_place(seed: int, d: int, pairs: Pairs) -> dict[str, float]:
    """What rotation changes stage by stage: projections, values, scores, weights."""
    g = torch.Generator().manual_seed(seed)
    weights = {name: normal(g, d, d, factor=d**-0.5) for name in "qkvo"}
    inputs = Inputs(x=normal(g, 1, 6, d))
    plain = AttentionSpec(d_model=d, num_heads=2)
    off, on = (
        attend(spec, Parameters(**weights), inputs)
        for spec in (plain, plain.replace(positions=Rope(pairs=pairs)))
    )
    names = ("q_flat", "k_flat", "q_pos", "k_pos", "v", "scores", "weights")
    return {name: gap(getattr(on, name), getattr(off, name)) for name in names}


def pairings(seed: int, d: int) -> dict[str, float]:
    """The permutation between the pairings, and what a wrong pairing does (R01)."""
    g = torch.Generator().manual_seed(seed)
    q, k = normal(g, d), normal(g, d)
    order = reorder(d)
    moved = gap(turned(q, 17, "halves")[order], turned(q[order], 17, "neighbours"))
    right = float(turned(q, 17, "halves") @ turned(k, 5, "halves"))
    both = float(turned(q[order], 17, "neighbours") @ turned(k[order], 5, "neighbours"))
    spec = AttentionSpec(d_model=d, num_heads=1, positions=Rope(pairs="halves"))
    weights = {name: normal(g, d, d, factor=d**-0.5) for name in "qkvo"}
    inputs, parameters = Inputs(x=normal(g, 1, 6, d)), Parameters(**weights)
    fault = next(iter(find_fault("R01").variants(spec)))
    truth = attend(spec, parameters, inputs).output
    permuted = Parameters(**{**weights, "q": weights["q"][order], "k": weights["k"][order]})
    other = spec.replace(positions=Rope(pairs="neighbours"))
    return {
        "permutation": moved,
        "score": abs(right - both),
        "wrong": gap(fault.run(spec, parameters, inputs).output, truth),
        "weights_permuted": gap(attend(other, permuted, inputs).output, truth),
    }


@dataclass(frozen=True)
class Step:
    """One step of the derivation: its statement as a formula, and how far the numbers are off.

    Args:
        name: id.
        formula: the statement.
        error: largest difference between its two sides.
    """

    name: str
    formula: str
    error: float


def derivation(seed: int, d: int) -> list[Step]:
    """From a rotation of the plane to frequencies, each step checked in numbers."""
    g = torch.Generator().manual_seed(seed)
    q, k = normal(g, d), normal(g, d)
    m, n, theta = 7, 19, 0.3
    (a, b), (c, e) = q[:2].tolist(), k[:2].tolist()
    plane = torch.tensor(
        [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]],
        dtype=torch.float64,
    )
    eye = torch.eye(2, dtype=torch.float64)
    number, other = complex(a, b), complex(c, e)

    def turn(z: complex, by: float) -> complex:
        return z * complex(math.cos(by), math.sin(by))

    by_matrix = (plane @ q[:2]).tolist()
    product = (turn(number, m * theta) * turn(other, n * theta).conjugate()).real
    distance = turn(number * other.conjugate(), (m - n) * theta).real
    blocks = max(gap(matrix(d, m, p) @ q, turned(q, m, p)) for p in PAIRS)
    joined = max(gap(matrix(d, m, p).T @ matrix(d, n, p), matrix(d, n - m, p)) for p in PAIRS)
    whole = max(
        abs(float(turned(q, m, p) @ turned(k, n, p) - q @ turned(k, n - m, p))) for p in PAIRS
    )
    turns = rotary_angles(torch.tensor([[1]]), rotary_dim=d, base=10000.0)[0, 0]
    ratios = turns[1:] / turns[:-1]
    return [
        Step("plane", "R(θ)ᵀ R(θ) = 1", gap(plane.T @ plane, eye)),
        Step("complex", "R(θ)·(a, b) = (a + ib)·e^{iθ}",
             abs(turn(number, theta) - complex(*by_matrix))),
        Step("dot", "(a, b)·(c, e) = Re[(a + ib)·(c − ie)]",
             abs((number * other.conjugate()).real - (a * c + b * e))),
        Step("relative", "Re[q e^{imθ} · (k e^{inθ})*] = Re[q k* e^{i(m−n)θ}]",
             abs(product - distance)),
        Step("blocks", "R_m = diag(R(mθ_0), R(mθ_1), …)", blocks),
        Step("matrices", "R_mᵀ R_n = R_{n−m}", joined),
        Step("score", "(R_m q)·(R_n k) = q·R_{n−m} k", whole),
        Step("frequencies", "θ_i = base^{−2i/d}: θ_{i+1}/θ_i = base^{−2/d}",
             gap(ratios, torch.full_like(ratios, 10000.0 ** (-2 / d)))),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------- by distance
TURN = 300
"""Positions by which the third kind of key is turned."""


def profiles(seed: int, *, d: int, base: float, draws: int, length: int) -> dict[str, Tensor]:
    """Scores over √d by distance, (draws, length), for three kinds of input (first q = ones).

    ``same``: k = q. ``independent``: k of its own. ``turned``: k = q turned by 300 positions.
    """
    g = torch.Generator().manual_seed(seed)
    q, k = normal(g, draws, d), normal(g, draws, d)
    q[0] = 1.0
    theta = rotary_angles(torch.tensor([[1]]), rotary_dim=d, base=base)[0, 0]
    distance = torch.arange(length, dtype=torch.float64)
    cos, sin = (distance[None] * theta[:, None]).cos(), (distance[None] * theta[:, None]).sin()
    zq = torch.complex(q[:, : d // 2], q[:, d // 2 :])
    zk = torch.complex(k[:, : d // 2], k[:, d // 2 :])
    far = torch.polar(torch.ones_like(theta), TURN * theta)
    found = {}
    for name, key in (("same", zq), ("independent", zk), ("turned", zq * far)):
        product = zq.conj() * key  # the query stands `distance` after its key
        found[name] = (product.real @ cos + product.imag @ sin) / math.sqrt(d)
    return found


def alibi_profile(length: int) -> Tensor:
    """The penalty of ALiBi's first of 8 heads by distance, (length,), from the definition."""
    spec = AttentionSpec(d_model=8, num_heads=8, positions=Alibi())
    zero = torch.zeros(1, 8, length, 1, dtype=torch.float64)
    return attend(spec, Parameters(), Inputs(q=zero, k=zero, v=zero)).scores[0, 0, -1].flip(0)


def bound(d: int, base: float, length: int) -> list[float]:
    """RoFormer's upper bound of the score of q = k = 1, by distance, as a share of that score at 0.

    Summation by parts: |Σ h_i e^{i·distance·θ_i}| ≤ max |h_{i+1} − h_i| · Σ_j |S_j|, where S_j is
    the sum of the first j phases. Here all h are equal, so the largest step is the last one, to 0.

    Source: Su et al. 2021, section 3.4.3.
    """
    theta = rotary_angles(torch.tensor([[1]]), rotary_dim=d, base=base)[0, 0]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * theta
    partial = torch.polar(torch.ones_like(angle), angle).cumsum(-1).abs()
    share: list[float] = partial.mean(-1).tolist()
    return share


def course(scores: Sequence[float]) -> dict[str, int]:
    """Steps that rise, and changes of sign, along the distance."""
    pairs = list(itertools.pairwise(scores))
    return {
        "steps": len(pairs),
        "rises": sum(b > a for a, b in pairs),
        "signs": sum((a < 0) != (b < 0) for a, b in pairs),
    }


def bases(d: int, values: Sequence[float], length: int) -> list[dict[str, Any]]:
    """Per base: longest wavelength, pairs that do not turn once within the length, q = k = 1."""
    rows = []
    for base in values:
        theta = rotary_angles(torch.tensor([[1]]), rotary_dim=d, base=base)[0, 0]
        waves = 2 * math.pi / theta
        angle = torch.arange(length, dtype=torch.float64)[:, None] * theta
        score = angle.cos().mean(-1)
        negative = torch.nonzero(score < 0)
        rows.append({
            "base": base,
            "shortest": float(waves.min()),
            "longest": float(waves.max()),
            "slow_pairs": int((waves > length).sum()),
            "first_negative": int(negative[0]) if len(negative) else None,
            "at_the_end": float(score[-1]),
            "waves": waves.tolist(),
        })  # fmt: skip
    return rows
