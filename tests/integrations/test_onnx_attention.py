"""ONNX's attention operators on our library: literal tables, refusals, and onnx's own evaluator."""

from __future__ import annotations

import itertools

import pytest
import torch

from headwise.errors import MaskError, ShapeError, UsageError
from headwise.integrations.onnx_attention import attention, rotary_embedding

# B, Hq, Hkv, Tq, Tk, Dk, Dv
SIZES = (2, 4, 2, 3, 5, 6, 7)


def tensors(sizes=SIZES, *, seed=0, dtype=torch.float64):
    B, Hq, Hkv, Tq, Tk, Dk, Dv = sizes
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, Hq, Tq, Dk), (B, Hkv, Tk, Dk), (B, Hkv, Tk, Dv))
    return tuple(torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes)


def seen(q_len, kv_len, *, batch=1, past=0, **asked):
    """Which keys each query looks at, (B, Tq, Tk) of 0 and 1, read off the weights."""
    q, k = torch.zeros(batch, 1, q_len, 2), torch.zeros(batch, 1, kv_len - past, 2)
    if past:
        asked["past_key"] = asked["past_value"] = torch.zeros(batch, 1, past, 2)
    found = attention(q, k, k, qk_matmul_output_mode=3, with_qk_matmul_output=True, **asked)
    return (found.qk_matmul_output[:, 0] > 0).int().tolist()


# -- who looks at whom --------------------------------------------------------------------------


def test_causal_starts_at_the_first_key_without_a_cache():
    assert seen(2, 4, is_causal=1) == [[[1, 0, 0, 0], [1, 1, 0, 0]]]


