"""Judges names, servers, TLS, logins, versions and the cluster, from what the contacts have found out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, KafkaError, printable, printable_list
from spark_kafka_sink.network.cluster import address_text
from spark_kafka_sink.network.tls.peer import TlsPeer
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseBroker
from spark_kafka_sink.protocol.producer_identity import TRANSACTION_VERSION
from spark_kafka_sink.tools.check.contact import Contact, Stage
from spark_kafka_sink.tools.check.releases import FIRST_TESTED, FIRST_WITH_LISTS, releases_of
from spark_kafka_sink.tools.check.results import CheckResult, Light, green, merge_results, red, yellow
from spark_kafka_sink.tools.words import counted

SECONDS_PER_DAY = 86_400
MIN_DAYS_LEFT = 14  # a certificate that is valid for fewer days is yellow
SELF_EVIDENT = ("KAFKA_NETWORK", "KAFKA_ERROR")  # conditions that say no more than the message
NO_ANSWER = KafkaError("no answer")
TLS_FAILED = "KAFKA_SSL_AUTHENTICATION_FAILED"
COMPARE_TLS = "compare kafka.security.protocol and kafka.ssl.… with the broker's listener"
COMPARE_PROTOCOL = (
    "compare kafka.security.protocol with the broker's listener, and look whether this is the port of a Kafka broker"
)


@dataclass(frozen=True, slots=True)
class Servers:
    """What all contacts of one round have in common.

    Args:
        is_advertised: whether the addresses come from brokers. Otherwise they come from bootstrap.servers.
        is_bootstrap_server_reached: whether a server of bootstrap.servers has answered, so that a failed one may not be needed.
        nodes: the brokers of the cluster, by address.
    """

    is_advertised: bool
    is_bootstrap_server_reached: bool
    nodes: dict[str, MetadataResponseBroker]

    def light_of_failure(self, server: str) -> Light:
        """Judge a server that cannot be used. A write does not need it if no broker has its address and another one answers."""
        is_needed = self.is_advertised or server in self.nodes
        return Light.YELLOW if self.is_bootstrap_server_reached and not is_needed else Light.RED

    @property
    def source(self) -> str:
        """The option, of brokers or of this client, that has the addresses."""
        return "the brokers' advertised.listeners" if self.is_advertised else "bootstrap.servers"


def judge_contacts(
    contacts: Sequence[Contact], servers: Servers, config: ProducerConfig, now_s: float, *, is_exactly_once: bool
) -> list[CheckResult]:
    """Judge all contacts stage by stage: first all names, then all connections, and so on."""
    results = merge_results(judge_name(each, servers) for each in contacts)
    results += [judge_broker(each, servers) for each in contacts if each.has_begun(Stage.BROKER)]
    if config.security_protocol in ("SSL", "SASL_SSL"):
        is_name_checked = config.ssl_endpoint_identification_algorithm != ""
        tls_contacts = [each for each in contacts if each.has_begun(Stage.TLS)]
        results += merge_results(judge_tls(each, servers, now_s, is_name_checked=is_name_checked) for each in tls_contacts)
    if config.security_protocol.startswith("SASL_"):
        mechanism = config.sasl_mechanism
        results += merge_results(judge_login(each, servers, mechanism) for each in contacts if each.has_begun(Stage.LOGIN))
    answering_contacts = [each for each in contacts if each.has_begun(Stage.VERSION)]
    return results + merge_results(judge_version(each, servers, is_exactly_once=is_exactly_once) for each in answering_contacts)


def _failure(contact: Contact, servers: Servers, remedy: str, error: KafkaError | None = None) -> CheckResult:
    error = error or contact.error or NO_ANSWER
    check, light = _failed_check(contact.stage, error), servers.light_of_failure(contact.server)
    finding = error.message if error.condition in SELF_EVIDENT else str(error)
    return CheckResult(check, contact.server, light, printable(finding, 600), remedy, contact.failed_stage_ms)


def _failed_check(stage: Stage, error: KafkaError) -> str:
    """The check that failed. A broker may reject a certificate after the handshake, and demand a login only at a request."""
    if error.condition == TLS_FAILED:
        return Stage.TLS.value
    if stage in (Stage.VERSION, Stage.METADATA) and isinstance(error, AuthenticationError):
        return Stage.LOGIN.value
    return Stage.BROKER.value if stage is Stage.METADATA else stage.value


def judge_name(contact: Contact, servers: Servers) -> CheckResult:
    """Green if the server's name has an address; says which."""
    if contact.has_passed(Stage.NAME):
        is_address = contact.addresses == (contact.host,)
        finding = "an address, no name to look up" if is_address else f"is {printable_list(contact.addresses)}"
        return green("name", contact.server, finding, contact.durations_ms[Stage.NAME])
    addition = "this host, and each executor, must resolve it" if servers.is_advertised else "or this host's DNS"
    return _failure(contact, servers, f"correct the name in {servers.source}; {addition}")


