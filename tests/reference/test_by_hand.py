"""Cases worked out on paper: every number below can be checked without a computer."""

from __future__ import annotations

import math
from math import e, log, sqrt

import pytest
import torch

from headwise.errors import ShapeError, UsageError
from headwise.numerics import compare, float64_allowance, largest
from headwise.reference import Inputs, Parameters, Setting, attend
from headwise.reference.definition import normalise_last
from headwise.reference.positions import (
    alibi_slopes,
    relative_buckets,
    rotary_angles,
    rotate,
    sinusoidal_table,
)
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def one_head(rows):
    """(T, D) as the only sample's only head."""
    return tensor(rows)[None, None]


def ones_apart(*values):
    """One channel per token: (1, 1, T, 1)."""
    return tensor(values).view(1, 1, -1, 1)


def assert_equals(got, want):
    """Equal but for the rounding of a sum of at most 16 terms of moderate scores (|s| < 16)."""
    want = want if isinstance(want, torch.Tensor) else tensor(want)
    allowed = float64_allowance(terms=16, scale=largest([want]), sharpness=16.0)
    found = compare(got.reshape(want.shape), want, allowed=allowed)
    assert found.passed, found.sentence()


def test_the_comparison_used_here_can_fail():
    assert_equals(tensor([1.0, 2.0]), [1.0, 2.0])
    with pytest.raises(AssertionError, match="1 of 2 values differ"):
        assert_equals(tensor([1.0, 2.0 + 1e-11]), [1.0, 2.0])


# -- the lesson's example: "I love you", n = 3, d = 4 --------------------------------------------

Q = [[2, 0, 0, 0], [0, 2, 0, 2], [2, 4, 0, -2]]
K = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1]]
V = [[3, 0, 0, 1], [0, 3, 0, 1], [0, 0, 3, 1]]

# Q·Kᵀ             by 1/√4 = 1/2      exp, each row times a power of e   sum
#  me    2  0  0     1  0  0           e   1   1                         e + 2
#  love  0  2  2     0  1  1           1   e   e                         2e + 1
#  you   2  4 -2     1  2 -1           e²  e³  1    (times e)            e³ + e² + 1
SCORES = [[1, 0, 0], [0, 1, 1], [1, 2, -1]]
ME, LOVE, YOU = e + 2, 2 * e + 1, e**3 + e**2 + 1
WEIGHTS = [
    [e / ME, 1 / ME, 1 / ME],
    [1 / LOVE, e / LOVE, e / LOVE],
    [e**2 / YOU, e**3 / YOU, 1 / YOU],
]
# V has 3 on its diagonal and a last column of ones, so the context is 3 · weights, then 1.
CONTEXT = [[3 * w for w in row] + [1] for row in WEIGHTS]


def test_i_love_you_as_a_function_of_heads():
    spec = AttentionSpec(d_model=4, num_heads=1)
    t = attend(spec, Parameters(), Inputs(q=one_head(Q), k=one_head(K), v=one_head(V)))
    assert_equals(t.scores, SCORES)
    assert_equals(t.weights, WEIGHTS)
    assert_equals(t.context, CONTEXT)
    # As decimals, to two places: e = 2.718, e² = 7.389, e³ = 20.086.
    assert t.weights[0, 0].mul(100).round().tolist() == [[58, 21, 21], [16, 42, 42], [26, 71, 4]]


def test_i_love_you_as_a_layer():
    # x_i is the i-th unit vector, so that q_i = Wq·x_i is column i of Wq: Wq = Qᵀ.
    spec = AttentionSpec(d_model=3, num_heads=1, head_dim=4)
    parameters = Parameters(
        q=tensor(Q).T, k=tensor(K).T, v=tensor(V).T, o=tensor([[1, 0, 0, 0], [0, 0, 0, 2], [0] * 4])
    )
    t = attend(spec, parameters, Inputs(x=torch.eye(3, dtype=torch.float64)[None]))
    assert_equals(t.q, Q)
    assert_equals(t.k, K)
    assert_equals(t.weights, WEIGHTS)
    assert_equals(t.merged, CONTEXT)
    # Wo keeps channel 0, doubles channel 3 (always 1), and has a row of zeros.
    assert_equals(t.output, [[row[0], 2, 0] for row in CONTEXT])


# -- masks ---------------------------------------------------------------------------------------


