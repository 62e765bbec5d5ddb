"""Ends what a killed test run leaves behind: brokers, JVMs, Python workers (Linux; elsewhere it does nothing).

Every process that the tests start inherits a mark in its environment. A small process beside pytest hears of pytest's end by a
pipe, however that end came, and then ends whatever bears the mark. A run that ends in order dismisses it: tests end what they
start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "PYKAFKA_SINK_TEST_RUN"
POLITE_S = 10.0  # brokers close their logs
LIMIT_S = 30.0
POLL_S = 0.2


def watch() -> Callable[[], None]:
    """Mark what this process starts from now on, and have it ended with this process. To dismiss the watcher, call the result."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    mark = os.environ[MARK] = uuid.uuid4().hex
    watcher = subprocess.Popen(
        [sys.executable, __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # a signal to the group of pytest is none to it
    )

    def dismiss() -> None:
        watcher.kill()
        watcher.communicate()

    return dismiss


def end_marked(mark: str) -> None:
    """Ask them to end, then make them; again and again, as some start others meanwhile. Blocks at most LIMIT_S."""
    started = time.monotonic()
    while (passed_s := time.monotonic() - started) < LIMIT_S and (pids := list(_marked(mark))):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGTERM if passed_s < POLITE_S else signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_S)


def _marked(mark: str) -> Iterator[int]:
    entry = f"{MARK}={mark}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = file.read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if entry in variables:
            yield int(file.parent.name)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])
