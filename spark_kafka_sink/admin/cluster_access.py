"""What all calls of a RequestClient share: the network, the metadata, and the coordinators that were found so far.

Runs on the thread of the caller.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from spark_kafka_sink.admin.operation import CoordinatorOf
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Cluster, Node
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient

MAX_COORDINATORS = 10_000  # how many are remembered; the oldest are forgotten, and found again when needed
LEAST_BACKOFF_MS = 10  # also if retry.backoff.ms is less


class Network(Protocol):
    """The methods of NetworkClient that are used here. Tests pass another network."""

    def learn_node(self, node: Node) -> None: ...
    def ready(self, node_id: int, now_ms: int) -> bool: ...
    def poll_delay_ms(self, node_id: int, now_ms: int) -> int: ...
    def connection_failed(self, node_id: int) -> bool: ...
    def refusal(self, node_id: int) -> AuthenticationError | None: ...
    def api_versions(self, node_id: int) -> NodeApiVersions | None: ...
    def least_loaded_node(self, now_ms: int) -> int | None: ...
    def send(self, request: ClientRequest, now_ms: int) -> None: ...
    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]: ...
    def close(self) -> None: ...


class ClusterAccess:
    """Args: see RequestClient."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        clock: Clock | None = None,
        metadata: Metadata | None = None,
        network: Network | None = None,
        random: Random | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.metadata = metadata or Metadata(config, self.clock)
        self.network: Network = network or NetworkClient(config, self.metadata, self.clock)
        self.request_timeout_ms = config.request_timeout_ms
        self._coordinators: dict[CoordinatorOf, Node] = {}  # the one found last for each key; oldest first
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())

    def cluster(self) -> Cluster:
        return self.metadata.cluster()

    def backoff_ms(self, failures: int) -> int:
        """How long to wait before the next attempt after this many failed ones (KIP-580)."""
        return max(self._backoff.backoff_ms(failures - 1), LEAST_BACKOFF_MS)

    def coordinator(self, key: CoordinatorOf) -> Node | None:
        """The coordinator, to which the network can connect; None if it must be looked up first."""
        node = self._coordinators.get(key)
        if node is not None:
            self.network.learn_node(node)
        return node

    def coordinator_found(self, key: CoordinatorOf, node: Node) -> None:
        self.network.learn_node(node)
        self.coordinator_lost(key)
        self._coordinators[key] = node
        if len(self._coordinators) > MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]

    def coordinator_lost(self, key: CoordinatorOf) -> None:
        self._coordinators.pop(key, None)

    def is_newer_than(self, version: int) -> bool:
        """Whether metadata is newer than this version. Raises a fatal error, as `fatal_error` returns it."""
        try:
            self.metadata.await_update(version, 0)
        except KafkaTimeoutError:
            return False
        return True

    def fatal_error(self) -> KafkaError | None:
        """The error because of which no broker can be asked, if there is one. Returned once, unless it is permanent."""
        try:
            self.is_newer_than(-1)  # always true, unless it raises
        except KafkaError as error:
            return error
        return None

    def timeout_error(self, what: str, timeout_ms: int, trouble: str) -> KafkaTimeoutError:
        connections = self.metadata.last_connection_error()
        if self.cluster().is_bootstrap:
            return KafkaTimeoutError(
                f"no broker answered: {connections or 'no connection failed, but there was no response'}; check"
                f" bootstrap.servers and the network ({what}, within {timeout_ms} ms)",
                condition="KAFKA_BROKER_UNREACHABLE",
            )
        trouble = trouble or connections or "it has not been sent"
        return KafkaTimeoutError(f"{what} was not answered within {timeout_ms} ms; the last trouble: {trouble}")
