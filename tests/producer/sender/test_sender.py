"""Sender: one round after the other, what goes out, what an answer does, and that nothing is lost, doubled or reordered.

The test plays the brokers through Stage. A round is ready → drain → expire → send → poll, so a request sent in one round is
in flight after it, and an answer given between two rounds is handled in the poll of the second, after its drain.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
    BrokerError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.network.in_flight_requests import ClientRequest
from spark_kafka_sink.producer.accumulator.delivery import OffsetRange
from spark_kafka_sink.producer.gathered_records import RecordFuture
from spark_kafka_sink.producer.sender.sender import MAX_POLL_MS
from spark_kafka_sink.producer.sender.transaction_manager import MAX_EPOCH, State
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.producer.harness import (
    PRODUCER_ID,
    TOPIC,
    OpenAppend,
    Stage,
    all_good,
    metadata_response,
    partition_answer,
    produce_response,
    tp,
)
from tests.producer.simulated_brokers import Fate, SimulatedBrokers


def values(stage: Stage) -> list[list[bytes | None]]:
    """What was sent, batch by batch."""
    return [sent.values for sent in stage.sent]


def identities(stage: Stage) -> list[tuple[int, int, int]]:
    """(producer id, epoch, base sequence) of each batch sent."""
    return [sent.identity for sent in stage.sent]


def idempotent(**options: object) -> Stage:
    return Stage(enable_idempotence=True, **options)  # type: ignore[arg-type]


def known(**options: object) -> Stage:
    """An idempotent one whose partitions the brokers know: sequences go on at 1."""
    stage = idempotent(**options)
    stage.introduce()
    return stage


# ---- ONE REQUEST


def test_rows_are_sent_and_acknowledged() -> None:
    stage = Stage()
    delivery = stage.send(b"a", b"b")
    assert values(stage) == [[b"a", b"b"]]
    assert len(stage.in_flight) == 1
    assert not delivery.done()
    stage.succeed(base_offset=7)
    assert delivery.done()
    assert delivery.error is None
    assert delivery.offsets == {tp(): OffsetRange(first=7, last=8, rows=2, bytes=delivery.offsets[tp()].bytes)}
    assert not stage.accumulator.has_incomplete()
    assert stage.is_whole


def test_a_request_carries_acks_timeout_and_one_batch_per_partition() -> None:
    stage = Stage(leaders={TOPIC: (0, 0), "other": (0,)}, acks="-1", request_timeout_ms=1234)
    stage.append(b"a", b"b", partition=[0, 1])
    stage.append(b"c", topic="other")
    stage.run()
    (request,) = stage.in_flight
    message = request.message
    assert isinstance(message, ProduceRequest)
    assert (message.acks, message.timeout_ms, message.transactional_id) == (-1, 1234, None)
    assert request.request_timeout_ms == 1234
    assert {topic.name: [data.index for data in topic.partition_data] for topic in message.topic_data} == {
        TOPIC: [0, 1],
        "other": [0],
    }


def test_each_leader_gets_a_request_of_its_own() -> None:
    stage = Stage(leaders={TOPIC: (0, 1, 2)})
    stage.send(b"a", b"b", b"c", partition=[0, 1, 2])
    assert {request.node_id for request in stage.in_flight} == {0, 1, 2}


def test_one_answer_may_acknowledge_one_partition_and_refuse_another() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)})
    good, bad = stage.append(b"a", partition=0), stage.append(b"b", partition=1)
    stage.run()
    stage.respond(partition_answer(0, base_offset=3), partition_answer(1, Errors.INVALID_TOPIC_EXCEPTION))
    assert good.error is None
    assert good.acknowledged == 1
    assert isinstance(bad.error, BrokerError)
    assert stage.is_whole


def test_a_partition_that_the_answer_does_not_mention_fails() -> None:
    """Taken for granted it would be a row lost silently; waited for it would never end."""
    stage = Stage(leaders={TOPIC: (0, 0)})
    delivery = stage.send(b"a", b"b", partition=[0, 1])
    stage.respond(partition_answer(0))
    assert (delivery.acknowledged, delivery.failed) == (1, 1)
    assert "the response does not mention this partition" in str(delivery.error)


def test_an_answer_by_topic_id_is_matched_to_its_topic() -> None:
    stage = Stage()
    topic_id = uuid4()
    plain = metadata_response(stage.leaders)
    with_id = replace(plain, topics=tuple(replace(topic, topic_id=topic_id) for topic in plain.topics))
    stage.client.update_metadata(with_id)
    delivery = stage.send(b"a")
    (request,) = stage.in_flight
    assert stage.client.version_of(request) >= 13
    answer = TopicProduceResponse(topic_id=topic_id, partition_responses=(partition_answer(base_offset=5),))
    stage.client.respond(ProduceResponse(responses=(answer,)))
    stage.run()
    assert delivery.offsets[tp()].first == 5


def test_a_topic_without_id_is_sent_by_name() -> None:
    stage = Stage()
    stage.send(b"a")
    assert stage.client.version_of(stage.in_flight[0]) == 12


def test_log_append_time_topics_are_acknowledged_too() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.respond(partition_answer(base_offset=1, log_append_time_ms=123))
    assert delivery.result(0).offsets[tp()].first == 1


# ---- acks=0


def test_with_acks_0_rows_are_done_when_they_are_written_and_offsets_are_unknown() -> None:
    stage = Stage(acks="0")
    delivery = stage.send(b"a", b"b")
    assert delivery.done()
    assert delivery.result(0).offsets[tp()] == OffsetRange(-1, -1, 2, delivery.offsets[tp()].bytes)
    assert stage.client.sent[-1].expect_response is False
    assert stage.is_whole


def test_with_acks_0_a_connection_lost_before_the_write_is_retried() -> None:
    stage = Stage(acks="0")
    stage.client.prepare_response(disconnected=True)
    delivery = stage.send(b"a")
    assert not delivery.done()
    stage.back_off()
    stage.run()
    assert delivery.done()
    assert values(stage) == [[b"a"], [b"a"]]


# ---- WAITING AND POLLING


def test_with_nothing_to_do_the_sender_sleeps() -> None:
    stage = Stage()
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == MAX_POLL_MS


def test_the_sender_sleeps_no_longer_than_a_batch_lingers() -> None:
    stage = Stage(linger_ms=500)
    stage.clock.advance(100)
    stage.append(b"a")
    stage.clock.advance(50)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 450


def test_the_sender_does_not_wait_right_after_it_has_sent() -> None:
    stage = Stage()
    stage.send(b"a")
    assert stage.client.poll_timeouts_ms[-1] == 0


def test_the_sender_sleeps_no_longer_than_a_batch_may_live() -> None:
    stage = Stage(leaders={TOPIC: (None,)}, request_timeout_ms=100, delivery_timeout_ms=700)
    stage.append(b"a")
    stage.clock.advance(200)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 500


def test_a_batch_in_flight_is_looked_at_when_it_expires() -> None:
    stage = Stage(request_timeout_ms=600, delivery_timeout_ms=700)
    stage.send(b"a")
    stage.clock.advance(200)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 500


def test_a_node_that_is_not_ready_gets_nothing_and_decides_how_long_to_sleep() -> None:
    stage = Stage()
    stage.client.delay_ready(0, 20)
    stage.send(b"a")
    assert stage.sent == []
    assert stage.client.poll_timeouts_ms[-1] == 20
    stage.clock.advance(20)
    stage.run()
    assert values(stage) == [[b"a"]]


def test_a_throttled_node_gets_nothing_until_its_time_is_over() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.succeed()
    stage.client.throttle(0, 400)
    stage.send(b"b")
    assert values(stage) == [[b"a"]]
    assert stage.client.poll_timeouts_ms[-1] == 400
    stage.clock.advance(400)
    stage.run()
    assert values(stage) == [[b"a"], [b"b"]]


def test_no_more_requests_than_allowed_are_in_flight_to_a_node() -> None:
    stage = Stage(max_in_flight_requests_per_connection=3, batch_size=1)
    stage.append(*[b"%d" % row for row in range(5)])
    stage.run(10)
    assert len(stage.in_flight) == 3
    stage.succeed()
    stage.run()
    assert len(stage.in_flight) == 3
    assert len(stage.sent) == 4


def test_while_a_partition_waits_for_its_answer_the_sender_does_not_spin() -> None:
    """Its node is ready, its batch is not: a poll of 0 ms would burn a processor until the answer comes."""
    stage = known(batch_size=1)
    stage.send(b"1")
    stage.send(b"2")
    first, second = stage.in_flight
    stage.refuse(Errors.NOT_ENOUGH_REPLICAS, request=second)
    stage.refuse(Errors.NOT_ENOUGH_REPLICAS, request=first)
    stage.back_off()
    stage.run()  # sends the first again; the second has to wait for it
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] > 0


def test_a_topic_without_leader_has_metadata_asked_for_once_more() -> None:
    stage = Stage(leaders={TOPIC: (None,)})
    delivery = stage.append(b"a")
    stage.clock.advance(10_000)  # past any back-off
    stage.client.prepare_metadata_update(metadata_response({TOPIC: (1,)}))
    stage.run(2)
    assert [request.node_id for request in stage.in_flight] == [1]
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_topic_that_metadata_forgot_comes_back_when_rows_wait_for_it() -> None:
    stage = Stage(metadata_max_idle_ms=5000)
    stage.clock.advance(6000)
    stage.client.update_metadata(metadata_response(stage.leaders))
    assert stage.metadata.cluster().partition_count(TOPIC) is None
    stage.append(b"a")
    stage.run(3)
    assert stage.metadata.cluster().partition_count(TOPIC) is not None
    assert values(stage) == [[b"a"]]


# ---- RETRIES


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
    stage.refuse(error)
    stage.run()
    assert len(stage.sent) == 1  # backing off
    stage.back_off()
    stage.run()
    assert [sent.batch for sent in stage.sent] == [stage.sent[0].batch] * 2
    stage.succeed(base_offset=4)
    assert delivery.result(0).acknowledged == 2
    assert stage.metrics.retries.total == 2
    assert stage.is_whole


def test_a_retriable_error_that_tells_of_stale_metadata_has_it_refreshed() -> None:
    stage = Stage()
    stage.clock.advance(10_000)
    stage.send(b"a")
    stage.client.prepare_metadata_update(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
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
    assert len(stage.sent) == 2
    assert isinstance(delivery.error, KafkaError)
    assert str(delivery.error).startswith("[KAFKA_NETWORK_EXCEPTION]")
    assert "attempt 2, retries=1" in str(delivery.error)
    assert stage.is_whole


def test_without_retries_the_first_error_is_final() -> None:
    stage = Stage(retries=0)
    delivery = stage.send(b"a")
    stage.refuse(Errors.NOT_ENOUGH_REPLICAS)
    assert "KAFKA_NOT_ENOUGH_REPLICAS" in str(delivery.error)
    assert stage.is_whole


def test_an_error_that_will_not_go_away_is_final_and_quotes_the_broker() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.refuse(Errors.INVALID_REQUIRED_ACKS, error_message="two acks are not a thing")
    assert isinstance(delivery.error, BrokerError)
    assert delivery.error.error_code == Errors.INVALID_REQUIRED_ACKS.number
    assert 'The broker says: "two acks are not a thing"' in str(delivery.error)
    assert "orders-0 (1 records" in str(delivery.error)
    assert stage.metrics.errors.total == 1
    assert stage.is_whole


def test_an_error_without_words_of_the_broker_says_what_it_means() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.refuse(Errors.TOPIC_AUTHORIZATION_FAILED)
    assert str(delivery.error).startswith("[KAFKA_TOPIC_AUTHORIZATION_FAILED] orders-0")
    assert Errors.TOPIC_AUTHORIZATION_FAILED.doc in str(delivery.error)


def test_the_row_that_the_broker_blames_is_named() -> None:
    """KIP-467. Row 1 of the second call lies at offset delta 3 of the batch."""
    stage = Stage()
    first, second = stage.append(b"a", b"b"), stage.append(b"c", b"d", b"e")
    stage.run()
    blamed = BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="no key on a compacted topic")
    stage.refuse(Errors.INVALID_RECORD, record_errors=(blamed,), error_message="one of these is bad")
    assert str(second.error).startswith("[KAFKA_INVALID_RECORD] row 1 of this chunk, orders-0: no key on a compacted topic")
    assert "one of these is bad" in str(first.error)
    assert (first.failed, second.failed) == (2, 3)


def test_a_batch_of_one_record_is_refused_for_its_records_sake_even_if_the_broker_does_not_name_it() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.refuse(Errors.INVALID_TIMESTAMP)
    (failure,) = delivery.failures
    assert [error.condition for error in failure.blamed.values()] == ["KAFKA_INVALID_TIMESTAMP"]


def test_of_several_records_none_is_blamed_that_the_broker_does_not_name() -> None:
    """Nor one that the batch does not have: whoever sends the others again would do so for ever."""
    stage = Stage()
    delivery = stage.append(b"a", b"b")
    stage.run()
    nobody = BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="bad")
    stage.refuse(Errors.INVALID_RECORD, record_errors=(nobody,))
    (failure,) = delivery.failures
    assert not failure.blamed
    assert not failure.rows_are_named


# ---- KIP-951: THE ANSWER NAMES THE NEW LEADER


def test_a_refusal_that_names_the_new_leader_is_retried_there_at_once() -> None:
    stage = Stage()
    delivery = stage.send(b"a")
    stage.respond(
        partition_answer(0, Errors.NOT_LEADER_OR_FOLLOWER, current_leader=LeaderIdAndEpoch(leader_id=7, leader_epoch=5)),
        node_endpoints=(NodeEndpoint(node_id=7, host="127.0.0.1", port=9099),),
    )
    stage.run()
    assert stage.in_flight[0].node_id == 7  # no back-off, no metadata round trip
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_refusal_that_does_not_name_the_new_leader_waits_for_metadata_and_back_off() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.run()
    assert stage.in_flight == []


def test_a_named_leader_of_an_older_epoch_is_ignored() -> None:
    stage = Stage()
    stage.client.update_metadata(metadata_response(stage.leaders, epoch=9))
    stage.send(b"a")
    stage.refuse(Errors.FENCED_LEADER_EPOCH, current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=8))
    stage.back_off()
    stage.run()
    assert stage.in_flight[0].node_id == 0


def test_a_retry_goes_to_the_new_leader_without_back_off_once_and_backs_off_after_that() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.client.update_metadata(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.run()
    assert stage.in_flight[0].node_id == 1
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.run()
    assert stage.in_flight == []
    stage.back_off()
    stage.run()
    assert stage.in_flight[0].node_id == 1


# ---- ORDER WITH ONE REQUEST IN FLIGHT


def test_with_one_request_in_flight_a_partition_waits_for_its_answer() -> None:
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.send(b"2")
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]


def test_with_one_request_in_flight_a_moving_leader_does_not_reorder() -> None:
    """The new leader's connection has no request in flight, yet the partition has."""
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.client.update_metadata(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.send(b"2")
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]
    assert stage.in_flight[0].node_id == 1


