"""Interceptors: plug-ins that see rows before they are sent, and learn the outcome of each.

Columns of `send_columns` pass through interceptors before their types, sizes and partitions are checked. Records of `send` pass
at once through interceptors that take records, and after gathering through interceptors of columns. plugin.py loads both.
Law: an Exception of an interceptor is logged, and the next interceptor gets the rows unchanged, as in Java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, BatchRows, RowsCallback
from spark_kafka_sink.producer.accumulator.row_metadata import metadata_of_rows
from spark_kafka_sink.producer.plugins.columns_as_records import as_row, checked_record, columns_of, copy_of, records_of, to_utf8
from spark_kafka_sink.producer.plugins.plugin import Method, Plugin, close_all, make_plugin
from spark_kafka_sink.producer.producer_record import (
    BatchMetadata,
    Callback,
    ProducerColumns,
    ProducerRecord,
    RecordMetadata,
    count_rows_by_topic,
)
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import NO_TIMESTAMP, NULL_LENGTH, RecordColumns
from spark_kafka_sink.records.layouts import contiguous

T = TypeVar("T")

logger = logging.getLogger(__name__)

_OPTION = "interceptor.classes"


class ProducerInterceptor(Protocol):
    """What `interceptor.classes` may name. A class need not inherit from it, and one of the methods is enough.

    `configure(config)` is called once, with the producer's options and the interceptor's own; `close()` once, after all other
    calls. Several threads may call at the same time. No method may wait for the producer.
    """

    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        """Rows before they are sent; returns as many rows, changed or not. Called on the thread that sends.

        For `send_columns` these are the caller's columns, and all of them may be changed, the topic too. Records of `send` come
        here when they have been gathered, unless there is an `on_send`: keys and values are bytes then, the thread may be the
        producer's own, and the topic must not be changed.
        """
        ...

    def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
        """The outcome of rows of one call in one batch, or of all rows of a call and topic that were never queued.

        Called on the producer's own thread, before callbacks and futures get the outcome. For rows that were never queued it is
        called on the thread that tried to queue them.
        """
        ...


class RecordInterceptor(Protocol):
    """The methods of Java's interceptors: `interceptor.classes` may also name a class that has only these.

    `configure` and `close` as above. Rows of `send_columns` are made into records and back, which takes microseconds per row
    instead of nanoseconds.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """A record before it is serialized; returns it, or another record to send instead."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """The outcome of one record. With an error, only the topic and perhaps the partition are set."""
        ...


@dataclass(frozen=True, slots=True)
class _Interceptor:
    """An interceptor's methods, None for each that it does not have."""

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
    def takes_gathered(self) -> bool:
        return self.on_send is None and self.on_send_columns is not None


class InterceptedRecord(ProducerRecord):
    """A record that has passed through the interceptors."""

    __slots__ = ()


