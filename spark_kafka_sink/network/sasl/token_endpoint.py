"""Tokens from an OAuth server: the client credentials flow (KIP-768) and the JWT bearer flow (KIP-1139).

Each attempt is one POST over https (config allows http for localhost only), with a limit for the size of the answer; between
attempts there is a back-off. Redirects are not followed: they would send the client's secret elsewhere. Blocks; runs on threads
of background.py.
Laws: urllib's frames have the secret in their locals, so none of its exceptions leaves this file, not even as a context. An
attempt ends within sasl.login.connect.timeout.ms + sasl.login.read.timeout.ms, however slowly the server sends. No proxy can read
a request: http is for this machine and uses none, https goes through a tunnel (CONNECT).
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, quote_plus, unquote_plus, urlencode
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.config.jaas import JaasEntry
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret, SecretBytes, concealer, forms_of_basic_login
from spark_kafka_sink.errors import printable
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.https import proxy_for, tls_context
from spark_kafka_sink.network.sasl.jwt_assertion import assertion_of
from spark_kafka_sink.network.sasl.token_sources import MAX_TOKEN_BYTES
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, RetriableTokenError, token_error, token_from_jwt

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 10_000
# Another attempt would get the same answer.
_FINAL_STATUS = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Post(NamedTuple):
    """A request to the token server. Its repr shows neither value."""

    body: SecretBytes
    authorization: Secret | None

    def conceal(self, text: str) -> str:
        """A text of the server, with [hidden] where it repeats the client's secret or the assertion."""
        secrets = {each for name, each in parse_qsl(self.body.decode()) if name == "assertion"}
        if self.authorization is not None:
            forms, secret = forms_of_basic_login(self.authorization.reveal().removeprefix("Basic "))
            secrets |= {*forms, secret, unquote_plus(secret)}
        return concealer(secrets)(text)


def client_credentials_post(config: ProducerConfig, entry: JaasEntry) -> Post:
    """The request of the client credentials flow. An option of the configuration precedes that of the login module."""
    client_id = config.sasl_oauthbearer_client_credentials_client_id or entry.get("clientId") or ""
    secret = config.sasl_oauthbearer_client_credentials_client_secret or Secret(entry.get("clientSecret") or "")
    encode: Callable[[str], str] = quote_plus if config.sasl_oauthbearer_header_urlencode else str
    credentials = SecretBytes(f"{encode(client_id)}:{encode(secret.reveal())}".encode())
    form = {"grant_type": "client_credentials"} | _scope(config, entry)
    return Post(SecretBytes(urlencode(form).encode()), Secret(f"Basic {base64.b64encode(credentials).decode()}"))


def jwt_bearer_post(config: ProducerConfig, entry: JaasEntry, clock: Clock) -> Post:
    """The request of the JWT bearer flow, with the assertion that `assertion_of` returns. Raises as that does."""
    assertion = assertion_of(config, clock)
    return Post(
        SecretBytes(urlencode({"grant_type": _JWT_BEARER, "assertion": assertion.reveal()} | _scope(config, entry)).encode()),
        None,
    )


def _scope(config: ProducerConfig, entry: JaasEntry) -> dict[str, str]:
    scope = config.sasl_oauthbearer_scope or entry.get("scope")
    return {"scope": scope} if scope else {}


# ASKING


class _FailedAttempt(NamedTuple):
    """Why one request got no token, and whether a retry may get one."""

    text: str
    may_retry: bool


class TokenEndpoint:
    """An OAuth server as a source of tokens. Any thread may call `token`.

    Raises:
        ConfigError: certificates that the login module names cannot be read.
    """

    def __init__(self, config: ProducerConfig, entry: JaasEntry, make_post: Callable[[], Post], clock: Clock) -> None:
        self._url = config.sasl_oauthbearer_token_endpoint_url or ""
        self._address = self._url.partition("?")[0]  # for texts: a query may hold a key
        self._connect_timeout_ms = config.sasl_login_connect_timeout_ms or DEFAULT_TIMEOUT_MS
        self._read_timeout_ms = config.sasl_login_read_timeout_ms or DEFAULT_TIMEOUT_MS
        self._config = config
        self._extensions = entry.with_prefix("extension_")
        self._tls_context = _tls_context(entry)
        self._make_post = make_post
        self._clock = clock

    def token(self) -> OAuthBearerToken:
        """Ask for a token, until there is one, the answer is final, or sasl.login.retry.backoff.max.ms have passed.

        Blocks; the last attempt may begin at the end of that time. Raises AuthenticationError, which quotes the server's error:
        a RetriableTokenError if the answer is not final.
        """
        first_ms, max_ms = max(self._config.sasl_login_retry_backoff_ms, 1), self._config.sasl_login_retry_backoff_max_ms
        backoff = ExponentialBackoff(first_ms, max(max_ms, first_ms), Random())
        deadline_ms = self._clock.now_ms() + max_ms
        attempt = 0
        while True:
            outcome = self._ask_within_time(self._make_post())
            if isinstance(outcome, OAuthBearerToken):
                return outcome
            wait_ms = min(backoff.backoff_ms(attempt), deadline_ms - self._clock.now_ms())
            attempt += 1
            if not outcome.may_retry or wait_ms <= 0:
                text = f"no token from {self._address} after {attempt} attempt(s): {outcome.text}"
                raise RetriableTokenError(text) if outcome.may_retry else token_error(text)
            logger.warning(
                "! attempt %d to get a token from %s failed: %s; retrying in %d ms", attempt, self._address, outcome.text, wait_ms
            )
            sleep(self._clock, wait_ms)

    def _ask_within_time(self, post: Post) -> OAuthBearerToken | _FailedAttempt:
        """One attempt, on a thread that is left running when the time is over: no time-out ends a DNS look-up that hangs."""
        timeout_ms = self._connect_timeout_ms + self._read_timeout_ms
        outcome = outcome_within(lambda: self._ask(post), timeout_ms)
        if outcome is None:
            return _FailedAttempt(f"TimeoutError: no complete answer within {timeout_ms} ms", may_retry=True)
        if outcome.error is not None:
            return _FailedAttempt(outcome.error.message, may_retry=False)
        result: OAuthBearerToken | _FailedAttempt = outcome.result
        return result

    def _ask(self, post: Post) -> OAuthBearerToken | _FailedAttempt:
        handler = _Handler(self._connect_timeout_ms / 1000, self._read_timeout_ms / 1000, self._tls_context)
        proxy = proxy_for(self._url)
        opener = build_opener(ProxyHandler({} if proxy is None else {"https": proxy.address}), handler, _NoRedirects)
        try:
            with opener.open(_request(self._url, post, None if proxy is None else proxy.login)) as response:
                answer = SecretBytes(response.read(MAX_TOKEN_BYTES + 1))
        except HTTPError as error:
            with error:
                return _rejection(error, post)
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            text = f"{type(reason).__name__}: {printable(post.conceal(str(reason)))}"
            return _FailedAttempt(text, may_retry=not isinstance(reason, ssl.SSLCertVerificationError))
        token = _access_token(answer)
        if token is None:
            return _FailedAttempt("the answer has no access_token", may_retry=False)
        return token_from_jwt(token, sub_claim=self._config.sasl_oauthbearer_sub_claim_name, extensions=self._extensions)