def test_with_one_request_in_flight_a_retried_batch_goes_before_those_behind_it() -> None:
    stage = Stage(max_in_flight_requests_per_connection=1)
    stage.send(b"1")
    stage.send(b"2")
    stage.disconnect()
    stage.back_off()
    stage.run()
    assert values(stage) == [[b"1"], [b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"1"], [b"2"]]


def test_with_one_request_in_flight_an_expired_batch_holds_its_partition_until_its_answer() -> None:
    """The request is still out: a batch sent now could land before it."""
    stage = Stage(max_in_flight_requests_per_connection=1, request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1")
    stage.clock.advance(1000)
    second = stage.send(b"2")
    assert first.failed == 1
    assert values(stage) == [[b"1"]]
    stage.succeed()
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]
    stage.succeed()
    assert second.acknowledged == 1
    assert stage.is_whole


# ---- EXPIRY


def test_a_batch_in_flight_expires_and_its_rows_fail_at_once() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.run()
    assert isinstance(delivery.error, KafkaTimeoutError)
    assert str(delivery.error).startswith("[KAFKA_DELIVERY_TIMEOUT] Expiring 1 record(s) for orders-0, led by node 0 at ")
    assert ": 1500 ms have passed since batch creation" in str(delivery.error)
    assert "no answer from node 0" in str(delivery.error)
    assert not stage.accumulator.has_incomplete()  # flush() need not wait


