"""Layers that are made from a specification bind by themselves, whoever wrote them."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch
from tests.verifier import spec_layers
from tests.verifier.spec_layers import NamedSpec, SpecAttention, Store
from torch import Tensor, nn

import headwise
from headwise.errors import UsageError
from headwise.masks import Mask, Padding
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)
from headwise.verifier.annotations import annotations_of, classes_in, maker_from_spec, values_in
from headwise.verifier.construct import spec_code, spec_for, spec_words

HALVES, NEIGHBOURS = Rope(pairs="halves"), Rope(pairs="neighbours", rotary_dim=4, base=500.0)
BUCKETS = RelativeBias(num_buckets=8, max_distance=16)
ONE_SIDED = RelativeBias(num_buckets=8, max_distance=16, bidirectional=False)

VARIANTS: dict[str, dict[str, Any]] = {
    "every head its own": {"is_causal": True, "biases": "qkvo"},
    "grouped": {"num_kv_heads": 2, "is_causal": True},
    "one key head": {"num_kv_heads": 1},
    "another value size": {"head_dim": 6, "v_head_dim": 10, "is_causal": True},
    "halves": {"positions": HALVES, "is_causal": True},
    "neighbours, some channels": {"d_model": 32, "positions": NEIGHBOURS, "is_causal": True},
    "slopes": {"d_model": 36, "num_heads": 6, "positions": Alibi(), "is_causal": True},
    "slopes on both sides": {"positions": Alibi(symmetric=True)},
    "buckets": {"positions": BUCKETS},
    "buckets on one side": {"positions": ONE_SIDED, "is_causal": True},
    "learned": {"positions": Learned(max_len=64), "is_causal": True},
    "sinusoidal": {"positions": Sinusoidal(), "is_causal": True},
    "normalised before": {"positions": HALVES, "qk_norm": QkNorm(), "is_causal": True},
    "normalised after": {
        "positions": HALVES,
        "qk_norm": QkNorm(order="after-rope", kind="layer", eps=1e-5),
        "is_causal": True,
    },
    "capped": {"softcap": 3.0, "is_causal": True},
    "sinks": {"sinks": True, "is_causal": True},
    "window": {"window": (2, 0), "is_causal": True},
    "window on both sides": {"window": (2, 1)},
    "another scale": {"scale": 0.3, "dropout": 0.1, "is_causal": True},
    "cross": {"d_context": 20},
    "everything": {
        "d_model": 32, "num_kv_heads": 2, "v_head_dim": 6, "softcap": 4.0, "sinks": True,
        "positions": Rope(pairs="halves", rotary_dim=4), "qk_norm": QkNorm(), "window": (3, 0),
        "is_causal": True, "biases": "qkvo",
    },
}  # fmt: skip

TARGETS = ("tests.verifier.spec_layers:SpecAttention", "headwise:MultiHeadAttention")
ALLOWED = {"headwise:MultiHeadAttention": {"HW-M29"}}
"""Hazards that a target is known to have: 0 · NaN of hidden values."""


def spec_of(variant: str) -> AttentionSpec:
    return AttentionSpec(**{"d_model": 24, "num_heads": 4, **VARIANTS[variant]})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_right(target: str, variant: str) -> None:
    spec = spec_of(variant)
    report = headwise.verify(target, spec, cross=variant == "cross")
    assert report.verdict == "matches"
    assert all(check.passed for check in report.checks)
    assert not [f for f in report.findings if f.kind in ("bug", "unexplained", "convention")]
    assert {f.code for f in report.findings if f.kind == "hazard"} <= ALLOWED.get(target, set())
    names = {check.name for check in report.checks}
    assert {"forward", "gradient of q_proj.weight", "inputs unchanged"} <= names
    if variant != "cross":
        assert "returned weights" in names
    stepped = [c for c in report.checks if c.name == "steps"]
    assert len(stepped) >= (5 if spec.is_causal else 0)
    assert any("left padding" in c.case for c in stepped) is spec.is_causal
    for word in ("sinks", "q_norm.weight", "positions", "relative_bias"):
        there = {"sinks": spec.sinks, "q_norm.weight": spec.qk_norm is not None}
        if there.get(word):
            assert f"gradient of {word}" in names


@pytest.mark.parametrize("target", TARGETS)
def test_without_flags_a_small_specification_is_used_and_printed(target: str) -> None:
    report = headwise.verify(target)
    assert report.verdict == "matches"
    built = "AttentionSpec(d_model=24, num_heads=4, num_kv_heads=2)"
    assert report.inferred["built from"] == built
    assert report.inferred["mask argument"] == "mask: a Mask, made from what a case hides"
    assert report.inferred["padding mask"] == "Padding(keep)"
    names = [check.case for check in report.checks if check.name == "forward"]
    assert any("documents" in name for name in names)
    assert any("cross" in name for name in names)


@pytest.mark.parametrize("target", TARGETS)
def test_flags_make_the_specification_that_the_layer_is_built_from(target: str) -> None:
    report = headwise.verify(
        target, num_heads=6, d_model=36, causal=True, rope="neighbours", rope_base=500.0,
        init={"qk_norm": "after-rope", "sinks": True, "biases": "qv"},
    )  # fmt: skip
    assert report.verdict == "matches"
    assert report.inferred["built from"] == (
        "AttentionSpec(d_model=36, num_heads=6, is_causal=True, "
        "positions=Rope(pairs='neighbours', base=500.0), sinks=True, "
        "qk_norm=QkNorm(order='after-rope'), biases='qv')"
    )
    assert report.spec["num_kv_heads"] == 6
    assert report.inferred["steps"] == "with a cache, through the argument cache"


def test_both_ways_of_asking_for_weights_are_tried() -> None:
    report = headwise.verify(SpecAttention, spec_of("halves"))
    assert sum(c.name == "returned weights" and c.case == "plain" for c in report.checks) == 2


def test_an_argument_named_spec_and_a_layer_that_is_built() -> None:
    assert headwise.verify(NamedSpec, causal=True).verdict == "matches"
    layer = SpecAttention(spec_of("window"))
    report = headwise.verify(layer)
    assert report.verdict == "matches"
    assert report.spec["window"] == [2, 0]


def test_a_word_that_no_specification_has_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no argument 'nonsense'"):
        headwise.verify(SpecAttention, init={"nonsense": 1})


# ------------------------------------------------------------------ negative twins
class WindowForgotten(SpecAttention):
    """Attends beyond its window."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec.replace(window=None))


