"""Who multiplies a row: the choice from measured times, and torch's threads meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

from headwise.generate import libraries
from headwise.generate.libraries import Way, fastest, on_one_thread, seconds

CPU = torch.device("cpu")
WIDE, FLAT = (2048, 512), (512, 2048)


def choose(monkeypatch, times, shapes=(WIDE, WIDE, FLAT), **options):
    """The choice by made-up times of torch's rows and columns, then numpy's."""
    layouts = [(lib, layout) for lib in ("torch", "numpy") for layout in ("rows", "columns")]
    table = {
        (lib, shape, layout): time
        for shape, four in times.items()
        for (lib, layout), time in zip(layouts, four, strict=False)
    }
    monkeypatch.setattr(libraries, "is_plain", lambda: False)
    monkeypatch.setattr(libraries, "seconds", lambda shapes, threads: table)
    return fastest(shapes, **{"dtype": torch.float32, "device": CPU} | options)


def test_the_fastest_library_and_its_layouts(monkeypatch):
    times = {WIDE: (4.0, 2.0, 1.0, 3.0), FLAT: (4.0, 4.0, 3.0, 1.0)}
    assert choose(monkeypatch, times) == Way("numpy", {FLAT: "columns"})
    assert choose(monkeypatch, times, by_rows={FLAT}) == Way("numpy", {})


def test_a_little_faster_is_noise(monkeypatch):
    times = {WIDE: (1.05, 1.0, 1.0, 1.0), FLAT: (1.0, 1.0, 0.95, 1.0)}
    assert choose(monkeypatch, times) == Way("torch", {})
    times[WIDE] = (2.0, 1.0, 0.95, 0.95)
    assert choose(monkeypatch, times) == Way("torch", {WIDE: "columns"})


def test_products_count_as_often_as_they_are_made(monkeypatch):
    times = {WIDE: (1.0, 1.0, 2.0, 2.0), FLAT: (2.0, 2.0, 1.0, 1.0)}
    assert choose(monkeypatch, times, (WIDE, FLAT, FLAT, FLAT)).library == "numpy"
    assert choose(monkeypatch, times, (WIDE, WIDE, WIDE, FLAT)).library == "torch"


def test_where_torch_has_one_thread_numpy_is_not_tried(monkeypatch):
    times = {WIDE: (4.0, 1.0), FLAT: (1.0, 2.0)}
    assert choose(monkeypatch, times) == Way("torch", {WIDE: "columns"})


@pytest.mark.parametrize(
    "other",
    [{"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"device": torch.device("meta")}],
    ids=str,
)
def test_only_float32_on_a_cpu_is_timed(monkeypatch, other):
    times = {WIDE: (4.0, 2.0, 1.0, 3.0), FLAT: (4.0, 4.0, 3.0, 1.0)}
    assert choose(monkeypatch, times, **other) == Way()


def test_small_matrices_and_plain_products_are_torchs(monkeypatch):
    times = {WIDE: (4.0, 2.0, 1.0, 3.0), FLAT: (4.0, 4.0, 3.0, 1.0)}
    assert choose(monkeypatch, times, ((8, 8), (256, 256))) == Way()
    monkeypatch.setenv("HEADWISE_PRODUCTS", "plain")
    monkeypatch.undo()
    monkeypatch.setenv("HEADWISE_PRODUCTS", "plain")
    monkeypatch.setattr(libraries, "seconds", None)  # would raise
    assert fastest([WIDE], dtype=torch.float32, device=CPU) == Way()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_measured(monkeypatch, threads):
    monkeypatch.setattr(libraries, "TIMED_BYTES", 2**20)
    monkeypatch.setattr(libraries, "REST_S", 0.0)
    before = torch.get_num_threads()
    seconds.cache_clear()
    found = seconds((WIDE, (64, 32)), threads)
    seconds.cache_clear()
    assert torch.get_num_threads() == before
    want = {"torch", "numpy"} if threads > 1 else {"torch"}
    assert {key[0] for key in found} == want
    assert len(found) == 4 * len(want)
    assert all(value > 0 for value in found.values())
    for library in want:  # a matrix that is larger than what is read is scaled up
        assert found[library, WIDE, "rows"] > found[library, (64, 32), "rows"]


def test_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with on_one_thread(False):
            assert torch.get_num_threads() == 2
        with on_one_thread(True):
            assert torch.get_num_threads() == 1
            with on_one_thread(True):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), on_one_thread(True):
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_contexts_of_two_threads_overlap():
    before = torch.get_num_threads()
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with on_one_thread(True):
            inside.set()
            go_on.wait(20)

    thread = threading.Thread(target=other)
    try:
        torch.set_num_threads(2)
        with on_one_thread(True):
            thread.start()
            assert inside.wait(20)
        assert torch.get_num_threads() == 2  # though the other one is still inside
        go_on.set()
        thread.join(20)
        assert torch.get_num_threads() == 2
    finally:
        go_on.set()
        torch.set_num_threads(before)
