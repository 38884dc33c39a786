"""Every variant of P, H, R, S, G and O, computed by a module of its own, is named by the verifier.

The module has ``nn.Linear`` parameters and returns the numbers of the definition with one stage
replaced; the verifier sees the module alone, with the specification declared.
"""

import math

import pytest
import torch
from torch import nn

from headwise.errors import HeadwiseError
from headwise.reference import Inputs, Parameters
from headwise.spec import AttentionSpec
from headwise.verifier.api import verify
from headwise.verifier.faults import FAULTS, Variant

LETTERS = "PHRSGO"

SPECS: dict[str, dict[str, object]] = {
    "every head its own": {"d_model": 24, "num_heads": 4, "causal": True},
    "six over two, halves": {
        "d_model": 48, "num_heads": 6, "num_kv_heads": 2, "causal": True, "rope": "halves",
    },
    "six over three": {"d_model": 36, "num_heads": 6, "num_kv_heads": 3},
    "other value size": {"d_model": 24, "num_heads": 4, "head_dim": 6, "v_head_dim": 10},
    "part of the channels, neighbours": {
        "d_model": 48, "num_heads": 4, "causal": True, "rope": "neighbours", "rotary_dim": 6,
    },
    "six heads with slopes": {"d_model": 36, "num_heads": 6, "causal": True, "alibi": True},
    "learned positions": {"d_model": 24, "num_heads": 4, "causal": True, "positions": "learned"},
    "normalised before": {
        "d_model": 32, "num_heads": 4, "causal": True, "rope": "halves", "qk_norm": "before-rope",
    },
    "normalised after": {
        "d_model": 32, "num_heads": 4, "causal": True, "rope": "halves", "qk_norm": "after-rope",
    },
    "capped": {"d_model": 24, "num_heads": 4, "causal": True, "softcap": 3.0},
    "cross": {"d_model": 24, "num_heads": 4},
}  # fmt: skip


def spec_of(name: str) -> AttentionSpec:
    return AttentionSpec.from_flags(**SPECS[name]).replace(biases="qkvo")


class Layer(nn.Module):
    """What a variant computes, from parameters of its own."""

    def __init__(self, spec: AttentionSpec, variant: Variant, *, fused: bool) -> None:
        super().__init__()
        self.spec, self.variant = spec, variant
        rows = [
            spec.num_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
            spec.num_kv_heads * spec.v_head_dim,
        ]
        self.rows = rows
        if fused:
            self.qkv_proj = nn.Linear(spec.d_model, sum(rows))
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(spec.d_model, n) for n in rows)
        self.fused = fused
        self.o_proj = nn.Linear(spec.num_heads * spec.v_head_dim, spec.d_model)
        if spec.qk_norm is not None:
            self.q_norm = nn.Parameter(torch.ones(spec.head_dim))
            self.k_norm = nn.Parameter(torch.ones(spec.head_dim))
        if spec.positions is not None and "Learned" in type(spec.positions).__name__:
            self.wpe = nn.Parameter(torch.randn(40, spec.d_model))

    def parameters_of(self) -> Parameters:
        if self.fused:
            weights = self.qkv_proj.weight.split(self.rows)
            biases = self.qkv_proj.bias.split(self.rows)
        else:
            layers = (self.q_proj, self.k_proj, self.v_proj)
            weights, biases = zip(*((p.weight, p.bias) for p in layers), strict=True)
        return Parameters(
            q=weights[0], k=weights[1], v=weights[2],
            q_bias=biases[0], k_bias=biases[1], v_bias=biases[2],
            o=self.o_proj.weight, o_bias=self.o_proj.bias,
            q_norm=getattr(self, "q_norm", None), k_norm=getattr(self, "k_norm", None),
            positions=getattr(self, "wpe", None),
        )  # fmt: skip

    def run(self, inputs: Inputs) -> torch.Tensor:
        try:
            return self.variant.run(self.spec, self.parameters_of(), inputs).output
        except HeadwiseError as error:  # a mask in a form that it does not take
            raise ValueError(error.what) from error


