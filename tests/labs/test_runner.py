"""Running labs: what is finished is kept, what is asked again is not measured again."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import math
from pathlib import Path

import pytest

from headwise.errors import UsageError
from headwise.labs import lab as lab_module
from headwise.labs import runner
from headwise.labs.lab import Chart, Lab, LabResult, Outcome, Phrase, Series, Sheet
from headwise.registry import Registry


def result_of(name: str, params, seed: int, value: float = 1.5) -> LabResult:
    return LabResult(
        lab=name, params=params, seed=seed, verdict="holds",
        conclusion=(Phrase("{value:.1f} was found", {"value": value}),),
        outcomes=(Outcome("A1.1", "holds", Phrase("{v}", {"v": value}), "numbers"),),
        charts=(),
        sheets=(Sheet("numbers", Phrase("Numbers"), ("x", "y"), ((1, value), (2, None))),),
    )  # fmt: skip


class Bench:
    """Tiny labs that count their runs and can be made to fail."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, dict, int]] = []
        self.failures: dict[str, BaseException] = {}
        self.labs = [self.make(n, name) for n, name in enumerate(("first", "second", "third"), 1)]

    def make(self, number: int, name: str) -> Lab:
        def run(params, seed, progress):
            progress("working", 0.0)
            if name in self.failures:
                raise self.failures[name]
            self.runs.append((name, dict(params), seed))
            progress("done", 1.7)
            return result_of(name, params, seed)

        return Lab(
            name=name, number=number, question=f"{name}?", hypothesis="", varied="", fixed="",
            claims=("A1.1",), minutes=(0.1, 0.2), run=run,
            quick={"draws": 3, "scale": 1.5, "widths": (2, 4), "sizes": ((1, 2),)},
            full={"draws": 30, "scale": 1.5, "widths": (2, 4), "sizes": ((1, 2),)},
            least={"widths": 2},
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        return [name for name, _params, _seed in self.runs]


@pytest.fixture
def bench(monkeypatch):
    made = Bench()
    registry: Registry[Lab] = Registry("lab")
    for lab in reversed(made.labs):
        registry.add(lab.name, lab)
    monkeypatch.setattr(runner, "LABS", registry)
    monkeypatch.setattr(lab_module, "LABS", registry)
    monkeypatch.setattr(runner, "all_labs", lambda: tuple(lab_module.in_order()))
    return made


def quiet(lab: Lab, text: str, share: float) -> None:
    del lab, text
    assert 0.0 <= share <= 1.0


def go(out: Path, *names: str, seed: int = 0, full: bool = False, again: bool = False, **changes):
    jobs = runner.plan(names or ("all",), full=full, seed=seed, changes=changes)
    return list(runner.run_all(jobs, out, quiet, again=again))


def files(out: Path) -> list[str]:
    return sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())


# -- what is chosen -----------------------------------------------------------------------------
def test_labs_come_in_learning_order(bench):
    assert [lab.name for lab in runner.chosen(["third", "first", "third"])] == ["first", "third"]
    assert [lab.name for lab in runner.chosen(["all"])] == ["first", "second", "third"]


@pytest.mark.parametrize("names", [["secnd"], ["all", "secnd"], ["first", "secnd"]])
def test_an_unknown_lab_suggests_the_nearest(bench, names):
    with pytest.raises(UsageError, match="unknown lab 'secnd'") as caught:
        runner.plan(names, full=False, seed=0)
    assert caught.value.fix == "did you mean 'second'?"


def test_a_lab_unlike_any_other_lists_all(bench):
    with pytest.raises(UsageError) as caught:
        runner.plan(["zzz"], full=False, seed=0)
    assert set(caught.value.fix.removeprefix("known: ").split(", ")) == {"first", "second", "third"}


def test_an_unknown_parameter_suggests_the_nearest(bench):
    with pytest.raises(UsageError, match="the lab first has no parameter 'drawss'") as caught:
        runner.plan(["first"], full=False, seed=0, changes={"drawss": 1})
    assert caught.value.fix == "did you mean 'draws'?"


