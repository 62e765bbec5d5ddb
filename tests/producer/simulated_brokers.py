"""Brokers for Stage that keep logs and judge sequences as Kafka's leaders do, and misbehave when a test says so.

Requests of one node are carried out in the order they were sent, as on one connection. No sockets and no threads: the test
calls `answer` between the Sender's rounds. Batches are read from what DecodingClient decoded when they were sent.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.partition_transactions import Marker, PartitionTransactions
from tests.producer.harness import SentBatch, Stage, metadata_response, partition_answer
from tests.records.reference import DecodedBatch

DUPLICATES_REMEMBERED = 5


class Fate(Enum):
    """What becomes of the oldest request of a node."""

    ANSWER = "carried out and answered"
    REJECT_BUSY = "rejected: NOT_ENOUGH_REPLICAS"
    REJECT_CORRUPT = "rejected: CORRUPT_MESSAGE"
    APPEND_THEN_TIME_OUT = "carried out, answered with REQUEST_TIMED_OUT"
    APPEND_THEN_TOO_FEW = "carried out, answered with NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    APPEND_THEN_MOVE = "carried out, answered with NOT_LEADER_OR_FOLLOWER: the leader lost the partition while it waited"
    DISCONNECT_BEFORE = "the connection breaks before any of its requests is carried out"
    DISCONNECT_AFTER_ONE = "the oldest request is carried out, then the connection breaks"
    DISCONNECT_AFTER_ALL = "all requests are carried out, then the connection breaks"
    # Not retriable: rows are lost, as far as the producer knows, and the caller is told.
    REJECT_FOR_GOOD = "rejected: INVALID_RECORD"
    BREAK = "not carried out, answered with UNKNOWN_SERVER_ERROR"
    APPEND_THEN_BREAK = "carried out, answered with UNKNOWN_SERVER_ERROR"


REFUSALS = {
    Fate.REJECT_BUSY: Errors.NOT_ENOUGH_REPLICAS,
    Fate.REJECT_CORRUPT: Errors.CORRUPT_MESSAGE,
    Fate.REJECT_FOR_GOOD: Errors.INVALID_RECORD,
    Fate.BREAK: Errors.UNKNOWN_SERVER_ERROR,
}
AFTER_APPEND = {
    Fate.APPEND_THEN_TIME_OUT: Errors.REQUEST_TIMED_OUT,
    Fate.APPEND_THEN_TOO_FEW: Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Fate.APPEND_THEN_MOVE: Errors.NOT_LEADER_OR_FOLLOWER,
    Fate.APPEND_THEN_BREAK: Errors.UNKNOWN_SERVER_ERROR,
}
FATES_OF_LOST_ROWS = {Fate.REJECT_FOR_GOOD, Fate.BREAK, Fate.APPEND_THEN_BREAK}


@dataclass
class ProducerEntry:
    epoch: int
    batches: deque[tuple[int, int, int]]  # (first sequence, last sequence, base offset), newest last


@dataclass
class Log:
    values: list[bytes | None] = field(default_factory=list)
    producers: dict[int, ProducerEntry] = field(default_factory=dict)

    def append(self, batch: DecodedBatch, *, starts_at_zero: bool = False) -> tuple[ErrorCode, int]:
        """The answer's error and base offset, as a leader gives them (ProducerAppendInfo).

        `starts_at_zero`: a producer that is not known, or whose transaction has just ended, has to begin at 0 (KIP-890).
        """
        if batch.producer_id < 0:
            return Errors.NONE, self._write(batch)
        last_sequence = (batch.base_sequence + len(batch.records) - 1) & 0x7FFFFFFF
        entry = self.producers.get(batch.producer_id)
        if entry is not None:
            if batch.producer_epoch < entry.epoch:
                return Errors.INVALID_PRODUCER_EPOCH, -1
            if batch.producer_epoch > entry.epoch:
                if batch.base_sequence != 0:
                    return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                entry = None
            else:
                for first, last, offset in entry.batches:
                    if (first, last) == (batch.base_sequence, last_sequence):
                        return Errors.NONE, offset
                # Without batches only a marker has this epoch.
                if batch.base_sequence != ((entry.batches[-1][1] + 1) & 0x7FFFFFFF if entry.batches else 0):
                    return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        elif starts_at_zero and batch.base_sequence != 0:
            return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if entry is None:  # a producer that it does not know may begin anywhere
            entry = self.producers[batch.producer_id] = ProducerEntry(batch.producer_epoch, deque(maxlen=DUPLICATES_REMEMBERED))
        offset = self._write(batch)
        entry.batches.append((batch.base_sequence, last_sequence, offset))
        return Errors.NONE, offset

    def _write(self, batch: DecodedBatch) -> int:
        self.values += [record.value for record in batch.records]
        return len(self.values) - len(batch.records)


@dataclass
class TransactionalLog(Log):
    """A log with transactions. Markers take an offset too, and have no value."""

    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)
    _writers: list[int] = field(default_factory=list)  # by offset: the producer id

    def has_ongoing(self, producer_id: int, epoch: int) -> bool:
        """Whether the leader need not ask the coordinator about this producer's next batch."""
        return self.transactions.is_open(producer_id) and self.producers[producer_id].epoch == epoch

    def write_marker(self, producer_id: int, epoch: int, committed: bool) -> None:
        self.transactions.end(Marker(len(self.values), producer_id, epoch, committed))
        self.values.append(None)
        self._writers.append(producer_id)
        entry = self.producers.get(producer_id)
        if entry is None or entry.epoch < epoch:
            self.producers[producer_id] = ProducerEntry(epoch, deque(maxlen=DUPLICATES_REMEMBERED))

    @property
    def last_stable_offset(self) -> int:
        return self.transactions.last_stable_offset(len(self.values))

    def committed_values(self) -> list[bytes]:
        """What a reader with isolation.level=read_committed sees."""
        is_visible = partial(self.transactions.is_visible, is_transactional=True, end_offset=len(self.values))
        return [
            value
            for offset, (value, writer) in enumerate(zip(self.values, self._writers, strict=True))
            if value is not None and is_visible(offset=offset, producer_id=writer)
        ]

    def _write(self, batch: DecodedBatch) -> int:
        offset = super()._write(batch)
        self._writers += [batch.producer_id] * len(batch.records)
        self.transactions.write(batch.producer_id, offset)
        return offset


