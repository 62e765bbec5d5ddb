"""chunk.py: rows keep their numbers, and an error names a row so that its user finds it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.sink.rows.chunk import Chunk, error_naming_row, row_in_words
from spark_kafka_sink.sink.rows.row_mapping import RowMapping
from tests.sink.columns import HEADERS, columns, not_utf8

MAPPING = RowMapping(topic="t", value=0, key=None, partition=None, headers=None, timestamp=None)


def chunk(*values: str, first: int) -> Chunk:
    return Chunk(pa.table({"value": list(values)}), range(first, first + len(values)))


def test_rows_keep_their_numbers_when_others_are_left_out() -> None:
    whole = chunk("a", "b", "c", "d", first=10)
    for part in (whole.drop(np.array([0, 2])), whole.take(np.array([1, 3])), whole.slice(1, 4).drop(np.array([1]))):
        assert part.table.column(0).to_pylist() == ["b", "d"]
        assert list(part.numbers) == [11, 13]


def test_an_error_names_the_row_and_the_original_stays_as_it_is() -> None:
    error = KafkaError("no", condition="KAFKA_X")
    named = error_naming_row(error, "why", MAPPING, chunk("a", "bc", first=10), 1, partition=3)
    assert str(named) == "[KAFKA_X] row 11 of this task: topic t, partition 3, no key, value of 2 bytes: why"
    assert error.message == "no"


def test_headers_of_a_map_may_have_keys_that_are_not_utf8() -> None:
    headers = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), not_utf8(b"\xff", b"h"), pa.array([b"1", b"2"]))
    assert row_in_words(columns(value=pa.array(["v"]), headers=headers), 0, 0).endswith("2 headers")


def test_a_row_is_named_by_number_topic_partition_key_and_sizes() -> None:
    given = columns(
        topic=pa.array(["a", "b"]),
        key=pa.array([None, b"k" * 33]),
        value=pa.array([None, b"123"]),
        partition=pa.array([None, 4], pa.int32()),
        headers=pa.array([None, [{"key": "h", "value": b""}]], HEADERS),
    )
    assert row_in_words(given, 0, 70) == "row 70 of this task: topic a, no key, value of null, 0 headers"
    named = row_in_words(given, 1, 71)
    assert named == f"row 71 of this task: topic b, partition 4, key {b'k' * 32!r}… of 33 bytes, value of 3 bytes, 1 headers"
    assert row_in_words(given, 0, 0, partition=2).startswith("row 0 of this task: topic a, partition 2, ")
