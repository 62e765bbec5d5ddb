"""Keeps a Python worker's producers and clients between tasks, so that the next task finds a connected one and sends at once.

Spark runs one task at a time in a Python worker and reuses the worker, but ends it without warning (no atexit, no finally). So
the cache keeps a producer only when it is at rest: all rows settled, its memory freed. writer.py borrows producers; the counters
of a borrowed producer start at zero.
Laws: one task at a time uses a producer; a producer that has failed is never lent again; a fork inherits no producer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.security_config import FILE_KEYS, file_stamp
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.sink.dead_letters import LARGEST_ROW, options_for_large_rows
from spark_kafka_sink.sink.worker_client import WorkerClient

logger = logging.getLogger(__name__)

KEPT_BYTES = 1024 * 1024  # of buffer.memory that an idle producer keeps: small tasks then allocate nothing
CLOSE_MS = 1_000  # an idle producer has no unsettled rows; it may be waiting for metadata
MAX_IDLE = 8  # each has a thread and a few connections; more than one or two only when configurations alternate


class Keepable(Protocol):
    """What the cache needs of KafkaProducer and WorkerClient."""

    @property
    def client_id(self) -> str: ...
    def is_at_rest(self) -> bool: ...
    def rest(self, keep_bytes: int = 0) -> None: ...
    def resume(self) -> None: ...
    def close(self, timeout_ms: int | None = None) -> None: ...


KeepableT = TypeVar("KeepableT", bound=Keepable)


@dataclass(frozen=True, slots=True)
class _Idle(Generic[KeepableT]):
    key: Hashable = field(repr=False)  # contains wrapped secrets
    producer: KeepableT
    expires_ms: int


class ProducerCache(Generic[KeepableT]):
    """Thread-safe. Args: `make` makes a producer from its options; a clock, for tests."""

    def __init__(self, make: Callable[[Mapping[str, object]], KeepableT], clock: Clock | None = None) -> None:
        self._make = make
        self._clock = clock or Clock()
        self._changed = threading.Condition()  # guards the two below
        self._idle: list[_Idle[KeepableT]] = []  # longest idle first
        self._reaper: threading.Thread | None = None

    @contextmanager
    def lend(self, options: Mapping[str, object], timeout_ms: int) -> Iterator[KeepableT]:
        """Lend a producer with these options for the length of a `with` block; an idle one if there is one.

        Args:
            options: all options of the producer, with secrets wrapped. A changed password, or a changed content of a file that
                an option names, makes another producer.
            timeout_ms: how long the producer may then be idle; 0: it is closed at the end of the block.

        At the end of the block the producer is kept if all rows are settled. If the block raises, the producer is closed at
        once, and rows that are not acknowledged are dropped. Blocks as the producer's constructor and close() do; close() does
        not block when all rows are settled.
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
        """The number of idle producers."""
        return len(self._idle)

    def close_expired(self) -> None:
        """Close producers that have been idle for their timeout."""
        with self._changed:
            now_ms = self._clock.now_ms()
            expired = [each for each in self._idle if each.expires_ms <= now_ms]
            self._idle = [each for each in self._idle if each.expires_ms > now_ms]
        for each in expired:
            _close(each, "it was idle for producerCacheTimeoutMs")

    def close(self) -> None:
        """Close all idle producers."""
        with self._changed:
            closing, self._idle = self._idle, []
            self._changed.notify()
        for each in closing:
            _close(each, "the cache was closed")

    def forget(self) -> None:
        """Empty the cache and close nothing. For a forked child: the sockets belong to its parent, and locks may stay locked."""
        self._changed = threading.Condition()
        self._idle = []
        self._reaper = None

    def _take(self, key: Hashable) -> KeepableT | None:
        while key is not None:
            with self._changed:
                found = next((each for each in reversed(self._idle) if each.key == key), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if found.producer.is_at_rest():
                found.producer.resume()
                return found.producer
            _close(found, "it failed while it was idle")
        return None

    def _keep(self, rested: _Idle[KeepableT]) -> None:
        with self._changed:
            self._idle.append(rested)
            surplus, self._idle = self._idle[:-MAX_IDLE], self._idle[-MAX_IDLE:]
            if self._reaper is None:
                # A daemon thread, so that no interpreter waits for it. It ends when no producer is idle.
                self._reaper = threading.Thread(target=self._reap, name="kafka-producer-cache", daemon=True)
                self._reaper.start()
            self._changed.notify()  # this one may expire before the others
        for each in surplus:
            _close(each, f"{MAX_IDLE} other producers were used more recently")

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


def _close(idle: _Idle[Any], why: str) -> None:
    logger.debug("= %s closed: %s", idle.producer.client_id, why)
    idle.producer.close(CLOSE_MS)


def _may_be_kept(options: Mapping[str, object]) -> bool:
    """Interceptors may report their results in close(), which an idle producer may never reach. A user's own transactions are
    never shared."""
    return not options.get("interceptor.classes") and options.get("transactional.id") is None


def _key(options: Mapping[str, object]) -> Hashable:
    return tuple((name, _hashable(options[name]), _content(name, options[name])) for name in sorted(options))


def _hashable(value: object) -> Hashable:
    return tuple(value) if isinstance(value, list) else value  # Secrets compare by value


def _content(name: str, value: object) -> Hashable:
    """A stamp of the file's content, for options that name a file."""
    return file_stamp(value) if name in FILE_KEYS and isinstance(value, str) else None


def _transactional(options: Mapping[str, object]) -> KafkaProducer:
    """Each task calls use_transactional_id with its own id first."""
    return KafkaProducer({**options, "transactional.id": "none"})


def _transactional_for_large_rows(options: Mapping[str, object]) -> KafkaProducer:
    return KafkaProducer({**options_for_large_rows(options), "transactional.id": "none"}, largest_record=LARGEST_ROW)


# Of this worker.
PRODUCERS = ProducerCache(KafkaProducer)
TRANSACTIONAL = ProducerCache(_transactional)  # lends by the options without transactional.id
TRANSACTIONAL_FOR_LARGE_ROWS = ProducerCache(_transactional_for_large_rows)  # the same
CLIENTS = ProducerCache(WorkerClient)
for _forget in (PRODUCERS.forget, TRANSACTIONAL.forget, TRANSACTIONAL_FOR_LARGE_ROWS.forget, CLIENTS.forget):
    os.register_at_fork(after_in_child=_forget)
