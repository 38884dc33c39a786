"""Lift drops casts of float64 tensors to float32, and nothing else."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise.verifier.lift import Lift

LOW, HIGH = torch.float32, torch.float64


def values(dtype: torch.dtype = HIGH) -> Tensor:
    """(3, 5) numbers that float32 can't hold, so that a cast would show."""
    return (torch.arange(15, dtype=torch.float64).view(3, 5) / 7).to(dtype)


CASTS = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(LOW),
    "to, keyword": lambda x: x.to(dtype=LOW),
    "to, device first": lambda x: x.to("cpu", LOW),
    "to, other tensor": lambda x: x.to(torch.zeros(1)),
    "to, more arguments": lambda x: x.to(LOW, non_blocking=True, copy=True),
    "type": lambda x: x.type(LOW),
    "type, by string": lambda x: x.type("torch.FloatTensor"),
    "type, by class": lambda x: x.type(torch.FloatTensor),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "as_tensor": lambda x: torch.as_tensor(x, dtype=LOW),
    "asarray": lambda x: torch.asarray(x, dtype=LOW),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_of_float64_leaves_every_digit(name: str) -> None:
    cast, x = CASTS[name], values()
    assert cast(x).dtype is LOW, "the cast is real outside"
    with Lift() as lift:
        lifted = cast(x)
    assert lifted.dtype is HIGH
    assert torch.equal(lifted, x)
    assert lift.dropped == {name.split(",", maxsplit=1)[0]: 1}


@pytest.mark.parametrize("make", ["tensor", "new_tensor"])
def test_a_tensor_made_from_a_float64_tensor_keeps_its_dtype(make: str) -> None:
    x = values()
    with warnings.catch_warnings(), Lift() as lift:
        warnings.filterwarnings("ignore", message="To copy construct from a tensor")
        made = torch.tensor(x, dtype=LOW) if make == "tensor" else x.new_tensor(x, dtype=LOW)
    assert torch.equal(made, x)
    assert lift.dropped == {make: 1}


