"""network/sasl: tokens are kept, renewed in time, made, read, and asked of a server that may be slow, wrong or hostile."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.jaas import NO_JAAS_ENTRY
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.sasl.token_sources import (
    MAX_TOKEN_BYTES,
    aws_region,
    token_in_file,
    token_of_callback,
    unsecured_token,
)
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, RefreshWindow, TokenCache, token_error, token_from_jwt
from tests.fakes.clock import ManualClock
from tests.network.sasl.samples import CANARY, HOUR, WINDOW, claims_of, entry, jwt

# READING TOKENS


def test_expiry_and_principal_are_read_from_a_jwt() -> None:
    token = token_from_jwt(Secret(jwt(exp=1000.5, iat=900, sub="alice")))
    assert (token.lifetime_ms, token.start_time_ms, token.principal_name) == (1_000_500, 900_000, "alice")
    assert token_from_jwt(Secret(jwt(user="bob")), sub_claim="user").principal_name == "bob"


@given(value=st.text() | st.text(st.sampled_from(".eyJ{}\"'a1")) | st.binary().map(lambda b: "a." + base64.b64encode(b).decode()))
def test_what_is_no_jwt_is_a_token_too(value: str) -> None:
    assert token_from_jwt(Secret(value)).value == Secret(value)


@pytest.mark.parametrize("exp", ["soon", None, True, -1, 1e300, [1]])
def test_an_expiry_that_makes_no_sense_is_none(exp: object) -> None:
    assert token_from_jwt(Secret(jwt(exp=exp))).lifetime_ms is None


def test_a_token_shows_neither_itself_nor_its_extensions() -> None:
    assert CANARY not in repr(OAuthBearerToken(CANARY, extensions={"a": CANARY}))  # str is wrapped


# KEEPING AND RENEWING


class Issuer:
    """Counts what it issues; each lives for an hour, or is the error that a test puts here."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.issued = 0
        self.lifetime_ms: int | None = HOUR
        self.error: BaseException | None = None

    def __call__(self) -> OAuthBearerToken:
        self.issued += 1
        if self.error is not None:
            raise self.error
        end = None if self.lifetime_ms is None else self.clock.wall_ms() + self.lifetime_ms
        return OAuthBearerToken(Secret(f"token-{self.issued}"), end)


@pytest.fixture
def issuer(clock: ManualClock) -> Issuer:
    return Issuer(clock)


@pytest.fixture
def cache(clock: ManualClock, issuer: Issuer) -> TokenCache:
    return TokenCache(issuer, WINDOW, clock, wait_ms=1000, random=Random(0))


def value(cache: TokenCache) -> str:
    return cache.token().value.reveal()


def test_a_token_serves_until_it_is_time_to_renew_it(cache: TokenCache, clock: ManualClock) -> None:
    assert value(cache) == "token-1"
    clock.advance(int(HOUR * 0.8) - 1)
    assert value(cache) == "token-1"
    clock.advance(1)
    assert value(cache) == "token-2"


def test_a_token_of_unknown_expiry_is_used_once(cache: TokenCache, issuer: Issuer) -> None:
    issuer.lifetime_ms = None
    assert [value(cache), value(cache)] == ["token-1", "token-2"]