def test_memory_of_a_batch_that_expired_in_flight_is_not_used_again_before_its_answer() -> None:
    """KAFKA-19012: rows of another topic went out under the expired batch's request."""
    stage = Stage(
        leaders={TOPIC: (0,), "other": (1,)},
        request_timeout_ms=2000,
        delivery_timeout_ms=2000,
        batch_size=1024,
        buffer_memory=2048,
    )
    stage.send(b"first" + bytes(900))
    (request,) = stage.in_flight
    assert isinstance(request.message, ProduceRequest)
    on_the_wire = request.message.topic_data[0].partition_data[0].records
    before = b"".join(on_the_wire)
    stage.clock.advance(2000)
    stage.run()
    assert not stage.is_whole
    stage.send(b"second" + bytes(900), topic="other")
    assert b"".join(on_the_wire) == before
    stage.succeed(request=request)
    stage.respond(partition_answer(), topic="other")
    assert stage.is_whole


@pytest.mark.parametrize("ending", ["success", "error", "disconnect"])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_the_late_answer_of_an_expired_batch_frees_its_memory_and_changes_nothing_else(ending: str, is_idempotent: bool) -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500, enable_idempotence=is_idempotent)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.run()
    error = delivery.error
    if ending == "disconnect":
        stage.disconnect()
    elif ending == "error":
        stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
    else:
        stage.succeed()
    stage.back_off()
    stage.run(2)
    assert len(stage.sent) == 1  # never retried
    assert delivery.error is error
    assert (delivery.acknowledged, delivery.failed) == (0, 1)
    assert stage.is_whole


def test_an_expired_batch_is_not_split_when_the_broker_finds_it_too_large() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a", b"b")
    stage.clock.advance(1500)
    stage.run()
    stage.refuse(Errors.MESSAGE_TOO_LARGE)
    stage.back_off()
    stage.run(2)
    assert len(stage.sent) == 1
    assert delivery.failed == 2
    assert stage.is_whole


def test_an_answer_in_the_round_of_the_expiry_fails_the_batch_once_and_frees_it_once() -> None:
    stage = Stage(request_timeout_ms=1500, delivery_timeout_ms=1500)
    delivery = stage.send(b"a")
    stage.clock.advance(1500)
    stage.client.respond(produce_response(partition_answer()))
    stage.run()  # expires it, then hears the answer
    assert (delivery.acknowledged, delivery.failed) == (0, 1)
    assert stage.is_whole


def test_a_retriable_answer_after_the_delivery_timeout_is_final() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    delivery = stage.send(b"a")
    stage.client.respond(produce_response(partition_answer(0, Errors.NOT_LEADER_OR_FOLLOWER)))
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    stage.back_off()
    stage.run(2)
    assert len(stage.sent) == 1
    assert stage.is_whole


def test_batches_of_several_partitions_expire_each_at_its_own_time() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)}, request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1", partition=0)
    stage.clock.advance(300)
    second = stage.send(b"2", partition=1)
    stage.clock.advance(700)
    stage.run()
    assert (first.failed, second.failed) == (1, 0)
    assert stage.client.poll_timeouts_ms[-1] <= 300
    stage.clock.advance(300)
    stage.run()
    assert second.failed == 1


def test_a_queued_batch_expires_without_ever_having_been_sent_and_says_why() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.metadata.connection_failed("127.0.0.1:9092", "[Errno 111] Connection refused")
    stage.client.delay_ready(0, 100_000)
    delivery = stage.send(b"a")
    stage.clock.advance(1000)
    stage.run()
    assert "Connection refused" in str(delivery.error)
    assert stage.sent == []
    assert stage.is_whole


def test_the_last_error_of_a_batch_that_expires_is_told() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000)
    delivery = stage.send(b"a")
    stage.refuse(Errors.NOT_ENOUGH_REPLICAS, error_message="1 of 2 replicas")
    stage.clock.advance(1000)
    stage.run()
    assert "last trouble: NOT_ENOUGH_REPLICAS (19): 1 of 2 replicas" in str(delivery.error)


@pytest.mark.parametrize("max_in_flight", [1, 5])
@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_batch_that_expires_when_its_node_becomes_ready_leaves_nothing_behind(is_idempotent: bool, max_in_flight: int) -> None:
    """It was drained and expired in one round, never sent, and so never answered: its memory was lost, and with one request
    in flight its partition was muted for good.
    """
    stage = Stage(
        request_timeout_ms=1000,
        delivery_timeout_ms=2000,
        enable_idempotence=is_idempotent,
        max_in_flight_requests_per_connection=max_in_flight,
    )
    stage.client.delay_ready(0, 2000)
    late = stage.append(b"late")
    stage.clock.advance(2000)
    stage.run(3)
    assert late.failed == 1
    assert stage.is_whole
    stage.send(b"next")
    assert stage.sent[-1].values == [b"next"]


def test_rows_may_be_written_while_others_expire() -> None:
    stage = Stage(request_timeout_ms=1000, delivery_timeout_ms=1000, leaders={TOPIC: (None,)})
    stage.append(b"old")
    stage.clock.advance(1000)
    young = stage.append(b"young")  # joins the batch that is about to expire
    stage.run()
    assert young.failed == 1
    later = stage.append(b"later")
    stage.run()
    assert not later.done()
    assert [batch.record_count for batch in stage.queued()] == [1]


# ---- PRODUCER ID


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.send(b"a")
    assert [type(request.message) for request in stage.in_flight] == [InitProducerIdRequest]
    stage.client.respond(InitProducerIdResponse(producer_id=5, producer_epoch=3))
    stage.run(2)
    assert identities(stage) == [(5, 3, 0)]


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (7, -1), (-1, -1)])
def test_an_answer_without_a_producer_id_is_asked_for_again(producer_id: int, epoch: int) -> None:
    """-1 stands for none. Taken for one, it was never asked for again, and no row was ever sent."""
    stage = Stage(enable_idempotence=True, has_producer_id=False)
    delivery = stage.send(b"a")
    (request,) = stage.in_flight
    stage.client.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch), request=request)
    stage.run()
    assert not stage.txn.has_producer_id
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_the_producer_id_is_asked_for_once() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run(5)
    assert len(stage.client.sent) == 1


