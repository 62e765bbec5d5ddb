"""Which batches of a transaction may be sent, when they are tried again, and with which sequences.

Where transaction.version is below 2 (TV1), a partition is added to the transaction before its first batch; in version 2 the batch
itself adds it (KIP-890).
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AbortableTransactionError, FatalProducerError, KafkaError, TransactionAbortedError
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.producer.txn_requests.transactional_call import CalledMethod
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from tests.producer.harness import TOPIC, metadata_response, partition_answer, produce_response
from tests.producer.transactions.transaction_stage import TransactionStage

TWO_PARTITIONS = {TOPIC: (0, 0)}
TWO_NODES = {TOPIC: (0, 1)}


def added(stage: TransactionStage) -> list[list[int]]:
    """The partitions that each AddPartitionsToTxn names."""
    messages = [request.message for request in stage.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN)]
    return [
        [partition for topic in message.topics for partition in topic.partitions]
        for message in messages
        if isinstance(message, AddPartitionsToTxnRequest)
    ]


def reject(stage: TransactionStage, error: ErrorCode, partition: int = 0) -> None:
    """The leader's answer to the oldest Produce request, and a round that reads it."""
    stage.client.respond(produce_response(partition_answer(partition, error)), request=stage.produced()[0])
    stage.run()


def first_sequences(stage: TransactionStage) -> list[tuple[int, int]]:
    """(epoch, base sequence) of each batch sent."""
    return [sent_batch.identity[1:] for sent_batch in stage.sent_batches]


# WHEN ROWS ARE SENT AT ALL


@pytest.mark.parametrize("initialized", [False, True], ids=["before init", "before begin"])
def test_no_row_is_sent_outside_of_a_transaction(version: int, initialized: bool) -> None:
    stage = TransactionStage(version, initialized=initialized)
    stage.append(b"a")
    stage.run(5)
    assert stage.sent_batches == []
    assert added(stage) == []


def test_a_transaction_is_open_from_its_begin_until_its_end_is_answered(version: int) -> None:
    for kind in (CalledMethod.COMMIT, CalledMethod.ABORT):
        stage = TransactionStage(version)
        assert not stage.manager.has_open_transaction
        stage.begin()
        stage.write(b"a")
        assert stage.manager.has_open_transaction
        stage.holds = {ApiKey.END_TXN}
        end = stage.post(kind)
        stage.run(2)
        assert stage.manager.has_open_transaction
        stage.holds.clear()
        stage.settle(end)
        assert not stage.manager.has_open_transaction


def test_after_a_fatal_error_nothing_is_sent_and_all_rows_fail(version: int) -> None:
    stage = TransactionStage(version, leaders=TWO_PARTITIONS)
    stage.begin()
    stage.write(b"a")
    in_flight, waiting = stage.send(b"b"), stage.append(b"c", partition=1)
    stage.manager.become_fatal(KafkaError("ended"))
    stage.run(3)
    assert len(stage.sent_batches) == 2
    for delivery in (in_flight, waiting):
        assert isinstance(delivery.error, FatalProducerError)
    assert not stage.manager.has_open_transaction


# PARTITIONS JOIN


def test_version_1_adds_partitions_before_their_first_batch_and_each_once() -> None:
    stage = TransactionStage(1, leaders=TWO_NODES)
    stage.begin()
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    stage.append(b"a", partition=[0])
    stage.append(b"b", partition=[1])
    stage.run(3)
    assert added(stage) == [[0, 1]]
    assert stage.sent_batches == []
    stage.holds.clear()
    stage.run(2)
    assert sorted(sent_batch.topic_partition.partition for sent_batch in stage.sent_batches) == [0, 1]
    stage.acknowledge()
    stage.write(b"c")
    stage.write(b"d", partition=1)
    assert added(stage) == [[0, 1]]


def test_version_1_adds_what_comes_later_with_a_request_of_its_own() -> None:
    """Also while the first request is under way: the second one is not forgotten."""
    stage = TransactionStage(1, leaders={TOPIC: (0, 0, 0)})
    stage.begin()
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    stage.append(b"a", partition=0)
    stage.run(2)
    stage.append(b"b", partition=1)
    stage.run(2)
    assert added(stage) == [[0]]
    stage.holds.clear()
    stage.run(3)
    stage.acknowledge()
    stage.write(b"c", partition=2)
    assert added(stage) == [[0], [1], [2]]


