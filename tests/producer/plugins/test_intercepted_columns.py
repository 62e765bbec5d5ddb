"""Interceptors of a KafkaProducer, over sockets against FakeBroker: their life, and columns that pass them."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    BrokerError,
    ConfigError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    SchemaError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import BatchMetadata, RecordMetadata
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.records.columns import RecordColumns
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, WAIT_S, binary
from tests.producer.plugins.sample_interceptors import Appends, AppendsToRecords, Changing, intercepted_producer
from tests.producer.producers import await_answers, give_up_soon
from tests.threads import no_new_threads

HERE = __name__


# LIFE


def test_an_interceptor_by_name_lives_as_long_as_its_producer(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Appends] = []
    registered = type("Registered", (Appends,), {"configure": lambda self, _: made.append(self)})
    monkeypatch.setattr(sys.modules[HERE], "Registered", registered, raising=False)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": f"{HERE}.Registered"}) as producer:
        producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
        assert made[0].closed == 0
    producer.close()
    assert [each.closed for each in made] == [1]


def test_a_constructor_that_fails_for_an_interceptor_leaves_nothing_behind(broker: FakeBroker) -> None:
    first = Appends()
    with no_new_threads(), pytest.raises(ConfigError, match="no_such_module"):
        intercepted_producer(broker, first, "no_such_module.Mine")
    assert (first.configured, first.closed) == (1, 1)


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_interrupt_while_the_thread_starts_closes_everything_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_begun: bool
) -> None:
    """The constructor closed interceptors and sockets under the Sender, which ran already and then closed them again."""
    start, run, runs, goes_on = threading.Thread.start, Sender.run, threading.Event(), threading.Event()
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        if has_begun:
            start(thread)
            assert runs.wait(WAIT_S)
        raise KeyboardInterrupt

    def run_slowly(sender: Sender) -> None:
        runs.set()
        assert goes_on.wait(WAIT_S)
        run(sender)

    interceptor = Appends()
    monkeypatch.setattr(Sender, "run", run_slowly)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        intercepted_producer(broker, interceptor)
    assert interceptor.closed == (0 if has_begun else 1)
    goes_on.set()
    (thread,) = started
    if not has_begun:
        start(thread)  # its first line comes after the interrupt
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert interceptor.closed == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_interceptors_see_the_generated_client_id(broker: FakeBroker) -> None:
    instance = Appends()
    with intercepted_producer(broker, instance) as producer:
        assert instance.config["client.id"] == producer.client_id


# COLUMNS


@pytest.mark.parametrize("kind", [Appends, AppendsToRecords])
def test_what_interceptors_make_of_columns_is_what_arrives(broker: FakeBroker, kind: Any) -> None:
    with intercepted_producer(broker, kind("1"), kind("2")) as producer:
        producer.send_columns("single", value=binary(b"a", b"b"), key=binary(None, b"k")).result(WAIT_MS)
    assert [(record.key, record.value) for record in broker.records("single")] == [(None, b"a12"), (b"k", b"b12")]


def test_columns_may_be_sent_to_another_topic(broker: FakeBroker) -> None:
    elsewhere = Changing(lambda columns: replace(columns, topic=pa.array(["single", "other"])))
    with intercepted_producer(broker, elsewhere) as producer:
        producer.send_columns("gone", value=binary(b"a", b"b"), partition=pa.array([0, 0], pa.int32())).result(WAIT_MS)
    assert (broker.values("single"), broker.values("other", 0)) == ([b"a"], [b"b"])


def test_the_chain_hears_where_rows_are_before_the_caller_does(broker: FakeBroker) -> None:
    instance = Appends()
    with intercepted_producer(broker, instance, linger_ms=0) as producer:
        for _ in range(2):
            partition = pa.array([0, 3, 3], pa.int32())
            producer.send_columns("orders", value=binary(b"a", b"b", b"c"), partition=partition).result(WAIT_MS)
        heard = instance.heard[:]
    assert {metadata for metadata, error in heard if error is None} == {
        BatchMetadata("orders", 0, 0, 1, -1),
        BatchMetadata("orders", 0, 1, 1, -1),
        BatchMetadata("orders", 3, 0, 2, -1),
        BatchMetadata("orders", 3, 2, 2, -1),
    }
    assert len(heard) == 4


def test_an_interceptor_of_records_hears_of_each_row_of_a_column_call(broker: FakeBroker) -> None:
    instance = AppendsToRecords("!")
    with intercepted_producer(broker, instance) as producer:
        producer.send_columns(
            pa.array(["single", "other", "single"]),
            value=binary(b"a", b"bb", b"ccc"),
            key=binary(b"k", None, None),
            partition=pa.array([0, 1, 0], pa.int32()),
            timestamp=pa.array([1, 2, 3], pa.int64()),
        ).result(WAIT_MS)
    assert {metadata for metadata, error in instance.heard if error is None} == {
        RecordMetadata("single", 0, 0, 1, 1, 2),
        RecordMetadata("other", 1, 0, 2, -1, 3),
        RecordMetadata("single", 0, 1, 3, -1, 4),
    }
    assert len(instance.heard) == 3


def test_interceptors_hear_the_partition_of_rows_that_the_broker_rejects(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    with intercepted_producer(broker, columns, records) as producer:
        broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
        with pytest.raises(BrokerError, match="KAFKA_INVALID_RECORD"):
            producer.send_columns("single", value=binary(b"a", b"b")).result(WAIT_MS)
    ((batch, error),) = columns.heard
    assert batch == BatchMetadata("single", 0, -1, 2, -1)
    assert isinstance(error, BrokerError)
    assert [metadata for metadata, _ in records.heard] == [RecordMetadata("single", 0, -1, -1, -1, -1)] * 2


def test_interceptors_hear_of_each_row_of_a_split_batch_once(broker: FakeBroker) -> None:
    instance = AppendsToRecords()
    with intercepted_producer(broker, instance, linger_ms=0) as producer:
        broker.fail_next(ApiKey.PRODUCE, Errors.MESSAGE_TOO_LARGE)
        producer.send_columns("single", value=binary(*[bytes(100)] * 50)).result(WAIT_MS)
    assert [metadata.offset for metadata, _ in instance.heard] == list(range(50))


@pytest.mark.parametrize(
    ("topic", "options", "condition"),
    [
        ("gone", {}, "KAFKA_UNKNOWN_TOPIC"),
        ("single", {"max_request_size": 10}, "KAFKA_RECORD_TOO_LARGE"),
        ("a topic", {}, None),
    ],
)
def test_interceptors_hear_once_of_rows_that_fail_before_they_are_queued(
    broker: FakeBroker, topic: str, options: dict[str, int], condition: str | None
) -> None:
    columns, records = Appends(), AppendsToRecords()
    with intercepted_producer(broker, columns, records, **options) as producer:
        await_answers(producer, "single", "gone")
        give_up_soon(producer)
        with pytest.raises(KafkaError) as raised:
            producer.send_columns(topic, value=binary(b"a", b"b"))
        assert condition in (None, raised.value.condition)
    assert columns.heard == [(BatchMetadata(topic, -1, -1, 2, -1), raised.value)]
    assert records.heard == [(RecordMetadata(topic, -1, -1, -1, -1, -1), raised.value)] * 2


def test_interceptors_hear_by_topic_of_rows_of_many_topics_that_fail(broker: FakeBroker) -> None:
    instance = Appends()
    unknown = pytest.raises(KafkaError, match="gone not present in metadata")
    with intercepted_producer(broker, instance) as producer:
        await_answers(producer, "single", "gone")
        give_up_soon(producer)
        with unknown:
            producer.send_columns(pa.array(["single", "gone", "single"]), value=binary(b"a", b"b", b"c"))
    assert Counter({metadata.topic: metadata.rows for metadata, _ in instance.heard}) == {"single": 2, "gone": 1}


def test_rows_without_a_topic_reach_no_interceptor(broker: FakeBroker) -> None:
    """As in Java, where there is no such record."""
    instance = Appends()
    null = pytest.raises(InvalidRecordError, match="row 1 of this chunk has a null topic: fill it in")
    with intercepted_producer(broker, instance) as producer, null:
        producer.send_columns(pa.array(["single", None]), value=binary(b"a", b"b"))
    assert instance.heard == []


def test_interceptors_hear_once_of_each_row_when_half_were_queued(broker: FakeBroker) -> None:
    """Memory runs out after some slices: those are sent, the rest is given up, and the chain hears of all rows."""
    instance = Appends()
    row = bytes(3_000)
    rows = 2_000  # three slices
    with intercepted_producer(broker, instance, buffer_memory=3_000_000, batch_size=100_000) as producer:
        producer.partitions_for("single")
        give_up_soon(producer)
        release = broker.hold_next(ApiKey.PRODUCE, times=5)
        with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
            producer.send_columns("single", value=binary(*[row] * rows))
        release.set()
    assert 0 < len(broker.records("single")) < rows
    assert sum(metadata.rows for metadata, error in instance.heard if error is None) == len(broker.records("single"))
    assert sum(metadata.rows for metadata, _ in instance.heard) == rows


def test_interceptors_hear_the_schema_error_of_wrong_columns(broker: FakeBroker) -> None:
    instance = Appends(fails="on_send")
    with intercepted_producer(broker, instance) as producer, pytest.raises(SchemaError, match="column value has type int64"):
        producer.send_columns("single", value=pa.array([1, 2]))
    assert [(metadata.rows, type(error)) for metadata, error in instance.heard] == [(2, SchemaError)]


def test_a_transaction_of_which_some_rows_got_into_no_batch_cannot_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends between the topics of a call: the first one's row is queued, and the transaction must not show it alone."""
    calls = itertools.count()
    without_payloads = RecordColumns.without_payloads

    def fails_once(columns: RecordColumns) -> RecordColumns:
        if next(calls) == 1:
            raise MemoryError
        return without_payloads(columns)

    monkeypatch.setattr(RecordColumns, "without_payloads", fails_once)
    with FakeBroker(nodes=1, topics={"a": 1, "b": 1}, transaction_version=2) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [Appends("x")], "transactional.id": "t"}
        with KafkaProducer(options) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(MemoryError):
                producer.send_columns(pa.array(["a", "b"]), value=pa.array([b"1", b"2"]))
            with pytest.raises(AbortableTransactionError, match="MemoryError"):
                producer.commit_transaction()
            producer.abort_transaction()
