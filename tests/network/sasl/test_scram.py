"""network/sasl/scram.py: the RFCs' examples, a server that knows the password, and servers that only pretend to."""

from __future__ import annotations

import base64
import hmac
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.sasl.login import Exchange
from spark_kafka_sink.network.sasl.scram import MAX_ITERATIONS, ScramKeys, ScramLogin
from tests.fakes.sasl_server import NONCE, Refused, SaslServer

CANARY = "canary-7Qx2"
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def scram(mechanism: str = "SCRAM-SHA-256", user: str = "user", password: str = CANARY, **options: Any) -> Exchange:
    return ScramLogin(mechanism, user, Secret(password), **options).start("broker")


def finish(exchange: Exchange, server: SaslServer) -> None:
    """Until both sides are content."""
    message = next(exchange)
    assert isinstance(message, bytes)
    try:
        while True:
            message = exchange.send(server.evaluate(message))
            assert isinstance(message, bytes)
    except StopIteration:
        assert server.complete


def failure(exchange: Exchange, *challenges: bytes) -> AuthenticationError:
    """The error that the last challenge leads to; no frame of it shows the password, or what is made of it."""
    next(exchange)
    for challenge in challenges[:-1]:
        exchange.send(challenge)
    with pytest.raises(AuthenticationError) as raised:
        exchange.send(challenges[-1])
    shown = "".join(traceback.TracebackException.from_exception(raised.value, capture_locals=True).format())
    assert CANARY not in shown
    assert ",p=" not in shown
    return raised.value


def server_first(nonce: str, *, salt: bytes = b"salt", iterations: object = 4096) -> bytes:
    return f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}".encode()


# WHAT MUST WORK


def test_the_exchange_is_that_of_rfc_7677() -> None:
    exchange = scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.send(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(user=st.text(min_size=1), password=st.text(), iterations=st.integers(4096, 4100))
def test_any_name_and_password_is_proven(mechanism: str, user: str, password: str, iterations: int) -> None:
    user, password = (text.encode("utf-8", "replace").decode() for text in (user, password))
    server = SaslServer(mechanism, {user: password}, iterations=iterations)
    finish(scram(mechanism, user, password), server)
    assert server.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_found_out(mechanism: str) -> None:
    with pytest.raises(Refused):
        finish(scram(mechanism, "user", "wrong"), SaslServer(mechanism, {"user": "right"}))


def test_commas_and_equals_signs_of_a_name_are_escaped() -> None:
    assert next(scram(user="a,b=c", nonce="n")) == b"n,,n=a=2Cb=3Dc,r=n"


def test_a_delegation_token_is_announced() -> None:
    login = ScramLogin("SCRAM-SHA-256", "token-id", Secret("hmac"), token_auth=True, nonce="n")
    assert next(login.start("broker")) == b"n,,n=token-id,r=n,tokenauth=true"
    assert login.user_text == "delegation token 'token-id'"


def test_each_exchange_has_a_nonce_of_its_own() -> None:
    login = ScramLogin("SCRAM-SHA-256", "user", Secret("p"))
    first, second = next(login.start("broker")), next(login.start("broker"))
    assert first != second
    assert len(first) > len("n,,n=user,r=") + 20


def test_messages_show_nothing() -> None:
    exchange = scram(nonce="n")
    assert repr(next(exchange)) == str(exchange.send(server_first("nX"))) == "[hidden]"


def test_a_proof_that_fails_shows_none_of_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback with locals showed the key that brokers store, and the signature: with the proof it gives the client's key."""
    keys = ScramKeys("SCRAM-SHA-256", Secret(CANARY), b"salt", 4096)
    monkeypatch.setattr(hmac, "digest", lambda *_: b"short")
    with pytest.raises(ValueError, match="shorter") as raised:
        keys.proof(b"")
    frames = traceback.TracebackException.from_exception(raised.value, capture_locals=True).stack
    [shown] = [frame.locals for frame in frames if frame.name == "proof"]
    assert (shown["stored_key"], shown["signature"]) == ("[hidden]", "[hidden]")


# SERVERS THAT ARE NOT WHAT THEY CLAIM TO BE


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (server_first("other"), "its nonce does not continue ours"),
        (server_first("n"), "its nonce does not continue ours"),  # adds nothing of its own
        (server_first("nX", iterations=4095), "it asks for 4095 iterations; 4096 to"),
        (server_first("nX", iterations=1), "it asks for 1 iterations"),
        (server_first("nX", iterations=MAX_ITERATIONS + 1), "iterations; 4096 to"),
        (server_first("nX", iterations=999_999_999), "iterations; 4096 to"),
        (server_first("nX", iterations=10**30), "cannot be read"),
        (server_first("nX", iterations=0), "cannot be read"),
        (server_first("nX", iterations=-4096), "cannot be read"),
        (server_first("nX", iterations="4_096"), "cannot be read"),
        (server_first("nX", iterations="４０９６"), "cannot be read"),
        (b"m=must-be-understood," + server_first("nX"), "cannot be read"),
        (b"r=nX,s=,i=4096", "cannot be read"),
        (b"r=nX,s=A,i=4096", "malformed base64"),
        (b"r=nX,s=====,i=4096", "cannot be read"),
        (b"s=c2FsdA==,r=nX,i=4096", "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (server_first("n" + "X" * 5000), "a message of SCRAM with 50"),
    ],
)
def test_a_first_message_that_is_not_right_ends_the_exchange(challenge: bytes, message: str) -> None:
    error = failure(scram(nonce="n"), challenge)
    assert error.condition == "KAFKA_ILLEGAL_SASL_CHALLENGE"
    assert message in error.message


