"""Attention functions registered with transformers: both halves, one half, or a wrong half."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headwise
from headwise.errors import UsageError
from headwise.integrations.implementations import (
    Implementation,
    definition_of,
    look_up,
    raised_at,
    registration_of,
)
from headwise.integrations.transformers import load
from headwise.verifier.faults import FAULTS

FUNCTION = """
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function
from transformers.masking_utils import eager_mask, sdpa_mask


def my_attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


NAME = "mine"
AttentionInterface.register(NAME, my_attention)
"""
WHOLE = 'AttentionMaskInterface.register("mine", eager_mask)\n'
OPEN = """

def open_mask(*args, mask_function=None, **kwargs):
    return eager_mask(*args, mask_function=bidirectional_mask_function, **kwargs)


AttentionMaskInterface.register("mine", open_mask)
"""
SDPA = """
import sys
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

AttentionInterface.register(key="mine", value=sdpa_attention_forward)
"""


@pytest.fixture(autouse=True)
def clean_tables():
    tables = (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping)
    locals_ = (ALL_ATTENTION_FUNCTIONS._local_mapping, ALL_MASK_ATTENTION_FUNCTIONS._local_mapping)
    before = [dict(table) for table in (*tables, *locals_)]
    yield
    for table, old in zip((*tables, *locals_), before, strict=True):
        table.clear()
        table.update(old)


def written(folder: Path, *parts: str) -> tuple[str, list[str]]:
    """A file of the user, and its lines."""
    file = folder / "mine.py"
    text = "".join(parts).lstrip("\n")
    file.write_text(text, encoding="utf-8")
    return str(file), text.splitlines()


def verified(model_type: str, *imports: str, name: str = "mine", **more: object) -> headwise.Report:
    return headwise.verify(
        f"hf:{model_type}", attn_implementation=name, imports=list(imports), **more
    )


def types(*more: str) -> list[object]:
    """Llama, and further types in the long run."""
    return ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in more)]


def line_with(lines: list[str], text: str) -> int:
    return next(n for n, line in enumerate(lines, 1) if text in line)


# -- only half of the registration --------------------------------------------------------------


@pytest.mark.parametrize("model_type", types("gpt2", "mistral", "bert"))
def test_half_a_registration_is_named_with_its_line(model_type, tmp_path):
    file, lines = written(tmp_path, FUNCTION)
    report = verified(model_type, file)
    assert report.verdict == "differs"
    found = report.findings[0]
    assert (found.code, found.kind, found.stage) == ("HW-M30", "bug", "mask")
    registered, defined = line_with(lines, ".register(NAME"), line_with(lines, "def my_attention")
    assert (found.file, found.line, found.lines) == (file, registered, (registered, defined))
    assert "AttentionMaskInterface does not" in found.where
    assert found.residual_after < 1e-12 < found.residual_before
    assert [f.code for f in report.findings if f.kind == "bug"] == ["HW-M30"]


def test_without_padding_it_is_the_same_as_a_missing_causal_mask(tmp_path):
    file, _lines = written(tmp_path, FUNCTION)
    found = verified("llama", file, case="plain").findings[0]
    assert found.code == "HW-M30"
    assert "HW-M05" in found.equivalents


def test_a_function_that_is_causal_by_itself_still_loses_the_padding(tmp_path):
    file, lines = written(tmp_path, SDPA)
    found = verified("llama", file).findings[0]
    assert found.code == "HW-M30"
    assert "HW-M04" in found.equivalents
    assert (found.file, found.line) == (file, line_with(lines, "register("))
    assert "left padding" in found.where


def test_an_item_of_the_instance_is_no_registration():
    AttentionInterface.register("item", my_function)
    ALL_MASK_ATTENTION_FUNCTIONS["item"] = my_function
    sentences = look_up("item").evidence()["M30"].sentences
    assert "an item of ALL_MASK_ATTENTION_FUNCTIONS is not looked at" in sentences[1]


# -- both halves --------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", types("gpt2", "mistral", "bert"))
def test_a_whole_registration_matches(model_type, tmp_path):
    file, _lines = written(tmp_path, FUNCTION, WHOLE)
    report = verified(model_type, file)
    assert report.verdict == "matches"
    assert not [f for f in report.findings if f.kind == "bug"]
    assert any(check.name.startswith("gradient of") for check in report.checks)
    assert all(check.passed for check in report.checks)


def test_a_wrong_mask_function_is_a_missing_causal_mask_at_its_line(tmp_path):
    file, lines = written(tmp_path, FUNCTION, OPEN)
    found = verified("llama", file).findings[0]
    assert (found.code, found.name) == ("HW-M05", "causal-mask-missing")
    assert (found.file, found.line) == (file, line_with(lines, "def open_mask"))
    assert "shows 15 of 15 later keys" in found.where
    assert "HW-M30" not in found.equivalents  # numbers alone never name it
    assert list(FAULTS["M30"].variants(load("llama").spec)) == []


@pytest.mark.parametrize("model_type", types("mistral"))
def test_a_mask_that_is_left_to_is_causal_is_a_missing_causal_mask(model_type, tmp_path):
    boolean = FUNCTION.replace(
        "scores + attention_mask", 'scores.masked_fill(~attention_mask, float("-inf"))'
    )
    half = 'AttentionMaskInterface.register("mine", sdpa_mask)\n'
    file, lines = written(tmp_path, boolean, half)
    report = verified(model_type, file)
    found = report.findings[0]
    assert found.code == "HW-M05"
    assert "leaves it to is_causal" in found.where
    assert (found.file, found.line) == (file, line_with(lines, "weights = scores"))
    assert [f.code for f in report.findings if f.kind == "bug"] == ["HW-M05"]


def test_a_wrong_function_is_located_in_the_users_file_and_blamed_for_nothing_else(tmp_path):
    file, lines = written(tmp_path, FUNCTION.replace("else scaling", "else 2 * scaling"), WHOLE)
    report = verified("llama", file)
    found = report.findings[0]
    assert found.code == "HW-S07"
    assert (found.file, found.line) == (file, line_with(lines, "2 * scaling"))
    assert "HW-D02" not in {f.code for f in report.findings}  # nothing inside is float32


@pytest.mark.parametrize("model_type", types("gpt2", "mistral", "bert", "qwen2", "qwen3"))
def test_ours_matches_gradients_included(model_type):
    report = verified(model_type, name="headwise")
    assert report.verdict == "matches"
    assert any(check.name.startswith("gradient of") for check in report.checks)
    assert all(check.passed for check in report.checks)
    again = load(model_type, attn_implementation="headwise")  # its plan is made: no softmax runs
    assert again.layer_name == load(model_type).layer_name


# -- what is looked up --------------------------------------------------------------------------


def test_names_that_nothing_is_registered_under():
    with pytest.raises(UsageError) as caught:
        look_up("sdap")
    assert caught.value.fix == "did you mean 'sdpa'?"
    with pytest.raises(UsageError) as caught:
        look_up("something/else")
    assert "--import FILE" in caught.value.fix
    AttentionMaskInterface.register("masked", lambda *_args, **_kwargs: None)
    with pytest.raises(UsageError) as caught:
        look_up("masked")
    assert "an attention function is not" in caught.value.why


def test_evidence_needs_the_second_half_to_be_missing():
    assert look_up("eager").evidence() == {}
    assert look_up("sdpa").evidence() == {}
    assert look_up("headwise").evidence() == {}
    AttentionInterface.register("half", sdpa_attention_forward)
    evidence = look_up("half").evidence()["M30"]
    assert (evidence.file, evidence.lines) == (__file__, (line_of_half(),))


def line_of_half() -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return line_with(lines, 'register("half", sdpa')


def test_a_right_mask_is_no_evidence():
    mine = Implementation("mine", my_function, None, None, my_function)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    added = torch.zeros(1, 1, 6, 6).masked_fill(~causal, torch.finfo(torch.float32).min)
    assert mine.evidence_of_mask(causal) == mine.evidence_of_mask(added) == {}
    causal[0, 0, 0, 1] = True
    sentence = mine.evidence_of_mask(causal)["M05"].sentences[0]
    assert sentence == "the mask that the model hands over shows 1 of 15 later keys"
    assert "is None" in mine.evidence_of_mask(None)["M05"].sentences[0]


def my_function(*_args, **_kwargs):
    raise ValueError("no")


class Callable:
    def __call__(self):
        """One more form of a function."""

    def method(self):
        """Another one."""


def test_where_functions_are_defined():
    line = my_function.__code__.co_firstlineno
    assert definition_of(my_function) == (__file__, line)
    assert definition_of(functools.partial(my_function, 1)) == (__file__, line)
    assert definition_of(functools.wraps(my_function)(lambda: None)) == (__file__, line)
    assert definition_of(Callable()) == (__file__, Callable.__call__.__code__.co_firstlineno)
    assert definition_of(Callable().method)[1] == Callable.method.__code__.co_firstlineno
    assert definition_of(sdpa_attention_forward) == (None, None)
    assert definition_of(len) == (None, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('AttentionInterface.register("lined", f)', 1),
        ('# first\nAttentionInterface.register(key="lined", value=f)', 2),
        ('WORD = "lined"\nALL_ATTENTION_FUNCTIONS.register(WORD, f)', 2),
        ('ALL_ATTENTION_FUNCTIONS["lined"] = f', 1),
        ('AttentionInterface.register("other", f)', None),
        ('AttentionMaskInterface.register("lined", f)', None),
        ('ALL_MASK_ATTENTION_FUNCTIONS["lined"] = f', None),
        ("AttentionInterface.register(", None),
    ],
)
def test_lines_that_register(text, line, tmp_path, monkeypatch):
    file, _lines = written(tmp_path, text)
    module = ModuleType("lined")
    module.__file__, module.WORD = file, "lined"
    monkeypatch.setitem(sys.modules, "lined", module)
    found = registration_of(Implementation("lined", my_function, file, 1))
    assert found == (None if line is None else (file, line))


# -- errors in what is imported -----------------------------------------------------------------


def test_errors_of_what_is_imported_and_called_name_their_line(tmp_path):
    file, _lines = written(tmp_path, "\nnumber = 1 / 0\n")
    report = verified("llama", file)
    assert report.verdict == "cannot-run"
    assert "ZeroDivisionError" in report.reason.what
    assert report.reason.where.endswith("mine.py:1")
    with pytest.raises(UsageError, match="there is no file"):
        verified("llama", str(tmp_path / "other.py"))
    with pytest.raises(UsageError, match="there is no module"):
        verified("llama", "no_such_module_here")
    raising = FUNCTION.replace("    groups =", '    raise RuntimeError("boom")\n    groups =')
    file, lines = written(tmp_path, raising)
    report = verified("llama", file)
    assert report.verdict == "cannot-run"
    assert report.reason.why == "RuntimeError: boom"
    assert report.reason.where.endswith(f"mine.py:{line_with(lines, 'boom')}")


def test_where_an_error_was_raised_ends_at_our_own_frames():
    with pytest.raises(ValueError, match="no") as caught:
        my_function()
    assert raised_at(caught.value).endswith(f":{my_function.__code__.co_firstlineno + 1}")
    with pytest.raises(UsageError) as ours:
        look_up("nothing")
    assert raised_at(ours.value) == ""


def test_imports_apply_to_other_targets_too(tmp_path):
    (tmp_path / "flag.py").write_text("import torch\ntorch.headwise_test_flag = True\n")
    scaled = torch.nn.functional.scaled_dot_product_attention
    assert headwise.verify(scaled, imports=[str(tmp_path / "flag.py")]).verdict == "matches"
    assert torch.headwise_test_flag
    del torch.headwise_test_flag


@pytest.mark.slow
def test_the_command_imports_files_and_modules_of_the_working_directory(tmp_path, capsys):
    from headwise.cli import main

    file, lines = written(tmp_path, FUNCTION)
    for name in (file, "mine"):  # a module is looked for in the working directory
        words = ["verify", "hf:llama", "--attn-implementation", "mine", "--json", "--import", name]
        with contextlib.chdir(tmp_path), pytest.raises(SystemExit) as ended:
            main.main([*words, "--timeout", "300", "--lang", "en"])
        assert ended.value.code == 1
        found = json.loads(capsys.readouterr().out)["findings"][0]
        assert (found["code"], found["line"]) == ("HW-M30", line_with(lines, ".register(NAME"))
        assert found["repeat"].endswith(f"--attn-implementation mine --import {name}")
