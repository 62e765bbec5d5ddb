"""A transaction that its producer has left open for another process to end."""

from __future__ import annotations

from typing import NamedTuple


class PreparedTransaction(NamedTuple):
    """All that it takes to end the transaction: a coordinator checks EndTxn against nothing else, not even the connection.

    `transaction_version` is the level of the finalized feature that its producer went by: from 2 on every end of a transaction
    raises the epoch (KIP-890), and EndTxn 5 is what ends it; below that EndTxn 4 at most.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
