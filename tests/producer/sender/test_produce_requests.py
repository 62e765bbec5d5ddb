"""Produce requests: what goes out, and how an answer is read."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.producer.accumulator.delivery import OffsetRange
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.producer.harness import TOPIC, Stage, metadata_response, partition_answer, tp
from tests.producer.sender.stages import values

# ONE REQUEST


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
    assert not stage.accumulator.incomplete
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


def test_one_answer_may_acknowledge_one_partition_and_reject_another() -> None:
    stage = Stage(leaders={TOPIC: (0, 0)})
    good, bad = stage.append(b"a", partition=0), stage.append(b"b", partition=1)
    stage.run()
    stage.respond(partition_answer(0, base_offset=3), partition_answer(1, Errors.INVALID_TOPIC_EXCEPTION))
    assert good.error is None
    assert good.acknowledged == 1
    assert isinstance(bad.error, BrokerError)
    assert stage.is_whole


def test_a_partition_that_the_answer_does_not_mention_fails() -> None:
    """Counted as written, its rows might be lost silently; an answer that the Sender waits for would never come."""
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


# ACKS=0


def test_with_acks_0_rows_are_done_when_they_are_written_and_offsets_are_unknown() -> None:
    stage = Stage(acks="0")
    delivery = stage.send(b"a", b"b")
    assert delivery.done()
    assert delivery.result(0).offsets[tp()] == OffsetRange(-1, -1, 2, delivery.offsets[tp()].bytes)
    assert stage.client.sent_requests[-1].expect_response is False
    assert stage.is_whole


def test_with_acks_0_a_connection_lost_before_the_write_is_retried() -> None:
    stage = Stage(acks="0")
    stage.client.prepare_response(was_disconnected=True)
    delivery = stage.send(b"a")
    assert not delivery.done()
    stage.back_off()
    stage.run()
    assert delivery.done()
    assert values(stage) == [[b"a"], [b"a"]]


# KIP-951: THE ANSWER NAMES THE NEW LEADER


def test_a_rejection_that_names_the_new_leader_is_retried_there_at_once() -> None:
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


def test_a_rejection_that_names_no_new_leader_waits_for_metadata_and_back_off() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.run()
    assert stage.in_flight == []


def test_a_named_leader_of_an_older_epoch_is_ignored() -> None:
    stage = Stage()
    stage.client.update_metadata(metadata_response(stage.leaders, epoch=9))
    stage.send(b"a")
    stage.reject(Errors.FENCED_LEADER_EPOCH, current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=8))
    stage.back_off()
    stage.run()
    assert stage.in_flight[0].node_id == 0


def test_a_retry_goes_to_the_new_leader_without_back_off_only_once() -> None:
    stage = Stage()
    stage.send(b"a")
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.client.update_metadata(metadata_response({TOPIC: (1,)}, epoch=1))
    stage.run()
    assert stage.in_flight[0].node_id == 1
    stage.reject(Errors.NOT_LEADER_OR_FOLLOWER)
    stage.run()
    assert stage.in_flight == []
    stage.back_off()
    stage.run()
    assert stage.in_flight[0].node_id == 1
