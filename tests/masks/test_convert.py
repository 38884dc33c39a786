"""Each convention against truth tables written out by hand, in both directions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import MaskError, UsageError
from headwise.masks import (
    CONVENTIONS,
    Causal,
    Custom,
    Padding,
    Window,
    from_convention,
    key_count_from_window,
    to_convention,
    window_from_key_count,
)

F, T = False, True
INF = float("inf")
MIN = torch.finfo(torch.float32).min

# Two samples, two queries, three keys; the second sample has one real key less, on the left.
KEEP = [[1, 1, 1], [0, 1, 1]]
# The same, and causal: queries sit at slots 1 and 2.
CAUSAL_KEEP = [[[[1, 1, 0], [1, 1, 1]]], [[[0, 1, 0], [0, 1, 1]]]]

KEYS_BY_HAND = {
    "torch-mha-key-padding": [[F, F, F], [T, F, F]],
    "hf-2d": [[1, 1, 1], [0, 1, 1]],
}
TABLES_BY_HAND = {
    "torch-sdpa": [[[[T, T, F], [T, T, T]]], [[[F, T, F], [F, T, T]]]],
    "hf-4d-bool": [[[[T, T, F], [T, T, T]]], [[[F, T, F], [F, T, T]]]],
    "hf-4d-additive": [[[[0, 0, MIN], [0, 0, 0]]], [[[MIN, 0, MIN], [MIN, 0, 0]]]],
    "onnx-bool": [[[[T, T, F], [T, T, T]]], [[[F, T, F], [F, T, T]]]],
    "onnx-additive": [[[[0, 0, -INF], [0, 0, 0]]], [[[-INF, 0, -INF], [-INF, 0, 0]]]],
    # Samples differ, so the heads are written out: sample 0 head 0, 0 1, 1 0, 1 1.
    "torch-mha-attn": [
        [[F, F, T], [F, F, F]],
        [[F, F, T], [F, F, F]],
        [[T, F, T], [T, F, F]],
        [[T, F, T], [T, F, F]],
    ],
}


def keep_of(mask, batch=2, heads=1, q_len=2, kv_len=3):
    dense = mask.dense(q_len, kv_len, batch=batch)
    return dense.expand(batch, heads, q_len, kv_len).int().tolist()


def test_every_convention_is_pinned_by_hand():
    assert {*KEYS_BY_HAND, *TABLES_BY_HAND} == set(CONVENTIONS)


@pytest.mark.parametrize("name", KEYS_BY_HAND)
def test_read_keys(name):
    mask = from_convention(name, torch.tensor(KEYS_BY_HAND[name]), q_len=2, kv_len=3, batch=2)
    assert isinstance(mask, Padding)
    assert mask.keep.int().tolist() == KEEP


@pytest.mark.parametrize("name", KEYS_BY_HAND)
def test_write_keys(name):
    written = to_convention(name, Padding(torch.tensor(KEEP)), q_len=2, kv_len=3, batch=2)
    by_hand = torch.tensor(KEYS_BY_HAND[name])
    assert written.dtype == by_hand.dtype
    assert torch.equal(written, by_hand)


@pytest.mark.parametrize("name", TABLES_BY_HAND)
def test_read_tables(name):
    raw = torch.tensor(TABLES_BY_HAND[name])
    mask = from_convention(name, raw, q_len=2, kv_len=3, batch=2, num_heads=2)
    heads = [sample * 2 for sample in CAUSAL_KEEP]
    assert keep_of(mask, heads=2) == heads
    assert mask.name == name


@pytest.mark.parametrize("name", TABLES_BY_HAND)
def test_write_tables(name):
    mask = Causal() & Padding(torch.tensor(KEEP))
    heads = 2 if name == "torch-mha-attn" else 1
    written = to_convention(name, mask, q_len=2, kv_len=3, batch=2, num_heads=heads)
    by_hand = torch.tensor(TABLES_BY_HAND[name])
    assert written.dtype == by_hand.dtype
    assert torch.equal(written, by_hand)


@pytest.mark.parametrize("name", ["torch-mha-key-padding", "torch-mha-attn"])
def test_a_reader_of_the_wrong_polarity_would_be_noticed(name):
    table = {**KEYS_BY_HAND, **TABLES_BY_HAND}[name]
    mask = from_convention(name, ~torch.tensor(table), q_len=2, kv_len=3, batch=2, num_heads=2)
    assert keep_of(mask, heads=2) != [sample * 2 for sample in CAUSAL_KEEP]
    assert keep_of(mask, heads=2)[0] != [[KEEP[0]] * 2] * 2


def test_heads_are_next_to_each_other_in_mha():
    # B=2, H=2, Tq=1, Tk=2: each row differs, so a transposed read would show.
    raw = torch.tensor([[[F, F]], [[F, T]], [[T, F]], [[T, T]]])
    for sizes in ({"batch": 2}, {"num_heads": 2}, {"batch": 2, "num_heads": 2}):
        mask = from_convention("torch-mha-attn", raw, q_len=1, kv_len=2, **sizes)
        assert keep_of(mask, heads=2, q_len=1, kv_len=2) == [
            [[[1, 1]], [[1, 0]]],
            [[[0, 1]], [[0, 0]]],
        ]
        back = to_convention("torch-mha-attn", mask, q_len=1, kv_len=2, batch=2, num_heads=2)
        assert torch.equal(back, raw)


def test_mha_table_that_is_the_same_for_all_has_two_axes():
    written = to_convention("torch-mha-attn", Causal(), q_len=2, kv_len=3, batch=2, num_heads=4)
    assert written.tolist() == [[F, F, T], [F, F, F]]
    mask = from_convention("torch-mha-attn", written, q_len=2, kv_len=3)
    assert keep_of(mask, batch=1) == [[[[1, 1, 0], [1, 1, 1]]]]


@pytest.mark.parametrize("name", ["torch-sdpa", "onnx-bool"])
def test_three_axes_are_heads_where_the_api_broadcasts(name):
    raw = torch.tensor([[[T, F]], [[F, T]]])
    mask = from_convention(name, raw, q_len=1, kv_len=2, batch=3, num_heads=2)
    assert mask.dense(1, 2, batch=3, num_heads=2).int().tolist() == [[[[1, 0]], [[0, 1]]]]


def test_onnx_hides_keys_that_are_missing_at_the_end():
    short = torch.tensor([[T, T], [F, T]])
    mask = from_convention("onnx-bool", short, q_len=2, kv_len=4)
    assert keep_of(mask, batch=1, kv_len=4) == [[[[1, 1, 0, 0], [0, 1, 0, 0]]]]
    mask = from_convention("onnx-additive", torch.tensor([[0.0, -INF]]), q_len=2, kv_len=4)
    assert keep_of(mask, batch=1, kv_len=4) == [[[[1, 0, 0, 0], [1, 0, 0, 0]]]]
    with pytest.raises(MaskError, match="its axis of keys has 2 entries"):
        from_convention("torch-sdpa", short, q_len=2, kv_len=4)
    with pytest.raises(MaskError, match="its axis of keys has 5 entries"):
        from_convention("onnx-bool", torch.ones(2, 5) > 0, q_len=2, kv_len=4)


ADDITIVE = [name for name, record in CONVENTIONS.items() if "added" in record.takes]


def additive(name: str, row: list[float], dtype=torch.float32) -> torch.Tensor:
    """One sample, one query, as ``name`` wants it."""
    raw = torch.tensor([row], dtype=dtype)
    return raw[None, None] if "4d" in name else raw


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fill", [-INF, "min", -1e4])
def test_fills_that_hide(name, dtype, fill):
    fill = torch.finfo(dtype).min if fill == "min" else fill
    # -1e4 in bfloat16 is -9984: rounded up, and still meant to hide.
    raw = additive(name, [0.0, fill, -0.0], dtype)
    if dtype == torch.bfloat16 and fill == -1e4:
        raw = additive(name, [0.0, -10048.0, -0.0], dtype)
    mask = from_convention(name, raw, q_len=1, kv_len=3, batch=1)
    assert keep_of(mask, batch=1, q_len=1) == [[[[1, 0, 1]]]]


@pytest.mark.parametrize("name", ADDITIVE)
def test_numbers_0_and_1_are_not_additive(name):
    with pytest.raises(MaskError, match=r"a mask of 0 and 1 stored as torch\.float32") as caught:
        from_convention(name, additive(name, [0.0, 1.0, 1.0]), q_len=1, kv_len=3)
    assert "accepts it silently and is wrong" in caught.value.why
    assert "mask.bool() if 1 means keep" in caught.value.fix


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("value", [-0.5, 2.0, INF, -9000.0])
def test_a_bias_is_no_mask(name, value):
    with pytest.raises(MaskError, match="has 1 entries that neither keep") as caught:
        from_convention(name, additive(name, [0.0, value, -INF]), q_len=1, kv_len=3)
    assert f"{value:g} is a bias" in caught.value.why
    assert "pass it as bias=" in caught.value.fix


@pytest.mark.parametrize("name", ADDITIVE)
def test_nan_is_refused(name):
    with pytest.raises(MaskError, match="an additive mask contains NaN"):
        from_convention(name, additive(name, [0.0, float("nan"), -INF]), q_len=1, kv_len=3)


def test_a_float_mask_of_zeros_hides_nothing():
    mask = from_convention("torch-sdpa", torch.zeros(2, 3), q_len=2, kv_len=3)
    assert keep_of(mask, batch=1) == [[[[1, 1, 1], [1, 1, 1]]]]


@pytest.mark.parametrize(
    ("name", "dtype", "accepted"),
    [
        ("torch-mha-key-padding", torch.int64, "bool, or floats that are added to the scores"),
        ("torch-sdpa", torch.uint8, "bool, or floats that are added to the scores"),
        ("hf-4d-bool", torch.float32, "bool"),
        ("hf-4d-bool", torch.int64, "bool"),
        ("hf-4d-additive", torch.bool, "floats that are added to the scores"),
        ("onnx-additive", torch.bool, "floats that are added to the scores"),
        ("onnx-bool", torch.float32, "bool"),
    ],
)
def test_dtypes_that_a_convention_does_not_know(name, dtype, accepted):
    raw = torch.zeros((1, 1, 1, 3) if "mha" not in name else (1, 3), dtype=dtype)
    with pytest.raises(MaskError, match=rf"{name} takes {accepted}, not {dtype}"):
        from_convention(name, raw, q_len=1, kv_len=3)


def test_hf_2d_refuses_other_numbers():
    with pytest.raises(MaskError, match="entries other than 0 and 1"):
        from_convention("hf-2d", torch.tensor([[0, -100]]), q_len=1, kv_len=2)


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("hf-2d", (3,), "it says of each sample"),
        ("hf-2d", (2, 1, 1, 3), "it says of each sample"),
        ("hf-2d", (2, 4), r"here (B, Tk) is (2, 3)"),
        ("hf-2d", (1, 3), r"here (B, Tk) is (2, 3)"),
        ("torch-mha-attn", (3,), "here (Tq, Tk) is (2, 3)"),
        ("torch-mha-attn", (1, 3), "nothing broadcasts"),
        ("torch-mha-attn", (3, 2, 3), "here B·H is 2 x 4, and its first axis has 3 entries"),
        ("hf-4d-bool", (2, 3), "it has all four axes"),
    ],
)
def test_shapes_that_a_convention_does_not_know(name, shape, why):
    with pytest.raises(MaskError, match=f"is not {name}") as caught:
        from_convention(
            name, torch.ones(shape, dtype=torch.bool), q_len=2, kv_len=3, batch=2, num_heads=4
        )
    assert why in caught.value.why
    assert "torch-sdpa" in caught.value.fix


def test_a_length_is_refused_when_the_batch_is_not_known():
    with pytest.raises(MaskError) as caught:
        from_convention("hf-2d", torch.ones(2, 4), q_len=2, kv_len=3)
    assert caught.value.why == "here (B, Tk) is (B, 3)"


def test_the_first_axis_of_mha_needs_batch_or_heads():
    with pytest.raises(MaskError) as caught:
        from_convention("torch-mha-attn", torch.ones(4, 2, 3) > 0, q_len=2, kv_len=3)
    assert "pass batch= or num_heads= to split it" in caught.value.why
    with pytest.raises(MaskError, match="is not torch-mha-attn"):
        from_convention("torch-mha-attn", torch.ones(4, 2, 3) > 0, q_len=2, kv_len=3, num_heads=0)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_no_convention_takes_a_mask_with_the_keys_on_another_axis(name):
    for shape in ((2, 5, 1, 1), (2, 1, 5, 1)):
        with pytest.raises(MaskError, match="has 1 entry on the key axis, but there are 5 keys"):
            from_convention(name, torch.zeros(shape), q_len=5, kv_len=5, batch=2, num_heads=5)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_only_tensors(name):
    with pytest.raises(MaskError, match=r"has to be a torch\.Tensor here, not list"):
        from_convention(name, [[True]], q_len=1, kv_len=1)


@pytest.mark.parametrize(
    "convert",
    [
        lambda name: from_convention(name, torch.ones(1, 1), q_len=1, kv_len=1),
        lambda name: to_convention(name, Causal(), q_len=1, kv_len=1, batch=1),
    ],
)
def test_unknown_names_suggest_the_nearest(convert):
    with pytest.raises(UsageError, match="unknown mask convention 'torch-spda'") as caught:
        convert("torch-spda")
    assert caught.value.fix == "did you mean 'torch-sdpa'?"


@pytest.mark.parametrize("name", KEYS_BY_HAND)
def test_key_masks_cannot_say_causal(name):
    with pytest.raises(MaskError, match=f"{name} can't express this mask") as caught:
        to_convention(name, Causal(), q_len=2, kv_len=3, batch=2)
    assert "all queries and heads" in caught.value.why
    per_head = Custom(torch.tensor([[[True, False]], [[True, True]]])[None])
    with pytest.raises(MaskError, match=f"{name} can't express this mask"):
        to_convention(name, per_head, q_len=2, kv_len=2, batch=1, num_heads=2)
    one = to_convention(name, Causal(), q_len=1, kv_len=3, batch=2)  # hides nothing: can be said
    assert one.shape == (2, 3)


def test_integers_hold_no_additive_mask():
    with pytest.raises(MaskError, match=r"dtype=torch\.int64 can't hold an additive mask"):
        to_convention("onnx-additive", Causal(), q_len=1, kv_len=1, batch=1, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_additive_masks_have_the_smallest_number_of_their_dtype(dtype):
    written = to_convention("hf-4d-additive", Causal(), q_len=2, kv_len=2, batch=1, dtype=dtype)
    assert written.dtype == dtype
    assert written[0, 0, 0].tolist() == [0.0, torch.finfo(dtype).min]
    assert written.isfinite().all()


def test_wrong_sizes_are_refused_in_both_directions():
    with pytest.raises(MaskError, match="q_len=-1 is not a size"):
        from_convention("hf-2d", torch.ones(1, 1), q_len=-1, kv_len=1)
    with pytest.raises(MaskError, match="num_heads=-1 is not a size"):
        to_convention("hf-2d", Causal(), q_len=1, kv_len=1, batch=1, num_heads=-1)
    with pytest.raises(MaskError, match="has 2 samples, but batch=3"):
        to_convention("hf-2d", Padding(torch.tensor(KEEP)), q_len=1, kv_len=3, batch=3)


def test_results_live_where_the_mask_lives():
    raw = torch.ones(1, 1, 2, 3, dtype=torch.bool, device="meta")
    mask = from_convention("torch-sdpa", raw, q_len=2, kv_len=3)
    written = to_convention("onnx-additive", mask, q_len=2, kv_len=3, batch=1)
    assert written.device.type == "meta"


@pytest.mark.parametrize("name", CONVENTIONS)
def test_sizes_of_zero(name):
    for batch, q_len, kv_len in ((0, 2, 3), (2, 0, 3), (1, 2, 0)):
        mask = Padding(torch.ones(batch, kv_len))
        sizes = {"q_len": q_len, "kv_len": kv_len, "batch": batch, "num_heads": 1}
        written = to_convention(name, mask, **sizes)
        assert to_convention(name, from_convention(name, written, **sizes), **sizes).shape == (
            written.shape
        )


@given(data=st.data(), sizes=st.tuples(*(st.integers(1, 4) for _ in range(4))))
def test_round_trips(data, sizes):
    batch, heads, q_len, kv_len = sizes
    known = {"q_len": q_len, "kv_len": kv_len, "batch": batch, "num_heads": heads}
    name = data.draw(st.sampled_from(sorted(CONVENTIONS)))
    shape = (batch, 1, 1, kv_len) if name in KEYS_BY_HAND else (batch, heads, q_len, kv_len)
    size = int(torch.tensor(shape).prod())
    flat = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    keep = torch.tensor(flat).reshape(shape)
    written = to_convention(name, Custom(keep.expand(batch, heads, q_len, kv_len)), **known)
    mask = from_convention(name, written, **known)
    dense = mask.dense(q_len, kv_len, batch=batch, num_heads=heads)
    assert torch.equal(
        dense.expand(batch, heads, q_len, kv_len), keep.expand(batch, heads, q_len, kv_len)
    )
    again = to_convention(name, mask, **known)
    assert torch.equal(again, written)


def test_conventions_declare_themselves():
    for name, record in CONVENTIONS.items():
        assert record.name == name
        for text in (record.argument, record.shape, record.empty_row, record.source):
            assert text
        assert record.source.split()[0] in {"torch", "transformers", "onnx"}
        assert (record.true_means is None) == (record.takes == ("added",))


def test_windows_by_hand():
    assert window_from_key_count(1) == (0, 0)
    assert window_from_key_count(4) == (3, 0)
    assert key_count_from_window((3, 0)) == 4
    assert key_count_from_window(Window(0, 0)) == 1


@given(st.integers(1, 1000))
def test_windows_round_trip(count):
    assert key_count_from_window(window_from_key_count(count)) == count


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_counts_that_are_none(count):
    with pytest.raises(MaskError, match="is not a number of keys"):
        window_from_key_count(count)


@pytest.mark.parametrize("window", [(None, 0), (3, None), (3, 1), Window(None, None)])
def test_windows_without_a_count(window):
    with pytest.raises(MaskError, match="has no key count"):
        key_count_from_window(window)
    with pytest.raises(MaskError, match="is not a distance"):
        key_count_from_window((-1, 0))
