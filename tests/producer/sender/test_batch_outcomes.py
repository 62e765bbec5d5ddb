"""BatchOutcomes: retries, splits and fatal errors, as one sees them from outside of the Sender."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.producer.idempotence.numbering import SequencerState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import BatchIndexAndErrorMessage
from spark_kafka_sink.protocol.producer_identity import MAX_EPOCH
from tests.producer.harness import (
    PRODUCER_ID,
    TOPIC,
    OpenAppend,
    Stage,
    metadata_response,
    partition_answer,
    produce_response,
    tp,
)
from tests.producer.sender.stages import idempotent, introduced_stage, values

# RETRIES


RETRIABLE = [
    Errors.CORRUPT_MESSAGE,
    Errors.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.LEADER_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER,
    Errors.REQUEST_TIMED_OUT,
    Errors.NOT_ENOUGH_REPLICAS,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Errors.KAFKA_STORAGE_ERROR,
    Errors.UNKNOWN_LEADER_EPOCH,
    Errors.THROTTLING_QUOTA_EXCEEDED,
]


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize("error", RETRIABLE, ids=str)
def test_a_retriable_error_is_retried_after_back_off_with_the_same_bytes(error: ErrorCode, is_idempotent: bool) -> None:
    stage = Stage(enable_idempotence=is_idempotent)
    delivery = stage.send(b"a", b"b")
    stage.reject(error)
    stage.run()
    assert len(stage.sent_batches) == 1  # backing off
    stage.back_off()
    stage.run()
    assert [sent_batch.batch for sent_batch in stage.sent_batches] == [stage.sent_batches[0].batch] * 2
    stage.succeed(base_offset=4)
    assert delivery.result(0).acknowledged == 2
    assert stage.metrics.retries.total == 2
    assert stage.is_whole


@pytest.mark.parametrize("offset", [-(2**63), -2, 2**63 - 1])
def test_an_offset_that_no_log_can_have_is_unknown(offset: int) -> None:
    """Such an offset was taken, and added to: a row's offset was told as -9223372036854775807."""
    stage = Stage()
    delivery = stage.send(b"a", b"b")
    stage.succeed(base_offset=offset)
    assert delivery.acknowledged == 2
    assert [each.first for each in delivery.offsets.values()] == [-1]


def test_a_retriable_error_that_tells_of_stale_metadata_has_it_refreshed() -> None:
    stage = Stage()
    stage.clock.advance(10_000)
    stage.send(b"a")
    stage.client.prepare_metadata_update(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.run()  # the refresh, while the batch backs off
    stage.back_off()
    stage.run()
    assert stage.in_flight[-1].node_id == 1


def test_a_lost_connection_is_retried() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.disconnect()
    assert stage.in_flight == []
    assert not delivery.done()
    stage.back_off()
    stage.run()
    assert values(stage) == [[b"a"], [b"a"]]
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_request_that_times_out_is_retried() -> None:
    stage = Stage(request_timeout_ms=1000)
    delivery = stage.send(b"a")
    stage.clock.advance(1001)
    stage.run()
    stage.back_off()
    stage.run()
    assert values(stage) == [[b"a"], [b"a"]]
    assert not delivery.done()


def test_retries_run_out() -> None:
    stage = Stage(retries=1)
    delivery = stage.send(b"a")
    for _ in range(2):
        stage.disconnect()
        stage.back_off()
        stage.run()
    assert len(stage.sent_batches) == 2
    assert isinstance(delivery.error, KafkaError)
    assert str(delivery.error).startswith("[KAFKA_NETWORK_EXCEPTION]")
    assert "attempt 2, retries=1" in str(delivery.error)
    assert stage.is_whole


def test_without_retries_the_first_error_is_final() -> None:
    stage = Stage(retries=0)
    delivery = stage.send(b"a")
    stage.reject(Errors.NOT_ENOUGH_REPLICAS)
    assert "KAFKA_NOT_ENOUGH_REPLICAS" in str(delivery.error)
    assert stage.is_whole


def test_an_error_that_will_not_go_away_is_final_and_quotes_the_broker() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.reject(Errors.INVALID_REQUIRED_ACKS, error_message="two acks are not a thing")
    assert isinstance(delivery.error, BrokerError)
    assert delivery.error.error_code == Errors.INVALID_REQUIRED_ACKS.number
    assert 'The broker says: "two acks are not a thing"' in str(delivery.error)
    assert "orders-0 (1 records" in str(delivery.error)
    assert stage.metrics.errors.total == 1
    assert stage.is_whole


def test_an_error_without_words_of_the_broker_says_what_it_means() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.reject(Errors.TOPIC_AUTHORIZATION_FAILED)
    assert str(delivery.error).startswith("[KAFKA_TOPIC_AUTHORIZATION_FAILED] orders-0")
    assert Errors.TOPIC_AUTHORIZATION_FAILED.doc in str(delivery.error)


def test_the_row_that_the_broker_blames_is_named() -> None:
    """KIP-467. Row 1 of the second call lies at offset delta 3 of the batch."""
    stage = Stage()
    first, second = stage.append(b"a", b"b"), stage.append(b"c", b"d", b"e")
    stage.run()
    blamed = BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="no key on a compacted topic")
    stage.reject(Errors.INVALID_RECORD, record_errors=(blamed,), error_message="one of these is bad")
    assert str(second.error).startswith("[KAFKA_INVALID_RECORD] row 1 of this chunk, orders-0: no key on a compacted topic")
    assert "one of these is bad" in str(first.error)
    assert (first.failed, second.failed) == (2, 3)


