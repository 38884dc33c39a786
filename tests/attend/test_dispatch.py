"""Which backend is picked, by which rule; forcing one; adding one."""

from __future__ import annotations

import pytest
import torch
from tests.reference.draws import draw

from headwise.attend import DistanceBias, attention, explain_backend, products
from headwise.attend.backends import dispatch
from headwise.attend.backends.dispatch import BACKENDS, pick
from headwise.attend.backends.measured import LONG, SHORT, Verdict
from headwise.attend.functional import make_call
from headwise.errors import UsageError
from headwise.masks import Causal, Padding, Window

HIDES = Padding(torch.ones(1, 200, dtype=torch.bool)) & Window(3, None)


def call_for(*, heads=(4, 4), lengths=(200, 200), dims=(8, 8), dtype=torch.float32, **options):
    (Hq, Hkv), (Tq, Tk), (Dk, Dv) = heads, lengths, dims
    grad = options.pop("grad", False)
    device = options.pop("device", "cpu")
    q, k, v = (
        draw(*shape, name=name).to(device, dtype).requires_grad_(grad)
        for name, shape in (
            ("q", (1, Hq, Tq, Dk)),
            ("k", (1, Hkv, Tk, Dk)),
            ("v", (1, Hkv, Tk, Dv)),
        )
    )
    return make_call(q, k, v, **options)


@pytest.fixture(params=[True, False], ids=["tiles-win", "fused-wins"])
def verdict(request, monkeypatch):
    """What this machine would have measured."""
    ratio = 2.0 if request.param else 0.5
    seen = []

    def measured(dtype, *, training, threads, of):
        seen.append((dtype, training, threads, of))
        return Verdict(1.0, ratio, ratio, training, dtype, of)

    monkeypatch.setattr(dispatch, "tiles_against_sdpa", measured)
    return request.param, seen


