"""Offsets of consumer groups, committed or pending in a transaction, as a pure state machine.

The part of Kafka's group coordinator that producers use: OffsetCommit, TxnOffsetCommit, OffsetFetch. Groups have no members.
Members, generations, expiry of offsets and permissions are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    FIRST_VERSION_WITH_GROUPS,
    NO_OFFSET,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.transaction_coordinator import TransactionCoordinator, offsets_partition, verification

DEFAULT_MAX_METADATA_BYTES = 4096  # offset.metadata.max.bytes


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int = -1
    position: int = -1  # in __consumer_offsets: the higher position wins, also if its transaction ends first


@dataclass
class Group:
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)  # by producer id

    def is_pending(self, partition: TopicPartition) -> bool:
        return any(partition in offsets for offsets in self.pending.values())

    def settle(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        for partition, committed in offsets.items():
            last_commit = self.offsets.get(partition)
            if last_commit is None or last_commit.position < committed.position:
                self.offsets[partition] = committed


class GroupOffsets:
    """All groups of a cluster.

    Args:
        coordinator: verifies transactions before offsets become pending in them.
        exists: whether a partition exists; offsets of partitions that do not exist are rejected.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        *,
        exists: Callable[[TopicPartition], bool] = lambda _: True,
        max_metadata_bytes: int = DEFAULT_MAX_METADATA_BYTES,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.max_metadata_bytes = max_metadata_bytes
        self.rejects_unknown = False  # answers GROUP_ID_NOT_FOUND to OffsetFetch of a group without offsets, as Apache's do not
        self._coordinator = coordinator
        self._exists = exists
        self._next_position = 0

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return dict(self._group(group_id).offsets)

    def _group(self, group_id: str) -> Group:
        return self.groups.setdefault(group_id, Group())

    def delete_topic(self, name: str) -> None:
        """Delete the offsets of a deleted topic."""
        for group in self.groups.values():
            for offsets in (group.offsets, *group.pending.values()):
                for partition in [partition for partition in offsets if partition.topic == name]:
                    del offsets[partition]

    # REQUESTS

    def handle_commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        error = Errors.NONE if request.generation_id_or_member_epoch < 0 else Errors.UNKNOWN_MEMBER_ID
        group = self._group(request.group_id)
        topics = []
        for topic in request.topics:
            errors = self._commit(topic.name, topic.partitions, group.offsets, error)
            parts = (OffsetCommitResponsePartition(partition_index=index, error_code=code.number) for index, code in errors)
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(parts)))
        return OffsetCommitResponse(topics=tuple(topics))

    def handle_txn_commit(self, request: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
        error = Errors.NONE if request.group_id else Errors.INVALID_GROUP_ID
        partitions = [TopicPartition(topic.name, data.partition_index) for topic in request.topics for data in topic.partitions]
        if not error and any(map(self._exists, partitions)):
            error = self._coordinator.verify(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                offsets_partition(request.group_id),
                verification(version, LAST_TXN_OFFSET_COMMIT_VERSION_BEFORE_TV2),
            )
        pending = self._group(request.group_id).pending.setdefault(request.producer_id, {})
        topics = []
        for topic in request.topics:
            errors = self._commit(topic.name, topic.partitions, pending, error)
            parts = (OffsetCommitResponsePartition(partition_index=index, error_code=code.number) for index, code in errors)
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(parts)))
        return TxnOffsetCommitResponse(topics=tuple(topics))

    def _commit(
        self,
        topic: str,
        partitions: Iterable[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition],
        offsets: dict[TopicPartition, CommittedOffset],
        error: ErrorCode,
    ) -> list[tuple[int, ErrorCode]]:
        errors = []
        for data in partitions:
            partition = TopicPartition(topic, data.partition_index)
            metadata = data.committed_metadata or ""
            if not self._exists(partition):
                failed = Errors.UNKNOWN_TOPIC_OR_PARTITION
            else:
                failed = error or (Errors.OFFSET_METADATA_TOO_LARGE if len(metadata) > self.max_metadata_bytes else Errors.NONE)
            if not failed:
                position, self._next_position = self._next_position, self._next_position + 1
                offsets[partition] = CommittedOffset(data.committed_offset, metadata, data.committed_leader_epoch, position)
            errors.append((data.partition_index, failed))
        return errors

    def handle_fetch(
        self, request: OffsetFetchRequest, version: int, *, is_mine: Callable[[str], bool] = lambda _: True
    ) -> OffsetFetchResponse:
        """`is_mine`: whether the broker that got the request coordinates a group."""
        if version < FIRST_VERSION_WITH_GROUPS:
            group = self._fetch(request.group_id, request.topics, request.require_stable, is_mine)
            return OffsetFetchResponse(topics=group.topics, error_code=group.error_code)
        return OffsetFetchResponse(
            groups=tuple(self._fetch(group.group_id, group.topics, request.require_stable, is_mine) for group in request.groups)
        )

    def _fetch(
        self,
        group_id: str,
        topics: tuple[OffsetFetchRequestTopic, ...] | None,
        require_stable: bool,
        is_mine: Callable[[str], bool],
    ) -> OffsetFetchResponseGroup:
        if not is_mine(group_id):
            return OffsetFetchResponseGroup(group_id=group_id, error_code=Errors.NOT_COORDINATOR.number)
        if self.rejects_unknown and not self.groups.get(group_id, Group()).offsets:
            return OffsetFetchResponseGroup(group_id=group_id, error_code=Errors.GROUP_ID_NOT_FOUND.number)
        group = self.groups.get(group_id, Group())
        if topics is None:
            partitions: Iterable[TopicPartition] = sorted(group.offsets)  # without offsets that are only pending
        else:
            partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]
        parts_by_topic: dict[str, list[OffsetFetchResponsePartition]] = {}
        for partition in partitions:
            parts_by_topic.setdefault(partition.topic, []).append(_fetched(group, partition, require_stable))
        return OffsetFetchResponseGroup(
            group_id=group_id,
            topics=tuple(OffsetFetchResponseTopic(name=name, partitions=tuple(parts)) for name, parts in parts_by_topic.items()),
        )

    # MARKERS

    def end_transaction(self, log: TopicPartition, producer_id: int, committed: bool) -> None:
        """Called with a marker in a partition of __consumer_offsets: commits or drops the pending offsets of its groups."""
        for group_id, group in self.groups.items():
            if offsets_partition(group_id) == log:
                pending = group.pending.pop(producer_id, {})
                if committed:
                    group.settle(pending)


def _fetched(group: Group, partition: TopicPartition, require_stable: bool) -> OffsetFetchResponsePartition:
    if require_stable and group.is_pending(partition):
        error = Errors.UNSTABLE_OFFSET_COMMIT.number
        return OffsetFetchResponsePartition(partition_index=partition.partition, error_code=error)
    commit = group.offsets.get(partition, CommittedOffset(NO_OFFSET, ""))
    return OffsetFetchResponsePartition(
        partition_index=partition.partition,
        committed_offset=commit.offset,
        metadata=commit.metadata,
        committed_leader_epoch=commit.leader_epoch,
    )
