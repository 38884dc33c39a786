"""The product of a projection: every route gives the value and the gradients of ``F.linear``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.reference.draws import draw

from headwise.attend import products
from headwise.attend.linear import linear
from headwise.numerics import compare, largest, low_precision_allowance


def available(route: str) -> bool:
    if route == "onednn":
        return products.onednn_is_exact()
    if route == "pointwise":
        try:
            products.pointwise(torch.ones(1, 2), torch.ones(2, 2), None)
        except (RuntimeError, AttributeError, TypeError):
            return False
    return True


@pytest.fixture(params=["plain", "onednn", "pointwise"])
def route(request, monkeypatch):
    if not available(request.param):
        pytest.skip(f"the route {request.param} is not exact, or not there, on this machine")
    monkeypatch.setattr(products, "linear_route", lambda **_kind: (request.param, "forced"))
    return request.param


def tensors(shape, *, out=7, bias=True):
    x, w = draw(*shape, name="x").float(), draw(out, shape[-1], name="w").float()
    return x, w, draw(out, name="b").float() if bias else None


def problems(function, x, w, b):
    """Where a product or one of its gradients is further from float64 than ``F.linear`` may be."""
    given = [t for t in (x, w, b) if t is not None]
    upstream = draw(*x.shape[:-1], w.shape[0], name="upstream").float()

    def run(dtype, function):
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        made = function(*leaves)
        grads = torch.autograd.grad(made, leaves, upstream.to(dtype))
        return [t.detach() for t in (made, *grads)]

    truth, plain, found = run(torch.float64, F.linear), run(torch.float32, F.linear), run(
        torch.float32, function
    )  # fmt: skip
    wrong = []
    for name, want, base, got in zip(("y", "x", "w", "b"), truth, plain, found, strict=False):
        error = compare(base, want, allowed=0.0).error
        allowed = low_precision_allowance(error, torch.float32, largest([want]))
        if not compare(got, want, allowed=allowed).passed:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(5, 6), (6,), (2, 3, 5), (2, 3, 1, 9), (1, 4), (0, 4), (3, 0, 4)]
)
def test_value_and_gradients(shape, bias, route):
    assert problems(linear, *tensors(shape, bias=bias)) == []


def test_a_wrong_product_is_found():
    """The negative twin."""

    def rounded(x, w, b):
        return F.linear(x.bfloat16().float(), w, b)

    def without_gradient(x, w, b):
        return F.linear(x, w.detach() + 0.0 * w, b)

    assert problems(rounded, *tensors((5, 6))) == ["y", "x", "w"]
    assert problems(without_gradient, *tensors((5, 6))) == ["w"]


STRIDES = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": lambda x: F.pad(x, (1, 2))[..., 1:-2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "channels-first": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
}


@pytest.mark.parametrize("strides", STRIDES)
def test_strides(strides, route):
    x, w, b = tensors((4, 3, 6))
    make = STRIDES[strides]
    assert problems(linear, make(x), w, b) == []
    assert problems(linear, x, make(w), b) == []


def test_one_gradient_at_a_time(route):
    x, w, b = tensors((4, 6))
    for chosen in range(3):
        given = [t.detach().requires_grad_(i == chosen) for i, t in enumerate((x, w, b))]
        every = [t.detach().requires_grad_() for t in (x, w, b)]
        linear(*given).square().sum().backward()
        linear(*every).square().sum().backward()
        assert [t.grad is not None for t in given] == [i == chosen for i in range(3)]
        assert torch.equal(given[chosen].grad, every[chosen].grad)


def test_gradients_of_gradients(route):
    x, w, b = (t.requires_grad_() for t in tensors((4, 6)))

    def second(function):
        (first,) = torch.autograd.grad(function(x, w, b).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w, b))

    for got, want in zip(second(linear), second(F.linear), strict=True):
        assert compare(got, want, allowed=1e-4 * largest([want])).passed


def test_the_backward_pass_does_not_round_where_the_setting_does(monkeypatch):
    """oneDNN's own operator may be exact where the setting for products rounds to bfloat16."""
    monkeypatch.setattr(products, "linear_route", lambda **_kind: ("pointwise", "forced"))
    monkeypatch.setattr(products, "pointwise", F.linear)
    monkeypatch.setattr(products, "onednn_is_exact", lambda: False)
    entered = []
    real = products.fast_float32
    monkeypatch.setattr(products, "fast_float32", lambda on: entered.append(on) or real(on))
    assert problems(linear, *tensors((5, 6))) == []
    assert entered == [False]


