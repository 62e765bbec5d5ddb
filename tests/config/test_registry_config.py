"""config/registry_config.py: Confluent's names, what they require of each other, and that no problem shows a login."""

from __future__ import annotations

import logging
import pickle
import re
import traceback
from pathlib import Path

import pytest

from spark_kafka_sink.config import option
from spark_kafka_sink.config.option import PASSWORD
from spark_kafka_sink.config.registry_config import (
    ALLOWED_REGISTRY_URLS,
    REGISTRY_KEYS,
    RegistryConfig,
    is_registry_key,
)
from spark_kafka_sink.config.sasl import ALLOWED_URLS
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.tools.properties import option_name, parse_properties
from tests.fakes.registry_config import registry_config

CANARY = "canary7Qx2zzWq"
CONF = Path(__file__).resolve().parents[2] / "conf"
URL = {"schema.registry.url": "https://registry:8081"}


def problem_of(options: dict[str, object]) -> str:
    picked = RegistryConfig.pick(options)
    assert CANARY not in repr(picked)
    with pytest.raises(ConfigError) as raised:
        registry_config(picked)
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    shown.stack.pop(0)  # this function's own locals
    assert CANARY not in "".join(shown.format())
    return raised.value.message


def accepted(options: dict[str, object]) -> RegistryConfig:
    config = registry_config(options)
    assert CANARY not in repr(config)
    return config


# ADDRESSES


def test_addresses_stand_in_order_without_logins_and_slashes() -> None:
    config = accepted({"schema.registry.url": f"HTTPS://me:{CANARY}@Registry:8081/apis/ccompat/v7/ , http://[::1]:8082"})
    first, second = config.schema_registry_url
    assert (first.url, second.url) == ("https://Registry:8081/apis/ccompat/v7", "http://[::1]:8082")
    assert config.login_of(first) == Secret(f"me:{CANARY}")
    assert config.login_of(second) is None


def test_a_login_in_a_url_may_have_commas_and_encoded_characters() -> None:
    config = accepted({"schema.registry.url": "https://me:a,b%2Fc%40d@host,https://other"})
    assert [address.url for address in config.schema_registry_url] == ["https://host", "https://other"]
    assert config.schema_registry_url[0].login == Secret("me:a,b/c@d")


def test_a_list_of_addresses_is_read_too() -> None:
    config = accepted({"schema.registry.url": ["https://a", f"https://me:{CANARY}@b"]})
    assert [address.url for address in config.schema_registry_url] == ["https://a", "https://b"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("registry:8081", "registry:8081 … it is not a URL like https://host:8081"),
        ("ftp://registry", "ftp://registry … it is not a URL"),
        ("https://", "[hidden] … it is not a URL"),
        ("https://host:99999", "[hidden] … it is not a URL"),
        ("https://host name", "[hidden] … it is not a URL"),
        (f"https://host/?a={CANARY}", "https://host/ … it has a query or a fragment, which is not shown"),
        (f"user=me password = {CANARY}", "[hidden] … it is not a URL"),
        (
            f"https://me:{CANARY}/x@host",
            "https://host … it is not a URL like https://host:8081 (in user:password@, write / as %2F",
        ),
        (f"https://me:{CANARY}#x@host", "https://host … it is not a URL"),
        (f"https://{CANARY}@host", "https://host … it needs user and password"),
        ("registry", "registry … it is not a URL"),
        ("[::1]:8081", "[::1]:8081 … it is not a URL"),
        (f"https://a, https://me:{CANARY}", "[hidden] (address 2) … it is not a URL"),
        ("https://a, https://b?c", "https://b (address 2) … it has a query"),
    ],
)
def test_a_wrong_address_is_shown_once_without_its_login(url: str, expected: str) -> None:
    """The error was "Invalid value [hidden] …: localhost:8081 is not a URL": the value was hidden and shown."""
    problem = problem_of({"schema.registry.url": url})
    assert problem.startswith(f"Invalid value {expected.replace('…', 'for configuration schema.registry.url:')}")


