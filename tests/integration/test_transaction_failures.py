"""Transactions while their coordinator dies: what was committed is there once, and nothing else is."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import AbortableTransactionError, TransactionTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, KeyType
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.broker_properties import QUICK_SESSIONS
from tests.fakes.raw_client import RawClient
from tests.integration.kafka_admin import Admin
from tests.integration.reading import READERS

PARTITIONS = 6
ROWS = 120  # of a transaction
KILLS = 5
GROUP = "copies"
LIMIT_S = 120
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.usefixtures("kafka_jars")]


class CommittingWriter:
    """Writes one transaction after the other, with offsets of a group, on a thread of its own. What fails is aborted and written
    again, under the number of its attempt."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.transactional_id = f"T-{uuid.uuid4().hex}"
        self.producer = KafkaProducer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": self.transactional_id,
                "request.timeout.ms": "5000",
                "delivery.timeout.ms": "90000",
                "max.block.ms": "2000",  # shorter than a coordinator's absence: calls are made again
            }
        )
        self.committed: list[tuple[int, int]] = []  # transaction and attempt
        self.timeouts = 0
        self.aborted = 0
        self.committing = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._until_done(self.producer.init_transactions)
            for number in itertools.count():
                if self._stop.is_set():
                    return
                attempt = next(attempt for attempt in itertools.count() if self._write(number, attempt))
                self.committed.append((number, attempt))
        except BaseException as error:
            self._error = error
            raise

    def _write(self, number: int, attempt: int) -> bool:
        try:
            self._until_done(self.producer.begin_transaction)
            self.producer.send_columns("t", value=pa.array(rows_of(number, attempt)))
            offsets = {TopicPartition("t", 0): OffsetAndMetadata(number + 1)}
            self._until_done(lambda: self.producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(GROUP)))
            self.committing.set()
            self._until_done(self.producer.commit_transaction)
        except AbortableTransactionError:
            self.aborted += 1
            self._until_done(self.producer.abort_transaction)
            return False
        return True

    def _until_done(self, call: Callable[[], None]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            try:
                return call()
            except TransactionTimeoutError:
                self.timeouts += 1
        raise AssertionError(f"{call} has not ended in {LIMIT_S} s")

    def await_commits(self, more: int) -> None:
        target, deadline = len(self.committed) + more, time.monotonic() + LIMIT_S
        while len(self.committed) < target:
            assert self._thread.is_alive(), self._error
            assert time.monotonic() < deadline, f"{len(self.committed)} transactions of {target} in {LIMIT_S} s"
            self._stop.wait(0.01)

    def await_commit_under_way(self) -> None:
        self.committing.clear()
        assert self.committing.wait(LIMIT_S)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self.producer.close()
        assert self._error is None, self._error


def rows_of(number: int, attempt: int) -> list[str]:
    return [f"{number}:{attempt}:{row}" for row in range(ROWS)]


def coordinator_of(bootstrap_servers: str, transactional_id: str) -> int:
    with RawClient(bootstrap_servers.split(",")[0]) as client:
        answer = client.ask(FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, [transactional_id]), 4).answer_for(
            transactional_id, 4
        )
    assert answer is not None
    assert not answer.error_code
    return answer.node_id


@pytest.mark.parametrize("version", [2, 1, 0])
def test_a_coordinator_killed_in_the_middle_of_commits_loses_and_doubles_nothing(tmp_path: Path, version: int) -> None:
    """The killed broker leads partitions and coordinates the group now and then, too."""
    chance = random.Random(version)
    feature = ("--feature", f"transaction.version={version}")
    with LocalKafka(tmp_path, brokers=3, properties=QUICK_SESSIONS, format_options=feature) as cluster:
        cluster.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"})
        writer = CommittingWriter(cluster.bootstrap_servers)
        killed = []
        with Admin(cluster.bootstrap_servers) as admin:
            for _ in range(KILLS):
                writer.await_commits(20)
                node = coordinator_of(cluster.bootstrap_servers, writer.transactional_id)
                writer.await_commit_under_way()
                threading.Event().wait(chance.random() / 50)  # any moment of a commit
                cluster.kill(node)
                killed.append(node)
                writer.await_commits(20)  # the others go on without it
                cluster.restart(node)
                admin.await_in_sync(3)
        writer.await_commits(20)
        writer.finish()
        read = READERS["confluent-kafka"](cluster.bootstrap_servers, "t", isolation_level="read_committed", timeout_s=120)
        with TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}) as client:
            first = TopicPartition("t", 0)
            position = client.fetch_offsets({GROUP: [first]}, require_stable=True)[GROUP][first]
    print(f"killed {killed}: {len(writer.committed)} committed, {writer.aborted} aborted, {writer.timeouts} calls made again")
    assert Counter(record.value for record in read) == Counter(
        row.encode() for each in writer.committed for row in rows_of(*each)
    )
    assert position == CommittedOffset(len(writer.committed))
