"""The folder of pulled models: a model's folder appears there as a whole or not at all.

What is being written lies beside its final place, under a name that starts with a dot, and is
renamed at the end. One process at a time may write a model; the system releases the lock of a
process that was killed, so whatever the next one then finds half written is left over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headwise.errors import UsageError
from headwise.files import cache_folder
from headwise.texts import translate as _

_POLL_S = 0.2


def models_folder() -> Path:
    """Where pulled models lie; it need not exist.

    Raises:
        UsageError: if there is no cache folder.
    """
    try:
        return (cache_folder() / "models").absolute()
    except OSError as error:
        raise _unwritable("", error) from error


@contextlib.contextmanager
def new_folder(target: Path, *, waiting: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """An empty working folder beside ``target``, gone after the block whatever happens in it.

    Leftovers of processes that were killed are removed first. Only one process at a time is in
    such a block for the same target.

    Args:
        target: the place that the block may fill, with `put_in_place`.
        waiting: called once if another process is there already.

    Raises:
        UsageError: if the folder can't be written, in the block too (the disk may be full).
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock"), waiting) as alone:
            if alone:
                for left in target.parent.glob(f".{target.name}.*.tmp"):
                    shutil.rmtree(left, ignore_errors=True)
            working = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
            try:
                working.mkdir()
                yield working
            finally:
                shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        raise _unwritable(str(target), error) from error


def put_in_place(filled: Path, target: Path) -> None:
    """Rename a filled folder to its final place; one that lies there already makes way.

    Call it inside the block of `new_folder`, with folders inside its working folder: what made
    way is removed with that. If the rename fails, the old folder comes back.

    Args:
        filled: the folder, inside the working folder.
        target: its final place.
    """
    sync_folder(filled)
    old = filled.with_name("old")
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    try:
        filled.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    sync_folder(target.parent)


def remove(target: Path) -> bool:
    """Remove a model's folder; it is gone at once, even if the removal is interrupted.

    Returns:
        Whether there was one.
    """
    if not target.is_dir():
        return False
    with new_folder(target) as working:
        try:
            target.rename(working / "old")
        except FileNotFoundError:
            return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder, and in those inside it, last through a power failure."""
    if sys.platform == "win32":  # folders can't be opened there
        return
    for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        descriptor = os.open(inner, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _lock(path: Path, waiting: Callable[[], object]) -> Iterator[bool]:
    """Hold a lock file, which is removed at the end.

    Yields:
        True; False where the file system knows no locks, so that others may be at work too.
    """
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            found = _try_lock(descriptor)
            # The one who held it may have removed the file that was opened here.
            if found is not False and _is_still(path, descriptor):
                try:
                    yield found is True
                finally:
                    with contextlib.suppress(OSError):
                        path.unlink()
                return
        finally:
            os.close(descriptor)
        if found is False:
            if not told:
                waiting()
                told = True
            time.sleep(_POLL_S)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int) -> bool | None:
    """True: locked; False: somebody else has it; None: there are no locks here."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _unwritable(where: str, error: OSError) -> UsageError:
    return UsageError(
        _("the model can't be kept in the cache folder"),
        where=where,
        why=str(error.strerror or error),
        fix=_("make room there, or set HEADWISE_CACHE to a folder that can be written"),
    )
