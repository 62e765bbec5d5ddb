"""What brokers know of the transaction that is open, and which version of transactions they speak. Sender thread only."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.kafka_client import KafkaClient
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.topic_partition import TopicPartition

FIRST_INIT_WITH_IDENTITY = 3  # of InitProducerId


class OpenTransaction:
    """Whether it has begun there, and which partitions it has. TransactionManager makes a new one for each transaction.

    In version 1 a partition is added by a request before its first batch is sent; in version 2 the batch itself adds it.
    """

    def __init__(self) -> None:
        self.has_begun = False  # its coordinator knows of it, or may learn of it from a leader
        self.may_have_begun = False  # a request that begins it was sent, and whether it was carried out is not known
        self.may_be_committed = False  # the same of a request that commits it; or it is another process's to end
        self.is_written = False  # a batch of it was acknowledged
        self._partitions: set[TopicPartition] = set()  # that it has
        self.wanted: set[TopicPartition] = set()  # to be added, and in no request
        self._being_added: set[TopicPartition] = set()  # in a request

    @property
    def must_be_ended(self) -> bool:
        """Whether its coordinator may know of it; otherwise there is nothing to end."""
        return self.has_begun or self.may_have_begun

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    def want(self, topic_partition: TopicPartition) -> None:
        """A batch waits until this partition is added."""
        if topic_partition not in self._being_added:
            self.wanted.add(topic_partition)

    def take_wanted(self) -> tuple[set[TopicPartition], bool]:
        """The partitions for the next request, and whether it is the one that begins the transaction."""
        begins = not self.has_begun and not self._being_added
        wanted, self.wanted = self.wanted, set()
        self._being_added |= wanted
        return wanted, begins

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        self._being_added.difference_update(partitions)
        self._partitions.update(partitions)
        self.has_begun = True

    def not_added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator rejects them: batches of those that were added before may go on."""
        self._being_added.difference_update(partitions)


class TransactionVersion:
    """It is looked at between transactions: one that has begun in a version ends in it. Any thread reads `is_v2`."""

    def __init__(self, client: KafkaClient) -> None:
        self.is_v2 = False
        self._client = client
        self._epoch = -1  # of the features that were looked at

    def look(self) -> bool:
        """Returns whether brokers speak version 2 now and did not before."""
        was_v2 = self.is_v2
        epoch, levels = self._client.finalized_features()
        if epoch > self._epoch:
            self._epoch = epoch
            self.is_v2 = levels.get("transaction.version", 0) >= 2  # the finalized feature of KIP-890
        return self.is_v2 and not was_v2

    def can_raise_epoch(self, coordinator: Node | None) -> bool:
        """Whether this node takes InitProducerId with an identity (KIP-360). One that is not connected is taken to."""
        versions = None if coordinator is None else self._client.api_versions(coordinator.id)
        return versions is None or versions.max_version(ApiKey.INIT_PRODUCER_ID) >= FIRST_INIT_WITH_IDENTITY
