"""Uses every public name as a user's program would. Type checkers read it; nobody runs it."""

from __future__ import annotations

import dataclasses
from typing import Any, assert_type

import spark_kafka_sink
from spark_kafka_sink import (
    AbortableTransactionError,
    ActiveProducer,
    ArrowTable,
    AuthenticationError,
    AuthorizationError,
    BatchMetadata,
    BrokerError,
    Cluster,
    CommitSummary,
    CommittedOffset,
    ConfigError,
    ConsumerGroupMetadata,
    Delivery,
    DeliveryError,
    EndOutcome,
    FailedToSendMessageError,
    FatalProducerError,
    IllegalStateError,
    InvalidRecordError,
    KafkaDataSource,
    KafkaError,
    KafkaProducer,
    KafkaTimeoutError,
    ListedTransaction,
    NetworkError,
    Node,
    OffsetAndMetadata,
    OffsetRange,
    Partitioner,
    PartitionInfo,
    PreparedTransaction,
    ProducerClosedError,
    ProducerColumns,
    ProducerFencedError,
    ProducerIdentity,
    ProducerInterceptor,
    ProducerRecord,
    ProtocolError,
    QueueFullError,
    RecordFuture,
    RecordInterceptor,
    RecordMetadata,
    RecordPartitioner,
    RecordTooLargeError,
    ResponseTooLargeError,
    RowFailure,
    SchemaError,
    SchemaUse,
    SerializationError,
    TopicPartition,
    TransactionAbortedError,
    TransactionClient,
    TransactionDescription,
    TransactionEnd,
    TransactionState,
    TransactionTimeoutError,
    UnsupportedVersionError,
    VersionSummary,
    WrittenRange,
    exactly_once_options,
    partition_for_keys,
)

CONFIG = {"bootstrap.servers": "localhost:9092", "linger.ms": 5}


# THE SINK


def write_batch(df: Any, spark: Any, batch_id: int) -> None:
    spark.dataSource.register(KafkaDataSource)
    df.write.format(KafkaDataSource.name()).options(**exactly_once_options("orders", batch_id)).mode("append").save()


def on_commit(summary: CommitSummary) -> None:
    assert_type(summary.rows, int)
    assert_type(summary.written, tuple[WrittenRange, ...])
    assert_type(summary.exactly_once, VersionSummary | None)
    assert_type(summary.schemas, tuple[SchemaUse, ...])
    for written in summary.written:
        print(written.topic, written.partition, written.first, written.last, written.rows, written.bytes)
    if summary.exactly_once is not None:
        print(summary.exactly_once.owner, summary.exactly_once.version, summary.exactly_once.how)
    for use in summary.schemas:
        print(use.part, use.subject, use.id, use.version)
    print(summary.counters["record-retry-total"], summary.skipped_by_reason, spark_kafka_sink.__version__)


# SENDING


def send_columns(column: Any) -> Delivery:
    with KafkaProducer(CONFIG, largest_record=2**21) as producer:
        delivery = producer.send_columns("orders", value=column, key=column, partition=column, headers=column, timestamp=column)
        producer.flush(1_000, until=delivery)
        assert_type(delivery.result(timeout_ms=1_000), Delivery)
        assert_type(delivery.offsets, dict[TopicPartition, OffsetRange])
        assert_type(delivery.failures, list[RowFailure])
        assert_type(delivery.error, KafkaError | None)
        for (topic, partition), written in delivery.offsets.items():
            print(topic, partition, written.first, written.last, written.rows, written.bytes)
        for failure in delivery.failures:
            print(failure.error.condition, len(failure.rows), failure.topic_partition)
        if delivery.done():
            print(delivery.rows, delivery.acknowledged, delivery.failed)
    return delivery


class TableOfMine:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return requested_schema


def send_table(producer: KafkaProducer) -> None:
    table: ArrowTable = TableOfMine()
    assert_type(producer.send_table("orders", table), Delivery)


