"""Brokers that send anything: no bytes and no values of theirs may crash, hang or exhaust the client.

Bytes first (Framing, Reader, Selector), then well-formed answers with senseless values (NetworkClient, Metadata).
"""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import AuthenticationError, KafkaError, ProtocolError
from spark_kafka_sink.network.background import outcome_of
from spark_kafka_sink.network.dns import resolve
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.handshake import missing_login_error
from spark_kafka_sink.network.kafka_client import ClientRequest
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.sasl.oauthbearer import OAuthBearerLogin
from spark_kafka_sink.network.sasl.scram import ScramKeys, check_server_final
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.transport import Address, Transport
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersionsRequest,
    FinalizedFeatureKey,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    ProduceRequest,
)
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message, Request
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector, SentRequest, framed
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.network_config import api_versions, metadata, network_config, topic
from tests.network.hostile_answers import FORGED, KIB, MIB, answers, assert_harmless, nodes

PATIENT = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
REQUESTS: list[Request[Any]] = [
    ApiVersionsRequest(),
    MetadataRequest(topics=None),
    InitProducerIdRequest(transaction_timeout_ms=1000),
    ProduceRequest(acks=-1, timeout_ms=1000, topic_data=()),
    SaslHandshakeRequest(mechanism="PLAIN"),
    SaslAuthenticateRequest(auth_bytes=b""),
]
EVERY_VERSION = [
    (request, version)
    for request in REQUESTS
    for version in range(API_TABLE[request.API_KEY].min_version, API_TABLE[request.API_KEY].max_version + 1)
]


# BYTES


@pytest.mark.parametrize(("request_", "version"), EVERY_VERSION, ids=lambda value: str(getattr(value, "API_KEY", value)))
@given(data=st.data())
@settings(PATIENT, max_examples=25)
def test_a_damaged_answer_is_read_or_refused_and_nothing_else(request_: Request[Any], version: int, data: st.DataObject) -> None:
    """Cut, lengthened, or with bytes changed: every length inside is compared with what is there."""
    message = data.draw(answers[request_.API_KEY])
    framing = Framing("me")
    framing.send(request_, version)
    try:
        good = framed(RequestHeader(request_.API_KEY, version, 0, None), message)
    except KafkaError:
        return  # this version cannot carry what was drawn
    body = bytearray(good[4:])
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=3)):
        body[at] = value
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=3))
    responses = framing.receive_data(struct.pack(">i", len(body)) + body)
    assert (len(responses) == 1) != (framing.error is not None)


