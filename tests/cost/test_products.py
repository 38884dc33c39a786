"""FLOPs and parameters: by hand, against brute force, and at the lengths where parts cross."""

from __future__ import annotations

import pytest

from headwise import cost
from headwise.cost.sizes import Letters
from headwise.errors import UsageError
from headwise.masks import Causal, Window
from headwise.spec import AttentionSpec, Learned, QkNorm, RelativeBias, Rope
from headwise.stages import STAGE_NAMES

SPEC = AttentionSpec(d_model=11, num_heads=6, num_kv_heads=3, head_dim=8, v_head_dim=10)


# -- parameters ---------------------------------------------------------------------------------
def test_parameters_of_an_awkward_layer_by_hand():
    found = cost.parameters(SPEC.replace(biases="qkvo", d_context=13, d_values=14))
    assert {part.name: part.value for part in found.parts} == {
        "q_proj": 11 * 48 + 48,
        "k_proj": 13 * 24 + 24,
        "v_proj": 14 * 30 + 30,
        "out_proj": 60 * 11 + 11,
    }


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"qk_norm": QkNorm()}, 2 * 8),
        ({"qk_norm": QkNorm(kind="layer")}, 4 * 8),
        ({"sinks": True}, 6),
        ({"positions": RelativeBias(num_buckets=32)}, 32 * 6),
        ({"positions": Learned(max_len=20)}, 20 * 11),
        ({"positions": Rope(pairs="halves")}, 0),
    ],
)
def test_what_else_is_stored(changes, more):
    assert cost.parameters(SPEC.replace(**changes)).value == cost.parameters(SPEC).value + more


def test_parameters_do_not_depend_on_the_number_of_heads():
    counts = {
        cost.parameters(AttentionSpec(d_model=768, num_heads=heads)).value
        for heads in (1, 2, 3, 4, 6, 8, 12, 24, 96, 768)
    }
    assert counts == {4 * 768**2}


def test_they_do_where_the_size_of_a_head_is_kept():
    """The negative twin: more heads of the same size are more parameters."""
    counts = [
        cost.parameters(AttentionSpec(d_model=768, num_heads=heads, head_dim=64)).value
        for heads in (6, 12, 24)
    ]
    assert counts == [4 * 768 * 64 * heads for heads in (6, 12, 24)]


def test_parameters_of_torchs_own_layer():
    nn = pytest.importorskip("torch.nn")
    layer = nn.MultiheadAttention(48, 6, bias=True, kdim=13, vdim=14)
    spec = AttentionSpec(d_model=48, num_heads=6, d_context=13, d_values=14, biases="qkvo")
    assert cost.parameters(spec).value == sum(p.numel() for p in layer.parameters())


# -- FLOPs --------------------------------------------------------------------------------------
def test_flops_of_an_awkward_layer_by_hand():
    found = cost.stages(SPEC.replace(d_context=13, d_values=14), batch=2, q_len=5, kv_len=7)
    assert tuple(found) == STAGE_NAMES
    assert {name: figure.value for name, figure in found.items() if figure.value} == {
        "projection": 2 * 2 * (5 * 11 * 48 + 7 * 13 * 24 + 7 * 14 * 30),
        "scores": 2 * 2 * 6 * 5 * 7 * 8,
        "aggregate": 2 * 2 * 6 * 5 * 7 * 10,
        "output": 2 * 2 * 5 * 60 * 11,
    }


def test_the_backward_pass_takes_twice_the_forward_pass():
    forward, backward, both = (
        cost.flops(SPEC, q_len=9, direction=way).value for way in ("forward", "backward", "both")
    )
    assert (backward, both) == (2 * forward, 3 * forward)
    again = cost.flops(SPEC, q_len=9, direction="both", recompute=True).value
    assert again - both == cost.stages(SPEC, q_len=9)["scores"].value


def test_flops_do_not_depend_on_the_number_of_heads():
    """4·B·T²·D for the products of attention, whatever H is (the course, section 7)."""
    for heads in (1, 2, 4, 8):
        spec = AttentionSpec(d_model=64, num_heads=heads)
        found = cost.stages(spec, batch=3, q_len=10)
        assert found["scores"].value + found["aggregate"].value == 4 * 3 * 10**2 * 64
        assert found["projection"].value + found["output"].value == 8 * 3 * 10 * 64**2


def test_a_step_of_decoding_projects_one_token_and_reads_all():
    found = cost.flops(SPEC, q_len=1, kv_len=100, new_keys=1)
    whole = cost.flops(SPEC, q_len=1)
    assert found.part("projection").value == whole.part("projection").value
    assert found.part("scores").value == 100 * whole.part("scores").value
    cross = cost.flops(SPEC, q_len=1, kv_len=100, new_keys=0)
    assert cross.part("projection").value == 2 * 11 * 48


