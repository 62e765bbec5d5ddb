"""Metadata and DescribeConfigs of a topic: its partitions and their replicas, its settings, and what the user may do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.operation import Operation, failure, missing_answer_error
from spark_kafka_sink.errors import printable
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    ResourceType,
)
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from spark_kafka_sink.protocol.permissions import AclOperation, authorized_operations

FIRST_METADATA_WITH_OPERATIONS = 8


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's partitions, and what the user may do with it: None if the broker does not tell (before Kafka 2.3)."""

    partitions: tuple[MetadataResponsePartition, ...]
    permissions: frozenset[AclOperation] | None
    is_internal: bool = False  # brokers accept no rows for it


@dataclass(frozen=True)
class DescribeTopic(Operation[str, TopicDescription | None]):
    """Asks for the metadata of one topic; None if it does not exist. Never creates it."""

    api_key = ApiKey.METADATA

    def message(self, items: Sequence[str], node_id: int, version: int) -> MetadataRequest:  # noqa: ARG002
        return MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=topic) for topic in items),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=version >= FIRST_METADATA_WITH_OPERATIONS,
        )

    def judge(self, item: str, answer: MetadataResponse, version: int) -> TopicDescription | None:  # noqa: ARG002
        topic_answer = next((topic for topic in answer.topics if topic.name == item), None)
        error = Errors.for_code(answer.error_code if topic_answer is None else topic_answer.error_code)
        if error == Errors.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        self.check(error, item, item)
        if topic_answer is None:
            raise missing_answer_error(self.describe(item))
        partitions = sorted(topic_answer.partitions, key=lambda each: each.partition_index)
        permissions = authorized_operations(topic_answer.topic_authorized_operations)
        return TopicDescription(tuple(partitions), permissions, topic_answer.is_internal)

    def describe(self, item: str) -> str:
        return f"Metadata of topic {printable(item)}"


@dataclass(frozen=True)
class DescribeTopicConfigs(Operation[str, Mapping[str, str]]):
    """Asks for settings of a topic, the brokers' defaults included, without those that the broker does not have or hides."""

    names: tuple[str, ...]

    api_key = ApiKey.DESCRIBE_CONFIGS

    def message(self, items: Sequence[str], node_id: int, version: int) -> DescribeConfigsRequest:  # noqa: ARG002
        return DescribeConfigsRequest(
            resources=tuple(
                DescribeConfigsResource(
                    resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=tuple(self.names)
                )
                for topic in items
            )
        )

    def judge(self, item: str, answer: DescribeConfigsResponse, version: int) -> Mapping[str, str]:  # noqa: ARG002
        topic_answer = self.require_answer(item, (each for each in answer.results if each.resource_name == item))
        error = Errors.for_code(topic_answer.error_code)
        if error == Errors.TOPIC_AUTHORIZATION_FAILED:
            exception = error.exception(self.describe(item))
            exception.message += f" Grant the user DESCRIBE_CONFIGS on the topic {printable(item)!r}."
            raise exception
        if error == Errors.UNKNOWN_TOPIC_OR_PARTITION:
            raise failure(error, self.describe(item), item)  # not retried: this request does not create the topic
        self.check(error, item, item)
        return {each.name: each.value for each in topic_answer.configs if each.name in self.names and each.value is not None}

    def describe(self, item: str) -> str:
        return f"DescribeConfigs of topic {printable(item)}"