SOFTMAXES = {
    "F.softmax": lambda x: F.softmax(x, dim=-1, dtype=LOW),
    "F.softmax, positional": lambda x: F.softmax(x, -1, 3, LOW),
    "torch.softmax": lambda x: torch.softmax(x, -1, dtype=LOW),
    "torch.softmax, positional": lambda x: torch.softmax(x, -1, LOW),
    "method": lambda x: x.softmax(-1, dtype=LOW),
    "special": lambda x: torch.special.softmax(x, -1, dtype=LOW),
    "input by name": lambda x: torch.softmax(input=x, dim=-1, dtype=LOW),
    "cast first": lambda x: torch.softmax(x.float(), -1).to(x.dtype),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_the_softmax_is_computed_in_float64(name: str) -> None:
    x = values()
    with Lift() as lift:
        weights = SOFTMAXES[name](x)
    assert torch.equal(weights, torch.softmax(x, -1))
    assert sum(lift.dropped.values()) == 1


def test_reductions_and_log_softmax_stay_float64() -> None:
    x = values()
    with Lift() as lift:
        got = [
            torch.log_softmax(x, -1, dtype=LOW),
            x.sum(-1, dtype=LOW),
            torch.mean(x, -1, dtype=LOW),
            x.cumsum(-1, dtype=LOW),
        ]
    want = [torch.log_softmax(x, -1), x.sum(-1), x.mean(-1), x.cumsum(-1)]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert lift.dropped == {"log_softmax": 1, "sum": 1, "mean": 1, "cumsum": 1}


SINGLE, HALF = values(LOW), values(torch.float16)

UNTOUCHED = {
    "integers become float32": (lambda: torch.arange(3).float(), LOW),
    "integers by to": (lambda: torch.arange(3).to(LOW), LOW),
    "softmax of float32": (lambda: torch.softmax(SINGLE, -1, dtype=LOW), LOW),
    "half to float32": (HALF.float, LOW),
    "float64 to half": (lambda: values().half(), torch.float16),
    "float64 to bfloat16": (lambda: values().to(torch.bfloat16), torch.bfloat16),
    "softmax in half": (lambda: torch.softmax(values(), -1, dtype=torch.half), torch.half),
    "float64 to integers": (lambda: values().long(), torch.int64),
    "numbers": (lambda: torch.tensor([1.0, 2.0], dtype=LOW), LOW),
    "new tensors": (lambda: torch.zeros_like(values(), dtype=LOW), LOW),
    "to a device only": (lambda: values().to("cpu"), HIGH),
    "as a float64 tensor": (lambda: values().to(values()), HIGH),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_everything_else_is_untouched(name: str) -> None:
    make, dtype = UNTOUCHED[name]
    with Lift() as lift:
        made = make()
    assert made.dtype is dtype
    assert torch.equal(made, make())
    assert lift.dropped == {}


def test_the_name_of_a_type_is_still_told() -> None:
    with Lift() as lift:
        assert values().type() == "torch.DoubleTensor"
    assert lift.dropped == {}


def test_writing_into_a_dropped_cast_does_not_write_into_its_source() -> None:
    for cast in CASTS.values():
        if cast in (CASTS["as_tensor"], CASTS["asarray"]):
            continue  # these alias on purpose where no cast is needed
        x = values()
        with Lift():
            cast(x).zero_()
        assert torch.equal(x, values())


def test_gradients_are_those_of_float64() -> None:
    def weights(x: Tensor) -> Tensor:
        return F.softmax(x.float() * 3, dim=-1, dtype=LOW).to(x.dtype)

    x = values().requires_grad_()
    with Lift():
        assert torch.autograd.gradcheck(weights, (x,))
        assert torch.autograd.gradgradcheck(weights, (x,))


def test_autocast_leaves_float64_alone_by_itself() -> None:
    x = values()
    with Lift() as lift, torch.autocast("cpu", dtype=torch.bfloat16):
        product = x @ x.mT
        weights = torch.softmax(product, -1)
    assert torch.equal(product, x @ x.mT)
    assert torch.equal(weights, torch.softmax(product, -1))
    assert lift.dropped == {}


def test_it_nests_with_other_modes_and_with_itself() -> None:
    class Names(TorchFunctionMode):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = values()
    with Names() as outer, Lift() as lift, Names() as inner:
        assert x.float().dtype is HIGH
    assert "float" in inner.seen
    assert "clone" in outer.seen
    assert lift.dropped == {"float": 1}
    with Lift() as first, Lift() as second:
        assert x.float().dtype is HIGH
    assert (first.dropped, second.dropped) == ({}, {"float": 1})
    assert x.float().dtype is LOW, "nothing is left behind"


def test_an_empty_row_is_nan_only_because_of_the_cast() -> None:
    # finfo(float64).min is finite; in float32 it is −∞, and a row of −∞ has the softmax 0/0.
    hidden = torch.full((1, 4), torch.finfo(HIGH).min, dtype=HIGH)
    cast = F.softmax(hidden, dim=-1, dtype=LOW)
    assert cast.isnan().all()
    with Lift():
        lifted = F.softmax(hidden, dim=-1, dtype=LOW)
    assert torch.equal(lifted, torch.full_like(hidden, 0.25))


TABLES = {
    "integers": lambda: torch.arange(3).float(),
    "integers by to": lambda: torch.arange(3).to(LOW),
    "integers by type": lambda: torch.arange(3).type(LOW),
    "made with a dtype": lambda: torch.arange(0, 6, 2, dtype=LOW),
    "made from numbers": lambda: torch.tensor([0.1, 0.2]),
    "as another tensor": lambda: torch.arange(3).type_as(torch.ones(2, dtype=LOW)),
    "a float64 tensor": lambda: values().float(),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_made_in_float64_where_that_is_asked_for(name: str) -> None:
    with Lift(tables=True):
        assert TABLES[name]().dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32


def test_complex_tables_have_float64_parts() -> None:
    with Lift(tables=True):
        angle = torch.outer(torch.arange(3), 1.0 / torch.arange(1, 4).float()).float()
        assert torch.polar(torch.ones_like(angle), angle).dtype is torch.complex128