def test_causal_starts_after_the_cached_keys():
    # one new key, two queries, three cached keys: neither "start" nor "end"
    assert seen(2, 4, past=3, is_causal=1) == [[[1, 1, 1, 1], [1, 1, 1, 1]]]
    assert seen(2, 5, past=1, is_causal=1) == [[[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]]
    assert seen(2, 5, past=3, is_causal=1) == [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]


def test_causal_ends_at_the_last_real_key_of_each_sample():
    real = torch.tensor([2, 4])
    assert seen(2, 4, batch=2, is_causal=1, nonpad_kv_seqlen=real) == [
        [[1, 0, 0, 0], [1, 1, 0, 0]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
    ]


def test_more_queries_than_real_keys_leave_the_first_ones_without_any():
    assert seen(3, 3, is_causal=1, nonpad_kv_seqlen=torch.tensor([1])) == [
        [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    ]


def test_padding_alone_hides_keys_from_all():
    assert seen(2, 3, batch=2, nonpad_kv_seqlen=torch.tensor([3, 1])) == [
        [[1, 1, 1], [1, 1, 1]],
        [[1, 0, 0], [1, 0, 0]],
    ]


def test_windows_are_inclusive_distances_and_go_with_the_offset():
    both = {"left_window_size": 1, "right_window_size": 1}
    assert seen(2, 4, **both) == [[[1, 1, 0, 0], [1, 1, 1, 0]]]
    assert seen(2, 4, past=2, **both) == [[[0, 1, 1, 1], [0, 0, 1, 1]]]
    assert seen(1, 4, nonpad_kv_seqlen=torch.tensor([3]), **both) == [[[0, 1, 1, 0]]]
    assert seen(2, 4, left_window_size=0, is_causal=1) == [[[1, 0, 0, 0], [0, 1, 0, 0]]]
    assert seen(2, 3, left_window_size=-1, right_window_size=-1) == [[[1, 1, 1], [1, 1, 1]]]


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_every_rank_are_aligned_from_the_right(kind):
    def given(rows):
        keep = torch.tensor(rows).bool()
        return keep if kind == "bool" else torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)

    assert seen(2, 3, attn_mask=given([1, 0, 1])) == [[[1, 0, 1], [1, 0, 1]]]
    assert seen(2, 3, attn_mask=given([[1, 0, 0], [0, 1, 1]])) == [[[1, 0, 0], [0, 1, 1]]]
    assert seen(2, 2, batch=2, attn_mask=given([[[[1, 0]]], [[[0, 1]]]])) == [
        [[1, 0], [1, 0]],
        [[0, 1], [0, 1]],
    ]
    # three axes are heads: the same for both samples
    q, k, v = (torch.zeros(2, 2, 1, 2) for _ in range(3))
    found = attention(
        q, k, v, given([[[1]], [[0]]]), qk_matmul_output_mode=3, with_qk_matmul_output=True
    )
    assert found.qk_matmul_output.flatten().tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_keys_missing_at_the_end_of_a_mask_are_hidden(dtype):
    mask = torch.ones(1, 2, dtype=dtype)
    assert seen(1, 4, attn_mask=mask) == [[[1, 1, 0, 0]]]


# -- what is added ------------------------------------------------------------------------------


def test_a_very_negative_number_is_added_and_hides_nothing():
    q, k, v = tensors((1, 1, 1, 2, 3, 2, 4))
    low = torch.full((2, 3), -1e9, dtype=torch.float64)
    low[0] = -torch.inf
    y = attention(q * 0, k, v, low).Y
    assert y[0, 0, 0].tolist() == [0, 0, 0, 0]  # all -inf: nothing to see
    torch.testing.assert_close(y[0, 0, 1], v[0, 0].mean(0))  # all equally low: the mean


def test_infinities_and_numbers_in_one_mask():
    q, k, v = tensors((1, 1, 1, 1, 3, 2, 4))
    mask = (
        torch.tensor([0.0, -torch.inf, 0.5], dtype=torch.float64)
        .log1p()
        .masked_fill_(torch.tensor([False, True, False]), -torch.inf)
    )
    y = attention(q * 0, k, v, mask).Y[0, 0, 0]
    torch.testing.assert_close(y, (v[0, 0, 0] + 1.5 * v[0, 0, 2]) / 2.5)


def test_hidden_keys_stay_hidden_under_a_softcap():
    mask = torch.tensor([[0.0, -torch.inf]])
    assert seen(1, 2, attn_mask=mask, softcap=0.5) == [[[1, 0]]]


def test_the_four_points_between_product_and_softmax():
    q, k = torch.full((1, 1, 1, 1), 2.0), torch.tensor([3.0, 1.0]).view(1, 1, 2, 1)
    mask = torch.tensor([[0.25, -torch.inf]])
    asked = {"scale": 0.5, "softcap": 2.0, "with_qk_matmul_output": True}
    capped = 2.0 * torch.tanh(torch.tensor([1.5, 0.5]))
    expected = {
        0: torch.tensor([3.0, 1.0]),
        1: capped,
        2: torch.tensor([float(capped[0]) + 0.25, -torch.inf]),
        3: torch.tensor([1.0, 0.0]),
    }
    for mode, want in expected.items():
        got = attention(q, k, k, mask, qk_matmul_output_mode=mode, **asked).qk_matmul_output
        torch.testing.assert_close(got.flatten(), want)
    assert attention(q, k, k, mask).qk_matmul_output is None


# -- layouts and dtypes -------------------------------------------------------------------------


def test_three_axes_are_four_axes_with_the_heads_merged():
    q, k, v = tensors()
    flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    found, want = attention(*flat, is_causal=1, **heads), attention(q, k, v, is_causal=1)
    torch.testing.assert_close(found.Y, want.Y.transpose(1, 2).flatten(2))
    assert torch.equal(found.present_key, k)
    assert torch.equal(found.present_value, v)


def test_the_cache_grows_at_its_end():
    q, k, v = tensors()
    past, new = 2, slice(2, None)
    found = attention(q, k[:, :, new], v[:, :, new], None, k[:, :, :past], v[:, :, :past])
    assert torch.equal(found.present_key, k)
    assert torch.equal(found.present_value, v)
    torch.testing.assert_close(found.Y, attention(q, k, v).Y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("precision", [None, 1, 10, 11, 16])
def test_outputs_have_the_dtype_of_q(dtype, precision):
    q, k, v = tensors(dtype=dtype)
    asked = {"softmax_precision": precision, "with_qk_matmul_output": True}
    found = attention(q, k, v, qk_matmul_output_mode=3, **asked)
    assert {tensor.dtype for tensor in found} == {dtype}
    exact = attention(*(x.double() for x in (q, k, v)))
    assert float((found.Y.double() - exact.Y).abs().max()) <= 4 * torch.finfo(dtype).eps


def test_a_softmax_in_double_is_one():
    q, k, v = tensors(dtype=torch.float32)
    exact = attention(q.double(), k.double(), v.double()).Y.float()
    assert torch.equal(attention(q, k, v, softmax_precision=11).Y, exact)


def test_values_and_masks_may_have_wider_types_than_queries():
    q, k, v = tensors(dtype=torch.float16)
    low = torch.full((3, 5), torch.finfo(torch.float32).min)  # no number of float16
    y = attention(q, k, v.float(), low).Y
    assert y.dtype == torch.float16
    assert bool(y.isfinite().all())
    assert float(y.abs().sum()) > 0


# -- refusals -----------------------------------------------------------------------------------


def flat(heads, width):
    return torch.zeros(1, 2, heads * width)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"left_window_size": -2}, UsageError, "left_window_size=-2 is not a distance"),
        (
            {"softmax_precision": 7},
            UsageError,
            "softmax_precision=7 is not a type the softmax can have",
        ),
        ({"qk_matmul_output_mode": 4}, UsageError, "qk_matmul_output_mode=4 is not known"),
        ({"q_num_heads": 3}, ShapeError, "q_num_heads=3, but Q has 4 heads"),
        (
            {"past_key": torch.zeros(2, 2, 1, 6)},
            UsageError,
            "past_key and past_value come together, and one is missing",
        ),
        (
            {
                "past_key": torch.zeros(2, 2, 1, 6),
                "past_value": torch.zeros(2, 2, 1, 7),
                "nonpad_kv_seqlen": torch.tensor([1, 1]),
            },
            UsageError,
            "past_key and nonpad_kv_seqlen exclude each other",
        ),
        (
            {"past_key": torch.zeros(2, 2, 1, 8), "past_value": torch.zeros(2, 2, 1, 7)},
            ShapeError,
            "past_key has shape (2, 2, 1, 8), not (2, 2, *, 6)",
        ),
        ({"attn_mask": torch.ones(3, 5).int()}, MaskError, "attn_mask has dtype torch.int32"),
        (
            {"attn_mask": torch.tensor([0.0, 0, torch.nan, 0, 0])},
            MaskError,
            "attn_mask contains NaN or +inf",
        ),
        (
            {"attn_mask": torch.ones(3, 1).bool()},
            MaskError,
            "a mask of shape (3, 1) has 1 entry on the key axis, but there are 5 keys",
        ),
        (
            {"nonpad_kv_seqlen": torch.tensor([6, 5])},
            MaskError,
            "sample 0 has length 6, outside of 0 .. 5",
        ),
        ({"K": torch.zeros(2, 5, 12)}, ShapeError, "Q, K and V have 4, 3, 4 axes"),
        (
            {"Q": flat(4, 6), "K": flat(2, 6), "V": flat(2, 7), "q_num_heads": 5},
            ShapeError,
            "Q has three axes and q_num_heads=5",
        ),
        (
            {"Q": flat(4, 6), "K": flat(2, 6), "V": flat(2, 7), "q_num_heads": 4},
            ShapeError,
            "K has three axes and kv_num_heads=None",
        ),
    ],
)
def test_refusals(change, error, message):
    given = dict(zip("QKV", tensors(dtype=torch.float32), strict=True)) | change
    with pytest.raises(error) as caught:
        attention(**given)
    assert caught.value.what == message
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix


