"""Queues the rows of a `send_columns` call, and the records that `send` has gathered in bundles, after making columns of them.

Law: when a `send_columns` call fails before its first append, it raises the error and no row of it is queued.
Gathered records were accepted earlier, so a record that fails gets its error by its future and callback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import InvalidRecordError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.hand_overs import CLEANED_UP_ERRORS, HandOver, HandOvers
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.plugins.interceptors import InterceptedCall
from spark_kafka_sink.producer.plugins.partitioner import UserPartitioner
from spark_kafka_sink.producer.plugins.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_record import ProducerColumns, count_rows_by_topic
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle
from spark_kafka_sink.producer.size_limits import SizeLimits
from spark_kafka_sink.producer.topic_rows import (
    TopicRows,
    check_topic_type,
    count_rows,
    explicit_partitions,
    record_rows,
    split_by_topic,
)
from spark_kafka_sink.records.arrays import bytes_array
from spark_kafka_sink.records.record_batch import size_upper_bounds

if TYPE_CHECKING:
    from spark_kafka_sink.producer.avro.avro_serializers import AvroSerializers

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class ColumnSender:
    """Sends columns of rows: awaits metadata, chooses partitions, and appends the rows to the accumulator."""

    size_limits: SizeLimits
    clock: Clock  # for the timestamp of rows that have none
    metadata_wait: MetadataWait  # where a call waits for the metadata of its topics
    accumulator: RecordAccumulator
    hand_overs: HandOvers  # runs calls, and notices interrupts
    plugins: ProducerPlugins
    metrics: ProducerMetrics  # counts the rows of a call that `queue` refuses
    encode_topic: Callable[[str], None]  # encodes the gathered records of a topic, so that they stay before the rows of a call

    def encodes(self, part: str) -> bool:
        """Whether `part`, "key" or "value", may have any type that Avro has, because it is encoded as Avro."""
        return self.plugins.avro is not None and self.plugins.avro.encodes(part)

    # THE ROWS OF ONE CALL: the caller's thread

    def send(self, columns: ProducerColumns, call: InterceptedCall | None = None) -> Delivery:
        """Queue rows; blocks and raises as KafkaProducer.send_columns. `call`: makes callbacks if there are interceptors."""
        delivery = Delivery(0, self.clock)
        self.hand_overs.run(self.queue, delivery, columns, call)
        return delivery

    def queue(
        self, hand_over: HandOver, delivery: Delivery, input_columns: ProducerColumns, call: InterceptedCall | None = None
    ) -> None:
        """Add rows to a Delivery, which may have rows already, and queue them. The hand-over begins with the first append."""
        check_topic_type(input_columns.topic)
        row_count = count_rows(input_columns)
        try:
            if self.plugins.avro is not None:
                input_columns = self.plugins.avro.encode_columns(input_columns)
            columns = record_rows(input_columns, row_count, self.clock.wall_ms())
            partitions = explicit_partitions(input_columns.partition, row_count)
            slices = self._prepare_slices(split_by_topic(input_columns.topic, columns, partitions))
        except KafkaError:
            for topic, count in count_rows_by_topic(input_columns).items():
                self.metrics.records_failed(topic, count)
            raise

        delivery_callback = delivery.expect(columns.row_count)
        slices_left = iter(slices)
        try:
            for rows, cluster in slices_left:
                hand_over.begin()
                try:
                    callback = delivery_callback if call is None else call.make_callback(rows, columns, delivery_callback)
                except CLEANED_UP_ERRORS as error:  # slices before this one are queued: their transaction must not be committed
                    self.accumulator.fail_unbatched(rows.topic, rows.positions, delivery_callback, error)
                    raise
                self.accumulator.append(rows, cluster, callback, hand_over)
        except CLEANED_UP_ERRORS:
            for rows, _ in slices_left:
                self.metrics.records_failed(rows.topic, len(rows.positions))
            raise

    def _prepare_slices(self, topics: Sequence[TopicRows]) -> list[tuple[TopicRows, Cluster]]:
        """Check sizes, wait for the partitions of each topic, and let a user's partitioner choose among them."""
        for rows in topics:
            bounds = size_upper_bounds(rows.columns)
            index = int(bounds.argmax())
            row = int(rows.positions[index])
            self.size_limits.check(int(bounds[index]), f"row {row} of this chunk, topic {rows.topic}", row)
        if len(topics) > 1:
            self.metadata_wait.ask_for(rows.topic for rows in topics)
        clusters = [self.metadata_wait.await_partition(rows.topic, int(rows.partitions.max())) for rows in topics]
        partitioner = self.plugins.partitioner
        if partitioner is not None:
            topics = [_with_partitions(partitioner, rows, cluster) for rows, cluster in zip(topics, clusters, strict=True)]
        for rows in topics:
            self.encode_topic(rows.topic)  # records of earlier `send` calls go first
        return [
            (slice_rows, cluster)
            for rows, cluster in zip(topics, clusters, strict=True)
            for slice_rows in rows.slices(cluster.partition_count(rows.topic) or 1)
        ]

    # GATHERED RECORDS: the thread of the caller who filled the bundle, or the Sender's after linger.ms

    def send_gathered(self, hand_over: HandOver, bundle: RecordBundle) -> None:
        """Encode a sealed bundle: make columns of its records and queue the rows. Needs no more memory. Errors go to records."""
        positions_left = np.arange(len(bundle), dtype=np.int32)
        try:
            self.metadata_wait.ask_for([bundle.topic])  # metadata of a topic in use must not expire
            rows = self._make_rows(bundle)
            positions_left = rows.positions
            if not len(positions_left):
                return
            if self.plugins.bundle_partitioner is not None:
                partitions = self.plugins.bundle_partitioner.decide(rows, bundle.cluster, are_gathered=True)
                rows = replace(rows, partitions=partitions)
            callback = bundle.rows_callback
        except CLEANED_UP_ERRORS as error:
            reason = error if isinstance(error, KafkaError) else InvalidRecordError(f"cannot be encoded: {error!r}")
            self.accumulator.fail_unbatched(bundle.topic, positions_left, bundle, reason)
            return
        try:
            self.accumulator.append(
                rows, bundle.cluster, callback, hand_over, created_ms=bundle.created_ms, prepaid_memory=bundle.memory
            )
        except CLEANED_UP_ERRORS as error:
            logger.debug("! records for %s: %s", bundle.topic, error)  # append has failed the records concerned
            if not isinstance(error, KafkaError | MemoryError):
                raise

    def _make_rows(self, bundle: RecordBundle) -> TopicRows:
        """The records as columns, after interceptors have changed them. Records that fail are left out."""
        errors: dict[int, KafkaError] = {}
        avro, interceptors = self.plugins.avro, self.plugins.interceptors_of_gathered
        gathered_columns = bundle.as_columns() if avro is None else bundle.as_columns(partial(_encode, errors, avro))
        if interceptors is not None:
            gathered_columns = interceptors.on_send_gathered(gathered_columns)
        columns = record_rows(gathered_columns, len(bundle), self.clock.wall_ms())
        bundle.keep_columns(columns)
        partitions = explicit_partitions(gathered_columns.partition, columns.row_count)
        rows = TopicRows(bundle.topic, columns, partitions, np.arange(len(bundle), dtype=np.int32))
        if interceptors is not None:
            errors = self._errors_after_interceptors(rows, bundle.cluster) | errors
        return self._fail_and_drop(bundle, rows, errors) if errors else rows

    def _errors_after_interceptors(self, rows: TopicRows, cluster: Cluster) -> dict[int, KafkaError]:
        """The errors of records that interceptors made too large or gave a partition that does not exist, by their index."""
        errors: dict[int, KafkaError] = {}
        bounds = size_upper_bounds(rows.columns)
        partition_count = cluster.partition_count(rows.topic) or 0
        is_too_large, is_absent = bounds > self.size_limits.largest_record, rows.partitions >= partition_count
        for row in np.flatnonzero(is_too_large | is_absent).tolist():
            if is_too_large[row]:
                where = f"a record for topic {rows.topic}, as interceptors left it"
                errors[row] = self.size_limits.too_large_error(int(bounds[row]), where)
            else:
                partition = int(rows.partitions[row])
                errors[row] = self.metadata_wait.absence_error(rows.topic, partition, partition_count, waited_ms=0)
        return errors

    def _fail_and_drop(self, bundle: RecordBundle, rows: TopicRows, errors: Mapping[int, KafkaError]) -> TopicRows:
        """The rows without an error. The others fail in the last step: on an exception, the caller fails the whole bundle."""
        rows_left = rows.take(np.setdiff1d(np.arange(len(rows.positions)), list(errors)))
        for row, error in sorted(errors.items()):
            self.accumulator.fail_unbatched(bundle.topic, rows.positions[row : row + 1], bundle, error)
        return rows_left


def _encode(errors: dict[int, KafkaError], avro: AvroSerializers, part: str, topic: str, values: Sequence[Any]) -> pa.Array:
    """Gathered keys or values as bytes. Those that cannot be encoded are null, and have an entry in `errors`."""
    if not avro.encodes(part):
        return bytes_array(values)
    column, part_errors = avro.encode_objects(part, topic, values)
    errors.update(part_errors)
    return column


def _with_partitions(partitioner: UserPartitioner, rows: TopicRows, cluster: Cluster) -> TopicRows:
    """Let a user's partitioner choose partitions for the rows that name none. Raises KafkaError."""
    return replace(rows, partitions=np.concatenate([partitioner.decide(part, cluster) for part in rows.slices()]))
