"""Requests to a schema registry over HTTP: its addresses in turn, with repetitions, within a time limit.

Over urllib3, the extra `registry`. Blocks; each attempt runs on a thread that is abandoned when its time is over, since no
time-out covers a DNS look-up that hangs, or a server that sends a byte now and then.
Laws: urllib3's frames have the login in their locals, so none of its exceptions leaves this file, not even as a context. A
redirect is not followed: it would send the login elsewhere. An answer is read up to MAX_ANSWER_BYTES.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.registry_config import RegistryAddress, RegistryConfig
from spark_kafka_sink.errors import ConfigError, printable
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.tls.ssl_context import client_context
from spark_kafka_sink.schemas.registry_errors import (
    NO_JSON,
    NOT_A_REGISTRY,
    UNREACHABLE,
    RegistryAnswer,
    RegistryError,
    refusal,
    unreadable,
)
from spark_kafka_sink.schemas.registry_login import HiddenHeaders, RegistryLogin

if TYPE_CHECKING:
    import ssl

    import urllib3

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 * 1024 * 1024  # the largest schemas have some hundred KB
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_RETRIABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RegistryRequest(NamedTuple):
    """One request, with the words that errors use for it; they follow "cannot"."""

    what: str
    method: str
    path: tuple[str, ...]  # not encoded
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None

    def url_at(self, address: str) -> str:
        path = "/".join(quote(each, safe="") for each in self.path)
        return f"{address}/{path}" + (f"?{urlencode(self.query)}" if self.query else "")


class _FailedAttempt(NamedTuple):
    """No answer, or one that a repetition may change."""

    url: str
    text: str
    may_retry: bool

    def __str__(self) -> str:
        return f"{self.url}: {self.text}"


class RegistryClient:
    """Any thread.

    Raises:
        ConfigError: urllib3 is not installed, or a file of schema.registry.ssl.* cannot be read.
    """

    def __init__(self, config: RegistryConfig, clock: Clock | None = None) -> None:
        self._urllib3 = _urllib3()
        self._config = config
        self._clock = clock or Clock()
        self._login = RegistryLogin(config, self._clock)
        self._addresses = list(config.schema_registry_url)  # the one that answered last comes first
        self._pools = {address.url: self._pool(address) for address in self._addresses}

    def call(self, request: RegistryRequest) -> Any:
        """The JSON of the answer. Blocks for schema.registry.default.api.timeout.ms at most. Raises RegistryError."""
        answer = self._answer(request)
        if not 200 <= answer.status < 300:
            raise refusal(answer, request.what)
        if answer.body is NO_JSON:
            raise unreadable(answer, request.what, "the answer cannot be read")
        return answer.body

    def _answer(self, request: RegistryRequest) -> RegistryAnswer:
        """The first answer that a repetition would not change."""
        config, end_ms = self._config, self._clock.now_ms() + self._config.schema_registry_default_api_timeout_ms
        backoff = ExponentialBackoff(config.schema_registry_retries_wait_ms, config.schema_registry_retries_max_wait_ms, Random())
        for repetition in range(config.schema_registry_max_retries + 1):
            found = self._ask_each(request, end_ms)
            if isinstance(found, RegistryAnswer):
                return found
            wait_ms = min(backoff.backoff_ms(repetition), end_ms - self._clock.now_ms())
            is_last = repetition == config.schema_registry_max_retries or wait_ms <= 0
            if is_last or not any(failure.may_retry for failure in found):
                raise self._unreachable(request, found, repetition + 1)
            logger.warning("! cannot %s: %s; retrying in %d ms", request.what, "; ".join(map(str, found)), wait_ms)
            sleep(self._clock, wait_ms)
        raise AssertionError("the last repetition returns or raises")

    def _ask_each(self, request: RegistryRequest, end_ms: int) -> RegistryAnswer | list[_FailedAttempt]:
        failures = []
        for address in tuple(self._addresses):
            found = self._ask_within_time(address, request, end_ms)
            if isinstance(found, RegistryAnswer):
                self._addresses.sort(key=lambda each: each is not address)
                return found
            failures.append(found)
        return failures

    def _unreachable(self, request: RegistryRequest, failures: list[_FailedAttempt], attempts: int) -> RegistryError:
        return RegistryError(
            f"cannot {request.what}, after {attempts} attempt(s): {'; '.join(map(str, failures))}; check schema.registry.url,"
            " and whether the registry runs and can be reached from here",
            condition=UNREACHABLE,
        )

    # ONE ATTEMPT

    def _ask_within_time(
        self, address: RegistryAddress, request: RegistryRequest, end_ms: int
    ) -> RegistryAnswer | _FailedAttempt:
        config = self._config
        limit_ms = config.schema_registry_http_connect_timeout_ms + config.schema_registry_http_read_timeout_ms
        limit_ms = min(limit_ms, end_ms - self._clock.now_ms())
        if limit_ms <= 0:
            return _FailedAttempt(address.url, "there was no time left to ask", may_retry=False)
        headers = self._login.headers(address)
        outcome = outcome_within(partial(self._ask, address, request, headers), limit_ms)
        if outcome is None:
            return _FailedAttempt(address.url, f"no complete answer within {limit_ms} ms", may_retry=True)
        if outcome.error is not None:
            raise outcome.error
        found: RegistryAnswer | _FailedAttempt = outcome.result
        return found

    def _ask(self, address: RegistryAddress, request: RegistryRequest, login: HiddenHeaders) -> RegistryAnswer | _FailedAttempt:
        urllib3 = self._urllib3
        try:
            with self._pools[address.url].request(
                request.method,
                request.url_at(address.url),
                body=None if request.body is None else json.dumps(request.body),
                headers=HiddenHeaders({"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE} | login),
                redirect=False,
                retries=False,
                preload_content=False,
            ) as response:
                return _read(address.url, request, response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return _failure(address.url, error)

    # POOLS

    def _pool(self, address: RegistryAddress) -> Any:
        config, urllib3 = self._config, self._urllib3
        common: dict[str, Any] = {
            "num_pools": 1,
            "timeout": urllib3.Timeout(
                connect=config.schema_registry_http_connect_timeout_ms / 1000,
                read=config.schema_registry_http_read_timeout_ms / 1000,
            ),
        }
        if address.url.startswith("https:"):
            common |= {"ssl_context": _tls(config)}
            if config.schema_registry_ssl_endpoint_identification_algorithm == "":
                common |= {"assert_hostname": False}
        proxy = _proxy(address.url)
        if proxy is None:
            return urllib3.PoolManager(**common)
        login = urllib3.util.parse_url(proxy).auth
        return urllib3.ProxyManager(
            proxy, proxy_headers=urllib3.util.make_headers(proxy_basic_auth=login) if login else None, **common
        )


def _urllib3() -> Any:
    """Imported when a registry is asked, so that nothing else needs the extra."""
    try:
        import urllib3
    except ImportError as error:
        raise ConfigError(
            "schema.registry.url needs urllib3: pip install 'pykafka-sink[registry]', or pip install 'urllib3>=2.2', on the"
            " driver, and with a topic column on the executors too"
        ) from error
    return urllib3


def _read(url: str, request: RegistryRequest, response: urllib3.BaseHTTPResponse) -> RegistryAnswer | _FailedAttempt:
    status, content_type = response.status, response.headers.get("Content-Type", "")
    if 300 <= status < 400:
        raise RegistryError(
            f"cannot {request.what} at {url}: it redirects to {_shown_url(response.headers.get('Location', ''))}, which is not"
            " followed, as it would be sent the login; if that is the registry, write it into schema.registry.url",
            condition=NOT_A_REGISTRY,
        )
    content = _content(response)
    if content is None:
        raise RegistryError(
            f"cannot {request.what} at {url}: the answer has more than {MAX_ANSWER_BYTES:,} bytes", condition=NOT_A_REGISTRY
        )
    answer = RegistryAnswer(url, status, _json(content), content_type)
    if status in _RETRIABLE_STATUS and not _is_final(answer):
        return _FailedAttempt(url, f"HTTP status {status} {_message(answer)}".rstrip(), may_retry=True)
    return answer


def _content(response: urllib3.BaseHTTPResponse) -> bytes | None:
    """None if there is too much of it. Compressed answers are not asked for, and not unpacked."""
    content = bytearray()
    while len(content) <= MAX_ANSWER_BYTES:
        more = response.read1(65_536, decode_content=False)
        if not more:
            return bytes(content)
        content += more
    return None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return NO_JSON


def _is_final(answer: RegistryAnswer) -> bool:
    """Whether a server's error is one of the registry's own that another attempt gets again."""
    return isinstance(answer.body, dict) and answer.body.get("error_code") in _FINAL_CODES


_FINAL_CODES = frozenset({50005})  # an unknown master: the registry itself has given up


def _message(answer: RegistryAnswer) -> str:
    message = answer.body.get("message") if isinstance(answer.body, dict) else None
    return printable(message) if isinstance(message, str) else ""


def _failure(url: str, error: Exception) -> _FailedAttempt:
    """In words; urllib3 wraps the cause, and names objects of its own in its texts."""
    import ssl

    reason: BaseException = error
    while (inner := getattr(reason, "reason", None) or reason.__cause__) is not None and isinstance(inner, BaseException):
        reason = inner
    text = printable(reason).rpartition(">: ")[2]
    return _FailedAttempt(url, f"{type(reason).__name__}: {text}", not isinstance(reason, ssl.SSLCertVerificationError))


def _shown_url(url: str) -> str:
    """Without a login and without a query, which may hold one."""
    return printable(url.partition("?")[0].rpartition("@")[2]) or "an address that it does not name"


def _tls(config: RegistryConfig) -> ssl.SSLContext:
    """With the options of brokers, which schema.registry.ssl.* are with a prefix."""
    given = {
        key.removeprefix("schema.registry."): getattr(config, key.replace(".", "_"))
        for key in config.given
        if key.startswith("schema.registry.ssl.")
    }
    try:
        return client_context(ProducerConfig.from_mapping({"bootstrap.servers": "none:1", "security.protocol": "SSL", **given}))
    except ConfigError as error:
        error.message = f"of the schema registry, after the prefix schema.registry.: {error.message}"
        raise


def _proxy(url: str) -> str | None:
    """The environment's https_proxy, which no_proxy restricts, for https; never http_proxy, which would read the login.

    This machine is reached without a proxy.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname in _LOOPBACK or proxy_bypass(parts.netloc):
        return None
    return getproxies().get("https")
