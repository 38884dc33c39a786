"""What a run may claim: by hand-made rows."""

from __future__ import annotations

import pytest

from headwise.bench import targets
from headwise.bench.peers import PEERS
from headwise.bench.targets import floor, summary
from headwise.bench.workloads import WORKLOADS

FAST = {"flags": ["avx2", "avx512f"], "threads": 2}
ZEN3 = {"flags": ["avx2"], "threads": 2}


def row(workload="prefill", dtype="float32", torch_ratio=2.0, ratio=1.0, tokens=512, **more):
    return {
        "workload": workload,
        "shape": f"T{tokens}",
        "dtype": dtype,
        "torch_ratio": torch_ratio,
        "ratio": ratio,
        "sizes": {"q_len": tokens, "kv_len": tokens},
        "peers": {},
        "error": {"ours": {"max": 1e-7, "rms": 1e-7}},
        **more,
    }


def rows_of(workload, dtype, *ratios, **more):
    return [row(workload, dtype, ratio, **more) for ratio in ratios]


def test_means_are_geometric_and_unknown_ratios_are_not_skipped():
    rows = rows_of("prefill", "float32", 1.0, 2.0, 4.0, 1.0, 4.0)
    (entry,) = summary(rows, FAST)
    assert entry["torch_ratio"] == pytest.approx(2.0)
    assert entry["lowest_torch_ratio"] == 1.0
    assert entry["targets"][0]["state"] == "met"
    rows[0]["torch_ratio"] = None
    (entry,) = summary(rows, FAST)
    assert entry["torch_ratio"] is None
    assert entry["targets"][0]["state"] == "not claimed"
    assert entry["targets"][0]["why"] == "it was not timed"


@pytest.mark.parametrize(
    ("cpu", "count", "missing", "ratio", "state", "why"),
    [
        (FAST, 5, [], 2.0, "met", ""),
        (FAST, 5, [], 1.4, "not met", ""),
        (ZEN3, 5, [], 9.0, "not claimed", "no AVX-512 here"),
        ({**FAST, "threads": 8}, 5, [], 9.0, "not claimed", "8 threads, not 2"),
        (FAST, 4, [], 9.0, "not claimed", "4 of 5 shapes"),
        (FAST, 5, [{"name": "flex-attention", "kind": "torch"}], 9.0, "not claimed",
         "flex-attention is missing"),
        (FAST, 5, [{"name": "openvino", "kind": "library"}], 9.0, "met", ""),
    ],
)  # fmt: skip
def test_nothing_more_is_claimed_than_was_run(cpu, count, missing, ratio, state, why):
    (entry,) = summary(rows_of("prefill", "float32", *[ratio] * count), cpu, missing)
    target = entry["targets"][0]
    assert (target["ratio"], target["state"], target["why"]) == (1.5, state, why)


@pytest.mark.parametrize(("others", "state"), [(None, "met"), (0.05, "met"), (0.3, "not claimed")])
def test_nothing_is_claimed_on_a_shared_processor(others, state):
    (entry,) = summary(rows_of("prefill", "float32", *[2.0] * 5), FAST, (), others)
    assert entry["targets"][0]["state"] == state
    if others == 0.3:
        assert entry["targets"][0]["why"] == "other processes took 30% of the processor"
    assert floor([row()], FAST, (), others)["state"] == state


def test_a_window_is_compared_with_flex_and_with_masks_apart():
    peers = {
        "flex-attention": {"kind": "torch", "ms": 1.0, "ratio": 1.3},
        "sdpa-bool-mask": {"kind": "torch", "ms": 20.0, "ratio": 20.0},
        "sdpa-float-mask": {"kind": "torch", "ms": 9.0, "ratio": 9.0},
    }
    (entry,) = summary([row("window", torch_ratio=1.3, peers=peers)], FAST)
    against = {tuple(t["against"]): (t["measured"], t["state"]) for t in entry["targets"]}
    assert against == {
        ("flex-attention",): (1.3, "met"),
        ("sdpa-bool-mask", "sdpa-float-mask"): (9.0, "not met"),  # the faster of the two
    }


@pytest.mark.parametrize(
    ("gradients", "state"), [([1e-3, 1e-3, 1e-3], "met"), ([1e-3, 2e-3, 1e-3], "not met")]
)
def test_training_counts_only_at_gradients_no_worse_than_sdpas(gradients, state):
    peers = {"sdpa": {"kind": "torch", "ms": 1, "ratio": 2.0, "error": {"gradients": [1e-3] * 3}}}
    error = {"ours": {"max": 0, "rms": 0, "gradients": gradients}}
    rows = rows_of("train", "bfloat16", 2.0, 2.0, 2.0, peers=peers, error=error)
    (entry,) = summary(rows, FAST)
    assert entry["targets"][0]["state"] == state
    assert entry["gradient_ratio"] == max(gradients) / 1e-3
    for each in rows:
        each["peers"] = {}
    assert summary(rows, FAST)[0]["targets"][0]["state"] == "not met", "SDPA was not there"


def test_small_calls_count_microseconds():
    rows = [
        row("small", tokens=16, torch_ratio=0.5, overhead_us=12.0),
        row("small", tokens=64, torch_ratio=0.6, overhead_us=14.0),
        row("small", tokens=128, torch_ratio=1.2, overhead_us=99.0),
        row("small", tokens=32, torch_ratio=1.0, overhead_us=-3.0),
    ]
    (entry,) = summary(rows, FAST)
    assert entry["overhead_us"] == 14.0
    assert entry["targets"][0]["state"] == "met"
    rows[0]["overhead_us"] = 15.1
    assert summary(rows, FAST)[0]["targets"][0]["state"] == "not met"


def test_no_shape_above_64_may_be_slower():
    rows = [row(tokens=64, torch_ratio=0.1), row(tokens=65, torch_ratio=0.95)]
    assert floor(rows, FAST)["state"] == "met"
    rows.append(row("decode", tokens=128, torch_ratio=0.94))
    found = floor(rows, FAST)
    assert found["state"] == "not met"
    assert [entry["workload"] for entry in found["below"]] == ["decode"]
    assert floor(rows, ZEN3)["state"] == "not claimed"
    assert floor([], FAST)["state"] == "not claimed"


def test_targets_name_what_exists():
    for (workload, dtype), promised in targets.TARGETS.items():
        assert dtype in WORKLOADS[workload].dtypes
        assert all(name in PEERS for target in promised for name in target.against)
