"""What may go wrong between a client and its registry: each ends in time, with words that say what to do, and shows no login."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.config.format_options import AVRO, LATEST, PartOptions, SchemaReference
from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import AuthenticationError, ConfigError, KafkaError
from spark_kafka_sink.network.background import outcome_of
from spark_kafka_sink.schemas import registry, registry_client
from spark_kafka_sink.schemas.registry import SchemaRegistry
from spark_kafka_sink.schemas.registry_errors import RegistryError
from spark_kafka_sink.schemas.registry_pools import make_pool
from spark_kafka_sink.schemas.wanted_schema import plan_schema
from tests.fakes.certificates import Authority
from tests.fakes.clock import ManualClock
from tests.fakes.registry_config import registry_config
from tests.network.sasl.token_server import TokenServer
from tests.schemas.fake_registry import FakeRegistry, Fault, answers, hangs_up, stops_halfway
from tests.schemas.registry_samples import FIRST, condition

CANARY = "canary7Qx2zzWq"
QUICK = {"schema.registry.retries.wait.ms": "1", "schema.registry.retries.max.wait.ms": "1"}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        registry.register("s", FIRST)
        yield registry


@pytest.fixture(autouse=True)
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert CANARY not in caplog.text


def client(url: str, **options: str) -> SchemaRegistry:
    settings = {key.replace("__", "."): value for key, value in options.items()}
    return SchemaRegistry(registry_config({"schema.registry.url": url, **QUICK, **settings}))


def refusal(registry: SchemaRegistry) -> KafkaError:
    return error_of(lambda: registry.latest("s"))


def error_of(call: Callable[[], object]) -> KafkaError:
    """The error that a call raises; looked at with the locals of every frame of ours."""
    with pytest.raises(KafkaError) as raised:
        call()
    error: BaseException | None = raised.value
    while error is not None:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        assert CANARY not in str([frame.locals for frame in shown.stack if "/tests/" not in frame.filename]) + str(error)
        error = error.__cause__ or error.__context__
    return raised.value


# ANSWERS THAT ARE NONE


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (
            answers(200, b"<html>Log in", "text/html"),
            "with text/html in place of JSON; is schema.registry.url the address of a schema",
        ),
        (answers(200, b"", ""), "with nothing in place of JSON"),
        (answers(200, b"[" * 200_000), "in place of JSON"),
        (answers(200, b"[1]"), "a JSON object is expected, not list"),
        (answers(200, b'{"id": 1}'), "there is no schema in it"),
        (answers(200, b'{"id": "1", "schema": "x"}'), "1 is not the id of a schema"),
        (answers(200, b'{"id": 99999999999, "schema": "x"}'), "99999999999 is not the id"),
        (answers(200, b'{"id": 1, "schema": "\\ud800"}'), "there is no schema in it"),
        (answers(200, b'{"id": 1, "schema": "x", "references": [{"name": "a"}]}'), "its references cannot be read"),
        (
            answers(200, b'{"id": 1, "schema": "x", "references": [{"name": "a", "subject": "\\ud800", "version": 1}]}'),
            "its references cannot be read",
        ),
        (answers(404, b"not here", "text/plain"), "HTTP status 404, with text/plain in place of JSON; is schema.registry.url"),
        (answers(404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'), "HTTP 404 Not Found; is schema.registry.url"),
        (answers(404, b'{"error_code": 404, "message": "Not here."}'), "Not here; is schema.registry.url"),  # one full stop less
        (answers(404, b'{"detail": "Not Found"}'), "HTTP status 404; is schema.registry.url the address"),
        (
            answers(302, b"", Location=f"https://me:{CANARY}@else/x?t={CANARY}"),
            "redirects to https://else/x, which is not followed",
        ),
        (answers(302, b"", Location=f"/login?t={CANARY}"), "redirects to /login, which is not followed"),
        (answers(302, b"", Location=f"//me:{CANARY}"), "redirects to [hidden], which is not followed"),
        (answers(307, b""), "redirects to an address that it does not name"),
    ],
)
def test_the_error_says_that_what_answered_is_no_registry(fake: FakeRegistry, fault: Fault, expected: str) -> None:
    with fake.fail_with(fault):
        error = refusal(client(fake.url, basic__auth__user__info=f"me:{CANARY}"))
    assert expected in str(error)
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_INVALID_ANSWER"
    assert len(fake.requests) == 1


def test_a_gigantic_answer_is_read_to_a_limit(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "MAX_ANSWER_BYTES", 100_000)
    with fake.fail_with(answers(200, b" " * 200_000)):
        assert "more than 100,000 bytes" in str(refusal(client(fake.url)))


def test_references_without_end_are_followed_to_a_limit(fake: FakeRegistry) -> None:
    numbers = iter(range(10**6))

    def more_and_more(handler: BaseHTTPRequestHandler) -> bool:
        references = [{"name": "a", "subject": "b", "version": next(numbers)}]
        return answers(200, json.dumps({"id": 1, "schema": "x", "references": references}).encode())(handler)

    with fake.fail_with(more_and_more):
        assert "refers to more than 200 other schemas" in str(refusal(client(fake.url)))


def test_a_long_list_of_references_is_refused_before_any_is_asked_for(fake: FakeRegistry) -> None:
    references = [{"name": f"n{number}", "subject": "b", "version": 1} for number in range(201)]
    with fake.fail_with(answers(200, json.dumps({"id": 1, "schema": "x", "references": references}).encode())):
        assert "refers to more than 200 other schemas" in str(refusal(client(fake.url)))
    assert len(fake.requests) == 1


def test_references_to_gigantic_texts_are_followed_to_a_limit(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 answers of 8 MB each were held in memory."""
    monkeypatch.setattr(registry, "MAX_REFERENCED_CHARACTERS", 100)
    numbers = iter(range(10**6))

    def more_and_more(handler: BaseHTTPRequestHandler) -> bool:
        number = next(numbers)
        references = [{"name": f"n{number}", "subject": "b", "version": number}]
        return answers(200, json.dumps({"id": 1, "schema": "x" * 30, "references": references}).encode())(handler)

    with fake.fail_with(more_and_more):
        assert "refers to schemas of more than 100 characters" in str(refusal(client(fake.url)))
    assert len(fake.requests) == 5