class Interceptors:
    """The chain of interceptors, in the order of the configuration. Any thread may call it.

    Raises ConfigError when one cannot be loaded, created or configured, and closes the ones that were created before it.
    """

    def __init__(self, config: ProducerConfig) -> None:
        plugins: list[Plugin] = []
        self._chain: list[_Interceptor] = []
        try:
            for option_value in config.interceptor_classes:
                plugins.append(make_plugin(_OPTION, option_value))
                self._chain.append(_Interceptor.of(plugins[-1]))
                plugins[-1].configure(_OPTION, config.for_plugins())
        except BaseException:  # an interrupt too
            close_all(plugins)
            raise
        self.takes_gathered = any(each.takes_gathered for each in self._chain)
        self._must_report_records = any(
            each.on_acknowledgement is not None and each.on_batch_acknowledgement is None for each in self._chain
        )

    def close(self) -> None:
        """Close all interceptors, see close_all."""
        close_all(each.plugin for each in self._chain)

    # COLUMNS

    def send_columns(self, caller_columns: ProducerColumns, send: Callable[[ProducerColumns, InterceptedCall], T]) -> T:
        """Pass columns through the chain, then send the result. Reports an Exception of `send`, for rows without a callback."""
        columns = replace(caller_columns, **{name: contiguous(column) for name, column in caller_columns.columns().items()})
        for interceptor in self._chain:
            if interceptor.on_send_columns is not None:
                columns = self._intercept_columns(interceptor, interceptor.on_send_columns, columns)
            elif interceptor.on_send is not None:
                columns = _intercept_one_by_one(interceptor, interceptor.on_send, columns)
        call = InterceptedCall(self)
        try:
            return send(columns, call)
        except Exception as error:
            for topic, row_count in (count_rows_by_topic(columns) - call.queued_rows).items():
                self.report_failure(topic, NO_PARTITION, row_count, error)
            raise

    def on_send_gathered(self, gathered_columns: ProducerColumns) -> ProducerColumns:
        """Pass gathered records through the interceptors that did not get them one by one. The topic stays."""
        columns = gathered_columns
        for each in self._chain:
            if each.takes_gathered and each.on_send_columns is not None:
                columns = self._intercept_columns(each, each.on_send_columns, columns, gathered_columns.topic)
        return columns

    def _intercept_columns(
        self, interceptor: _Interceptor, method: Method, columns: ProducerColumns, topic: object = None
    ) -> ProducerColumns:
        """What an interceptor returns for these columns; the same columns if it fails."""
        try:
            result = method(columns)
            _check_columns(result, columns.rows)
            if topic is not None and result.topic != topic:
                raise ValueError(f"returned topic {result.topic} for records that were gathered for {topic}")
        except Exception:
            logger.warning("! %s.on_send_columns failed; the rows stay unchanged", interceptor.plugin.name, exc_info=True)
            return columns
        return result  # type: ignore[no-any-return]

    # SINGLE RECORDS

    def send(self, record: ProducerRecord, callback: Callback | None, send: Callable[[ProducerRecord, Callback | None], T]) -> T:
        """Pass a record through the chain, then send the result. Reports an Exception of `send` to the chain."""
        for interceptor in self._chain:
            if interceptor.on_send is None:
                continue
            try:
                record = checked_record(interceptor.on_send(copy_of(record)))
            except Exception:
                logger.warning("! %s.on_send failed; the record stays unchanged", interceptor.plugin.name, exc_info=True)
        result = InterceptedRecord(record.topic, record.value, record.key, record.partition, record.headers, record.timestamp)
        try:
            return send(result, callback)
        except Exception as error:
            self.report_failure(record.topic, NO_PARTITION if record.partition is None else record.partition, 1, error)
            raise

    # OUTCOMES

    def report_success(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int, columns: RecordColumns) -> None:
        """Report rows that are acknowledged. `columns`: those to which `batch_rows.positions` refer."""
        topic, partition = batch_rows.topic_partition
        batch = BatchMetadata(topic, partition, batch_rows.first_offset(base_offset), batch_rows.row_count, log_append_time_ms)
        records: list[RecordMetadata] = []
        if self._must_report_records:
            records = list(islice(metadata_of_rows(batch_rows, base_offset, log_append_time_ms, columns), batch_rows.row_count))
        self._report(batch, records, [None] * len(records), error=None)

    def report_failure(
        self, topic: str, partition: int, row_count: int, error: Exception, record_errors: Mapping[int, Exception] | None = None
    ) -> None:
        """Report rows that failed. `record_errors`: errors of single rows, by their index among these rows."""
        batch = BatchMetadata(topic, partition, UNKNOWN_OFFSET, row_count, NO_TIMESTAMP)
        count = row_count if self._must_report_records else 0
        records = [RecordMetadata(topic, partition, UNKNOWN_OFFSET, NO_TIMESTAMP, NULL_LENGTH, NULL_LENGTH)] * count
        self._report(batch, records, [(record_errors or {}).get(row, error) for row in range(count)], error)

    def report_unbatched(self, topic: str, partitions: npt.NDArray[np.int32], error: Exception) -> None:
        """Report gathered records that got into no batch. `partitions`: what each record names, or NO_PARTITION."""
        for partition, row_count in Counter(partitions.tolist()).items():
            self.report_failure(topic, partition, row_count, error)

    def _report(
        self,
        batch: BatchMetadata,
        records: Sequence[RecordMetadata],
        record_errors: Sequence[Exception | None],
        error: Exception | None,
    ) -> None:
        for interceptor in self._chain:
            if interceptor.on_batch_acknowledgement is not None:
                try:
                    interceptor.on_batch_acknowledgement(batch, error)
                except Exception:
                    logger.warning("! %s.on_batch_acknowledgement failed", interceptor.plugin.name, exc_info=True)
            elif interceptor.on_acknowledgement is not None:
                failures = FailureSummary(interceptor.plugin.name, "on_acknowledgement")
                for metadata, record_error in zip(records, record_errors, strict=True):
                    try:
                        interceptor.on_acknowledgement(metadata, record_error)
                    except Exception as failure:  # noqa: BLE001 - logged below
                        failures.add(failure)
                failures.log()