def judge_broker(contact: Contact, servers: Servers) -> CheckResult:
    """Green if one of the addresses accepts connections; says which do not."""
    if contact.has_passed(Stage.BROKER):
        return green("broker", contact.server, _connection_in_words(contact, servers), contact.durations_ms[Stage.BROKER])
    return _failure(contact, servers, f"start the broker, or correct host and port in {servers.source}; look for firewalls")


def _connection_in_words(contact: Contact, servers: Servers) -> str:
    node = servers.nodes.get(contact.server)
    exceptions = f"; not at {printable_list(contact.unreached_addresses)}" if contact.unreached_addresses else ""
    if node is None:
        return f"accepts connections{exceptions}"
    rack = f", rack {printable(node.rack)}" if node.rack else ""
    return f"accepts connections; id {node.node_id}{rack}{exceptions}"


# TLS


def judge_tls(contact: Contact, servers: Servers, now_s: float, *, is_name_checked: bool) -> CheckResult:
    """Judge handshake and certificate; yellow if the certificate or its chain is valid for fewer than MIN_DAYS_LEFT."""
    peer = contact.peer
    if not contact.has_passed(Stage.TLS):
        has_expired = peer is not None and (_days_left(peer, now_s) or 0) < 0
        remedy = "renew the certificate" if has_expired else COMPARE_TLS
        return _failure(contact, servers, remedy, _with_certificate(contact, now_s))
    ms = contact.durations_ms.get(Stage.TLS, 0)
    if peer is None:
        return green("TLS", contact.server, "the handshake succeeded", ms)
    name = "its name matches" if is_name_checked else "its name is not checked (ssl.endpoint.identification.algorithm)"
    finding = f"{printable(peer.version)}, {printable(peer.cipher)}, {_certificate(peer, now_s)}; {name}"
    days_left = _days_left(peer, now_s)
    if days_left is not None and days_left < MIN_DAYS_LEFT:
        return yellow("TLS", contact.server, finding, "renew the certificate soon", ms)
    return green("TLS", contact.server, finding, ms)


def _with_certificate(contact: Contact, now_s: float) -> KafkaError:
    """The error; its text describes the certificate that was not accepted."""
    error = contact.error or NO_ANSWER
    if contact.peer is None or not contact.peer.chain:
        return error
    return KafkaError(f"{error.message.rstrip('.')}. It shows {_certificate(contact.peer, now_s)}", condition=error.condition)


def _certificate(peer: TlsPeer, now_s: float) -> str:
    """The certificate in words: its chain, its host names, and how long the whole chain is valid."""
    if not peer.chain:
        return "a certificate that Python does not describe"
    own_certificate = peer.chain[0]
    hosts = f" for {printable_list(own_certificate.hosts, 5)}" if own_certificate.hosts else " without a host's name"
    chain = " < ".join(printable(each, 60) for each in _chain(peer))
    return f"the certificate {chain}{hosts}, {_validity(peer, now_s)}"


