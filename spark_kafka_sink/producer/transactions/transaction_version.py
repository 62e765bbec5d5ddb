"""Which version of transactions the brokers speak, and what that means for requests.

It is looked at between transactions: one that has begun in a version ends in it. Sender thread only, except `number`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.protocol.api_keys import ApiKey

FIRST_INIT_WITH_IDENTITY = 3  # of InitProducerId


class FeaturesClient(Protocol):
    """What this needs of NetworkClient."""

    def finalized_features(self) -> tuple[int, Mapping[str, int]]: ...

    def api_versions(self, node_id: int) -> NodeApiVersions | None: ...


class TransactionVersion:
    def __init__(self) -> None:
        self.is_v2 = False
        self._client: FeaturesClient  # set by `use`
        self._epoch = -1  # of the features that were looked at

    def use(self, client: FeaturesClient) -> None:
        self._client = client

    @property
    def number(self) -> int:
        return 2 if self.is_v2 else 1

    def look(self) -> bool:
        """Returns whether brokers speak version 2 now and did not before."""
        was_v2 = self.is_v2
        epoch, levels = self._client.finalized_features()
        if epoch > self._epoch:
            self._epoch = epoch
            self.is_v2 = levels.get("transaction.version", 0) >= 2  # the finalized feature of KIP-890
        return self.is_v2 and not was_v2

    def can_raise_epoch(self, coordinator: int | None) -> bool:
        """Whether this node takes InitProducerId with an identity (KIP-360). One that is not connected is taken to."""
        versions = None if coordinator is None else self._client.api_versions(coordinator)
        return versions is None or versions.max_version(ApiKey.INIT_PRODUCER_ID) >= FIRST_INIT_WITH_IDENTITY
