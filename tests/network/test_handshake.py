"""network/handshake.py: the first words of a connection, and which versions follow from them."""

from __future__ import annotations

import dataclasses
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import AuthenticationError, BrokerError, KafkaError, UnsupportedVersionError
from spark_kafka_sink.network.background import BackgroundWork
from spark_kafka_sink.network.handshake import (
    LoginProbe,
    NodeApiVersions,
    Session,
    Step,
    authenticate,
    handshake,
    missing_login_error,
)
from spark_kafka_sink.network.sasl.login import Exchange, Login, PlainLogin
from spark_kafka_sink.network.sasl.oauthbearer import OAuthBearerLogin
from spark_kafka_sink.network.sasl.scram import ScramLogin
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, RefreshWindow, TokenCache
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.producer_identity import TRANSACTION_VERSION
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.network_config import api_versions


def finish(steps: object, answer: Message) -> NodeApiVersions:
    with pytest.raises(StopIteration) as finished:
        steps.send(answer)
    assert isinstance(finished.value.value, Session)
    return finished.value.value.api_versions


def test_the_handshake_asks_for_versions_and_introduces_the_client() -> None:
    steps = handshake()
    message, version = next(steps)
    assert version == 4
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_name == "pykafka-sink"
    assert message.client_software_version
    assert finish(steps, api_versions()).latest_usable_version(ApiKey.PRODUCE) == 13


def test_a_broker_that_refuses_the_version_is_asked_in_version_0() -> None:
    steps = handshake()
    next(steps)
    _, version = steps.send(ApiVersionsResponse(error_code=35))
    assert version == 0
    assert finish(steps, api_versions({ApiKey.PRODUCE: (0, 8)})).latest_usable_version(ApiKey.PRODUCE) == 8


def refusal(max_version: int) -> ApiVersionsResponse:
    keys = (ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=max_version),)
    return ApiVersionsResponse(error_code=35, api_keys=keys)


def test_a_broker_that_refuses_the_version_and_names_its_own_is_asked_in_that() -> None:
    """Brokers 2.4 to 3.8 were asked in version 0: they never learnt the client's name, which their metrics count (KIP-511)."""
    steps = handshake()
    next(steps)
    message, version = steps.send(refusal(3))
    assert version == 3
    assert isinstance(message, ApiVersionsRequest)
    assert message.client_software_name == "pykafka-sink"
    finish(steps, api_versions())


@pytest.mark.parametrize("nonsense", [4, 32767, -1])
def test_a_broker_that_refuses_the_version_that_it_names_is_asked_in_version_0(nonsense: int) -> None:
    steps = handshake()
    next(steps)
    _, version = steps.send(refusal(nonsense))
    assert version == 0
    steps = handshake()
    next(steps)
    _, version = steps.send(refusal(3))
    _, version = steps.send(refusal(3))
    assert version == 0
    finish(steps, api_versions())


def test_a_broker_that_refuses_version_0_too_is_of_no_use() -> None:
    steps = handshake()
    next(steps)
    steps.send(ApiVersionsResponse(error_code=35))
    with pytest.raises(BrokerError, match="KAFKA_UNSUPPORTED_VERSION"):
        steps.send(ApiVersionsResponse(error_code=35))


def test_any_other_error_ends_the_handshake() -> None:
    steps = handshake()
    next(steps)
    with pytest.raises(BrokerError, match="KAFKA_INVALID_REQUEST"):
        steps.send(ApiVersionsResponse(error_code=42))


def doubted(answer: SaslHandshakeResponse) -> tuple[str, ...]:
    """The mechanisms that a broker may demand, which is known to hang up."""
    steps = handshake(must_ask_mechanisms=True)
    next(steps)
    assert steps.send(api_versions()) == (SaslHandshakeRequest(mechanism="NONE"), 1)
    with pytest.raises(StopIteration) as finished:
        steps.send(answer)
    session = finished.value.value
    assert session.api_versions.latest_usable_version(ApiKey.PRODUCE) == 13
    return session.mechanisms


def test_a_listener_that_is_doubted_tells_the_logins_that_it_may_demand() -> None:
    assert doubted(SaslHandshakeResponse(error_code=33, mechanisms=("PLAIN", "GSSAPI"))) == ("PLAIN", "GSSAPI")
    error = missing_login_error(("PLAIN", "GSSAPI"))
    assert error.condition == "KAFKA_AUTHENTICATION_FAILED"
    assert error.message.startswith("this listener demands a login")
    assert error.message.endswith("those it offers: PLAIN, GSSAPI")


