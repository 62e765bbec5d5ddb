"""A word on stderr when something takes longer than people wait without asking themselves whether it hangs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

AFTER_S = 10
GRACE_S = 0.5  # an error that comes at a limit of ten seconds needs no word before it


@contextlib.contextmanager
def word_after(say: Callable[[], object], after_s: float = AFTER_S + GRACE_S) -> Iterator[None]:
    """Call `say` once, on another thread, if the block takes longer than `after_s` seconds.

    The thread is a daemon: it keeps no process alive, also if an interrupt strikes while it is cancelled.
    """
    timer = threading.Timer(after_s, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
