"""Records of one topic-partition that are sent, and succeed or fail, together.

Life: callers reserve room and fill it (under the queue's lock and their reservations) → closed when it is full or drained →
compressed by the caller who filled it or by the Sender, which writes producer id, epoch and sequence into the header → in flight,
perhaps several times → done, once. Few rows are copied into BufferPool blocks, which many calls share. Many rows of a call stay
in the memory they were encoded in, which is charged to the pool. A batch neither allocates memory nor gives it back: SliceLayout
and RecordGatherer allocate, SliceWriter, BatchCompressor and RecordAccumulator.deallocate give back.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.batch_records import (
    Compression,
    PackedRecords,
    Segment,
    compressed_records,
    has_packed,
    total_size,
    uncompressed_views,
)
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import BatchRows
from spark_kafka_sink.protocol.producer_identity import NO_PRODUCER, ProducerIdentity
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.compression import CODECS, decompress
from spark_kafka_sink.records.record_batch import BATCH_HEADER_BYTES, NO_SEQUENCE, encode_batch_header
from spark_kafka_sink.records.split_records import SplittableRecords, read_records

logger = logging.getLogger(__name__)

MAX_SEQUENCE = 2**31 - 1


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence `increment` records later; 2^31-1 is followed by 0."""
    return (sequence + increment) & MAX_SEQUENCE


