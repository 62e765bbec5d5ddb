"""Rows of a KafkaProducer while brokers err, move, forget topics or refuse logins, over real sockets against FakeBroker."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import AuthenticationError, BrokerError, InvalidRecordError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.fakes.fake_broker import FakeBroker, Fault
from tests.producer.calling import WAIT_MS, WAIT_S, binary
from tests.producer.producers import await_answers, give_up_soon, producer_of

# TROUBLE


def test_errors_that_pass_are_not_seen_by_the_caller(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS, times=2)
    broker.drop_next(ApiKey.PRODUCE, after_append=True)
    producer.send_columns("single", value=binary(b"a", b"b")).result(WAIT_MS)
    producer.send_columns("single", value=binary(b"c")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"b", b"c"]


def test_a_moving_leader_is_followed(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
    broker.move_leader("single", 0, 1)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"b"]


def test_a_rejected_batch_raises_from_the_handle(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(BrokerError, match="KAFKA_INVALID_RECORD"):
        delivery.result(WAIT_MS)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"b"]


def test_a_fatal_error_is_raised_by_later_calls_too(broker: FakeBroker, producer: KafkaProducer) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.CLUSTER_AUTHORIZATION_FAILED)
    delivery = producer.send_columns("single", value=binary(b"a"))
    with pytest.raises(BrokerError, match="IDEMPOTENT_WRITE"):
        delivery.result(WAIT_MS)
    with pytest.raises(BrokerError, match="IDEMPOTENT_WRITE"):
        producer.send_columns("single", value=binary(b"b"))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_writes(broker: FakeBroker, acks: str) -> None:
    with producer_of(broker, acks=acks, enable_idempotence=False) as producer:
        delivery = producer.send_columns("single", value=binary(b"a"))
        producer.flush(WAIT_MS)
    assert delivery.acknowledged == 1
    broker.wait_until(lambda: broker.values("single") == [b"a"])  # with acks=0 it is under way when it counts as written


def to_partition(number: int) -> pa.Array:
    return pa.array([number], pa.int32())


@pytest.mark.parametrize("error", [Errors.NONE, Errors.NOT_LEADER_OR_FOLLOWER])
def test_a_broker_that_answers_acks_0_all_the_same_gets_every_row(broker: FakeBroker, error: ErrorCode) -> None:
    """The client closed the connection at the answer, and requests that the broker had not read yet were lost with their rows."""
    partition = PartitionProduceResponse(index=0, error_code=error.number, base_offset=-1)
    answer = ProduceResponse(responses=(TopicProduceResponse(name="single", partition_responses=(partition,)),))
    broker.inject(Fault(ApiKey.PRODUCE, reply=lambda _: answer), times=1_000)
    values = [b"%d" % number for number in range(50)]
    with producer_of(broker, acks="0", linger_ms=0, enable_idempotence=False) as producer:
        for value in values:
            producer.send("single", value)
            producer.flush(WAIT_MS)
        producer.partitions_for("other")  # other requests go on between them
        broker.wait_until(lambda: broker.values("single") == values)
        assert producer.metrics()["connection-close-total"] == 0


@pytest.mark.parametrize("idempotence", [True, False])
def test_a_topic_that_is_deleted_and_created_again_while_rows_wait_gets_them(broker: FakeBroker, idempotence: bool) -> None:
    """Its leader epochs begin at 0 again, below those that were seen, and the new partitions know no sequence numbers."""
    with producer_of(broker, enable_idempotence=idempotence, batch_size=1) as producer:  # a batch for each row
        for number in range(3):
            producer.send_columns("orders", value=binary(b"%d" % number), partition=to_partition(1)).result(WAIT_MS)
        for node in (0, 1, 0, 1):
            broker.move_leader("orders", 1, node)
            producer.send_columns("orders", value=binary(b"moved"), partition=to_partition(1)).result(WAIT_MS)
        broker.delete_topic("orders")
        request_count = len(broker.requests_of(ApiKey.METADATA))

        def come_back() -> None:
            # answered: there is no such topic
            broker.wait_until(lambda: len(broker.requests_of(ApiKey.METADATA)) >= request_count + 2)
            broker.add_topic("orders", 6)

        with ThreadPoolExecutor(1) as beside:  # the client may hear of it before it sends, and wait in send_columns
            coming = beside.submit(come_back)
            waiting = producer.send_columns("orders", value=binary(b"0", b"1", b"2"), partition=pa.array([1, 1, 1], pa.int32()))
            coming.result()
        assert waiting.result(WAIT_MS).acknowledged == 3
        written = broker.values("orders", 1)
        assert (written if idempotence else sorted(written)) == [b"0", b"1", b"2"]  # without it, retries may change the order
        producer.send_columns("orders", value=binary(b"new partition"), partition=to_partition(5)).result(WAIT_MS)


def test_a_topic_that_comes_back_smaller_fails_the_rows_of_partitions_that_are_gone(broker: FakeBroker) -> None:
    times = {"linger_ms": 0, "request_timeout_ms": 500, "delivery_timeout_ms": 5_000}
    with producer_of(broker, **times) as producer:
        producer.send_columns("orders", value=binary(b"a"), partition=to_partition(3)).result(WAIT_MS)
        broker.delete_topic("orders")
        both = producer.send_columns("orders", value=binary(b"gone", b"kept"), partition=pa.array([3, 0], pa.int32()))
        broker.add_topic("orders", 2)
        with pytest.raises(KafkaTimeoutError, match=r"KAFKA_DELIVERY_TIMEOUT.*orders-3"):
            both.result(WAIT_MS)
        assert both.acknowledged == 1
        assert broker.values("orders", 0) == [b"kept"]
        give_up_soon(producer)
        with pytest.raises(InvalidRecordError, match="Partition 3 of topic orders with partition count 2"):
            producer.send_columns("orders", value=binary(b"d"), partition=to_partition(3))


def test_a_permission_that_is_taken_away_for_a_while_fails_the_rows_in_between(
    broker: FakeBroker, producer: KafkaProducer
) -> None:
    for _ in range(2):
        producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
        broker.fail_next(ApiKey.PRODUCE, Errors.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="KAFKA_TOPIC_AUTHORIZATION_FAILED"):
            producer.send_columns("single", value=binary(b"refused")).result(WAIT_MS)
    producer.send_columns("single", value=binary(b"b")).result(WAIT_MS)
    assert broker.values("single") == [b"a", b"a", b"b"]


def test_a_resolver_that_hangs_stalls_one_broker_but_no_time_out_and_no_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names were looked up on the Sender's thread: while one hung, no row went anywhere, no time-out ran out, close() waited."""
    release = threading.Event()
    system = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, flags: int = 0, **fields: Any) -> Any:
        if host == "silent.example" and not flags & socket.AI_NUMERICHOST:
            assert release.wait(WAIT_S)
        return system(host, *args, flags=flags, **fields)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    broker.hosts[1] = "silent.example"
    times = {"linger_ms": 0, "request_timeout_ms": 4_000, "delivery_timeout_ms": 5_000, "socket_connection_setup_timeout_ms": 500}
    try:
        with producer_of(broker, **times) as producer:
            to_silent = producer.send_columns("orders", value=binary(b"lost"), partition=pa.array([1], pa.int32()))
            for number in range(20):
                to_other = producer.send_columns("orders", value=binary(b"%d" % number), partition=pa.array([0], pa.int32()))
                assert to_other.result(WAIT_MS).acknowledged == 1
            with pytest.raises(KafkaTimeoutError, match=r"KAFKA_DELIVERY_TIMEOUT.*no answer of DNS about silent.example"):
                to_silent.result(WAIT_MS)
            producer.send_columns("orders", value=binary(b"also lost"), partition=pa.array([1], pa.int32()))
            looking_up = [thread.name for thread in threading.enumerate() if thread.name == "kafka-producer-background"]
            producer.close(timeout_ms=100)
            assert len(looking_up) <= 1  # though it was asked for several times
    finally:
        release.set()
    assert broker.values("orders", 0) == [b"%d" % number for number in range(20)]


