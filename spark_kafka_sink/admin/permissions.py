"""What the user may do with groups and transactional ids, as far as brokers tell it without anything being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.operation import Operation
from spark_kafka_sink.errors import printable
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2, EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.permissions import AclOperation, authorized_operations

FIRST_DESCRIBE_GROUPS_WITH_OPERATIONS = 3
NOBODYS_PRODUCER_ID = (1 << 63) - 1  # no producer has it: brokers assign ids from 0 upwards


@dataclass(frozen=True)
class GroupPermissions(Operation[str, "frozenset[AclOperation] | None"]):
    """Asks what the user may do with a group, which need not exist; None if the broker does not tell (before Kafka 2.3).
    Asking needs DESCRIBE on the group."""

    api_key = ApiKey.DESCRIBE_GROUPS

    def message(self, items: Sequence[str], node_id: int, version: int) -> DescribeGroupsRequest:  # noqa: ARG002
        can_tell = version >= FIRST_DESCRIBE_GROUPS_WITH_OPERATIONS
        return DescribeGroupsRequest(groups=tuple(items), include_authorized_operations=can_tell)

    def judge(self, item: str, answer: DescribeGroupsResponse, version: int) -> frozenset[AclOperation] | None:  # noqa: ARG002
        group = self.require_answer(item, (each for each in answer.groups if each.group_id == item))
        error = Errors.for_code(group.error_code)
        if error != Errors.GROUP_ID_NOT_FOUND:
            self.check(error, item, item)
        return authorized_operations(group.authorized_operations)

    def describe(self, item: str) -> str:
        return f"DescribeGroups of group {printable(item)}"


@dataclass(frozen=True)
class MayWriteToId(Operation[str, bool]):
    """Asks whether the user may WRITE to a transactional id. The answer is true, or an AuthorizationError.

    Coordinators check the permission first. So this sends an EndTxn with a producer id that no producer has. The request changes
    nothing, whether or not the coordinator knows the transactional id.
    """

    api_key = ApiKey.END_TXN

    @property
    def versions(self) -> tuple[int, int | None]:
        return 0, LAST_END_TXN_VERSION_BEFORE_TV2

    def message(self, items: Sequence[str], node_id: int, version: int) -> EndTxnRequest:  # noqa: ARG002
        (item,) = items
        return EndTxnRequest(transactional_id=item, producer_id=NOBODYS_PRODUCER_ID, producer_epoch=0, committed=False)

    def judge(self, item: str, answer: EndTxnResponse, version: int) -> bool:  # noqa: ARG002
        error = Errors.for_code(answer.error_code)
        if error != Errors.INVALID_PRODUCER_ID_MAPPING:
            self.check(error, item, item)
        return True

    def describe(self, item: str) -> str:
        return f"asking whether transactional id {printable(item)} may be written (by an EndTxn that changes nothing)"