def test_a_parameter_unlike_any_other_lists_all(bench):
    with pytest.raises(UsageError, match="has no parameter 'qq'") as caught:
        runner.plan(["first"], full=False, seed=0, changes={"qq": 1})
    assert caught.value.fix == "draws, scale, widths, sizes"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("draws", 0), ("draws", -3), ("draws", "three"), ("draws", 2.5), ("draws", True),
        ("draws", None), ("draws", (3,)), ("scale", 0.0), ("scale", math.nan),
        ("scale", math.inf), ("scale", "1"), ("widths", 4), ("widths", ()), ("widths", (2, "4")),
        ("widths", (2, 0)), ("widths", (1, 2)), ("widths", {2: 4}), ("sizes", (1, 2)),
        ("sizes", ((1, 2, 3),)), ("sizes", ((1, 2), (1,))),
    ],
)  # fmt: skip
def test_a_value_that_can_not_be_is_refused_before_anything_runs(bench, tmp_path, name, value):
    with pytest.raises(UsageError, match=f"the lab first can't take {name} = ") as caught:
        go(tmp_path / "out", "first", **{name: value})
    assert repr(value) in caught.value.what
    assert repr(bench.labs[0].quick[name]) in caught.value.fix
    assert "\n" not in caught.value.what
    assert bench.runs == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("draws", 1), ("scale", 2), ("scale", 0.25), ("widths", [8]), ("sizes", [[3, 4], [5, 6]])],
)
def test_a_value_of_the_same_kind_is_taken(bench, name, value):
    (job,) = runner.plan(["first"], full=False, seed=0, changes={name: value})
    assert job.params == {**bench.labs[0].quick, name: value}
    assert bench.labs[0].quick["draws"] == 3


# -- what is kept -------------------------------------------------------------------------------
def test_a_stored_result_is_used_again(bench, tmp_path):
    first = go(tmp_path)
    assert bench.names == ["first", "second", "third"]
    second = go(tmp_path)
    assert bench.names == ["first", "second", "third"]
    assert [r.to_json() for r in second] == [r.to_json() for r in first]


def test_again_measures_anew(bench, tmp_path):
    go(tmp_path, "first")
    go(tmp_path, "first", again=True)
    assert bench.names == ["first", "first"]


@pytest.mark.parametrize("other", [{"seed": 1}, {"draws": 4}, {"full": True}])
def test_another_seed_or_parameter_is_another_result(bench, tmp_path, other):
    go(tmp_path, "first")
    go(tmp_path, "first", **other)
    assert len(bench.runs) == 2
    assert bench.runs[0] != bench.runs[1]


def test_lists_and_tuples_are_the_same_parameters(bench, tmp_path):
    go(tmp_path, "first", widths=(3, 5))
    go(tmp_path, "first", widths=[3, 5])
    assert bench.names == ["first"]


def test_another_version_of_headwise_measures_anew(bench, tmp_path, monkeypatch):
    go(tmp_path, "first")
    monkeypatch.setattr(runner, "__version__", "0.0.0.other")
    go(tmp_path, "first")
    assert bench.names == ["first", "first"]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '"x"', '{"key": 1}', '{"result": {}}', "\x00\xff"]
)
def test_a_damaged_result_is_measured_anew(bench, tmp_path, damage):
    go(tmp_path, "first")
    path = runner.result_path(tmp_path, bench.labs[0])
    path.write_bytes(damage.encode("latin-1"))
    go(tmp_path, "first")
    assert bench.names == ["first", "first"]
    assert json.loads(path.read_text())["result"]["lab"] == "first"


def test_a_result_with_the_right_key_and_a_broken_body_is_measured_anew(bench, tmp_path):
    go(tmp_path, "first")
    path = runner.result_path(tmp_path, bench.labs[0])
    data = json.loads(path.read_text())
    for body in ({}, [], "x", {**data["result"], "charts": [{"name": "x"}]}):
        path.write_text(json.dumps({**data, "result": body}))
        go(tmp_path, "first")
    assert bench.names == ["first"] * 5


@pytest.mark.parametrize(
    "failure", [RuntimeError("the second failed"), KeyboardInterrupt(), MemoryError()]
)
def test_a_failure_in_the_second_lab_keeps_the_first(bench, tmp_path, failure):
    bench.failures["second"] = failure
    with pytest.raises(type(failure)):
        go(tmp_path)
    assert files(tmp_path) == ["results/first.json"]
    bench.failures.clear()
    results = go(tmp_path)
    assert [r.lab for r in results] == ["first", "second", "third"]
    assert bench.names == ["first", "second", "third"]


