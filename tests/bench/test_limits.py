"""Limits of the machine and peak memory, with tiny sizes: right orders, no figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.bench.shapes_of import SHAPES

from headwise.bench import limits, machine, memory, ours
from headwise.bench.shapes import self_attention


def test_limits_take_the_fastest_route_that_is_right():
    found = limits.measure((torch.float32, torch.bfloat16), side=64, stream_bytes=1 << 16, calls=1)
    assert set(found.flops) == {"float32", "bfloat16"}
    assert found.flops["bfloat16"] >= found.flops["float32"] > 0
    assert found.bandwidth > 0
    assert set(found.to_json()) == {"gflops", "routes", "gbytes_per_s"}


def test_a_route_that_is_wrong_or_missing_is_not_usable(monkeypatch):
    def products(dtype, side):
        a = torch.eye(side, dtype=dtype)

        def missing():
            raise NotImplementedError

        return {"right": lambda: a @ a, "wrong": lambda: a @ a + 1.0, "missing": missing}

    monkeypatch.setattr(limits, "_products", products)
    assert limits._usable(torch.float32, lambda: 0.0) == ["right"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_routes_compute_the_same_product(dtype):
    calls = limits._products(dtype, 32)
    right = calls["matmul"]().double()
    for route in limits._usable(dtype, lambda: 0.0):
        assert (calls[route]().double() - right).abs().max() < 0.2


def test_what_limits_a_call_is_computing_or_moving():
    found = limits.Limits({"float32": 100.0}, {}, 10.0)
    assert found.seconds(torch.float32, 1000.0, 1.0) == 10.0
    assert found.seconds(torch.float32, 1.0, 1000.0) == 100.0


def test_a_slow_route_is_not_called_again():
    now = [0.0]

    def call():
        now[0] += 5.0

    assert limits._least(call, 10, lambda: now[0]) == 5.0
    assert now[0] == 5.0


def test_the_processor_is_described(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f fma\n\nmodel name : 2\n")
    cpu = machine.describe_cpu(info)
    assert cpu["model"] == "Some CPU"
    assert cpu["flags"] == ["avx2", "fma", "avx512f"]
    assert cpu["threads"] == torch.get_num_threads()
    assert machine.describe_cpu(tmp_path / "none")["flags"] == []
    assert machine.versions()["torch"] == torch.__version__


def test_what_other_processes_take_of_our_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    ours_s = [1.0]
    monkeypatch.setattr(machine.os, "times", lambda: (ours_s[0], 0.0, 0.0, 0.0, 99.0))
    stat = tmp_path / "stat"
    zeros = "0 0 0 0 0 0 0 0 0 0"
    stat.write_text(f"cpu {zeros}\ncpu0 {zeros}\ncpu1 {zeros}\ncpu2 {zeros}\nintr 1\n")
    others = machine.Others(stat)
    assert others.share() == 0.0
    # 10 s passed on each of our two cores: busy for 8 s and 7 s, of which 12 s were ours.
    stat.write_text(
        "cpu0 700 0 100 150 50 0 0 0 700 0\ncpu1 700 0 0 300 0 0 0 0 0 0\n"
        "cpu2 1000 0 0 0 0 0 0 0 0 0\n"
    )
    ours_s[0] += 12.0
    assert others.share() == 0.15
    ours_s[0] += 9.0
    assert others.share() == 0.0
    assert machine.Others(tmp_path / "none").share() is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_peak_memory_of_one_call():
    """Scores of 8 heads × 1024² are 32 MiB, and the naive form holds at least two of them."""
    shape = self_attention(1, 8, 1024, 16)
    peak, why = memory.peak_of(shape, torch.float32, 0, "naive")
    assert why == ""
    assert 60 << 20 < peak < 140 << 20


def test_peak_memory_where_it_can_not_be_had(monkeypatch):
    shape = SHAPES["causal"]
    monkeypatch.setattr(memory, "_STATUS", Path("/no/such/file"))
    assert memory.peak_of(shape, torch.float32, 0, ours.NAME) == (
        None,
        "the system does not tell the peak memory of a process",
    )
    monkeypatch.undo()
    monkeypatch.setattr(memory, "_STATUS", Path(__file__))

    def answer(stdout="", stderr="", error=None):
        def run(*arguments, **_options):
            if error:
                raise error
            return subprocess.CompletedProcess(arguments, 1, stdout, stderr)

        return run

    monkeypatch.setattr(subprocess, "run", answer(stderr="Traceback\nMemoryError: no\n"))
    assert memory.peak_of(shape, torch.float32, 0, "naive") == (None, "MemoryError: no")
    monkeypatch.setattr(subprocess, "run", answer())
    assert memory.peak_of(shape, torch.float32, 0, "naive") == (None, "exit code 1")
    late = subprocess.TimeoutExpired(sys.executable, 300)
    monkeypatch.setattr(subprocess, "run", answer(error=late))
    assert memory.peak_of(shape, torch.float32, 0, "naive") == (None, "it took longer than 300 s")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_first_tiny_call_is_of_the_same_kind(shape):
    tiny = memory._tiny(shape)
    assert (tiny.causal, tiny.module, tiny.training) == (shape.causal, shape.module, shape.training)
    assert bool(tiny.lengths) == bool(shape.lengths)
    assert sum(tiny.documents) in (0, tiny.kv_len)
    assert not tiny.lengths or len(tiny.lengths) == tiny.batch
