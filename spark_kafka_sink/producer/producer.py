"""KafkaProducer: Arrow columns in, acknowledged Kafka records out. The caller's side; the Sender thread does the rest.

    from spark_kafka_sink.producer.producer import KafkaProducer

    with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
        delivery = producer.send_columns("orders", key=keys, value=values)
        producer.flush()
        print(delivery.result().offsets)

A caller blocks in flush, close, result (of a Delivery or a future), partitions_for and the transactional methods.
Where it sends rows, it blocks for the first metadata of a topic, for buffer memory, while another thread encodes single records
of the topic, and with Avro for the schema registry, each time at most max.block.ms. producer_parts.py makes the parts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, overload

import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.other_clients import problem_of_arguments
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import IllegalStateError, KafkaError, KafkaTimeoutError, ProducerClosedError, fresh_copy
from spark_kafka_sink.network.cluster import PartitionInfo
from spark_kafka_sink.producer import exits, forks
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.plugins.interceptors import InterceptedRecord
from spark_kafka_sink.producer.producer_parts import ProducerParts
from spark_kafka_sink.producer.producer_record import (
    LONE_RECORD_OVERHEAD_BYTES,
    Callback,
    ProducerColumns,
    ProducerRecord,
    checked_details,
    max_headers_bytes,
    record_of_arguments,
)
from spark_kafka_sink.producer.serializers import Serializer, as_bytes, find_serializer, is_avro, serialize
from spark_kafka_sink.producer.single_records.record_bundle import GatheredRecord, RecordFuture, failed_record
from spark_kafka_sink.producer.tables.table_batches import ArrowTable
from spark_kafka_sink.producer.transactions.transactional_methods import TransactionalMethods
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import Column

if TYPE_CHECKING:
    from spark_kafka_sink.producer.avro.avro_serializers import AvroSerializers

logger = logging.getLogger(__name__)

CLOSE_MARGIN_MS = 5_000  # how long the Sender may take to end after its last batch is settled


class KafkaProducer(TransactionalMethods):
    """A producer and its Sender thread. All threads of the process that made it may use it, forked children may not.

    Close it, or make it by `with`. When the program ends, open producers have one second together to send what is queued, and a
    line on stderr says how many rows are lost (exits.py). After os._exit, or a signal without a handler, they are lost silently.

    Args:
        config: Kafka's producer configuration by its own keys ("bootstrap.servers", "acks", …); values may be strings.
            Serializers, partitioner.class and interceptor.classes are dotted names, or the objects themselves.
        clock: for tests.
        largest_record: the largest size of a record in bytes, if more than max.request.size. A record that is larger than
            max.request.size gets a request of its own.

    Raises:
        ConfigError: names all wrong option values at once, or the first part that cannot be made. Nothing has been started then.
    """

    closes_at_exit = True  # False if others close it in time
    client_id = ""  # until the configuration is read: a traceback with locals shows unfinished producers too

    @overload
    def __init__(self, config: Mapping[str, object], *, clock: Clock | None = None, largest_record: int = 0) -> None: ...

    @overload
    def __init__(self, config: Never, **arguments: Never) -> None: ...

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        largest_record: int = 0,
        **arguments: object,
    ) -> None:
        if config is None or arguments:
            argument_names = list(arguments)
            arguments.clear()  # see below
            raise TypeError(problem_of_arguments(argument_names))
        serializers = {option: config.get(option) for option in ("key.serializer", "value.serializer")}
        # From here on none of our frames holds the caller's options: a traceback with locals would show their secrets.
        avro_parts = [option.partition(".")[0] for option, serializer in serializers.items() if is_avro(serializer)]
        config, registry_options = _split_options(config) if avro_parts else (config, {})
        config = ProducerConfig.conceal({key: value for key, value in config.items() if key not in serializers})
        self._serialize_key = find_serializer("key.serializer", serializers["key.serializer"])
        self._serialize_value = find_serializer("value.serializer", serializers["value.serializer"])
        self._must_convert_keys = self._serialize_key is not as_bytes  # else bytes need no serializing
        self._must_convert_values = self._serialize_value is not as_bytes
        self._config = ProducerConfig.from_mapping(config)
        self.client_id = self._config.client_id
        self._avro = self._avro_serializers(avro_parts, registry_options) if avro_parts else None
        self._generation = forks.generation()
        self._clock = clock or Clock()
        cleanup = ExitStack()
        try:
            parts = ProducerParts(self._config, self._clock, cleanup, self._may_wait, largest_record, self._avro)
            self._adopt_parts(parts)
            cleanup.callback(self._undo_constructor, cleanup)
            self._thread.start()  # if interrupted, it may or may not have started the thread
            if self.closes_at_exit:
                exits.close_at_exit(self._sender, repr(self), self._thread)
        except BaseException:
            cleanup.close()
            raise

    def _avro_serializers(self, parts: Sequence[str], options: Mapping[str, object]) -> AvroSerializers:
        from spark_kafka_sink.config.serializer_config import read_serializer_options
        from spark_kafka_sink.producer.avro.avro_serializers import AvroSerializers

        serializer_config = read_serializer_options(options, parts)
        return AvroSerializers(*serializer_config, self._config.max_block_ms, self._may_wait, self.partitions_for)

    def _may_wait(self) -> bool:
        """Whether the calling thread may wait for memory or the schema registry. The Sender's must not: it gives memory back."""
        return threading.current_thread() is not self._thread

    def _adopt_parts(self, parts: ProducerParts) -> None:
        """Keep the parts that the methods use, and make the Sender's thread."""
        self._parts = parts
        self._metrics = parts.metrics
        self._sequencer = parts.sequencer
        self._pool = parts.accumulator.pool
        self._accumulator = parts.accumulator
        self._metadata = parts.metadata
        self._gatherer = parts.gatherer
        self._sender = parts.sender
        self._caller_side = parts.caller_side
        # Attributes that `send` reads fast, because it is called once per record.
        self._bundles, self._bundle_bytes = self._gatherer.bundles, self._gatherer.bundle_bytes
        self._interceptors = self._parts.plugins.interceptors
        self._must_intercept_or_encode = self._interceptors is not None or self._avro is not None
        self._record_partitioner = self._parts.plugins.record_partitioner
        self._largest_record = self._parts.size_limits.largest_record
        forks.register_fast_path(self._gatherer)
        self._closer_lock = threading.Lock()  # guards _closer
        self._closer: threading.Thread | None = None  # see _claim_closing
        # A daemon: an interpreter that ends without close() must not wait long for a broker (exits.py).
        self._thread = threading.Thread(
            target=self._run_sender, name=f"kafka-producer-network-thread | {self.client_id}", daemon=True
        )

    def _undo_constructor(self, cleanup: ExitStack) -> None:
        """The constructor has failed: end the Sender. If its thread runs already, that thread closes the parts."""
        self._sender.force_close()
        if not self._claim_closing():
            # ExitStack.close() calls this method first, and then what the stack still contains. So the parts are not closed here.
            cleanup.pop_all()

    def _claim_closing(self) -> bool:
        """Let the first thread that calls this close the parts: the Sender's, unless __init__ fails. True for that thread."""
        with self._closer_lock:
            self._closer = self._closer or threading.current_thread()
            return self._closer is threading.current_thread()

    def _run_sender(self) -> None:
        if not self._claim_closing():
            return
        try:
            self._sender.run()
        finally:
            try:
                self._parts.plugins.close()  # last: interceptors get the outcome of every row, however the producer was closed
            finally:
                self._sender.end_signal.signal()

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
        """Queue a chunk of rows: one record per row. A column may be a pyarrow.ChunkedArray, as in a table.

        Args:
            topic: one name for all rows, or a string column without nulls.
            value: binary or string column, with `avro` of any type that Avro has; null is a tombstone. None: all are null.
            key: as value; null means no key.
            partition: column of int32 or other integers; null leaves the choice to the partitioner.
            headers: list<struct<key: string, value: binary>> or map<string, binary> column.
            timestamp: int64 column, milliseconds since 1970; null means now.

        Returns:
            A Delivery, which tells when all rows are settled, their offsets, and the first error.

        Blocks for metadata of topics not seen before, while buffer memory is exhausted, while another thread encodes records of
        `send` for one of the topics, and with `avro` for the schema registry, each time at most `max.block.ms`.

        Raises:
            SchemaError: a column has a type that is not listed above, or columns differ in length. No row is queued.
            InvalidRecordError, RecordTooLargeError: a row cannot be sent. No row of this chunk is queued.
            InvalidRecordError (KAFKA_ROW_NOT_ENCODABLE): a key or value does not fit its Avro schema. No row is queued.
            RegistryError, KafkaTimeoutError: the schema registry rejects it, or does not answer in time. No row is queued.
            KafkaError (KAFKA_PARTITIONER_FAILED): partitioner.class failed. No row of this chunk is queued.
            KafkaTimeoutError: no metadata, or no memory, in time. Rows that were queued before that are still sent.
            ProducerClosedError: the producer is closed, or was closed during the wait.
            KafkaError (KAFKA_INTERNAL_ERROR): the Sender has ended; the error names the cause.
            KafkaError (KAFKA_INTERRUPTED): an interrupt of an earlier call, or of one in another thread, has ended the producer.
            IllegalStateError: this process was forked after the producer had been made, or a callback sends with a schema that is
                not known yet.
            IllegalStateError, AbortableTransactionError: no transaction is open, or it has failed; only with a transactional.id.
            AuthenticationError, BrokerError, FatalProducerError: brokers rejected a metadata request or the producer for good.
        """
        self.check_usable()
        columns = ProducerColumns(topic, value, key, partition, headers, timestamp)
        columns.check_types()
        columns.require_topics()
        if self._interceptors is None:
            return self._write(self._parts.columns.send, columns)
        return self._write(self._interceptors.send_columns, columns, self._parts.columns.send)

    def send_table(self, topic: str | None, table: ArrowTable) -> Delivery:
        """Queue all rows of a table, one record per row: `send_columns` for tables of any library, and for streams.

            frame = polars.DataFrame({"key": ["a", "b"], "value": ["1", "2"]})
            delivery = producer.send_table("orders", frame)
            producer.flush()
            print(delivery.result().offsets)

        The columns are those of the sink, docs/columns.md: `value`, and if they are there `key`, `headers`, `topic`, `partition`,
        `timestamp`. Others are ignored, but a name that looks like a misspelt one of these is an error. Strings and bytes may be
        of the large or view types, or dictionaries; headers a list, a large list, a list of fixed size or a map. With `avro`,
        keys and values may be of any type that Avro has; other serializers are for `send`.
        A stream may have any length. Each batch is read after the rows of the previous one are queued. After an error or an
        interrupt, open the stream again: a part of it has been read.

        Args:
            topic: one name for all rows, which overrides a column `topic`. None: that column decides.
            table: has `__arrow_c_stream__` or `__arrow_c_array__`: a Table, RecordBatch or RecordBatchReader of pyarrow, a
                DataFrame of polars, pandas (2.2 or newer) or datafusion, a relation of duckdb.

        Returns:
            One Delivery for all rows, as of send_columns.

        Blocks as send_columns does for each batch, and as long as the table's source takes for the next one.

        Raises:
            SchemaError: `table` is no table, or columns are missing, misspelt or of a wrong type. Names all; no row is queued.
            KafkaError (KAFKA_TABLE_READ_FAILED), SchemaError: the table's source has failed, or a batch has other columns.
            Other errors: as send_columns, for the rows of one batch; row numbers are the table's. If earlier batches are queued,
            each error says so, also a MemoryError. They are still sent, but their transaction cannot be committed.
        """
        self.check_usable()
        return self._write(self._parts.tables.send, topic, table, self.check_usable)

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

    def send(  # type: ignore[misc]  # the second argument has a name in each form; `topic` may be in fields
        self, record: Any = None, value: Any = None, callback: Callback | None = None, **fields: Any
    ) -> RecordFuture:
        """Queue one record. It waits at most linger.ms for others, and is sent together with them.

        Either `send(record, callback)` or `send(topic, value, key=…, partition=…, headers=…, timestamp=…, callback=…)`.

        Args:
            record: the record and its topic.
            topic, value, key, partition, headers, timestamp: the fields of a ProducerRecord.
            callback: called once, with (RecordMetadata, None) or (None, error), in order per partition, on the Sender's thread.
                For a record that cannot be queued, it is called on the thread that tries to queue it, which may be a caller's. It
                must not wait for this producer, because it would wait for its own thread. An Exception that it raises is logged.
                SystemExit, by sys.exit(), ends the producer, and records that are not acknowledged by then fail.

        Returns:
            A future; `.result()` makes the call synchronous.

        Blocks for metadata of a topic not seen before, while buffer memory is exhausted, while another thread encodes records of
        the topic, and with `avro` for the schema registry, each time at most `max.block.ms`.
        In a callback, a record fails at once when there is no memory.

        Raises:
            SerializationError: the serializers reject the key or value, or headers are not (str, bytes) pairs.
            ValueError, TypeError: a negative partition or timestamp, one that is no int, or a topic that is no str.
            TypeError: these are the arguments of neither form.
            KafkaError (KAFKA_PARTITIONER_FAILED): partitioner.class, when it takes records, failed.
            SchemaError, RegistryError, KafkaTimeoutError, InvalidRecordError: with `avro`, no schema is known, or encoding fails.
            Errors of the producer, such as ProducerClosedError or IllegalStateError: as send_columns.
            Other errors of the record (no metadata in time, too large, no memory in time) come with the future and the
            callback, as in Java.
        """
        # Each nanosecond counts: a record takes some 700 of them. The second argument is `value`, also if it is the callback.
        if (
            fields
            or (type(record) is not ProducerRecord and not isinstance(record, ProducerRecord))
            or (callback is not None and (value is not None or not callable(callback)))
        ):
            record, callback = record_of_arguments(record, value, callback, fields)
        elif value is not None:
            callback = value if callable(value) else record_of_arguments(record, value, None, fields)[1]
        if self._must_intercept_or_encode and (future := self._intercept_or_encode(record, callback)) is not None:
            return future
        topic = record.topic
        key = record.key
        value = record.value
        size_bytes = LONE_RECORD_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes or self._must_convert_keys:
                key = serialize(self._serialize_key, key, "key")
            size_bytes += len(key or b"")
        if value is not None:
            if type(value) is not bytes or self._must_convert_values:
                value = serialize(self._serialize_value, value, "value")
            size_bytes += len(value or b"")
        if record.partition is not None or record.headers or record.timestamp is not None or self._record_partitioner is not None:
            details = checked_details(record)
            size_bytes += max_headers_bytes(details.headers)
        else:
            bundle = self._bundles.get(topic)
            if bundle is not None and size_bytes <= self._largest_record:
                future = bundle.add(key, value, callback, size_bytes)
                if future is not None:
                    if bundle.size_bytes >= self._bundle_bytes:
                        self._gatherer.encode_full(topic)
                    return future
            details = None
        self.check_usable()
        return self._write(self._gather, record, GatheredRecord(key, value, callback, size_bytes, details))

    def _intercept_or_encode(self, record: ProducerRecord, callback: Callback | None) -> RecordFuture | None:
        """Hand the record to interceptors, or send it as Avro. None: `send` goes on, with a record that needs neither."""
        self.check_usable()
        if self._interceptors is not None and not isinstance(record, InterceptedRecord):
            return self._interceptors.send(record, callback, self.send)
        return None if self._avro is None else self._send_as_avro(self._avro, record, callback)

    def _send_as_avro(self, avro: AvroSerializers, record: ProducerRecord, callback: Callback | None) -> RecordFuture:
        """`send` for keys or values that are objects: they become Avro later, together with those of their bundle."""
        details = checked_details(record)
        key, key_bytes = self._form_to_gather(avro, "key", record.topic, record.key, self._serialize_key)
        value, value_bytes = self._form_to_gather(avro, "value", record.topic, record.value, self._serialize_value)
        size_bytes = LONE_RECORD_OVERHEAD_BYTES + max_headers_bytes(details.headers) + key_bytes + value_bytes
        if size_bytes > self._largest_record or self._record_partitioner is not None:  # a bound may be too high; or bytes are due
            key = avro.encode_object("key", record.topic, key)
            value = avro.encode_object("value", record.topic, value)
            key_bytes, value_bytes = len(key or b""), len(value or b"")
            size_bytes = LONE_RECORD_OVERHEAD_BYTES + max_headers_bytes(details.headers) + key_bytes + value_bytes
        return self._write(self._gather, record, GatheredRecord(key, value, callback, size_bytes, details))

    def _form_to_gather(
        self, avro: AvroSerializers, part: str, topic: str, payload: Any, serializer: Serializer
    ) -> tuple[Any, int]:
        """The form in which a key or value is gathered, and an upper bound of its size in bytes."""
        if payload is None:
            return None, 0
        if avro.encodes(part):
            return avro.take(part, topic, payload)
        data = serialize(serializer, payload, part)
        return data, len(data or b"")

    def _gather(self, record: ProducerRecord, gathered_record: GatheredRecord) -> RecordFuture:
        """The part of `send` that may wait, for metadata and memory. A plain record that fits into its bundle needs no wait."""
        topic, details = record.topic, gathered_record.details
        named_partition = NO_PARTITION if details is None or details.partition is None else details.partition
        try:
            cluster = self._parts.metadata_wait.await_partition(topic, named_partition)
            self._parts.size_limits.check(gathered_record.size_bytes, f"a record for topic {topic}")
        except KafkaError as error:
            return self._failed_record(topic, gathered_record, error)
        if self._record_partitioner is not None and details is not None and details.partition is None:
            partition = self._record_partitioner.decide_record(
                topic, record.key, gathered_record.key, record.value, gathered_record.value, cluster
            )
            gathered_record = gathered_record._replace(
                details=details._replace(partition=None if partition == NO_PARTITION else partition)
            )
        try:
            return self._gatherer.add(topic, cluster, gathered_record)
        except ProducerClosedError:
            raise
        except KafkaError as error:  # no memory, or another thread encodes for too long
            return self._failed_record(topic, gathered_record, error)

    def _failed_record(self, topic: str, gathered_record: GatheredRecord, error: KafkaError) -> RecordFuture:
        self._parts.rows_unbatched(topic, 1, error)
        return failed_record(topic, gathered_record.callback, gathered_record.details, error, self._clock, self._interceptors)

    # CHECKS

    def _check_process(self) -> None:
        """Raises IllegalStateError in a forked child, which has no Sender and may not use its parent's sockets. Takes no lock."""
        forks.check_not_forked(self._generation, f"the producer {self.client_id}")

    def _check_alive(self) -> None:
        self._check_sender()
        self._accumulator.check_not_closed()

    def check_usable(self) -> None:
        """Raise what `send_columns` would raise at once: the producer is closed, was interrupted, or has failed for good. In a
        transactional producer also, that the transaction has failed. Never blocks."""
        self._check_process()
        self._check_alive()
        error = self._sequencer.current_error() or self._metadata.permanent_error()
        if error is not None:
            raise fresh_copy(error)

    def _check_sender(self) -> None:
        """Raises KafkaError when the Sender has ended before close(): no row can be written any longer."""
        error = self._sender.failures.error()
        if error is not None:
            raise error

    # METADATA

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """The topic's partitions, leaderless ones too. Blocks at most max.block.ms for metadata; raises as send_columns does."""
        self.check_usable()
        return self._parts.metadata_wait.await_partition(topic, 0).partitions_for(topic)

    # ENDING

    def flush(self, timeout_ms: int | None = None, *, until: Delivery | None = None) -> None:
        """Send everything queued so far without lingering, and wait until each row is acknowledged or has failed.

        Does not raise for rows that failed: their Delivery has the error. Blocks at most `timeout_ms`, by default
        delivery.timeout.ms + request.timeout.ms + 5 s. When it times out, no row fails: the rows stay queued.

        Args:
            until: the Delivery of a call; wait for its rows only. The other rows do not linger meanwhile either.

        Raises:
            KafkaTimeoutError: rows are left unsettled after that time.
            KafkaError (KAFKA_INTERNAL_ERROR, KAFKA_INTERRUPTED): the producer has ended, perhaps during the wait.
            IllegalStateError: called in a callback or in a forked child.
        """
        self._check_process()
        self._check_sender()
        if threading.current_thread() is self._thread:
            raise IllegalStateError("flush() in a callback would wait for its own thread (KIP-1118)")
        limit_ms = timeout_ms if timeout_ms is not None else self._settle_limit_ms()
        started_ns = self._clock.now_ns()
        deadline_ms = self._clock.now_ms() + limit_ms
        try:
            are_all_encoded = self._gatherer.encode_all(deadline_ms)
            left_ms = max(0, deadline_ms - self._clock.now_ms())
            is_enough = until.done if until else lambda: False
            if not self._accumulator.flush(left_ms, is_enough) or not are_all_encoded:
                raise KafkaTimeoutError(
                    f"flush: rows are neither acknowledged nor failed after {limit_ms} ms", condition="KAFKA_FLUSH_TIMEOUT"
                )
            self._check_sender()
        finally:
            self._metrics.flushed(started_ns)

    def _settle_limit_ms(self) -> int:
        return self._config.delivery_timeout_ms + self._config.request_timeout_ms + CLOSE_MARGIN_MS

    def close(self, timeout_ms: int | None = None) -> None:
        """Refuse new rows, wait until the queued ones are settled, end the Sender thread and close all connections.

        Blocks at most `timeout_ms` (default: as flush) and 5 s more. After `timeout_ms`, and at once with 0, rows that are not
        settled fail. An open transaction is aborted, if there is time and it is not prepared. In a callback, close acts as with 0
        and does not wait. A second call does nothing, nor does a call in a forked child: rows and connections are its parent's.
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
            if self._sender.failures.fatal is None:  # else the Sender fails the gathered records, with this error
                self._gatherer.encode_all(deadline_ms)
            self._sender.initiate_close()
        else:
            self._sender.force_close()
        # Not Thread.join: up to Python 3.12 it takes a thread for ended that was running when an interrupt ended the join.
        if not self._sender.end_signal.wait(self._clock, max(0, deadline_ms - self._clock.now_ms())):
            if limit_ms > 0:
                logger.warning("! closing %s forcefully: rows were left after %d ms", self.client_id, limit_ms)
            self._sender.force_close()
            self._sender.end_signal.wait(self._clock, CLOSE_MARGIN_MS)

    # METRICS: at any time, from any thread, without blocking; also after close()

    def metrics(self, *, since_start: bool = False) -> dict[str, float]:
        """Kafka's producer-metrics by their names, as of now; docs/metrics.md lists them.

        Times are in ms unless the name says ns; metadata-age is in seconds. Averages, maxima and rates cover the last
        metrics.num.samples windows of metrics.sample.window.ms, totals the producer's whole life. With `since_start` all of them
        cover the time since its start, or since the last `resume`. An average of nothing is 0.
        A row is counted before flush() or its Delivery reports it as settled, except at a forced close. While requests are being
        sent, some numbers may be one request ahead of others.
        """
        return self._metrics.snapshot(since_start=since_start)

    def topic_metrics(self, *, since_start: bool = False) -> dict[str, dict[str, float]]:
        """Kafka's producer-topic-metrics: topic -> name -> value, for topics that rows were sent to. As metrics()."""
        return self._metrics.topic_snapshots(since_start=since_start)

    def node_metrics(self, *, since_start: bool = False) -> dict[int, dict[str, float]]:
        """Kafka's producer-node-metrics: broker id -> name -> value; bootstrap servers have ids below zero. As metrics()."""
        return self._metrics.node_snapshots(since_start=since_start)

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KafkaProducer({self.client_id})"


# AVRO SERIALIZERS: only producers that have one load the modules


def _split_options(config: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The producer's own options, and those of Avro serializers and the registry, whose secrets are wrapped."""
    from spark_kafka_sink.config.registry_config import is_registry_key
    from spark_kafka_sink.config.serializer_config import SERIALIZER_KEYS, serializer_options

    producer_options = {key: value for key, value in config.items() if key not in SERIALIZER_KEYS and not is_registry_key(key)}
    return producer_options, serializer_options(config)
