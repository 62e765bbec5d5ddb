"""librdkafka's mock cluster, whose brokers share no code with Apache Kafka or with us, takes what we write.

It is read back by librdkafka's own consumer, which checks every batch's CRC. No JVM is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from tests.fakes.mock_cluster import CONNECTION_LOST, MockCluster, library
from tests.integration.reading import ReadRecord, read_with_confluent

PARTITIONS = 4  # of a topic that the cluster makes
ROWS = 3000
WAIT_MS = 20_000
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    try:
        library()
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    with MockCluster(brokers=3) as mock:
        yield mock


@pytest.fixture
def topic() -> str:
    """One that nobody has named before: the cluster makes it when it is asked for."""
    return f"orders-{next(_numbers)}"


def producer_of(cluster: MockCluster, **options: object) -> KafkaProducer:
    return KafkaProducer(
        {name.replace("_", "."): value for name, value in options.items()}
        | {"bootstrap.servers": cluster.bootstrap_servers, "max.block.ms": WAIT_MS, "batch.size": 4096, "linger.ms": 1}
    )


def leaders(producer: KafkaProducer, topic: str) -> dict[int, int]:
    """Partition -> broker."""
    return {info.partition: info.leader for info in producer.partitions_for(topic) if info.leader is not None}


def rows(first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + ROWS)]


def write(producer: KafkaProducer, topic: str, values: list[bytes]) -> None:
    """Row n goes to partition n % PARTITIONS."""
    partitions = pa.array([number % PARTITIONS for number in range(len(values))], pa.int32())
    delivery = producer.send_columns(topic, key=pa.array(values), value=pa.array(values), partition=partitions)
    producer.flush(WAIT_MS)
    delivery.result(WAIT_MS)


def read(cluster: MockCluster, topic: str) -> list[ReadRecord]:
    at_once: dict[str, Any] = {"fetch.wait.max.ms": 10, "fetch.error.backoff.ms": 10}
    return read_with_confluent(cluster.bootstrap_servers, topic, timeout_s=WAIT_MS / 1000, **at_once)


def assert_written_once_and_in_order(cluster: MockCluster, topic: str, *written: list[bytes]) -> None:
    values_by_partition: dict[int, list[bytes | None]] = {}
    for record in read(cluster, topic):
        assert record.key == record.value
        values_by_partition.setdefault(record.partition, []).append(record.value)
    assert values_by_partition == {
        partition: [value for values in written for value in values[partition::PARTITIONS]] for partition in range(PARTITIONS)
    }


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_written_and_read_back(cluster: MockCluster, topic: str, codec: str) -> None:
    """No row arrived before: the cluster ends its Metadata with one byte too many, and the answer was refused for it."""
    with producer_of(cluster, compression_type=codec) as producer:
        write(producer, topic, rows())
    assert_written_once_and_in_order(cluster, topic, rows())


@pytest.mark.parametrize("acks", ["all", "1"])
def test_rows_are_written_with_and_without_idempotence(cluster: MockCluster, topic: str, acks: str) -> None:
    with producer_of(cluster, acks=acks, enable_idempotence=acks == "all") as producer:
        write(producer, topic, rows())
    assert_written_once_and_in_order(cluster, topic, rows())


@pytest.mark.parametrize(
    "error",
    [
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.NOT_ENOUGH_REPLICAS,
        Errors.KAFKA_STORAGE_ERROR,
        Errors.REQUEST_TIMED_OUT,
        CONNECTION_LOST,
    ],
    ids=str,
)
def test_rejected_batches_are_sent_again_in_order(cluster: MockCluster, topic: str, error: ErrorCode | int) -> None:
    """One request at a time: these brokers check no sequence numbers, by which others reject what overtakes a rejected batch."""
    with producer_of(cluster, max_in_flight_requests_per_connection=1) as producer:
        write(producer, topic, rows())
        cluster.fail_next(ApiKey.PRODUCE, *[error] * 4)
        write(producer, topic, rows(ROWS))
    assert_written_once_and_in_order(cluster, topic, rows(), rows(ROWS))


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID], ids=lambda key: key.name)
def test_connections_that_are_lost_before_the_first_row_are_made_again(cluster: MockCluster, topic: str, api_key: ApiKey) -> None:
    cluster.fail_next(api_key, CONNECTION_LOST, CONNECTION_LOST)
    with producer_of(cluster) as producer:
        write(producer, topic, rows())
    assert_written_once_and_in_order(cluster, topic, rows())


def test_a_producer_id_is_asked_for_again_while_the_coordinator_loads(cluster: MockCluster, topic: str) -> None:
    cluster.fail_next(ApiKey.INIT_PRODUCER_ID, Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE)
    with producer_of(cluster) as producer:
        write(producer, topic, rows())
    assert_written_once_and_in_order(cluster, topic, rows())


def test_a_broker_that_goes_down_gets_its_rows_when_it_is_back(cluster: MockCluster, topic: str) -> None:
    with producer_of(cluster) as producer:
        write(producer, topic, rows())
        with cluster.down(leaders(producer, topic)[1]):
            values = pa.array(rows(ROWS)[1::PARTITIONS])
            partitions = pa.array([1] * len(values), pa.int32())
            delivery = producer.send_columns(topic, key=values, value=values, partition=partitions)
        producer.flush(WAIT_MS)
        delivery.result(WAIT_MS)
    records = read(cluster, topic)
    assert [record.value for record in records if record.partition == 1] == rows()[1::PARTITIONS] + rows(ROWS)[1::PARTITIONS]


def test_rows_follow_a_partition_to_its_new_leader(cluster: MockCluster, topic: str) -> None:
    """One request at a time: the new leader checks no sequence numbers, by which it would reject what overtakes a batch."""
    with producer_of(cluster, max_in_flight_requests_per_connection=1) as producer:
        write(producer, topic, rows())
        for partition, node in leaders(producer, topic).items():
            cluster.set_leader(topic, partition, node % 3 + 1)
        write(producer, topic, rows(ROWS))
    assert_written_once_and_in_order(cluster, topic, rows(), rows(ROWS))


def test_a_slow_broker_delays_only_its_own_rows(cluster: MockCluster, topic: str) -> None:
    """The cluster chooses leaders at random, which gave all partitions to one broker in one of 27 runs."""
    slow_partition, fast_partition = 0, 1
    with producer_of(cluster) as producer:
        producer.partitions_for(topic)  # makes the topic
        cluster.set_leader(topic, slow_partition, 1)
        cluster.set_leader(topic, fast_partition, 2)
        write(producer, topic, rows())
        cluster.set_response_time(1, WAIT_MS)
        slow = producer.send_columns(topic, value=pa.array([b"slow"]), partition=pa.array([slow_partition], pa.int32()))
        fast = producer.send_columns(topic, value=pa.array([b"fast"]), partition=pa.array([fast_partition], pa.int32()))
        assert fast.result(WAIT_MS // 2)
        assert slow.acknowledged == 0
        producer.close(0)
        cluster.set_response_time(1, 0)


def test_an_error_that_is_final_fails_the_delivery(cluster: MockCluster, topic: str) -> None:
    with producer_of(cluster) as producer:
        cluster.fail_next(ApiKey.PRODUCE, Errors.TOPIC_AUTHORIZATION_FAILED)
        delivery = producer.send_columns(topic, value=pa.array([b"v"]))
        producer.flush(WAIT_MS)
        assert isinstance(delivery.error, BrokerError)
        assert delivery.error.condition == "KAFKA_TOPIC_AUTHORIZATION_FAILED"
