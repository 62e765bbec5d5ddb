"""known_schemas.py: what was answered is not asked again, but for the latest version after a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.schemas import known_schemas
from spark_kafka_sink.schemas.known_schemas import KnownSchemas
from spark_kafka_sink.schemas.registry_errors import SUBJECT_NOT_FOUND, UNREACHABLE, RegistryError
from tests.fakes.clock import ManualClock
from tests.fakes.registry_config import registry_config
from tests.network.sasl.token_server import TokenServer
from tests.schemas.fake_registry import FakeRegistry

LATEST_TTL_MS = 60_000
LONG, STRING = '"long"', '"string"'


pytestmark = pytest.mark.usefixtures("process_that_knows_no_schema")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(compatibility="NONE") as registry:
        registry.register("s", LONG)
        yield registry


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def config(registry: FakeRegistry, **more: str) -> RegistryConfig:
    options = {"schema.registry.url": registry.url, "schema.registry.max.retries": "0"}
    return registry_config(options | {name.replace("__", "."): value for name, value in more.items()})


def schemas_of(registry: FakeRegistry, clock: ManualClock, **more: str) -> KnownSchemas:
    return KnownSchemas(config(registry, **more), clock=clock)


def test_each_question_is_asked_once_in_a_process(registry: FakeRegistry, clock: ManualClock) -> None:
    for _ in range(3):
        with schemas_of(registry, clock) as each:
            assert (each.latest("s").text, each.version("s", 1).text, each.by_id(1).text) == (LONG, LONG, LONG)
            schema = each.lookup("s", LONG)
            assert schema is not None
            assert schema.id == 1
            assert each.find_or_register("s", LONG, "valueSchema") == schema
        clock.advance(1_000)
    assert len(registry.requests) == 4


def test_an_id_is_known_for_its_context_only(registry: FakeRegistry, clock: ManualClock) -> None:
    """Whoever asked for an id in one context was given the schema that another context has under it."""
    registry.register(":.staging:s", STRING)
    for _ in range(2):
        with schemas_of(registry, clock) as each:
            assert (each.by_id(1).text, each.by_id(1, ":.staging:s").text, each.by_id(1, ":.staging:").text) == (
                LONG,
                STRING,
                STRING,
            )
            assert (each.latest("s").text, each.latest(":.staging:s").text) == (LONG, STRING)
    assert len(registry.requests) == 4


def test_a_schema_that_is_not_there_yet_is_asked_for_again(registry: FakeRegistry, clock: ManualClock) -> None:
    with schemas_of(registry, clock) as each:
        assert each.lookup("s", STRING) is None
        registry.register("s", STRING)
        assert each.lookup("s", STRING) is not None


def test_what_was_registered_is_known(registry: FakeRegistry, clock: ManualClock) -> None:
    with schemas_of(registry, clock) as each:
        written = each.find_or_register("s", STRING, "valueSchema")
        request_count = len(registry.requests)
        assert each.lookup("s", STRING) == written
    assert len(registry.requests) == request_count


def test_a_new_latest_version_comes_in_after_a_while_and_is_logged(
    registry: FakeRegistry, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with schemas_of(registry, clock) as each:
        each.latest("s")
        registry.register("s", STRING)
        clock.advance(LATEST_TTL_MS - 1)
        assert each.latest("s").version == 1
        clock.advance(1)
        assert each.latest("s").version == 2
    assert caplog.messages == ["= rows are written with s version 2 (id 2) from now on, before with s version 1 (id 1)"]


@pytest.mark.parametrize(("seconds", "asks"), [("-1", 1), ("0", 3), ("3600", 1)])
def test_how_long_the_latest_version_is_kept_is_an_option(
    registry: FakeRegistry, clock: ManualClock, seconds: str, asks: int
) -> None:
    for _ in range(3):
        schemas_of(registry, clock, latest__cache__ttl__sec=seconds).latest("s")
        clock.advance(1_000_000)
    assert len(registry.requests) == asks


def test_while_the_registry_is_gone_the_known_version_goes_on(
    registry: FakeRegistry, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with schemas_of(registry, clock) as each:
        each.latest("s")
        each.close()
        registry.stop()
        clock.advance(LATEST_TTL_MS)
        assert each.latest("s").version == 1
        assert each.latest("s").version == 1
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        with pytest.raises(RegistryError) as raised:
            each.latest("t")
    assert raised.value.condition == UNREACHABLE


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    """Grants one token, and then answers as the test says."""
    with TokenServer() as server:
        server.answers = [(200, b'{"access_token": "abc"}', {})]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(30)


def oauth(tokens: TokenServer) -> dict[str, str]:
    return {
        "bearer__auth__issuer__endpoint__url": tokens.url,
        "bearer__auth__client__id": "me",
        "bearer__auth__client__secret": "x",
        "schema__registry__retries__max__wait__ms": "1",
    }


@pytest.mark.parametrize("is_there", [True, False], ids=["busy", "gone"])
def test_while_the_server_of_tokens_is_gone_the_known_version_goes_on(
    registry: FakeRegistry, clock: ManualClock, tokens: TokenServer, is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream ended with KAFKA_OAUTH_TOKEN_UNAVAILABLE, though it would have gone on without its registry."""
    with schemas_of(registry, clock, **oauth(tokens)) as each:
        each.latest("s")
    tokens.answers = [(503, b"", {}) if is_there else lambda handler: handler.connection.close()] * 100
    clock.advance(LATEST_TTL_MS)
    with schemas_of(registry, clock, **oauth(tokens)) as each:
        assert each.latest("s").version == 1
        with pytest.raises(AuthenticationError):
            each.latest("t")
    assert "s version 1 (id 1) is still written with" in caplog.text