def report(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
    if error is not None:
        print(error.condition, error.message)
    if metadata is not None:
        print(metadata.topic, metadata.partition, metadata.offset, metadata.timestamp)


def send_records(producer: KafkaProducer) -> None:
    future = producer.send(ProducerRecord("orders", b"value", key=b"key", headers=[("h", None)]), report)
    assert_type(future, RecordFuture)
    assert_type(future.result(timeout=1.5), RecordMetadata)
    assert_type(future.exception(timeout=1.5), KafkaError | None)
    assert_type(producer.send("orders", "value", key="key", partition=0, timestamp=1, callback=report).done(), bool)
    assert_type(producer.metrics(since_start=True), dict[str, float])
    assert_type(producer.topic_metrics(), dict[str, dict[str, float]])
    assert_type(producer.node_metrics(), dict[int, dict[str, float]])
    producer.check_usable()
    for info in producer.partitions_for("orders"):
        print(assert_type(info, PartitionInfo).leader)
    print(producer.client_id)
    producer.close(timeout_ms=1_000)


# TRANSACTIONS


def transact(producer: KafkaProducer) -> PreparedTransaction:
    producer.init_transactions()
    with producer.transaction():
        offsets = {TopicPartition("orders", 0): OffsetAndMetadata(5, "metadata", leader_epoch=1)}
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("group", generation_id=1, member_id="member"))
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    producer.use_transactional_id("orders-2")
    producer.init_transactions("orders-3")
    return producer.prepare_transaction()


def look_after(prepared: PreparedTransaction, partition: TopicPartition) -> None:
    with TransactionClient(CONFIG) as client:
        ended = assert_type(client.end_transactions([prepared], commit=True), dict[str, EndOutcome])
        if ended[prepared.transactional_id].end is TransactionEnd.FAILED:
            print(ended[prepared.transactional_id].error)
        fenced = assert_type(client.fence(["orders-1"]), dict[str, ProducerIdentity])
        client.take_over(fenced)
        assert_type(client.list_transactions("orders", [TransactionState.ONGOING]), list[ListedTransaction])
        described = client.describe_transactions(["orders-1"])
        assert_type(described, dict[str, TransactionDescription | None])
        producers = client.describe_producers([partition], timeout_ms=1_000)
        assert_type(producers, dict[TopicPartition, dict[int, ActiveProducer] | KafkaError])
        committed = client.fetch_offsets({"group": None}, require_stable=True)
        assert_type(committed, dict[str, dict[TopicPartition, CommittedOffset]])
        client.commit_offsets("group", {partition: CommittedOffset(5)})
        client.require_topic("orders")
        assert_type(client.broker_config("transaction.max.timeout.ms"), str | None)
        assert_type(client.longest_transaction_timeout_ms(), int)
        client.close()


# PLUG-INS


class ByCountry:
    def partition_columns(self, topic: str, key: Any, value: Any, cluster: Cluster) -> Any:
        del value
        print([node.address for node in cluster.nodes], cluster.partitions_for(topic), cluster.available_partitions(topic))
        return partition_for_keys(key, cluster.partition_count(topic) or 1)


class Sticky:
    def partition(
        self, topic: str, key: Any, key_bytes: bytes | None, value: Any, value_bytes: bytes | None, cluster: Cluster
    ) -> int | None:
        del topic, key, key_bytes, value, value_bytes
        return assert_type(cluster.nodes, tuple[Node, ...])[0].id


class Audit:
    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        return dataclasses.replace(columns, key=columns.value)

    def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
        print(metadata.topic, metadata.partition, metadata.base_offset, metadata.rows, metadata.timestamp, error)


class AuditRecords:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        print(metadata.offset, error)


PARTITIONERS: tuple[Partitioner, RecordPartitioner] = (ByCountry(), Sticky())
INTERCEPTORS: tuple[ProducerInterceptor, RecordInterceptor] = (Audit(), AuditRecords())


# ERRORS


def react(error: Exception) -> str:
    match error:
        case ProducerFencedError() | FatalProducerError() | ProducerClosedError() | IllegalStateError():
            return "close the producer"
        case AbortableTransactionError() | TransactionAbortedError():
            return "abort, and go on"
        case TransactionTimeoutError() | KafkaTimeoutError():
            return "wait"
        case RecordTooLargeError() | InvalidRecordError() | SchemaError() | SerializationError():
            return "mend the rows"
        case ConfigError() | AuthenticationError() | AuthorizationError() | UnsupportedVersionError():
            return "mend the configuration"
        case DeliveryError() | FailedToSendMessageError() | QueueFullError():
            return "send again"
        case NetworkError() | BrokerError() | ResponseTooLargeError() | ProtocolError():
            return "look at the brokers"
        case KafkaError():
            return error.condition
        case _:
            raise error