def _request(url: str, post: Post, proxy_login: Secret | None) -> Request:
    request = Request(url, data=post.body, method="POST")
    request.add_header("Accept", "application/json")
    request.add_header("Cache-Control", "no-cache")
    request.add_header("Content-Type", "application/x-www-form-urlencoded")
    if post.authorization is not None:
        request.add_unredirected_header("Authorization", post.authorization.reveal())
    if proxy_login is not None:  # urllib sends it with CONNECT only
        request.add_unredirected_header("Proxy-Authorization", proxy_login.reveal())
    return request


def _rejection(error: HTTPError, post: Post) -> _FailedAttempt:
    try:
        body = json.loads(error.read(MAX_TOKEN_BYTES))
        server_texts = [str(body[key]) for key in ("error", "error_description") if key in body]
    except (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError):
        server_texts = []
    text = f"HTTP status {error.code} {printable(post.conceal(': '.join(server_texts)))}".rstrip()
    return _FailedAttempt(text, may_retry=error.code >= 400 and error.code not in _FINAL_STATUS)


def _access_token(answer: SecretBytes) -> Secret | None:
    try:
        body = Secret(json.loads(answer))  # hidden from tracebacks, whatever the server sent
    except (ValueError, RecursionError):
        return None
    value: Any = body.reveal()
    token = value.get("access_token") if isinstance(value, dict) else None
    return Secret(token.strip()) if isinstance(token, str) and token.strip() else None


# THE CONNECTION: DEADLINE AND PROXIES


class _Handler(HTTPSHandler, HTTPHandler):
    """Opens connections that keep time limits."""

    def __init__(self, connect_s: float, read_s: float, tls: ssl.SSLContext) -> None:
        super().__init__(context=tls)
        self._http = partial(_Connection, connect_s=connect_s, read_s=read_s)
        self._https = partial(_TlsConnection, connect_s=connect_s, read_s=read_s, context=tls)

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(self._http, req)

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(self._https, req)


class _Connection(http.client.HTTPConnection):
    """A connection with time limits: `connect_s` for connecting, with the TLS handshake and a proxy's answer to CONNECT, and
    `read_s` for the answer."""

    def __init__(self, host: str, *, connect_s: float, read_s: float, **options: Any) -> None:
        super().__init__(host, **{**options, "timeout": connect_s})
        self._read_s = read_s
        self._deadline = _Deadline(connect_s)

    def response_class(self, sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        response = http.client.HTTPResponse(sock, *args, **options)
        response.fp = io.BufferedReader(_TimedReader(response.fp.detach(), sock, self._deadline))
        return response

    def connect(self) -> None:
        super().connect()
        self._deadline.set(self._read_s)
        self.sock.settimeout(self._read_s)  # for the request


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """A _Connection whose socket speaks TLS; its handshake is part of `connect_s`."""


def _tls_context(entry: JaasEntry) -> ssl.SSLContext:
    """Read the ssl.* options inside the login module, as Java does: the ssl.* options of the producer are for brokers."""
    options = ProducerConfig.conceal({f"ssl.{name}": value for name, value in entry.with_prefix("ssl.").items()})
    return tls_context(options, "sasl.jaas.config")


class _Deadline:
    """Limits the present step of a connection. Uses real time instead of Clock, since it limits sockets."""

    def __init__(self, seconds: float) -> None:
        self.set(seconds)

    def set(self, seconds: float) -> None:
        self._limit_s = seconds
        self._deadline_s = time.monotonic() + seconds

    def left_s(self) -> float:
        """The seconds that are left. Raises TimeoutError if there are none."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"timed out: no complete answer within {self._limit_s * 1000:.0f} ms")
        return left_s


class _TimedReader(io.RawIOBase):
    """Reads a socket until a deadline. The socket's own time-out starts again with every byte that arrives."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: _Deadline) -> None:
        self._raw = raw  # keeps the socket open when http.client closes it
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect: it is an answer without a token."""

    def redirect_request(self, *_: Any) -> None:
        return None