# -- rotary -------------------------------------------------------------------------------------

QUARTER = (torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
"""Cosines and sines of two pairs: position 0 stays, position 1 makes a quarter turn."""


@pytest.mark.parametrize(
    ("interleaved", "turned"), [(0, [-3.0, -4.0, 1.0, 2.0]), (1, [-2.0, 1.0, -4.0, 3.0])]
)
def test_a_quarter_turn(interleaved, turned):
    x = torch.tensor([1.0, 2, 3, 4]).expand(1, 2, 2, 4)
    positions = torch.tensor([[1, 0]])
    y = rotary_embedding(x, *QUARTER, positions, interleaved=interleaved)
    assert y.tolist() == [[[turned, [1, 2, 3, 4]]] * 2]
    flat = rotary_embedding(
        x.transpose(1, 2).flatten(2), *QUARTER, positions, interleaved=interleaved, num_heads=2
    )
    assert flat.tolist() == [[turned * 2, [1, 2, 3, 4] * 2]]


def test_tables_without_positions_hold_every_token():
    x = torch.tensor([1.0, 2, 3, 4]).expand(1, 1, 2, 4)
    cos, sin = (table.flip(0)[None] for table in QUARTER)
    assert rotary_embedding(x, cos, sin).tolist() == [[[[-3, -4, 1, 2], [1, 2, 3, 4]]]]


def test_channels_beyond_the_rotated_ones_stay():
    x = torch.tensor([1.0, 2, 3, 4]).view(1, 1, 1, 4)
    one = [table[:, :1] for table in QUARTER]
    y = rotary_embedding(x, *one, torch.tensor([[1]]), rotary_embedding_dim=2)
    assert y.flatten().tolist() == [-2, 1, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rotary_embedding_dim": 2}, "cos_cache holds 2 angles, but 2 channels are turned"),
        ({"position_ids": torch.tensor([[2]])}, "position_ids run from 2 to 2"),
        ({"position_ids": torch.tensor([[-1]])}, "position_ids run from -1 to -1"),
        ({"X": torch.zeros(1, 1, 8)}, "X has three axes and num_heads=0"),
    ],
)
def test_rotary_refusals(change, message):
    given = {
        "X": torch.zeros(1, 1, 1, 4),
        "cos_cache": QUARTER[0],
        "sin_cache": QUARTER[1],
        "position_ids": torch.tensor([[0]]),
    }
    with pytest.raises(ShapeError) as caught:
        rotary_embedding(**(given | change))
    assert caught.value.what == message
    assert caught.value.why
    assert caught.value.fix


