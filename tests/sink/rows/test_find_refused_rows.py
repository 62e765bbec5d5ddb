"""find_refused_rows.py: each bad row is found, once, by the first check that it fails."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.find_refused_rows import find_refused_rows
from tests.sink.columns import HEADERS, columns, not_utf8

LIMITS = {"max.request.size": 1000, "buffer.memory": 5000}


def refused(counts: dict[str, int] | None = None, **fields: Any) -> list[tuple[str, list[int]]]:
    return [(each.condition, each.rows.tolist()) for each in find_refused_rows(columns(**fields), LIMITS, counts or {})]


def test_good_rows_are_not_refused() -> None:
    fields = {
        "topic": pa.array(["a", "b"]),
        "key": pa.array([None, "k"]),
        "value": pa.array([None, b"v"]),
        "partition": pa.array([None, 5], pa.int32()),
        "timestamp": pa.array([None, 0]),
        "headers": pa.array([None, [{"key": "h", "value": None}]], HEADERS),
    }
    assert refused({"b": 6}, **fields) == []


def test_a_row_is_refused_by_the_first_check_it_fails() -> None:
    topic = pa.array([None, "a/b", "a", "a", "a", "a", "a", None])
    partition = pa.array([-1, -1, -1, 3, 0, None, None, 9], pa.int32())
    timestamp = pa.array([None, None, -5, -5, -5, 1, 1, -5])
    headers = pa.array([None, [], [], [], [{"key": None, "value": b""}], [{"key": None, "value": b""}], [], []], HEADERS)
    value = pa.array(["v"] * 6 + ["x" * 1000] + ["v"])
    assert refused({"a": 3}, topic=topic, partition=partition, timestamp=timestamp, headers=headers, value=value) == [
        ("KAFKA_NULL_TOPIC_IN_DATA", [0, 7]),
        ("KAFKA_INVALID_TOPIC_EXCEPTION", [1]),
        ("KAFKA_INVALID_PARTITION", [2]),
        ("KAFKA_UNKNOWN_PARTITION", [3]),
        ("KAFKA_INVALID_RECORD", [4]),
        ("KAFKA_INVALID_RECORD", [5]),
        ("KAFKA_RECORD_TOO_LARGE", [6]),
    ]


def test_impossible_topics_have_one_reason_and_unknown_topics_another() -> None:
    """A column that contains no topics at all has as many names as rows: they are found in one pass and have one reason."""
    topic = pa.array(["a", "a/1", None, "lost", "a/2", "gone", "a", "a/3", "a/4"])
    rows = columns(topic=topic, value=pa.array([""] * 9))
    null, impossible, unknown = find_refused_rows(rows, LIMITS, {}, {"gone": "Topic gone …", "lost": "Topic lost …", "z": "…"})
    assert null.rows.tolist() == [2]
    assert (impossible.condition, impossible.rows.tolist()) == ("KAFKA_INVALID_TOPIC_EXCEPTION", [1, 4, 7, 8])
    assert impossible.text.startswith("no topic can have names like 'a/1', 'a/2', 'a/3': a topic's name is 1 to 249 ")
    assert (unknown.condition, unknown.rows.tolist()) == ("KAFKA_UNKNOWN_TOPIC", [3, 5])
    assert unknown.text == "Topic lost … (nor topic 'gone')"


def test_partitions_of_a_topic_with_unknown_count_are_not_refused() -> None:
    partition = pa.array([7, 7], pa.int32())
    assert refused({"b": 3}, topic=pa.array(["a", "b"]), value=pa.array(["", ""]), partition=partition) == [
        ("KAFKA_UNKNOWN_PARTITION", [1])
    ]


@pytest.mark.parametrize(("partitions", "message"), [([-1, -1], "-1"), ([-1, -7], "below 0")])
def test_a_negative_partition_has_kafkas_error_text(partitions: list[int], message: str) -> None:
    rows = columns(value=pa.array(["", ""]), partition=pa.array(partitions, pa.int32()))
    (unwritable_rows,) = find_refused_rows(rows, LIMITS, {})
    assert unwritable_rows.text == f"Invalid partition: {message}. Partition number should always be non-negative or null."


def test_a_row_of_just_the_limit_is_good() -> None:
    """61 bytes of a batch's header, 21 of a record's overhead, then 1 + 2 bytes of lengths and 1 of headers."""
    value = pa.array([b"x" * (1000 - 61 - 21 - 4 + extra) for extra in (0, 1)])
    assert refused(value=value) == [("KAFKA_RECORD_TOO_LARGE", [1])]


# TEXT THAT IS NOT UTF-8


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_is_not_utf8_is_shown_as_bytes_and_is_no_topic(kind: pa.DataType) -> None:
    """Spark's cast(binary AS string) does not check, and copies from topic to topic do that. With such a key, a row
    that is too large raised UnicodeDecodeError: it was neither skipped nor dead-lettered, and `fail` hid the reason."""
    keys = not_utf8(b"\xff\xfe\x80", b"k").cast(kind)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.StructArray.from_arrays([not_utf8(b"\xff", b"h").cast(kind), pa.array([b"", b""])], ["key", "value"]),
    )
    rows = columns(topic=not_utf8(b"a", b"b\xc3").cast(kind), key=keys, value=not_utf8(b"\x80" * 1000, b"v"), headers=headers)
    impossible, too_large = find_refused_rows(rows, LIMITS, {})
    assert (impossible.condition, impossible.rows.tolist()) == ("KAFKA_INVALID_TOPIC_EXCEPTION", [1])
    assert r"b\\xc3" in impossible.text
    assert (too_large.condition, too_large.rows.tolist()) == ("KAFKA_RECORD_TOO_LARGE", [0])
    chunk = Chunk(rows, range(2), 0)
    message = r"row 0 of this task: topic a, key b'\xff\xfe\x80' of 3 bytes, value of 1000 bytes, 1 headers"
    assert chunk.row_in_words(0) == message
    assert chunk.row_in_words(1).startswith(r"row 1 of this task: topic b\xc3, key b'k' of 1 bytes, ")
