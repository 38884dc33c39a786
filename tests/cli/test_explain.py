"""``headwise explain`` as it is typed: maps, verdicts, page, JSON, and what it refuses."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.fixed import run
from tests.test_architecture import heavy_after

pytest.importorskip("transformers")

TEXT = "the cat sat on the mat because it was very tired"
QUICK = ("--method", "weights", "--method", "rollout", "--method", "hidden", "--no-curves")


@pytest.fixture(autouse=True)
def english(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def said(capsys, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Both streams of a run, with their white space evened out."""
    assert run("explain", *arguments) == code
    found = capsys.readouterr()
    return re.sub(r"\s+", " ", found.out), re.sub(r"\s+", " ", found.err)


def refused(capsys, *arguments: str, code: int = 2) -> str:
    """One message, without a traceback."""
    out, err = said(capsys, *arguments, code=code)
    assert out == ""
    assert err.count("headwise: ") == 1
    assert "Traceback" not in err
    return err


def test_a_tiny_model_in_the_terminal(capsys):
    out, err = said(capsys, "hf:llama", TEXT, *QUICK)
    assert "hf:llama (llama): 2 layers, 4 heads over 2" in out
    assert "predicted at token 10 'tired'" in out
    assert "May these maps be believed?" in out
    assert "attention rollout" in out
    assert "verdicts of 8 heads" in out
    assert "loading hf:llama" in err


def test_one_json_object_with_the_command_to_repeat(capsys):
    assert run("explain", "hf:llama", TEXT, *QUICK, "--json", "--target", "#7", "--seed", "3") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["question"]["words"].startswith("the logit of '#7'")
    assert data["repeat"] == (
        f"headwise explain hf:llama '{TEXT}' --target '#7' --method weights --method rollout "
        "--method hidden --seed 3"
    )
    assert data["seed"] == 3
    assert [m["name"] for m in data["trust"]["maps"]] == ["weights", "rollout"]
    again = data["repeat"].removeprefix("headwise ")
    assert run(*__import__("shlex").split(again), "--no-curves", "--json") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["maps"] == data["maps"] and second["trust"] == data["trust"]


def test_the_page_is_written_as_a_whole(capsys, tmp_path):
    out, _err = said(capsys, "hf:bert", TEXT, *QUICK, "--html", "page.html")
    assert "page: page.html" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_chinese_and_hostile_words(capsys, tmp_path):
    text = "你好 </script><script>alert(1)</script> \u202e abc \x00 猫 坐 在 那里"
    said(capsys, "hf:llama", text, *QUICK, "--html", "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "猫" in page or "\\u732b" in page


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("nothing-such", TEXT), "unknown model 'nothing-such'"),
        (("smollm2-135", TEXT), "did you mean 'smollm2-135m'?"),
        (("hf:lama", TEXT), "did you mean 'llama'?"),
        (("hf:llama", " "), "the text is empty"),
        (("hf:llama", "word " * 65), "it has 65 tokens, the model takes 64"),
        (("hf:llama", TEXT, "--target", "#61"), "token 61 is outside the vocabulary"),
        (("hf:llama", TEXT, "--position", "11"), "there is no token 11"),
        (("hf:llama", TEXT, "--method", "weihgts"), "unknown method 'weihgts'"),
        (("hf:llama", TEXT, "--html", "no/such/page.html"), "the page can't be written"),
        (("hf:llama", TEXT, "--target", "class:0"), "has no classes"),
    ],
)
def test_mistakes_of_the_user_get_one_message(capsys, arguments, what):
    assert what in refused(capsys, *arguments)


def test_a_model_that_was_not_pulled_says_how(capsys):
    assert "headwise models pull minilm" in refused(capsys, "minilm", TEXT)


def test_a_model_without_attention_can_t_be_explained(capsys):
    err = refused(capsys, "hf:mamba", TEXT, code=3)
    assert "no attention that can be watched" in err or "has no softmax attention" in err


def test_a_folder_without_a_model(capsys, tmp_path):
    assert "holds no model" in refused(capsys, str(tmp_path), TEXT)


def test_an_interruption_leaves_no_page(capsys, monkeypatch, tmp_path):
    from headwise.explain.methods.rollout import Rollout

    def stop(*_arguments, **_settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(Rollout, "explain", stop)
    _out, err = said(capsys, "hf:llama", TEXT, *QUICK, "--html", "page.html", code=130)
    assert "interrupted" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_hugging_face_with_its_tokenizer(capsys, tmp_path):
    """A saved model is explained like a pulled one: tokens come from its own tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from headwise.integrations.loading import tiny

    folder = tmp_path / "model"
    subject = tiny("llama")
    subject.model.save_pretrained(folder)
    words = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *TEXT.split(), "猫"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)
    assert run("explain", str(folder), TEXT + " 猫", *QUICK, "--target", "mat", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tokens"][-1]["text"] == "猫"
    assert data["question"]["words"].startswith("the logit of 'mat'")
    assert "is not one token" in refused(capsys, str(folder), TEXT, "--target", "mat cat")


def test_help_imports_nothing_heavy():
    code = (
        "from headwise.cli.main import main\n"
        "try:\n    main(['explain', '--help'])\nexcept SystemExit as error:\n"
        "    assert error.code == 0"
    )
    assert heavy_after(code) == []
