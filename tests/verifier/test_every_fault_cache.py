"""Every way of decoding wrongly, computed by a module of its own, is named by the verifier.

The module has ``nn.Linear`` parameters. At once it returns the numbers of the definition; in steps,
those of a variant. The verifier sees the module alone, with the specification declared.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import HeadwiseError
from headwise.reference import Inputs, Parameters, attend
from headwise.report import Report
from headwise.spec import AttentionSpec
from headwise.verifier import stepping
from headwise.verifier.api import verify
from headwise.verifier.faults import FAULTS, Variant
from headwise.verifier.faults.decoding import Decoding, decode

SPECS: dict[str, dict[str, object]] = {
    "rotated": {"d_model": 40, "num_heads": 5, "causal": True, "rope": "halves", "head_dim": 8},
    "rotated, grouped, padded": {
        "d_model": 48, "num_heads": 6, "num_kv_heads": 2, "causal": True, "rope": "neighbours",
        "padding_mask": "keep",
    },
    "rotated, window": {
        "d_model": 24, "num_heads": 4, "causal": True, "rope": "halves", "window": [3, 0],
    },
    "window, padded": {
        "d_model": 24, "num_heads": 4, "causal": True, "window": [4, 0], "padding_mask": "keep",
    },
    "plain": {"d_model": 24, "num_heads": 4, "causal": True},
    "slopes": {"d_model": 36, "num_heads": 6, "causal": True, "alibi": True},
    "buckets": {"d_model": 24, "num_heads": 4, "causal": True, "positions": "relative-bias"},
    "learned, padded": {
        "d_model": 24, "num_heads": 4, "causal": True, "positions": "learned",
        "padding_mask": "keep",
    },
    "sinusoidal": {"d_model": 24, "num_heads": 4, "causal": True, "positions": "sinusoidal"},
}  # fmt: skip

NOT_SPEC = ("padding_mask",)


def spec_of(name: str) -> AttentionSpec:
    words = {k: v for k, v in SPECS[name].items() if k not in NOT_SPEC}
    return AttentionSpec.from_flags(**words).replace(biases="qkvo")


class Layer(nn.Module):
    """The definition at once, a variant in steps."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        rows = {
            "q": spec.num_heads * spec.head_dim,
            "k": spec.num_kv_heads * spec.head_dim,
            "v": spec.num_kv_heads * spec.v_head_dim,
        }
        for name, size in rows.items():
            setattr(self, f"{name}_proj", nn.Linear(spec.d_model, size))
        self.o_proj = nn.Linear(rows["q"], spec.d_model)
        kind = type(spec.positions).__name__
        if kind == "Learned":
            self.wpe = nn.Parameter(torch.randn(40, spec.d_model))
        if kind == "RelativeBias":
            self.relative_bias = nn.Parameter(torch.randn(32, spec.num_heads))

    def parameters_of(self) -> Parameters:
        layers = {name: getattr(self, f"{name}_proj") for name in "qkvo"}
        return Parameters(
            **{name: layer.weight for name, layer in layers.items()},
            **{f"{name}_bias": layer.bias for name, layer in layers.items()},
            positions=getattr(self, "wpe", None),
            relative_bias=getattr(self, "relative_bias", None),
        )


def run(layer: Layer, x: Tensor, keep: Tensor | None = None) -> Tensor:
    return attend(layer.spec, layer.parameters_of(), Inputs(x=x, keep=keep)).output