@dataclass(eq=False, slots=True)
class InterceptedCall:
    """One send_columns call: makes the callbacks of its rows, and counts the rows whose outcome these callbacks report."""

    interceptors: Interceptors
    queued_rows: Counter[str] = field(default_factory=Counter)  # topic -> rows that have a callback

    def make_callback(self, rows: TopicRows, columns: RecordColumns, delivery: RowsCallback) -> RowsCallback:
        """The callback of the rows that are queued next. `columns`: the columns of the whole call."""
        callback = InterceptorCallback(self.interceptors, rows.topic, columns.without_payloads(), delivery, self.queued_rows)
        self.queued_rows[rows.topic] += len(rows.positions)
        return callback


@dataclass(slots=True)
class InterceptorCallback:
    """Reports the outcome of rows in batches to interceptors, then to the rows' own callback. Law: rows are settled whatever an
    interceptor raises, SystemExit too."""

    interceptors: Interceptors
    topic: str
    columns: RecordColumns  # to which the rows' positions refer
    callback: RowsCallback
    queued_rows: Counter[str] = field(default_factory=Counter)

    def acknowledge(self, batch_rows: BatchRows, base_offset: int, log_append_time_ms: int) -> None:
        try:
            self.interceptors.report_success(batch_rows, base_offset, log_append_time_ms, self.columns)
        finally:
            self.callback.acknowledge(batch_rows, base_offset, log_append_time_ms)

    def fail(self, batch_rows: BatchRows, error: KafkaError, record_errors: Mapping[int, KafkaError]) -> None:
        try:
            self.interceptors.report_failure(
                *batch_rows.topic_partition, batch_rows.row_count, error, batch_rows.errors_of_rows(record_errors)
            )
        finally:
            self.callback.fail(batch_rows, error, record_errors)

    def fail_unbatched(self, positions: npt.NDArray[np.int32], error: KafkaError) -> None:
        """Rows in no batch are reported by `send_columns`, which raises the error, and by the bundle of gathered records."""
        self.queued_rows[self.topic] -= len(positions)
        self.callback.fail_unbatched(positions, error)


class FailureSummary:
    """Collects the failures of one method for several records, and logs them in one line."""

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


def _check_columns(result: object, row_count: int | None) -> None:
    """Raises TypeError or ValueError unless `result` is ProducerColumns with `row_count` rows."""
    if not isinstance(result, ProducerColumns):
        raise TypeError(f"returned {type(result).__name__}, not ProducerColumns")
    result.check_types()
    lengths = {name: len(column) for name, column in result.columns().items()}
    if set(lengths.values()) - {row_count} or (row_count and not lengths):
        raise ValueError(f"returned columns of {lengths} rows for {row_count} rows")


def _intercept_one_by_one(interceptor: _Interceptor, on_send: Method, columns: ProducerColumns) -> ProducerColumns:
    """Pass columns through an interceptor that takes records. Records for which it fails stay unchanged."""
    if not columns.rows:
        return columns
    records = records_of(columns, columns.rows)
    failures = FailureSummary(interceptor.plugin.name, "on_send")
    for row, record in enumerate(records):
        try:
            records[row] = as_row(on_send(copy_of(record)))
        except Exception as error:  # noqa: BLE001 - logged below
            failures.add(error)
            records[row] = replace(record, key=to_utf8(record.key), value=to_utf8(record.value))
    try:
        changed_columns = columns_of(records)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        failures.add(error)
        changed_columns = columns
    failures.log()
    return changed_columns