@pytest.mark.parametrize(
    "text",
    [
        *(f"me:{CANARY}", f"me:/{CANARY}", f"me:12/{CANARY}", f"a/b:{CANARY}", f"me:{CANARY}/x", f"me:{CANARY},b"),
        *(f"me:{CANARY}@host", f"me:a@{CANARY}", f"/{CANARY}", f":{CANARY}", f"me:{CANARY}://x"),
        *("me:123456789", "me:65536", "me:0", "https://me:65536"),
        *(f"https://me:{CANARY}", f"https://me:{CANARY}/x", f"https://me:{CANARY}?x"),
    ],
)
def test_a_login_where_the_address_should_be_is_not_shown(text: str) -> None:
    """With the values of schema.registry.url and basic.auth.user.info exchanged, a password with a slash or of digits showed."""
    assert problem_of({"schema.registry.url": text}).startswith(
        "Invalid value [hidden] for configuration schema.registry.url: it is not a URL like"
    )


# NAMES


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("schema.registry.ulr", "schema.registry.url"),
        ("basic.auth.userinfo", "basic.auth.user.info"),
        ("bearer.auth.logical.clusters", "bearer.auth.logical.cluster"),
        ("schema.registry.ssl.truststore.locaton", "schema.registry.ssl.truststore.location"),
    ],
)
def test_a_misspelt_name_is_a_problem_with_the_right_one(wrong: str, right: str) -> None:
    assert f"Unknown option '{wrong}'. Did you mean '{right}'?" in problem_of(URL | {wrong: CANARY})


def test_names_of_others_are_left_alone() -> None:
    assert not any(map(is_registry_key, ("topic", "kafka.bootstrap.servers", "valueSchema", "linger.ms", "ssl.key.password")))
    assert RegistryConfig.pick({"topic": "orders", "bootstrap.servers": "b:1"}) == {}
    assert not registry_config({"topic": "orders"}).is_set


@pytest.mark.parametrize("name", ["basic.auth.user.info", "schema.registry.basic.auth.user.info"])
def test_confluents_longer_names_are_the_same_options(name: str) -> None:
    assert accepted(URL | {name: f"me:{CANARY}"}).basic_auth_user_info == Secret(f"me:{CANARY}")


LONGER = "schema.registry.basic.auth.user.info"


def test_two_names_of_one_option_must_not_have_different_values() -> None:
    """The one that stood last was taken without a word."""
    both = {"basic.auth.user.info": f"me:{CANARY}", LONGER: f"me:{CANARY}"}
    assert accepted(URL | both).basic_auth_user_info == Secret(f"me:{CANARY}")
    for options in (both | {LONGER: f"you:{CANARY}"}, {LONGER: f"you:{CANARY}"} | both | {LONGER: f"x:{CANARY}"}):
        expected = f"{LONGER} and basic.auth.user.info are one option, and have different values: remove one of the two"
        assert problem_of(URL | options) == expected
        assert problem_of(URL | RegistryConfig.pick(options)) == expected


@pytest.mark.parametrize(
    ("short", "longer"),
    [
        (f"me:{CANARY}", None),
        (None, f"me:{CANARY}"),
        (Secret(f"me:{CANARY}"), f"me:{CANARY}"),
        (f"me:{CANARY}", Secret(f"me:{CANARY}")),
        (f" me:{CANARY}", f"me:{CANARY} "),
    ],
)
def test_an_option_under_both_its_names_may_be_unset_wrapped_or_among_blanks(short: object, longer: object) -> None:
    """Such options were an error of two different values."""
    for options in ({"basic.auth.user.info": short, LONGER: longer}, {LONGER: longer, "basic.auth.user.info": short}):
        assert accepted(URL | options).basic_auth_user_info == Secret(f"me:{CANARY}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("use.schema.id", "write valueSchema=id:<id>"),
        ("schema.registry.ssl.ca.location", "write schema.registry.ssl.truststore.location"),
        ("context.name.strategy", "write the subject with its context"),
        ("value.schema.id.serializer", "ids are written before the payload only"),
    ],
)
def test_the_error_of_an_unsupported_option_names_the_remedy(name: str, remedy: str) -> None:
    assert f"{name} is not supported: {remedy}" in problem_of(URL | {name: "x"})


