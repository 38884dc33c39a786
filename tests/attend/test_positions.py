"""Positions, rotations and biases equal the definition's; tables are kept and never mixed up."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attend.against import error_of, layer_for
from tests.attend.variants import LLAMA3
from tests.reference.draws import draw, self_inputs
from tests.sizes import AWKWARD

from headwise.attend import tables
from headwise.attend.biases import alibi, buckets, first_of_each, relative, slopes_of
from headwise.attend.parts import MaskParts
from headwise.attend.positions import (
    Places,
    Row,
    frequencies,
    places,
    rotary_rows,
    rotate,
    since_first,
    sinusoidal_rows,
)
from headwise.numerics import eps
from headwise.reference import Inputs, Parameters
from headwise.reference.positions import (
    alibi_slopes,
    relative_buckets,
    rotary_angles,
    scaled,
    sinusoidal_table,
)
from headwise.reference.positions import rotate as rotate_by_definition
from headwise.reference.setting import Setting
from headwise.spec import (
    Alibi,
    AttentionSpec,
    LinearScaling,
    Llama3Scaling,
    RelativeBias,
    Rope,
    Sinusoidal,
)

CPU = torch.device("cpu")
FAR = 5000
# An angle of up to FAR radians is right to a few eps·FAR, and so are its sine and cosine.
ANGLE = 8 * eps(torch.float64) * FAR

SCALINGS = {
    "none": None,
    "linear": LinearScaling(factor=3.0),
    "llama3": LLAMA3,
    "llama-3.1": Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=8192
    ),
}


# -- where tokens stand -------------------------------------------------------------------------


@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 7), (3, 7), (1, 7), (9, 7), (7, 1), (0, 7)])
@pytest.mark.parametrize("words", ["none", "keep", "documents", "both"])
def test_places_are_the_definitions(q_len, kv_len, words):
    generator = torch.Generator().manual_seed(q_len)
    keep = torch.rand(5, kv_len, generator=generator) > 0.4
    documents = torch.randint(-1, 2, (5, kv_len), generator=generator)
    told = {"keep": {"keep": keep}, "documents": {"documents": documents}, "none": {}}
    told["both"] = told["keep"] | told["documents"]
    spec = AttentionSpec(d_model=2, num_heads=1)
    q, k = torch.zeros(5, 1, q_len, 2), torch.zeros(5, 1, kv_len, 2)
    setting = Setting(spec, Parameters(), Inputs(q=q, k=k, v=k, **told[words]))
    parts = MaskParts(keep=told[words].get("keep"), k_documents=told[words].get("documents"))
    found = places(parts, q_len, kv_len)
    assert torch.equal(found.k.tensor(CPU).expand(5, -1), setting.k_positions)
    assert torch.equal(found.q.tensor(CPU).expand(5, -1), setting.q_positions)
    assert found.is_plain == (words == "none")
    for row in (found.q, found.k):
        assert row.length == 0 or int(row.tensor(CPU).max()) < found.limit


@pytest.mark.parametrize("shape", [(3, 50), (1, 1), (4, 0)])
def test_since_first_is_the_distance_to_the_first_of_the_same_number(shape):
    documents = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(1))
    rows = documents.tolist()
    assert since_first(documents).tolist() == [
        [at - row.index(number) for at, number in enumerate(row)] for row in rows
    ]


# -- rotation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize(("dim", "base"), [(8, 10000.0), (64, 500000.0), (2, 17.0)])
def test_tables_are_the_definitions(dim, base, scaling):
    rope = Rope(pairs="halves", base=base, scaling=scaling)
    angle = rotary_angles(torch.arange(FAR)[None], rotary_dim=dim, base=base, scaling=scaling)
    cos, sin = rotary_rows(rope, dim, Row(FAR), FAR, CPU, torch.float64)
    assert error_of(cos, angle.cos()) < ANGLE
    assert error_of(sin, angle.sin()) < ANGLE
    other = Rope(pairs="halves", base=base * 1.001, scaling=scaling)
    wrong = rotary_rows(other, dim, Row(FAR), FAR, CPU, torch.float64)[0]
    assert dim == 2 or error_of(wrong, angle.cos()) > ANGLE


@pytest.mark.parametrize("name", ["linear", "llama-3.1"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_scalings_are_those_of_transformers(name, head_dim):
    """Theirs are computed in float32: frequencies agree to a few of its eps."""
    transformers = pytest.importorskip("transformers")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    kind = "linear" if name == "linear" else "llama3"
    parameters = {"rope_type": kind, "rope_theta": 500000.0, "factor": 8.0}
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        parameters |= {"original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters=parameters,
    )
    theirs, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, CPU)
    rope = AttentionSpec.from_hf_config(config).rope
    ours = torch.tensor(frequencies(rope, head_dim), dtype=torch.float64)
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    defined = scaled(500000.0 ** (-2 * pair / head_dim), rope.scaling)
    assert factor == 1.0
    assert ((ours - theirs.double()).abs() / theirs < 8 * eps(torch.float32)).all()
    assert ((ours - defined).abs() / defined < 8 * eps(torch.float64)).all()
    plain = torch.tensor(frequencies(Rope(pairs="halves", base=500000.0), head_dim))
    assert not torch.allclose(plain.double(), theirs.double(), rtol=1e-3)


def test_the_scaling_of_llama_31_has_fast_slow_and_blended_pairs():
    """By hand: a pair is slow below 1 turn in 8192 positions, fast above 4."""
    rope = Rope(pairs="halves", base=500000.0, scaling=SCALINGS["llama-3.1"])
    plain = frequencies(Rope(pairs="halves", base=500000.0), 128)
    ratios = [b / a for a, b in zip(plain, frequencies(rope, 128), strict=True)]
    turns = [8192 * turn / (2 * math.pi) for turn in plain]
    for ratio, turn in zip(ratios, turns, strict=True):
        if turn >= 4:
            assert ratio == 1.0
        elif turn <= 1:
            assert ratio == 1 / 8
        else:
            assert 1 / 8 < ratio < 1
    assert {round(ratio, 3) for ratio in ratios} >= {1.0, 0.125}
    assert sum(1 / 8 < ratio < 1 for ratio in ratios) > 3


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("dim", [8, 6, 2])
@pytest.mark.parametrize("per_row", [False, True])
def test_rotation_is_the_definitions(pairs, dim, per_row):
    x = draw(3, 4, 5, 8, name="x")
    angle = draw(3 if per_row else 1, 5, dim // 2, name="angle")
    got = rotate(x, angle.cos(), angle.sin(), pairs=pairs)
    want = rotate_by_definition(x, angle.cos(), angle.sin(), pairs=pairs)
    assert error_of(got, want) <= 4 * eps(torch.float64) * float(x.abs().max())
    assert not torch.equal(got, rotate(x, angle.cos(), -angle.sin(), pairs=pairs))


def test_float64_is_never_lowered():
    """Also not after a table of the same rotation in float32, nor under another default dtype."""
    rope = Rope(pairs="halves", base=12345.0)
    low, _ = rotary_rows(rope, 8, Row(99), 99, CPU, torch.float32)
    cos, sin = rotary_rows(rope, 8, Row(99), 99, CPU, torch.float64)
    assert (low.dtype, cos.dtype) == (torch.float32, torch.float64)
    angle = rotary_angles(torch.arange(99)[None], rotary_dim=8, base=12345.0)
    assert error_of(cos, angle.cos()) < ANGLE
    assert error_of(low, angle.cos()) > ANGLE
    assert rotate(draw(1, 1, 99, 8, name="x"), cos, sin, pairs="halves").dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_rotated_in_float32(dtype):
    """One rounding: the result is the nearest number to the rotation in float32."""
    rope = Rope(pairs="neighbours")
    cos, sin = rotary_rows(rope, 8, Row(50), 50, CPU, dtype)
    assert cos.dtype == torch.float32
    x = draw(1, 2, 50, 8, name="x").to(dtype)
    assert torch.equal(
        rotate(x, cos, sin, pairs="neighbours"),
        rotate(x.float(), cos, sin, pairs="neighbours").to(dtype),
    )


# -- kept tables --------------------------------------------------------------------------------


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr(tables, "_tables", type(tables._tables)())


@pytest.mark.usefixtures("no_tables")
def test_a_table_is_made_once_and_again_where_longer():
    made = []

    def make(rows):
        made.append(rows)
        return (torch.arange(rows),)

    assert len(tables.table("a", 3, make)[0]) == 3
    tables.table("a", 2, make)
    assert made == [3]
    tables.table("a", 4, make)  # twice as long as before
    tables.table("a", 6, make)
    tables.table("a", 50, make)
    assert made == [3, 6, 50]
    tables.table("b", 1, make)
    assert made == [3, 6, 50, 1]


@pytest.mark.usefixtures("no_tables")
def test_the_table_used_longest_ago_goes_first():
    make = lambda rows: (torch.arange(rows),)  # noqa: E731
    for key in range(tables.KEPT):
        tables.table(key, 1, make)
    tables.table(0, 1, make)
    tables.table("new", 1, make)
    assert len(tables._tables) == tables.KEPT
    assert {0, "new"} <= set(tables._tables)
    assert 1 not in tables._tables


@pytest.mark.usefixtures("no_tables")
def test_every_input_is_part_of_the_key():
    """Asked in turn, tables that differ in one input are never mixed up."""
    ropes = [
        Rope(pairs="halves"),
        Rope(pairs="halves", base=9999.0),
        Rope(pairs="halves", scaling=LinearScaling(factor=2.0)),
        Rope(pairs="halves", scaling=LinearScaling(factor=3.0)),
        Rope(pairs="halves", scaling=LLAMA3),
    ]
    for _again in range(2):
        for rope in ropes:
            for dim in (8, 6):
                for dtype in (torch.float32, torch.float64):
                    cos, _ = rotary_rows(rope, dim, Row(30, 5), 35, CPU, dtype)
                    angle = rotary_angles(
                        torch.arange(5, 35)[None], rotary_dim=dim, base=rope.base,
                        scaling=rope.scaling,
                    )  # fmt: skip
                    assert cos.dtype == dtype
                    assert error_of(cos, angle.cos().to(dtype)) <= eps(dtype) * 35


@pytest.mark.usefixtures("no_tables")
def test_a_table_made_in_inference_mode_can_be_trained_with():
    spec = AWKWARD.spec(positions=Rope(pairs="halves"))
    layer, x = layer_for(spec), self_inputs(spec, batch=2, length=7).x
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.q_proj.weight.grad is not None


@pytest.mark.usefixtures("no_tables")
def test_tensors_of_a_tracer_are_not_kept():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        cos, _ = rotary_rows(Rope(pairs="halves"), 8, Row(3), 3, CPU, torch.float32)
    assert type(cos) is not torch.Tensor
    assert len(tables._tables) == 0


# -- absolute -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [11, 12, 1])
@pytest.mark.parametrize("given", [False, True])
def test_sines_are_the_definitions(width, given):
    positions = torch.tensor([[4, 5, 6, 7], [0, 0, 1, FAR - 1]]) if given else torch.arange(4, 8)
    row = Row(4, given=positions) if given else Row(4, 4)
    got = sinusoidal_rows(Sinusoidal(base=50.0), width, row, FAR, CPU, torch.float64)
    want = sinusoidal_table(positions.view(-1, 4), d_model=width, base=50.0)
    assert error_of(got, want) < ANGLE


# -- biases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 20, 33])
def test_slopes_are_the_definitions(heads):
    assert list(slopes_of(heads)) == alibi_slopes(heads)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 7), (3, 7), (1, 5), (7, 3)])
def test_a_bias_by_distance_is_the_table_of_the_positions(q_len, kv_len, symmetric):
    where = places(MaskParts(), q_len, kv_len)
    q, k = where.q.tensor(CPU), where.k.tensor(CPU)
    as_table = Places(Row(q_len, given=q), Row(kv_len, given=k), where.limit)
    how = Alibi(symmetric=symmetric)
    short = alibi(how, 6, where, CPU, torch.float64)
    assert torch.equal(short.dense(q_len, kv_len), alibi(how, 6, as_table, CPU, torch.float64)[0])
    learned = draw(8, 6, name="table")
    how = RelativeBias(num_buckets=8, max_distance=5, bidirectional=symmetric)
    short = relative(how, learned, where)
    assert torch.equal(short.dense(q_len, kv_len), relative(how, learned, as_table)[0])
    # Aligned at the start the table is another one, unless the lengths agree.
    moved = Places(Row(q_len), where.k, where.limit)
    other = relative(how, learned, moved).dense(q_len, kv_len)
    assert torch.equal(other, short.dense(q_len, kv_len)) == (q_len >= kv_len)


BUCKETS = [
    (n, m, b) for n in (4, 8, 32, 64) for m in (40, 64, 100, 128, 500) for b in (True, False)
]


@pytest.mark.parametrize(("count", "far", "both"), BUCKETS)
def test_buckets_are_the_definitions_at_every_distance(count, far, both):
    how = RelativeBias(num_buckets=count, max_distance=far, bidirectional=both)
    k = torch.arange(1200)[None]
    q = torch.tensor([[600]])
    got = buckets(how, (k[:, None, :] - q[:, :, None]))
    assert torch.equal(got, relative_buckets(how, q, k))
    own = count // 2 if both else count
    assert len(first_of_each(own, far)) == own - 1


def test_buckets_are_those_of_t5():
    """The values of transformers' T5 for 32 buckets up to 128, both ways."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-200, 201)
    for both in (True, False):
        theirs = modeling.T5Attention._relative_position_bucket(
            distance, bidirectional=both, num_buckets=32, max_distance=128
        )
        ours = buckets(RelativeBias(bidirectional=both), distance)
        assert torch.equal(ours, theirs)


def test_gradients_reach_the_learned_table_through_every_distance():
    learned = draw(8, 2, name="table").requires_grad_()
    where = places(MaskParts(), 4, 4)
    relative(RelativeBias(num_buckets=8, max_distance=5), learned, where).values.sum().backward()
    # Distances -3 … 3: buckets 2, 2, 1, 0, 5, 6, 6 (4 is "later, distance 0": nobody's).
    assert learned.grad[:, 0].tolist() == [1.0, 1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0]