class FinalState(enum.Enum):
    """How a batch ended."""

    ABORTED = "aborted"  # it failed for a reason other than a broker's answer, for instance it expired; it may be in the log
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    SPLIT = "split"  # other batches have its rows


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """A record batch, from its first row to its outcome. RecordAccumulator makes new ones, `split` makes smaller ones."""

    topic_partition: TopicPartition  # where the records go
    created_ms: int  # monotonic time; delivery.timeout.ms counts from here, also for the smaller batches of a split
    max_raw_bytes: int  # bytes of uncompressed records after which it is full. The first record always fits
    base_timestamp: int  # of the first record, ms since 1970
    flush_id: int  # flush() waits for all batches up to an id; the smaller batches of a split have that of the large one
    block_size: int  # of the pool that `memory` is from
    is_transactional: bool = False  # whether the header says that the records belong to a transaction

    # ROWS. Guarded by the queue's lock while the batch is in a queue.
    rows_by_call: list[BatchRows] = field(default_factory=list, init=False)
    record_count: int = field(default=0, init=False)  # reserved rows; all of them are written once `reservation_count` is 0
    record_bytes: int = field(default=0, init=False)  # of the reserved rows, uncompressed
    max_timestamp: int = field(init=False)
    # Reservations that callers still fill. Until it is 0, the batch is not drained, does not expire and keeps its memory.
    reservation_count: int = field(default=0, init=False)
    is_closed: bool = field(default=False, init=False)  # takes no more rows
    # The end of the last reservation must wake the Sender: it skipped the batch, or the batch is full or new.
    must_wake_sender: bool = field(default=False, init=False)
    # Why the batch must not be sent, for instance because a caller could not encode.
    poison: KafkaError | None = field(default=None, init=False)

    # MEMORY. Guarded in the same way.
    memory: PoolMemory = field(default_factory=PoolMemory, init=False)  # blocks, and a charge for segments
    surplus: PoolMemory | None = field(default=None, init=False)  # what compression has saved, until it is given back
    block_bytes: int = field(default=0, init=False)  # reserved in the blocks
    segments: list[Segment] = field(default_factory=list, init=False)  # of the records section, in order

    # RECORDS SECTION. One thread at a time: the caller that filled the batch, under its reservation, then the Sender.
    codec: str = field(default="none", init=False)
    body: list[memoryview] = field(default_factory=list, init=False)  # the records section as it is sent; empty until finish()

    # IDENTITY. Sender only.
    header: bytes = field(default=b"", init=False)  # made from the fields below when it is needed
    identity: ProducerIdentity = field(default=NO_PRODUCER, init=False)  # of its producer
    base_sequence: int = field(default=NO_SEQUENCE, init=False)
    sequence_has_been_reset: bool = field(default=False, init=False)

    # ATTEMPTS. Sender only.
    attempts: int = field(default=0, init=False)  # that failed, also without an answer or a request
    backoff_ms: int = field(default=0, init=False)  # how long the present retry waits
    last_attempt_ms: int = field(init=False)
    drained_ms: int = field(default=0, init=False)
    is_in_flight: bool = field(default=False, init=False)  # a request refers to its memory
    # An attempt with the present sequence failed, and the broker may have written the batch all the same.
    is_in_doubt: bool = field(default=False, init=False)
    last_error: str | None = field(default=None, init=False)  # of the last attempt, for the error of a batch that expires
    leader_epoch: int | None = field(default=None, init=False)
    attempts_when_leader_last_changed: int = field(default=0, init=False)

    final_state: FinalState | None = field(default=None, init=False)  # Sender only

    def __post_init__(self) -> None:
        self.max_timestamp = self.base_timestamp
        self.last_attempt_ms = self.created_ms

    def __repr__(self) -> str:
        producer_id, epoch = self.identity
        return (
            f"ProducerBatch({self.topic_partition}, records={self.record_count}, bytes={self.record_bytes},"
            f" producer={producer_id}/{epoch}, sequence={self.base_sequence}, attempts={self.attempts})"
        )

    # FILLING: callers

    def is_full(self) -> bool:
        return self.is_closed or self.record_bytes >= self.max_raw_bytes

    def missing_blocks(self, more_bytes: int) -> int:
        """How many more blocks are needed for `more_bytes` in addition to the bytes that are reserved in blocks."""
        return -(-(self.block_bytes + more_bytes) // self.block_size) - len(self.memory.blocks)

    def reserve(self, batch_rows: BatchRows, memory: PoolMemory, max_timestamp: int) -> int:
        """Reserve room for rows in the blocks; returns the position to `write` at. The caller holds the queue's lock."""
        start, stop = self.block_bytes, self.block_bytes + batch_rows.size_bytes
        segment: Segment = range(start, stop)
        extends_last = False
        if self.segments and isinstance(self.segments[-1], range):
            segment, extends_last = range(self.segments[-1].start, stop), True
        self._add(batch_rows, memory, max_timestamp, segment, extends_last)
        self.block_bytes = stop
        return start

    def reserve_segment(self, batch_rows: BatchRows, memory: PoolMemory, max_timestamp: int) -> int:
        """Reserve a separate segment for rows; returns its index, for `attach`. The caller holds the queue's lock."""
        index = len(self.segments)
        self._add(batch_rows, memory, max_timestamp, None, extends_last=False)
        return index

    def _add(self, batch_rows: BatchRows, memory: PoolMemory, max_timestamp: int, segment: Segment, extends_last: bool) -> None:
        row_count, size_bytes = len(batch_rows.positions), batch_rows.size_bytes
        self.reservation_count += 1  # first: an interrupt at any call below must not leave a batch that looks whole
        self.memory.add(memory)
        if extends_last:
            self.segments[-1] = segment
        else:
            self.segments.append(segment)
        self.rows_by_call.append(batch_rows)
        self.record_count += row_count
        self.record_bytes += size_bytes
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def write(self, start: int, data: memoryview) -> None:
        """Copy encoded records into reserved room. Several callers may write at the same time, each into its own room."""
        index, block_offset = divmod(start, self.block_size)
        while data:
            part = data[: self.block_size - block_offset]
            block = memoryview(self.memory.blocks[index])  # slicing the bytearray would copy twice
            block[block_offset : block_offset + len(part)] = part
            data = data[len(part) :]
            index, block_offset = index + 1, 0

    def attach(self, segment: int, data: memoryview | PackedRecords) -> None:
        """Use encoded records as a segment without copying them."""
        self.segments[segment] = data

    # CLOSING: the caller that filled it, or the Sender

    def finish(self, compression: Compression) -> PoolMemory | None:
        """Make the records section, compressed if that makes it smaller; returns `surplus`, the memory that this saves, if any.

        Incompressible records are sent uncompressed, unless some were compressed while they were written. The attributes name
        the codec of each batch, so every consumer accepts that. A second call does nothing.
        """
        if self.body:
            return None
        if compression.is_enabled:
            packed_records = compressed_records(self.segments, self.memory.blocks, self.block_size, compression)
            if total_size(packed_records) < self.record_bytes or has_packed(self.segments):
                self.codec = compression.codec
                self._keep_only(packed_records)
                return self.surplus
        self.body = self.uncompressed_records()
        return None

    def uncompressed_records(self) -> list[memoryview]:
        return uncompressed_views(self.segments, self.memory.blocks, self.block_size)

    def _keep_only(self, packed_records: list[memoryview]) -> None:
        """Drop the uncompressed records. The compressed ones are not in pool blocks, so they are charged for."""
        memory, surplus = self.memory.charge_and_remainder(-(-total_size(packed_records) // self.block_size))
        self.body, self.segments, self.memory, self.surplus = packed_records, [], memory, surplus

    def split(self, max_raw_bytes: int) -> list[ProducerBatch]:
        """Split a batch that the broker found too large: into batches of one record, or of records of at most `max_raw_bytes`.

        The smaller batches keep the creation time (for delivery.timeout.ms), the flush id and the sequence numbers, but have no
        attempts yet, and no memory of the pool. They report the outcome of the rows instead of the large batch.
        """
        sizes = np.concatenate([batch_rows.sizes for batch_rows in self.rows_by_call])
        body = b"".join(self.body)
        records = read_records(decompress(self.codec, body, self.record_bytes), sizes)
        cumulative_sizes = np.cumsum(sizes, dtype=np.int64)
        smaller_batches: list[ProducerBatch] = []
        start = 0
        while start < self.record_count:
            bytes_before = int(cumulative_sizes[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(cumulative_sizes, bytes_before + max_raw_bytes, side="right")))
            smaller_batches.append(self._smaller_batch(records, start, stop))
            start = stop
        self.final_state = FinalState.SPLIT
        return smaller_batches

    def _smaller_batch(self, records: SplittableRecords, start: int, stop: int) -> ProducerBatch:
        """A batch with the records start:stop."""
        encoded_records = records.encode(start, stop)
        timestamps = self.base_timestamp + records.timestamp_deltas[start:stop]
        size_bytes = len(encoded_records.data)
        batch = ProducerBatch(
            self.topic_partition,
            self.created_ms,
            max_raw_bytes=size_bytes,
            base_timestamp=int(timestamps[0]),
            flush_id=self.flush_id,
            block_size=size_bytes,
            is_transactional=self.is_transactional,
        )
        batch.is_closed = True
        batch.max_timestamp = int(timestamps.max())
        batch.segments = [encoded_records.data]
        batch.record_count, batch.record_bytes = stop - start, size_bytes
        sizes = np.diff(encoded_records.offsets).astype(np.int32)
        for batch_rows in self.rows_by_call:
            first = batch_rows.first_delta
            part_start, part_stop = max(start, first), min(stop, first + batch_rows.row_count)
            if part_start < part_stop:
                part_sizes = sizes[part_start - start : part_stop - start]
                positions, total = batch_rows.positions[part_start - first : part_stop - first], int(part_sizes.sum())
                part = BatchRows(batch_rows.callback, self.topic_partition, part_start - start, positions, part_sizes, total)
                batch.rows_by_call.append(part)
        if self.has_sequence:
            batch.set_producer_state(self.identity, increment_sequence(self.base_sequence, start))
            batch.sequence_has_been_reset = self.sequence_has_been_reset
        return batch

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire once finished; before that, of the uncompressed batch."""
        return BATCH_HEADER_BYTES + (total_size(self.body) if self.body else self.record_bytes)

    @property
    def compression_ratio(self) -> float:
        """Bytes of the records as they are sent / bytes before compression; 1.0 before `finish`."""
        return (self.size_bytes - BATCH_HEADER_BYTES) / max(1, self.record_bytes)

    # SENDING: Sender thread

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.base_sequence, self.record_count - 1)

    def set_producer_state(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Set identity and sequence: at the first drain, and after that only when a new epoch begins."""
        self.identity = identity
        self.base_sequence = base_sequence
        self.header = b""

    def reset_producer_state(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Renumber a batch that is certainly not in the log: under a new epoch the broker could not recognize a duplicate."""
        self.set_producer_state(identity, base_sequence)
        self.sequence_has_been_reset = True
        self.is_in_doubt = False

    @property
    def was_drained(self) -> bool:
        """Whether the Sender has drained it before: it has a sequence, is in flight or is being retried."""
        return self.has_sequence or self.is_in_flight or self.is_in_retry

    @property
    def may_be_written(self) -> bool:
        """Whether the broker may have written the batch with its present sequence, or may still do so."""
        return self.is_in_flight or self.is_in_doubt

    def wire_buffers(self) -> list[bytes | memoryview]:
        """Header and records as buffers to send. The header, with its CRC, is made once for each producer state."""
        if not self.header:
            self.header = encode_batch_header(
                self.body,
                codec_id=CODECS[self.codec].id,
                record_count=self.record_count,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                identity=self.identity,
                base_sequence=self.base_sequence,
                is_transactional=self.is_transactional,
            )
        return [self.header, *self.body]

    def waited_ms(self, now_ms: int) -> int:
        """How long ago the batch was created or its last attempt ended."""
        return max(0, now_ms - self.last_attempt_ms)

    def remaining_backoff_ms(self, now_ms: int) -> int:
        """How long a retry must still wait. 0 before the first attempt, and if the leader changed after the last one."""
        if not self.is_in_retry or self.has_leader_changed_for_the_ongoing_retry():
            return 0
        return max(0, self.backoff_ms - self.waited_ms(now_ms))

    def has_reached_delivery_timeout(self, delivery_timeout_ms: int, now_ms: int) -> bool:
        return now_ms - self.created_ms >= delivery_timeout_ms

    @property
    def is_in_retry(self) -> bool:
        return self.attempts > 0

    def count_attempt(self, now_ms: int) -> None:
        """Count an attempt that failed now; the batch is queued again."""
        self.attempts += 1
        self.last_attempt_ms = max(self.last_attempt_ms, now_ms)

    def maybe_update_leader_epoch(self, leader_epoch: int | None) -> None:
        """Remember when the leader last changed, so that a retry to a new leader does not back off (KIP-951)."""
        if leader_epoch is not None and (self.leader_epoch is None or leader_epoch > self.leader_epoch):
            if self.leader_epoch is not None:
                self.attempts_when_leader_last_changed = self.attempts
            self.leader_epoch = leader_epoch

    def has_leader_changed_for_the_ongoing_retry(self) -> bool:
        return self.is_in_retry and self.attempts == self.attempts_when_leader_last_changed

    # DONE

    @property
    def is_done(self) -> bool:
        return self.final_state is not None

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        """Acknowledge all rows. Does nothing if the client has failed them before: the broker's answer came too late."""
        if self.final_state not in (FinalState.ABORTED, FinalState.FAILED):
            self._enter(FinalState.SUCCEEDED)
            self._report(lambda batch_rows: batch_rows.callback.acknowledge(batch_rows, base_offset, log_append_time_ms))

    def fail(
        self,
        error: KafkaError,
        record_errors: Mapping[int, KafkaError] | None = None,
        final_state: FinalState = FinalState.FAILED,
    ) -> None:
        """Fail all rows. Does nothing if they were failed before. `record_errors` maps the offset deltas of the rows that the
        broker rejects to their errors (KIP-467)."""
        if self.final_state not in (FinalState.ABORTED, FinalState.FAILED):
            self._enter(final_state)
            self._report(lambda batch_rows: batch_rows.callback.fail(batch_rows, error, record_errors or {}))

    def _report(self, report_outcome: Callable[[BatchRows], None]) -> None:
        """Call `report_outcome` for each call's rows. Logs an Exception and goes on; raises others (SystemExit) at the end."""
        ended_by: BaseException | None = None
        for batch_rows in self.rows_by_call:
            try:
                report_outcome(batch_rows)
            except Exception:
                logger.exception("! %s: the callback of %d rows raised when it got their outcome", self, batch_rows.row_count)
            except BaseException as error:  # noqa: BLE001 - raised below
                ended_by = ended_by or error
        if ended_by is not None:
            raise ended_by

    def _enter(self, state: FinalState) -> None:
        if self.final_state is not None:
            raise RuntimeError(f"{self} is already {self.final_state.value} and cannot become {state.value}")
        self.final_state = state
