"""What every call shares: the network, the metadata, and the coordinators that were found so far.

Part of RequestClient, on its thread.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.coordination.operation import CoordinatorOf
from spark_kafka_sink.errors import AuthenticationError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Cluster, Node
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient

MAX_COORDINATORS = 10_000  # that are remembered; asks that wait for one do not depend on it
LEAST_BACKOFF_MS = 10  # however small the options are


class Network(Protocol):
    """What is needed of NetworkClient; tests hand in another."""

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
        self._coordinators: dict[CoordinatorOf, Node] = {}  # as found last, oldest first
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())

    def cluster(self) -> Cluster:
        return self.metadata.cluster()

    def backoff_ms(self, failures: int) -> int:
        """Before an attempt that follows so many failed ones (KIP-580)."""
        return max(self._backoff.backoff_ms(failures - 1), LEAST_BACKOFF_MS)

    def coordinator(self, key: CoordinatorOf) -> Node | None:
        """None when it has to be found, or to be found again. One that is told of can be connected to."""
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

    def has_news_since(self, version: int) -> bool:
        """Whether metadata is newer than that. Raises what is fatal, as `fatal_error` tells it."""
        try:
            self.metadata.await_update(version, 0)
        except KafkaTimeoutError:
            return False
        return True

    def fatal_error(self) -> KafkaError | None:
        """Why nothing can be asked of any broker, if so. Told once, unless it is permanent."""
        try:
            self.has_news_since(-1)  # it always has
        except KafkaError as error:
            return error
        return None

    def timeout_error(self, what: str, timeout_ms: int, trouble: str) -> KafkaTimeoutError:
        connections = self.metadata.last_connection_error()
        if self.cluster().is_bootstrap:
            return KafkaTimeoutError(
                f"no broker answered: {connections or 'no connection failed, and yet nothing came'}; check"
                f" bootstrap.servers and the network ({what}, within {timeout_ms} ms)",
                condition="KAFKA_BROKER_UNREACHABLE",
            )
        trouble = trouble or connections or "it has not been sent"
        return KafkaTimeoutError(f"{what} was not answered within {timeout_ms} ms; the last trouble: {trouble}")
