"""network/sasl: PLAIN, OAUTHBEARER and GSSAPI as exchanges, and which login a configuration asks for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.jaas import JaasEntry, parse_jaas
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.background import BackgroundWork, outcome_of
from spark_kafka_sink.network.sasl.factory import login_of
from spark_kafka_sink.network.sasl.kerberos import GssapiLogin
from spark_kafka_sink.network.sasl.login import Exchange, Login, PlainLogin
from spark_kafka_sink.network.sasl.oauthbearer import OAuthBearerLogin, first_message
from spark_kafka_sink.network.sasl.scram import ScramLogin
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, RefreshWindow, TokenCache
from tests.fakes.clock import ManualClock
from tests.fakes.sasl_server import Refused, SaslServer

CANARY = "canary-7Qx2"


class Dialog:
    """An exchange whose background work is done at once."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.message: bytes | None = self._until_message(lambda: next(exchange))

    def send(self, challenge: bytes) -> bytes | None:
        """The next message; None at the end."""
        self.message = self._until_message(lambda: self._exchange.send(challenge))
        return self.message

    def _until_message(self, resume: Any) -> bytes | None:
        try:
            step = resume()
            while isinstance(step, BackgroundWork):
                outcome = outcome_of(step.work)
                step = self._exchange.send(outcome.result) if outcome.error is None else self._exchange.throw(outcome.error)
        except StopIteration:
            return None
        assert repr(step) == "[hidden]"
        return bytes(step)


