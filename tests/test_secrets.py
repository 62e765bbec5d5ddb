"""No password, token or key shows anywhere: a canary takes their place on every way that fails, and is looked for afterwards.

Looked at are the texts of errors and of all that caused them, every frame of the package with its locals, all log lines down to
debug, what is printed, and the reprs of configurations, writers and what is pickled of them. Real brokers and Spark's tasks have
the same in tests/integration/test_sasl.py.
"""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.config.option import PASSWORD, options_of
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS, ProducerConfig
from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.sink.datasource import KafkaDataSource, check_options
from tests.fakes.fake_broker import FakeBroker
from tests.schemas.fake_registry import FakeRegistry

CANARY = "canary7Qx2zzWq"
USERS = {"alice": "right"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(autouse=True)
def no_secret_is_logged_or_printed(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    captured = capfd.readouterr()
    assert_hidden(caplog.text + captured.out + captured.err)
    assert_hidden(str([(record.msg, record.args) for record in caplog.records]))


def assert_hidden(text: str) -> None:
    assert CANARY not in text
    assert repr(CANARY.encode())[2:-1] not in text


def assert_error_hides(error: BaseException | None) -> None:
    """The whole chain, shown with the locals of every frame of ours, then as it comes out of a pickle."""
    link = error
    while link is not None:
        shown = traceback.TracebackException.from_exception(link, capture_locals=True)
        assert_hidden(str(link) + repr(link))
        assert_hidden(str([frame.locals for frame in shown.stack if "/tests/" not in frame.filename]))
        link = link.__cause__ or link.__context__
    if isinstance(error, KafkaError):
        assert_hidden(repr(vars(pickle.loads(pickle.dumps(error)))))
        assert_hidden(pickle.dumps(error).decode("latin-1"))


def fails(action: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaError) as raised:
        action()
    assert_error_hides(raised.value)
    return raised.value


def sasl(mechanism: str, jaas: str, **options: str) -> dict[str, Any]:
    dotted_options = {name.replace("__", "."): value for name, value in options.items()}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas, **dotted_options}


WRONG = {
    "PLAIN": sasl("PLAIN", f'{PLAIN} required username="alice" password="{CANARY}";'),
    "SCRAM-SHA-256": sasl("SCRAM-SHA-256", f'{SCRAM} required username="alice" password="{CANARY}";'),
    "SCRAM-SHA-512": sasl("SCRAM-SHA-512", f'{SCRAM} required username="alice" password="{CANARY}";'),
    "OAUTHBEARER": sasl(
        "OAUTHBEARER", f"{OAUTH} required token={CANARY};", sasl__login__callback__handler__class=f"{__name__}.token"
    ),
}


def token(options: Mapping[str, str]) -> str:
    return options["token"]


def failing_token(options: Mapping[str, str]) -> str:
    mine = options["token"]
    raise ValueError(f"no token with {len(mine)} characters")


def write(broker: FakeBroker, options: Mapping[str, Any]) -> None:
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": "5000", **options}) as producer:
        delivery = producer.send_columns("orders", value=pa.array(["v"]))
        producer.flush()
        delivery.result()


# CONFIGURATIONS THAT ARE WRONG


MALFORMED = [
    f'{PLAIN} required username="alice" password="{CANARY}"',
    f"{PLAIN} required username=alice password={CANARY}@x;",
    f'{PLAIN} required password="{CANARY}";',
    f'{PLAIN} {CANARY} username="alice";',
    f'{CANARY} required username="alice" password="x";',
    f'{SCRAM} required username="alice" password="{CANARY}";',
    f'{PLAIN} required username="alice" password="{CANARY}\\0";',
    f'{PLAIN} required username="alice" password="{CANARY}"; {PLAIN} required;',
    CANARY,
]


@pytest.mark.parametrize("jaas", MALFORMED)
def test_a_malformed_login_shows_nothing_to_a_producer(jaas: str) -> None:
    fails(lambda: KafkaProducer({"bootstrap.servers": "127.0.0.1:9", **sasl("PLAIN", jaas)}))


@pytest.mark.parametrize("jaas", MALFORMED)
def test_a_malformed_login_shows_nothing_to_a_spark_user(jaas: str) -> None:
    options = {f"kafka.{name}": value for name, value in sasl("PLAIN", jaas).items()} | {"topic": "t"}
    schema = StructType([StructField("value", StringType())])
    fails(lambda: KafkaDataSource(options | {"kafka.bootstrap.servers": "127.0.0.1:9"}).writer(schema, False))


@pytest.mark.parametrize(
    "options",
    [
        {"sasl.jaas.config": CANARY, "acks": "7"},
        {"sasl.jass.config": CANARY, "acks": "7"},
        {"ssl.keystore.password": CANARY, "acks": "7"},
        {"sasl.oauthbearer.client.credentials.client.secret": CANARY, "linger.ms": "soon"},
        {"ssl.keystore.key": CANARY, "security.protocol": "SSL"},
        {"ssl.key.password": CANARY, "key.serializer": "nonsense"},
    ],
)
def test_any_wrong_option_shows_no_secret_of_the_others(options: dict[str, str]) -> None:
    fails(lambda: KafkaProducer({"bootstrap.servers": "127.0.0.1:9", **options}))


LOOKS_LIKE_A_SECRET = [
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
    f'{SCRAM} required username="alice" password="{CANARY}";',
    f"user=alice password = {CANARY}",
    f"first line\n{CANARY}",
]
EVERY_PLAIN_KEY = sorted(key for key, row in PRODUCER_KEYS.items() if row.kind is not PASSWORD)


@pytest.mark.parametrize("value", LOOKS_LIKE_A_SECRET)
@pytest.mark.parametrize("key", EVERY_PLAIN_KEY)
def test_a_secret_under_the_key_of_another_option_does_not_show(key: str, value: str) -> None:
    """A key in ssl.keystore.location, or a login in sasl.mechanism, was shown as a whole in the error: on the user's screen, in
    the driver's log and in Spark's event log."""
    options: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:9", "security.protocol": "SASL_SSL", key: value}
    error = fails(lambda: KafkaProducer(options))
    assert f"The value of {key} is not shown, as it looks like a secret" in str(error)
    fails(lambda: KafkaProducer(options | {key: [value]}))


@pytest.mark.parametrize("value", LOOKS_LIKE_A_SECRET[:2])
@pytest.mark.parametrize(
    "key", [*map("kafka.{}".format, EVERY_PLAIN_KEY), *(row.key for row in options_of(SinkOptions).values())]
)
def test_a_secret_under_the_key_of_another_option_does_not_show_to_a_spark_user(key: str, value: str) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t", "deliveryGuarantee": "exactly-once", key: value}
    schema = StructType([StructField("value", StringType())])
    fails(lambda: KafkaDataSource(options).writer(schema, False))
    fails(lambda: check_options(options))


def test_a_list_of_several_lines_is_no_secret() -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9,\n  127.0.0.2:9\n"})
    assert len(config.bootstrap_servers) == 2


# A SCHEMA REGISTRY


def registry_options(fake: FakeRegistry, way: str) -> dict[str, Any]:
    options: dict[str, Any] = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t", "valueFormat": "avro"}
    if way == "url":
        return options | {"schema.registry.url": fake.url.replace("://", f"://me:{CANARY}@")}
    login = {"user info": {"basic.auth.user.info": f"me:{CANARY}"}, "token": {"bearer.auth.token": CANARY}}
    return options | {"schema.registry.url": fake.url} | login[way]


@pytest.mark.parametrize("way", ["user info", "url", "token"])
def test_a_refused_login_to_a_registry_does_not_show(way: str) -> None:
    schema = StructType([StructField("value", StringType())])
    with FakeRegistry(login="me:right") as fake:
        error = fails(lambda: KafkaDataSource(registry_options(fake, way)).writer(schema, False))
    assert error.condition == "KAFKA_SCHEMA_REGISTRY_LOGIN_FAILED"


@pytest.mark.parametrize("way", ["user info", "url"])
def test_an_accepted_login_to_a_registry_does_not_show_either(way: str) -> None:
    schema = StructType([StructField("value", StringType())])
    with FakeBroker(topics={"t": 1}) as broker, FakeRegistry(login=f"me:{CANARY}") as fake:
        options = registry_options(fake, way) | {"kafka.bootstrap.servers": broker.bootstrap_servers}
        writer = KafkaDataSource(options).writer(schema, False)
        assert fake.texts("t-value") == ['"string"']
    assert_hidden(repr(vars(writer)))


# BROKERS THAT REFUSE


@pytest.mark.parametrize("mechanism", WRONG)
def test_refused_credentials_do_not_show(mechanism: str) -> None:
    with FakeBroker(topics={"orders": 1}, users=USERS) as broker:
        error = fails(lambda: write(broker, WRONG[mechanism]))
    assert error.condition == "KAFKA_SASL_AUTHENTICATION_FAILED"


@pytest.mark.parametrize("mechanism", WRONG)
def test_accepted_credentials_do_not_show_either(mechanism: str) -> None:
    with FakeBroker(topics={"orders": 1}, users={"alice": CANARY}, session_ms=3_600_000) as broker:
        write(broker, WRONG[mechanism])
        assert broker.values("orders") == [b"v"]
        assert broker.violations == []


@pytest.mark.parametrize("mechanism", WRONG)
def test_a_listener_without_sasl_learns_nothing_that_shows(mechanism: str) -> None:
    with FakeBroker(topics={"orders": 1}) as broker:
        error = fails(lambda: write(broker, WRONG[mechanism]))
    assert error.condition == "KAFKA_ILLEGAL_SASL_STATE"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_broker_that_answers_with_garbage_shows_nothing(mechanism: str) -> None:
    with FakeBroker(topics={"orders": 1}, users=USERS) as broker:
        for node in broker.nodes.values():
            node.greeting = b"\x00\x00\x00\x10not of this world"
        fails(lambda: write(broker, WRONG[mechanism] | {"max.block.ms": "500"}))


def test_no_credentials_at_a_listener_with_sasl_fail_at_once() -> None:
    with FakeBroker(topics={"orders": 1}, users=USERS) as broker:
        error = fails(lambda: write(broker, {}))
    assert error.condition == "KAFKA_AUTHENTICATION_FAILED"
    assert "this listener demands a login, and security.protocol has none" in error.message


def test_a_token_callback_that_raises_shows_no_frame_of_it() -> None:
    options = WRONG["OAUTHBEARER"] | {"sasl.login.callback.handler.class": f"{__name__}.failing_token"}
    with FakeBroker(topics={"orders": 1}, users=USERS) as broker:
        error = fails(lambda: write(broker, options))
    assert error.condition == "KAFKA_LOGIN_FAILED"
    assert "ValueError: no token with" in error.message


def test_a_token_endpoint_that_is_not_there_shows_no_secret() -> None:
    options = sasl(
        "OAUTHBEARER",
        f'{OAUTH} required clientId="me" clientSecret="{CANARY}";',
        sasl__oauthbearer__token__endpoint__url="http://127.0.0.1:9/token",
        sasl__login__retry__backoff__max__ms="0",
    )
    with FakeBroker(topics={"orders": 1}, users=USERS) as broker:
        error = fails(lambda: write(broker, options))
    assert error.condition == "KAFKA_OAUTH_TOKEN_UNAVAILABLE"


# WHAT IS KEPT, SHOWN AND SENT


@pytest.mark.parametrize("mechanism", WRONG)
def test_configurations_and_writers_show_nothing_before_and_after_pickling(mechanism: str) -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **WRONG[mechanism]})
    options = {f"kafka.{name}": value for name, value in WRONG[mechanism].items()}
    options |= {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:9"}
    sink = SinkOptions.read(options, [])
    source = KafkaDataSource(options)
    schema = StructType([StructField("value", StringType())])
    writers = [source.writer(schema, False), source.streamWriter(schema, False)]
    for each in (config, config.to_mapping(), sink, sink.producer, *writers, [vars(writer) for writer in writers]):
        assert_hidden(repr(each) + str(each))
        assert_hidden(repr(pickle.loads(pickle.dumps(each))))


def test_a_secret_shows_in_no_way_of_printing() -> None:
    for secret in (Secret(CANARY), SecretBytes(CANARY.encode())):
        written = io.StringIO()
        print(secret, [secret], {"a": secret}, (secret,), file=written)
        assert_hidden(f"{written.getvalue()}{secret}{secret!r}{secret!s}{secret!a}%s %r" % (secret, secret))
        assert pickle.loads(pickle.dumps(secret)) == secret
    with pytest.raises(TypeError, match=r"Secret\.__format__"):
        format(Secret(CANARY), ">20")
