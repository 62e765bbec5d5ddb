"""OffsetFetch: the committed offsets of groups, with their metadata (OffsetFetchRequest.json, KIP-709).

Up to version 7 a request asks for one group, in `group_id` and `topics`, and the answer is the response itself. From version 8 on
it asks for `groups`, and the response's `groups` has an answer for each. `for_groups` fills both, so that the message can be made
before the version is known; `answer_for` reads both. Topics that are null mean all topics of the group. With `require_stable`
(version 7, KIP-447) partitions whose offsets are part of an open transaction get the error UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import Buffer
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Request, since, until

FIRST_VERSION_WITH_GROUPS = 8
NO_OFFSET = -1  # of a requested partition without a committed offset


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition(Message):
    partition_index: Int32
    committed_offset: Int64 = NO_OFFSET
    committed_leader_epoch: Annotated[Int32, since(5), IGNORABLE] = -1
    metadata: str | None = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic(Message):
    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup(Message):
    group_id: str
    topics: tuple[OffsetFetchResponseTopic, ...] = ()
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(Message):
    API_KEY: ClassVar = ApiKey.OFFSET_FETCH

    throttle_time_ms: Annotated[Int32, since(3), IGNORABLE] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], until(7)] = ()
    error_code: Annotated[Int16, until(7), IGNORABLE] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], since(8)] = ()

    def answer_for(self, group_id: str, version: int) -> OffsetFetchResponseGroup | None:
        """The answer for one of the requested groups; None if the broker did not return it."""
        if version >= FIRST_VERSION_WITH_GROUPS:
            return next((group for group in self.groups if group.group_id == group_id), None)
        return OffsetFetchResponseGroup(group_id=group_id, topics=self.topics, error_code=self.error_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic(Message):
    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup(Message):
    group_id: str
    member_id: Annotated[str | None, since(9), IGNORABLE] = None
    member_epoch: Annotated[Int32, since(9), IGNORABLE] = -1
    topics: tuple[OffsetFetchRequestTopic, ...] | None  # None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Has the group in both forms; the version decides which one is sent. Several groups need version 8."""

    group_id: Annotated[str, until(7), IGNORABLE] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, until(7), IGNORABLE] = ()
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], since(8), IGNORABLE] = ()
    require_stable: Annotated[bool, since(7)] = False

    @classmethod
    def for_groups(
        cls, groups: Mapping[str, tuple[OffsetFetchRequestTopic, ...] | None], *, require_stable: bool = False
    ) -> OffsetFetchRequest:
        """A request from group id -> topics, at least one group; None means all topics of the group."""
        (group_id, topics), *other_groups = groups.items()
        return cls(
            group_id="" if other_groups else group_id,
            topics=() if other_groups else topics,
            groups=tuple(OffsetFetchRequestGroup(group_id=group_id, topics=topics) for group_id, topics in groups.items()),
            require_stable=require_stable,
        )

    def encode(self, version: int) -> list[Buffer]:
        """As Message.encode. Raises UnsupportedVersionError for groups that the version cannot carry, and never omits them."""
        groups = {(group.group_id, group.topics) for group in self.groups}
        single_group = (self.group_id, self.topics)
        if version >= FIRST_VERSION_WITH_GROUPS:
            is_lossy = bool(self.group_id) and single_group not in groups
        else:
            is_lossy = bool(groups) and groups != {single_group}
        if is_lossy:
            raise UnsupportedVersionError(
                f"OffsetFetchRequest v{version} cannot carry group_id={self.group_id!r}"
                f" with groups={[group.group_id for group in self.groups]!r}"
            )
        return super(OffsetFetchRequest, self).encode(version)