def _chain(peer: TlsPeer) -> list[str]:
    """Subjects from the broker's own to the last issuer."""
    names = [each.subject for each in peer.chain]
    return names if peer.chain[-1].issuer in names else [*names, peer.chain[-1].issuer]


def _validity(peer: TlsPeer, now_s: float) -> str:
    start_s, end_s, days_left = peer.chain[0].not_before_s, _first_end(peer), _days_left(peer, now_s)
    if end_s is None or days_left is None:
        return "whose end is not known"
    if days_left < 0:
        return f"expired on {_date(end_s)}"
    if start_s is not None and start_s > now_s:
        return f"not valid before {_date(start_s)}"
    return f"{counted(days_left, 'day')} left (until {_date(end_s)})"


def _date(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d")


def _days_left(peer: TlsPeer, now_s: float) -> int | None:
    end_s = _first_end(peer)
    return None if end_s is None else int((end_s - now_s) // SECONDS_PER_DAY)


def _first_end(peer: TlsPeer) -> float | None:
    return min((each.not_after_s for each in peer.chain if each.not_after_s is not None), default=None)


# LOGIN AND VERSION


def judge_login(contact: Contact, servers: Servers, mechanism: str) -> CheckResult:
    """Green if the login succeeded; says as which user."""
    if contact.has_passed(Stage.LOGIN):
        return green("login", contact.server, f"{printable(contact.user)}, {mechanism}", contact.durations_ms[Stage.LOGIN])
    remedy = f"correct user, password or token, or have the listener enable {mechanism}; the broker's log may say more"
    return _failure(contact, servers, remedy)


def judge_version(contact: Contact, servers: Servers, *, is_exactly_once: bool) -> CheckResult:
    """Judge the release of a broker, or the error instead of an answer: a broker may demand a login only at this stage."""
    if contact.error is not None:
        return _failure(contact, servers, COMPARE_PROTOCOL)
    assert contact.versions is not None
    ms = contact.durations_ms[Stage.VERSION]
    releases = releases_of(contact.versions)
    if releases is None:
        finding = "takes no requests of Kafka 0.11 or newer"
        return red("version", contact.server, finding, "this client needs brokers of Apache Kafka 2.8 or newer", ms)
    level = contact.versions.finalized_features.get(TRANSACTION_VERSION, 0)
    finding = f"{releases}, by the requests that it takes; {TRANSACTION_VERSION} {level}"
    if releases.last is not None and releases.last < FIRST_TESTED:
        return yellow("version", contact.server, finding, "this client is tested with brokers from Kafka 2.8 on", ms)
    if is_exactly_once and releases.last is not None and releases.last < FIRST_WITH_LISTS:
        remedy = "update the brokers: they cannot list transactions, so that those of a dead query stay open until they time out"
        return yellow("version", contact.server, finding, remedy, ms)
    return green("version", contact.server, finding, ms)


# THE CLUSTER


def judge_cluster(contacts: Iterable[Contact]) -> CheckResult | None:
    """Judge the answers of all bootstrap servers together; None if none has answered."""
    answers = {each.server: each.metadata for each in contacts if each.metadata is not None}
    if not answers:
        return None
    cluster_ids = {answer.cluster_id for answer in answers.values()}
    if len(cluster_ids) > 1:
        cluster_list = printable_list(f"{server}: {answer.cluster_id}" for server, answer in answers.items())
        finding = f"bootstrap.servers lead to {len(cluster_ids)} clusters: {cluster_list}"
        return red("cluster", "", finding, "name the servers of one cluster")
    brokers = next(iter(answers.values())).brokers
    if not brokers:
        return red("cluster", "", "no broker is ready", "wait until the brokers have started")
    broker_list = printable_list(f"{each.node_id} at {address_text(each.host, each.port)}" for each in brokers)
    return green("cluster", printable(next(iter(cluster_ids))), f"{counted(len(brokers), 'broker')}: {broker_list}")