def test_a_listener_that_names_logins_is_asked_for_more_than_versions() -> None:
    """Mechanisms alone prove nothing: Redpanda names them where it demands no login."""
    steps = handshake(must_ask_mechanisms=True, must_probe=True)
    next(steps)
    steps.send(api_versions())
    probe = steps.send(SaslHandshakeResponse(error_code=33, mechanisms=("PLAIN",)))
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    assert probe == LoginProbe(request, API_TABLE[ApiKey.METADATA].max_version, ("PLAIN",))
    finish(steps, MetadataResponse())


@pytest.mark.parametrize("error_code", [0, 34, 35, -1, 999])
def test_a_listener_without_logins_has_none_to_tell(error_code: int) -> None:
    """34 is what brokers answer."""
    assert doubted(SaslHandshakeResponse(error_code=error_code, mechanisms=("PLAIN",))) == ()


def test_a_broker_that_knows_no_logins_is_not_asked() -> None:
    steps = handshake(must_ask_mechanisms=True)
    next(steps)
    finish(steps, ApiVersionsResponse())


@pytest.mark.parametrize(
    ("theirs", "max_version", "expected"),
    [
        ((0, 13), None, 13),
        ((0, 20), None, 13),  # newer than we are
        ((0, 9), None, 9),
        ((5, 9), None, 9),
        ((0, 20), 12, 12),  # the request must not be newer
        ((0, 3), 12, 3),
        ((3, 3), 3, 3),
    ],
)
def test_the_newest_common_version_is_used(theirs: tuple[int, int], max_version: int | None, expected: int) -> None:
    versions = NodeApiVersions(api_versions({ApiKey.PRODUCE: theirs}))
    assert versions.latest_usable_version(ApiKey.PRODUCE, max_version) == expected


@pytest.mark.parametrize(
    ("theirs", "max_version"),
    [
        ((0, 2), None),  # advertised by some brokers, and refused by them (KAFKA-18659)
        ((14, 20), None),
        ((13, 13), 12),
    ],
)
def test_no_common_version_is_an_error_that_names_both_ranges(theirs: tuple[int, int], max_version: int | None) -> None:
    versions = NodeApiVersions(api_versions({ApiKey.PRODUCE: theirs}))
    with pytest.raises(UnsupportedVersionError, match=f"broker supports {theirs[0]} to {theirs[1]}, this client can use 3 to"):
        versions.latest_usable_version(ApiKey.PRODUCE, max_version)


def test_an_api_that_the_broker_does_not_know_is_an_error() -> None:
    with pytest.raises(UnsupportedVersionError, match="INIT_PRODUCER_ID in common: the broker does not support it"):
        NodeApiVersions(ApiVersionsResponse()).latest_usable_version(ApiKey.INIT_PRODUCER_ID)


@pytest.mark.parametrize(("level", "version"), [(0, 4), (1, 4), (2, 5), (3, 5)])
def test_end_txn_has_version_5_only_where_the_broker_has_transactions_of_version_2(level: int, version: int) -> None:
    """Brokers of 4.x list version 5 whatever their level is, and cannot log what it asks for at level 0."""
    feature = FinalizedFeatureKey(name=TRANSACTION_VERSION, max_version_level=level, min_version_level=level)
    versions = NodeApiVersions(dataclasses.replace(api_versions({ApiKey.END_TXN: (0, 5)}), finalized_features=(feature,)))
    assert versions.latest_usable_version(ApiKey.END_TXN) == version
    assert versions.latest_usable_version(ApiKey.END_TXN, 4) == 4


def test_finalized_features_are_known() -> None:
    feature = FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)
    versions = NodeApiVersions(ApiVersionsResponse(finalized_features=(feature,), finalized_features_epoch=7))
    assert versions.finalized_features == {"transaction.version": 2}
    assert versions.finalized_features_epoch == 7
    assert NodeApiVersions(ApiVersionsResponse()).finalized_features_epoch == -1


# WITH SASL


class TwoRounds:
    """A mechanism with work to be done first and two messages."""

    mechanism = "TEST"
    user_text = "user 'alice'"

    def __init__(self) -> None:
        self.challenges: list[bytes] = []

    def start(self, host: str) -> Exchange:
        first = yield BackgroundWork(lambda: b"first for " + host.encode())
        self.challenges.append((yield SecretBytes(first)))
        self.challenges.append((yield SecretBytes(b"second")))
        if self.challenges[-1] != b"good":
            raise AuthenticationError("the broker's last word is wrong")


