"""config/sasl.py: JAAS as Java reads it, what SASL options need of each other, and not a word of a password in any problem."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.command_line import read_properties
from spark_kafka_sink.config.producer_config import ProducerConfig, SinkOptions
from spark_kafka_sink.config.sasl import JaasEntry, JaasProblem, files_named_in, parse_jaas, with_option
from spark_kafka_sink.errors import ConfigError

CANARY = "canary-7Qx2"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
CONF = Path(__file__).resolve().parents[2] / "conf"


def entry(text: str) -> JaasEntry:
    parsed = parse_jaas(text)
    assert isinstance(parsed, JaasEntry), parsed
    return parsed


def options_of(text: str) -> dict[str, str]:
    return entry(f"M required {text};").with_prefix("")


# ---- JAAS ------------------------------------------------------------------------------------------------------------------


def test_the_usual_form_is_read() -> None:
    read = entry(f'{PLAIN} required username="alice" password="alice-secret";')
    assert read.module == PLAIN
    assert read.simple_name == "PlainLoginModule"
    assert (read.get("username"), read.get("password"), read.get("other")) == ("alice", "alice-secret", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b  c='d'", {"a": "b", "c": "d"}),
        ("a=true b=x9.y-z_$", {"a": "true", "b": "x9.y-z_$"}),
        ('a="with space; and semicolon, = and \' and //"', {"a": "with space; and semicolon, = and ' and //"}),
        (r'a="\"\\\t\n\101\0z\x"', {"a": '"\\\t\nA\0zx'}),
        (r'a="\4777"', {"a": "\47" + "77"}),  # octal has three digits up to 377 only
        (r"a='it\'s'", {"a": "it's"}),
        ('a="" b=c', {"a": "", "b": "c"}),
        ("a=b // the rest is a comment\n c=d", {"a": "b", "c": "d"}),
        ("a=b /* of two\nlines */ c=d", {"a": "b", "c": "d"}),
        ('"a b"="c"', {"a b": "c"}),
        ("a=zoë", {"a": "zoë"}),
        ("a=b a=c", {"a": "c"}),
        ("\n  a='x'\r\n\tb='y'\n", {"a": "x", "b": "y"}),
    ],
)
def test_options_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert options_of(text) == expected


@pytest.mark.parametrize("flag", ["required", "Requisite", "SUFFICIENT", "optional"])
def test_flags_are_read_in_any_case(flag: str) -> None:
    assert entry(f"M {flag};").module == "M"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no login module"),
        ("// nothing", "no login module"),
        ("M required", "does not end with a semicolon"),
        ('M required password="x;', "does not end with a semicolon"),
        ("M;", "not followed by one of required, requisite, sufficient, optional"),
        ("M always;", "not followed by one of required"),
        ("M required; N required;", "more than one login module"),
        (";", "does not begin with the name of a login module"),
        ("M required a;", "option 1 is not of the form"),
        ("M required a=b c=;", "option 2 is not of the form"),
        ("M required a=42;", "option 1 is not of the form"),  # Java takes no bare numbers either
        ("M required a=p@ss;", "option 2 is not of the form"),
        ("M required keyTab=/etc/keytab;", "does not end with a semicolon"),  # a slash begins a comment in Java too
    ],
)
def test_what_java_refuses_is_a_problem(text: str, problem: str) -> None:
    read = parse_jaas(text)
    assert isinstance(read, JaasProblem)
    assert problem in read.text


@given(st.text(alphabet=st.sampled_from("ab=;\"'\\ \n/*.9-@é\0required") | st.characters()))
def test_any_text_is_read_or_is_a_problem_that_does_not_quote_it(text: str) -> None:
    parsed = parse_jaas(text + CANARY)
    assert CANARY not in repr(parsed)


@given(st.dictionaries(st.text(st.sampled_from("abcXYZ_$"), min_size=1), st.text()))
def test_quoted_values_come_back_unchanged(options: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + re.sub(r'(["\\\r\n])', lambda match: "\\" + {"\r": "r", "\n": "n"}.get(match[1], match[1]), value) + '"'

    assert options_of(" ".join(f"{name}={quoted(value)}" for name, value in options.items())) == options


@given(st.dictionaries(st.text(min_size=1), st.text()), st.text())
def test_an_option_is_changed_and_all_others_stay(options: dict[str, str], value: str) -> None:
    text = "M required;"
    for name, each in options.items():
        text = with_option(text, name, each)
    assert entry(text).module == "M"
    assert options_of_entry(with_option(text, "keyTab", value)) == options | {"keyTab": value}


def options_of_entry(text: str) -> dict[str, str]:
    return entry(text).with_prefix("")


def test_what_cannot_be_read_is_left_as_it_is() -> None:
    assert with_option("M required", "keyTab", "x") == "M required"
    assert files_named_in('Krb5LoginModule required keyTab="k"') == {}


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (
            'com.sun.security.auth.module.Krb5LoginModule required keyTab="a/k" ticketCache="c";',
            {"keyTab": "a/k", "ticketCache": "c"},
        ),
        ('Krb5LoginModule required keyTab="file:k" ticketCache="KEYRING:persistent:0";', {"keyTab": "k"}),
        ('Krb5LoginModule required keyTab="" useKeyTab=true;', {}),
        (f'{PLAIN} required keyTab="k";', {}),
        (f'{OAUTH} required ssl.truststore.location="ca.pem" clientId="x";', {"ssl.truststore.location": "ca.pem"}),
    ],
)
def test_files_that_a_login_names_are_told(text: str, files: dict[str, str]) -> None:
    assert files_named_in(text) == files


def test_an_entry_shows_no_value() -> None:
    assert repr(entry(f'M required password="{CANARY}";')) == "JaasEntry(M, password)"


# ---- rules -----------------------------------------------------------------------------------------------------------------


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
    ("options", "told"),
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
            "sasl.oauthbearer.token.endpoint.url is no URL",
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
            "is no dotted name of a Python function",
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
                "sasl__oauthbearer__token__endpoint__url": "file:///token",
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
            "1 options of IAMLoginModule are not known; use awsDebugCreds,",
        ),
    ],
)
def test_what_is_missing_or_contradicts_is_told_with_the_remedy(options: dict[str, str], told: str) -> None:
    assert told in problem_of(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"sasl__mechanism": "OAUTHBEARER", "sasl__jaas__config": f'{OAUTH} required unsecuredLoginStringClaim_sub="a";'},
        {"sasl__mechanism": "OAUTHBEARER", "sasl__login__callback__handler__class": "package.module.token"},
        {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__token__endpoint__url": "file:///run/token"},
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


def test_without_sasl_its_options_are_not_looked_at() -> None:
    ProducerConfig.from_mapping({"bootstrap.servers": "h:1", "sasl.jaas.config": "nonsense", "sasl.mechanism": "X"})


def test_a_callback_handler_of_the_jvm_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    accepted(sasl__kerberos__service__name="kafka", sasl__client__callback__handler__class="org.example.Handler")
    assert "'sasl.client.callback.handler.class' has no effect" in caplog.text


def test_the_sink_tells_sasl_problems_together_with_all_others() -> None:
    problems: list[str] = []
    SinkOptions.check({"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.acks": "7"}, problems)
    assert len(problems) == 3  # bootstrap.servers too


# ---- the samples -------------------------------------------------------------------------------------------------------------


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
