"""`check` against the fake broker: what it asks, what it finds, what it says, and that it writes nothing unless it is told to."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.network.dns import resolve
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.permissions import AclOperation
from spark_kafka_sink.tools.check import command, inspection
from spark_kafka_sink.tools.check.contact import Stage, make_contacts
from tests.admin.open_transactions import Writer
from tests.fakes.certificates import Authority
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.network_config import network_config
from tests.fakes.transaction_coordinator import State

TOPIC = "orders"
SETTINGS = {"min.insync.replicas": "1", "compression.type": "producer", "cleanup.policy": "delete"}
CANARY = "canary7Qx2zzWq"
AUTHORITY = Authority("ca")
LIMIT_S = 30


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={TOPIC: 4}) as broker:
        broker.topics[TOPIC].settings |= SETTINGS
        yield broker
        assert broker.violations == []


class Checked:
    """The results of a run with --json, by check; all results must be of one kind of subject."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.first, *self.results, self.last = map(json.loads, text.splitlines())
        assert [each for each in self.results if each["result"] == "red" and not each["remedy"]] == []

    def of(self, check: str, light: str = "") -> list[dict[str, Any]]:
        return [each for each in self.results if each["check"] == check and light in ("", each["result"])]

    def one(self, check: str, light: str = "") -> dict[str, Any]:
        (result,) = self.of(check, light)
        return result

    def lights(self) -> set[str]:
        return {each["result"] for each in self.results}


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def run_check(servers: str, *more: str, topic: str = TOPIC) -> Checked:
        capfd.readouterr()
        code = command.main(["--bootstrap-servers", servers, "--topic", topic, "--json", *more])
        printed = capfd.readouterr()
        assert printed.err == ""
        return Checked(code, printed.out)

    return run_check


def options(**properties: str) -> list[str]:
    """As network_config: security_protocol="SSL" is --option kafka.security.protocol=SSL."""
    return [word for name, value in properties.items() for word in ("--option", f"kafka.{name.replace('_', '.')}={value}")]


