"""Judges of names, servers, TLS, logins, versions and the cluster, on contacts that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.network.tls.peer import PeerCertificate, TlsPeer, certificate_of
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from spark_kafka_sink.tools.check.connections import Servers, judge_cluster, judge_contacts
from spark_kafka_sink.tools.check.contact import Contact, Stage
from spark_kafka_sink.tools.check.releases import Releases, releases_of
from spark_kafka_sink.tools.check.results import CheckResult, Light
from tests.fakes.network_config import api_versions, network_config

STAGES = list(Stage)
NOW_S = 1_800_000_000.0
DAY_S = 86_400
ALONE = Servers(is_advertised=False, is_bootstrap_server_reached=False, nodes={})
ONE_OF_SEVERAL = Servers(is_advertised=False, is_bootstrap_server_reached=True, nodes={})
ADVERTISED = Servers(is_advertised=True, is_bootstrap_server_reached=True, nodes={})


def contact(stage: Stage, error: KafkaError | None = None, host: str = "kafka", **fields: Any) -> Contact:
    """All stages before this one have succeeded."""
    took_ms = dict.fromkeys(STAGES[: STAGES.index(stage)], 7)
    fields = {"addresses": ("10.0.0.1",), "versions": NodeApiVersions(api_versions()), "user": "user 'me'"} | fields
    return Contact(host, 9092, stage, error, durations_ms=took_ms, failed_stage_ms=5_000, **fields)


def judged(server_contact: Contact, servers: Servers = ALONE, **options: object) -> dict[str, CheckResult]:
    config = network_config(**options)
    results = judge_contacts([server_contact], servers, config, NOW_S, is_exactly_once=True)
    assert len({each.check for each in results}) == len(results)
    return {each.check: each for each in results}


def test_a_server_that_answers_everything_is_green() -> None:
    results = judged(contact(Stage.DONE), security_protocol="PLAINTEXT")
    assert list(results) == ["name", "broker", "version"]
    assert {each.light for each in results.values()} == {Light.GREEN}
    assert results["name"].finding == "is 10.0.0.1"
    assert results["broker"].ms == 7


@pytest.mark.parametrize(
    ("servers", "light", "where"),
    [
        (ALONE, Light.RED, "bootstrap.servers"),
        (ONE_OF_SEVERAL, Light.YELLOW, "bootstrap.servers"),
        (ADVERTISED, Light.RED, "advertised.listeners"),
    ],
)
def test_a_server_that_fails_is_red_unless_another_bootstrap_server_answers(servers: Servers, light: Light, where: str) -> None:
    for stage in (Stage.NAME, Stage.BROKER):
        (failed,) = (each for each in judged(contact(stage, NetworkError("refused")), servers).values() if not _is_green(each))
        assert (failed.check, failed.light, failed.finding, failed.ms) == (stage.value, light, "refused", 5_000)
        assert where in failed.remedy


def test_a_bootstrap_server_that_fails_is_red_if_it_is_a_broker_too() -> None:
    """Such a broker leads partitions, and other brokers still tell of it."""
    node = MetadataResponseBroker(node_id=7, host="kafka", port=9092)
    servers = Servers(is_advertised=False, is_bootstrap_server_reached=True, nodes={"kafka:9092": node})
    assert judged(contact(Stage.BROKER, NetworkError("refused")), servers)["broker"].light is Light.RED


def _is_green(result: CheckResult) -> bool:
    return result.light is Light.GREEN


def test_what_comes_after_a_failure_is_not_judged() -> None:
    assert list(judged(contact(Stage.BROKER, NetworkError("refused")), security_protocol="SSL")) == ["name", "broker"]


def test_a_login_that_a_plain_client_lacks_is_shown_as_a_login() -> None:
    results = judged(contact(Stage.METADATA, AuthenticationError("this listener demands a login")))
    assert results["login"].light is Light.RED
    assert "demands a login" in results["login"].finding


def test_a_certificate_of_ours_that_is_rejected_late_is_shown_as_tls() -> None:
    late = AuthenticationError("the broker rejects this client's certificate", condition="KAFKA_SSL_AUTHENTICATION_FAILED")
    results = judge_contacts(
        [contact(Stage.VERSION, late)], ALONE, network_config(security_protocol="SSL"), NOW_S, is_exactly_once=False
    )
    assert [(each.check, each.light) for each in results][-1] == ("TLS", Light.RED)


# TLS


def peer(*days: float, hosts: tuple[str, ...] = ("kafka",)) -> TlsPeer:
    """A chain whose certificates are valid for so many days more: the broker's first."""
    names = ["broker-1", "issuing", "root"]
    chain = (
        PeerCertificate(names[index], names[index + 1], hosts, NOW_S - DAY_S, NOW_S + each * DAY_S)
        for index, each in enumerate(days)
    )
    return TlsPeer("TLSv1.3", "TLS_AES_256_GCM_SHA384", tuple(chain))