def test_what_has_no_effect_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option, "_logged_messages", set())
    with caplog.at_level(logging.WARNING):
        accepted(URL | {"latest.compatibility.strict": "false"})
    assert "Option 'latest.compatibility.strict' has no effect" in caplog.text


def test_strategies_have_javas_names_or_short_ones() -> None:
    strategy = "value.subject.name.strategy"
    java = "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"
    assert accepted(URL | {strategy: java}).value_subject_name_strategy == "TopicRecordNameStrategy"
    assert "use one of TopicNameStrategy, RecordNameStrategy" in problem_of(URL | {strategy: "com.acme.MyStrategy"})


# WHAT OPTIONS REQUIRE OF EACH OTHER

OAUTH = {
    "bearer.auth.credentials.source": "OAUTHBEARER",
    "bearer.auth.issuer.endpoint.url": "https://login/token",
    "bearer.auth.client.id": "me",
    "bearer.auth.client.secret": CANARY,
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"basic.auth.user.info": f"me:{CANARY}"}, "basic.auth.user.info is set, but schema.registry.url is not"),
        ({"schema.registry.url": " "}, "schema.registry.url is empty"),
        (URL | {"basic.auth.user.info": CANARY}, "basic.auth.user.info must be user:password"),
        (URL | {"basic.auth.credentials.source": "USER_INFO"}, "needs basic.auth.user.info=user:password"),
        (URL | {"basic.auth.credentials.source": "URL"}, "needs a login in schema.registry.url"),
        (URL | {"basic.auth.credentials.source": "SASL_INHERIT"}, "String must be one of .*: URL, USER_INFO"),
        (
            {"schema.registry.url": f"https://me:{CANARY}@host", "basic.auth.user.info": f"me:{CANARY}"},
            "basic.auth.user.info is set, but schema.registry.url holds a login too",
        ),
        (
            URL | {"basic.auth.user.info": f"me:{CANARY}", "bearer.auth.token": CANARY},
            "by basic authentication and one by bearer",
        ),
        (URL | {"bearer.auth.credentials.source": "STATIC_TOKEN"}, "needs bearer.auth.token"),
        (URL | {"bearer.auth.token": f"{CANARY}\nx"}, "it must be of visible ASCII characters"),
        (URL | {"bearer.auth.logical.cluster": "lsrc-1"}, "bearer.auth.logical.cluster has no effect without bearer.auth.token"),
        (URL | OAUTH | {"bearer.auth.client.secret": None}, "OAUTHBEARER needs bearer.auth.client.secret"),
        (URL | OAUTH | {"bearer.auth.token": CANARY}, "are both sources of tokens"),
        (URL | OAUTH | {"bearer.auth.issuer.endpoint.url": "http://login/token"}, "must begin with https://"),
        (URL | OAUTH | {"bearer.auth.issuer.endpoint.url": f"https://me:{CANARY}@login"}, "must not hold a name or password"),
        (URL | {"use.latest.version": "true", "auto.register.schemas": "true"}, "remove one of the two"),
        (URL | {"schema.registry.ssl.endpoint.identification.algorithm": "none"}, "https is expected, or an empty value"),
    ],
)
def test_the_error_of_a_contradiction_names_the_remedy(options: dict[str, object], expected: str) -> None:
    assert re.search(expected, problem_of(options))