def test_generating_with_and_without_a_cache():
    """Attention over a whole generation falls from O(n³) to O(n²): ×8 and ×4 per doubling."""

    def attention(n: int, *, cached: bool) -> int:
        total = 0
        for t in range(1, n + 1):
            found = cost.stages(SPEC, q_len=1 if cached else t, kv_len=t, new_keys=1)
            total += found["scores"].value + found["aggregate"].value
        return total

    for cached, factor in ((True, 4), (False, 8)):
        ratio = attention(256, cached=cached) / attention(128, cached=cached)
        assert abs(ratio / factor - 1) < 0.02  # lower powers of n are left


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [None, (0, 0), (2, 0), (3, 1), (1, None), (None, 2), (20, 20)])
@pytest.mark.parametrize(("q_len", "kv_len"), [(6, 6), (1, 6), (4, 9), (9, 4), (1, 1), (12, 3)])
def test_pairs_are_the_visible_cells_of_the_mask(is_causal, window, q_len, kv_len):
    mask = Causal() if is_causal else Window(None, None)
    if window is not None:
        mask = mask & Window(*window)
    table = mask.dense(q_len, kv_len)
    visible = q_len * kv_len if table is None else int(table.expand(1, 1, q_len, kv_len).sum())
    spec = AttentionSpec(d_model=8, num_heads=2, is_causal=is_causal, window=window)
    assert Letters(spec, q_len=q_len, kv_len=kv_len).pairs().value == visible
    assert Letters(spec, q_len=q_len, kv_len=kv_len).pairs(saving=False).value == q_len * kv_len


def test_the_causal_saving_is_half_and_the_diagonal():
    spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True)
    saved = cost.flops(spec, q_len=100, saving=True).part("scores")
    assert saved.value * 2 == 2 * 64 * 100 * 101
    assert saved.part("pairs").receipt() == "T² − Δ(T − 1) = 100² − Δ(100 − 1) = 5050 pair"


def test_elementwise_work_is_no_part_of_the_total():
    found = cost.elementwise(SPEC.replace(positions=Rope(pairs="halves"), softcap=5.0), q_len=4)
    assert {part.name: part.value for part in found.parts} == {
        "positions": 3 * (6 + 3) * 4 * 8,
        "scores": 4 * 6 * 16,
        "softmax": 5 * 6 * 16,
    }


# -- crossovers ---------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [64, 768, 4096])
def test_attention_overtakes_at_two_four_six_and_twelve_widths(width):
    spec = AttentionSpec(d_model=width, num_heads=8, is_causal=True)
    ffn = {"ffn_width": 4 * width}
    assert cost.crossover(spec).value == 2 * width
    assert cost.crossover(spec, saving=True).value == 4 * width
    assert cost.crossover(spec, **ffn).value == 6 * width
    assert cost.crossover(spec, **ffn, saving=True).value == 12 * width
    assert cost.first_length(spec) == 2 * width
    assert cost.first_length(spec, saving=True) == 4 * width - 1
    assert cost.first_length(spec, **ffn) == 6 * width
    assert cost.first_length(spec, **ffn, saving=True) == 12 * width - 1


def test_grouped_heads_and_a_gate_move_the_crossing():
    spec = AttentionSpec(d_model=8192, num_heads=64, num_kv_heads=8)
    assert cost.crossover(spec).value == (2 * 8192**2 + 2 * 8192 * 1024) / (2 * 8192)
    gated = cost.crossover(spec, ffn_width=28672, gated=True)
    assert gated.value == 9216 + 3 * 28672 / 2


def test_with_a_window_attention_may_never_overtake():
    spec = AttentionSpec(d_model=64, num_heads=4, is_causal=True, window=(99, 0))
    assert cost.crossover(spec, saving=True) is None
    assert cost.first_length(spec, saving=True) is None
    assert cost.crossover(spec).value == 128  # plain code computes the hidden pairs


@pytest.mark.parametrize(
    ("is_causal", "window"),
    [
        (True, (150, 0)), (True, (200, 0)), (True, (400, 0)), (False, (100, 90)),
        (False, (400, 9)), (False, (None, 9)), (False, (130, 20)), (False, (500, 500)),
    ],
)  # fmt: skip
def test_a_wide_window_delays_the_crossing(is_causal, window):
    spec = AttentionSpec(d_model=64, num_heads=4, is_causal=is_causal, window=window)
    rule, exact = cost.crossover(spec, saving=True), cost.first_length(spec, saving=True)
    assert abs(float(rule.value) - exact) <= 1


# -- refusals -----------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_counts_are_integers_from_one_up(wrong):
    with pytest.raises(UsageError, match="is not a count from 1 up"):
        cost.flops(SPEC, q_len=wrong)
    with pytest.raises(UsageError, match="batch="):
        cost.flops(SPEC, batch=wrong, q_len=2)
