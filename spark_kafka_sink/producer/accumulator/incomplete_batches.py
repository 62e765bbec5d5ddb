"""The batches whose rows have no outcome yet, and the callers that wait for these outcomes. Kafka's class of this name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.interrupts import LiveCalls, Waiters
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch


class IncompleteBatches:
    """Contains each batch from its first row until it is done, while it is queued and while it is in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards changes of all fields below except _flushes. newest_flush_id and the number of batches are read without it.
        self._lock = threading.Lock()
        self._batches: set[ProducerBatch] = set()
        self._waiters = Waiters(self._lock)  # woken when a batch is removed
        self._flushes = LiveCalls()  # needs no lock: a call is added in one step, and the Sender drops only calls that are over
        self.newest_flush_id = 0

    def __len__(self) -> int:
        return len(self._batches)

    def record_count(self) -> int:
        """The records of all batches. Takes no lock."""
        return sum(batch.record_count for batch in tuple(self._batches))

    def __iter__(self) -> Iterator[ProducerBatch]:
        """The batches at this moment, oldest first."""
        with self._lock:
            return iter(sorted(self._batches, key=lambda batch: batch.flush_id))

    def new_flush_id(self) -> int:
        """The id for a new batch. A flush waits for all batches up to the id that was the newest when it began."""
        with self._lock:
            self.newest_flush_id += 1
            return self.newest_flush_id

    def add(self, batches: Iterable[ProducerBatch]) -> None:
        with self._lock:
            self._batches.update(batches)

    def remove(self, batch: ProducerBatch) -> None:
        """Forget a batch whose rows have an outcome, and let callers in `flush` look again."""
        with self._lock:
            self._batches.discard(batch)
            self._waiters.wake_all_locked()

    def flush(self, timeout_ms: int, wake_sender: Callable[[], None], is_enough: Callable[[], bool]) -> bool:
        """Wake the Sender and wait until all batches that exist now are done, or until `is_enough` returns true.

        `is_enough` is called with the lock held: first, after each batch that is done, and at least once a second.
        Blocks at most `timeout_ms`; returns false when that time ran out.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        liveness_lock = threading.Lock()
        with liveness_lock:
            self._flushes.add(liveness_lock)
            flush_id = self.newest_flush_id
            wake_sender()
            return self._waiters.wait_until(
                lambda: is_enough() or all(batch.flush_id > flush_id for batch in self._batches), self._clock, deadline_ms
            )

    @property
    def is_flushing(self) -> bool:
        """Whether a caller is in `flush` now."""
        return len(self._flushes) > 0
