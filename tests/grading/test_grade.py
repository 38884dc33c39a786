"""Marks and hints for right and wrong functions, as learners write them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headwise.errors import TargetError, UsageError
from headwise.grading.grade import grade
from headwise.grading.skeleton import PARTS
from headwise.verifier.faults import find_fault

_spec = importlib.util.spec_from_file_location(
    "grading_solutions", Path(__file__).with_name("solutions.py")
)
solutions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(solutions)
RIGHT, WRONG, solution, wrong = (
    solutions.RIGHT,
    solutions.WRONG,
    solutions.solution,
    solutions.wrong,
)

CODE = ("torch.", ".view", "reshape(", "transpose(", "permute(", "masked_fill", "softmax(", "dim=",
        "sqrt", "[:, None", "@", "tril", "triu", "** -0.5")  # fmt: skip
"""What an answer would be made of."""


def statuses(result) -> dict[str, str]:
    return {mark.part: mark.status for mark in result.marks}


def mark_of(result, part: str):
    return next(mark for mark in result.marks if mark.part == part)


# -- right --------------------------------------------------------------------------------------


def test_a_right_solution_is_right_in_numbers_and_gradients(graded):
    result = graded(solution())
    assert set(statuses(result).values()) == {"right"}
    assert result.verdict == "right"
    for mark in result.marks:
        assert mark.trials
        assert all(trial.passed for trial in mark.trials)
        assert all(trial.forward is not None for trial in mark.trials)
        assert any(trial.gradient is not None for trial in mark.trials)


def test_the_definition_that_stands_in_is_right_itself(graded):
    text = "from headwise.grading.stand_ins import *\n" + solutions.textwrap.dedent(RIGHT["layer"])
    result = graded(text)
    assert result.verdict == "right"
    assert all(not mark.remarks for mark in result.marks)


def test_a_softmax_that_leaves_nan_is_right_with_a_remark(graded):
    (remark,) = mark_of(graded(solution()), "softmax").remarks
    assert "gives NaN" in remark
    assert "HW-M26" in remark


def test_finite_fills_are_right_if_they_hide(graded):
    strong = graded(
        solution(apply_mask=RIGHT["apply_mask"].replace('float("-inf")', "-1e9")), only="mask"
    )
    assert strong.verdict == "right"
    assert mark_of(strong, "apply_mask").remarks == ()
    weak = graded(
        solution(apply_mask=RIGHT["apply_mask"].replace('float("-inf")', "-1e4")), only="mask"
    )
    assert weak.verdict == "right"
    assert "HW-M15" in mark_of(weak, "apply_mask").remarks[0]


def test_float32_inside_is_a_remark(graded):
    code = "def output(merged, w_o):\n    return (merged.float() @ w_o.float()).double()"
    mark = mark_of(graded(solution(output=code), only="output"), "output")
    assert mark.status == "right"
    assert "HW-D02" in mark.remarks[0]


def test_an_argument_that_is_changed_in_place_is_a_remark(graded):
    code = "def add_positions(x, table):\n    x += table[: x.shape[1]]\n    return x"
    mark = mark_of(graded(solution(add_positions=code), only="input"), "add_positions")
    assert mark.status == "right"
    assert "HW-B02" in mark.remarks[0]


def test_other_right_ways_of_writing_are_right(graded):
    result = graded(
        solution(
            project="def project(x, w_q, w_k, w_v):\n"
            "    return [torch.einsum('btd,de->bte', x, w) for w in (w_q, w_k, w_v)]",
            scores="def scores(q, k):\n"
            "    return torch.einsum('bhid,bhjd->bhij', q * q.shape[-1] ** -0.5, k)",
            softmax="def softmax(masked_scores):\n"
            "    m = masked_scores - masked_scores.amax(-1, keepdim=True)\n"
            "    return m.exp() / m.exp().sum(-1, keepdim=True)",
            merge_heads="def merge_heads(context):\n"
            "    return torch.cat(list(context.unbind(1)), dim=-1)",
        )
    )
    assert result.verdict == "right"


# -- wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_function_is_found_and_explained(graded, name):
    text, function, fault = wrong(name)
    result = graded(text, only=function)
    assert statuses(result) == {function: "wrong"}
    assert result.verdict == "wrong"
    mark = mark_of(result, function)
    assert mark.fault == fault
    assert mark.hint
    assert mark.problem
    assert not [word for word in CODE if word in mark.hint], "the hint gives code away"
    if fault:
        assert mark.fault_name == find_fault(fault).name
        assert find_fault(fault).good not in mark.hint
    assert mark.where.startswith(str(Path(result.file)))
    assert any(not trial.passed for trial in mark.trials)


def test_wrong_functions_leave_the_others_right(graded):
    names = ("bare view split", "missing scale", "mask after softmax", "softmax over queries")
    changes = {WRONG[name][0]: WRONG[name][1] for name in names}
    result = graded(solution(**changes))
    assert statuses(result) == {
        part.name: "wrong" if part.name in changes else "right" for part in PARTS
    }


def test_a_problem_says_what_where_and_on_which_input(graded):
    mark = mark_of(graded(wrong("missing scale")[0], only="scores"), "scores")
    assert mark.problem == (
        "150 of 150 numbers differ, most at batch 1, head 1, query 2, key 2: -18.51 instead of "
        "-9.255; on 3 of 3 inputs, such as “sizes that all differ” (B2 T5 H3 Dh4 Dv6 D11)"
    )
    assert "divide" in mark.hint


def test_a_mask_that_only_fits_by_accident_is_wrong_where_it_fits(graded):
    mark = mark_of(graded(wrong("padding hides heads")[0], only="mask"), "apply_mask")
    assert "raises RuntimeError" in mark.problem
    assert "On “padding, sizes that coincide” nothing of the sort shows" in mark.problem


def test_what_is_not_finite_is_said(graded):
    mark = mark_of(graded(wrong("overflow")[0], only="softmax"), "softmax")
    assert "nan at batch 0" in mark.problem
    assert "“large scores”" in mark.problem
    assert [trial.passed for trial in mark.trials] == [True, True, False]


def test_two_mistakes_in_one_function_are_taken_one_by_one(graded):
    code = (
        RIGHT["apply_mask"]
        .replace("1 + t_k - t_q", "1")
        .replace("keep[:, None, None, :]", "keep[:, None, :, None]")
    )
    mark = mark_of(graded(solution(apply_mask=code), only="mask"), "apply_mask")
    assert mark.hint.startswith("There is more than one thing to repair. First “")
    assert mark.fault == "HW-M02"


def test_what_nothing_explains_gets_a_way_to_look(graded):
    code = "def scores(q, k):\n    return (q @ k.transpose(-2, -1)).sin()"
    mark = mark_of(graded(solution(scores=code), only="scores"), "scores")
    assert mark.fault is None
    assert mark.hint == "Compute one score by hand: query 0 with key 1, product by product."


def test_a_wrong_gradient_alone_is_wrong(graded):
    code = (
        "class Half(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.clone()\n\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        return g / 2\n\n\n"
        "def output(merged, w_o):\n"
        "    return Half.apply(merged) @ w_o"
    )
    mark = mark_of(graded(solution(output=code), only="output"), "output")
    assert mark.status == "wrong"
    assert mark.problem.startswith("the numbers are right, the gradient of merged is not")


@pytest.mark.parametrize(
    ("code", "problem", "line"),
    [
        ("def output(merged, w_o):\n    return merged @ w_oo", "raises NameError: name 'w_oo'", 2),
        ("def output(merged):\n    return merged", "raises TypeError: output() takes 1", 1),
        ("def output(merged, w_o):\n    merged @ w_o", "returns None: is a return missing?", 1),
        ("def output(merged, w_o):\n    return 3", "returns int, expected a tensor", 1),
        ("def output(merged, w_o):\n    raise SystemExit(3)", "raises SystemExit: 3", 2),
        ("def output(merged, w_o):\n    return merged, w_o", "returns 2 result(s), expected 1", 1),
        ("def output(merged, w_o):\n    return merged[0]", "returns the shape (5, 18)", 1),
    ],
)
def test_what_goes_wrong_is_said_in_one_line_with_its_place(graded, code, problem, line):
    result = graded(solution(output=code), only="output")
    mark = mark_of(result, "output")
    assert mark.status == "wrong"
    assert mark.problem.startswith(problem)
    assert "\n" not in mark.problem
    assert mark.where == f"{result.file}:{mark.line + line - 1}"


@pytest.mark.parametrize(
    ("function", "code", "hint"),
    [
        ("scores", "def scores(q, k):\n    return q @ k.mT.mT", "Every batch and every head"),
        (
            "merge_heads",
            "def merge_heads(c):\n    return c.transpose(1, 2).view(len(c), c.shape[2], -1)",
            "A transposed tensor still lies in memory",
        ),
        ("output", "def output(m, w_o):\n    return m @ w_o[1:]", "Print the shape after every"),
        ("output", "def output(m, w_o):\n    return m @ W_O", ""),
    ],
)
def test_what_raises_gets_a_hint_where_there_is_one_to_give(graded, function, code, hint):
    mark = mark_of(graded(solution(**{function: code}), only=function), function)
    assert mark.problem.startswith("raises")
    assert mark.hint.startswith(hint)
    assert bool(mark.hint) == bool(hint)


def test_a_function_that_hangs_is_ended_and_the_rest_is_graded(graded):
    code = "def softmax(masked_scores):\n    while True:\n        pass"
    result = graded(solution(softmax=code), timeout=6.0)
    assert {part for part, status in statuses(result).items() if status == "wrong"} == {"softmax"}
    mark = mark_of(result, "softmax")
    assert mark.problem.startswith("does not end within 0.4 s")
    assert mark.where == f"{result.file}:{mark.line + 1}"
    assert mark_of(result, "layer").status == "right"


def test_a_function_that_differs_from_call_to_call_is_wrong(graded):
    code = (
        "COUNT = []\n\n\ndef aggregate(weights, v):\n"
        "    COUNT.append(1)\n"
        "    return weights @ v + (0 if len(COUNT) % 2 else 1)"
    )
    mark = mark_of(graded(solution(aggregate=code), only="aggregate"), "aggregate")
    assert mark.status == "wrong"
    assert mark.problem.startswith("two calls with the same input give different numbers")


# -- not written --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "",
        "def scores(q, k):\n    raise NotImplementedError",
        'def scores(q, k):\n    """Something."""',
        "def scores(q, k):\n    pass",
        "def scores(q, k):\n    ...",
    ],
)
def test_what_is_not_written_is_stood_in_for(graded, code):
    result = graded(solution(scores=code))
    assert statuses(result) == {
        part.name: "not-written" if part.name == "scores" else "right" for part in PARTS
    }
    assert result.verdict == "incomplete"
    assert "the definition stood in for scores" in mark_of(result, "layer").remarks[0]


def test_a_function_of_a_similar_name_is_pointed_out(graded):
    text = solution(scores=RIGHT["scores"].replace("def scores", "def score"))
    (remark,) = mark_of(graded(text), "scores").remarks
    assert remark == "there is no function scores(q, k) in the file; is score meant?"


def test_a_wrong_function_does_not_make_the_layer_wrong(graded):
    result = graded(wrong("missing scale")[0])
    layer = mark_of(result, "layer")
    assert layer.status == "right"
    assert layer.remarks == ("right as it is put together; the definition stood in for scores",)


# -- files --------------------------------------------------------------------------------------


def test_one_function_can_be_chosen_by_its_name_or_its_stage(graded):
    for name in ("merge_heads", "merge"):
        result = graded(wrong("missing scale")[0], only=name)
        assert statuses(result) == {"merge_heads": "right"}
        assert result.verdict == "right"


def test_files_that_can_not_be_graded_are_errors(graded, tmp_path):
    with pytest.raises(UsageError, match="has none of the functions that are graded"):
        graded("x = 1\n")
    with pytest.raises(UsageError, match="there is no file"):
        grade(tmp_path / "nothing.py")
    with pytest.raises(TargetError, match="can't be imported: SyntaxError"):
        graded("def scores(q, k)\n")
    with pytest.raises(TargetError, match="exits while it is imported"):
        graded("import sys\nsys.exit(1)\n")
    with pytest.raises(TargetError, match=r"does not end within 0\.2 s"):
        graded("while True:\n    pass\n", timeout=0.6)
    with pytest.raises(UsageError, match="there is no function or stage 'sofmax'"):
        graded(solution(), only="sofmax")


def test_two_gradings_agree(graded):
    first, second = graded(wrong("off by one")[0]), graded(wrong("off by one")[0])
    assert first.marks == second.marks
