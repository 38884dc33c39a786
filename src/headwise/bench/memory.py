"""Peak extra memory of one call, in a process of its own: the high-water mark of the system.

The child makes the inputs, makes one tiny call so that libraries are loaded and pools exist, sets
the mark back, and computes once. Results count as extra memory, inputs do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from headwise.bench.limits import name_of
from headwise.bench.shapes import Shape
from headwise.texts import translate as _

TIMEOUT_S = 300
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def peak_of(shape: Shape, dtype: torch.dtype, seed: int, name: str) -> tuple[int | None, str]:
    """Bytes that a call of a peer, or of ours, needs beyond its inputs; or None and why not."""
    if not _STATUS.exists():
        return None, _("the system does not tell the peak memory of a process")
    request = {
        "shape": shape.to_json(),
        "dtype": name_of(dtype),
        "seed": seed,
        "name": name,
        "threads": torch.get_num_threads(),
    }
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "headwise.bench.memory", json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(request["threads"])},
        )
        return int(done.stdout.split()[-1]), ""
    except subprocess.TimeoutExpired:
        return None, _("it took longer than {seconds} s").format(seconds=TIMEOUT_S)
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return None, last[0]


def _kilobytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise OSError(field)


def _measure(request: dict[str, Any]) -> int:
    """In the child: bytes between the mark before and after one call."""
    from headwise.bench import ours
    from headwise.bench.cases import make_case
    from headwise.bench.peers import PEERS

    torch.set_num_threads(request["threads"])
    shape, dtype = Shape.from_json(request["shape"]), getattr(torch, request["dtype"])
    prepare = ours.prepare if request["name"] == ours.NAME else PEERS[request["name"]].prepare
    with torch.inference_mode(not shape.training):
        tiny = prepare(make_case(_tiny(shape), dtype, request["seed"]))
        tiny.call()
        ready = prepare(make_case(shape, dtype, request["seed"]))
        with contextlib.suppress(OSError):
            _RESET.write_text("5", encoding="ascii")  # the mark falls to what is in use now
        before = _kilobytes("VmHWM")
        kept = ready.call()
        after = _kilobytes("VmHWM")
        del kept
    return (after - before) * 1024


def _tiny(shape: Shape) -> Shape:
    """The same kind of call, with few tokens."""
    few = min(32, shape.kv_len)
    data = shape.to_json()
    data.update(
        batch=min(2, shape.batch),
        q_len=min(few, shape.q_len),
        kv_len=few,
        lengths=(few // 2, few)[: min(2, shape.batch)] if shape.lengths else (),
        documents=(few // 2, few - few // 2) if shape.documents else (),
        window=min(shape.window, few),
    )
    return Shape.from_json(data)


if __name__ == "__main__":
    print(_measure(json.loads(sys.argv[1])))
