"""Parts of the producer put together for tests, and short words for rows, clusters and answers.

Stage is a Sender with everything below it on a ManualClock and a MockClient: the test runs the rounds and plays the brokers.
Batches are decoded at the moment they are sent, by the reference decoder, because their memory is used again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.cluster import Cluster, Node, PartitionInfo, Topic
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.accumulator.delivery import Delivery, RowsCallback
from spark_kafka_sink.producer.accumulator.drainer import DrainSequencer
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.accumulator.slice_layout import Reservation, SliceLayout
from spark_kafka_sink.producer.accumulator.sorted_slice import SortedSlice
from spark_kafka_sink.producer.hand_overs import HandOver, HandOvers
from spark_kafka_sink.producer.idempotence.idempotent_sequencer import IdempotentSequencer
from spark_kafka_sink.producer.idempotence.sequencer import Sequencer
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_parts import sequencer_of
from spark_kafka_sink.producer.producer_record import LONE_RECORD_OVERHEAD_BYTES, RecordDetails
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.producer.sender.sender_failures import SenderFailures
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.producer.single_records.record_bundle import GatheredRecord, RecordBundle, RecordFuture
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.topic_rows import TopicRows, explicit_partitions, record_rows
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.records.columns import RecordColumns, record_columns
from tests.fakes.clock import ManualClock
from tests.fakes.mock_client import MockClient
from tests.records.reference import DecodedBatch, decode_batch

TOPIC = "orders"
PRODUCER_ID = 4711


def tp(partition: int = 0, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, partition)


def config(**options: object) -> ProducerConfig:
    """linger_ms=0 and no idempotence unless said otherwise; names as attributes, linger_ms for linger.ms."""
    all_options = {"bootstrap_servers": "127.0.0.1:9092", "linger_ms": 0, "enable_idempotence": False} | options
    return ProducerConfig.from_mapping({name.replace("_", "."): value for name, value in all_options.items()})


def columns(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, timestamps: Any = 0) -> RecordColumns:
    key = None if keys is None else pa.array(keys, pa.binary())
    if isinstance(timestamps, list):
        timestamps = pa.array(timestamps, pa.int64())
    return record_columns(pa.array(values, pa.binary()), key, None, timestamps)


def cluster(leaders: Mapping[str, Sequence[int | None]], epochs: Mapping[TopicPartition, int] | None = None) -> Cluster:
    """cluster({"orders": (0, 1, None)}): partition 0 is led by node 0, 1 by node 1, 2 by none. Nodes 0 to 4 are known."""
    topics = {
        name: Topic(
            None,
            {
                number: PartitionInfo(name, number, leader, (epochs or {}).get(TopicPartition(name, number)))
                for number, leader in enumerate(led_by)
            },
        )
        for name, led_by in leaders.items()
    }
    return Cluster(nodes=[Node(number, "127.0.0.1", 9092 + number) for number in range(5)], topics=topics)


def metadata_response(
    leaders: Mapping[str, Sequence[int | None]], *, epoch: int = 0, nodes: Sequence[int] = range(5)
) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=number, host="127.0.0.1", port=9092 + number) for number in nodes),
        cluster_id="cluster",
        topics=tuple(
            MetadataResponseTopic(
                name=name,
                partitions=tuple(
                    MetadataResponsePartition(
                        partition_index=number, leader_id=-1 if leader is None else leader, leader_epoch=epoch
                    )
                    for number, leader in enumerate(led_by)
                ),
            )
            for name, led_by in leaders.items()
        ),
    )


def partition_answer(
    partition: int = 0, error: ErrorCode = Errors.NONE, base_offset: int = 0, **more: Any
) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=partition, error_code=error.number, base_offset=-1 if error else base_offset, **more)


def produce_response(*answers: PartitionProduceResponse, topic: str = TOPIC, **more: Any) -> ProduceResponse:
    return ProduceResponse(responses=(TopicProduceResponse(name=topic, partition_responses=answers),), **more)


def _all_good(topic: TopicProduceData) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name, partition_responses=tuple(partition_answer(data.index) for data in topic.partition_data)
    )


def all_good(request: ClientRequest) -> ProduceResponse:
    """The answer to a Produce request that writes all of it."""
    assert isinstance(request.message, ProduceRequest)
    return ProduceResponse(responses=tuple(_all_good(topic) for topic in request.message.topic_data))


class SentBatch(NamedTuple):
    """One batch as it was sent."""

    request: ClientRequest
    topic_partition: TopicPartition
    batch: DecodedBatch
    size_bytes: int

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.batch.records]

    @property
    def identity(self) -> tuple[int, int, int]:
        return self.batch.producer_id, self.batch.producer_epoch, self.batch.base_sequence


class DecodingClient(MockClient):
    """Decodes each batch when it is sent; a batch that does not decode fails the test."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.batches: list[SentBatch] = []

    def send(self, request: ClientRequest, now_ms: int) -> None:
        if isinstance(request.message, ProduceRequest):
            for topic in request.message.topic_data:
                for data in topic.partition_data:
                    encoded = b"".join(data.records)
                    topic_partition = TopicPartition(topic.name, data.index)
                    self.batches.append(SentBatch(request, topic_partition, decode_batch(encoded), len(encoded)))
        super().send(request, now_ms)


