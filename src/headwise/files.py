"""Files are written as a whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path


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
