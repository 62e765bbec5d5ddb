"""The requests that a new connection sends before it is ready, as a generator that reads like the protocol page.

`handshake()` yields requests and receives their responses; it returns a Session, what the connection then knows about its broker.
With SASL it also logs in. `authenticate()` logs in again on the open connection before the session ends (KIP-368).
The generators only compute: ConnectionSetup sends what they yield, starts work that may block, and watches the time.
LoginDetection finds out whether a listener demands a login from a client that is configured without one.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from spark_kafka_sink.errors import AuthenticationError, UnsupportedVersionError, printable_list
from spark_kafka_sink.network.background import BackgroundWork
from spark_kafka_sink.network.sasl.login import Exchange, Login, conceal_sent
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.end_txn import LAST_END_TXN_VERSION_BEFORE_TV2
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.producer_identity import speaks_transactions_v2
from spark_kafka_sink.protocol.schema import Request

SOFTWARE_NAME = "pykafka-sink"  # for brokers' metrics (KIP-511); they accept only letters, digits, - and .
DETECTION_ATTEMPT_COUNT = 2  # attempts that must end in a lost connection before LoginDetection knows that a login is demanded
_NO_MECHANISM = "NONE"  # not the name of any mechanism
_REMEDY = " Check the user and its password or token (sasl.jaas.config), and that the brokers know it for this sasl.mechanism."


class HandshakeRequest(NamedTuple):
    """A request of a handshake, and the version to send it in."""

    message: Request[Any]
    version: int


class LoginProbe(NamedTuple):
    """A HandshakeRequest. If the broker closes the connection instead of answering, the listener demands a login by one of
    these SASL mechanisms."""

    message: Request[Any]
    version: int
    mechanisms: tuple[str, ...]


RequestStep = HandshakeRequest | LoginProbe
Step = RequestStep | BackgroundWork


class Session(NamedTuple):
    """What a connection knows about its broker when it is ready."""

    api_versions: NodeApiVersions
    lifetime_ms: int = 0  # authenticate again before it ends; 0: the session does not end
    mechanisms: tuple[str, ...] = ()  # SASL mechanisms that the listener offers, if it was asked


# Receives the response to each request, and the result of each work.
Handshake = Generator[Step, Any, Session]


class NodeApiVersions:
    """The API versions that one broker supports."""

    def __init__(self, response: ApiVersionsResponse) -> None:
        self._ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.finalized_features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.supported_features = {feature.name: feature.max_version for feature in response.supported_features}
        self.finalized_features_epoch = response.finalized_features_epoch  # grows with each change; -1: not reported
        self.has_transactions_v2 = speaks_transactions_v2(self.finalized_features)

    def max_version(self, api_key: ApiKey) -> int:
        """The newest version that the broker supports; -1 if it does not support the API."""
        return self._ranges.get(api_key, (0, -1))[1]

    def latest_usable_version(self, api_key: ApiKey, max_version: int | None = None) -> int:
        """The newest version that the broker and this client support, and that is not above `max_version`.

        EndTxn has at most version 4 where transaction.version is below 2. At level 0 a coordinator cannot log what version 5 asks
        for: it rejects every later request for that transactional id with CONCURRENT_TRANSACTIONS, until it restarts.

        Raises:
            UnsupportedVersionError: there is none.
        """
        api = API_TABLE[api_key]
        newest = api.max_version if max_version is None else min(max_version, api.max_version)
        if api_key is ApiKey.END_TXN and not self.has_transactions_v2:
            newest = min(newest, LAST_END_TXN_VERSION_BEFORE_TV2)
        broker_min, broker_max = self._ranges.get(api_key, (0, -1))
        version = min(newest, broker_max)
        if version < max(api.min_version, broker_min):
            support = f"supports {broker_min} to {broker_max}" if api_key in self._ranges else "does not support it"
            raise UnsupportedVersionError(
                f"no version of {api_key.name} in common: the broker {support}, this client can use {api.min_version} to {newest}"
            )
        return version

    def __repr__(self) -> str:
        return f"NodeApiVersions({self._ranges}, {self.finalized_features})"


def handshake(
    login: Login | None = None, host: str = "", *, must_ask_mechanisms: bool = False, must_probe: bool = False
) -> Handshake:
    """Yield each request that a new connection sends before it is ready; receive its response.

    Args:
        login: the credentials; None without SASL.
        host: the broker's host name, as the client connected to it.
        must_ask_mechanisms: without a login, ask which SASL mechanisms the listener offers.
        must_probe: if it offers some, also send a request that a listener with SASL answers only after a login.

    Raises:
        AuthenticationError: the broker rejects the credentials, or is not the broker they are for.
        KafkaError: the broker rejects a request; the connection cannot be used.
    """
    lifetime_ms = 0
    if login is not None:
        # Version 0 as in Java: before the login, brokers take a request that they cannot read for a Kerberos token.
        answer = yield HandshakeRequest(ApiVersionsRequest(), 0)
        _check_api_versions(answer)
        lifetime_ms = (yield from authenticate(login, host, NodeApiVersions(answer))).lifetime_ms
    api_versions = yield from _ask_versions()
    mechanisms = (yield from _ask_mechanisms(api_versions)) if login is None and must_ask_mechanisms else ()
    if mechanisms and must_probe:
        request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
        yield LoginProbe(request, api_versions.latest_usable_version(ApiKey.METADATA), mechanisms)
    return Session(api_versions, lifetime_ms, mechanisms)


def _ask_mechanisms(api_versions: NodeApiVersions) -> Generator[Step, Any, tuple[str, ...]]:
    """The SASL mechanisms that the listener offers; empty if it has none.

    A listener with SASL answers a mechanism that does not exist with those it offers; a listener without SASL answers with
    ILLEGAL_SASL_STATE. Mechanisms do not prove that a login is needed: Redpanda names them on any listener.
    """
    try:
        version = api_versions.latest_usable_version(ApiKey.SASL_HANDSHAKE)
    except UnsupportedVersionError:
        return ()
    answer = yield HandshakeRequest(SaslHandshakeRequest(mechanism=_NO_MECHANISM), version)
    assert isinstance(answer, SaslHandshakeResponse)
    if Errors.for_code(answer.error_code) == Errors.UNSUPPORTED_SASL_MECHANISM:
        return answer.mechanisms
    return ()


def authenticate(login: Login, host: str, api_versions: NodeApiVersions) -> Handshake:
    """Log in, on a new connection or again on an open one. Every AuthenticationError names the user or principal."""
    try:
        answer = yield HandshakeRequest(
            SaslHandshakeRequest(mechanism=login.mechanism), api_versions.latest_usable_version(ApiKey.SASL_HANDSHAKE)
        )
        _check_mechanism(answer)
        version = api_versions.latest_usable_version(ApiKey.SASL_AUTHENTICATE)
        lifetime_ms = yield from _carry_messages(login.start(host), version)
    except AuthenticationError as error:
        error.message = f"SASL {login.mechanism} for {login.user_text}: {error.message}"
        if error.condition == Errors.SASL_AUTHENTICATION_FAILED.condition:
            error.message += _REMEDY
        raise
    return Session(api_versions, lifetime_ms)


def _carry_messages(exchange: Exchange, version: int) -> Generator[Step, Any, int]:
    """Carry messages between a mechanism and the broker until the mechanism ends. Returns the session's lifetime in ms."""
    lifetime_ms = 0
    try:
        step = next(exchange)
        while True:
            if isinstance(step, BackgroundWork):
                step = exchange.send((yield step))
                continue
            reply = yield HandshakeRequest(SaslAuthenticateRequest(auth_bytes=step), version)
            assert isinstance(reply, SaslAuthenticateResponse)
            if reply.error_code:
                broker_message = conceal_sent(reply.error_message or "", step)
                raise Errors.for_code(reply.error_code).exception("SaslAuthenticate", broker_message)
            lifetime_ms = reply.session_lifetime_ms
            step = exchange.send(reply.auth_bytes)
    except StopIteration:
        return lifetime_ms