def test_a_good_token_serves_on_while_no_new_one_can_be_had(
    cache: TokenCache, issuer: Issuer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert value(cache) == "token-1"
    issuer.error = token_error("the server is down")
    clock.advance(int(HOUR * 0.9))
    assert value(cache) == "token-1"
    assert "could not be renewed, the old one is used" in caplog.text
    clock.advance(int(HOUR * 0.1))
    with pytest.raises(AuthenticationError, match="the server is down"):
        cache.token()
    issuer.error = None
    assert value(cache) == "token-4"


def test_a_good_token_serves_on_whatever_a_fetch_does_instead(cache: TokenCache, issuer: Issuer, clock: ManualClock) -> None:
    """What a user's callback raised failed the login, and so did an expired token, although the old token was valid."""
    assert value(cache) == "token-1"
    clock.advance(int(HOUR * 0.9))
    for issuer.error in (LookupError("no such tenant"), SystemExit(1)):
        assert value(cache) == "token-1"
    issuer.error, issuer.lifetime_ms = None, 0
    assert value(cache) == "token-1"


def test_a_token_that_ends_while_a_fetch_fails_is_not_used(clock: ManualClock) -> None:
    """A broker rejected it, and the error named the broker's reason in place of the reason why there was no new token."""
    tokens = iter([OAuthBearerToken(Secret("old"), clock.wall_ms() + HOUR)])

    def fetch() -> OAuthBearerToken:
        clock.advance(HOUR - 1)
        return next(tokens)

    cache = TokenCache(fetch, WINDOW, clock, wait_ms=1000, random=Random(0))
    assert value(cache) == "old"
    with pytest.raises(StopIteration):
        cache.token()


def test_a_token_that_is_issued_too_late_is_refused(cache: TokenCache, issuer: Issuer) -> None:
    issuer.lifetime_ms = 0
    with pytest.raises(AuthenticationError, match="has expired already; are the clocks right"):
        cache.token()


def test_who_waits_for_another_ones_fetch_waits_no_longer_than_allowed(clock: ManualClock) -> None:
    has_begun, release = threading.Event(), threading.Event()

    def hang() -> OAuthBearerToken:
        has_begun.set()
        assert release.wait(30)
        return OAuthBearerToken(Secret("late"))

    cache = TokenCache(hang, WINDOW, clock, wait_ms=50, random=Random(0))
    first = threading.Thread(target=cache.token)
    first.start()
    assert has_begun.wait(30)
    with pytest.raises(AuthenticationError, match="for more than 50 ms"):
        cache.token()
    release.set()
    first.join(30)


class Hanging:
    """The first fetches hang, as many as a test says, until it lets them go; each later one gives a token."""

    def __init__(self, clock: ManualClock, hang: int) -> None:
        self.clock = clock
        self.hang = hang
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()
        self._count = itertools.count(1)

    def __call__(self) -> OAuthBearerToken:
        number = next(self._count)
        if number <= self.hang:
            self.begun.release()
            assert self.release.wait(30)
        return OAuthBearerToken(Secret(f"token-{number}"), self.clock.wall_ms() + HOUR)


def begin(hanging: Hanging, cache: TokenCache) -> threading.Thread:
    thread = threading.Thread(target=cache.token)
    thread.start()
    assert hanging.begun.acquire(timeout=30)
    return thread


def test_nobody_waits_for_a_fetch_that_hangs_while_the_old_token_is_good(clock: ManualClock, issuer: Issuer) -> None:
    """One connection renewed a token, and the server answered without end: no other connection could log in, with a token at
    hand that was good for another 12 minutes."""
    hanging = Hanging(clock, hang=1)
    cache = TokenCache(lambda: hanging() if issuer.issued else issuer(), WINDOW, clock, wait_ms=1000, random=Random(0))
    assert value(cache) == "token-1"
    clock.advance(int(HOUR * 0.8))
    thread = begin(hanging, cache)
    before_ms = clock.now_ms()
    assert value(cache) == "token-1"
    assert clock.now_ms() == before_ms
    hanging.release.set()
    thread.join(30)


def test_a_fetch_that_hangs_is_given_up_and_another_one_begins(clock: ManualClock) -> None:
    """A user's function that hung once kept its producer from ever logging in again."""
    hanging = Hanging(clock, hang=1)
    cache = TokenCache(hanging, WINDOW, clock, wait_ms=1000, random=Random(0))
    thread = begin(hanging, cache)
    with pytest.raises(AuthenticationError, match="for more than 1000 ms"):
        cache.token()
    clock.advance(1000)
    assert value(cache) == "token-2"
    hanging.release.set()
    thread.join(30)


def test_four_fetches_that_hang_are_the_most(clock: ManualClock) -> None:
    """A fifth was begun."""
    hanging = Hanging(clock, hang=100)
    cache = TokenCache(hanging, WINDOW, clock, wait_ms=1000, random=Random(0))
    threads = [begin(hanging, cache)]
    for _ in range(3):
        clock.advance(2000)
        threads.append(begin(hanging, cache))
    clock.advance(2000)
    with pytest.raises(AuthenticationError, match="for more than 1000 ms"):
        cache.token()
    hanging.release.set()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize(
    ("window", "start_ms", "end_ms", "expected"),
    [
        ((0.8, 0.0, 60_000, 300_000), None, HOUR, 2_880_000),
        ((0.5, 0.0, 60_000, 300_000), None, HOUR, 1_800_000),
        ((0.8, 0.0, 60_000, 300_000), -HOUR, HOUR, int(2 * HOUR * 0.8) - HOUR),  # counted from when it was issued
        ((1.0, 0.0, 60_000, 300_000), None, HOUR, HOUR - 300_000),  # the buffer
        ((0.5, 0.0, 900_000, 0), None, 1_000_000, 900_000),  # the minimum period
        ((0.8, 0.0, 60_000, 300_000), None, 100_000, 80_000),  # too short for either
    ],
)
def test_the_time_to_renew_is_kafkas(
    window: tuple[float, float, int, int], start_ms: int | None, end_ms: int, expected: int
) -> None:
    token = OAuthBearerToken(Secret(""), end_ms, start_time_ms=start_ms)
    assert RefreshWindow(*window).refresh_at_ms(token, 0, Random(0)) == expected


@given(
    factor=st.floats(0.5, 1), jitter=st.floats(0, 0.25), minimum=st.integers(0, 900), buffer=st.integers(0, 3600),
    lifetime=st.integers(1, 10**6), seed=st.integers(),
)  # fmt: skip
def test_a_token_is_never_renewed_in_the_past(
    factor: float, jitter: float, minimum: int, buffer: int, lifetime: int, seed: int
) -> None:
    window = RefreshWindow(factor, jitter, minimum * 1000, buffer * 1000)
    assert window.refresh_at_ms(OAuthBearerToken(Secret(""), lifetime * 1000), 0, Random(seed)) >= 0


# SOURCES


def test_an_unsecured_token_has_the_claims_of_the_login_module(clock: ManualClock) -> None:
    options = entry(
        'unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_level="3" unsecuredLoginListClaim_scope="|read|write"'
        ' unsecuredLoginLifetimeSeconds="60" unsecuredLoginExtension_traceId="t1"'
    )
    token = unsecured_token(options, clock)
    now_s = clock.wall_ms() / 1000
    assert claims_of(token.value) == {"iat": now_s, "exp": now_s + 60, "sub": "alice", "level": 3, "scope": ["read", "write"]}
    assert token.value.reveal().endswith(".")  # no signature
    assert (token.principal_name, token.extensions) == ("alice", {"traceId": "t1"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('unsecuredLoginStringClaim_name="alice"', "sets no unsecuredLoginStringClaim_sub"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="long"', "must be a number, and is not"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="inf"', "must be a number, and is not"),  # not in JSON
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginNumberClaim_level="nan"', "must be a number, and is not"),
        ('unsecuredLoginStringClaim_sub="a" unsecuredLoginNumberClaim_exp="1"', "must not set the claim exp"),
    ],
)
def test_unsecured_options_that_make_no_sense_are_an_error(options: str, message: str, clock: ManualClock) -> None:
    with pytest.raises(AuthenticationError, match=message):
        unsecured_token(entry(options), clock)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("abc", ("abc", None, None)),
        (jwt(exp=5, sub="alice"), (jwt(exp=5, sub="alice"), 5000, "alice")),
        (("abc", 12.5), ("abc", 12_500, None)),
        (OAuthBearerToken(Secret("abc"), 7, "bob"), ("abc", 7, "bob")),
    ],
)
def test_a_callback_returns_a_token_in_one_of_three_forms(returned: object, expected: tuple[str, int | None, str | None]) -> None:
    token = token_of_callback(lambda _: returned, NO_JAAS_ENTRY)
    assert (token.value.reveal(), token.lifetime_ms, token.principal_name) == expected