def test_each_result_is_on_disk_before_the_next_begins(bench, tmp_path):
    running = runner.run_all(runner.plan(["all"], full=False, seed=0), tmp_path, quiet)
    for name in ("first", "second", "third"):
        assert next(running).lab == name
        assert (tmp_path / "results" / f"{name}.json").is_file()
        assert bench.names[-1] == name


def test_the_count_of_threads_is_restored(bench, tmp_path):
    import torch

    before = torch.get_num_threads()
    bench.failures["first"] = RuntimeError()
    with pytest.raises(RuntimeError):
        go(tmp_path, "first")
    assert torch.get_num_threads() == before


def test_progress_ends_at_one_and_the_time_is_measured(bench, tmp_path):
    told = []
    jobs = runner.plan(["first"], full=False, seed=0)
    (found,) = runner.run_all(jobs, tmp_path, lambda lab, text, share: told.append((text, share)))
    assert told == [("", 0.0), ("working", 0.0), ("done", 1.0), ("", 1.0)]
    assert found.seconds > 0.0


def test_a_labs_own_failure_says_what_is_safe(bench):
    error = runner.problem(ZeroDivisionError("division by zero"), bench.labs[1])
    assert isinstance(error, UsageError)
    assert error.what == "the lab second stopped: ZeroDivisionError: division by zero"
    assert "kept" in error.fix


# -- folders and disks --------------------------------------------------------------------------
def test_a_folder_that_is_a_file(bench, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UsageError, match="can't write into") as caught:
        go(tmp_path / "out", "first")
    assert "--out" in caught.value.fix
    assert caught.value.why
    assert (tmp_path / "out").read_text() == "mine"
    assert bench.runs == []


