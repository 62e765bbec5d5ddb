"""KafkaProducer over real sockets against FakeBroker: what the caller sees.

Everything below the caller's side is tested without sockets elsewhere; here it is the whole thing once, and what belongs to
KafkaProducer alone: columns and topics, checks, metadata, flush, close, single records.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
    BrokerError,
    ConfigError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaError,
)
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer import topic_rows
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.hand_overs import HandOver
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import HEADERS_MAP, ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.records.murmur2 import partition_for_keys
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.producer.calling import WAIT_MS, WAIT_S, binary, fill_memory
from tests.producer.harness import tp
from tests.producer.producers import producer_of, task_producer_of

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


@pytest.mark.parametrize("column", [{"headers": pa.array([[("h", b"1")], []], HEADERS_MAP)}, {"timestamp": pa.array([5, None])}])
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
    with producer_of(broker, max_block_ms=500) as producer, pytest.raises(KafkaTimeoutError) as raised:
        producer.send_columns("gone", value=binary(b"a"))
    assert str(raised.value).startswith("[KAFKA_UNKNOWN_TOPIC] Topic gone not present in metadata after 500 ms.")


def test_a_broker_that_never_answers_fails_send_within_max_block_ms() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = KafkaProducer({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}", "max.block.ms": 300})
        with pytest.raises(KafkaTimeoutError, match=r"Topic t not present in metadata after 300 ms\.") as raised:
            producer.send_columns("t", value=binary(b"a"))
        producer.close(0)
    assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"


@pytest.mark.timeout(30, func_only=True)  # and not request.timeout.ms
@pytest.mark.parametrize("options", [{}, {"transactional.id": "t"}], ids=["", "transactional"])
def test_close_waits_for_no_broker_when_no_row_is_queued(options: dict[str, str]) -> None:
    """close() waited request.timeout.ms, 30 s, for the answer to a request for metadata or for a producer id."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        times = {"max.block.ms": 300, "request.timeout.ms": 600_000, "delivery.timeout.ms": 900_000}
        producer = KafkaProducer({"bootstrap.servers": address, **times, **options})
        with pytest.raises(KafkaTimeoutError):
            producer.init_transactions() if options else producer.partitions_for("t")
        producer.close()
        producer._thread.join(WAIT_S)  # it may be about to end
        assert not producer._thread.is_alive()


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
    with producer_of(broker, max_block_ms=500) as producer, pytest.raises(InvalidRecordError) as raised:
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


# TROUBLE


def test_errors_that_pass_are_not_seen_by_the_caller(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2)
    broker.drop_next(ApiKey.PRODUCE, after_append=True)
    producer.send_columns("single", value=binary(b"a", b"b")).result(WAIT_MS)
    producer.send_columns("single", value=binary(b"c")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"b", b"c"]


def test_a_moving_leader_is_followed(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
    broker.move_leader("single", 0, 1)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"b"]


def test_a_rejected_batch_raises_from_the_handle(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(BrokerError, match="KAFKA_INVALID_RECORD"):
        delivery.result(WAIT_MS)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"b"]


def test_a_fatal_error_is_raised_by_later_calls_too(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.CLUSTER_AUTHORIZATION_FAILED)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(BrokerError, match="IDEMPOTENT_WRITE"):
        delivery.result(WAIT_MS)
    with pytest.raises(BrokerError, match="IDEMPOTENT_WRITE"):
        producer.send_columns("single", value=binary(b"b"))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_writes(broker: FakeBroker, acks: str) -> None:
    with producer_of(broker, acks=acks, enable_idempotence=False) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
        producer.flush(WAIT_MS)
    assert delivery.acknowledged == 1
    broker.wait_until(lambda: broker.values("single") == [b"a"])  # with acks=0 it is under way when it counts as written


def to_partition(number: int) -> pa.Array:
    return pa.array([number], pa.int32())


@pytest.mark.parametrize("idempotence", [True, False])
def test_a_topic_that_is_deleted_and_created_again_while_rows_wait_gets_them(broker: FakeBroker, idempotence: bool) -> None:
    """Its leader epochs begin at 0 again, below those that were seen, and the new partitions know no sequence numbers."""
    with producer_of(broker, enable_idempotence=idempotence, batch_size=1) as producer:  # a batch for each row
        for number in range(3):
            producer.send_columns("orders", value=binary(b"%d" % number), partition=to_partition(1)).result(WAIT_MS)
        for node in (0, 1, 0, 1):
            broker.move_leader("orders", 1, node)
            producer.send_columns("orders", value=binary(b"moved"), partition=to_partition(1)).result(WAIT_MS)
        broker.delete_topic("orders")
        request_count = len(broker.requests_of(ApiKey.METADATA))

        def come_back() -> None:
            # answered: there is no such topic
            broker.wait_until(lambda: len(broker.requests_of(ApiKey.METADATA)) >= request_count + 2)
            broker.add_topic("orders", 6)

        with ThreadPoolExecutor(1) as beside:  # the client may hear of it before it sends, and wait in send_columns
            coming = beside.submit(come_back)
            waiting = producer.send_columns("orders", value=binary(b"0", b"1", b"2"), partition=pa.array([1, 1, 1], pa.int32()))
            coming.result()
        assert waiting.result(WAIT_MS).acknowledged == 3
        written = broker.values("orders", 1)
        assert (written if idempotence else sorted(written)) == [b"0", b"1", b"2"]  # without it, retries may change the order
        producer.send_columns("orders", value=binary(b"new partition"), partition=to_partition(5)).result(WAIT_MS)


