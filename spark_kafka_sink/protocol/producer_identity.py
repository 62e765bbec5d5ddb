"""How brokers identify a producer, and a transaction that it has left open for another process to end."""

from __future__ import annotations

from typing import NamedTuple

MAX_EPOCH = 32767


class ProducerIdentity(NamedTuple):
    """The producer id and epoch under which brokers know a producer."""

    producer_id: int
    producer_epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker has assigned it."""
        return self.producer_id >= 0


NO_PRODUCER = ProducerIdentity(-1, -1)


class PreparedTransaction(NamedTuple):
    """What a process needs to end the transaction. A coordinator checks these values in EndTxn, not which connection sent it.

    `transaction_version` is the level of the finalized feature transaction.version that the producer used. From 2 on, every end
    of a transaction bumps the epoch (KIP-890), and EndTxn must have version 5; below 2, it has at most version 4.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