def test_an_idempotent_producer_asks_for_an_id_without_transactional_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.run()
    message = stage.client.sent[0].message
    assert isinstance(message, InitProducerIdRequest)
    assert message.transactional_id is None
    assert (message.producer_id, message.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("trouble", ["retriable", "disconnect"])
def test_an_id_that_cannot_be_had_now_is_asked_for_again_after_back_off(trouble: str) -> None:
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"a")
    if trouble == "disconnect":
        stage.disconnect()
    else:
        stage.client.respond(InitProducerIdResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS.number))
        stage.run()
    stage.run()
    assert len(stage.client.sent) == 1
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    assert not delivery.done()
    stage.succeed()
    assert delivery.acknowledged == 1


def test_when_no_node_can_be_asked_the_sender_tries_again() -> None:
    stage = idempotent(has_producer_id=False)
    for node in range(5):
        stage.client.delay_ready(node, 50)
    stage.run()
    assert stage.client.sent == []
    stage.clock.advance(50)
    stage.run()
    assert len(stage.client.sent) == 1


REFUSED = AuthenticationError("node 0: who are you?")


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_rows_for_a_broker_that_refuses_us_fail_at_once_and_later_ones_ask_again(enable_idempotence: bool) -> None:
    stage = Stage(leaders={TOPIC: (0, 1)}, enable_idempotence=enable_idempotence)
    stage.client.fail_authentication(0, REFUSED)
    delivery = stage.append(b"a")
    stage.run()
    assert delivery.error is REFUSED
    assert stage.is_whole
    stage.client.node(0).backing_off_until_ms = 0
    again = stage.send(b"b")
    stage.succeed()
    assert again.acknowledged == 1


def test_a_refusal_counts_although_the_next_attempt_has_begun() -> None:
    """With reconnect.backoff.ms=0 the Sender never saw a refusal: rows were failed by delivery.timeout.ms, two minutes later."""
    stage = Stage()
    delivery = stage.append(b"a")
    stage.client.fail_authentication(0, REFUSED)
    stage.client.node(0).backing_off_until_ms = 0
    stage.client.delay_ready(0, 1000)
    assert not stage.client.connection_failed(0)
    stage.run()
    assert delivery.error is REFUSED


def test_rows_for_other_brokers_are_written_while_one_refuses_us() -> None:
    stage = Stage(leaders={TOPIC: (0, 1)})
    stage.client.fail_authentication(0, REFUSED)
    delivery = stage.send(b"a", partition=1)
    stage.succeed(partition=1)
    assert delivery.acknowledged == 1


@pytest.mark.parametrize("enable_idempotence", [True, False])
def test_a_refusal_fails_what_waits_for_that_broker_and_nothing_else(enable_idempotence: bool) -> None:
    """It failed every row of the producer, also those that were in flight to other brokers: they were written nevertheless, and
    once more by the retried Spark task.
    """
    stage = Stage(leaders={TOPIC: (0, 1, None)}, enable_idempotence=enable_idempotence)
    stage.metadata.add_topic(TOPIC, stage.now_ms)
    in_flight = stage.send(b"in flight", partition=1)
    request = stage.in_flight[-1]
    leaderless = stage.append(b"leaderless", partition=2)
    queued = stage.append(b"queued", partition=1)
    refused = [stage.append(b"refused", partition=0), stage.append(b"too", partition=0)]
    stage.client.fail_authentication(0, REFUSED)
    stage.run()
    assert [delivery.error for delivery in refused] == [REFUSED, REFUSED]
    assert [delivery.error for delivery in (in_flight, queued, leaderless)] == [None] * 3
    stage.succeed(partition=1, request=request)
    stage.run_until(lambda: bool(stage.in_flight) or queued.acknowledged == 1)
    for request in list(stage.in_flight):
        stage.succeed(1, partition=1, request=request)
    assert (in_flight.acknowledged, queued.acknowledged) == (1, 1)
    assert leaderless.error is None


def test_a_caller_that_still_writes_into_a_batch_for_a_refusing_broker_gets_the_error_when_it_is_done() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)})
    writing = OpenAppend(stage, b"a")
    other = stage.append(b"b", partition=1)
    stage.client.fail_authentication(0, REFUSED)
    stage.run()
    assert other.error is REFUSED
    assert writing.delivery.error is None
    writing.fill()
    stage.run()
    assert writing.delivery.error is REFUSED
    assert stage.is_whole


def test_numbers_of_rows_that_were_sent_before_a_refusal_are_not_taken_for_written() -> None:
    stage = idempotent()
    stage.introduce()
    delivery = stage.send(b"a")
    assert stage.sent[-1].identity == (PRODUCER_ID, 0, 1)
    stage.client.fail_authentication(0, REFUSED)
    stage.run()  # the request is lost, and its batch queued again
    stage.back_off()
    stage.run()
    assert delivery.error is REFUSED
    stage.client.node(0).backing_off_until_ms = 0
    stage.send(b"b")
    stage.run_until(lambda: len(stage.sent) == 2)
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 0)  # in a new epoch: a broker that never saw 1 would not take 2


def test_rows_without_a_leader_fail_when_every_broker_refuses_us() -> None:
    stage = Stage(leaders={TOPIC: (None,), "other": (0, 1)})
    stage.run()
    first, *others = [node.id for node in stage.metadata.cluster().nodes]
    stage.client.fail_authentication(first, REFUSED)
    delivery = stage.send(b"a")
    assert others
    assert delivery.error is None  # another may know the leader
    for node in others:
        stage.client.fail_authentication(node, REFUSED)
    stage.run()
    assert delivery.error is REFUSED


def test_a_refused_id_fails_what_waits_and_is_asked_for_again() -> None:
    """A permission granted meanwhile is enough; the producer need not be made anew."""
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"a")
    stage.client.respond(InitProducerIdResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED.number))
    stage.run()
    assert str(delivery.error).startswith("[KAFKA_CLUSTER_AUTHORIZATION_FAILED]")
    assert "IDEMPOTENT_WRITE" in str(delivery.error)
    assert stage.is_whole
    assert stage.txn.fatal_error is None
    again = stage.append(b"b")
    stage.back_off()
    stage.receive_producer_id()
    stage.run()
    stage.succeed()
    assert again.acknowledged == 1


def test_a_broker_that_gives_no_ids_fails_what_waits() -> None:
    stage = idempotent(has_producer_id=False)
    for node in range(5):
        stage.client.set_api_versions(node, {ApiKey.INIT_PRODUCER_ID: (90, 91)})
    delivery = stage.send(b"a")
    stage.run()
    assert isinstance(delivery.error, UnsupportedVersionError)


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_with_one_request_in_flight_the_id_request_does_not_block_the_rows(is_idempotent: bool) -> None:
    stage = Stage(enable_idempotence=is_idempotent, has_producer_id=False, max_in_flight_requests_per_connection=1)
    stage.client.prepare_response(
        InitProducerIdResponse(producer_id=1, producer_epoch=0), matcher=_asks_for_id
    ) if is_idempotent else None
    delivery = stage.append(b"a")
    stage.run(3)
    stage.succeed()
    assert delivery.acknowledged == 1


def _asks_for_id(request: ClientRequest) -> bool:
    return isinstance(request.message, InitProducerIdRequest)


# ---- SEQUENCES: SEVERAL IN FLIGHT


def test_sequences_count_records_per_partition() -> None:
    stage = known(leaders={TOPIC: (0, 0)})
    stage.send(b"a", b"b", partition=0)
    stage.send(b"c", partition=1)
    stage.send(b"d", b"e", b"f", partition=0)
    stage.send(b"g", partition=0)
    assert [(sent.topic_partition.partition, sent.batch.base_sequence) for sent in stage.sent] == [(0, 1), (1, 1), (0, 3), (0, 6)]
    assert {(sent.batch.producer_id, sent.batch.producer_epoch) for sent in stage.sent} == {(PRODUCER_ID, 0)}