def test_in_version_2_partitions_join_with_their_first_batch() -> None:
    stage = TransactionStage(2, leaders=TWO_NODES)
    stage.begin()
    stage.append(b"a", partition=0)
    stage.append(b"b", partition=1)
    stage.run()
    assert len(stage.sent_batches) == 2
    assert added(stage) == []


def test_a_partition_that_was_not_added_yet_is_not_added_after_an_error() -> None:
    """Neither one that waits for its request, nor one whose request is answered too late; its rows were not sent."""
    stage = TransactionStage(1, leaders=TWO_PARTITIONS)
    stage.begin()
    stage.holds = {ApiKey.ADD_PARTITIONS_TO_TXN}
    first = stage.append(b"a", partition=0)
    stage.run(2)
    second = stage.append(b"b", partition=1)
    stage.manager.become_abortable(KafkaError("refused"))
    stage.holds.clear()
    stage.run(5)
    assert added(stage) == [[0]]
    assert stage.sent_batches == []
    for delivery in (first, second):
        assert isinstance(delivery.error, TransactionAbortedError)


def test_a_batch_that_is_being_retried_goes_on_after_an_error_elsewhere() -> None:
    stage = TransactionStage(1, leaders=TWO_PARTITIONS)
    stage.begin()
    retried = stage.send(b"a", partition=0)
    stage.run(2)
    reject(stage, Errors.REQUEST_TIMED_OUT)
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.TOPIC_AUTHORIZATION_FAILED)
    denied = stage.send(b"b", partition=1)
    stage.run(2)
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    assert isinstance(denied.error, TransactionAbortedError)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(denied.error.__cause__)
    stage.back_off()
    stage.run()
    stage.acknowledge()
    assert (retried.error, retried.done()) == (None, True)
    stage.call(CalledMethod.ABORT)
    stage.begin()
    stage.write(b"c")
    stage.call(CalledMethod.COMMIT)
    assert stage.ended == ["aborted", "committed"]


# WHEN IT IS TRIED AGAIN


def tries(stage: TransactionStage, api: ApiKey, within_ms: int) -> list[int]:
    """After how many ms each further request of this kind is sent."""
    tries_ms, before = [], len(stage.requests_of(api))
    for passed in range(within_ms):
        stage.run()
        tries_ms += [passed] * (len(stage.requests_of(api)) - before - len(tries_ms))
        stage.clock.advance(1)
    return tries_ms


def test_the_first_partitions_of_a_transaction_are_tried_again_after_20_ms() -> None:
    """The markers of the transaction before are being written, which takes milliseconds (KAFKA-5482)."""
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.CONCURRENT_TRANSACTIONS, times=3)
    stage.send(b"a")
    assert tries(stage, ApiKey.ADD_PARTITIONS_TO_TXN, 200) == [20, 40, 60]


def test_a_shorter_retry_backoff_is_kept() -> None:
    stage = TransactionStage(1, retry_backoff_ms=5, retry_backoff_max_ms=5)
    stage.begin()
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.CONCURRENT_TRANSACTIONS)
    stage.send(b"a")
    assert tries(stage, ApiKey.ADD_PARTITIONS_TO_TXN, 50) == [5]


def test_another_error_of_the_first_partitions_takes_the_usual_time() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.COORDINATOR_LOAD_IN_PROGRESS)
    stage.send(b"a")
    (again,) = tries(stage, ApiKey.ADD_PARTITIONS_TO_TXN, 150)
    assert 80 <= again <= 120


def test_further_partitions_take_the_usual_time() -> None:
    """The transaction has begun: what is concurrent now is not over in a moment."""
    stage = TransactionStage(1, leaders=TWO_PARTITIONS)
    stage.begin()
    stage.write(b"a")
    stage.fail_next(ApiKey.ADD_PARTITIONS_TO_TXN, Errors.CONCURRENT_TRANSACTIONS)
    stage.send(b"b", partition=1)
    (again,) = tries(stage, ApiKey.ADD_PARTITIONS_TO_TXN, 150)
    assert 80 <= again <= 120


