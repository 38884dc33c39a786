"""A layer with a cache = the layer without: positions of all kinds, full or ring, padded or not."""

from __future__ import annotations

import pytest
import torch
from tests.attend.against import layer_for
from tests.attend.beside import spec_of
from tests.reference.draws import allowance, draw, parameters_for
from torch import Tensor

from headwise import KVCache, MultiHeadAttention
from headwise.errors import UsageError
from headwise.masks import Causal, Custom, Documents, Padding, Window
from headwise.numerics import compare
from headwise.reference import Inputs, attend
from headwise.spec import (
    Alibi,
    AttentionSpec,
    Learned,
    QkNorm,
    RelativeBias,
    Rope,
    Sinusoidal,
)

BUCKETS = RelativeBias(num_buckets=8, max_distance=6, bidirectional=False)
RING = {"window": (3, 0)}
SPECS: dict[str, AttentionSpec] = {
    "plain": spec_of(),
    "rope": spec_of(positions=Rope(pairs="halves")),
    "partial rope": spec_of(positions=Rope(pairs="neighbours", rotary_dim=2, base=100.0)),
    "alibi": spec_of(positions=Alibi()),
    "symmetric alibi": spec_of(positions=Alibi(symmetric=True)),
    "relative bias": spec_of(positions=BUCKETS),
    "two-sided relative bias": spec_of(positions=RelativeBias(num_buckets=8, max_distance=6)),
    "learned": spec_of(positions=Learned(max_len=32)),
    "sinusoidal": spec_of(positions=Sinusoidal()),
    "softcap": spec_of(softcap=1.5),
    "sinks": spec_of(sinks=True),
    "norm before": spec_of(positions=Rope(pairs="halves"), qk_norm=QkNorm()),
    "norm after": spec_of(
        positions=Rope(pairs="halves"), qk_norm=QkNorm(order="after-rope", kind="layer")
    ),
    "MHA": spec_of(4, 4, biases="qkvo", positions=Rope(pairs="halves")),
    "MQA": spec_of(4, 1, scale=0.3),
    "window": spec_of(**RING),
    "window of one": spec_of(window=(0, None), positions=Rope(pairs="halves")),
    "window rope": spec_of(**RING, positions=Rope(pairs="halves")),
    "window alibi": spec_of(**RING, positions=Alibi()),
    "window relative bias": spec_of(**RING, positions=BUCKETS),
    "window learned": spec_of(**RING, positions=Learned(max_len=32)),
    "window sinusoidal": spec_of(**RING, positions=Sinusoidal(), sinks=True, softcap=2.0),
}
T, F = True, False
PROMPTS = {
    "left": [[T, T, T, T, T], [F, F, T, T, T]],
    "right": [[T, T, T, F, F], [T, T, T, T, T]],
    "mixed": [[F, T, T, F, F], [T, T, T, T, F]],
    "holes": [[T, F, T, F, T], [F, T, F, F, T]],
}
LENGTH = 14


def x_of(spec: AttentionSpec) -> Tensor:
    return draw(2, LENGTH, spec.d_model, name="x")


def in_chunks(layer, x: Tensor, sizes: list[int], keep: Tensor | None = None, **options) -> Tensor:
    """The layer's outputs, chunk by chunk, with a small ring where there is a window."""
    cache = KVCache.for_spec(layer.spec, batch=2, max_len=32, room=2, dtype=torch.float64)
    found, start = [], 0
    for size in sizes:
        stop = start + size
        mask = None if keep is None else Padding(keep[:, :stop])
        with torch.no_grad():
            found.append(layer(x[:, start:stop], mask=mask, cache=cache, **options))
        start = stop
    return torch.cat(found, dim=1)


def wrong_rows(spec: AttentionSpec, x: Tensor, found: Tensor, keep: Tensor) -> list[str]:
    """Rows that differ from the definition of their real tokens alone."""
    wrong = []
    for b in range(len(x)):
        truth = attend(spec, parameters_for(spec), Inputs(x=x[b : b + 1, keep[b]]))
        allowed = allowance(spec, truth, [truth.output])
        outcome = compare(found[b : b + 1, keep[b]], truth.output, allowed=allowed)
        wrong += [] if outcome.passed else [f"row {b}: {outcome.sentence()}"]
    return wrong


