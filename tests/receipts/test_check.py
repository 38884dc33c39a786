"""The cost formulas against real runs: exact where they must be, and able to fail."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from headwise import cost, receipts
from headwise.cost.expression import Size
from headwise.cost.figure import Figure
from headwise.cost.hardware import Hardware
from headwise.errors import UsageError
from headwise.receipts import check as checking
from headwise.receipts import machine as measuring
from headwise.receipts.check import Formulas, check_layer, check_model
from headwise.receipts.counting import count_products, kept_bytes
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)

AWKWARD = {"d_model": 22, "num_heads": 6, "num_kv_heads": 3, "head_dim": 8, "v_head_dim": 10}
HERE = Hardware("this", "made up", {"float32": 1e11, "bfloat16": 1e11}, 1e10, 2**34, 2**20, "-")


def residuals(spec: AttentionSpec, **sizes) -> dict[str, float]:
    return {row.name: row.residual for row in check_layer(spec, **sizes)}


ZERO = {
    "parameters": 0, "FLOPs, forward": 0, "FLOPs, forward and backward": 0,
    "bytes kept for backward": 0,
}  # fmt: skip


# -- exact on the eager path --------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_heads", [6, 3, 1], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize(
    "rule",
    [{}, {"is_causal": True}, {"is_causal": True, "window": (3, 0)}, {"window": (2, 1)}],
    ids=["full", "causal", "causal-window", "window"],
)
def test_products_and_kept_bytes_are_exact(dtype, kv_heads, rule):
    spec = AttentionSpec(**AWKWARD | {"num_kv_heads": kv_heads}, **rule)
    for batch, q_len in ((2, 7), (1, 5)):
        assert residuals(spec, batch=batch, q_len=q_len, dtype=dtype) == ZERO


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [
        {"v_head_dim": 8}, {"softcap": 5.0}, {"sinks": True}, {"dropout": 0.2},
        {"dropout": 0.2, "sinks": True, "softcap": 3.0, "is_causal": True},
        {"positions": Rope(pairs="halves")}, {"positions": Rope(pairs="neighbours", rotary_dim=4)},
        {"positions": Alibi()}, {"positions": Learned(max_len=9)}, {"positions": Sinusoidal()},
        {"positions": RelativeBias()}, {"qk_norm": QkNorm()}, {"qk_norm": QkNorm(kind="layer")},
        {"biases": "qkvo"},
    ],
    ids="+".join,
)  # fmt: skip
def test_every_variant_of_a_layer_is_exact(changes, dtype):
    assert residuals(AttentionSpec(**AWKWARD | changes), batch=2, q_len=7, dtype=dtype) == ZERO


@pytest.mark.parametrize("widths", [{}, {"d_context": 13}, {"d_context": 13, "d_values": 14}])
def test_cross_attention_is_exact(widths):
    spec = AttentionSpec(**AWKWARD, **widths)
    assert residuals(spec, batch=2, q_len=5, kv_len=9) == ZERO


def test_a_full_size_layer_is_counted_without_allocating_it():
    """LLaMA-2 70B at 4,096 tokens: 6.2 GiB of activations that nobody allocates."""
    spec = cost.find_architecture("llama-2-70b").model().spec
    rows = check_layer(spec, q_len=4096, dtype="bfloat16", device="meta")
    assert {row.name: row.residual for row in rows} == ZERO
    assert rows[3].measured > 6 * 2**30


@pytest.mark.parametrize(("width", "ffn"), [(64, None), (64, 256)])
@pytest.mark.parametrize("saving", [False, True])
def test_the_crossing_is_where_the_counted_products_cross(width, ffn, saving):
    """2·D and 6·D, measured: the products of a run are counted around the predicted length.

    Plain code multiplies hidden pairs too, so the causal saving is counted query by query.
    """
    spec = AttentionSpec(d_model=width, num_heads=4, is_causal=True)
    rule = cost.crossover(spec, ffn_width=ffn, saving=saving)
    exact = cost.first_length(spec, ffn_width=ffn, saving=saving)

    def counted(length: int) -> tuple[int, int]:
        x = torch.empty(1, length, width, device="meta")
        w = torch.empty(width, width, device="meta")
        q = torch.empty(4, length, width // 4, device="meta")

        def linear() -> None:
            for _ in "qkvo":
                x @ w
            if ffn is not None:
                (x @ torch.empty(width, ffn, device="meta")) @ torch.empty(
                    ffn, width, device="meta"
                )

        def pairwise() -> None:
            if not saving:
                (q @ q.mT) @ q
                return
            for i in range(1, length + 1):
                (q[:, :1] @ q[:, :i].mT) @ q[:, :i]

        return count_products(pairwise).flops, count_products(linear).flops

    attention, linear = counted(exact)
    assert attention >= linear
    attention, linear = counted(exact - 1)
    assert attention < linear
    assert abs(rule.value - exact) <= 1


# -- a wrong formula is caught ------------------------------------------------------------------
def _heads_for_kv(spec: AttentionSpec, **sizes) -> Figure:
    """The mistake of calculators: keys and values of grouped heads counted as full ones."""
    return cost.flops(spec.replace(num_kv_heads=spec.num_heads), **sizes)


def _one_product_backward(spec: AttentionSpec, *, direction: str = "forward", **sizes) -> Figure:
    forward = cost.flops(spec, **sizes)
    return forward if direction == "forward" else Figure("both", 2 * forward, "FLOP")


def _dv_is_dk(spec: AttentionSpec, **sizes) -> Figure:
    return cost.flops(spec.replace(v_head_dim=spec.head_dim), **sizes)


def _half_the_weights(spec: AttentionSpec, **sizes) -> Figure:
    right = cost.activations(spec, **sizes)
    return Figure("kept", right - Size("x", 1), "byte")


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (Formulas(flops=_heads_for_kv), {"FLOPs, forward", "FLOPs, forward and backward"}),
        (Formulas(flops=_one_product_backward), {"FLOPs, forward and backward"}),
        (Formulas(flops=_dv_is_dk), {"FLOPs, forward", "FLOPs, forward and backward"}),
        (Formulas(activations=_half_the_weights), {"bytes kept for backward"}),
        (Formulas(parameters=lambda spec: Figure("p", 4 * 22**2, "parameter")), {"parameters"}),
    ],
    ids=["grouped-as-full", "one-product-backward", "dv-is-dk", "a-byte-less", "4-d-squared"],
)
def test_a_wrong_formula_is_caught(wrong, where):
    rows = check_layer(AttentionSpec(**AWKWARD), batch=2, q_len=7, formulas=wrong)
    assert {row.name for row in rows if not row.is_right} == where
    assert not receipts.Check(rows).passed


def test_grouped_heads_counted_as_full_ones_are_eight_times_too_large():
    """hahnyuan/LLM-Viewer#12: the cache of 70B with 64 heads instead of 8."""
    spec = cost.find_architecture("llama-2-70b").model().spec
    full = cost.kv_cache(spec.replace(num_kv_heads=64), context=4096)
    assert full.value == 8 * cost.kv_cache(spec, context=4096).value