class Accumulation:
    """A RecordAccumulator with its pool and clock, and rows to put into it."""

    def __init__(
        self,
        *,
        sequencer: DrainSequencer | None = None,
        seed: int = 0,
        clock: Clock | None = None,
        **options: object,
    ) -> None:
        self.config = config(**options)
        self.clock: Any = clock or ManualClock()
        self.wakeups = 0
        self.on_wake: Callable[[], object] = lambda: None
        self.accumulator = RecordAccumulator(self.config, self.clock, self.wake, sequencer or Sequencer(), Random(seed))
        self.pool = self.accumulator.pool
        self.hand_overs = HandOvers(self.clock, self.wake)
        self._cluster = Cluster()  # rows name their partitions

    @property
    def now_ms(self) -> int:
        return int(self.clock.now_ms())

    def append(
        self,
        *values: bytes | None,
        partition: int | Sequence[int] = 0,
        topic: str = TOPIC,
        callback: RowsCallback | None = None,
        **more: Any,
    ) -> Delivery:
        """Append rows as one slice; `partition` is one for all rows, or one for each. The Delivery counts these rows."""
        delivery = Delivery(len(values), self.clock)
        partitions = np.broadcast_to(np.asarray(partition, np.int32), len(values)).copy()
        rows = TopicRows(topic, columns(values, **more), partitions, np.arange(len(values), dtype=np.int32))
        self.append_rows(rows, callback or delivery)
        return delivery

    def append_rows(self, rows: TopicRows, callback: RowsCallback) -> None:
        self.hand_overs.run(self._append, rows, callback)

    def _append(self, hand_over: HandOver, rows: TopicRows, callback: RowsCallback, **more: Any) -> None:
        hand_over.begin()
        self.accumulator.append(rows, self._cluster, callback, hand_over, **more)

    def make_gatherer(self) -> RecordGatherer:
        """A gatherer of single records, which go into this accumulator."""
        return RecordGatherer(self.config, self.clock, self.accumulator, self.hand_overs, self._append_gathered)

    def _append_gathered(self, hand_over: HandOver, bundle: RecordBundle) -> None:
        bundle_columns = bundle.as_columns()
        records = record_rows(bundle_columns, len(bundle), 0)
        bundle.keep_columns(records)
        explicit = explicit_partitions(bundle_columns.partition, len(bundle))
        gathered = TopicRows(bundle.topic, records, np.maximum(explicit, 0), np.arange(len(bundle), dtype=np.int32))
        self._append(hand_over, gathered, bundle.rows_callback, created_ms=bundle.created_ms, prepaid_memory=bundle.memory)

    def wake(self) -> None:
        self.wakeups += 1
        self.on_wake()

    def ready(self, where: Cluster) -> set[int]:
        return self.accumulator.ready(where, self.now_ms).ready_nodes

    def drain(self, where: Cluster, *nodes: int, max_bytes: int = 2**31 - 1) -> dict[int, list[ProducerBatch]]:
        queue_indexes = self.accumulator.ready(where, self.now_ms).indexes_by_leader
        return self.accumulator.drainer.drain(where, nodes, max_bytes, self.now_ms, queue_indexes)

    def drain_one(self, where: Cluster, node: int = 0) -> ProducerBatch:
        (batch,) = self.drain(where, node)[node]
        return batch

    def give_back(self, batch: ProducerBatch) -> None:
        """What the Sender does when an answer has come: acknowledge and free."""
        batch.complete(0, -1)
        self.accumulator.deallocate(batch)

    @property
    def is_whole(self) -> bool:
        """Whether all memory is back."""
        return self.pool.available_memory == self.pool.total_memory


class OpenAppend:
    """An append that stops between reserving room and filling it, as a caller's thread may."""

    def __init__(self, stage: Accumulation, *values: bytes, partition: int = 0) -> None:
        self._stage = stage
        self.delivery = Delivery(len(values), stage.clock)
        self._slice = SortedSlice(
            columns(values), np.full(len(values), partition, np.int32), np.arange(len(values), dtype=np.int32)
        )
        self._reservations: list[Reservation] = []
        SliceLayout(stage.accumulator, TOPIC, self._slice, self.delivery).reserve(self._reservations)

    def fill(self) -> None:
        self._stage.accumulator.writer.write(self._slice, self._reservations)


def payload(batch: ProducerBatch) -> list[bytes | None]:
    """The values of a drained batch."""
    return [record.value for record in decode_batch(b"".join(batch.wire_buffers())).records]


