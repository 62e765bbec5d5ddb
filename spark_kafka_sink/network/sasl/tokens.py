"""OAuth tokens, and a cache for one token that renews it before it expires.

A token is fetched when a connection logs in, and renewed when a later login or re-authentication finds it due: no thread renews
tokens that are not used. If fetching fails while the old token is valid, the old one is used.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import AuthenticationError, describe_error

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OAuthBearerToken:
    """A token to log in with, and how long it is valid.

    Args:
        value: the token; a str is wrapped in a Secret.
        lifetime_ms: Java's name for the time when it expires, in milliseconds since 1970; None: unknown, for one login only.
        principal_name: the user or service that the token is for; for errors.
        start_time_ms: since when it is valid; None: since it was fetched.
        extensions: of the SASL exchange (KIP-342).
    """

    value: Secret
    lifetime_ms: int | None = None
    principal_name: str | None = None
    start_time_ms: int | None = None
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            object.__setattr__(self, "value", Secret(self.value))
        elif not isinstance(self.value, Secret):
            raise TypeError(f"a token is a str, not {type(self.value).__name__}")


_TOKEN_UNAVAILABLE = "KAFKA_OAUTH_TOKEN_UNAVAILABLE"


def token_error(text: str) -> AuthenticationError:
    """The error when there is no token, and another attempt would get none."""
    return AuthenticationError(text, condition=_TOKEN_UNAVAILABLE)


class RetriableTokenError(AuthenticationError):
    """There is no token yet: the server does not answer, or is busy. A later attempt may get one."""

    condition = _TOKEN_UNAVAILABLE


def token_from_jwt(value: Secret, *, sub_claim: str = "sub", extensions: Mapping[str, str] | None = None) -> OAuthBearerToken:
    """A token; if it is a JWT, with the expiry and principal in it, unverified. The broker verifies the token."""
    claims = _claims(value)
    return OAuthBearerToken(
        value,
        _milliseconds(claims.get("exp")),
        str(claims[sub_claim]) if sub_claim in claims else None,
        _milliseconds(claims.get("iat")),
        dict(extensions or {}),
    )


def _claims(value: Secret) -> dict[str, Any]:
    """The claims of a JWT, not verified; empty for a token that is not a JWT."""
    try:
        payload = Secret(value.reveal().split(".")[1])
        claims = json.loads(base64.urlsafe_b64decode(payload.reveal() + "=" * (-len(payload.reveal()) % 4)))
    except (IndexError, ValueError, RecursionError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _milliseconds(claim: object) -> int | None:
    if isinstance(claim, int | float) and not isinstance(claim, bool) and 0 <= claim < 1e12:
        return int(claim * 1000)
    return None


class RefreshWindow(NamedTuple):
    """When a token is renewed: the sasl.login.refresh.* options."""

    factor: float
    jitter: float
    min_period_ms: int
    buffer_ms: int

    @classmethod
    def of(cls, config: ProducerConfig) -> RefreshWindow:
        return cls(
            config.sasl_login_refresh_window_factor,
            config.sasl_login_refresh_window_jitter,
            config.sasl_login_refresh_min_period_seconds * 1000,
            config.sasl_login_refresh_buffer_seconds * 1000,
        )

    def refresh_at_ms(self, token: OAuthBearerToken, wall_ms: int, random: Random) -> int:
        """When to renew a token fetched at `wall_ms`, in wall time; as in Kafka's ExpiringCredentialRefreshingLogin."""
        if token.lifetime_ms is None:
            return wall_ms
        share = self.factor + self.jitter * random.random()
        if wall_ms + self.min_period_ms + self.buffer_ms > token.lifetime_ms:  # the lifetime is too short for both limits
            return wall_ms + int((token.lifetime_ms - wall_ms) * share)
        start_ms = wall_ms if token.start_time_ms is None else token.start_time_ms
        proposed_ms = start_ms + int((token.lifetime_ms - start_ms) * share)
        return max(min(proposed_ms, token.lifetime_ms - self.buffer_ms), wall_ms + self.min_period_ms)


_HANG_FACTOR = 2  # times `wait_ms`: a fetch that runs for longer counts as hanging, and another may begin
_MAX_FETCH_COUNT = 4  # fetches that run at the same time


