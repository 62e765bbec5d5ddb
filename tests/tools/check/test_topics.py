"""Judges of a topic, on answers that are made up."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_kafka_sink.admin.topics import TopicDescription
from spark_kafka_sink.errors import AuthorizationError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.protocol.messages.metadata import MetadataResponsePartition
from spark_kafka_sink.protocol.permissions import AUTHORIZED_OPERATIONS_OMITTED, AclOperation, authorized_operations
from spark_kafka_sink.tools.check.results import CheckResult, Light
from spark_kafka_sink.tools.check.topics import CheckedTopic, judge_topic
from tests.fakes.network_config import network_config

WRITES = {AclOperation.WRITE: "for rows"}
SETTINGS = {
    "min.insync.replicas": "2",
    "max.message.bytes": "1048588",
    "compression.type": "producer",
    "cleanup.policy": "delete",
}
EVERYTHING = frozenset(AclOperation)
DENIED = AuthorizationError("DescribeConfigs: Grant the user DESCRIBE_CONFIGS on the topic 't'.", error_code=29)


def partition(index: int = 0, *, replicas: int = 3, in_sync: int = 3, leader: int = 1) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, replica_nodes=tuple(range(replicas)), isr_nodes=tuple(range(in_sync))
    )


def judged(
    *partitions: MetadataResponsePartition,
    settings: Mapping[str, str] | KafkaError = SETTINGS,
    permissions: frozenset[AclOperation] | None = EVERYTHING,
    needs: Mapping[AclOperation, str] = WRITES,
    has_written: bool = False,
    **options: object,
) -> dict[str, CheckResult]:
    described = TopicDescription(partitions or (partition(),), permissions)
    topic = CheckedTopic("t", needs, described, settings, has_written=has_written, description_ms=3, settings_ms=4)
    return {each.check: each for each in judge_topic(topic, network_config(**options), must_exist=False)}


def test_a_topic_in_order_is_green() -> None:
    results = judged(partition(0), partition(1))
    assert list(results) == ["topic", "leaders", "replicas", "size", "compression", "permission"]
    assert {each.light for each in results.values()} == {Light.GREEN}
    assert results["topic"].finding == "2 partitions"
    assert results["replicas"].finding == "3 of 3 replicas in sync; min.insync.replicas=2"
    assert (results["topic"].ms, results["size"].ms) == (3, 4)


def test_of_a_topic_without_rows_only_what_it_is_for_is_judged() -> None:
    results = judged(needs={AclOperation.READ: "for the offsets of markers"})
    assert list(results) == ["topic", "leaders", "permission"]


@pytest.mark.parametrize(
    ("creates", "must_exist", "light", "says"),
    [
        (False, False, Light.RED, "brokers create none (auto.create.topics.enable=false)"),
        (True, False, Light.YELLOW, "the first write creates it"),
        (True, True, Light.RED, "exactly-once needs it before the first write"),
        (None, False, Light.RED, "whether brokers create it is not known"),
    ],
)
def test_a_missing_topic_is_red_unless_a_write_creates_it(
    creates: bool | None, must_exist: bool, light: Light, says: str
) -> None:
    topic = CheckedTopic("t", WRITES, None, {}, creates)
    (result,) = judge_topic(topic, network_config(), must_exist=must_exist)
    assert (result.check, result.light) == ("topic", light)
    assert says in result.finding
    assert "kafka-topics.sh --create --topic t" in result.remedy


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("__consumer_offsets", None),
        ("__consumer_offsets", TopicDescription((partition(),), EVERYTHING, is_internal=True)),
        ("__of_a_newer_kafka", TopicDescription((partition(),), EVERYTHING, is_internal=True)),
    ],
)
def test_an_internal_topic_is_red(name: str, description: TopicDescription | None) -> None:
    """All was green, and the write failed with INVALID_TOPIC_EXCEPTION; or the first write was said to create it."""
    topic = CheckedTopic(name, WRITES, description, SETTINGS, can_be_created=True)
    (result,) = judge_topic(topic, network_config(), must_exist=False)
    assert (result.check, result.light, result.subject) == ("topic", Light.RED, name)
    assert result.finding == "is internal: only brokers write to it, and reject the rows of others"


def test_a_topic_that_brokers_do_not_describe_is_red() -> None:
    for error in (DENIED, KafkaTimeoutError("no answer")):
        (result,) = judge_topic(CheckedTopic("t", WRITES, error, {}), network_config(), must_exist=False)
        assert (result.light, str(error) in result.finding) == (Light.RED, True)


def test_partitions_without_a_leader_are_red_and_named() -> None:
    leaders = judged(partition(0), partition(1, leader=-1), partition(2, leader=-1))["leaders"]
    assert (leaders.light, leaders.finding) == (Light.RED, "2 of 3 partitions without a leader: 1, 2")


def test_a_topic_without_partitions_is_red() -> None:
    topic = CheckedTopic("t", WRITES, TopicDescription((), EVERYTHING), SETTINGS)
    (result,) = judge_topic(topic, network_config(), must_exist=False)
    assert result.light is Light.RED


def test_a_compacted_topic_is_shown_as_such() -> None:
    assert "a row without a key is rejected" in judged(settings=SETTINGS | {"cleanup.policy": "compact,delete"})["topic"].finding


# REPLICAS


@pytest.mark.parametrize(
    ("few", "remedy"),
    [
        (partition(1, in_sync=1), "start the brokers that are not in sync"),
        (partition(1, replicas=1, in_sync=1), "or give it 2 replicas"),
    ],
)
def test_too_few_replicas_in_sync_are_red(few: MetadataResponsePartition, remedy: str) -> None:
    replicas = judged(partition(0), few)["replicas"]
    assert (replicas.light, "too few for 1 partition: 1" in replicas.finding) == (Light.RED, True)
    assert remedy in replicas.remedy


def test_without_acks_of_all_replicas_too_few_are_yellow() -> None:
    replicas = judged(partition(in_sync=1), acks="1")["replicas"]
    assert (replicas.light, "acks=1 does not ask for them" in replicas.finding) == (Light.YELLOW, True)


def test_enough_replicas_but_not_all_in_sync_are_yellow() -> None:
    replicas = judged(partition(0), partition(1, in_sync=2))["replicas"]
    assert (replicas.light, replicas.finding) == (
        Light.YELLOW,
        "2 to 3 of 3 to 3 replicas in sync; min.insync.replicas=2; not all in sync: 1",
    )


def test_settings_that_brokers_do_not_tell_are_yellow_once() -> None:
    results = judged(settings=DENIED)
    assert [name for name, each in results.items() if each.light is Light.YELLOW] == ["settings"]
    assert "DESCRIBE_CONFIGS" in results["settings"].finding
    assert results["replicas"].finding == "3 of 3 replicas in sync; min.insync.replicas=?"
    some = judged(settings={"min.insync.replicas": "many", "max.message.bytes": "2000000"})
    assert some["size"].light is Light.GREEN
    assert some["settings"].finding == "brokers do not tell min.insync.replicas, compression.type"


# SIZES AND COMPRESSION


@pytest.mark.parametrize(
    ("theirs", "light", "says"),
    [("1048588", Light.GREEN, ""), ("1048575", Light.YELLOW, "larger rows are rejected")],
)
def test_the_topics_limit_is_compared_with_ours(theirs: str, light: Light, says: str) -> None:
    size = judged(settings=SETTINGS | {"max.message.bytes": theirs})["size"]
    assert (size.light, says in size.finding) == (light, True)


def test_batches_that_the_topic_does_not_take_are_yellow() -> None:
    size = judged(settings=SETTINGS | {"max.message.bytes": "1000"}, max_request_size=900, batch_size=2000)["size"]
    assert (size.light, "split and sent again" in size.finding) == (Light.YELLOW, True)


@pytest.mark.parametrize(
    ("theirs", "ours", "light"),
    [
        ("producer", "zstd", Light.GREEN),
        ("zstd", "zstd", Light.GREEN),
        ("uncompressed", "none", Light.GREEN),
        ("uncompressed", "zstd", Light.YELLOW),
        ("gzip", "none", Light.YELLOW),
    ],
)
def test_batches_that_brokers_compress_again_are_yellow(theirs: str, ours: str, light: Light) -> None:
    compression = judged(settings=SETTINGS | {"compression.type": theirs}, compression_type=ours)["compression"]
    assert compression.light is light


# PERMISSIONS


def test_a_missing_permission_is_red_and_named() -> None:
    permission = judged(permissions=frozenset({AclOperation.DESCRIBE}))["permission"]
    assert (permission.light, permission.finding, permission.remedy) == (
        Light.RED,
        "no WRITE, for rows",
        "grant the user WRITE on the topic",
    )


def test_a_permission_that_is_not_told_is_found_out_by_writing() -> None:
    permission = judged(permissions=None)["permission"]
    assert (permission.light, permission.finding) == (Light.YELLOW, "WRITE, for rows: not known; `--write` finds out")
    assert judged(permissions=None, has_written=True)["permission"].light is Light.GREEN


def test_kafkas_bits_are_read() -> None:
    assert authorized_operations(AUTHORIZED_OPERATIONS_OMITTED) is None
    assert authorized_operations(0) == frozenset()
    assert authorized_operations(0b1_0001_1000) == {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE}
