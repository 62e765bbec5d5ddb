"""topic_check.py: a topic that does not exist fails the planning, if the brokers say so; everything else is left to the tasks."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_kafka_sink import KafkaDataSource, clock, stderr_log
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network import network_client
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.sink import datasource, topic_check
from spark_kafka_sink.sink.writer import KafkaBatchWriter
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.sink.schemas import schema

ASKING = (ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS)


@pytest.fixture(autouse=True)
def planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plays the process in which Spark plans, newly started."""
    monkeypatch.setattr(stderr_log, "is_in_spark_worker", lambda: True)
    monkeypatch.setattr(topic_check, "_settled_topics", set())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"orders": 1}) as broker:
        yield broker


def source(servers: str, **options: str) -> KafkaDataSource:
    own = {"kafka.bootstrap.servers": servers, "kafka.retry.backoff.ms": "0"}
    return KafkaDataSource(CaseInsensitiveDict(own | options))


def plan(broker: FakeBroker, topic: str = "orders", **options: str) -> KafkaBatchWriter:
    return source(broker.bootstrap_servers, topic=topic, **options).writer(schema(value="binary"), False)


def questions(broker: FakeBroker) -> list[ApiKey]:
    return [each.message.API_KEY for each in broker.requests if each.message.API_KEY in ASKING]


def test_a_missing_topic_fails_the_planning_with_the_remedy(broker: FakeBroker) -> None:
    """A missing topic took 63 s of silence, then 124 warnings, until each attempt of each task had failed."""
    for name in ("writer", "streamWriter"):
        data_source = source(broker.bootstrap_servers, topic="ordres")
        with pytest.raises(ConfigError) as raised:
            getattr(data_source, name)(schema(value="binary"), False)
        where = broker.bootstrap_servers
        assert str(raised.value) == (
            f"[KAFKA_UNKNOWN_TOPIC] topic ordres does not exist at {where}, and the brokers create none"
            " (auto.create.topics.enable=false): correct the option topic, or create it, for example with kafka-topics.sh"
            f" --bootstrap-server {where} --create --topic ordres"
        )
    assert "ordres" not in broker.topics


def test_a_topic_that_exists_is_asked_for_once_in_the_life_of_the_process(broker: FakeBroker) -> None:
    """Spark plans a stream anew for each micro-batch."""
    plan(broker)
    before = questions(broker)
    assert ApiKey.METADATA in before
    assert ApiKey.DESCRIBE_CONFIGS not in before
    for _ in range(3):
        source(broker.bootstrap_servers, topic="orders").streamWriter(schema(value="binary"), False)
    assert questions(broker) == before


def test_another_topic_is_asked_for(broker: FakeBroker) -> None:
    plan(broker)
    with pytest.raises(ConfigError, match="KAFKA_UNKNOWN_TOPIC"):
        plan(broker, "ordres")


def test_a_topic_that_is_created_after_the_error_is_found(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match="KAFKA_UNKNOWN_TOPIC"):
        plan(broker, "new")
    broker.add_topic("new", 1)
    plan(broker, "new")


def test_a_topic_of_which_the_first_broker_has_not_heard_is_found(broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.METADATA, Errors.UNKNOWN_TOPIC_OR_PARTITION, times=3)
    plan(broker)


def test_brokers_that_create_topics_are_left_to_do_so() -> None:
    with FakeBroker(auto_create_partitions=1) as broker:
        plan(broker, "new")
        assert "new" not in broker.topics  # the check itself creates nothing


@pytest.mark.parametrize(
    "error", [Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.UNKNOWN_SERVER_ERROR, Errors.TOPIC_AUTHORIZATION_FAILED]
)
def test_what_brokers_do_not_tell_is_left_to_the_tasks(error: object, broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.DESCRIBE_CONFIGS, error, times=100)
    plan(broker, "ordres")


def test_a_topic_that_the_user_may_not_see_is_left_to_the_tasks(broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.METADATA, Errors.TOPIC_AUTHORIZATION_FAILED, times=100)
    plan(broker, "secret")


def test_a_broker_without_the_request_for_settings_is_left_to_the_tasks() -> None:
    with FakeBroker(versions={ApiKey.DESCRIBE_CONFIGS: (0, -1)}) as broker:
        plan(broker, "ordres")


def test_a_driver_that_reaches_no_broker_goes_on_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_check, "TIMEOUT_MS", 50)
    with socket.socket() as bound_socket:  # bound and not listening: connections are refused
        bound_socket.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{bound_socket.getsockname()[1]}"
        source(servers, topic="t").writer(schema(value="binary"), False)
        assert topic_check._settled_topics == {((servers,), "t")}


def test_dns_takes_half_of_the_time_of_the_check_at_most(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canonical names were looked up before the time began: a driver without DNS waited 10 s longer for each server."""
    manual, limits_ms, left_ms = ManualClock(), [], []

    def resolved(servers: tuple[tuple[str, int], ...], timeout_ms: int) -> list[tuple[str, int]]:
        limits_ms.append(timeout_ms)
        manual.advance(timeout_ms)
        return list(servers)

    monkeypatch.setattr(clock, "Clock", lambda: manual)
    monkeypatch.setattr(network_client, "canonical_bootstrap_servers", resolved)
    monkeypatch.setattr(topic_check, "is_missing", lambda _, __, deadline_ms: left_ms.append(deadline_ms - manual.now_ms()))
    plan(broker, **{"kafka.client.dns.lookup": "resolve_canonical_bootstrap_servers_only"})
    assert limits_ms == left_ms == [topic_check.TIMEOUT_MS // 2]


def test_files_that_are_on_executors_only_are_left_to_the_tasks(broker: FakeBroker) -> None:
    plan(broker, "ordres", **{"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/executors/only.pem"})


def test_topics_of_a_column_are_not_asked_for(broker: FakeBroker) -> None:
    source(broker.bootstrap_servers).writer(schema(topic="string", value="binary"), False)
    assert questions(broker) == []


def test_a_commit_asks_for_no_topic(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit must not fail for what the planning has checked: the rows are in Kafka by then."""
    monkeypatch.setitem(sys.modules, datasource.COMMITTING_PROCESS, datasource)
    source(broker.bootstrap_servers, topic="ordres").streamWriter(schema(value="binary"), False)
    assert questions(broker) == []


def test_outside_of_sparks_processes_nobody_is_asked(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stderr_log, "is_in_spark_worker", lambda: False)
    plan(broker, "ordres")
    assert questions(broker) == []


def test_wrong_options_raise_before_brokers_are_asked(broker: FakeBroker) -> None:
    with pytest.raises(ConfigError, match="acks"):
        plan(broker, "ordres", **{"kafka.acks": "7"})
    assert questions(broker) == []
