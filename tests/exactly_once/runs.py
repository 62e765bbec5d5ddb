"""What tests of whole exactly-once writes share: what readers see, what is open, and time that runs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.exactly_once.writes import CommitFailedError
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State as TransactionState

TOPIC = "t"
Runs = Callable[..., DriverRun]


def visible_rows(broker: FakeBroker, topic: str = TOPIC) -> list[str]:
    """What readers of committed records see; a row that is there twice is listed twice."""
    return sorted(value.decode() for value in broker.committed_values(topic) if value is not None)


def open_transactions(broker: FakeBroker) -> list[str]:
    open_states = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
    return [name for name, each in broker.transactions.transactions.items() if each.state in open_states]


def time_out(broker: FakeBroker, partition: int) -> None:
    """The broker finds that the open transactions of a Spark partition are too old."""
    for name, each in broker.transactions.transactions.items():
        if name.split("-")[2] == str(partition):
            each.start_ms = 0
    assert broker.transactions.abort_timed_out()


def partly_committed(first: DriverRun) -> None:
    """Partition 1 is in Kafka, partition 0 is incomplete."""
    reports = [first.task(0, 0, "a").run(), first.task(0, 1, "b").run()]
    decision = first.decide(reports)
    first.client.fence([decision.entries[0].prepared_transaction(first.names, "q").transactional_id])
    with pytest.raises(CommitFailedError, match="outlasted their"):
        first.carry_out()
