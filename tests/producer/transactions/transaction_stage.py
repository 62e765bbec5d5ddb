"""A transactional Sender on a manual clock: the test posts calls as callers' threads do, runs rounds, and plays the leaders.

The coordinators are those of tests/fakes/coordinators.py; a test may queue errors for them (`fail_next`), let their requests wait
(`holds`), or answer by itself. Nothing here sleeps, and no second thread runs.

    stage = TransactionStage(version=2)
    stage.begin()
    delivery = stage.send(b"a")
    commit = stage.post(CalledMethod.COMMIT)
    stage.succeed()                     # the leader's answer
    stage.settle(commit)
    assert stage.ended == ["committed"]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.transactions.caller_side import CallerSide
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.txn_requests.transactional_call import NO_GROUP, CalledMethod, TransactionalCall
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.coordinators import Coordinators
from tests.fakes.error_responses import error_response
from tests.producer.harness import Stage, all_good, tp

ID = "copies-1"
GROUP = ConsumerGroupMetadata("readers")
OFFSETS = {tp(0): OffsetAndMetadata(7)}


class TransactionStage(Stage):
    """Args:
    version: transaction.version of the cluster.
    initialized: whether init_transactions() has been called.
    """

    def __init__(
        self,
        version: int = 2,
        *,
        leaders: Mapping[str, Sequence[int | None]] | None = None,
        initialized: bool = True,
        **options: object,
    ) -> None:
        settings = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 100} | options
        super().__init__(
            leaders=leaders,
            has_producer_id=False,
            enable_idempotence=True,
            transactional_id=ID,
            **settings,
        )
        assert isinstance(self.sequencer, TransactionManager)
        self.manager = self.sequencer
        self.client.set_features(1, transaction_version=version)
        self.markers: list[tuple[TopicPartition, bool]] = []  # partition, whether it was committed
        self.cluster = Coordinators(
            self.clock,
            range(5),
            write_marker=lambda where, _id, _epoch, committed: self.markers.append((where, committed)),
            transaction_version=version,
        )
        self.holds: set[ApiKey] = set()  # requests that `run` leaves without an answer
        self._faults: list[tuple[ApiKey, ErrorCode]] = []
        if initialized:
            self.call(CalledMethod.INIT)

    # CALLS

    def post(
        self,
        kind: CalledMethod,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        group: ConsumerGroupMetadata = NO_GROUP,
        *,
        must_follow_rows: bool = False,
    ) -> TransactionalCall:
        """As a caller's thread does that waits for it, and one round."""
        operation = TransactionalCall(kind, self.clock, offsets or {}, group, must_follow_rows=must_follow_rows)
        self.manager.calls.post(operation)
        self.run()
        return operation

    def settle(self, operation: TransactionalCall) -> KafkaError | None:
        """Run until the call is done; the error that its caller gets. Time passes when nothing else happens."""
        for _ in range(100):
            if operation.is_done:
                return operation.error
            self.run()
            self.clock.advance(10)
        raise AssertionError(f"{operation.method.value} does not end: {self.manager.delay_reason(operation)}")

    def call(self, kind: CalledMethod) -> None:
        """A call that succeeds."""
        error = self.settle(self.post(kind))
        assert error is None, error

    def begin(self) -> None:
        self.call(CalledMethod.BEGIN)

    def post_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] = OFFSETS,
        group: ConsumerGroupMetadata = GROUP,
        *,
        must_follow_rows: bool = False,
    ) -> TransactionalCall:
        return self.post(CalledMethod.SEND_OFFSETS, offsets, group, must_follow_rows=must_follow_rows)

    def write(self, *values: bytes, partition: int = 0) -> Delivery:
        """Rows that are written and acknowledged."""
        delivery = self.send(*values, partition=partition)
        self.run_until(lambda: any(isinstance(request.message, ProduceRequest) for request in self.in_flight))
        self.acknowledge()
        assert delivery.done()
        assert delivery.error is None
        return delivery

    # BROKERS

    def fail_next(self, api: ApiKey, error: ErrorCode, times: int = 1) -> None:
        """The coordinator answers the next requests with an error, without looking at them."""
        self._faults += [(api, error)] * times

    def run(self, rounds: int = 1) -> None:
        """Rounds of the Sender, each followed by the coordinators' answers."""
        for _ in range(rounds):
            super().run()
            if self._answer_coordinators():
                super().run()

    def _answer_coordinators(self) -> bool:
        requests = [request for request in self.in_flight if request.message.API_KEY not in {ApiKey.PRODUCE, *self.holds}]
        for request in requests:
            self.answer(request)
        return bool(requests)

    def answer(self, request: ClientRequest) -> None:
        """What a coordinator answers; the next round reads it."""
        api = request.message.API_KEY
        fault = next((each for each in self._faults if each[0] == api), None)
        if fault is None:
            message = self.cluster.answer(request.message, self.client.version_of(request), request.node_id)
        else:
            self._faults.remove(fault)
            message = error_response(request.message, fault[1])
        self.client.respond(message, request=request)

    def acknowledge(self) -> None:
        """The leaders write all that is in flight."""
        for request in self.produced():
            self.verify(request)
            self.client.respond(all_good(request), request=request)
        self.run()

    def acknowledge_all(self) -> None:
        """The leaders write all that was appended."""
        for _ in range(1000):
            if not self.accumulator.incomplete:
                return
            self.acknowledge()
            self.clock.advance(1)
        raise AssertionError("rows are left")

    def verify(self, request: ClientRequest) -> None:
        """What leaders ask the coordinator: in version 2 it adds the partitions (KIP-890)."""
        for topic in request.message.topic_data:
            for data in topic.partition_data:
                where = TopicPartition(topic.name, data.index)
                version = self.client.version_of(request)
                error = self.cluster.batch_error(ID, version, where, *self.manager.identity)
                assert not error, error

    # WHAT WAS SENT

    def produced(self) -> list[ClientRequest]:
        """Produce requests in flight."""
        return [request for request in self.in_flight if isinstance(request.message, ProduceRequest)]

    def requests_of(self, api: ApiKey) -> list[ClientRequest]:
        """All that were sent, in order."""
        return [request for request in self.client.sent_requests if api == request.message.API_KEY]

    @property
    def ended(self) -> list[str]:
        """How transactions were ended, request by request."""
        ends = [request.message for request in self.requests_of(ApiKey.END_TXN)]
        return ["committed" if end.committed else "aborted" for end in ends if isinstance(end, EndTxnRequest)]


def caller_side_of(stage: TransactionStage, sender_works: Callable[[], object]) -> CallerSide:
    """Each call that it posts has `sender_works` called, where no interrupt strikes."""

    def wake_sender() -> None:
        profiler = sys.getprofile()
        sys.setprofile(None)
        sender_works()
        sys.setprofile(profiler)

    return CallerSide(stage.manager, lambda _: True, wake_sender, stage.clock, 1_000, lambda *_: None, lambda _: None)
