"""FindCoordinator, DescribeConfigs and ApiVersions: which broker coordinates a group or transactional id, brokers' settings, and
what their software can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.admin.operation import Operation, retry_or_failure
from spark_kafka_sink.errors import printable
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorKey, keys_per_request, read_coordinator
from spark_kafka_sink.network.handshake import api_versions_request
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    ResourceType,
)
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse, KeyType


@dataclass(frozen=True)
class FindCoordinator(Operation[CoordinatorKey, Node]):
    """Asks which broker coordinates a group or a transactional id. Many keys in one request from version 4 on (KIP-699)."""

    key_type: KeyType  # of all items
    oldest_version: int = 0

    api_key = ApiKey.FIND_COORDINATOR

    @property
    def versions(self) -> tuple[int, int | None]:
        return self.oldest_version, None

    def batch_size(self, version: int) -> int:
        return keys_per_request(version)

    def message(self, items: Sequence[CoordinatorKey], node_id: int, version: int) -> FindCoordinatorRequest:  # noqa: ARG002
        return FindCoordinatorRequest.for_keys(self.key_type, [item.key for item in items])

    def judge(self, item: CoordinatorKey, answer: FindCoordinatorResponse, version: int) -> Node:
        answer_or_error = read_coordinator(item, answer, version)
        if isinstance(answer_or_error, Node):
            return answer_or_error
        raise retry_or_failure(answer_or_error, self.describe(item), item.key)

    def describe(self, item: CoordinatorKey) -> str:
        return f"FindCoordinator of {item.kind} {printable(item.key)}"


@dataclass(frozen=True)
class DescribeBrokerConfig(Operation[str, str | None]):
    """Asks a broker for one of its settings; None if the broker has no such setting or hides its value."""

    api_key = ApiKey.DESCRIBE_CONFIGS

    def message(self, items: Sequence[str], node_id: int, version: int) -> DescribeConfigsRequest:  # noqa: ARG002
        resource = DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name=str(node_id), configuration_keys=tuple(items)
        )
        return DescribeConfigsRequest(resources=(resource,))

    def judge(self, item: str, answer: DescribeConfigsResponse, version: int) -> str | None:  # noqa: ARG002
        broker = self.require_answer(item, answer.results)
        self.check(Errors.for_code(broker.error_code), item, item)
        return next((config.value for config in broker.configs if config.name == item), None)

    def describe(self, item: str) -> str:
        return f"DescribeConfigs of broker setting {printable(item)}"


@dataclass(frozen=True)
class SupportedFeature(Operation[str, int | None]):
    """Asks a broker for the highest level of a feature that its software supports, whatever level is finalized (KIP-584); None if
    it does not know the feature."""

    api_key = ApiKey.API_VERSIONS

    def message(self, items: Sequence[str], node_id: int, version: int) -> ApiVersionsRequest:  # noqa: ARG002
        return api_versions_request()

    def judge(self, item: str, answer: ApiVersionsResponse, version: int) -> int | None:  # noqa: ARG002
        self.check(Errors.for_code(answer.error_code), item, item)
        return next((feature.max_version for feature in answer.supported_features if feature.name == item), None)

    def describe(self, item: str) -> str:
        return f"ApiVersions, the feature {printable(item)}"
