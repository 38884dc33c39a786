"""Routes of products: exact or not taken, and the setting is put back."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from tests.reference.draws import draw

from headwise.attend import products, tracing
from headwise.numerics import eps

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
has_setting = hasattr(products._setting, "fp32_precision") and torch.backends.mkldnn.is_available()
needs_setting = pytest.mark.skipif(not has_setting, reason="this torch can't choose oneDNN")


def clear():
    for cached in (
        products._float32,
        products._half,
        products.onednn_is_exact,
        products.linear_route,
    ):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch):
    """Nothing that was measured under a forged clock or product survives a test."""
    monkeypatch.delenv("HEADWISE_PRODUCTS", raising=False)
    clear()
    yield
    clear()


@pytest.fixture
def quicker(monkeypatch):
    """Every other route takes half of the time."""
    monkeypatch.setattr(products, "in_turn", lambda *_two, **_rounds: (2.0, 1.0, 2.0))


@pytest.fixture
def slower(monkeypatch):
    monkeypatch.setattr(products, "in_turn", lambda *_two, **_rounds: (1.0, 2.0, 0.5))


def rounded_inside(monkeypatch):
    """As on a processor with AMX: inside of ``fast_float32``, operands are rounded to bfloat16."""
    plain_bmm, plain_linear = torch.bmm, torch.nn.functional.linear

    def low(x):
        return x.bfloat16().to(x.dtype) if products._state.depth else x

    monkeypatch.setattr(torch, "bmm", lambda a, b: plain_bmm(low(a), low(b)))
    monkeypatch.setattr(
        products.F, "linear", lambda x, w, b=None: plain_linear(low(x), low(w), b)
    )  # fmt: skip


# -- exactness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES], ids=str)
def test_the_route_that_is_taken_is_exact(dtype):
    """Rounding of a sum of n products is at most n·eps times the sum of the magnitudes."""
    route = products.route(dtype, CPU)
    a, b = (draw(3, 65, 77, name=name).to(dtype) for name in ("a", "b"))
    with products.fast_float32(route.onednn):
        got = torch.bmm(a.to(route.compute), b.to(route.compute).transpose(1, 2)).to(dtype)
    exact = a.double() @ b.double().transpose(1, 2)
    bound = 77 * eps(route.compute) * (a.double().abs() @ b.double().abs().transpose(1, 2))
    bound += eps(dtype) * exact.abs()
    assert ((got.double() - exact).abs() <= bound).all()
    assert route.dtype == dtype


def test_an_inexact_product_is_found_by_the_same_bound():
    """The negative twin."""
    a, b = (draw(3, 65, 77, name=name).float() for name in ("a", "b"))
    exact = a.double() @ b.double().transpose(1, 2)
    bound = 77 * eps(torch.float32) * (a.double().abs() @ b.double().abs().transpose(1, 2))
    rounded = a.bfloat16().float() @ b.bfloat16().float().transpose(1, 2)
    assert not ((rounded.double() - exact).abs() <= bound).all()


@needs_setting
def test_a_quicker_exact_route_is_taken(quicker):
    if not products.onednn_is_exact():
        pytest.skip("oneDNN rounds to bfloat16 on this processor")
    route = products.route(torch.float32, CPU)
    assert route.onednn
    assert route.reason == "measured here: 2.00 ms as it is, 1.00 ms through oneDNN"
    half = products.route(torch.bfloat16, CPU)
    assert (half.compute, half.onednn) == (torch.float32, True)
    assert half.reason == "measured here: 2.00 ms as it is, 1.00 ms through float32"


def test_a_slower_route_is_not_taken(slower):
    route = products.route(torch.float32, CPU)
    assert (route.compute, route.onednn) == (torch.float32, False)
    for dtype in (torch.bfloat16, torch.float16):
        half = products.route(dtype, CPU)
        assert (half.compute, half.onednn) == (dtype, False)


def test_a_little_quicker_is_noise(monkeypatch):
    ratio = products.FASTER - 0.01
    monkeypatch.setattr(products, "in_turn", lambda *_two, **_rounds: (ratio, 1.0, ratio))
    assert not products.route(torch.float32, CPU).onednn
    assert products.linear_route(few_rows=False)[0] == "plain"


@needs_setting
def test_a_quick_route_that_rounds_more_is_refused(monkeypatch, quicker):
    """The self-check can fail."""
    rounded_inside(monkeypatch)
    assert not products.onednn_is_exact()
    route = products.route(torch.float32, CPU)
    assert not route.onednn
    assert route.reason == (
        "measured here: 2.00 ms as it is, 1.00 ms through oneDNN, which rounds more"
    )
    # Half precision still goes through float32, but by torch's own product.
    half = products.route(torch.bfloat16, CPU)
    assert (half.compute, half.onednn) == (torch.float32, False)


@needs_setting
def test_an_inexact_linear_route_is_refused(monkeypatch, quicker):
    rounded_inside(monkeypatch)
    monkeypatch.setattr(products, "pointwise", lambda x, w, b: x.bfloat16() @ w.bfloat16().t() + b)
    for few_rows in (False, True):
        assert products.linear_route(few_rows=few_rows)[0] == "plain"


def test_an_operator_that_is_not_there_is_no_route(monkeypatch, quicker):
    def missing(*_tensors):
        raise AttributeError("_OpNamespace 'mkldnn' has no attribute '_linear_pointwise'")

    monkeypatch.setattr(products, "pointwise", missing)
    assert products.linear_route(few_rows=True)[0] in ("plain", "onednn")


@pytest.mark.parametrize("setting", [None, object()], ids=["missing", "of-another-version"])
def test_a_torch_without_the_setting(monkeypatch, setting, quicker):
    monkeypatch.setattr(products, "_setting", setting)
    assert not products.onednn_is_exact()
    route = products.route(torch.float32, CPU)
    assert not route.onednn
    assert route.reason == "torch's own: oneDNN can't be chosen here"


def test_the_defaults_of_torch_play_no_part(quicker):
    """Measurements are about float32 on the CPU, whatever a user has made the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        wide = products._operands(torch.float32)
    finally:
        torch.set_default_dtype(before)
    with torch.device("meta"):
        here = products._operands(torch.float32)
        products.linear_route(few_rows=True)
    assert {x.dtype for x in (*wide, *here)} == {torch.float32}
    assert {x.device.type for x in (*wide, *here)} == {"cpu"}


