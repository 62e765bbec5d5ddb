"""What an application calls, one call after the other, while it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import BatchMetadata, ProducerColumns
from tests.fakes.fake_broker import FakeBroker
from tests.producer.interrupted_application import LIMIT_MS, SPOILED, InterruptedApplication
from tests.producer.transactions.transactional_brokers import producer_of

Story = Sequence[Callable[[InterruptedApplication], None]]

A = InterruptedApplication
OPTIONS: dict[str, object] = {
    "max_block_ms": LIMIT_MS,
    "buffer_memory": 2 * 1024 * 1024,
    "linger_ms": 600_000,
    "delivery_timeout_ms": 700_000,
}


def send_later(application: InterruptedApplication) -> None:
    application.send(headers=[("h", b"1")], timestamp=5)


STORIES: dict[str, Story] = {
    "single records": (A.send, A.send, send_later, A.flush, A.send_full, A.send, A.flush, A.results, A.send, A.close),
    "spoiled records": (A.send, A.send_spoiled, A.send_spoiled, A.flush, A.send_spoiled, A.send_full, A.send_spoiled, A.close),
    "columns": (A.send, A.send_columns, A.flush, A.send_columns, A.flush, A.results, A.send_columns, A.close),
    "tables": (A.send, A.send_table, A.flush, A.send_table, A.send_large_table, A.flush, A.results, A.send_table, A.close),
    "memory": (A.send, A.send_large_columns, A.flush, A.results, A.close),
    "commits": (A.init, A.begin, A.send, A.send_columns, A.send_offsets, A.commit, A.begin, A.send, A.commit, A.close),
    "tables in transactions": (A.init, A.begin, A.send_table, A.commit, A.begin, A.send_table, A.abort, A.close),
    "aborts": (A.init, A.begin, A.send, A.send_columns, A.abort, A.begin, A.send, A.flush, A.abort, A.begin, A.send, A.close),
    "prepares": (A.init, A.begin, A.send, A.prepare, A.commit, A.begin, A.send_columns, A.prepare, A.abort, A.close),
}


class Spoils:
    """An interceptor that sends some records to a partition which does not exist."""

    def __init__(self) -> None:
        self.heard = 0  # rows

    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        spoiled = pc.ends_with(columns.value, SPOILED)
        return replace(columns, partition=pc.if_else(spoiled, pa.scalar(9, pa.int32()), None))

    def on_batch_acknowledgement(self, metadata: BatchMetadata, _: object) -> None:
        self.heard += metadata.rows


def producer_for(broker: FakeBroker, story: str, name: str) -> KafkaProducer:
    calls = STORIES[story]
    more: dict[str, object] = {"interceptor_classes": [Spoils()]} if A.send_spoiled in calls else {}
    return producer_of(broker, transactional_id=name if A.init in calls else None, **OPTIONS, **more)


def look_at(broker: FakeBroker, application: InterruptedApplication) -> None:
    """Compare what the application knows with what its brokers have, when it has closed its producer."""
    broker.transactions.write_markers()
    prefix = application.name.encode() + b"-"
    written, committed = (
        [value for topic in ("single", "orders") for value in read(topic) if value is not None and value.startswith(prefix)]
        for read in (broker.values, broker.committed_values)
    )
    application.check(written, committed)
