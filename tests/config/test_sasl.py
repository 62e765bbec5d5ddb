"""config/sasl.py: what SASL options require of each other; no problem quotes a password."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path

import pytest

from spark_kafka_sink.config import option
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sasl import ALLOWED_FILES, ALLOWED_URLS
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.tools.properties import read_properties

CANARY = "canary-7Qx2"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
CONF = Path(__file__).resolve().parents[2] / "conf"


# RULES


def problem_of(**options: str) -> str:
    mapping = {"bootstrap.servers": "h:1", "security.protocol": "SASL_PLAINTEXT"}
    mapping |= {name.replace("__", "."): value for name, value in options.items()}
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping(mapping)
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    shown.stack.pop(0)  # this function's own locals
    assert CANARY not in "".join(shown.format())
    return raised.value.message


def accepted(**options: str) -> ProducerConfig:
    mapping = {"bootstrap.servers": "h:1", "security.protocol": "sasl_plaintext"}
    return ProducerConfig.from_mapping(mapping | {name.replace("__", "."): value for name, value in options.items()})


@pytest.mark.parametrize("prefix", ["", "kafkashaded.", "org.shaded.deep."])
@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)])
def test_a_spark_users_options_are_accepted_unchanged(prefix: str, mechanism: str, module: str) -> None:
    jaas = f'{prefix}{module} required username="alice" password="{CANARY}";'
    assert accepted(sasl__mechanism=mechanism, sasl__jaas__config=jaas).sasl_mechanism == mechanism


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl__mechanism": "DIGEST-MD5"}, "sasl.mechanism=DIGEST-MD5 is not known; use one of PLAIN, SCRAM-SHA-256,"),
        ({"sasl__mechanism": "PLAIN"}, "sasl.mechanism=PLAIN needs sasl.jaas.config, like org.apache.kafka."),
        ({}, "sasl.mechanism=GSSAPI (the default) needs sasl.kerberos.service.name"),
        (
            {"sasl__jaas__config": f'{PLAIN} required username="a" password="{CANARY}";'},
            "sasl.mechanism=GSSAPI (the default) needs Krb5LoginModule, but sasl.jaas.config names PlainLoginModule;"
            " for that, set sasl.mechanism to PLAIN",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f'{SCRAM} required username="a" password="{CANARY}";'},
            "names ScramLoginModule; for that, set sasl.mechanism to SCRAM-SHA-256 or SCRAM-SHA-512",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f"{CANARY} required;"},
            "sasl.jaas.config names a login module that is not known; sasl.mechanism=PLAIN needs PlainLoginModule",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f'{PLAIN} required username="a" password={CANARY}@x;'},
            "sasl.jaas.config cannot be read: option 3 is not of the form",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f'{PLAIN} required user="a" password="{CANARY}";'},
            "sasl.jaas.config: PlainLoginModule needs username",
        ),
        (
            {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f'{PLAIN} required username="a\\0" password="{CANARY}";'},
            "no username or password with a NUL character",
        ),
        ({"sasl__mechanism": "OAUTHBEARER"}, "needs tokens: set sasl.oauthbearer.token.endpoint.url, or"),
        (
            {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "http://login.example.com/token"},
            "must begin with https://",
        ),
        (
            {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "https://login.example.com/token"},
            "needs sasl.oauthbearer.client.credentials.client.id",
        ),
        (
            {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "https://me:too@h/token"},
            "must not hold a name or password",
        ),
        (
            {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "https://[h"},
            "sasl.oauthbearer.token.endpoint.url is not a URL",
        ),
        (
            {
                "sasl__mechanism": "OAUTHBEARER",
                "sasl__login__callback__handler__class": "x.OAuthBearerLoginCallbackHandler",
            },
            "sasl.oauthbearer.token.endpoint.url is not set",
        ),
        (
            {"sasl__mechanism": "OAUTHBEARER", "sasl__login__callback__handler__class": "no dots"},
            "is not a dotted name of a Python function",
        ),
        (
            {
                "sasl__mechanism": "OAUTHBEARER",
                "sasl__oauthbearer__token__endpoint__url": "https://h/token",
                "sasl__oauthbearer__jwt__retriever__class": "x.JwtBearerJwtRetriever",
            },
            "JwtBearerJwtRetriever needs sasl.oauthbearer.assertion.file or",
        ),
        (
            {
                "sasl__mechanism": "OAUTHBEARER",
                "sasl__oauthbearer__token__endpoint__url": "https://h/token",
                "sasl__oauthbearer__client__credentials__client__id": "a",
                "sasl__oauthbearer__client__credentials__client__secret": CANARY,
                "sasl__oauthbearer__jwt__retriever__class": "x.Mine",
            },
            "sasl.oauthbearer.jwt.retriever.class=x.Mine is not known",
        ),
        (
            {
                "sasl__mechanism": "GSSAPI",
                "sasl__kerberos__service__name": "kafka",
                "sasl__jaas__config": "Krb5LoginModule required serviceName=other;",
            },
            "differ; remove one of the two",
        ),
        (
            {
                "sasl__kerberos__service__name": "kafka",
                "sasl__jaas__config": f'Krb5LoginModule required keyTab="/k" principal="{CANARY}";',
            },
            "keyTab has no effect without useKeyTab=true",
        ),
        (
            {"sasl__kerberos__service__name": "kafka", "sasl__jaas__config": 'Krb5LoginModule required ticketCache="/c";'},
            "ticketCache has no effect without useTicketCache=true",
        ),
        (
            {"sasl__kerberos__service__name": "kafka", "sasl__jaas__config": "Krb5LoginModule required useKeyTab=true;"},
            'useKeyTab=true needs keyTab="…"',
        ),
        (
            {"sasl__mechanism": "AWS_MSK_IAM", "sasl__jaas__config": f'IAMLoginModule required awsSecret="{CANARY}";'},
            "an option of IAMLoginModule is not known; use awsProfileName,",
        ),
    ],
)
def test_the_error_of_what_is_missing_or_contradicts_names_the_remedy(options: dict[str, str], message: str) -> None:
    assert message in problem_of(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"sasl__mechanism": "OAUTHBEARER", "sasl__jaas__config": f'{OAUTH} required unsecuredLoginStringClaim_sub="a";'},
        {"sasl__mechanism": "OAUTHBEARER", "sasl__login__callback__handler__class": "package.module.token"},
        {
            "sasl__mechanism": "OAUTHBEARER",
            "sasl__oauthbearer__token__endpoint__url": "https://h/token",
            "sasl__jaas__config": f'{OAUTH} required clientId="a" clientSecret="{CANARY}";',
        },
        {
            "sasl__mechanism": "OAUTHBEARER",
            "sasl__oauthbearer__token__endpoint__url": "http://localhost:1/token",
            "sasl__oauthbearer__client__credentials__client__id": "a",
            "sasl__oauthbearer__client__credentials__client__secret": CANARY,
        },
        {"sasl__mechanism": "AWS_MSK_IAM"},
        {
            "sasl__mechanism": "AWS_MSK_IAM",
            "sasl__jaas__config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            "sasl__client__callback__handler__class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        },
        {"sasl__kerberos__service__name": "kafka"},
        {"sasl__jaas__config": "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true serviceName=kafka;"},
    ],
)
def test_other_mechanisms_are_accepted_without_a_warning(options: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    accepted(**options)
    assert caplog.records == []


def test_a_password_in_clear_text_is_warned_of_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option, "_logged_messages", set())
    options = {"sasl__mechanism": "PLAIN", "sasl__jaas__config": f'{PLAIN} required username="a" password="{CANARY}";'}
    accepted(**options, security__protocol="SASL_SSL")
    assert caplog.records == []
    for _ in range(2):
        accepted(**options)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "sasl.mechanism=PLAIN with security.protocol=SASL_PLAINTEXT sends the password in clear"
    )


def test_without_sasl_its_options_are_not_looked_at() -> None:
    ProducerConfig.from_mapping({"bootstrap.servers": "h:1", "sasl.jaas.config": "nonsense", "sasl.mechanism": "X"})


def test_a_callback_handler_of_the_jvm_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    accepted(sasl__kerberos__service__name="kafka", sasl__client__callback__handler__class="org.example.Handler")
    assert "'sasl.client.callback.handler.class' has no effect" in caplog.text


def test_the_sink_tells_sasl_problems_together_with_all_others() -> None:
    problems: list[str] = []
    SinkOptions.read({"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.acks": "7"}, problems)
    assert len(problems) == 3  # bootstrap.servers too


# THE SAMPLES


def samples() -> list[str]:
    """conf/sasl.properties once for each of its samples: what all have in common, and the options of one."""
    _, common, *blocks = (CONF / "sasl.properties").read_text(encoding="utf-8").split("\n\n")
    return [f"{common}\n" + re.sub(r"^#(?=[a-z.]+=)", "", block, flags=re.MULTILINE) for block in blocks]


@pytest.mark.parametrize("sample", samples(), ids=lambda text: text.splitlines()[2])
def test_every_sample_in_the_conf_file_is_complete(sample: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "sasl.properties"
    file.write_text(sample, encoding="utf-8")
    ProducerConfig.from_mapping(read_properties(file))
    assert caplog.records == []


def test_the_conf_file_has_a_sample_for_each_mechanism() -> None:
    text = (CONF / "sasl.properties").read_text(encoding="utf-8")
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"):
        assert f"sasl.mechanism={mechanism}\n" in text


# WHAT OPTIONS MAY NAME: files and servers

TOKEN_FILE = {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "file:///run/token"}
ENDPOINT = {
    "sasl__mechanism": "OAUTHBEARER",
    "sasl__oauthbearer__token__endpoint__url": "https://h/token",
    "sasl__oauthbearer__client__credentials__client__id": "a",
    "sasl__oauthbearer__client__credentials__client__secret": CANARY,
}
ASSERTION = {
    "sasl__mechanism": "OAUTHBEARER",
    "sasl__oauthbearer__token__endpoint__url": "https://h/token",
    "sasl__oauthbearer__jwt__retriever__class": "x.JwtBearerJwtRetriever",
}


def test_a_file_is_sent_as_a_token_only_where_the_environment_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options alone sent any local file to a server that the options named, as in CVE-2025-27817 of the Java client."""
    assert f"is not in the list of the environment variable {ALLOWED_URLS}" in problem_of(**TOKEN_FILE)
    monkeypatch.setenv(ALLOWED_URLS, "https://h/token, file:///run/token")
    assert accepted(**TOKEN_FILE)
    assert accepted(**ENDPOINT)
    monkeypatch.setenv(ALLOWED_URLS, "file:///run/token2,file:///run")
    assert ALLOWED_URLS in problem_of(**TOKEN_FILE)


