"""Keeps a Python worker's producers and clients between tasks, so that the next task finds a connected one and sends at once.

Spark runs one task at a time in a Python worker and reuses the worker, but ends it without warning (no atexit, no finally). So
the cache keeps a producer only when it is at rest: all rows settled, its memory freed. writer.py and exactly_once_task.py borrow
producers and clients; the counters of a borrowed producer start at zero. What is said of producers here is true of clients.
Laws: one task at a time uses a producer; a producer that has failed is never lent again; a fork inherits none. The producer of
an interrupted task (interrupts.py) is closed as soon as another producer becomes idle or expires.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config import jaas
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.security_config import FILE_KEYS, file_stamp
from spark_kafka_sink.interrupts import Waiters
from spark_kafka_sink.producer import forks
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.sink.rows.dead_letters import MAX_ROW_BYTES, options_for_large_rows

logger = logging.getLogger(__name__)

IDLE_BYTES = 1024 * 1024  # of buffer.memory that an idle producer keeps: small tasks then allocate nothing
CLOSE_TIMEOUT_MS = 1_000  # an idle producer has no unsettled rows; it may be waiting for metadata
MAX_IDLE_COUNT = 8  # each has a thread and a few connections; more than one or two only when configurations alternate


class CacheItem(Protocol):
    """A producer or client, as the cache uses it: TaskProducer or WorkerClient."""

    @property
    def client_id(self) -> str: ...
    def is_at_rest(self) -> bool: ...
    def rest(self, keep_bytes: int = 0) -> None: ...
    def resume(self) -> None: ...
    def close(self, timeout_ms: int | None = None) -> None: ...


CacheItemT = TypeVar("CacheItemT", bound=CacheItem)


@dataclass(slots=True, eq=False)
class _Entry(Generic[CacheItemT]):
    """A producer or client in the cache. Who uses or closes the item holds the entry's lock. An entry whose lock nobody holds was
    left behind by an interrupt: its item is closed."""

    key: Hashable = field(repr=False)  # contains wrapped secrets
    item: CacheItemT
    liveness_lock: threading.Lock | None  # None: it is idle
    expires_ms: int = 0  # set only while the entry is idle, as is `rest_number`
    rest_number: int = 0  # the idle entry with the highest number became idle last

    @property
    def is_left_behind(self) -> bool:
        liveness_lock = self.liveness_lock
        return liveness_lock is not None and not liveness_lock.locked()


class WorkerCache(Generic[CacheItemT]):
    """Lends producers or clients, which `make` makes from their options, and keeps idle ones. Thread-safe."""

    def __init__(self, make: Callable[[Mapping[str, object]], CacheItemT], clock: Clock | None = None) -> None:
        self._make = make
        self._clock = clock or Clock()
        self._rest_numbers = itertools.count(1)
        self.forget()

    def forget(self) -> None:
        """Empty the cache and close nothing. For a forked child: the sockets belong to its parent, and locks may stay locked."""
        self._lock = threading.Lock()  # guards _waiters, _entries with their fields, and _reaper
        self._waiters = Waiters(self._lock)  # woken when a producer becomes idle, or all are closed
        self._entries: list[_Entry[CacheItemT]] = []
        self._reaper: threading.Thread | None = None

    @contextmanager
    def lend(self, options: Mapping[str, object], timeout_ms: int) -> Iterator[CacheItemT]:
        """Lend a producer with these options for the length of a `with` block; an idle one if there is one.

        Args:
            options: all options of the producer, with secrets wrapped. A changed password makes another producer, and so does the
                changed content of a file that an option or sasl.jaas.config names, except a ticket cache.
            timeout_ms: how long the producer may then be idle; 0: it is closed at the end of the block.

        At the end of the block the producer is kept if all rows are settled. If the block raises, the producer is closed at
        once, and rows that are not acknowledged are dropped. Blocks as the producer's constructor and close() do; close() does
        not block when all rows are settled.
        """
        if timeout_ms == 0 or not _may_be_kept(options):
            timeout_ms, key = 0, None
        else:
            key = _cache_key(options)
        liveness_lock = threading.Lock()
        with liveness_lock:
            entry = self._take(key, liveness_lock) or self._add(key, liveness_lock, options)
            try:
                yield entry.item
            except BaseException:
                entry.item.close(timeout_ms=0)
                self._remove(entry)
                raise
            if timeout_ms == 0 or not entry.item.is_at_rest():
                entry.item.close()
                self._remove(entry)
            else:
                entry.item.rest(IDLE_BYTES)
                self._keep(entry, self._clock.now_ms() + timeout_ms)

    def idle_count(self) -> int:
        """For tests: the number of idle producers."""
        with self._lock:
            return len(self._idle_locked())

    def close_expired(self) -> None:
        """Close producers that have been idle for their time-out, and those that an interrupted task has left behind."""
        now_ms = self._clock.now_ms()
        reason = "it was idle for producerCacheTimeoutMs"
        self._close_idle(lambda entries: [each for each in entries if each.expires_ms <= now_ms], reason)
        with self._lock:
            left_entries = [each for each in self._entries if each.is_left_behind]
        for each in left_entries:
            logger.debug("= %s closed: its task was interrupted", each.item.client_id)
            each.item.close(timeout_ms=0)
            self._remove(each)

    def close(self) -> None:
        """For tests: close all idle producers."""
        self._close_idle(lambda entries: entries, "the cache was closed")
        with self._lock:
            self._waiters.wake_all_locked()

    def _idle_locked(self) -> list[_Entry[CacheItemT]]:
        """The idle entries, the longest idle first."""
        return sorted((each for each in self._entries if each.liveness_lock is None), key=lambda each: each.rest_number)

    def _take(self, key: Hashable, liveness_lock: threading.Lock) -> _Entry[CacheItemT] | None:
        while key is not None:
            with self._lock:
                entry = next((each for each in reversed(self._idle_locked()) if each.key == key), None)
                if entry is None:
                    return None
                entry.liveness_lock = liveness_lock
            if entry.item.is_at_rest():
                entry.item.resume()
                return entry
            _close_entry(entry, "it failed while it was idle")
            self._remove(entry)
        return None

    def _add(self, key: Hashable, liveness_lock: threading.Lock, options: Mapping[str, object]) -> _Entry[CacheItemT]:
        entry = _Entry(key, self._make(options), liveness_lock)
        with self._lock:
            self._entries.append(entry)
        return entry

    def _remove(self, entry: _Entry[CacheItemT]) -> None:
        """Forget an entry that was closed; a second call does nothing."""
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)

    def _keep(self, entry: _Entry[CacheItemT], expires_ms: int) -> None:
        with self._lock:
            self._waiters.wake_all_locked()  # this one may expire before the others
            entry.expires_ms, entry.rest_number = expires_ms, next(self._rest_numbers)
            entry.liveness_lock = None
        self._close_idle(lambda entries: entries[:-MAX_IDLE_COUNT], f"{MAX_IDLE_COUNT} other producers were used more recently")
        with self._lock:
            if self._reaper is None or not self._reaper.is_alive():
                # A daemon thread, so that no interpreter waits for it. It ends when no producer is idle.
                self._reaper = threading.Thread(target=self._reap, name="kafka-producer-cache", daemon=True)
                self._reaper.start()

    def _close_idle(self, choose: Callable[[list[_Entry[CacheItemT]]], list[_Entry[CacheItemT]]], reason: str) -> None:
        """Close those of the idle producers that `choose` names."""
        liveness_lock = threading.Lock()
        with liveness_lock:
            with self._lock:
                entries = choose(self._idle_locked())
                for each in entries:
                    each.liveness_lock = liveness_lock
            for each in entries:
                _close_entry(each, reason)
                self._remove(each)

    def _reap(self) -> None:
        while True:
            self.close_expired()
            with self._lock:
                idle_entries = self._idle_locked()
                if not idle_entries:
                    self._reaper = None
                    return
                delay_ms = min(each.expires_ms for each in idle_entries) - self._clock.now_ms()
                waiter = self._waiters.add_locked()
            if delay_ms > 0:
                self._clock.wait(waiter, delay_ms)


def _close_entry(entry: _Entry[Any], reason: str) -> None:
    logger.debug("= %s closed: %s", entry.item.client_id, reason)
    entry.item.close(CLOSE_TIMEOUT_MS)


def _may_be_kept(options: Mapping[str, object]) -> bool:
    """Whether a producer may stay open after its task. Not one with interceptors, which may report in close(): Spark may end the
    worker before. Not one with a user's own transactional.id, which tasks must not share."""
    return not options.get("interceptor.classes") and options.get("transactional.id") is None