def test_a_topic_that_comes_back_smaller_fails_the_rows_of_partitions_that_are_gone(broker: FakeBroker) -> None:
    times = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 2000, "max_block_ms": 200}
    with producer_of(broker, **times) as producer:
        producer.send_columns("orders", value=binary(b"a"), partition=to_partition(3)).result(WAIT_MS)
        broker.delete_topic("orders")
        both = producer.send_columns("orders", value=binary(b"gone", b"kept"), partition=pa.array([3, 0], pa.int32()))
        broker.add_topic("orders", 2)
        with pytest.raises(KafkaTimeoutError, match=r"KAFKA_DELIVERY_TIMEOUT.*orders-3"):
            both.result(WAIT_MS)
        assert both.acknowledged == 1
        assert broker.values("orders", 0) == [b"kept"]
        with pytest.raises(InvalidRecordError, match="Partition 3 of topic orders with partition count 2"):
            producer.send_columns("orders", value=binary(b"d"), partition=to_partition(3))


def test_a_permission_that_is_taken_away_for_a_while_fails_the_rows_in_between(
    broker: FakeBroker, producer: KafkaProducer
) -> None:
    for _ in range(2):
        producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
        broker.fail_next(ApiKey.PRODUCE, Errors.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="KAFKA_TOPIC_AUTHORIZATION_FAILED"):
            producer.send_columns("single", value=binary(b"refused")).result(WAIT_MS)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"a", b"b"]


def test_a_resolver_that_hangs_stalls_one_broker_but_no_time_out_and_no_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names were looked up on the Sender's thread: while one hung, no row went anywhere, no time-out ran out, close() waited."""
    release = threading.Event()
    system = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, flags: int = 0, **fields: Any) -> Any:
        if host == "silent.example" and not flags & socket.AI_NUMERICHOST:
            assert release.wait(WAIT_S)
        return system(host, *args, flags=flags, **fields)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    broker.hosts[1] = "silent.example"
    times = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 1500, "socket_connection_setup_timeout_ms": 300}
    try:
        with producer_of(broker, **times) as producer:
            to_silent = producer.send_columns("orders", value=binary(b"lost"), partition=pa.array([1], pa.int32()))
            for number in range(20):
                to_other = producer.send_columns("orders", value=binary(b"%d" % number), partition=pa.array([0], pa.int32()))
                assert to_other.result(WAIT_MS).acknowledged == 1
            with pytest.raises(KafkaTimeoutError, match=r"KAFKA_DELIVERY_TIMEOUT.*no answer of DNS about silent.example"):
                to_silent.result(WAIT_MS)
            producer.send_columns("orders", value=binary(b"also lost"), partition=pa.array([1], pa.int32()))
            looking_up = [thread.name for thread in threading.enumerate() if thread.name == "kafka-producer-background"]
            producer.close(timeout_ms=100)
            assert len(looking_up) <= 1  # though it was asked for several times
    finally:
        release.set()
    assert broker.values("orders", 0) == [b"%d" % number for number in range(20)]


def test_a_topic_that_is_no_text_is_refused_and_harms_nobody_else(producer: KafkaProducer) -> None:
    """Half of a surrogate pair cannot be put into a request. The Sender's thread ended over it, and all rows with it."""
    with pytest.raises(KafkaError, match="ud800"):
        producer.send(ProducerRecord("\ud800", value=b"x")).result(WAIT_S)
    with pytest.raises(KafkaError, match="ud800"):
        producer.send_columns("\ud800", value=binary(b"x")).result(WAIT_MS)
    with pytest.raises(KafkaError, match="ud800"):
        producer.partitions_for("\ud800")
    assert producer.send_columns("single", value=binary(b"a")).result(WAIT_MS).acknowledged == 1


# FLUSH AND CLOSE