def _check_mechanism(answer: SaslHandshakeResponse) -> None:
    error = Errors.for_code(answer.error_code)
    if not error:
        return
    failure = error.exception("SaslHandshake")
    if error == Errors.UNSUPPORTED_SASL_MECHANISM:
        failure.message += f" It offers {printable_list(answer.mechanisms) or 'none'}; set sasl.mechanism to one of them."
    elif error == Errors.ILLEGAL_SASL_STATE:
        failure.message += (
            " This listener does not seem to use SASL: connect to one that does, or set security.protocol to PLAINTEXT or SSL."
        )
    raise failure


def _ask_versions() -> Generator[Step, Any, NodeApiVersions]:
    """Ask in the newest version that both sides support.

    A broker that rejects our version names its own. If it does not, or rejects that version too, the request is sent in version
    0, which every broker supports.
    """
    request = api_versions_request()
    version = API_TABLE[ApiKey.API_VERSIONS].max_version
    while True:
        answer = yield HandshakeRequest(request, version)
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code != Errors.UNSUPPORTED_VERSION.number or version == 0:
            _check_api_versions(answer)
            return NodeApiVersions(answer)
        broker_max_version = next((api.max_version for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)
        version = broker_max_version if 0 < broker_max_version < version else 0


def api_versions_request() -> ApiVersionsRequest:
    """Names this client. Brokers refuse one without a name from version 3 on (KIP-511)."""
    return ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=_software_version())


