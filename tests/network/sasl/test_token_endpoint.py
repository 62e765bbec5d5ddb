"""token_endpoint.py: tokens from an authorization server, directly and through proxies; jwt_assertion.py: who asks for them."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.config.jaas import NO_JAAS_ENTRY, JaasEntry
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sasl import ALLOWED_FILES
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.sasl import jwt_assertion, token_endpoint
from spark_kafka_sink.network.sasl.token_sources import (
    MAX_TOKEN_BYTES,
)
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken
from tests.fakes.certificates import Authority
from tests.fakes.clock import ManualClock
from tests.network.sasl.samples import CANARY, claims_of, entry, jwt
from tests.network.sasl.token_server import TokenHandler, TokenServer

# A TOKEN ENDPOINT


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(30)


@pytest.fixture(autouse=True)
def files_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_FILES, "assertion, key.pem, template.json, file, test_token_endpoint.py")


def config_for(server: TokenServer | str, **options: str) -> ProducerConfig:
    mapping = {
        "bootstrap.servers": "h:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": server if isinstance(server, str) else server.url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": CANARY,
    }
    return ProducerConfig.from_mapping(mapping | {name.replace("__", "."): text for name, text in options.items()})


def fetch(config: ProducerConfig, clock: ManualClock, jaas: JaasEntry = NO_JAAS_ENTRY) -> OAuthBearerToken:
    make_post = partial(token_endpoint.client_credentials_post, config, jaas)
    return token_endpoint.TokenEndpoint(config, jaas, make_post, clock).token()


def refusal(config: ProducerConfig, clock: ManualClock) -> str:
    with pytest.raises(AuthenticationError) as raised:
        fetch(config, clock)
    error: BaseException | None = raised.value
    while error is not None:  # what urllib raised would have the secret in its frames
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        assert CANARY not in str([frame.locals for frame in shown.stack]) + str(error)
        error = error.__context__
    return raised.value.message


def granted(token: str = "abc") -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps({"access_token": token, "token_type": "Bearer"}).encode(), {}


def test_client_credentials_are_exchanged_for_a_token(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [granted(jwt(exp=9, sub="me", user="alice"))]
    token = fetch(
        config_for(server, sasl__oauthbearer__scope="kafka read", sasl__oauthbearer__sub__claim__name="user"),
        clock,
        entry("extension_logicalCluster=lkc"),
    )
    assert (token.lifetime_ms, token.principal_name, token.extensions) == (9000, "alice", {"logicalCluster": "lkc"})
    ((headers, form),) = server.requests
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka read"]}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == f"me:{CANARY}".encode()
    assert (headers["Accept"], headers["Content-Type"]) == ("application/json", "application/x-www-form-urlencoded")


def test_the_login_module_may_hold_the_credentials(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [granted()]
    jaas = entry('clientId="i d" clientSecret="s&t" scope="x"')
    config = config_for(
        server,
        sasl__oauthbearer__client__credentials__client__id=None,
        sasl__oauthbearer__client__credentials__client__secret=None,
        sasl__jaas__config='OAuthBearerLoginModule required clientId="i d" clientSecret="s&t" scope="x";',
        sasl__oauthbearer__header__urlencode="true",
    )
    assert fetch(config, clock, jaas).value.reveal() == "abc"
    ((headers, form),) = server.requests
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"i+d:s%26t"
    assert form["scope"] == ["x"]


def test_a_busy_server_is_asked_again_with_growing_pauses(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [(503, b"", {}), (500, b"not json", {}), granted()]
    assert fetch(config_for(server), clock).value.reveal() == "abc"
    assert len(server.requests) == 3


def test_asking_again_ends_after_the_time_for_it(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [(503, b"", {})] * 100
    started_ms = clock.now_ms()
    message = refusal(config_for(server, sasl__login__retry__backoff__max__ms="1000"), clock)
    assert message.startswith(f"no token from {server.url} after ")
    assert "HTTP status 503" in message
    assert clock.now_ms() - started_ms == 1000
    assert 3 <= len(server.requests) <= 6


def test_a_key_in_the_query_of_the_address_is_in_no_text(
    server: TokenServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """https://…/token?apikey=… stood in each warning, and in the error."""
    server.answers = [(503, b"", {})] * 100
    message = refusal(config_for(f"{server.url}?apikey=s3cr3t"), clock)
    assert message.startswith(f"no token from {server.url} after ")
    assert f"to get a token from {server.url} failed" in caplog.text
    assert "s3cr3t" not in message + caplog.text


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_final_refusal_raises_at_once_in_the_servers_words(server: TokenServer, clock: ManualClock, status: int) -> None:
    server.answers = [(status, b'{"error":"invalid_client","error_description":"no such client"}', {})]
    message = refusal(config_for(server), clock)
    assert message == f"no token from {server.url} after 1 attempt(s): HTTP status {status} invalid_client: no such client"