def test_flush_does_not_wait_for_linger(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
        assert not delivery.done()
        producer.flush(WAIT_MS)
        assert delivery.acknowledged == 1


def test_flush_may_wait_for_the_rows_of_one_call_alone(broker: FakeBroker) -> None:
    """Nothing lingers meanwhile, and rows that are settled later are not waited for."""
    answer = threading.Event()
    broker.inject(Fault(ApiKey.PRODUCE, topic_partition=tp(0, "single"), release=answer))
    with producer_of(broker, linger_ms=60_000, metadata_max_age_ms=300_000) as producer:
        earlier = producer.send_columns("orders", value=binary(b"a"), partition=pa.array([1], pa.int32()))  # of another leader
        later = producer.send_columns("single", value=binary(b"b"))
        try:
            producer.flush(WAIT_MS, until=earlier)
            assert (earlier.done(), later.done()) == (True, False)
        finally:
            answer.set()
        producer.flush(WAIT_MS, until=later)
        assert later.done()
        producer.flush(WAIT_MS, until=later)  # at once


def test_flush_gives_up_after_its_time(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
        producer.flush(50)
    release.set()
    producer.close()
    assert delivery.acknowledged == 1


def test_a_flush_that_runs_out_of_time_fails_no_record(broker: FakeBroker) -> None:
    """Its time was taken for max.block.ms: flush(100) failed a record that had been sent, with KAFKA_BUFFER_EXHAUSTED."""
    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000, buffer_memory=65_536) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        fill_memory(producer)
        release = broker.hold_next(ApiKey.PRODUCE)
        with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
            producer.flush(100)
        assert not future.done()
        release.set()
        producer.flush(WAIT_MS)
        assert future.result(0).offset == 0


def test_a_flush_says_that_records_are_left_that_another_thread_is_queueing(broker: FakeBroker) -> None:
    """flush() returned normally, and a record that this thread had sent was still gathered."""
    is_held, let_go = threading.Event(), threading.Event()

    def encode(hand_over: HandOver) -> None:
        assert producer._gatherer._encodings["single"].admit_locked(hand_over)
        is_held.set()
        assert let_go.wait(WAIT_S)

    with producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        other = threading.Thread(target=lambda: producer._gatherer.hand_overs.run(encode), daemon=True)
        other.start()
        assert is_held.wait(WAIT_S)
        with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_FLUSH_TIMEOUT\]"):
            producer.flush(50)
        assert not future.done()
        let_go.set()
        producer.flush(WAIT_MS)
        assert future.result(0).offset == 0
        other.join(WAIT_S)


def test_flush_does_not_raise_for_rows_that_failed(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.flush(WAIT_MS)
    assert delivery.failed == 1


def test_close_sends_what_is_queued_and_may_be_called_again(broker: FakeBroker) -> None:
    producer = producer_of(broker, linger_ms=600_000, delivery_timeout_ms=700_000)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.close()
    producer.close()
    assert delivery.result(0).acknowledged == 1
    assert broker.values("single") == [b"a"]


def test_close_without_time_fails_what_is_left(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 1)
    producer.close(0)
    release.set()
    with pytest.raises(ProducerClosedError, match="it may have been written"):
        delivery.result(0)


def test_close_with_some_time_ends_when_it_is_over(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    release = broker.hold_next(ApiKey.PRODUCE)
    delivery = producer.send_columns("single", value=binary(b"a"))
    producer.close(50)
    release.set()
    assert isinstance(delivery.error, ProducerClosedError)


def test_the_sender_thread_ends_with_the_producer(broker: FakeBroker) -> None:
    producer = producer_of(broker, client_id="ends")
    assert [thread.daemon for thread in threading.enumerate() if thread.name.endswith("| ends")] == [True]
    producer.close()
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("| ends")]


def test_a_closed_producer_refuses_everything(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(ProducerClosedError):
        producer.send(ProducerRecord("single", b"a"))
    with pytest.raises(ProducerClosedError):
        producer.partitions_for("single")


def test_after_a_callback_ended_the_sender_every_call_says_so(broker: FakeBroker) -> None:
    """Later calls said that the producer was closed, which nobody had done."""
    producer = task_producer_of(broker, linger_ms=0)
    future = producer.send(ProducerRecord("single", b"a"), lambda *_: sys.exit("enough"))
    assert future.result(WAIT_S).offset == 0
    producer._thread.join(WAIT_S)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(ProducerRecord("single", b"b")),
        lambda: producer.send_columns("single", value=binary(b"b")),
        lambda: producer.partitions_for("single"),
        producer.flush,
    ]
    for call in calls:
        with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] The producer's sender thread failed: SystemExit"):
            call()
    assert not producer.is_at_rest()
    producer.close()