def frames_of(error: BaseException) -> str:
    """All frames with their locals, but for this file's."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    return str([(frame.name, frame.locals) for frame in shown.stack if frame.filename != __file__]) + str(shown)


# PLAIN


def test_plain_sends_name_and_password() -> None:
    dialog = Dialog(PlainLogin("zoë", Secret("pä\u00a0ss")).start("broker"))
    assert dialog.message == b"\0zo\xc3\xab\0p\xc3\xa4\xc2\xa0ss"
    assert dialog.send(b"") is None


def test_plain_is_understood_by_a_server() -> None:
    server = SaslServer("PLAIN", {"alice": CANARY})
    server.evaluate(Dialog(PlainLogin("alice", Secret(CANARY)).start("broker")).message or b"")
    assert server.complete
    with pytest.raises(Refused):
        SaslServer("PLAIN", {"alice": "other"}).evaluate(Dialog(PlainLogin("alice", Secret(CANARY)).start("")).message or b"")


# OAUTHBEARER


def bearer(token: OAuthBearerToken | BaseException) -> OAuthBearerLogin:
    def fetch() -> OAuthBearerToken:
        if isinstance(token, BaseException):
            raise token
        return token

    window = RefreshWindow(0.8, 0.05, 60_000, 300_000)
    return OAuthBearerLogin(TokenCache(fetch, window, ManualClock(), wait_ms=1000, random=Random(0)))


def test_oauthbearer_sends_the_token_and_is_done() -> None:
    login = bearer(OAuthBearerToken(Secret("abc.def"), principal_name="alice"))
    assert login.user_text == "the bearer of a token"
    dialog = Dialog(login.start("broker"))
    assert dialog.message == b"n,,\x01auth=Bearer abc.def\x01\x01"
    assert dialog.send(b"") is None
    assert login.user_text == "token principal 'alice'"


def test_a_principal_that_a_token_names_is_escaped_and_cut_in_errors() -> None:
    """The principal is a claim of the token, which its issuer may fill with anything."""
    name = "al\x1b[2Kice\n" + "x" * 100_000
    login = bearer(OAuthBearerToken(Secret("abc.def"), principal_name=name))
    next(login.start("broker")).work()
    assert login.user_text.startswith(r"token principal 'al\x1b[2Kice\nxx")
    assert len(login.user_text) < 1000


def test_extensions_follow_the_token() -> None:
    token = OAuthBearerToken(Secret("abc"), extensions={"logicalCluster": "lkc-1", "identityPoolId": "pool"})
    assert first_message(token) == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool\x01\x01"


def test_a_refused_token_is_acknowledged_and_raises_with_the_brokers_reason() -> None:
    dialog = Dialog(bearer(OAuthBearerToken(Secret(CANARY))).start("broker"))
    assert dialog.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationError, match=r"KAFKA_SASL_AUTHENTICATION_FAILED.*invalid_token") as raised:
        dialog.send(b"")  # brokers send an error here; this one forgot
    assert CANARY not in frames_of(raised.value)


@pytest.mark.parametrize(
    "token",
    [
        OAuthBearerToken(Secret("")),
        OAuthBearerToken(Secret(CANARY + "\x01auth=Bearer other")),
        OAuthBearerToken(Secret(CANARY + " ")),
        OAuthBearerToken(Secret(CANARY + "\n")),
        OAuthBearerToken(Secret(CANARY + "é")),
        OAuthBearerToken(Secret(CANARY), extensions={"auth": "x"}),
        OAuthBearerToken(Secret(CANARY), extensions={"a1": "x"}),
        OAuthBearerToken(Secret(CANARY), extensions={"a": "x\x01b=y"}),
    ],
)
def test_what_would_break_the_message_is_not_sent(token: OAuthBearerToken) -> None:
    with pytest.raises(AuthenticationError, match="KAFKA_OAUTH_TOKEN_UNAVAILABLE") as raised:
        Dialog(bearer(token).start("broker"))
    assert CANARY not in frames_of(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: OAuthBearerToken(CANARY.encode()),
        lambda: OAuthBearerToken(Secret("abc"), "soon"),
        lambda: OAuthBearerToken(Secret("abc"), extensions={"a": 1}),
        lambda: OAuthBearerToken(Secret("abc"), extensions=None),
    ],
)
def test_a_token_of_the_wrong_types_fails_the_login_and_nothing_else(
    make: Callable[[], OAuthBearerToken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "callback", lambda _: make())
    options = {"sasl__mechanism": "OAUTHBEARER", "sasl__login__callback__handler__class": f"{__name__}.callback"}
    with pytest.raises(AuthenticationError, match="KAFKA_LOGIN_FAILED") as raised:
        Dialog(login(**options).start(""))
    assert CANARY not in str(raised.value)


def test_a_refusal_that_repeats_the_token_is_quoted_without_it() -> None:
    """The texts of a broker are cut at 300 characters: a longer token, which is cut too, would not be found in what is left."""
    token = CANARY * 40
    dialog = Dialog(bearer(OAuthBearerToken(Secret(token))).start("broker"))
    dialog.send(f"unknown: {token}; {token}".encode())
    with pytest.raises(AuthenticationError, match=r"unknown: \[hidden\]; \[hidden\]'"):
        dialog.send(b"")


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit("no idea")])
def test_a_token_that_cannot_be_had_fails_the_login(error: BaseException) -> None:
    with pytest.raises(AuthenticationError, match=rf"\[KAFKA_LOGIN_FAILED\] {type(error).__name__}: no idea"):
        Dialog(bearer(error).start("broker"))


@given(refusal=st.binary(min_size=1))
def test_any_refusal_of_a_token_raises(refusal: bytes) -> None:
    dialog = Dialog(bearer(OAuthBearerToken(Secret("abc"))).start("broker"))
    dialog.send(refusal)
    with pytest.raises(AuthenticationError, match="the broker rejected the token"):
        dialog.send(b"")


# GSSAPI


class FakeGssapi:
    """python-gssapi, as far as it is used: wraps by putting text around, and stands after `rounds` tokens of the server."""

    class exceptions:
        class GSSError(Exception):
            min_code = 0

            def get_all_statuses(self, code: int, is_major: bool) -> list[str]:
                assert (code, is_major) == (self.min_code, False)
                return [str(self)]

    MechType = SimpleNamespace(kerberos="krb5")
    NameType = SimpleNamespace(hostbased_service="host", kerberos_principal="principal")

    def __init__(self, *, rounds: int = 1, fails_in: str = "", code: int = 0x96C73A07) -> None:
        self.rounds = rounds
        self.fails_in = fails_in
        self.code = code
        self.says = "Server not found in Kerberos database"
        self.credentials: list[dict[str, Any]] = []
        self.targets: list[str] = []

    def Name(self, name: str, kind: str) -> str:
        return f"{kind}:{name}"

    def Credentials(self, **options: Any) -> str:
        self.credentials.append(options)
        return "credentials"

    def SecurityContext(self, *, name: str, creds: str | None, mech: str, usage: str) -> FakeContext:
        assert (mech, usage) == ("krb5", "initiate")
        assert (creds is None) == (not self.credentials)
        self.targets.append(name)
        return FakeContext(self)


class FakeContext:
    initiator_name = "alice@EXAMPLE.COM"

    def __init__(self, gssapi: FakeGssapi) -> None:
        self._gssapi = gssapi
        self._left = gssapi.rounds
        self._has_begun = False

    @property
    def complete(self) -> bool:
        """As python-gssapi, which puts off an error of a step that gave a token."""
        if self._has_begun:
            self._may_fail("complete")
        return self._has_begun and self._left == 0

    def step(self, token: bytes | None) -> bytes | None:
        self._may_fail("step")
        if token is None:
            self._has_begun = True
            return b"first"
        self._left -= 1
        return b"next" if self._left else None

    def unwrap(self, data: bytes) -> SimpleNamespace:
        self._may_fail("unwrap")
        return SimpleNamespace(message=data.removeprefix(b"<").removesuffix(b">"))

    def wrap(self, data: bytes, encrypt: bool) -> SimpleNamespace:
        assert not encrypt
        return SimpleNamespace(message=b"<" + data + b">")

    def _may_fail(self, where: str) -> None:
        if self._gssapi.fails_in == where:
            error = self._gssapi.exceptions.GSSError(self._gssapi.says)
            error.min_code = self._gssapi.code
            raise error


def gssapi_dialog(gssapi: FakeGssapi, jaas: str = "Krb5LoginModule required;") -> Dialog:
    entry = parse_jaas(jaas)
    assert isinstance(entry, JaasEntry)
    return Dialog(GssapiLogin("kafka", entry, gssapi).start("broker1.example.com"))


def test_gssapi_has_three_parts() -> None:
    gssapi = FakeGssapi()
    dialog = gssapi_dialog(gssapi)
    assert gssapi.targets == ["host:kafka@broker1.example.com"]
    assert dialog.message == b"first"
    assert dialog.send(b"reply") == b""  # the context stands; the server's offer comes next
    assert dialog.send(b"<\x01\x00\x10\x00>") == b"<\x01\x00\x00\x00alice@EXAMPLE.COM>"
    assert dialog.send(b"") is None


def test_gssapi_takes_as_many_tokens_as_the_context_needs() -> None:
    dialog = gssapi_dialog(FakeGssapi(rounds=2))
    assert dialog.send(b"reply") == b"next"
    assert dialog.send(b"reply") == b""
    dialog = gssapi_dialog(FakeGssapi(rounds=0))  # without mutual authentication the offer comes at once
    assert dialog.send(b"<\x07\x00\x10\x00>") == b"<\x01\x00\x00\x00alice@EXAMPLE.COM>"


@pytest.mark.parametrize("offer", [b"<\x02\x00\x10\x00>", b"<\x06\x00\x10\x00>", b"<>", b"<\x01>", b"<\x01\x00\x10\x00more>"])
def test_gssapi_refuses_an_offer_that_it_cannot_take(offer: bytes) -> None:
    dialog = gssapi_dialog(FakeGssapi())
    dialog.send(b"reply")
    with pytest.raises(AuthenticationError, match="KAFKA_ILLEGAL_SASL_CHALLENGE"):
        dialog.send(offer)


@pytest.mark.parametrize(
    ("fails_in", "message"),
    [
        (
            "step",
            r"no ticket for kafka@broker1\.example\.com: Server not found in Kerberos database; is there a principal SERVICE/",
        ),
        ("complete", "Server not found"),
        ("unwrap", "Server not found"),
    ],
)
def test_what_kerberos_refuses_is_named_in_the_error(fails_in: str, message: str) -> None:
    with pytest.raises(AuthenticationError, match=message) as raised:  # noqa: PT012 - whichever of them
        dialog = gssapi_dialog(FakeGssapi(fails_in=fails_in))
        dialog.send(b"reply")
        dialog.send(b"<\x01\x00\x10\x00>")
    assert raised.value.condition == "KAFKA_LOGIN_FAILED"


@pytest.mark.parametrize(
    ("code", "login", "remedy"),
    [
        (0, "", "kafka@broker1.example.com: Server not found in Kerberos database"),
        (1, "", "kafka@broker1.example.com: Server not found in Kerberos database"),
        (0x96C73A20, "", "; renew the tickets (kinit), or give keyTab and principal in sasl.jaas.config"),
        (0x96C73A20 - 2**32, "", "; renew the tickets (kinit), or give keyTab and principal in sasl.jaas.config"),
        (0x96C73A8D, "", "; get tickets (kinit), or give keyTab and principal in sasl.jaas.config"),
        (0x96C73A8D, 'useKeyTab=true keyTab="/dev/null"', "; the keytab holds no key of the principal in sasl.jaas.config"),
    ],
)
def test_what_kerberos_says_comes_with_a_remedy_if_there_is_one(code: int, login: str, remedy: str) -> None:
    with pytest.raises(AuthenticationError) as raised:
        gssapi_dialog(FakeGssapi(fails_in="step", code=code), f"Krb5LoginModule required {login};")
    assert raised.value.message.endswith(remedy)


def test_the_host_and_what_kerberos_says_of_it_are_cut_to_one_line_of_the_error() -> None:
    """The host is what a broker advertises, and the Kerberos library repeats it."""
    host = "x\nforged" + "y" * 10_000
    gssapi = FakeGssapi(fails_in="step")
    gssapi.says = f"no such host: {host}"
    entry = parse_jaas("Krb5LoginModule required;")
    assert isinstance(entry, JaasEntry)
    with pytest.raises(
        AuthenticationError, match=r"kafka@x\\nforgedyyy.* more characters\): no such host: x\\nforgedy"
    ) as raised:
        Dialog(GssapiLogin("kafka", entry, gssapi).start(host))
    assert len(str(raised.value)) < 1500


def credentials_of(jaas: str) -> list[dict[str, Any]]:
    gssapi = FakeGssapi()
    gssapi_dialog(gssapi, jaas)
    return gssapi.credentials


def test_tickets_come_from_the_default_cache() -> None:
    assert credentials_of("Krb5LoginModule required useTicketCache=true;") == []
    of_alice = {"name": "principal:alice@EXAMPLE.COM", "mechs": ["krb5"], "usage": "initiate"}
    assert credentials_of('Krb5LoginModule required useTicketCache=true principal="alice@EXAMPLE.COM";') == [of_alice]


def test_tickets_come_from_the_cache_that_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    for name in (f"{cache}", f"FILE:{cache}"):
        (credentials,) = credentials_of(f'Krb5LoginModule required useTicketCache=true ticketCache="{name}";')
        assert (credentials["name"], credentials["store"]) == (None, {"ccache": str(cache)})
    (credentials,) = credentials_of('Krb5LoginModule required useTicketCache=true ticketCache="KEYRING:persistent:0";')
    assert credentials["store"] == {"ccache": "KEYRING:persistent:0"}


def test_tickets_for_a_keytab_are_kept_in_memory_for_each_principal(tmp_path: Path) -> None:
    """Tickets were written to the user's default ticket cache once, in place of the tickets that were there."""
    keytab = tmp_path / "k"
    keytab.touch()
    jaas = f'Krb5LoginModule required useKeyTab=true useTicketCache=true keyTab="{keytab}" principal="%s@EXAMPLE.COM";'
    (alice,), (again,), (bob,) = (credentials_of(jaas % name) for name in ("alice", "alice", "bob"))
    assert alice == again
    assert (alice["name"], alice["store"]["client_keytab"]) == ("principal:alice@EXAMPLE.COM", str(keytab))
    assert alice["store"]["ccache"].startswith("MEMORY:")
    assert alice["store"]["ccache"] != bob["store"]["ccache"]