def test_tls_tells_version_chain_days_left_and_name() -> None:
    tls = judged(contact(Stage.DONE, peer=peer(82.5, 400)), security_protocol="SSL")["TLS"]
    assert tls.light is Light.GREEN
    for part in ("TLSv1.3", "broker-1 < issuing < root", "for kafka", "82 days left (until 2027-04-07)", "its name matches"):
        assert part in tls.finding


def test_the_first_end_in_the_chain_counts_and_few_days_are_yellow() -> None:
    tls = judged(contact(Stage.DONE, peer=peer(82, 3.5)), security_protocol="SSL")["TLS"]
    assert (tls.light, tls.remedy) == (Light.YELLOW, "renew the certificate soon")
    assert "3 days left" in tls.finding


def test_the_result_of_tls_says_that_the_name_is_not_checked() -> None:
    options = {"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": ""}
    assert "its name is not checked" in judged(contact(Stage.DONE, peer=peer(82)), **options)["TLS"].finding


def test_an_expired_certificate_is_shown_with_its_day() -> None:
    error = AuthenticationError("not accepted: certificate has expired", condition="KAFKA_SSL_AUTHENTICATION_FAILED")
    tls = judged(contact(Stage.TLS, error, peer=peer(-1.5)), security_protocol="SSL")["TLS"]
    assert (tls.light, tls.remedy) == (Light.RED, "renew the certificate")
    assert "expired on 2027-01-13" in tls.finding
    assert "[KAFKA_SSL_AUTHENTICATION_FAILED]" in tls.finding


def test_names_in_certificates_are_printed_on_one_line() -> None:
    shown = peer(82, hosts=("kafka\n2026 ERROR forged", "\x1b[31m"))
    tls = judged(contact(Stage.DONE, peer=shown), security_protocol="SSL")["TLS"]
    assert tls.finding.isprintable()


def test_a_certificate_is_read_from_what_python_says_of_it() -> None:
    described = {
        "subject": ((("organizationName", "us"),), (("commonName", "broker"),)),
        "issuer": ((("organizationName", "ca"),),),
        "subjectAltName": (("DNS", "kafka"), ("IP Address", "10.0.0.1"), ("email", "me")),
        "notAfter": "Jan 15 08:00:00 2027 GMT",
        "notBefore": "nonsense",
    }
    expected = PeerCertificate("broker", "organizationName=ca", ("kafka", "10.0.0.1"), None, 1_800_000_000.0)
    assert certificate_of(described) == expected
    assert certificate_of({}) == PeerCertificate("", "", (), None, None)


def test_servers_with_equal_results_share_a_line() -> None:
    contacts = [contact(Stage.DONE, host=host, peer=peer(82)) for host in ("a", "b", "c")]
    config = network_config(security_protocol="SSL")
    results = judge_contacts(contacts, ALONE, config, NOW_S, is_exactly_once=False)
    (tls,) = (each for each in results if each.check == "TLS")
    assert (tls.subject, tls.other_subjects) == ("a:9092", ("b:9092", "c:9092"))


# VERSIONS


def versions(
    ranges: Mapping[ApiKey, int], supported: Mapping[str, int] | None = None, finalized: Mapping[str, int] | None = None
) -> NodeApiVersions:
    return NodeApiVersions(
        ApiVersionsResponse(
            api_keys=tuple(ApiVersion(api_key=key, min_version=0, max_version=last) for key, last in ranges.items()),
            supported_features=tuple(
                SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in (supported or {}).items()
            ),
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in (finalized or {}).items()
            ),
        )
    )


