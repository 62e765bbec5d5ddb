"""KafkaProducer over real sockets against FakeBroker: what the caller sees.

Everything below the caller's side is tested without sockets elsewhere; here it is the whole thing once, and what belongs to
KafkaProducer alone: columns and topics, checks, metadata, names. Flush and close are in test_flush_and_close.py, errors of
brokers and logins in test_broker_trouble.py.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaError,
)
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer import topic_rows
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.records.arrays import header_array
from spark_kafka_sink.records.murmur2 import partition_for_keys
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, WAIT_S, binary
from tests.producer.harness import tp
from tests.producer.producers import await_answers, give_up_soon, producer_of, task_producer_of

# COLUMNS


def test_rows_arrive_and_the_handle_tells_where(broker: FakeBroker, producer: KafkaProducer) -> None:
    delivery = producer.send_columns("single", value=binary(b"a", None, b"c"), key=binary(b"k", b"k", None))
    offsets = delivery.result(WAIT_MS).offsets[tp(0, "single")]
    assert (offsets.first, offsets.last, offsets.rows) == (0, 2, 3)
    assert [(record.key, record.value) for record in broker.records("single")] == [(b"k", b"a"), (b"k", None), (None, b"c")]


def test_explicit_partitions_come_first_then_keys_then_the_sticky_one(broker: FakeBroker, producer: KafkaProducer) -> None:
    keys = [b"key%d" % number for number in range(100)]
    producer.send_columns(
        "orders",
        value=binary(*[b"%d" % number for number in range(100)]),
        key=pa.array([key if number % 2 else None for number, key in enumerate(keys)], pa.binary()),
        partition=pa.array([3 if number % 10 == 0 else None for number in range(100)], pa.int32()),
    ).result(WAIT_MS)
    by_key = partition_for_keys(pa.array(keys, pa.binary()), 4)
    landed = {int(record.value or b""): partition for partition in range(4) for record in broker.records("orders", partition)}
    assert len(landed) == 100
    for number in range(100):
        if number % 10 == 0:
            assert landed[number] == 3
        elif number % 2:
            assert landed[number] == by_key[number]
    assert len({landed[number] for number in range(100) if number % 2 == 0 and number % 10}) == 1  # one batch's worth: one stay


def test_keys_can_be_ignored(broker: FakeBroker) -> None:
    with producer_of(broker, partitioner_ignore_keys=True) as producer:
        delivery = producer.send_columns("orders", value=binary(*[b"v"] * 50), key=binary(*[b"k%d" % n for n in range(50)]))
        assert len(delivery.result(WAIT_MS).offsets) == 1


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_topic_column_sends_each_row_to_its_topic_in_order(broker: FakeBroker, producer: KafkaProducer, pieces: int) -> None:
    topics = pa.array(["single", "other", "single", "other", "single"])
    values = binary(b"0", b"1", b"2", b"3", b"4")
    if pieces > 1:
        values = pa.chunked_array([values[:1], values[1:4], values[4:]])
    producer.send_columns(topics, value=values, partition=pa.array([0] * 5, pa.int32())).result(WAIT_MS)
    assert broker.values("single") == [b"0", b"2", b"4"]
    assert broker.values("other", 0) == [b"1", b"3"]


def test_every_column_may_be_in_pieces_as_those_of_a_table_are(broker: FakeBroker, producer: KafkaProducer) -> None:
    row = pa.table(
        {
            "topic": ["other"],
            "value": [b"v"],
            "key": [b"k"],
            "partition": pa.array([0], pa.int32()),
            "headers": [[{"key": "h", "value": b"x"}]],
            "timestamp": [1_234],
        }
    )
    table = pa.concat_tables([row, row.slice(0, 0), row])
    producer.send_columns(**{name: table[name] for name in table.column_names}).result(WAIT_MS)
    records = broker.records("other", 0)
    assert [(each.key, each.value, each.headers, each.timestamp) for each in records] == [(b"k", b"v", (("h", b"x"),), 1_234)] * 2


def test_a_dictionary_of_topics_may_name_some_that_no_row_uses(broker: FakeBroker, producer: KafkaProducer) -> None:
    topics = pa.array(["single", "gone"]).dictionary_encode()[:1]
    producer.send_columns(topics, value=binary(b"a")).result(WAIT_MS)
    assert broker.values("single") == [b"a"]


def test_a_thousand_rows_keep_their_order_per_partition(broker: FakeBroker) -> None:
    rng = np.random.default_rng(5)
    partitions = rng.integers(0, 4, 3000).astype(np.int32)
    values = [b"%06d" % number + bytes(int(size)) for number, size in enumerate(rng.integers(0, 300, 3000))]
    with producer_of(broker, batch_size=2000, buffer_memory=64_000, compression_type="lz4") as producer:
        for start in range(0, 3000, 500):
            producer.send_columns(
                "orders", value=binary(*values[start : start + 500]), partition=pa.array(partitions[start : start + 500])
            )
        producer.flush(WAIT_MS)
    for partition in range(4):
        assert broker.values("orders", partition) == [
            value for value, where in zip(values, partitions, strict=True) if where == partition
        ]


def test_headers_and_timestamps_arrive(broker: FakeBroker, producer: KafkaProducer) -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    producer.send_columns(
        "single", value=binary(b"a", b"b"), headers=headers, timestamp=pa.array([1_600_000_000_000, None], pa.int64())
    ).result(WAIT_MS)
    first, second = broker.records("single")
    assert (first.headers, first.timestamp) == ((("h", b"1"),), 1_600_000_000_000)
    assert second.headers == ()
    assert second.timestamp > 1_700_000_000_000  # now


def test_string_columns_are_utf8(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_columns("single", value=pa.array(["ä"]), key=pa.array(["k"])).result(WAIT_MS)
    assert broker.values("single") == ["ä".encode()]


def test_no_rows_are_no_trouble(producer: KafkaProducer) -> None:
    assert producer.send_columns("no such topic", value=binary()).result(0).rows == 0


def test_all_values_may_be_null(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_columns("single", value=None, key=binary(b"k")).result(WAIT_MS)
    assert broker.values("single") == [None]


# CHECKS: NOTHING IS QUEUED WHEN THEY RAISE


@pytest.mark.parametrize("rows", [1, 3])
def test_a_partition_column_of_another_length_is_refused(broker: FakeBroker, producer: KafkaProducer, rows: int) -> None:
    """The rows beyond a shorter one were lost silently."""
    with pytest.raises(SchemaError, match=f"column partition has {rows} rows where 2 are expected"):
        producer.send_columns("single", value=binary(b"a", b"b"), partition=pa.array([0] * rows, pa.int32()))
    producer.flush(WAIT_MS)
    assert broker.values("single") == []


@pytest.mark.parametrize("column", ["key", "timestamp", "headers"])
def test_any_column_of_another_length_is_refused(producer: KafkaProducer, column: str) -> None:
    types = {
        "key": pa.binary(),
        "timestamp": pa.int64(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    columns: dict[str, Any] = {column: pa.nulls(1, types[column])}
    with pytest.raises(SchemaError, match=f"column {column} has 1 rows where 2 are expected"):
        producer.send_columns("single", value=binary(b"a", b"b"), **columns)


def test_a_topic_column_of_another_length_is_refused(producer: KafkaProducer) -> None:
    with pytest.raises(SchemaError, match="2 rows where 3 are expected"):
        producer.send_columns(pa.array(["single"] * 3), value=binary(b"a", b"b"))


def test_a_null_topic_is_refused(producer: KafkaProducer) -> None:
    with pytest.raises(InvalidRecordError, match=r"^\[KAFKA_NULL_TOPIC_IN_DATA\] row 1 of this chunk"):
        producer.send_columns(pa.array(["single", None]), value=binary(b"a", b"b"))


def test_a_negative_partition_is_refused(producer: KafkaProducer) -> None:
    with pytest.raises(InvalidRecordError, match="Invalid partition: -1"):
        producer.send_columns("single", value=binary(b"a"), partition=pa.array([-1], pa.int32()))


def test_without_any_column_there_is_no_telling_how_many_rows_there_are(producer: KafkaProducer) -> None:
    with pytest.raises(InvalidRecordError, match="at least one column"):
        producer.send_columns("single", value=None)


@pytest.mark.parametrize("column", [{"headers": header_array([[("h", b"1")], []])}, {"timestamp": pa.array([5, None])}])
def test_a_column_of_headers_or_timestamps_tells_how_many_rows_there_are(
    broker: FakeBroker, producer: KafkaProducer, column: dict[str, pa.Array]
) -> None:
    """Such a call failed because it "needs at least one column"."""
    assert producer.send_columns("single", **column, value=None).result(WAIT_MS).acknowledged == 2
    assert broker.values("single") == [None, None]


@pytest.mark.parametrize(("option", "limit"), [("max.request.size", 1000), ("buffer.memory", 16_384)])
def test_a_row_that_is_too_large_names_itself_and_the_limit(broker: FakeBroker, option: str, limit: int) -> None:
    with producer_of(broker, **{option: limit}) as producer:
        with pytest.raises(RecordTooLargeError, match=rf"row 1 of this chunk, topic single: .* exceeds {option}={limit}"):
            producer.send_columns("single", value=binary(b"a", bytes(limit), b"b"))
        producer.flush(WAIT_MS)
    assert broker.values("single") == []


def test_a_row_larger_than_the_whole_blocks_of_memory_fails_before_a_row_is_queued(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row was within buffer.memory, whose last part of a block is never used: it failed after rows before it were queued."""
    monkeypatch.setattr(topic_rows, "SLICE_ROWS", 1)
    monkeypatch.setattr(topic_rows, "MAX_SLICE_ROWS", 1)
    with producer_of(broker, buffer_memory=20_000, max_block_ms=WAIT_MS) as producer:
        with pytest.raises(RecordTooLargeError, match=r"row 1 of .* exceeds buffer\.memory=16384 \(in whole blocks\)"):
            producer.send_columns("single", value=binary(b"a", bytes(17_000)))
        producer.flush(WAIT_MS)
    assert broker.values("single") == []