def test_a_keytab_that_cannot_be_read_raises_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: keyTab=/nowhere/k cannot be read: No such file"):
        gssapi_dialog(FakeGssapi(), 'Krb5LoginModule required useKeyTab=true keyTab="/nowhere/k" principal="a";')
    with pytest.raises(
        ConfigError, match=r"keyTab=no\.keytab cannot be read: No such file or directory in the working directory"
    ):
        gssapi_dialog(FakeGssapi(), 'Krb5LoginModule required useKeyTab=true keyTab="no.keytab" principal="a";')


# WHICH LOGIN


def login(**options: str) -> Login:
    mapping = {"bootstrap.servers": "b-1.x.c2.kafka.eu-west-1.amazonaws.com:9098", "security.protocol": "SASL_PLAINTEXT"}
    mapping |= {name.replace("__", "."): value for name, value in options.items()}
    return login_of(ProducerConfig.from_mapping(mapping), ManualClock(), Random(0))


def test_names_and_passwords_go_to_the_mechanism_that_was_asked_for() -> None:
    jaas = 'x.PlainLoginModule required username="alice" password="alice-secret";'
    plain = login(sasl__mechanism="PLAIN", sasl__jaas__config=jaas)
    assert isinstance(plain, PlainLogin)
    assert Dialog(plain.start("")).message == b"\0alice\0alice-secret"
    jaas = 'x.ScramLoginModule required username="id" password="p" tokenauth="true";'
    scram = login(sasl__mechanism="SCRAM-SHA-512", sasl__jaas__config=jaas)
    assert isinstance(scram, ScramLogin)
    assert (scram.mechanism, scram.user_text) == ("SCRAM-SHA-512", "delegation token 'id'")