# -- the setting ---------------------------------------------------------------------------------


def setting():
    return products._setting.fp32_precision


@needs_setting
def test_the_setting_holds_inside_and_is_put_back():
    before = setting()
    with products.fast_float32(True):
        assert setting() == "bf16"
        with products.fast_float32(True):
            assert setting() == "bf16"
        assert setting() == "bf16"
    assert setting() == before
    with products.fast_float32(False):
        assert setting() == before


@needs_setting
def test_the_setting_is_put_back_after_an_error():
    before = setting()
    for _time in range(2):
        with pytest.raises(ZeroDivisionError), products.fast_float32(True):
            1 / 0  # noqa: B018
        assert (setting(), products._state.depth) == (before, 0)


@needs_setting
def test_what_a_user_has_chosen_is_put_back():
    before = setting()
    try:
        products._setting.fp32_precision = "ieee"
        with products.fast_float32(True):
            assert setting() == "bf16"
        assert setting() == "ieee"
    finally:
        products._setting.fp32_precision = before


@needs_setting
def test_threads_may_overlap_in_any_order():
    """The first to enter is the first to leave: the setting stays until the last one has left."""
    before = setting()
    inside, left, leave = threading.Event(), threading.Event(), threading.Event()

    def first():
        with products.fast_float32(True):
            inside.set()
            assert leave.wait(10)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with products.fast_float32(True):
        leave.set()
        assert left.wait(10)
        assert setting() == "bf16"
    thread.join()
    assert (setting(), products._state.depth) == (before, 0)


