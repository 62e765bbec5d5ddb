"""OffsetFetch and OffsetCommit of groups that have no members: a small durable store, one record per group and partition.

A coordinator accepts an offset only for a partition that exists. Offsets that are part of an open transaction are invisible until
it is committed. Of a plain OffsetCommit and an offset in a transaction, the one that was written later takes effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.admin.operation import Operation, RetryNeeded, failure, missing_answer_error, retry_or_failure
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    FIRST_VERSION_WITH_GROUPS,
    NO_OFFSET,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition, partitions_by_topic

MAX_GROUPS_PER_REQUEST = 100
FIRST_VERSION_WITH_REQUIRE_STABLE = 7

_MEMBER_ERRORS = frozenset({Errors.ILLEGAL_GENERATION, Errors.UNKNOWN_MEMBER_ID, Errors.REBALANCE_IN_PROGRESS})


class CommittedOffset(NamedTuple):
    """What a consumer group has committed for a partition: the next record to read, and a text."""

    offset: int
    metadata: str = ""  # at most offset.metadata.max.bytes of the broker, 4096 by default


class OffsetsToFetch(NamedTuple):
    """An item of FetchOffsets: the group, and the partitions whose committed offsets are asked for."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None  # None: all partitions with a committed offset


@dataclass(frozen=True)
class FetchOffsets(Operation[OffsetsToFetch, dict[TopicPartition, CommittedOffset]]):
    """Asks for the committed offsets of a group, where there are any. Since version 8, a request takes many groups (KIP-709)."""

    require_stable: bool

    api_key = ApiKey.OFFSET_FETCH

    @property
    def versions(self) -> tuple[int, int | None]:
        return (FIRST_VERSION_WITH_REQUIRE_STABLE if self.require_stable else 0), None

    def batch_size(self, version: int) -> int:
        return MAX_GROUPS_PER_REQUEST if version >= FIRST_VERSION_WITH_GROUPS else 1

    def message(self, items: Sequence[OffsetsToFetch], node_id: int, version: int) -> OffsetFetchRequest:  # noqa: ARG002
        return OffsetFetchRequest.for_groups(
            {item.group_id: None if item.partitions is None else _topics(item.partitions) for item in items},
            require_stable=self.require_stable,
        )

    def judge(self, item: OffsetsToFetch, answer: OffsetFetchResponse, version: int) -> dict[TopicPartition, CommittedOffset]:
        group = answer.answer_for(item.group_id, version)
        item_text = self.describe(item)
        if group is None:
            raise missing_answer_error(item_text)
        error = Errors.for_code(group.error_code)
        if error == Errors.GROUP_ID_NOT_FOUND:
            return {}  # of a group without offsets, some brokers that are not Apache's say so
        self.check(error, item, item.group_id)
        answers = [(topic.name, partition) for topic in group.topics for partition in topic.partitions]
        offsets = {TopicPartition(topic, partition.partition_index): partition for topic, partition in answers}
        for partition, offset in offsets.items():
            error = Errors.for_code(offset.error_code)
            if error:
                raise retry_or_failure(error, f"{item_text}, partition {partition}", partition.topic)
        for partition in item.partitions or ():
            if partition not in offsets:  # it may have an offset, so the result must not say that it has none
                raise missing_answer_error(f"{item_text}, partition {partition}")
        return {
            partition: CommittedOffset(offset.committed_offset, offset.metadata or "")
            for partition, offset in offsets.items()
            if offset.committed_offset != NO_OFFSET
        }

    def describe(self, item: OffsetsToFetch) -> str:
        return f"OffsetFetch of group {printable(item.group_id)}"


