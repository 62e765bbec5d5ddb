"""broker_contact.py: with a wrong address, each of Spark's four attempts of a task waited for max.block.ms, a minute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkFiles, TaskContext

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.sink.broker_contact import await_brokers, remember_failure

CONFIG = ProducerConfig.from_mapping({"bootstrap.servers": "a:1"})
NO_BROKER = KafkaTimeoutError("no broker answered", condition="KAFKA_BROKER_UNREACHABLE")


class Waited(list[int]):
    """A producer that records how long it should wait for brokers, and finds none."""

    def await_brokers(self, timeout_ms: int) -> None:
        self.append(timeout_ms)
        raise KafkaTimeoutError("no broker answered", condition="KAFKA_BROKER_UNREACHABLE")


class Found(Waited):
    def await_brokers(self, timeout_ms: int) -> None:
        self.append(timeout_ms)


def ask_brokers(producer: Waited, options: dict[str, object] | None = None) -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1"} | (options or {}))
    await_brokers(producer, config)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The executor's own directory; the task is one of stage 7."""
    in_stage(monkeypatch, 7)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    return tmp_path


def in_stage(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(stageId=lambda: number))


@pytest.mark.usefixtures("directory")
def test_the_first_attempt_waits_as_long_as_the_user_allows() -> None:
    producer = Waited()
    ask_brokers(producer)
    assert producer == []  # it waits for its topic's metadata, max.block.ms


@pytest.mark.usefixtures("directory")
def test_after_an_attempt_that_found_no_broker_the_next_waits_briefly_and_says_why() -> None:
    remember_failure(NO_BROKER, CONFIG)
    producer = Waited()
    with pytest.raises(KafkaTimeoutError) as raised:
        ask_brokers(producer)
    assert producer == [4_000]
    assert str(raised.value) == (
        "[KAFKA_BROKER_UNREACHABLE] no broker answered; an earlier task on this executor has already waited max.block.ms=60000"
    )


@pytest.mark.usefixtures("directory")
def test_a_wait_is_never_longer_than_max_block_ms() -> None:
    remember_failure(NO_BROKER, CONFIG)
    producer = Waited()
    with pytest.raises(KafkaTimeoutError, match="an earlier task on this executor"):
        ask_brokers(producer, {"max.block.ms": 300})
    assert producer == [300]


@pytest.mark.usefixtures("directory")
def test_rows_are_sent_once_a_broker_answers() -> None:
    remember_failure(NO_BROKER, CONFIG)
    producer = Found()
    ask_brokers(producer)
    assert producer == [4_000]


@pytest.mark.usefixtures("directory")
def test_other_failures_other_addresses_and_other_writes_do_not_shorten_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_failure(KafkaError("x", condition="KAFKA_DELIVERY_TIMEOUT"), CONFIG)
    ask_brokers(Waited())
    remember_failure(NO_BROKER, CONFIG)
    ask_brokers(Waited(), {"bootstrap.servers": "b:1"})
    in_stage(monkeypatch, 8)
    ask_brokers(Waited())


def test_where_no_file_can_be_written_the_next_attempt_waits_its_full_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(directory / "no"))
    remember_failure(NO_BROKER, CONFIG)
    ask_brokers(Waited())


def test_outside_of_a_task_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    remember_failure(NO_BROKER, CONFIG)
    ask_brokers(Waited())