def test_a_token_endpoint_is_any_unless_the_environment_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accepted(**ENDPOINT)
    for urls in ("", "https://h/token/", "https://other/token"):
        monkeypatch.setenv(ALLOWED_URLS, urls)
        assert ALLOWED_URLS in problem_of(**ENDPOINT)


@pytest.mark.parametrize("name", ["file", "private.key.file", "template.file"])
def test_a_file_of_an_assertion_is_read_only_where_the_environment_allows_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"sasl__oauthbearer__assertion__{name.replace('.', '__')}"
    options = ASSERTION | {"sasl__oauthbearer__assertion__private__key__file": "/run/key"}
    monkeypatch.setenv(ALLOWED_FILES, "/run/key")
    assert f"sasl.oauthbearer.assertion.{name}=/etc/passwd is not in the list" in problem_of(**options | {key: "/etc/passwd"})
    monkeypatch.setenv(ALLOWED_FILES, "/run/key,/run/other")
    assert accepted(**options | {key: "/run/other"})
    monkeypatch.delenv(ALLOWED_FILES)
    assert ALLOWED_FILES in problem_of(**options)


def test_a_name_without_a_directory_allows_a_file_that_spark_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_FILES, "assertion.jwt")
    for path in ("assertion.jwt", "/tmp/spark-1/userFiles-2/assertion.jwt"):
        assert accepted(**ASSERTION, sasl__oauthbearer__assertion__file=path)
    assert ALLOWED_FILES in problem_of(**ASSERTION, sasl__oauthbearer__assertion__file="/tmp/other.jwt")