@pytest.mark.parametrize(
    ("ranges", "level", "text"),
    [
        ({}, 30, "Kafka 4.3"),
        ({}, 31, "newer than Kafka 4.3"),
        ({}, 27, "Kafka 4.1"),
        ({}, 26, "Kafka 4.1"),
        ({}, 20, "Kafka 3.8"),
        ({}, 1, "Kafka 3.3"),
        ({ApiKey.PRODUCE: 9, ApiKey.METADATA: 12, ApiKey.LIST_TRANSACTIONS: 0}, None, "Kafka 3.1 to 3.5"),
        ({ApiKey.PRODUCE: 9, ApiKey.METADATA: 11, ApiKey.LIST_TRANSACTIONS: 0}, None, "Kafka 3.0"),
        ({ApiKey.PRODUCE: 9, ApiKey.METADATA: 11, ApiKey.DESCRIBE_CONFIGS: 4}, None, "Kafka 2.8"),
        ({ApiKey.PRODUCE: 7, ApiKey.METADATA: 7}, None, "Kafka 2.1 to 2.2"),
        ({ApiKey.PRODUCE: 3}, None, "Kafka 0.11"),
    ],
)
def test_a_release_follows_from_what_a_broker_supports(ranges: dict[ApiKey, int], level: int | None, text: str) -> None:
    supported = {} if level is None else {"metadata.version": level}
    assert str(releases_of(versions(ranges, supported))) == text


def test_releases_agree_with_kafka_pythons_table() -> None:
    from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

    for release, ranges in BROKER_API_VERSIONS.items():
        if release < (0, 11):
            continue
        table = {key: last for key, (_, last) in ranges.items() if key in list(ApiKey)}
        releases = releases_of(versions(table))
        assert releases is not None
        assert releases.last is not None
        # 4.3 brings no new request that this client knows; such a broker tells its metadata.version.
        assert releases.first <= release[:2] <= releases.last or release >= (4, 3), release


def test_a_server_that_takes_no_batches_of_today_is_red() -> None:
    assert releases_of(versions({ApiKey.PRODUCE: 2})) is None
    assert judged(contact(Stage.DONE, versions=versions({ApiKey.PRODUCE: 2})))["version"].light is Light.RED


def test_old_brokers_are_yellow_and_transaction_version_is_shown() -> None:
    old = {ApiKey.PRODUCE: 9, ApiKey.METADATA: 11, ApiKey.DESCRIBE_CONFIGS: 4}
    result = judged(contact(Stage.DONE, versions=versions(old)))["version"]
    assert (result.light, "cannot list transactions" in result.remedy) == (Light.YELLOW, True)
    new = judged(contact(Stage.DONE, versions=versions({}, {"metadata.version": 30}, {"transaction.version": 2})))["version"]
    assert (new.light, new.finding) == (Light.GREEN, "Kafka 4.3, by the requests that it takes; transaction.version 2")
    assert Releases((4, 3), None) > Releases((4, 2), (4, 2))


# THE CLUSTER


def metadata(cluster_id: str, brokers: int = 1) -> MetadataResponse:
    nodes = (MetadataResponseBroker(node_id=each, host=f"b{each}", port=9092) for each in range(brokers))
    return MetadataResponse(brokers=tuple(nodes), cluster_id=cluster_id)


def test_bootstrap_servers_of_two_clusters_are_red() -> None:
    cluster = judge_cluster([contact(Stage.DONE, host="a", metadata=metadata("x")), contact(Stage.DONE, metadata=metadata("y"))])
    assert cluster is not None
    assert (cluster.light, "2 clusters" in cluster.finding) == (Light.RED, True)


def test_the_cluster_is_shown_with_its_brokers() -> None:
    cluster = judge_cluster([contact(Stage.DONE, metadata=metadata("x", 2)), contact(Stage.NAME, NetworkError("no such name"))])
    assert cluster is not None
    assert (cluster.subject, cluster.finding) == ("x", "2 brokers: 0 at b0:9092, 1 at b1:9092")
    empty = judge_cluster([contact(Stage.DONE, metadata=metadata("x", 0))])
    assert empty is not None
    assert empty.light is Light.RED
    assert judge_cluster([contact(Stage.NAME, NetworkError("no such name"))]) is None
