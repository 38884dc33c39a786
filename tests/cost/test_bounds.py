"""Rooflines by hand, whole estimates, and the report."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from headwise import cost
from headwise.cost import measured, summary
from headwise.cost.hardware import Hardware
from headwise.cost.report import document
from headwise.document import Document, Pairs, Table
from headwise.errors import UsageError
from headwise.spec import AttentionSpec
from headwise.texts import use_language

SPEC = AttentionSpec(d_model=64, num_heads=4, num_kv_heads=2, is_causal=True)
SLOW = Hardware("slow", "A slow machine", {"float32": 3e9}, 1e9, 10**9, 2**15, "made up")


def test_decoding_by_hand():
    model = cost.of_spec(SPEC, layers=3)
    bound = cost.roofline(model, SLOW, phase="decode", batch=2, context=90, dtype="float32")
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32)
    cache = 3 * 2 * 90 * 2 * 32 * 4
    flops = 3 * 2 * (2 * (2 * 64 * 64 + 2 * 64 * 32) + 4 * 90 * 64)
    memory, compute = bound.seconds.part("memory"), bound.seconds.part("compute")
    assert memory.part("bytes").value == weights * 4 + cache
    assert compute.part("FLOPs").value == flops
    assert bound.seconds.value == memory.value == (weights * 4 + cache) / 1e9
    assert compute.value == flops / 3e9 < memory.value
    assert bound.binds == "memory"
    assert bound.tokens_per_s.value == 2 / bound.seconds.value
    assert bound.needs.value == weights * 4 + cache
    assert bound.ridge.value == 3


def test_what_binds_follows_the_machine():
    model = cost.find_architecture("llama-2-7b").model()
    a100 = cost.find_machine("a100")
    prefill, decode = (
        cost.roofline(model, a100, phase=phase, context=4096) for phase in ("prefill", "decode")
    )
    assert (prefill.binds, decode.binds) == ("compute", "memory")
    assert prefill.intensity.value > prefill.ridge.value > decode.intensity.value
    slow = dataclasses.replace(a100, flops_per_s={"bfloat16": 1e9})
    assert cost.roofline(model, slow, phase="decode", context=4096).binds == "compute"


def test_training_needs_weights_gradients_and_states():
    model = cost.of_spec(SPEC)
    count = cost.model_parameters(model).value
    for dtype, each in (("bfloat16", 16), ("float32", 16)):
        need = cost.memory_needed(model, phase="training", context=8, dtype=dtype)
        assert need.part("weights_and_states").value == count * each


def test_a_model_that_does_not_fit_says_so():
    model = cost.find_architecture("llama-2-70b").model()
    bound = cost.roofline(model, cost.find_machine("a100"), phase="decode", context=4096)
    assert not bound.fits
    assert bound.to_json()["needs_bytes"] == 139_295_473_664


def test_a_machine_without_a_speed_in_the_dtype():
    with pytest.raises(UsageError, match="NVIDIA V100 SXM2 32GB has no published speed in bf"):
        cost.roofline(cost.of_spec(SPEC), cost.find_machine("v100"), phase="decode", context=4)
    found = cost.estimate(cost.of_spec(SPEC), hardware=[cost.find_machine("v100")], context=4)
    assert (found.bounds, found.skipped) == ((), ("NVIDIA V100 SXM2 32GB",))


@pytest.mark.parametrize(("name", "near"), [("a10O", "a100"), ("h10", "h100"), ("thsi", "this")])
def test_an_unknown_machine_suggests_the_nearest(name, near):
    with pytest.raises(UsageError) as caught:
        cost.find_machine(name)
    assert f"'{near}'" in caught.value.fix


def test_every_machine_has_a_source():
    for key, machine in cost.machines().items():
        assert machine.source, key
        assert machine.memory_bytes > 2**30
        assert machine.fast_memory_bytes < 2**20


# -- estimates ----------------------------------------------------------------------------------
def test_the_context_is_what_the_model_is_made_for_and_at_most_4096():
    for name, context in (("gpt2", 1024), ("llama-7b", 2048), ("qwen2.5-7b", 4096)):
        assert cost.estimate(cost.find_architecture(name).model()).context == context


def test_the_three_layouts_of_llama_2_70b():
    model = cost.find_architecture("llama-2-70b").model()
    found = cost.estimate(model, context=4096, compare=["mha", "gqa-8", "mqa"])
    assert [(one.name, one.cache.value, one.is_own) for one in found.layouts] == [
        ("MHA", 10 * 2**30, False),
        ("GQA-8", 1_342_177_280, True),
        ("MQA", 160 * 2**20, False),
    ]


def test_everything_in_json_has_value_and_receipt():
    model = cost.find_architecture("gpt2").model()
    data = cost.estimate(model, hardware=[cost.find_machine("a100")]).to_json()
    for name in (
        "parameters", "flops", "bytes", "kv_cache_bytes", "activation_bytes", "roofline",
    ):  # fmt: skip
        entry = data[name]
        assert isinstance(entry["value"], (int, float)), name
        receipt = entry["receipt"]
        assert receipt["value"] == entry["value"]
        assert receipt["formula"]
        assert receipt["filled"]
        assert receipt["parts"] or receipt["formula"] == receipt["filled"]
    assert data["flops"]["value"] == data["flops"]["variants"]["forward"]["value"]
    training = cost.estimate(model, training=True).to_json()
    assert training["flops"]["value"] == 3 * data["flops"]["value"]


def test_no_torch_is_needed():
    code = (
        "import sys\nfrom headwise import cost\n"
        "cost.estimate(cost.find_architecture('llama-2-70b').model(), compare=['mqa'])\n"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- the report ---------------------------------------------------------------------------------
def report(name="llama-2-70b", language="en", **options) -> Document:
    with use_language(language):
        found = cost.estimate(
            cost.find_architecture(name).model(),
            hardware=[cost.find_machine("a100"), cost.find_machine("v100")],
            compare=["mha", "mqa"],
            **options,
        )
        return document(found)


def texts(found: Document) -> str:
    def strings(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            for item in value:
                yield from strings(item)

    return "\n".join(w for block in found.blocks for w in strings(dataclasses.astuple(block)))


def test_an_estimate_beyond_the_memory_says_so_first(monkeypatch):
    monkeypatch.setattr(summary, "memory_here", lambda: 16 * 2**30)
    found = report()
    warnings = [block.text for block in found.blocks if getattr(block, "tone", "") == "warn"]
    assert warnings == [
        "needs 129.7 GiB, this machine has 16 GiB: it does not fit; nothing was allocated"
    ]
    assert found.blocks.index(next(b for b in found.blocks if getattr(b, "tone", "") == "warn")) < 2
    monkeypatch.setattr(summary, "memory_here", lambda: 2**40)
    assert "does not fit" not in texts(report())
    monkeypatch.setattr(summary, "memory_here", lambda: None)
    assert "does not fit" not in texts(report())


def test_the_report_opens_every_figure():
    found = report()
    receipts = [block for block in found.blocks if isinstance(block, Pairs)]
    labels = {
        label.strip("\N{NO-BREAK SPACE}") for block in receipts for label, _text in block.rows
    }
    assert {"parameters", "q_proj", "scores", "pairs", "per_token", "weights", "rows", "peak",
            "bandwidth", "linear_per_token"} <= labels  # fmt: skip
    assert "= Hkv·(Dk + Dv)·s\n= 8·(128 + 128)·2" in texts(found)
    assert "NVIDIA V100 SXM2 32GB: no speed in bfloat16 is known" in texts(found)


def test_the_tables_of_the_report():
    tables = [block for block in report().blocks if isinstance(block, Table)]
    cells = {row for table in tables for row in table.rows}
    assert ("KV cache", "1.25 GiB", "1,342,177,280") in cells
    assert any(row[0] == "GQA-8 ←" for row in cells)
    assert ("the four projections", "9216", "18,432", "9216 / 18,431") in cells
    assert {row[3] for row in cells if len(row) == 4 and row[0] in ("8", "64")} == {"150,994,944"}


@pytest.mark.parametrize("name", list(cost.architectures()))
@pytest.mark.parametrize("training", [False, True])
def test_every_model_has_a_report(name, training):
    found = cost.estimate(
        cost.find_architecture(name).model(), training=training, batch=2,
        hardware=[cost.find_machine("h100")], compare=["mqa"],
    )  # fmt: skip
    assert len(document(found).blocks) > 10


def test_a_layer_with_a_window_never_overtakes():
    found = cost.estimate(cost.of_spec(SPEC.replace(window=(9, 0))), context=100)
    assert "never" in texts(document(found))


# -- measured figures ---------------------------------------------------------------------------
def test_measured_figures_are_kept_until_something_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "inner"))
    assert measured.load() is None
    machine = dataclasses.replace(SLOW, key="this")
    measured.store(machine)
    assert measured.load() == machine
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert measured.load() is None
    monkeypatch.delenv("OMP_NUM_THREADS")
    measured.cache_file().write_text("{}", encoding="utf-8")
    assert measured.load() is None


def test_where_they_are_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured.cache_file() == tmp_path / "headwise" / "machine.json"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "file"))
    measured.store(SLOW)
    assert measured.load() is None
