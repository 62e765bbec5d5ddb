"""The batches whose rows have no outcome yet, and the callers that wait for these outcomes. Kafka's class of this name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch


class IncompleteBatches:
    """Contains each batch from its first row until it is done, while it is queued and while it is in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the changes of all below; the counters may be read without it
        self._batches: set[ProducerBatch] = set()
        self._removed = threading.Condition(self._lock)  # notified when a batch is removed while a caller flushes
        self.newest_flush_id = 0
        self.flushes_in_progress = 0

    def __len__(self) -> int:
        return len(self._batches)

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
        with self._lock:
            self._batches.discard(batch)
            if self.flushes_in_progress:
                self._removed.notify_all()

    def flush(self, timeout_ms: int, wake_sender: Callable[[], None], is_enough: Callable[[], bool]) -> bool:
        """Wake the Sender and wait until all batches that exist now are done, or until it is enough.

        `is_enough` is asked first, and then after each batch. Blocks at most `timeout_ms`; returns false when that time ran out.
        """
        deadline_ms = self._clock.now_ms() + timeout_ms
        counted = False
        try:
            with self._lock:
                flush_id = self.newest_flush_id
                self.flushes_in_progress += 1
                counted = True
            wake_sender()
            with self._lock:
                while not is_enough() and any(batch.flush_id <= flush_id for batch in self._batches):
                    remaining_ms = deadline_ms - self._clock.now_ms()
                    if remaining_ms <= 0:
                        return False
                    self._clock.wait(self._removed, remaining_ms)
            return True
        finally:
            with self._lock:
                self.flushes_in_progress -= counted
