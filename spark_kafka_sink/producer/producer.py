"""KafkaProducer: Arrow columns in, acknowledged Kafka records out. The caller's side; the Sender thread does the rest.

    from spark_kafka_sink.producer.producer import KafkaProducer

    with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
        delivery = producer.send_columns("orders", key=keys, value=values)
        producer.flush()
        print(delivery.result().offsets)

A caller blocks in three places only: for the first metadata of a topic and for buffer memory (each at most max.block.ms), and
where it asks to (flush, Delivery.result, close).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import Clock, wait_seconds
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    fresh_copy,
)
from spark_kafka_sink.network.cluster import Cluster, PartitionInfo
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer import forks
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.interceptors import InterceptedRecord, Interceptors, Watch, gathered_columns
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.partitioner import UserPartitioner
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_record import ProducerColumns, ProducerRecord
from spark_kafka_sink.producer.record_gatherer import (
    RECORD_OVERHEAD,
    Callback,
    GatheredPayload,
    GatheredRecords,
    RecordDetails,
    RecordFuture,
    RecordGatherer,
    checked_details,
    failed_record,
    headers_bound,
    record_of_arguments,
)
from spark_kafka_sink.producer.sender.coordinators import Coordinators
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.producer.sender.transaction_manager import TransactionManager
from spark_kafka_sink.producer.sender.transactions import Transactions
from spark_kafka_sink.producer.serializers import as_bytes, find_serializer, serialize
from spark_kafka_sink.producer.topic_chunk import (
    NO_PARTITION,
    TopicChunk,
    check_topic_type,
    chunks_by_topic,
    explicit_partitions,
    row_count,
)
from spark_kafka_sink.producer.transaction_calls import TransactionCalls
from spark_kafka_sink.producer.transactional_methods import TransactionalMethods
from spark_kafka_sink.records.columns import NULL_LENGTH, Column, RecordColumns, record_columns
from spark_kafka_sink.records.murmur2 import partition_for_keys
from spark_kafka_sink.records.record_batch import size_upper_bounds

logger = logging.getLogger(__name__)

CLOSE_MARGIN_MS = 5_000  # for the Sender to end after its last batch is settled


class KafkaProducer(TransactionalMethods):
    """A producer and its Sender thread. Any thread may use it, but no fork of the process; it never imports Spark.

    Args:
        config: Kafka's producer configuration by its own keys ("bootstrap.servers", "acks", …); values may be strings.
            Serializers, partitioner.class and interceptor.classes are dotted names, or what these would name.
        clock: for tests.

    Raises:
        ConfigError: naming all problems at once. Nothing has been started then.
    """

    client_id = ""  # until the configuration is read: a traceback with locals shows half-made producers too

    def __init__(self, config: Mapping[str, object], *, clock: Clock | None = None) -> None:
        serializers = {option: config.get(option) for option in ("key.serializer", "value.serializer")}
        # From here on no frame of ours keeps what the caller wrote: a traceback with locals would show its secrets.
        config = ProducerConfig.conceal({key: value for key, value in config.items() if key not in serializers})
        self._serialize_key = find_serializer("key.serializer", serializers["key.serializer"])
        self._serialize_value = find_serializer("value.serializer", serializers["value.serializer"])
        self._converts_keys = self._serialize_key is not as_bytes  # else bytes are not looked at
        self._converts_values = self._serialize_value is not as_bytes
        self._config = ProducerConfig.from_mapping(config)
        self.client_id = self._config.client_id
        self._generation = forks.generation()
        self._clock = clock or Clock()
        self._metrics = ProducerMetrics(self._config, self._clock)
        self._transactions = self._identity(self._config)
        self._pool = BufferPool(self._config.buffer_memory, self._config.batch_size, self._clock)
        self._metrics.watch_pool(self._pool)
        self._accumulator = RecordAccumulator(
            self._config,
            self._pool,
            self._clock,
            self._transactions,
            Random(),
            self._metrics.records_failed,
            is_transactional=self._config.transactional_id is not None,
        )
        self._metadata = Metadata(self._config, self._clock)
        self._largest_record = min(self._config.max_request_size, self._config.buffer_memory)
        client = NetworkClient(self._config, self._metadata, self._clock, metrics=self._metrics.network)
        self._metadata_wait = MetadataWait(self._metadata, client.wakeup, self._metrics, self._clock)
        self._metrics.gauges = self._gauges(client)
        self._gatherer = RecordGatherer(
            min(self._config.batch_size, self._largest_record),
            self._config.linger_ms,
            self._config.max_block_ms,
            self._encode_gathered,
            client.wakeup,
            self._clock,
            self._accumulator,
            self._new_chunk,
            may_wait=lambda: threading.current_thread() is not self._thread,
        )
        self._chunks, self._chunk_bytes = self._gatherer.chunks, self._gatherer.chunk_bytes  # at hand for `send`
        forks.watch(self._gatherer)
        # A user's plug-ins, None without: loaded last, when nothing else can fail but the thread's start.
        self._partitioner: UserPartitioner | None = None
        self._record_partitioner: UserPartitioner | None = None  # the same, if send() is to ask it for each record as in Java
        self._interceptors: Interceptors | None = None
        self._sender = Sender(
            self._config,
            client,
            self._metadata,
            self._accumulator,
            self._transactions,
            self._metrics,
            self._clock,
            self._gatherer,
        )
        if isinstance(self._transactions, Transactions):
            self._transactions.coordinators = Coordinators(self._transactions, client, self._config, self._clock)
            self._transactions.watch(client)
            self._transaction_calls = TransactionCalls(
                self._transactions,
                self._gatherer.encode_all,
                client.wakeup,
                self._clock,
                self._config.max_block_ms,
                self._metrics.transaction_call,
            )
        # A daemon: an interpreter that ends without close() must not hang on a broker.
        self._thread = threading.Thread(
            target=self._run_sender, name=f"kafka-producer-network-thread | {self.client_id}", daemon=True
        )
        try:
            self._partitioner = UserPartitioner.of(self._config)
            self._interceptors = Interceptors.of(self._config)
            if self._partitioner is not None and self._partitioner.asks_per_record and not self._intercepts_gathered():
                self._record_partitioner = self._partitioner
            self._thread.start()
        except BaseException:
            client.close()
            self._close_plugins()
            raise

    @staticmethod
    def _identity(config: ProducerConfig) -> TransactionManager | None:
        """Who the producer is to brokers: nobody without idempotence."""
        if config.transactional_id is not None:
            return Transactions(config.transactional_id, config.transaction_timeout_ms)
        return TransactionManager() if config.enable_idempotence else None

    def _run_sender(self) -> None:
        try:
            self._sender.run()
        finally:
            self._close_plugins()  # here: whoever closes the producer, and however, they have heard of every row by now

    def _intercepts_gathered(self) -> bool:
        return self._interceptors is not None and self._interceptors.any_wants_gathered

    def _close_plugins(self) -> None:
        for plugin in (self._interceptors, self._partitioner):
            if plugin is not None:
                plugin.close()

    def _new_chunk(self, topic: str, cluster: Cluster, clock: Clock) -> GatheredRecords:
        make = GatheredRecords if self._interceptors is None else self._interceptors.new_chunk
        return make(topic, cluster, clock)

    # SENDING

    def send_columns(
        self,
        topic: str | pa.Array | pa.ChunkedArray,
        *,
        value: Column,
        key: Column = None,
        partition: Column = None,
        headers: Column = None,
        timestamp: Column = None,
    ) -> Delivery:
        """Queue a chunk of rows: one record per row. Columns may be in pieces (pyarrow.ChunkedArray), as those of a table are.

        Args:
            topic: one name for all rows, or a string column without nulls.
            value: binary or string column; null is a tombstone. None: all are null.
            key: binary or string column; null means no key.
            partition: int32 column; null leaves the choice to the partitioner.
            headers: list<struct<key: string, value: binary>> column.
            timestamp: int64 column, milliseconds since 1970; null means now.

        Returns:
            A handle that tells when all rows are acknowledged, where they are, and the first error.

        Blocks for metadata of topics not seen before and while buffer memory is exhausted, each time at most `max.block.ms`.

        Raises:
            SchemaError: a column has a type that is not listed above, or columns differ in length; no row has been queued.
            InvalidRecordError, RecordTooLargeError: a row cannot be sent; no row of this chunk has been queued then.
            KafkaTimeoutError: no metadata, or no memory, in time. Rows queued before that are sent nevertheless.
            ProducerClosedError: closed before or meanwhile.
            KafkaError (KAFKA_INTERNAL_ERROR): the Sender has ended because of what the error names.
            KafkaError (KAFKA_ILLEGAL_STATE): this process was forked off after the producer had been made.
            AuthenticationError, BrokerError: what brokers said when asked for metadata, or a fatal error of an earlier batch.
            KafkaError (KAFKA_PARTITIONER_FAILED): partitioner.class failed; no row of this chunk has been queued then.
        """
        self._check_usable()
        given = ProducerColumns(topic, value, key, partition, headers, timestamp)
        given.check_types()
        if self._interceptors is not None:
            with self._writing():
                delivery: Delivery = self._interceptors.send_columns(given, self._send_columns)
            return delivery
        with self._writing():
            return self._send_columns(given)

    def _send_columns(self, given: ProducerColumns, watch: Watch | None = None) -> Delivery:
        """What `send_columns` does once interceptors, who `watch`, have seen the columns."""
        check_topic_type(given.topic)
        columns = record_columns(
            given.value,
            given.key,
            given.headers,
            _or_default(given.timestamp, self._clock.wall_ms()),
            self._clock.wall_ms(),
            rows=row_count(given.topic, given.value, given.key, given.partition),
        )
        delivery = Delivery(columns.rows, self._clock)
        explicit = explicit_partitions(given.partition, columns.rows)
        chunks = list(chunks_by_topic(given.topic, columns, explicit)) if columns.rows else []
        try:
            for chunk in chunks:
                self._check_sizes(chunk)
            if len(chunks) > 1:
                self._metadata_wait.ask_for(chunk.topic for chunk in chunks)
            clusters = [self._await_partitions(chunk) for chunk in chunks]
            if self._partitioner is not None:
                chunks = [chunk.decided_by(self._partitioner, each) for chunk, each in zip(chunks, clusters, strict=True)]
        except KafkaError:
            for chunk in chunks:
                self._metrics.records_failed(chunk.topic, len(chunk.rows))
            raise
        if watch is not None:
            watch.begin(columns)
        for chunk, cluster in zip(chunks, clusters, strict=True):
            self._gatherer.encode_topic(chunk.topic)  # what was sent singly before goes first
            self._append(chunk, cluster, delivery, watch)
        return delivery

    @overload
    def send(self, record: ProducerRecord, callback: Callback | None = None) -> RecordFuture: ...

    @overload
    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
        callback: Callback | None = None,
    ) -> RecordFuture: ...

    def send(  # type: ignore[misc]  # the second place has a name in each form, and `topic` may be among the fields
        self, record: Any = None, value: Any = None, callback: Callback | None = None, **fields: Any
    ) -> RecordFuture:
        """Queue one record; it is sent together with others, at the latest after linger.ms.

        Either `send(record, callback)` or `send(topic, value, key=…, partition=…, headers=…, timestamp=…, callback=…)`.

        Args:
            record: what, and where to.
            topic, value, key, partition, headers, timestamp: the same, as ProducerRecord takes them.
            callback: called once, with (RecordMetadata, None) or (None, error), on the Sender's thread, in order per partition.
                It must not wait for this producer: what it would wait for is done by its own thread. An Exception that it raises
                is logged. SystemExit, by sys.exit(), ends the producer, and what is not acknowledged by then fails.

        Returns:
            A future; `.result()` makes the call synchronous.

        Blocks for metadata of a topic not seen before and while buffer memory is exhausted, each time at most `max.block.ms`; in
        a callback, which would wait for its own thread, a record fails at once when there is no memory.

        Raises:
            SerializationError: key, value or headers are not what the serializers take.
            ValueError, TypeError: a negative partition or timestamp, one that is no int, or a topic that is no str.
            TypeError: these are the arguments of neither form.
            ProducerClosedError: the producer is closed.
            Everything else that speaks against the record (no metadata in time, too large, no memory in time) comes with the
            future and the callback, as in Java.
            KafkaError (KAFKA_PARTITIONER_FAILED): partitioner.class, when it takes records, failed.
        """
        # Each nanosecond counts here: a record takes some 700 of them. Of send(record, …), `value` is the callback.
        if (
            fields
            or (type(record) is not ProducerRecord and not isinstance(record, ProducerRecord))
            or (callback is not None and (value is not None or not callable(callback)))
        ):
            record, callback = record_of_arguments(record, value, callback, fields)
        elif value is not None:
            callback = value if callable(value) else record_of_arguments(record, value, None, fields)[1]
        if self._interceptors is not None and not isinstance(record, InterceptedRecord):
            self._check_usable()
            return self._interceptors.send(record, callback, self.send)
        topic = record.topic
        key = record.key
        value = record.value
        size = RECORD_OVERHEAD
        if key is not None:
            if type(key) is not bytes or self._converts_keys:
                key = serialize(self._serialize_key, key, "key")
            size += len(key or b"")
        if value is not None:
            if type(value) is not bytes or self._converts_values:
                value = serialize(self._serialize_value, value, "value")
            size += len(value or b"")
        if record.partition is not None or record.headers or record.timestamp is not None or self._record_partitioner is not None:
            details = checked_details(record)
            size += headers_bound(details.headers)
        else:
            chunk = self._chunks.get(topic)
            if chunk is not None and size <= self._largest_record:
                future = chunk.add(key, value, callback, size)
                if future is not None:
                    if chunk.size_bytes >= self._chunk_bytes:
                        self._gatherer.encode_full(topic)
                    return future
            details = None
        return self._send_checked(record, key, value, callback, size, details)

    def _send_checked(
        self,
        record: ProducerRecord,
        key: bytes | None,
        value: bytes | None,
        callback: Callback | None,
        size: int,
        details: RecordDetails | None,
    ) -> RecordFuture:
        """What `send` does for the first record of a chunk, and for one that says more than others: all checks."""
        self._check_usable()
        with self._writing():
            topic = record.topic
            highest = NO_PARTITION if details is None or details.partition is None else details.partition
            try:
                cluster = self._metadata_wait.await_partition(topic, highest, self._config.max_block_ms)
                self._check_size(size, f"a record for topic {topic}")
            except KafkaError as error:
                self._metrics.records_failed(topic, 1)
                return failed_record(topic, callback, details, error, self._clock, self._new_chunk)
            if self._record_partitioner is not None and details is not None and details.partition is None:
                decided = self._record_partitioner.decide_record(topic, record.key, key, record.value, value, cluster)
                details = details._replace(partition=None if decided == NO_PARTITION else decided)
            try:
                return self._gatherer.begin(topic, cluster, key, value, callback, size, details)
            except ProducerClosedError:
                raise
            except KafkaError as error:  # no memory
                self._metrics.records_failed(topic, 1)
                return failed_record(topic, callback, details, error, self._clock, self._new_chunk)

    def _encode_gathered(self, chunk: GatheredRecords) -> None:
        """Queue a chunk of records that were sent singly. Whatever goes wrong is told to the records."""
        self._metadata.add_topic(chunk.topic, self._clock.now_ms())  # keeps a topic in use from being forgotten
        rows = np.arange(len(chunk), dtype=np.int32)
        try:
            explicit = chunk.explicit_partitions(NO_PARTITION)
            given = chunk.payload_columns()
            if self._interceptors is not None and self._interceptors.any_wants_gathered:
                columns, explicit, rows = self._intercept_gathered(chunk, given, explicit, self._interceptors)
                if not len(rows):
                    return
            else:
                columns = record_columns(*given)
                chunk.become(columns)
            if self._partitioner is not None and self._record_partitioner is None:
                explicit = self._partitioner.decide(chunk.topic, columns, explicit, rows, chunk.cluster)
            partitions = self._partitions(chunk.topic, columns, explicit, chunk.cluster)
        except BaseException as error:
            told = error if isinstance(error, KafkaError) else InvalidRecordError(f"cannot be encoded: {error!r}")
            self._metrics.records_failed(chunk.topic, len(rows))
            chunk.abandon(rows, told)
            if not isinstance(error, KafkaError | pa.ArrowException | OverflowError | MemoryError):
                raise
            return
        try:
            self._accumulator.append(
                chunk.topic,
                columns,
                partitions,
                rows,
                chunk,
                self._sender.wakeup,
                max_block_ms=0,
                created_ms=chunk.created_ms,
                prepaid=chunk.memory,
            )
        except (KafkaError, MemoryError) as error:
            logger.debug("! records for %s: %s", chunk.topic, error)  # append has told those that it concerns

    def _intercept_gathered(
        self,
        chunk: GatheredRecords,
        given: GatheredPayload,
        explicit: npt.NDArray[np.int32],
        interceptors: Interceptors,
    ) -> tuple[RecordColumns, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Columns, explicit partitions and places of the records as interceptors leave them.

        Checked anew: a record that has become too large, or names a partition that there is not, fails; the others go on.
        """
        found = interceptors.on_send_gathered(gathered_columns(chunk.topic, given, explicit))
        now_ms = self._clock.wall_ms()
        columns = record_columns(
            found.value, found.key, found.headers, _or_default(found.timestamp, now_ms), now_ms, rows=len(chunk)
        )
        chunk.become(columns)
        explicit = explicit_partitions(found.partition, columns.rows)
        bounds = size_upper_bounds(columns)
        count = chunk.cluster.partition_count(chunk.topic) or 0
        bad = (bounds > self._largest_record) | (explicit >= count)
        for row in np.flatnonzero(bad).tolist():
            try:
                self._check_size(int(bounds[row]), f"a record for topic {chunk.topic}, as interceptors left it")
                raise self._metadata_wait.absent(chunk.topic, int(explicit[row]), count, 0)
            except KafkaError as error:
                chunk.abandon(np.array([row], np.int32), error)
                self._metrics.records_failed(chunk.topic, 1)
        good = np.flatnonzero(~bad).astype(np.int32)
        return (columns, explicit, good) if len(good) == columns.rows else (columns.take(good), explicit[good], good)

    def _append(self, chunk: TopicChunk, cluster: Cluster, delivery: Delivery, watch: Watch | None) -> None:
        for part in chunk.slices():
            self._accumulator.append(
                part.topic,
                part.columns,
                self._partitions(part.topic, part.columns, part.explicit, cluster),
                part.rows,
                delivery if watch is None else watch.owner(part.topic, len(part.rows), delivery),
                self._sender.wakeup,
                max_block_ms=self._config.max_block_ms,
            )

    def _partitions(
        self, topic: str, columns: RecordColumns, explicit: npt.NDArray[np.int32], cluster: Cluster
    ) -> npt.NDArray[np.int32]:
        """Explicit, else by key, else sticky; with the round robin partitioner: explicit, else the next in turn; with a user's,
        whose choices are in `explicit`: sticky where it chose none."""
        partitions = explicit.copy()
        undecided = partitions == NO_PARTITION
        by_key = not self._config.partitioner_ignore_keys and self._config.partitioner_class is None
        if by_key and columns.key is not None and undecided.any():
            hashed = partition_for_keys(columns.key, cluster.partition_count(topic) or 1)
            has_key = undecided & (columns.key_lengths != NULL_LENGTH)
            np.copyto(partitions, hashed, where=has_key)
            undecided &= ~has_key
        if undecided.any():
            self._accumulator.assign_partitions(topic, columns.base_sizes, undecided, partitions, cluster)
        return partitions

    # CHECKS

    def _check_process(self) -> None:
        """A fork has the sockets too, but no Sender: they are not its to use. Takes no lock."""
        forks.check_not_forked(self._generation, f"the producer {self.client_id}")

    def _check_usable(self) -> None:
        self._check_process()
        self._check_sender()
        self._accumulator.check_not_closed()
        if self._transactions is not None:
            self._transactions.check_usable()
        fatal_error = self._fatal_error()
        if fatal_error is not None:
            raise fresh_copy(fatal_error)

    def _check_sender(self) -> None:
        """Raises what ended the Sender before anybody closed the producer: no row can be written any more."""
        error = self._sender.failure_error()
        if error is not None:
            raise error

    def _fatal_error(self) -> KafkaError | None:
        """Why this producer can never write again."""
        own = None if self._transactions is None else self._transactions.fatal_error
        return own or self._metadata.permanent_error()

    def _check_sizes(self, chunk: TopicChunk) -> None:
        bounds = size_upper_bounds(chunk.columns)
        row = int(bounds.argmax())
        self._check_size(int(bounds[row]), f"row {chunk.rows[row]} of this chunk, topic {chunk.topic}")

    def _check_size(self, size: int, where: str) -> None:
        for option, limit in (("max.request.size", self._config.max_request_size), ("buffer.memory", self._config.buffer_memory)):
            if size > limit:
                raise RecordTooLargeError(
                    f"{where}: the record is {size} bytes when serialized, which exceeds"
                    f" {option}={limit}; raise {option}"
                    + ("" if option == "buffer.memory" else " and the topic's max.message.bytes")
                )

    # METADATA

    def _await_partitions(self, chunk: TopicChunk) -> Cluster:
        """Metadata that knows the topic and the highest partition asked for; waits at most max.block.ms for it."""
        highest = int(chunk.explicit.max())
        return self._metadata_wait.await_partition(chunk.topic, highest, self._config.max_block_ms)

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """The topic's partitions, leaderless ones too. Blocks at most max.block.ms for metadata; raises as send_columns does."""
        self._check_usable()
        return self._metadata_wait.await_partition(topic, 0, self._config.max_block_ms).partitions_for(topic)

    def await_brokers(self, timeout_ms: int) -> None:
        """Return as soon as a broker has answered this producer, be it long ago. Blocks at most `timeout_ms`.

        Raises KafkaTimeoutError (KAFKA_BROKER_UNREACHABLE) when none has by then, and errors such as a refused login.
        """
        self._check_usable()
        self._metadata_wait.await_brokers(timeout_ms)

    def unknown_topics(self, topics: Iterable[str]) -> dict[str, str]:
        """For one who was told KAFKA_UNKNOWN_TOPIC: which of these topics brokers have just said they do not have, and an error's
        text for each. None when they have not answered lately. Never blocks."""
        self._check_process()
        waited_ms = self._config.max_block_ms
        lately_ms = max(waited_ms // 2, 2 * self._config.retry_backoff_max_ms)  # while a caller waits, they are asked so often
        return self._metadata_wait.unknown_topics(topics, lately_ms, waited_ms)

    # ENDING

    def flush(self, timeout_ms: int | None = None) -> None:
        """Send everything queued so far without lingering, and wait until each row is acknowledged or has failed.

        Does not raise for rows that failed: their Delivery tells. Blocks at most `timeout_ms`; by default as long as batches
        may take, which delivery.timeout.ms bounds. When the time is over, nothing fails: what is left stays queued.

        Raises:
            KafkaTimeoutError: rows are left unsettled after that time.
            KafkaError (KAFKA_INTERNAL_ERROR): the Sender has ended, or ended meanwhile, because of what the error names.
        """
        self._check_process()
        self._check_sender()
        if threading.current_thread() is self._thread:
            raise KafkaError("flush() in a callback would wait for its own thread (KIP-1118)", condition="KAFKA_ILLEGAL_STATE")
        limit_ms = timeout_ms if timeout_ms is not None else self._settle_limit_ms()
        started_ns = self._clock.now_ns()
        deadline_ms = self._clock.now_ms() + limit_ms
        try:
            all_queued = self._gatherer.encode_all(deadline_ms)
            remaining_ms = max(0, deadline_ms - self._clock.now_ms())
            if not self._accumulator.flush(remaining_ms, self._sender.wakeup) or not all_queued:
                raise KafkaTimeoutError(
                    f"flush: rows are neither acknowledged nor failed after {limit_ms} ms", condition="KAFKA_FLUSH_TIMEOUT"
                )
            self._check_sender()
        finally:
            self._metrics.flushed(started_ns)

    def _settle_limit_ms(self) -> int:
        return self._config.delivery_timeout_ms + self._config.request_timeout_ms + CLOSE_MARGIN_MS

    def close(self, timeout_ms: int | None = None) -> None:
        """Refuse new rows, wait until what is queued is settled, end the Sender thread and close all connections.

        Blocks at most `timeout_ms` (by default as long as batches may take) and a few seconds more: when the time is over, and
        at once with 0, what is not settled yet fails. Called by the Sender itself, from a callback, it ends at once.
        Calling it again does nothing more. In a process that was forked off it does nothing: everything there is the parent's.
        """
        if forks.is_forked(self._generation):
            return
        limit_ms = timeout_ms if timeout_ms is not None else self._settle_limit_ms()
        deadline_ms = self._clock.now_ms() + limit_ms
        self._gatherer.close()
        if threading.current_thread() is self._thread:
            self._sender.force_close()
            return
        if limit_ms > 0:
            self._gatherer.encode_all(deadline_ms)
            self._sender.initiate_close()
        else:
            self._sender.force_close()
        remaining_ms = max(0, deadline_ms - self._clock.now_ms())
        self._thread.join(wait_seconds(remaining_ms))
        if self._thread.is_alive():
            if limit_ms > 0:
                logger.warning("! closing %s forcefully: rows were left after %d ms", self.client_id, limit_ms)
            self._sender.force_close()
            self._thread.join(CLOSE_MARGIN_MS / 1000)

    # RESTING: for one who keeps a producer for the next task

    def rest(self, keep_bytes: int = 0) -> None:
        """Give buffer memory beyond `keep_bytes` back to Python. Connections and the producer id stay. Never blocks."""
        self._check_process()
        self._pool.release_free(keep_bytes)

    def resume(self) -> None:
        """Count `metrics(since_start=True)` and its kin from here on: for the next task of a producer at rest. Never blocks."""
        self._metrics.restart()

    def is_at_rest(self) -> bool:
        """Whether this producer could serve somebody else now: it is neither closed nor has it failed for good, its thread
        lives in this process, and nothing that was sent is unsettled."""
        lives = not forks.is_forked(self._generation) and self._thread.is_alive()
        works = lives and self._fatal_error() is None and not self._accumulator.is_closed()
        return works and not self._accumulator.has_incomplete() and not self._gatherer.chunks

    # METRICS: at any time, from any thread, without blocking; also after close()

    def metrics(self, *, since_start: bool = False) -> dict[str, float]:
        """Kafka's producer-metrics by their names, as of now; the README lists them. Times are ms unless the name says ns.

        Averages, maxima and rates are of the last metrics.num.samples windows of metrics.sample.window.ms, totals of the
        producer's whole life; with `since_start` all of them since its start, or since the last `resume`. 0 where there was
        nothing to take an average of.
        Rows that flush() or a Delivery says are settled are in it; of what is just being sent, some numbers may be one
        request ahead of others.
        """
        return self._metrics.snapshot(since_start=since_start)

    def topic_metrics(self, *, since_start: bool = False) -> dict[str, dict[str, float]]:
        """Kafka's producer-topic-metrics: topic -> name -> value, for topics that something was sent to. As metrics()."""
        return self._metrics.topic_snapshots(since_start=since_start)

    def node_metrics(self, *, since_start: bool = False) -> dict[int, dict[str, float]]:
        """Kafka's producer-node-metrics: broker id -> name -> value; bootstrap servers have ids below zero. As metrics()."""
        return self._metrics.node_snapshots(since_start=since_start)

    def _gauges(self, client: NetworkClient) -> dict[str, Callable[[], float]]:
        made_ms = self._clock.now_ms()

        def metadata_age() -> float:
            return (self._clock.now_ms() - (self._metadata.last_successful_refresh_ms() or made_ms)) / 1000

        return {
            "requests-in-flight": client.in_flight_request_count,
            "metadata-age": metadata_age,
            "waiting-threads": self._pool.queued,
            "buffer-total-bytes": lambda: self._pool.total_memory,
            "buffer-available-bytes": lambda: self._pool.available_memory,
        }

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KafkaProducer({self.client_id})"


def _or_default(timestamp: pa.Array | None, now_ms: int) -> pa.Array | int:
    return now_ms if timestamp is None else timestamp
