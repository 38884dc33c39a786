"""Rounds, medians and ratios, with clocks that only candidates move."""

from __future__ import annotations

import pytest

from headwise.bench.timing import PRIMING, Timings, interleave


class Clock:
    """Seconds that pass only in calls; a script may give each call of a name its own length."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name, seconds):
        lengths = iter(seconds) if isinstance(seconds, list) else None

        def run():
            self.calls.append(name)
            self.now += next(lengths) if lengths else seconds

        return run


@pytest.fixture
def clock():
    return Clock()


def test_one_call_of_each_per_round_in_turning_order(clock):
    calls = {name: clock.call(name, 1.0) for name in "abc"}
    found = interleave(calls, budget_s=0, min_rounds=3, clock=clock)
    warm, timed = clock.calls[:6], clock.calls[6:]
    assert warm == list("aabbcc")
    assert timed == list("abcbcacab")
    assert found.rounds == {name: [1.0] * 3 for name in "abc"}


def test_short_calls_are_primed_and_priming_is_not_timed(clock):
    calls = {"short": clock.call("short", 0.001), "long": clock.call("long", 0.5)}
    found = interleave(calls, budget_s=100.0, max_rounds=2, min_rounds=2, clock=clock)
    assert clock.calls.count("short") == 2 + 2 * (1 + PRIMING)
    assert clock.calls.count("long") == 2 + 2
    assert found.seconds("short") == pytest.approx([0.001] * 2)


def test_the_budget_ends_the_rounds_but_not_before_the_least(clock):
    found = interleave({"a": clock.call("a", 1.0)}, budget_s=10.0, min_rounds=3, clock=clock)
    assert len(found.rounds["a"]) == 10
    found = interleave({"a": clock.call("a", 100.0)}, budget_s=10.0, min_rounds=3, clock=clock)
    assert len(found.rounds["a"]) == 3
    found = interleave({"a": clock.call("a", 0.1)}, budget_s=99.0, max_rounds=7, clock=clock)
    assert len(found.rounds["a"]) == 7


def test_a_hopeless_candidate_is_timed_once(clock):
    calls = {"fast": clock.call("fast", 0.1), "slow": clock.call("slow", 50.0)}
    found = interleave(calls, budget_s=10.0, min_rounds=3, clock=clock)
    assert found.rounds["slow"][:2] == [pytest.approx(50.0), None]
    assert len(found.seconds("slow")) == 1
    assert len(found.seconds("fast")) == 60, "its long call is not taken from the budget"
    assert found.ratio("slow", "fast") == pytest.approx(500.0)
    assert clock.calls.count("slow") == 2, "one to warm up, one timed"


def test_a_slow_case_is_not_hopeless_if_all_are_slow(clock):
    calls = {"a": clock.call("a", 50.0), "b": clock.call("b", 90.0)}
    found = interleave(calls, budget_s=10.0, min_rounds=3, clock=clock)
    assert len(found.seconds("b")) == 3


def test_the_ratio_is_taken_in_every_round_before_the_median():
    # A machine that slows down by ten in the second half: medians of times would mix the halves.
    found = Timings({"ours": [1.0, 1.0, 10.0, 10.0, 10.0], "peer": [2.0, 2.0, 20.0, 20.0, 5.0]})
    assert found.ratio("peer", "ours") == 2.0
    assert found.median("peer") / found.median("ours") == 0.5
    assert found.ratio("nobody", "ours") is None
    assert found.fastest(["ours", "peer"]) == "peer"
    assert found.fastest(["nobody"]) is None


def test_least_and_spread():
    found = Timings({"a": [3.0, 1.0, 2.0, None, 2.0, 2.0], "b": [1.0]})
    assert found.least("a") == 1.0
    assert found.spread("a") == 0.0
    assert found.spread("b") is None
    assert found.median("nobody") is None


def test_a_candidate_that_fails_is_named_and_the_others_go_on(clock):
    def fails():
        raise RuntimeError("no such kernel")

    calls = {"a": clock.call("a", 1.0), "bad": fails}
    found = interleave(calls, budget_s=0, min_rounds=2, clock=clock)
    assert found.failed == {"bad": "RuntimeError: no such kernel"}
    assert list(found.rounds) == ["a"]


def test_an_interruption_keeps_finished_rounds_only(clock):
    lengths = [1.0] * 2 + [1.0] * 3

    def second():
        if clock.calls.count("a") == 5:
            raise KeyboardInterrupt
        clock.call("b", 1.0)()

    calls = {"a": clock.call("a", lengths), "b": second}
    found = interleave(calls, budget_s=100.0, clock=clock)
    assert found.interrupted
    assert found.rounds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_an_interruption_before_the_first_round(clock):
    def stop():
        raise KeyboardInterrupt

    found = interleave({"a": clock.call("a", 1.0), "b": stop}, clock=clock)
    assert found.interrupted
    assert found.median("a") is None
