"""Raw masks on the wrong axis or of the wrong size are refused before anything is computed."""

import pytest
import torch

from headwise.errors import MaskError
from headwise.masks import Custom, from_convention
from headwise.masks.checks import Sizes, four_axes


def raw(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


def read(mask: torch.Tensor, num_heads: int | None = 3) -> None:
    four_axes(mask, Sizes(5, 7, 2, num_heads, "the call"))


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((2, 7, 1, 1), "its 7 entries lie on the head axis, and num_heads=3"),
        ((2, 1, 5, 1), "its 5 entries lie on the query axis"),
        ((1, 1, 5, 1), "blank whole queries and hide no key"),
        ((2, 3, 5, 1), "its 5 entries lie on the query axis"),
        ((5, 1), "its 5 entries lie on the query axis"),
        ((3, 1, 1), "its 3 entries lie on the head axis, and num_heads=3 too"),
        ((2, 1, 1, 1), "it can't tell one key from another"),
        ((1, 1), "it can't tell one key from another"),
    ],
)
def test_the_axis_is_named(shape, why):
    message = r"has 1 entry on the key axis, but there are 7 keys"
    with pytest.raises(MaskError, match=message) as caught:
        four_axes(raw(*shape), Sizes(5, 7, 2, 3, "the call"), three_axes_are_heads=True)
    assert type(caught.value) is MaskError
    assert why in caught.value.why
    assert caught.value.where == "the call"
    assert "(B, 1, 1, 7)" in caught.value.fix


def test_silent_when_keys_and_heads_have_the_same_number():
    with pytest.raises(MaskError) as caught:
        from_convention("torch-sdpa", raw(2, 4, 1, 1), q_len=4, kv_len=4, batch=2, num_heads=4)
    assert "its 4 entries lie on the head axis, and num_heads=4 too" in caught.value.why
    assert "broadcast without any error and hide whole heads instead of keys" in caught.value.why


def test_the_mistake_is_real():
    """Torch itself accepts that mask, and heads go blind: the reason for refusing it."""
    q = torch.randn(2, 4, 4, 8, generator=torch.Generator().manual_seed(0))
    padding = torch.tensor([[True, True, False, False], [True, True, True, True]])
    out = torch.nn.functional.scaled_dot_product_attention(
        q, q, q, attn_mask=padding[:, :, None, None]
    )
    blind = (out == 0).flatten(2).all(-1)
    assert blind.tolist() == [[False, False, True, True], [False] * 4]


def test_heads_unknown():
    with pytest.raises(MaskError) as caught:
        Custom(raw(2, 7, 1, 1)).dense(5, 7, batch=2)
    assert "in a layer with 7 heads it would hide whole heads" in caught.value.why


def test_one_key_may_have_one_entry():
    assert four_axes(raw(2, 1, 5, 1), Sizes(5, 1, 2, 3, "")).shape == (2, 1, 5, 1)


@pytest.mark.parametrize(
    ("shape", "what", "why"),
    [
        ((5, 6), "its axis of keys has 6 entries", "here kv_len=7"),
        ((4, 7), "its axis of queries has 4 entries", "here q_len=5"),
        ((2, 4, 5, 7), "its axis of heads has 4 entries", "here num_heads=3"),
        ((3, 1, 5, 7), "its axis of samples has 3 entries", "here batch=2"),
    ],
)
def test_wrong_sizes(shape, what, why):
    with pytest.raises(MaskError, match=what) as caught:
        read(raw(*shape))
    assert why in caught.value.why


def test_heads_and_batch_are_checked_only_if_known():
    assert four_axes(raw(9, 8, 5, 7), Sizes(5, 7, None, None, "")).shape == (9, 8, 5, 7)


@pytest.mark.parametrize("shape", [(), (1, 2, 3, 5, 7)])
def test_number_of_axes(shape):
    with pytest.raises(MaskError, match=rf"has {len(shape)} axes"):
        read(raw(*shape))


def test_three_axes_are_ambiguous():
    with pytest.raises(MaskError, match="whether its first axis is batch or heads") as caught:
        Custom(raw(2, 5, 7)).dense(5, 7, batch=2)
    assert caught.value.fix == "mask[:, None] for one table per sample, mask[None] for one per head"
    assert Custom(raw(2, 5, 7)[:, None]).dense(5, 7, batch=2).shape == (2, 1, 5, 7)