# METADATA


def test_a_topic_that_is_not_utf8_is_one_that_no_topic_can_have(producer: KafkaProducer) -> None:
    octets = binary(b"single", b"\xff")
    topics = pa.Array.from_buffers(pa.string(), 2, octets.buffers())
    with pytest.raises(InvalidRecordError, match=r"\[KAFKA_INVALID_TOPIC_EXCEPTION\] no topic can have the name '\\\\xff'"):
        producer.send_columns(topics, value=binary(b"b", b"c"))


def test_a_topic_that_does_not_exist_is_waited_for_no_longer_than_max_block_ms(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        await_answers(producer, "gone")
        give_up_soon(producer)
        with pytest.raises(KafkaTimeoutError) as raised:
            producer.send_columns("gone", value=binary(b"a"))
    assert str(raised.value).startswith("[KAFKA_UNKNOWN_TOPIC] Topic gone not present in metadata after 100 ms.")


def test_a_broker_that_never_answers_fails_send_within_max_block_ms() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = KafkaProducer({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "max.block.ms": 300})
        with pytest.raises(KafkaTimeoutError, match=r"Topic t not present in metadata after 300 ms\.") as raised:
            producer.send_columns("t", value=binary(b"a"))
        producer.close(0)
    assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "y" * 40_000])
