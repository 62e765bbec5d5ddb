"""config/jaas.py: sasl.jaas.config is read as Java reads it, and no problem quotes a password."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.jaas import JaasEntry, JaasProblem, files_named_in, parse_jaas, with_option

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
        ('M required password="x;', "behind quotes that do not end"),
        # Each was "it does not end with a semicolon outside of quotes", or "the login module is not followed by one of …".
        ("M required username=alice password=s3//cr3t;", "a value that holds a / needs quotes"),
        ("M required username=alice password=s/cr3t;", "a value that holds a / needs quotes"),
        ("M required username=alice password=s;cr3t;", "a value that holds a semicolon needs quotes"),
        ("M required username=alice password=s;cr3t", "a value that holds a semicolon needs quotes"),
        ("M required username=alice password=s; ;", "a value that holds a semicolon needs quotes"),
        ("M;", "not followed by one of required, requisite, sufficient, optional"),
        ("M always;", "not followed by one of required"),
        ("M required; N required;", "there can be one module only"),
        (";", "does not begin with the name of a login module"),
        ("M required a;", "option 1 is not of the form"),
        ("M required a=b c=;", "option 2 is not of the form"),
        ("M required a=42;", "option 1 is not of the form"),  # Java takes no bare numbers either
        ("M required a=p@ss;", "option 2 is not of the form"),
        ("M required keyTab=/etc/keytab;", "a value that holds a / needs quotes"),  # a slash begins a comment in Java too
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
        (f'{OAUTH} required ssl.truststore.location="C:\\\\ca.pem";', {"ssl.truststore.location": r"C:\ca.pem"}),
        ('Krb5LoginModule required keyTab="c:/k";', {"keyTab": "c:/k"}),
    ],
)
def test_the_files_that_a_login_names_are_found(text: str, files: dict[str, str]) -> None:
    assert files_named_in(text) == files


def test_an_entry_shows_no_value() -> None:
    assert repr(entry(f'M required password="{CANARY}";')) == "JaasEntry(M, password)"
