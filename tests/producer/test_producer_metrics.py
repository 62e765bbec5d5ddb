"""producer_metrics.py and network_metrics.py: what is counted when, under which names.

The scenarios of Kafka's KafkaProducerMetricsTest, of SenderTest and BufferPoolTest where they look at metrics, and of
SelectorTest's. Windows are tested in tests/test_metrics.py.
"""

from __future__ import annotations

import dataclasses
import json
import threading

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import InvalidRecordError, KafkaError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.network.network_metrics import NETWORK_METRICS, NODE_METRICS
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_metrics import CALLER_METRICS, OWN_METRICS, SECTIONS, SENDER_METRICS, TOPIC_METRICS
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.messages.produce import ProduceResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.fake_selector import SentRequest
from tests.network.network_client.harness import PRODUCE, Net
from tests.producer.harness import TOPIC, Stage
from tests.producer.producers import await_answers, give_up_soon, producer_of

WAIT_MS = 30_000
BATCH_HEADER = 61
ALL_NAMES = {metric.name for metric in [*SENDER_METRICS, *CALLER_METRICS, *NETWORK_METRICS, *OWN_METRICS]}


def read(stage: Stage, *names: str, since_start: bool = False) -> list[float]:
    snapshot = stage.metrics.snapshot(since_start=since_start)
    return [snapshot[name] for name in names]


# SENDING


def test_records_count_when_they_are_sent_not_when_they_are_acknowledged() -> None:
    stage = Stage()
    stage.append(b"a", b"b")
    assert read(stage, "record-send-total") == [0]
    stage.run()
    assert read(stage, "record-send-total", "batch-send-total", "produce-request-total") == [2, 1, 1]
    stage.succeed()
    assert read(stage, "record-send-total", "batch-send-total", "produce-request-total") == [2, 1, 1]


def test_records_that_are_sent_again_count_again() -> None:
    stage = Stage()
    stage.send(b"a", b"b")
    stage.reject(Errors.NOT_ENOUGH_REPLICAS)
    stage.back_off()
    stage.run()
    stage.succeed()
    assert read(stage, "record-send-total", "record-retry-total", "record-error-total") == [4, 2, 0]
    topic = stage.metrics.topic_snapshots()[TOPIC]
    assert (topic["record-send-total"], topic["record-retry-total"], topic["record-error-total"]) == (4, 2, 0)


def test_a_request_has_the_records_of_all_its_batches() -> None:
    stage = Stage(leaders={TOPIC: (0, 0, 1)})
    stage.send(b"a", b"b", b"c", b"d", b"e", b"f", partition=[0, 0, 0, 1, 1, 2])
    assert read(stage, "records-per-request-avg", "produce-request-total", "batch-send-total") == [3, 2, 3]


def test_a_node_that_is_sent_nothing_is_no_request() -> None:
    stage = Stage(leaders={TOPIC: (0, 1)}, linger_ms=1000)
    stage.client.throttle(1, 10_000)
    stage.append(b"a", b"b", partition=[0, 1])
    stage.clock.advance(1000)
    stage.run(3)
    assert read(stage, "produce-request-total", "records-per-request-avg") == [1, 1]


def test_sizes_are_those_of_encoded_records_and_of_batches_on_the_wire() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)})
    stage.send(b"a" * 10, b"b" * 1000, b"c" * 100, partition=[0, 0, 1])
    sizes = [batch.size_bytes for batch in stage.sent_batches]
    assert read(stage, "batch-size-max", "batch-size-avg") == [max(sizes), sum(sizes) / 2]
    assert read(stage, "byte-total", "uncompressed-byte-total") == [sum(sizes), sum(sizes) - 2 * BATCH_HEADER]
    assert read(stage, "record-size-avg") == [(sum(sizes) - 2 * BATCH_HEADER) / 3]
    # 1000 bytes, and lengths of record (2) and value (2), attributes, two deltas, no key, no headers
    assert read(stage, "record-size-max") == [1009]


def test_the_compression_rate_is_what_is_left() -> None:
    stage = Stage(compression_type="lz4", batch_size=100_000)
    stage.send(b"a" * 10_000, b"a" * 10_000)
    (batch,) = stage.sent_batches
    (rate, in_all) = read(stage, "compression-rate-avg", "compression-rate-total")
    assert rate == in_all == pytest.approx((batch.size_bytes - BATCH_HEADER) / 20_018, rel=0.001)
    assert stage.metrics.topic_snapshots()[TOPIC]["compression-rate"] == rate
    assert read(stage, "byte-total") == [batch.size_bytes]


def test_the_compression_rate_of_uncompressed_records_is_one() -> None:
    stage = Stage()
    stage.send(b"a")
    assert read(stage, "compression-rate-avg") == [1]