def test_a_topic_that_is_no_text_is_refused_and_harms_nobody_else(producer: KafkaProducer) -> None:
    """Half of a surrogate pair cannot be put into a request. The Sender's thread ended over it, and all rows with it."""
    with pytest.raises(KafkaError, match="ud800"):
        producer.send(ProducerRecord("\ud800", value=b"x")).result(WAIT_S)
    with pytest.raises(KafkaError, match="ud800"):
        producer.send_columns("\ud800", value=binary(b"x")).result(WAIT_MS)
    with pytest.raises(KafkaError, match="ud800"):
        producer.partitions_for("\ud800")
    assert producer.send_columns("single", value=binary(b"a")).result(WAIT_MS).acknowledged == 1


# SASL


def sasl_producer(broker: FakeBroker, **options: object) -> KafkaProducer:
    return KafkaProducer(
        {
            **{name.replace("_", "."): value for name, value in options.items()},
            "bootstrap.servers": broker.bootstrap_servers.split(",")[0],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": 'ScramLoginModule required username="alice" password="alice-secret";',
            "linger.ms": 0,
            "reconnect.backoff.ms": 0,  # the next attempt begins before the Sender looks at what came of this one
            "enable.idempotence": False,  # any broker may be asked for a producer id, and then has been logged in to
        }
    )


def write_to(producer: KafkaProducer, partition: int) -> Delivery:
    delivery = producer.send_columns("orders", value=pa.array(["v"]), partition=pa.array([partition], pa.int32()))
    producer.flush()
    return delivery


def change_password(broker: FakeBroker) -> None:
    """Node 1 asks for the new one; node 0 has been logged in to."""
    broker.users = {"alice": "changed"}
    broker.drop_connections(1)  # it may have been asked for metadata


