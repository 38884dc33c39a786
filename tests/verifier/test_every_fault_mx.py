"""The catalogue against itself: a module that computes each variant is diagnosed as that fault.

The module has Linear parameters of its own and computes what the definition with the variant gives
for them. The verifier has only its numbers, and has to name the fault or one that computes the
same.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import headwise
from headwise.errors import HeadwiseError
from headwise.reference import Inputs, Parameters, attend
from headwise.spec import AttentionSpec
from headwise.verifier import strategy
from headwise.verifier.faults import FAULTS
from headwise.verifier.faults.masking import NothingToDoError
from headwise.verifier.session import products_of

LETTERS = "MXA"
NOT_HERE = ("M11", "M19", "M30")  # need a cache or a registry
WRONG = ("bug", "unexplained")

SPECS = {
    "plain": {"num_heads": 3, "head_dim": 4},
    "causal": {"num_heads": 3, "head_dim": 4, "is_causal": True},
    "grouped causal": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "is_causal": True},
    "window": {"num_heads": 3, "head_dim": 4, "is_causal": True, "window": (2, None)},
    "sinks": {"num_heads": 3, "head_dim": 4, "is_causal": True, "sinks": True},
}
CROSS = ("M24", "M25")
FAST = ("plain", "grouped causal")


def spec_of(name):
    return AttentionSpec(d_model=18, **SPECS[name])


class Layer(nn.Module):
    """Numbers of a variant, or of several at once, for parameters of its own."""

    def __init__(self, spec, variants):
        super().__init__()
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.spec, self.variants = spec, variants
        self.q_proj = nn.Linear(spec.d_model, q)
        self.k_proj = nn.Linear(spec.d_model, kv)
        self.v_proj = nn.Linear(spec.d_model, kv)
        self.o_proj = nn.Linear(q, spec.d_model)
        self.sinks = nn.Parameter(torch.zeros(spec.num_heads)) if spec.sinks else None

    def forward(self, x, keep=None, documents=None, context=None, query_mask=None):
        parts = {n: getattr(self, f"{n}_proj") for n in "qkvo"}
        parameters = Parameters(
            **{n: p.weight for n, p in parts.items()},
            **{f"{n}_bias": p.bias for n, p in parts.items()},
            sinks=self.sinks,
        )
        inputs = Inputs(x=x, keep=keep, documents=documents, context=context, query_keep=query_mask)
        try:
            return self.run(parameters, inputs).output
        except HeadwiseError as error:
            raise ValueError(error.what) from error  # a target that refuses a mask's form

    def run(self, parameters, inputs):
        replace = {}
        for variant in self.variants:
            with contextlib.suppress(NothingToDoError), torch.no_grad():
                variant.run(self.spec, parameters, inputs)
                replace |= variant.replace
        return attend(self.spec, parameters, inputs, replace=replace)


def variants():
    for name in SPECS:
        spec = spec_of(name)
        for code, fault in FAULTS.items():
            if code[0] not in LETTERS or code in NOT_HERE:
                continue
            if code in CROSS and spec.is_causal:
                continue
            for place, variant in enumerate(fault.variants(spec)):
                alone = spec.is_causal and spec.window is None  # else another rule hides it too
                idle = not alone and variant.label.startswith("causal")
                if variant.around is not None or idle:
                    continue
                marks = () if name in FAST and place == 0 else pytest.mark.slow
                yield pytest.param(
                    name, code, variant, id=f"{name}-{code}-{variant.label or place}", marks=marks
                )


def diagnose(spec, *variants, cross=False):
    layer = Layer(spec, variants).eval()
    return headwise.verify(layer, spec=spec, padding_mask="keep", cross=cross)


@pytest.mark.parametrize(("name", "code", "variant"), list(variants()))
def test_each_variant_is_named(name, code, variant):
    spec = spec_of(name)
    report = diagnose(spec, variant, cross=code in CROSS)
    wrong = [f for f in report.findings if f.kind in WRONG]
    named = {c for f in report.findings for c in (f.code, *f.equivalents)}
    if report.verdict == "matches" and FAULTS[code].undeclared in ("hazard", "convention"):
        return  # right on ordinary rows: what empty rows give is tested with layers
    assert f"HW-{code}" in named
    assert len(wrong) == 1
    assert report.verdict == "differs"


PAIRS = {
    ("S01", "M02"): "plain",
    ("M05", "G01"): "causal",
    ("S03", "M04"): "plain",
    ("H02", "M06"): "causal",
    ("A01", "M01"): "plain",
}


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_faults_are_both_named(first, second):
    spec = spec_of(PAIRS[first, second])
    a, b = (next(iter(FAULTS[c].variants(spec))) for c in (first, second))
    report = diagnose(spec, a, b)
    named = {c for f in report.findings for c in (f.code, *f.equivalents)}
    assert {f"HW-{first}", f"HW-{second}"} <= named


def test_a_pair_that_may_not_be_searched_for_is_not_named(monkeypatch):
    monkeypatch.setattr(strategy, "PAIR_WORK", -1.0)
    spec = spec_of("causal")
    a, b = (next(iter(FAULTS[c].variants(spec))) for c in ("M05", "G01"))
    report = diagnose(spec, a, b)
    assert [f.code for f in report.findings if f.kind in WRONG] == ["HW-U00"]
    assert report.verdict == "differs"


def test_further_readings_are_searched_only_with_work_left(monkeypatch):
    spec = spec_of("causal")
    a, b = (next(iter(FAULTS[c].variants(spec))) for c in ("M05", "G01"))
    monkeypatch.setattr(strategy, "PAIR_WORK", -1.0)
    readings = []
    real = strategy.single_on

    def noted(engine, reading, *given, **options):
        readings.append(id(reading))
        return real(engine, reading, *given, **options)

    monkeypatch.setattr(strategy, "single_on", noted)
    tried = []
    for limit in (-1.0, 6000.0):
        monkeypatch.setattr(strategy, "SINGLE_WORK", limit)
        readings.clear()
        assert diagnose(spec, a, b).verdict == "differs"
        tried.append(len(set(readings)))
    assert tried[0] < tried[1]


def test_work_counts_how_large_a_layer_is():
    case = SimpleNamespace(inputs=SimpleNamespace(batch=2, q_len=5, kv_len=7))
    few, many = (
        products_of(
            case, SimpleNamespace(spec=AttentionSpec(d_model=width, num_heads=4, head_dim=3))
        )
        for width in (64, 1024)
    )
    assert few == 2 * 7 * 64 * (4 + 4) * (3 + 3)
    assert many == 16 * few


@pytest.mark.parametrize("name", SPECS)
def test_the_definition_itself_is_right(name):
    report = diagnose(spec_of(name))
    assert [f.code for f in report.findings if f.kind in WRONG] == []
    assert report.verdict == "matches"