def test_the_queue_time_is_from_a_batchs_first_record_until_it_is_drained() -> None:
    stage = Stage(linger_ms=50)
    stage.append(b"a")
    stage.clock.advance(50)
    stage.run()
    stage.append(b"b")
    stage.clock.advance(70)
    stage.run()
    assert read(stage, "record-queue-time-max", "record-queue-time-avg", "record-queue-time-total") == [70, 60, 120]


def test_the_latency_of_a_request_is_its_nodes_too() -> None:
    stage = Stage(leaders={TOPIC: (0, 3)})
    for partition, latency_ms in [(0, 30), (1, 50)]:
        stage.send(b"a", partition=partition)
        stage.clock.advance(latency_ms)
        stage.succeed(partition=partition)
    assert read(stage, "request-latency-max", "request-latency-avg", "produce-response-total") == [50, 40, 2]
    nodes = stage.metrics.node_snapshots()
    assert {node: values["request-latency-max"] for node, values in nodes.items()} == {0: 30, 3: 50}


def test_a_lost_connection_has_no_latency() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.clock.advance(30)
    stage.disconnect()
    assert read(stage, "request-latency-max", "produce-response-total", "record-retry-total") == [0, 0, 1]


def test_topics_are_told_apart() -> None:
    stage = Stage(leaders={TOPIC: (0,), "other": (0,)})
    stage.append(b"a", b"b")
    stage.append(b"c", topic="other")
    stage.run()
    topics = stage.metrics.topic_snapshots()
    assert list(topics) == [TOPIC, "other"]
    assert (topics[TOPIC]["record-send-total"], topics["other"]["record-send-total"]) == (2, 1)
    assert topics[TOPIC]["byte-total"] + topics["other"]["byte-total"] == read(stage, "byte-total")[0]
    assert topics["other"]["record-send-rate"] == pytest.approx(1 / 30)


def test_a_split_counts_once_and_its_records_are_sent_again() -> None:
    stage = Stage()
    stage.send(b"a" * 100, b"b" * 100, b"c" * 100, b"d" * 100)
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    for offset in (0, 2):
        stage.run()
        stage.succeed(offset)
    names = "batch-split-total", "record-send-total", "batch-send-total", "record-retry-total", "record-error-total"
    assert read(stage, *names) == [1, 8, 3, 0, 0]


# FAILING


def test_records_that_fail_for_good_are_errors() -> None:
    stage = Stage()
    stage.send(b"a", b"b")
    stage.reject(Errors.INVALID_REQUIRED_ACKS)
    assert read(stage, "record-error-total") == [2]
    assert stage.metrics.topic_snapshots()[TOPIC]["record-error-total"] == 2


def test_a_batch_that_expires_in_flight_fails_once() -> None:
    stage = Stage(delivery_timeout_ms=1000, request_timeout_ms=1000)
    stage.send(b"a", b"b")
    stage.clock.advance(1000)
    stage.run()
    stage.reject(Errors.INVALID_REQUIRED_ACKS)
    assert read(stage, "record-error-total") == [2]


def test_rows_that_a_forced_close_gives_up_count_as_errors() -> None:
    stage = Stage()
    stage.send(b"a", b"b")
    stage.append(b"c")
    stage.sender.force_close()
    stage.sender.run()
    assert read(stage, "record-error-total") == [3]


def test_an_error_is_counted_before_it_is_reported() -> None:
    stage = Stage()
    error_totals: list[float] = []

    class FailsOnly:
        def acknowledge(self, *_: object) -> None:
            raise AssertionError

        def fail(self, *_: object) -> None:
            error_totals.extend(read(stage, "record-error-total"))

        def fail_unbatched(self, *_: object) -> None:
            raise AssertionError

    stage.append(b"a", callback=FailsOnly())
    stage.run()
    stage.reject(Errors.INVALID_REQUIRED_ACKS)
    assert error_totals == [1]


# WINDOWS


def test_averages_maxima_and_rates_are_of_the_configured_windows() -> None:
    stage = Stage(metrics_sample_window_ms=1000, metrics_num_samples=2)
    stage.send(b"a" * 1000, *[b"b"] * 9)
    stage.succeed()
    assert read(stage, "record-send-rate") == [10.0]
    large = read(stage, "batch-size-max")
    stage.clock.advance(5000)
    stage.send(b"a")
    stage.clock.advance(500)
    assert read(stage, "batch-size-max") < large
    assert read(stage, "record-send-rate", "records-per-request-avg", "record-send-total") == [1 / 1.5, 1, 11]
    assert read(stage, "batch-size-max", since_start=True) == large
    assert read(stage, "record-send-rate", since_start=True) == [2.0]
    stage.clock.advance(5000)
    assert read(stage, "batch-size-max", "record-send-rate") == [0, 0]  # read while the Sender sleeps


