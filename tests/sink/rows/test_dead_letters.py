"""dead_letters.py: a row keeps its contents and gains the reason as headers; too large rows have another producer."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.sink.rows.dead_letters import MAX_ROW_BYTES, DeadLetters, dead_letter_columns, options_for_large_rows
from tests.sink.fake_producer import FakeProducer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def columns(**fields: Any) -> dict[str, Any]:
    return {"topic": "orders", "key": None, "partition": None, "headers": None, "timestamp": None} | fields


def added(topic: bytes, partition: bytes | None) -> list[tuple[str, bytes | None]]:
    values = {"topic": topic, "partition": partition, "condition": b"KAFKA_X", "message": "müde".encode()}
    return [(f"__pykafka_sink.errors.{name}", value) for name, value in values.items()]


def headers_of(letters: dict[str, Any]) -> list[list[tuple[str, bytes | None]]]:
    return [[(each["key"], each["value"]) for each in row] for row in letters["headers"].to_pylist()]


def test_a_dead_letter_keeps_its_own_headers_and_gains_others() -> None:
    own = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, [], [{"key": None, "value": b"2"}]]
    rows = columns(
        topic=pa.array(["x", None, "y", "z"]),
        key=pa.array(["k", None, "", "l"]),
        value=pa.array([None, b"v", b"", b"w"]),
        partition=pa.array([None, 1, -1, 2], pa.int32()),
        headers=pa.array(own, HEADERS),
        timestamp=pa.array([-1, None, 5, 0]),
    )
    letters = dead_letter_columns(rows, "KAFKA_X", "müde")
    assert letters["key"] is rows["key"]
    assert letters["value"] is rows["value"]
    assert letters["timestamp"].to_pylist() == [None, None, 5, 0]
    name = "__pykafka_sink.errors.timestamp"
    assert headers_of(letters) == [
        [("a", b"1"), ("a", None), *added(b"x", None), (name, b"-1")],
        [*added(None, b"1"), (name, None)],
        [*added(b"y", b"-1"), (name, b"5")],
        [("", b"2"), *added(b"z", b"2"), (name, b"0")],
    ]


def test_a_row_without_headers_or_timestamp_gets_only_the_four() -> None:
    letters = dead_letter_columns(columns(value=pa.array(["a", "b"])), "KAFKA_X", "müde", partition=3)
    assert headers_of(letters) == [added(b"orders", b"3")] * 2
    assert letters["timestamp"] is None


@pytest.mark.parametrize(
    ("condition", "partition", "kept_rows"),
    [
        ("KAFKA_INVALID_TIMESTAMP", 3, []),
        ("KAFKA_INVALID_RECORD", 3, []),  # several records of the batch were rejected, and one condition stands for all
        ("KAFKA_MESSAGE_TOO_LARGE", 3, [0]),
        ("KAFKA_INVALID_RECORD", None, [0]),  # the client refused the rows
        ("KAFKA_UNKNOWN_TOPIC", None, [0]),
    ],
)
def test_a_timestamp_that_brokers_reject_stays_in_a_header_only(
    condition: str, partition: int | None, kept_rows: list[int]
) -> None:
    """A row dated years ahead, or in microseconds, could not be dead-lettered: its dead letter had the same timestamp and was
    rejected for it too, so that the task failed whenever it ran."""
    timestamps = [time.time_ns() // 1_000_000, 1_924_992_000_000, 1_764_000_000_000_000]
    rows = columns(value=pa.array(["now", "ahead", "µs"]), timestamp=pa.array(timestamps))
    letters = dead_letter_columns(rows, condition, "why", partition)
    assert letters["timestamp"].to_pylist() == [each if row in kept_rows else None for row, each in enumerate(timestamps)]
    assert [row[-1] for row in headers_of(letters)] == [
        ("__pykafka_sink.errors.timestamp", str(each).encode()) for each in timestamps
    ]


def test_headers_given_as_a_map_are_kept() -> None:
    maps = pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string()))
    letters = dead_letter_columns(columns(value=pa.array(["a", "b"]), headers=maps), "KAFKA_X", "müde")
    assert headers_of(letters) == [[("a", b"1"), *added(b"orders", None)], added(b"orders", None)]


class Refusing(FakeProducer):
    """A producer for which every row is too large."""

    def send_columns(self, topic: Any, **columns: Any) -> Any:  # noqa: ARG002
        raise RecordTooLargeError("too large")


def test_rows_count_when_they_are_acknowledged() -> None:
    producer = FakeProducer()
    letters = DeadLetters("dead", producer, FakeProducer)
    letters.send(columns(value=pa.array(["a", "b"])), "KAFKA_X", "why")
    assert letters.acknowledged_by_reason.total() == 0
    letters.send(columns(value=pa.array(["c"])), "KAFKA_Y", "why")
    letters.finish()
    assert letters.acknowledged_by_reason.total() == 3
    assert letters.acknowledged_by_reason == {"KAFKA_X": 2, "KAFKA_Y": 1}
    assert [call["topic"] for call in producer.calls] == ["dead", "dead"]


def test_rows_too_large_for_the_tasks_producer_go_through_one_other() -> None:
    made: list[FakeProducer] = []

    def make() -> FakeProducer:
        made.append(FakeProducer())
        return made[-1]

    letters = DeadLetters("dead", Refusing(), make)
    for _ in range(2):
        letters.send(columns(value=pa.array(["a"])), "KAFKA_X", "why")
    letters.finish()
    letters.close(0)
    (larger,) = made
    assert letters.acknowledged_by_reason.total() == len(larger.calls) == 2
    assert larger.closed == [0]


def test_a_row_too_large_for_both_is_an_error_that_names_the_dead_letter_topic() -> None:
    letters = DeadLetters("dead", Refusing(), Refusing)
    with pytest.raises(KafkaError, match=r"^\[KAFKA_RECORD_TOO_LARGE\] rows cannot be written to deadLetterTopic=dead either"):
        letters.send(columns(value=pa.array(["a"])), "KAFKA_X", "why")


def test_a_dead_letter_above_its_topics_limit_says_what_to_raise() -> None:
    def refuse(_: FakeProducer, delivery: Any) -> None:
        delivery.error = KafkaError("The batch exceeds the topic's max.message.bytes.", condition="KAFKA_MESSAGE_TOO_LARGE")

    letters = DeadLetters("dead", FakeProducer(on_send=refuse), FakeProducer)
    with pytest.raises(KafkaError, match=r"max\.message\.bytes\. Raise max\.message\.bytes of dead$"):
        letters.send(columns(value=pa.array(["a"])), "KAFKA_X", "why")


def test_the_error_of_a_dead_letter_above_its_topics_segments_names_no_other_limit() -> None:
    def refuse(_: FakeProducer, delivery: Any) -> None:
        delivery.error = KafkaError("The batch exceeds the topic's segment.bytes.", condition="KAFKA_RECORD_LIST_TOO_LARGE")

    letters = DeadLetters("dead", FakeProducer(on_send=refuse), FakeProducer)
    with pytest.raises(KafkaError, match=r"segment\.bytes\.$"):
        letters.send(columns(value=pa.array(["a"])), "KAFKA_X", "why")


def test_a_dead_letter_that_is_not_acknowledged_fails_the_task() -> None:
    def fail(_: FakeProducer, delivery: Any) -> None:
        delivery.error = KafkaTimeoutError("no answer")

    letters = DeadLetters("dead", FakeProducer(on_send=fail), FakeProducer)
    with pytest.raises(KafkaError, match="deadLetterTopic=dead either: no answer"):
        letters.send(columns(value=pa.array(["a"])), "KAFKA_X", "why")


def test_the_larger_producer_holds_the_largest_row_and_at_least_what_the_user_said() -> None:
    base = {"bootstrap.servers": "a:1", "acks": "all", "max.request.size": 1_000_000}
    larger = options_for_large_rows(base)
    memory = int(str(larger.pop("buffer.memory")))
    assert larger == base  # requests of several batches stay as small as the user said
    assert BufferPool(memory, 16_384, Clock()).total_memory >= MAX_ROW_BYTES
    assert options_for_large_rows({**base, "buffer.memory": 200_000_000})["buffer.memory"] == 200_000_000