def test_a_client_that_the_server_of_tokens_refuses_is_an_error(
    registry: FakeRegistry, clock: ManualClock, tokens: TokenServer
) -> None:
    """Revoked credentials were a warning, and the stream went on, though it ended when the registry itself refused them."""
    with schemas_of(registry, clock, **oauth(tokens)) as each:
        each.latest("s")
    tokens.answers = [(401, b'{"error": "invalid_client", "error_description": "revoked"}', {})]
    clock.advance(LATEST_TTL_MS)
    with (
        schemas_of(registry, clock, **oauth(tokens)) as each,
        pytest.raises(AuthenticationError, match="invalid_client: revoked"),
    ):
        each.latest("s")


def test_a_subject_that_is_gone_is_an_error_even_if_it_was_known(clock: ManualClock) -> None:
    with FakeRegistry() as registry:
        registry.register("s", LONG)
        each = schemas_of(registry, clock)
        each.latest("s")
        registry._subjects.clear()
        clock.advance(LATEST_TTL_MS)
        with pytest.raises(RegistryError) as raised:
            each.latest("s")
        assert raised.value.condition == SUBJECT_NOT_FOUND
        each.close()


def test_other_options_are_other_answers(registry: FakeRegistry, clock: ManualClock) -> None:
    schemas_of(registry, clock).latest("s")
    schemas_of(registry, clock, basic__auth__user__info="me:x").latest("s")
    assert len(registry.requests) == 2


def test_memory_is_bounded(registry: FakeRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_schemas, "MAX_ANSWERS", 2)
    with schemas_of(registry, clock) as each:
        each.by_id(1)
        each.version("s", 1)
        each.latest("s")
        assert len(known_schemas._answers) == 2
        each.by_id(1)
    assert registry.requests.count("GET /schemas/ids/1") == 2


def test_long_answers_are_kept_up_to_a_limit_for_all(
    registry: FakeRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the number of answers was limited, to 10,000, and each may have millions of characters."""
    monkeypatch.setattr(known_schemas, "MAX_ANSWERED_CHARACTERS", 2 * len(STRING))
    for name in "abc":
        registry.register(name, STRING)
    with schemas_of(registry, clock) as each:
        for name in ("a", "b", "c", "c", "b"):
            each.version(name, 1)
        assert len(registry.requests) == 3
        registry.register("long", '{"type": "string"}')
        each.version("long", 1)
        assert [answer.schema.subject for answer in known_schemas._answers.values()] == ["long"]


def test_a_refresh_in_a_full_cache_removes_no_other_answer(
    registry: FakeRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_schemas, "MAX_ANSWERS", 2)
    with schemas_of(registry, clock) as each:
        each.by_id(1)
        each.latest("s")
        clock.advance(LATEST_TTL_MS)
        each.latest("s")
        each.by_id(1)
    assert registry.requests.count("GET /schemas/ids/1") == 1


def test_a_refreshed_answer_is_the_newest(registry: FakeRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refreshed answer kept its place, so the answer of a long stream was the next to be removed."""
    monkeypatch.setattr(known_schemas, "MAX_ANSWERS", 3)
    with schemas_of(registry, clock) as each:
        each.latest("s")
        each.by_id(1)
        clock.advance(LATEST_TTL_MS)
        each.latest("s")
        each.version("s", 1)
        each.lookup("s", LONG)
        request_count = len(registry.requests)
        each.latest("s")
    assert len(registry.requests) == request_count


def test_without_a_thread_to_ask_on_the_known_version_goes_on(
    registry: FakeRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers limit threads. The NetworkError of that was no RegistryError, and ended the stream."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with schemas_of(registry, clock) as each:
        each.latest("s")
        clock.advance(LATEST_TTL_MS)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert each.latest("s").version == 1
        with pytest.raises(RegistryError, match="no background thread could be started: can't start new thread") as raised:
            each.latest("t")
    assert raised.value.condition == UNREACHABLE


def test_a_known_answer_connects_nowhere(registry: FakeRegistry, clock: ManualClock) -> None:
    schemas_of(registry, clock).by_id(1)

    def connect(_: RegistryConfig) -> None:
        raise AssertionError("it connects")

    assert KnownSchemas(config(registry), connect, clock).by_id(1).text == LONG
