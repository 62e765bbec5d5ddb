"""One table that each library writes, and the records that it becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.record_decoder import Record

WAIT_MS = 30_000
MOMENTS = [datetime(2024, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)]
EXPECTED = [
    Record(0, 1_704_164_645_678, b"k", b"v", (("h", b"1"), ("h", None))),
    Record(1, 1_704_153_600_000, None, None, ()),
]


def written(broker: FakeBroker, producer: KafkaProducer, table: Any, topic: str | None = None) -> list[Record]:
    delivery = producer.send_table(topic, table)
    producer.flush(WAIT_MS)
    assert delivery.result(0).acknowledged == delivery.rows
    return broker.records(topic or "one")
