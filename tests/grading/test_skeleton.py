"""The file that asks for the functions."""

from __future__ import annotations

import ast

import pytest

from headwise.errors import UsageError
from headwise.grading.skeleton import PARTS, find_part, skeleton, write_skeleton
from headwise.grading.stand_ins import STAND_INS
from headwise.stages import STAGE_NAMES
from headwise.texts import use_language


def test_there_is_one_function_per_stage_and_one_for_all():
    assert [part.stage for part in PARTS] == [*STAGE_NAMES, "layer"]
    assert set(STAND_INS) == {part.name for part in PARTS} - {"layer"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_skeleton_is_python_with_the_functions_and_nothing_written(language):
    with use_language(language):
        text = skeleton("mine.py")
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions] == [part.name for part in PARTS]
    for function, part in zip(functions, PARTS, strict=True):
        wanted = ast.parse(f"def {part.signature}: ...").body[0]
        assert ast.dump(function.args) == ast.dump(wanted.args)
        assert "(B, " in ast.get_docstring(function)
        assert ast.unparse(function.body[-1]) == "raise NotImplementedError"
    assert "headwise grade mine.py" in ast.get_docstring(tree)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_skeleton_itself_is_graded_as_not_written(graded, language):
    with use_language(language):
        result = graded(skeleton())
    assert {mark.status for mark in result.marks} == {"not-written"}
    assert result.verdict == "incomplete"


def test_the_skeleton_is_in_the_language_of_the_reader():
    with use_language("zh"):
        assert "注意力" in skeleton()


def test_no_file_is_overwritten(tmp_path):
    path = tmp_path / "mine.py"
    write_skeleton(path)
    path.write_text("my work\n")
    with pytest.raises(UsageError, match="exists already"):
        write_skeleton(path)
    assert path.read_text() == "my work\n"


def test_places_that_can_not_be_written_are_errors(tmp_path):
    with pytest.raises(UsageError, match="is not a Python file"):
        write_skeleton(tmp_path / "mine.txt")
    with pytest.raises(UsageError, match="can't write"):
        write_skeleton(tmp_path / "none" / "mine.py")


def test_functions_are_found_by_name_and_by_stage():
    assert find_part("rotate") is find_part("positions")
    with pytest.raises(UsageError, match="no function or stage"):
        find_part("zzz")