@pytest.mark.parametrize("version", [5, 1])
def test_another_version_than_was_asked_for_is_not_used(fake: FakeRegistry, version: int) -> None:
    body = json.dumps({"id": 1, "version": version, "schema": FIRST}).encode()
    with fake.fail_with(answers(200, body)), pytest.raises(RegistryError, match=f"version 3 .* it is version {version}"):
        client(fake.url).version("s", 3)


@pytest.mark.parametrize("version", [0, -1, True, "1", [1]])
def test_an_answer_with_an_invalid_version_has_no_version(fake: FakeRegistry, version: object) -> None:
    with fake.fail_with(answers(200, json.dumps({"id": 1, "version": version, "schema": FIRST}).encode())):
        assert client(fake.url).latest("s").version is None


def test_schemas_that_refer_to_each_other_are_asked_for_once(fake: FakeRegistry) -> None:
    text = b'{"id": 1, "schema": "x", "references": [{"name": "a", "subject": "b", "version": 1}]}'
    with fake.fail_with(answers(200, text)):
        assert client(fake.url).latest("s").references == {"a": "x"}
    assert len(fake.requests) == 2


# THE LOGIN IN AN ANSWER


@pytest.mark.parametrize("status", [401, 409, 503])
@pytest.mark.parametrize(
    "login", [{"basic__auth__user__info": f"me:{CANARY}"}, {"bearer__auth__credentials__source": "STATIC_TOKEN"}]
)
def test_an_answer_that_repeats_the_login_is_shown_without_it(fake: FakeRegistry, status: int, login: dict[str, str]) -> None:
    options = login if "basic__auth__user__info" in login else login | {"bearer__auth__token": CANARY}
    pair = base64.b64encode(f"me:{CANARY}".encode()).decode()
    said = f"not you: Basic {pair}, {pair.rstrip('=')}, me:{CANARY}, me%3A{CANARY}, Bearer {CANARY}; {CANARY}"
    if "bearer__auth__token" in options:
        said = said.replace(pair, "…").replace(pair.rstrip("="), "…")
    body = json.dumps({"error_code": status, "message": said}).encode()
    with fake.fail_with(answers(status, body, f"text/{CANARY}")):
        error = refusal(client(fake.url, schema__registry__max__retries="1", **options))
    assert "not you: Basic " in str(error)
    assert "[hidden]; [hidden]" in str(error)
    assert pair not in str(error)
    assert pair.rstrip("=") not in str(error)