class SimulatedBrokers:
    def __init__(self, stage: Stage, *, max_message_bytes: int = 1_048_588) -> None:
        self.stage = stage
        self.max_message_bytes = max_message_bytes
        self.logs: dict[TopicPartition, Log] = defaultdict(Log)
        self.leaders = {topic: list(leaders) for topic, leaders in stage.leaders.items()}
        self.appends_without_answer = 0  # each may be written twice by a producer that is not idempotent
        self._epoch = 0
        self._next_producer_id = 1

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """The old leader refuses from here on; the producer learns of the new one when it asks next."""
        self.leaders[topic][partition] = node
        self._epoch += 1
        self.stage.client.prepare_metadata_update(metadata_response(self.leaders, epoch=self._epoch))

    def tell_leaders(self) -> None:
        """The producer learns at once who leads what."""
        self.stage.client._metadata_updates.clear()
        self.stage.client.update_metadata(metadata_response(self.leaders, epoch=self._epoch))

    def answer(self, node: int, fate: Fate = Fate.ANSWER) -> None:
        """Settle the oldest request of a node; nothing happens if there is none."""
        requests = [request for request in self.stage.in_flight if request.node_id == node]
        if not requests:
            return
        if fate in (Fate.DISCONNECT_BEFORE, Fate.DISCONNECT_AFTER_ONE, Fate.DISCONNECT_AFTER_ALL):
            carried_out = {Fate.DISCONNECT_BEFORE: 0, Fate.DISCONNECT_AFTER_ONE: 1}.get(fate, len(requests))
            for request in requests[:carried_out]:
                self.answer_to(request, Fate.ANSWER)
                self.appends_without_answer += 1
            self.stage.client.disconnect(node, self.stage.now_ms)
        else:
            self.stage.client.respond(self.answer_to(requests[0], fate), request=requests[0])
        # Heard at once: a real client cannot send into a slot that an answer has freed before it has handled the answer.
        self.stage.client.poll(0, self.stage.now_ms)

    def answer_all(self) -> None:
        for request in self.stage.in_flight:
            self.answer(request.node_id)

    def answer_to(self, request: ClientRequest, fate: Fate) -> ProduceResponse | InitProducerIdResponse:
        if isinstance(request.message, InitProducerIdRequest):
            self._next_producer_id += 1
            return InitProducerIdResponse(producer_id=self._next_producer_id, producer_epoch=0)
        answers: dict[str, list[PartitionProduceResponse]] = {}
        for sent_batch in self.stage.sent_batches:
            if sent_batch.request is request:
                answers.setdefault(sent_batch.topic_partition.topic, []).append(self._judge(sent_batch, request.node_id, fate))
        return ProduceResponse(
            responses=tuple(TopicProduceResponse(name=name, partition_responses=tuple(each)) for name, each in answers.items())
        )

    def _judge(self, sent_batch: SentBatch, node: int, fate: Fate) -> PartitionProduceResponse:
        topic, partition = sent_batch.topic_partition
        if self.leaders[topic][partition] != node:
            return partition_answer(partition, Errors.NOT_LEADER_OR_FOLLOWER)
        if fate in REFUSALS:
            return partition_answer(partition, REFUSALS[fate])
        if sent_batch.size_bytes > self.max_message_bytes:
            return partition_answer(partition, Errors.MESSAGE_TOO_LARGE)
        error, offset = self.logs[sent_batch.topic_partition].append(sent_batch.batch)
        if not error and fate in AFTER_APPEND:
            self.appends_without_answer += 1
            error = AFTER_APPEND[fate]
        return partition_answer(partition, error, base_offset=offset)
