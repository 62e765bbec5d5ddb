"""A Python worker's producers between tasks: a task that follows another finds a connected one, and sends at once.

Spark reuses its Python workers, one task at a time, but ends them without a word (no atexit, no finally). So a producer is kept
only when it is at rest: all rows settled, its memory given back. Lent by writer.py; the counters it reports are the task's own.
Laws: a producer belongs to one task at a time; one that has seen a failure is never lent again; a fork inherits none.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.security_config import FILE_KEYS, file_stamp
from spark_kafka_sink.producer.producer import KafkaProducer

logger = logging.getLogger(__name__)

KEPT_BYTES = 1024 * 1024  # of buffer.memory, for each producer at rest: enough for small tasks to allocate nothing
CLOSE_MS = 1_000  # all rows of one at rest are settled; it may be asking for metadata
MAX_IDLE = 8  # producers at rest: a thread and a few connections each; more only where many configurations take turns


@dataclass(frozen=True, slots=True)
class _Idle:
    key: Hashable = field(repr=False)  # holds secrets, wrapped
    producer: KafkaProducer
    expires_ms: int


class ProducerCache:
    """Args: make, makes a producer of its options; clock, for tests. Any thread may use it."""

    def __init__(self, make: Callable[[Mapping[str, object]], KafkaProducer] | None = None, clock: Clock | None = None) -> None:
        self._make = make or KafkaProducer
        self._clock = clock or Clock()
        self._changed = threading.Condition()  # guards the two below
        self._idle: list[_Idle] = []  # longest at rest first
        self._reaper: threading.Thread | None = None

    @contextmanager
    def lend(self, options: Mapping[str, object], timeout_ms: int) -> Iterator[KafkaProducer]:
        """A producer with these options, one at rest if there is one, for the length of a `with` block.

        Args:
            options: all of the producer's, secrets wrapped. Another password, or another content of a file that is named, makes
                another producer.
            timeout_ms: how long it may then rest; 0: it is closed at the end.

        At the end of the block it is kept if everything is settled. It is closed at once if the block raises, which drops
        what is not acknowledged. Blocks as the producer's constructor and close() do: not at all for rows that are settled.
        """
        if timeout_ms == 0 or not _may_be_kept(options):
            timeout_ms, key = 0, None
        else:
            key = _key(options)
        producer = self._take(key) or self._make(options)
        try:
            yield producer
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        if timeout_ms == 0 or not producer.is_at_rest():
            producer.close()
        else:
            producer.rest(KEPT_BYTES)
            self._keep(_Idle(key, producer, self._clock.now_ms() + timeout_ms))

    def idle(self) -> int:
        """How many producers are at rest now."""
        return len(self._idle)

    def close_expired(self) -> None:
        """Close what has rested for its time."""
        with self._changed:
            now_ms = self._clock.now_ms()
            expired = [each for each in self._idle if each.expires_ms <= now_ms]
            self._idle = [each for each in self._idle if each.expires_ms > now_ms]
        for each in expired:
            _close(each, "its time was over")

    def close(self) -> None:
        """Close all that are at rest."""
        with self._changed:
            closing, self._idle = self._idle, []
            self._changed.notify()
        for each in closing:
            _close(each, "the cache was closed")

    def forget(self) -> None:
        """Begin empty, closing nothing: in a fork, whose sockets are the parent's and whose locks nobody may ever release."""
        self._changed = threading.Condition()
        self._idle = []
        self._reaper = None

    def _take(self, key: Hashable) -> KafkaProducer | None:
        while key is not None:
            with self._changed:
                found = next((each for each in reversed(self._idle) if each.key == key), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if found.producer.is_at_rest():
                found.producer.resume()
                return found.producer
            _close(found, "it has failed")
        return None

    def _keep(self, rested: _Idle) -> None:
        with self._changed:
            self._idle.append(rested)
            surplus, self._idle = self._idle[:-MAX_IDLE], self._idle[-MAX_IDLE:]
            if self._reaper is None:
                # A daemon that ends when nothing is at rest any more: no interpreter waits for it.
                self._reaper = threading.Thread(target=self._reap, name="kafka-producer-cache", daemon=True)
                self._reaper.start()
            self._changed.notify()  # this one may be due before the others
        for each in surplus:
            _close(each, f"{MAX_IDLE} others have been at rest for less long")

    def _reap(self) -> None:
        while True:
            self.close_expired()
            with self._changed:
                if not self._idle:
                    self._reaper = None
                    return
                delay_ms = min(each.expires_ms for each in self._idle) - self._clock.now_ms()
                if delay_ms > 0:
                    self._clock.wait(self._changed, delay_ms)


def _close(idle: _Idle, why: str) -> None:
    logger.debug("= %s closed: %s", idle.producer.client_id, why)
    idle.producer.close(CLOSE_MS)


def _may_be_kept(options: Mapping[str, object]) -> bool:
    """Interceptors may tell their results in close(), to which one at rest may never come; a transaction is its task's own."""
    return not options.get("interceptor.classes") and options.get("transactional.id") is None


def _key(options: Mapping[str, object]) -> Hashable:
    return tuple((name, _hashable(options[name]), _content(name, options[name])) for name in sorted(options))


def _hashable(value: object) -> Hashable:
    return tuple(value) if isinstance(value, list) else value  # Secrets compare by what they hide


def _content(name: str, value: object) -> Hashable:
    """What tells one content of a file from the next, for options that name one."""
    return file_stamp(value) if name in FILE_KEYS and isinstance(value, str) else None


PRODUCERS = ProducerCache()  # the worker's
os.register_at_fork(after_in_child=PRODUCERS.forget)
