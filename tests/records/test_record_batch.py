"""Records and batch headers: counted as they are written, and read back by a decoder that knows only the format."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from spark_kafka_sink.records import record_batch
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from spark_kafka_sink.records.compression import CODECS
from spark_kafka_sink.records.interleave import row_offsets_and_data
from spark_kafka_sink.records.record_batch import (
    BATCH_HEADER_BYTES,
    EncodedRecords,
    encode_batch_header,
    record_sizes,
    size_upper_bounds,
)
from tests.records.batches import batch_of, columns_of, encode_records
from tests.records.reference import Bytes, DecodedRecord, Malformed, decode_batch, decode_record, decode_records

lengths = st.sampled_from([0, 1, 62, 63, 64, 65, 200, 8191, 8192])
payloads = st.none() | st.binary(max_size=20) | lengths.map(lambda length: b"x" * length)
headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=70)), max_size=3)
timestamps = st.integers(0, 2**63 - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
rows = st.lists(st.builds(DecodedRecord, timestamps, payloads, payloads, headers), min_size=1, max_size=30)


def encode(columns: RecordColumns, order: Any = None) -> EncodedRecords:
    order = np.arange(columns.row_count) if order is None else np.asarray(order)
    return encode_records(columns, order, 0, order)


def row_bytes(encoded: EncodedRecords) -> list[bytes]:
    return [bytes(encoded.data[start:end]) for start, end in itertools.pairwise(encoded.offsets)]


@given(rows)
def test_a_batch_survives_the_round_trip(records: list[DecodedRecord]) -> None:
    batch = decode_batch(batch_of(columns_of(records)))
    assert batch.records == records
    assert (batch.base_timestamp, batch.max_timestamp) == (records[0].timestamp, max(row.timestamp for row in records))


@given(rows, st.data())
def test_rows_take_the_counted_bytes(records: list[DecodedRecord], data: st.DataObject) -> None:
    columns = columns_of(records)
    deltas = st.lists(st.integers(0, 2**31 - 1), min_size=len(records), max_size=len(records))
    offset_deltas = np.array(data.draw(deltas), np.int64)
    timestamp_deltas = np.array(data.draw(deltas), np.int64) - 2**30
    base = columns.base_bytes
    encoded = encode_records(columns, offset_deltas, timestamp_deltas)
    assert np.diff(encoded.offsets).tolist() == record_sizes(base, offset_deltas, timestamp_deltas).tolist()
    assert (np.diff(encoded.offsets) + BATCH_HEADER_BYTES <= size_upper_bounds(columns)).all()
    assert encoded.offsets[-1] == len(encoded.data)
    for row, offset_delta, timestamp_delta, record in zip(
        row_bytes(encoded), offset_deltas, timestamp_deltas, records, strict=True
    ):
        decoded, delta = decode_record(Bytes(row), 0)
        assert (delta, decoded.timestamp, decoded[1:]) == (offset_delta, timestamp_delta, record[1:])


@given(rows, st.randoms())
def test_an_order_moves_whole_rows(records: list[DecodedRecord], random: Any) -> None:
    columns = columns_of(records)
    order = np.array(random.sample(range(len(records)), random.randint(0, len(records))), np.int64)
    in_place = row_bytes(encode(columns))
    assert row_bytes(encode(columns, order)) == [in_place[row] for row in order]


@given(rows, st.randoms())
def test_rows_sorted_by_partition_make_one_batch_for_each(records: list[DecodedRecord], random: Any) -> None:
    partitions = np.array([random.randrange(3) for _ in records])
    order = np.argsort(partitions, kind="stable")
    starts = np.searchsorted(partitions[order], np.arange(4))
    offset_deltas = np.arange(len(records)) - starts[partitions[order]]
    columns = columns_of(records)
    encoded = encode_records(columns, offset_deltas, columns.timestamps[order], order)
    for partition in range(3):
        first, end = starts[partition], starts[partition + 1]
        part = bytes(encoded.data[encoded.offsets[first] : encoded.offsets[end]])
        assert decode_records(part, end - first) == [records[row] for row in np.flatnonzero(partitions == partition)]


def test_a_number_for_all_rows_equals_a_column_of_it() -> None:
    columns = record_columns(pa.array(["a", None, "ccc"]), pa.array([None, "b", ""]))
    base = columns.base_bytes
    for delta in (0, -1, 64, 2**40):
        column = np.full(3, delta)
        one, each = (encode_records(columns, np.arange(3), deltas) for deltas in (delta, column))
        assert bytes(one.data) == bytes(each.data)
        assert record_sizes(base, np.arange(3), delta).tolist() == record_sizes(base, np.arange(3), column).tolist()


def test_the_smallest_record_is_seven_bytes() -> None:
    assert bytes(encode(record_columns(None, row_count=1)).data).hex() == "0c000000010100"


def test_no_rows_give_no_bytes() -> None:
    for columns in (record_columns(pa.array([], pa.string())), record_columns(None, row_count=0)):
        assert columns.base_bytes.tolist() == []
        assert encode(columns).offsets.tolist() == [0]
        assert len(encode(columns).data) == 0


def test_large_payloads_of_several_layouts_share_a_row() -> None:
    value = pa.array([b"v" * 3_000_000, None, b"w"], pa.large_binary())
    records = decode_records(bytes(encode(record_columns(value, pa.array(["a", "b", "c"]))).data), 3)
    assert [(row.key, row.value) for row in records] == [(b"a", b"v" * 3_000_000), (b"b", None), (b"c", b"w")]


def test_a_record_beyond_the_length_field_is_refused_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "INT32_MAX", 100)
    columns = record_columns(pa.array(["small", "x" * 200]))
    with pytest.raises(RecordTooLargeError, match=r"\[KAFKA_RECORD_TOO_LARGE\] row 1: a record of 207 bytes exceeds"):
        encode(columns)
    with pytest.raises(RecordTooLargeError, match="row 1"):
        encode(columns, np.array([1, 0]))


@pytest.mark.parametrize("order", [None, np.array([3, 0, 4, 2, 1])], ids=["in order", "in another order"])
def test_the_rows_of_a_part_are_those_of_the_whole(order: Any) -> None:
    headers = pa.array([[("h", b"1" * row)] * row for row in range(5)], pa.map_(pa.string(), pa.binary()))
    columns = record_columns(pa.array(["v" * row for row in range(5)]), pa.array(["k" * 2 * row for row in range(5)]), headers)
    rows = record_batch.RecordRows(columns, order, columns.base_bytes if order is None else columns.base_bytes[order])

    def written(start: int, stop: int) -> list[bytes]:
        part = rows.interleave(start, stop, np.arange(start, stop), 0).write(0, stop - start)
        offsets, data = row_offsets_and_data(part, stop - start)
        return row_bytes(EncodedRecords(offsets, record_batch.octets(data)))

    whole = written(0, 5)
    assert len(set(whole)) == 5
    for start, stop in itertools.combinations(range(6), 2):
        assert written(start, stop) == whole[start:stop]


def test_the_row_of_a_part_that_is_too_large_is_named_by_its_index_in_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "INT32_MAX", 100)
    columns = record_columns(pa.array(["a", "b", "c", "x" * 200]))
    order = np.array([1, 2, 3, 0])
    for selected, row in ((None, 3), (order, 3)):
        sizes = columns.base_bytes if selected is None else columns.base_bytes[selected]
        with pytest.raises(RecordTooLargeError, match=f"row {row}: a record of"):
            record_batch.RecordRows(columns, selected, sizes).interleave(1, 4, np.arange(3), 0)


def test_a_record_as_large_as_the_length_field_allows_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = record_columns(pa.array(["small", "x" * 200]))
    monkeypatch.setattr(record_batch, "INT32_MAX", 207)
    encoded = encode_records(columns, np.arange(2), 0)
    assert [row.value for row in decode_records(bytes(encoded.data), 2)] == [b"small", b"x" * 200]
    monkeypatch.setattr(record_batch, "INT32_MAX", 206)
    with pytest.raises(RecordTooLargeError, match="row 1: a record of 207 bytes"):
        encode_records(columns, np.arange(2), 0)


@given(st.lists(st.builds(DecodedRecord, st.just(0), payloads, payloads, headers), min_size=1, max_size=5))
def test_the_upper_bound_is_what_java_compares_with_max_request_size(records: list[DecodedRecord]) -> None:
    # AbstractRecords.estimateSizeInBytesUpperBound: 61 for the batch, 21 for the record, then the record from its key on
    encoded = row_bytes(encode_at_zero(columns_of(records)))
    from_key_on = [len(row) - record_length_size(row) - 3 for row in encoded]  # attributes and two deltas of one byte
    assert size_upper_bounds(columns_of(records)).tolist() == [61 + 21 + size for size in from_key_on]


def encode_at_zero(columns: RecordColumns) -> EncodedRecords:
    return encode_records(columns, np.zeros(columns.row_count, np.int64), 0)


def record_length_size(row: bytes) -> int:
    return next(index for index, byte in enumerate(row) if byte < 0x80) + 1


# THE HEADER


@pytest.mark.parametrize("codec", CODECS)
def test_the_header_states_what_it_was_told(codec: str) -> None:
    records = [DecodedRecord(1000 + i, b"k", b"v" * i, []) for i in range(300)]
    identity, sequence = ProducerIdentity(2**63 - 1, 32767), 2**31 - 1
    batch = decode_batch(batch_of(columns_of(records), codec, is_transactional=True, identity=identity, base_sequence=sequence))
    assert batch.records == records
    assert batch[1:] == (CODECS[codec].id, True, 1000, 1299, *identity, sequence)


@settings(max_examples=20)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_records_in_pieces_have_the_header_of_the_whole(records: bytes, cuts: list[int]) -> None:
    ends = [*sorted(min(cut, len(records)) for cut in cuts), len(records)]
    pieces: list[Any] = [records[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    pieces = [kind(piece) for kind, piece in zip([bytes, bytearray, memoryview, bytes, bytes], pieces, strict=False)]
    arguments = {"record_count": 3, "base_timestamp": 1, "max_timestamp": 2}
    assert encode_batch_header(pieces, **arguments) == encode_batch_header([records], **arguments)


def test_a_header_without_producer_id_says_minus_one() -> None:
    header = encode_batch_header([b"abc"], record_count=5, base_timestamp=7, max_timestamp=9)
    assert len(header) == BATCH_HEADER_BYTES
    assert struct.unpack(">qiib4xhiqqqhii", header) == (0, 49 + 3, -1, 2, 0, 4, 7, 9, -1, -1, -1, 5)


# THE DECODER OF THESE TESTS CAN FAIL

GOOD = batch_of(columns_of([DecodedRecord(5, b"key", b"value", [("h", None)]), DecodedRecord(6, None, b"v")]))


@pytest.mark.parametrize("position", range(len(GOOD)))
def test_the_reference_decoder_refuses_any_changed_byte(position: int) -> None:
    damaged = bytearray(GOOD)
    damaged[position] ^= 0x01
    with pytest.raises(Malformed):
        decode_batch(bytes(damaged))


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_the_reference_decoder_refuses_any_cut(size: int) -> None:
    with pytest.raises(Malformed):
        decode_batch(GOOD[:size])


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ("0c000000010100ff", "left over"),
        ("0e00000001010000", "left over"),
        ("0a000000010100", "wanted"),
        ("0c010000010100", "record attributes"),
        ("0c000002010100", "offset delta"),
        ("0c000000030100", "length -2"),
        ("0c000000013200", "wanted"),
        ("1000000001010201 00", "header without a key"),
        ("8c00000000010100", "longer than it needs"),
    ],
)
def test_the_reference_decoder_refuses_malformed_records(record: str, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        decode_records(bytes.fromhex(record), 1)
