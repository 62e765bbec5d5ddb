"""A run of records of one topic-partition that travels, succeeds and fails as one.

Life: callers reserve room and fill it (under the queue's lock and their reservations) → closed → compressed → drained by
the Sender, which stamps producer id, epoch and sequence into the header → in flight, perhaps several times → done, once.
Small parts are copied into BufferPool blocks, which many of them share; a large part is kept where it was encoded, and charged
for. The batch never asks for memory itself and never gives any back: RecordAccumulator does.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.accumulator.buffer_pool import PoolMemory
from spark_kafka_sink.producer.accumulator.delivery import Part
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.compression import CODECS, compress, compress_blocks, decompress, framed
from spark_kafka_sink.records.rebase import RebasedRecords, read_records
from spark_kafka_sink.records.record_batch import (
    BATCH_HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    encode_batch_header,
)

logger = logging.getLogger(__name__)


class FinalState(enum.Enum):
    ABORTED = "aborted"  # given up by the client: expired, or closed forcefully; the broker may still have it
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    SPLIT = "split"  # its rows live on in other batches


@dataclass(frozen=True, slots=True)
class Compression:
    codec: str  # compression.type
    level: int | None

    @classmethod
    def of(cls, config: ProducerConfig) -> Compression:
        levels = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }
        return cls(config.compression_type, levels.get(config.compression_type))

    @property
    def enabled(self) -> bool:
        return self.codec != "none"

    @property
    def is_blockwise(self) -> bool:
        """Whether parts of a batch can be compressed one by one."""
        return CODECS[self.codec].frame is not None


@dataclass(frozen=True, slots=True)
class PackedRecords:
    """Records that were compressed while they were written, as blocks that stand alone."""

    blocks: list[memoryview]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.blocks))


# A range of the blocks' bytes, or records with memory of their own: None until they are written.
Segment: TypeAlias = range | memoryview | PackedRecords | None


class ProducerBatch:
    """Created by RecordAccumulator when a row finds no open batch.

    Args:
        topic_partition: where the records go.
        created_ms: monotonic time; delivery.timeout.ms counts from here, also for the children of a split.
        raw_limit: bytes of uncompressed records after which it is full. The first record always fits.
        base_timestamp: of the first record, ms since 1970.
        flush_id: flush() waits for all batches up to an id; children of a split inherit their parent's.
    """

    __slots__ = (
        "attempts",
        "attempts_when_leader_last_changed",
        "backoff_ms",
        "base_sequence",
        "base_timestamp",
        "block_bytes",
        "block_size",
        "body",
        "closed",
        "codec",
        "created_ms",
        "drained_ms",
        "final_state",
        "flush_id",
        "header",
        "in_doubt",
        "in_flight",
        "is_transactional",
        "last_attempt_ms",
        "last_error",
        "leader_epoch",
        "max_timestamp",
        "memory",
        "parts",
        "poison",
        "producer_epoch",
        "producer_id",
        "raw_limit",
        "record_bytes",
        "record_count",
        "reservations",
        "segments",
        "sender_waits",
        "sequence_has_been_reset",
        "surplus",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        created_ms: int,
        raw_limit: int,
        base_timestamp: int,
        flush_id: int,
        block_size: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.raw_limit = raw_limit
        self.base_timestamp = base_timestamp
        self.flush_id = flush_id
        self.block_size = block_size

        # Guarded by the queue's lock while the batch is in a queue.
        self.memory = PoolMemory()  # blocks, and a charge for segments; a child of a split has neither
        self.surplus = PoolMemory()  # what compression has saved and nobody has given back yet
        self.block_bytes = 0  # reserved in the blocks
        self.segments: list[Segment] = []  # where the records lie, in order
        self.record_count = 0  # reserved rows; all of them are written once `reservations` is 0
        self.record_bytes = 0  # the same, as uncompressed bytes
        self.max_timestamp = base_timestamp
        self.parts: list[Part] = []
        self.reservations = 0  # callers that still write into it: not drained, not expired, its memory not given back
        self.closed = False  # takes no more rows
        self.sender_waits = False  # the Sender passed it by because of a reservation: wake it at the release
        self.poison: KafkaError | None = None  # a caller failed while writing: the bytes are not to be sent

        # One thread at a time: the caller that filled it, under its reservation, then the Sender.
        self.codec = "none"
        self.body: list[memoryview] = []  # the records section as it is sent; empty until finish()

        # Sender only.
        self.header = b""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.sequence_has_been_reset = False
        self.attempts = 0
        self.backoff_ms = 0  # how long the latest retry waits
        self.last_attempt_ms = created_ms
        self.drained_ms = 0
        self.is_transactional = False
        self.in_flight = False  # a request refers to its blocks
        self.in_doubt = False  # an attempt under its present number ended without the broker saying that it wrote nothing
        self.final_state: FinalState | None = None
        self.last_error: str | None = None  # of the attempt before; told when the batch expires
        self.leader_epoch: int | None = None
        self.attempts_when_leader_last_changed = 0

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic_partition}, records={self.record_count}, bytes={self.record_bytes},"
            f" producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence}, attempts={self.attempts})"
        )

    # FILLING: callers

    def is_full(self) -> bool:
        return self.closed or self.record_bytes >= self.raw_limit

    def missing_blocks(self, more_bytes: int) -> int:
        """How many blocks more it takes to hold `more_bytes` behind what is reserved in blocks already."""
        return -(-(self.block_bytes + more_bytes) // self.block_size) - len(self.memory.blocks)

    def reserve(self, part: Part, memory: PoolMemory, max_timestamp: int) -> int:
        """Take room in the blocks for a part; returns where it begins, for `write`. The queue's lock is held."""
        start, end = self.block_bytes, self.block_bytes + part.size_bytes
        segment: Segment = range(start, end)
        continued = False
        if self.segments and isinstance(self.segments[-1], range):
            segment, continued = range(self.segments[-1].start, end), True
        self._take(part, memory, max(self.max_timestamp, max_timestamp), segment, continued)
        self.block_bytes = end
        return start

    def reserve_segment(self, part: Part, memory: PoolMemory, max_timestamp: int) -> int:
        """Take a segment of its own for a part, and a charge; returns it, for `attach`. The queue's lock is held."""
        place = len(self.segments)
        self._take(part, memory, max(self.max_timestamp, max_timestamp), None, continued=False)
        return place

    def _take(self, part: Part, memory: PoolMemory, max_timestamp: int, segment: Segment, continued: bool) -> None:
        rows, size = part.row_count, part.size_bytes
        self.memory.add(memory)
        # Nothing is called from here on until the caller has noted the reservation, so that no interrupt can part the two.
        if continued:
            self.segments[-1] = segment
        else:
            self.segments += [segment]
        self.parts += [part]
        self.record_count += rows
        self.record_bytes += size
        self.max_timestamp = max_timestamp
        self.reservations += 1

    def write(self, start: int, data: memoryview) -> None:
        """Copy encoded records into reserved room; several callers may write at different places at a time."""
        index, at = divmod(start, self.block_size)
        while data:
            piece = data[: self.block_size - at]
            memoryview(self.memory.blocks[index])[at : at + len(piece)] = piece  # a bytearray itself would copy the piece twice
            data = data[len(piece) :]
            index, at = index + 1, 0

    def attach(self, segment: int, data: memoryview | PackedRecords) -> None:
        """Keep encoded records as they are, in the memory that they bring."""
        self.segments[segment] = data

    # CLOSING: the caller that filled it, or the Sender

    def finish(self, compression: Compression) -> PoolMemory:
        """Fix the records section, compressed if that makes it smaller; returns `surplus`, memory that is no longer needed.

        Incompressible records go uncompressed, as the attributes then say: every reader accepts that, and it spares both sides.
        """
        if self.body:
            return PoolMemory()
        if compression.enabled:
            packed = self._packed(compression)
            if sum(map(len, packed)) < self.record_bytes or self._is_packed():
                self.codec = compression.codec
                self._replace_records(packed)
                return self.surplus
        self.body = self._raw_views()
        return self.surplus

    def _is_packed(self) -> bool:
        return any(isinstance(segment, PackedRecords) for segment in self.segments)

    def _packed(self, compression: Compression) -> list[memoryview]:
        if not self._is_packed():
            return [memoryview(compress(compression.codec, self._raw_views(), compression.level))]
        blocks: list[memoryview] = []
        for segment in self.segments:
            if isinstance(segment, PackedRecords):
                blocks += segment.blocks
            else:
                blocks.append(compress_blocks(compression.codec, self._views_of(segment), compression.level))
        return framed(compression.codec, blocks)

    def _raw_views(self) -> list[memoryview]:
        return [view for segment in self.segments for view in self._views_of(segment)]

    def _views_of(self, segment: Segment) -> list[memoryview]:
        if isinstance(segment, range):
            return self._block_views(segment)
        if isinstance(segment, memoryview):
            return [segment]
        raise RuntimeError(f"{self}: records that were {'compressed' if segment else 'not written'} cannot be read")

    def _block_views(self, segment: range) -> list[memoryview]:
        size, stop = self.block_size, segment.stop
        starts = range(segment.start - segment.start % size, stop, size)
        return [memoryview(self.memory.blocks[at // size])[max(segment.start - at, 0) : min(stop - at, size)] for at in starts]

    def _replace_records(self, packed: list[memoryview]) -> None:
        """Hold the compressed records alone. They have memory of their own: blocks that it takes the place of are let go."""
        held, needed = self.memory, -(-sum(map(len, packed)) // self.block_size)
        memory = PoolMemory([], min(needed, len(held)))
        let_go = max(0, memory.charged - held.charged)
        surplus = PoolMemory(held.blocks[let_go:], held.charged + let_go - memory.charged)
        self.body, self.segments, self.memory, self.surplus = packed, [], memory, surplus  # at once, for the case of an interrupt

    def split(self, raw_limit: int) -> list[ProducerBatch]:
        """Cut a batch that the broker found too large into smaller ones, of `raw_limit` bytes of records or of a single one.

        The children are as old as their parent (delivery.timeout.ms goes on) but count as not tried yet; flush() waits for them
        in its place; they carry its sequence numbers on. Their owners hear of them instead of it.
        """
        sizes = np.concatenate([part.sizes for part in self.parts])
        packed = b"".join(self.body)
        records = read_records(decompress(self.codec, packed, self.record_bytes), sizes)
        ends = np.cumsum(sizes, dtype=np.int64)
        children: list[ProducerBatch] = []
        start = 0
        while start < self.record_count:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + raw_limit, side="right")))
            children.append(self._child(records, start, stop))
            start = stop
        self.final_state = FinalState.SPLIT
        return children

    def _child(self, records: RebasedRecords, start: int, stop: int) -> ProducerBatch:
        encoded = records.encode(start, stop)
        timestamps = self.base_timestamp + records.timestamp_deltas[start:stop]
        size = len(encoded.data)
        child = ProducerBatch(self.topic_partition, self.created_ms, size, int(timestamps[0]), self.flush_id, size)
        child.closed = True
        child.max_timestamp = int(timestamps.max())
        child.segments = [encoded.data]
        child.record_count, child.record_bytes = stop - start, size
        sizes = np.diff(encoded.offsets).astype(np.int32)
        for part in self.parts:
            lo, hi = max(start, part.first_delta), min(stop, part.first_delta + part.row_count)
            if lo < hi:
                own = sizes[lo - start : hi - start]
                rows = part.rows[lo - part.first_delta : hi - part.first_delta]
                child.parts.append(Part(part.owner, part.topic_partition, lo - start, rows, own, int(own.sum())))
        if self.has_sequence:
            child.set_producer_state(self.producer_id, self.producer_epoch, increment_sequence(self.base_sequence, start))
            child.sequence_has_been_reset = self.sequence_has_been_reset
        child.is_transactional = self.is_transactional
        return child

    @property
    def size_in_bytes(self) -> int:
        """Bytes on the wire once finished; before that, of the uncompressed batch."""
        return BATCH_HEADER_SIZE + (sum(map(len, self.body)) if self.body else self.record_bytes)

    @property
    def compression_ratio(self) -> float:
        return (self.size_in_bytes - BATCH_HEADER_SIZE) / max(1, self.record_bytes)

    # SENDING: Sender thread

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return increment_sequence(self.base_sequence, self.record_count - 1)

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Stamp identity and sequence: at the first drain, and again only by the epoch-bump rules."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.header = b""

    def reset_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Renumber a batch that is surely not in the log: under a new epoch the broker cannot tell that it has it already."""
        self.set_producer_state(producer_id, producer_epoch, base_sequence)
        self.sequence_has_been_reset = True
        self.in_doubt = False

    @property
    def may_be_written(self) -> bool:
        """Whether the log can hold it under its present number, or still get it."""
        return self.in_flight or self.in_doubt

    def wire_buffers(self) -> list[bytes | memoryview]:
        """Header and records as buffers to send; the header, with its CRC, is made once per producer state."""
        if not self.header:
            self.header = encode_batch_header(
                self.body,
                codec_id=CODECS[self.codec].id,
                record_count=self.record_count,
                base_timestamp=self.base_timestamp,
                max_timestamp=self.max_timestamp,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                is_transactional=self.is_transactional,
            )
        return [self.header, *self.body]

    def waited_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self.last_attempt_ms)

    def has_reached_delivery_timeout(self, delivery_timeout_ms: int, now_ms: int) -> bool:
        return now_ms - self.created_ms >= delivery_timeout_ms

    @property
    def in_retry(self) -> bool:
        return self.attempts > 0

    def reenqueued(self, now_ms: int) -> None:
        self.attempts += 1
        self.last_attempt_ms = max(self.last_attempt_ms, now_ms)

    def maybe_update_leader_epoch(self, leader_epoch: int | None) -> None:
        """Remember when the leader last changed, so that a retry to a new leader need not back off (KIP-951)."""
        if leader_epoch is not None and (self.leader_epoch is None or leader_epoch > self.leader_epoch):
            if self.leader_epoch is not None:
                self.attempts_when_leader_last_changed = self.attempts
            self.leader_epoch = leader_epoch

    def has_leader_changed_for_the_ongoing_retry(self) -> bool:
        return self.in_retry and self.attempts == self.attempts_when_leader_last_changed

    # DONE

    @property
    def is_done(self) -> bool:
        return self.final_state is not None

    def complete(self, base_offset: int, log_append_time_ms: int) -> bool:
        """Acknowledge all rows. False if they were failed before: the broker's word then comes too late to matter."""
        if self.final_state in (FinalState.ABORTED, FinalState.FAILED):
            return False
        self._enter(FinalState.SUCCEEDED)
        self._tell_owners(lambda part: part.owner.acknowledge(part, base_offset, log_append_time_ms))
        return True

    def fail(
        self,
        error: KafkaError,
        record_errors: Mapping[int, KafkaError] | None = None,
        final_state: FinalState = FinalState.FAILED,
    ) -> bool:
        """Fail all rows; false if they were failed before. `record_errors` names the rows to blame by offset delta (KIP-467)."""
        if self.final_state in (FinalState.ABORTED, FinalState.FAILED):
            return False
        self._enter(final_state)
        self._tell_owners(lambda part: part.owner.fail(part, error, record_errors or {}))
        return True

    def _tell_owners(self, tell: Callable[[Part], None]) -> None:
        """Every part's owner, whatever one of them raises. What is no Exception, like SystemExit, is raised again at the end."""
        ended_by: BaseException | None = None
        for part in self.parts:
            try:
                tell(part)
            except Exception:
                logger.exception("! %s: the owner of %d rows failed when it was told of them", self, part.row_count)
            except BaseException as error:  # noqa: BLE001 - raised below
                ended_by = ended_by or error
        if ended_by is not None:
            raise ended_by

    def _enter(self, state: FinalState) -> None:
        if self.final_state is not None:
            raise RuntimeError(f"{self} is already {self.final_state.value} and cannot become {state.value}")
        self.final_state = state


MAX_SEQUENCE = 2**31 - 1


def increment_sequence(sequence: int, increment: int) -> int:
    """The sequence `increment` records later; after 2^31-1 comes 0."""
    return (sequence + increment) & MAX_SEQUENCE
