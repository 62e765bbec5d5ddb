"""Any column by any schema: byte for byte what fastavro's schemaless_writer writes for the same rows.

The columns are made of slices and chunks. tests/schemas/test_any_column.py sends such columns.
"""

from __future__ import annotations

import json
import random

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.schemas.derivation import derive_schema
from tests.schemas.avro.any_columns import any_case, with_distinct_names, with_garbage
from tests.schemas.avro.rows import encoded, encoder_for, written_by_fastavro


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_any_column_is_written_as_fastavro_does(data: st.DataObject, seed: int) -> None:
    case = data.draw(any_case(depth=3))
    schema = with_distinct_names(case.schema, [0])
    top_level = case.values.filter(lambda value: value is not None)
    rows = data.draw(st.lists(st.none() | top_level, max_size=7))
    extra = data.draw(st.lists(st.none() | case.values, max_size=3))
    column = pa.array([*extra, *rows, *extra], case.type)
    column = with_garbage(column, random.Random(seed)).slice(len(extra), len(rows))
    expected = written_by_fastavro([row if row is None else case.for_fastavro(row) for row in rows], schema)
    assert encoded(column, schema) == expected
    cut = data.draw(st.integers(0, len(rows)))
    chunks = pa.chunked_array([column.slice(0, cut), column.slice(cut)], case.type)
    assert encoded(chunks, schema, b"\0prefix") == [row if row is None else b"\0prefix" + row for row in expected]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_derived_schema_takes_every_row_of_its_type(data: st.DataObject) -> None:
    case = data.draw(any_case(depth=2))
    type = pa.struct([("x", case.type)])
    text, problems = derive_schema(type, column_name="value")
    assume(problems == [])  # Avro lacks some types
    rows = data.draw(st.lists(case.values | st.none(), max_size=3))
    column = pa.array([{"x": row} for row in rows], type)
    result = encoder_for(type, json.loads(text)).encode(column)
    assert result.refused_rows == []
    assert result.values.null_count == 0