def test_the_error_of_a_missing_kerberos_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match="pip install gssapi"):
        login(sasl__kerberos__service__name="kafka")


def test_the_error_of_a_missing_aws_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match="pip install aws-msk-iam-sasl-signer-python"):
        login(sasl__mechanism="AWS_MSK_IAM")


class FakeSigner:
    """aws_msk_iam_sasl_signer.MSKAuthTokenProvider."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def generate_auth_token(self, region: str, aws_debug_creds: bool = False) -> tuple[str, int]:
        return self._give("default", region, aws_debug_creds)

    def generate_auth_token_from_profile(self, region: str, aws_profile: str) -> tuple[str, int]:
        return self._give("profile", region, aws_profile)

    def generate_auth_token_from_role_arn(self, region: str, role_arn: str, sts_session_name: str) -> tuple[str, int]:
        if role_arn == "bad":
            raise RuntimeError("AccessDenied\n\x1b[2K")
        return self._give("role", region, role_arn, sts_session_name)

    def _give(self, *call: Any) -> tuple[str, int]:
        self.calls.append(call)
        return CANARY, 4_000_000_000_000


@pytest.mark.parametrize(
    ("jaas", "call"),
    [
        ("IAMLoginModule required;", ("default", "eu-west-1", False)),
        ('IAMLoginModule required awsProfileName="p";', ("profile", "eu-west-1", "p")),
        ('IAMLoginModule required awsRoleArn="r" awsRoleSessionName="s";', ("role", "eu-west-1", "r", "s")),
        ('IAMLoginModule required awsRoleArn="r";', ("role", "eu-west-1", "r", "pykafka-sink")),
    ],
)
def test_aws_tokens_come_from_the_official_signer(monkeypatch: pytest.MonkeyPatch, jaas: str, call: tuple[Any, ...]) -> None:
    signer = FakeSigner()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(__path__=[], MSKAuthTokenProvider=signer))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", signer)
    aws_login = login(sasl__mechanism="AWS_MSK_IAM", sasl__jaas__config="software.amazon.msk.auth.iam." + jaas)
    assert aws_login.mechanism == "OAUTHBEARER"
    assert Dialog(aws_login.start("")).message == b"n,,\x01auth=Bearer " + CANARY.encode() + b"\x01\x01"
    assert signer.calls == [call]


def test_what_aws_refuses_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = FakeSigner()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", signer)
    aws_login = login(sasl__mechanism="AWS_MSK_IAM", sasl__jaas__config='IAMLoginModule required awsRoleArn="bad";')
    with pytest.raises(AuthenticationError, match=r"AWS gave no token for region eu-west-1: RuntimeError: AccessDenied\\n\\x1b"):
        Dialog(aws_login.start(""))


def callback(options: Mapping[str, str]) -> str:
    return options["token"]


def test_a_token_callback_is_found_by_its_dotted_name() -> None:
    options = {"sasl__mechanism": "OAUTHBEARER", "sasl__jaas__config": "OAuthBearerLoginModule required token=abc;"}
    for name in (f"{__name__}.callback", f"{__name__}:callback"):
        token_login = login(**options, sasl__login__callback__handler__class=name)
        assert Dialog(token_login.start("")).message == b"n,,\x01auth=Bearer abc\x01\x01"


@pytest.mark.parametrize(
    "name", ["no_such_module.function", f"{__name__}.no_such_function", f"{__name__}.CANARY", "com.google.auth.Handler"]
)
def test_a_callback_that_cannot_be_loaded_is_named_in_the_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"sasl.login.callback.handler.class={name} cannot be loaded: "):
        login(sasl__mechanism="OAUTHBEARER", sasl__login__callback__handler__class=name)