def until_exchange(login: Login | None = None) -> tuple[Any, Step]:
    """Up to the first step of the mechanism."""
    steps: Any = handshake(login or TwoRounds(), "broker")
    next(steps)
    steps.send(api_versions())
    return steps, steps.send(SaslHandshakeResponse(mechanisms=("TEST",)))


def reply(challenge: bytes = b"", **fields: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(auth_bytes=challenge, **fields)


def test_a_login_comes_before_everything_else_and_reads_like_the_protocol_page() -> None:
    login = TwoRounds()
    steps = handshake(login, "broker")
    assert next(steps) == (ApiVersionsRequest(), 0)  # what a broker cannot read it takes for a Kerberos token
    assert steps.send(api_versions()) == (SaslHandshakeRequest(mechanism="TEST"), 1)
    work = steps.send(SaslHandshakeResponse(mechanisms=("TEST",)))
    assert isinstance(work, BackgroundWork)
    assert steps.send(work.work()) == (SaslAuthenticateRequest(auth_bytes=b"first for broker"), 2)
    assert steps.send(reply(b"challenge")) == (SaslAuthenticateRequest(auth_bytes=b"second"), 2)
    message, version = steps.send(reply(b"good", session_lifetime_ms=5000))
    assert isinstance(message, ApiVersionsRequest)
    assert version == 4
    with pytest.raises(StopIteration) as finished:
        steps.send(api_versions())
    assert finished.value.value.lifetime_ms == 5000
    assert login.challenges == [b"challenge", b"good"]


@pytest.mark.parametrize(("theirs", "expected"), [((0, 0), 0), ((0, 1), 1), ((0, 9), 2)])
def test_the_newest_common_version_carries_the_exchange(theirs: tuple[int, int], expected: int) -> None:
    steps: Any = handshake(TwoRounds(), "broker")
    next(steps)
    steps.send(api_versions({ApiKey.SASL_AUTHENTICATE: theirs}))
    steps.send(SaslHandshakeResponse())
    _, version = steps.send(b"first")
    assert version == expected


def test_a_broker_from_before_kafka_1_0_is_of_no_use() -> None:
    steps: Any = handshake(TwoRounds(), "broker")
    next(steps)
    steps.send(api_versions({ApiKey.SASL_AUTHENTICATE: (0, -1)}))
    with pytest.raises(UnsupportedVersionError, match="no version of SASL_AUTHENTICATE in common"):
        steps.send(SaslHandshakeResponse())


def test_the_error_of_an_unknown_mechanism_names_those_that_the_broker_has() -> None:
    steps: Any = handshake(TwoRounds(), "broker")
    next(steps)
    steps.send(api_versions())
    with pytest.raises(
        AuthenticationError, match=r"SASL TEST for user 'alice'.* It offers PLAIN, OAUTHBEARER; set sasl\.mech"
    ) as e:
        steps.send(SaslHandshakeResponse(error_code=33, mechanisms=("PLAIN", "OAUTHBEARER")))
    assert e.value.condition == "KAFKA_UNSUPPORTED_SASL_MECHANISM"


def test_the_error_at_a_listener_without_sasl_has_the_likely_cause() -> None:
    steps: Any = handshake(TwoRounds(), "broker")
    next(steps)
    steps.send(api_versions())
    with pytest.raises(AuthenticationError, match=r"KAFKA_ILLEGAL_SASL_STATE.* This listener does not seem to use SASL"):
        steps.send(SaslHandshakeResponse(error_code=34))


def test_refused_credentials_raise_in_the_brokers_words() -> None:
    steps, _ = until_exchange()
    steps.send(b"first")
    with pytest.raises(AuthenticationError, match=r"SASL TEST for user 'alice': .*\"Invalid username or password\"") as raised:
        steps.send(reply(error_code=58, error_message="Invalid username or password"))
    assert raised.value.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"
    assert raised.value.message.endswith(
        " Check the user and its password or token (sasl.jaas.config), and that the brokers know it for this sasl.mechanism."
    )


def test_a_broker_that_repeats_the_password_is_quoted_without_it() -> None:
    """A broker's own check of passwords may say which one it does not know."""
    password = "canary7Qx2zzWq" * 40  # longer than what is shown of a broker's text
    steps, _ = until_exchange(PlainLogin("alice", Secret(password)))
    with pytest.raises(AuthenticationError, match=r"The broker says: \"no \[hidden\] of alice: \[hidden\]\""):
        steps.send(reply(error_code=58, error_message=f"no {password} of alice: {password}"))


def test_another_error_of_the_exchange_is_no_refusal() -> None:
    """A broker that fails for its own reasons is tried again."""
    steps, _ = until_exchange()
    steps.send(b"first")
    with pytest.raises(BrokerError, match="KAFKA_UNKNOWN_SERVER_ERROR"):
        steps.send(reply(error_code=-1))


def test_a_broker_that_fails_the_mechanisms_check_is_not_spoken_to() -> None:
    steps, _ = until_exchange()
    steps.send(b"first")
    steps.send(reply(b"challenge"))
    with pytest.raises(AuthenticationError, match="SASL TEST for user 'alice': the broker's last word is wrong"):
        steps.send(reply(b"bad"))


def test_work_that_fails_fails_the_login() -> None:
    steps, _ = until_exchange()
    with pytest.raises(AuthenticationError, match="SASL TEST for user 'alice': no token"):
        steps.throw(AuthenticationError("no token"))


def test_logging_in_again_leaves_the_versions_alone() -> None:
    versions = NodeApiVersions(api_versions())
    steps: Any = authenticate(TwoRounds(), "broker", versions)
    assert next(steps) == (SaslHandshakeRequest(mechanism="TEST"), 1)
    steps.send(SaslHandshakeResponse())
    steps.send(b"first")
    steps.send(reply(b"challenge"))
    with pytest.raises(StopIteration) as finished:
        steps.send(reply(b"good", session_lifetime_ms=7))
    assert finished.value.value == Session(versions, 7)


def test_the_messages_of_a_login_show_nothing() -> None:
    request = SaslAuthenticateRequest(auth_bytes=b"canary-7Qx2")
    assert "canary" not in repr(request)
    assert "canary" not in repr(request.encode(2))
    assert b"canary-7Qx2" in b"".join(request.encode(2))
    assert "canary" not in repr(reply(b"canary-7Qx2"))


# WHATEVER A BROKER SAYS


def real_login(mechanism: str) -> Login:
    if mechanism == "PLAIN":
        return PlainLogin("alice", Secret("canary-7Qx2"))
    if mechanism == "OAUTHBEARER":
        window = RefreshWindow(0.8, 0.05, 0, 0)
        fetch = partial(OAuthBearerToken, Secret("canary-7Qx2"))
        return OAuthBearerLogin(TokenCache(fetch, window, ManualClock(), wait_ms=1000, random=Random(0)))
    return ScramLogin(mechanism, "alice", Secret("canary-7Qx2"), nonce="n")


codes = st.sampled_from([0, 0, 0, 33, 34, 35, 58, -1]) | st.integers(-(1 << 15), (1 << 15) - 1)
challenges = st.binary(max_size=40) | st.just(b"r=nX,s=c2FsdA==,i=4096") | st.just(b"v=AAAA")
replies = st.builds(
    SaslAuthenticateResponse,
    error_code=codes,
    error_message=st.none() | st.text(max_size=10),
    auth_bytes=challenges,
    session_lifetime_ms=st.integers(-(1 << 63), (1 << 63) - 1),
)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@given(
    hello=st.builds(SaslHandshakeResponse, error_code=codes, mechanisms=st.tuples(st.text())),
    answers=st.lists(replies, max_size=4),
)
def test_whatever_a_broker_says_a_login_succeeds_or_ends_with_an_error_of_ours(
    mechanism: str, hello: SaslHandshakeResponse, answers: list[SaslAuthenticateResponse]
) -> None:
    steps: Any = authenticate(real_login(mechanism), "broker", NodeApiVersions(api_versions()))
    next(steps)
    try:
        step = steps.send(hello)
        for answer in answers:
            while isinstance(step, BackgroundWork):
                step = steps.send(step.work())
            step = steps.send(answer)
    except KafkaError as error:
        shown = str(error)
    except StopIteration as finished:
        shown = repr(finished.value)
        assert mechanism in ("PLAIN", "OAUTHBEARER")  # SCRAM cannot be passed without the password
    else:
        shown = ""
    assert "canary" not in shown