# -- counting -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(3, 5), 2 * 2 * 3 * 5),
        (lambda: torch.ones(7, 2, 3) @ torch.ones(7, 3, 5), 2 * 7 * 2 * 3 * 5),
        (lambda: torch.ones(2, 3) @ torch.ones(3), 2 * 2 * 3),
        (lambda: torch.ones(3) @ torch.ones(3), 2 * 3),
        (lambda: torch.addmm(torch.ones(5), torch.ones(2, 3), torch.ones(3, 5)), 60),
        (lambda: torch.baddbmm(torch.ones(7, 2, 5), torch.ones(7, 2, 3), torch.ones(7, 3, 5)), 420),
        (lambda: nn.functional.linear(torch.ones(2, 3), torch.ones(5, 3), torch.ones(5)), 60),
        (lambda: torch.einsum("bij,bkj->bik", torch.ones(7, 2, 3), torch.ones(7, 5, 3)), 420),
        (lambda: torch.ones(3) + torch.ones(3), 0),
    ],
)
def test_products_are_counted_from_shapes(function, flops):
    assert count_products(function).flops == flops


def test_a_fused_kernel_hides_its_products_and_is_named():
    q = torch.ones(1, 2, 8, 16)
    found = count_products(lambda: nn.functional.scaled_dot_product_attention(q, q, q))
    if not found.fused:  # this torch takes it apart
        assert found.flops == 4 * 2 * 8 * 8 * 16
    else:
        assert found.flops == 0
        assert all("attention" in name for name in found.fused)


