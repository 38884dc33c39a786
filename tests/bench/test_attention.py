"""A whole run on tiny shapes: what is recorded, what is missing, what an interruption leaves."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from tests.bench.shapes_of import SHAPES

from headwise.bench import attention, memory, ours, row, timing
from headwise.bench.limits import Limits
from headwise.bench.peers import PEERS
from headwise.bench.report import as_document
from headwise.bench.workloads import WORKLOADS
from headwise.errors import UsageError
from headwise.render.json import render_json
from headwise.render.text import render_text

LIMITS = Limits({"float32": 1e11, "bfloat16": 1e11}, {"float32": "x", "bfloat16": "y"}, 1e10)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    monkeypatch.setattr(attention.machine_limits, "measure", lambda dtypes: LIMITS)
    monkeypatch.setattr(memory, "peak_of", lambda *_arguments: (1 << 20, ""))


def tiny_plan(*kinds, peers=("sdpa", "sdpa-bool-mask", "naive"), **options):
    rows = tuple(
        (dataclasses.replace(WORKLOADS["prefill"], name=kind), SHAPES[kind], torch.float32)
        for kind in kinds
    )
    return row.Plan(rows=rows, peers=tuple(PEERS[p] for p in peers), budget_s=0.0, **options)


def test_a_row_says_everything_that_was_promised():
    result = attention.run(tiny_plan("causal")).to_json()
    assert result["complete"]
    assert set(result) >= {
        "cpu", "versions", "seed", "complete", "missing", "limits", "rows", "summary", "floor",
    }  # fmt: skip
    (found,) = result["rows"]
    assert set(found) >= {
        "workload", "shape", "dtype", "ours_ms", "ours_spread", "backend", "best_peer",
        "best_peer_ms", "ratio", "best_torch", "best_torch_ms", "torch_ratio", "limit_share",
        "error", "peak_bytes", "peers",
    }  # fmt: skip
    assert found["best_torch"] in found["peers"]
    assert found["peers"][found["best_torch"]]["ms"] == found["best_torch_ms"]
    assert found["best_torch_ms"] == min(e["ms"] for e in found["peers"].values() if "ms" in e)
    assert found["error"]["ours"]["rms"] < 1e-6
    assert found["error"]["best_torch"]["max"] < 1e-5
    assert found["peak_bytes"] == 1 << 20
    assert found["backend"] == ours.choice(_case("causal"))[0]
    assert json.loads(render_json(result)) == result


def test_a_shared_processor_is_said():
    result = attention.run(tiny_plan("causal")).to_json()
    words = [
        " ".join(render_text(as_document({**result, "others_share": share})).split())
        for share in (0.4, 0.01, None)
    ]
    said = "other processes took 40% of the processor: these times are worth little"
    assert [said in text for text in words] == [True, False, False]


def _case(kind):
    from headwise.bench.cases import make_case

    return make_case(SHAPES[kind], torch.float32, 0)


def test_every_kind_of_row_is_measured_and_shown():
    kinds = ["train", "decode", "padded", "weights", "averaged"]
    if ours.has_module():
        kinds += ["module", "module-train"]
    peers = ("sdpa", "sdpa-bool-mask", "naive", "sdpa-loop", "nn-mha-weights", "hand-written")
    notes = []
    result = attention.run(
        tiny_plan(*kinds, peers=peers, backends=("eager",)), lambda *note: notes.append(note)
    ).to_json()
    assert [found["workload"] for found in result["rows"]] == kinds
    assert len(notes) == 1 + len(kinds)
    train = result["rows"][0]
    assert len(train["error"]["ours"]["gradients"]) == 3
    padded = result["rows"][2]["peers"]
    assert padded["sdpa-loop"]["kind"] == "shown"
    assert "is_causal can't express this mask" in padded["sdpa"]["refused"]
    text = render_text(as_document(result), width=80)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "sdpa-loop fp32 ×" in words
    assert "headwise eager fp32 ×" in words
    assert "This run is incomplete" not in text


def test_ways_around_never_are_the_best_peer():
    state = {
        "sdpa-loop": {"kind": "shown", "ms": 1.0},
        "headwise eager": {"kind": "backend", "ms": 0.5},
        "onnxruntime-gqa": {"kind": "library", "ms": 2.0},
        "sdpa": {"kind": "torch", "ms": 3.0},
        "naive": {"kind": "torch", "refused": "too large"},
    }
    assert row.best_of(state, ("torch", "library")) == "onnxruntime-gqa"
    assert row.best_of(state, ("torch",)) == "sdpa"
    assert row.best_of({}, ("torch",)) is None


def test_small_calls_have_their_overhead():
    workload = dataclasses.replace(WORKLOADS["small"])
    plan = dataclasses.replace(
        tiny_plan("causal"), rows=((workload, SHAPES["causal"], torch.float32),)
    )
    result = attention.run(plan).to_json()
    (found,) = result["rows"]
    difference = (found["ours_ms"] - found["best_torch_ms"]) * 1e3
    assert found["overhead_us"] == pytest.approx(difference, abs=0.1)
    assert result["summary"][0]["overhead_us"] == found["overhead_us"]
    assert "µs" in render_text(as_document(result))


def test_a_missing_peer_is_named_and_the_run_incomplete():
    absent = dataclasses.replace(PEERS["naive"], name="absent", modules=("no_such_module",))
    plan = dataclasses.replace(tiny_plan("causal"), peers=(PEERS["sdpa"], absent))
    result = attention.run(plan).to_json()
    assert not result["complete"]
    assert result["missing"] == [
        {
            "name": "absent",
            "kind": "torch",
            "missing": "no_such_module",
            "install": 'pip install "headwise[bench]"',
        }
    ]
    assert result["rows"][0]["peers"]["absent"] == {"kind": "torch", "missing": "no_such_module"}
    text = " ".join(render_text(as_document(result)).split())
    assert "This run is incomplete" in text
    assert "absent can't take part: no_such_module is missing" in text
    unneeded = dataclasses.replace(absent, refuses=lambda shape, dtype: "never")
    plan = dataclasses.replace(plan, peers=(PEERS["sdpa"], unneeded))
    assert attention.run(plan).complete, "who would not take part is not missed"


@pytest.mark.parametrize("when", ["prepared", "compared", "timed"])
def test_a_peer_that_fails_is_named_and_the_others_go_on(when):
    def make(case):
        if when == "prepared":
            raise RuntimeError("no such kernel")
        ready = PEERS["naive"].prepare(case)
        calls = []

        def call():
            calls.append(1)
            if when == "timed" and len(calls) > 1:
                raise RuntimeError("no such kernel")
            return ready.call()

        def read(raw):
            output = ready.read(raw)
            return output._replace(context=output.context * (1 + (when == "compared")))

        return ready._replace(call=call, read=read)

    broken = dataclasses.replace(PEERS["naive"], name="broken", make=make)
    plan = dataclasses.replace(tiny_plan("causal"), peers=(PEERS["sdpa"], broken))
    run = attention.run(plan)
    entry = run.rows[0]["peers"]["broken"]
    wanted = "its result is wrong: relative error 1" if when == "compared" else "no such kernel"
    assert wanted in entry["failed"]
    assert "ms" not in entry
    assert run.rows[0]["best_torch"] == "sdpa"
    assert not run.complete
    assert "broken" in render_text(as_document(run.to_json()))


def test_a_backend_that_can_not_take_a_row_leaves_the_run_complete():
    run = attention.run(tiny_plan("weights", peers=("naive",), backends=("sdpa",)))
    assert "failed" in run.rows[0]["peers"]["headwise sdpa"]
    assert run.complete


@pytest.mark.parametrize("how", ["raises", "wrong"])
def test_our_own_failure_skips_the_row_and_is_named(how, monkeypatch):
    prepare = ours.prepare

    def broken(case, backend=None):
        if how == "raises":
            raise RuntimeError("bad")
        ready = prepare(case, backend)
        return ready._replace(call=lambda: ready.call() * 2)

    monkeypatch.setattr(ours, "prepare", broken)
    result = attention.run(tiny_plan("causal")).to_json()
    assert result["rows"] == []
    assert not result["complete"]
    assert ("bad" if how == "raises" else "result is wrong") in result["skipped"][0]["reason"]
    assert "This run is incomplete" in render_text(as_document(result))


def test_a_layer_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(ours, "has_module", lambda: False)
    result = attention.run(tiny_plan("module", "causal")).to_json()
    assert [found["workload"] for found in result["rows"]] == ["causal"]
    assert result["skipped"][0]["workload"] == "module"


# -- interruptions ------------------------------------------------------------------------------


def test_an_interruption_between_rows_keeps_the_finished_ones():
    def notify(number, total, what):
        if number == 2:
            raise KeyboardInterrupt

    result = attention.run(tiny_plan("causal", "full"), notify).to_json()
    assert [found["workload"] for found in result["rows"]] == ["causal"]
    assert result["interrupted"]
    assert not result["complete"]
    assert "it was interrupted" in render_text(as_document(result))


def test_an_interruption_within_a_row_keeps_its_finished_rounds(monkeypatch):
    def stopped(candidates, **_options):
        names = list(candidates)
        return timing.Timings({name: [0.001] for name in names}, interrupted=True)

    monkeypatch.setattr(row, "interleave", stopped)
    monkeypatch.setattr(memory, "peak_of", lambda *_: pytest.fail("no child after Ctrl-C"))
    result = attention.run(tiny_plan("causal", "full")).to_json()
    assert [found["ours_ms"] for found in result["rows"]] == [1.0]
    assert result["rows"][0]["interrupted"]
    assert result["interrupted"]


def test_an_interruption_before_the_first_round_drops_the_row(monkeypatch):
    monkeypatch.setattr(row, "interleave", lambda *_, **__: timing.Timings(interrupted=True))
    result = attention.run(tiny_plan("causal", "full")).to_json()
    assert result["rows"] == []
    assert result["interrupted"]
    assert render_text(as_document(result))


# -- plans --------------------------------------------------------------------------------------


def test_plans():
    whole = attention.plan()
    assert len(whole.rows) == sum(len(w.shapes) * len(w.dtypes) for w in WORKLOADS.values())
    assert {peer.name for peer in whole.peers} == set(PEERS)
    quick = attention.plan(quick=True, dtypes=["float32"])
    assert len(quick.rows) == len(WORKLOADS)
    some = attention.plan(workloads=["window", "train"], peers=["sdpa"], dtypes=["bfloat16"])
    assert [w.name for w, _shape, _dtype in some.rows] == ["window", "train", "train", "train"]
    assert some.asked == ("sdpa",)


@pytest.mark.parametrize(("names", "near"), [({"workloads": ["trane"]}, "train"),
                                             ({"peers": ["sdp"]}, "sdpa")])  # fmt: skip
def test_unknown_names_suggest_the_nearest(names, near):
    with pytest.raises(UsageError) as caught:
        attention.plan(**names)
    assert caught.value.fix == f"did you mean {near!r}?"