def test_without_idempotence_batches_carry_no_identity() -> None:
    stage = Stage()
    stage.send(b"a")
    assert identities(stage) == [(-1, -1, -1)]


def test_several_batches_of_a_partition_are_in_flight_at_a_time() -> None:
    stage = known()
    deliveries = [stage.send(b"%d" % row) for row in range(3)]
    assert len(stage.in_flight) == 3
    entry = stage.txn.sequences[tp()]
    assert (entry.next_sequence, entry.last_acked_sequence) == (4, 0)
    for offset in range(3):
        stage.succeed(offset)
        assert entry.last_acked_sequence == 1 + offset
        assert deliveries[offset].acknowledged == 1
    assert entry.in_flight == []
    assert stage.is_whole


def test_after_a_failure_batches_in_flight_are_retried_one_at_a_time_and_in_order() -> None:
    """Only the lowest sequence may go: the broker would refuse the others. A new batch waits behind them."""
    stage = known()
    deliveries = [stage.send(b"%d" % row) for row in range(3)]
    requests = stage.in_flight
    stage.refuse(Errors.LEADER_NOT_AVAILABLE, request=requests[0])
    for request in requests[1:]:
        stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    deliveries.append(stage.append(b"3"))
    stage.back_off()
    stage.run(3)
    assert values(stage)[3:] == [[b"0"]]
    stage.succeed(0)
    for row in (1, 2):
        stage.run()
        assert stage.sent[-1].values == [b"%d" % row]
        assert stage.sent[-1].batch.base_sequence == 1 + row
        if row == 1:
            stage.succeed(row)
    stage.run()  # with the last retry in flight, new batches may go again
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 4)
    stage.succeed(2)
    stage.succeed(3)
    assert [delivery.acknowledged for delivery in deliveries] == [1, 1, 1, 1]
    assert stage.is_whole


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_whatever_the_order_of_the_answers_batches_are_retried_in_sequence_order(order: tuple[int, ...]) -> None:
    stage = known()
    for row in range(3):
        stage.send(b"%d" % row)
    requests = stage.in_flight
    for row in order:
        stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[row])
    for row in range(3):
        stage.back_off()
        stage.run(2)
        assert stage.sent[-1].identity == (PRODUCER_ID, 0, 1 + row)
        stage.succeed(row)
    assert len(stage.sent) == 6


def test_a_later_batch_may_succeed_while_an_earlier_one_is_retried() -> None:
    """The first landed although its answer was an error; its retry is then a duplicate."""
    stage = known()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.succeed(1, request=requests[1])
    assert (first.done(), second.acknowledged) == (False, 1)
    assert stage.txn.sequences[tp()].last_acked_sequence == 2
    stage.back_off()
    stage.run()
    assert stage.sent[-1].identity == (PRODUCER_ID, 0, 1)
    stage.refuse(Errors.DUPLICATE_SEQUENCE_NUMBER)
    assert first.result(0).offsets[tp()].first == -1
    assert stage.txn.sequences[tp()].last_acked_sequence == 2  # does not go back
    assert stage.is_whole


def test_a_batch_behind_the_last_acknowledged_one_still_is_the_first_in_flight() -> None:
    """It was sorted behind the batches drained after it: each of the two then waited for the other until both expired."""
    stage = known()
    stage.send(b"1")
    stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.succeed(1, request=requests[1])
    stage.back_off()
    stage.run()
    stage.send(b"3")
    assert values(stage) == [[b"1"], [b"2"], [b"1"], [b"3"]]
    stage.disconnect()
    for expected in (b"1", b"3"):
        stage.back_off()
        stage.run(2)
        assert stage.sent[-1].values == [expected]
        stage.succeed()
    assert stage.is_whole


def test_a_duplicate_is_a_success_whose_offset_is_unknown() -> None:
    stage = idempotent()
    delivery = stage.send(b"a", b"b")
    stage.disconnect()
    stage.back_off()
    stage.run()
    duplicate = PartitionProduceResponse(index=0, error_code=Errors.DUPLICATE_SEQUENCE_NUMBER.number, base_offset=99)
    stage.respond(duplicate)  # whatever offset comes with the error is not to be trusted
    assert delivery.result(0).acknowledged == 2
    assert delivery.offsets[tp()] == OffsetRange(-1, -1, 2, delivery.offsets[tp()].bytes)
    stage.send(b"c")
    assert stage.sent[-1].batch.base_sequence == 2


def test_answers_that_come_out_of_order_acknowledge_the_right_rows() -> None:
    """A connection lost and made anew can have the second request answered before the first one's retry."""
    stage = known()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    assert stage.txn.producer.epoch == 0  # a gap is expected while the first one is out: no new epoch
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[0])
    stage.back_off()
    stage.run()
    assert stage.sent[-1].identity == (PRODUCER_ID, 0, 1)
    stage.succeed(10)
    stage.run()
    assert stage.sent[-1].identity == (PRODUCER_ID, 0, 2)
    stage.succeed(11)
    assert (first.offsets[tp()].first, second.offsets[tp()].first) == (10, 11)


def test_the_first_batch_of_a_partition_is_not_overtaken_by_the_second() -> None:
    """A broker that does not know the producer takes any first sequence: after the first batch was refused it took the second,
    and the first could never follow.
    """
    stage = idempotent(batch_size=1)
    brokers = SimulatedBrokers(stage)
    first, second = stage.append(b"1"), stage.append(b"2")
    stage.run(2)
    brokers.answer(0, Fate.REFUSE_BUSY)
    for _ in range(20):
        brokers.answer_all()
        stage.run()
        stage.back_off()
    assert brokers.logs[tp()].values == [b"1", b"2"]
    assert (first.acknowledged, second.acknowledged) == (1, 1)


def test_until_the_brokers_know_the_producer_a_partition_has_one_batch_in_flight() -> None:
    stage = idempotent(leaders={TOPIC: (0, 0)}, batch_size=1)
    stage.append(b"1", b"2", partition=0)
    stage.append(b"3", partition=1)
    stage.run(3)
    assert values(stage) == [[b"1"], [b"3"]]
    stage.respond(partition_answer(0), partition_answer(1))
    stage.append(b"4", partition=0)
    stage.run(3)
    assert values(stage) == [[b"1"], [b"3"], [b"2"], [b"4"]]


# ---- EPOCH BUMPS


def test_after_a_fatal_failure_of_the_first_batch_those_behind_it_are_numbered_anew() -> None:
    stage = known()
    first, second = stage.send(b"1"), stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.INVALID_RECORD, request=requests[0])
    assert first.failed == 1
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    stage.back_off()
    stage.run()
    assert stage.sent[-1].values == [b"2"]
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 0)
    stage.succeed(0)
    assert second.acknowledged == 1
    stage.send(b"3")
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 1)


def test_an_out_of_order_error_of_the_next_batch_starts_a_new_epoch() -> None:
    """Nothing before it is missing as far as we know: the broker has lost something, and a new epoch begins at 0."""
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(0)
    delivery = stage.send(b"2")
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(0)
    assert delivery.acknowledged == 1


def test_a_new_epoch_renumbers_all_in_flight_of_its_partition_in_order() -> None:
    stage = idempotent()
    stage.send(b"0")
    stage.succeed()
    for row in (1, 2, 3):
        stage.send(b"%d" % row, b"x")
    for request in stage.in_flight:
        stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    for row in (1, 2, 3):
        stage.back_off()
        stage.run(2)
        assert (stage.sent[-1].values[0], stage.sent[-1].identity) == (b"%d" % row, (PRODUCER_ID, 1, 2 * (row - 1)))
        stage.succeed()
    stage.send(b"4")
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 6)
    assert len(stage.sent) == 8


