"""json_rows.py: a row that cannot be encoded, as a person and Spark's from_json can read it."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.sink.rows.json_rows import json_texts
from tests.sink.columns import not_utf8

UTC = datetime.UTC


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 2**62, 2**62),
        (pa.bool_(), True, True),
        (pa.float64(), 0.5, 0.5),
        (pa.float64(), float("nan"), "nan"),
        (pa.float32(), float("-inf"), "-inf"),
        (pa.string(), 'ü"\n', 'ü"\n'),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.decimal128(38, 2), Decimal("-12345678901234567890.10"), "-12345678901234567890.10"),
        (pa.date32(), datetime.date(2026, 1, 2), "2026-01-02"),
        (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006Z"),
        (pa.timestamp("us"), datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05.000000"),
        (pa.list_(pa.int32()), [1, None], [1, None]),
        (pa.large_list(pa.int32()), [], []),
        (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (pa.struct([("x", pa.struct([("y", pa.list_(pa.binary()))]))]), {"x": {"y": [b"a"]}}, {"x": {"y": ["YQ=="]}}),
        (pa.struct([]), {}, {}),
    ],
)
def test_a_value_is_the_json_that_is_expected(kind: pa.DataType, value: Any, expected: Any) -> None:
    column = pa.array([None, value, value], kind)
    for part in (column, column.slice(1), pa.chunked_array([column.slice(1, 1), column.slice(2)])):
        texts = json_texts(part).to_pylist()
        assert [text and json.loads(text) for text in texts][-2:] == [expected, expected]
    assert json_texts(column)[0].as_py() is None


def test_fields_that_are_null_are_kept_and_rows_that_are_null_are_null() -> None:
    column = pa.array([{"a": None}, None], pa.struct([("a", pa.int32())]))
    assert json_texts(column).to_pylist() == ['{"a": null}', None]


def test_strings_that_are_no_utf8_and_instants_beyond_pythons_years_are_shown() -> None:
    assert json_texts(not_utf8(b"a\xff")).to_pylist() == ['"a\ufffd"']
    instants = pa.array([2**63 - 1, -62_135_596_800_000_001], pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert json_texts(instants).to_pylist() == ['"9223372036854775807 us since 1970"', '"0000-12-31T23:59:59.999999Z"']


def test_what_lies_under_nulls_of_lists_does_not_show() -> None:
    inner = pa.array([1, 2, 3])
    column = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), inner, mask=pa.array([True, False]))
    assert json_texts(column).to_pylist() == [None, "[3]"]