def test_an_answer_that_repeats_the_clients_secret_is_shown_without_it(server: TokenServer, clock: ManualClock) -> None:
    """A server that says which secret it does not know had it in the error, as text, URL-encoded or as it was sent."""
    secret = f"{CANARY} &/é"
    pair = base64.b64encode(f"me:{secret}".encode()).decode()
    text = (
        f"unknown: {secret}, {urllib.parse.quote(secret, safe='')}, {urllib.parse.quote_plus(secret)}, Basic {pair}, me:{secret}"
    )
    server.answers = [(400, json.dumps({"error": "invalid_client", "error_description": text}).encode(), {})]
    message = refusal(config_for(server, sasl__oauthbearer__client__credentials__client__secret=secret), clock)
    assert message.endswith("invalid_client: unknown: [hidden], [hidden], [hidden], Basic [hidden], [hidden]")


def test_what_is_no_answer_of_http_is_shown_without_the_clients_secret(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [lambda handler: handler.wfile.write(f"{handler.headers['Authorization']} {CANARY}\r\n\r\n".encode())]
    message = refusal(config_for(server, sasl__login__retry__backoff__max__ms="0"), clock)
    assert "BadStatusLine: Basic [hidden] [hidden]" in message


FORGED = "no\x1b[2K\n2026-01-01 ERROR forged\u202e" + "x" * 100_000


def assert_on_one_line_of_bounded_length(text: str) -> None:
    assert text.isprintable()
    assert len(text) < 1000
    assert r"no\x1b[2K\n2026-01-01 ERROR forged\u202ex" in text


def test_the_words_of_a_token_server_are_escaped_and_cut(
    server: TokenServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A token server's error_description went into log lines and errors with its line breaks and terminal sequences."""
    server.answers = [(status, json.dumps({"error_description": FORGED}).encode(), {}) for status in (503, 400)]
    assert_on_one_line_of_bounded_length(refusal(config_for(server), clock))
    (warning,) = caplog.records
    assert_on_one_line_of_bounded_length(warning.getMessage())


def test_what_is_no_answer_of_http_is_escaped_and_cut(server: TokenServer, clock: ManualClock) -> None:
    """http.client's error quotes the status line, of up to 64 KiB, as it came."""
    server.answers = [lambda handler: handler.wfile.write(b"HTTP/1.1 no\x1b[2K " + b"x" * 60_000 + b"\r\n\r\n")]
    message = refusal(config_for(server, sasl__login__retry__backoff__max__ms="0"), clock)
    assert r"BadStatusLine: HTTP/1.1 no\x1b[2K xx" in message
    assert message.isprintable()
    assert len(message) < 1000


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"access_token":null}', b'{"access_token":" "}', b"\xff", b"[" * 100_000, b'{"id_token":"x"}']
)
def test_an_answer_without_a_token_is_an_error(server: TokenServer, clock: ManualClock, body: bytes) -> None:
    server.answers = [(200, body, {})]
    assert "the answer has no access_token" in refusal(config_for(server), clock)