# -- beside onnx's own evaluator ----------------------------------------------------------------


CALLS = list(
    enumerate(
        itertools.product(
            ("none", "past", "nonpad"),
            ("none", "bool", "float", "short"),
            (0, 1),
            ((-1, -1), (1, 2)),
        )
    )
)
"""Calls that no case of onnx makes: every kind of cache with every kind of mask."""


@pytest.mark.parametrize(("number", "call"), CALLS, ids=str)
def test_it_agrees_with_onnx_on_other_calls(number, call):
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    cache, mask, causal, window = call
    q, k, v = tensors(seed=number)
    g = torch.Generator().manual_seed(number)
    inputs = {"Q": q, "K": k, "V": v}
    if cache == "past":
        inputs["past_key"], inputs["past_value"] = k[:, :, :2], v[:, :, :2]
    if cache == "nonpad":
        inputs["nonpad_kv_seqlen"] = torch.tensor([number % 6, 4])
    kv_len = 7 if cache == "past" else 5
    if mask != "none":
        shape = (3, 4) if mask == "short" else ((2, 1), (1, 4))[number % 2] + (3, kv_len)
        keep = torch.rand(shape, generator=g) < 0.7
        bias = torch.randn(shape, generator=g, dtype=torch.float64)
        inputs["attn_mask"] = keep if mask == "bool" else bias.masked_fill(~keep, -torch.inf)
    mode = number % 4
    attributes = {
        "is_causal": causal,
        "left_window_size": window[0],
        "right_window_size": window[1],
        "qk_matmul_output_mode": mode,
        # the evaluator gives the capped scores in mode 0 too, against its own documentation
        "softcap": 0.0 if mode == 0 else 1.5,
        "scale": 0.25,  # attributes, and the root that is taken of it, are float32
    }
    order = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    outputs = ("Y", "present_key", "present_value", "qk_matmul_output")
    node = onnx.helper.make_node(
        "Attention", [name if name in inputs else "" for name in order], outputs, **attributes
    )
    value = onnx.helper.make_tensor_value_info
    numpy = {name: tensor.numpy() for name, tensor in inputs.items()}
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in numpy.items()}
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [value(name, kinds[name], list(x.shape)) for name, x in numpy.items()],
        [value(name, onnx.TensorProto.DOUBLE, None) for name in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])
    want = reference.ReferenceEvaluator(model).run(None, numpy)
    got = attention(**inputs, **attributes, with_qk_matmul_output=True)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)