def login(password: str) -> list[str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return options(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_jaas_config=f'{module} required username="me" password="{password}";',
    )


# ALL WELL


def test_a_check_of_a_cluster_in_order_is_green_and_writes_nothing(broker: FakeBroker, run: Any) -> None:
    outcome = run(broker.bootstrap_servers, "--exactly-once", "P")
    assert (outcome.code, outcome.lights(), outcome.last["result"]) == (0, {"green"}, "green")
    checks = ["name", "broker", "broker", "version", "cluster", "topic", "leaders", "replicas", "size", "compression"]
    checks += ["permission", "permission", "transactional ids", "groups", "transaction time", "leftovers", "control records"]
    assert [each["check"] for each in outcome.results] == checks
    for writing in (ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.OFFSET_COMMIT):
        assert broker.requests_of(writing) == []
    assert broker.transactions.transactions == {}


def test_brokers_that_only_others_tell_of_are_reached_too(broker: FakeBroker, run: Any) -> None:
    outcome = run(broker.bootstrap_servers.split(",")[0])
    assert {each["found"] for each in outcome.of("broker")} == {"accepts connections; id 0", "accepts connections; id 1"}
    assert outcome.code == 0


def test_the_first_line_says_from_where_it_looks(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 0
    first, *lines = capfd.readouterr().out.splitlines()
    assert first.startswith(f"Seen from {socket.gethostname()} ")
    assert first.endswith("executors may see another network.")
    assert all(each.startswith("green ") for each in lines[:-1])
    assert lines[-1].endswith("All is well.")


def test_brokers_are_asked_side_by_side(broker: FakeBroker, run: Any) -> None:
    """The first broker answers when the second has been asked."""
    release = broker.hold_next(ApiKey.METADATA, node_id=0)

    def is_second_asked() -> bool:
        return any(each.node_id == 1 for each in broker.requests_of(ApiKey.METADATA))

    def let_go() -> None:
        broker.wait_until(is_second_asked)
        release.set()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert run(broker.bootstrap_servers).code == 0
    thread.join(LIMIT_S)


def test_a_word_is_said_when_it_takes_long(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[object] = []

    def at_once(say: Callable[[], object]) -> AbstractContextManager[None]:
        said.append(say())
        return nullcontext()

    monkeypatch.setattr(command, "say_if_slow", at_once)
    assert command.main(["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 0
    assert capfd.readouterr().err == "check: brokers have been asked for 10 s; the last line comes within 20 s of the first\n"
    assert len(said) == 1


# SERVERS


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def test_no_broker_at_the_port_is_red_and_nothing_else_is_asked(run: Any) -> None:
    outcome = run(f"127.0.0.1:{free_port()}")
    refused = outcome.one("broker")
    assert (outcome.code, refused["result"]) == (1, "red")
    assert "Connection refused" in refused["found"]
    assert "bootstrap.servers" in refused["remedy"]
    assert outcome.one("topic")["result"] == "yellow"


def test_a_bootstrap_server_that_is_stopped_is_yellow_while_another_answers(broker: FakeBroker, run: Any) -> None:
    servers = broker.bootstrap_servers
    broker.stop_node(1)
    outcome = run(servers)
    assert (outcome.code, len(outcome.of("broker", "yellow")), outcome.last["yellow"]) == (0, 1, 1)
    assert run(servers, "--strict").code == 1


def test_a_name_that_brokers_tell_and_nobody_knows_is_red(broker: FakeBroker, run: Any) -> None:
    broker.hosts[1] = "no-such-host.invalid"
    outcome = run(broker.bootstrap_servers.split(",")[0])
    name = outcome.one("name", "red")
    assert (outcome.code, name["subject"]) == (1, f"no-such-host.invalid:{broker.nodes[1].port}")
    assert "advertised.listeners" in name["remedy"]


def test_names_that_brokers_tell_are_printed_on_one_line(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    broker.hosts[1] = "bad\x1b[31m\nred     forged"
    first = broker.bootstrap_servers.split(",")[0]
    assert command.main(["--bootstrap-servers", first, "--topic", TOPIC]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert all(each.isprintable() for each in lines)
    assert not any(each.startswith("red     forged") for each in lines)


def test_servers_of_two_clusters_are_red(broker: FakeBroker, run: Any) -> None:
    with FakeBroker(topics={TOPIC: 1}) as other:
        other.cluster_id = "another"
        outcome = run(f"{broker.bootstrap_servers},{other.bootstrap_servers}")
    assert outcome.one("cluster")["result"] == "red"
    assert outcome.code == 1


def test_a_server_that_never_answers_ends_in_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "SERVERS_END_MS", 5_000)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        outcome = run(f"127.0.0.1:{mute.getsockname()[1]}")
    assert "ApiVersions was not answered in time" in outcome.one("version", "red")["found"]
    assert outcome.code == 1


def test_brokers_that_stop_answering_end_in_time(broker: FakeBroker, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "ASKS_END_MS", 5_000)
    broker.hold_next(ApiKey.DESCRIBE_CONFIGS, times=50)
    outcome = run(broker.bootstrap_servers)
    assert [each for each in outcome.results if "[KAFKA_TIMEOUT]" in each["found"]]


def test_a_look_up_that_hangs_ends_in_time() -> None:
    hangs = threading.Event()

    def resolve_host(host: str, port: int) -> list[Address]:
        if host == "hangs":
            hangs.wait(LIMIT_S)
        return resolve("127.0.0.1", port)

    clock, config, servers = Clock(), network_config(), [("hangs", 9092), ("other", free_port())]
    late, refused = make_contacts(servers, clock.now_ms() + 5_000, config, None, clock, resolve_host)
    hangs.set()
    assert (late.stage, str(late.error)) == (Stage.NAME, "[KAFKA_NETWORK] no answer within 5,000 ms")
    assert refused.stage is Stage.BROKER


def test_the_next_address_of_a_name_is_tried(broker: FakeBroker) -> None:
    closed = Address(socket.AF_INET, ("127.0.0.1", free_port()), "both")

    def resolve_host(_: str, port: int) -> list[Address]:
        return [closed, *resolve("127.0.0.1", port)]

    clock = Clock()
    servers = [("both", broker.nodes[0].port)]
    (contact,) = make_contacts(servers, clock.now_ms() + 20_000, network_config(), None, clock, resolve_host)
    assert contact.stage is Stage.DONE
    assert contact.unreached_addresses == (f"{closed}: [Errno 111] Connection refused",)


# TLS AND LOGINS


def secured(broker: FakeBroker, **how: Any) -> None:
    for node in broker.nodes.values():
        node.tls = AUTHORITY.issue("broker-1", **how).server_context()


@pytest.fixture
def trust(tmp_path: Path) -> list[str]:
    file = tmp_path / "ca.pem"
    file.write_text(AUTHORITY.pem)
    return options(security_protocol="SSL", ssl_truststore_type="PEM", ssl_truststore_location=str(file))


def test_tls_is_shown_with_chain_and_days(broker: FakeBroker, trust: list[str], run: Any) -> None:
    secured(broker)
    outcome = run(broker.bootstrap_servers, *trust)
    tls = outcome.one("TLS")
    assert (outcome.code, tls["result"], len(tls["also"])) == (0, "yellow", 1)  # it is valid for a day
    for part in ("TLSv1.3", "broker-1 < ca for localhost, 127.0.0.1", "0 days left", "its name matches"):
        assert part in tls["found"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"expired": True}, "certificate has expired. It shows the certificate broker-1 < ca for localhost"),
        ({"hosts": ["kafka.example.com"]}, "It shows the certificate broker-1 < ca for kafka.example.com"),
    ],
    ids=["expired", "another name"],
)
def test_a_certificate_that_is_not_accepted_is_shown(
    broker: FakeBroker, trust: list[str], run: Any, how: dict[str, Any], says: str
) -> None:
    secured(broker, **how)
    outcome = run(broker.bootstrap_servers, *trust)
    assert outcome.code == 1
    assert says in outcome.of("TLS", "red")[0]["found"]
    assert broker.requests == []  # a broker that is not the one that it claims to be gets no request


def test_tls_with_a_listener_that_has_none_is_red(broker: FakeBroker, trust: list[str], run: Any) -> None:
    outcome = run(broker.bootstrap_servers, *trust)
    assert "this listener does not speak TLS" in outcome.one("TLS", "red")["found"]


def test_a_login_names_the_user_and_a_wrong_password_is_red(run: Any) -> None:
    with FakeBroker(topics={TOPIC: 1}, users={"me": "right"}) as broker:
        broker.topics[TOPIC].settings |= SETTINGS
        accepted = run(broker.bootstrap_servers, *login("right"))
        assert (accepted.code, accepted.one("login")["found"]) == (0, "user 'me', SCRAM-SHA-256")
        rejected = run(broker.bootstrap_servers, *login("wrong"))
    assert rejected.code == 1
    assert "[KAFKA_SASL_AUTHENTICATION_FAILED]" in rejected.one("login", "red")["found"]


def test_a_listener_that_demands_a_login_is_shown_with_its_mechanisms(run: Any) -> None:
    with FakeBroker(topics={TOPIC: 1}, users={"me": "right"}) as broker:
        outcome = run(broker.bootstrap_servers)
    assert "demands a login" in outcome.one("login", "red")["found"]
    assert "SCRAM-SHA-256" in outcome.one("login")["found"]


def test_a_login_at_a_listener_without_any_is_red(broker: FakeBroker, run: Any) -> None:
    assert run(broker.bootstrap_servers, *login("x")).of("login", "red")


# TOPICS AND PERMISSIONS


def test_a_missing_topic_is_red(broker: FakeBroker, run: Any) -> None:
    outcome = run(broker.bootstrap_servers, "--write", topic="ordres")
    assert (outcome.code, outcome.one("topic", "red")["subject"]) == (1, "ordres")
    assert "not tried" in outcome.one("write", "yellow")["found"]
    assert "ordres" not in broker.topics


def test_a_missing_topic_that_brokers_create_is_yellow(run: Any) -> None:
    with FakeBroker(topics={}, auto_create_partitions=1) as broker:
        outcome = run(broker.bootstrap_servers)
        assert (outcome.code, outcome.one("topic")["result"]) == (0, "yellow")
        assert broker.topics == {}


def test_too_few_replicas_in_sync_are_red(broker: FakeBroker, run: Any) -> None:
    broker.topics[TOPIC].settings["min.insync.replicas"] = "2"
    broker.topics[TOPIC].partitions[0].replicas = (0, 1)
    outcome = run(broker.bootstrap_servers)
    assert "too few for 3 partitions: 1, 2, 3" in outcome.one("replicas", "red")["found"]


def test_the_topics_for_markers_and_dead_letters_are_checked_too(broker: FakeBroker, run: Any) -> None:
    more = ["--exactly-once", "P", "--option", "markerTopic=markers"]
    more += ["--option", "onRecordTooLarge=deadLetter", "--option", "deadLetterTopic=dead"]
    broker.add_topic("markers", 1).operations = 1 << AclOperation.WRITE
    outcome = run(broker.bootstrap_servers, *more)
    assert outcome.one("topic", "red")["subject"] == "dead"
    denied = outcome.one("permission", "red")
    assert (denied["subject"], denied["found"]) == ("markers", "no READ, for the offsets of markers")


@pytest.mark.parametrize(
    ("api_key", "error", "check", "says"),
    [
        (ApiKey.METADATA, Errors.TOPIC_AUTHORIZATION_FAILED, "topic", "Grant the user"),
        (ApiKey.END_TXN, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional ids", "no WRITE"),
        (
            ApiKey.DESCRIBE_TRANSACTIONS,
            Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "transactional ids",
            "neither DESCRIBE nor WRITE",
        ),
        (ApiKey.DESCRIBE_GROUPS, Errors.GROUP_AUTHORIZATION_FAILED, "groups", "neither DESCRIBE nor READ"),
    ],
)
def test_a_permission_that_is_denied_is_red(
    broker: FakeBroker, run: Any, api_key: ApiKey, error: Any, check: str, says: str
) -> None:
    if api_key is ApiKey.METADATA:
        broker.topics[TOPIC].error = error
    else:
        broker.fail_next(api_key, error)
    outcome = run(broker.bootstrap_servers, "--exactly-once", "P")
    assert says in outcome.one(check, "red")["found"]
    assert outcome.code == 1


def test_a_group_without_read_is_red(broker: FakeBroker, run: Any) -> None:
    broker.coordinators.group_operations = 1 << AclOperation.DESCRIBE
    assert "no READ" in run(broker.bootstrap_servers, "--exactly-once", "P").one("groups", "red")["found"]


def test_brokers_that_may_skip_control_records_are_named(broker: FakeBroker, run: Any) -> None:
    broker.supported_features[1]["metadata.version"] = 30
    certain = run(broker.bootstrap_servers, "--exactly-once", "P").one("control records")
    assert (certain["result"], certain["found"].partition(" may")[0]) == ("green", "broker 1")
    broker.topics[TOPIC].operations = 1 << AclOperation.WRITE | 1 << AclOperation.DESCRIBE
    more = ["--exactly-once", "P", "--option", "markerTopic=markers"]
    broker.add_topic("markers", 1)
    suspected = run(broker.bootstrap_servers, *more).one("control records")
    assert (suspected["result"], suspected["remedy"]) == ("yellow", f"grant the user READ on the topic {TOPIC}")


def test_open_transactions_of_the_prefix_are_yellow(broker: FakeBroker, run: Any) -> None:
    broker.add_topic("t", 1)
    for name in ("P-q-0-0", "P-2-q-0-0"):
        assert not Writer(broker, name).write(b"row")
    leftovers = run(broker.bootstrap_servers, "--exactly-once", "P").one("leftovers")
    assert (leftovers["result"], leftovers["found"].partition(",")[0]) == ("yellow", "1 open transaction")


# WRITE


def test_write_sends_one_record(broker: FakeBroker, run: Any) -> None:
    outcome = run(broker.bootstrap_servers, "--write")
    assert (outcome.code, "one record is written" in outcome.one("write")["found"]) == (0, True)
    assert broker.values(TOPIC) == [b"One record of `pykafka-sink check --write`."]


def test_write_with_exactly_once_is_aborted_under_an_id_of_its_own(broker: FakeBroker, run: Any) -> None:
    outcome = run(broker.bootstrap_servers, "--write", "--exactly-once", "P")
    assert (outcome.code, "that was aborted" in outcome.one("write")["found"]) == (0, True)
    assert len(broker.values(TOPIC)) == 1
    assert broker.committed_values(TOPIC) == []
    assert {name: each.state for name, each in broker.transactions.transactions.items()} == {"P-check": State.COMPLETE_ABORT}
    again = run(broker.bootstrap_servers, "--exactly-once", "P")
    assert (again.code, again.one("leftovers")["result"]) == (0, "green")


def test_a_record_that_is_rejected_is_red(broker: FakeBroker, run: Any) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.TOPIC_AUTHORIZATION_FAILED)
    outcome = run(broker.bootstrap_servers, "--write", "--exactly-once", "P")
    assert "[KAFKA_TOPIC_AUTHORIZATION_FAILED]" in outcome.one("write", "red")["found"]
    assert broker.transactions.transactions["P-check"].state in (State.EMPTY, State.COMPLETE_ABORT)


def test_a_record_that_nobody_acknowledges_ends_in_time(broker: FakeBroker, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "RECORD_END_MS", 6_000)
    broker.hold_next(ApiKey.PRODUCE, times=50)
    assert run(broker.bootstrap_servers, "--write").one("write", "red")


def test_a_record_counts_only_if_brokers_acknowledge_it(broker: FakeBroker, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With acks=0 a record that no broker had was green, at offset -1."""
    monkeypatch.setattr(inspection, "RECORD_END_MS", 6_000)
    broker.drop_next(ApiKey.PRODUCE, times=50)
    outcome = run(broker.bootstrap_servers, "--write", *options(acks="0", enable_idempotence="false"))
    assert outcome.one("write")["result"] == "red"
    assert broker.values(TOPIC) == []


def transaction_times(broker: FakeBroker) -> list[int]:
    return [each.message.transaction_timeout_ms for each in broker.requests_of(ApiKey.INIT_PRODUCER_ID)]


@pytest.mark.parametrize(
    ("limit_ms", "properties", "times_ms"),
    [
        ("900000", {}, [60_000]),
        ("900000", {"transaction_timeout_ms": "800000"}, [60_000]),
        ("30000", {}, [30_000]),
        ("", {}, [900_000, 60_000]),
        ("", {"transaction_timeout_ms": "800000"}, [800_000, 60_000]),
        ("", {"transaction_timeout_ms": "20000"}, [20_000, 20_000]),
    ],
)
def test_the_transaction_of_a_check_is_short(
    broker: FakeBroker, run: Any, limit_ms: str, properties: dict[str, str], times_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupts the check leaves it open. Where the limit is not told, the write's own time is tried first."""
    monkeypatch.setattr(inspection, "number_in_setting", lambda _answer: int(limit_ms) if limit_ms else None)
    outcome = run(broker.bootstrap_servers, "--write", "--exactly-once", "P", *options(**properties))
    assert outcome.one("write")["result"] == "green"
    assert transaction_times(broker) == times_ms


def test_a_time_that_brokers_do_not_accept_is_red(broker: FakeBroker, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "number_in_setting", lambda _answer: None)
    timeout_option = options(transaction_timeout_ms="1000000")
    assert run(broker.bootstrap_servers, "--write", "--exactly-once", "P", *timeout_option).one("write")["result"] == "red"
    assert broker.requests_of(ApiKey.PRODUCE) == []


# USAGE, SECRETS, IMPORTS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topic", "t"], "--bootstrap-servers is missing"),
        (["--bootstrap-servers", "a:1"], "--topic is missing"),
        (["--bootstrap-servers", "a:1", "--topic", "t", "--option", "nosuch=1"], "Unknown option 'nosuch'"),
        (["--bootstrap-servers", "a", "--topic", "t"], "KAFKA_INVALID_CONFIG"),
        (["--bootstrap-servers", "a:1", "--topic", "t", *options(security_protocol="SSL", ssl_truststore_location="/no")], "/no"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_asked(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert says in printed.err


def test_no_secret_is_shown(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level("DEBUG")
    config = tmp_path / "secrets.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config.write_text(f'sasl.jaas.config={module} required username="me" password="{CANARY}";\n')
    with FakeBroker(topics={TOPIC: 1}, users={"me": "another"}) as broker:
        where = ["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC, "--config", str(config)]
        more = options(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
        assert command.main([*where, *more, "--json"]) == 1
        assert command.main([*where, *more, "--write"]) == 1
    printed = capfd.readouterr()
    assert CANARY not in printed.out + printed.err + caplog.text


def test_help_has_examples_and_exit_codes(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"], prog="pykafka-sink check")
    text = capfd.readouterr().out
    assert "pykafka-sink check --bootstrap-servers localhost:9092 --topic orders" in text
    assert "1 something is red" in text


def test_the_command_imports_no_pyspark(broker: FakeBroker) -> None:
    program = "import sys; from spark_kafka_sink.tools.check.command import main; code = main(sys.argv[1:]);"
    program += " print(code, 'pyspark' in sys.modules)"
    arguments = ["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC, "--exactly-once", "P", "--write"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stdout


def test_coordinators_are_asked_wherever_they_are(broker: FakeBroker, run: Any) -> None:
    broker.move_coordinator(KeyType.TRANSACTION, "P-check", 0)
    broker.move_coordinator(KeyType.GROUP, "P-aborted", 1)
    assert run(broker.bootstrap_servers, "--exactly-once", "P").code == 0
