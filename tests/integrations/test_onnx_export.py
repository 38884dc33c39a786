"""Our layer as an ONNX file: run by onnxruntime and by onnx's own evaluator, with the same numbers.

Truth is the layer in float64. What runs in float32 may be off by twice what the layer itself is off
in float32, and a few units in the last place.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attend.against import layer_for
from tests.attend.variants import DOCUMENTS, KEEP, VARIANTS
from tests.reference.draws import draw
from tests.sizes import AWKWARD
from torch import nn

from headwise import AttentionSpec, Learned, MultiHeadAttention
from headwise.errors import UsageError
from headwise.integrations.onnx_export import OPSETS, export_layer
from headwise.masks import Custom, Documents, Padding
from headwise.numerics import (
    compare,
    eps,
    float64_allowance,
    largest,
    low_precision_allowance,
)
from headwise.spec import Alibi, LinearScaling, QkNorm, RelativeBias, Rope, Sinusoidal

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import helper  # noqa: E402 - after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402

B, T = AWKWARD.B, AWKWARD.Tk
TABLE = torch.rand(B, AWKWARD.Hq, T, T, generator=torch.Generator().manual_seed(0)) > 0.3
KINDS = {
    "plain": {},
    "padding": {"padding": True},
    "table": {"table": True},
    "both": {"padding": True, "table": True},
}


def feeds_of(**tensors):
    return {name: t.detach().numpy() for name, t in tensors.items() if t is not None}


def by_reference(model, feeds):
    (found,) = ReferenceEvaluator(model).run(None, feeds)
    return torch.from_numpy(np.asarray(found))


def by_runtime(model, feeds):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    return torch.from_numpy(found)


def masks(kind, keep="left"):
    """The mask for the layer, and the further inputs of the model."""
    asked, rule, feeds = KINDS[kind], None, {}
    if asked.get("padding"):
        feeds["keep"] = torch.tensor(KEEP[keep]).bool()
        rule = Padding(feeds["keep"])
    if asked.get("table"):
        feeds["mask"] = TABLE
        rule = Custom(TABLE) if rule is None else rule & Custom(TABLE)
    return rule, feeds


def check_float32(layer, feeds, arguments, options, run, *, mask=None):
    """The model of a layer against the layer in float64."""
    with torch.no_grad():
        truth = layer(*arguments, mask=mask)
        low = MultiHeadAttention(layer.spec).eval()
        low.load_state_dict(layer.state_dict())
        plain = low(*[_as_float32(a) for a in arguments], mask=mask)
    baseline = float((plain.double() - truth).abs().max())
    allowed = low_precision_allowance(baseline, torch.float32, largest([truth]))
    lowered = {k: v.float() if v.is_floating_point() else v for k, v in feeds.items()}
    found = compare(run(export_layer(low, **options), feeds_of(**lowered)), truth, allowed=allowed)
    assert found.passed, found.sentence()


def float64_rounding(layer, arguments, mask, want):
    """What rounding does to two computations of one layer."""
    spec = layer.spec
    with torch.no_grad():
        scores = layer.stages(*arguments, mask=mask)["scores"]
    terms = spec.d_model + spec.head_dim + T + spec.num_heads * spec.v_head_dim
    sharpness = 1.0 + largest([scores])
    return float64_allowance(terms=terms, scale=largest([want]), sharpness=sharpness)


def _as_float32(argument):
    if isinstance(argument, tuple):
        return tuple(map(_as_float32, argument))
    return argument.float()


# -- every variant of a layer -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "both"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_float64_by_onnxs_own_evaluator(variant, kind):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    mask, feeds = masks(kind)
    with torch.no_grad():
        want = layer(x, mask=mask)
    model = export_layer(layer, **KINDS[kind])
    got = by_reference(model, feeds_of(x=x, **feeds))
    # An attribute is a float32: a cap that is none is rounded, as nothing else is.
    cap = spec.softcap is not None and float(np.float32(spec.softcap)) != spec.softcap
    allowed = (
        eps(torch.float32) * largest([want]) if cap else float64_rounding(layer, (x,), mask, want)
    )
    assert compare(got, want, allowed=allowed).passed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_float32_by_onnxruntime(variant, kind):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    mask, feeds = masks(kind)
    check_float32(layer, {"x": x, **feeds}, (x,), KINDS[kind], by_runtime, mask=mask)


def test_a_wrong_parameter_would_be_noticed():
    spec = AWKWARD.spec(is_causal=True)
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")

    def run(model, feeds):
        (weight,) = [t for t in model.graph.initializer if t.name == "v_flat.weight"]
        changed = onnx.numpy_helper.to_array(weight).copy()
        changed[0, 0] *= 1.0001
        weight.CopyFrom(onnx.numpy_helper.from_array(changed, weight.name))
        return by_runtime(model, feeds)

    with pytest.raises(AssertionError, match="values differ"):
        check_float32(layer, {"x": x}, (x,), {}, run)


# -- lengths, batches, another sequence ---------------------------------------------------------


@pytest.mark.parametrize("variant", ["plain", "causal-window", "halves", "alibi", "everything"])
def test_one_file_for_all_batches_and_lengths(variant):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer = layer_for(spec)
    model = export_layer(layer, padding=True)
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim][:2] == [
        "batch",
        "q_len",
    ]
    for batch, length in ((1, 1), (3, 2), (1, 40)):
        x = draw(batch, length, spec.d_model, name="x")
        keep = torch.ones(batch, length, dtype=torch.bool)
        check_float32(
            layer, {"x": x, "keep": keep}, (x,), {"padding": True}, by_runtime, mask=Padding(keep)
        )


CROSS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"window": (2, 1)},
    "causal-window": {"window": (1, 3), "is_causal": True},
    "rope": {"positions": Rope(pairs="halves"), "is_causal": True},
    "alibi": {"positions": Alibi()},
    "relative": {"positions": RelativeBias(num_buckets=8, max_distance=5)},
    "learned": {"positions": Learned(max_len=9)},
    "sinks": {"sinks": True, "is_causal": True, "softcap": 0.75},
}


@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 7)])
@pytest.mark.parametrize("variant", CROSS)
def test_another_sequence(variant, lengths):
    """The last query meets the last key, whichever is longer."""
    spec = AWKWARD.cross_spec(**CROSS[variant])
    layer = layer_for(spec)
    x, keys, values = (
        draw(B, length, width, name=name)
        for name, length, width in (
            ("x", lengths[0], spec.d_model),
            ("keys", lengths[1], spec.d_context),
            ("values", lengths[1], spec.d_values),
        )
    )
    feeds = {"x": x, "keys_from": keys, "values_from": values}
    arguments = (x, (keys, values))
    check_float32(layer, feeds, arguments, {"context": True}, by_runtime)
    with torch.no_grad():
        want = layer(*arguments)
    got = by_reference(export_layer(layer, context=True), feeds_of(**feeds))
    assert compare(got, want, allowed=float64_rounding(layer, arguments, None, want)).passed


def test_a_padded_context_of_one_width():
    spec = AWKWARD.cross_spec(d_values=13)
    layer = layer_for(spec)
    x, keys = draw(B, 4, spec.d_model, name="x"), draw(B, T, 13, name="keys")
    keep = torch.tensor(KEEP["holes"]).bool()
    check_float32(
        layer,
        {"x": x, "keys_from": keys, "keep": keep},
        (x, keys),
        {"context": True, "padding": True},
        by_runtime,
        mask=Padding(keep),
    )


def test_documents_come_as_a_table():
    spec = AWKWARD.spec(is_causal=True)
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    rule = Documents(torch.tensor(DOCUMENTS))
    seen = rule.dense(q_len=T, kv_len=T, batch=B, num_heads=1)
    check_float32(layer, {"x": x, "mask": seen}, (x,), {"table": True}, by_runtime, mask=rule)


# -- conventions that differ from library to library --------------------------------------------


def test_the_operators_own_causal_rule_starts_at_the_first_key():
    """So that a file may leave it to the operator only where there are as many queries as keys."""
    spec = AttentionSpec(d_model=4, num_heads=1, is_causal=True)
    layer = MultiHeadAttention(spec).eval()
    x, keys = draw(1, 2, 4, name="x").float(), draw(1, 5, 4, name="keys").float()
    model = export_layer(layer, context=True)
    feeds = feeds_of(x=x, keys_from=keys)
    with torch.no_grad():
        ours = layer(x, keys)
        other = layer(x, keys, mask=Custom(torch.ones(2, 5).tril().bool()))
    (node,) = [node for node in model.graph.node if node.op_type == "Attention"]
    assert "is_causal" not in {a.name for a in node.attribute}
    del node.input[3]
    node.attribute.append(helper.make_attribute("is_causal", 1))
    allowed = 64 * eps(torch.float32)
    for run in (by_runtime, by_reference):
        start = run(model, feeds)
        assert compare(start, other, allowed=allowed).passed
        assert not compare(start, ours, allowed=allowed).passed


@pytest.mark.parametrize("run", [by_runtime, by_reference])
@pytest.mark.parametrize("variant", ["plain", "causal", "alibi", "sinks", "softcap"])
def test_queries_that_see_nothing_get_zeros(variant, run):
    spec = AWKWARD.spec(**VARIANTS[variant], biases="o")
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    mask, feeds = masks("padding", "empty")  # a sample without any real token
    check_float32(layer, {"x": x, **feeds}, (x,), {"padding": True}, run, mask=mask)
    low = layer.float()
    got = run(export_layer(low, padding=True), feeds_of(x=x.float(), **feeds))
    assert got[0].equal(low.out_proj.bias.detach().expand_as(got[0]))


@pytest.mark.parametrize("run", [by_runtime, by_reference])
def test_the_cap_comes_before_the_mask(run):
    """After it, a hidden score would be -cap and its key still be seen."""
    spec = AWKWARD.spec(softcap=0.5, d_model=11)
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    mask, feeds = masks("padding")
    check_float32(layer, {"x": x, **feeds}, (x,), {"padding": True}, run, mask=mask)
    found = layer.stages(x)
    hidden = found["scores"].masked_fill(~feeds["keep"][:, None, None], -0.5)
    shares = hidden.softmax(-1)[~feeds["keep"][:, None, None].expand_as(hidden)]
    assert shares.min() > 0.01  # what the wrong order would give to keys that nobody may see


@pytest.mark.parametrize("run", [by_runtime, by_reference])
def test_padding_that_holds_no_numbers_reaches_no_real_token(run):
    spec = AWKWARD.spec(is_causal=True)
    layer, x = layer_for(spec).float(), draw(B, T, spec.d_model, name="x").float()
    keep = torch.tensor(KEEP["left"]).bool()
    clean = x.masked_fill(~keep[..., None], 0.0)
    model = export_layer(layer, padding=True)
    want = run(model, feeds_of(x=clean, keep=keep))[keep]
    got = run(model, feeds_of(x=x.masked_fill(~keep[..., None], float("nan")), keep=keep))[keep]
    assert got.equal(want)


@pytest.mark.skipif(onnxruntime.__version__ != "1.32.0", reason="a statement about one version")
def test_onnxruntime_refuses_a_mask_without_the_query_axis():
    """The operator's text says *broadcastable*; files therefore write the axis out."""
    layer = MultiHeadAttention(AttentionSpec(d_model=8, num_heads=2)).eval()
    model = export_layer(layer, padding=True)
    (expand,) = [node for node in model.graph.node if node.op_type == "Expand"]
    (node,) = [node for node in model.graph.node if node.op_type == "Attention"]
    node.input[3] = expand.input[0]  # (B, 1, 1, Tk)
    x, keep = torch.ones(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    keep[1, :2] = False
    feeds = feeds_of(x=x, keep=keep)
    with torch.no_grad():
        want = layer(x, mask=Padding(keep))
    assert compare(by_reference(model, feeds), want, allowed=64 * eps(torch.float32)).passed
    with pytest.raises(Exception, match="running Attention node"):
        by_runtime(model, feeds)


# -- any spec, any lengths ----------------------------------------------------------------------

POSITIONS = st.sampled_from(
    [
        None,
        Rope(pairs="halves"),
        Rope(pairs="neighbours", rotary_dim=2, scaling=LinearScaling(factor=2.0)),
        Alibi(),
        Alibi(symmetric=True),
        Sinusoidal(),
        Learned(max_len=12),
        RelativeBias(num_buckets=8, max_distance=5),
        RelativeBias(num_buckets=4, max_distance=4, bidirectional=False),
    ]
)
SIDE = st.none() | st.integers(0, 4)


@st.composite
def specs(draw_):
    num_kv_heads = draw_(st.integers(1, 3))
    return AttentionSpec(
        d_model=5,
        num_heads=num_kv_heads * draw_(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=4,
        v_head_dim=draw_(st.sampled_from([3, 4, 6])),
        is_causal=draw_(st.booleans()),
        window=draw_(st.none() | st.tuples(SIDE, SIDE)),
        positions=draw_(POSITIONS),
        scale=draw_(st.sampled_from([None, 1.0, 0.3, -0.5])),
        softcap=draw_(st.sampled_from([None, 0.75, 4.0])),
        sinks=draw_(st.booleans()),
        qk_norm=draw_(
            st.sampled_from([None, QkNorm(), QkNorm(order="after-rope", kind="layer", eps=0.01)])
        ),
        biases=draw_(st.sampled_from(["", "qkvo", "vo"])),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), spec=specs(), q_len=st.integers(1, 9))
def test_any_spec_at_any_length(data, spec, q_len):
    layer = layer_for(spec)
    context = data.draw(st.booleans(), label="context")
    kv_len = data.draw(st.integers(1, 9), label="kv_len") if context else q_len
    padding = data.draw(st.booleans(), label="padding") and not (context and spec.positions)
    table = data.draw(st.booleans(), label="table")
    feeds = {"x": draw(2, q_len, 5, name="x")}
    arguments = (feeds["x"],)
    if context:
        feeds["keys_from"] = draw(2, kv_len, 5, name="keys")
        arguments = (feeds["x"], feeds["keys_from"])
    mask = None
    if padding:
        feeds["keep"] = draw(2, kv_len, name="keep") > -0.5
        mask = Padding(feeds["keep"])
    if table:
        feeds["mask"] = draw(1, spec.num_heads, q_len, kv_len, name="table") > -0.5
        mask = Custom(feeds["mask"]) if mask is None else mask & Custom(feeds["mask"])
    options = {"context": context, "padding": padding, "table": table}
    with torch.no_grad():
        want = layer(*arguments, mask=mask)
    got = by_reference(export_layer(layer, **options), feeds_of(**feeds))
    found = compare(got, want, allowed=float64_rounding(layer, arguments, mask, want))
    assert found.passed, found.sentence()
    check_float32(layer, feeds, arguments, options, by_runtime, mask=mask)


# -- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(opset, tmp_path):
    spec = AWKWARD.spec(**VARIANTS["causal-window"])
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    path = tmp_path / "layer.onnx"

    def run(model, feeds):
        assert onnx.load(path) == model
        assert model.opset_import[0].version == opset
        return by_runtime(str(path), feeds)

    check_float32(layer, {"x": x}, (x,), {"opset": opset, "path": path}, run)
    assert [file.name for file in tmp_path.iterdir()] == ["layer.onnx"]


def test_what_the_operator_can_say_is_said_by_it():
    spec = AWKWARD.spec(is_causal=True, scale=0.25, softcap=3.0)
    model = export_layer(MultiHeadAttention(spec))
    nodes = model.graph.node
    assert [node.op_type for node in nodes] == ["MatMul"] * 3 + ["Attention", "MatMul"]
    said = {a.name: helper.get_attribute_value(a) for a in nodes[3].attribute}
    assert said == {
        "q_num_heads": 6, "kv_num_heads": 3, "scale": 0.25, "softcap": 3.0, "is_causal": 1,
    }  # fmt: skip
    (about,) = [entry.value for entry in model.metadata_props if entry.key == "headwise.spec"]
    assert AttentionSpec.from_json(json.loads(about)) == spec


def test_dropout_is_left_out():
    spec = AWKWARD.spec(dropout=0.5)
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    assert layer.train().training
    model = export_layer(layer)
    layer.eval()
    with torch.no_grad():
        want = layer(x)
    got = by_reference(model, feeds_of(x=x))
    assert compare(got, want, allowed=float64_rounding(layer, (x,), None, want)).passed


def test_what_is_not_written_is_refused():
    spec = AttentionSpec(d_model=8, num_heads=2)
    with pytest.raises(UsageError, match="Linear is not a MultiHeadAttention"):
        export_layer(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"a layer in torch\.bfloat16 is not written"):
        export_layer(MultiHeadAttention(spec, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match="opset 22 has no such operator"):
        export_layer(MultiHeadAttention(spec), opset=22)
    with pytest.raises(UsageError, match="opset 26 is not known here"):
        export_layer(MultiHeadAttention(spec), opset=26)
    with pytest.raises(UsageError, match="looks at another sequence"):
        export_layer(MultiHeadAttention(spec.replace(d_context=5)))
    with pytest.raises(UsageError, match="positions of a padded context"):
        export_layer(
            MultiHeadAttention(spec.replace(positions=Alibi())), context=True, padding=True
        )


@pytest.mark.slow
def test_a_program_of_torch_export_survives_a_file(tmp_path):
    spec = AWKWARD.spec(**VARIANTS["everything"])
    layer, x = layer_for(spec), draw(B, T, spec.d_model, name="x")
    path = tmp_path / "layer.pt2"
    torch.export.save(torch.export.export(layer, (x,)), path)
    loaded = torch.export.load(path).module()
    other = draw(B, T, spec.d_model, name="other")
    with torch.no_grad():
        want, got = layer(other), loaded(other)
    assert compare(got, want, allowed=float64_rounding(layer, (other,), None, want)).passed
    assert not compare(loaded(x), want, allowed=float64_rounding(layer, (x,), None, want)).passed
