"""How brokers identify a producer, and a transaction that it has left open for another process to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_EPOCH = 32767
LAST_USED_EPOCH = MAX_EPOCH - 1  # a coordinator follows it by epoch 0 of another producer id
TRANSACTION_VERSION = "transaction.version"  # a finalized feature of brokers (KIP-890)
FIRST_LEVEL_OF_V2 = 2


class ProducerIdentity(NamedTuple):
    """The producer id and epoch under which brokers know a producer."""

    producer_id: int
    producer_epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker has assigned it."""
        return self.producer_id >= 0

    @property
    def next_epoch(self) -> ProducerIdentity:
        """The same producer id with the epoch that follows."""
        return self._replace(producer_epoch=self.producer_epoch + 1)


NO_PRODUCER = ProducerIdentity(-1, -1)


class PreparedTransaction(NamedTuple):
    """What a process needs to end the transaction. A coordinator checks these values in EndTxn, not which connection sent it.

    `transaction_version` is the level of the finalized feature transaction.version that the producer used. EndTxn of version 5,
    which bumps the epoch (KIP-890), takes a transaction of level 2 and a coordinator whose level is 2 now, as it can be lowered.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int

    @property
    def is_v2(self) -> bool:
        return self.transaction_version >= FIRST_LEVEL_OF_V2


def speaks_transactions_v2(finalized_features: Mapping[str, int]) -> bool:
    """Whether brokers with these levels of finalized features take requests of version 2 of transactions."""
    return finalized_features.get(TRANSACTION_VERSION, 0) >= FIRST_LEVEL_OF_V2
