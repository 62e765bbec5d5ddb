"""Brokers whose answers make no sense: the Sender goes on, every row is settled once, and all memory comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.network.hostile_answers import assert_harmless
from tests.producer.harness import TOPIC, Stage, metadata_response

error_codes = st.one_of(st.just(0), st.integers(-1, 140), st.integers(-(1 << 15), (1 << 15) - 1))
small = st.integers(-2, 3)
texts = st.one_of(st.none(), st.text(max_size=3))
int64s = st.one_of(small, st.integers(-(1 << 63), (1 << 63) - 1))


def several(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=3).map(tuple)


partition_answers = st.builds(
    PartitionProduceResponse,
    index=small,
    error_code=error_codes,
    base_offset=int64s,
    log_append_time_ms=int64s,
    log_start_offset=int64s,
    record_errors=several(st.builds(BatchIndexAndErrorMessage, batch_index=small, batch_index_error_message=texts)),
    error_message=texts,
    current_leader=st.builds(LeaderIdAndEpoch, leader_id=small, leader_epoch=small),
)
produce_answers = st.builds(
    ProduceResponse,
    responses=several(
        st.builds(
            TopicProduceResponse, name=st.sampled_from([TOPIC, TOPIC, "other"]), partition_responses=several(partition_answers)
        )
    ),
    node_endpoints=several(st.builds(NodeEndpoint, node_id=small, host=st.text(max_size=3), port=small)),
)
producer_ids = st.builds(
    InitProducerIdResponse,
    error_code=error_codes,
    producer_id=int64s,
    producer_epoch=st.one_of(small, st.sampled_from([32766, 32767, -32768])),
)


@given(data=st.data(), idempotence=st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
def test_whatever_brokers_answer_each_row_settles_once_and_all_memory_comes_back(data: st.DataObject, idempotence: bool) -> None:
    stage = Stage(
        leaders={TOPIC: (0, 1)},
        has_producer_id=False,
        enable_idempotence=idempotence,
        request_timeout_ms=1000,
        delivery_timeout_ms=5000,
    )

    def answer_some() -> None:
        for request in stage.in_flight:
            if data.draw(st.integers(0, 3)):
                is_id = isinstance(request.message, InitProducerIdRequest)
                stage.client.respond(data.draw(producer_ids if is_id else produce_answers), request=request)
        stage.run()

    deliveries = []
    for _ in range(data.draw(st.integers(1, 6))):
        rows = [b"x" * data.draw(st.integers(0, 40))] * data.draw(st.integers(1, 4))
        deliveries.append(stage.send(*rows, partition=data.draw(st.integers(0, 1))))
        answer_some()
        stage.clock.advance(data.draw(st.sampled_from([0, 10, 500])))
        answer_some()
    stage.clock.advance(6000)
    stage.run(2)
    for node in (0, 1):
        stage.disconnect(node)
    stage.run(3)
    assert [delivery.acknowledged + delivery.failed for delivery in deliveries] == [delivery.rows for delivery in deliveries]
    assert stage.is_whole


FORGED = "x\n2026-01-01 00:00:00 ERROR forged\u202e" + "y" * 5_000_000


@pytest.mark.parametrize("error", [Errors.INVALID_RECORD, Errors.POLICY_VIOLATION, Errors.TOPIC_AUTHORIZATION_FAILED], ids=str)
def test_an_error_message_cannot_forge_a_log_or_make_a_large_exception(error: ErrorCode) -> None:
    """An error message of 5 MB became an exception of 5 MB, line breaks included."""
    for record_errors in ((), (BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message=FORGED),)):
        stage = Stage()
        delivery = stage.send(b"a", b"b")
        stage.reject(error, error_message=FORGED, record_errors=record_errors)
        assert_harmless(str(delivery.error))


def test_the_message_of_an_attempt_that_is_retried_is_logged_in_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    stage = Stage()
    delivery = stage.send(b"a")
    stage.reject(Errors.NOT_ENOUGH_REPLICAS, error_message=FORGED)
    assert [assert_harmless(record.getMessage()) for record in caplog.records if "forged" in record.getMessage()]
    stage.clock.advance(stage.config.delivery_timeout_ms + 1)
    stage.run()
    assert_harmless(str(delivery.error))


def test_the_leaders_host_is_bounded_in_the_error_when_a_batch_expires() -> None:
    stage = Stage(has_producer_id=False)
    response = metadata_response(stage.leaders)
    brokers = tuple(replace(each, host=FORGED[:30_000]) for each in response.brokers)
    stage.client.update_metadata(replace(response, brokers=brokers))
    delivery = stage.append(b"a")
    stage.client.back_off(0, 1 << 40)
    stage.clock.advance(stage.config.delivery_timeout_ms + 1)
    stage.run()
    assert "led by node 0 at x" in str(delivery.error)
    assert_harmless(str(delivery.error))
