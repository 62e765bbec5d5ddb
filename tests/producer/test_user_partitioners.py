"""partitioner.class of KafkaProducer, against a fake broker: it takes columns or records, and what it may do wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import (
    ConfigError,
    InvalidRecordError,
    KafkaError,
)
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer import topic_rows
from spark_kafka_sink.producer.producer_record import ProducerRecord
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, WAIT_S, binary
from tests.producer.producers import producer_of
from tests.threads import no_new_threads


class SaidByValue:
    """The value is the number of the partition; an empty one leaves the choice."""

    def __init__(self) -> None:
        self.closed = 0

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> pa.Array:
        del topic, key, cluster
        said = value.cast(pa.string())
        return pc.if_else(pc.equal(said, ""), None, said).cast(pa.int32())

    def close(self) -> None:
        self.closed += 1


class SaidByRecord:
    """The same for one record, from the value that `send` was given."""

    def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Cluster) -> int | None:
        del topic, key, key_bytes, value_bytes, cluster
        return int(value) if value else None


def landed(broker: FakeBroker, topic: str = "orders", partitions: int = 4) -> list[list[bytes | None]]:
    return [broker.values(topic, partition) for partition in range(partitions)]


@pytest.mark.parametrize("partitioner_class", [f"{__name__}.SaidByValue", SaidByValue, SaidByRecord])
def test_a_users_partitioner_decides_except_for_rows_that_name_a_partition(broker: FakeBroker, partitioner_class: object) -> None:
    with producer_of(broker, partitioner_class=partitioner_class) as producer:
        value = binary(b"3", b"0", b"3", b"1", b"2")
        key = binary(*[b"one key"] * 5)
        producer.send_columns("orders", value=value, key=key, partition=pa.array([None] * 4 + [0], pa.int32())).result(WAIT_MS)
        producer.send(ProducerRecord("orders", b"3", key=b"one key"))
        producer.send(ProducerRecord("orders", b"1", key=b"one key", partition=0))
    assert landed(broker) == [[b"0", b"2", b"1"], [b"1"], [], [b"3", b"3", b"3"]]


@pytest.mark.parametrize("partitioner_class", [SaidByValue, SaidByRecord])
def test_what_the_partitioner_leaves_open_goes_to_one_sticky_partition_for_any_key(
    broker: FakeBroker, partitioner_class: object
) -> None:
    with producer_of(broker, partitioner_class=partitioner_class) as producer:
        delivery = producer.send_columns("orders", value=binary(*[b""] * 20), key=binary(*[b"%d" % n for n in range(20)]))
        assert len(delivery.result(WAIT_MS).offsets) == 1
        futures = [producer.send(ProducerRecord("orders", b"", key=b"%d" % number)) for number in range(20)]
        producer.flush(WAIT_MS)
        assert len({future.result(0).partition for future in futures}) == 1


@pytest.mark.parametrize("partitioner_class", [SaidByValue, SaidByRecord])
@pytest.mark.parametrize(("bad", "condition"), [(b"x", "KAFKA_PARTITIONER_FAILED"), (b"2", "KAFKA_INVALID_PARTITION")])
def test_no_row_of_a_chunk_is_queued_when_the_partitioner_fails_for_one(
    broker: FakeBroker, partitioner_class: type, bad: bytes, condition: str
) -> None:
    with producer_of(broker, partitioner_class=partitioner_class) as producer:
        with pytest.raises(KafkaError, match=f"partitioner {__name__}.{partitioner_class.__name__}") as raised:
            producer.send_columns(pa.array(["orders", "orders", "other"]), value=binary(b"0", b"1", bad))
        assert raised.value.condition == condition
        producer.flush(WAIT_MS)
        assert landed(broker) == [[], [], [], []]
        producer.send_columns("orders", value=binary(b"1")).result(WAIT_MS)


def test_a_partitioner_sees_all_slices_of_a_large_chunk_before_a_row_is_queued(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rows, "SLICE_ROWS", 25)
    monkeypatch.setattr(topic_rows, "MAX_SLICE_ROWS", 25)
    slice_lengths: list[int] = []

    def failing_late(topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> Any:
        del topic, key, cluster
        slice_lengths.append(len(value))
        if "fail" in value.to_pylist()[-1].decode("ascii"):
            raise ZeroDivisionError
        return np.arange(len(value)) % 4

    values = [bytes(100_000) for _ in range(60)]
    partition = pa.array([3, *[None] * 59], pa.int32())
    with producer_of(broker, partitioner_class=failing_late) as producer:
        with pytest.raises(KafkaError, match="raised ZeroDivisionError"):
            producer.send_columns("orders", value=binary(*values, b"fail"))
        assert producer.metrics()["buffer-available-bytes"] == 33_554_432
        assert len(slice_lengths) == 3
        assert sum(slice_lengths) == 61
        producer.send_columns("orders", value=binary(*values), partition=partition).result(WAIT_MS)
    assert sum(slice_lengths) == 120
    assert sum(map(len, landed(broker))) == 60


def test_a_partitioner_that_takes_records_raises_at_send_and_harms_no_other_record(broker: FakeBroker) -> None:
    with producer_of(broker, partitioner_class=SaidByRecord, linger_ms=10_000) as producer:
        good = producer.send(ProducerRecord("orders", b"2"))
        with pytest.raises(KafkaError, match="SaidByRecord raised ValueError") as raised:
            producer.send(ProducerRecord("orders", b"x"))
        assert raised.value.condition == "KAFKA_PARTITIONER_FAILED"
        with pytest.raises(InvalidRecordError, match="chose partition 4"):
            producer.send(ProducerRecord("orders", b"4"))
        producer.flush(WAIT_MS)
        assert good.result(0).partition == 2


@pytest.mark.parametrize("partitioner_class", [SaidByValue, SaidByRecord])
@pytest.mark.parametrize("value", [b"x", b"4"])
def test_the_error_for_a_single_record_names_no_row(broker: FakeBroker, partitioner_class: type, value: bytes) -> None:
    """The error named a row of a chunk, which the caller of send does not have: 0, or the record's number in its bundle."""
    with producer_of(broker, partitioner_class=partitioner_class) as producer:
        with pytest.raises(KafkaError, match=f"partitioner {__name__}.{partitioner_class.__name__}") as raised:
            producer.send(ProducerRecord("orders", value)).result(WAIT_S)
        assert "chunk" not in raised.value.message
        assert getattr(raised.value, "row", None) is None


