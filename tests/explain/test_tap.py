"""The tap and the change, on attention written out here: no library takes part."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import TargetError
from headwise.explain.change import Change
from headwise.explain.tap import Tap, Watch, product
from headwise.numerics import compare, float64_allowance

B, H, HKV, T, D = 2, 4, 2, 5, 3
ALLOWED = float64_allowance(terms=T + D, scale=4.0)


def tensors(q_len=T):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(B, H, q_len, T, generator=generator, dtype=torch.float64)
    value = torch.randn(B, HKV, T, D, generator=generator, dtype=torch.float64)
    return scores, value


def own_of(scores, value):
    def own(open_cells):
        masked = scores if open_cells is None else scores.masked_fill(~open_cells, -1e300)
        weights = masked.softmax(-1)
        return weights @ value.repeat_interleave(H // HKV, 1), weights

    return own


def causal():
    return torch.ones(T, T, dtype=torch.bool).tril()[None, None]


def attend(change, *, allowed=None, watch=None, q_len=T):
    scores, value = tensors(q_len)
    tap = Tap(watch or Watch(weights=True, values=True, contexts=True), change)
    context = tap.attend(own_of(scores, value), value, allowed, q_len=q_len)
    return context, tap.seen, scores, value


def check(got, want):
    found = compare(got, want, allowed=ALLOWED)
    assert found.passed, found.sentence()


def test_without_a_change_the_models_own_context_comes_back():
    context, seen, scores, value = attend(Change(), allowed=causal())
    want, weights = own_of(scores, value)(causal())
    assert torch.equal(context, want)
    assert torch.equal(seen.weights[0], weights)
    assert torch.equal(seen.values[0], value)
    assert torch.equal(seen.contexts[0], want)


def test_product_shares_values_in_groups():
    scores, value = tensors()
    weights = scores.softmax(-1)
    check(product(weights, value), weights @ value.repeat_interleave(H // HKV, 1))
    assert not compare(
        product(weights, value), weights @ value.repeat(1, H // HKV, 1, 1), allowed=ALLOWED
    ).passed


@pytest.mark.parametrize("q_len", [T, 2])
def test_a_hidden_token_is_seen_by_itself_alone(q_len):
    hidden = torch.zeros(B, T, dtype=torch.bool)
    hidden[0, 1] = hidden[1, 4] = True
    _context, seen, scores, _value = attend(Change(hidden=hidden), q_len=q_len)
    want = scores.clone()
    for row, key in ((0, 1), (1, 4)):
        for query in range(q_len):
            if query + T - q_len != key:
                want[row, :, query, key] = -torch.inf
    check(seen.weights[0], want.softmax(-1))


def test_renormalised_or_not():
    edges = torch.zeros(1, H, T, T, dtype=torch.bool)
    edges[0, 2, 3, 1] = True
    context, seen, scores, value = attend(Change(edges={0: edges}))
    check(seen.weights[0], scores.masked_fill(edges, -torch.inf).softmax(-1))
    plain = scores.softmax(-1).masked_fill(edges, 0)
    context, seen, scores, value = attend(Change(edges={0: edges}, is_renormalised=False))
    check(seen.weights[0], plain)
    check(context, product(plain, value))
    assert float(seen.weights[0][0, 2, 3].sum()) < 1 - 1e-3


def test_edges_belong_to_their_layer():
    edges = torch.ones(1, 1, 1, T, dtype=torch.bool)
    context, _seen, scores, value = attend(Change(edges={1: edges}))
    assert torch.equal(context, own_of(scores, value)(None)[0])


def test_a_row_with_nothing_left_is_zero():
    edges = torch.zeros(1, 1, T, T, dtype=torch.bool)
    edges[..., 0, 0] = True  # the first token of a causal model sees nothing else
    context, seen, _scores, _value = attend(Change(edges={0: edges}), allowed=causal())
    assert float(context[:, :, 0].abs().max()) == 0
    assert float(seen.weights[0][:, :, 0].abs().max()) == 0
    check(seen.weights[0][:, :, 1:].sum(-1), torch.ones(B, H, T - 1, dtype=torch.float64))


def test_heads_are_scaled_and_replaced():
    factors = torch.ones(1, H, dtype=torch.float64)
    factors[0, 1] = 0
    context, _seen, scores, value = attend(Change(factors={0: factors}))
    want = own_of(scores, value)(None)[0]
    want[:, 1] = 0
    check(context, want)
    heads = torch.zeros(B, H, dtype=torch.bool)
    heads[1, 3] = True
    other = torch.full((1, H, 1, D), 7.0, dtype=torch.float64)
    context, seen, scores, value = attend(Change(replaced={0: (heads, other)}))
    want = own_of(scores, value)(None)[0]
    want[1, 3] = 7
    check(context, want)
    check(seen.contexts[0], want)


@pytest.mark.parametrize(
    ("watch", "kept"),
    [
        (Watch(), set()),
        (Watch(weights=True), {"weights"}),
        (Watch(values=True), {"values"}),
        (Watch(contexts=True, layers=frozenset({0})), {"contexts"}),
        (Watch(weights=True, contexts=True, layers=frozenset({1})), set()),
    ],
)
def test_nothing_else_is_kept(watch, kept):
    _context, seen, _scores, _value = attend(Change(), watch=watch)
    assert {name for name in ("weights", "values", "contexts") if getattr(seen, name)} == kept
    assert (seen.num_layers, seen.num_heads, seen.num_kv_heads) == (1, [H], [HKV])


def test_heads_are_kept_in_the_order_asked_for():
    watch = Watch(weights=True, values=True, heads=(3, 1))
    _context, seen, scores, value = attend(Change(), watch=watch)
    assert torch.equal(seen.weights[0], scores.softmax(-1)[:, [3, 1]])
    assert torch.equal(seen.values[0], value)


def test_gradients_reach_the_kept_weights():
    scores, value = tensors()
    scores.requires_grad_()
    tap = Tap(Watch(weights=True, keeps_graph=True))
    context = tap.attend(own_of(scores, value), value, None, q_len=T)
    (gradient,) = torch.autograd.grad(context.sum(), tap.seen.weights[0])
    want = value.sum(-1).repeat_interleave(H // HKV, 1)[:, :, None].expand(B, H, T, T)
    check(gradient, want)
    tap = Tap(Watch(weights=True))
    tap.attend(own_of(scores, value), value, None, q_len=T)
    assert not tap.seen.weights[0].requires_grad


@pytest.mark.parametrize("change", ["gradient", "scaled"])
def test_attention_that_is_no_product_is_refused_where_it_matters(change):
    scores, value = tensors()

    def own(open_cells):
        context, weights = own_of(scores, value)(open_cells)
        return context * 1.001, weights  # a gate after the product

    edges = {0: torch.zeros(1, 1, T, T, dtype=torch.bool)}
    tap = {
        "gradient": Tap(Watch(weights=True, keeps_graph=True)),
        "scaled": Tap(Watch(), Change(edges=edges, is_renormalised=False)),
    }[change]
    with pytest.raises(TargetError, match="layer 0 is not weights times values") as caught:
        tap.attend(own, value, None, q_len=T)
    assert "rounding explains" in caught.value.why
    plain = Tap(Watch(weights=True))  # nothing depends on it here
    assert torch.equal(plain.attend(own, value, None, q_len=T), own(None)[0])


def test_the_empty_change():
    assert Change().is_empty
    assert not Change(factors={0: torch.ones(1, 1)}).is_empty
    assert Change().cut(0, q_len=T, kv_len=T, device=torch.device("cpu")) is None
    assert not Change(edges={2: torch.ones(1)}).hides(1)
    assert Change(edges={2: torch.ones(1)}).hides(2)