def test_in_version_2_the_first_batch_of_a_transaction_is_tried_again_after_20_ms() -> None:
    """The story: one commit a batch took 100 ms, retry.backoff.ms, as the leader of the next transaction's first batch still
    saw the one before."""
    stage = TransactionStage(2)
    stage.begin()
    stage.send(b"a")
    for _ in range(3):
        reject(stage, Errors.CONCURRENT_TRANSACTIONS)
        assert tries(stage, ApiKey.PRODUCE, 21) == [20]
    stage.acknowledge()
    stage.call(CalledMethod.COMMIT)
    stage.begin()
    stage.send(b"b")
    reject(stage, Errors.CONCURRENT_TRANSACTIONS)
    assert tries(stage, ApiKey.PRODUCE, 21) == [20]


def test_in_version_2_a_shorter_retry_backoff_is_kept() -> None:
    stage = TransactionStage(2, retry_backoff_ms=5, retry_backoff_max_ms=5)
    stage.begin()
    stage.send(b"a")
    reject(stage, Errors.CONCURRENT_TRANSACTIONS)
    assert tries(stage, ApiKey.PRODUCE, 10) == [5]


@pytest.mark.parametrize("error", [Errors.NOT_ENOUGH_REPLICAS, Errors.COORDINATOR_LOAD_IN_PROGRESS], ids=str)
def test_in_version_2_another_error_of_the_first_batch_takes_the_usual_time(error: ErrorCode) -> None:
    stage = TransactionStage(2)
    stage.begin()
    stage.send(b"a")
    reject(stage, error)
    (again,) = tries(stage, ApiKey.PRODUCE, 150)
    assert 80 <= again <= 120


def test_in_version_2_a_batch_takes_the_usual_time_when_another_was_written() -> None:
    stage = TransactionStage(2, leaders=TWO_PARTITIONS)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b", partition=1)
    reject(stage, Errors.CONCURRENT_TRANSACTIONS, partition=1)
    (again,) = tries(stage, ApiKey.PRODUCE, 150)
    assert 80 <= again <= 120


def test_in_version_2_offsets_that_begin_a_transaction_are_tried_again_after_20_ms() -> None:
    stage = TransactionStage(2)
    stage.begin()
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.CONCURRENT_TRANSACTIONS)
    stage.post_offsets()
    stage.run()
    assert tries(stage, ApiKey.TXN_OFFSET_COMMIT, 100) == [20]
    stage.fail_next(ApiKey.TXN_OFFSET_COMMIT, Errors.CONCURRENT_TRANSACTIONS)
    stage.post_offsets()
    (again,) = tries(stage, ApiKey.TXN_OFFSET_COMMIT, 150)
    assert 80 <= again <= 120


def test_in_version_1_a_group_that_begins_a_transaction_is_tried_again_after_20_ms() -> None:
    stage = TransactionStage(1)
    stage.begin()
    stage.fail_next(ApiKey.ADD_OFFSETS_TO_TXN, Errors.CONCURRENT_TRANSACTIONS)
    stage.post_offsets()
    assert tries(stage, ApiKey.ADD_OFFSETS_TO_TXN, 100) == [20]


# SEQUENCES


def test_sequences_go_on_in_version_1_and_begin_at_0_per_transaction_in_version_2(version: int) -> None:
    stage = TransactionStage(version)
    for _ in range(2):
        stage.begin()
        stage.write(b"a")
        stage.write(b"b", b"c")
        stage.call(CalledMethod.COMMIT)
    assert first_sequences(stage) == {1: [(0, 0), (0, 1), (0, 3), (0, 4)], 2: [(0, 0), (0, 1), (1, 0), (1, 1)]}[version]


def test_several_batches_of_a_new_epoch_are_in_flight_where_the_producer_is_known() -> None:
    """Brokers there accept only sequence 0 as the first of a new epoch, so no batch needs to wait for the first one's answer.

    A partition that this producer id has not written to is another matter: brokers of Kafka 4.0 accept any first sequence there,
    and the batch before it, if it was rejected, would stay out of order until it expires (KAFKA-18202, mended in 4.1).
    """
    stage = TransactionStage(2)
    stage.begin()
    stage.send(b"a")
    stage.send(b"b")
    assert first_sequences(stage) == [(0, 0)]  # the second one waits, once per partition
    stage.acknowledge_all()
    stage.call(CalledMethod.COMMIT)
    stage.begin()
    for value in (b"c", b"d", b"e"):
        stage.send(value)
    assert first_sequences(stage)[2:] == [(1, 0), (1, 1), (1, 2)]


