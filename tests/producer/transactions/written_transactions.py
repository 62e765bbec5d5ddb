"""What an application has written in its transactions and what it was told of them, and whether readers see just that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.producer.harness import tp
from tests.producer.simulated_cluster import SimulatedCluster
from tests.producer.transactions.transaction_steps import GROUP, PLACES


class KnownOutcome(Enum):
    OPEN = "nothing yet"
    COMMITTED = "the commit has returned: all of it is seen"
    ABORTED = "it is aborted, or nobody has asked for its commit: nothing of it is seen"
    UNKNOWN = "the commit failed, or nobody has waited for it: all of it is seen, or nothing"


@dataclass
class SentColumns:
    delivery: Delivery
    rows: dict[TopicPartition, list[bytes]]


@dataclass
class SentRecord:
    future: RecordFuture
    where: TopicPartition
    value: bytes
    called_back: int = 0  # how many times


@dataclass
class WrittenTransaction:
    number: int
    outcome: KnownOutcome = KnownOutcome.OPEN
    rows: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: {where: [] for where in PLACES})
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    columns: list[SentColumns] = field(default_factory=list)
    records: list[SentRecord] = field(default_factory=list)
    is_orphaned: bool = False  # its process has ended: nobody learns what became of its rows

    @property
    def own_partition(self) -> TopicPartition:
        """No other transaction has offsets for it."""
        return tp(self.number, "own")

    @property
    def values(self) -> set[bytes]:
        return {value for values in self.rows.values() for value in values}

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.offsets

    def is_seen(self, seen_values: set[bytes], committed: set[TopicPartition]) -> bool | None:
        """By readers: all of it, or nothing (false). None: a part of it, which may not be."""
        parts = {value in seen_values for value in self.values}
        if self.offsets:
            parts.add(self.own_partition in committed)
        return None if len(parts) > 1 else parts == {True}


def check(transactions: Sequence[WrittenTransaction], cluster: SimulatedCluster) -> None:
    """Transactions in the order in which they began; all of them have ended."""
    for where, log in cluster.logs.items():
        assert log.last_stable_offset == len(log.values), f"{where} holds readers back"
    committed = _committed(transactions, cluster)
    for where in PLACES:
        expected = [value for transaction in committed for value in transaction.rows[where]]
        assert cluster.committed_values(where) == expected, f"{where}: rows are missing, twice, in another order or not ours"
    expected_offsets: dict[TopicPartition, int] = {}
    for transaction in committed:
        expected_offsets |= transaction.offsets
    assert _group_offsets(cluster) == expected_offsets
    for transaction in transactions:
        if not transaction.is_orphaned:
            _check_handles(transaction, cluster, is_committed=transaction in committed)


def _group_offsets(cluster: SimulatedCluster) -> dict[TopicPartition, int]:
    return {where: entry.offset for where, entry in cluster.coordinators.offsets.committed(GROUP.group_id).items()}


def _committed(transactions: Sequence[WrittenTransaction], cluster: SimulatedCluster) -> list[WrittenTransaction]:
    """Those that readers see; each is told so, or could not be told."""
    seen_values = {value for where in PLACES for value in cluster.committed_values(where)}
    offsets = set(_group_offsets(cluster))
    committed = []
    for transaction in transactions:
        name = f"transaction {transaction.number}"
        is_seen = transaction.is_seen(seen_values, offsets)
        assert is_seen is not None, f"readers see a part of {name}"
        assert transaction.outcome is not KnownOutcome.OPEN
        if transaction.outcome is KnownOutcome.COMMITTED:
            assert is_seen or transaction.is_empty, f"{name} is committed, and readers do not see it"
        elif transaction.outcome is KnownOutcome.ABORTED:
            assert not is_seen, f"{name} is not committed, and readers see it"
        if is_seen:
            committed.append(transaction)
    return committed


def _check_handles(transaction: WrittenTransaction, cluster: SimulatedCluster, *, is_committed: bool) -> None:
    """Each row is settled once, and with its place if it is acknowledged; no row of a committed transaction has failed."""
    for sent_columns in transaction.columns:
        delivery = sent_columns.delivery
        assert delivery.done()
        assert delivery.acknowledged + delivery.failed == delivery.rows
        assert (delivery.error is None) == (delivery.failed == 0)
        assert not (is_committed and delivery.failed)
        for where, offset_range in delivery.offsets.items():
            if offset_range.rows == len(sent_columns.rows[where]) and offset_range.first >= 0:
                log = cluster.logs[where].values
                assert (log[offset_range.first], log[offset_range.last]) == (
                    sent_columns.rows[where][0],
                    sent_columns.rows[where][-1],
                )
    for record in transaction.records:
        assert record.future.done()
        assert record.called_back == 1
        if record.future.exception(0) is None:
            offset = record.future.result(0).offset
            assert offset < 0 or cluster.logs[record.where].values[offset] == record.value
        else:
            assert not is_committed