def test_other_partitions_keep_the_old_epoch_until_nothing_of_theirs_is_in_flight() -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    stage.send(b"a", partition=0)
    stage.succeed(partition=0)
    stage.send(b"healthy", partition=1)
    (healthy,) = stage.in_flight
    stage.send(b"b", partition=0)
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=stage.in_flight[1])
    stage.back_off()
    stage.run()
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 0)
    stage.send(b"waits", partition=1)
    assert stage.sent[-1].values == [b"b"]  # an epoch's first batch must not overtake the old epoch's last
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=healthy, partition=1)
    stage.back_off()
    stage.run()
    assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"healthy"], (PRODUCER_ID, 0, 0))
    stage.succeed(partition=1, request=stage.in_flight[-1])
    stage.run()
    assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"waits"], (PRODUCER_ID, 1, 0))


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1")
    stage.succeed()
    delivery = stage.send(b"2")
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert stage.txn.state is State.INITIALIZING
    assert len(stage.sent) == 2  # nothing is sent without an id
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run(2)
    assert stage.sent[-1].identity == (9, 0, 0)
    stage.succeed()
    assert delivery.acknowledged == 1


def test_a_batch_of_the_old_producer_id_is_retried_under_it() -> None:
    """Renumbering it would write it twice if its first attempt had landed."""
    stage = idempotent(leaders={TOPIC: (0, 1)}, has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"a", partition=0)
    stage.succeed(partition=0)
    stage.send(b"b", b"c", partition=[0, 1])
    of_b, of_c = stage.in_flight
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=of_b, partition=0)
    stage.back_off()
    stage.run()
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0), request=stage.in_flight[-1])
    stage.run()
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=of_c, partition=1)
    stage.back_off()
    stage.run(2)
    assert {(sent.values[0], sent.identity) for sent in stage.sent[3:]} == {(b"b", (9, 0, 0)), (b"c", (8, MAX_EPOCH, 0))}


def test_queued_rows_are_sent_after_a_new_producer_id() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    first = stage.send(b"1")
    second = stage.append(b"2")
    stage.refuse(Errors.INVALID_RECORD)
    assert first.failed == 1
    requests = [request for request in stage.in_flight if isinstance(request.message, ProduceRequest)]
    for request in requests:
        stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=request)
    stage.back_off()
    stage.run()
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run(2)
    assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"2"], (9, 0, 0))
    stage.succeed()
    assert second.acknowledged == 1
    assert stage.is_whole


def test_out_of_order_again_in_the_new_epoch_is_retried_without_another_bump() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.back_off()
    stage.run()
    assert identities(stage) == [(PRODUCER_ID, 0, 0), (PRODUCER_ID, 1, 0), (PRODUCER_ID, 1, 0)]


def test_with_retries_exhausted_out_of_order_is_raised() -> None:
    stage = Stage(enable_idempotence=True, retries=1)
    delivery = stage.send(b"1")
    for _ in range(2):
        stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
        stage.back_off()
        stage.run()
    assert "KAFKA_OUT_OF_ORDER_SEQUENCE_NUMBER" in str(delivery.error)
    assert stage.is_whole


# ---- UNKNOWN_PRODUCER_ID


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    """Its last records there were deleted by retention."""
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    delivery = stage.send(b"2")
    stage.refuse(Errors.UNKNOWN_PRODUCER_ID, log_start_offset=1010)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(1011)
    assert delivery.offsets[tp()].first == 1011


def test_a_broker_that_cannot_say_why_it_forgot_the_producer_is_asked_again() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    stage.send(b"2")
    stage.refuse(Errors.UNKNOWN_PRODUCER_ID, log_start_offset=-1)
    stage.back_off()
    stage.run()
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 1)


def test_batches_behind_a_forgotten_one_follow_it_into_the_new_epoch_in_order() -> None:
    stage = idempotent()
    stage.send(b"1")
    stage.succeed(1000)
    stage.send(b"2")
    stage.send(b"3")
    second, third = stage.in_flight
    stage.refuse(Errors.UNKNOWN_PRODUCER_ID, request=second, log_start_offset=1010)
    stage.run()
    stage.refuse(Errors.UNKNOWN_PRODUCER_ID, request=third, log_start_offset=1010)
    for row, offset in ((2, 1011), (3, 1012)):
        stage.back_off()
        stage.run(2)
        assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"%d" % row], (PRODUCER_ID, 1, row - 2))
        stage.succeed(offset)
    assert stage.txn.producer.epoch == 1


# ---- UNRESOLVED SEQUENCES


def test_rows_that_expire_without_having_been_sent_leave_no_gap() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.client.delay_ready(0, 1500)
    delivery = stage.append(b"1")
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    assert not stage.txn.has_unresolved(tp())
    stage.clock.advance(1000)
    stage.send(b"2")
    assert identities(stage) == [(PRODUCER_ID, 0, 0)]


def test_an_expired_batch_leaves_no_gap_if_a_later_one_succeeds() -> None:
    stage = known(request_timeout_ms=1000, delivery_timeout_ms=1000)
    first = stage.send(b"1")
    stage.clock.advance(600)
    second = stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.REQUEST_TIMED_OUT, request=requests[0])
    stage.clock.advance(400)
    stage.run()
    assert first.failed == 1
    assert stage.txn.has_unresolved(tp())
    stage.append(b"3")
    stage.run()
    assert values(stage) == [[b"1"], [b"2"]]  # nobody knows yet which number comes next
    stage.succeed(1, request=requests[1])
    assert second.acknowledged == 1
    stage.run()
    assert not stage.txn.has_unresolved(tp())
    assert identities(stage)[-1] == (PRODUCER_ID, 0, 3)


def test_an_expired_batch_and_a_refused_one_behind_it_start_a_new_epoch() -> None:
    stage = known(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.clock.advance(600)
    second = stage.send(b"2")
    requests = stage.in_flight
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=requests[0])
    stage.clock.advance(400)
    stage.run()
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=requests[1])
    stage.clock.advance(150)
    stage.run()
    assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"2"], (PRODUCER_ID, 1, 0))
    stage.succeed()
    assert second.acknowledged == 1
    assert not stage.txn.has_unresolved(tp())


def test_when_all_batches_that_were_sent_expire_the_next_one_starts_a_new_epoch() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.clock.advance(1000)
    stage.run(2)
    assert stage.txn.producer.epoch == 1
    stage.send(b"2")
    assert (stage.sent[-1].values, stage.sent[-1].identity) == ([b"2"], (PRODUCER_ID, 1, 0))


def test_a_batch_that_expires_in_flight_leaves_a_gap_of_unknown_fate_too() -> None:
    stage = idempotent(request_timeout_ms=1000, delivery_timeout_ms=1000)
    stage.send(b"1")
    stage.clock.advance(1000)
    stage.run(2)
    stage.send(b"2")
    assert identities(stage)[-1] == (PRODUCER_ID, 1, 0)
    stage.succeed(0)  # of the first one, far too late: it says nothing about the new epoch
    assert stage.txn.sequences[tp()].last_acked_sequence == -1
    stage.succeed(1)
    assert stage.txn.sequences[tp()].last_acked_sequence == 0
    assert stage.is_whole


# ---- FATAL ERRORS


@pytest.mark.parametrize("error", [Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.PRODUCER_FENCED], ids=str)
def test_a_fatal_answer_fails_everything_queued_and_in_flight(error: ErrorCode) -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    deliveries = [stage.send(b"1", partition=0), stage.send(b"2", partition=1)]
    first, second = stage.in_flight
    stage.refuse(error, request=first, partition=0)
    deliveries.append(stage.append(b"3", partition=1))
    stage.run(2)
    assert [delivery.failed for delivery in deliveries] == [1, 1, 1]
    assert stage.txn.fatal_error is deliveries[2].error
    stage.succeed(request=second, partition=1)  # too late for its rows, in time for its memory
    assert stage.is_whole
    assert len(stage.sent) == 2


