"""Large files and folders written as a whole or not at all, without holding them in memory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from headwise.errors import UsageError
from headwise.texts import translate as _


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place to write a file to; it takes its name when the block ends, or vanishes if that fails.

    Raises:
        UsageError: if the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, which must be new or empty: then it appears in one step.

    Raises:
        UsageError: if the folder has something in it already, or can't be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            _("{path} is there already").format(path=path),
            why=_("a checkpoint is written as a whole, into a folder of its own"),
            fix=_("name a folder that is new or empty"),
        )
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rmdir()  # renaming onto an empty folder works on some systems only
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        _("{path} can't be written").format(path=path), why=str(error.strerror or error)
    )
