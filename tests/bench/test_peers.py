"""Every peer computes what we compute: a wrong mapping would flatter us."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.bench.shapes_of import SHAPES

from headwise.bench import ours
from headwise.bench.cases import make_case
from headwise.bench.peers import PEERS, flex
from headwise.bench.shapes import Shape, decode, self_attention
from headwise.bench.truth import distance, find_truth

FLEX_SHAPES = {
    "grouped": self_attention(1, (4, 2), 64, 32, causal=True),
    "decode": decode(2, (4, 2), 128, 32),
    "head-sizes": self_attention(2, 4, 64, (32, 64)),
    "padded": self_attention(2, 4, 64, 32, lengths=(17, 64), causal=True),
    "window": self_attention(1, 4, 128, 32, causal=True, window=7),
    "documents": self_attention(1, 4, 64, 32, causal=True, documents=(30, 34)),
}
"""At some odd sizes its CPU kernel is wrong (torch 2.13: T24 D16), which a run would notice."""
HALF = ("-grouped", "-decode", "-train", "-padded", "-averaged")
"""Kinds that are tried in bfloat16 too: there peers convert, if anything."""
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


PAIRS = [
    pytest.param(peer, shape, id=f"{peer.name}-{name}")
    for peer in PEERS.values()
    for name, shape in SHAPES.items()
    if peer.name != "flex-attention" and not peer.refuses(shape, torch.float32)
]


@pytest.mark.parametrize(("peer", "shape"), PAIRS)
def test_a_peer_computes_the_definition(peer, shape):
    if peer.missing():
        pytest.skip(f"{peer.name}: {peer.missing()} is missing")
    error = error_of(peer.prepare, shape, torch.float32)
    assert error.rms < ALLOWED[torch.float32]
    assert error.max < 2e-5
    assert all(value < 1e-5 for value in error.gradients)


@pytest.mark.parametrize(
    ("peer", "shape"), [pair for pair in PAIRS if any(pair.id.endswith(name) for name in HALF)]
)
def test_a_peer_computes_the_definition_in_bfloat16(peer, shape):
    if peer.missing() or peer.refuses(shape, torch.bfloat16):
        pytest.skip(f"{peer.name} can't be used here")
    error = error_of(peer.prepare, shape, torch.bfloat16)
    assert error.rms < ALLOWED[torch.bfloat16]
    assert all(value < 3e-2 for value in error.gradients)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # its compiler warns of itself
@pytest.mark.parametrize("shape", FLEX_SHAPES.values(), ids=list(FLEX_SHAPES))
def test_compiled_flex_attention_computes_the_definition(shape):
    peer = PEERS["flex-attention"]
    assert peer.refuses(shape, torch.float32) == ""
    if peer.missing():
        pytest.skip(f"{peer.missing()} is missing")
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


def test_flex_masks_are_those_of_the_case():
    """The compiled peer is tested slowly; what it is told is compared here."""
    for name, shape in SHAPES.items():
        if shape.module:
            continue
        rule, visible = flex.mask_function(shape), make_case(shape, torch.float32, 0).visible
        if rule is None:
            assert visible is None, name
            continue
        if shape.is_decode:
            continue
        sizes = (shape.batch, 1, shape.q_len, shape.kv_len)
        axes = [
            torch.arange(n).view([-1 if i == a else 1 for i in range(4)])
            for a, n in enumerate(sizes)
        ]
        wanted = visible.expand(sizes)
        if shape.lengths:  # it is told besides which queries nobody reads, as we are
            real = make_case(shape, torch.float32, 0).real_queries
            wanted = wanted & real[:, None, :, None]
        assert torch.equal(rule(*axes).expand(sizes), wanted), name


def test_what_a_peer_needs_and_how_to_get_it(monkeypatch):
    absent = dataclasses.replace(PEERS["openvino"], modules=("no_such_module", "torch"))
    assert absent.missing() == "no_such_module"
    assert absent.install == 'pip install "headwise[bench]"'
    monkeypatch.setattr(flex.shutil, "which", lambda name: None)
    assert PEERS["flex-attention"].missing() == "a C++ compiler"
    assert PEERS["sdpa"].missing() == ""
