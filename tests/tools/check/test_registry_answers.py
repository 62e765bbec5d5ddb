"""`check` tells of the schema registry: whether it answers, who has logged in, and what is registered for key and value."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from spark_kafka_sink.tools.check import command, inspection
from tests.fakes.fake_broker import FakeBroker
from tests.schemas.fake_registry import FakeRegistry

TOPIC = "orders"
CANARY = "canary7Qx2zzWq"
SCHEMA = json.dumps({"type": "record", "name": "topLevelRecord", "fields": [{"name": "id", "type": "long"}]})
RULE = {"name": "encryptPII", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITE"}


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=1, topics={TOPIC: 1}) as broker:
        broker.topics[TOPIC].settings |= {"min.insync.replicas": "1", "compression.type": "producer", "cleanup.policy": "delete"}
        yield broker


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry(login=f"me:{CANARY}") as registry:
        yield registry
        assert not [request for request in registry.requests if not request.startswith("GET ")]


@pytest.fixture
def check(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(url: str, *more: str, **options: str) -> list[tuple[str, str, str, str]]:
        """Check, subject, light and text of what is said of the registry."""
        all_options = {"schema.registry.url": url, "valueFormat": "avro", "basic.auth.user.info": f"me:{CANARY}", **options}
        words = [word for name, value in all_options.items() for word in ("--option", f"{name}={value}")]
        capfd.readouterr()
        command.main(["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC, "--json", *words, *more])
        printed = capfd.readouterr()
        assert CANARY not in printed.out + printed.err
        results = [json.loads(line) for line in printed.out.splitlines()[1:-1]]
        registry_results = [each for each in results if each["check"] in ("registry", "subject", "write")]
        return [
            (each["check"], each["subject"], each["result"], f"{each['found']}. {each['remedy']}".strip(". "))
            for each in registry_results
        ]

    return run


def test_a_subject_that_the_first_write_registers_is_yellow(check: Any, fake: FakeRegistry) -> None:
    """It was green, and the write failed as the login might only read: registries do not tell who may register."""
    assert check(fake.url) == [
        ("registry", fake.url, "green", "answers user 'me'"),
        (
            *("subject", "orders-value", "yellow"),
            "does not exist: the first write registers it, if it may; compatibility BACKWARD. a registry does not tell who may"
            " register: make sure that this login may",
        ),
    ]


def test_what_is_registered_is_shown_with_its_mode(check: Any, fake: FakeRegistry) -> None:
    fake.register("orders-value", SCHEMA)
    fake.set_compatibility("orders-value", "FULL")
    fake.register("orders-key", '"string"')
    _, key, value = check(fake.url, keyFormat="avro")
    assert key[1:] == (
        "orders-key",
        "green",
        "version 1, id 2, AVRO; compatibility BACKWARD; a schema that differs becomes the next version, if that allows it",
    )
    assert value[1:] == (
        "orders-value",
        "green",
        "version 1, id 1, AVRO; compatibility FULL; a schema that differs becomes the next version, if that allows it",
    )


@pytest.mark.parametrize(
    ("options", "light", "text"),
    [
        ({"auto.register.schemas": "false"}, "red", "register the schema, or set auto.register.schemas=true"),
        ({"valueSchema": "latest"}, "red", "Subject 'orders-value' not found"),
        ({"use.latest.version": "true"}, "red", "Subject 'orders-value' not found"),
        ({"valueSchema": "3"}, "red", "Subject 'orders-value' not found"),
        ({"valueSchema": "id:42"}, "red", "Schema 42 not found"),
        ({"valueFormat": "framed", "valueSchema": "latest"}, "red", "Subject 'orders-value' not found"),
        ({"valueSubject": "mine"}, "yellow", "does not exist: the first write registers it"),
    ],
)
def test_what_is_missing_is_red_unless_a_write_would_register_it(
    check: Any, fake: FakeRegistry, options: dict[str, str], light: str, text: str
) -> None:
    *_, subject = check(fake.url, **options)
    assert subject[2] == light
    assert text in subject[3]


@pytest.mark.parametrize("schema", ["latest", "1", "id:1"])
def test_a_schema_that_is_named_is_found(check: Any, fake: FakeRegistry, schema: str) -> None:
    fake.register("orders-value", SCHEMA)
    *_, subject = check(fake.url, valueSchema=schema)
    assert subject[2] == "green"
    assert subject[3].endswith("id 1, AVRO is what rows are written with")


def test_an_id_is_looked_for_in_the_context_of_the_subject(check: Any, fake: FakeRegistry) -> None:
    """The check was green with the schema of the default context, which the write does not take."""
    fake.register("other-value", SCHEMA)
    options = {"valueSchema": "id:1", "valueSubject": ":.staging:orders-value"}
    *_, subject = check(fake.url, **options)
    assert subject[1:3] == (":.staging:orders-value", "red")
    assert "Schema 1 not found" in subject[3]
    fake.register(":.staging:orders-value", SCHEMA)
    *_, subject = check(fake.url, **options)
    assert subject[1:] == (":.staging:orders-value", "green", "id 1, AVRO is what rows are written with")


def test_subjects_are_named_by_the_strategy(check: Any, fake: FakeRegistry) -> None:
    strategy = {"value.subject.name.strategy": "TopicRecordNameStrategy"}
    assert check(fake.url, **strategy)[1][1] == "orders-topLevelRecord"
    record_name = {"valueRecordName": "Order", "valueRecordNamespace": "com.acme"}
    assert check(fake.url, **strategy, **record_name)[1][1] == "orders-com.acme.Order"
    assert check(fake.url, **strategy, valueSchema=SCHEMA)[1][1:] == (
        *("value", "yellow", "not known: it has the name of the record in the text of valueSchema"),
    )


def test_rules_that_apply_to_writing_are_yellow_or_red(check: Any, fake: FakeRegistry) -> None:
    fake.register("orders-value", SCHEMA, ruleSet={"domainRules": [RULE]})
    (_, derived_result), (_, latest_result) = check(fake.url), check(fake.url, valueSchema="latest")
    assert (derived_result[2], latest_result[2]) == ("yellow", "red")
    assert "encryptPII" in latest_result[3]


def test_another_kind_of_schema_is_red_for_avro(check: Any, fake: FakeRegistry) -> None:
    fake.register("orders-value", '{"type": "object"}', schemaType="JSON")
    assert check(fake.url)[1][2:] == ("red", "version 1, id 1, JSON: no Avro. set valueFormat=framed")
    assert check(fake.url, valueFormat="framed", valueSchema="latest")[1][2] == "green"


def test_a_wrong_password_is_red_and_nothing_more_is_said(check: Any, fake: FakeRegistry) -> None:
    ((_, _, light, text),) = check(fake.url, **{"basic.auth.user.info": "me:wrong"})
    assert light == "red"
    assert "[KAFKA_SCHEMA_REGISTRY_LOGIN_FAILED]" in text


def test_a_user_who_may_not_see_the_subject_is_red(check: Any, fake: FakeRegistry) -> None:
    fake.forbidden.add("orders-value")
    registry, subject = check(fake.url)
    assert (registry[2], subject[2]) == ("green", "red")
    assert "User is denied operation" in subject[3]


def test_one_address_of_several_may_be_down(check: Any, fake: FakeRegistry) -> None:
    down, up, subject = check(f"http://127.0.0.1:1,{fake.url}")
    assert (down[2], up[2], subject[2]) == ("yellow", "green", "yellow")
    assert down[3].endswith("others are asked in its place")


def test_a_registry_that_is_down_is_red(check: Any) -> None:
    ((_, subject, light, text),) = check("http://127.0.0.1:1")
    assert (subject, light) == ("http://127.0.0.1:1", "red")
    assert "Connection refused" in text


def test_a_registry_that_says_nothing_is_red_in_time(check: Any, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "REGISTRY_END_MS", 5_000)
    released = threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> bool:
        return released.wait(60)

    with fake.fail_with(silent):
        ((_, _, light, text),) = check(fake.url)
        released.set()
    assert light == "red"
    assert "no complete answer within" in text


def test_no_record_without_a_schema_is_written(check: Any, fake: FakeRegistry) -> None:
    assert check(fake.url, "--write")[0] == (
        "write", "orders", "yellow", "not tried: readers would find a record without a schema",
    )  # fmt: skip


def test_without_a_format_no_registry_is_asked(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--bootstrap-servers", broker.bootstrap_servers, "--topic", TOPIC]) == 0
    assert "registry" not in capfd.readouterr().out
