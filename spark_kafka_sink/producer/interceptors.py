"""Interceptors: plug-ins that see rows before they are sent, and hear what became of them.

Columns given to send_columns pass them as they are, before anything is checked; records given to `send` pass those that want
records at once, and those that want columns when they have been gathered. KafkaProducer calls in here only when
`interceptor.classes` is set. plugins.py loads them.
Law: an interceptor that fails is logged and passed over, as in Java: rows neither stop nor change because of its failure.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError, KafkaError, for_keeping
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, Part, RecordsOwner
from spark_kafka_sink.producer.plugins import Method, Plugin, make_plugin
from spark_kafka_sink.producer.producer_record import (
    BatchMetadata,
    ProducerColumns,
    ProducerRecord,
    RecordMetadata,
    whole_number,
)
from spark_kafka_sink.producer.record_gatherer import (
    HEADERS,
    Callback,
    GatheredPayload,
    GatheredRecords,
    RecordFuture,
    checked_headers,
)
from spark_kafka_sink.producer.serializers import as_bytes
from spark_kafka_sink.records.columns import RecordColumns, is_text, texts
from spark_kafka_sink.records.interleave import contiguous

logger = logging.getLogger(__name__)

UNKNOWN_PARTITION = -1
NO_TIMESTAMP = -1
_OPTION = "interceptor.classes"


class ProducerInterceptor(Protocol):
    """What `interceptor.classes` may name. There is no need to inherit from it, and any method may be left out.

    `configure(config)` is called once, with the producer's options and the interceptor's own; `close()` once, when nothing more
    will be heard. The producer's threads call at will, several at a time: nothing here may wait for the producer.
    """

    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        """Rows on their way in; returns as many, changed or not. Called on the thread that sends.

        Of `send_columns` they are the caller's columns, and all may be changed, the topic too. Records sent one by one are seen
        here when they have been gathered (keys and values are bytes then, perhaps on the producer's own thread), unless there is
        an `on_send`; their topic may not be changed any more.
        """
        ...

    def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
        """What became of a run of rows: once for each batch, or for all rows of a call and topic that never came into one.

        Called on the producer's own thread, before callbacks and futures are told; for rows that were never queued on the
        thread that sent them.
        """
        ...


class RecordInterceptor(Protocol):
    """Java's way: `interceptor.classes` may also name a class with these methods, and `configure` and `close`, alone.

    Rows sent as columns are then made into records and back: some microseconds a row, where columns cost nanoseconds.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """A record on its way in, before it is serialized; returns it, or another to send in its place."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """What became of one record. With an error, nothing but the topic and perhaps the partition is known of it."""
        ...


@dataclass(frozen=True, slots=True)
class _Interceptor:
    """An interceptor's methods, None where it has none."""

    plugin: Plugin
    on_send: Method | None
    on_send_columns: Method | None
    on_acknowledgement: Method | None
    on_batch_acknowledgement: Method | None

    @classmethod
    def of(cls, plugin: Plugin) -> _Interceptor:
        names = ("on_send", "on_send_columns", "on_acknowledgement", "on_batch_acknowledgement")
        methods = [plugin.method(name) for name in names]
        if not any(methods):
            raise ConfigError(f"{_OPTION}={plugin.name} has none of the methods {', '.join(names)}")
        return cls(plugin, *methods)

    @property
    def wants_gathered(self) -> bool:
        return self.on_send is None and self.on_send_columns is not None


class InterceptedRecord(ProducerRecord):
    """A record that the interceptors have seen."""

    __slots__ = ()


class Interceptors:
    """The chain of them, in the order in which they are configured. Any thread.

    Raises ConfigError when one cannot be loaded, made or configured; all that had been made are closed then.
    """

    def __init__(self, config: ProducerConfig) -> None:
        plugins: list[Plugin] = []
        self._chain: list[_Interceptor] = []
        try:
            for wanted in config.interceptor_classes:
                plugins.append(make_plugin(_OPTION, wanted))
                self._chain.append(_Interceptor.of(plugins[-1]))
                plugins[-1].configure(_OPTION, config.for_plugins())
        except ConfigError:
            for plugin in plugins:
                plugin.close()
            raise
        self.any_wants_gathered = any(each.wants_gathered for each in self._chain)
        self._any_hears_records = any(
            each.on_acknowledgement is not None and each.on_batch_acknowledgement is None for each in self._chain
        )

    @classmethod
    def of(cls, config: ProducerConfig) -> Interceptors | None:
        """None when there are none."""
        return cls(config) if config.interceptor_classes else None

    def close(self) -> None:
        """Never raises."""
        for each in self._chain:
            each.plugin.close()

    # COLUMNS

    def send_columns(self, given: ProducerColumns, send: Callable[[ProducerColumns, Watch], Any]) -> Any:
        """Let the chain see columns, then send what comes out. Whatever `send` raises is told to the chain, for each row."""
        columns = replace(given, **{name: contiguous(column) for name, column in given.columns().items()})
        for each in self._chain:
            if each.on_send_columns is not None:
                columns = self._next(each, each.on_send_columns, columns)
            elif each.on_send is not None:
                columns = _one_by_one(each, each.on_send, columns)
        watch = Watch(self)
        try:
            return send(columns, watch)
        except Exception as error:
            self._tell_of_rows_left(columns, watch, error)
            raise

    def on_send_gathered(self, given: ProducerColumns) -> ProducerColumns:
        """Let those see gathered records that did not see them one by one. The topic stays."""
        columns = given
        for each in self._chain:
            if each.wants_gathered and each.on_send_columns is not None:
                columns = self._next(each, each.on_send_columns, columns, given.topic)
        return columns

    def _next(self, each: _Interceptor, method: Method, columns: ProducerColumns, topic: object = None) -> ProducerColumns:
        """What an interceptor makes of columns; the same columns if it fails."""
        try:
            found = method(columns)
            _check_columns(found, columns.rows)
            if topic is not None and found.topic != topic:
                raise ValueError(f"returned topic {found.topic} for records that were gathered for {topic}")
        except Exception:
            logger.warning("! %s.on_send_columns failed and is passed over", each.plugin.name, exc_info=True)
            return columns
        return found  # type: ignore[no-any-return]

    def _tell_of_rows_left(self, columns: ProducerColumns, watch: Watch, error: Exception) -> None:
        """The rows of a call that failed, less those that were queued before."""
        topics = Counter([columns.topic] * (columns.rows or 0) if isinstance(columns.topic, str) else texts(columns.topic))
        for topic, rows in (topics - watch.queued).items():
            self.tell_failure(topic or "", UNKNOWN_PARTITION, rows, error)

    # SINGLE RECORDS

    def send(
        self, record: ProducerRecord, callback: Callback | None, send: Callable[[ProducerRecord, Callback | None], RecordFuture]
    ) -> RecordFuture:
        """Let the chain see a record, then send what comes out. What `send` raises is told to the chain."""
        for each in self._chain:
            if each.on_send is None:
                continue
            try:
                record = _checked(each.on_send(_copied(record)))
            except Exception:
                logger.warning("! %s.on_send failed and is passed over", each.plugin.name, exc_info=True)
        seen = InterceptedRecord(record.topic, record.value, record.key, record.partition, record.headers, record.timestamp)
        try:
            return send(seen, callback)
        except Exception as error:
            self.tell_failure(record.topic, UNKNOWN_PARTITION if record.partition is None else record.partition, 1, error)
            raise

    def new_chunk(self, topic: str, cluster: Cluster, clock: Clock) -> GatheredRecords:
        """A chunk of single records whose fate the chain hears."""
        return _InterceptedRecords(topic, cluster, clock, self)

    # OUTCOMES

    def tell_success(self, part: Part, base_offset: int, log_append_time_ms: int, columns: RecordColumns) -> None:
        """`columns` are those in which `part.rows` are positions."""
        topic, partition = part.topic_partition
        first = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + part.first_delta
        batch = BatchMetadata(topic, partition, first, part.row_count, log_append_time_ms)
        records = _metadata_of_records(part, first, log_append_time_ms, columns) if self._any_hears_records else []
        self._tell(batch, records, [None] * len(records), None)

    def tell_failure(
        self, topic: str, partition: int, rows: int, error: Exception, record_errors: Mapping[int, Exception] | None = None
    ) -> None:
        """`record_errors`: the rows, counted from 0, that have an error of their own."""
        batch = BatchMetadata(topic, partition, UNKNOWN_OFFSET, rows, NO_TIMESTAMP)
        count = rows if self._any_hears_records else 0
        records = [RecordMetadata(topic, partition, UNKNOWN_OFFSET, NO_TIMESTAMP, -1, -1)] * count
        self._tell(batch, records, [(record_errors or {}).get(row, error) for row in range(count)], error)

    def _tell(
        self,
        batch: BatchMetadata,
        records: Sequence[RecordMetadata],
        record_errors: Sequence[Exception | None],
        error: Exception | None,
    ) -> None:
        for each in self._chain:
            if each.on_batch_acknowledgement is not None:
                try:
                    each.on_batch_acknowledgement(batch, error)
                except Exception:
                    logger.warning("! %s.on_batch_acknowledgement failed", each.plugin.name, exc_info=True)
            elif each.on_acknowledgement is not None:
                failures = Failures(each.plugin.name, "on_acknowledgement")
                for metadata, record_error in zip(records, record_errors, strict=True):
                    try:
                        each.on_acknowledgement(metadata, record_error)
                    except Exception as raised:  # noqa: BLE001 - logged below
                        failures.add(raised)
                failures.log()


class Failures:
    """Failures of one method over the rows of a chunk: one line in the log, not one per row."""

    def __init__(self, plugin: str, method: str) -> None:
        self._where = f"{plugin}.{method}"
        self._count = 0
        self._first: Exception | None = None

    def add(self, error: Exception) -> None:
        self._first = self._first or error
        self._count += 1

    def log(self) -> None:
        if self._first is not None:
            logger.warning("! %s failed for %d records; the first:", self._where, self._count, exc_info=self._first)


class Watch:
    """Over one send_columns call: makes the owners by whom the chain hears of its rows, and counts the rows that have one."""

    def __init__(self, interceptors: Interceptors) -> None:
        self._interceptors = interceptors
        self._columns: RecordColumns | None = None
        self.queued: Counter[str] = Counter()  # rows by topic whose owner is told of them

    def begin(self, columns: RecordColumns) -> None:
        """The whole call's columns as they will be sent. Lengths and timestamps are kept, no payload."""
        self._columns = replace(columns, key=None, value=None, headers=None)

    def owner(self, topic: str, rows: int, delivery: RecordsOwner) -> RecordsOwner:
        """For the next rows to be queued."""
        assert self._columns is not None
        self.queued[topic] += rows
        return _Owner(self._interceptors, topic, self._columns, delivery)


@dataclass(slots=True)
class _Owner:
    """Tells the chain, then the owner itself."""

    interceptors: Interceptors
    topic: str
    columns: RecordColumns
    delivery: RecordsOwner

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        try:
            self.interceptors.tell_success(part, base_offset, log_append_time_ms, self.columns)
        finally:  # SystemExit, by sys.exit(), too must not keep the rows from being settled
            self.delivery.acknowledge(part, base_offset, log_append_time_ms)

    def fail(self, part: Part, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        try:
            self.interceptors.tell_failure(*part.topic_partition, part.row_count, error, _by_row(part, record_errors))
        finally:
            self.delivery.fail(part, error, record_errors)

    def abandon(self, rows: npt.NDArray[np.int32], error: KafkaError) -> None:
        error = for_keeping(error)
        try:
            self.interceptors.tell_failure(self.topic, UNKNOWN_PARTITION, len(rows), error)
        finally:
            self.delivery.abandon(rows, error)


class _InterceptedRecords(GatheredRecords):
    """Tells the chain, then the records."""

    def __init__(self, topic: str, cluster: Cluster, clock: Clock, interceptors: Interceptors) -> None:
        super().__init__(topic, cluster, clock)
        self._interceptors = interceptors

    def acknowledge(self, part: Part, base_offset: int, log_append_time_ms: int) -> None:
        assert self.columns is not None
        try:
            self._interceptors.tell_success(part, base_offset, log_append_time_ms, self.columns)
        finally:
            super().acknowledge(part, base_offset, log_append_time_ms)

    def fail(self, part: Part, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        try:
            self._interceptors.tell_failure(*part.topic_partition, part.row_count, error, _by_row(part, record_errors))
        finally:
            super().fail(part, error, record_errors)

    def abandon(self, rows: npt.NDArray[np.int32], error: KafkaError) -> None:
        error = for_keeping(error)
        try:
            explicit = self.explicit_partitions(UNKNOWN_PARTITION)[rows]
            for partition, count in Counter(explicit.tolist()).items():
                self._interceptors.tell_failure(self.topic, partition, count, error)
        finally:
            super().abandon(rows, error)


def _by_row(part: Part, record_errors: Mapping[int, KafkaError]) -> dict[int, Exception]:
    return {index - part.first_delta: error for index, error in record_errors.items()}


def _metadata_of_records(part: Part, first: int, log_append_time_ms: int, columns: RecordColumns) -> list[RecordMetadata]:
    topic, partition = part.topic_partition
    count = part.row_count
    offsets = [first] * count if first == UNKNOWN_OFFSET else range(first, first + count)
    times, key_sizes, value_sizes = (
        np.broadcast_to(np.asarray(column), columns.rows)[part.rows].tolist()
        for column in (columns.timestamps, columns.key_lengths, columns.value_lengths)
    )
    if log_append_time_ms != NO_TIMESTAMP:
        times = [log_append_time_ms] * count
    fields = zip([topic] * count, [partition] * count, offsets, times, key_sizes, value_sizes, strict=True)
    return list(map(RecordMetadata._make, fields))


# CHECKS AND CONVERSIONS


def _check_columns(found: object, rows: int | None) -> None:
    """Raises TypeError or ValueError: that is no answer for so many rows."""
    if not isinstance(found, ProducerColumns):
        raise TypeError(f"returned {type(found).__name__}, not ProducerColumns")
    found.check_types()
    lengths = {name: len(column) for name, column in found.columns().items()}
    if set(lengths.values()) - {rows} or (rows and not lengths):
        raise ValueError(f"returned columns of {lengths} rows for {rows} rows")


def _checked(found: object) -> ProducerRecord:
    if not isinstance(found, ProducerRecord):
        raise TypeError(f"returned {type(found).__name__}, not a ProducerRecord")
    return found


def gathered_columns(topic: str, given: GatheredPayload, explicit: npt.NDArray[np.int32]) -> ProducerColumns:
    """Records that were sent one by one, as their interceptors see them. `explicit` is negative where they name no partition."""
    partition = pa.array(explicit, mask=explicit < 0)
    return ProducerColumns(topic, given.value, given.key, partition, given.headers, pa.array(given.timestamps))


def _one_by_one(each: _Interceptor, on_send: Method, columns: ProducerColumns) -> ProducerColumns:
    """Columns through an interceptor that takes records. A record at which it fails goes on as it was."""
    if not columns.rows:
        return columns
    records = _records_of(columns, columns.rows)
    failures = Failures(each.plugin.name, "on_send")
    for row, record in enumerate(records):
        try:
            records[row] = _as_row(on_send(_copied(record)))
        except Exception as error:  # noqa: BLE001 - logged below
            failures.add(error)
            records[row] = replace(record, key=_encoded(record.key), value=_encoded(record.value))
    try:
        found = _columns_of(records)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        failures.add(error)
        found = columns  # what is wrong with them, if anything, the producer tells in its own words
    failures.log()
    return found


def _records_of(columns: ProducerColumns, rows: int) -> list[ProducerRecord]:
    def cells(column: pa.Array | None) -> list[Any]:
        return [None] * rows if column is None else _cells(column)

    topics = [columns.topic] * rows if isinstance(columns.topic, str) else texts(columns.topic)
    return [
        ProducerRecord(topic, value, key, partition, _pairs(headers), timestamp)
        for topic, value, key, partition, headers, timestamp in zip(
            topics,
            *map(cells, (columns.value, columns.key, columns.partition, columns.headers, columns.timestamp)),
            strict=True,
        )
    ]


def _cells(column: pa.Array) -> list[Any]:
    """A text that is not UTF-8 comes as bytes, and as the key of a header with its bytes escaped as surrogates."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        cells = column.cast(_with_bytes_for_text(column.type)).to_pylist()
        return [_decoded(cell) for cell in cells] if is_text(column.type) else cells


def _decoded(cell: bytes | None) -> str | bytes | None:
    try:
        return cell if cell is None else cell.decode()
    except UnicodeDecodeError:
        return cell


def _with_bytes_for_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(_with_bytes_for_text(kind.key_type), _with_bytes_for_text(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        entry = _with_bytes_for_text(kind.value_type)
        return pa.list_(entry) if pa.types.is_list(kind) else pa.large_list(entry)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_bytes_for_text(field.type)) for field in kind])
    return pa.large_binary() if is_text(kind) else kind


def _pairs(headers: Sequence[Any] | None) -> tuple[tuple[str, bytes | None], ...]:
    """A cell of a headers column; a list's entries come as dictionaries, a map's as pairs."""
    pairs = (entry.values() if isinstance(entry, dict) else entry for entry in headers or ())
    return tuple((_header_key(key), None if value is None else as_bytes(value)) for key, value in pairs)


def _header_key(key: Any) -> Any:
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key


def _as_row(found: object) -> ProducerRecord:
    """A record that can be a row: its key and value are bytes. Raises when they cannot be."""
    record = _checked(found)
    if not isinstance(record.topic, str | None):
        raise TypeError("returned a record whose topic is no str")
    key, value, partition, timestamp = record.key, record.value, record.partition, record.timestamp
    return ProducerRecord(
        record.topic,
        value if value is None else as_bytes(value),
        key if key is None else as_bytes(key),
        partition if partition is None else whole_number(partition, "partition"),
        checked_headers(record.headers),
        timestamp if timestamp is None else whole_number(timestamp, "timestamp"),
    )


def _copied(record: ProducerRecord) -> ProducerRecord:
    """So that one that fails half-way has changed nothing. A third of the time of dataclasses.replace."""
    return ProducerRecord(record.topic, record.value, record.key, record.partition, record.headers, record.timestamp)


def _encoded(cell: Any) -> Any:
    return cell.encode() if isinstance(cell, str) else cell


def _columns_of(records: Sequence[ProducerRecord]) -> ProducerColumns:
    def column(name: str, kind: pa.DataType) -> pa.Array | None:
        cells = [getattr(record, name) for record in records]
        return None if all(cell is None for cell in cells) else pa.array(cells, kind)

    topics = {record.topic for record in records}
    headers = [record.headers for record in records]
    return ProducerColumns(
        topics.pop() if len(topics) == 1 and None not in topics else pa.array([record.topic for record in records], pa.string()),
        value=pa.array([record.value for record in records], pa.large_binary()),
        key=column("key", pa.large_binary()),
        partition=column("partition", pa.int64()),
        headers=_headers_of(headers) if any(headers) else None,
        timestamp=column("timestamp", pa.int64()),
    )


def _headers_of(rows: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    """A column of type HEADERS. Its keys are made as bytes, as some may be no UTF-8, and are text by the same buffers."""
    octets = [[(key.encode("utf-8", "surrogateescape"), value) for key, value in headers] for headers in rows]
    column = pa.array(octets, pa.map_(pa.binary(), pa.binary()))
    keys = pa.Array.from_buffers(HEADERS.key_type, len(column.keys), column.keys.buffers())
    return pa.MapArray.from_arrays(column.offsets, keys, column.items)
