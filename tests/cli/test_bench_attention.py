"""``headwise bench attention`` on the command line, with tiny shapes."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("torch")

from tests.bench.shapes_of import SHAPES

from headwise.bench import attention as bench
from headwise.bench import memory
from headwise.bench.limits import Limits
from headwise.bench.peers import PEERS
from headwise.bench.workloads import WORKLOADS
from headwise.cli import main
from headwise.registry import Registry


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setenv("HEADWISE_LANG", "en")
    workloads = Registry("workload")
    for name, kind in (("prefill", "causal"), ("non-causal", "full")):
        workloads.add(name, dataclasses.replace(WORKLOADS[name], shapes=(SHAPES[kind],)))
    monkeypatch.setattr(bench, "WORKLOADS", workloads)
    rates = {"float32": 1e11, "bfloat16": 1e11}
    known = Limits(rates, dict.fromkeys(rates, "matmul"), 1e10)
    monkeypatch.setattr(bench.machine_limits, "measure", lambda dtypes: known)
    monkeypatch.setattr(memory, "peak_of", lambda *_arguments: (None, "not here"))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main.main(["bench", "attention", *arguments])
    return caught.value.code


COMMON = ("--budget", "0", "--dtype", "float32", "--peers", "sdpa,naive")


def test_a_table_for_people(capsys):
    assert run(*COMMON) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Attention beside other libraries, on ")
    assert "prefill: causal, one sequence" in out
    assert "Geometric means and targets" in out
    assert "[2/2] non-causal B2 H4 T24 D16 float32" in err


def test_json_for_programs(capsys):
    assert run(*COMMON, "--json", "--workload", "prefill", "--seed", "7", "--threads", "1") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 7
    assert found["cpu"]["threads"] == 1
    assert found["complete"] is True
    assert [entry["workload"] for entry in found["rows"]] == ["prefill"]
    assert set(found["rows"][0]["peers"]) == {"sdpa", "naive"}


def test_workloads_and_peers_are_listed(capsys):
    assert run("--list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*WORKLOADS, *PEERS))
    assert run("--list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found["peers"]] == list(PEERS)
    assert found["workloads"][0]["dtypes"] == ["float32", "bfloat16"]


def test_a_peer_that_was_asked_for_must_be_there(capsys, monkeypatch):
    absent = dataclasses.replace(PEERS["naive"], name="absent", modules=("no_such_module",))
    peers = Registry("peer")
    for peer in (PEERS["sdpa"], absent):
        peers.add(peer.name, peer)
    monkeypatch.setattr(bench, "PEERS", peers)
    assert run("--budget", "0", "--peers", "sdpa,absent") == 3
    assert capsys.readouterr().err == (
        "headwise: the peer 'absent' was asked for and can't be used here\n"
        "  where  --peers\n"
        "  why    no_such_module is missing\n"
        '  fix    pip install "headwise[bench]"\n'
    )
    assert run("--budget", "0", "--workload", "prefill", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] is False
    assert found["missing"][0]["name"] == "absent"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "prefil"), "unknown workload 'prefil' fix did you mean 'prefill'?"),
        (("--peers", "sdpa,naiv"), "unknown peer 'naiv' fix did you mean 'naive'?"),
        (("--backend", "eagre"), "unknown backend 'eagre' fix did you mean 'eager'?"),
        (("--dtype", "float16"), "--dtype can't take this value"),
    ],
)
def test_unknown_names(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_interruption_prints_what_is_there(capsys, monkeypatch):
    measure_row = bench.measure_row

    def once(workload, *rest):
        if workload.name == "non-causal":
            raise KeyboardInterrupt
        return measure_row(workload, *rest)

    monkeypatch.setattr(bench, "measure_row", once)
    assert run(*COMMON) == 130
    out = capsys.readouterr().out
    assert "prefill: causal" in out
    assert "This run is incomplete" in out
    assert "it was interrupted" in out
