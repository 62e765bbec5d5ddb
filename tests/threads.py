"""The threads of this process, for tests that say which there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 30


def assert_ended(name_end: str) -> None:
    """The threads whose names end so have ended. On a busy machine they may still be about to: close() does not join them."""
    for thread in threading.enumerate():
        if thread.name.endswith(name_end):
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name


@contextmanager
def no_new_threads() -> Iterator[None]:
    """The block leaves no thread that was not there before. Others may end meanwhile."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