def test_windows_are_30_seconds_and_two_unless_configured() -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1"})
    assert (config.metrics_sample_window_ms, config.metrics_num_samples) == (30_000, 2)


# THE NETWORK


def test_throttle_times_are_of_every_response() -> None:
    """Kafka's testQuotaMetrics: a handshake that throttles for 400 ms, Produce for 100, 200 and 300."""
    net = Net()
    metrics = net.client._metrics
    answer = net.answer

    def throttled(request: SentRequest) -> Message | None:
        response = answer(request)
        return dataclasses.replace(response, throttle_time_ms=400) if isinstance(response, ApiVersionsResponse) else response

    net.selector.answer = throttled

    def wait_for_node() -> None:
        while not net.ready(0):
            net.poll()

    wait_for_node()
    handshakes, others = len(net.selector.sent_of(ApiKey.API_VERSIONS)), len(net.selector.sent_of(ApiKey.METADATA))
    assert metrics.throttle.count == handshakes + others
    for throttle_ms in (100, 200, 300):
        wait_for_node()
        net.selector.respond(net.send(message=PRODUCE), ProduceResponse(responses=(), throttle_time_ms=throttle_ms))
        net.poll()
    values = metrics.snapshot(net.clock.now_ms(), since_start=True)
    assert values["produce-throttle-time-max"] == 400
    assert values["produce-throttle-time-total"] == 400 * handshakes + 600
    assert values["produce-throttle-time-avg"] == (400 * handshakes + 600) / (handshakes + others + 3)


def values(count: int, size: int = 10) -> pa.Array:
    return pa.array([b"v" * size] * count, pa.binary())


