"""FindCoordinator and DescribeConfigs: which broker coordinates a group or transactional id, and the settings of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.operation import Done, Operation, Retry, left_out, retry_or_raise
from spark_kafka_sink.errors import ProtocolError, printable
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    ResourceType,
)
from spark_kafka_sink.protocol.messages.find_coordinator import (
    FIRST_VERSION_WITH_KEYS,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    KeyType,
)

KEYS_PER_REQUEST = 200


@dataclass(frozen=True)
class FindCoordinator(Operation[str, Node]):
    """The coordinator of a group or a transactional id. Many keys in one request from version 4 on (KIP-699)."""

    key_type: KeyType

    api_key = ApiKey.FIND_COORDINATOR

    def batch_size(self, version: int) -> int:
        return KEYS_PER_REQUEST if version >= FIRST_VERSION_WITH_KEYS else 1

    def message(self, items: Sequence[str], node_id: int, version: int) -> FindCoordinatorRequest:  # noqa: ARG002
        return FindCoordinatorRequest.for_keys(self.key_type, items)

    def judge(self, item: str, answer: FindCoordinatorResponse, version: int) -> Done[Node] | Retry:
        found = answer.of(item, version)
        if found is None:
            raise left_out(self.describe(item))
        error = Errors.for_code(found.error_code)
        if error:
            return retry_or_raise(error, self.describe(item), item)
        if found.node_id < 0:
            raise ProtocolError(f"{self.describe(item)}: the broker names a coordinator with the id {found.node_id}")
        return Done(Node(found.node_id, found.host, found.port))

    def describe(self, item: str) -> str:
        kind = "group" if self.key_type is KeyType.GROUP else "transactional id"
        return f"FindCoordinator of {kind} {printable(item)}"


@dataclass(frozen=True)
class FindCoordinators(Operation[tuple[str, ...], list[int]]):
    """The node ids of the coordinators of transactional ids, all of them at the same moment (Kafka 3.0 and newer)."""

    api_key = ApiKey.FIND_COORDINATOR

    @property
    def versions(self) -> tuple[int, int | None]:
        return FIRST_VERSION_WITH_KEYS, None

    def message(self, items: Sequence[tuple[str, ...]], node_id: int, version: int) -> FindCoordinatorRequest:  # noqa: ARG002
        (item,) = items
        return FindCoordinatorRequest.for_keys(KeyType.TRANSACTION, item)

    def judge(self, item: tuple[str, ...], answer: FindCoordinatorResponse, version: int) -> Done[list[int]] | Retry:  # noqa: ARG002
        found = {each.key: each for each in answer.coordinators}
        for key in item:
            if key not in found:
                raise left_out(self.describe((key,)))
            error = Errors.for_code(found[key].error_code)
            if error:
                return retry_or_raise(error, self.describe((key,)), key)
        return Done([found[key].node_id for key in item])

    def describe(self, item: tuple[str, ...]) -> str:
        more = f" and {len(item) - 1} more" if len(item) > 1 else ""
        return f"FindCoordinator of transactional id {printable(item[0])}{more}"


@dataclass(frozen=True)
class DescribeBrokerConfig(Operation[str, str | None]):
    """One setting of the broker that gets the request; None if the broker has no such setting or hides its value."""

    api_key = ApiKey.DESCRIBE_CONFIGS

    def message(self, items: Sequence[str], node_id: int, version: int) -> DescribeConfigsRequest:  # noqa: ARG002
        resource = DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name=str(node_id), configuration_keys=tuple(items)
        )
        return DescribeConfigsRequest(resources=(resource,))

    def judge(self, item: str, answer: DescribeConfigsResponse, version: int) -> Done[str | None] | Retry:  # noqa: ARG002
        if not answer.results:
            raise left_out(self.describe(item))
        error = Errors.for_code(answer.results[0].error_code)
        if error:
            return retry_or_raise(error, self.describe(item), item)
        return Done(next((config.value for config in answer.results[0].configs if config.name == item), None))

    def describe(self, item: str) -> str:
        return f"DescribeConfigs of broker setting {printable(item)}"
