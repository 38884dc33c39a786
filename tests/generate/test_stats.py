"""Figures of a run, and a bandwidth that no memory here contradicts."""

from __future__ import annotations

import time

import pytest
import torch

from headwise.generate import stats
from headwise.generate.decoding import Clock
from headwise.generate.stats import reading_bytes_per_s, stats_of


def test_a_run_of_one_token_has_no_decoding():
    found = stats_of(Clock(prompt_tokens=8, prefill_s=2.0, first_rows=1), bytes_per_s=1e9)
    assert (found.new_tokens, found.prefill_tokens_per_s, found.first_token_s) == (1, 4.0, 2.0)
    assert found.decode_tokens_per_s is None
    assert found.step_s is None
    assert found.bound_share is None


def test_nothing_was_done_before_an_interruption():
    found = stats_of(Clock(prompt_tokens=8))
    assert (found.new_tokens, found.prefill_tokens_per_s) == (0, None)
    assert found.first_token_s is None


def test_a_step_that_was_interrupted_does_not_count():
    clock = Clock(prompt_tokens=1, prefill_s=1.0, first_rows=2, step_s=[0.5], step_rows=[2, 2])
    clock.cached_bytes, clock.weight_bytes = [10], 90
    found = stats_of(clock, bytes_per_s=400.0)
    assert (found.new_tokens, found.decode_tokens_per_s) == (4, 4.0)
    assert found.bound_share == pytest.approx(0.5)  # 100 bytes: a quarter second of a half


def test_bandwidth_is_what_the_best_way_reads(monkeypatch):
    monkeypatch.setattr(stats, "READ_BYTES", 2**24)
    found = reading_bytes_per_s(seconds=0.02)
    numbers = torch.ones(2**22)
    start = time.perf_counter()
    numbers.sum()
    slowest_that_it_can_be = 2**24 / (time.perf_counter() - start) / 100
    assert found > slowest_that_it_can_be
    assert found < 2e12  # no memory of today reads a terabyte in half a second


def test_bandwidth_takes_the_quickest_way(monkeypatch):
    seconds = iter([0.5, 0.25, 2.0, 1.0])
    monkeypatch.setattr(stats, "_least", lambda way, budget: next(seconds))
    assert reading_bytes_per_s() == stats.READ_BYTES / 0.25