def test_a_name_that_no_topic_can_have_is_refused_at_once_and_no_broker_asked(
    broker: FakeBroker, producer: KafkaProducer, name: str
) -> None:
    """Asked for 40,000 characters a real broker hung up, again and again until max.block.ms, and with it on all other topics."""
    producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
    request_count = len(broker.requests_of(ApiKey.METADATA))
    with pytest.raises(InvalidRecordError) as raised:
        producer.send_columns(pa.array(["single", name]), value=binary(b"b", b"c"))
    assert str(raised.value).startswith(f"[KAFKA_INVALID_TOPIC_EXCEPTION] no topic can have the name {name[:300]!r}: ")
    with pytest.raises(InvalidRecordError):
        producer.send(ProducerRecord(name, value=b"d")).result(WAIT_S)
    assert len(broker.requests_of(ApiKey.METADATA)) == request_count
    assert broker.values("single") == [b"a"]


def test_the_topics_of_a_chunk_are_asked_for_together(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_columns(pa.array(["single", "orders", "other"]), value=binary(b"a", b"b", b"c")).result(WAIT_MS)
    topic_names = [{topic.name for topic in request.message.topics or ()} for request in broker.requests_of(ApiKey.METADATA)]
    assert {"single", "orders", "other"} in topic_names
    assert all(len(names) in (0, 3) for names in topic_names)


def test_a_topic_that_is_created_meanwhile_is_found(broker: FakeBroker, producer: KafkaProducer) -> None:
    def create_when_asked_for() -> None:
        broker.wait_until(lambda: any("late" in str(request.message) for request in broker.requests_of(ApiKey.METADATA)))
        broker.add_topic("late", 1)

    thread = threading.Thread(target=create_when_asked_for, daemon=True)
    thread.start()
    producer.send_columns("late", value=binary(b"a")).result(WAIT_MS)
    thread.join(WAIT_S)
    assert broker.values("late") == [b"a"]


def test_a_partition_out_of_range_names_the_range(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        await_answers(producer, "orders")
        give_up_soon(producer)
        with pytest.raises(InvalidRecordError) as raised:
            producer.send_columns("orders", value=binary(b"a"), partition=pa.array([4], pa.int32()))
    assert str(raised.value).startswith("[KAFKA_UNKNOWN_PARTITION] Partition 4 of topic orders with partition count 4")


def test_an_unauthorized_topic_raises_at_once(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.topics["orders"].error = Errors.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(BrokerError, match="KAFKA_TOPIC_AUTHORIZATION_FAILED"):
        producer.send_columns("orders", value=binary(b"a"))


def test_when_no_broker_answers_the_error_says_so() -> None:
    with FakeBroker() as gone:
        servers = gone.bootstrap_servers
    with (
        KafkaProducer({"bootstrap.servers": servers, "max.block.ms": 200}) as producer,
        pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_BROKER_UNREACHABLE\] .*127\.0\.0\.1"),
    ):
        producer.send_columns("orders", value=binary(b"a"))


def test_partitions_can_be_asked_for(producer: KafkaProducer) -> None:
    assert [(info.partition, info.leader) for info in producer.partitions_for("orders")] == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_closing_ends_a_wait_for_metadata(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            producer.send_columns("gone", value=binary(b"a"))
        except KafkaError as error:
            errors.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    broker.wait_until(lambda: any("gone" in str(request.message) for request in broker.requests_of(ApiKey.METADATA)))
    producer.close()
    writer.join(WAIT_S)
    assert [type(error) for error in errors] == [ProducerClosedError]


def test_whoever_waits_for_metadata_when_the_sender_dies_raises_what_ended_it(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such callers were told that the producer had been closed, which nobody had done."""

    def breaks(*_: object) -> None:
        raise SystemExit("a bug")  # an Exception would not end it at once

    monkeypatch.setattr(NetworkClient, "send_metadata_request", breaks)
    with task_producer_of(broker) as producer:
        for _ in range(2):  # the second one comes when it is dead
            with pytest.raises(KafkaError, match=r"sender thread failed: SystemExit\('a bug'\)") as raised:
                producer.send_columns("orders", value=binary(b"a"))
            assert raised.value.condition == "KAFKA_INTERNAL_ERROR"
            producer._thread.join(WAIT_S)
        assert not producer.is_at_rest()
    with pytest.raises(KafkaError, match="a bug"):
        producer.send_columns("orders", value=binary(b"a"))


# METRICS AND NAMES


def test_metrics_have_kafkas_names(producer: KafkaProducer) -> None:
    producer.send_columns("single", value=binary(b"a", b"b")).result(WAIT_MS)
    metrics = producer.metrics()
    assert metrics["record-send-total"] == 2
    assert metrics["buffer-total-bytes"] == metrics["buffer-available-bytes"] == 33_554_432
    assert metrics["waiting-threads"] == 0


def test_brokers_see_the_client_id(broker: FakeBroker) -> None:
    with producer_of(broker, client_id="me") as producer:
        producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
        assert repr(producer) == "KafkaProducer(me)"
    assert {request.header.client_id for request in broker.requests} == {"me"}


def test_every_producer_without_a_client_id_gets_its_own(broker: FakeBroker) -> None:
    with producer_of(broker) as first, producer_of(broker) as second:
        assert first.client_id != second.client_id
        assert first.client_id.startswith("producer-")


def test_rows_of_many_topics_ask_for_a_few_topics_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of 40,000 topics made one request that named them all, and brokers had to answer it in one piece."""
    monkeypatch.setattr("spark_kafka_sink.network.metadata.MAX_TOPICS_PER_REQUEST", 5)
    topics = [f"topic-{number}" for number in range(23)]
    with FakeBroker(nodes=2, topics=dict.fromkeys(topics, 1)) as broker, producer_of(broker, metadata_max_age_ms=100) as producer:
        for value in ("a", "b"):
            producer.send_columns(pa.array(topics), value=pa.array([value] * len(topics)))
            producer.flush(WAIT_MS)
            asked_count = len(broker.requests_of(ApiKey.METADATA))
            broker.wait_until(lambda count=asked_count: len(broker.requests_of(ApiKey.METADATA)) > count + 5)  # a refresh by age
        assert [broker.values(topic) for topic in topics] == [[b"a", b"b"]] * len(topics)
        assert max(len(request.message.topics or ()) for request in broker.requests_of(ApiKey.METADATA)) == 5
