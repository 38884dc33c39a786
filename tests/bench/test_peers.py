"""Every peer computes what we compute: a wrong mapping would flatter us."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from headwise.bench import ours
from headwise.bench.cases import make_case
from headwise.bench.peers import PEERS
from headwise.bench.shapes import Shape, decode, self_attention
from headwise.bench.truth import distance, find_truth

SHAPES = {
    "causal": self_attention(1, 4, 24, 16, causal=True),
    "full": self_attention(2, 4, 24, 16),
    "grouped": self_attention(1, (4, 2), 24, 16, causal=True),
    "train": self_attention(2, 4, 24, 16, causal=True, training=True),
    "decode": decode(2, (4, 2), 40, 16),
    "decode-mqa": decode(1, (4, 1), 40, 16),
    "head-sizes": self_attention(2, 4, 24, (16, 32), causal=True),
    "head-sizes-full": self_attention(2, 4, 24, (32, 16)),
    "padded": self_attention(3, 4, 24, 16, lengths=(5, 17, 24)),
    "padded-causal": self_attention(3, 4, 24, 16, lengths=(5, 17, 24), causal=True),
    "window": self_attention(1, 4, 48, 16, causal=True, window=7),
    "documents": self_attention(1, 4, 24, 16, causal=True, documents=(5, 9, 10)),
    "weights": self_attention(2, 4, 24, 16, need_weights="per-head"),
    "weights-causal": self_attention(2, 4, 24, 16, need_weights="per-head", causal=True),
    "averaged": self_attention(2, 4, 24, 16, need_weights="averaged", causal=True),
    "module": self_attention(2, 4, 24, 16, module=True),
    "module-causal": self_attention(2, 4, 24, 16, module=True, causal=True),
    "module-train": self_attention(2, 4, 24, 16, module=True, causal=True, training=True),
}
ALLOWED = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


def error_of(prepare, shape: Shape, dtype: torch.dtype):
    case = make_case(shape, dtype, seed=1)
    with torch.inference_mode(not shape.training):
        truth = find_truth(case)
        ready = prepare(case)
        output = ready.read(ready.call())
        again = ready.read(ready.call())
    assert output.context.isfinite().all()
    assert torch.equal(output.context, again.context), "a second call gives the same"
    if shape.training:
        assert len(output.gradients) == len(truth.output.gradients)
    if shape.need_weights:
        assert output.weights is not None
    return distance(case, truth, output)


def pairs(*, compiled: bool):
    return [
        pytest.param(peer, shape, id=f"{peer.name}-{name}")
        for peer in PEERS.values()
        for name, shape in SHAPES.items()
        if (peer.name == "flex-attention") == compiled and not peer.refuses(shape, torch.float32)
    ]


@pytest.mark.parametrize(("peer", "shape"), pairs(compiled=False))
def test_a_peer_computes_the_definition(peer, shape):
    if peer.missing():
        pytest.skip(f"{peer.name}: {peer.missing()} is missing")
    error = error_of(peer.prepare, shape, torch.float32)
    assert error.rms < ALLOWED[torch.float32]
    assert error.max < 2e-5
    assert all(value < 1e-5 for value in error.gradients)


@pytest.mark.parametrize(("peer", "shape"), pairs(compiled=False))
def test_a_peer_computes_the_definition_in_bfloat16(peer, shape):
    if peer.missing() or peer.refuses(shape, torch.bfloat16):
        pytest.skip(f"{peer.name} can't be used here")
    error = error_of(peer.prepare, shape, torch.bfloat16)
    assert error.rms < ALLOWED[torch.bfloat16]
    assert all(value < 3e-2 for value in error.gradients)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("peer", "shape"), pairs(compiled=True))
def test_compiled_flex_attention_computes_the_definition(peer, shape):
    if peer.missing():
        pytest.skip(f"{peer.name}: {peer.missing()} is missing")
    assert error_of(peer.prepare, shape, torch.float32).rms < ALLOWED[torch.float32]


@pytest.mark.parametrize("dtype", list(ALLOWED), ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_ours_computes_the_definition(shape, dtype):
    if shape.module and not ours.has_module():
        pytest.skip("there is no layer yet")
    assert error_of(ours.prepare, shape, dtype).rms < ALLOWED[dtype]


def test_a_wrong_mapping_is_noticed():
    """The twin of the tests above: a peer that forgets the causal mask is far off."""
    shape = SHAPES["causal"]

    def forgetful(case):
        return PEERS["sdpa"].prepare(
            dataclasses.replace(case, shape=dataclasses.replace(shape, causal=False))
        )

    assert error_of(forgetful, shape, torch.float32).rms > 0.1


def test_every_shape_has_a_torch_call_that_counts():
    for shape in SHAPES.values():
        kinds = [p.kind for p in PEERS.values() if not p.refuses(shape, torch.float32)]
        assert "torch" in kinds


def test_ways_around_are_shown_only():
    shown = {peer.name for peer in PEERS.values() if peer.kind == "shown"}
    assert shown == {"sdpa-folded", "sdpa-zero-padded", "sdpa-loop"}
