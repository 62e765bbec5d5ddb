"""config/other_clients.py: options of librdkafka and of kafka-python lead to the options that mean the same here."""

from __future__ import annotations

import traceback

import pytest

from spark_kafka_sink import ConfigError, KafkaProducer
from spark_kafka_sink.config.keys_without_effect import PRODUCER_KEYS_WITHOUT_EFFECT
from spark_kafka_sink.config.other_clients import KAFKA_PYTHON, LIBRDKAFKA
from spark_kafka_sink.config.producer_config import PRODUCER_KEYS, ProducerConfig
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.sink_options import SinkOptions

CANARY = "canary-7Qx2"

# All names in the configuration reference of librdkafka 2.x.
LIBRDKAFKAS_NAMES = """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms auto.offset.reset background_event_cb batch.num.messages batch.size
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback builtin.features check.crcs
    client.dns.lookup client.id client.rack closesocket_cb compression.codec compression.level compression.type connect_cb
    connections.max.idle.ms consume.callback.max.messages consume_cb coordinator.query.interval.ms debug default_topic_conf
    delivery.report.only.error delivery.timeout.ms dr_cb dr_msg_cb enable.auto.commit enable.auto.offset.store
    enable.gapless.guarantee enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events error_cb fetch.error.backoff.ms
    fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id
    group.instance.id group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms https.ca.location
    https.ca.pem interceptors internal.termination.signal isolation.level linger.ms log.connection.close log.queue
    log.thread.name log_cb log_level max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes message.send.max.retries
    message.timeout.ms metadata.broker.list metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy msg_order_cmp oauthbearer_token_refresh_cb offset.store.method offset.store.path
    offset.store.sync.interval.ms offset_commit_cb opaque open_cb partition.assignment.strategy partitioner partitioner_cb
    plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queued.max.messages.kbytes queued.min.messages queuing.strategy
    rebalance_cb receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms resolve_cb retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
    socket.timeout.ms socket_cb ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location
    ssl.certificate.pem ssl.certificate.verify_cb ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password ssl.key.pem
    ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list ssl_ca ssl_certificate
    ssl_engine_callback_data ssl_key statistics.interval.ms stats_cb sticky.partitioning.linger.ms throttle_cb
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id
"""

# The keyword arguments of KafkaProducer in kafka-python 2.x and 3.x.
KAFKA_PYTHONS_NAMES = """
    bootstrap_servers client_id key_serializer value_serializer enable_idempotence transactional_id transaction_timeout_ms
    delivery_timeout_ms acks compression_type retries batch_size linger_ms partitioner connections_max_idle_ms max_block_ms
    max_request_size allow_auto_create_topics metadata_max_age_ms client_dns_lookup retry_backoff_ms request_timeout_ms
    default_api_timeout_ms receive_message_max_bytes receive_buffer_bytes send_buffer_bytes socket_options
    reconnect_backoff_ms reconnect_backoff_max_ms max_in_flight_requests_per_connection security_protocol ssl_context
    ssl_check_hostname ssl_cafile ssl_certfile ssl_keyfile ssl_crlfile ssl_password ssl_ciphers api_version
    bootstrap_timeout_ms metric_reporters metrics_enabled metrics_num_samples metrics_sample_window_ms selector
    sasl_mechanism sasl_plain_username sasl_plain_password sasl_kerberos_name sasl_kerberos_service_name
    sasl_kerberos_domain_name sasl_oauth_token_provider socket_connection_setup_timeout_ms
    socket_connection_setup_timeout_max_ms proxy_url socks5_proxy kafka_client net
    api_version_auto_timeout_ms buffer_memory metric_group_prefix sock_chunk_buffer_count sock_chunk_bytes wakeup_timeout_ms
"""


def problem(**options: object) -> str:
    """The error of these options, with double underscores for dots."""
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping({name.replace("__", "."): value for name, value in options.items()})
    return raised.value.message