def test_what_is_no_http_is_shown_without_the_login(fake: FakeRegistry) -> None:
    def repeats(handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(f"{handler.headers['Authorization']} is no HTTP\r\n\r\n".encode())
        handler.close_connection = True
        return True

    with fake.fail_with(repeats):
        error = refusal(
            client(
                fake.url,
                schema__registry__max__retries="0",
                bearer__auth__credentials__source="STATIC_TOKEN",
                bearer__auth__token=CANARY,
            )
        )
    assert "[hidden] is no HTTP" in str(error)


def test_a_defect_here_is_not_called_a_login_that_failed(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("read badly")

    monkeypatch.setattr("spark_kafka_sink.schemas.registry_client._read_answer", fails)
    error = refusal(client(fake.url))
    assert str(error) == "[KAFKA_INTERNAL_ERROR] ZeroDivisionError: read badly"


def test_reasons_of_an_incompatibility_are_shown_without_the_login(fake: FakeRegistry) -> None:
    body = json.dumps({"is_compatible": False, "messages": [f"me:{CANARY} may not", 5]}).encode()
    registry = client(fake.url, basic__auth__user__info=f"me:{CANARY}")
    with fake.fail_with(answers(200, body)), pytest.raises(KafkaError) as raised:
        registry.require_compatible("s", '"string"')
    assert "[hidden] may not" in str(raised.value)
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("said", ["{secret}", "me:{secret}", "{pair}", "me%3A{secret}"])
@pytest.mark.parametrize(
    "body",
    [
        {"id": "{said}", "schema": FIRST},
        {"id": ["{said}"], "schema": FIRST},
        {"id": {"{said}": 1}, "schema": FIRST},
        {"id": 1, "schema": FIRST, "schemaType": "{said}"},
        {"id": 1, "schema": "{said}"},
        {"id": 1, "schema": '{"type": "record", "name": "{said}", "fields": []}'},
        {"id": 1, "schema": FIRST.replace('"long"', '"{said}"')},
        {"id": 1, "schema": FIRST.replace('"long"', '"long", "default": "{said}"')},
        {"id": 1, "schema": FIRST, "references": [{"name": "{said}", "subject": "missing", "version": 1}]},
        {"id": 1, "schema": FIRST, "references": [{"name": "a", "subject": "{said}", "version": 1}]},
        {"id": 1, "schema": FIRST, "subject": ":.{said}:s"},
        {"id": 1, "schema": FIRST, "ruleSet": {"domainRules": [{"name": "{said}", "kind": "{said}", "type": ["{said}"]}]}},
        {"id": 1, "schema": FIRST, "ruleSet": {"domainRules": ["{said}"]}},
        {"compatibilityLevel": "{said}"},
    ],
    ids=str,
)
def test_no_part_of_an_answer_shows_the_login(fake: FakeRegistry, body: dict[str, object], said: str) -> None:
    """Only `message` and `messages` were looked through. A registry, or a proxy before it, that repeats the login elsewhere
    had it in errors, logs and the output of `check`."""
    secrets = {"secret": CANARY, "pair": base64.b64encode(f"me:{CANARY}".encode()).decode()}
    answer = json.dumps(body).replace("{said}", said.format(**secrets))

    def answers_the_first(handler: BaseHTTPRequestHandler) -> bool:
        return "/missing/" not in handler.path and CANARY not in handler.path and answers(200, answer.encode())(handler)

    registry = client(fake.url, basic__auth__user__info=f"me:{CANARY}")
    row = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    by_latest = plan_schema(PartOptions("value", AVRO, SchemaReference(LATEST)), row, registry_config({}), [])
    with fake.fail_with(answers_the_first):
        results = [
            outcome_of(partial(by_latest.find_or_register, registry, "t")),
            outcome_of(partial(registry.find_or_register, "s", '"string"', "valueSchema")),
            outcome_of(partial(registry.compatibility, "s")),
        ]
    for text in (*map(str, results), *fake.requests):
        assert not any(form in text for form in (CANARY, secrets["pair"], secrets["pair"].rstrip("=")))


def test_a_rejection_that_repeats_the_login_anywhere_is_a_rejection(fake: FakeRegistry) -> None:
    body = {"error_code": 40401, "message": f"not {CANARY}", "schema": CANARY, "subject": CANARY}
    with fake.fail_with(answers(404, json.dumps(body).encode())):
        error = refusal(client(fake.url, basic__auth__user__info=f"me:{CANARY}"))
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_SUBJECT_NOT_FOUND"
    assert "not [hidden]" in str(error)


def test_an_answer_that_is_nested_too_deeply_to_look_through_is_none(fake: FakeRegistry) -> None:
    depth = sys.getrecursionlimit() - 100
    with fake.fail_with(answers(200, b'{"id": ' + b"[" * depth + b"]" * depth + b"}")):
        error = refusal(client(fake.url, basic__auth__user__info=f"me:{CANARY}"))
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_INVALID_ANSWER"


def test_a_schema_with_the_login_in_it_is_not_used_and_the_error_says_so(fake: FakeRegistry) -> None:
    """To hide the login in a schema would make another schema of it."""
    body = {"id": 1, "schema": FIRST.replace('"long"', f'"long", "default": "{CANARY}"')}
    with fake.fail_with(answers(200, json.dumps(body).encode())):
        error = refusal(client(fake.url, basic__auth__user__info=f"me:{CANARY}"))
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_INVALID_ANSWER"
    assert "the answer's schema repeats the login that was sent" in str(error)


@pytest.mark.parametrize("password", ["name", "Order", "long", "fields", "1"])
def test_a_password_that_is_a_word_of_schemas_leaves_them_as_they_are(fake: FakeRegistry, password: str) -> None:
    fake.login = f"me:{password}"
    registry = client(fake.url, basic__auth__user__info=f"me:{password}")
    assert registry.latest("s").text == FIRST


def test_a_subject_of_dots_is_asked_for_at_its_own_path(fake: FakeRegistry) -> None:
    """urllib3 resolved the dots, so that the request went to another path."""
    for subject, path in ((".", "/subjects/%2E/versions/latest"), ("..", "/subjects/%2E%2E/versions/latest")):
        with pytest.raises(RegistryError):
            client(fake.url).latest(subject)
        assert fake.requests[-1].split()[1] == path


# REPETITIONS


@pytest.mark.parametrize(
    "fault", [hangs_up, stops_halfway, answers(503, b""), answers(429, b"{}"), answers(500, b"oops", "text/plain")]
)
def test_what_may_pass_is_tried_again(fake: FakeRegistry, fault: Fault) -> None:
    with fake.fail_with(fault, times=2):
        assert client(fake.url).latest("s").id == 1
    assert len(fake.requests) == 3


def test_repetitions_end_with_the_registrys_words(fake: FakeRegistry) -> None:
    with fake.fail_with(answers(500, b'{"error_code": 50001, "message": "Error in the backend\\n\\u202e"}')):
        error = refusal(client(fake.url, schema__registry__max__retries="2"))
    assert len(fake.requests) == 3
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_UNREACHABLE"
    assert r"after 3 attempt(s)" in str(error)
    assert r"HTTP status 500 Error in the backend\n\u202e" in str(error)


def test_another_address_answers_for_one_that_does_not(fake: FakeRegistry) -> None:
    registry = client(f"http://127.0.0.1:1,{fake.url}", basic__auth__user__info=f"me:{CANARY}")
    assert registry.latest("s").id == 1
    fake.stop()
    error = refusal(registry)
    assert f"{fake.url}: " in str(error)
    assert "http://127.0.0.1:1: " in str(error)
    assert str(error).index(fake.url) < str(error).index("http://127.0.0.1:1:")  # the one that answered last is asked first


def test_a_name_that_does_not_exist_is_an_error() -> None:
    error = refusal(client("http://no-such-host.invalid:8081", schema__registry__max__retries="0"))
    assert "http://no-such-host.invalid:8081: gaierror: " in str(error)
    assert "check schema.registry.url" in str(error)


# SLOW SERVERS


class Dripping:
    """A server that sends its bytes one by one, without an end; `ended` is set when the client has hung up."""

    def __init__(self, first: bytes, then: bytes) -> None:
        self.ended = threading.Event()
        self._first, self._then = first, then
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, self._socket, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(self._first)
            connection.settimeout(0.02)
            while not self._has_hung_up(connection):
                connection.sendall(self._then)
        self.ended.set()

    @staticmethod
    def _has_hung_up(connection: socket.socket) -> bool:
        try:
            return not connection.recv(1)
        except TimeoutError:
            return False


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silent", "headers", "body", "last-body", "continue"],
)
def test_a_server_that_drips_is_left_in_time_and_hung_up_on(first: bytes, then: bytes) -> None:
    """After "Connection: close" it was not hung up on: http.client has let go of the socket before the body is read."""
    server = Dripping(first, then)
    limits = {"schema__registry__default__api__timeout__ms": "300", "schema__registry__max__retries": "0"}
    error = refusal(client(server.url, basic__auth__user__info=f"me:{CANARY}", **limits))
    assert re.search("no complete answer within [23][0-9]{2} ms", str(error))
    assert server.ended.wait(30)


def test_the_whole_call_has_a_limit(fake: FakeRegistry) -> None:
    """Waits are not begun that would end after it."""
    waits = {"schema__registry__retries__wait__ms": "60000", "schema__registry__retries__max__wait__ms": "60000"}
    with fake.fail_with(answers(503, b"{}")):
        error = refusal(client(fake.url, schema__registry__default__api__timeout__ms="5000", **waits))
    assert "after 1 attempt(s)" in str(error)


def test_a_reference_that_no_time_is_left_for_is_named_in_the_error(fake: FakeRegistry) -> None:
    """The error said that there was no complete answer within 1 ms."""
    clock = ManualClock()
    numbers = iter(range(10**6))

    def slow(handler: BaseHTTPRequestHandler) -> bool:
        clock.advance(3_000)
        references = [{"name": "a", "subject": "b", "version": next(numbers)}]
        return answers(200, json.dumps({"id": 1, "schema": "x", "references": references}).encode())(handler)

    settings = {"schema.registry.url": fake.url, "schema.registry.default.api.timeout.ms": "5000"}
    registry = SchemaRegistry(registry_config(settings), clock)
    with fake.fail_with(slow), pytest.raises(RegistryError, match=r"reference a: .* all of .*timeout\.ms=5000 for the requests"):
        registry.latest("s")


def test_an_address_that_says_nothing_leaves_time_for_the_next(fake: FakeRegistry) -> None:
    server = Dripping(b"", b"")
    registry = client(f"{server.url},{fake.url}", schema__registry__default__api__timeout__ms="2000")
    assert registry.latest("s").id == 1
    assert server.ended.wait(30)


# LOGINS


@pytest.mark.parametrize("options", [{}, {"basic__auth__user__info": f"me:{CANARY}"}, {"bearer__auth__token": CANARY}])
def test_a_wrong_login_raises_at_once(options: dict[str, str]) -> None:
    with FakeRegistry(login="me:right") as fake:
        error = refusal(client(fake.url, **options))
        assert len(fake.requests) == 1
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_LOGIN_FAILED"
    assert "check basic.auth.user.info, or bearer.auth.*" in str(error)


@pytest.mark.parametrize("source", ["url", "option"])
def test_user_and_password_come_from_the_url_or_the_option(source: str) -> None:
    with FakeRegistry(login=f"m@e:{CANARY}:ü") as fake:
        fake.register("s", FIRST)
        if source == "url":
            registry = client(fake.url.replace("://", f"://m%40e:{CANARY}%3A%C3%BC@"))
        else:
            registry = client(fake.url, basic__auth__user__info=f"m@e:{CANARY}:ü")
        assert registry.latest("s").id == 1


def test_a_user_without_the_right_gets_an_error(fake: FakeRegistry) -> None:
    fake.forbidden.add("s")
    error = refusal(client(fake.url))
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_NOT_ALLOWED"
    assert "User is denied operation on Subject: s" in str(error)


def test_a_token_is_sent_with_cluster_and_pool() -> None:
    with FakeRegistry(token=CANARY) as fake:
        fake.register("s", FIRST)
        ids = {"bearer__auth__logical__cluster": "lsrc-1", "bearer__auth__identity__pool__id": "pool-1"}
        assert client(fake.url, bearer__auth__token=CANARY, **ids).latest("s").id == 1
        assert fake.headers[-1]["target-sr-cluster"] == "lsrc-1"
        assert fake.headers[-1]["Confluent-Identity-Pool-Id"] == "pool-1"


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(30)


def oauth(url: str) -> dict[str, str]:
    return {
        "bearer__auth__issuer__endpoint__url": url,
        "bearer__auth__client__id": "me",
        "bearer__auth__client__secret": CANARY,
        "bearer__auth__scope": "registry",
    }


def token_of(claims: str) -> str:
    return "e30." + base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=") + ".c2ln"


def test_tokens_of_an_oauth_server_are_fetched_once(tokens: TokenServer) -> None:
    token = token_of('{"exp": 99999999999}')
    tokens.answers = [(200, b'{"access_token": "%s"}' % token.encode(), {})]
    with FakeRegistry(token=token) as fake:
        fake.register("s", FIRST)
        registry = client(fake.url, **oauth(tokens.url))
        assert registry.latest("s").id == registry.by_id(1).id == 1
    (_, form), *others = tokens.requests
    assert others == []
    assert form == {"grant_type": ["client_credentials"], "scope": ["registry"]}


def test_an_oauth_server_that_refuses_is_quoted(tokens: TokenServer) -> None:
    tokens.answers = [(401, b'{"error": "invalid_client", "error_description": "no such client"}', {})]
    with FakeRegistry(token="x") as fake:
        error = refusal(client(fake.url, **oauth(tokens.url)))
    assert isinstance(error, AuthenticationError)
    assert "invalid_client: no such client" in str(error)
    assert fake.requests == []


def test_a_token_that_cannot_be_a_header_is_not_shown(tokens: TokenServer) -> None:
    """http.client quotes a header that it does not take."""
    tokens.answers = [(200, b'{"access_token": "%s\\nx"}' % CANARY.encode(), {})]
    with FakeRegistry(token="x") as fake:
        assert "holds blanks or other characters" in str(refusal(client(fake.url, **oauth(tokens.url))))


# TLS

AUTHORITY = Authority("ca")


def test_a_registry_is_trusted_by_its_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    with FakeRegistry(tls=AUTHORITY.issue("registry").server_context()) as fake:
        fake.register("s", FIRST)
        assert client(fake.url, schema__registry__ssl__truststore__location=str(tmp_path / "ca.pem")).latest("s").id == 1
        assert client(fake.url, schema__registry__ssl__truststore__certificates=AUTHORITY.pem).latest("s").id == 1


def test_a_registry_of_an_unknown_authority_gets_no_request() -> None:
    with FakeRegistry(tls=AUTHORITY.issue("registry").server_context()) as fake:
        error = refusal(client(fake.url, basic__auth__user__info=f"me:{CANARY}"))
        assert fake.requests == []
    assert "after 1 attempt(s)" in str(error)
    assert "certificate verify failed" in str(error)
    assert "schema.registry.ssl.truststore.location" in str(error)


def test_the_host_name_is_checked_unless_it_is_switched_off() -> None:
    with FakeRegistry(tls=AUTHORITY.issue("registry", hosts=["elsewhere"]).server_context()) as fake:
        fake.register("s", FIRST)
        trusted = {"schema__registry__ssl__truststore__certificates": AUTHORITY.pem}
        assert "Hostname mismatch" in str(refusal(client(fake.url, **trusted)))
        off = {"schema__registry__ssl__endpoint__identification__algorithm": ""}
        assert client(fake.url, **trusted, **off).latest("s").id == 1


def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    me = AUTHORITY.issue("me")
    (tmp_path / "me.pem").write_text(me.key_pem("changeit") + me.chain_pem)
    with FakeRegistry(tls=AUTHORITY.issue("registry").server_context(clients=AUTHORITY)) as fake:
        fake.register("s", FIRST)
        trusted = {"schema__registry__ssl__truststore__certificates": AUTHORITY.pem}
        keystore = {
            "schema__registry__ssl__keystore__location": str(tmp_path / "me.pem"),
            "schema__registry__ssl__key__password": "changeit",
        }
        assert client(fake.url, **trusted, **keystore).latest("s").id == 1
        assert refusal(client(fake.url, **trusted)).condition == "KAFKA_SCHEMA_REGISTRY_UNREACHABLE"


def test_https_to_a_registry_without_tls_asks_about_the_port(fake: FakeRegistry) -> None:
    error = refusal(client(fake.url.replace("http:", "https:"), schema__registry__max__retries="0"))
    assert "does the registry speak https on this port?" in str(error)


def test_a_file_that_is_missing_is_named_with_its_option(tmp_path: Path) -> None:
    start = r"^\[KAFKA_INVALID_CONFIG\] the options of the schema registry, with schema\.registry\. before each name: "
    with pytest.raises(ConfigError, match=start + r"ssl\.truststore\.location=.*none.pem"):
        client("https://localhost:1", schema__registry__ssl__truststore__location=str(tmp_path / "none.pem"))


# A PROXY


class Proxy:
    """Refuses every tunnel; `requests` has what it was sent."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, self._socket:
            self.requests.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 502 No Way\r\nContent-Length: 0\r\n\r\n")


def test_a_proxy_is_asked_for_a_tunnel_and_learns_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    monkeypatch.setenv("https_proxy", f"http://proxy%40user:{CANARY}@{proxy.address}")
    monkeypatch.delenv("no_proxy", raising=False)
    options = {"basic__auth__user__info": f"me:{CANARY}2", "schema__registry__max__retries": "0"}
    error = refusal(client("https://registry.invalid:8081", **options))
    (request,) = proxy.requests
    assert request.startswith(b"CONNECT registry.invalid:8081 HTTP/1")
    login = base64.b64encode(f"proxy@user:{CANARY}".encode())
    assert b"roxy-" in request
    assert login in request
    assert base64.b64encode(f"me:{CANARY}2".encode()) not in request
    assert "Tunnel connection failed: 502 No Way" in str(error)


@pytest.mark.parametrize("form", ["http://me:{}@host:99999", "http:/me:{}@host:1", "http://me:{}", "socks5://{}:x@host:1"])
def test_a_proxy_that_is_no_url_is_an_error_without_its_login(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3's LocationParseError left the client: it is no KafkaError, and quotes the URL with its password."""
    monkeypatch.setenv("https_proxy", form.format(CANARY))
    monkeypatch.delenv("no_proxy", raising=False)
    error = error_of(lambda: client("https://registry.invalid:8081"))
    assert isinstance(error, ConfigError)
    assert "https_proxy" in str(error)


@pytest.mark.parametrize("url", ["http://registry:8081", "https://localhost:8081", "https://inside.example:8081"])
def test_a_proxy_is_not_used_over_http_for_this_machine_or_where_it_is_excluded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "inside.example")
    (address,) = registry_config({"schema.registry.url": url}).schema_registry_url
    assert make_pool(address, RegistryConfig()).proxy is None


# WITHOUT URLLIB3


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(ConfigError, match=r'pip install "pykafka-sink\[registry\]"'):
        client("http://localhost:1")


def test_no_error_is_kept_from_those_who_ask_for_its_condition(fake: FakeRegistry) -> None:
    with (
        fake.fail_with(answers(422, b'{"error_code": 42202, "message": "The specified version is not valid"}')),
        pytest.raises(RegistryError) as raised,
    ):
        client(fake.url).latest("s")
    assert (raised.value.error_code, condition(raised)) == (42202, "KAFKA_SCHEMA_REGISTRY")
