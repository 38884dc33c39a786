"""torch.compile without graph breaks, torch.export, and the same results as without them.

Graphs are captured by dynamo and differentiated by AOTAutograd in every variant; code is generated
for some of them (marked slow: a compiler runs).
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from tests.attend.against import differences, error_of, layer_for, mask_of
from tests.attend.variants import MASKS, VARIANTS, mask_words
from tests.reference.draws import cross_inputs, draw, self_inputs
from tests.sizes import AWKWARD

from headwise import MultiHeadAttention, attention
from headwise.attend import DistanceBias
from headwise.masks import Causal, Custom, Documents, Padding, Prefix, Window
from headwise.spec import AttentionSpec, Rope

B, T = AWKWARD.B, AWKWARD.Tk


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Wrapped:
    """A call of a layer through torch.compile, which fails at any graph break."""

    def __init__(self, layer, backend, **options):
        self.forward = torch.compile(layer.forward, backend=backend, fullgraph=True, **options)

    def __call__(self, _layer, inputs):
        context = inputs.context
        if inputs.values is not None:
            context = (inputs.context, inputs.values)
        return self.forward(inputs.x, context, mask=mask_of(inputs))


# -- the layer ----------------------------------------------------------------------------------


# Tracing takes a second or two each: every variant with the mask that moves positions most, and
# without any where it matters whether there is one.
GRAPHS = [(variant, "padded-documents") for variant in VARIANTS]
GRAPHS += [(variant, "none") for variant in ("plain", "neighbours", "alibi", "relative", "learned")]


@pytest.mark.parametrize(("variant", "mask"), GRAPHS)
def test_every_variant_is_one_graph_with_the_right_gradients(variant, mask):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer = layer_for(spec)
    inputs = self_inputs(spec, batch=B, length=T).replace(**mask_words(mask))
    assert differences(spec, inputs, layer=layer, call=Wrapped(layer, "aot_eager")) == []


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_is_part_of_one_graph(mask):
    spec = AWKWARD.spec(is_causal=True, positions=Rope(pairs="halves"))
    layer = layer_for(spec)
    inputs = self_inputs(spec, batch=B, length=T).replace(**mask_words(mask))
    assert differences(spec, inputs, layer=layer, call=Wrapped(layer, "aot_eager")) == []


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 7), (7, 5), (1, 7)])
def test_cross_attention_is_one_graph(q_len, kv_len):
    spec = AWKWARD.cross_spec(positions=Rope(pairs="halves"), is_causal=True)
    layer = layer_for(spec)
    inputs = cross_inputs(spec, batch=B, q_len=q_len, kv_len=kv_len)
    assert differences(spec, inputs, layer=layer, call=Wrapped(layer, "aot_eager")) == []


@pytest.mark.parametrize("need", ["per-head", "averaged"])
def test_returned_weights_are_part_of_the_graph(need):
    spec = AWKWARD.spec(**VARIANTS["everything"])
    layer, x = layer_for(spec), self_inputs(spec, batch=B, length=T).x
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for got, want in zip(compiled(x, need_weights=need), layer(x, need_weights=need), strict=True):
        assert error_of(got, want) < 1e-13


def test_lengths_may_change_without_a_graph_per_length():
    """Two lengths make the axis dynamic; a third one needs no new graph."""
    spec = AWKWARD.spec(is_causal=True, positions=Rope(pairs="neighbours"))
    layer = layer_for(spec)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for length in (7, 9, 12, 33, 70, 130):
        x = self_inputs(spec, batch=B, length=length).x
        assert error_of(compiled(x), layer(x)) < 1e-13
    assert counter.frame_count == 2


def test_a_graph_break_would_be_found():
    layer = layer_for(AWKWARD.spec())
    x = self_inputs(layer.spec, batch=B, length=T).x

    def broken(x):
        y = layer(x)
        torch._dynamo.graph_break()
        return y + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="eager", fullgraph=True)(x)


CODE = ["plain", "neighbours", "alibi", "relative", "everything"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler warns of itself
@pytest.mark.parametrize("mask", ["none", "padded-documents"])
@pytest.mark.parametrize("variant", CODE)
def test_generated_code(variant, mask):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer = layer_for(spec)
    inputs = self_inputs(spec, batch=B, length=T).replace(**mask_words(mask))
    assert differences(spec, inputs, layer=layer, call=Wrapped(layer, "inductor")) == []


# -- the function -------------------------------------------------------------------------------

RULES = {
    "none": lambda: None,
    "causal": Causal,
    "window": lambda: Causal() & Window(3, None),
    "padding": lambda: Padding(torch.arange(7) >= torch.tensor([[2], [0]])),
    "documents": lambda: Documents(
        torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[0] * 4 + [1] * 3])
    ),
    "prefix": lambda: Causal() | Prefix(2),
    "custom": lambda: Custom(draw(2, 6, 5, 7, name="custom") > -0.5),
    "function": lambda: Custom(lambda q, k: (q - k) % 3 == 0),
}
WAYS = {
    "plain": {},
    "softcap": {"softcap": 0.9},
    "scale": {"scale": 0.2},
    "sinks": {"sinks": draw(6, name="sinks")},
    "bias": {"bias": draw(1, 6, 5, 7, name="bias")},
    "distance": {"bias": DistanceBias(draw(6, 11, name="distance"))},
    "weights": {"need_weights": "per-head"},
}


TOGETHER = [(rule, "plain") for rule in RULES] + [
    ("padding", way) for way in WAYS if way != "plain"
]


@pytest.mark.parametrize(("rule", "way"), TOGETHER)
def test_the_function_is_one_graph(rule, way):
    mask, options = RULES[rule](), WAYS[way]
    heads = [
        draw(2, 6, 5, 8, name="q").requires_grad_(),
        draw(2, 3, 7, 8, name="k").requires_grad_(),
        draw(2, 3, 7, 10, name="v").requires_grad_(),
    ]
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    results = []
    for function in (attention, compiled):
        found = function(*heads, mask=mask, **options)
        found = found if isinstance(found, tuple) else (found,)
        total = sum((one * draw(*one.shape, name="upstream")).sum() for one in found)
        results.append([*found, *torch.autograd.grad(total, heads)])
    for got, want in zip(*results, strict=True):
        assert error_of(got, want) < 1e-12


# -- export -------------------------------------------------------------------------------------


EXPORTS = [(variant, False) for variant in VARIANTS] + [("everything", True), ("relative", True)]


@pytest.mark.parametrize(("variant", "strict"), EXPORTS)
def test_export(variant, strict):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer, x = layer_for(spec), self_inputs(spec, batch=B, length=T).x
    exported = torch.export.export(layer, (x,), strict=strict).module()
    other = draw(*x.shape, name="other")
    assert error_of(exported(other), layer(other)) < 1e-13
    assert error_of(exported(x), layer(other)) > 1e-13


@pytest.mark.parametrize(
    "variant", ["plain", "causal", "neighbours", "alibi", "relative", "sinks", "softcap"]
)
def test_export_with_lengths_that_may_change(variant):
    spec = AWKWARD.spec(**VARIANTS[variant])
    layer, x = layer_for(spec), self_inputs(spec, batch=B, length=T).x
    sizes = {
        0: torch.export.Dim("batch", min=1, max=64),
        1: torch.export.Dim("time", min=2, max=512),
    }
    exported = torch.export.export(layer, (x,), dynamic_shapes={"x": sizes}).module()
    for batch, length in ((1, 5), (3, 40), (2, 90)):
        other = draw(batch, length, spec.d_model, name="other")
        assert error_of(exported(other), layer(other)) < 1e-13


def test_export_of_a_model_that_pads():
    """A mask is made inside of the program from a tensor that is given."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = layer_for(AWKWARD.spec(is_causal=True, positions=Rope(pairs="halves")))

        def forward(self, x, keep):
            return self.attention(x, mask=Custom(keep[:, None, None, :]))

    model = Model()
    x = self_inputs(model.attention.spec, batch=B, length=T).x
    keep = torch.arange(T) < torch.tensor([[4], [7]])
    exported = torch.export.export(model, (x, keep)).module()
    assert error_of(exported(x, ~keep), model(x, ~keep)) < 1e-13
    assert error_of(exported(x, keep), model(x, ~keep)) > 1e-13


def test_a_mask_made_inside_of_a_compiled_function():
    layer = MultiHeadAttention(AttentionSpec(d_model=8, num_heads=2))
    x, keep = draw(2, 5, 8, name="x").float(), torch.arange(5) < torch.tensor([[3], [5]])

    def forward(x, keep):
        return layer(x, mask=Causal() & Padding(keep))

    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
    assert error_of(compiled(x, keep), forward(x, keep)) < 1e-6
