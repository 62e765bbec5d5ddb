"""A real broker behind a proxy that goes wrong: what is in the topic afterwards, what the error says, and how soon it comes.

Rows are numbered and go to partition number % 3, so that a topic read back tells of every row that is lost, doubled or out of
order. The proxy is that of tests/fakes/fault_proxy.py; topics are read past it.
"""

from __future__ import annotations

import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.benchmarks.measuring import peak_resident_mb, reset_peak
from tests.fakes.fault_proxy import Decide, FaultProxy, ProxiedKafka, ProxyFault, Request
from tests.fakes.zookeeper_kafka import ZooKeeperKafka
from tests.integration.reading import READERS

Proxied = ProxiedKafka | ZooKeeperKafka
Cluster = LocalKafka | ZooKeeperKafka

PARTITIONS = 3
ROWS_PER_CALL = 300
MAX_CALLS = 2_000
WAIT_MS = 60_000
OPTIONS = {
    "request.timeout.ms": "1000",
    "delivery.timeout.ms": "60000",
    "linger.ms": "1",
    "batch.size": "1024",
    "retry.backoff.ms": "20",
    "reconnect.backoff.ms": "10",
    "reconnect.backoff.max.ms": "100",
}
PLAIN = {"enable.idempotence": "false", "max.in.flight.requests.per.connection": "1"}


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:  # noqa: ARG001 - fetched first
    with ProxiedKafka(tmp_path_factory.mktemp("proxied")) as cluster:
        yield cluster


@pytest.fixture
def proxy(kafka: ProxiedKafka) -> Iterator[FaultProxy]:
    """Without faults and without connections, before and after."""
    kafka.proxy.log.clear()
    yield kafka.proxy
    kafka.proxy.accept()
    kafka.proxy.disarm()
    kafka.proxy.drop_connections()


@pytest.fixture
def topic(kafka: ProxiedKafka) -> str:
    name = f"faults-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(name, PARTITIONS)
    return name


class NumberedRows:
    """A producer behind the proxy that writes numbered rows, and what became of them."""

    def __init__(self, kafka: Proxied, topic: str, **options: str) -> None:
        self.topic = topic
        self.producer = KafkaProducer({"bootstrap.servers": kafka.proxied_servers, **OPTIONS, **options})
        self.count = 0
        self.deliveries: list[Delivery] = []

    def write(self) -> Delivery:
        numbers = np.arange(self.count, self.count + ROWS_PER_CALL)
        self.count += ROWS_PER_CALL
        partitions = pa.array((numbers % PARTITIONS).astype(np.int32))
        self.deliveries.append(self.producer.send_columns(self.topic, value=numbers_as_text(numbers), partition=partitions))
        return self.deliveries[-1]

    def write_until(self, is_enough: Callable[[], bool]) -> None:
        """Several calls under way at a time, each of several requests; then until all is settled."""
        for call in range(MAX_CALLS):
            self.write()
            if call % 4 == 3:
                self.deliveries[-3].result(WAIT_MS)
                if is_enough():
                    break
        self.producer.close(WAIT_MS)

    def __enter__(self) -> NumberedRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.close(0)


def numbers_as_text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers.astype(str), pa.string())


def read_numbers(kafka: Cluster, topic: str) -> dict[int, list[int]]:
    """The numbers in each partition, by offset."""
    numbers: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for record in READERS["confluent-kafka"](kafka.bootstrap_servers, topic):
        numbers[record.partition].append(int(record.value or b"-1"))
    return numbers


def assert_each_row_once_in_order(kafka: Cluster, topic: str, rows: int) -> None:
    for partition, numbers in read_numbers(kafka, topic).items():
        assert numbers == list(range(partition, rows, PARTITIONS))


def error_of(delivery: Delivery, limit_ms: int = WAIT_MS) -> str:
    with pytest.raises(KafkaError) as raised:
        delivery.result(limit_ms)
    return str(raised.value)


# WITH IDEMPOTENCE: each row once, in order