def test_the_answer_is_read_up_to_a_limit(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [(200, b'{"access_token":"' + b"x" * (2 * MAX_TOKEN_BYTES) + b'"}', {})]
    assert "the answer has no access_token" in refusal(config_for(server), clock)


def test_redirects_are_not_followed(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [(302, b"", {"Location": server.url}), granted()]
    assert "after 1 attempt(s): HTTP status 302" in refusal(config_for(server), clock)
    assert len(server.requests) == 1


def test_an_answer_that_does_not_come_in_time_is_an_error(server: TokenServer, clock: ManualClock) -> None:
    release = threading.Event()
    server.answers = [lambda _: release.wait(30)]
    config = config_for(server, sasl__login__read__timeout__ms="50", sasl__login__retry__backoff__max__ms="0")
    try:
        assert "TimeoutError: timed out" in refusal(config, clock)
    finally:
        release.set()


class Drip:
    """Sends a beginning, then one byte after the other, until the client has gone or the test lets it end."""

    def __init__(self, beginning: bytes, drop: bytes) -> None:
        self.beginning = beginning
        self.drop = drop
        self.release = threading.Event()
        self.client_is_gone = threading.Event()

    def __call__(self, handler: TokenHandler) -> None:
        try:
            handler.wfile.write(self.beginning)
            while not self.release.wait(0.01):
                handler.wfile.write(self.drop)
        except OSError:
            self.client_is_gone.set()


DRIPS = {
    "body": Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    "chunks": Drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "refusal": Drip(b"HTTP/1.1 400 Bad\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    "headers": Drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "1xx": Drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("part", DRIPS)
def test_a_server_that_lets_its_answer_drip_is_given_up_in_time(server: TokenServer, clock: ManualClock, part: str) -> None:
    """sasl.login.read.timeout.ms was a time-out of the socket: with every byte it began again. A server that sent one now and
    then held a fetch for days, and with it all logins of the producer."""
    drip = DRIPS[part]
    server.answers = [drip]
    config = config_for(server, sasl__login__read__timeout__ms="200", sasl__login__retry__backoff__max__ms="0")
    messages: list[str] = []
    thread = threading.Thread(target=lambda: messages.append(refusal(config, clock)), daemon=True)
    thread.start()
    thread.join(10)
    is_over = not thread.is_alive()
    gone = drip.client_is_gone.wait(10) if is_over else False
    drip.release.set()
    thread.join(30)
    assert is_over
    assert "HTTP status 400" in messages[0] if part == "refusal" else "TimeoutError: timed out" in messages[0]
    assert gone  # the thread that read has ended too, and has closed its connection


def test_a_name_server_that_does_not_answer_is_given_up_in_time(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time-out of a socket bounds the system's resolver."""
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(30) and [])
    config = config_for(
        "https://login.example/token",
        sasl__login__connect__timeout__ms="50",
        sasl__login__read__timeout__ms="50",
        sasl__login__retry__backoff__max__ms="0",
    )
    try:
        assert "TimeoutError: no complete answer within 100 ms" in refusal(config, clock)
        assert not release.is_set()
    finally:
        release.set()


class Proxy(http.server.ThreadingHTTPServer):
    """Notes what it is asked, and refuses it, or lets the answer to it drip."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.answer: Callable[[Any], None] = lambda handler: handler.send_error(403)
        super().__init__(("127.0.0.1", 0), ProxyHandler)


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    server: Proxy

    def do_POST(self) -> None:
        self.server.requests.append((self.requestline, dict(self.headers)))
        self.server.answer(self)

    do_CONNECT = do_POST

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """In the environment, for all that can be named there."""
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    with Proxy() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_address[1]}")
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join(30)


def test_a_request_over_http_goes_through_no_proxy(server: TokenServer, proxy: Proxy, clock: ManualClock) -> None:
    """With http_proxy in the environment, urllib sent the whole request to the proxy, the client's secret in clear."""
    server.answers = [granted(), granted()]
    assert fetch(config_for(server), clock).value.reveal() == "abc"
    assert fetch(config_for(server.url.replace("127.0.0.1", "localhost")), clock).value.reveal() == "abc"
    assert proxy.requests == []


def test_this_machine_is_reached_without_a_proxy_over_https_too(
    https_server: TokenServer, proxy: Proxy, clock: ManualClock, tmp_path: Path
) -> None:
    https_server.answers = [granted()]
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    trusting = entry(f'ssl.truststore.location="{tmp_path / "ca.pem"}" ssl.truststore.type=PEM')
    assert fetch(config_for(https_server), clock, trusting).value.reveal() == "abc"
    assert proxy.requests == []


def test_a_proxy_for_https_is_asked_for_a_tunnel_and_sees_no_secret(
    proxy: Proxy, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for("https://login.example/token", sasl__login__retry__backoff__max__ms="0")
    assert "Tunnel connection failed: 403" in refusal(config, clock)
    ((line, headers),) = proxy.requests
    assert line.startswith("CONNECT login.example:443 ")
    assert base64.b64encode(f"me:{CANARY}".encode()).decode() not in str(headers)
    assert "Proxy-Authorization" not in headers
    monkeypatch.setenv("https_proxy", f"//proxy:{CANARY}2@127.0.0.1:{proxy.server_address[1]}")
    assert "Tunnel connection failed: 403" in refusal(config, clock)
    assert proxy.requests[1][1]["Proxy-Authorization"] == f"Basic {base64.b64encode(f'proxy:{CANARY}2'.encode()).decode()}"
    monkeypatch.setenv("no_proxy", "login.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    assert "Tunnel" not in refusal(config, clock)
    assert len(proxy.requests) == 2


@pytest.mark.parametrize("form", ["http:/me:{}@host:1", "http://me:{}", "http://me:{}@host:99999", "socks5://me:{}@host:1"])
def test_a_proxy_that_is_no_url_is_an_error_without_its_login(
    form: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib's own errors quote the URL, or what stands in the place of its port: the proxy's password."""
    monkeypatch.setenv("https_proxy", form.format(CANARY))
    monkeypatch.delenv("no_proxy", raising=False)
    text = refusal(config_for("https://login.example/token", sasl__login__retry__backoff__max__ms="0"), clock)
    assert "https_proxy" in text
    assert CANARY not in text


def test_a_proxy_that_lets_its_answer_drip_is_given_up_in_time(proxy: Proxy, clock: ManualClock) -> None:
    drip = Drip(b"HTTP/1.1 200 OK\r\nX: ", b"x")
    proxy.answer = drip
    config = config_for(
        "https://login.example/token",
        sasl__login__connect__timeout__ms="100",
        sasl__login__read__timeout__ms="100",
        sasl__login__retry__backoff__max__ms="0",
    )
    try:
        assert "TimeoutError: " in refusal(config, clock)
        assert drip.client_is_gone.wait(10)
    finally:
        drip.release.set()


def test_a_server_that_hangs_up_or_is_not_there_is_an_error(server: TokenServer, clock: ManualClock) -> None:
    server.answers = [lambda handler: handler.connection.close()]
    once = {"sasl__login__retry__backoff__max__ms": "0"}
    assert "after 1 attempt(s)" in refusal(config_for(server, **once), clock)
    assert "ConnectionRefusedError" in refusal(config_for("http://127.0.0.1:9/token", **once), clock)


AUTHORITY = Authority("ca")


@pytest.fixture
def https_server(server: TokenServer) -> TokenServer:
    server.socket = AUTHORITY.issue("login").server_context().wrap_socket(server.socket, server_side=True)
    server.url = server.url.replace("http://127.0.0.1", "https://localhost")
    return server


def test_the_login_module_says_whom_to_trust_over_https_as_in_java(
    https_server: TokenServer, clock: ManualClock, tmp_path: Path
) -> None:
    """The brokers' ssl.* options are not for it. These here were passed over in silence once, and the server was not trusted."""
    https_server.answers = [granted(), granted()]
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    config = config_for(https_server, ssl__truststore__certificates=Authority("brokers").pem)
    trusting = entry(f'clientId="me" ssl.truststore.location="{tmp_path / "ca.pem"}" ssl.truststore.type=PEM')
    assert fetch(config, clock, trusting).value.reveal() == "abc"
    assert (
        fetch(config, clock, entry(f'ssl.truststore.certificates="{AUTHORITY.pem.replace(chr(10), " ")}"')).value.reveal()
        == "abc"
    )


def test_a_server_that_is_not_trusted_raises_at_once(https_server: TokenServer, clock: ManualClock) -> None:
    message = refusal(config_for(https_server), clock)
    assert "after 1 attempt(s): SSLCertVerificationError" in message
    assert https_server.requests == []


def test_certificates_of_the_login_module_that_cannot_be_read_are_an_error(server: TokenServer) -> None:
    jaas = entry(f'ssl.truststore.location="/nowhere/ca.pem" ssl.truststore.password="{CANARY}"')
    with pytest.raises(
        ConfigError, match=r"sasl\.jaas\.config: ssl\.truststore\.location=/nowhere/ca\.pem: there is no"
    ) as raised:
        fetch(config_for(server), ManualClock(), jaas)
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    assert CANARY not in str([frame.locals for frame in shown.stack if frame.filename != __file__])


# JWT ASSERTIONS


def write_key(tmp_path: Path, kind: str, passphrase: bytes | None = None) -> tuple[Path, Any]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key: Any = rsa.generate_private_key(65537, 2048) if kind == "RS256" else ec.generate_private_key(ec.SECP256R1())
    hiding = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    file = tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hiding))
    return file, key.public_key()


def bearer_config(**options: str) -> ProducerConfig:
    retriever = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
    return config_for("https://h/token", sasl__oauthbearer__jwt__retriever__class=retriever, **options)


def verify(assertion: Secret, public: Any, algorithm: str) -> dict[str, Any]:
    """The header, after its signature has been checked."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    signed, _, signature = assertion.reveal().rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    if algorithm == "RS256":
        public.verify(raw, signed.encode(), padding.PKCS1v15(), SHA256())
    else:
        pair = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        public.verify(pair, signed.encode(), ec.ECDSA(SHA256()))
    return json.loads(base64.urlsafe_b64decode(signed.split(".")[0] + "=="))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("passphrase", [None, "open"])
def test_an_assertion_is_signed_and_says_what_the_options_say(
    tmp_path: Path, clock: ManualClock, algorithm: str, passphrase: str | None
) -> None:
    file, public = write_key(tmp_path, algorithm, passphrase and passphrase.encode())
    template = tmp_path / "template.json"
    template.write_text('{"header": {"kid": "k1"}, "payload": {"tenant": "t", "iss": "replaced"}}')
    config = bearer_config(
        sasl__oauthbearer__assertion__private__key__file=str(file),
        sasl__oauthbearer__assertion__private__key__passphrase=passphrase,
        sasl__oauthbearer__assertion__algorithm=algorithm,
        sasl__oauthbearer__assertion__template__file=str(template),
        sasl__oauthbearer__assertion__claim__iss="issuer",
        sasl__oauthbearer__assertion__claim__sub="alice",
        sasl__oauthbearer__assertion__claim__aud="kafka",
        sasl__oauthbearer__assertion__claim__jti__include="true",
    )
    assertion = jwt_assertion.assertion_of(config, clock)
    assert verify(assertion, public, algorithm) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    claims = claims_of(assertion)
    now_s = clock.wall_ms() // 1000
    assert len(claims.pop("jti")) == 36
    assert claims == {
        "tenant": "t", "iss": "issuer", "sub": "alice", "aud": "kafka", "iat": now_s, "exp": now_s + 300, "nbf": now_s - 60,
    }  # fmt: skip


def test_an_assertion_is_exchanged_for_a_token(server: TokenServer, clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "assertion").write_text("a.b.c\n")
    server.answers = [granted()]
    config = config_for(
        server,
        sasl__oauthbearer__jwt__retriever__class="JwtBearerJwtRetriever",
        sasl__oauthbearer__assertion__file=str(tmp_path / "assertion"),
        sasl__oauthbearer__scope="s",
    )
    make_post = partial(token_endpoint.jwt_bearer_post, config, NO_JAAS_ENTRY, clock)
    assert token_endpoint.TokenEndpoint(config, NO_JAAS_ENTRY, make_post, clock).token().value.reveal() == "abc"
    ((headers, form),) = server.requests
    assert form == {"grant_type": ["urn:ietf:params:oauth:grant-type:jwt-bearer"], "assertion": ["a.b.c"], "scope": ["s"]}
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("RS256", {"algorithm": "ES256"}, "does not fit sasl.oauthbearer.assertion.algorithm=ES256"),
        ("RS256", {"private__key__passphrase": "open"}, "cannot be used"),
        ("garbage", {}, "cannot be used"),
        ("RS256", {"template__file": "/no/such/file"}, "assertion.template.file: /no/such/file cannot be read"),
        ("RS256", {"template__file": __file__}, "must hold JSON like"),
    ],
)
def test_a_key_or_template_that_cannot_be_used_is_an_error(
    tmp_path: Path, clock: ManualClock, key: str, options: dict[str, str], message: str
) -> None:
    if key == "garbage":
        file = tmp_path / "key.pem"
        file.write_text(CANARY)
    else:
        file, _ = write_key(tmp_path, key)
    config = bearer_config(
        sasl__oauthbearer__assertion__private__key__file=str(file),
        **{f"sasl__oauthbearer__assertion__{name}": text for name, text in options.items()},
    )
    with pytest.raises(AuthenticationError, match=message) as raised:
        jwt_assertion.assertion_of(config, clock)
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    assert CANARY not in str([frame.locals for frame in shown.stack])
    assert "PRIVATE KEY" not in str([frame.locals for frame in shown.stack])


def test_the_error_of_a_missing_cryptography_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match="pip install cryptography"):
        jwt_assertion.require_cryptography()