def _check_api_versions(answer: ApiVersionsResponse) -> None:
    error = Errors.for_code(answer.error_code)
    if error:
        raise error.exception("ApiVersions")


@cache
def _software_version() -> str:
    try:
        return version(SOFTWARE_NAME).replace("+", "-")
    except PackageNotFoundError:  # run from a source tree
        return "0"


class LoginDetection:
    """Finds out whether one node's listener demands a login, over all connections to it. NetworkClient's thread only.

    A listener with SASL answers ApiVersions from any client, and closes the connection without an answer at the next request.
    After a connection is lost that way, the handshake of the next one asks for the SASL mechanisms that the listener offers. If
    it offers some, the handshake also sends a request for metadata. If the connection is lost instead of an answer, the listener
    demands a login. If there is an answer, it demands none, and closes connections for another reason.
    """

    def __init__(self) -> None:
        self._is_doubted = False
        self._mechanisms: tuple[str, ...] = ()  # that the listener offers; while the handshake waits for the answer that decides
        self.has_answered = False  # without a login, on any connection so far: the listener demanded none then
        self.awaits_first_answer = False  # the present connection is ready, without a login, and has answered no request since

    def note_handshake(self) -> bool:
        """A handshake begins. Whether it must find out more: once after a connection was lost before its first answer."""
        is_doubted, self._is_doubted = self._is_doubted, False
        return is_doubted

    def note_step(self, step: RequestStep) -> None:
        """The handshake sends its next request."""
        self._mechanisms = step.mechanisms if isinstance(step, LoginProbe) else ()

    def note_ready(self) -> None:
        """The connection is ready, without a login."""
        self.awaits_first_answer = True
        self.has_answered |= bool(self._mechanisms)
        self._mechanisms = ()

    def note_answered(self) -> None:
        """The broker has answered a request on the connection that is ready."""
        self.awaits_first_answer, self.has_answered = False, True

    def detected_error(self) -> AuthenticationError | None:
        """The error for a connection that the broker has just closed for lack of a login; None if there was another reason."""
        return missing_login_error(self._mechanisms) if self._mechanisms else None

    def note_closed_by_broker(self) -> None:
        """The broker has closed the connection. `note_ended` must follow."""
        self._is_doubted |= self.awaits_first_answer

    def note_ended(self) -> None:
        """The connection has ended, whoever closed it: forget what belongs to it."""
        self.awaits_first_answer = False
        self._mechanisms = ()


def missing_login_error(mechanisms: tuple[str, ...]) -> AuthenticationError:
    """The error for a client without a login, from a listener that demands one with one of these mechanisms."""
    return AuthenticationError(
        "this listener demands a login, and security.protocol has none: set it to SASL_PLAINTEXT, or SASL_SSL with TLS, and"
        f" sasl.mechanism to one of those it offers: {printable_list(mechanisms)}"
    )