class PlainLayer(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(Inputs(x=x))


class PaddedLayer(Layer):
    def forward(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        return self.run(Inputs(x=x, keep=keep))


class CrossLayer(Layer):
    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.run(Inputs(x=x, context=context))


def layer_for(name: str, variant: Variant) -> tuple[nn.Module, dict[str, object]]:
    spec = spec_of(name)
    words = dict(SPECS[name])
    fused = name == "every head its own"
    if fused:
        words["weights"] = {"layout": "packed-chunks", "qkv": "qkv_proj", "o": "o_proj"}
    if name == "cross":
        return CrossLayer(spec, variant, fused=False), {**words, "cross": True}
    kind = PaddedLayer if name == "learned positions" else PlainLayer
    return kind(spec, variant, fused=fused), words


def matters(name: str, variant: Variant) -> bool:
    """Whether a variant changes anything for a specification."""
    spec = spec_of(name)
    torch.manual_seed(3)
    layer, _words = layer_for(name, variant)
    layer.double()
    right, _words = layer_for(name, Variant())
    right.double().load_state_dict(layer.state_dict())
    x = torch.randn(3, 7, spec.d_model, dtype=torch.float64) * 2
    given = [x]
    if name == "cross":
        given.append(torch.randn(3, 5, spec.d_model, dtype=torch.float64))
    if name == "learned positions":
        given.append(torch.arange(7) >= torch.tensor([[0], [3], [1]]))
    try:
        with torch.no_grad():
            a, b = layer(*given), right(*given)
    except (
        RuntimeError,
        ValueError,
    ):  # keys of the queries' length and values of the context's: never runs
        return False
    return a.shape != b.shape or not math.isclose(float((a - b).abs().max()), 0.0, abs_tol=1e-9)


def pairs():
    """All variants under the first specification that shows them; under others, the first."""
    seen = set()
    for name in SPECS:
        for code, fault in FAULTS.items():
            if code[0] not in LETTERS or (code == "P10") != (name == "cross"):
                continue
            first = True
            for index, variant in enumerate(fault.variants(spec_of(name))):
                key = (code, variant.label.partition(" ")[0], index)
                if (first or key not in seen) and matters(name, variant):
                    seen.add(key)
                    first = False
                    yield pytest.param(
                        name, code, index, id=f"{name}-{code}-{variant.label or index}"
                    )


PAIRS = list(pairs())
QUICK = {
    "H03": "six over three", "R01": "six over two, halves", "S02": "other value size",
    "P08": "normalised after", "P03": "every head its own", "R14": "six heads with slopes",
    "S10": "capped", "P10": "cross", "R11": "learned positions",
}  # fmt: skip


def check(name: str, code: str, index: int) -> None:
    fault = FAULTS[code]
    variant = list(fault.variants(spec_of(name)))[index]
    layer, words = layer_for(name, variant)
    report = verify(layer, **words)
    accused = [f for f in report.findings if f.kind in ("bug", "unexplained")]
    named = {f.code for f in report.findings if f.code not in ("HW-M26", "HW-M27", "HW-M29")}
    if fault.kind(frozenset(words)) == "convention" and not accused:
        assert report.verdict == "matches"  # a layer may be like that where nothing is declared
        return
    first = report.findings[0]
    assert f"HW-{code}" in {first.code, *first.equivalents}
    assert named == {first.code}
    assert accused == [f for f in report.findings if f.code == first.code]


@pytest.mark.parametrize(("code", "name"), QUICK.items())
def test_a_variant_is_named(code: str, name: str) -> None:
    check(name, code, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code", "index"), PAIRS)
def test_every_variant_is_named(name: str, code: str, index: int) -> None:
    check(name, code, index)


@pytest.mark.parametrize("name", SPECS)
def test_the_definition_itself_is_right(name: str) -> None:
    layer, words = layer_for(name, Variant())
    report = verify(layer, **words)
    assert report.verdict == "matches"
    assert not [f for f in report.findings if f.kind in ("bug", "unexplained")]
