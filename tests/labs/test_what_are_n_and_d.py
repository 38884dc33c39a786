"""Lab 2: tokens and rows, columns, all rows at once, kinds of layer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.labs.wholeness import check_repeats, check_whole, small_run, verdicts

from headwise.labs import what_are_n_and_d as lab
from headwise.labs.measures import bert as encoders
from headwise.labs.measures import what_are_n_and_d as measures
from headwise.labs.measures.real_models import is_there

TINY = {"counts": (16, 64, 128), "repeats": 2, "tokens": 4, "draws": 3}


@pytest.fixture(scope="module", autouse=True)
def not_pulled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "is_there", lambda name: False)
        yield


@pytest.fixture(scope="module")
def result():
    return small_run(lab.LAB, TINY)


def test_it_is_whole_and_repeats(result):
    check_whole(lab.LAB, result)
    check_repeats(lab.LAB, result, TINY)


def test_a_random_encoder_counts_and_hides():
    found = encoders.bert("我爱深圳", 3)
    assert found.shown == ("[CLS]", "我", "爱", "深", "圳", "[SEP]")
    assert found.on_pads == found.moved == 0.0 < found.cls_sees_sep
    assert (len(found.special), len(found.special[0])) == (2, 4)
    assert encoders.judged_bert(found, 6) == "holds-under-conditions"


def test_without_a_padding_mask_pads_are_noticed():
    """What is exactly 0 with the mask is not without it."""
    one = encoders.random_encoder("我爱深圳", 3)
    ids = torch.tensor([[*one.read("我爱深圳").ids.tolist(), 0, 0]])
    all_real = torch.ones(1, 8, dtype=torch.bool)
    hidden, weights = encoders.padded(one.stack, ids, all_real)
    other, _weights = encoders.padded(one.stack, ids.masked_fill(ids == 0, 4), all_real)
    assert float(weights[0][0, :, :6, 6:].max()) > 0.0
    assert (other[:, :6] - hidden[:, :6]).abs().max() > 1e-3


def test_judging_bert():
    found = encoders.bert("我爱深圳", 3)
    real = dataclasses.replace(found, is_real=True, found=40)
    assert encoders.judged_bert(real, 6) == "holds"
    assert encoders.judged_bert(real, 4) == "does-not-hold"
    for fault in ({"found": 0}, {"on_pads": 0.1}, {"moved": 1e-9}, {"cls_sees_sep": 0.0}):
        assert encoders.judged_bert(dataclasses.replace(real, **fault), 6) == "does-not-hold"


@pytest.mark.slow
def test_minilm_rests_on_its_special_tokens(monkeypatch):
    monkeypatch.setattr(encoders, "is_there", is_there)
    if not is_there("minilm"):
        pytest.skip("the weights of minilm are not pulled")
    found = encoders.bert("我爱深圳", 3)
    assert found.is_real
    assert encoders.judged_bert(found, 6) == "holds"


def test_verdicts(result):
    found = verdicts(result)
    assert found["B11.2"] == "does-not-hold"
    assert found["B11.1"] == found["B12.2"] == found["B15.3"] == "holds"
    assert found["B11.5"] == found["B15.1"] == found["B12.4"] == "holds-under-conditions"


def test_tokenisers():
    assert measures.by_character("我爱深圳") == ["我", "爱", "深", "圳"]
    assert measures.by_word("我爱深圳") == ["我", "爱", "深圳"]
    assert measures.bert_style("我爱深圳") == ["[CLS]", "我", "爱", "深", "圳", "[SEP]"]


def test_judging_four():
    counts = {name: len(tokens) for name, tokens in measures.tokenisations().items()}
    assert lab.judged_four(counts) == "does-not-hold"
    assert lab.judged_four(dict.fromkeys(counts, 4)) == "holds"


def test_judging_alike():
    kinds = {"self-attention": {"x": True}, "cross attention": {"x": True}}
    assert lab.judged_alike(kinds, "x") == "holds"
    kinds["cross attention"]["x"] = False
    assert lab.judged_alike(kinds, "x") == "holds-under-conditions"
    kinds["self-attention"]["x"] = False
    assert lab.judged_alike(kinds, "x") == "does-not-hold"


@pytest.mark.parametrize(
    ("loop", "together", "verdict"),
    [
        ((1.0, 2.1, 4.0), (0.1, 0.2, 0.4), "holds"),
        ((0.1, 0.2, 0.4), (1.0, 2.1, 4.0), "does-not-hold"),
        ((1.0, 0.1, 1.0), (0.1, 1.0, 1.1), "not-enough-data"),
        ((1.0,), (0.1,), "not-enough-data"),
    ],
)
def test_judging_speed(loop, together, verdict):
    assert lab.judged_quicker(loop, together) == verdict


def test_judging_work():
    n, square = [1.0, 2.0, 4.0, 8.0], [1.0, 4.0, 16.0, 64.0]
    better = {2: [0.1, 0.1, 0.12], 8: [0.9, 0.95, 0.9]}
    assert lab.judged_work(n, n, square, better) == "holds-under-conditions"
    assert lab.judged_work(n, n, n, better) == "holds"
    assert lab.judged_work(n, square, square, better) == "does-not-hold"
    worse = {2: better[8], 8: better[2]}
    assert lab.judged_work(n, n, square, worse) == "does-not-hold"
    noise = {2: [0.1, 0.9, 0.5], 8: [0.9, 0.1, 0.6]}
    assert lab.judged_work(n, n, square, noise) == "not-enough-data"
