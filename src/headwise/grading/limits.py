"""A limit of time for a call in this process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class OverTimeError(BaseException):
    """A call did not end in time. No ``Exception``, so that ``except Exception`` lets it pass."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ``OverTimeError`` inside the block after some time, where the system can.

    It needs an alarm signal and the main thread; elsewhere the block is not limited.

    Example:
        >>> import time
        >>> try:
        ...     with at_most(0.05):
        ...         time.sleep(5)
        ... except OverTimeError:
        ...     print("ended")
        ended
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not is_main:
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OverTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
