"""Every time may be as long as Kafka lets it be: Long.MAX stands for "for ever" in many configurations of Kafka Connect.

`max.block.ms=9223372036854775807` ended in OverflowError from the threading module, whose time-outs end at 292 years.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_kafka_sink.clock import MAX_WAIT_MS, Clock, Waitable, milliseconds, wait_seconds
from spark_kafka_sink.config.option import INT, INT_MAX, LONG, LONG_MAX
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.producer import Producer
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.metadata_updater import MetadataUpdater
from spark_kafka_sink.producer.accumulator import buffer_pool
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.mock_client import MockClient
from tests.producer import harness

WAIT_S = 30.0
LONGEST = {LONG: LONG_MAX, INT: INT_MAX}
TIMES = {
    key: LONGEST[row.kind] if row.at_most is None else int(row.at_most)
    for key, row in PRODUCER_KEYS.items()
    if row.kind in LONGEST and key.endswith((".ms", ".seconds"))
}


def at_work(broker: FakeBroker, options: dict[str, object]) -> None:
    """All that waits: for metadata, through a retry, for acknowledgements, and for the end."""
    if options.get("retry.backoff.max.ms") != LONG_MAX:
        broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers} | options) as producer:
        assert len(producer.partitions_for("orders")) == 4
        delivery = producer.send_columns("orders", value=pa.array([b"a"]), partition=pa.array([0], pa.int32()))
        future = producer.send(ProducerRecord("orders", b"b", partition=1))
        producer.flush()
        assert delivery.result(LONG_MAX).acknowledged == 1
        assert future.result(WAIT_S).offset == 0
        producer.metrics()
        producer.node_metrics()
    assert broker.values("orders") == [b"a", b"b"]


def test_there_are_as_many_times_as_options_of_that_kind() -> None:
    assert {"max.block.ms", "linger.ms", "delivery.timeout.ms", "connections.max.idle.ms"} <= TIMES.keys()
    assert len(TIMES) > 20


@pytest.mark.parametrize("key", TIMES)
def test_a_producer_works_with_the_longest_time(broker: FakeBroker, key: str) -> None:
    at_work(broker, {key: str(TIMES[key])})


def test_a_producer_works_with_the_longest_of_all_times(broker: FakeBroker) -> None:
    at_work(broker, dict(TIMES))


def test_a_producer_works_with_any_amount_of_memory(broker: FakeBroker) -> None:
    at_work(broker, {"buffer.memory": LONG_MAX})


@pytest.mark.parametrize("timeout_ms", [LONG_MAX, float("inf"), 10**30])
def test_any_time_may_be_given_to_flush_close_and_result(broker: FakeBroker, timeout_ms: float) -> None:
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000})
    delivery = producer.send_columns("orders", value=pa.array([b"a"]))
    future = producer.send(ProducerRecord("orders", b"b"))
    producer.flush(timeout_ms)
    assert delivery.result(timeout_ms).acknowledged == 1
    assert future.result(timeout_ms).topic == "orders"
    assert future.exception(timeout_ms) is None
    producer.close(timeout_ms)


@pytest.mark.parametrize("timeout", [LONG_MAX, float("inf")])
def test_a_wait_for_a_record_may_be_as_long_as_any_number(broker: FakeBroker, timeout: float) -> None:
    """The wait itself, not only the deadline: it begins before the record is acknowledged."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0}) as producer:
        for wait in (
            lambda: producer.send(ProducerRecord("orders", b"a")).result(timeout),
            lambda: producer.send_columns("orders", value=pa.array([b"a"])).result(timeout),
        ):
            release = broker.hold_next(ApiKey.PRODUCE)
            outcomes: list[object] = []
            thread = threading.Thread(target=catch, args=(wait, outcomes))
            requests = len(broker.requests_of(ApiKey.PRODUCE))
            thread.start()
            broker.wait_until(lambda requests=requests: len(broker.requests_of(ApiKey.PRODUCE)) > requests)
            release.set()
            thread.join(WAIT_S)
            assert not isinstance(outcomes[0], BaseException)


def catch(call: Callable[[], object], outcomes: list[object]) -> None:
    try:
        outcomes.append(call())
    except (KafkaError, OverflowError, ValueError) as error:
        outcomes.append(error)


class TellingClock(Clock):
    def __init__(self) -> None:
        self.is_waiting = threading.Event()  # set as a wait begins

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        self.is_waiting.set()
        return super().wait(waitable, timeout_ms)


def test_a_wait_for_memory_may_be_as_long_as_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "PATIENCE_MS", 0)  # so that the first wait is the long one
    clock = TellingClock()
    pool = BufferPool(4096, 1024, clock)
    memory = pool.allocate(pool.total_blocks, LONG_MAX)
    outcomes: list[object] = []
    thread = threading.Thread(target=catch, args=(lambda: pool.allocate(1, LONG_MAX), outcomes))
    thread.start()
    assert clock.is_waiting.wait(WAIT_S)
    pool.deallocate(memory)
    thread.join(WAIT_S)
    assert not isinstance(outcomes[0], BaseException)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_old_producer_works_and_closes_with_the_longest_times(broker: FakeBroker, kind: str) -> None:
    options = {"metadata.broker.list": broker.bootstrap_servers, "serializer.class": "kafka.serializer.StringEncoder"}
    producer = Producer({**options, "producer.type": kind, "request.required.acks": -1, "queue.enqueue.timeout.ms": INT_MAX})
    producer.send(KeyedMessage("orders", message="m"))
    producer.close(LONG_MAX)
    assert broker.values("orders") == [b"m"]


# THE CLOCK


@pytest.mark.parametrize("timeout_ms", [MAX_WAIT_MS, MAX_WAIT_MS + 1, LONG_MAX, 10**400, float("inf")])
def test_no_single_wait_is_longer_than_what_locks_take(timeout_ms: float) -> None:
    assert wait_seconds(timeout_ms) == MAX_WAIT_MS / 1000 <= threading.TIMEOUT_MAX
    assert threading.Lock().acquire(timeout=wait_seconds(timeout_ms))
    condition = threading.Condition()
    with condition:
        threading.Timer(0.01, notify, [condition]).start()
        assert Clock().wait(condition, timeout_ms)


def notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify()


@pytest.mark.parametrize("timeout_ms", [0, -1, -5000, -LONG_MAX])
def test_a_time_that_is_over_is_no_wait(timeout_ms: int) -> None:
    assert wait_seconds(timeout_ms) == 0


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0, 0), (0.0015, 1), (2, 2000), (LONG_MAX, 2**62), (10**400, 2**62), (float("inf"), 2**62), (-1, -1000)]
)
def test_seconds_of_any_size_have_milliseconds(seconds: float, ms: int) -> None:
    assert milliseconds(seconds) == ms


def test_a_broker_that_sends_a_client_back_to_bootstrap_is_obeyed() -> None:
    """The time that is long over for every trigger was 2**60 ms ago, which is less than Long.MAX."""
    options = harness.config(metadata_recovery_rebootstrap_trigger_ms=LONG_MAX)
    clock = ManualClock()
    metadata = Metadata(options, clock)
    updater = MetadataUpdater(metadata, MockClient(clock, metadata), options)
    updater._request_in_progress = metadata_request = metadata.new_request(clock.now_ms())
    response = MetadataResponse(error_code=Errors.REBOOTSTRAP_REQUIRED.number)
    updater.handle_response(metadata_request.request, response, 13, clock.now_ms())
    assert updater.needs_rebootstrap(clock.now_ms())