def test_two_by_two_causal():
    # Query 0 sees key 0 only. Query 1: scores 2·0 and 2·ln 2 = ln 4, weights 1/5 and 4/5.
    # Context 10, then 10/5 + 4·20/5 = 18.
    spec = AttentionSpec(d_model=1, num_heads=1, is_causal=True)
    inputs = Inputs(q=ones_apart(1, 2), k=ones_apart(0, log(2)), v=ones_apart(10, 20))
    t = attend(spec, Parameters(), inputs)
    assert t.visible[0, 0].tolist() == [[True, False], [True, True]]
    assert t.masked_scores[0, 0, 0].tolist() == [0, -math.inf]
    assert t.weights[0, 0, 0].tolist() == [1, 0]
    assert_equals(t.weights, [[1, 0], [0.2, 0.8]])
    assert_equals(t.context, [10, 18])


def uniform(q_len, kv_len, *, heads=1, **spec):
    """All scores zero: every row is shared evenly by the keys that it may see."""
    spec = AttentionSpec(d_model=heads, num_heads=heads, **spec)
    q = torch.zeros(1, heads, q_len, 1, dtype=torch.float64)
    k = torch.zeros(1, heads, kv_len, 1, dtype=torch.float64)
    v = torch.arange(1.0, kv_len + 1, dtype=torch.float64).expand(1, heads, -1)[..., None]
    return spec, Inputs(q=q, k=k, v=v)


def test_a_window_of_two_keys_is_distances_one_and_zero():
    spec, inputs = uniform(4, 4, window=(1, 0))
    t = attend(spec, Parameters(), inputs)
    half = 1 / 2
    assert t.weights[0, 0].tolist() == [
        [1, 0, 0, 0],
        [half, half, 0, 0],
        [0, half, half, 0],
        [0, 0, half, half],
    ]


def test_a_window_to_both_sides():
    spec, inputs = uniform(4, 4, window=(0, 2))
    assert attend(spec, Parameters(), inputs).visible[0, 0].int().tolist() == [
        [1, 1, 1, 0],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
        [0, 0, 0, 1],
    ]