def test_rows_in_flight_elsewhere_are_written_once_when_one_broker_rejects_a_login() -> None:
    """The refusal failed them too, though they were written: a retried Spark task wrote them again."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
            release = broker.hold_next(ApiKey.PRODUCE, node_id=0)
            in_flight = producer.send_columns("orders", value=pa.array(["held"]), partition=pa.array([0], pa.int32()))
            broker.wait_until(lambda: len(broker.requests_of(ApiKey.PRODUCE)) == 2)
            change_password(broker)
            refused = producer.send_columns("orders", value=pa.array(["refused"]), partition=pa.array([1], pa.int32()))
            with pytest.raises(AuthenticationError, match="for user 'alice'"):
                refused.result(WAIT_MS)
            assert (in_flight.acknowledged, in_flight.error) == (0, None)
            release.set()
            assert in_flight.result(WAIT_MS).acknowledged == 1
        assert broker.values("orders") == [b"v", b"held"]


def test_a_login_that_is_refused_once_fails_no_row() -> None:
    """A broker that has just been started may not have read all users yet."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        broker.refuse_next_login(1)
        with sasl_producer(broker) as producer:
            for partition in (0, 1):
                delivery = write_to(producer, partition)
                assert (delivery.acknowledged, delivery.error) == (1, None)
        assert broker.refused_logins == [1]


def test_a_caller_for_metadata_does_not_mind_a_login_that_is_refused_once() -> None:
    with FakeBroker(nodes=1, topics={"orders": 1}, users={"alice": "alice-secret"}) as broker:
        broker.refuse_next_login(0)
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
        assert broker.refused_logins == [0]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_wrong_password_fails_soon_whoever_waits(nodes: int) -> None:
    """max.block.ms is a minute here, longer than this test may take; callers are told after two attempts, or one with each."""
    with FakeBroker(nodes=nodes, topics={"orders": 1}, users={"alice": "another"}) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "reconnect.backoff.ms": 10}
        login = 'ScramLoginModule required username="alice" password="wrong";'
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login}
        with KafkaProducer(config | sasl) as producer:
            with pytest.raises(AuthenticationError, match="user 'alice'"):
                producer.send_columns("orders", value=pa.array(["v"]))
            attempts = list(broker.refused_logins)
        assert set(attempts) == set(range(nodes))
        assert max(nodes, 2) <= len(attempts) <= 2 * max(nodes, 2)  # the Sender goes on meanwhile


def test_rows_for_one_broker_that_refuses_the_login_fail_at_once_and_others_go_on() -> None:
    """delivery.timeout.ms is two minutes here, longer than this test may take."""
    with FakeBroker(nodes=2, topics={"orders": 2}, users={"alice": "alice-secret"}) as broker:
        with sasl_producer(broker) as producer:
            assert write_to(producer, 0).acknowledged == 1
            change_password(broker)
            refused = write_to(producer, 1)
            assert isinstance(refused.error, AuthenticationError)
            assert "node 1 (127.0.0.1:" in refused.error.message
            assert "SASL SCRAM-SHA-256 for user 'alice'" in refused.error.message
            assert write_to(producer, 0).acknowledged == 1  # its connection has logged in long ago
        assert len(broker.values("orders")) == 2


# BROKERS THAT THROTTLE


def throttles(text: str, length: str) -> bool:
    return (
        f"throttles this client, the last time for {length} ms, because of a quota" in text and "no answer from node" not in text
    )


def test_rows_that_expire_because_a_broker_throttles_say_so(broker: FakeBroker) -> None:
    """The broker answered and named the time in which it reads nothing. The error was "no answer from node 0, the partition's
    leader", and its reader looked for a broken network."""
    broker.inject(Fault(ApiKey.PRODUCE, throttle_ms=61_000))
    options = {"linger_ms": 0, "delivery_timeout_ms": 5_000, "request_timeout_ms": 5_000}
    with producer_of(broker, **options) as producer:
        producer.send("single", b"a").result(WAIT_S)
        error = producer.send("single", b"b").exception(WAIT_S)
    assert isinstance(error, KafkaTimeoutError)
    assert error.condition == "KAFKA_DELIVERY_TIMEOUT"
    assert throttles(error.message, "61,000"), error.message
    assert "raise the quota, or send less" in error.message
    assert broker.values("single") == [b"a"]


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.METADATA])
def test_metadata_that_does_not_come_because_brokers_throttle_says_so(api_key: ApiKey) -> None:
    """The text was "no broker answered … check kafka.bootstrap.servers and the network", or that the topic has to be created."""
    with FakeBroker(topics={"orders": 1, "other": 1}) as broker:
        if api_key is ApiKey.API_VERSIONS:
            broker.inject(Fault(api_key, throttle_ms=61_000), times=10)
        producer = producer_of(broker)
        if api_key is ApiKey.METADATA:
            await_answers(producer, "other")
            broker.inject(Fault(api_key, throttle_ms=61_000), times=10)
        producer._metadata.request_update("the test says so")
        producer._parts.metadata_wait.wake_sender()
        broker.wait_until(lambda: producer._metadata.last_trouble(0) is not None)
        give_up_soon(producer)
        with pytest.raises(KafkaTimeoutError) as raised:
            producer.partitions_for("orders")
        producer.close(0)
    assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"
    assert throttles(raised.value.message, "61,000"), raised.value.message
    assert "check" not in raised.value.message
    assert "create the topic" not in raised.value.message
