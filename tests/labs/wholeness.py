"""What every result of a lab must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.labs.lab import VERDICTS, Lab, LabResult
from headwise.labs.ledger import rows
from headwise.labs.runner import untimed


def small_run(lab: Lab, params: Mapping[str, Any] | None = None, seed: int = 3) -> LabResult:
    """A run with some parameters changed; progress has to go from 0 to 1."""
    shares: list[float] = []
    result = lab.run(
        lab.params(full=False, changes=params), seed, lambda text, share: shares.append(share)
    )
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    return result


def check_whole(lab: Lab, result: LabResult) -> None:
    """Claims, figures, sentences, JSON."""
    assert result.lab == lab.name
    assert [o.claim for o in result.outcomes if o.claim not in lab.claims] == []
    assert sorted(o.claim for o in result.outcomes) == sorted(lab.claims)
    assert set(lab.claims) <= set(rows())
    figures = [c.name for c in result.charts] + [s.name for s in result.sheets]
    assert len(set(figures)) == len(figures)
    for outcome in result.outcomes:
        assert outcome.figure in figures
        assert outcome.verdict in VERDICTS
        assert (outcome.conditions is not None) == (outcome.verdict == "holds-under-conditions")
        assert "{" not in str(outcome.measured)
    for chart in result.charts:
        for phrase in (chart.title, chart.x_label, chart.y_label, chart.alt):
            assert str(phrase)
        for series in chart.series:
            assert len(series.x) == len(series.y)
    assert all(str(phrase) for phrase in result.conclusion)
    assert LabResult.from_json(result.to_json()).to_json() == result.to_json()


def check_repeats(lab: Lab, result: LabResult, params: Mapping[str, Any] | None = None) -> None:
    """A second run with the same seed says the same in everything but time."""
    assert untimed(small_run(lab, params, result.seed)) == untimed(result)


def verdicts(result: LabResult) -> dict[str, str]:
    """Verdicts by claim."""
    return {o.claim: o.verdict for o in result.outcomes}
