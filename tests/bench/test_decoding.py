"""The bench of decoding on a tiny model: turns, tokens, verdicts, and the command."""

from __future__ import annotations

import json

import pytest
import torch
from tests.cli.fixed import run as command

from headwise import AttentionSpec, Rope
from headwise.bench import decoding
from headwise.bench.decoding import Found, Ours, Plan, compared, run, verdict
from headwise.checkpoints.load import Model, load, save
from headwise.checkpoints.mapping import Account
from headwise.checkpoints.stack import Stack, StackSpec
from headwise.generate import Decoder

pytest.importorskip("transformers")
pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(1)
    one = AttentionSpec(
        d_model=16, num_heads=4, num_kv_heads=2, is_causal=True, positions=Rope(pairs="halves")
    )
    spec = StackSpec(
        vocabulary=50, attention=(one, one), ffn_width=24, activation="silu", gated=True,
        norm="rms", head="untied", longest=512,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = Model(
        stack=Stack(spec).eval(), spec=spec, family="llama", path=path, format="gguf", config={},
        account=Account(used=0, values=0),
    )  # fmt: skip
    save(model, path, format="safetensors")
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(decoding, "reading_bytes_per_s", lambda: 1e9)
    monkeypatch.setenv("HEADWISE_LANG", "en")


def test_everybody_chooses_the_same_tokens(folder):
    plan = Plan(
        model=str(folder), prompts=(3, 20), dtypes=("float32", "bfloat16"), rounds=3, steps=2
    )
    said = []
    found = run(plan, said.append).to_json()
    assert [(row["dtype"], row["prompt_tokens"]) for row in found["rows"]] == [
        ("float32", 3), ("float32", 20), ("bfloat16", 3), ("bfloat16", 20)
    ]  # fmt: skip
    for row in found["rows"]:
        assert row["tokens"] == 9
        assert 0 < row["bound_share"] < 1
        assert row["step_ms"] > 0
        for entry in row["others"].values():
            assert set(row["others"]) == {"dynamic", "static"}
            assert entry["ratio"] > 0
            assert entry["target"] is None  # it was promised for another model
            if row["dtype"] == "float32":
                assert (entry["same_tokens"], entry["gap"]) == (9, None)
    assert len(said) == 7


def test_a_difference_is_reported_with_its_gap(folder):
    model = load(folder)
    decoder = Decoder(model.stack)
    ours = Ours(decoder, [1, 2, 3], 6)
    ours.prefill()
    ours.advance(5)
    other = list(ours.tokens)
    other[4] = (other[4] + 1) % 50
    found = compared(model, ours.run, other)
    ids = torch.tensor([[1, 2, 3, *ours.tokens[:4]]])
    largest = model.stack(ids)[0, -1].detach().topk(2).values
    assert found["same_tokens"] == 4
    assert found["gap"] == pytest.approx(float(largest[0] - largest[1]), rel=1e-3)
    assert compared(model, ours.run, ours.tokens) == {"same_tokens": 6, "gap": None}


def test_what_a_run_can_claim():
    quiet, busy, unknown = (Found(Plan(), others=share) for share in (0.0, 0.3, None))
    assert verdict("bfloat16", "static", 1.2, quiet) == {"target": 1.1, "reached": True}
    assert verdict("bfloat16", "dynamic", 1.2, quiet) == {"target": 1.3, "reached": False}
    assert verdict("float32", "dynamic", 9.0, busy)["reached"] is None
    assert verdict("float32", "dynamic", 9.0, unknown)["reached"] is None


def test_an_interruption_keeps_finished_rows(folder, monkeypatch):
    measure, calls = decoding.measure, []

    def second_time(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(decoding, "measure", second_time)
    plan = Plan(model=str(folder), prompts=(3, 5), dtypes=("float32",), rounds=2, steps=1)
    found = run(plan)
    assert found.interrupted
    assert len(found.rows) == 1


def test_the_command(folder, capsys):
    arguments = ("bench", "decode", str(folder), "--prompt", "4", "--dtype", "float32")
    arguments += ("--rounds", "2", "--steps", "1")
    assert command(*arguments, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["others"]["static"]["same_tokens"] == 4
    assert command(*arguments) == 0
    out = capsys.readouterr().out
    for word in ("4 float32", "dynamic", "static", "4 of 4", "1.0 GB/s"):
        assert word in out