@pytest.mark.parametrize("fault", ProxyFault, ids=lambda fault: fault.name.lower())
def test_each_row_is_there_once_and_in_order_when_produce_requests_meet(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    for _ in range(3):
        proxy.arm(fault, ApiKey.PRODUCE, skip=7)
    proxy.arm(fault, ApiKey.PRODUCE, skip=20, times=2)
    with NumberedRows(kafka, topic) as rows:
        rows.write_until(lambda: proxy.count(fault) == 5)
        assert proxy.count(fault) == 5
        assert [delivery.result(0).acknowledged for delivery in rows.deliveries] == [ROWS_PER_CALL] * len(rows.deliveries)
    assert_each_row_once_in_order(kafka, topic, rows.count)


@pytest.mark.parametrize(
    "api_key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID], ids=lambda key: key.name.lower()
)
@pytest.mark.parametrize("fault", ProxyFault, ids=lambda fault: fault.name.lower())
def test_a_producer_gets_started_when_its_first_requests_meet(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, api_key: ApiKey, fault: ProxyFault
) -> None:
    proxy.arm(fault, api_key, times=2)
    with NumberedRows(kafka, topic) as rows:
        rows.write()
        rows.write_until(lambda: True)
        assert proxy.count(fault) > 0
    assert_each_row_once_in_order(kafka, topic, rows.count)


def test_a_broker_that_cannot_be_reached_for_a_while_gets_each_row_once(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str
) -> None:
    with NumberedRows(kafka, topic, **{"linger.ms": "300"}) as rows:
        for _ in range(3):
            assert rows.write().result(WAIT_MS).acknowledged == ROWS_PER_CALL
            waiting = rows.write()  # lingers while
            proxy.refuse()
            with pytest.raises(KafkaTimeoutError):
                waiting.result(600)
            proxy.accept()
            assert waiting.result(WAIT_MS).acknowledged == ROWS_PER_CALL
        rows.write_until(lambda: True)
    assert_each_row_once_in_order(kafka, topic, rows.count)


def faults_by_chance(seed: int, share: float) -> Decide:
    """Every fault but those that cost a time-out each is as likely as any other; those are rare."""
    dice = random.Random(seed)
    slow = {ProxyFault.SWALLOW, ProxyFault.SILENCE, ProxyFault.STOP_READING, ProxyFault.DELAY, ProxyFault.GLUE}
    faults = list(ProxyFault)
    weights = [0.1 if fault in slow else 1.0 for fault in faults]

    def decide(request: Request) -> ProxyFault | None:
        likely = share if request.api_key == ApiKey.PRODUCE else share / 4
        return dice.choices(faults, weights)[0] if dice.random() < likely else None

    return decide


def write_through_random_faults(
    kafka: Proxied, proxy: FaultProxy, topic: str, seed: int, faults: int, **options: str
) -> NumberedRows:
    proxy.decide = faults_by_chance(seed, share=0.1)
    with NumberedRows(kafka, topic, **options) as rows:
        rows.write_until(lambda: sum(fault is not None for _, fault in proxy.log) >= faults)
        happened = Counter(fault.name for _, fault in proxy.log if fault is not None)
        assert happened.total() >= faults, f"only {happened} in {rows.count} rows"
        for delivery in rows.deliveries:
            delivery.result(0)
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_there_once_and_in_order_through_faults_by_chance(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, seed: int
) -> None:
    rows = write_through_random_faults(kafka, proxy, topic, seed, faults=25)
    assert_each_row_once_in_order(kafka, topic, rows.count)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 105))
@pytest.mark.parametrize("in_flight", ["1", "5"])
def test_each_row_is_there_once_and_in_order_through_very_many_faults(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, seed: int, in_flight: str
) -> None:
    options = {"max.in.flight.requests.per.connection": in_flight}
    rows = write_through_random_faults(kafka, proxy, topic, seed, faults=100, **options)
    assert_each_row_once_in_order(kafka, topic, rows.count)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_broker_of_kafka_3_9_has_each_row_once_and_in_order(tmp_path: Path) -> None:
    with ProxiedKafka(tmp_path, version="3.9.1") as kafka:
        for seed in range(3):
            kafka.create_topic(f"t{seed}", PARTITIONS)
            rows = write_through_random_faults(kafka, kafka.proxy, f"t{seed}", seed, faults=25 * (seed + 1))
            assert_each_row_once_in_order(kafka, f"t{seed}", rows.count)


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_broker_of_kafka_2_8_has_each_row_once_and_in_order(tmp_path: Path) -> None:
    with ZooKeeperKafka(tmp_path) as kafka:
        for seed in range(3):
            kafka.create_topic(f"t{seed}", PARTITIONS)
            rows = write_through_random_faults(kafka, kafka.proxy, f"t{seed}", seed, faults=25 * (seed + 1))
            assert_each_row_once_in_order(kafka, f"t{seed}", rows.count)
        produced = {request.version for request, _ in kafka.proxy.log if request.api_key == ApiKey.PRODUCE}
    assert produced == {9}


