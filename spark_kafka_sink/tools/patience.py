"""Calls a function when work takes so long that its user may think that it hangs. The tools then print a line on stderr."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

PATIENCE_S = 10
GRACE_S = 0.5  # so that nothing is printed just before a time-out of ten seconds


@contextlib.contextmanager
def say_if_slow(say: Callable[[], object], after_s: float = PATIENCE_S + GRACE_S) -> Iterator[None]:
    """Call `say` once, on another thread, if the block takes longer than `after_s` seconds.

    The thread is a daemon: it keeps no process alive, even if an interrupt prevents its cancellation.
    """
    timer = threading.Timer(after_s, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