@pytest.mark.parametrize(
    ("final", "condition", "message"),
    [
        (b"v=" + base64.b64encode(b"x" * 32), "KAFKA_ILLEGAL_SASL_CHALLENGE", "not that of a server that knows this user's"),
        (b"v=" + base64.b64encode(b"x"), "KAFKA_ILLEGAL_SASL_CHALLENGE", "not that of a server that knows this user's"),
        (b"v=A", "KAFKA_ILLEGAL_SASL_CHALLENGE", "malformed base64"),
        (b"", "KAFKA_ILLEGAL_SASL_CHALLENGE", "the last message of SCRAM cannot be read"),
        (b"ok", "KAFKA_ILLEGAL_SASL_CHALLENGE", "the last message of SCRAM cannot be read"),
        (b"e=invalid-proof", "KAFKA_SASL_AUTHENTICATION_FAILED", "the broker rejected the proof: 'invalid-proof'"),
        (b"e=" + b"x" * 1000, "KAFKA_SASL_AUTHENTICATION_FAILED", "x" * 300 + "… (700 more characters)'"),
    ],
)
def test_a_last_message_that_is_not_right_ends_the_exchange(final: bytes, condition: str, message: str) -> None:
    error = failure(scram(nonce="n"), server_first("nX"), final)
    assert error.condition == condition
    assert message in error.message


def test_a_server_that_knows_another_password_is_not_believed() -> None:
    """An impostor accepts any proof, and signs with a key of its own."""
    exchange = scram(password="ours")
    server = SaslServer("SCRAM-SHA-256", {"user": "theirs"})
    first = next(exchange)
    assert isinstance(first, bytes)
    final = exchange.send(server.evaluate(first))
    impostor = SaslServer("SCRAM-SHA-256", {"user": "theirs"})
    impostor.evaluate(first)
    theirs = scram(password="theirs", nonce=first.decode().partition(",r=")[2])
    next(theirs)
    signature = impostor.evaluate(theirs.send(f"r={first.decode().partition(',r=')[2]}{NONCE},s={_salt()},i=4096".encode()))
    assert isinstance(final, SecretBytes)
    with pytest.raises(AuthenticationError, match="not that of a server that knows this user's password"):
        exchange.send(signature)


def _salt() -> str:
    from tests.fakes.sasl_server import SALT

    return base64.b64encode(SALT).decode()


@given(challenges=st.lists(st.binary() | st.from_regex(rb"\A(r=n[a-z]+,s=[A-Za-z0-9+/=]+,i=[0-9]{1,5}|[ve]=.*)\Z"), max_size=3))
def test_whatever_a_server_says_there_is_a_login_error_or_nothing(challenges: list[bytes]) -> None:
    exchange = scram(nonce="n")
    next(exchange)
    try:
        for challenge in challenges:
            exchange.send(challenge)
    except AuthenticationError:
        return
    except StopIteration:
        pytest.fail("no such server knows the password")
