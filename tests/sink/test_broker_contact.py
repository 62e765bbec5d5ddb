"""broker_contact.py: with a wrong address, each of Spark's four attempts of a task waited for max.block.ms, a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.sink.broker_contact import BrokerContact

OPTIONS: dict[str, object] = {"bootstrap.servers": ["a:1"], "max.block.ms": 60_000}
NO_BROKER = KafkaTimeoutError("no broker answered", condition="KAFKA_BROKER_UNREACHABLE")


class Waited(list[int]):
    """A producer that records how long it should wait for brokers, and finds none."""

    def await_brokers(self, timeout_ms: int) -> None:
        self.append(timeout_ms)
        raise KafkaTimeoutError("no broker answered", condition="KAFKA_BROKER_UNREACHABLE")


class Found(Waited):
    def await_brokers(self, timeout_ms: int) -> None:
        self.append(timeout_ms)


def batches(*rows: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"value": ["v"] * each}) for each in rows])


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The executor's own directory; the task is one of stage 7."""
    in_stage(monkeypatch, 7)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    return tmp_path


def in_stage(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(stageId=lambda: number))


def rows_sent(producer: Waited, options: dict[str, object] = OPTIONS) -> int:
    passed = BrokerContact.of_this_task(options).when_answered(batches(0, 2, 3), producer)  # type: ignore[arg-type]
    return sum(batch.num_rows for batch in passed)


@pytest.mark.usefixtures("directory")
def test_the_first_attempt_waits_as_long_as_the_user_allows() -> None:
    producer = Waited()
    assert rows_sent(producer) == 5
    assert producer == []  # it waits for its topic's metadata, max.block.ms


@pytest.mark.usefixtures("directory")
def test_after_an_attempt_that_found_no_broker_the_next_waits_briefly_and_says_why() -> None:
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    producer = Waited()
    with pytest.raises(KafkaTimeoutError) as raised:
        rows_sent(producer)
    assert producer == [4_000]
    assert str(raised.value) == (
        "[KAFKA_BROKER_UNREACHABLE] no broker answered; an earlier task on this executor has already waited max.block.ms=60000"
    )


@pytest.mark.usefixtures("directory")
def test_a_wait_is_never_longer_than_max_block_ms() -> None:
    options = OPTIONS | {"max.block.ms": 300}
    BrokerContact.of_this_task(options).failed(NO_BROKER)
    producer = Waited()
    with pytest.raises(KafkaTimeoutError, match="an earlier task on this executor"):
        rows_sent(producer, options)
    assert producer == [300]


@pytest.mark.usefixtures("directory")
def test_rows_are_sent_once_a_broker_answers() -> None:
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    producer = Found()
    assert rows_sent(producer) == 5
    assert producer == [4_000]  # once, before the first row


@pytest.mark.usefixtures("directory")
def test_a_task_without_rows_needs_no_broker() -> None:
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    passed = BrokerContact.of_this_task(OPTIONS).when_answered(batches(0, 0), Waited())  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in passed) == 0


@pytest.mark.usefixtures("directory")
def test_other_failures_other_addresses_and_other_writes_do_not_shorten_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    BrokerContact.of_this_task(OPTIONS).failed(KafkaError("x", condition="KAFKA_DELIVERY_TIMEOUT"))
    assert rows_sent(Waited()) == 5
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    assert rows_sent(Waited(), OPTIONS | {"bootstrap.servers": ["b:1"]}) == 5
    in_stage(monkeypatch, 8)
    assert rows_sent(Waited()) == 5


def test_where_no_file_can_be_written_the_next_attempt_waits_its_full_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(directory / "no"))
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    assert rows_sent(Waited()) == 5


def test_outside_of_a_task_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    BrokerContact.of_this_task(OPTIONS).failed(NO_BROKER)
    assert rows_sent(Waited()) == 5