def test_a_partitioner_that_takes_records_sees_what_send_was_given(broker: FakeBroker) -> None:
    with producer_of(broker, partitioner_class=SaidByRecord, value_serializer="long") as producer:
        assert producer.send(ProducerRecord("orders", 3)).result(WAIT_S).partition == 3


def test_gathered_records_fail_together_when_a_partitioner_of_columns_does(broker: FakeBroker) -> None:
    with producer_of(broker, partitioner_class=SaidByValue, linger_ms=10_000) as producer:
        futures = [producer.send(ProducerRecord("orders", value)) for value in (b"1", b"x")]
        producer.flush(WAIT_MS)
        assert {future.exception(0).condition for future in futures} == {"KAFKA_PARTITIONER_FAILED"}


def test_a_partitioner_is_closed_once_with_its_producer(broker: FakeBroker) -> None:
    instance = SaidByValue()
    producer = producer_of(broker, partitioner_class=instance)
    assert instance.closed == 0
    producer.close()
    producer.close()
    assert instance.closed == 1


def test_a_partitioner_that_cannot_be_loaded_fails_the_constructor_without_traces(broker: FakeBroker) -> None:
    with no_new_threads(), pytest.raises(ConfigError, match=r"partitioner\.class=no_such_module\.Mine cannot be loaded"):
        producer_of(broker, partitioner_class="no_such_module.Mine")
