"""The log of a partition of FakeBroker: batches with their offsets, sequences of producers, and markers of transactions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields

from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.describe_producers import (
    ProducerState as DescribedProducer,
)
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from tests.fakes.partition_transactions import Marker, PartitionTransactions
from tests.fakes.record_decoder import Batch, InvalidBatch, Record

DUPLICATES_REMEMBERED = 5


@dataclass
class ProducerState:
    epoch: int
    batches: deque[tuple[int, int, int]]  # (base sequence, last sequence, base offset), newest last


@dataclass
class PartitionLog:
    leader: int
    leader_epoch: int = 0
    batches: list[Batch] = field(default_factory=list)
    next_offset: int = 0
    log_start_offset: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)
    replicas: tuple[int, ...] | None = None  # as Metadata tells; None: the leader alone
    in_sync: tuple[int, ...] | None = None  # as `replicas`

    def append(self, batch: Batch, *, starts_at_zero: bool) -> int:
        """Returns the base offset. Raises InvalidBatch if the sequence does not fit; a duplicate is not written again."""
        duplicate = self._duplicate(batch, starts_at_zero=starts_at_zero)
        return self._write(batch) if duplicate is None else duplicate

    def _duplicate(self, batch: Batch, *, starts_at_zero: bool) -> int | None:
        """The base offset of the earlier batch if this one is a duplicate; None if the batch must be written."""
        if batch.producer_id < 0:
            return None
        state = self.producers.get(batch.producer_id)
        if state is None:
            if starts_at_zero and batch.base_sequence != 0:
                raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"an unknown producer starts at {batch.base_sequence}")
            return None  # a producer without state in the log may start with any sequence
        if batch.producer_epoch < state.epoch:
            raise InvalidBatch(Errors.INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch} is older than {state.epoch}")
        if batch.producer_epoch > state.epoch:
            if batch.base_sequence != 0:
                raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"a new epoch starts at {batch.base_sequence}")
            return None
        for first, last, offset in state.batches:
            if (batch.base_sequence, batch.last_sequence) == (first, last):
                return offset
        expected = (state.batches[-1][1] + 1) % (1 << 31) if state.batches else 0  # no batches: only a marker had this epoch
        if batch.base_sequence != expected:
            raise InvalidBatch(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {batch.base_sequence} instead of {expected}")
        return None

    def _write(self, batch: Batch) -> int:
        base_offset = self.next_offset
        batch.base_offset = base_offset
        batch.records = [replace_fields(record, offset=base_offset + record.offset) for record in batch.records]
        self.batches.append(batch)
        self.next_offset += len(batch.records)
        if batch.producer_id >= 0:
            state = self.producers.get(batch.producer_id)
            if state is None or state.epoch != batch.producer_epoch:
                state = self.producers[batch.producer_id] = ProducerState(
                    batch.producer_epoch, deque(maxlen=DUPLICATES_REMEMBERED)
                )
            state.batches.append((batch.base_sequence, batch.last_sequence, base_offset))
        if batch.is_transactional:
            self.transactions.write(batch.producer_id, base_offset)
        return base_offset

    def write_marker(self, producer_id: int, epoch: int, committed: bool) -> None:
        self.transactions.end(Marker(self.next_offset, producer_id, epoch, committed))
        self.next_offset += 1
        state = self.producers.get(producer_id)
        if state is None or state.epoch < epoch:
            self.producers[producer_id] = ProducerState(epoch, deque(maxlen=DUPLICATES_REMEMBERED))

    def end_offset(self, isolation_level: int) -> int:
        """The offset after the last record that readers of this isolation level see."""
        is_committed = isolation_level == IsolationLevel.READ_COMMITTED
        return self.transactions.last_stable_offset(self.next_offset) if is_committed else self.next_offset

    def committed_records(self) -> list[Record]:
        """What read_committed readers see."""
        return [
            record
            for batch in self.batches
            if self.transactions.is_visible(
                offset=batch.base_offset,
                producer_id=batch.producer_id,
                is_transactional=batch.is_transactional,
                end_offset=self.next_offset,
            )
            for record in batch.records
        ]

    def described_producers(self) -> tuple[DescribedProducer, ...]:
        timestamps = {batch.producer_id: batch.max_timestamp for batch in self.batches}
        return tuple(
            DescribedProducer(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.batches[-1][1] if state.batches else -1,
                last_timestamp=timestamps.get(producer_id, -1),
                coordinator_epoch=0 if any(marker.producer_id == producer_id for marker in self.transactions.markers) else -1,
                current_txn_start_offset=self.transactions.first_offsets.get(producer_id, -1),
            )
            for producer_id, state in self.producers.items()
        )