def test_bytes_requests_and_connections_of_all_nodes_are_those_of_each(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.send_columns("orders", value=values(400), partition=pa.array([0, 1, 2, 3] * 100, pa.int32())).result(WAIT_MS)
        metrics, nodes = producer.metrics(), producer.node_metrics()
        for name in ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total"):
            assert metrics[name] == sum(node[name] for node in nodes.values()) > 0
        assert metrics["request-total"] == metrics["response-total"] == len(broker.requests)
        assert metrics["outgoing-byte-total"] > metrics["byte-total"]
        assert metrics["connection-creation-total"] == metrics["connection-count"] >= 3  # a bootstrap server and two nodes
        assert metrics["request-size-max"] * metrics["request-total"] >= metrics["outgoing-byte-total"]
        assert metrics["network-io-total"] >= metrics["request-total"] + 1
        assert metrics["select-total"] > 0
        assert metrics["io-time-ns-total"] > 0
        assert sum(producer.metrics(since_start=True)[name] for name in ("io-wait-ratio", "io-ratio")) < 1.01
    metrics = producer.metrics()
    assert metrics["connection-count"] == 0
    assert metrics["connection-close-total"] == metrics["connection-creation-total"]


# THE CALLER'S SIDE


def test_the_tables_name_everything_that_metrics_returns(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.send_columns("orders", value=values(3)).result(WAIT_MS)
        assert set(producer.metrics()) == ALL_NAMES
        assert set(producer.topic_metrics()["orders"]) == {metric.name for metric in TOPIC_METRICS}
        for node in producer.node_metrics().values():
            assert set(node) == {metric.name for metric in NODE_METRICS}


def test_no_name_stands_twice_in_a_table() -> None:
    assert len(ALL_NAMES) == sum(map(len, (SENDER_METRICS, CALLER_METRICS, NETWORK_METRICS, OWN_METRICS)))
    for metrics in SECTIONS.values():
        assert all(metric.doc.endswith(".") for metric in metrics)


def test_metrics_can_be_dumped_as_json(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        before = producer.metrics()
        producer.send_columns("orders", value=values(3)).result(WAIT_MS)
        json.dumps([before, producer.metrics(), producer.topic_metrics(), producer.node_metrics()], allow_nan=False)


def test_totals_are_whole_numbers(broker: FakeBroker) -> None:
    with producer_of(broker) as producer:
        producer.send_columns("orders", value=values(3)).result(WAIT_MS)
        totals = {name: value for name, value in producer.metrics().items() if name.endswith("-total")}
        del totals["compression-rate-total"]
        assert {type(value) for value in totals.values()} == {int}


def test_flush_and_waiting_for_metadata_take_time(broker: FakeBroker) -> None:
    with producer_of(broker, linger_ms=50) as producer:
        assert producer.metrics()["flush-time-ns-total"] == producer.metrics()["metadata-wait-time-ns-total"] == 0
        producer.send_columns("orders", value=values(3))
        waited = producer.metrics()["metadata-wait-time-ns-total"]
        assert waited > 0
        producer.flush()
        flushed = producer.metrics()["flush-time-ns-total"]
        assert flushed > 0
        producer.send_columns("orders", value=values(3))
        assert producer.metrics()["metadata-wait-time-ns-total"] == waited  # it was known
        producer.flush()
        assert producer.metrics()["flush-time-ns-total"] > flushed


def test_what_send_refuses_is_an_error(broker: FakeBroker) -> None:
    with producer_of(broker, max_request_size=1000) as producer:
        await_answers(producer, "orders", "other", "absent")
        give_up_soon(producer)
        producer.send(ProducerRecord("orders", b"v" * 2000))
        with pytest.raises(RecordTooLargeError):
            producer.send_columns("orders", value=values(3, size=2000))
        with pytest.raises(KafkaTimeoutError, match="KAFKA_UNKNOWN_TOPIC"):
            producer.send_columns("absent", value=values(5))
        assert producer.metrics()["record-error-total"] == 1 + 3 + 5
        topics = pa.array(["orders", "other"] * 2)
        with pytest.raises(InvalidRecordError, match="KAFKA_INVALID_PARTITION"):  # which nobody had counted
            producer.send_columns(topics, value=values(4), partition=pa.array([0, 0, 0, -1], pa.int32()))
        assert producer.metrics()["record-error-total"] == 1 + 3 + 5 + 4


def test_rows_behind_those_that_find_no_memory_are_errors(broker: FakeBroker) -> None:
    """Of 200,000 rows for which memory ended, 142,858 were in no metric: those of the slices that were not tried any more."""
    with producer_of(broker, buffer_memory=65_536) as producer:
        producer.partitions_for("orders")
        give_up_soon(producer, 20)
        release = broker.hold_next(ApiKey.PRODUCE, times=50)
        with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
            producer.send_columns("orders", value=values(100_000))
        release.set()
        producer.flush()
        metrics = producer.metrics()
        assert metrics["record-send-total"] + metrics["record-error-total"] == 100_000


def test_rows_that_find_no_memory_are_errors() -> None:
    stage = Stage(buffer_memory=16_384, max_block_ms=20)
    stage.accumulator._on_unbatched = lambda topic, rows, _: stage.metrics.records_failed(topic, rows)
    stage.metrics.add_gauges(stage.pool, stage.metadata, stage.client.in_flight_request_count)
    stage.append(b"a" * 10_000)
    with pytest.raises(KafkaError, match="KAFKA_BUFFER_EXHAUSTED"):
        stage.append(b"b" * 10_000, b"c", partition=0)
    names = "record-error-total", "buffer-exhausted-total", "bufferpool-wait-time-ns-total"
    assert read(stage, *names) == [2, 1, 20_000_000]
    assert read(stage, "bufferpool-wait-ratio") == [pytest.approx(0.02 / 30, rel=0.01)]


def test_gauges_tell_the_present(broker: FakeBroker) -> None:
    with producer_of(broker, buffer_memory=65_536) as producer:
        producer.send_columns("orders", value=values(3)).result(WAIT_MS)
        metrics = producer.metrics()
        assert (metrics["buffer-total-bytes"], metrics["waiting-threads"]) == (65_536, 0)
        assert 0 <= metrics["metadata-age"] < 30


def test_the_age_of_metadata_that_never_came_is_the_producers() -> None:
    clock = ManualClock()
    with KafkaProducer({"bootstrap.servers": "127.0.0.1:1"}, clock=clock) as producer:
        before = producer.metrics()["metadata-age"]
        clock.advance(5000)
        assert producer.metrics()["metadata-age"] >= before + 5
        producer.close(0)


def test_snapshots_may_be_taken_by_any_thread_at_any_time(broker: FakeBroker) -> None:
    failures: list[BaseException] = []
    ended = threading.Event()

    def watch(producer: KafkaProducer) -> None:
        last = 0.0
        try:
            while not ended.is_set():
                metrics = producer.metrics()
                producer.topic_metrics(since_start=True)
                producer.node_metrics()
                assert metrics["record-send-total"] >= last
                last = metrics["record-send-total"]
        except BaseException as error:
            failures.append(error)
            raise

    with producer_of(broker, metrics_sample_window_ms=1) as producer:
        threads = [threading.Thread(target=watch, args=(producer,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(200):
            producer.send_columns("orders" if number % 2 else "other", value=values(50))
        producer.flush()
        ended.set()
        for thread in threads:
            thread.join(30)
        assert producer.metrics()["record-send-total"] == 10_000
    assert failures == []
