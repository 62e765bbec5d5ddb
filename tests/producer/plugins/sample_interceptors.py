"""Interceptors for tests, and a chain and a producer with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import BatchMetadata, ProducerColumns, ProducerRecord, RecordMetadata
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import config


class Life:
    """Counts configure and close."""

    def __init__(self) -> None:
        self.config: Mapping[str, object] = {}
        self.configured = self.closed = 0

    def configure(self, configuration: Mapping[str, object]) -> None:
        self.config = configuration
        self.configured += 1

    def close(self) -> None:
        self.closed += 1


class Appends(Life):
    """Appends a text to each value, in columns, and notes what it hears. `fails` names the methods that raise."""

    def __init__(self, text: str = "", fails: str = "") -> None:
        super().__init__()
        self.text = text
        self.fails = fails
        self.inputs: list[ProducerColumns] = []
        self.heard: list[tuple[BatchMetadata, Exception | None]] = []

    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        self.inputs.append(columns)
        if "on_send" in self.fails:
            raise ZeroDivisionError("as planned")
        text = pa.scalar(self.text.encode(), columns.value.type)
        empty = pa.scalar(b"", columns.value.type)
        return replace(columns, value=pc.binary_join_element_wise(columns.value, text, empty))

    def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))
        if "on_acknowledgement" in self.fails:
            raise ZeroDivisionError("as planned")


class AppendsToRecords(Life):
    """The same, record by record."""

    def __init__(self, text: str = "", fails: str = "") -> None:
        super().__init__()
        self.text = text
        self.fails = fails
        self.inputs: list[ProducerRecord] = []
        self.heard: list[tuple[RecordMetadata, Exception | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.inputs.append(record)
        if "on_send" in self.fails:
            raise ZeroDivisionError("as planned")
        text = self.text if isinstance(record.value, str) else self.text.encode()
        return replace(record, value=record.value + text)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))
        if "on_acknowledgement" in self.fails:
            raise ZeroDivisionError("as planned")


class Changing:
    """Applies a function to whatever it sees."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def on_send_columns(self, columns: ProducerColumns) -> Any:
        return self._change(columns)


class ChangingRecords:
    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def on_send(self, record: ProducerRecord) -> Any:
        return self._change(record)


def chain(*interceptors: object) -> Interceptors:
    return Interceptors(config(interceptor_classes=list(interceptors)))


def values(columns: ProducerColumns) -> list[bytes | None]:
    assert columns.value is not None
    return columns.value.to_pylist()


def intercepted_producer(broker: FakeBroker, *interceptors: object, **options: Any) -> KafkaProducer:
    all_options = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10} | options
    plugins = {"interceptor.classes": list(interceptors)}
    return KafkaProducer({name.replace("_", "."): value for name, value in all_options.items()} | plugins)
