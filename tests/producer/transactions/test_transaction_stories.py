"""Faults that test_transaction_properties.py has found, each as the simplest story that led to it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import FatalProducerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.producer.simulated_cluster import ClusterFate
from tests.producer.transactions.transaction_steps import (
    Answer,
    Begin,
    Behave,
    End,
    Pass,
    Prepare,
    SendOffsets,
    Step,
    TakeOver,
    Upgrade,
    Write,
)
from tests.producer.transactions.transaction_stories import Story
from tests.producer.transactions.transactional_application import ID, TransactionalApplication
from tests.producer.transactions.written_transactions import KnownOutcome

levels = pytest.mark.parametrize("level", [1, 2], ids=["TV1", "TV2"])
TWO_PARTITIONS = Write([(0, 0), (1, 0)])  # led by two nodes


def play(level: int, *steps: Step, first_epoch: int | None = None, **options: Any) -> TransactionalApplication:
    return Story(level, steps, options, first_epoch=first_epoch).play()


def outcomes(application: TransactionalApplication) -> list[KnownOutcome]:
    """Of the application's own transactions, without that of its recovery."""
    return [transaction.outcome for transaction in application.transactions[:-1]]


@levels
def test_a_commit_that_waits_for_batches_is_not_sent_once_one_of_them_has_failed(level: int) -> None:
    """commit_transaction() ran out of time while one batch was being retried; another one had failed. close() then aborted the
    transaction, but behind the commit, which was still queued: readers saw a transaction without the failed batch."""
    application = play(
        level,
        *(
            Prepare(ApiKey.PRODUCE, fate)
            for fate in (ClusterFate.PASSING_ERROR, ClusterFate.ABORTABLE_ERROR, ClusterFate.PASSING_ERROR)
        ),
        *(Begin(), TWO_PARTITIONS, End.COMMIT_AND_LEAVE),
        max_block_ms=150,
        retry_backoff_ms=1000,
    )
    assert outcomes(application) == [KnownOutcome.ABORTED]


def test_a_batch_that_fails_during_the_abort_leaves_the_producer_usable() -> None:
    """Version 1 has the epoch raised then, which was planned when the abort began only: nobody asked for the epoch, and the
    producer waited for it for ever."""
    aborted = [Begin(), TWO_PARTITIONS, Behave(1), End.ABORT, Pass(400)]
    application = play(1, *aborted, Begin(), TWO_PARTITIONS, End.COMMIT, request_timeout_ms=300, delivery_timeout_ms=300)
    assert outcomes(application) == [KnownOutcome.ABORTED, KnownOutcome.COMMITTED]


def test_a_producer_whose_producer_id_was_replaced_hears_that_it_has_ended() -> None:
    """Another producer had used up the last epoch of the id. abort_transaction() raised the coordinator's bare answer, and
    the producer was being aborted for ever."""
    application = play(2, Begin(), TWO_PARTITIONS, TakeOver(), Behave(20), End.ABORT, first_epoch=32765)
    assert [(type(error), error.condition) for error in application.fatal] == [
        (FatalProducerError, "KAFKA_INVALID_PRODUCER_ID_MAPPING")
    ]


@pytest.mark.parametrize("api", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN], ids=lambda api: api.name)
def test_a_transaction_that_a_lost_request_has_begun_is_ended_at_the_coordinator(api: ApiKey) -> None:
    """The answer got lost, and before the request was repeated the transaction had to be aborted: the producer took it for one
    that had never begun. The coordinator aborted it when its time was over, and fenced the producer in a later one."""
    actions = [TWO_PARTITIONS] if api is ApiKey.ADD_PARTITIONS_TO_TXN else [SendOffsets()]
    application = play(
        1, Prepare(api, ClusterFate.LOSE_ANSWERS), Prepare(api, ClusterFate.ABORTABLE_ERROR), Begin(), *actions, End.COMMIT
    )
    assert outcomes(application) == [KnownOutcome.ABORTED]
    assert application.fatal == []


