"""chunk.py: rows keep their numbers, and an error names a row so that its user finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.records.columns import header_entries
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.row_outcomes import RowOutcomes
from tests.sink.columns import HEADERS, columns, not_utf8, sink_options


def chunk(first: int = 0, **fields: Any) -> Chunk:
    return Chunk(columns(**fields), range(first, first + len(fields["value"])), 0)


def test_rows_keep_their_numbers_when_others_are_left_out() -> None:
    whole = chunk(10, value=pa.chunked_array([["a"], ["b", "c", "d"]]), key=pa.array(["0", "1", "2", "3"]))
    for part in (whole.drop(np.array([0, 2])), whole.take(np.array([1, 3])), whole.slice(1, 4).drop(np.array([1]))):
        assert part.columns["value"].to_pylist() == ["b", "d"]
        assert part.columns["key"].to_pylist() == ["1", "3"]
        assert (part.columns["topic"], part.columns["headers"]) == ("t", None)
        assert list(part.numbers) == [11, 13]
        assert part.size_bytes == part.columns["value"].nbytes + part.columns["key"].nbytes


def test_an_error_names_the_row_and_the_original_stays_as_it_is() -> None:
    error = KafkaError("no", condition="KAFKA_X")
    outcomes = RowOutcomes(sink_options(), None)
    row_error = outcomes.error_naming_row(error, "why", chunk(10, value=pa.array(["a", "bc"])), 1, partition=3)
    assert str(row_error) == "[KAFKA_X] row 11 of this task: topic t, partition 3, no key, value of 2 bytes: why"
    assert error.message == "no"


def test_headers_of_a_map_may_have_keys_that_are_not_utf8() -> None:
    headers = pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), not_utf8(b"\xff", b"h"), pa.array([b"1", b"2"]))
    assert chunk(value=pa.array(["v"]), headers=headers).row_in_words(0).endswith("2 headers")


def test_a_row_is_named_by_number_topic_partition_key_and_sizes() -> None:
    rows = chunk(
        70,
        topic=pa.array(["a", "b"]),
        key=pa.array([None, b"k" * 33]),
        value=pa.array([None, b"123"]),
        partition=pa.array([None, 4], pa.int32()),
        headers=pa.array([None, [{"key": "h", "value": b""}]], HEADERS),
    )
    assert rows.row_in_words(0) == "row 70 of this task: topic a, no key, value of null, 0 headers"
    words = f"row 71 of this task: topic b, partition 4, key {b'k' * 32!r}… of 33 bytes, value of 3 bytes, 1 headers"
    assert rows.row_in_words(1) == words
    assert rows.row_in_words(0, partition=2).startswith("row 70 of this task: topic a, partition 2, ")


def test_sizes_count_key_value_and_headers() -> None:
    key, value = pa.array([None, "é", ""]), pa.array([b"12345", None, b""])
    headers = [[{"key": "a", "value": b"bc"}, {"key": "a", "value": None}], None, [{"key": "é", "value": b""}]]
    assert chunk(key=key, value=value, headers=pa.array(headers, HEADERS)).payload_bytes().tolist() == [9, 2, 2]
    assert chunk(value=value).payload_bytes().tolist() == [5, 0, 0]


def test_maps_and_slices_of_headers_are_laid_out_too() -> None:
    whole = pa.array([[("z", b"0")], [("a", b"1"), ("b", None)], None, [("c", b"2")]], pa.map_(pa.string(), pa.binary()))
    counts, keys, values = header_entries(whole.slice(1))
    assert (counts.tolist(), keys.to_pylist(), values.to_pylist()) == ([2, 0, 1], ["a", "b", "c"], [b"1", None, b"2"])
