"""confluent_writer.py: what our sink is compared with loses no row, and fails as a sink does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from tests.benchmarks.confluent_writer import ConfluentWriter, settings

BATCHES = [pa.RecordBatch.from_pydict({"key": [b"a", b"b"], "value": [b"1", b"2"]}) for _ in range(3)]


class FullProducer:
    """Refuses every second record until it is polled."""

    delivered: list[tuple[str, bytes, bytes]]

    def __init__(self, options: dict[str, Any]) -> None:
        self._report: Callable[[object, object], None] = options["on_delivery"]
        self._full = False
        type(self).delivered = []

    def produce(self, topic: str, value: bytes, key: bytes) -> None:
        if self._full:
            raise BufferError
        self._full = len(self.delivered) % 2 == 0
        self.delivered.append((topic, key, value))

    def poll(self, timeout: float) -> None:
        self._full = self._full and not timeout

    def flush(self, _: float) -> int:
        return 0


class FailingProducer(FullProducer):
    def flush(self, _: float) -> int:
        self._report("Broker: Message size too large", None)
        return 0


class WaitingProducer(FullProducer):
    def flush(self, _: float) -> int:
        return 4


def write(monkeypatch: pytest.MonkeyPatch, producer: type) -> list[pa.RecordBatch]:
    monkeypatch.setattr(confluent_kafka, "Producer", producer)
    return list(ConfluentWriter("orders", {})(iter(BATCHES)))


def test_a_row_that_finds_the_queue_full_is_written_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = write(monkeypatch, FullProducer)
    assert FullProducer.delivered == [("orders", b"a", b"1"), ("orders", b"b", b"2")] * 3
    assert result.to_pydict() == {"rows": [6]}


def test_a_delivery_that_fails_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="orders: rows that could not be written: 1, the first because of: Broker: Message"):
        write(monkeypatch, FailingProducer)


def test_rows_that_are_not_acknowledged_in_time_fail_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match="4 of 6 rows are not acknowledged"):
        write(monkeypatch, WaitingProducer)


def test_librdkafka_takes_the_settings_of_our_sink() -> None:
    problems: list[str] = []
    options = {"kafka.bootstrap.servers": "localhost:1", "topic": "orders", "kafka.compression.type": "lz4"}
    used = settings("localhost:1", SinkOptions.read(options, problems).producer)
    assert not problems
    assert (used["linger.ms"], used["batch.size"], used["compression.type"]) == (200, 524_288, "lz4")
    confluent_kafka.Producer(used)  # raises when it does not know one, or when two contradict
