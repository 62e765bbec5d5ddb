"""What happens to a cluster while the test's thread waits in a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fakes.fake_broker import FakeBroker


@contextmanager
def when(broker: FakeBroker, condition: Callable[[], bool], then: Callable[[], None]) -> Iterator[None]:
    """Do something to the cluster as soon as a condition holds, while the test's thread waits in a call."""

    def act() -> None:
        broker.wait_until(condition)
        with broker.lock:
            then()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()
