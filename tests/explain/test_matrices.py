"""Attention weights without a model: rollout, detectors, page."""

from __future__ import annotations

import json
import math

import pytest
import torch

from headwise.errors import ShapeError, UsageError
from headwise.explain.matrices import explain_weights
from headwise.explain.page import render_page


def causal(layers: int = 2, heads: int = 3, length: int = 12, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return [
        torch.randn(1, heads, length, length, generator=g)
        .masked_fill(hidden, -math.inf)
        .softmax(-1)
        for _layer in range(layers)
    ]


def test_rollout_by_hand():
    half = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    copy = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    found = explain_weights([half, copy]).rollout
    # ½·A + ½·I: [[1, 0], [1/4, 3/4]] then [[1, 0], [1/2, 1/2]]; the last row of the product is
    # 1/2 + 1/2 · 1/4 and 1/2 · 3/4.
    assert found.tolist() == [[1.0, 0.0], [0.625, 0.375]]


def test_a_future_in_a_causal_layer_is_found_and_not_in_a_bidirectional_one():
    weights = [w.flip(-1) for w in causal()]
    found = explain_weights(weights, is_causal=True)
    names = {d.name for layer in found.detected for head in layer for d in head if d.is_found}
    assert "future" in names
    free = explain_weights(weights, is_causal=False)
    names = {d.name for layer in free.detected for head in layer for d in head if d.is_found}
    assert "future" not in names


def test_the_payload_is_plain_and_the_page_needs_no_model():
    tokens = ["</script>", "你", "", *"abcdefghi"]
    found = explain_weights(causal(), tokens=tokens, is_causal=True)
    payload = json.loads(json.dumps(found.to_payload(), allow_nan=False))
    assert payload["trust"] is None
    assert "question" not in payload
    assert [m["name"] for m in payload["maps"]] == ["weights", "rollout"]
    assert sum(payload["maps"][1]["scores"]) == pytest.approx(1.0)
    page = render_page(payload)
    assert page == found.to_html()
    assert "<iframe" in found._repr_html_()


@pytest.mark.parametrize(
    ("weights", "error", "what"),
    [
        ([], UsageError, "no layers"),
        ([torch.ones(2, 3, 4)], ShapeError, "square"),
        ([torch.eye(3)[None], torch.eye(4)[None]], ShapeError, "same size"),
        ([torch.full((1, 2, 2), math.nan)], UsageError, "NaN|nan"),
        ([torch.full((1, 2, 2), -0.5)], UsageError, "negative|-0.5"),
    ],
)
def test_what_can_t_be_weights_is_refused(weights, error, what):
    with pytest.raises(error, match=what):
        explain_weights(weights)


def test_as_many_tokens_as_columns():
    with pytest.raises(ShapeError, match="2 tokens for weights of 3"):
        explain_weights([torch.eye(3)[None]], tokens=["a", "b"])


def test_the_none_of_a_fused_kernel_is_said_to_be_that():
    with pytest.raises(UsageError, match="no weights in 1") as caught:
        explain_weights([causal()[0], None])
    assert "capture" in caught.value.fix