def test_a_rejected_batch_of_one_record_blames_it_even_if_the_broker_names_none() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.reject(Errors.INVALID_TIMESTAMP)
    (failure,) = delivery.failures
    assert [error.condition for error in failure.blamed.values()] == ["KAFKA_INVALID_TIMESTAMP"]


def test_of_several_records_none_is_blamed_that_the_broker_does_not_name() -> None:
    """Nor is a row that the batch does not have: whoever sends the other rows again would do so for ever."""
    stage = Stage()
    delivery = stage.append(b"a", b"b")
    stage.run()
    nobody = BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="bad")
    stage.reject(Errors.INVALID_RECORD, record_errors=(nobody,))
    (failure,) = delivery.failures
    assert not failure.blamed
    assert not failure.rows_are_named


# LARGE BATCHES


def test_a_single_record_that_the_broker_finds_too_large_fails() -> None:
    stage = idempotent()
    delivery = stage.send(b"1")
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    assert "KAFKA_MESSAGE_TOO_LARGE" in str(delivery.error)
    assert stage.is_whole
    assert not stage.accumulator.incomplete


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_batch_that_the_broker_finds_too_large_is_sent_in_smaller_ones(is_idempotent: bool) -> None:
    stage = Stage(enable_idempotence=is_idempotent)
    if is_idempotent:
        stage.introduce()
    delivery = stage.send(b"a" * 100, b"b" * 100, b"c" * 100, b"d" * 100)
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    for offset in (10, 12):
        stage.run()  # at once, without back-off
        stage.succeed(offset)
    assert values(stage)[1:] == [[b"a" * 100, b"b" * 100], [b"c" * 100, b"d" * 100]]
    assert (delivery.result(0).offsets[tp()].first, delivery.offsets[tp()].last, delivery.offsets[tp()].rows) == (10, 13, 4)
    assert stage.metrics.splits.total == 1
    assert stage.is_whole
    stage.send(b"next")
    if is_idempotent:
        assert [sent_batch.batch.base_sequence for sent_batch in stage.sent_batches] == [1, 1, 3, 5]
        assert {sent_batch.batch.producer_epoch for sent_batch in stage.sent_batches} == {0}


def test_a_split_does_not_use_up_a_retry() -> None:
    stage = Stage(retries=0)
    delivery = stage.send(b"a", b"b")
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    for _ in range(2):
        stage.run()
        stage.succeed()
    assert delivery.result(0).acknowledged == 2


def test_a_smaller_batch_that_is_too_large_is_split_again_and_a_single_record_fails() -> None:
    stage = introduced_stage()
    delivery = stage.send(b"a", b"b", b"c")
    while stage.in_flight:
        stage.reject(Errors.MESSAGE_TOO_LARGE)
        stage.run()
    assert delivery.failed == 3
    assert "KAFKA_MESSAGE_TOO_LARGE" in str(delivery.error)
    assert stage.is_whole
    assert not stage.accumulator.incomplete


def test_batches_behind_a_split_one_wait_for_its_smaller_ones() -> None:
    stage = introduced_stage()
    stage.send(b"1", b"2")
    stage.send(b"3")
    first, second = stage.in_flight
    stage.reject(Errors.MESSAGE_TOO_LARGE, request=first)
    stage.reject(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=second)
    for row in range(3):
        stage.back_off()
        stage.run()
        assert len(stage.in_flight) == 1
        stage.succeed(row)
    assert [(sent_batch.values, sent_batch.batch.base_sequence) for sent_batch in stage.sent_batches[2:]] == [
        ([b"1"], 1),
        ([b"2"], 2),
        ([b"3"], 3),
    ]
    assert stage.is_whole