class TokenCache:
    """Keeps one token and renews it. Only threads of background.py call `token`, as it blocks. Tokens count in wall time.

    One fetch serves all callers that wait for it. It runs without the lock: while it runs, other callers get the old token as
    long as that token is valid.

    Args:
        fetch: returns a token; blocks. It may be a user's function, which may raise anything and cannot be interrupted.
        window: when to renew.
        wait_ms: how long a caller waits for another caller's fetch.
    """

    def __init__(
        self, fetch: Callable[[], OAuthBearerToken], window: RefreshWindow, clock: Clock, *, wait_ms: int, random: Random
    ) -> None:
        self._fetch = fetch
        self._window = window
        self._clock = clock
        self._wait_ms = wait_ms
        self._random = random
        # Guards all below; notified when a fetch ends. A Condition is safe here, as only threads of background.py wait: an
        # exception to the rule of interrupts.py, listed in tests/test_interrupt_rule.py.
        self._fetch_ended = threading.Condition()
        self._token: OAuthBearerToken | None = None
        self._refresh_at_ms = 0
        self._latest_fetch: object | None = None  # the fetch to wait for, while it runs
        self._fetch_start_ms = 0  # of the latest fetch, by the monotonic clock
        self._fetch_count = 0  # fetches that run now, including those that hang

    @property
    def principal_name(self) -> str | None:
        """The name in the latest token; None before the first token, or if the token names nobody. Never blocks."""
        token = self._token
        return None if token is None else token.principal_name

    def token(self) -> OAuthBearerToken:
        """The token to log in with. Raises AuthenticationError, or what `fetch` raises.

        Blocks while this caller fetches a token, or, without a valid token, at most `wait_ms` for another caller's fetch.
        """
        with self._fetch_ended:
            token = self._token_or_wait_locked()
            if token is not None:
                return token
            fetch = self._latest_fetch = object()
            self._fetch_start_ms = self._clock.now_ms()
            self._fetch_count += 1
        try:
            return self._fetch_token()
        finally:
            with self._fetch_ended:
                self._fetch_count -= 1
                if self._latest_fetch is fetch:
                    self._latest_fetch = None
                self._fetch_ended.notify_all()

    def _token_or_wait_locked(self) -> OAuthBearerToken | None:
        """The token to use, after a wait for another caller's fetch if there is none; None: the caller has to fetch one."""
        deadline_ms = self._clock.now_ms() + self._wait_ms
        while True:
            wall_ms, now_ms = self._clock.wall_ms(), self._clock.now_ms()
            if self._token is not None and wall_ms < self._refresh_at_ms:
                return self._token
            if self._latest_fetch is None:
                return None
            if _is_valid(self._token, wall_ms):
                return self._token
            if now_ms - self._fetch_start_ms >= _HANG_FACTOR * self._wait_ms and self._fetch_count < _MAX_FETCH_COUNT:
                return None
            if now_ms >= deadline_ms:
                raise RetriableTokenError(f"another connection has been fetching a token for more than {self._wait_ms} ms")
            self._clock.wait(self._fetch_ended, deadline_ms - now_ms)

    def _fetch_token(self) -> OAuthBearerToken:
        try:
            token = self._fetch()
            wall_ms = self._clock.wall_ms()
            if token.lifetime_ms is not None and token.lifetime_ms <= wall_ms:
                raise token_error("the token that was issued has expired already; are the clocks right?")
        except BaseException as error:  # a user's function may call sys.exit()
            with self._fetch_ended:
                old_token = self._token
            if old_token is None or not _is_valid(old_token, self._clock.wall_ms()):
                raise
            logger.warning(
                "! an OAuth token could not be renewed, the old one is used until it expires: %s", describe_error(error)
            )
            return old_token
        with self._fetch_ended:
            self._token, self._refresh_at_ms = token, self._window.refresh_at_ms(token, wall_ms, self._random)
        return token


def _is_valid(token: OAuthBearerToken | None, wall_ms: int) -> bool:
    """Whether the token is valid now, so that it can be used while there is no new one."""
    return token is not None and token.lifetime_ms is not None and token.lifetime_ms > wall_ms
