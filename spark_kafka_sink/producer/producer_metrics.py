"""What a producer has done so far, under Kafka's metric names.

The Sender records each batch sent, request, answer, retry and failure. Callers record rows that fail early, waits for memory and
metadata, flushes and transactional calls. Any thread may read, see metrics.py. An outcome is counted before the row's Delivery
gets it (except at a forced close), so after flush() or result() the numbers include these rows.
The tables below and in network_metrics.py declare every metric: name, Stat and meaning. tests/documents.py prints them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.metrics import (
    Samples,
    Stat,
    average,
    average_and_max,
    count,
    gauge,
    markdown_rows,
    meter,
    snapshot,
    time_and_share,
    total,
    total_ms,
)
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_metrics import NETWORK_METRICS, NODE_METRICS, NetworkMetrics
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod
from spark_kafka_sink.records.record_batch import BATCH_HEADER_BYTES

SENDER_METRICS = [
    *meter("record-send", "records_per_request", "Records sent; one that is sent again counts again."),
    *meter("record-retry", "retries", "Records that are to be sent again, because of an error that may pass."),
    *meter("record-error", "errors", "Records that failed for good, those that send refused included."),
    *average("records-per-request-avg", "records_per_request", "Records of a Produce request."),
    *average_and_max("record-size", "record_sizes", "Bytes of a record, before compression."),
    *average_and_max("batch-size", "batch_sizes", "Bytes of a batch, as sent."),
    *average("compression-rate-avg", "compression", "A batch's records as sent, in proportion to their size uncompressed."),
    *meter("batch-split", "splits", "Batches that a broker found too large and that were split."),
    *average_and_max("record-queue-time", "queue_times", "Milliseconds from a batch's first record until it is sent."),
    *average_and_max("request-latency", "latency", "Milliseconds from making a Produce request to its response."),
    *gauge("requests-in-flight", "Requests that wait for a response now."),
    *gauge("metadata-age", "Seconds since brokers last answered with the metadata of all topics in use."),
]
CALLER_METRICS = [
    *total("flush-time-ns-total", "flush_times", "Nanoseconds that callers have spent in flush()."),
    *total("metadata-wait-time-ns-total", "metadata_waits", "Nanoseconds that callers have waited for metadata."),
    *total("txn-init-time-ns-total", "txn_init_times", "Nanoseconds that callers have spent in init_transactions()."),
    *total("txn-begin-time-ns-total", "txn_begin_times", "Nanoseconds that callers have spent in begin_transaction()."),
    *total("txn-send-offsets-time-ns-total", "txn_offsets_times", "The same in send_offsets_to_transaction()."),
    *total("txn-commit-time-ns-total", "txn_commit_times", "The same in commit_transaction() and prepare_transaction()."),
    *total("txn-abort-time-ns-total", "txn_abort_times", "The same in abort_transaction()."),
    *gauge("waiting-threads", "Callers that wait for memory now."),
    *gauge("buffer-total-bytes", "Memory for records, `buffer.memory` in whole blocks."),
    *gauge("buffer-available-bytes", "The part of it that is free."),
    *time_and_share("bufferpool-wait", "pool_waits", "Nanoseconds that callers have waited for memory; and as a part of time."),
    *meter("buffer-exhausted", "pool_exhausted", "Waits for memory that `max.block.ms` ended."),
]
# Sums and counts behind averages, to compute averages over several producers; and two sums that Kafka has only by topic.
OWN_METRICS = [
    *total("byte-total", "batch_sizes", "Bytes of batches, as sent."),
    *count("batch-send-total", "batch_sizes", "Batches sent."),
    *total("uncompressed-byte-total", "record_sizes", "Bytes of records sent, before compression."),
    *total("compression-rate-total", "compression", "Sum behind `compression-rate-avg`, over batches."),
    *total("record-queue-time-total", "queue_times", "Sum behind `record-queue-time-avg`, over batches."),
    *count("produce-request-total", "records_per_request", "Produce requests sent."),
    *count("produce-response-total", "latency", "Their responses."),
    *total("request-latency-total", "latency", "Sum behind `request-latency-avg`, over these."),
    *total_ms("bufferpool-wait-time-ms-total", "pool_waits", "`bufferpool-wait-time-ns-total` in milliseconds."),
]
TOPIC_METRICS = [
    *meter("record-send", "records", "Records sent; one that is sent again counts again."),
    *meter("byte", "sizes", "Bytes of batches, as sent."),
    *average("compression-rate", "compression", "A batch's records as sent, in proportion to their size uncompressed."),
    *meter("record-retry", "retries", "Records that are to be sent again, because of an error that may pass."),
    *meter("record-error", "errors", "Records that failed for good, since something was sent to the topic."),
]
SECTIONS = {
    "`metrics()`: Kafka's producer-metrics": [*SENDER_METRICS, *CALLER_METRICS, *NETWORK_METRICS],
    "`metrics()`: more of our own": OWN_METRICS,
    "`topic_metrics()`: Kafka's producer-topic-metrics, by topic": TOPIC_METRICS,
    "`node_metrics()`: Kafka's producer-node-metrics, by broker id (below zero: bootstrap servers)": NODE_METRICS,
}


def markdown_tables() -> str:
    """All tables as markdown, for docs/metrics.md."""
    rows = ([f"| {heading} | |", "|---|---|", *markdown_rows(metrics)] for heading, metrics in SECTIONS.items())
    return "\n\n".join(map("\n".join, rows))


class _TopicStats:
    """The Stats of one topic."""

    def __init__(self, samples: Samples) -> None:
        self.records = samples.stat()
        self.sizes = samples.stat()
        self.compression = samples.stat()
        self.retries = samples.stat()
        self.errors = samples.stat()


class ProducerMetrics:
    """Counts for one producer, its topics and its nodes."""

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        self._clock = clock
        self.samples = Samples(config.metrics_sample_window_ms, config.metrics_num_samples, clock.now_ms())
        self.network = NetworkMetrics(self.samples)
        self._gauges: dict[str, Callable[[], float]] = {}  # set by `add_gauges`, as are pool_waits and pool_exhausted
        self.pool_waits, self.pool_exhausted = Stat(), Stat()

        # Sender only.
        self.records_per_request = self.samples.stat()
        self.batch_sizes = self.samples.stat()
        self.record_sizes = self.samples.stat()
        self.compression = self.samples.stat()
        self.queue_times = self.samples.stat()  # ms
        self.latency = self.samples.stat()  # ms
        self.retries = self.samples.stat()
        self.splits = self.samples.stat()
        self._topics: dict[str, _TopicStats] = {}  # the Sender adds to it; nothing is removed

        self._lock = threading.Lock()  # guards what is below, and the topics' errors; taken by Sender and callers, rarely
        self.errors = self.samples.stat()
        self.flush_times = self.samples.stat()  # ns
        self.metadata_waits = self.samples.stat()  # ns
        self.txn_init_times = self.samples.stat()  # ns, as the four below
        self.txn_begin_times = self.samples.stat()
        self.txn_offsets_times = self.samples.stat()
        self.txn_commit_times = self.samples.stat()
        self.txn_abort_times = self.samples.stat()
        self._txn_times = {
            CalledMethod.USE_ID: self.txn_init_times,
            CalledMethod.INIT: self.txn_init_times,
            CalledMethod.BEGIN: self.txn_begin_times,
            CalledMethod.SEND_OFFSETS: self.txn_offsets_times,
            CalledMethod.PREPARE: self.txn_commit_times,
            CalledMethod.COMMIT: self.txn_commit_times,
            CalledMethod.ABORT: self.txn_abort_times,
        }

    def add_gauges(self, pool: BufferPool, metadata: Metadata, requests_in_flight: Callable[[], float]) -> None:
        """Set where snapshots read the pool's statistics and the gauges. Called once, before any other thread uses this."""
        created_ms = self._clock.now_ms()
        self.pool_waits = self.samples.watch(pool.waits)
        self.pool_exhausted = self.samples.watch(pool.timeouts)
        self._gauges = {
            "requests-in-flight": requests_in_flight,
            "metadata-age": lambda: (self._clock.now_ms() - (metadata.last_successful_refresh_ms() or created_ms)) / 1000,
            "waiting-threads": pool.waiter_count,
            "buffer-total-bytes": lambda: pool.total_memory,
            "buffer-available-bytes": lambda: pool.available_memory,
        }

    # RECORDING: Sender

    def request_sent(self, batches: Sequence[ProducerBatch]) -> None:
        """Record the batches of one Produce request. Adds up in local variables, which cost less than attributes."""
        record_count = record_bytes = sent_bytes = max_batch_bytes = queue_ms = max_queue_ms = 0
        ratio_sum = 0.0
        row_sizes = []
        for batch in batches:
            batch_bytes, raw_bytes, batch_records = batch.size_bytes, batch.record_bytes, batch.record_count
            waited_ms = batch.drained_ms - batch.created_ms
            ratio = (batch_bytes - BATCH_HEADER_BYTES) / raw_bytes
            record_count += batch_records
            record_bytes += raw_bytes
            sent_bytes += batch_bytes
            ratio_sum += ratio
            queue_ms += waited_ms
            if batch_bytes > max_batch_bytes:
                max_batch_bytes = batch_bytes
            if waited_ms > max_queue_ms:
                max_queue_ms = waited_ms
            row_sizes += [batch_rows.sizes for batch_rows in batch.rows_by_call]
            topic = batch.topic_partition.topic
            topic_stats = self._topics.get(topic) or self._make_topic_stats(topic)
            topic_stats.records.total += batch_records
            topic_stats.sizes.total += batch_bytes
            topic_stats.compression.count += 1
            topic_stats.compression.total += ratio
        self.records_per_request.record(record_count)
        self.batch_sizes.add(len(batches), sent_bytes, max_batch_bytes)
        self.compression.add(len(batches), ratio_sum)
        self.queue_times.add(len(batches), queue_ms, max_queue_ms)
        # Once for all rows of the request: once per batch would take longer than everything above.
        self.record_sizes.add(record_count, record_bytes, int(np.concatenate(row_sizes).max()))

    def _make_topic_stats(self, name: str) -> _TopicStats:
        topic_stats = self._topics[name] = _TopicStats(self.samples)
        return topic_stats

    def request_answered(self, node_id: int, latency_ms: int) -> None:
        self.latency.record(latency_ms)
        self.network.node(node_id).latency.record(latency_ms)

    def records_retried(self, topic: str, record_count: int) -> None:
        self.retries.total += record_count
        if topic in self._topics:
            self._topics[topic].retries.total += record_count

    # RECORDING: any thread

    def records_failed(self, topic: str, record_count: int) -> None:
        """Count records that failed for good; for a topic to which nothing was sent, only among all topics."""
        with self._lock:
            self.errors.total += record_count
            if topic in self._topics:
                self._topics[topic].errors.total += record_count

    def flushed(self, since_ns: int) -> None:
        with self._lock:
            self.flush_times.total += self._clock.now_ns() - since_ns

    def transaction_called(self, method: CalledMethod, duration_ns: int) -> None:
        with self._lock:
            self._txn_times[method].total += duration_ns

    def waited_for_metadata(self, since_ns: int) -> None:
        with self._lock:
            self.metadata_waits.total += self._clock.now_ns() - since_ns

    # READING: any thread

    def restart(self) -> None:
        """From now on `since_start` means since this call. For a producer at rest."""
        self.samples.restart(self._clock.now_ms())

    def snapshot(self, *, since_start: bool = False) -> dict[str, float]:
        """The values that KafkaProducer.metrics returns."""
        now_ms = self._clock.now_ms()
        declared_metrics = (*SENDER_METRICS, *CALLER_METRICS, *OWN_METRICS)
        values = snapshot(self.samples, declared_metrics, self, now_ms, since_start=since_start)
        values |= self.network.snapshot(now_ms, since_start=since_start)
        return values | {name: read() for name, read in self._gauges.items()}

    def topic_snapshots(self, *, since_start: bool = False) -> dict[str, dict[str, float]]:
        """The values that KafkaProducer.topic_metrics returns."""
        now_ms = self._clock.now_ms()
        return {
            name: snapshot(self.samples, TOPIC_METRICS, topic, now_ms, since_start=since_start)
            for name, topic in sorted(self._topics.copy().items())
        }

    def node_snapshots(self, *, since_start: bool = False) -> dict[int, dict[str, float]]:
        """The values that KafkaProducer.node_metrics returns."""
        return self.network.node_snapshots(self._clock.now_ms(), since_start=since_start)
