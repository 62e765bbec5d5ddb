"""A program that is sent real signals while it writes: python -m tests.producer.signalled 5000 [seed]

A thread sends SIGINT at random times. The handler raises KeyboardInterrupt while a method of the producer is called, and the
application makes the call again, or finds that the producer has ended and goes on with another one. Prints what happened.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections import Counter
from itertools import count, cycle
from random import Random
from types import FrameType

from tests.fakes.fake_broker import FakeBroker
from tests.producer.application_stories import STORIES, look_at, producer_for
from tests.producer.interrupted_application import InterruptedApplication
from tests.producer.transactions.transactional_brokers import cluster_of

MEAN_S = 0.004  # from one signal to the next
HANGS_AFTER_S = 120
# In the others callbacks run on the thread of the caller: a signal may come before the first line of one.
SIGNALLED = [story for story, calls in STORIES.items() if InterruptedApplication.send_spoiled not in calls]


class Signals:
    """A context in which signals raise; elsewhere they are ignored."""

    def __init__(self, signal_count: int, random: Random) -> None:
        self._left = signal_count
        self._random = random
        self._is_armed = False
        self._is_over = threading.Event()
        signal.signal(signal.SIGINT, self._handle)
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        while not self._is_over.wait(self._random.expovariate(1 / MEAN_S)):
            os.kill(os.getpid(), signal.SIGINT)

    def _handle(self, _: int, __: FrameType | None) -> None:
        if self._is_armed:
            self._left -= 1
            raise KeyboardInterrupt

    def __bool__(self) -> bool:
        """Whether more are to come."""
        if self._left <= 0:
            self._is_over.set()
        return self._left > 0

    def __enter__(self) -> None:
        self._is_armed = True

    def __exit__(self, *_: object) -> None:
        self._is_armed = False


def main(signal_count: int, seed: int) -> None:
    signals = Signals(signal_count, Random(seed))
    outcomes: Counter[str] = Counter()
    with cluster_of(2) as broker:
        for story, number in zip(cycle(SIGNALLED), count()):
            if not signals:
                break
            outcomes[play(broker, story, f"{story}-{number}", signals)] += 1
    print(f"{signal_count} signals, seed {seed}:", ", ".join(f"{each}: {times}" for each, times in outcomes.items()))


def play(broker: FakeBroker, story: str, name: str, signals: Signals) -> str:
    faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
    application = InterruptedApplication(producer_for(broker, story, name), name)
    application.play(STORIES[story], signals)
    look_at(broker, application)
    faulthandler.cancel_dump_traceback_later()
    return "the producer has ended" if application.has_ended else "it went on"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