ALL_REAL = torch.ones(2, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("name", SPECS)
def test_chunks_and_steps_are_one_shot(name):
    spec = SPECS[name]
    layer, x = layer_for(spec), x_of(spec)
    for sizes in ([14], [1] * 14, [5, 1, 1, 7], [2, 12]):
        assert wrong_rows(spec, x, in_chunks(layer, x, sizes), ALL_REAL) == []


@pytest.mark.parametrize("padding", PROMPTS)
@pytest.mark.parametrize("name", SPECS)
def test_padded_prompts_and_what_follows(name, padding):
    spec = SPECS[name]
    layer, x = layer_for(spec), x_of(spec)
    keep = ALL_REAL.clone()
    keep[:, :5] = torch.tensor(PROMPTS[padding])
    for sizes in ([5, 1, 1, 1, 4, 2], [14], [2, 3, 9]):
        assert wrong_rows(spec, x, in_chunks(layer, x, sizes, keep), keep) == []


@pytest.mark.parametrize("name", ["rope", "window alibi", "window relative bias"])
def test_padding_in_the_middle_of_a_text(name):
    """Rows get tokens in turn: only real ones count, for positions, biases and windows."""
    spec = SPECS[name]
    layer, x = layer_for(spec), x_of(spec)
    keep = torch.arange(LENGTH)[None] % 3 != torch.tensor([[0], [2]])
    for sizes in ([1] * 14, [3, 3, 8]):
        assert wrong_rows(spec, x, in_chunks(layer, x, sizes, keep), keep) == []


def test_a_bias_by_slots_would_be_noticed():
    """The same outputs against the definition of another row of real tokens."""
    spec = SPECS["alibi"]
    layer, x = layer_for(spec), x_of(spec)
    keep = ALL_REAL.clone()
    keep[1, :2] = False
    found = in_chunks(layer, x, [5, 9], keep)
    shifted = keep.clone()
    shifted[1, 1] = True
    assert wrong_rows(spec, x, found, shifted) != []


@pytest.mark.parametrize("name", ["rope", "window", "alibi"])
def test_equal_rows_are_exactly_the_uncached_layer_on_the_prompt(name):
    """The first tokens are attended as they are: the same operations."""
    layer, x = layer_for(SPECS[name]), x_of(SPECS[name])
    with torch.no_grad():
        assert torch.equal(in_chunks(layer, x, [14]), layer(x))
        keep = ALL_REAL.clone()
        keep[1, :2] = False
        assert torch.equal(in_chunks(layer, x, [14], keep), layer(x, mask=Padding(keep)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rope", "window alibi", "learned"])
def test_low_precision(name, dtype):
    """As near to the definition as the layer without a cache, twice its error at most."""
    spec = SPECS[name]
    x = x_of(spec)
    truth = attend(spec, parameters_for(spec), Inputs(x=x)).output
    layer, x = layer_for(spec).to(dtype), x.to(dtype)
    cache = KVCache.for_spec(spec, batch=2, max_len=32, room=2, dtype=dtype)
    with torch.no_grad():
        plain = (layer(x).double() - truth).abs().max().item()
        steps = [layer(x[:, t : t + 1], cache=cache) for t in range(LENGTH)]
    error = (torch.cat(steps, 1).double() - truth).abs().max().item()
    floor = 4 * torch.finfo(dtype).eps * truth.abs().max().item()
    assert error <= 2 * plain + floor


NUMBERS = torch.tensor([[0] * 6 + [1] * 8, [0] * 2 + [1] * 12])
TABLE = (torch.arange(LENGTH) % 4 != 1)[None, None, None]
MASKS = {
    "documents": lambda start, stop: Documents(NUMBERS[:, start:stop], NUMBERS[:, :stop]),
    "table": lambda _start, stop: Custom(TABLE[..., :stop]),
    "window": lambda _start, _stop: Causal() & Window(2, 0),
}


@pytest.mark.parametrize("kind", MASKS)
def test_other_masks_beside_a_cache(kind):
    """They cover all tokens so far."""
    layer, x = layer_for(SPECS["rope"]), x_of(SPECS["rope"])
    cache = KVCache.for_spec(layer.spec, batch=2, max_len=32, dtype=torch.float64)
    with torch.no_grad():
        truth = layer(x, mask=MASKS[kind](0, LENGTH))
        assert not compare(truth, layer(x), allowed=1e-3).passed
        found = [
            layer(x[:, start:stop], mask=MASKS[kind](start, stop), cache=cache)
            for start, stop in ((0, 5), (5, 6), (6, 14))
        ]
    assert compare(torch.cat(found, 1), truth, allowed=1e-12).passed  # sums of 14 terms


def test_weights_of_steps_are_rows_of_one_shot():
    spec = SPECS["rope"]
    layer, x = layer_for(spec), x_of(spec)
    cache = KVCache.for_spec(spec, batch=2, max_len=32, dtype=torch.float64)
    with torch.no_grad():
        _output, whole = layer(x, need_weights="per-head")
        layer(x[:, :13], cache=cache)
        _output, last = layer(x[:, 13:], cache=cache, need_weights="per-head")
    assert compare(last, whole[:, :, 13:], allowed=1e-13).passed  # sums of 14 terms below 1


def test_speculative_decoding_and_beams():
    spec = SPECS["window alibi"]
    layer, x = layer_for(spec), x_of(spec)
    cache = KVCache.for_spec(spec, batch=2, room=8, dtype=torch.float64)
    with torch.no_grad():
        layer(x[:, :6], cache=cache)
        layer(-x[:, 6:10], cache=cache)  # drafts
        cache.truncate(6)
        steps = [layer(x[:, t : t + 1], cache=cache) for t in range(6, 10)]
        truth = layer(x)
        assert compare(torch.cat(steps, 1), truth[:, 6:10], allowed=1e-12).passed  # 14 terms
        cache.reorder([1, 1])
        both = layer(x[[1, 1], 10:], cache=cache)
    assert compare(both, truth[[1, 1], 10:], allowed=1e-12).passed  # sums of 14 terms


def test_sinusoidal_positions_go_beyond_any_table():
    spec = spec_of(positions=Sinusoidal(), window=(3, 0))
    layer = layer_for(spec)
    x = draw(2, 300, spec.d_model, name="long")
    cache = KVCache.for_spec(spec, batch=2, room=4, dtype=torch.float64)
    with torch.no_grad():
        found = torch.cat([layer(part, cache=cache) for part in x.split(7, 1)], 1)
        assert compare(found, layer(x), allowed=1e-11).passed  # sums of 300 terms
    assert cache.capacity == 8


def test_a_layer_in_training_does_not_lose_gradients_silently():
    layer = MultiHeadAttention(SPECS["rope"])
    cache = KVCache.for_spec(layer.spec, batch=1, max_len=4)
    with pytest.raises(UsageError, match="needs a gradient, and a cache keeps none"):
        layer(torch.ones(1, 2, 8), cache=cache)
    assert len(cache) == 0
