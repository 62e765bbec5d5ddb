"""Records taken out of one batch and put into another."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.record_batch import EncodedRecords
from spark_kafka_sink.records.split_records import read_records
from tests.records.batches import encode_records


def encode(columns: RecordColumns, base: int) -> EncodedRecords:
    """The records as one batch with a base timestamp."""
    deltas = np.broadcast_to(np.asarray(columns.timestamps, np.int64), columns.row_count) - base
    return encode_records(columns, np.arange(columns.row_count, dtype=np.int64), deltas)


Row = tuple[bytes | None, bytes | None, int]  # key, value, timestamp
a_row = st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=300), st.integers(0, 2**41))


@settings(max_examples=100)
@given(st.lists(a_row, min_size=1, max_size=200), st.data())
def test_consecutive_records_become_the_batch_it_would_have_been(drawn: list[Row], data: st.DataObject) -> None:
    keys, values, stamps = zip(*drawn, strict=True)
    columns = record_columns(pa.array(values, pa.binary()), pa.array(keys, pa.binary()), timestamps=np.array(stamps, np.int64))
    whole = encode(columns, stamps[0])
    start = data.draw(st.integers(0, len(drawn) - 1))
    stop = data.draw(st.integers(start + 1, len(drawn)))
    part = read_records(whole.data, np.diff(whole.offsets).astype(np.int32)).encode(start, stop)
    expected = encode(columns.slice(start, stop), stamps[start])
    assert bytes(part.data) == bytes(expected.data)
    assert part.offsets.tolist() == expected.offsets.tolist()


def test_sizes_that_do_not_add_up_are_refused() -> None:
    whole = encode(record_columns(pa.array([b"a", b"b"], pa.binary())), -1)
    with pytest.raises(ProtocolError, match="cannot be split"):
        read_records(whole.data, np.array([3, 4], np.int32))