class AlwaysCausal(SpecAttention):
    """Hides what comes later, whatever the specification says."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec.replace(is_causal=True))


class ForgetsItsCache(SpecAttention):
    """Rotates every step from position 0."""

    def prepared(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Any:
        if q_pos is k_pos:
            q_pos = k_pos = torch.arange(q.shape[2]).expand(q.shape[0], -1)
        return super().prepared(q, k, q_pos, k_pos)


class IgnoresPadding(SpecAttention):
    """Takes a mask and leaves the padding in it out."""

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None) -> Any:
        rules = [r for r in mask.rules() if not isinstance(r, Padding)] if mask else []
        return super().forward(x, context, mask=rules[0] if rules else None)


class IgnoresItInWeights(SpecAttention):
    """The averaged weights come without the mask."""

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        need_weights: typing.Literal[False, "per-head", "averaged"] = False,
    ) -> Any:
        given = None if need_weights == "averaged" else mask
        return super().forward(x, mask=given, need_weights=need_weights)


@pytest.mark.parametrize(
    ("layer", "variant", "code"),
    [
        (WindowForgotten, "window", "HW-M22"),
        (AlwaysCausal, "one key head", "HW-M10"),
        (IgnoresPadding, "one key head", "HW-M04"),
        (ForgetsItsCache, "halves", "HW-R02"),
        (IgnoresItInWeights, "grouped", "HW-M20"),
    ],
)
def test_a_layer_that_departs_from_its_specification(
    layer: type[nn.Module], variant: str, code: str
) -> None:
    report = headwise.verify(layer, spec_of(variant))
    assert report.verdict == "differs"
    assert report.findings[0].code == code
    assert [f.code for f in report.findings if f.kind in ("bug", "unexplained")] == [code]


def test_a_layer_that_raises_its_own_headwise_error_is_no_usage_error() -> None:
    class Refuses(SpecAttention):
        def forward(self, x: Tensor, *, mask: Mask | None = None) -> Any:
            raise UsageError("not today")

    report = headwise.verify(Refuses)
    assert report.verdict == "cannot-run"
    assert report.reason is not None
    assert "UsageError: not today" in report.reason.what


# ------------------------------------------------------------------ the parts
def test_a_specification_from_words() -> None:
    assert spec_for({}, {}) == AttentionSpec(d_model=24, num_heads=4, num_kv_heads=2)
    assert spec_for({"num_heads": 6}, {}) == AttentionSpec(d_model=36, num_heads=6)
    assert spec_for({"head_dim": 10}, {}).d_model == 40
    assert spec_for({"positions": "learned"}, {}).positions == Learned(max_len=64)
    whole = spec_of("everything")
    assert spec_for({"spec": whole}, {}) is whole
    assert spec_for({"spec": whole}, {"softcap": 2.0}) == whole.replace(softcap=2.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_expression_for_a_specification_makes_it_again(variant: str) -> None:
    spec = spec_of(variant)
    names = {n: getattr(headwise, n) for n in ("AttentionSpec", "Rope", "Alibi", "Learned")}
    more = {"QkNorm": QkNorm, "RelativeBias": RelativeBias, "Sinusoidal": Sinusoidal}
    assert eval(spec_code(spec), names | more) == spec
    assert AttentionSpec.from_flags(**spec_words(spec)) == spec


def test_annotations_are_read_also_if_they_are_for_type_checkers() -> None:
    found = annotations_of(SpecAttention.forward)
    assert classes_in(found["mask"]) == (Mask,)
    assert classes_in(found["cache"]) == (Store,)
    assert values_in(found["need_weights"]) == (False, "per-head", "averaged")
    assert maker_from_spec(Store, AttentionSpec) == Store.for_spec
    assert maker_from_spec(nn.Linear, AttentionSpec) is None

    def later(x: "NotThereYet", y: int) -> None:  # noqa: F821, UP037
        """An annotation that nothing resolves."""

    assert annotations_of(later) == {"y": int}
    assert spec_layers.__name__ == "tests.verifier.spec_layers"
