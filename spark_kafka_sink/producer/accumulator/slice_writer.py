"""Encodes the rows of a slice into the room that slice_layout.py has reserved for them, on the thread that reserved it.

Rows of small reservations are encoded together and copied into pool blocks. A segment keeps the memory it was encoded into, and
is compressed while it is in the CPU's cache if the codec allows that. A batch that is full afterwards is compressed here too.
Laws: an error of CLEANED_UP_ERRORS leaves no reservation open. A batch with a reservation is not drained and does not expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.batch_compressor import BatchCompressor
from spark_kafka_sink.producer.accumulator.batch_records import PackedRecords
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.producer.accumulator.slice_layout import MIN_SEGMENT_BYTES, Reservation
from spark_kafka_sink.producer.accumulator.sorted_slice import SortedSlice
from spark_kafka_sink.records.compression import compress_blocks
from spark_kafka_sink.records.interleave import InterleavedRows, data_buffer
from spark_kafka_sink.records.record_batch import octets

MAX_STEP_BYTES = 512 * 1024  # of rows encoded in one step, then copied or compressed: a core's cache holds as much


@dataclass(eq=False, repr=False)
class SliceWriter:
    """Encodes rows into their reserved room, and compresses batches that are full."""

    pool: BufferPool  # of the batches' memory
    compressor: BatchCompressor  # for batches that are full
    note_poisoned: Callable[[], None]  # called when a batch is poisoned
    wake_sender: Callable[[], None]  # called when there is something to send

    def write(self, sorted_slice: SortedSlice, reservations: list[Reservation]) -> None:
        """Encode the reserved rows and end their reservations. After an error, call `poison_batches` to end the open ones."""
        first_row = reservations[0].start
        must_wake = False
        try:
            rows = sorted_slice.interleave(first_row, reservations[-1].stop)
            for group in _groups_to_encode(reservations):
                if group[0].has_own_memory:
                    self._write_segment(rows, first_row, group[0])
                else:
                    _write_to_blocks(rows, first_row, group)
                for reservation in group:
                    if self.compressor.compression.is_enabled:
                        self._compress_if_full(reservation)
                    must_wake |= self._release(reservation)
        finally:
            if must_wake:
                self.wake_sender()

    def poison_batches(self, reservations: list[Reservation]) -> None:
        """End the reservations that are open after an error. Their batches are poisoned: all rows in them fail."""
        for reservation in reservations:
            if reservation.is_open:
                self._poison_batch(reservation)
                self._release(reservation)
        if reservations:
            self.wake_sender()

    # SEGMENTS

    def _write_segment(self, rows: InterleavedRows, first_row: int, reservation: Reservation) -> None:
        compression = self.compressor.compression
        is_large = reservation.size_bytes >= MIN_SEGMENT_BYTES  # a small segment would compress badly by itself
        segment = self._pack_segment(rows, first_row, reservation) if compression.is_blockwise and is_large else None
        if segment is None:
            data = _encode_rows(rows, reservation.start - first_row, reservation.stop - first_row, reservation.size_bytes)
            reservation.batch.attach(reservation.index_in_batch, data)
            return
        reservation.batch.attach(reservation.index_in_batch, segment)
        surplus_blocks = reservation.charge_blocks - self.pool.blocks_for(segment.size_bytes)
        if surplus_blocks > 0:
            with reservation.queue.lock:
                self.pool.reduce_charge(reservation.batch.memory, surplus_blocks)

    def _pack_segment(self, rows: InterleavedRows, first_row: int, reservation: Reservation) -> PackedRecords | None:
        """Encode and compress in steps that stay in the CPU's cache; None if the first step does not get smaller."""
        codec, level = self.compressor.compression.codec, self.compressor.compression.level
        row_count = reservation.stop - reservation.start
        step = max(1, row_count * MAX_STEP_BYTES // reservation.size_bytes)
        blocks: list[memoryview] = []
        encoded_bytes = 0
        for start in range(reservation.start - first_row, reservation.stop - first_row, step):
            data = octets(data_buffer(rows.write(start, min(start + step, reservation.stop - first_row))))
            blocks.append(compress_blocks(codec, data, level))
            encoded_bytes += len(data)
            if len(blocks) == 1 and len(blocks[0]) >= encoded_bytes:
                return None
        _check_size(encoded_bytes, reservation.size_bytes)
        return PackedRecords(blocks)

    # THE END OF A RESERVATION

    def _compress_if_full(self, reservation: Reservation) -> None:
        """Compress a closed batch that nobody else writes into. It is still reserved, so the Sender does not drain it."""
        batch = reservation.batch
        with reservation.queue.lock:
            is_last_writer = batch.is_closed and batch.reservation_count == 1 and batch.poison is None
        if is_last_writer:
            self.compressor.finish(batch)

    def _poison_batch(self, reservation: Reservation) -> None:
        batch = reservation.batch
        with reservation.queue.lock:
            reservation.queue.close_locked(batch)
            batch.poison = batch.poison or KafkaError(
                f"{batch.topic_partition}: the batch is not sent because one of its rows could not be encoded"
            )
        self.note_poisoned()

    def _release(self, reservation: Reservation) -> bool:
        """End a reservation; returns whether the Sender should look at the batch now."""
        queue, batch = reservation.queue, reservation.batch
        with queue.lock:
            is_full = batch.is_full()
            reservation.is_open = False
            batch.reservation_count -= 1
            batch.must_wake_sender |= is_full or reservation.begins_batch  # kept until the last of its writers is done
            must_wake = batch.must_wake_sender and batch.reservation_count == 0
            batch.must_wake_sender &= not must_wake
        return must_wake


def _groups_to_encode(reservations: list[Reservation]) -> Iterator[list[Reservation]]:
    """Group neighbors whose rows go into blocks, up to a limit in bytes. A segment is a group alone: it is not copied."""
    group: list[Reservation] = []
    size = 0
    for reservation in reservations:
        if group and (reservation.has_own_memory or group[-1].has_own_memory or size + reservation.size_bytes > MAX_STEP_BYTES):
            yield group
            group, size = [], 0
        group.append(reservation)
        size += reservation.size_bytes
    yield group


def _write_to_blocks(rows: InterleavedRows, first_row: int, reservations: list[Reservation]) -> None:
    size = sum(reservation.size_bytes for reservation in reservations)
    data = _encode_rows(rows, reservations[0].start - first_row, reservations[-1].stop - first_row, size)
    start = 0
    for reservation in reservations:
        stop = start + reservation.size_bytes
        reservation.batch.write(reservation.index_in_batch, data[start:stop])
        start = stop


def _encode_rows(rows: InterleavedRows, start: int, stop: int, size_bytes: int) -> memoryview:
    data = octets(data_buffer(rows.write(start, stop)))
    _check_size(len(data), size_bytes)
    return data


def _check_size(encoded_bytes: int, reserved_bytes: int) -> None:
    if encoded_bytes != reserved_bytes:
        raise RuntimeError(f"{encoded_bytes} bytes were encoded where {reserved_bytes} were reserved")
