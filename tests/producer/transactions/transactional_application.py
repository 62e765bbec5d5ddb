"""An application that writes transactions, as a story tells it: what property tests of transactions play.

It does what the producer's documentation says: it repeats a call that has timed out, aborts a transaction that can only be
aborted, and starts a new producer after a fatal error. It remembers what it was told; `TransactionalApplication.check` compares
that with what readers see. When the story has no Event left for a call that waits, nothing goes wrong any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    AuthorizationError,
    FatalProducerError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.producer_record import RecordMetadata
from spark_kafka_sink.producer.txn_requests.group_offsets import OffsetAndMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.producer.harness import tp
from tests.producer.simulated_cluster import ClusterFate, SimulatedCluster
from tests.producer.simulated_producer import SimulatedClock, SimulatedProducer, Simulation
from tests.producer.transactions import written_transactions
from tests.producer.transactions.transaction_steps import (
    GROUP,
    ID,
    PLACES,
    TOPICS,
    Begin,
    End,
    Event,
    Flush,
    Idle,
    SendOffsets,
    Step,
    Write,
)
from tests.producer.transactions.written_transactions import KnownOutcome, SentColumns, SentRecord, WrittenTransaction

MOST_STARTS = 100  # of producers, until one is not told to end at once
PATIENCE_MS = 120_000  # for a call that times out again and again: by then whatever the story has planned is over
RECOVERY = {"max_block_ms": 60_000, "delivery_timeout_ms": 60_000, "request_timeout_ms": 5_000}

Rows = Sequence[tuple[TopicPartition, bytes]]


class AbortNeeded(Exception):
    """The transaction can only be aborted."""


class Ended(Exception):
    """The producer has failed for good."""


class TransactionalApplication:
    """Args:
    options: of its producers, but for transactional.id and bootstrap.servers.
    cluster: as for SimulatedCluster, without topics.
    markers_every: see Simulation.
    first_epoch: of the transactional id; None when it is new.
    """

    def __init__(
        self, *, options: dict[str, Any], cluster: dict[str, Any], markers_every: int = 1, first_epoch: int | None = None
    ) -> None:
        self.clock = SimulatedClock()
        self.cluster = SimulatedCluster(self.clock, TOPICS, **cluster)
        self.simulation = Simulation(self.clock, self.cluster, markers_every=markers_every)
        self.simulation.plan = self._event_while_waiting
        if first_epoch is not None:
            self.cluster.use_epochs_up(ID, first_epoch)
        self.transactions: list[WrittenTransaction] = []
        self.fatal: list[FatalProducerError] = []
        self.abortable: list[KafkaError] = []
        self.errors_of_rivals: list[KafkaError] = []
        self.time_outs = 0
        self.has_rival = False
        self.was_ended_by_others = False
        self._options = options
        self._steps: deque[Step] = deque()
        self._closed: list[SimulatedProducer] = []
        self._next_row = 0
        self._producer: SimulatedProducer | None = None
        self._open: WrittenTransaction | None = None
        self._commits_asked = 0  # before the open transaction began

    @property
    def producer(self) -> SimulatedProducer:
        assert self._producer is not None
        return self._producer

    # THE STORY

    def play(self, story: Sequence[Step]) -> None:
        self._steps.extend(story)
        self.start()
        while self._steps:
            step = self._steps.popleft()
            if isinstance(step, Event):
                self._happen(step, 1 << 40)
            else:
                self._act(step)
        self._recover()

    def check(self) -> None:
        """What holds after each story."""
        assert self.cluster.coordinators.violations == []
        assert not self.cluster.is_open(ID)
        written_transactions.check(self.transactions, self.cluster)
        for producer in self._closed:
            assert producer.has_all_memory_back

    def has_reason_to_fail(self) -> bool:
        """Whether anything has happened that a producer cannot survive."""
        injected = self.cluster.injected
        was_made_to_fail = any(
            fate is ClusterFate.FATAL_ERROR or (fate, api) == (ClusterFate.ABORTABLE_ERROR, ApiKey.END_TXN)
            for fate, api in injected
        )
        return was_made_to_fail or bool(self.cluster.timed_out) or self.has_rival or self.was_ended_by_others

    def start_rival(self) -> None:
        self.has_rival = True
        self.simulation.others.append(self._rival())

    def _event_while_waiting(self, limit_ms: int) -> bool:
        if not (self._steps and isinstance(self._steps[0], Event)):
            return False
        event = self._steps.popleft()
        assert isinstance(event, Event)
        self._happen(event, limit_ms)
        return True

    def _happen(self, event: Event, limit_ms: int) -> None:
        self.simulation.settle()
        event.happen(self, limit_ms)
        self.simulation.settle()
        self.simulation.go_on_with_others()

    def _recover(self) -> None:
        """Another producer starts, in a cluster in which nothing goes wrong, and writes a row to each partition."""
        self.cluster.behave()
        until_ms = self.clock.now_ms() + PATIENCE_MS
        while self.simulation.others and self.clock.now_ms() < until_ms:
            self.simulation.let_one_thing_happen(100)
        assert not self.simulation.others
        self._settle_open(KnownOutcome.ABORTED)  # if the story has no End for it: close() aborts it
        self._close()
        fatal = list(self.fatal)
        self._options = self._options | RECOVERY
        self.start()
        for step in (Begin(), Write([(place, 10) for place in range(len(PLACES))]), SendOffsets([0, 1, 2]), End.COMMIT):
            self._try_to_act(step)
        self._close()
        assert self.fatal == fatal
        while self.cluster.has_late_requests:
            self.cluster.arrive()
        while self.cluster.has_markers_to_write:
            self.simulation.let_one_thing_happen(100)

    # THE PRODUCER

    def start(self) -> None:
        """A new producer."""
        for _ in range(MOST_STARTS):
            if self._producer is None:
                self._producer = self.simulation.new_producer(**{"transactional_id": ID} | self._options)
            try:
                self._call(self.producer.init_transactions)
            except AuthorizationError:
                continue  # the call may be repeated
            except Ended:
                self._close()
            else:
                return
        raise AssertionError("no producer can be started")

    def _start_again(self, outcome: KnownOutcome) -> None:
        self._settle_open(outcome)
        self._close()
        self.start()

    def _close(self) -> None:
        producer, self._producer = self.producer, None
        producer.shut_down()
        self._closed.append(producer)

    def _call(self, method: Callable[..., object], *arguments: object, patience_ms: int = PATIENCE_MS) -> None:
        """Call until it does not time out. Each call ends within max.block.ms."""
        limit_ms = self.producer._config.max_block_ms
        until_ms = self.clock.now_ms() + patience_ms
        while True:
            started_ms = self.clock.now_ms()
            try:
                method(*arguments)
            except TransactionTimeoutError:
                self.time_outs += 1
                if started_ms >= until_ms:
                    raise
            except AbortableTransactionError as error:
                self.abortable.append(error)
                raise AbortNeeded from error
            except FatalProducerError as error:
                self.fatal.append(error)
                raise Ended from error
            else:
                return
            finally:
                took_ms = self.clock.now_ms() - started_ms
                assert took_ms <= limit_ms, f"{method} took {took_ms} ms, and max.block.ms={limit_ms}"

    def _act(self, step: Step) -> None:
        try:
            self._try_to_act(step)
        except AbortNeeded:
            self._abort()
        except Ended:
            self._start_again(self._unknown_if_asked(self.producer))

    def _try_to_act(self, step: Step) -> None:
        match step:
            case Begin() if self._open is None:
                self._begin()
            case Idle(duration_ms) if self._open is None:
                self._idle(duration_ms)
            case _ if self._open is None:
                return  # the transaction has failed; or the story has lost its Begin
            case Write(rows, singly):
                self._write(self._open, rows, singly)
            case SendOffsets(partitions):
                self._send_offsets(self._open, partitions)
            case Flush():
                self._flush()
            case End():
                self._end(step)

    def _begin(self) -> None:
        try:
            self._call(self.producer.begin_transaction)
        except AuthorizationError:  # of the request for another epoch
            self.start()
            self._call(self.producer.begin_transaction)
        self._open = self._new_transaction()
        self._commits_asked = self._count_commits(self.producer)

    def _idle(self, duration_ms: int) -> None:
        until_ms = self.clock.now_ms() + duration_ms
        while self.clock.now_ms() < until_ms:
            self.simulation.let_one_thing_happen(until_ms - self.clock.now_ms())

    # ROWS AND OFFSETS

    def _new_transaction(self) -> WrittenTransaction:
        transaction = WrittenTransaction(len(self.transactions))
        self.transactions.append(transaction)
        return transaction

    def _new_value(self, size: int) -> bytes:
        self._next_row += 1
        return b"%05d" % self._next_row + b"x" * size

    def _write(self, transaction: WrittenTransaction, rows: Sequence[tuple[int, int]], singly: bool) -> None:
        written = [(PLACES[place], self._new_value(size)) for place, size in rows]
        try:
            if singly:
                for where, value in written:
                    self._send(transaction, where, value)
            else:
                _send_columns(self.producer, transaction, written)
        except AbortableTransactionError as error:
            self.abortable.append(error)
            raise AbortNeeded from error
        except FatalProducerError as error:
            self.fatal.append(error)
            raise Ended from error
        except (KafkaTimeoutError, TransactionAbortedError) as error:  # no memory; or the transaction has failed meanwhile
            raise AbortNeeded from error

    def _send(self, transaction: WrittenTransaction, where: TopicPartition, value: bytes) -> None:
        sent_records: list[SentRecord] = []
        early: list[None] = []

        def called_back(_: RecordMetadata | None, __: KafkaError | None) -> None:
            if sent_records:
                sent_records[0].called_back += 1
            else:
                early.append(None)  # within send(), if there was no place for the record

        transaction.rows[where].append(value)
        future = self.producer.send(where.topic, value, partition=where.partition, callback=called_back)
        sent_records.append(SentRecord(future, where, value, len(early)))
        transaction.records += sent_records

    def _send_offsets(self, transaction: WrittenTransaction, partitions: Sequence[int]) -> None:
        offsets = dict.fromkeys([*(tp(each, "source") for each in partitions), transaction.own_partition], transaction.number)
        transaction.offsets |= offsets
        offsets_and_metadata = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
        waits = transaction.number % 2 == 0
        self._call(partial(self.producer.send_offsets_to_transaction, wait=waits), offsets_and_metadata, GROUP)

    def _flush(self) -> None:
        started_ms = self.clock.now_ms()
        self.producer.flush()
        assert self.clock.now_ms() - started_ms <= self.producer._settle_limit_ms()

    # ENDS

    def _end(self, end: End) -> None:
        match end:
            case End.COMMIT:
                self._commit()
            case End.ABORT:
                self._abort()
            case End.COMMIT_AND_LEAVE | End.CRASH_IN_COMMIT:
                try:
                    self._call(self.producer.commit_transaction, patience_ms=0)
                except TransactionTimeoutError:
                    self._leave(end)
                else:
                    self._settle_open(KnownOutcome.COMMITTED)
            case End.CLOSE | End.CRASH:
                self._leave(end)
            case _:
                self._call(self.producer.prepare_transaction)
                self._end_prepared(end)

    def _commit(self) -> None:
        self._call(self.producer.commit_transaction)
        self._settle_open(KnownOutcome.COMMITTED)
        self._check_that_nothing_is_left_open()

    def _abort(self) -> None:
        try:
            self._call(self.producer.abort_transaction)
        except AbortNeeded as error:
            raise AssertionError("abort_transaction() asks for another one") from error
        except Ended:
            self._start_again(self._unknown_if_asked(self.producer))
        except AuthorizationError:  # of the request for another epoch, which was to replace the end
            self._settle_open(self._unknown_if_asked(self.producer))
            self.start()
        else:
            self._settle_open(KnownOutcome.ABORTED)
            self._check_that_nothing_is_left_open()

    def _check_that_nothing_is_left_open(self) -> None:
        """The coordinator would abort it some time later, and with it whatever this producer writes then.

        A producer that asks for its next epoch has it aborted by that.
        """
        is_noticed = self.has_rival or self.producer.manager.state is SequencerState.BUMPING_EPOCH
        assert is_noticed or not self.cluster.is_open(ID), "the transaction has ended, and its coordinator does not know"

    def _leave(self, end: End) -> None:
        assert self._open is not None
        producer = self.producer
        if end in (End.CRASH, End.CRASH_IN_COMMIT):
            self._open.is_orphaned = True
            self.simulation.forget(producer)
            self._producer = None
        else:
            self._close()
        self._settle_open(self._unknown_if_asked(producer))
        self.start()

    def _end_prepared(self, end: End) -> None:
        match end:
            case End.PREPARE_AND_COMMIT:
                self._commit()
            case End.PREPARE_AND_ABORT:
                self._abort()
            case End.OTHERS_COMMIT | End.OTHERS_ABORT:
                prepared = self.producer.manager.prepared_transaction
                self._close()
                self._end_from_outside(prepared, commits=end is End.OTHERS_COMMIT)
                self.start()
            case _:
                self._end_twice(end)

    def _end_twice(self, end: End) -> None:
        """By another client, and then by the producer."""
        is_empty = self._open is None or self._open.is_empty
        others_commit = end is not End.OTHERS_ABORT_OWN_COMMIT
        is_ended = self._end_from_outside(self.producer.manager.prepared_transaction, commits=others_commit)
        own_end = self.producer.abort_transaction if end is End.OTHERS_COMMIT_OWN_ABORT else self.producer.commit_transaction
        self._call(own_end)
        contradicts = is_ended and end is not End.BOTH_COMMIT and not is_empty
        assert not contradicts, f"{own_end} has returned, and another client has ended the transaction otherwise"

    def _end_from_outside(self, prepared: PreparedTransaction, *, commits: bool) -> bool:
        """Twice, as if the first answer had been lost. Returns whether that has ended the transaction."""
        self.was_ended_by_others = True
        is_ended = False
        for _ in range(2):
            error = Errors.CONCURRENT_TRANSACTIONS
            while error == Errors.CONCURRENT_TRANSACTIONS:
                error = self.cluster.end_from_outside(prepared, commits)
                self.simulation.let_one_thing_happen(10)
            is_ended |= not error
        self._settle_open(KnownOutcome.COMMITTED if commits and is_ended else KnownOutcome.ABORTED)
        return is_ended

    def _settle_open(self, outcome: KnownOutcome) -> None:
        if self._open is not None:
            self._open.outcome = outcome
        self._open = None

    def _unknown_if_asked(self, producer: SimulatedProducer) -> KnownOutcome:
        """Of the open transaction, when its commit has failed or was not waited for: nobody commits it without being asked."""
        return KnownOutcome.ABORTED if self._count_commits(producer) == self._commits_asked else KnownOutcome.UNKNOWN

    @staticmethod
    def _count_commits(producer: SimulatedProducer) -> int:
        requests = (request.message for request in producer.client.sent_requests)
        return sum(isinstance(message, EndTxnRequest) and message.committed for message in requests)

    # ANOTHER PRODUCER

    def _rival(self) -> Iterator[None]:
        """Another application with the same id. With max.block.ms=0 no call waits: each is made again until it is done."""
        producer = self.simulation.new_producer(transactional_id=ID, max_block_ms=0)
        try:
            yield from _again_and_again(producer.init_transactions)
            yield from _again_and_again(producer.begin_transaction)
            for topic in TOPICS:
                yield from _again_and_again(partial(producer.partitions_for, topic))
            transaction = self._new_transaction()
            transaction.outcome = KnownOutcome.ABORTED
            for where in PLACES:
                _send_columns(producer, transaction, [(where, self._new_value(0))])
                yield
            transaction.outcome = KnownOutcome.UNKNOWN
            yield from _again_and_again(producer.commit_transaction)
            transaction.outcome = KnownOutcome.COMMITTED
        except (FatalProducerError, AbortableTransactionError, TransactionAbortedError, AuthorizationError) as error:
            self.errors_of_rivals.append(error)
        producer.shut_down(0)
        self._closed.append(producer)


def _send_columns(producer: SimulatedProducer, transaction: WrittenTransaction, rows: Rows) -> None:
    by_place: dict[TopicPartition, list[bytes]] = {}
    for where, value in rows:
        by_place.setdefault(where, []).append(value)
        transaction.rows[where].append(value)
    try:
        delivery = producer.send_columns(
            pa.array([where.topic for where, _ in rows]),
            value=pa.array([value for _, value in rows], pa.binary()),
            partition=pa.array([where.partition for where, _ in rows], pa.int32()),
        )
    except RecordTooLargeError:  # nothing of it is queued, and the transaction goes on without
        for where, value in rows:
            transaction.rows[where].remove(value)
    else:
        transaction.columns.append(SentColumns(delivery, by_place))


def _again_and_again(call: Callable[[], object]) -> Iterator[None]:
    while True:
        try:
            call()
        except KafkaTimeoutError:
            yield
        else:
            return
