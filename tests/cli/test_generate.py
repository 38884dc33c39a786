"""``headwise generate`` as it is typed: texts, chats, objects, interruptions and refusals."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
import torch
from tests.cli.fixed import run
from tests.generate.words import TEMPLATE, trained
from tests.test_architecture import heavy_after

from headwise import AttentionSpec, Rope
from headwise.checkpoints.load import Model, save
from headwise.checkpoints.mapping import Account
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.cli.generate import shown
from headwise.generate import decoding

pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tiny LLaMA with a tokenizer and a chat template, as a folder."""
    torch.manual_seed(7)
    one = AttentionSpec(d_model=16, num_heads=2, is_causal=True, positions=Rope(pairs="halves"))
    spec = StackSpec(
        vocabulary=300, attention=(one, one), ffn_width=24, activation="silu", gated=True,
        norm="rms", head="untied", longest=64,
    )  # fmt: skip
    stack = Stack(spec).eval()
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = Model(
        stack=stack, spec=spec, family="llama", path=folder, format="gguf", config={},
        account=Account(used=0, values=0),
    )  # fmt: skip
    save(model, folder, format="safetensors")
    tokenizer = trained("smollm")
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def english(monkeypatch):
    monkeypatch.setenv("HEADWISE_LANG", "en")


def generated(capsys, *arguments: str) -> dict:
    assert run("generate", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: str, code: int = 2) -> str:
    """One message on the error stream, and nothing else."""
    assert run("generate", *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("headwise: ") == 1
    assert "Traceback" not in err
    return re.sub(r"\s+", " ", err)


def test_a_text_and_the_object_agree(capsys, made):
    found = generated(capsys, str(made), "the cat", "--max-tokens", "12")
    (row,) = found["rows"]
    assert run("generate", str(made), "the cat", "--max-tokens", "12") == 0
    out, err = capsys.readouterr()
    assert out == row["text"] + "\n"
    assert err == ""
    assert len(row["tokens"]) == 12
    assert row["stopped"] == "length"
    assert found["options"]["temperature"] == 0.0
    assert found["stats"]["new_tokens"] == 12
    assert found["stats"]["cache_bytes"] > 0
    assert found["stats"]["bound_share"] is None


def test_without_a_cache_and_in_other_dtypes(capsys, made):
    want = generated(capsys, str(made), "the cat", "--max-tokens", "9", "--dtype", "float64")
    found = generated(
        capsys, str(made), "the cat", "--max-tokens", "9", "--dtype", "float64", "--no-cache"
    )
    assert found["rows"][0]["tokens"] == want["rows"][0]["tokens"]
    assert found["stats"]["cache_bytes"] == 0
    assert (want["dtype"], found["dtype"]) == ("float64", "float64")
    half = generated(capsys, str(made), "the cat", "--max-tokens", "3", "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16"


def test_several_prompts(capsys, made):
    prompts = ("the cat sat on 2024 mats", "a", "12  345")
    together = generated(capsys, str(made), *prompts, "--max-tokens", "8", "--top-k", "20")
    for prompt, row in zip(prompts, together["rows"], strict=True):
        alone = generated(capsys, str(made), prompt, "--max-tokens", "8", "--top-k", "20")
        assert alone["rows"] == [row]
    assert run("generate", str(made), *prompts, "--max-tokens", "8", "--top-k", "20") == 0
    out = capsys.readouterr().out
    for number, row in enumerate(together["rows"], 1):
        assert f"[{number}/3] {prompts[number - 1].replace('  ', ' ')}\n{row['text']}\n" in out


def test_seeds(capsys, made):
    draw = (str(made), "the", "--temperature", "2", "--max-tokens", "10", "--seed")
    one, again, other = (generated(capsys, *draw, seed)["rows"] for seed in "112")
    assert one == again
    assert one != other


def test_a_chat(capsys, made):
    found = generated(capsys, str(made), "the cat", "--chat", "--max-tokens", "2")
    tokenizer = trained("smollm")
    text = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert found["rows"][0]["prompt_tokens"] == tokenizer.encode(text).ids


def test_the_standard_input(capsys, made, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("你好".encode())))
    found = generated(capsys, str(made), "-", "--max-tokens", "2")
    assert found["rows"][0]["prompt"] == "你好"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert "no text in UTF-8" in refused(capsys, str(made), "-")
    assert "one prompt only" in refused(capsys, str(made), "-", "-")


def test_figures_go_to_the_error_stream(capsys, made, monkeypatch):
    monkeypatch.setattr("headwise.generate.stats.reading_bytes_per_s", lambda: 2e9)
    assert run("generate", str(made), "the cat", "--max-tokens", "5", "--stats") == 0
    out, err = capsys.readouterr()
    for word in ("tokens/s", "first token after", "ms per step", "KiB", "of the bound"):
        assert word in re.sub(r"\s+", " ", err)
        assert word not in out


def test_an_interruption_keeps_the_text(capsys, made, monkeypatch):
    whole = generated(capsys, str(made), "the cat", "--max-tokens", "12")["rows"][0]["tokens"]
    step = decoding.Run._step

    def interrupted(self, live, going):
        if len(self.rows[0].tokens) == 5:
            raise KeyboardInterrupt
        return step(self, live, going)

    monkeypatch.setattr(decoding.Run, "_step", interrupted)
    assert run("generate", str(made), "the cat", "--max-tokens", "12", "--json") == 130
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["rows"]
    assert (row["tokens"], row["stopped"]) == (whole[:5], "interrupted")
    assert err == "prompt 1: interrupted, after 5 new tokens\n"
    assert run("generate", str(made), "the cat", "--max-tokens", "12") == 130
    assert capsys.readouterr().out == row["text"] + "\n"


def test_a_text_that_reaches_the_end_of_the_model(capsys, made):
    assert run("generate", str(made), "the cat", "--max-tokens", "500") == 0
    tokens = len(trained("smollm").encode("the cat").ids)
    assert capsys.readouterr().err == (
        f"prompt 1: the model takes no more tokens, after {64 - tokens} new tokens\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("the", "--max-tokens", "0"), "max_tokens=0"),
        (("the", "--temperature", "-1"), "temperature=-1.0"),
        (("the", "--temperature", "nan"), "temperature=nan"),
        (("the", "--top-p", "1.5"), "top_p=1.5"),
        (("the", "--top-k", "0"), "top_k=0"),
        (("the", "--temperature", "0", "--top-k", "3"), "nothing is drawn"),
        (("the", "--seed", "-4"), "seed=-4"),
        (("the", "--dtype", "int8"), "--dtype can't take this value"),
        (("cat " * 64,), "the model takes 64"),
        (("",), "a prompt has no token"),
        ((), "PROMPT… is missing"),
        (("the", "--max-token", "3"), "did you mean '--max-tokens'?"),
    ],
)
def test_refusals(capsys, made, arguments, words):
    assert words in refused(capsys, str(made), *arguments)


def test_unknown_models(capsys, tmp_path):
    assert "did you mean 'smollm2-135m'?" in refused(capsys, "smollm2-135", "the")
    assert "there is no" in refused(capsys, str(tmp_path / "nothing.gguf"), "the")


def test_a_model_that_gives_nan(capsys, made, monkeypatch):
    monkeypatch.setattr(Stack, "logits", lambda self, x: torch.full((1, 1, 300), float("nan")))
    found = refused(capsys, str(made), "the", code=3)
    assert "no usable logits: the largest is nan" in found


def test_a_folder_without_tokenizer(capsys, made, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    assert "no tokenizer beside this model" in refused(capsys, str(tmp_path), "the")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes((made / "tokenizer.json").read_bytes())
    assert "no chat template" in refused(capsys, str(tmp_path), "the", "--chat")


def test_control_characters_are_shown_on_a_terminal():
    text = "a\x1b[2J\x07\n\t👋🏽"
    assert shown(text, on_terminal=True) == "a\\x1b[2J\\x07\n\t👋🏽"
    assert shown(text, on_terminal=False) == text


def test_the_help_imports_nothing_heavy():
    assert heavy_after("import headwise.cli.generate as m; m.command()") == []
