"""DescribeGroups: the state and members of groups, and what the user may do with each (DescribeGroupsRequest.json, KIP-430).

Up to version 5 a group that does not exist is described as dead, without an error; the answer also says what the user may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.permissions import AUTHORIZED_OPERATIONS_OMITTED
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Message, Request, since


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember(Message):
    member_id: str
    group_instance_id: Annotated[str | None, since(4), IGNORABLE] = None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(Message):
    error_code: Int16 = 0
    group_id: str
    group_state: str = ""  # Dead: it does not exist
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[Int32, since(3)] = AUTHORIZED_OPERATIONS_OMITTED


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse(Message):
    API_KEY: ClassVar = ApiKey.DESCRIBE_GROUPS

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    groups: tuple[DescribedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    groups: tuple[str, ...]
    include_authorized_operations: Annotated[bool, since(3)] = False
