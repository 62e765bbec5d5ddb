"""Brokers that die in the middle of a write and come back: every row is there once, and in order."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from tests.benchmarks.measuring import peak_resident_mb, reset_peak
from tests.broker_properties import QUICK_SESSIONS
from tests.integration.kafka_admin import Admin
from tests.integration.reading import READERS, ReadTopic, Topic
from tests.integration.sasl_cluster import REAUTH_MS, client_options, listener_properties, scram_users, tls_properties

ROWS_PER_CALL = 5_000
PARTITIONS = 6


class SteadyWriter:
    """Writes numbered rows with 50 different keys until it is told to stop, on a thread of its own, which ends with the block."""

    def __init__(self, bootstrap_servers: str, *, pause_s: float = 0.02, options: Mapping[str, Any] | None = None) -> None:
        ours = {"bootstrap.servers": bootstrap_servers, "request.timeout.ms": "5000", "delivery.timeout.ms": "90000"}
        self.producer = KafkaProducer(ours | dict(options or {}))
        self.deliveries: list[Delivery] = []
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()  # a call that waits for the brokers ends after max.block.ms
        self.producer.close(0)

    def _write(self) -> None:
        for call in itertools.count():
            if self._stop.wait(self._pause_s):  # the pace of the rows, not a way to wait for something
                return
            numbers = np.arange(call * ROWS_PER_CALL, (call + 1) * ROWS_PER_CALL)
            keys = pa.array((numbers % 50).astype(str), pa.string())
            self.deliveries.append(self.producer.send_columns("t", key=keys, value=pa.array(numbers.astype(str), pa.string())))

    def rows_acknowledged(self) -> int:
        return sum(delivery.acknowledged for delivery in list(self.deliveries))

    def await_rows(self, rows: int) -> None:
        """Until so many more rows are acknowledged."""
        target = self.rows_acknowledged() + rows
        while self.rows_acknowledged() < target:
            assert self._thread.is_alive(), "the writer failed"
            for delivery in self.deliveries[-1:]:
                delivery.result(120_000)
            self._stop.wait(0.01)

    def finish(self) -> int:
        self._stop.set()
        self._thread.join()
        self.producer.close()
        for delivery in self.deliveries:
            delivery.result(0)
        return len(self.deliveries) * ROWS_PER_CALL


def assert_each_row_once_and_in_order(bootstrap_servers: str, rows: int) -> None:
    records = READERS["confluent-kafka"](bootstrap_servers, "t", timeout_s=120)
    counts = Counter(int(record.value or b"-1") for record in records)
    assert len(records) == rows
    assert counts.keys() == set(range(rows))
    for partition in range(PARTITIONS):
        numbers = [int(record.value or b"-1") for record in records if record.partition == partition]
        assert numbers == sorted(numbers)


@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars")
def test_a_broker_killed_and_restarted_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, properties=QUICK_SESSIONS) as cluster:
        cluster.create_topic("t", PARTITIONS)
        with SteadyWriter(cluster.bootstrap_servers) as writer:
            writer.await_rows(100_000)
            cluster.kill(1)
            cluster.restart(1)
            writer.await_rows(100_000)
            assert_each_row_once_and_in_order(cluster.bootstrap_servers, writer.finish())


@pytest.mark.soak
@pytest.mark.usefixtures("kafka_jars")
def test_a_cluster_whose_brokers_die_one_after_the_other_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, brokers=3, properties=QUICK_SESSIONS) as cluster:
        cluster.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"})
        with SteadyWriter(cluster.bootstrap_servers) as writer:
            for node in (1, 2, 3):
                writer.await_rows(100_000)
                cluster.kill(node)
                writer.await_rows(50_000)  # the others go on without it
                cluster.restart(node)
            writer.await_rows(100_000)
            assert_each_row_once_and_in_order(cluster.bootstrap_servers, writer.finish())


@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars")
def test_leaders_that_move_between_running_brokers_lose_and_double_nothing(tmp_path: Path) -> None:
    """Each partition goes round all three brokers: to a replica, and to a broker that had no copy of it before."""
    with LocalKafka(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", PARTITIONS, replication_factor=2)
        servers = cluster.bootstrap_servers
        with SteadyWriter(servers, pause_s=0.1) as writer, Admin(servers) as admin:
            replicas = admin.replicas()
            for _ in range(2):
                writer.await_rows(25_000)
                replicas = {number: [nodes[1], 6 - sum(nodes)] for number, nodes in replicas.items()}
                admin.reassign(replicas)  # a broker that is asked afterwards may not have heard of it yet
            writer.await_rows(25_000)
            assert_each_row_once_and_in_order(servers, writer.finish())


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kafka_jars")
def test_a_rolling_restart_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"})
        with SteadyWriter(cluster.bootstrap_servers, pause_s=0.1) as writer:
            restart_one_after_the_other(cluster, writer)


def restart_one_after_the_other(cluster: LocalKafka, writer: SteadyWriter) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        for node in (1, 2, 3):
            writer.await_rows(50_000)
            cluster.terminate(node)
            writer.await_rows(50_000)  # the others go on without it
            cluster.restart(node)
            admin.await_in_sync(3)
    writer.await_rows(50_000)
    assert_each_row_once_and_in_order(cluster.bootstrap_servers, writer.finish())


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kafka_jars")
def test_a_rolling_restart_loses_and_doubles_nothing_over_tls_and_sasl(tmp_path: Path) -> None:
    """Each return of a broker is a new handshake and a new login, while rows wait; sessions end meanwhile too."""
    mechanism, listener = "SCRAM-SHA-512", "SASL_SSL"
    properties = {
        **listener_properties(listener, [mechanism]),
        **tls_properties(listener, tmp_path / "broker.pem"),
        f"listener.name.{listener.lower()}.{mechanism.lower()}.connections.max.reauth.ms": str(REAUTH_MS),
        f"listener.name.{listener.lower()}.ssl.enabled.protocols": "TLSv1.3",
    }
    with LocalKafka(
        tmp_path / "kafka", brokers=3, properties=properties, extra_listeners=[listener], format_options=scram_users()
    ) as cluster:
        cluster.create_topic("t", PARTITIONS, {"min.insync.replicas": "2"})
        options = client_options(mechanism, protocol=listener)
        with SteadyWriter(cluster.bootstrap_servers_for(listener), pause_s=0.1, options=options) as writer:
            restart_one_after_the_other(cluster, writer)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_fifty_million_rows_take_no_more_memory_than_the_first_two_million(broker: LocalKafka) -> None:
    """Memory of the producer: buffer.memory of 32 MiB, one chunk, scratch for a slice; nothing that grows with the rows."""
    broker.create_topic("fifty-million", PARTITIONS, {"retention.bytes": "50000000", "segment.bytes": "20000000"})
    keys = pa.array([b"%08d" % number for number in range(20_000)], pa.binary())
    values = pa.array([b"%0100d" % number for number in range(20_000)], pa.binary())
    reset_peak(os.getpid())  # of what tests before this one needed
    at_first_mb = peak_resident_mb(os.getpid())
    acknowledged, after_two_million_mb = 0, 0.0
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": "262144", "linger.ms": "20"}) as producer:
        deliveries: deque[Delivery] = deque()
        for call in range(2_500):
            deliveries.append(producer.send_columns("fifty-million", key=keys, value=values))
            if len(deliveries) > 50:
                acknowledged += deliveries.popleft().result(120_000).acknowledged
            if call == 100:
                after_two_million_mb = peak_resident_mb(os.getpid())
        acknowledged += sum(delivery.result(120_000).acknowledged for delivery in deliveries)
        metrics = producer.metrics()
    peak_mb = peak_resident_mb(os.getpid())
    print(
        f"50,000,000 rows: peak {peak_mb:.0f} MiB resident; {at_first_mb:.0f} before, {after_two_million_mb:.0f} after 2 million"
    )
    assert acknowledged == 50_000_000
    assert metrics["record-send-total"] == 50_000_000 + metrics["record-retry-total"]
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert peak_mb - at_first_mb < 32 + 200
    assert peak_mb - after_two_million_mb < 32


def test_a_topic_that_is_deleted_and_created_again_gets_what_comes_later(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """Another id, leader epochs from 0, no memory of the producer's sequence numbers, and for a while no topic at all."""
    from kafka.admin import KafkaAdminClient

    name = topic(1)
    options = {"bootstrap.servers": broker.bootstrap_servers, "batch.size": "64", "retry.backoff.ms": "20"}
    with KafkaProducer(options) as producer:

        def write(numbers: range) -> list[Delivery]:
            return [producer.send_columns(name, value=pa.array([str(number)])) for number in numbers]

        for delivery in write(range(100)):
            delivery.result(60_000)
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers.split(","))
        try:
            admin.delete_topics([name])
        finally:
            admin.close()
        meanwhile = write(range(100, 200))
        broker.create_topic(name, 1)
        later = write(range(200, 300))
        for delivery in meanwhile + later:
            assert delivery.result(60_000).acknowledged == 1
    numbers = [int(record.value or b"-1") for record in read_topic(name)]
    # Of those meanwhile, what the dying topic still took went with it.
    assert numbers == list(range(300 - len(numbers), 300))
    assert len(numbers) >= 100
