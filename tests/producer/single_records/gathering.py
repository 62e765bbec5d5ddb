"""A RecordGatherer with an accumulator, on a manual clock."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.hand_overs import HandOver
from spark_kafka_sink.producer.single_records.record_bundle import GatheredRecord, RecordBundle, RecordFuture
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer
from tests.producer.harness import TOPIC, Accumulation

MAX_BLOCK_MS = 30_000


class Gathering:
    """A gatherer whose bundles end up in a list."""

    def __init__(
        self, linger_ms: int = 100, encode: Callable[[HandOver, RecordBundle], None] | None = None, **options: object
    ) -> None:
        self.stage = Accumulation(linger_ms=linger_ms, max_block_ms=MAX_BLOCK_MS, **options)
        self.clock = self.stage.clock
        self.bundles: list[RecordBundle] = []
        self.may_wait = True
        self.gatherer = RecordGatherer(
            self.stage.config,
            self.clock,
            self.stage.accumulator,
            self.stage.hand_overs,
            encode or (lambda _, bundle: self.bundles.append(bundle)),
            may_wait=lambda: self.may_wait,
        )

    def encode_all(self) -> bool:
        return self.gatherer.encode_all(self.clock.now_ms() + MAX_BLOCK_MS)

    def add(self, value: bytes = b"v", topic: str = TOPIC, size: int = 100) -> RecordFuture:
        """As KafkaProducer.send: into the bundle that is open, else with all checks."""
        bundle = self.gatherer.bundles.get(topic)
        record = GatheredRecord(None, value, None, size, None)
        future = None if bundle is None else bundle.add(*record)
        if bundle is None or future is None:
            return self.gatherer.add(topic, Cluster(), record)
        if bundle.size_bytes >= self.gatherer.bundle_bytes:
            self.gatherer.encode_full(topic)
        return future

    @property
    def values(self) -> list[list[bytes | None]]:
        return [bundle.values for bundle in self.bundles]
