"""The ten stages: names, tensors, shapes and letters agree with the design and the definition."""

from __future__ import annotations

import pytest
import torch
from tests.reference.draws import cross_inputs, head_inputs, parameters_for
from tests.sizes import AWKWARD

from headwise.errors import UsageError
from headwise.reference import STAGE_FUNCTIONS, Inputs, Parameters, attend
from headwise.stages import PLACES, STAGE_NAMES, STAGES, place_of


def test_ten_stages_in_data_flow_order():
    assert STAGE_NAMES == (
        "input",
        "projection",
        "split",
        "positions",
        "scores",
        "mask",
        "softmax",
        "aggregate",
        "merge",
        "output",
    )
    assert list(STAGE_FUNCTIONS) == list(STAGE_NAMES)


def test_every_tensor_belongs_to_one_stage_and_has_a_shape():
    tensors = [name for stage in STAGES for name in stage.tensors]
    assert len(tensors) == len(set(tensors))
    assert all(len(stage.tensors) == len(stage.shapes) for stage in STAGES)


def test_letters_are_unique_among_stages_and_places():
    letters = [stage.letter for stage in STAGES if stage.letter] + list(PLACES)
    assert len(letters) == len(set(letters))


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("P01", "projection"),
        ("H01", "split"),
        ("R01", "positions"),
        ("S01", "scores"),
        ("HW-M02", "mask"),
        ("X01", "softmax"),
        ("A01", "aggregate"),
        ("G01", "merge"),
        ("HW-O01", "output"),
        ("C01", "cache"),
        ("D01", "precision"),
        ("B01", "behaviour"),
        ("HW-T01", "gradient"),
    ],
)
def test_place_of_a_code(code, place):
    assert place_of(code) == place


@pytest.mark.parametrize("code", ["Z01", "", "HW-", "HW-U00"])
def test_a_code_of_no_stage_is_refused(code):
    with pytest.raises(UsageError, match=f"the fault code '{code}' belongs to no stage"):
        place_of(code)


def _sizes(text):
    """Shapes in letters, as numbers."""
    letters = vars(AWKWARD)
    found = []
    for axis in text.split():
        size = 1
        for letter in axis.split("·"):
            size *= letters[letter]
        found.append(size)
    return tuple(found)


def test_the_definition_writes_exactly_these_tensors_in_these_shapes():
    spec = AWKWARD.spec(d_context=AWKWARD.Dm, biases="qkvo")
    inputs = Inputs(
        x=torch.ones(AWKWARD.B, AWKWARD.Tq, AWKWARD.Dm, dtype=torch.float64),
        context=torch.ones(AWKWARD.B, AWKWARD.Tk, AWKWARD.Dm, dtype=torch.float64),
    )
    trace = attend(spec, parameters_for(spec), inputs)
    found = {name: tuple(tensor.shape) for name, tensor in trace.stage_tensors().items()}
    want = {
        name: _sizes(shape)
        for stage in STAGES
        for name, shape in zip(stage.tensors, stage.shapes, strict=True)
    }
    assert found == want
    assert list(found) == list(want)


def test_a_function_of_heads_skips_the_stages_of_a_layer():
    spec = AWKWARD.spec()
    inputs = head_inputs(spec, batch=AWKWARD.B, q_len=AWKWARD.Tq, kv_len=AWKWARD.Tk)
    trace = attend(spec, Parameters(), inputs)
    assert list(trace.stage_tensors()) == [
        "q",
        "k",
        "v",
        "q_pos",
        "k_pos",
        "scores",
        "masked_scores",
        "weights",
        "context",
        "output",
    ]
    assert trace.output is trace.context


def test_all_tensors_come_in_the_order_in_which_they_are_written():
    spec = AWKWARD.cross_spec(sinks=True)
    inputs = cross_inputs(spec, batch=2, q_len=AWKWARD.Tq, kv_len=AWKWARD.Tk)
    written: list[str] = []

    def watched(function):
        def run(trace, setting):
            before = set(trace.all_tensors())
            function(trace, setting)
            written.extend(name for name in trace.all_tensors() if name not in before)

        return run

    replace = {name: watched(function) for name, function in STAGE_FUNCTIONS.items()}
    trace = attend(spec, parameters_for(spec), inputs, replace=replace)
    assert list(trace.all_tensors()) == written
    assert {"visible", "row_max", "shifted_scores", "k_shared", "v_shared"} <= set(written)