def report_for(name: str, how: Decoding) -> Report:
    """What the verifier says about a layer that decodes like this."""
    spec = spec_of(name)

    def steps(layer: Layer, x: Tensor, sizes: list[int], keep: Tensor | None = None) -> Tensor:
        return decode(spec, layer.parameters_of(), Inputs(x=x, keep=keep), sizes, how).output

    weights = {"layout": "separate", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
    if type(spec.positions).__name__ == "Learned":
        weights["positions"] = "wpe"
    if type(spec.positions).__name__ == "RelativeBias":
        weights["relative_bias"] = "relative_bias"
    module = types.ModuleType("a_layer_in_steps")
    module.HEADWISE = {**SPECS[name], "weights": weights}
    module.headwise_build = lambda: Layer(spec)
    module.headwise_run = run
    module.headwise_steps = steps
    sys.modules[module.__name__] = module
    try:
        return verify(f"{module.__name__}:headwise_build")
    finally:
        del sys.modules[module.__name__]


def matters(name: str, variant: Variant) -> bool:
    """Whether a variant changes a result on some steps, and gives one."""
    torch.manual_seed(3)
    spec = spec_of(name)
    layer = Layer(spec).double()
    keep = None
    if "padding_mask" in SPECS[name]:
        keep = torch.arange(12) >= torch.tensor([[0], [2], [4]])
    inputs = Inputs(x=torch.randn(3, 12, spec.d_model).double(), keep=keep)
    assert variant.decoding is not None
    for sizes in ((7, 1, 1, 1, 1, 1), (7, 2, 3)):
        with torch.no_grad():
            try:
                wrong = decode(spec, layer.parameters_of(), inputs, sizes, variant.decoding).output
            except (HeadwiseError, IndexError, RuntimeError, ValueError):
                continue
            right = run(layer, inputs.x, keep)
        rows = torch.ones(3, 12).bool() if keep is None else keep
        if not math.isclose(float((wrong - right)[rows].abs().max()), 0.0, abs_tol=1e-9):
            return True
    return False


def pairs() -> Iterator[object]:
    for name in SPECS:
        for code, fault in FAULTS.items():
            for index, variant in enumerate(fault.in_steps(spec_of(name))):
                yield pytest.param(name, code, index, id=f"{name}-{code}-{variant.label}")


def check(name: str, code: str, index: int) -> None:
    variant = list(FAULTS[code].in_steps(spec_of(name)))[index]
    assert variant.decoding is not None
    report = report_for(name, variant.decoding)
    first = report.findings[0]
    assert report.verdict == "differs"
    assert f"HW-{code}" in {first.code, *first.equivalents}
    assert first.kind == "bug"
    assert [f.code for f in report.findings if f.kind in ("bug", "unexplained")] == [first.code]
    assert any(not check.passed for check in report.checks if check.name == "steps")
    assert all(check.passed for check in report.checks if check.name == "forward")


QUICK = [
    ("rotated", "R02"),
    ("rotated, grouped, padded", "R08"),
    ("learned, padded", "R12"),
    ("slopes", "R15"),
    ("plain", "M11"),
    ("plain", "M08"),
    ("rotated, grouped, padded", "M19"),
    ("window, padded", "M22"),
    ("plain", "C01"),
    ("rotated", "C02"),
    ("sinusoidal", "C03"),
    ("rotated, window", "C04"),
    ("buckets", "C05"),
]


@pytest.mark.parametrize(("name", "code"), QUICK)
def test_a_way_of_decoding_is_named(name: str, code: str) -> None:
    variants = list(FAULTS[code].in_steps(spec_of(name)))
    check(name, code, next(i for i, v in enumerate(variants) if matters(name, v)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code", "index"), list(pairs()))
def test_every_way_of_decoding_is_named(name: str, code: str, index: int) -> None:
    if not matters(name, list(FAULTS[code].in_steps(spec_of(name)))[index]):
        pytest.skip("changes nothing for this specification")
    check(name, code, index)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("slots", [False, True])
def test_right_decoding_is_right(name: str, slots: bool) -> None:
    if slots and "learned" in name:
        pytest.skip("positions that are added count real tokens, or the layer is wrong")
    report = report_for(name, Decoding(from_slots=slots))
    assert report.verdict == "matches"
    assert not [f for f in report.findings if f.kind in ("bug", "unexplained")]
    assert sum(check.name == "steps" for check in report.checks) >= 3
    assert all(check.passed for check in report.checks)


@pytest.mark.parametrize(("first", "second"), [("R12", "M19"), ("R02", "M11"), ("C01", "M22")])
def test_two_faults_at_once(first: str, second: str) -> None:
    name = "rotated, window" if second == "M22" else "rotated, grouped, padded"
    spec = spec_of(name)
    a, b = (next(iter(FAULTS[code].in_steps(spec))).decoding for code in (first, second))
    assert a is not None
    assert b is not None
    report = report_for(name, a.with_parts_of(b))
    found = report.findings[0]
    assert report.verdict == "differs"
    assert {found.code.removeprefix("HW-")} <= {first, second}
    assert f"HW-{second}" in found.where or f"HW-{first}" in found.where


def test_two_faults_that_may_not_be_searched_for_are_unexplained(monkeypatch) -> None:
    monkeypatch.setattr(stepping, "PAIR_WORK", -1.0)
    name = "rotated, grouped, padded"
    a, b = (next(iter(FAULTS[c].in_steps(spec_of(name)))).decoding for c in ("R12", "M19"))
    report = report_for(name, a.with_parts_of(b))
    assert report.verdict == "differs"
    assert report.findings[0].code == "HW-U00"