@pytest.mark.parametrize(
    "name",
    [
        *("awsAddDefaultProviders", "awsMaxBackOffTimeMs", "awsMaxRetries", "awsMskRegionProvider", "awsRoleAccessKeyId"),
        *("awsRoleExternalId", "awsRoleSecretAccessKey", "awsRoleSessionToken", "awsShouldUseFips", "awsStsRegion"),
    ],
)
def test_an_option_of_amazons_login_module_without_effect_is_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A job that came from Java with awsMaxRetries="7" was refused: "1 options of IAMLoginModule are not known". awsStsRegion was
    accepted, and nobody said that it has no effect."""
    accepted(sasl__mechanism="AWS_MSK_IAM", sasl__jaas__config=f'IAMLoginModule required awsRoleArn="r" {name}="{CANARY}";')
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"sasl.jaas.config: {name} of IAMLoginModule has no effect: ")
    assert CANARY not in message


def test_options_of_amazons_login_module_with_an_effect_are_accepted_silently(caplog: pytest.LogCaptureFixture) -> None:
    names = ("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsDebugCreds")
    options = " ".join(f'{name}="{CANARY}"' for name in names)
    accepted(sasl__mechanism="AWS_MSK_IAM", sasl__jaas__config=f"IAMLoginModule required {options};")
    assert caplog.records == []