@dataclass(frozen=True)
class FetchStableOffsets(Operation[OffsetsToFetch, dict[TopicPartition, CommittedOffset] | None]):
    """As FetchOffsets, but None while an open transaction holds an offset of the partitions: it is not waited for."""

    api_key = ApiKey.OFFSET_FETCH
    _fetch = FetchOffsets(require_stable=True)

    @property
    def versions(self) -> tuple[int, int | None]:
        return self._fetch.versions

    def batch_size(self, version: int) -> int:
        return self._fetch.batch_size(version)

    def message(self, items: Sequence[OffsetsToFetch], node_id: int, version: int) -> OffsetFetchRequest:
        return self._fetch.message(items, node_id, version)

    def judge(
        self, item: OffsetsToFetch, answer: OffsetFetchResponse, version: int
    ) -> dict[TopicPartition, CommittedOffset] | None:
        try:
            return self._fetch.judge(item, answer, version)
        except RetryNeeded as retry:
            if retry.error == Errors.UNSTABLE_OFFSET_COMMIT:
                return None
            raise

    def describe(self, item: OffsetsToFetch) -> str:
        return self._fetch.describe(item)


def _topics(partitions: Iterable[TopicPartition]) -> tuple[OffsetFetchRequestTopic, ...]:
    return tuple(
        OffsetFetchRequestTopic(name=topic, partition_indexes=tuple(each.partition for each in topic_partitions))
        for topic, topic_partitions in partitions_by_topic(set(partitions)).items()
    )


class OffsetsToCommit(NamedTuple):
    """An item of CommitOffsets: the group, and the offsets to commit for it."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True)
class CommitOffsets(Operation[OffsetsToCommit, None]):
    """Commits a group's offsets in one request. The coordinator writes them as one batch, so they appear together."""

    api_key = ApiKey.OFFSET_COMMIT

    def message(self, items: Sequence[OffsetsToCommit], node_id: int, version: int) -> OffsetCommitRequest:  # noqa: ARG002
        (item,) = items
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=partition.partition,
                        committed_offset=item.offsets[partition].offset,
                        committed_metadata=item.offsets[partition].metadata,
                    )
                    for partition in topic_partitions
                ),
            )
            for topic, topic_partitions in partitions_by_topic(item.offsets).items()
        ]
        return OffsetCommitRequest(group_id=item.group_id, topics=tuple(topics))

    def judge(self, item: OffsetsToCommit, answer: OffsetCommitResponse, version: int) -> None:  # noqa: ARG002
        answers = [(topic.name, partition) for topic in answer.topics for partition in topic.partitions]
        codes = {TopicPartition(topic, partition.partition_index): partition.error_code for topic, partition in answers}
        for partition in item.offsets:
            if partition not in codes:
                raise missing_answer_error(f"{self.describe(item)}, partition {partition}")
        partition_errors = {partition: Errors.for_code(code) for partition, code in codes.items() if code}
        for partition, error in partition_errors.items():
            if error == Errors.UNKNOWN_TOPIC_OR_PARTITION or not error.is_retriable:
                raise self._failure(item, partition, error)
        if partition_errors:
            raise RetryNeeded(next(iter(partition_errors.values())))

    def _failure(self, item: OffsetsToCommit, partition: TopicPartition, error: ErrorCode) -> KafkaError:
        item_text = f"{self.describe(item)}, partition {partition}"
        exception = failure(error, item_text, item.group_id if error == Errors.GROUP_AUTHORIZATION_FAILED else partition.topic)
        if error == Errors.UNKNOWN_TOPIC_OR_PARTITION:
            exception.message += " An offset can be committed only for a partition that exists."
        elif error == Errors.OFFSET_METADATA_TOO_LARGE:
            size = len(item.offsets[partition].metadata) if partition in item.offsets else 0
            exception.message += f" It has {size:,} characters; the broker's limit is offset.metadata.max.bytes."
        elif error in _MEMBER_ERRORS:
            exception.message += " The group has members: consumers use this group id; choose one that no consumer uses."
        return exception

    def describe(self, item: OffsetsToCommit) -> str:
        return f"OffsetCommit of group {printable(item.group_id)}"