@needs_setting
def test_many_threads_leave_it_as_it_was():
    before, wrong = setting(), []

    def work():
        for _time in range(200):
            with products.fast_float32(True):
                if setting() != "bf16":
                    wrong.append(setting())

    threads = [threading.Thread(target=work) for _thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (setting(), products._state.depth) == (before, 0)


@needs_setting
def test_products_of_a_user_are_torchs_own_again():
    products.route(torch.float32, CPU)
    a = draw(64, 64, name="a").float()
    wanted = a @ a
    with products.fast_float32(True):
        a @ a
    assert torch.equal(a @ a, wanted)


# -- turned off ----------------------------------------------------------------------------------


def test_plain_products(monkeypatch, quicker):
    monkeypatch.setenv("HEADWISE_PRODUCTS", "plain")
    for dtype in (torch.float64, *DTYPES):
        route = products.route(dtype, CPU)
        assert (route.compute, route.onednn, route.reason) == (dtype, False, "torch's own")
    assert products.linear_route(few_rows=True) == ("plain", "torch's own")
    assert products.is_plain()
    monkeypatch.setenv("HEADWISE_PRODUCTS", "fast")
    assert not products.is_plain()


@pytest.mark.parametrize("device", ["cuda", "meta", "mps"])
def test_other_devices_keep_their_dtype(device, quicker):
    for dtype in DTYPES:
        route = products.route(dtype, torch.device(device))
        assert (route.compute, route.onednn) == (dtype, False)


def test_a_route_is_measured_once(monkeypatch):
    calls = []
    monkeypatch.setattr(
        products, "in_turn", lambda *_two, **_rounds: calls.append(1) or (1.0, 1.0, 1.0)
    )
    for _time in range(3):
        products.route(torch.float32, CPU)
        products.route(torch.bfloat16, CPU)
        products.linear_route(few_rows=True)
    assert len(calls) <= 1 + 1 + 2
    count = len(calls)
    products.route(torch.float16, CPU)
    assert len(calls) == count + 1


def test_nothing_is_drawn_from_the_users_generator():
    before = torch.get_rng_state()
    for dtype in DTYPES:
        products.route(dtype, CPU)
    products.linear_route(few_rows=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_compare_counts_how_many_times_faster(monkeypatch):
    """By a forged clock: 3 ms and 1 ms, after a first round of 100 that is not counted."""
    now = iter([0.0, 0.1, 0.2, *(x for i in range(5) for x in (i + 1, i + 1.003, i + 1.004))])
    monkeypatch.setattr(products.time, "perf_counter", lambda: next(now))
    here, there, ratio = products.in_turn(lambda: None, lambda: None, rounds=5)
    assert (round(here, 6), round(there, 6), round(ratio, 6)) == (3.0, 1.0, 3.0)


def test_what_is_recorded():
    seen = []

    def ask(x):
        seen.append(tracing.is_recorded())
        return x * 1.0

    ask(torch.ones(2))
    torch.vmap(ask)(torch.ones(2, 2))
    torch.func.grad(lambda x: ask(x).sum())(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit itself
        torch.jit.trace(ask, torch.ones(2), check_trace=False)
    assert seen[:4] == [False, True, True, True]


@needs_setting
def test_native_half_precision_leaves_float32_where_it_is_quick(monkeypatch):
    """Backward passes make some products in float32 beside the half ones."""
    if not products.onednn_is_exact():
        pytest.skip("oneDNN rounds to bfloat16 on this processor")
    answers = iter([(2.0, 1.0, 2.0), (1.0, 2.0, 0.5)])
    monkeypatch.setattr(products, "in_turn", lambda *_two, **_rounds: next(answers))
    half = products.route(torch.bfloat16, CPU)
    assert (half.compute, half.onednn) == (torch.bfloat16, True)