def test_smaller_batches_that_expire_unsent_leave_a_gap_that_a_new_epoch_closes() -> None:
    """The large batch kept the numbers of the smaller ones: the rows after them were out of order until they expired as well."""
    stage = Stage(enable_idempotence=True, request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.introduce()
    stage.send(b"1", b"2")
    (request,) = stage.in_flight
    stage.client.respond(produce_response(partition_answer(0, Errors.MESSAGE_TOO_LARGE)), request=request)
    stage.client.poll(0, stage.now_ms)
    stage.client.back_off(0, 1000)
    stage.clock.advance(1000)
    stage.run(2)
    stage.send(b"3")
    assert stage.sent_batches[-1].values == [b"3"]
    assert stage.sent_batches[-1].identity == (PRODUCER_ID, 1, 0)


# FATAL ERRORS


@pytest.mark.parametrize("error", [Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.PRODUCER_FENCED], ids=str)
def test_a_fatal_answer_fails_everything_queued_and_in_flight(error: ErrorCode) -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    deliveries = [stage.send(b"1", partition=0), stage.send(b"2", partition=1)]
    first, second = stage.in_flight
    stage.reject(error, request=first, partition=0)
    deliveries.append(stage.append(b"3", partition=1))
    stage.run(2)
    assert [delivery.failed for delivery in deliveries] == [1, 1, 1]
    assert stage.idempotent_sequencer.fatal_error is deliveries[2].error
    stage.succeed(request=second, partition=1)  # too late for its rows, in time for its memory
    assert stage.is_whole
    assert len(stage.sent_batches) == 2


@pytest.mark.parametrize("idempotence", [False, True])
def test_another_cluster_behind_bootstrap_fails_everything_queued_and_in_flight(idempotence: bool) -> None:
    """Its brokers do not know our sequences; written there, the batches could be taken for duplicates of another producer's."""
    stage = idempotent() if idempotence else Stage()
    deliveries = [stage.send(b"1")]
    deliveries.append(stage.append(b"2"))
    stage.metadata.report_other_cluster("other")
    stage.run(2)
    assert [delivery.failed for delivery in deliveries] == [1, 1]
    assert all(delivery.error is stage.metadata.permanent_error() for delivery in deliveries)
    stage.reject(Errors.NETWORK_EXCEPTION)
    stage.back_off()
    stage.run(2)
    assert len(stage.sent_batches) == 1
    assert stage.is_whole


def test_a_fatal_answer_without_idempotence_fails_its_batch_only() -> None:
    stage = Stage()
    first = stage.send(b"1")
    stage.reject(Errors.CLUSTER_AUTHORIZATION_FAILED)
    second = stage.send(b"2")
    stage.succeed()
    assert (first.failed, second.acknowledged) == (1, 1)


def test_a_batch_in_flight_when_the_producer_becomes_fatal_is_not_retried() -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    stage.send(b"1", b"2", partition=[0, 1])
    first, second = stage.in_flight
    stage.reject(Errors.PRODUCER_FENCED, request=first, partition=0)
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER, request=second, partition=1)
    stage.back_off()
    stage.run(3)
    assert len(stage.sent_batches) == 2
    assert stage.is_whole


def test_a_produce_request_in_no_common_version_is_fatal() -> None:
    stage = idempotent()
    stage.client.set_api_versions(0, {ApiKey.PRODUCE: (90, 91)})
    delivery = stage.send(b"1")
    stage.run()
    assert delivery.failed == 1
    assert stage.idempotent_sequencer.state is SequencerState.FATAL_ERROR


def test_an_unsupported_message_format_is_not_fatal() -> None:
    stage = idempotent()
    first = stage.send(b"1")
    stage.reject(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert first.failed == 1
    assert stage.idempotent_sequencer.fatal_error is None


def test_rows_written_while_the_producer_becomes_fatal_are_collected() -> None:
    """The batch that a caller was still writing into stayed in its queue for good: its memory was lost, close() waited for it."""
    stage = idempotent()
    writing = OpenAppend(stage, b"1")
    error = KafkaError("fatal")
    stage.idempotent_sequencer.become_fatal(error)
    stage.run()
    assert writing.delivery.error is error
    writing.fill()
    stage.run()
    assert stage.is_whole
    assert not stage.accumulator.has_queued_batches()
    assert stage.metrics.errors.total == 1


def test_an_id_that_arrives_after_a_fatal_error_changes_nothing() -> None:
    """The state machine refused the move, and the Sender thread ended with an internal error."""
    stage = idempotent(leaders={TOPIC: (0, 1)}, has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1", b"2", partition=[0, 1])
    first, second = stage.in_flight
    stage.reject(Errors.INVALID_RECORD, request=first, partition=0)
    stage.run()
    assert stage.idempotent_sequencer.state is SequencerState.INITIALIZING
    stage.reject(Errors.PRODUCER_FENCED, request=second, partition=1)
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run()
    assert stage.idempotent_sequencer.state.value == "fatal error"
    assert not stage.idempotent_sequencer.has_producer_id


def test_the_error_of_a_record_that_the_topic_does_not_take_has_the_limit_to_raise() -> None:
    """The error named the option, and not the number that it takes."""
    stage = Stage()
    delivery = stage.send(b"a" * 500)
    stage.run()
    stage.reject(Errors.MESSAGE_TOO_LARGE)
    stage.run()
    message = str(delivery.error)
    size = re.search(r"\(1 records, (\d+) bytes\)", message)
    assert size is not None
    assert f"Raise it to at least {size[1]} (" in message
