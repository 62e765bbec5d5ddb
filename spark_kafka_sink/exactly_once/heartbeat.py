"""The heartbeat of a task: an offset that changes every few seconds as long as the task is at work.

A task can be at work for long while no row of it arrives. It waits for its first row, for a slow function of the user, for its
rates, for a batch to fill, or for another run's transactions to end. Brokers see nothing of it then, and
`pykafka-sink transactions abort` would take its query for dead.
So a thread of the task commits an offset, the time in milliseconds, to a group of the task's owner (names.py). Others that see
the offset change know that a task of the owner is at work.
The protocol does not depend on heartbeats: no step reads these groups, the offset is part of no transaction, and no producer
sends it. What is written and decided is the same if a heartbeat comes late, twice, after the task's end, or not at all.
Laws: the thread has a client of its own, which it takes when the first heartbeat is due, so shorter tasks make no connection for
it. Only the first failure is logged, and none fails the task. The end of the task does not wait for an answer. A fork inherits
no thread, so it sends no heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, describe_error
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

INTERVAL_MS = 4_000  # after an answer, which may take as long again: one in each 8 s, less than the 10 s of --watch-seconds


@dataclass(eq=False, repr=False)
class Heartbeat:
    """Sends heartbeats of one task, from `start` until the task releases `liveness_lock`. Neither of the two blocks.

    with heartbeat.liveness_lock:
        heartbeat.start()
        …
    """

    lend: Callable[[], AbstractContextManager[TransactionClient]]  # the heartbeat's own; called at most once, on its thread
    group: str  # see PrefixNames.heartbeat_group
    marker_partition: TopicPartition  # of a topic that exists; the same for all tasks of an owner
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.liveness_lock = threading.Lock()  # held as long as the task is at work: it ends with its block, also by an interrupt
        self._has_failed = False  # only the heartbeat's thread uses it, once that runs

    def start(self) -> None:
        """Start the thread. Never raises: if the process can have no more threads, a warning is logged."""
        try:
            threading.Thread(target=self._run, name="kafka-exactly-once-heartbeat", daemon=True).start()
        except RuntimeError as error:  # too many threads
            self._log_failure(error)

    def _run(self) -> None:
        try:
            if self._wait_until_due():
                with self.lend() as client:
                    self._beat(client)
                    while self._wait_until_due():
                        self._beat(client)
        except Exception as error:  # noqa: BLE001 - whatever it is, the task goes on, and its log says so
            self._log_failure(error)

    def _wait_until_due(self) -> bool:
        """Block for INTERVAL_MS, or until the task is over: false then."""
        deadline_ms = self.clock.now_ms() + INTERVAL_MS
        while (left_ms := deadline_ms - self.clock.now_ms()) > 0:
            if self.clock.wait(self, left_ms):
                return False
        return True

    def wait(self, timeout: float) -> bool:
        """Block until the task is over, at most `timeout` seconds. False when the time ran out. For Clock.wait, on its thread."""
        return self.liveness_lock.acquire(timeout=timeout)  # an exception to interrupts.py: tests/test_interrupt_rule.py

    def _beat(self, client: TransactionClient) -> None:
        try:
            client.commit_offsets(self.group, {self.marker_partition: (self.clock.wall_ms(), "")}, timeout_ms=INTERVAL_MS)
        except KafkaError as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            reason = str(error) if isinstance(error, KafkaError) else describe_error(error)
            logger.warning("! no heartbeat: while this task waits, `transactions abort` may take its query for dead: %s", reason)