class Stage(Accumulation):
    """A Sender whose rounds the test runs one by one. `leaders`: topic -> leader of each partition.

    With enable_idempotence=True the producer id is PRODUCER_ID, epoch 0, unless `has_producer_id` is false.
    """

    def __init__(
        self,
        *,
        leaders: Mapping[str, Sequence[int | None]] | None = None,
        has_producer_id: bool = True,
        seed: int = 0,
        **options: object,
    ) -> None:
        producer_config, clock = config(**options), ManualClock()
        self.metadata = Metadata(producer_config, clock, random=Random(seed))
        self.client = DecodingClient(clock, self.metadata, max_in_flight=producer_config.max_in_flight_requests_per_connection)
        self.sequencer = sequencer_of(producer_config, self.client, clock, Random(seed))
        super().__init__(sequencer=self.sequencer, seed=seed, clock=clock, **options)
        self.leaders = dict(leaders or {TOPIC: (0,)})
        for topic in self.leaders:
            self.metadata.add_topic(topic, self.now_ms)
        self.client.update_metadata(metadata_response(self.leaders))
        self.metrics = ProducerMetrics(self.config, self.clock)
        self.gatherer = self.make_gatherer()
        failures = SenderFailures(producer_config, self.hand_overs)
        self.parts = SenderParts(
            producer_config, self.client, self.metadata, self.accumulator, self.sequencer, self.metrics, failures, clock
        )
        self.sender = Sender(self.parts, self.gatherer)
        if producer_config.enable_idempotence and has_producer_id:
            self.receive_producer_id()

    @property
    def idempotent_sequencer(self) -> IdempotentSequencer:
        assert isinstance(self.sequencer, IdempotentSequencer)
        return self.sequencer

    def receive_producer_id(self, producer_id: int = PRODUCER_ID, epoch: int = 0) -> None:
        self.client.prepare_response(
            InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch),
            matcher=lambda request: isinstance(request.message, InitProducerIdRequest),
        )
        self.run()
        assert self.idempotent_sequencer.identity == (producer_id, epoch)

    def gather(self, value: bytes, *, topic: str = TOPIC, partition: int = 0) -> RecordFuture:
        """Gather a single record."""
        details = RecordDetails(partition=partition, timestamp=0)
        record = GatheredRecord(None, value, None, LONE_RECORD_OVERHEAD_BYTES + len(value), details)
        return self.gatherer.add(topic, self.metadata.cluster(), record)

    def introduce(self) -> None:
        """Have a row acknowledged in every partition: until then each has one batch in flight at most. Sequences go on at 1."""
        for topic, leaders in self.leaders.items():
            for partition in range(len(leaders)):
                self.append(b"introduction", partition=partition, topic=topic)
        self.run()
        for request in self.in_flight:
            self.client.respond(all_good(request), request=request)
        self.run()
        assert not self.accumulator.incomplete
        self.client.batches.clear()
        self.client.sent_requests.clear()

    def run(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.sender.run_once()

    def run_until(self, condition: Callable[[], bool], rounds: int = 100) -> None:
        for _ in range(rounds):
            if condition():
                return
            self.run()
        raise AssertionError("the condition does not come true")

    def send(self, *values: bytes | None, **more: Any) -> Delivery:
        """Append, and run one round: the rows are in flight then, if nothing holds them back."""
        delivery = self.append(*values, **more)
        self.run()
        return delivery

    def respond(
        self, *answers: PartitionProduceResponse, request: ClientRequest | None = None, topic: str = TOPIC, **more: Any
    ) -> None:
        """Answer the oldest request, or the one given, and run a round that handles the answer (and may send)."""
        self.client.respond(produce_response(*answers, topic=topic, **more), request=request)
        self.run()

    def succeed(self, base_offset: int = 0, *, partition: int = 0, request: ClientRequest | None = None) -> None:
        self.respond(partition_answer(partition, base_offset=base_offset), request=request)

    def reject(self, error: ErrorCode, *, partition: int = 0, request: ClientRequest | None = None, **more: Any) -> None:
        self.respond(partition_answer(partition, error, **more), request=request)

    def disconnect(self, node: int = 0) -> None:
        """Lose the connection, and run a round that notices."""
        self.client.disconnect(node, self.now_ms)
        self.run()

    def back_off(self) -> None:
        """Let every retry's back-off pass."""
        self.clock.advance(2 * self.config.retry_backoff_max_ms)

    @property
    def sent_batches(self) -> list[SentBatch]:
        return self.client.batches

    @property
    def in_flight(self) -> list[ClientRequest]:
        return list(self.client.requests)

    def queued(self, partition: int = 0, topic: str = TOPIC) -> list[ProducerBatch]:
        return list(self.accumulator.queues.of_partitions(topic, [partition])[0].batches)
