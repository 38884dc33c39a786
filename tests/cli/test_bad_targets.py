"""Targets that go wrong, from the command line to the message, with nothing replaced.

Each starts a process that imports torch, so most are marked slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources

import jsonschema
import pytest

SCHEMA = json.loads(resources.files("headwise").joinpath("report.schema.json").read_text())

LAYER = """
import os, sys, time
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, d_model=16, num_heads=2):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        INIT

    def forward(self, x):
        BEFORE
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o((w @ v).transpose(1, 2).flatten(2))

def not_attention():
    pass

NUMBER = 3
"""


@pytest.fixture
def headwise(tmp_path):
    """Run ``headwise verify`` on a layer with code put into its constructor or its forward."""

    def run(*flags: str, init="pass", before="pass", top="", name="Layer"):
        source = LAYER.replace("INIT", init).replace("BEFORE", before) + top
        (tmp_path / "layer.py").write_text(source)
        return subprocess.run(
            [sys.executable, "-m", "headwise", "verify", f"layer.py:{name}", *flags],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "HEADWISE_LANG": "en"},
        )

    return run


def report(done) -> dict:
    data = json.loads(done.stdout)
    jsonschema.validate(data, SCHEMA)
    return data


def test_a_right_layer_that_prints_matches_and_json_stays_one_object(headwise):
    done = headwise(
        "--json", before="print('noise'); os.write(1, b'noise'); print('x', file=sys.stderr)"
    )
    assert (report(done)["verdict"], done.returncode, done.stderr) == ("matches", 0, "")


def test_a_layer_that_hangs(headwise):
    done = headwise("--timeout", "8", before="\n        while True: time.sleep(0.01)")
    assert done.returncode == 3
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "CANNOT RUN  layer.py:Layer  there is no verdict"
    assert lines[1] == "  what   verifying layer.py:Layer did not end within 8 s"
    assert lines[2] == "  where  while: case one token, layer.py:15"
    assert "Traceback" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        {"before": "sys.exit(3)"},
        {"before": "os._exit(0)"},
        {"before": "os.abort()"},
        {"init": "sys.exit(0)"},
        {"top": "sys.exit(0)\n"},
        {"before": "raise RuntimeError('always')"},
    ],
)
def test_a_layer_that_never_runs(headwise, code):
    done = headwise("--json", **code)
    data = report(done)
    assert (data["verdict"], done.returncode, done.stderr) == ("cannot-run", 3, "")
    assert data["reason"]["what"]
    assert data["reason"]["fix"]
    done = headwise(**code)
    assert done.returncode == 3
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_traceback_is_shown_on_request(headwise):
    done = headwise("--traceback", before="raise RuntimeError('always')")
    assert done.returncode == 3
    assert "Traceback (most recent call last)" in done.stderr
    assert "RuntimeError: always" in done.stderr


@pytest.mark.slow
def test_a_layer_that_forks_is_contained(headwise):
    done = headwise("--json", before="os.fork()" if hasattr(os, "fork") else "pass")
    assert (report(done)["verdict"], done.returncode) == ("matches", 0)


@pytest.mark.slow
def test_a_layer_that_raises_on_some_inputs_has_a_finding(headwise):
    done = headwise("--json", before="assert x.shape[1] != 1, 'no single tokens'")
    data = report(done)
    assert (data["verdict"], done.returncode) == ("differs", 1)
    assert data["findings"]


@pytest.mark.slow
def test_a_layer_that_changes_its_input_has_a_finding(headwise):
    done = headwise("--json", before="x.mul_(2)")
    data = report(done)
    assert (data["verdict"], done.returncode) == ("differs", 1)
    assert data["findings"][0]["code"] == "HW-B02"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "options", "message"),
    [
        ([], {"name": "Layr"}, "did you mean 'Layer'?"),
        ([], {"name": "NUMBER"}, "NUMBER"),
        (["--init", "width=3"], {}, "width"),
        (["--d-model", "15", "--heads", "4"], {}, "15"),
        (["--heads", "6", "--kv-heads", "4", "--d-model", "24"], {}, "num_kv_heads=4"),
    ],
)
def test_what_the_user_got_wrong_is_a_usage_error(headwise, flags, options, message):
    done = headwise(*flags, **options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headwise: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