# WITHOUT IDEMPOTENCE: what acks=0 and acks=1 still promise


@pytest.mark.parametrize(
    "fault",
    [ProxyFault.DROP_BEFORE, ProxyFault.DROP_AFTER, ProxyFault.SWALLOW, ProxyFault.GARBAGE],
    ids=lambda fault: fault.name.lower(),
)
def test_acks_1_loses_nothing_and_keeps_order_but_may_double(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    for _ in range(3):
        proxy.arm(fault, ApiKey.PRODUCE, skip=7)
    with NumberedRows(kafka, topic, acks="1", **PLAIN) as rows:
        rows.write_until(lambda: proxy.count(fault) == 3)
        assert proxy.count(fault) == 3
    for partition, numbers in read_numbers(kafka, topic).items():
        assert list(dict.fromkeys(numbers)) == list(range(partition, rows.count, PARTITIONS))


@pytest.mark.parametrize("fault", [ProxyFault.DROP_BEFORE, ProxyFault.STOP_READING], ids=lambda fault: fault.name.lower())
def test_acks_0_doubles_nothing_and_succeeds_whatever_happens(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    for _ in range(3):
        proxy.arm(fault, ApiKey.PRODUCE, skip=7)
    with NumberedRows(kafka, topic, acks="0", **PLAIN) as rows:
        rows.write_until(lambda: proxy.count(fault) == 3)
        for delivery in rows.deliveries:
            delivery.result(0)
    # No claim on order: what the broker still reads from a lost connection may come after what the next one brings.
    for numbers in read_numbers(kafka, topic).values():
        assert len(numbers) == len(set(numbers))


def test_acks_0_without_a_fault_writes_each_row_once_and_in_order(kafka: ProxiedKafka, topic: str) -> None:
    with NumberedRows(kafka, topic) as confirmed:
        confirmed.write().result(WAIT_MS)  # a leader that is still being installed would close the connection: rows would be lost
    with NumberedRows(kafka, topic, acks="0", **PLAIN) as rows:
        rows.count = confirmed.count
        rows.write_until(lambda: rows.count > 3_000)
    deadline = time.monotonic() + 10
    while sum(map(len, read_numbers(kafka, topic).values())) < rows.count and time.monotonic() < deadline:
        continue  # the broker has it all, and is still writing
    assert_each_row_once_in_order(kafka, topic, rows.count)


# GONE FOR GOOD: an error, in time, that says what and where

LIMITED = {"delivery.timeout.ms": "3000", "request.timeout.ms": "1000", "linger.ms": "0", "max.block.ms": "2000"}


def assert_fails_in_time(delivery: Delivery) -> str:
    text = error_of(delivery, limit_ms=4_000)  # delivery.timeout.ms, and a second
    assert text.startswith("[KAFKA_DELIVERY_TIMEOUT]")
    return text


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["all", "1"])
def test_a_broker_gone_for_good_fails_rows_in_time_with_node_partition_and_cause(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, acks: str
) -> None:
    options = LIMITED | {"acks": acks, "linger.ms": "300"} | (PLAIN if acks == "1" else {})
    with NumberedRows(kafka, topic, **options) as rows:
        rows.write().result(WAIT_MS)
        delivery = rows.write()  # lingers while
        proxy.refuse()
        try:
            text = assert_fails_in_time(delivery)
            with pytest.raises(KafkaError, match=r"not present in metadata after 2000 ms.*Connection refused"):
                rows.write()  # nobody is left who could tell of the topic
        finally:
            proxy.accept()
        assert rows.write().result(WAIT_MS).acknowledged == ROWS_PER_CALL
    assert re.search(rf"{topic}-[0-2]", text)
    assert "node 1" in text
    assert f"{proxy.address}: [Errno 111] Connection refused" in text


def test_a_broker_that_falls_silent_fails_rows_in_time_and_is_named_with_the_cause(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str
) -> None:
    with NumberedRows(kafka, topic, **LIMITED) as rows:
        rows.write().result(WAIT_MS)
        proxy.decide = lambda _: ProxyFault.SILENCE
        text = assert_fails_in_time(rows.write())
    assert re.search(rf"{topic}-[0-2]", text)
    assert "node 1" in text
    assert "request.timeout.ms=1000" in text


def test_a_broker_that_does_not_read_fails_rows_in_time(kafka: ProxiedKafka, proxy: FaultProxy, topic: str) -> None:
    with NumberedRows(kafka, topic, **LIMITED) as rows:
        rows.write().result(WAIT_MS)
        proxy.decide = lambda request: ProxyFault.STOP_READING if request.api_key == ApiKey.PRODUCE else None
        large = pa.array([bytes(500_000)] * 20)
        delivery = rows.producer.send_columns(topic, value=large, partition=pa.array([0] * 20, pa.int32()))
        text = assert_fails_in_time(delivery)
        assert f"{topic}-0" in text
        assert "node 1" in text
        assert rows.producer.metrics()["buffer-available-bytes"] <= 32 * 1024 * 1024
        proxy.disarm()
        assert rows.write().result(WAIT_MS).acknowledged == ROWS_PER_CALL  # and its memory is free again


@pytest.mark.timeout(10, func_only=True)
@pytest.mark.parametrize(
    "fault", [ProxyFault.SWALLOW, ProxyFault.DROP_BEFORE, ProxyFault.GARBAGE], ids=lambda fault: fault.name.lower()
)
def test_a_broker_that_never_answers_api_versions_fails_send_within_max_block_ms(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str, fault: ProxyFault
) -> None:
    proxy.arm(fault, ApiKey.API_VERSIONS, times=1_000)
    with NumberedRows(kafka, topic, **LIMITED) as rows, pytest.raises(KafkaError) as raised:
        rows.write()
    text = str(raised.value)
    assert text.startswith("[KAFKA_BROKER_UNREACHABLE]")
    assert f"Topic {topic} not present in metadata after 2000 ms." in text
    assert proxy.address in text


def test_a_request_time_out_ends_the_connection_and_the_next_attempt_succeeds(
    kafka: ProxiedKafka, proxy: FaultProxy, topic: str
) -> None:
    with NumberedRows(kafka, topic) as rows:
        rows.write().result(WAIT_MS)
        proxy.arm(ProxyFault.SILENCE, ApiKey.PRODUCE)
        assert rows.write().result(5_000).acknowledged == ROWS_PER_CALL
        rows.write_until(lambda: True)
        produced = [request for request, _ in proxy.log if request.api_key == ApiKey.PRODUCE]
        assert len({request.connection for request in produced}) == 2
    assert_each_row_once_in_order(kafka, topic, rows.count)


# ANOTHER CLUSTER BEHIND THE SAME ADDRESS


@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars")
def test_another_cluster_behind_the_same_address_is_an_error_and_gets_no_row(tmp_path: Path) -> None:
    with ProxiedKafka(tmp_path / "one") as one:
        one.create_topic("t", PARTITIONS)
        with NumberedRows(one, "t") as rows:
            rows.write().result(WAIT_MS)
            with ProxiedKafka(tmp_path / "two", proxies=one.proxies) as two:
                two.create_topic("t", PARTITIONS)
                one.proxy.drop_connections()
                with pytest.raises(KafkaError, match=r"\[KAFKA_CLUSTER_CHANGED\]"):
                    rows.write().result(10_000)
                assert sum(map(len, read_numbers(two, "t").values())) == 0
        assert_each_row_once_in_order(one, "t", ROWS_PER_CALL)


# MEMORY


def test_memory_stays_flat_when_the_broker_announces_a_frame_of_2_gib(kafka: ProxiedKafka, proxy: FaultProxy, topic: str) -> None:
    with NumberedRows(kafka, topic) as rows:
        rows.write().result(WAIT_MS)
        reset_peak(os.getpid())
        before_mb = peak_resident_mb(os.getpid())
        proxy.arm(ProxyFault.HUGE, ApiKey.PRODUCE, times=5)
        rows.write_until(lambda: proxy.count(ProxyFault.HUGE) == 5)
        assert proxy.count(ProxyFault.HUGE) == 5
        grown_mb = peak_resident_mb(os.getpid()) - before_mb
    assert grown_mb < 16
    assert_each_row_once_in_order(kafka, topic, rows.count)