@pytest.mark.parametrize(("request_", "version"), EVERY_VERSION, ids=lambda value: str(getattr(value, "API_KEY", value)))
@pytest.mark.parametrize("filling", [b"\x7f", b"\xff", b"\xff\xff\xff\xff\x07", b"\x00\x01", b"\x00"])
def test_lengths_without_content_reserve_nothing(request_: Request[Any], version: int, filling: bytes) -> None:
    """Wherever a length stands it announces the most that it can, or each element is as small as it can be."""
    body = struct.pack(">i", 0) + filling * (20 * KIB // len(filling))
    framing = Framing("me")
    framing.send(request_, version)
    frame = struct.pack(">i", len(body)) + body
    tracemalloc.start()
    try:
        framing.receive_data(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * MIB


@given(chunks=st.lists(st.binary(min_size=1, max_size=100), max_size=8), sends=st.integers(0, 4), is_closed=st.booleans())
@settings(PATIENT, max_examples=50)
def test_a_selector_survives_any_bytes_and_disconnects_at_the_first_violation(
    chunks: list[bytes], sends: int, is_closed: bool
) -> None:
    clock = ManualClock()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        selector = Selector(clock, connections_max_idle_ms=-1, open_transport=Transport)
        framing = Framing("me")
        try:
            selector.connect(1, Address(socket.AF_INET, listener.getsockname()), framing)
            peer, _ = listener.accept()
            while 1 not in selector.connected:
                selector.poll(1000)
            for _ in range(sends):
                assert selector.send(1, framing.send(REQUESTS[2], 5))
            with peer:
                peer.sendall(b"".join(chunks))
                if is_closed:
                    peer.shutdown(socket.SHUT_WR)
                for _ in range(20):
                    if 1 in selector.disconnected:
                        break
                    selector.poll(10)
                ended = 1 in selector.disconnected
            assert ended == (is_closed or framing.error is not None)
            assert selector.is_established(1) != ended
        finally:
            selector.close()


def test_a_frame_that_trickles_in_takes_no_more_memory_than_what_has_come() -> None:
    framing = Framing("me")
    framing.send(REQUESTS[1], 12)
    tracemalloc.start()
    try:
        framing.receive_data(struct.pack(">i", 30 * MIB))
        for _ in range(100):
            framing.receive_data(bytes(KIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framing.error is None
    assert peak < MIB


# VALUES


@given(data=st.data())
@settings(PATIENT, max_examples=100)
def test_a_client_goes_on_whatever_brokers_answer(data: st.DataObject) -> None:
    """Senseless values are refused, ignored or waited out; then brokers that make sense are found and answer again."""
    clock = ManualClock()
    config = network_config(metadata_recovery_rebootstrap_trigger_ms=10_000, request_timeout_ms=2_000)
    shared = Metadata(config, clock, random=Random(0))
    shared.add_topic("orders", clock.now_ms())
    selector = FakeSelector(clock)
    is_hostile = True

    def answer(sent_request: SentRequest) -> Message | None:
        key = ApiKey(sent_request.header.api_key)
        if is_hostile:
            message: Message = data.draw(answers[key])
            try:
                message.encode(sent_request.header.api_version)
            except ProtocolError:
                return None  # what this version cannot carry is not answered at all
            return message
        return {ApiKey.API_VERSIONS: api_versions(), ApiKey.METADATA: metadata(topic("orders", [0, 1]))}.get(
            key, InitProducerIdResponse(producer_id=7, producer_epoch=0)
        )

    selector.answer = answer

    def names_only(host: str, port: int) -> list[Address]:
        if not 0 < port < 1 << 16:
            resolve(host, port)  # raises
        return [Address(socket.AF_INET, (host, port))]

    client = NetworkClient(
        config, shared, clock, selector=selector, resolve_host=names_only, random=Random(0), worker=FakeWorker()
    )

    def one_round(node_id: int) -> bool:
        if client.ready(node_id, clock.now_ms()) and client.can_send(node_id, clock.now_ms()):
            request = data.draw(st.sampled_from(REQUESTS[2:4])) if is_hostile else REQUESTS[2]
            client.send(client_request(node_id, request, clock), clock.now_ms())
        return any(response.message for response in client.poll(50, clock.now_ms()))

    for node_id in data.draw(st.lists(nodes, min_size=1, max_size=12)):
        one_round(node_id)
        clock.advance(data.draw(st.integers(0, 3_000)))
    is_hostile = False
    clock.advance(1 << 31)  # throttled for that long at most
    assert any(one_round(node_id % 2) for node_id in range(200) if not clock.advance(100))


def client_request(node_id: int, message: Request[Any], clock: ManualClock) -> ClientRequest:
    return ClientRequest(node_id, message, clock.now_ms(), expect_response=True, request_timeout_ms=2_000)


# TEXT


def hostile_client(
    answer: Callable[[SentRequest], Message | None], **options: object
) -> tuple[NetworkClient, Metadata, FakeSelector, ManualClock]:
    clock = ManualClock()
    config = network_config(**options)
    shared = Metadata(config, clock, random=Random(0))
    shared.add_topic("orders", clock.now_ms())
    selector = FakeSelector(clock)
    selector.answer = answer
    client = NetworkClient(config, shared, clock, selector=selector, resolve_host=resolve_literally, worker=FakeWorker())
    return client, shared, selector, clock


def resolve_literally(host: str, port: int) -> list[Address]:
    return [Address(socket.AF_INET, (host, port), host)]


def test_names_that_brokers_tell_cannot_forge_a_log_or_make_it_long(caplog: pytest.LogCaptureFixture) -> None:
    """A host name with a line break in it wrote a line of its own into the log; so did topics, racks and the cluster's id."""
    caplog.set_level("DEBUG")
    forged = FORGED[:30_000]  # that a string of ApiVersions can hold
    cluster = MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=node, host=f"{node}{forged}", port=9092, rack=forged) for node in range(30)),
        cluster_id=forged,
        topics=(
            topic("orders", [1, -1]),
            *(MetadataResponseTopic(name=f"{each}{forged}", error_code=3) for each in range(30)),
            MetadataResponseTopic(
                name=forged, partitions=(MetadataResponsePartition(partition_index=0, error_code=72, leader_id=1),)
            ),
        ),
    )

    def answer(sent_request: SentRequest) -> Message:
        if sent_request.header.api_key == ApiKey.METADATA:
            return cluster
        features = tuple(FinalizedFeatureKey(name=forged, max_version_level=1, min_version_level=1) for _ in range(3))
        return replace(api_versions(), finalized_features=features)

    client, shared, selector, clock = hostile_client(answer)
    for node_id in range(-2, 30):
        client.ready(node_id, clock.now_ms())
        client.poll(10, clock.now_ms())
    selector.lose(1, "gone")
    selector.lose(2, "gone")
    client.poll(10, clock.now_ms())
    cluster = replace(cluster, cluster_id="c" + forged, brokers=(replace(cluster.brokers[1], host="moved" + forged),))
    shared.request_update("test")
    for _ in range(20):
        client.ready(1, clock.now_ms())
        client.poll(500, clock.now_ms())
    texts = [record.getMessage() for record in caplog.records] + [str(shared.last_connection_error())]
    assert sum("forged" in text for text in texts) > 10
    for text in texts:
        assert text.isprintable(), text[:500]
        assert len(text) < 20_000
    shared.report_other_cluster("other" + forged)
    assert_harmless(str(shared.permanent_error()))


@pytest.mark.parametrize("host", [FORGED, "\0" + FORGED, "a." + "b" * 64 + FORGED])
def test_the_error_of_a_host_name_that_is_none_is_bounded(host: str) -> None:
    with pytest.raises(OSError, match="is not a host name") as raised:
        resolve(host, 9092)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 2_000


def test_what_a_broker_says_at_the_login_is_bounded_in_error_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    refusal = SaslAuthenticateResponse(error_code=58, error_message=FORGED[:30_000])
    answers = {
        ApiKey.API_VERSIONS: api_versions(),
        ApiKey.SASL_HANDSHAKE: SaslHandshakeResponse(),
        ApiKey.SASL_AUTHENTICATE: refusal,
    }
    client, _, _, clock = hostile_client(
        lambda sent_request: answers[ApiKey(sent_request.header.api_key)],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_jaas_config='PlainLoginModule required username="a" password="b";',
    )
    while client.rejection_by_all() is None:
        client.poll(10, clock.now_ms())
        clock.advance(10)
    assert_harmless(str(client.rejection_by_all()))
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 2_000 for record in caplog.records)


def test_the_logins_that_a_broker_offers_are_bounded_in_the_error() -> None:
    assert_harmless(str(missing_login_error((FORGED,) * 1)))
    assert len(str(missing_login_error((FORGED,) * 1000))) < 20_000


def test_a_scram_error_of_the_broker_is_bounded_in_the_error() -> None:
    keys = ScramKeys("SCRAM-SHA-256", Secret("p"), b"salt", 4096)
    with pytest.raises(AuthenticationError) as raised:
        check_server_final(b"e=" + FORGED[:3000].encode(), b"", keys)
    assert_harmless(str(raised.value))


def test_the_reason_of_a_refused_token_is_bounded_in_the_error() -> None:
    cache: Any = SimpleNamespace(token=lambda: OAuthBearerToken(Secret("abc")), principal_name=None)
    steps: Any = OAuthBearerLogin(cache).start("broker")
    steps.send(next(steps).work())
    steps.send(FORGED.encode())
    with pytest.raises(AuthenticationError) as raised:
        steps.send(b"")
    assert_harmless(str(raised.value))


def test_an_exception_of_foreign_code_is_bounded_in_the_error() -> None:
    def fail() -> None:
        raise LookupError(FORGED)

    assert_harmless(str(outcome_of(fail).error))
