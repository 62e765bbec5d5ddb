"""What the options of other clients are here: those of librdkafka, as confluent-kafka takes them, and kafka-python's arguments.

A name that has a counterpart here is an error, as the option would otherwise be missing; ProducerConfig tells it before all
other problems. One without is a warning. A name that Kafka's own client has too stands here only if kafka-python writes it with
underscores, and names of consumers' options stand in keys_without_effect.py.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from typing import NamedTuple


class Counterpart(NamedTuple):
    """What an option of another client is here."""

    key: str  # of our option; empty if there is none
    note: str  # how the two differ; without a key, why there is none

    def text(self, prefix: str) -> str:
        """What to write, with `prefix` before the key."""
        return f"{prefix}{self.key}, {self.note}" if self.note else f"{prefix}{self.key}"


def _no_counterpart(reason: str, *names: str) -> dict[str, Counterpart]:
    return dict.fromkeys(names, Counterpart("", reason))


_LOGIN = Counterpart(
    "sasl.jaas.config",
    'like org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…"; (with SCRAM:'
    " org.apache.kafka.common.security.scram.ScramLoginModule)",
)
_KEYTAB = Counterpart(
    "sasl.jaas.config",
    'like com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/path" principal="user@REALM";',
)
_CLIENT_CERTIFICATE = Counterpart("ssl.keystore.location", "one PEM file with the private key and the certificate chain")
_AUTHORITIES = Counterpart("ssl.truststore.location", "a PEM file")
_TOKEN_FUNCTION = Counterpart("sasl.login.callback.handler.class", "the dotted name of a Python function that returns a token")
_TOKEN_ENDPOINTS_TLS = Counterpart(
    "sasl.jaas.config",
    'like org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ssl.truststore.location="/path"'
    ' ssl.truststore.type="PEM";',
)
_PARTITIONER = Counterpart("partitioner.class", "the dotted name of a Python class; without it, keys are hashed by murmur2")
_BUFFER = Counterpart("buffer.memory", "in bytes")
_DELIVERIES = "the outcome of each record is in the future that send returns, and its callback receives it"
_PYTHONS_LOG = "Python's logging has the log"
_MEASURED = "KafkaProducer.metrics() has the numbers, and in Spark the reports of commits"
_VERSIONS = "each broker is asked for the versions that it knows"
_SOCKETS = "sockets are set up without it"
_VERIFIED = "certificates are always verified"
_OPENSSL = "Python's ssl module has no such setting"
_ERRORS = "an error is raised by the call, or is in the outcome of its records"
_NOT_NEEDED = "it is not needed here"

LIBRDKAFKA: dict[str, Counterpart] = {
    "metadata.broker.list": Counterpart("bootstrap.servers", ""),
    "request.required.acks": Counterpart("acks", ""),
    "message.timeout.ms": Counterpart("delivery.timeout.ms", ""),
    "message.send.max.retries": Counterpart("retries", ""),
    "message.max.bytes": Counterpart("max.request.size", ""),
    "max.in.flight": Counterpart("max.in.flight.requests.per.connection", ""),
    "queue.buffering.max.ms": Counterpart("linger.ms", ""),
    "queue.buffering.max.kbytes": _BUFFER,
    "queue.buffering.max.messages": _BUFFER,
    "batch.num.messages": Counterpart("batch.size", "in bytes of one partition's batch"),
    "compression.codec": Counterpart("compression.type", ""),
    "compression.level": Counterpart("compression.zstd.level", "or with gzip or lz4 in place of zstd"),
    "partitioner": _PARTITIONER,
    "partitioner_cb": _PARTITIONER,
    "socket.timeout.ms": Counterpart("request.timeout.ms", ""),
    "socket.send.buffer.bytes": Counterpart("send.buffer.bytes", ""),
    "socket.receive.buffer.bytes": Counterpart("receive.buffer.bytes", ""),
    "topic.metadata.refresh.interval.ms": Counterpart("metadata.max.age.ms", ""),
    "topic.metadata.refresh.fast.interval.ms": Counterpart("retry.backoff.ms", ""),
    "ssl.ca.location": Counterpart("ssl.truststore.location", "a PEM file, not a directory"),
    "ssl.ca.pem": Counterpart("ssl.truststore.certificates", ""),
    "ssl_ca": _AUTHORITIES,
    "ssl.certificate.location": _CLIENT_CERTIFICATE,
    "ssl.key.location": _CLIENT_CERTIFICATE,
    "ssl_certificate": _CLIENT_CERTIFICATE,
    "ssl_key": _CLIENT_CERTIFICATE,
    "ssl.certificate.pem": Counterpart("ssl.keystore.certificate.chain", ""),
    "ssl.key.pem": Counterpart("ssl.keystore.key", ""),
    "https.ca.location": _TOKEN_ENDPOINTS_TLS,
    "https.ca.pem": _TOKEN_ENDPOINTS_TLS,
    "sasl.mechanisms": Counterpart("sasl.mechanism", ""),
    "sasl.username": _LOGIN,
    "sasl.password": _LOGIN,
    "sasl.kerberos.keytab": _KEYTAB,
    "sasl.kerberos.principal": _KEYTAB,
    "sasl.oauthbearer.config": Counterpart(
        "sasl.jaas.config",
        'like org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="user";',
    ),
    "sasl.oauthbearer.method": Counterpart(
        "sasl.oauthbearer.token.endpoint.url", "which says by itself that tokens come from an OAuth server"
    ),
    "sasl.oauthbearer.client.id": Counterpart("sasl.oauthbearer.client.credentials.client.id", ""),
    "sasl.oauthbearer.client.secret": Counterpart("sasl.oauthbearer.client.credentials.client.secret", ""),
    "sasl.oauthbearer.extensions": Counterpart(
        "sasl.jaas.config",
        'like org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required extension_name="value";',
    ),
    "sasl.oauthbearer.grant.type": Counterpart(
        "sasl.oauthbearer.jwt.retriever.class",
        "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever for assertions; without it, client credentials",
    ),
    "sasl.oauthbearer.assertion.private.key.pem": Counterpart("sasl.oauthbearer.assertion.private.key.file", "a PEM file"),
    "sasl.oauthbearer.assertion.jwt.template.file": Counterpart("sasl.oauthbearer.assertion.template.file", ""),
    "sasl.oauthbearer.metadata.authentication.type": _TOKEN_FUNCTION,
    "oauthbearer_token_refresh_cb": _TOKEN_FUNCTION,
    "oauth_cb": _TOKEN_FUNCTION,
    **_no_counterpart(
        _VERSIONS,
        *("api.version.request", "api.version.request.timeout.ms", "api.version.fallback.ms", "broker.version.fallback"),
        "builtin.features",
    ),
    **_no_counterpart(
        _PYTHONS_LOG, "debug", "log_level", "log.queue", "log.thread.name", "log.connection.close", "log_cb", "logger"
    ),
    **_no_counterpart(_MEASURED, "statistics.interval.ms", "stats_cb", "throttle_cb"),
    **_no_counterpart(_ERRORS, "error_cb", "background_event_cb", "enabled_events"),
    **_no_counterpart(
        _DELIVERIES, "dr_cb", "dr_msg_cb", "on_delivery", "delivery.report.only.error", "produce.offset.report", "opaque"
    ),
    **_no_counterpart(
        _SOCKETS,
        *("socket.blocking.max.ms", "socket.keepalive.enable", "socket.nagle.disable", "socket.max.fails", "broker.address.ttl"),
        *("broker.address.family", "socket_cb", "connect_cb", "closesocket_cb", "open_cb", "resolve_cb"),
    ),
    **_no_counterpart(_VERIFIED, "enable.ssl.certificate.verification", "ssl.certificate.verify_cb"),
    **_no_counterpart("lists of revoked certificates are not read", "ssl.crl.location"),
    **_no_counterpart(
        _OPENSSL,
        *("ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.engine.location", "ssl.engine.id"),
        *("ssl_engine_callback_data", "ssl.ca.certificate.stores"),
    ),
    **_no_counterpart("unsecuredLogin… in sasl.jaas.config asks for such tokens", "enable.sasl.oauthbearer.unsecure.jwt"),
    **_no_counterpart("interceptor.classes takes Python classes", "plugin.library.paths", "interceptors"),
    **_no_counterpart("its keys are written beside the others", "default_topic_conf", "default.topic.config"),
    **_no_counterpart("idempotence keeps the order", "enable.gapless.guarantee", "queuing.strategy", "msg_order_cmp"),
    **_no_counterpart("the partition changes when batch.size bytes went there", "sticky.partitioning.linger.ms"),
    **_no_counterpart(
        _NOT_NEEDED,
        *("message.copy.max.bytes", "receive.message.max.bytes", "topic.metadata.refresh.fast.cnt", "topic.blacklist"),
        *("topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms", "reconnect.backoff.jitter.ms"),
        *("queue.buffering.backpressure.threshold", "enable.random.seed", "internal.termination.signal"),
    ),
}


def _with_dots(*names: str) -> dict[str, Counterpart]:
    return {name: Counterpart(name.replace("_", "."), "") for name in names}


# The keyword arguments of its KafkaProducer, with those of earlier versions.
KAFKA_PYTHON: dict[str, Counterpart] = {
    **_with_dots(
        *("bootstrap_servers", "client_id", "key_serializer", "value_serializer", "enable_idempotence", "transactional_id"),
        *("transaction_timeout_ms", "delivery_timeout_ms", "acks", "compression_type", "retries", "batch_size", "linger_ms"),
        *("buffer_memory", "connections_max_idle_ms", "max_block_ms", "max_request_size", "metadata_max_age_ms"),
        *("client_dns_lookup", "retry_backoff_ms", "request_timeout_ms", "receive_buffer_bytes", "send_buffer_bytes"),
        *("reconnect_backoff_ms", "reconnect_backoff_max_ms", "max_in_flight_requests_per_connection", "security_protocol"),
        *("metrics_num_samples", "metrics_sample_window_ms", "sasl_mechanism", "sasl_kerberos_service_name"),
        *("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
    ),
    "partitioner": _PARTITIONER,
    "sasl_plain_username": _LOGIN,
    "sasl_plain_password": _LOGIN,
    "sasl_kerberos_name": Counterpart("sasl.kerberos.service.name", ""),
    "sasl_oauth_token_provider": _TOKEN_FUNCTION,
    "ssl_cafile": _AUTHORITIES,
    "ssl_certfile": _CLIENT_CERTIFICATE,
    "ssl_keyfile": _CLIENT_CERTIFICATE,
    "ssl_password": Counterpart("ssl.key.password", ""),
    "ssl_ciphers": Counterpart("ssl.cipher.suites", ""),
    "ssl_check_hostname": Counterpart("ssl.endpoint.identification.algorithm", "empty for False"),
    **_no_counterpart("ssl.* options set up TLS", "ssl_context"),
    **_no_counterpart("lists of revoked certificates are not read", "ssl_crlfile"),
    **_no_counterpart("the name in bootstrap.servers, and then each broker's own, is used", "sasl_kerberos_domain_name"),
    **_no_counterpart(_VERSIONS, "api_version", "api_version_auto_timeout_ms"),
    **_no_counterpart(_SOCKETS, "socket_options", "sock_chunk_bytes", "sock_chunk_buffer_count", "proxy_url", "socks5_proxy"),
    **_no_counterpart("max.block.ms limits each wait of a caller", "bootstrap_timeout_ms", "default_api_timeout_ms"),
    **_no_counterpart("brokers decide whether topics are created", "allow_auto_create_topics"),
    **_no_counterpart("KafkaProducer.metrics() has all metrics", "metric_reporters", "metric_group_prefix", "metrics_enabled"),
    **_no_counterpart(_NOT_NEEDED, "receive_message_max_bytes", "selector", "kafka_client", "net", "wakeup_timeout_ms"),
}

_CLIENTS = (("librdkafka", LIBRDKAFKA), ("kafka-python", KAFKA_PYTHON))


def counterpart_of(name: str) -> tuple[str, Counterpart]:
    """The client that has an option of this name, and what the option is here. Both are empty if no other client has it."""
    return next(((client, table[name]) for client, table in _CLIENTS if name in table), ("", Counterpart("", "")))


def names_to_replace(given_keys: Collection[str], known_keys: Container[str]) -> dict[str, Counterpart]:
    """The given names of other clients' options that have a counterpart here, unless that is given too."""
    counterparts = {key: counterpart_of(key)[1] for key in given_keys if key not in known_keys}
    return {key: each for key, each in counterparts.items() if each.key and each.key not in given_keys}