def test_a_new_producer_id_begins_with_one_batch_in_flight_again() -> None:
    stage = TransactionStage(2)
    stage.begin()
    stage.write(b"a")
    transaction = stage.cluster.transactions.transactions["copies-1"]
    transaction.epoch = 32765
    stage.manager.identity = stage.manager._txn.identity = stage.manager.identity._replace(producer_epoch=32765)
    in_flight = []
    for _ in range(2):
        stage.call(CalledMethod.COMMIT)
        stage.begin()
        stage.send(b"b")
        stage.send(b"c")
        in_flight.append(len(stage.produced()))
        stage.acknowledge_all()
    assert len({sent_batch.identity[0] for sent_batch in stage.sent_batches}) == 2
    assert in_flight == [2, 1]


def test_batches_behind_one_that_is_too_early_keep_their_order() -> None:
    """The first batch of a transaction is answered CONCURRENT_TRANSACTIONS, those behind it OUT_OF_ORDER_SEQUENCE_NUMBER."""
    stage = TransactionStage(2)
    stage.begin()
    stage.write(b"a")
    stage.call(CalledMethod.COMMIT)
    stage.begin()
    deliveries = [stage.send(value) for value in (b"b", b"c", b"d")]
    assert first_sequences(stage)[1:] == [(1, 0), (1, 1), (1, 2)]
    reject(stage, Errors.CONCURRENT_TRANSACTIONS)
    reject(stage, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    reject(stage, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    started_ms = stage.now_ms
    stage.acknowledge_all()
    assert stage.now_ms - started_ms < 40  # the back-off of those behind is no longer than that of the first one
    assert [delivery.error for delivery in deliveries] == [None] * 3
    assert first_sequences(stage)[4:] == [(1, 0), (1, 1), (1, 2)]
    stage.call(CalledMethod.COMMIT)
    assert stage.ended == ["committed", "committed"]


def test_a_gap_in_the_sequences_makes_the_transaction_abortable_in_its_epoch(version: int) -> None:
    stage = TransactionStage(version)
    stage.begin()
    stage.write(b"a")
    refused = stage.send(b"b")
    reject(stage, Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert refused.error is not None
    assert stage.manager.identity.producer_epoch == 0
    assert isinstance(stage.settle(stage.post(CalledMethod.COMMIT)), AbortableTransactionError)
    stage.call(CalledMethod.ABORT)
    stage.begin()
    assert stage.manager.identity.producer_epoch == 1
    stage.write(b"c")
    assert first_sequences(stage)[-1] == (1, 0)


def test_a_producer_that_the_leader_has_forgotten_makes_the_transaction_abortable(version: int) -> None:
    """Java begins at 0 again within the transaction where its records were deleted. Brokers have not said this since 2.5."""
    stage = TransactionStage(version)
    stage.begin()
    stage.write(b"a")
    stage.send(b"b")
    stage.client.respond(
        produce_response(partition_answer(0, Errors.UNKNOWN_PRODUCER_ID, log_start_offset=10)), request=stage.produced()[0]
    )
    stage.run()
    assert stage.manager.state is SequencerState.ABORTABLE_ERROR
    stage.call(CalledMethod.ABORT)
    stage.begin()
    stage.write(b"c")
    assert first_sequences(stage)[-1] == (1, 0)


def test_sequences_go_on_when_a_topic_was_gone_from_the_metadata_for_a_while() -> None:
    """Beginning at 0 in the same epoch, its batches would be taken for duplicates, and be lost."""
    stage = TransactionStage(1)
    stage.begin()
    stage.write(b"a")
    stage.call(CalledMethod.COMMIT)
    stage.client.update_metadata(metadata_response({}))
    stage.begin()
    stage.append(b"b")
    stage.run(3)
    stage.client.update_metadata(metadata_response(stage.leaders))
    stage.run(3)
    stage.acknowledge_all()
    stage.call(CalledMethod.COMMIT)
    assert first_sequences(stage) == [(0, 0), (0, 1)]
