"""Judges a topic: whether it exists, leaders, replicas, sizes, compression, and what the user may do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.topics import TopicDescription
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.producer_rules import ACKS_ALL
from spark_kafka_sink.errors import AuthorizationError, KafkaError, printable, printable_list
from spark_kafka_sink.protocol.messages.metadata import MetadataResponsePartition
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check.results import WRITE_FINDS_OUT, CheckResult, green, number_in_setting, red, remedy_for, yellow
from spark_kafka_sink.tools.words import counted

AUTO_CREATE = "auto.create.topics.enable"
MIN_IN_SYNC, MAX_BYTES, COMPRESSION, CLEANUP = "min.insync.replicas", "max.message.bytes", "compression.type", "cleanup.policy"
TOPIC_SETTINGS = (MIN_IN_SYNC, MAX_BYTES, COMPRESSION, CLEANUP)
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")  # also before they exist
PRODUCER_CODEC = "producer"  # the compression.type with which brokers keep the codec of the batch


@dataclass(frozen=True, slots=True)
class CheckedTopic:
    """What brokers have answered about a topic, or why they did not.

    Args:
        needs: the permissions that a write needs on the topic, each with its purpose.
        description: None: the topic does not exist.
        can_be_created: the brokers' auto.create.topics.enable; None: not known.
        has_written: `--write` has written a record to it.
        description_ms, settings_ms: how long the answers took.
    """

    name: str
    needs: Mapping[AclOperation, str]
    description: TopicDescription | KafkaError | None
    settings: Mapping[str, str] | KafkaError
    can_be_created: bool | None = None
    has_written: bool = False
    description_ms: int = 0
    settings_ms: int = 0

    @property
    def subject(self) -> str:
        return printable(self.name)


def judge_topic(topic: CheckedTopic, config: ProducerConfig, *, must_exist: bool) -> list[CheckResult]:
    """Judge a topic as a whole.

    Args:
        must_exist: whether the topic must exist before the write, because exactly-once commits offsets that name it.
    """
    description = topic.description
    if isinstance(description, KafkaError):
        grant = "grant the user DESCRIBE on the topic, which READ and WRITE include"
        remedy = grant if isinstance(description, AuthorizationError) else remedy_for(description)
        return [red("topic", topic.subject, str(description), remedy, topic.description_ms)]
    is_internal = topic.name in INTERNAL_TOPICS or (description is not None and description.is_internal)
    if is_internal and AclOperation.WRITE in topic.needs:
        finding = "is internal: only brokers write to it, and reject the rows of others"
        return [red("topic", topic.subject, finding, "name another topic", topic.description_ms)]
    if description is None:
        return [judge_missing(topic, must_exist=must_exist)]
    if not description.partitions:
        remedy = "look at it with kafka-topics.sh --describe; it may be being created or deleted"
        return [red("topic", topic.subject, "exists, and brokers tell of no partition of it", remedy, topic.description_ms)]
    results = [judge_existing(topic, description), judge_leaders(topic, description)]
    if AclOperation.WRITE in topic.needs:
        results.append(judge_replicas(topic, description, config.acks))
        results += judge_settings(topic, config)
    return results + [judge_permission(topic, description, operation) for operation in topic.needs]


def judge_missing(topic: CheckedTopic, *, must_exist: bool) -> CheckResult:
    """Yellow if the first write may create the topic; otherwise red."""
    creation = f"correct the name, or create it: kafka-topics.sh --create --topic {topic.subject}"
    if topic.can_be_created and not must_exist:
        remedy = f"{creation}; so created, it has the brokers' num.partitions and default.replication.factor"
        finding = f"does not exist; the first write creates it ({AUTO_CREATE}=true)"
        return yellow("topic", topic.subject, finding, remedy, topic.description_ms)
    reason = f", and brokers create none ({AUTO_CREATE}=false)" if topic.can_be_created is False else ""
    reason = reason or (", and exactly-once needs it before the first write" if must_exist else "")
    reason = reason or f", and whether brokers create it is not known ({AUTO_CREATE})"
    return red("topic", topic.subject, f"does not exist{reason}", creation, topic.description_ms)


def judge_existing(topic: CheckedTopic, description: TopicDescription) -> CheckResult:
    is_compacted = isinstance(topic.settings, Mapping) and "compact" in topic.settings.get(CLEANUP, "")
    note = "; compacted: a row without a key is rejected" if is_compacted else ""
    return green("topic", topic.subject, f"{counted(len(description.partitions), 'partition')}{note}", topic.description_ms)


# PARTITIONS


def judge_leaders(topic: CheckedTopic, description: TopicDescription) -> CheckResult:
    """Red if a partition has no leader, because rows for it fail."""
    leaderless = [each.partition_index for each in description.partitions if each.leader_id < 0]
    if not leaderless:
        return green("leaders", topic.subject, "each partition has a leader", topic.description_ms)
    partitions = counted(len(description.partitions), "partition")
    finding = f"{len(leaderless)} of {partitions} without a leader: {printable_list(leaderless, 10)}"
    return red("leaders", topic.subject, finding, "start the brokers that have its replicas", topic.description_ms)


def judge_replicas(topic: CheckedTopic, description: TopicDescription, acks: int) -> CheckResult:
    """With acks=all, brokers reject rows for a partition with fewer in-sync replicas than min.insync.replicas."""
    partitions, ms = description.partitions, max(topic.description_ms, topic.settings_ms)
    fewest_in_sync = min((len(each.isr_nodes) for each in partitions), default=0)
    min_in_sync = _number_setting(topic.settings, MIN_IN_SYNC)
    state = f"{_replicas_in_words(partitions)}; {MIN_IN_SYNC}={'?' if min_in_sync is None else min_in_sync}"
    partitions_behind = [each for each in partitions if len(each.isr_nodes) < len(each.replica_nodes)]
    if min_in_sync is not None and fewest_in_sync < min_in_sync:
        partitions_below = [each.partition_index for each in partitions if len(each.isr_nodes) < min_in_sync]
        finding = f"{state}: too few for {counted(len(partitions_below), 'partition')}: {printable_list(partitions_below, 10)}"
        if acks != ACKS_ALL:
            return yellow("replicas", topic.subject, f"{finding}, though acks={acks} does not ask for them", ms=ms)
        return red("replicas", topic.subject, finding, _remedy_for_few(partitions, min_in_sync), ms)
    if partitions_behind:
        finding = f"{state}; not all in sync: {printable_list((each.partition_index for each in partitions_behind), 10)}"
        return yellow("replicas", topic.subject, finding, "look at the brokers that are not in sync", ms)
    return green("replicas", topic.subject, state, ms)


def _remedy_for_few(partitions: Sequence[MetadataResponsePartition], min_in_sync: int) -> str:
    if any(len(each.replica_nodes) < min_in_sync for each in partitions):
        return f"lower the topic's {MIN_IN_SYNC}, or give it {min_in_sync} replicas (kafka-reassign-partitions.sh)"
    return f"start the brokers that are not in sync, or lower the topic's {MIN_IN_SYNC}"


def _replicas_in_words(partitions: Sequence[MetadataResponsePartition]) -> str:
    in_sync = [len(each.isr_nodes) for each in partitions]
    replicas = [len(each.replica_nodes) for each in partitions]
    if len({*in_sync}) == len({*replicas}) == 1:
        return f"{in_sync[0]} of {counted(replicas[0], 'replica')} in sync"
    return f"{min(in_sync)} to {max(in_sync)} of {min(replicas)} to {max(replicas)} replicas in sync"


def _number_setting(settings: Mapping[str, str] | KafkaError, name: str) -> int | None:
    return None if isinstance(settings, KafkaError) else number_in_setting(settings.get(name))


# SETTINGS


def judge_settings(topic: CheckedTopic, config: ProducerConfig) -> list[CheckResult]:
    """Judge size and compression, and name the settings that are not known."""
    if isinstance(topic.settings, KafkaError):
        return [yellow("settings", topic.subject, f"not known: {topic.settings}", ms=topic.settings_ms)]
    results = []
    max_bytes, codec = _number_setting(topic.settings, MAX_BYTES), topic.settings.get(COMPRESSION)
    values = {MIN_IN_SYNC: _number_setting(topic.settings, MIN_IN_SYNC), MAX_BYTES: max_bytes, COMPRESSION: codec}
    if max_bytes is not None:
        results.append(judge_size(topic, max_bytes, config))
    if codec is not None:
        results.append(judge_compression(topic, codec, config.compression_type))
    missing = [name for name, value in values.items() if value is None]
    if missing:
        results.append(yellow("settings", topic.subject, f"brokers do not tell {printable_list(missing)}", ms=topic.settings_ms))
    return results


def judge_size(topic: CheckedTopic, topic_limit: int, config: ProducerConfig) -> CheckResult:
    """Brokers reject a record above the topic's limit. A batch of several records above it is split and sent again."""
    ms, own_limit = topic.settings_ms, config.max_request_size
    finding = f"{MAX_BYTES}={topic_limit}, our max.request.size={own_limit} and batch.size={config.batch_size}"
    if topic_limit < own_limit:
        remedy = f"raise the topic's {MAX_BYTES}, or lower kafka.max.request.size: larger rows are then told before they are sent"
        return yellow("size", topic.subject, f"{finding}: larger rows are rejected", remedy, ms)
    if topic_limit < config.batch_size:
        remedy = "lower kafka.batch.size"
        return yellow("size", topic.subject, f"{finding}: full batches are rejected, split and sent again", remedy, ms)
    return green("size", topic.subject, finding, ms)


