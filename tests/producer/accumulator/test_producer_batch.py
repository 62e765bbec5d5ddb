"""ProducerBatch: filled by callers, closed, compressed, stamped, sent, and done exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.batch_records import Compression, PackedRecords
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import BatchRows, Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import MAX_SEQUENCE, FinalState, ProducerBatch, increment_sequence
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity
from spark_kafka_sink.records.columns import record_columns
from spark_kafka_sink.records.compression import compress_blocks
from spark_kafka_sink.records.record_batch import NO_SEQUENCE
from tests.fakes.clock import ManualClock
from tests.producer.harness import columns, config, tp
from tests.records.batches import encode_records
from tests.records.reference import decode_batch

BLOCK = 256
NO_COMPRESSION = Compression("none", None)


def batch_of(max_raw_bytes: int = 10_000, created_ms: int = 1000) -> ProducerBatch:
    return ProducerBatch(tp(), created_ms, max_raw_bytes, base_timestamp=0, flush_id=1, block_size=BLOCK)


def encoded_rows(batch: ProducerBatch, values: Sequence[bytes], callback: Delivery) -> tuple[BatchRows, memoryview]:
    deltas = np.arange(batch.record_count, batch.record_count + len(values))
    encoded = encode_records(columns(values), deltas, np.zeros(len(values), np.int64))
    batch_rows = BatchRows(
        callback,
        batch.topic_partition,
        batch.record_count,
        np.arange(len(values), dtype=np.int32),
        np.diff(encoded.offsets).astype(np.int32),
        len(encoded.data),
    )
    return batch_rows, encoded.data


def blocks_of(count: int) -> PoolMemory:
    return PoolMemory([bytearray(b"\xee" * BLOCK) for _ in range(count)])  # stale bytes of an earlier use


def fill(batch: ProducerBatch, *values: bytes, callback: Delivery | None = None) -> Delivery:
    """Reserve and write, as a caller does."""
    delivery = callback or Delivery(len(values), ManualClock())
    batch_rows, data = encoded_rows(batch, values, delivery)
    batch.write(batch.reserve(batch_rows, blocks_of(batch.missing_blocks(len(data))), max_timestamp=0), data)
    batch.reservation_count -= 1
    return delivery


def fill_segment(batch: ProducerBatch, *values: bytes, codec: str = "none") -> None:
    """Reserve and write rows that keep their own memory; a codec compresses them at once."""
    batch_rows, data = encoded_rows(batch, values, Delivery(len(values), ManualClock()))
    segment = batch.reserve_segment(batch_rows, PoolMemory([], -(-len(data) // BLOCK)), max_timestamp=0)
    batch.attach(segment, data if codec == "none" else PackedRecords([compress_blocks(codec, data)]))
    batch.reservation_count -= 1


def wire(batch: ProducerBatch) -> bytes:
    return b"".join(batch.wire_buffers())


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in decode_batch(wire(batch)).records]


# FILLING


@pytest.mark.parametrize("size", [0, 1, 200, 247, 248, 249, 255, 256, 257, 1000, 5000])
def test_what_is_written_over_blocks_is_read_as_one_run(size: int) -> None:
    batch = batch_of()
    value = Random(size).randbytes(size)
    fill(batch, b"before", value, b"behind")
    batch.finish(NO_COMPRESSION)
    assert values_of(batch) == [b"before", value, b"behind"]
    assert len(batch.memory.blocks) == -(-batch.record_bytes // BLOCK)


def test_a_batch_grows_block_by_block() -> None:
    batch = batch_of()
    assert batch.missing_blocks(1) == 1
    fill(batch, bytes(100))
    assert batch.missing_blocks(100) == 0
    assert batch.missing_blocks(BLOCK) == 1
    assert batch.missing_blocks(10 * BLOCK) == 10


def test_reservations_may_be_written_in_any_order() -> None:
    batch = batch_of()
    callback = Delivery(2, ManualClock())
    pieces = []
    for value in (b"a" * 300, b"b" * 300):
        batch_rows, data = encoded_rows(batch, [value], callback)
        pieces.append((batch.reserve(batch_rows, blocks_of(batch.missing_blocks(len(data))), 0), data))
    for place, data in reversed(pieces):
        batch.write(place, data)
    batch.finish(NO_COMPRESSION)
    assert values_of(batch) == [b"a" * 300, b"b" * 300]


def test_segments_with_memory_of_their_own_stand_between_those_in_blocks() -> None:
    batch = batch_of()
    values = [b"1" * 300, b"2" * 100, b"3" * 700, b"4" * 10, b"5" * 400]
    fill(batch, values[0])
    fill(batch, values[1])
    fill_segment(batch, values[2])
    fill(batch, values[3])
    fill_segment(batch, values[4])
    assert (len(batch.memory.blocks), batch.memory.charge_blocks) == (2, 3 + 2)
    batch.finish(NO_COMPRESSION)
    assert values_of(batch) == values
    assert batch.size_bytes == len(wire(batch))


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
@pytest.mark.parametrize("last_is_packed", [False, True])
def test_parts_compressed_while_they_were_written_make_one_batch_with_the_others(codec: str, last_is_packed: bool) -> None:
    batch = batch_of()
    values = [b"1" * 300, b"2" * 3000, b"3" * 700, b"4" * 5000]
    fill(batch, values[0])
    fill_segment(batch, values[1], codec=codec)
    fill_segment(batch, values[2])
    fill_segment(batch, values[3], codec=codec if last_is_packed else "none")
    held = len(batch.memory)
    surplus = batch.finish(Compression(codec, None))
    assert values_of(batch) == values
    assert batch.memory == PoolMemory([], -(-sum(map(len, batch.body)) // BLOCK))
    assert len(surplus) + len(batch.memory) == held


def test_a_batch_with_packed_segments_can_be_split() -> None:
    batch = batch_of()
    fill_segment(batch, *[b"%d" % row * 900 for row in range(4)], codec="snappy")
    fill_segment(batch, *[b"%d" % row * 900 for row in range(4, 8)], codec="snappy")
    batch.finish(Compression("snappy", None))
    smaller = batch.split(2000)
    for each in smaller:
        each.finish(Compression("snappy", None))
    assert [value for each in smaller for value in values_of(each)] == [b"%d" % row * 900 for row in range(8)]


def test_records_that_were_not_written_are_never_taken_for_nothing() -> None:
    batch = batch_of()
    batch_rows, _ = encoded_rows(batch, [b"x"], Delivery(1, ManualClock()))
    batch.reserve_segment(batch_rows, PoolMemory([], 1), 0)
    with pytest.raises(RuntimeError, match="not written"):
        batch.finish(NO_COMPRESSION)


def test_a_batch_is_full_at_its_limit_or_when_it_is_closed() -> None:
    batch = batch_of(max_raw_bytes=100)
    fill(batch, bytes(50))
    assert not batch.is_full()
    fill(batch, bytes(50))
    assert batch.is_full()
    other = batch_of()
    other.is_closed = True
    assert other.is_full()


# CLOSING


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_shrinks_the_batch_and_gives_blocks_back(codec: str) -> None:
    batch = batch_of()
    fill(batch, *[bytes(500)] * 10)
    before = len(batch.memory)
    surplus = batch.finish(Compression(codec, None))
    assert batch.memory == PoolMemory([], -(-len(wire(batch)) // BLOCK))
    assert (len(surplus.blocks), surplus.charge_blocks) == (before - batch.memory.charge_blocks, 0)
    assert batch.codec == codec
    assert values_of(batch) == [bytes(500)] * 10
    assert batch.size_bytes == len(wire(batch))
    assert 0 < batch.compression_ratio < 0.5


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_that_do_not_shrink_go_uncompressed(codec: str) -> None:
    batch = batch_of()
    value = Random(1).randbytes(600)
    fill(batch, value)
    assert batch.finish(Compression(codec, None)) is None
    assert batch.codec == "none"
    assert decode_batch(wire(batch)).codec_id == 0
    assert values_of(batch) == [value]
    assert batch.compression_ratio == 1.0


def test_finishing_twice_changes_nothing() -> None:
    """The caller that filled a batch may have compressed it before the Sender drains it."""
    batch = batch_of()
    fill(batch, *[bytes(500)] * 10)
    batch.finish(Compression("gzip", 6))
    once = wire(batch)
    assert batch.finish(Compression("gzip", 6)) is None
    assert wire(batch) == once


def test_the_level_of_the_codec_is_read_from_the_configuration() -> None:
    assert Compression.of(config(compression_type="gzip", compression_gzip_level=3)) == Compression("gzip", 3)
    assert Compression.of(config(compression_type="zstd", compression_zstd_level=-5)) == Compression("zstd", -5)
    assert Compression.of(config(compression_type="snappy")) == Compression("snappy", None)
    assert not Compression.of(config()).is_enabled


def test_the_size_is_known_before_and_after_finishing() -> None:
    batch = batch_of()
    fill(batch, bytes(300), bytes(300))
    before = batch.size_bytes
    batch.finish(NO_COMPRESSION)
    assert batch.size_bytes == before == len(wire(batch))


# SENDING


def test_a_batch_carries_its_identity_once_it_has_one() -> None:
    batch = batch_of()
    fill(batch, b"a", b"b", b"c")
    batch.finish(NO_COMPRESSION)
    assert not batch.has_sequence
    assert decode_batch(wire(batch)).base_sequence == NO_SEQUENCE
    batch.set_producer_state(ProducerIdentity(7, 3), 40)
    decoded = decode_batch(wire(batch))
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence) == (7, 3, 40)
    assert batch.last_sequence == 42


def test_a_retry_sends_the_very_same_bytes() -> None:
    batch = batch_of()
    fill(batch, b"a")
    batch.finish(NO_COMPRESSION)
    batch.set_producer_state(ProducerIdentity(7, 3), 0)
    first = wire(batch)
    batch.count_attempt(2000)
    assert wire(batch) == first


def test_a_new_epoch_renews_header_and_checksum_and_nothing_else() -> None:
    batch = batch_of()
    fill(batch, *[b"%d" % row for row in range(50)])
    batch.finish(Compression("lz4", None))
    batch.set_producer_state(ProducerIdentity(7, 3), 40)
    old = wire(batch)
    batch.reset_producer_state(ProducerIdentity(7, 4), 0)
    new = wire(batch)
    assert batch.sequence_has_been_reset
    assert new[61:] == old[61:]
    assert (decode_batch(new).producer_epoch, decode_batch(new).base_sequence) == (4, 0)


def test_a_new_epoch_keeps_a_batch_in_its_transaction() -> None:
    batch = ProducerBatch(tp(), 1000, 10_000, base_timestamp=0, flush_id=1, block_size=BLOCK, is_transactional=True)
    fill(batch, b"a")
    batch.finish(NO_COMPRESSION)
    batch.set_producer_state(ProducerIdentity(7, 3), 40)
    assert decode_batch(wire(batch)).transactional
    batch.reset_producer_state(ProducerIdentity(7, 4), 0)
    assert decode_batch(wire(batch)).transactional


def test_an_attempt_that_is_on_its_way_keeps_its_bytes_when_the_batch_is_renumbered() -> None:
    batch = batch_of()
    fill(batch, b"a")
    batch.finish(NO_COMPRESSION)
    batch.set_producer_state(ProducerIdentity(7, 3), 40)
    on_the_wire = batch.wire_buffers()
    before = b"".join(on_the_wire)
    batch.reset_producer_state(ProducerIdentity(7, 4), 0)
    batch.wire_buffers()
    assert b"".join(on_the_wire) == before


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [(0, 1, 1), (MAX_SEQUENCE - 1, 1, MAX_SEQUENCE), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 2, 5, 2), (5, 0, 5)],
)
def test_after_the_largest_sequence_comes_0(sequence: int, increment: int, expected: int) -> None:
    assert increment_sequence(sequence, increment) == expected


def test_a_batch_may_wrap_in_its_middle() -> None:
    batch = batch_of()
    fill(batch, *[b"x"] * 10)
    batch.finish(NO_COMPRESSION)
    batch.set_producer_state(ProducerIdentity(1, 0), MAX_SEQUENCE - 3)
    assert batch.last_sequence == 5
    assert decode_batch(wire(batch)).base_sequence == MAX_SEQUENCE - 3


# SPLITTING


def test_smaller_batches_hold_the_records_of_the_split_one_in_order() -> None:
    batch = batch_of()
    fill(batch, b"a" * 100, b"b" * 100)
    fill(batch, b"c" * 100)
    batch.finish(NO_COMPRESSION)
    smaller = batch.split(120)
    for each in smaller:
        each.finish(NO_COMPRESSION)
    assert [values_of(each) for each in smaller] == [[b"a" * 100], [b"b" * 100], [b"c" * 100]]
    assert batch.final_state is FinalState.SPLIT


def test_splitting_keeps_keys_headers_timestamps_and_nulls() -> None:
    headers = pa.array([[("h", b"1"), ("h", None)], [], [("x", b"")]], pa.map_(pa.string(), pa.binary()))
    cols = record_columns(
        pa.array([b"v", None, b""], pa.binary()),
        pa.array([None, b"k", b""], pa.binary()),
        headers,
        pa.array([5_000, 9_000_000_000, 3_000], pa.int64()),
    )
    deltas = np.array([0, 9_000_000_000 - 5_000, -2_000])
    encoded = encode_records(cols, np.arange(3), deltas)
    batch = ProducerBatch(tp(), 1000, 10_000, base_timestamp=5_000, flush_id=1, block_size=BLOCK)
    sizes = np.diff(encoded.offsets).astype(np.int32)
    batch_rows = BatchRows(Delivery(3, ManualClock()), tp(), 0, np.arange(3, dtype=np.int32), sizes, len(encoded.data))
    batch.write(batch.reserve(batch_rows, blocks_of(1), 9_000_000_000), encoded.data)
    batch.finish(NO_COMPRESSION)
    whole = decode_batch(wire(batch)).records
    smaller = batch.split(1)
    for each in smaller:
        each.finish(NO_COMPRESSION)
    decoded = [decode_batch(wire(each)) for each in smaller]
    assert [record for each in decoded for record in each.records] == whole
    assert [(each.base_timestamp, each.max_timestamp) for each in decoded] == [
        (stamp, stamp) for stamp in (5_000, 9_000_000_000, 3_000)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_split_too(codec: str) -> None:
    batch = batch_of()
    values = [b"%03d" % row + bytes(50) for row in range(60)]
    fill(batch, *values)
    compression = Compression(codec, None)
    batch.finish(compression)
    smaller = batch.split(1000)
    for each in smaller:
        each.finish(compression)
    assert [value for each in smaller for value in values_of(each)] == values
    assert all(each.record_bytes <= 1000 for each in smaller)
    assert {each.codec for each in smaller} == {codec}


def test_smaller_batches_carry_the_numbers_of_the_split_one_on() -> None:
    batch = batch_of()
    fill(batch, *[b"x" * 30] * 7)
    batch.finish(NO_COMPRESSION)
    batch.set_producer_state(ProducerIdentity(7, 3), MAX_SEQUENCE - 1)
    smaller = batch.split(90)
    assert [each.record_count for each in smaller] == [2, 2, 2, 1]
    assert [(*each.identity, each.base_sequence) for each in smaller] == [
        (7, 3, MAX_SEQUENCE - 1),
        (7, 3, 0),
        (7, 3, 2),
        (7, 3, 4),
    ]


def test_smaller_batches_of_one_without_numbers_have_none() -> None:
    batch = batch_of()
    fill(batch, b"a", b"b")
    batch.finish(NO_COMPRESSION)
    assert [each.has_sequence for each in batch.split(1)] == [False, False]


def test_smaller_batches_are_as_old_as_the_split_one_and_not_tried_yet() -> None:
    batch = batch_of(created_ms=1234)
    fill(batch, b"a", b"b")
    batch.finish(NO_COMPRESSION)
    batch.count_attempt(2000)
    for each in batch.split(1):
        assert (each.created_ms, each.flush_id, each.attempts, each.is_closed) == (1234, 1, 0, True)


def test_callbacks_hear_of_the_smaller_batches() -> None:
    batch = batch_of()
    first, second = fill(batch, b"a", b"b", b"c"), fill(batch, b"d", b"e")
    batch.finish(NO_COMPRESSION)
    one, two, three = batch.split(20)  # a b | c d | e
    assert [each.record_count for each in (one, two, three)] == [2, 2, 1]
    one.complete(10, -1)
    assert (first.acknowledged, second.acknowledged) == (2, 0)
    two.fail(KafkaError("refused"), {1: KafkaError("row d")})
    three.complete(20, -1)
    assert (first.acknowledged, first.failed) == (2, 1)
    assert (second.acknowledged, second.failed) == (1, 1)
    assert "row 0 of this chunk" in str(second.error)  # d is the second call's first row
    assert first.offsets[tp()].last == 11


# TIME


def test_delivery_timeout_counts_from_creation_whatever_happened_since() -> None:
    batch = batch_of(created_ms=1000)
    batch.count_attempt(1800)
    assert not batch.has_reached_delivery_timeout(1000, 1999)
    assert batch.has_reached_delivery_timeout(1000, 2000)


def test_a_clock_that_is_read_late_never_makes_a_wait_negative() -> None:
    """`now` is read once per round; a batch may be made after that."""
    batch = batch_of(created_ms=1000)
    assert batch.waited_ms(990) == 0
    batch.count_attempt(1500)
    batch.count_attempt(1400)
    assert batch.last_attempt_ms == 1500
    assert batch.waited_ms(1400) == 0
    assert not batch.has_reached_delivery_timeout(100, 900)


def test_leader_changes_are_noticed_once_per_attempt() -> None:
    """KIP-951: a retry to a new leader need not back off; a second retry to the same one has to."""
    batch = batch_of()
    for epoch in (None, 5):
        batch.maybe_update_leader_epoch(epoch)
        assert not batch.has_leader_changed_for_the_ongoing_retry()  # the first attempt is no retry
    batch.count_attempt(0)
    batch.maybe_update_leader_epoch(5)
    assert not batch.has_leader_changed_for_the_ongoing_retry()
    batch.maybe_update_leader_epoch(6)
    assert batch.has_leader_changed_for_the_ongoing_retry()
    batch.maybe_update_leader_epoch(6)
    assert batch.has_leader_changed_for_the_ongoing_retry()
    batch.count_attempt(0)
    assert not batch.has_leader_changed_for_the_ongoing_retry()
    batch.maybe_update_leader_epoch(None)
    batch.maybe_update_leader_epoch(4)  # older: not a change
    assert not batch.has_leader_changed_for_the_ongoing_retry()
    batch.maybe_update_leader_epoch(7)
    assert batch.has_leader_changed_for_the_ongoing_retry()


# DONE


def test_completion_tells_every_callback_of_its_rows() -> None:
    batch = batch_of()
    first, second = fill(batch, b"a", b"b"), fill(batch, b"c")
    batch.complete(10, -1)
    assert batch.final_state is FinalState.SUCCEEDED
    assert (first.offsets[tp()].first, first.offsets[tp()].last) == (10, 11)
    assert (second.offsets[tp()].first, second.acknowledged) == (12, 1)


def test_a_batch_cannot_be_completed_twice() -> None:
    batch = batch_of()
    delivery = fill(batch, b"a")
    batch.complete(10, -1)
    with pytest.raises(RuntimeError, match="already succeeded"):
        batch.complete(11, -1)
    assert delivery.acknowledged == 1
    assert delivery.offsets[tp()].first == 10


def test_a_batch_cannot_fail_after_it_succeeded() -> None:
    batch = batch_of()
    delivery = fill(batch, b"a")
    batch.complete(10, -1)
    with pytest.raises(RuntimeError, match="already succeeded and cannot become failed"):
        batch.fail(KafkaError("late"))
    assert delivery.error is None


@pytest.mark.parametrize("final_state", [FinalState.ABORTED, FinalState.FAILED])
def test_an_answer_after_the_client_gave_up_changes_nothing(final_state: FinalState) -> None:
    batch = batch_of()
    delivery = fill(batch, b"a")
    error = KafkaError("expired")
    batch.fail(error, final_state=final_state)
    batch.complete(10, -1)
    batch.fail(KafkaError("again"))
    assert batch.final_state is final_state
    assert (delivery.error, delivery.failed, delivery.acknowledged) == (error, 1, 0)


def test_the_error_of_the_blamed_row_reaches_its_callback_only() -> None:
    batch = batch_of()
    first, second = fill(batch, b"a", b"b"), fill(batch, b"c", b"d")
    whole = KafkaError("batch rejected")
    batch.fail(whole, {3: KafkaError("bad row")})
    assert first.error is whole
    assert "row 1 of this chunk" in str(second.error)


def test_without_blamed_rows_all_callbacks_hear_the_same_error() -> None:
    batch = batch_of()
    callbacks = [fill(batch, b"a"), fill(batch, b"b")]
    whole = KafkaError("batch rejected")
    batch.fail(whole)
    assert [callback.error for callback in callbacks] == [whole, whole]


def test_the_repr_of_a_batch_tells_what_one_looks_for_in_a_log() -> None:
    batch = batch_of()
    fill(batch, b"secret value")
    assert repr(batch).startswith("ProducerBatch(orders-0, records=1, bytes=")
    assert "secret" not in repr(batch)