def test_a_folder_that_may_not_be_written(bench, tmp_path, monkeypatch):
    def refuse(self, *args, **named):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match="can't write into") as caught:
        go(tmp_path / "out", "first")
    assert caught.value.why == "Permission denied"
    assert bench.runs == []


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes half of a file and is full."""
    real = Path.write_bytes
    state = {"full": True}

    def write(self, data):
        if not state["full"]:
            return real(self, data)
        real(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", write)
    return state


def test_a_full_disk_gives_one_message_and_no_half_of_a_file(bench, tmp_path, full_disk):
    full_disk["full"] = False
    go(tmp_path, "first")
    full_disk["full"] = True
    with pytest.raises(UsageError, match=r"can't write .*second\.json") as caught:
        go(tmp_path)
    assert caught.value.why == "No space left on device"
    assert "finished labs are kept" in caught.value.fix
    assert files(tmp_path) == ["results/first.json"]
    full_disk["full"] = False
    assert [r.lab for r in go(tmp_path)] == ["first", "second", "third"]
    assert bench.names.count("first") == 1


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, full_disk):
    (tmp_path / "report.html").write_text("the old report")
    with pytest.raises(UsageError):
        runner.write_whole(tmp_path / "report.html", "the new report")
    assert (tmp_path / "report.html").read_text() == "the old report"
    assert files(tmp_path) == ["report.html"]


def test_a_file_where_a_folder_should_be_is_a_message_too(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(UsageError, match="can't write"):
        runner.write_whole(tmp_path / "data" / "numbers.csv", "x")
    assert (tmp_path / "data").read_text() == "mine"


def test_writing_makes_the_folder(tmp_path):
    runner.write_whole(tmp_path / "a" / "b" / "text.csv", "爱,1\n")
    runner.write_whole(tmp_path / "a" / "picture.png", b"\x89PNG")
    assert (tmp_path / "a" / "b" / "text.csv").read_bytes() == "爱,1\n".encode()
    assert files(tmp_path) == ["a/b/text.csv", "a/picture.png"]


def test_a_probe_leaves_nothing(tmp_path):
    runner.prepare(tmp_path / "deep" / "out")
    assert files(tmp_path) == []
    assert sorted(p.name for p in (tmp_path / "deep" / "out").iterdir()) == [
        "data", "figures", "results",
    ]  # fmt: skip


# -- data ---------------------------------------------------------------------------------------
def test_a_sheet_as_csv():
    sheet = Sheet(
        "numbers", Phrase("Numbers"), ("name", "value", "ok"),
        (('a, "b"', 0.1 + 0.2, True), ("爱", math.nan, False), ("", None, 7), ("x\ny", 1e-320, 0)),
    )  # fmt: skip
    text = runner.sheet_csv(sheet)
    assert text.splitlines()[0] == "name,value,ok"
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[1] == ['a, "b"', "0.30000000000000004", "True"]
    assert rows[2] == ["爱", "nan", "False"]
    assert rows[3] == ["", "", "7"]
    assert rows[4][0] == "x\ny"
    assert float(rows[4][1]) == 1e-320
    assert "\r" not in text


def test_a_sheet_refuses_rows_of_another_length():
    with pytest.raises(ValueError, match="numbers: 1 cells for 2 columns"):
        Sheet("numbers", Phrase("Numbers"), ("x", "y"), ((1,),))


def whole() -> LabResult:
    return LabResult(
        lab="first", params={"widths": [2, 4], "scale": math.inf}, seed=7,
        verdict="holds-under-conditions",
        conclusion=(Phrase("{gap:.1e} and {bad}", {"gap": 2e-16, "bad": math.nan}),),
        outcomes=(
            Outcome(
                "A1.1", "holds-under-conditions", Phrase("{a}", {"a": math.nan}), "growth",
                Phrase("if {n} > 1", {"n": 2}),
            ),
            Outcome("A1.2", "holds", Phrase("{s:.1f} s", {"s": 0.5}), "numbers", timed=True),
        ),
        charts=(
            Chart(
                "growth", "line", Phrase("Growth"), Phrase("x"), Phrase("y"), Phrase("a line"),
                series=(
                    Series(Phrase("y"), [1, 2], [1.0, None], [-math.inf, None], [math.inf, None]),
                ),
                log_x=True,
            ),
            Chart(
                "grid", "heat", Phrase("Grid"), Phrase("x"), Phrase("y"), Phrase("cells"),
                grid=[[math.nan, None], [1.0, -math.inf]], row_labels=["a", "b"],
            ),
        ),
        sheets=(
            Sheet(
                "numbers", Phrase("Numbers"), ["x", "seconds"], [[1, 0.5], [2, math.nan]],
                (Phrase("x"), Phrase("time")), timed=["seconds"],
            ),
        ),
        seconds=1.25,
    )  # fmt: skip


def test_a_result_comes_back_from_json_with_every_number():
    result = whole()
    text = json.dumps(result.to_json(), allow_nan=False)
    back = LabResult.from_json(json.loads(text))
    assert back.to_json() == result.to_json()
    assert repr(LabResult.from_json(back.to_json())) == repr(back)
    assert math.isnan(back.charts[1].grid[0][0])
    assert back.charts[0].series[0].low[0] == -math.inf
    assert back.params["scale"] == math.inf
    assert math.isnan(back.outcomes[0].measured.fields["a"])
    assert str(back.conclusion[0]) == "2.0e-16 and nan"
    assert str(back.outcomes[0].conditions) == "if 2 > 1"


def test_untimed_drops_times_and_nothing_else():
    data = runner.untimed(whole())
    assert "seconds" not in data
    assert data["sheets"][0]["rows"] == [[1], [2]]
    assert [o["claim"] for o in data["outcomes"]] == ["A1.1"]
    for name in ("conclusion", "charts", "verdict"):
        assert name not in data  # they may speak of times
    assert data["params"] == {"widths": [2, 4], "scale": {"float": "inf"}}


def test_untimed_keeps_everything_where_nothing_is_timed():
    result = whole()
    sheet = dataclasses.replace(result.sheets[0], timed=())
    result = dataclasses.replace(result, outcomes=result.outcomes[:1], sheets=(sheet,))
    data = result.to_json()
    data.pop("seconds")
    assert runner.untimed(result) == data
    slower = dataclasses.replace(result, seconds=99.0)
    assert runner.untimed(slower) == runner.untimed(result)


def test_untimed_sees_a_number_that_changed():
    result = whole()
    sheet = dataclasses.replace(result.sheets[0], rows=[[1, 0.7], [3, 0.1]])
    assert runner.untimed(dataclasses.replace(result, sheets=(sheet,))) != runner.untimed(result)