def judge_compression(topic: CheckedTopic, topic_codec: str, own_codec: str) -> CheckResult:
    """Yellow if brokers compress each batch again, because the topic has a codec of its own."""
    ms = topic.settings_ms
    if topic_codec == PRODUCER_CODEC:
        return green("compression", topic.subject, f"{own_codec}; brokers keep it", ms)
    if printable(topic_codec) == own_codec or (topic_codec, own_codec) == ("uncompressed", "none"):
        return green("compression", topic.subject, f"{own_codec}, as the topic's", ms)
    finding = f"{own_codec}, and the topic's {COMPRESSION}={printable(topic_codec)}: brokers compress each batch again"
    codec = "none" if topic_codec == "uncompressed" else printable(topic_codec)
    return yellow("compression", topic.subject, finding, f"set kafka.compression.type={codec}", ms)


# PERMISSIONS


def judge_permission(topic: CheckedTopic, description: TopicDescription, operation: AclOperation) -> CheckResult:
    """Yellow if brokers do not tell permissions, unless `--write` has shown that the user may WRITE."""
    name, why = operation.name, topic.needs[operation]
    if description.permissions is None and not (topic.has_written and operation is AclOperation.WRITE):
        return yellow("permission", topic.subject, f"{name}, {why}: {WRITE_FINDS_OUT}", ms=topic.description_ms)
    if description.permissions is None or operation in description.permissions:
        return green("permission", topic.subject, f"{name}, {why}", topic.description_ms)
    return red("permission", topic.subject, f"no {name}, {why}", f"grant the user {name} on the topic", topic.description_ms)
