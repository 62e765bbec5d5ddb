"""producer/producer_metrics.py: what a producer has counted is what a real broker has been sent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.integration.reading import Topic


def test_totals_equal_what_was_written(broker: LocalKafka, topic: Topic) -> None:
    rows, calls, name = 20_000, 10, topic(6)
    keys = pa.array([b"%d" % number for number in range(rows)], pa.binary())
    rng = np.random.default_rng(0)
    payload = pa.array([bytes(rng.integers(97, 101, 100, np.uint8)) for _ in range(rows)], pa.binary())
    options = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"}
    with KafkaProducer(options) as producer:
        deliveries = [producer.send_columns(name, key=keys, value=payload) for _ in range(calls)]
        producer.flush()
        metrics, topics = producer.metrics(), producer.topic_metrics()
    written = [each.result().offsets.values() for each in deliveries]
    assert sum(part.rows for parts in written for part in parts) == rows * calls
    sent_again = metrics["record-retry-total"]
    assert metrics["record-send-total"] == rows * calls + sent_again
    assert topics[name]["record-send-total"] == metrics["record-send-total"]
    if not sent_again:
        assert metrics["uncompressed-byte-total"] == sum(part.bytes for parts in written for part in parts)
    assert metrics["record-error-total"] == 0
    assert metrics["produce-response-total"] == metrics["produce-request-total"]
    assert 0.2 < metrics["compression-rate-avg"] < 0.9
    assert metrics["outgoing-byte-total"] > metrics["byte-total"] == topics[name]["byte-total"]
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert metrics["requests-in-flight"] <= 1  # metadata, perhaps