def test_kept_bytes_count_a_place_once_and_leave_out_parameters():
    w = torch.ones(3, 5, requires_grad=True)
    x = torch.ones(2, 3)
    found = kept_bytes(lambda: x.clone() @ w)
    assert (found.bytes, found.standing) == (2 * 3 * 4, 0)  # w is kept only if x needs a gradient

    def both():
        fresh = x.clone().requires_grad_()
        return (fresh @ w) * (fresh.view(6).view(2, 3) @ w)

    found = kept_bytes(both)
    assert found.bytes == 4 * (6 + 10 + 10)  # x once, and both products for the multiplication
    assert found.standing == 4 * 15


# -- second sources -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("heads", "kv_heads", "v_head_dim", "is_causal"),
    [(4, 4, 8, False), (4, 2, 8, True), (4, 1, 12, False), (4, 4, 12, True)],
)
def test_torchs_counter_with_the_math_kernel_agrees(heads, kv_heads, v_head_dim, is_causal):
    spec = AttentionSpec(
        d_model=32, num_heads=heads, num_kv_heads=kv_heads, v_head_dim=v_head_dim,
        is_causal=is_causal,
    )  # fmt: skip
    found = receipts.second_sources(spec, batch=2, q_len=9)
    agreeing = [one for one in found if one.must_agree]
    assert [one.source for one in agreeing[:2]] == ["FlopCounterMode, math kernel"] * 2
    assert [one.difference for one in agreeing] == [0] * len(agreeing)
    assert agreeing[0].theirs == 2 * 2 * heads * 81 * (8 + v_head_dim)


def test_where_free_counters_go_wrong():
    """On the CPU they report nothing for SDPA, and nothing at all for nn.MultiheadAttention."""
    spec = AttentionSpec(d_model=64, num_heads=4)
    free = [
        one
        for one in receipts.second_sources(spec, batch=1, q_len=64)
        if "FlopCounterMode" in one.source and not one.must_agree
    ]
    assert len(free) == 2
    if not torch.cuda.is_available():
        assert [one.theirs for one in free] == [0, 0]
    for one in free:
        assert one.ours.value > 0
        assert bool(one.why) == (one.difference != 0)


def test_other_paths_show_their_residual():
    spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True)
    found = {
        one.source: one
        for one in receipts.second_sources(spec, batch=1, q_len=64)
        if "backend" in one.source
    }
    assert "headwise.attention(backend='sdpa')" in found
    for one in found.values():
        assert bool(one.why) == (one.difference != 0)


def test_the_published_formula_is_independent_of_ours():
    found = receipts.published(AttentionSpec(d_model=64, num_heads=4), batch=3, q_len=10)
    assert found.theirs == 34 * 10 * 3 * 64 + 5 * 4 * 100 * 3
    assert found.difference == 0


# -- a whole check ------------------------------------------------------------------------------
@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(checking, "SECONDS", 0.2)
    monkeypatch.setattr(checking, "ROOM_BYTES", 2**24)


def causal(**changes):
    return AttentionSpec(**{"d_model": 64, "num_heads": 4, "is_causal": True} | changes)


