"""Metadata, DescribeProducers and ListOffsets: who leads a partition, which producers the leader knows, and how far its log goes.

Two answers of DescribeProducers that differ in a producer's last sequence number show that it has written between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_kafka_sink.admin.operation import Operation, failure, missing_answer_error
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.protocol.permissions import DESCRIBE
from spark_kafka_sink.protocol.topic_partition import TopicPartition, partitions_by_topic

_MAX_TOPICS_PER_LOOK = 200
_MAX_PARTITIONS_PER_REQUEST = 2_000  # of ListOffsets: the answer has at most 300 bytes for each


@dataclass(frozen=True)
class FindLeaders(Operation[str, dict[int, Node | None]]):
    """Asks for the leaders of a topic's partitions, by partition; None where there is none at the moment.
    `awaits_topic`: ask again if the topic does not exist, because brokers learn of a new topic late."""

    api_key = ApiKey.METADATA
    awaits_topic: bool = False

    def batch_size(self, version: int) -> int:  # noqa: ARG002
        return _MAX_TOPICS_PER_LOOK

    def message(self, items: Sequence[str], node_id: int, version: int) -> MetadataRequest:  # noqa: ARG002
        topics = tuple(MetadataRequestTopic(name=topic) for topic in items)
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    def judge(self, item: str, answer: MetadataResponse, version: int) -> dict[int, Node | None]:  # noqa: ARG002
        topic_answer = next((topic for topic in answer.topics if topic.name == item), None)
        error = Errors.for_code(answer.error_code if topic_answer is None else topic_answer.error_code)
        if error == Errors.UNKNOWN_TOPIC_OR_PARTITION and not self.awaits_topic:
            raise failure(error, self.describe(item), item)  # not retried: only `awaits_topic` expects a new topic
        self.check(error, item, item)
        if topic_answer is None:
            raise missing_answer_error(self.describe(item))
        nodes = {each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        return {each.partition_index: nodes.get(each.leader_id) for each in topic_answer.partitions}

    def describe(self, item: str) -> str:
        return f"Metadata of topic {printable(item)}"


def unknown_partition_error(partition: TopicPartition) -> KafkaError:
    """The error for a partition that the answer to FindLeaders does not contain."""
    item_text = f"{FindLeaders().describe(partition.topic)}, partition {printable(partition)}"
    return failure(Errors.UNKNOWN_TOPIC_OR_PARTITION, item_text, partition.topic)


class ActiveProducer(NamedTuple):
    """What a partition knows about one producer that has written to it."""

    producer_epoch: int
    last_sequence: int  # of its last batch; -1: it has written nothing in this epoch
    transaction_start_offset: int | None  # None: it has no open transaction there


@dataclass(frozen=True)
class DescribeProducers(Operation[TopicPartition, dict[int, ActiveProducer]]):
    """Asks for the producers of a partition, by producer id. Each request has one partition: its answer lists all producers of a
    day (producer.id.expiration.ms), 37 bytes each."""

    producer_ids: frozenset[int] | None = None  # None: all

    api_key = ApiKey.DESCRIBE_PRODUCERS
    is_for_leader_alone = False  # a follower tells what it knows, which may be old

    def message(self, items: Sequence[TopicPartition], node_id: int, version: int) -> DescribeProducersRequest:  # noqa: ARG002
        (item,) = items
        return DescribeProducersRequest(topics=(TopicRequest(name=item.topic, partition_indexes=(item.partition,)),))

    def judge(self, item: TopicPartition, answer: DescribeProducersResponse, version: int) -> dict[int, ActiveProducer]:  # noqa: ARG002
        partition = _partition_answer(self, item, answer.topics)
        return {
            producer.producer_id: ActiveProducer(
                producer.producer_epoch,
                producer.last_sequence,
                producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
            )
            for producer in partition.active_producers
            if self.producer_ids is None or producer.producer_id in self.producer_ids
        }

    def describe(self, item: TopicPartition) -> str:
        return f"DescribeProducers of partition {printable(item)}"


@dataclass(frozen=True)
class ListEndOffset(Operation[TopicPartition, int | None]):
    """Asks for the offset after the last record that readers of this isolation level see; None while there is no leader."""

    isolation_level: IsolationLevel

    api_key = ApiKey.LIST_OFFSETS
    awaits_leader = False
    on_topic = DESCRIBE

    def batch_size(self, version: int) -> int:  # noqa: ARG002
        return _MAX_PARTITIONS_PER_REQUEST

    def message(self, items: Sequence[TopicPartition], node_id: int, version: int) -> ListOffsetsRequest:  # noqa: ARG002
        topics = (
            ListOffsetsTopic(
                name=topic, partitions=tuple(ListOffsetsPartition(partition_index=each.partition) for each in partitions)
            )
            for topic, partitions in partitions_by_topic(items).items()
        )
        return ListOffsetsRequest(isolation_level=self.isolation_level, topics=tuple(topics))

    def judge(self, item: TopicPartition, answer: ListOffsetsResponse, version: int) -> int | None:  # noqa: ARG002
        offset: int = _partition_answer(self, item, answer.topics).offset
        return offset

    def describe(self, item: TopicPartition) -> str:
        return f"ListOffsets of partition {printable(item)}"


def _partition_answer(operation: Operation[TopicPartition, Any], item: TopicPartition, topics: Iterable[Any]) -> Any:
    """What the answer says of this partition. Raises as `require_answer` and `check` do."""
    partitions = (partition for topic in topics if topic.name == item.topic for partition in topic.partitions)
    partition = operation.require_answer(item, (each for each in partitions if each.partition_index == item.partition))
    operation.check(Errors.for_code(partition.error_code), item, item.topic)
    return partition
