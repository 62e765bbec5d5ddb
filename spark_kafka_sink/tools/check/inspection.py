"""Runs all checks in order: bootstrap servers, the other brokers, questions to brokers, the record of --write, the registry.

Each phase ends at its time, whatever brokers do. Its results are yielded when it ends, so that a user sees how far the check is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.topics import TopicDescription
from spark_kafka_sink.admin.transaction_client import (
    DEFAULT_LONGEST_TRANSACTION_MS,
    FIRST_METADATA_VERSION_WITH_SKIPS,
    METADATA_FEATURE,
)
from spark_kafka_sink.clock import Clock, wait_seconds
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import NetworkError, printable
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.network.background import Outcome, outcome_of
from spark_kafka_sink.network.cluster import address_text
from spark_kafka_sink.network.dns import canonical_bootstrap_servers
from spark_kafka_sink.network.network_client import login_for
from spark_kafka_sink.network.sasl.login import Login
from spark_kafka_sink.network.tls.connector import TlsConnector
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseBroker
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check.asks import (
    GROUP_ASK_NAME,
    ID_ASK_NAME,
    WRITE_ASK_NAME,
    TimedOutcome,
    asks_about_prefix,
    asks_about_topics,
    listed_transactions,
    timed_outcomes,
)
from spark_kafka_sink.tools.check.connections import Servers, judge_cluster, judge_contacts
from spark_kafka_sink.tools.check.contact import Contact, Stage, make_contacts
from spark_kafka_sink.tools.check.exactly_once import (
    BROKER_MAX_TIMEOUT,
    CheckedPrefix,
    judge_control_records,
    judge_groups,
    judge_ids,
    judge_leftovers,
    judge_timeout,
)
from spark_kafka_sink.tools.check.results import CheckResult, Light, number_in_setting, red, yellow
from spark_kafka_sink.tools.check.topics import AUTO_CREATE, CheckedTopic, judge_topic
from spark_kafka_sink.tools.words import counted

# Ends of the phases, in milliseconds since the check began.
SERVERS_END_MS = 6_000
BROKERS_END_MS = 11_000
REGISTRY_END_MS = 15_000
REGISTRY_GRACE_MS = 500  # for the registry's thread, to report what it waited for
ASKS_END_MS = REGISTRY_END_MS + REGISTRY_GRACE_MS
RECORD_END_MS = 19_000
MAX_BROKERS = 100  # to connect to, beside bootstrap.servers; each takes a thread
MAX_WRITE_TIMEOUT_MS = 60_000  # of the transaction of `--write`: an interrupted check leaves it open for so long

Needs = dict[AclOperation, str]


@dataclass
class Inspection:
    """One run of the checks of a write.

    Args:
        options: of the write.
        must_write: whether to send one record.

    Raises:
        ConfigError: certificates cannot be read, or what the login needs is missing.
    """

    options: SinkOptions
    must_write: bool
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._config = self.options.producer
        self._start_ms = self.clock.now_ms()
        self._login: Login | None = login_for(self._config, self.clock, Random())
        if self._config.security_protocol in ("SSL", "SASL_SSL"):
            TlsConnector(self._config)  # raises what each connection would

    def results(self) -> Iterator[CheckResult]:
        """Check, phase by phase. Blocks for RECORD_END_MS at most in all, and up to REGISTRY_GRACE_MS more for the registry."""
        registry = self._start_with_registry()
        yield from self._broker_results()
        yield from registry()

    def _start_with_registry(self) -> Callable[[], list[CheckResult]]:
        """Start to ask the schema registry, if the options need it. Returns a function that waits for the results."""
        if not self.options.has_format:
            return lambda: []
        from spark_kafka_sink.tools.check.registry_answers import registry_results  # what it needs is imported only here

        work = partial(registry_results, self.options, self.clock, self._left_ms(REGISTRY_END_MS))
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(outcome_of(work)), name="check-registry", daemon=True)
        thread.start()
        return partial(self._registry_results, thread, outcomes)

    def _registry_results(self, thread: threading.Thread, outcomes: list[Outcome]) -> list[CheckResult]:
        thread.join(wait_seconds(self._left_ms(REGISTRY_END_MS) + REGISTRY_GRACE_MS))
        outcome = outcomes[0] if outcomes else Outcome(None, NetworkError("no answer in time"))
        remedy = "look at the addresses of the registry, and at its log"
        return outcome.result if outcome.error is None else [red("registry", "", str(outcome.error), remedy)]

    def _broker_results(self) -> Iterator[CheckResult]:
        contacts = self._contacts(self._servers(), SERVERS_END_MS)
        cluster = judge_cluster(contacts)
        nodes = _brokers_by_address(contacts)
        is_any_reached = any(each.metadata is not None for each in contacts)
        yield from self._judge(contacts, Servers(is_advertised=False, is_bootstrap_server_reached=is_any_reached, nodes=nodes))
        if cluster is not None:
            yield cluster
        if cluster is None or cluster.light is Light.RED:
            yield yellow("topic", printable(self.options.topic), "not known: no broker can be asked")
            return
        other_brokers, left_out_count = _uncontacted_brokers(contacts, nodes)
        further_contacts = self._contacts([(each.host, each.port) for each in other_brokers], BROKERS_END_MS)
        yield from self._judge(further_contacts, Servers(is_advertised=True, is_bootstrap_server_reached=True, nodes=nodes))
        if left_out_count:
            yield yellow("broker", f"{counted(left_out_count, 'further broker')}", f"not looked at, {MAX_BROKERS} are")
        yield from self._ask([*contacts, *further_contacts], nodes)

    def _deadline_ms(self, phase_end_ms: int) -> int:
        return self._start_ms + phase_end_ms

    def _left_ms(self, phase_end_ms: int) -> int:
        return max(self._deadline_ms(phase_end_ms) - self.clock.now_ms(), 0)

    # SERVERS

    def _servers(self) -> list[tuple[str, int]]:
        servers = list(self._config.bootstrap_servers)
        if self._config.client_dns_lookup != "resolve_canonical_bootstrap_servers_only":
            return servers
        return list(dict.fromkeys(canonical_bootstrap_servers(servers, self._left_ms(SERVERS_END_MS) // 3)))

    def _contacts(self, servers: Sequence[tuple[str, int]], phase_end_ms: int) -> list[Contact]:
        return make_contacts(servers, self._deadline_ms(phase_end_ms), self._config, self._login, self.clock)

    def _judge(self, contacts: Sequence[Contact], servers: Servers) -> list[CheckResult]:
        now_s, is_exactly_once = self.clock.wall_ms() / 1000, self.options.is_exactly_once
        return judge_contacts(contacts, servers, self._config, now_s, is_exactly_once=is_exactly_once)

    # ASKS

    def _ask(self, contacts: Sequence[Contact], nodes: Mapping[str, MetadataResponseBroker]) -> Iterator[CheckResult]:
        usable_contacts = [each for each in contacts if each.stage is Stage.DONE]
        node_ids = [nodes[each.server].node_id for each in usable_contacts if each.server in nodes]
        asks = asks_about_topics(self._needs())
        if self.options.is_exactly_once:
            asks |= asks_about_prefix(self._names, node_ids)
        with RequestClient(ClusterAccess(self._config_for(usable_contacts), clock=self.clock)) as client:
            outcomes = timed_outcomes(client, asks, self._left_ms(ASKS_END_MS))
        write_result = self._write(outcomes) if self.must_write else None
        has_written = write_result is not None and write_result.light is Light.GREEN
        for topic, needs in self._needs().items():
            checked_topic = _checked_topic(topic, needs, outcomes, has_written=has_written and topic == self.options.topic)
            yield from judge_topic(checked_topic, self._config, must_exist=AclOperation.READ in needs)
        if self.options.is_exactly_once:
            yield from self._judge_prefix(outcomes, has_written=has_written)
            yield self._judge_control_records(usable_contacts, nodes, outcomes)
        if write_result is not None:
            yield write_result

    def _config_for(self, usable_contacts: Sequence[Contact]) -> ProducerConfig:
        """The user's options, with only those servers that have answered."""
        servers = tuple((each.host, each.port) for each in usable_contacts)
        return replace(self._config, bootstrap_servers=servers, client_dns_lookup="use_all_dns_ips")

    def _needs(self) -> dict[str, Needs]:
        """Which permissions a write needs on which topic, and what for."""
        needs: dict[str, Needs] = {}
        options = self.options
        if options.topic is not None:
            needs.setdefault(options.topic, {})[AclOperation.WRITE] = "for rows"
        if options.is_exactly_once and (options.marker_topic or options.topic) is not None:
            needs.setdefault(options.marker_topic or options.topic or "", {})[AclOperation.READ] = "for the offsets of markers"
        if options.dead_letter_topic is not None:
            needs.setdefault(options.dead_letter_topic, {})[AclOperation.WRITE] = "for dead letters"
        return needs

    # EXACTLY ONCE

    @property
    def _names(self) -> PrefixNames:
        return PrefixNames(self.options.transactional_id_prefix or "")

    @property
    def _configured_timeout_ms(self) -> int | None:
        return self._config.transaction_timeout_ms if "transaction.timeout.ms" in self._config.given_keys else None

    def _judge_prefix(self, outcomes: Mapping[Hashable, TimedOutcome], *, has_written: bool) -> Iterator[CheckResult]:
        description, permission, group = (outcomes[each] for each in (ID_ASK_NAME, WRITE_ASK_NAME, GROUP_ASK_NAME))
        ids_ms = max(description.ms, permission.ms)
        prefix = CheckedPrefix(self._names, description.error, permission.error, group.value, has_written, ids_ms, group.ms)
        yield judge_ids(prefix)
        yield judge_groups(prefix)
        limit, default_ms = outcomes[BROKER_MAX_TIMEOUT], DEFAULT_LONGEST_TRANSACTION_MS
        yield judge_timeout(self._configured_timeout_ms, limit.value, default_ms, limit.ms, has_written=has_written)
        leftovers = listed_transactions(outcomes)
        yield judge_leftovers(self._names, leftovers.value, leftovers.ms, may_describe=description.error is None)

    def _judge_control_records(
        self,
        contacts: Sequence[Contact],
        nodes: Mapping[str, MetadataResponseBroker],
        outcomes: Mapping[Hashable, TimedOutcome],
    ) -> CheckResult:
        levels = {
            nodes[each.server].node_id: each.versions.supported_features.get(METADATA_FEATURE, 0)
            for each in contacts
            if each.server in nodes and each.versions is not None
        }
        node_ids = sorted(node_id for node_id, level in levels.items() if level >= FIRST_METADATA_VERSION_WITH_SKIPS)
        topic = self.options.topic
        outcome = None if topic is None else outcomes["topic", topic]
        description = None if outcome is None else outcome.value
        permissions = description.permissions if isinstance(description, TopicDescription) else None
        return judge_control_records(node_ids, topic, permissions, 0 if outcome is None else outcome.ms)

    # A RECORD

    def _write(self, outcomes: Mapping[Hashable, TimedOutcome]) -> CheckResult:
        from spark_kafka_sink.tools.check import writing  # what a producer needs is imported only here

        topic = self.options.topic or ""
        if outcomes["topic", topic].value is None:
            return yellow(writing.WRITE_CHECK, printable(topic), "not tried: it might create the topic")
        if self.options.has_format and not self.options.is_exactly_once:
            return yellow(writing.WRITE_CHECK, printable(topic), "not tried: readers would find a record without a schema")
        transactional = None
        if self.options.is_exactly_once:
            limit_ms = number_in_setting(outcomes[BROKER_MAX_TIMEOUT].value)
            # Where the brokers' limit is unknown, the check also tries the time-out of a write.
            longest_ms = (self._configured_timeout_ms or DEFAULT_LONGEST_TRANSACTION_MS) if limit_ms is None else None
            transactional = writing.Transactional(self._names.check_id, self._write_timeout_ms(limit_ms), longest_ms)
        return writing.write_record(topic, self._config, transactional, self._left_ms(RECORD_END_MS), self.clock)

    def _write_timeout_ms(self, limit_ms: int | None) -> int:
        """The time-out of the check's transaction: short, because readers wait so long if the check is interrupted."""
        return min(each for each in (MAX_WRITE_TIMEOUT_MS, self._configured_timeout_ms, limit_ms) if each is not None)


def _brokers_by_address(contacts: Sequence[Contact]) -> dict[str, MetadataResponseBroker]:
    """The brokers that the first answer lists, by address."""
    answer = next((each.metadata for each in contacts if each.metadata is not None), None)
    return {} if answer is None else {address_text(each.host, each.port): each for each in answer.brokers}


def _uncontacted_brokers(
    contacts: Sequence[Contact], nodes: Mapping[str, MetadataResponseBroker]
) -> tuple[list[MetadataResponseBroker], int]:
    """The first MAX_BROKERS brokers without a contact, and how many more there are."""
    contacted_servers = {each.server for each in contacts}
    others = [node for server, node in nodes.items() if server not in contacted_servers]
    return others[:MAX_BROKERS], max(len(others) - MAX_BROKERS, 0)


def _checked_topic(name: str, needs: Needs, outcomes: Mapping[Hashable, TimedOutcome], *, has_written: bool) -> CheckedTopic:
    description, settings = outcomes["topic", name], outcomes["settings", name]
    can_be_created = {"true": True, "false": False}.get(str(outcomes[AUTO_CREATE].value))
    return CheckedTopic(name, needs, description.value, settings.value, can_be_created, has_written, description.ms, settings.ms)