def test_a_check_of_a_model_passes_and_opens(small):
    found = cost.estimate(cost.of_spec(causal()), context=2048, dtype="float32")
    check = check_model(found, hardware=HERE)
    assert check.passed
    names = [row.name for row in check.rows]
    assert names.count("FLOPs, forward") == 2  # for real, and at full size from shapes
    assert "KV cache of one layer" in names
    assert "without allocating anything" in check.notes[-1]
    time = next(row for row in check.rows if row.unit == "s")
    assert not time.is_exact
    assert time.why
    data = check.to_json()
    assert data["passed"] is True
    assert {"predicted", "measured", "residual", "must_be_zero", "receipt"} <= set(
        data["residuals"][0]
    )


@pytest.mark.parametrize("window", [None, (3, 0), (200, 0)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_cache_is_a_real_one(window, dtype):
    spec = causal(num_kv_heads=2, head_dim=12, v_head_dim=10, window=window)
    for context in (5, 100, 400):
        (row,) = checking._cache_row(spec, 3, context, dtype, Formulas())
        assert row.residual == 0
        assert row.is_exact


def test_a_layer_without_a_cache_has_none(small):
    found = cost.estimate(cost.of_spec(causal(is_causal=False)), context=64, dtype="float32")
    check = check_model(found, hardware=HERE, training=False)
    assert check.passed
    assert "KV cache of one layer" not in [row.name for row in check.rows]


def test_a_dtype_that_torch_cannot_multiply_is_run_in_float32(small):
    found = cost.estimate(cost.of_spec(causal()), context=32, dtype="int8")
    check = check_model(found, hardware=HERE)
    assert check.passed
    assert check.notes[0] == "run in float32: torch has no products of int8 here"


def test_a_layer_beyond_the_memory_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(checking, "memory_free", lambda: 2**20)

    def never(*_args, **_options):
        raise AssertionError("something was allocated")

    monkeypatch.setattr(checking.LayerRun, "make", never)
    found = cost.estimate(cost.find_architecture("llama-2-70b").model(), dtype="float32")
    with pytest.raises(UsageError) as caught:
        check_model(found, hardware=HERE)
    assert caught.value.what == (
        "one token of the layer needs 1.125 GiB, and 1 MiB of memory is free"
    )
    assert "nothing was allocated" in caught.value.why


def test_the_blocks_of_a_check(small):
    from headwise.document import Table, Text
    from headwise.receipts.report import blocks

    found = cost.estimate(cost.of_spec(causal()), context=16, dtype="float32")
    right = check_model(found, hardware=HERE)
    shown = blocks(right)
    assert Text("every residual that must be zero is zero", "good") in shown
    assert sum(isinstance(block, Table) for block in shown) == 2
    wrong = receipts.Check(
        check_layer(causal(), q_len=4, formulas=Formulas(flops=_one_product_backward))
    )
    shown = blocks(wrong)
    assert Text("a residual that must be zero is not", "bad") in shown
    table = next(block for block in shown if isinstance(block, Table))
    assert [row[3].endswith("✗") for row in table.rows] == [False, False, True, False]


# -- this machine -------------------------------------------------------------------------------
def test_this_machine_is_measured_once(tmp_path, monkeypatch):
    from headwise.cost import measured

    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "_LARGE", 64)
    monkeypatch.setattr(measuring, "_SMALL", 32)
    monkeypatch.setattr(measuring, "_MOVED", 2**20)
    found = receipts.measure(seconds=0.01)
    assert measured.load() == found
    assert {"float64", "float32"} <= set(found.flops_per_s)
    assert all(speed > 1e6 for speed in found.flops_per_s.values())
    assert found.bytes_per_s > 1e7
    assert "measured here" in found.source


def test_fast_memory_is_read_from_the_system(tmp_path, monkeypatch):
    path = tmp_path / "size"
    monkeypatch.setattr(measuring, "_L2", path)
    assert measuring._fast_memory() == 2**20
    for text, size in (("512K\n", 2**19), ("2M", 2**21), ("odd", 2**20)):
        path.write_text(text, encoding="ascii")
        assert measuring._fast_memory() == size


def test_the_quickest_of_some_calls():
    ticks = itertools.count()
    assert 0 <= measuring._best(lambda: next(ticks), 0.0) < 1
    assert next(ticks) >= 4