def test_a_flush_that_the_senders_end_interrupts_says_so(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of(broker, linger_ms=0)
    release = broker.hold_next(ApiKey.PRODUCE)
    producer.send(ProducerRecord("single", b"a"), lambda *_: sys.exit("enough"))
    broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 1)
    producer.send(ProducerRecord("single", b"b"))  # settled behind the first, so that the flush ends after it
    flush = producer._accumulator.flush

    def flush_and_release(*args: Any) -> bool:
        release.set()
        return flush(*args)

    monkeypatch.setattr(producer._accumulator, "flush", flush_and_release)
    with pytest.raises(KafkaError, match=r"^\[KAFKA_INTERNAL_ERROR\] The producer's sender thread failed: SystemExit"):
        producer.flush(WAIT_MS)
    producer.close()


def test_a_with_block_closes(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
    assert delivery.acknowledged == 1


def test_a_wrong_configuration_starts_nothing() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match="2 things are wrong"):
        KafkaProducer({"bootstrap.servers": "127.0.0.1:1", "batch.size": "many", "acks": "some"})
    assert threading.active_count() == before


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


# SASL


def sasl_producer(broker: FakeBroker, **options: object) -> KafkaProducer:
    return KafkaProducer(
        {
            **{name.replace("_", "."): value for name, value in options.items()},
            "bootstrap.servers": broker.bootstrap_servers.split(",")[0],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": 'ScramLoginModule required username="alice" password="alice-secret";',
            "linger.ms": 0,
            "reconnect.backoff.ms": 0,  # the next attempt begins before the Sender looks at what came of this one
            "enable.idempotence": False,  # any broker may be asked for a producer id, and then has been logged in to
        }
    )


def write_to(producer: KafkaProducer, partition: int) -> Delivery:
    delivery = producer.send_columns("orders", value=pa.array(["v"]), partition=pa.array([partition], pa.int32()))
    producer.flush()
    return delivery


def change_password(broker: FakeBroker) -> None:
    """Node 1 asks for the new one; node 0 has been logged in to."""
    broker.users = {"alice": "changed"}
    broker.drop_connections(1)  # it may have been asked for metadata


def test_rows_in_flight_elsewhere_are_written_once_when_one_broker_rejects_a_login() -> None:
    """The refusal failed them too, though they were written: a retried Spark task wrote them again."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
            release = broker.hold_next(ApiKey.PRODUCE, node_id=0)
            in_flight = producer.send_columns("orders", value=pa.array(["held"]), partition=pa.array([0], pa.int32()))
            broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 2)
            change_password(broker)
            refused = producer.send_columns("orders", value=pa.array(["refused"]), partition=pa.array([1], pa.int32()))
            with pytest.raises(AuthenticationError, match="for user 'alice'"):
                refused.result(WAIT_MS)
            assert (in_flight.acknowledged, in_flight.error) == (0, None)
            release.set()
            assert in_flight.result(WAIT_MS).acknowledged == 1
        assert broker.values("orders") == [b"v", b"held"]


def test_a_login_that_is_refused_once_fails_no_row() -> None:
    """A broker that has just been started may not have read all users yet."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        broker.refuse_next_login(1)
        with sasl_producer(broker) as producer:
            for partition in (0, 1):
                delivery = write_to(producer, partition)
                assert (delivery.acknowledged, delivery.error) == (1, None)
        assert broker.refused_logins == [1]


def test_a_caller_for_metadata_does_not_mind_a_login_that_is_refused_once() -> None:
    with FakeBroker(nodes=1, topics={"orders": 1}, users={"alice": "alice-secret"}) as broker:
        broker.refuse_next_login(0)
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
        assert broker.refused_logins == [0]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_wrong_password_fails_soon_whoever_waits(nodes: int) -> None:
    """max.block.ms is a minute here, longer than this test may take; callers are told after two attempts, or one with each."""
    with FakeBroker(nodes=nodes, topics={"orders": 1}, users={"alice": "another"}) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "reconnect.backoff.ms": 10}
        login = 'ScramLoginModule required username="alice" password="wrong";'
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login}
        with KafkaProducer(config | sasl) as producer:
            with pytest.raises(AuthenticationError, match="user 'alice'"):
                producer.send_columns("orders", value=pa.array(["v"]))
            attempts = list(broker.refused_logins)
        assert set(attempts) == set(range(nodes))
        assert max(nodes, 2) <= len(attempts) <= 2 * max(nodes, 2)  # the Sender goes on meanwhile


def test_rows_for_one_broker_that_refuses_the_login_fail_at_once_and_others_go_on() -> None:
    """delivery.timeout.ms is two minutes here, longer than this test may take."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
            change_password(broker)
            refused = write_to(producer, 1)
            assert isinstance(refused.error, AuthenticationError)
            assert "node 1 (127.0.0.1:" in refused.error.message
            assert "SASL SCRAM-SHA-256 for user 'alice'" in refused.error.message
            assert write_to(producer, 0).acknowledged == 1  # its connection has logged in long ago
        assert len(broker.values("orders")) == 2
