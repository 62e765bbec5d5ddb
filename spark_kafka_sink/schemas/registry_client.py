"""Requests to a schema registry over HTTP: tries its addresses in turn, with retries, within a time limit.

Uses urllib3, the extra `registry`. Each attempt runs on a thread of its own, since no time-out covers a DNS look-up that hangs,
or a server that sends a byte now and then. When the attempt's time is over, its connection is closed, which ends the thread,
unless the thread waits for DNS, for a token or for a new connection.
Laws: urllib3's frames have the login in their locals, so no exception leaves this file with those frames, not even as a context.
A redirect is not followed: it would send the login elsewhere. An answer of more than MAX_ANSWER_BYTES is an error. No text of an
answer shows the login.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.config.registry_config import RegistryAddress, RegistryConfig, without_login
from spark_kafka_sink.errors import NetworkError, printable
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.schemas.registry_errors import (
    INVALID_ANSWER,
    NO_JSON,
    UNREACHABLE,
    RegistryAnswer,
    RegistryError,
    rejection_error,
    unreadable_error,
)
from spark_kafka_sink.schemas.registry_login import HiddenHeaders, RegistryLogin
from spark_kafka_sink.schemas.registry_pools import RegistryAttempt, import_urllib3, make_pool

if TYPE_CHECKING:
    import urllib3

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 * 1024 * 1024  # the largest schemas have some hundred KB
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_RETRIABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class RegistryRequest(NamedTuple):
    """One request to a registry. `action`: what it does, in words that follow "cannot" in errors."""

    action: str
    method: str
    path: tuple[str, ...]  # its steps, not encoded
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None

    def url_at(self, address: str) -> str:
        path = "/".join(_encode_step(each) for each in self.path)
        return f"{address}/{path}" + (f"?{urlencode(self.query)}" if self.query else "")


def _encode_step(step: str) -> str:
    """One step of a path, encoded. urllib3 would resolve a plain `.` or `..` to another path of the server."""
    return "%2E" * len(step) if step in (".", "..") else quote(step, safe="")


class _NoAnswer(NamedTuple):
    """A failed attempt at one address: no answer, or an answer that a retry may change."""

    url: str
    text: str
    may_retry: bool

    def __str__(self) -> str:
        return f"{self.url}: {self.text}"


class RegistryClient:
    """Sends requests to one registry. Any thread may call it.

    Raises:
        ConfigError: urllib3 is not installed, a file of schema.registry.ssl.* cannot be read, or https_proxy is no URL.
    """

    def __init__(self, config: RegistryConfig, clock: Clock | None = None) -> None:
        self._urllib3 = import_urllib3()
        self._config = config
        self._clock = clock or Clock()
        self._login = RegistryLogin(config, self._clock)
        self._addresses = config.schema_registry_url  # the one that answered last comes first
        self._pools = {address.url: make_pool(address, config) for address in self._addresses}

    def deadline_ms(self) -> int:
        """When a call that begins now has to end, by the client's clock."""
        return self._clock.now_ms() + self._config.schema_registry_default_api_timeout_ms

    def call(self, request: RegistryRequest, deadline_ms: int | None = None) -> Any:
        """The JSON of the answer. Blocks until `deadline_ms` at most, by default for schema.registry.default.api.timeout.ms.

        Raises:
            RegistryError: there is no answer, or it is no success or no JSON.
            AuthenticationError: there is no token to log in with.
        """
        answer = self._answer(request, self.deadline_ms() if deadline_ms is None else deadline_ms)
        if not 200 <= answer.status < 300:
            raise rejection_error(answer, request.action)
        if answer.body is NO_JSON:
            raise unreadable_error(answer, request.action)
        return answer.body

    def close(self) -> None:
        """End the idle connections. A later call opens new ones."""
        for pool in self._pools.values():
            pool.clear()

    # RETRIES

    def _answer(self, request: RegistryRequest, deadline_ms: int) -> RegistryAnswer:
        """The first answer that a retry would not change."""
        config = self._config
        if self._clock.now_ms() >= deadline_ms:
            raise _too_late_error(request, config.schema_registry_default_api_timeout_ms)
        backoff = ExponentialBackoff(config.schema_registry_retries_wait_ms, config.schema_registry_retries_max_wait_ms, Random())
        attempt_count = 0
        while True:
            outcome = self._ask_each(request, deadline_ms)
            if isinstance(outcome, RegistryAnswer):
                return outcome
            wait_ms = backoff.backoff_ms(attempt_count)
            attempt_count += 1
            may_retry = any(failure.may_retry for failure in outcome) and attempt_count <= config.schema_registry_max_retries
            if not may_retry or self._clock.now_ms() + wait_ms >= deadline_ms:
                raise _unreachable_error(request, outcome, attempt_count)
            logger.warning("! cannot %s: %s; retrying in %d ms", request.action, "; ".join(map(str, outcome)), wait_ms)
            sleep(self._clock, wait_ms)

    def _ask_each(self, request: RegistryRequest, deadline_ms: int) -> RegistryAnswer | list[_NoAnswer]:
        """The answer of the first address that gives one. The addresses that are left share the time that is left equally."""
        failures: list[_NoAnswer] = []
        addresses = self._addresses
        for number, address in enumerate(addresses):
            share_ms = (deadline_ms - self._clock.now_ms()) // (len(addresses) - number)
            outcome = self._ask_within_time(address, request, max(share_ms, 1))
            if isinstance(outcome, RegistryAnswer):
                self._addresses = tuple(sorted(addresses, key=lambda each: each is not address))
                return outcome
            failures.append(outcome)
        return failures

    # ONE ATTEMPT

    def _ask_within_time(self, address: RegistryAddress, request: RegistryRequest, share_ms: int) -> RegistryAnswer | _NoAnswer:
        config = self._config
        limit_ms = min(config.schema_registry_http_connect_timeout_ms + config.schema_registry_http_read_timeout_ms, share_ms)
        attempt = RegistryAttempt()
        outcome = outcome_within(partial(self._ask, address, request, attempt), limit_ms)
        if outcome is None:
            attempt.abandon()
            return _NoAnswer(address.url, f"no complete answer within {limit_ms:,} ms", may_retry=True)
        if type(outcome.error) is NetworkError:  # no thread could be started; an AuthenticationError is one too
            return _NoAnswer(address.url, outcome.error.message, may_retry=True)
        if outcome.error is not None:
            raise outcome.error
        answer: RegistryAnswer | _NoAnswer = outcome.result
        return answer

    def _ask(self, address: RegistryAddress, request: RegistryRequest, attempt: RegistryAttempt) -> RegistryAnswer | _NoAnswer:
        """Send the request and read the answer. Runs on a thread of its own."""
        urllib3 = self._urllib3
        headers = HiddenHeaders({"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE})
        headers |= self._login.headers(address)
        try:
            with (
                attempt,
                self._pools[address.url].request(
                    request.method,
                    request.url_at(address.url),
                    body=None if request.body is None else json.dumps(request.body),
                    headers=headers,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                ) as response,
            ):
                return _read_answer(address.url, request, response, headers, attempt)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return _failure(address.url, error, headers)


# ANSWERS AND FAILURES


def _read_answer(
    url: str, request: RegistryRequest, response: urllib3.BaseHTTPResponse, headers: HiddenHeaders, attempt: RegistryAttempt
) -> RegistryAnswer | _NoAnswer:
    status, content_type = response.status, headers.conceal(response.headers.get("Content-Type", ""))
    if 300 <= status < 400:
        location = headers.conceal(response.headers.get("Location", ""))
        raise RegistryError(
            f"cannot {request.action} at {url}: it redirects to {_location_in_words(location)}, which is not"
            " followed, as the login would be sent there; if that is the registry, write it into schema.registry.url",
            condition=INVALID_ANSWER,
        )
    content = _read_content(response, attempt)
    if content is None:
        raise RegistryError(
            f"cannot {request.action} at {url}: the answer has more than {MAX_ANSWER_BYTES:,} bytes", condition=INVALID_ANSWER
        )
    body, exact_keys = _parse_json(content), _EXACT_KEYS if 200 <= status < 300 else ()
    repeating_key = _key_that_repeats_login(body, exact_keys, headers)
    if repeating_key is not None:
        raise RegistryError(
            f"cannot {request.action} at {url}: the answer's {repeating_key} repeats the login that was sent, and is not used",
            condition=INVALID_ANSWER,
        )
    answer = RegistryAnswer(url, status, _without_login(body, exact_keys, headers), content_type)
    if status in _RETRIABLE_STATUS:
        return _NoAnswer(url, f"HTTP status {status} {_message(answer)}".rstrip(), may_retry=True)
    return answer


def _read_content(response: urllib3.BaseHTTPResponse, attempt: RegistryAttempt) -> bytes | None:
    """The body of the answer; None if it is too large. Compressed answers are not asked for, and not unpacked.

    With `Connection: close`, `abandon` finds no socket to close: then `remember` ends the attempt, after the next bytes.
    """
    content = bytearray()
    while len(content) <= MAX_ANSWER_BYTES:
        attempt.remember(response.connection)
        received = response.read1(65_536, decode_content=False)
        if not received:
            return bytes(content)
        content += received
    return None


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return NO_JSON


# THE LOGIN IN AN ANSWER. A server, or a proxy before it, may repeat what it was sent, and any text of an answer may be shown.

# What a schema consists of: with another text, it would be another one.
_EXACT_KEYS: tuple[str, ...] = ("schema", "schemaType", "subject", "references")


def _key_that_repeats_login(body: Any, exact_keys: tuple[str, ...], headers: HiddenHeaders) -> str | None:
    """The first of the exact keys with the login in its texts, or in the names and texts of a schema."""
    if not headers or not isinstance(body, dict):
        return None
    for key in exact_keys:
        value = body.get(key)
        schema = _parse_json(value.encode("utf-8", "replace")) if key == "schema" and isinstance(value, str) else None
        if headers.are_repeated_in("\n".join((*_texts(value), *_texts(schema)))):
            return key
    return None


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, and the names in its objects."""
    values = [value]
    while values:
        match values.pop():
            case str(text):
                yield text
            case list(items):
                values += items
            case dict(members):
                values += [*members, *members.values()]


def _without_login(body: Any, exact_keys: tuple[str, ...], headers: HiddenHeaders) -> Any:
    """The answer without the login in its texts. The exact keys stay as they are."""
    exact_values = {key: body[key] for key in exact_keys if key in body} if isinstance(body, dict) else {}
    try:
        concealed_body = _map_texts(headers.concealer(), body)
    except RecursionError:
        return NO_JSON
    return concealed_body | exact_values if exact_values else concealed_body


def _map_texts(change: Callable[[str], str], value: Any) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_map_texts(change, each) for each in value]
        case dict():
            return {change(key): _map_texts(change, each) for key, each in value.items()}
        case _:
            return value


def _message(answer: RegistryAnswer) -> str:
    message = answer.body.get("message") if isinstance(answer.body, dict) else None
    return printable(message) if isinstance(message, str) else ""


def _failure(url: str, error: Exception, headers: HiddenHeaders) -> _NoAnswer:
    """Put a failure into words: urllib3 wraps the cause, and names objects of its own in its texts."""
    import ssl

    reason: BaseException = error
    while (
        inner := next((each for each in (*reason.args, reason.__cause__) if isinstance(each, BaseException)), None)
    ) is not None:
        reason = inner
    text = f"{type(reason).__name__}: {printable(headers.conceal(str(reason))).rpartition('>: ')[2]}"
    if isinstance(reason, ssl.SSLCertVerificationError):
        text += " (schema.registry.ssl.truststore.location names the authorities that are trusted)"
        return _NoAnswer(url, text, may_retry=False)
    if isinstance(reason, ssl.SSLError):
        text += " (does the registry speak https on this port?)"
    return _NoAnswer(url, text, may_retry=True)


def _too_late_error(request: RegistryRequest, limit_ms: int) -> RegistryError:
    """Say that no time is left for a further request of a call, such as for a reference."""
    return RegistryError(
        f"cannot {request.action}: the registry has taken all of schema.registry.default.api.timeout.ms={limit_ms} for the"
        " requests before",
        condition=UNREACHABLE,
    )


def _unreachable_error(request: RegistryRequest, failures: list[_NoAnswer], attempt_count: int) -> RegistryError:
    return RegistryError(
        f"cannot {request.action}, after {attempt_count} attempt(s): {'; '.join(map(str, failures))}; check schema.registry.url,"
        " and whether the registry runs and can be reached from here",
        condition=UNREACHABLE,
    )


def _location_in_words(location: str) -> str:
    """Leave out a login, and a query, which may hold one."""
    if not location:
        return "an address that it does not name"
    is_path = location.startswith("/") and not location.startswith("//")
    return printable(re.split("[?#]", location)[0] if is_path else without_login(location))