@pytest.mark.parametrize("idempotence", [False, True])
def test_another_cluster_behind_the_bootstrap_servers_fails_everything_queued_and_in_flight(idempotence: bool) -> None:
    """Its brokers do not know our sequences; written there, the batches could be taken for duplicates of another producer's."""
    stage = idempotent() if idempotence else Stage()
    deliveries = [stage.send(b"1")]
    deliveries.append(stage.append(b"2"))
    stage.metadata.cluster_changed("other")
    stage.run(2)
    assert [delivery.failed for delivery in deliveries] == [1, 1]
    assert all(delivery.error is stage.metadata.permanent_error() for delivery in deliveries)
    stage.refuse(Errors.NETWORK_EXCEPTION)
    stage.back_off()
    stage.run(2)
    assert len(stage.sent) == 1
    assert stage.is_whole


def test_a_fatal_answer_without_idempotence_fails_its_batch_only() -> None:
    stage = Stage()
    first = stage.send(b"1")
    stage.refuse(Errors.CLUSTER_AUTHORIZATION_FAILED)
    second = stage.send(b"2")
    stage.succeed()
    assert (first.failed, second.acknowledged) == (1, 1)


def test_a_batch_in_flight_when_the_producer_becomes_fatal_is_not_retried() -> None:
    stage = idempotent(leaders={TOPIC: (0, 1)})
    stage.send(b"1", b"2", partition=[0, 1])
    first, second = stage.in_flight
    stage.refuse(Errors.PRODUCER_FENCED, request=first, partition=0)
    stage.refuse(Errors.NOT_LEADER_OR_FOLLOWER, request=second, partition=1)
    stage.back_off()
    stage.run(3)
    assert len(stage.sent) == 2
    assert stage.is_whole


def test_a_produce_request_in_no_common_version_is_fatal() -> None:
    stage = idempotent()
    stage.client.set_api_versions(0, {ApiKey.PRODUCE: (90, 91)})
    delivery = stage.send(b"1")
    stage.run()
    assert delivery.failed == 1
    assert stage.txn.state is State.FATAL_ERROR


