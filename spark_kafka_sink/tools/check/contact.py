"""One connection to a server, made step by step on a thread of its own, and what each step has found out.

NetworkClient hides these steps: it retries, and reports its last problem. Here each address is tried once (twice if it closes
the TLS handshake), with the same parts: Selector, TlsConnector, Framing, handshake. `make_contacts` makes many side by side.
Laws: only its own thread writes a Contact. make_contacts returns copies, so what a late thread finds out changes nothing.
A broker whose certificate is not accepted gets nothing but handshakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, NetworkError, printable_list
from spark_kafka_sink.network.background import BackgroundWork, outcome_of, outcomes_within
from spark_kafka_sink.network.cluster import address_text
from spark_kafka_sink.network.dns import Resolver, look_up, resolve
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.handshake import NodeApiVersions, RequestStep, Session, handshake, missing_login_error
from spark_kafka_sink.network.network_client import transport_factory
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.selector import ChannelState, Disconnect, Selector
from spark_kafka_sink.network.tls.connector import TlsConnector, TlsTransport
from spark_kafka_sink.network.tls.peer import TlsPeer
from spark_kafka_sink.network.transport import Address, Transport
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.schema import Request

NODE = 0  # each Selector here has one connection
THREAD_GRACE_MS = 200  # for threads whose time is over, to report what they waited for
CERTIFICATE_LIMIT_MS = 1_000  # how long a second handshake may take, to see a certificate that was not accepted


class Stage(StrEnum):
    """The steps of a contact, in this order."""

    NAME = "name"
    BROKER = "broker"
    TLS = "TLS"
    LOGIN = "login"
    VERSION = "version"
    METADATA = "metadata"
    DONE = "done"


@dataclass(slots=True)
class Contact:
    """What is known of a server. `stage` is under way, or has failed with `error`. Earlier stages have succeeded or are not used.

    Args:
        addresses: those that DNS has for its name.
        unreached_addresses: those without a connection, and why.
        peer: the server's certificate and cipher, with TLS; also if the certificate was not accepted.
        user: who has logged in, in words; empty without SASL.
        mechanisms: the SASL mechanisms that the listener offers, if it was asked.
        durations_ms: how long each stage took that has succeeded.
        failed_stage_ms: how long the failed stage took.
    """

    host: str
    port: int
    stage: Stage = Stage.NAME
    error: KafkaError | None = None
    addresses: tuple[str, ...] = ()
    unreached_addresses: tuple[str, ...] = ()
    peer: TlsPeer | None = None
    user: str = ""
    mechanisms: tuple[str, ...] = ()
    versions: NodeApiVersions | None = None
    metadata: MetadataResponse | None = None
    durations_ms: dict[Stage, int] = field(default_factory=dict)
    failed_stage_ms: int = 0

    @property
    def server(self) -> str:
        return address_text(self.host, self.port)

    def has_passed(self, stage: Stage) -> bool:
        return stage in self.durations_ms

    def has_begun(self, stage: Stage) -> bool:
        return stage is self.stage or stage in self.durations_ms


def make_contacts(
    servers: Iterable[tuple[str, int]],
    deadline_ms: int,
    config: ProducerConfig,
    login: Login | None,
    clock: Clock,
    resolve_host: Resolver = resolve,
) -> list[Contact]:
    """Make a contact with each server, side by side. Blocks until all have ended, at most until `deadline_ms` on `clock`.

    Args:
        login: None without SASL. The threads share it.
        resolve_host: only tests pass it.
    """
    contacts = [Contact(host, port) for host, port in servers]
    left_ms = deadline_ms - clock.now_ms()
    runs = [_ContactRun(each, config, login, clock, deadline_ms - THREAD_GRACE_MS) for each in contacts]
    outcomes = outcomes_within([partial(each.run, resolve_host) for each in runs], left_ms, clock)
    copies = [replace(each, durations_ms=dict(each.durations_ms)) for each in contacts]
    for contact, outcome in zip(copies, outcomes, strict=True):
        contact.error = _late_error(left_ms) if outcome is None else outcome.error
        contact.failed_stage_ms = left_ms if outcome is None else contact.failed_stage_ms
    return copies


def _late_error(within_ms: int) -> KafkaError:
    """The error for a thread that still waits for DNS, a token or a Kerberos server: these waits cannot be interrupted."""
    return NetworkError(f"no answer within {within_ms:,} ms")


class _ContactRun:
    """Takes all steps of one contact, on a thread of its own."""

    def __init__(self, contact: Contact, config: ProducerConfig, login: Login | None, clock: Clock, deadline_ms: int) -> None:
        self._contact = contact
        self._config = config
        self._login = login
        self._clock = clock
        self._deadline_ms = deadline_ms
        self._start_ms = clock.now_ms()
        self._framing = Framing(config.client_id)
        self._transport: Transport | None = None  # the newest one

    def run(self, resolve_host: Resolver) -> None:
        """Take one step after another. Raises KafkaError for the step that fails."""
        try:
            self._take_steps(resolve_host)
        finally:
            self._contact.failed_stage_ms = self._clock.now_ms() - self._start_ms

    def _take_steps(self, resolve_host: Resolver) -> None:
        contact = self._contact
        addresses = look_up(resolve_host, contact.host, contact.port)
        contact.addresses = tuple(str(each.socket_address[0]) for each in addresses)
        self._pass_to(Stage.BROKER)
        with closing(self._new_selector(transport_factory(self._config))) as selector:
            self._connect_to_any(selector, addresses)
            session = self._shake_hands(selector)
            contact.versions, contact.mechanisms = session.api_versions, session.mechanisms
            self._pass_to(Stage.METADATA)
            contact.metadata = self._ask_for_brokers(selector, session)
            self._pass_to(Stage.DONE)

    def _pass_to(self, stage: Stage) -> None:
        """Note that the present stage has succeeded, and begin the given one."""
        now_ms = self._clock.now_ms()
        self._contact.durations_ms[self._contact.stage] = now_ms - self._start_ms
        self._contact.stage, self._start_ms = stage, now_ms

    # TCP AND TLS

    def _new_selector(self, open_transport: Callable[[Address], Transport]) -> Selector:
        """A Selector that keeps its newest transport in `_transport`."""

        def open_and_keep(address: Address) -> Transport:
            self._transport = open_transport(address)
            return self._transport

        return Selector(self._clock, connections_max_idle_ms=-1, open_transport=open_and_keep)

    def _connect_to_any(self, selector: Selector, addresses: Sequence[Address]) -> None:
        """Connect to the first address that accepts connections. Each address gets an equal part of the time that is left."""
        for number, address in enumerate(addresses):
            left_ms = self._deadline_ms - self._clock.now_ms()
            deadline_ms = self._clock.now_ms() + left_ms // (len(addresses) - number)
            disconnect = self._connect(selector, address, deadline_ms)
            if disconnect is None:
                self._pass_to(Stage.LOGIN if self._login is not None else Stage.VERSION)
                return
            if self._contact.stage is Stage.TLS:
                self._contact.peer = self._look_at_certificate(address)
                raise disconnect.error or NetworkError(disconnect.reason)
            self._contact.unreached_addresses += (f"{address}: {disconnect.reason}" if len(addresses) > 1 else disconnect.reason,)
        raise NetworkError(printable_list(self._contact.unreached_addresses))

    def _connect(self, selector: Selector, address: Address, deadline_ms: int) -> Disconnect | None:
        """Connect to one address. Returns None if the connection, with TLS if it is used, is established."""
        disconnect = self._try_to_connect(selector, address, deadline_ms)
        if disconnect is not None and disconnect.error is None and self._contact.stage is Stage.TLS:
            # The server closed the connection without a word. The next transport asks it whether it speaks TLS at all.
            disconnect = self._try_to_connect(selector, address, deadline_ms)
        return disconnect

    def _try_to_connect(self, selector: Selector, address: Address, deadline_ms: int) -> Disconnect | None:
        selector.disconnected.pop(NODE, None)  # of the attempt before
        try:
            selector.connect(NODE, address, self._framing)
        except OSError as error:
            return Disconnect(ChannelState.NOT_CONNECTED, str(error))
        while not selector.is_established(NODE) and NODE not in selector.disconnected:
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0:
                selector.close(NODE)
                return Disconnect(ChannelState.NOT_CONNECTED, "no answer in time", has_timed_out=True)
            selector.poll(left_ms)
            self._note_tls()
        return selector.disconnected.get(NODE)

    def _note_tls(self) -> None:
        transport = self._transport
        if not isinstance(transport, TlsTransport):
            return
        if transport.is_reached and self._contact.stage is Stage.BROKER:
            self._pass_to(Stage.TLS)
        self._contact.peer = transport.peer() or self._contact.peer

    def _look_at_certificate(self, address: Address) -> TlsPeer | None:
        """Get the certificate that was not accepted, in another handshake. Sends nothing else. None if it cannot be seen."""
        deadline_ms = min(self._deadline_ms, self._clock.now_ms() + CERTIFICATE_LIMIT_MS)
        with closing(self._new_selector(TlsConnector(self._config).accepting_any_certificate())) as selector:
            disconnect = self._try_to_connect(selector, address, deadline_ms)
        return None if disconnect is not None else self._contact.peer

    # REQUESTS

    def _shake_hands(self, selector: Selector) -> Session:
        steps = handshake(self._login, self._contact.host, must_ask_mechanisms=self._login is None)
        step = next(steps)
        try:
            while True:
                if isinstance(step, BackgroundWork):
                    outcome = outcome_of(step.work)
                    step = steps.throw(outcome.error) if outcome.error is not None else steps.send(outcome.result)
                else:
                    self._note_login(step)
                    step = steps.send(self._ask(selector, step.message, step.version))
        except StopIteration as stop:
            session: Session = stop.value
            return session

    def _note_login(self, step: RequestStep) -> None:
        """Pass on to VERSION when the login has succeeded: the handshake then asks for versions again, not in version 0."""
        if self._contact.stage is Stage.LOGIN and step.message.API_KEY is ApiKey.API_VERSIONS and step.version > 0:
            self._contact.user = "" if self._login is None else self._login.user_text
            self._pass_to(Stage.VERSION)

    def _ask_for_brokers(self, selector: Selector, session: Session) -> MetadataResponse:
        version = session.api_versions.latest_usable_version(ApiKey.METADATA)
        answer = self._ask(selector, MetadataRequest(topics=(), allow_auto_topic_creation=False), version)
        assert isinstance(answer, MetadataResponse)
        return answer

    def _ask(self, selector: Selector, message: Request[Any], version: int) -> Any:
        if NODE in selector.disconnected:
            raise self._error_of_lost_connection(selector.disconnected[NODE], message)
        selector.send(NODE, self._framing.send(message, version))
        while not selector.completed_receives:
            if NODE in selector.disconnected:
                raise self._error_of_lost_connection(selector.disconnected[NODE], message)
            left_ms = self._deadline_ms - self._clock.now_ms()
            if left_ms <= 0:
                raise NetworkError(f"{_name(message)} was not answered in time")
            selector.poll(left_ms)
        return selector.completed_receives.pop(0)[1].message

    def _error_of_lost_connection(self, disconnect: Disconnect, message: Request[Any]) -> KafkaError:
        if disconnect.error is not None:
            return disconnect.error
        if self._contact.mechanisms:
            return missing_login_error(self._contact.mechanisms)
        if self._framing.error is not None:
            return self._framing.error
        protocol = self._config.security_protocol
        return NetworkError(
            f"{disconnect.reason} instead of an answer to {_name(message)};"
            f" is security.protocol={protocol} right for this listener?"
        )


def _name(message: Request[Any]) -> str:
    return type(message).__name__.removesuffix("Request")
