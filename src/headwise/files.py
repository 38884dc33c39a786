"""Files are written as a whole or not at all; one folder keeps what is worth keeping."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] | None = None, *, platform: str = sys.platform) -> Path:
    """The user's folder for what Headwise keeps between runs; it need not exist.

    ``HEADWISE_CACHE``, else ``XDG_CACHE_HOME/headwise``, else the platform's own place:
    ``~/.cache/headwise``, ``~/Library/Caches/headwise`` or ``%LOCALAPPDATA%/headwise``.

    Args:
        environ: environment variables; None = those of the process.
        platform: as ``sys.platform`` names it.

    Raises:
        OSError: if the user has no home folder and neither variable is set.

    Example:
        >>> cache_folder({"XDG_CACHE_HOME": "kept"}).parts
        ('kept', 'headwise')
        >>> cache_folder({"HEADWISE_CACHE": "mine", "XDG_CACHE_HOME": "kept"}).parts
        ('mine',)
    """
    environ = os.environ if environ is None else environ
    if environ.get("HEADWISE_CACHE"):
        return Path(environ["HEADWISE_CACHE"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "headwise"
    if platform == "win32" and environ.get("LOCALAPPDATA"):
        return Path(environ["LOCALAPPDATA"]) / "headwise"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError("there is no home folder and HEADWISE_CACHE is not set") from error
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "headwise"


def write_whole(path: Path, content: str | bytes, *, errors: str = "strict") -> None:
    """Write a file in one step: an interruption leaves the old file, or none, never half of one.

    Args:
        path: where; its folder has to be there.
        content: text, written as UTF-8, or bytes.
        errors: what becomes of text that UTF-8 can't hold, as for ``str.encode``.

    Raises:
        OSError: if it can't be written; callers say what that means for their users.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder, "a.txt"), "whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a.txt']
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            temporary.write_text(content, encoding="utf-8", errors=errors)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