def test_an_unsupported_message_format_is_not_fatal() -> None:
    stage = idempotent()
    first = stage.send(b"1")
    stage.refuse(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert first.failed == 1
    assert stage.txn.fatal_error is None


def test_rows_written_while_the_producer_becomes_fatal_are_collected() -> None:
    """The batch that a caller was still writing into stayed in its queue for good: its memory was lost, close() waited for it."""
    stage = idempotent()
    writing = OpenAppend(stage, b"1")
    error = KafkaError("fatal")
    stage.txn.become_fatal(error)
    stage.run()
    assert writing.delivery.error is error
    writing.fill()
    stage.run()
    assert stage.is_whole
    assert not stage.accumulator.has_undrained()
    assert stage.metrics.errors.total == 1


def test_an_id_that_arrives_after_a_fatal_error_changes_nothing() -> None:
    """The state machine refused the move, and the Sender thread ended with an internal error."""
    stage = idempotent(leaders={TOPIC: (0, 1)}, has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1", b"2", partition=[0, 1])
    first, second = stage.in_flight
    stage.refuse(Errors.INVALID_RECORD, request=first, partition=0)
    stage.run()
    assert stage.txn.state is State.INITIALIZING
    stage.refuse(Errors.PRODUCER_FENCED, request=second, partition=1)
    stage.client.respond(InitProducerIdResponse(producer_id=9, producer_epoch=0))
    stage.run()
    assert stage.txn.state.value == "fatal error"
    assert not stage.txn.has_producer_id


# ---- LARGE BATCHES


def test_a_single_record_that_the_broker_finds_too_large_fails() -> None:
    stage = idempotent()
    delivery = stage.send(b"1")
    stage.refuse(Errors.MESSAGE_TOO_LARGE)
    assert "KAFKA_MESSAGE_TOO_LARGE" in str(delivery.error)
    assert stage.is_whole
    assert not stage.accumulator.has_incomplete()


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_batch_that_the_broker_finds_too_large_is_sent_in_pieces(is_idempotent: bool) -> None:
    stage = Stage(enable_idempotence=is_idempotent)
    if is_idempotent:
        stage.introduce()
    delivery = stage.send(b"a" * 100, b"b" * 100, b"c" * 100, b"d" * 100)
    stage.refuse(Errors.MESSAGE_TOO_LARGE)
    for offset in (10, 12):
        stage.run()  # at once, without back-off
        stage.succeed(offset)
    assert values(stage)[1:] == [[b"a" * 100, b"b" * 100], [b"c" * 100, b"d" * 100]]
    assert (delivery.result(0).offsets[tp()].first, delivery.offsets[tp()].last, delivery.offsets[tp()].rows) == (10, 13, 4)
    assert stage.metrics.splits.total == 1
    assert stage.is_whole
    stage.send(b"next")
    if is_idempotent:
        assert [sent.batch.base_sequence for sent in stage.sent] == [1, 1, 3, 5]
        assert {sent.batch.producer_epoch for sent in stage.sent} == {0}


def test_a_split_does_not_use_up_a_retry() -> None:
    stage = Stage(retries=0)
    delivery = stage.send(b"a", b"b")
    stage.refuse(Errors.MESSAGE_TOO_LARGE)
    for _ in range(2):
        stage.run()
        stage.succeed()
    assert delivery.result(0).acknowledged == 2


def test_a_piece_that_still_is_too_large_is_split_again_and_a_single_record_fails() -> None:
    stage = known()
    delivery = stage.send(b"a", b"b", b"c")
    while stage.in_flight:
        stage.refuse(Errors.MESSAGE_TOO_LARGE)
        stage.run()
    assert delivery.failed == 3
    assert "KAFKA_MESSAGE_TOO_LARGE" in str(delivery.error)
    assert stage.is_whole
    assert not stage.accumulator.has_incomplete()


def test_batches_behind_a_split_one_wait_for_its_pieces() -> None:
    stage = known()
    stage.send(b"1", b"2")
    stage.send(b"3")
    first, second = stage.in_flight
    stage.refuse(Errors.MESSAGE_TOO_LARGE, request=first)
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, request=second)
    for row in range(3):
        stage.back_off()
        stage.run()
        assert len(stage.in_flight) == 1
        stage.succeed(row)
    assert [(sent.values, sent.batch.base_sequence) for sent in stage.sent[2:]] == [([b"1"], 1), ([b"2"], 2), ([b"3"], 3)]
    assert stage.is_whole


def test_pieces_that_expire_before_they_are_sent_leave_a_gap_that_a_new_epoch_closes() -> None:
    """Their numbers were given to their parent: the rows after them were out of order until they expired as well."""
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
    assert stage.sent[-1].values == [b"3"]
    assert stage.sent[-1].identity == (PRODUCER_ID, 1, 0)


# ---- THE END


def run_thread(stage: Stage) -> None:
    """The thread's body, on this thread: it ends when nothing is left to do."""
    stage.sender.run()


def test_close_sends_what_is_queued_and_waits_for_its_answers() -> None:
    stage = Stage(linger_ms=60_000)
    delivery = stage.append(b"a")
    stage.client.prepare_response(produce_response(partition_answer(base_offset=3)))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.result(0).offsets[tp()].first == 3
    assert stage.client.is_closed
    assert stage.is_whole


def test_forced_close_fails_what_is_queued_and_in_flight() -> None:
    stage = Stage(leaders={TOPIC: (0, None)})
    in_flight, queued = stage.send(b"a", partition=0), stage.append(b"b", partition=1)
    stage.sender.force_close()
    run_thread(stage)
    for delivery in (in_flight, queued):
        with pytest.raises(ProducerClosedError, match="closed forcefully"):
            delivery.result(0)
    assert stage.is_whole


def test_rows_written_after_close_are_refused() -> None:
    stage = Stage()
    stage.sender.initiate_close()
    with pytest.raises(ProducerClosedError):
        stage.append(b"a")


def test_close_asks_for_a_new_producer_id_if_what_is_queued_needs_one() -> None:
    stage = idempotent(has_producer_id=False)
    stage.receive_producer_id(8, MAX_EPOCH)
    stage.send(b"1")
    stage.succeed()
    delivery = stage.send(b"2")
    stage.refuse(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stage.clock.auto_tick_ms = 50
    stage.client.prepare_response(InitProducerIdResponse(producer_id=9, producer_epoch=0), matcher=_asks_for_id)
    stage.client.prepare_response(produce_response(partition_answer()))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.acknowledged == 1


def test_forced_close_while_a_new_producer_id_is_awaited_fails_the_rows() -> None:
    stage = idempotent(has_producer_id=False)
    delivery = stage.send(b"1")
    stage.sender.force_close()
    run_thread(stage)
    assert isinstance(delivery.error, ProducerClosedError)
    assert stage.is_whole


def test_close_after_a_fatal_error_ends_at_once() -> None:
    stage = idempotent()
    delivery = stage.append(b"1")
    stage.txn.become_fatal(KafkaError("fatal"))
    stage.sender.initiate_close()
    run_thread(stage)
    assert delivery.failed == 1


def test_rows_fail_even_if_the_connections_cannot_be_closed() -> None:
    stage = Stage(leaders={TOPIC: (None,)})
    delivery = stage.append(b"a")

    def breaks(*_: object) -> None:
        raise OSError("bad file descriptor")

    stage.client.close = breaks  # type: ignore[method-assign,assignment]
    stage.sender.force_close()
    run_thread(stage)
    assert delivery.failed == 1


# ---- SLEEP


@pytest.mark.parametrize("linger_ms", [0, 1])
def test_a_batch_that_waits_for_the_answer_to_another_does_not_wake_the_sender(linger_ms: int) -> None:
    """It counted as ready, and the Sender looked at it every millisecond for as long as a broker took to answer."""
    stage = idempotent(linger_ms=linger_ms, leaders={TOPIC: (0, 0)})
    stage.append(b"1")
    stage.clock.advance(linger_ms)
    stage.run()
    second = stage.append(b"2")  # goes when the first is acknowledged: before that the broker does not know this producer
    stage.clock.advance(linger_ms)
    stage.run()
    assert len(stage.in_flight) == 1
    assert stage.client.poll_timeouts_ms[-1] >= MAX_POLL_MS - 1000
    stage.append(b"3", partition=1)  # another partition is not held up
    stage.clock.advance(linger_ms)
    stage.run()
    assert [sent.values for sent in stage.sent][-1] == [b"3"]
    stage.succeed(request=stage.in_flight[0])  # which ends the poll
    stage.run()
    assert [sent.values for sent in stage.sent][-1] == [b"2"]
    stage.succeed(1, request=stage.in_flight[-1])
    assert second.acknowledged == 1


def test_the_sender_looks_again_at_once_when_something_has_expired() -> None:
    """Others of its partition may have waited for it."""
    stage = Stage(linger_ms=0, leaders={TOPIC: (None,)}, request_timeout_ms=100, delivery_timeout_ms=1000)
    delivery = stage.append(b"1")
    stage.clock.advance(1000)
    stage.run()
    assert delivery.failed == 1
    assert stage.client.poll_timeouts_ms[-1] == 0
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] > 0


# ---- SINGLE RECORDS


def test_the_sender_sleeps_no_longer_than_gathered_records_linger() -> None:
    stage = Stage(linger_ms=500)
    stage.gather(b"a")
    stage.clock.advance(100)
    stage.run()
    assert stage.client.poll_timeouts_ms[-1] == 400


def test_gathered_records_that_have_lingered_are_sent_at_once_and_linger_no_second_time() -> None:
    stage = Stage(linger_ms=500)
    futures = [stage.gather(b"a"), stage.gather(b"b")]
    stage.clock.advance(500)
    stage.run()
    assert values(stage) == [[b"a", b"b"]]
    stage.succeed(7)
    assert [future.result(0).offset for future in futures] == [7, 8]
    assert stage.is_whole


def test_gathered_records_expire_counted_from_their_send() -> None:
    stage = Stage(leaders={TOPIC: (None,)}, linger_ms=500, request_timeout_ms=500, delivery_timeout_ms=1000)
    future = stage.gather(b"a")
    stage.clock.advance(500)
    stage.run()
    assert not future.done()
    stage.clock.advance(500)
    stage.run()
    assert future.exception(0).condition == "KAFKA_DELIVERY_TIMEOUT"  # type: ignore[union-attr]


def test_the_sender_never_waits_for_memory_that_only_it_can_give_back() -> None:
    stage = Stage(linger_ms=500, batch_size=1024, buffer_memory=8 * 1024)
    future = stage.gather(bytes(900))
    stage.append(*[bytes(900)] * 7)  # the rest of the pool
    before_ms = stage.now_ms + 500
    stage.clock.advance(500)
    stage.run(10)
    assert (len(stage.in_flight), len(stage.queued())) == (5, 3)
    assert stage.now_ms == before_ms
    for offset in range(8):
        stage.succeed(offset)
    assert future.result(0).offset == 7
    assert stage.is_whole


@pytest.mark.parametrize(("partitions", "least"), [(1, 500), (4, 300), (40, 64)])
def test_no_more_than_buffer_memory_is_held_of_records_sent_one_by_one_while_a_broker_is_silent(
    partitions: int, least: int
) -> None:
    """With buffer.memory=1 MiB 11.6 MB were held, and it grew: for each chunk that had lingered, the Sender overdrew."""
    stage = Stage(leaders={TOPIC: [0] * partitions}, linger_ms=5, buffer_memory=1024 * 1024, max_block_ms=100)
    futures: list[RecordFuture] = []

    def send_until_it_raises() -> None:
        while True:
            futures.append(stage.gather(bytes(1000), partition=len(futures) * 7 % partitions))
            if len(futures) % 30 == 0:
                stage.clock.advance(5)
                stage.run()

    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        send_until_it_raises()
    held = {id(block): len(block) for batch in stage.accumulator._incomplete for block in batch.memory.blocks}
    segments = [
        len(segment) for batch in stage.accumulator._incomplete for segment in batch.segments if isinstance(segment, memoryview)
    ]
    gathered = sum(len(value or b"") for chunk in stage.gatherer.chunks.values() for value in chunk.values)
    assert len(futures) > least
    assert sum(held.values()) + sum(segments) + gathered <= 1024 * 1024
    while stage.in_flight:
        for request in stage.in_flight:
            stage.client.respond(all_good(request), request=request)
        stage.run(2)
    assert all(future.exception(0) is None for future in futures)
    assert stage.is_whole


def test_gathered_records_fail_with_a_fatal_error() -> None:
    stage = idempotent(linger_ms=60_000)
    future = stage.gather(b"a")
    error = KafkaError("fatal")
    stage.txn.become_fatal(error)
    stage.run()
    assert future.exception(0) is error


def test_gathered_records_fail_when_the_sender_ends() -> None:
    stage = Stage(linger_ms=60_000)
    future = stage.gather(b"a")
    stage.sender.force_close()
    run_thread(stage)
    assert isinstance(future.exception(0), ProducerClosedError)
