"""Measured sentences that go with particular faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.texts import translate as _

if TYPE_CHECKING:
    from headwise.verifier.diagnose import Theory
    from headwise.verifier.engine import Engine


def head_axis_evidence(engine: Engine, theory: Theory) -> list[str]:
    """M03: what happens to a sample with two real tokens when T = H."""
    for case in engine.cases:
        keep = case.inputs.keep
        if keep is None or keep.shape[1] != theory.reading.spec.num_heads:
            continue
        output = engine.session.outcome(case, theory.reading).output
        trace = engine.session.predict(case, theory.reading, theory.variant)
        if output is None or isinstance(trace, Exception):
            continue
        sample = int((keep.sum(1) == 2).long().argmax())
        real = int(keep[sample].sum())
        heads = [h for h in range(keep.shape[1]) if not bool(keep[sample, h])]
        place = _("case {case} ({sizes}), sample {sample} with {real} real tokens").format(
            case=case.name, sizes=case.sizes(), sample=sample, real=real
        )
        if bool(output[sample].isnan().all()):
            return [_("{place}: its whole output is NaN").format(place=place)]
        uniform = 1.0 / keep.shape[1]
        gap = float((trace.weights[sample, heads] - uniform).abs().max())
        return [
            _(
                "{place}: heads {heads} give every key, future and padding included, the weight "
                "{uniform:.3g} (largest difference {gap:.1e})"
            ).format(place=place, heads=heads, uniform=uniform, gap=gap)
        ]
    return []