@pytest.mark.parametrize("key", OAUTH)
def test_a_malformed_option_of_a_login_is_one_problem(key: str) -> None:
    """An invalid client id was said to be missing too."""
    assert "\n" not in problem_of(URL | OAUTH | {key: "${file:/path:key}"})


def test_all_problems_are_one_error() -> None:
    problem = problem_of({"schema.registry.url": "x", "normalize.schemas": "maybe", "basic.auth.user": CANARY})
    assert problem.startswith("3 things are wrong")


def test_a_source_that_is_not_named_is_found() -> None:
    assert accepted(URL | {"bearer.auth.token": CANARY}).token_source == "STATIC_TOKEN"
    assert accepted(URL | OAUTH | {"bearer.auth.credentials.source": None}).token_source == "OAUTHBEARER"
    assert accepted(URL).token_source is None


def test_a_login_in_clear_text_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option, "_logged_messages", set())
    with caplog.at_level(logging.WARNING):
        accepted({"schema.registry.url": "http://registry:8081", "basic.auth.user.info": f"me:{CANARY}"})
        accepted({"schema.registry.url": "http://localhost:8081", "basic.auth.user.info": f"me:{CANARY}"})
    assert [record.message for record in caplog.records] == [
        "schema.registry.url=http://registry:8081: the login is sent in clear text; use https"
    ]


# ALLOW-LISTS


def test_the_environment_may_say_which_registries_options_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_REGISTRY_URLS, "https://registry:8081/, https://other")
    accepted({"schema.registry.url": f"https://me:{CANARY}@registry:8081"})
    problem = problem_of({"schema.registry.url": "https://registry:8081,https://registry:8082"})
    assert problem.startswith(
        f"schema.registry.url=https://registry:8082 is not in the list of the environment variable {ALLOWED_REGISTRY_URLS}"
    )


def test_the_environment_may_say_where_tokens_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_URLS, "https://elsewhere/token")
    assert f"is not in the list of the environment variable {ALLOWED_URLS}" in problem_of(URL | OAUTH)
    monkeypatch.setenv(ALLOWED_URLS, "https://login/token")
    accepted(URL | OAUTH)


# SAMPLES


def samples() -> list[str]:
    """conf/schema-registry.properties once for each of its samples: what is active in it, and the sample's lines."""
    text = (CONF / "schema-registry.properties").read_text(encoding="utf-8")
    active, *blocks = text.split("\n\n")
    return [active, *(active + "\n" + re.sub(r"(?m)^#(?=\w)", "", block) for block in blocks)]


@pytest.mark.parametrize("sample", samples())
def test_the_samples_are_valid(sample: str) -> None:
    problems: list[str] = []
    options = {"topic": "t", "kafka.bootstrap.servers": "b:1"}
    options |= {option_name(key): value for key, value in parse_properties(sample).items()}
    assert SinkOptions.read(options, problems).registry.is_set
    assert problems == []


# SECRETS


@pytest.mark.parametrize("value", [f"-----BEGIN PRIVATE KEY-----\n{CANARY}", f"password={CANARY}", f"first line\n{CANARY}"])
@pytest.mark.parametrize("key", sorted(key for key, row in REGISTRY_KEYS.items() if row.kind is not PASSWORD))
def test_a_secret_under_the_key_of_another_option_does_not_show(key: str, value: str) -> None:
    assert "[hidden]" in (problem := problem_of(URL | {key: value})) or "looks like a secret" in problem


def test_what_is_picked_hides_every_secret() -> None:
    secret = [key for key, row in REGISTRY_KEYS.items() if row.kind.may_hold_secret]
    assert {"schema.registry.url", "basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret"} <= set(secret)
    options = dict.fromkeys([*secret, "schema.registry.basic.auth.user.info", "basic.auth.pasword"], CANARY)
    assert CANARY not in repr(RegistryConfig.pick(options))


def test_a_configuration_goes_to_another_process() -> None:
    config = accepted(URL | OAUTH)
    assert pickle.loads(pickle.dumps(config)) == config