FALLS_BACK = {
    "float64": lambda x, w, b: (x.double(), w.double(), b.double()),
    "bfloat16": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "meta": lambda x, w, b: (x.to("meta"), w.to("meta"), b.to("meta")),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compute", ["float32", "own"])
def test_many_rows_of_16_bits(dtype, compute, monkeypatch):
    """In float32 where the processor lacks instructions: nearer to float64 than torch's own."""
    wide = torch.float32 if compute == "float32" else dtype
    monkeypatch.setattr(products, "route", lambda *_g: products.Route(dtype, wide, False, "forced"))
    given = [t.to(dtype).requires_grad_() for t in tensors((40, 64))]
    exact = [t.detach().double().requires_grad_() for t in given]
    made, truth = linear(*given), F.linear(*exact)
    assert made.dtype == dtype
    if compute == "own":
        assert torch.equal(made, F.linear(*given))
    upstream = draw(40, 7, name="upstream")
    found = [made, *torch.autograd.grad(made, given, upstream.to(dtype))]
    wanted = [truth, *torch.autograd.grad(truth, exact, upstream.to(dtype).double())]
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        size = float(want.detach().abs().max())
        error = float((got.detach().double() - want.detach()).abs().max())
        assert error <= 2 * torch.finfo(dtype).eps * size


def wide(monkeypatch):
    """Numbers of 16 bits go through float32, as on a processor without instructions for them."""
    made = products.Route(torch.bfloat16, torch.float32, False, "forced")
    monkeypatch.setattr(products, "route", lambda *_given: made)


@pytest.mark.parametrize("asked", ["x", "w", "b"])
def test_one_gradient_of_16_bits_at_a_time(asked, monkeypatch):
    wide(monkeypatch)
    given = dict(zip("xwb", (t.bfloat16() for t in tensors((40, 64))), strict=True))
    given[asked].requires_grad_()
    made = linear(*given.values())
    [found] = torch.autograd.grad(made.float().square().sum(), [given[asked]])
    exact = {name: t.detach().double() for name, t in given.items()}
    exact[asked].requires_grad_()
    truth = F.linear(*exact.values())
    [want] = torch.autograd.grad(truth.square().sum(), [exact[asked]])
    size = float(want.abs().max())
    assert float((found.double() - want).abs().max()) <= 4 * torch.finfo(torch.bfloat16).eps * size


def test_gradients_of_gradients_of_16_bits(monkeypatch):
    wide(monkeypatch)

    def second(function, *given):
        x, w, b = given
        [first] = torch.autograd.grad(function(x, w, b).square().sum(), [x], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, w])

    given = [t.bfloat16().requires_grad_() for t in tensors((40, 64))]
    exact = [t.detach().double().requires_grad_() for t in given]
    for found, want in zip(second(linear, *given), second(F.linear, *exact), strict=True):
        size = float(want.abs().max())
        error = float((found.double() - want).abs().max())
        assert error <= 8 * torch.finfo(torch.bfloat16).eps * size


def test_16_bits_keep_16_bits_for_the_backward_pass(monkeypatch):
    wide(monkeypatch)
    given = [t.bfloat16().requires_grad_() for t in tensors((40, 64))]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        linear(*given)
    assert [t.dtype for t in kept] == [torch.bfloat16] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own use
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_forward_mode(kind, monkeypatch):
    """A change goes through with whatever of the inputs has one."""
    import torch.autograd.forward_ad as forward

    wide(monkeypatch)
    if kind == "float32" and available("pointwise"):
        monkeypatch.setattr(products, "linear_route", lambda **_kind: ("pointwise", "forced"))
    given = [t.to(getattr(torch, kind)) for t in tensors((40, 64))]
    given[1].requires_grad_()  # takes the way of its own gradients
    changes = [torch.randn_like(t) for t in given]
    for which in ([0], [1], [2], [0, 1, 2]):
        with forward.dual_level():
            duals = [
                forward.make_dual(t, change) if i in which else t
                for i, (t, change) in enumerate(zip(given, changes, strict=True))
            ]
            found = forward.unpack_dual(linear(*duals)).tangent.detach().double()
        x, w, _b = (t.detach().double() for t in given)
        dx, dw, db = (
            change.double() if i in which else torch.zeros_like(change).double()
            for i, change in enumerate(changes)
        )
        want = dx @ w.t() + x @ dw.t() + db
        scale = float(want.abs().max())
        allowed = 8 * torch.finfo(given[0].dtype).eps * scale
        assert float((found - want).abs().max()) <= allowed


def test_few_rows_of_16_bits_stay_torchs(monkeypatch):
    """Reading the weights is what takes the time there, and twice as wide they take longer."""
    monkeypatch.setattr(products, "route", None)  # would raise
    x, w, b = (t.bfloat16() for t in tensors((8, 6)))
    assert torch.equal(linear(x, w, b), F.linear(x, w, b))


@pytest.mark.parametrize("kind", FALLS_BACK)
def test_what_is_not_float32_on_the_cpu_falls_back(kind, route, monkeypatch):
    monkeypatch.setattr(products, "pointwise", None)  # would raise
    given = FALLS_BACK[kind](*tensors((4, 6)))
    made, wanted = linear(*given), F.linear(*given)
    assert (made.dtype, made.shape, made.device) == (wanted.dtype, wanted.shape, wanted.device)
    if kind != "meta":
        assert torch.equal(made, wanted)


@pytest.mark.parametrize("change", ["dtype", "width", "bias-dtype", "bias-width"])
def test_what_does_not_fit_gets_torchs_own_error(change, route):
    x, w, b = tensors((4, 6))
    given = {
        "dtype": (x, w.double(), b),
        "width": (x[:, :5], w, b),
        "bias-dtype": (x, w, b.double()),
        "bias-width": (x, w, b[:3]),
    }[change]
    with pytest.raises(RuntimeError):
        F.linear(*given)
    with pytest.raises(RuntimeError):
        linear(*given)


def test_autocast_lowers_the_product(route):
    x, w, b = tensors((4, 6))
    with torch.autocast("cpu", torch.bfloat16):
        made, wanted = linear(x, w, b), F.linear(x, w, b)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, wanted)


def test_transforms_fall_back(route):
    x, w, b = tensors((4, 6))
    assert compare(
        torch.vmap(lambda row: linear(row, w, b))(x), F.linear(x, w, b), allowed=1e-5
    ).passed
    slope = torch.func.grad(lambda w: linear(x, w, b).sum())(w)
    assert compare(slope, x.sum(0).expand(7, 6), allowed=1e-5).passed


def test_inference_mode_and_no_grad(route):
    x, w, b = tensors((4, 6))
    w.requires_grad_()
    with torch.no_grad():
        assert not linear(x, w, b).requires_grad
    with torch.inference_mode():
        assert linear(x, w, b).is_inference()
    assert linear(x, w, b).requires_grad