TABLE = torch.zeros(200, 200)
RULES = {
    "small": ({"lengths": (64, 64)}, "sdpa", "the call is small: the least overhead wins"),
    "small-cap": (
        {"lengths": (64, 64), "softcap": 1.0},
        "eager",
        "the call is small: plain operations have the least overhead",
    ),
    "no-numbers": ({"dims": (8, 0)}, "sdpa", "the call is small: the least overhead wins"),
    "weights-with-gradient": (
        {"need_weights": "per-head", "grad": True},
        "eager",
        "gradients have to pass through the returned weights",
    ),
    "weights": (
        {"need_weights": "averaged"},
        "tiled",
        "SDPA can't express the call, and tiles store no Tq × Tk tensor",
    ),
    "softcap": (
        {"softcap": 2.0, "grad": True},
        "tiled",
        "SDPA can't express the call, and tiles store no Tq × Tk tensor",
    ),
    "Dv": ({"dims": (8, 9)}, "tiled", "SDPA stores the scores if Dk and Dv differ"),
    "dropout": ({"dropout_p": 0.1}, "tiled", "SDPA stores the scores if there is dropout"),
    "distance": (
        {"bias": DistanceBias(torch.zeros(4, 399))},
        "tiled",
        "SDPA would need the bias as a Tq × Tk tensor",
    ),
    "learned-bias": (
        {"bias": TABLE.clone().requires_grad_()},
        "tiled",
        "SDPA stores the scores if the bias has a gradient",
    ),
    "hidden": ({"mask": HIDES}, "tiled", "SDPA computes what the mask hides, tiles skip it"),
    "meta": ({"device": "meta"}, "sdpa", "the call is traced: a graph gets one operation"),
    "meta-cap": (
        {"device": "meta", "softcap": 1.0},
        "eager",
        "the call is traced: a graph gets plain operations",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule(rule, verdict):
    options, backend, reason = RULES[rule]
    found = pick(call_for(**options))
    assert (found.backend, found.reason) == (backend, reason)
    assert verdict[1] == []  # nothing had to be measured


@pytest.mark.parametrize("options", [{}, {"mask": Causal()}, {"bias": TABLE}], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_what_the_machine_decides(options, grad, verdict):
    tiles_win, seen = verdict
    found = pick(call_for(grad=grad, **options))
    assert seen == [(torch.float32, grad, torch.get_num_threads(), SHORT)]
    assert found.verdict is not None
    wanted = (
        ("tiled", "tiles are quicker on this machine")
        if tiles_win
        else ("sdpa", "torch's fused kernel is quicker on this machine")
    )
    assert (found.backend, found.reason) == wanted


def test_long_calls_have_a_measurement_of_their_own(verdict):
    pick(call_for(lengths=(512, 512), mask=Causal()))
    assert [entry[-1] for entry in verdict[1]] == [LONG]


def test_padding_is_left_out_by_slices_or_by_tiles(verdict):
    mask = Padding(torch.arange(200)[None] < 60)
    found = pick(call_for(mask=mask))
    wanted = (
        ("tiled", "SDPA computes what the mask hides, tiles skip it")
        if verdict[0]
        else ("ragged", "padding is left out, and the fused kernel is quicker")
    )
    assert (found.backend, found.reason) == wanted


def test_one_query(monkeypatch):
    long = {"lengths": (1, 5000)}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = pick(call_for(**long))
    assert found.reason == "one query: the heads of a group become rows of one product"
    assert found.backend == "sdpa"
    found = pick(call_for(heads=(4, 1), **long))
    assert found.reason == "one query and few heads: the keys are split among threads"
    assert found.backend == "split-keys"
    monkeypatch.setattr(
        products, "route", lambda dtype, _device: products.Route(dtype, dtype, False, "")
    )
    found = pick(call_for(dtype=torch.bfloat16, **long))
    assert found.reason == "one query: this processor multiplies half precision quickly"
    assert found.backend == "split-keys"


def test_a_verdict_needs_a_margin():
    assert Verdict(1.0, 1.05, 1.05, False, torch.float32).tiles_win
    assert not Verdict(1.0, 1.04, 1.04, False, torch.float32).tiles_win


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["vmap", "grad"])
def test_transformed_calls_are_traced(name, monkeypatch):
    seen, real = [], dispatch.pick
    monkeypatch.setattr(
        "headwise.attend.functional.pick", lambda *args: seen.append(real(*args)) or seen[-1]
    )
    q, k = (draw(1, 2, 200, 8, name=name) for name in "qk")
    if name == "vmap":
        made = torch.vmap(lambda row: attention(row, k, k))(q[None])
        assert torch.allclose(made[0], attention(q, k, k, backend="eager"))
    else:
        torch.func.grad(lambda x: attention(x, k, k).sum())(q)
    assert seen[0].reason == "the call is traced: a graph gets one operation"


# -- explained -----------------------------------------------------------------------------------


def test_the_explanation_names_every_backend(verdict):
    q = draw(1, 2, 200, 8, name="q").float()
    choice = explain_backend(q, q, q, mask=Causal(), need_weights="per-head")
    assert choice.backend == "tiled"
    assert {choice.backend, *choice.others} == set(BACKENDS)
    lines = str(choice).splitlines()
    assert lines[0] == ("tiled: SDPA can't express the call, and tiles store no Tq × Tk tensor")
    assert "  not eager: another rule came first" in lines
    assert "  not sdpa: it returns no weights" in lines


def test_the_explanation_says_what_was_measured(verdict):
    q = draw(1, 2, 200, 8, name="q").float()
    text = str(explain_backend(q, q, q, mask=Causal())).splitlines()[0]
    quicker = "tiled: tiles are" if verdict[0] else "sdpa: torch's fused kernel is"
    fused = "2.00" if verdict[0] else "0.50"
    assert text == (
        f"{quicker} quicker on this machine (measured here once, causal attention of 8 × 128 × 64 "
        f"in float32: 1.00 ms in tiles, {fused} ms in SDPA)"
    )


# -- forced --------------------------------------------------------------------------------------

REFUSED = {
    "sdpa-weights": ("sdpa", {"need_weights": "averaged"}, "it returns no weights"),
    "sdpa-cap": ("sdpa", {"softcap": 1.0}, "it has no softcap"),
    "sdpa-sinks": ("sdpa", {"sinks": torch.zeros(4)}, "it has no sinks"),
    "sdpa-nothing": ("sdpa", {"lengths": (0, 3)}, "there is nothing to attend to"),
    "tiled-nothing": ("tiled", {"lengths": (3, 0)}, "there is nothing to attend to"),
    "tiled-weights": (
        "tiled",
        {"need_weights": "per-head", "grad": True},
        "it does not carry gradients through returned weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_backend_that_was_asked_for_and_can_not(name):
    backend, options, why = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        pick(call_for(**options), backend)
    assert str(caught.value).splitlines() == [
        f"backend {backend!r} can't compute this call",
        f"  where  attention(backend={backend!r})",
        f"  why    {why}",
        "  fix    leave the backend out, and explain_backend(...) says which one is taken",
    ]


@pytest.mark.parametrize("backend", ["eager", "sdpa", "tiled"])
def test_a_backend_that_was_asked_for_and_can(backend):
    found = pick(call_for(), backend)
    assert (found.backend, found.reason) == (backend, "it was asked for")


def test_an_unknown_backend():
    with pytest.raises(UsageError) as caught:
        pick(call_for(), "tield")
    assert "unknown backend 'tield'" in str(caught.value)
    assert "did you mean 'tiled'?" in str(caught.value)


# -- a new one -----------------------------------------------------------------------------------


class Constant:
    name = "constant"

    def refuses(self, call):
        return "it knows plain calls only" if not call.is_plain else ""

    def run(self, call):
        return torch.full_like(call.query, 7.0), None


def test_adding_a_backend(monkeypatch):
    monkeypatch.setattr(BACKENDS, "_entries", dict(BACKENDS._entries))
    BACKENDS.add("constant", Constant())
    q = draw(1, 2, 3, 4, name="q")
    assert torch.equal(attention(q, q, q, backend="constant"), torch.full_like(q, 7.0))
    assert explain_backend(q, q, q).others["constant"] == "another rule came first"
    assert explain_backend(q, q, q, softcap=1.0).others["constant"] == "it knows plain calls only"
    with pytest.raises(ValueError, match="registered twice"):
        BACKENDS.add("constant", Constant())
