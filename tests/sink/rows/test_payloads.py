"""payloads.py: sizes of rows, and their headers laid end to end."""

from __future__ import annotations

import pyarrow as pa

from spark_kafka_sink.sink.rows.payloads import header_entries, payload_bytes
from tests.sink.columns import HEADERS, columns


def test_sizes_count_key_value_and_headers() -> None:
    given = columns(
        key=pa.array([None, "é", ""]),
        value=pa.array([b"12345", None, b""]),
        headers=pa.array(
            [[{"key": "a", "value": b"bc"}, {"key": "a", "value": None}], None, [{"key": "é", "value": b""}]], HEADERS
        ),
    )
    assert payload_bytes(given).tolist() == [9, 2, 2]
    assert payload_bytes({**given, "headers": None, "key": None}).tolist() == [5, 0, 0]


def test_maps_and_slices_of_headers_are_laid_out_too() -> None:
    whole = pa.array([[("z", b"0")], [("a", b"1"), ("b", None)], None, [("c", b"2")]], pa.map_(pa.string(), pa.binary()))
    counts, keys, values = header_entries(whole.slice(1))
    assert (counts.tolist(), keys.to_pylist(), values.to_pylist()) == ([2, 0, 1], ["a", "b", "c"], [b"1", None, b"2"])