@pytest.mark.parametrize("name", sorted({*LIBRDKAFKAS_NAMES.split(), *KAFKA_PYTHONS_NAMES.split()} - PRODUCER_KEYS.keys()))
def test_every_name_of_another_client_leads_on_or_is_explained(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """sasl.password was a warning that asked "did you mean 'ssl.key.password'?", ssl.ca.location was ignored, and the error that
    followed spoke of GSSAPI."""
    problems: list[str] = []
    ProducerConfig.read({"bootstrap.servers": "h:1", name: Secret(CANARY)}, problems)
    (text,) = [*problems, *caplog.messages]
    if problems:
        assert text.startswith(f"{name} is an option of ")
        key = text.partition(": write ")[2].partition(",")[0]
        assert key in PRODUCER_KEYS or key in PRODUCER_KEYS_WITHOUT_EFFECT
    else:
        assert text.startswith(f"Option '{name}' has no effect: ")
    assert CANARY not in text


def test_the_tables_have_no_names_that_are_known_here() -> None:
    for name, (key, _) in [*LIBRDKAFKA.items(), *KAFKA_PYTHON.items()]:
        assert key == name or name not in PRODUCER_KEYS.keys() | PRODUCER_KEYS_WITHOUT_EFFECT.keys()


def test_confluent_kafkas_names_are_told_before_any_other_error() -> None:
    """Confluent Cloud hands out this file for Python. The error said "sasl.mechanism=GSSAPI (the default) needs
    sasl.kerberos.service.name", and nothing of the names."""
    message = problem(
        bootstrap__servers="h:1",
        security__protocol="SASL_SSL",
        sasl__mechanisms="PLAIN",
        sasl__username="alice",
        sasl__password=CANARY,
        session__timeout__ms="45000",
        linger__ms="soon",
    )
    lines = message.splitlines()
    assert lines[1] == "  - sasl.mechanisms is an option of librdkafka: write sasl.mechanism"
    assert lines[2].startswith(
        "  - sasl.username and sasl.password are options of librdkafka: write sasl.jaas.config, like org.apache.kafka.common"
    )
    assert lines[3].startswith("  - Invalid value soon for configuration linger.ms")
    assert len(lines) == 4
    assert CANARY not in message


def test_a_rule_does_not_ask_for_what_stands_under_another_clients_name() -> None:
    """metadata.broker.list alone was "bootstrap.servers is not set", and the log asked "did you mean metadata.max.age.ms?"."""
    assert problem(metadata__broker__list="h:1") == "metadata.broker.list is an option of librdkafka: write bootstrap.servers"


def test_another_clients_name_beside_ours_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "h:1", "metadata.broker.list": "g:1"})
    assert config.bootstrap_servers == (("h", 1),)
    assert caplog.messages == [
        "Option 'metadata.broker.list' has no effect: it is an option of librdkafka; bootstrap.servers is set too"
    ]


def test_a_plug_in_may_have_an_option_that_another_client_has(caplog: pytest.LogCaptureFixture) -> None:
    """Unknown options are the plug-ins', as in Java. If something else is wrong, the error still begins with the likely cause."""
    mine = {"interceptor.classes": "my_package.Interceptor", "ssl.ca.location": "/ca.pem", "debug": "all"}
    config = ProducerConfig.from_mapping({"bootstrap.servers": "h:1"} | mine)
    assert config.for_plugins()["ssl.ca.location"] == "/ca.pem"
    assert caplog.messages == [
        "ssl.ca.location is an option of librdkafka: write ssl.truststore.location, a PEM file, not a directory. As written, only"
        " plug-ins receive it"
    ]
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping({"linger.ms": "soon", "bootstrap.servers": "h:1"} | mine)
    assert raised.value.message.splitlines()[1].startswith("  - ssl.ca.location is an option of librdkafka")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kafka.compression.level", "kafka.compression.level is an option of librdkafka: write kafka.compression.zstd.level, or"),
        (
            "queue.buffering.max.ms",
            "Unknown option 'queue.buffering.max.ms'. It is an option of librdkafka: write kafka.linger.ms",
        ),
        (
            "bootstrap_servers",
            "Unknown option 'bootstrap_servers'. It is an option of kafka-python: write kafka.bootstrap.servers",
        ),
        ("debug", "Unknown option 'debug'. It is an option of librdkafka: remove it, as Python's logging has the log"),
    ],
)
def test_the_sink_names_its_own_options_with_and_without_the_prefix(name: str, text: str) -> None:
    problems: list[str] = []
    SinkOptions.read({"kafka.bootstrap.servers": "h:1", name: "7"}, problems)
    assert problems[0].startswith(text)
    assert len(problems) == 1


def test_a_password_under_a_name_without_the_prefix_is_wrapped() -> None:
    """.option("sasl.password", …) lacked the prefix, so it counted as an option of the sink, which holds no secrets."""
    assert SinkOptions.conceal({"sasl.password": CANARY, "topic": "orders"}) == {
        "sasl.password": Secret(CANARY),
        "topic": "orders",
    }


def test_keyword_arguments_of_kafka_python_are_an_error_that_says_what_to_write() -> None:
    """KafkaProducer(bootstrap_servers="…") was "unexpected keyword argument 'bootstrap_servers'", and nothing of a mapping."""
    arguments = {"bootstrap_servers": "h:1", "sasl_plain_password": CANARY, "ssl_context": object(), "shoe_size": 7}
    with pytest.raises(TypeError) as raised:
        KafkaProducer(**arguments)  # type: ignore[call-overload]
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("KafkaProducer takes a mapping of Kafka's own keys, not keyword arguments as kafka-python's does:")
    assert lines[1:] == [
        "  - bootstrap_servers: bootstrap.servers",
        f"  - sasl_plain_password: {LIBRDKAFKA['sasl.password'].text('')}",
        "  - ssl_context: remove it, as ssl.* options set up TLS",
        "  - shoe_size: not known",
    ]
    assert CANARY not in str(traceback.TracebackException.from_exception(raised.value, capture_locals=True).stack[1:])


def test_arguments_beside_the_mapping_are_an_error_too() -> None:
    with pytest.raises(TypeError, match=r"- linger_ms: linger\.ms"):
        KafkaProducer({"bootstrap.servers": "h:1"}, linger_ms=5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="KafkaProducer takes a mapping of Kafka's own keys: KafkaProducer"):
        KafkaProducer()  # type: ignore[call-overload]
