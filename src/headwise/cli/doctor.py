"""``headwise doctor``: what a bug report needs. Nothing that is missing makes it fail."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headwise import __version__
from headwise.cli import messages
from headwise.document import Document, Pairs
from headwise.processor import CPUINFO, cores, read_processor
from headwise.texts import CATALOGUES, LANGUAGES, current_language, untranslated
from headwise.texts import translate as _

_LIBRARIES = (
    "torch", "numpy", "rich", "click", "jinja2", "transformers", "safetensors", "gguf",
    "tokenizers", "onnx", "onnxruntime", "matplotlib", "starlette", "uvicorn",
)  # fmt: skip
_FEATURES = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni",
    "amx_tile", "amx_bf16", "asimd", "sve", "bf16",
)  # fmt: skip
_PROBE_S = 60


def command() -> click.Command:
    """The command with its help texts in the current language."""

    @click.command(
        name="doctor",
        cls=messages.Command,
        help=_("Versions, CPU, backends, languages and fonts: what a bug report needs."),
    )
    @click.option("--json", "as_json", is_flag=True, help=_("Print one JSON object."))
    @messages.language_flag
    @click.option("--traceback", is_flag=True, help=_("Show the traceback behind an error."))
    def doctor(*, as_json: bool, traceback: bool) -> int:
        del traceback  # read by headwise.cli.main
        found = examine()
        if as_json:
            from headwise.render.json import render_json

            click.echo(render_json(found), nl=False)
        else:
            messages.show_document(as_document(found), sys.stdout)
        return 0

    return doctor


def examine() -> dict[str, Any]:
    """All facts, as plain data; what could not be found out is null or says why."""
    cpu = cpu_facts()
    return {
        "headwise": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu["model"],
        "cpu_features": cpu["features"],
        "cores": cores(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "torch": torch_facts(),
        "language": current_language(),
        "languages": {code: _catalogue_state(code) for code in LANGUAGES},
        "chinese_font": chinese_font(),
        "encoding": sys.stdout.encoding,
    }


def as_document(found: Mapping[str, Any]) -> Document:
    """The facts for people."""
    libraries = found["libraries"]
    torch = found["torch"]
    rows = [
        ("headwise", found["headwise"]),
        ("python", f"{found['implementation']} {found['python']}"),
        (_("system"), found["platform"]),
        (
            _("processor"),
            _("{model}, {cores} cores").format(
                model=found["cpu"] or found["machine"], cores=found["cores"]
            ),
        ),
        (_("features"), ", ".join(found["cpu_features"]) or _("unknown")),
        *_torch_rows(torch),
        (_("libraries"), ", ".join(f"{name} {v}" for name, v in libraries.items() if v)),
        (_("missing"), ", ".join(name for name, version in libraries.items() if not version)),
        (
            _("languages"),
            ", ".join(f"{code} ({state})" for code, state in found["languages"].items()),
        ),
        (_("Chinese font"), found["chinese_font"] or _("none found")),
        (_("encoding"), str(found["encoding"])),
    ]
    return Document(
        _("This is what a bug report needs"),
        (Pairs(tuple((label, text) for label, text in rows if text)),),
        current_language(),
    )


def _torch_rows(torch: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "error" in torch:
        return [("torch", _("can't be imported: {error}").format(error=torch["error"]))]
    devices = [*torch["accelerators"], *(["mps"] if torch["mps"] else [])]
    facts = _("{threads} threads, vectors {capability}, accelerators: {devices}").format(
        threads=torch["threads"],
        capability=torch["cpu_capability"],
        devices=", ".join(devices) or _("none"),
    )
    return [
        ("torch", f"{torch['torch']}, {facts}"),
        (_("SDPA backends"), ", ".join(torch["sdpa_backends"])),
    ]


def cpu_facts(path: Path = CPUINFO) -> dict[str, Any]:
    """Model and the features that matter for kernels, where the system tells them."""
    found = read_processor(path)
    return {
        "model": found.model,
        "features": [name for name in _FEATURES if name in found.features],
    }


def torch_facts(
    command: tuple[str, ...] = (sys.executable, "-m", "headwise.cli.probe"),
) -> dict[str, Any]:
    """What torch says about itself, asked in another process; ``{"error": ...}`` if it can't."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    try:
        facts: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": last[0]}
    return facts


def chinese_font() -> str | None:
    """The font for Chinese that the system would use, where ``fc-list`` can tell."""
    program = shutil.which("fc-list")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with fixed arguments
            [program, ":lang=zh-cn", "family"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    families = sorted({line.split(",")[0].strip() for line in done.stdout.splitlines() if line})
    return families[0] if families else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _catalogue_state(code: str) -> str:
    if code not in CATALOGUES:
        return _("source")
    total, left = untranslated(code)
    if not total:
        return _("catalogue missing")
    return (
        _("complete") if not left else _("{left} of {total} missing").format(left=left, total=total)
    )