@pytest.mark.parametrize("end", [End.ABORT, End.COMMIT], ids=lambda end: end.name)
def test_an_abort_of_a_transaction_that_may_not_have_begun_succeeds(end: End) -> None:
    """Whatever the one before it was: of some of them the coordinator answers INVALID_TXN_STATE."""
    api = ApiKey.ADD_PARTITIONS_TO_TXN
    loss, refusal = Prepare(api, ClusterFate.LOSE_REQUESTS), Prepare(api, ClusterFate.ABORTABLE_ERROR)
    first, last = [Begin(), TWO_PARTITIONS, end], [Begin(), TWO_PARTITIONS, End.COMMIT]
    application = play(1, *first, Begin(), loss, refusal, TWO_PARTITIONS, End.COMMIT, *last)
    assert outcomes(application) == [
        KnownOutcome.COMMITTED if end is End.COMMIT else KnownOutcome.ABORTED,
        KnownOutcome.ABORTED,
        KnownOutcome.COMMITTED,
    ]
    assert application.fatal == []


def test_an_abort_that_meets_the_markers_of_the_transaction_before_is_not_fatal() -> None:
    """The transaction's only batch had expired unanswered. Until the markers are written, a coordinator of version 2 answers
    PRODUCER_FENCED to whoever has the next epoch already: the producer took it for its end."""
    committed = [Begin(), Write([(0, 0)]), End.COMMIT]
    steps = [*committed, Begin(), Write([(3, 0)]), Pass(2000), End.ABORT, *committed]
    application = Story(2, tuple(steps), {"delivery_timeout_ms": 1505}, markers_every=3).play()
    assert outcomes(application) == [KnownOutcome.COMMITTED, KnownOutcome.ABORTED, KnownOutcome.COMMITTED]
    assert application.fatal == []


def test_a_denial_during_the_abort_does_not_end_the_producer() -> None:
    """Only an abort that has to be aborted itself cannot end; partitions need not be added to a transaction that is aborted."""
    denied = Prepare(ApiKey.ADD_PARTITIONS_TO_TXN, ClusterFate.ABORTABLE_ERROR)
    application = play(1, Begin(), TWO_PARTITIONS, Pass(1), End.ABORT, denied)
    assert outcomes(application) == [KnownOutcome.ABORTED]
    assert application.fatal == []


def test_a_start_that_is_to_be_aborted_fails_with_what_the_coordinator_has_answered() -> None:
    """The start failed with a traceback: a producer that is initializing has nothing to abort."""
    application = play(2, Prepare(ApiKey.INIT_PRODUCER_ID, ClusterFate.FATAL_ERROR, which=3))
    assert [(type(error), error.condition) for error in application.fatal] == [
        (FatalProducerError, "KAFKA_TRANSACTION_ABORTABLE")
    ]


@levels
def test_no_transaction_is_committed_without_a_record_that_failed_before_its_batch(level: int) -> None:
    """The record was too large. Only its future told so: the commit returned, and readers saw the others."""
    application = play(level, Begin(), Write([(0, 5000), (0, 0)], singly=True), End.COMMIT, max_request_size=2000)
    assert outcomes(application) == [KnownOutcome.ABORTED]
    assert [error.condition for error in application.abortable] == ["KAFKA_RECORD_TOO_LARGE"]


def test_close_does_not_wait_when_the_last_rows_have_failed_with_the_transaction() -> None:
    """The Sender slept for a minute after it had failed them, or until close() ended it by force, without an abort."""
    two_batches = Write([(0, 0), (0, 0)])
    application = play(1, Prepare(ApiKey.PRODUCE, ClusterFate.ABORTABLE_ERROR), Begin(), two_batches, End.CLOSE, batch_size=0)
    assert outcomes(application) == [KnownOutcome.ABORTED]
    assert application.clock.now_ms() < 1_001_000


@levels
def test_a_forced_close_gives_back_the_memory_of_what_failed_in_flight(level: int) -> None:
    application = Story(level, ()).application()
    application.start()
    producer = application.producer
    producer.begin_transaction()
    producer.send_columns("orders", value=pa.array([b"a"]))
    application.simulation.let_one_thing_happen(10)
    application.cluster.prepare(ApiKey.PRODUCE, ClusterFate.ABORTABLE_ERROR)
    producer.shut_down(0)
    assert producer.has_all_memory_back


