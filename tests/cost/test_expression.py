"""Formulas: what is printed is what is computed."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest

from headwise import cost
from headwise.cost.expression import (
    Call,
    Number,
    Size,
    ceiling,
    floor,
    maximum,
    minimum,
    number_text,
    triangle,
)
from headwise.cost.figure import Figure, exact, human, human_value
from headwise.spec import AttentionSpec

_POWERS = {ord(sign): f"**{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}


def recomputed(filled: str) -> float:
    """What a printed formula comes to, read by Python instead of by us."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", filled).translate(_POWERS)
    text = text.replace("·", "*").replace("−", "-").replace("⌈", "ceil(").replace("⌉", ")")
    names = {
        "ceil": math.ceil, "floor": math.floor, "min": min, "max": max,
        "Δ": lambda n: n * (n + 1) / 2 if n > 0 else 0, "__builtins__": {},
    }  # fmt: skip
    return eval(text, names)


@pytest.mark.parametrize(
    ("formula", "text", "filled", "value"),
    [
        (4 * Size("B", 2) * Size("T", 8) * Size("T", 8), "4·B·T²", "4·2·8²", 512),
        ((Size("a", 1) + 2) * Size("b", 3), "(a + 2)·b", "(1 + 2)·3", 9),
        (Size("a", 9) - (Size("b", 3) - 1), "a − (b − 1)", "9 − (3 − 1)", 7),
        (Size("a", 9) - (Size("b", 3) + 1), "a − (b + 1)", "9 − (3 + 1)", 5),
        (10 - Size("a", 9), "10 − a", "10 − 9", 1),
        (1 + Size("a", 9), "1 + a", "1 + 9", 10),
        (12 / Size("a", 9), "12 / a", "12 / 9", Fraction(4, 3)),
        (Size("a", 8) / (Size("b", 2) * 2), "a / (b·2)", "8 / (2·2)", 2),
        (Size("a", 8) / 2 * 3, "(a / 2)·3", "(8 / 2)·3", 12),
        (ceiling(Size("a", 7) / 2), "⌈a / 2⌉", "⌈7 / 2⌉", 4),
        (floor(Size("a", 7) / 2), "floor(a / 2)", "floor(7 / 2)", 3),
        (minimum(Size("a", 7), 5), "min(a, 5)", "min(7, 5)", 5),
        (maximum(Size("a", 7), 5), "max(a, 5)", "max(7, 5)", 7),
        (triangle(Size("a", 4) - 1), "Δ(a − 1)", "Δ(4 − 1)", 6),
        (Size("a", 3) * Size("b", 3), "a·b", "3·3", 9),
        (Number(1.5) * 2, "1.5·2", "1.5·2", 3.0),
    ],
)
def test_a_formula_is_printed_and_evaluated_from_one_tree(formula, text, filled, value):
    assert (formula.text(), formula.filled(), formula.value) == (text, filled, value)
    assert math.isclose(recomputed(formula.filled()), value)


def every_figure():
    for name in ("llama-2-70b", "gpt2", "mistral-7b", "transformer-base", "t5-11b", "bert-base"):
        model = cost.find_architecture(name).model()
        for training in (False, True):
            found = cost.estimate(
                model, batch=2, context=512, dtype="bf16", training=training,
                hardware=[cost.find_machine("a100")],
            )  # fmt: skip
            yield found.parameters
            yield from found.flops.values()
            yield from found.bytes_moved.values()
            yield from found.caches.values()
            yield from found.activations.values()
            yield from found.memory.values()
            for bound in found.bounds:
                yield from (bound.tokens_per_s, bound.intensity, bound.ridge)
    odd = AttentionSpec(
        d_model=22, num_heads=6, num_kv_heads=3, head_dim=8, v_head_dim=10, d_context=13,
        d_values=14, window=(3, 1),
    )  # fmt: skip
    for q_len, kv_len in ((5, 7), (7, 5), (9, 9)):
        yield cost.flops(odd, q_len=q_len, kv_len=kv_len, saving=True, direction="both")
        yield cost.activations(odd, q_len=q_len, kv_len=kv_len)


def test_every_printed_formula_comes_to_its_value():
    """The numbers that are filled in, read back as arithmetic, give the figure again."""
    seen = 0
    for top in every_figure():
        for _depth, figure in top.walk():
            got = recomputed(figure.formula.filled())
            # Speeds and shares are printed with four digits, a few of them per formula.
            rough = any(
                isinstance(leaf.value, (float, Fraction)) for leaf in figure.formula.leaves()
            )
            tolerance = 5e-3 if rough else 0
            assert math.isclose(got, figure.value, rel_tol=tolerance or 1e-15), figure
            seen += 1
    assert seen > 1000


def test_a_text_that_drifts_would_be_found():
    """The negative twin: a node that prints something else than it computes."""
    lying = Call("min", max, (Size("a", 3), Size("b", 4)))
    assert recomputed(lying.filled()) != lying.value


def test_parts_are_the_figures_of_the_formula():
    one, two = Figure("one", 1, "byte"), Figure("two", 2, "byte")
    whole = Figure("whole", one + 3 * two + one, "byte")
    assert whole.parts == (one, two)
    assert whole.part("two") is two
    with pytest.raises(KeyError, match=r"whole has no part 'three'; it has \['one', 'two'\]"):
        whole.part("three")
    assert [figure.name for _depth, figure in whole.walk()] == ["whole", "one", "two"]


def test_json_of_a_figure_opens_into_its_parts():
    data = cost.kv_cache(AttentionSpec(d_model=64, num_heads=4), context=10).to_json()
    assert data["formula"] == "L·B·T·per_token"
    assert data["filled"] == "1·1·10·256"
    assert data["value"] == 2560
    (part,) = data["parts"]
    assert (part["name"], part["value"], part["unit"]) == ("per_token", 256, "byte")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "byte", "0 B"),
        (1000, "byte", "1,000 B"),
        (1536, "byte", "1.5 KiB"),
        (10 * 2**30, "byte", "10 GiB"),
        (-(2**21), "byte", "−2 MiB"),
        (999, "FLOP", "999 FLOP"),
        (1.5e12, "FLOP", "1.5 TFLOP"),
        (2.5e-6, "s", "2.5 µs"),
        (3, "s", "3 s"),
        (133.4, "token/s", "133.4 token/s"),
        (2e9, "byte/s", "2 GB/s"),
        (124439808, "parameter", "124.4 M"),
        (math.inf, "s", "inf s"),
    ],
)
def test_rounded_for_reading(value, unit, text):
    assert human_value(value, unit) == text


def test_numbers_in_formulas():
    assert number_text(10_000) == "10,000"
    assert number_text(Fraction(6, 3)) == "2"
    assert number_text(0.25) == "0.25"
    assert number_text(2.5e20) == "2.5e+20"
    assert exact(math.inf) == "inf"
    assert human(Figure("x", Fraction(1, 2), "byte")) == "0.5 B"


def test_facts_have_no_formula():
    fact = Figure("peak", 3, "FLOP/s", source="somebody")
    assert fact.is_fact
    assert fact.receipt() == "3 FLOP/s"
    assert not Figure("other", Size("T", 3), "token").is_fact