def remedies(names: Iterable[str], prefix: str) -> Iterator[str]:
    """A sentence for all names with the same counterpart: whose they are, and what to write.

    Args:
        names: of options of other clients that have a counterpart.
        prefix: what a user writes before the keys of the producer.
    """
    names_by_counterpart: dict[tuple[str, Counterpart], list[str]] = {}
    for name in names:
        names_by_counterpart.setdefault(counterpart_of(name), []).append(prefix + name)
    for (client, counterpart), own_names in names_by_counterpart.items():
        subject = f"{own_names[0]} is an option" if len(own_names) == 1 else f"{' and '.join(own_names)} are options"
        yield f"{subject} of {client}: write {counterpart.text(prefix)}"


def reason_without_effect(name: str, prefix: str) -> str | None:
    """Why an unknown option has no effect, if it is another client's."""
    client, counterpart = counterpart_of(name)
    if not client:
        return None
    reason = f"{prefix}{counterpart.key} is set too" if counterpart.key else counterpart.note
    return f"it is an option of {client}; {reason}"


def problem_of_arguments(names: Iterable[str]) -> str:
    """The text of the error for keyword arguments that KafkaProducer does not have, with what to write for each."""
    counterparts = {name: counterpart_of(name) for name in names}
    lines = [f"{name}: {_what_to_write(client, counterpart)}" for name, (client, counterpart) in counterparts.items()]
    others = ", not keyword arguments as kafka-python's does" if any(client for client, _ in counterparts.values()) else ""
    return (
        f"KafkaProducer takes a mapping of Kafka's own keys{others}:"
        ' KafkaProducer({"bootstrap.servers": "localhost:9092", "acks": "all"}).' + "".join(f"\n  - {line}" for line in lines)
    )


def _what_to_write(client: str, counterpart: Counterpart) -> str:
    if not client:
        return "not known"
    return counterpart.text("") if counterpart.key else f"remove it, as {counterpart.note}"