@levels
def test_a_commit_that_may_be_carried_out_is_not_aborted_where_nobody_can_tell(level: int) -> None:
    """The commit's answer got lost. When it was repeated, the coordinator did not know the producer id any more: the caller was
    told to abort, and the abort returned, though the transaction was committed."""
    lost_answer, forgotten = (
        Prepare(ApiKey.END_TXN, ClusterFate.LOSE_ANSWERS),
        Prepare(ApiKey.END_TXN, ClusterFate.FATAL_ERROR, which=2),
    )
    application = play(level, Begin(), TWO_PARTITIONS, End.COMMIT, lost_answer, forgotten)
    assert outcomes(application) == [KnownOutcome.UNKNOWN]
    assert [error.condition for error in application.fatal] == ["KAFKA_INVALID_PRODUCER_ID_MAPPING"]


@levels
def test_an_abort_of_what_may_be_committed_is_not_reported_where_nobody_can_tell(level: int) -> None:
    """As above, with a coordinator that wants the transaction to be aborted, and has forgotten the producer id then."""
    fates = [ClusterFate.LOSE_ANSWERS, ClusterFate.ABORTABLE_ERROR, ClusterFate.FATAL_ERROR]
    faults = [Prepare(ApiKey.END_TXN, fate, which=2) for fate in fates]
    application = play(level, Begin(), TWO_PARTITIONS, End.COMMIT, *faults)
    assert outcomes(application) == [KnownOutcome.UNKNOWN]
    assert [error.condition for error in application.fatal] == ["KAFKA_INVALID_PRODUCER_ID_MAPPING"]
    assert "whether it is committed is not known" in str(application.fatal[0])


@levels
def test_an_abort_of_what_another_may_have_committed_is_not_reported_as_one(level: int) -> None:
    """The transaction was prepared, and another client committed it. Later the coordinator had forgotten the producer id: the
    abort returned."""
    forgotten = Prepare(ApiKey.END_TXN, ClusterFate.FATAL_ERROR, which=2)
    application = play(level, Begin(), TWO_PARTITIONS, End.OTHERS_COMMIT_OWN_ABORT, forgotten)
    assert [error.condition for error in application.fatal] == ["KAFKA_INVALID_PRODUCER_ID_MAPPING"]


def test_a_request_that_may_still_begin_a_transaction_finds_another_epoch() -> None:
    """AddPartitionsToTxn got lost, and its coordinator knew of nothing to abort. If the request had come after that, what it
    began would have stayed open, and its time-out would have fenced the producer in a later transaction."""
    lost_request = Prepare(ApiKey.ADD_PARTITIONS_TO_TXN, ClusterFate.LOSE_REQUESTS)
    too_large = Write([(1, 5000)], singly=True)
    story = (lost_request, Begin(), Write([(1, 0)]), Answer(), too_large, End.COMMIT, Begin(), TWO_PARTITIONS, End.COMMIT)
    application = play(1, *story, max_request_size=2000)
    assert outcomes(application) == [KnownOutcome.ABORTED, KnownOutcome.COMMITTED]
    assert application.cluster.transactions.transactions[ID].epoch == 2  # one of them is that of the application's recovery


@pytest.mark.parametrize("end", [End.ABORT, End.COMMIT], ids=lambda end: end.name)
def test_what_becomes_of_the_next_epoch_says_nothing_of_the_ended_transaction(end: End) -> None:
    """The coordinator had ended it, and denied the epoch for the next one: abort_transaction() raised, and so did
    commit_transaction() while the brokers were upgraded, though the transaction was committed."""
    trouble = Prepare(ApiKey.PRODUCE, ClusterFate.ABORTABLE_ERROR) if end is End.ABORT else Upgrade()
    denied = Prepare(ApiKey.INIT_PRODUCER_ID, ClusterFate.FATAL_ERROR, which=1)
    application = play(1, Begin(), trouble, TWO_PARTITIONS, End.COMMIT, denied, Begin(), TWO_PARTITIONS, End.COMMIT)
    assert outcomes(application) == [KnownOutcome.ABORTED if end is End.ABORT else KnownOutcome.COMMITTED, KnownOutcome.COMMITTED]
    assert application.fatal == []