def test_with_fewer_queries_than_keys_the_last_query_sees_the_last_key():
    spec, inputs = uniform(2, 4, is_causal=True)
    t = attend(spec, Parameters(), inputs)
    assert t.visible[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    # Values 1 2 3 4: means 2 and 2.5.
    assert_equals(t.context, [2, 2.5])


def test_padding_hides_keys_and_not_queries():
    spec, inputs = uniform(3, 3)
    t = attend(spec, Parameters(), inputs.replace(keep=torch.tensor([[True, True, False]])))
    assert t.weights[0, 0].tolist() == [[0.5, 0.5, 0]] * 3


def test_documents_see_themselves_and_restart_their_positions():
    spec, inputs = uniform(5, 5, is_causal=True)
    inputs = inputs.replace(documents=torch.tensor([[5, 5, 9, 9, 9]]))
    assert attend(spec, Parameters(), inputs).visible[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    setting = Setting(spec, Parameters(), inputs)
    assert setting.k_positions.tolist() == setting.q_positions.tolist() == [[0, 1, 0, 1, 2]]


def test_documents_with_fewer_queries_than_keys():
    spec, inputs = uniform(2, 5)
    inputs = inputs.replace(documents=torch.tensor([[5, 5, 9, 9, 9]]))
    assert attend(spec, Parameters(), inputs).visible[0, 0].int().tolist() == [[0, 0, 1, 1, 1]] * 2
    assert Setting(spec, Parameters(), inputs).q_positions.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("keep", "positions"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([0, 0, 1, 1], [0, 0, 0, 1]),
        ([1, 1, 0, 0], [0, 1, 1, 1]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_positions_count_from_the_first_real_token(keep, positions):
    spec, inputs = uniform(4, 4)
    inputs = inputs.replace(keep=torch.tensor([keep]).bool())
    assert Setting(spec, Parameters(), inputs).k_positions.tolist() == [positions]


@pytest.mark.parametrize(
    ("q_len", "kv_len", "positions"), [(1, 5, [4]), (3, 5, [2, 3, 4]), (3, 3, [0, 1, 2])]
)
def test_the_last_query_has_the_position_of_the_last_key(q_len, kv_len, positions):
    assert Setting(*_plain(q_len, kv_len)).q_positions.tolist() == [positions]


def _plain(q_len, kv_len):
    spec, inputs = uniform(q_len, kv_len)
    return spec, Parameters(), inputs


def test_more_queries_than_keys_count_from_zero():
    assert Setting(*_plain(4, 2)).q_positions.tolist() == [[0, 1, 2, 3]]


# -- a row with nothing to see -------------------------------------------------------------------


@pytest.mark.parametrize("sinks", [False, True])
def test_an_empty_row_is_zero_in_weights_context_and_gradients(sinks):
    # Causal with three queries and two keys: query 0 stands before the first key.
    spec = AttentionSpec(d_model=1, num_heads=1, is_causal=True, sinks=sinks)
    q, k, v = ones_apart(1, 2, 3), ones_apart(4, 5), ones_apart(6, 7)
    parameters = Parameters(sinks=tensor([0.5]).requires_grad_() if sinks else None)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    leaves += [parameters.sinks] if sinks else []
    t = attend(spec, parameters, Inputs(q=q, k=k, v=v))
    assert t.visible[0, 0].tolist() == [[False, False], [True, False], [True, True]]
    assert t.weights[0, 0, 0].tolist() == [0, 0]
    assert t.context[0, 0, 0].tolist() == [0]
    # Upstream gradient on the empty row alone: nothing may flow, and nothing may be NaN.
    upstream = torch.zeros_like(t.context)
    upstream[0, 0, 0] = 11.0
    for gradient in torch.autograd.grad(t.context, leaves, upstream, retain_graph=True):
        assert gradient.count_nonzero() == 0
    # On all rows: the empty row's query still has exactly none, the others are finite.
    all_rows = torch.autograd.grad(t.context, leaves, torch.full_like(t.context, 11.0))
    assert all_rows[0][0, 0, 0] == 0
    assert all(gradient.isfinite().all() for gradient in all_rows)
    assert all_rows[2].count_nonzero() == 2


def test_a_sample_that_is_padding_alone_has_no_gradient_at_all():
    spec = AttentionSpec(d_model=2, num_heads=1, biases="qkvo")
    square, row = tensor([[1, 2], [3, 4]]), tensor([5, 6])
    leaves = [square.clone().requires_grad_() for _ in "qkvo"]
    leaves += [row.clone().requires_grad_() for _ in "qkvo"]
    names = [*"qkvo", *(f"{name}_bias" for name in "qkvo")]
    x = tensor([[[1, 2], [3, 4], [5, 6]]]).requires_grad_()
    inputs = Inputs(x=x, keep=torch.zeros(1, 3, dtype=torch.bool))
    t = attend(spec, Parameters(**dict(zip(names, leaves, strict=True))), inputs)
    assert t.weights.count_nonzero() == 0
    assert t.output[0].tolist() == [[5, 6]] * 3, "only the bias of the output is left"
    gradients = torch.autograd.grad(t.output, [x, *leaves], torch.ones_like(t.output))
    by_name = dict(zip(["x", *names], gradients, strict=True))
    assert by_name.pop("o_bias").tolist() == [3, 3]
    assert all(gradient.count_nonzero() == 0 for gradient in by_name.values())


# -- heads ---------------------------------------------------------------------------------------


def test_four_query_heads_read_two_value_heads_in_the_order_0_0_1_1():
    spec = AttentionSpec(d_model=4, num_heads=4, num_kv_heads=2)
    inputs = Inputs(
        q=torch.ones(1, 4, 1, 1, dtype=torch.float64),
        k=torch.ones(1, 2, 1, 1, dtype=torch.float64),
        v=tensor([5, 7]).view(1, 2, 1, 1),
    )
    t = attend(spec, Parameters(), inputs)
    assert t.context.flatten().tolist() == [5, 5, 7, 7]
    assert t.context.flatten().tolist() != [5, 7, 5, 7]


def test_heads_are_consecutive_rows_of_the_matrices():
    # One token, so the weights are 1: v = Wv·x = (10, 20, 30, 40) are heads (10, 20) and (30, 40),
    # side by side again in the merge.
    spec = AttentionSpec(d_model=4, num_heads=2)
    eye = torch.eye(4, dtype=torch.float64)
    x = tensor([[[1, 2, 3, 4]]])
    t = attend(spec, Parameters(q=eye, k=eye, v=10 * eye), Inputs(x=x))
    assert t.v[0, :, 0].tolist() == [[10, 20], [30, 40]]
    assert t.merged.tolist() == [[[10, 20, 30, 40]]]
    assert t.output is t.merged, "without Wo the layer ends with the merge"


def test_cross_attention_with_four_widths():
    # Keys: Wk·(1, 0) = 0 and Wk·(0, 1) = ln 3, so the weights are 1/4 and 3/4.
    # Values: Wv·(1, 0, 0) = (4, 0) and Wv·(0, 1, 2) = (0, 4 + 8·2) = (0, 20).
    # Context (4/4, 3·20/4) = (1, 15); Wo adds them up: 16.
    spec = AttentionSpec(d_model=1, num_heads=1, head_dim=1, v_head_dim=2, d_context=2, d_values=3)
    parameters = Parameters(
        q=tensor([[1]]),
        k=tensor([[0, log(3)]]),
        v=tensor([[4, 0, 0], [0, 4, 8]]),
        o=tensor([[1, 1]]),
    )
    inputs = Inputs(
        x=tensor([[[1]]]),
        context=tensor([[[1, 0], [0, 1]]]),
        values=tensor([[[1, 0, 0], [0, 1, 2]]]),
    )
    t = attend(spec, parameters, inputs)
    assert_equals(t.weights, [0.25, 0.75])
    assert_equals(t.context, [1, 15])
    assert_equals(t.output, [16])


def test_biases():
    # One token: the weight is 1. q = 2·10 + 1 = 21, k = 3·10 + 2 = 32, score 21·32 = 672,
    # v = 4·10 + 3 = 43, output 5·43 + 4 = 219.
    spec = AttentionSpec(d_model=1, num_heads=1, biases="qkvo")
    number = {name: tensor([[n]]) for name, n in zip("qkvo", (2, 3, 4, 5), strict=True)}
    bias = {f"{name}_bias": tensor([n]) for name, n in zip("qkvo", (1, 2, 3, 4), strict=True)}
    t = attend(spec, Parameters(**number, **bias), Inputs(x=tensor([[[10]]])))
    assert (t.q_flat.item(), t.k_flat.item(), t.v_flat.item()) == (21, 32, 43)
    assert t.scores.item() == 672
    assert t.output.item() == 219


# -- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "score"), [(None, 5.0), (1.0, 10.0), (-0.3, -3.0)])
def test_the_scale_is_one_over_the_root_of_head_dim_unless_said(scale, score):
    # q·k = 1·4 + 2·3 + 0 + 0 = 10; 1/√4 = 1/2.
    spec = AttentionSpec(d_model=4, num_heads=1, scale=scale)
    one = one_head([[1, 2, 0, 0]])
    t = attend(spec, Parameters(), Inputs(q=one, k=one_head([[4, 3, 5, 6]]), v=one))
    assert_equals(t.scores, [score])


def test_softcap():
    # tanh(ln(3)/2) = (3 - 1)/(3 + 1) = 1/2, so a cap of 2 makes 1 of ln 3, and -1 of -ln 3.
    spec = AttentionSpec(d_model=1, num_heads=1, softcap=2.0)
    inputs = Inputs(
        q=ones_apart(1), k=ones_apart(log(3), -log(3), 0, 1e9), v=ones_apart(1, 1, 1, 1)
    )
    assert_equals(attend(spec, Parameters(), inputs).scores, [1, -1, 0, 2])


def test_the_cap_comes_before_mask_and_bias():
    # Capped score of ln 3 is 1; the bias of slope 7 at distance 1 is -7: together -6, outside of
    # the cap. The hidden key keeps its -inf.
    spec = AttentionSpec(
        d_model=1, num_heads=1, softcap=2.0, is_causal=True, positions=Alibi(slopes=(7.0,))
    )
    inputs = Inputs(q=ones_apart(1, 1), k=ones_apart(log(3), log(3)), v=ones_apart(1, 1))
    t = attend(spec, Parameters(), inputs)
    assert_equals(t.scores[0, 0, 1], [-6, 1])
    assert t.masked_scores[0, 0, 0, 1] == -math.inf
    assert t.weights[0, 0, 0].tolist() == [1, 0]


def test_a_sink_takes_part_in_the_denominator_only():
    # exp: 1 and 1, and 2 for the sink: weights 1/4 and 1/4, half of the weight is gone.
    spec, inputs = uniform(1, 2, sinks=True)
    t = attend(spec, Parameters(sinks=tensor([log(2)])), inputs)
    assert_equals(t.weights, [0.25, 0.25])
    assert_equals(t.context, [1 / 4 + 2 / 4])


def test_each_head_has_its_own_sink_even_a_large_one():
    # exp(-1000) vanishes beside the keys, exp(1000) swallows them: weights 1/2 and 0.
    spec, inputs = uniform(1, 2, heads=2, sinks=True)
    t = attend(spec, Parameters(sinks=tensor([-1000, 1000])), inputs)
    assert t.weights[0, :, 0].tolist() == [[0.5, 0.5], [0, 0]]


def test_the_gradient_of_a_large_sink_is_finite():
    # Weights exp(-1000) = 0: nothing depends on anything, and exp(1000) is never formed.
    spec, inputs = uniform(1, 2, sinks=True)
    sinks, q = tensor([1000]).requires_grad_(), inputs.q.clone().requires_grad_()
    context = attend(spec, Parameters(sinks=sinks), inputs.replace(q=q)).context
    gradients = torch.autograd.grad(context, [sinks, q], torch.ones_like(context))
    assert [gradient.item() for gradient in gradients] == [0, 0]


def test_large_scores_do_not_overflow():
    # Scores 2000 and 2000 - ln 3: weights 3/4 and 1/4. The allowance has |s| = 2000 in it.
    spec = AttentionSpec(d_model=1, num_heads=1)
    inputs = Inputs(q=ones_apart(1), k=ones_apart(2000, 2000 - log(3)), v=ones_apart(4, 8))
    t = attend(spec, Parameters(), inputs)
    allowed = float64_allowance(terms=2, scale=5.0, sharpness=2001)
    assert compare(t.context.flatten(), tensor([5]), allowed=allowed).passed


def test_dropout_factors_multiply_weights_after_the_softmax():
    # Even weights 1/2; the factors of p = 1/2 are 2 and 0: context 2·1/2·1 + 0 = 1.
    spec, inputs = uniform(1, 2)
    t = attend(spec, Parameters(), inputs.replace(dropout=tensor([2, 0]).view(1, 1, 1, 2)))
    assert t.weights.flatten().tolist() == [0.5, 0.5]
    assert t.context.flatten().tolist() == [1]


# -- rotation ------------------------------------------------------------------------------------

QUARTER_TURNS = (tensor([1, 0, -1, 0]), tensor([0, 1, 0, -1]))
"""Cosine and sine after 0, 1, 2 and 3 quarter turns."""

ROTATED = {
    # Pairs (1, 3) and (2, 4): a quarter turn makes (-b, a) of (a, b).
    "halves": [[1, 2, 3, 4], [-3, -4, 1, 2], [-1, -2, -3, -4], [3, 4, -1, -2]],
    # Pairs (1, 2) and (3, 4).
    "neighbours": [[1, 2, 3, 4], [-2, 1, -4, 3], [-1, -2, -3, -4], [2, -1, 4, -3]],
}


@pytest.mark.parametrize("pairs", ROTATED)
def test_quarter_turns(pairs):
    cos, sin = (table.view(1, 4, 1).expand(1, 4, 2) for table in QUARTER_TURNS)
    x = tensor([1, 2, 3, 4]).expand(1, 1, 4, 4)
    assert rotate(x, cos, sin, pairs=pairs)[0, 0].tolist() == ROTATED[pairs]


@pytest.mark.parametrize("pairs", ROTATED)
def test_tables_that_the_caller_hands_over(pairs):
    spec = AttentionSpec(d_model=4, num_heads=1, positions=Rope(pairs=pairs))
    tables = tuple(table.view(1, 4, 1).expand(1, 4, 2) for table in QUARTER_TURNS)
    x = tensor([1, 2, 3, 4]).expand(1, 1, 4, 4)
    t = attend(spec, Parameters(), Inputs(q=x, k=2 * x, v=3 * x, angles=tables))
    assert t.q_pos[0, 0].tolist() == ROTATED[pairs]
    assert (t.k_pos[0, 0] / 2).tolist() == ROTATED[pairs]
    assert t.v_shared.equal(3 * x), "values are left alone"


@pytest.mark.parametrize(
    ("pairs", "rotary_dim", "want"),
    [
        ("halves", 2, [-2, 1, 3, 4, 5, 6]),
        ("neighbours", 2, [-2, 1, 3, 4, 5, 6]),
        ("halves", 4, [-3, -4, 1, 2, 5, 6]),
        ("neighbours", 4, [-2, 1, -4, 3, 5, 6]),
    ],
)
def test_partial_rotation_turns_the_leading_channels(pairs, rotary_dim, want):
    cos = torch.zeros(1, 1, rotary_dim // 2, dtype=torch.float64)
    x = tensor([1, 2, 3, 4, 5, 6]).view(1, 1, 1, 6)
    assert rotate(x, cos, cos + 1, pairs=pairs).flatten().tolist() == want


def test_angles():
    # 100^(-2·0/4) = 1 and 100^(-2·1/4) = 1/10 radians per position.
    angles = rotary_angles(torch.tensor([[0, 1, 3]]), rotary_dim=4, base=100.0)
    assert_equals(angles, [[0, 0], [1, 0.1], [3, 0.3]])


def test_frequencies_divide_by_the_turned_channels_not_by_the_head():
    # Dk = 6, rotary_dim = 4, base 100: pair 1 turns by 1/10 (not 100^(-2/6)).
    # Channels 1 and 3 are pair 1: (1, 0) at position 1 becomes (cos 0.1, sin 0.1).
    spec = AttentionSpec(
        d_model=6, num_heads=1, positions=Rope(pairs="halves", base=100.0, rotary_dim=4)
    )
    x = tensor([0, 1, 0, 0, 0, 0]).expand(1, 1, 2, 6)
    t = attend(spec, Parameters(), Inputs(q=x, k=x, v=x))
    assert_equals(t.q_pos[0, 0, 1], [0, math.cos(0.1), 0, math.sin(0.1), 0, 0])


@pytest.mark.parametrize("pairs", ROTATED)
def test_scores_of_equal_tokens_are_the_cosine_of_their_distance(pairs):
    # One pair, one radian per position: (1, 0)·(1, 0) turned by m and n is cos(m - n); scale 1/√2.
    spec = AttentionSpec(d_model=2, num_heads=1, positions=Rope(pairs=pairs))
    x = tensor([1, 0]).expand(1, 1, 3, 2)
    t = attend(spec, Parameters(), Inputs(q=x[:, :, :2], k=x, v=x))
    # Two queries of three keys: positions 1 and 2.
    a, b, c = (math.cos(n) / sqrt(2) for n in (0, 1, 2))
    assert_equals(t.scores, [[b, a, b], [c, b, a]])


# -- qk-norm -------------------------------------------------------------------------------------

# (1, 7): mean square (1 + 49)/2 = 25, so divided by 5: (1/5, 7/5).
# Layer: the mean is 4, (-3, 3) has mean square 9, so divided by 3: (-1, 1).
GAIN, OFFSET = tensor([10, 5]), tensor([1, 2])


@pytest.mark.parametrize(
    ("kind", "offset", "want"),
    [("rms", None, [2, 7]), ("layer", None, [-10, 5]), ("layer", OFFSET, [-9, 7])],
)
def test_normalised_heads(kind, offset, want):
    norm = QkNorm(kind=kind, eps=0.0)
    assert_equals(normalise_last(tensor([1, 7]), norm, GAIN, offset), want)


def test_eps_is_added_to_the_mean_square():
    # 25 + 11 = 36, root 6.
    assert_equals(normalise_last(tensor([1, 7]), QkNorm(eps=11.0), None), [1 / 6, 7 / 6])


@pytest.mark.parametrize(
    ("order", "want"),
    [
        # Norm and gain (2, 7), then a quarter turn.
        ("before-rope", [-7, 2]),
        # A quarter turn (-7, 1), then the norm (-7/5, 1/5) and the gain.
        ("after-rope", [-14, 1]),
    ],
)
def test_norm_and_rotation_in_both_orders(order, want):
    spec = AttentionSpec(
        d_model=2,
        num_heads=1,
        positions=Rope(pairs="halves"),
        qk_norm=QkNorm(order=order, eps=0.0),
    )
    quarter = (torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double())
    q = one_head([[1, 7]])
    inputs = Inputs(q=q, k=2 * q, v=q, angles=quarter)
    t = attend(spec, Parameters(q_norm=GAIN, k_norm=-GAIN), inputs)
    assert_equals(t.q_pos, want)
    # Twice the key has the same norm: only its gain differs.
    assert_equals(t.k_pos, [-n for n in want])
    assert t.v_shared.equal(q)


# -- other positions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (4, [2, 4, 6, 8]),
        # Six heads: those of four, then every other one of eight (1, 3, 5, 7), until there are six.
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        # Twelve: those of eight, then 1/2, 3/2, 5/2, 7/2 of sixteen.
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes(num_heads, exponents):
    assert_equals(tensor(alibi_slopes(num_heads)), [2.0**-n for n in exponents])


def test_alibi_halves_with_every_step():
    # Slope ln 2: exp gives 1/4, 1/2, 1 for distances 2, 1, 0; divided by 7/4.
    spec, inputs = uniform(3, 3, is_causal=True, positions=Alibi(slopes=(log(2),)))
    t = attend(spec, Parameters(), inputs)
    assert_equals(t.weights[0, 0, 2], [1 / 7, 2 / 7, 4 / 7])
    assert_equals(t.bias[0, 0, 2], [-2 * log(2), -log(2), 0])


def test_alibi_counts_the_distance_from_the_last_key():
    spec, inputs = uniform(1, 3, is_causal=True, positions=Alibi(slopes=(log(2),)))
    assert_equals(attend(spec, Parameters(), inputs).weights, [1 / 7, 2 / 7, 4 / 7])


# 8 buckets up to distance 16: 4 per side, of which 2 hold one distance. The others begin at
# 2 and 2·√8 = 5.7: distances 2 3 4 5 and 6 7 …; keys after the query are 4 buckets further.
BUCKETS = {
    True: [3, 3, 2, 2, 2, 2, 1, 0, 5, 6, 6, 6, 6, 7, 7],
    False: [3, 3, 2, 2, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets(bidirectional):
    kind = RelativeBias(
        num_buckets=8 if bidirectional else 4, max_distance=16, bidirectional=bidirectional
    )
    found = relative_buckets(kind, torch.tensor([[7]]), torch.arange(15)[None])
    assert found.flatten().tolist() == BUCKETS[bidirectional]


def test_relative_buckets_of_t5():
    # 32 buckets, 16 per side, 8 exact; the far ones begin at 8·√2ⁿ: 8, 11.3, 16, 22.6, 32, 45.3,
    # 64, 90.5.
    first = {8: 8, 12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15}
    found = relative_buckets(RelativeBias(), torch.tensor([[200]]), torch.arange(200)[None])[0, 0]
    by_distance = found.flip(0).tolist()  # distances 1 2 3 …
    assert by_distance[:7] == [1, 2, 3, 4, 5, 6, 7]
    begins = {d: b for d, b in enumerate(by_distance, start=1) if d > 7 and by_distance[d - 2] != b}
    assert begins == first


def test_a_relative_bias_is_read_by_bucket_and_head():
    # Distances k - q: 0 and 1 for query 0, -1 and 0 for query 1; buckets 0, 2 + 1 = 3, 1, 0
    # (4 buckets, 2 per side, 1 exact).
    spec, inputs = uniform(2, 2, heads=2, positions=RelativeBias(num_buckets=4, max_distance=8))
    table = tensor([[10, 50], [20, 60], [30, 70], [40, 80]])
    t = attend(spec, Parameters(relative_bias=table), inputs)
    assert t.scores[0].tolist() == [[[10, 40], [20, 10]], [[50, 80], [60, 50]]]


def test_sinusoidal_table():
    # Base 100, four channels: angles p and p/10, sine then cosine.
    table = sinusoidal_table(torch.tensor([[0, 1, 2]]), d_model=4, base=100.0)
    sin, cos = math.sin, math.cos
    want = [[sin(p), cos(p), sin(p / 10), cos(p / 10)] for p in range(3)]
    assert_equals(table, want)
    assert table[0, 0].tolist() == [0, 1, 0, 1]


def test_sinusoidal_table_of_odd_width():
    # 1000^(-2/3) = 1/100.
    table = sinusoidal_table(torch.tensor([[1]]), d_model=3, base=1000.0)
    assert_equals(table, [math.sin(1), math.cos(1), math.sin(0.01)])


EYE = torch.eye(2, dtype=torch.float64)


def test_sinusoidal_positions_are_added_to_the_input():
    spec = AttentionSpec(d_model=2, num_heads=1, positions=Sinusoidal())
    x = tensor([[[10, 20], [30, 40]]])
    t = attend(spec, Parameters(q=EYE, k=EYE, v=EYE), Inputs(x=x))
    want = [[10 + 0, 20 + 1], [30 + math.sin(1), 40 + math.cos(1)]]
    for got in (t.x_q, t.x_kv, t.x_v):
        assert_equals(got, want)


def test_learned_positions_with_left_padding():
    # Real tokens are 2 and 3, at positions 0 and 1.
    spec = AttentionSpec(d_model=2, num_heads=1, positions=Learned())
    x = tensor([[[1, 1], [2, 2], [3, 3], [4, 4]]])
    parameters = Parameters(q=EYE, k=EYE, v=EYE, positions=tensor([[10, 20], [30, 40]]))
    inputs = Inputs(x=x, keep=torch.tensor([[False, False, True, True]]))
    t = attend(spec, parameters, inputs)
    assert t.x_q[0, 2:].tolist() == [[13, 23], [34, 44]]
    assert t.x_kv is t.x_q
    assert t.x_v is t.x_q


def test_in_cross_attention_positions_are_added_to_the_queries_only():
    spec = AttentionSpec(d_model=2, num_heads=1, positions=Learned())
    parameters = Parameters(q=EYE, k=EYE, v=EYE, positions=tensor([[10, 20], [30, 40]]))
    x, context = tensor([[[1, 1], [2, 2]]]), tensor([[[5, 5], [6, 6]]])
    t = attend(spec, parameters, Inputs(x=x, context=context))
    assert t.x_q[0].tolist() == [[11, 21], [32, 42]]
    assert t.x_kv is context
    assert t.x_v is context


# -- what is refused -----------------------------------------------------------------------------

SPEC = AttentionSpec(d_model=6, num_heads=2, num_kv_heads=1, d_context=4, d_values=5)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


GOOD_HEADS = {"q": zeros(1, 2, 3, 3), "k": zeros(1, 1, 4, 3), "v": zeros(1, 1, 4, 3)}
GOOD_LAYER = {"x": zeros(1, 3, 6), "context": zeros(1, 2, 4), "values": zeros(1, 2, 5)}


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({}, "neither x nor all of q, k and v are given"),
        (GOOD_HEADS | {"v": None}, "neither x nor all of q, k and v are given"),
        (GOOD_HEADS | {"q": zeros(1, 2, 3, 2)}, "the last axis of q is 2, not 3"),
        (GOOD_HEADS | {"k": zeros(1, 1, 4, 2)}, "the last axis of k is 2, not 3"),
        (GOOD_HEADS | {"v": zeros(1, 1, 4, 2)}, "the last axis of v is 2, not 3"),
        (GOOD_HEADS | {"q": zeros(1, 1, 3, 3)}, "q has 1 heads, not 2"),
        (GOOD_HEADS | {"k": zeros(1, 2, 4, 3)}, "k has 2 heads, not 1"),
        (GOOD_HEADS | {"v": zeros(1, 2, 4, 3)}, "v has 2 heads, not 1"),
        (GOOD_HEADS | {"v": zeros(1, 1, 5, 3)}, "k has 4 tokens and v has 5"),
        (GOOD_LAYER | {"x": zeros(1, 3, 5)}, "the last axis of x is 5, not 6"),
        (GOOD_LAYER | {"context": zeros(1, 2, 6)}, "the last axis of context is 6, not 4"),
        (GOOD_LAYER | {"context": None}, "the last axis of x is 6, not 4"),
        (GOOD_LAYER | {"values": zeros(1, 2, 4)}, "the last axis of values is 4, not 5"),
        (GOOD_LAYER | {"values": None}, "the last axis of context is 4, not 5"),
        (GOOD_LAYER | {"values": zeros(1, 3, 5)}, "context has 2 tokens and values has 3"),
        (GOOD_LAYER, "parameter q is missing"),
    ],
)
def test_inputs_that_do_not_fit_are_named_with_both_numbers(inputs, text):
    with pytest.raises(ShapeError, match=text):
        attend(SPEC, Parameters(), Inputs(**inputs))


def test_inputs_that_fit_are_not_refused():
    attend(SPEC, Parameters(), Inputs(**GOOD_HEADS))
    parameters = Parameters(q=zeros(6, 6), k=zeros(3, 4), v=zeros(3, 5), o=zeros(6, 6))
    attend(SPEC, parameters, Inputs(**GOOD_LAYER))


@pytest.mark.parametrize(
    ("changes", "parameters", "text"),
    [
        ({"sinks": True}, {}, "parameter sinks is missing"),
        ({"sinks": True}, {"sinks": zeros(3)}, r"parameter sinks has shape \(3,\), not \(2,\)"),
        ({"positions": RelativeBias()}, {}, "parameter relative_bias is missing"),
        (
            {"positions": RelativeBias()},
            {"relative_bias": zeros(2, 32)},
            r"parameter relative_bias has shape \(2, 32\), not \(32, 2\)",
        ),
    ],
)
def test_parameters_of_the_scores_that_are_missing_or_transposed(changes, parameters, text):
    with pytest.raises(ShapeError, match=text):
        attend(SPEC.replace(**changes), Parameters(**parameters), Inputs(**GOOD_HEADS))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"k": zeros(6, 6)}, r"parameter k has shape \(6, 6\), not \(3, 6\)"),
        ({"positions": None}, "parameter positions is missing"),
        ({"positions": zeros(4, 5)}, r"parameter positions has shape \(4, 5\), not \(4, 6\)"),
        ({"positions": zeros(2, 6)}, "position 2 is not in a table of 2"),
    ],
)
def test_parameters_of_a_layer_that_do_not_fit(parameters, text):
    spec = SPEC.replace(d_context=6, d_values=6, positions=Learned())
    good = {"q": zeros(6, 6), "k": zeros(3, 6), "v": zeros(3, 6), "positions": zeros(4, 6)}
    attend(spec, Parameters(**good), Inputs(x=zeros(1, 3, 6)))
    with pytest.raises(ShapeError, match=text):
        attend(spec, Parameters(**(good | parameters)), Inputs(x=zeros(1, 3, 6)))


def test_a_stage_that_does_not_exist_cannot_be_replaced():
    with pytest.raises(UsageError, match="there is no stage 'sofmax' to replace") as caught:
        attend(SPEC, Parameters(), Inputs(**GOOD_HEADS), replace={"sofmax": lambda t, s: None})
    assert caught.value.fix == "did you mean 'softmax'?"
