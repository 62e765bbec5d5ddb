"""How often a micro-batch waits for brokers, where its worker and its driver are connected already: what it costs to wait less.

A wait begins when a request is sent while none is on its way, and ends when all answers have come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG, TransactionClient
from spark_kafka_sink.exactly_once.settling import WrittenPlaces
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.version_commit import VersionCommit
from spark_kafka_sink.exactly_once.writes import AttemptResult, TaskReport
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.exactly_once.stepwise_writes import DriverRun, content_of
from tests.fakes.fake_broker import FakeBroker

TOPIC = "t"
LINGER_MS = 10_000  # nothing is sent before the task waits for it


class Waits:
    """Args: waits: the names of the requests of each wait, in the order in which they were sent."""

    def __init__(self) -> None:
        self.waits: list[list[str]] = []
        self._lock = threading.Lock()
        self._in_flight = 0

    def watch(self, request: ClientRequest) -> ClientRequest:
        with self._lock:
            if not self._in_flight:
                self.waits.append([])
            self.waits[-1].append(type(request.message).__name__.removesuffix("Request"))
            self._in_flight += 1
        return replace(request, callback=lambda response: self._answered(request, response))

    def _answered(self, request: ClientRequest, response: ClientResponse) -> None:
        with self._lock:
            self._in_flight -= 1
        if request.callback is not None:
            request.callback(response)

    def of(self, call: Callable[[], Any]) -> list[list[str]]:
        self.waits.clear()
        call()
        return [list(each) for each in self.waits]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    recorder, send = Waits(), NetworkClient.send
    monkeypatch.setattr(NetworkClient, "send", lambda client, request, now_ms: send(client, recorder.watch(request), now_ms))
    return recorder


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=1, topics={TOPIC: 1, TRANSACTION_LOG: 50}) as broker:
        yield broker


@pytest.fixture
def run(broker: FakeBroker) -> Iterator[DriverRun]:
    with DriverRun(broker.bootstrap_servers, TOPIC, "host", **{"linger.ms": LINGER_MS}) as run:
        yield run


@pytest.fixture
def producer(run: DriverRun) -> Iterator[TaskProducer]:
    """A worker keeps one for all of its tasks."""
    with TaskProducer({**run.options, "transactional.id": "none"}) as producer:
        yield producer


def write(run: DriverRun, producer: TaskProducer, version: int) -> TaskReport:
    """Write as a task of the sink does."""
    attempt = TaskAttempt(run.client, producer, run.names, run.write(version), run.planned_at(version), 0, 0, TOPIC)
    attempt.begin()
    attempt.add_rows(content_of(["row"]))
    producer.send_columns(TOPIC, value=pa.array(["row"]))
    attempt.send_marker()
    producer.flush()
    return attempt.finish()


def test_a_task_waits_five_times(run: DriverRun, producer: TaskProducer, waits: Waits) -> None:
    """Its ids, a look, the id that it takes, its confirmation beside the second look, and the rows with their marker behind."""
    run.commit([write(run, producer, 0)])
    assert waits.of(lambda: write(run, producer, 1)) == [
        ["DescribeTransactions"],
        ["OffsetFetch"],
        ["InitProducerId"],
        ["InitProducerId", "OffsetFetch"],
        ["Produce", "TxnOffsetCommit"],
    ]


def test_a_commit_waits_six_times(run: DriverRun, producer: TaskProducer, waits: Waits) -> None:
    with TransactionClient(run.options) as driver:
        for version in (0, 1):
            report = write(run, producer, version)
            assert report.result is AttemptResult.OPEN
            places = WrittenPlaces({TopicPartition(TOPIC, 0): 1 + 2 * version})
            commit = VersionCommit(driver, run.names, [report], TOPIC, places=places)
            request_names = waits.of(commit.run)
    assert [sorted(each) for each in request_names] == [
        ["ListTransactions", "OffsetFetch"],
        ["DescribeTransactions", "Metadata", "OffsetFetch"],
        ["OffsetCommit"],
        ["EndTxn"],
        ["ListOffsets", "ListTransactions", "OffsetFetch"],
        ["OffsetCommit"],
    ]
