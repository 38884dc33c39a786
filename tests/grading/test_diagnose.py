"""The catalogue as a source of hints: what a function can have has a hint, none gives code away."""

from __future__ import annotations

import pytest

from headwise.grading.cases import samples
from headwise.grading.diagnose import Answer, computed, diagnose, variants_of
from headwise.grading.hints import HINTS, STAGE_HINTS
from headwise.grading.parts import ADAPTERS
from headwise.grading.skeleton import PARTS
from headwise.texts import translate as _
from headwise.texts import use_language
from headwise.verifier.faults import FAULTS

STAGES = [part.stage for part in PARTS]
REMARKS = {"M15", "M26", "M27", "D02", "B02"}
BY_RULE = {"X04", "T01", "axes", "factor"}


def answers_of(stage: str, code: str) -> list[Answer] | None:
    """What a function with a fault would return, by the fault's first variant that shows."""
    chosen = samples()[stage]
    for index in range(max(len(list(variants_of(stage, FAULTS[code], s))) for s in chosen)):
        answers = []
        for sample in chosen:
            leaves = ADAPTERS[stage].leaves(sample)
            answer = Answer(stage, sample, leaves, None)
            variants = list(variants_of(stage, FAULTS[code], sample))
            if index < len(variants):
                outputs = computed(stage, variants[index], answer)
                outputs = answer.right if isinstance(outputs, str) else outputs
            else:
                outputs = answer.right
            answers.append(Answer(stage, sample, leaves, outputs))
        if any(a.outputs is not None and not a.is_right for a in answers):
            return answers
    return None


@pytest.mark.parametrize(
    ("stage", "count"),
    [("input", 1), ("projection", 4), ("split", 2), ("positions", 4), ("scores", 6), ("mask", 16),
     ("softmax", 4), ("aggregate", 1), ("merge", 3), ("output", 1)],
)  # fmt: skip
def test_what_a_function_can_have_is_recognised_and_has_a_hint(stage, count):
    recognised = 0
    for code in FAULTS:
        answers = answers_of(stage, code)
        if answers is None:
            continue  # it changes nothing here, or not in this function
        found = diagnose(stage, answers)
        assert found is not None, code
        assert code in (found.code, *found.equivalents)
        assert found.code in HINTS
        assert code in HINTS
        recognised += 1
    assert recognised >= count


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_right_is_not_explained(stage):
    answers = []
    for sample in samples()[stage]:
        answer = Answer(stage, sample, ADAPTERS[stage].leaves(sample), None)
        answers.append(Answer(stage, sample, answer.leaves, answer.right))
    assert diagnose(stage, answers) is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_hint_holds_code(language):
    words = ("torch.", ".view", "reshape(", "transpose(", "permute(", "masked_fill", "softmax(",
             "dim=", "sqrt(", "None", "@", "tril", "triu", "detach")  # fmt: skip
    with use_language(language):
        for text in (*HINTS.values(), *STAGE_HINTS.values()):
            assert not [word for word in words if word in _(text)]


def test_every_hint_belongs_to_something():
    assert set(HINTS) <= set(FAULTS) | BY_RULE
    assert set(STAGE_HINTS) == set(STAGES)
    assert set(HINTS) >= REMARKS | BY_RULE