@pytest.mark.parametrize("returned", [None, b"abc", ("abc",), ("abc", "soon"), ("abc", -1), (1, 2), {CANARY: 1}])
def test_what_else_a_callback_returns_is_in_the_error_by_its_type_only(returned: object) -> None:
    with pytest.raises(AuthenticationError, match=f"returned a {type(returned).__name__}; it must return") as raised:
        token_of_callback(lambda _: returned, NO_JAAS_ENTRY)
    assert CANARY not in str(raised.value)


def test_a_callback_gets_the_options_and_extensions_go_along() -> None:
    calls: list[Mapping[str, str]] = []
    token = token_of_callback(lambda options: calls.append(options) or "abc", entry("a=b extension_c=d"))
    assert calls == [{"a": "b", "extension_c": "d"}]
    assert token.extensions == {"c": "d"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_token_is_read_from_a_file(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "a token"
    file.write_text(f"\n{jwt(exp=5, sub='alice')}\n", encoding=encoding)
    token = token_in_file(file.as_uri(), "sub")
    assert (token.value.reveal(), token.principal_name) == (jwt(exp=5, sub="alice"), "alice")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b" \n", "it is empty"), (b"\xff", "it is not text"), (b"x" * (MAX_TOKEN_BYTES + 1), "is larger")],
)
def test_a_token_file_that_cannot_be_used_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AuthenticationError, match=message):
        token_in_file(file.as_uri(), "sub")


@pytest.mark.parametrize(
    ("servers", "environment", "region"),
    [
        ("b-1.demo.x2y3.c2.kafka.us-east-1.amazonaws.com:9098", {}, "us-east-1"),
        ("boot-abc.c1.kafka-serverless.eu-central-1.amazonaws.com:9098", {"AWS_REGION": "x"}, "eu-central-1"),
        ("b-1.demo.kafka.cn-north-1.amazonaws.com.cn:9098", {}, "cn-north-1"),
        ("b-1.demo.kafka.us-gov-west-1.amazonaws.com:9098", {}, "us-gov-west-1"),
        ("proxy:9098", {"AWS_REGION": "eu-west-1"}, "eu-west-1"),
        ("proxy:9098", {"AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
        ("proxy:9098", {}, None),
    ],
)
def test_the_region_is_that_of_the_cluster(servers: str, environment: dict[str, str], region: str | None) -> None:
    assert aws_region(ProducerConfig.from_mapping({"bootstrap.servers": servers}), environment) == region
