"""The model's broker answers as the fake coordinator does, which follows Kafka's own."""

from __future__ import annotations

import random

import pytest

from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.exactly_once.model.broker import ONGOING, PREPARED, Broker, TransactionalId
from tests.fakes.clock import ManualClock
from tests.fakes.transaction_coordinator import TransactionCoordinator, Verification

ID = TransactionalId(0, 0, 0)
NAME = "P-owner-0-run-0"
ROWS = TopicPartition("orders", 0)
TIMEOUT_MS = 60_000
END_TXN = {1: 4, 2: 5}  # version of the request by transaction version
REQUESTS = ("init", "init as expected", "write", "commit", "abort", "complete", "time out")


class BrokerPair:
    """The model's broker and the fake coordinator, which are asked the same."""

    def __init__(self, transaction_version: int) -> None:
        self.version = transaction_version
        self.broker = Broker(transaction_version=transaction_version)
        self.clock = ManualClock()
        self.fake = TransactionCoordinator(self.clock, write_marker=lambda *_: None, transaction_version=transaction_version)
        self.fake.holds_markers = True
        self.producer_id = -1

    def ask(self, request: str, epoch: int) -> tuple[object, object]:
        """The answers of both."""
        match request:
            case "init" | "init as expected":
                expected = epoch if request == "init as expected" else None
                self.broker, answer = self.broker.init_producer_id(ID, expected=expected)
                expectation = {} if expected is None else {"producer_id": self.producer_id, "producer_epoch": expected}
                response = self.fake.handle_init_producer_id(
                    InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS, **expectation), 5
                )
                if response.error_code == Errors.CONCURRENT_TRANSACTIONS.number:
                    return answer, None
                if response.error_code == Errors.PRODUCER_FENCED.number:
                    return answer, -1
                self.producer_id = response.producer_id
                return answer, response.producer_epoch
            case "write":
                self.broker, error = self.broker.write(ID, epoch, rows=("a",))
                how = Verification.ADD
                return error, self.fake.verify(NAME, self.producer_id, epoch, ROWS, how).number
            case "commit" | "abort":
                commits = request == "commit"
                self.broker, error = self.broker.end(ID, epoch, commit=commits)
                end_txn = EndTxnRequest(
                    transactional_id=NAME, producer_id=self.producer_id, producer_epoch=epoch, committed=commits
                )
                return error, self.fake.handle_end_txn(end_txn, END_TXN[self.version]).error_code
            case "complete":
                if self.state in PREPARED:
                    self.broker = self.broker.complete(ID)
                self.fake.write_markers()
            case "time out":
                if self.state == ONGOING:
                    self.broker = self.broker.time_out(ID)
                self.clock.advance(TIMEOUT_MS + 1)
                self.fake.abort_timed_out()
        return None, None

    @property
    def state(self) -> str | None:
        transaction = self.broker.transaction(ID)
        return None if transaction is None else transaction.state


@pytest.mark.parametrize("transaction_version", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_requests_gets_one_answer_from_model_and_fake_coordinator(transaction_version: int, seed: int) -> None:
    chance = random.Random(seed)
    both = BrokerPair(transaction_version)
    both.ask("init", -1)
    for _ in range(200):
        transaction = both.broker.transaction(ID)
        assert transaction is not None
        request = chance.choice(REQUESTS)
        ours, theirs = both.ask(request, max(0, transaction.epoch - chance.choice((0, 0, 0, 1, 2))))
        assert ours == theirs, (request, transaction)
        mine, its = both.broker.transaction(ID), both.fake.transactions[NAME]
        assert mine is not None
        assert (mine.state, mine.epoch, mine.last_epoch) == (its.state.value, its.epoch, its.last_epoch), (request, transaction)
