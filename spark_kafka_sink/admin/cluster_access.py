"""What all calls of a RequestClient share: the network, the metadata, and the coordinators and leaders that were found so far.

Runs on the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorDirectory
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.protocol.topic_partition import TopicPartition

MIN_RETRY_BACKOFF_MS = 10  # also if retry.backoff.ms is less


class ClusterAccess:
    """One client's connections and its knowledge of the cluster, kept from call to call.

    Args:
        config: the network's options; retry.backoff.ms, retry.backoff.max.ms, request.timeout.ms.
        clock, metadata, network, random: only tests pass them; by default they are made from the config.

    Raises:
        ConfigError: as NetworkClient does.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        clock: Clock | None = None,
        metadata: Metadata | None = None,
        network: KafkaClient | None = None,
        random: Random | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.metadata = metadata or Metadata(config, self.clock)
        self.network: KafkaClient = network or NetworkClient(config, self.metadata, self.clock)
        self.request_timeout_ms = config.request_timeout_ms
        self.coordinators = CoordinatorDirectory(self.network)
        self.leaders = LeaderDirectory(self.network)
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())

    def backoff_ms(self, failure_count: int) -> int:
        """How long to wait before the next attempt after this many failed ones (KIP-580)."""
        return max(self._backoff.backoff_ms(failure_count - 1), MIN_RETRY_BACKOFF_MS)

    def is_metadata_newer_than(self, version: int) -> bool:
        """Whether metadata is newer than this version. Raises the fatal error of the metadata, if there is one."""
        try:
            self.metadata.await_update(version, 0)
        except KafkaTimeoutError:
            return False
        return True

    def timeout_error(self, item_text: str, timeout_ms: int, trouble: str) -> KafkaTimeoutError:
        """The error when `item_text` has no answer in time. `trouble`: why it has none yet; "": not known."""
        since_ms = self.clock.now_ms() - timeout_ms
        if self.metadata.cluster().is_bootstrap:
            return KafkaTimeoutError(
                f"{self.metadata.silence_text(since_ms)} ({item_text}, within {timeout_ms} ms)",
                condition="KAFKA_BROKER_UNREACHABLE",
            )
        reason = "; ".join(filter(None, (trouble, self.metadata.last_trouble(since_ms)))) or "it has not been sent"
        return KafkaTimeoutError(f"{item_text} was not answered within {timeout_ms} ms; the last trouble: {reason}")


class LeaderDirectory:
    """Keeps the leaders that were found last for the partitions of each topic. `client` can connect to every node it returns."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._leaders: dict[str, Mapping[int, Node | None]] = {}  # by topic

    def get(self, partition: TopicPartition) -> Node | None:
        """The partition's leader; None if it must be looked up first."""
        node = self._leaders.get(partition.topic, {}).get(partition.partition)
        if node is not None:
            self._client.learn_node(node)  # the client keeps only the nodes that it learnt last
        return node

    def remember(self, topic: str, leaders: Mapping[int, Node | None]) -> None:
        """Keep the leaders of all partitions of the topic. None: there is none at the moment."""
        self._leaders[topic] = leaders

    def forget(self, topic: str) -> None:
        """Look the leaders up next time: a broker says that it is not the leader, or cannot be reached."""
        self._leaders.pop(topic, None)