def _cache_key(options: Mapping[str, object]) -> Hashable:
    hashable = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}  # or a Secret
    return tuple((name, hashable[name], _file_stamps(name, options[name])) for name in sorted(options))


def _file_stamps(name: str, value: object) -> Hashable:
    """Stamps of the files' contents, for options that name files."""
    if name == "sasl.jaas.config" and isinstance(value, Secret):
        files = jaas.files_named_in(value.reveal())
        # Kerberos itself adds the tickets of brokers to a ticket cache, so most logins would change it.
        return tuple(file_stamp(file) for option, file in files.items() if option != "ticketCache")
    return file_stamp(value) if name in FILE_KEYS and isinstance(value, str) else None


class WorkerClient(TransactionClient):
    """A client that the cache keeps: the next task has its connections, and the coordinators that it has found."""

    client_id = "exactly-once client"  # for the log

    def is_at_rest(self) -> bool:
        """Always true: no call of a client goes on after it has returned."""
        return True

    def rest(self, keep_bytes: int = 0) -> None:
        """Do nothing: a client has no memory to free."""

    def resume(self) -> None:
        """Do nothing: a client has no counters that start at zero."""

    def close(self, timeout_ms: int | None = None) -> None:  # noqa: ARG002 - as TaskProducer.close
        """Close every connection. Never blocks."""
        super().close()


# Makes a producer transactional. No broker sees this id: each task names its own in init_transactions.
_PLACEHOLDER_ID = {"transactional.id": "none"}


def _transactional_producer(options: Mapping[str, object]) -> TaskProducer:
    return TaskProducer({**options, **_PLACEHOLDER_ID})


def _transactional_producer_for_large_rows(options: Mapping[str, object]) -> TaskProducer:
    return TaskProducer({**options_for_large_rows(options), **_PLACEHOLDER_ID}, largest_record=MAX_ROW_BYTES)


# The caches of this Python worker, one for each kind of producer.
PRODUCERS = WorkerCache(TaskProducer)
TRANSACTIONAL = WorkerCache(_transactional_producer)  # `lend` takes options without transactional.id
TRANSACTIONAL_FOR_LARGE_ROWS = WorkerCache(_transactional_producer_for_large_rows)  # the same
CLIENTS = WorkerCache(WorkerClient)
for _forget in (PRODUCERS.forget, TRANSACTIONAL.forget, TRANSACTIONAL_FOR_LARGE_ROWS.forget, CLIENTS.forget):
    forks.call_in_children(_forget)
