"""Keys that the producer accepts without effect, and keys that it does not know. Each is a warning in the log, not an error.

If the configuration names a plug-in, unknown keys are passed to it, as in Java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_kafka_sink.config.dotted_names import KAFKAS_PARTITIONERS
from spark_kafka_sink.config.option import Option, nearest_key, warn_once
from spark_kafka_sink.config.other_clients import names_to_replace, reason_without_effect, remedies

JVM = "it is a class or setting of the Java virtual machine"
_BYTES = "keys and values are passed as bytes or text"
_METRICS = "metrics are read with KafkaProducer.metrics()"
_TICKETS = "the Kerberos library renews tickets from a keytab, and tickets in a cache are renewed outside of this process"
_BROKERS = "it is for brokers, which validate tokens"
_NEWER = "it is new in Kafka 4.4 and not supported here"
_PROVIDERS = "config providers are not supported; a value that refers to one is an error"
FOR_READING = "it is for reading from Kafka"

SERIALIZERS = ("key.serializer", "value.serializer")  # the sink refuses them, as Spark does

# Keys of a released Kafka that have no effect here, and why.
PRODUCER_KEYS_WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(SERIALIZERS, _BYTES),
    "auto.include.jmx.reporter": _METRICS,
    "enable.metrics.push": "telemetry is not sent to brokers",
    "metric.reporters": _METRICS,
    "metrics.recording.level": "all metrics are recorded, at any level",
    "config.providers": _PROVIDERS,
    "security.providers": JVM,
    "ssl.provider": JVM,
    "ssl.keymanager.algorithm": JVM,
    "ssl.trustmanager.algorithm": JVM,
    "ssl.secure.random.implementation": JVM,
    "ssl.engine.factory.class": JVM,
    "sasl.login.class": JVM,
    "sasl.oauthbearer.jwt.validator.class": JVM,
    "sasl.kerberos.kinit.cmd": _TICKETS,
    "sasl.kerberos.min.time.before.relogin": _TICKETS,
    "sasl.kerberos.ticket.renew.jitter": _TICKETS,
    "sasl.kerberos.ticket.renew.window.factor": _TICKETS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "sasl.oauthbearer.scope.claim.name": _BROKERS,
    "bootstrap.resolve.timeout.ms": _NEWER,
    "buffer.memory.allocation.strategy": _NEWER,
    "metadata.cluster.check.enable": _NEWER,
}

# Keys that only Kafka's consumers have. Jobs use one set of options to read and to write, so none of these is taken for a
# misspelt key of the producer.
_CONSUMER_KEYS = frozenset(
    (
        *("allow.auto.create.topics", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "default.api.timeout.ms"),
        *("enable.auto.commit", "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id"),
        *("group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "isolation.level"),
        *("key.deserializer", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records"),
        *("partition.assignment.strategy", "session.timeout.ms", "value.deserializer"),
        # of librdkafka's consumers
        *("auto.commit.enable", "consume.callback.max.messages", "consume_cb", "coordinator.query.interval.ms"),
        *("enable.auto.offset.store", "enable.partition.eof", "fetch.error.backoff.ms", "fetch.message.max.bytes"),
        *("fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.protocol.type", "offset.store.method", "offset.store.path"),
        *("offset.store.sync.interval.ms", "offset_commit_cb", "on_commit", "queued.max.messages.kbytes"),
        *("queued.min.messages", "rebalance_cb", "share.acknowledgement.mode"),
    )
)
_PROVIDER_PREFIX = "config.providers."  # followed by a provider's name, and its class or one of its parameters


def keys_for_plugins(
    given_values: Mapping[str, object], values: Mapping[str, Any], known_options: Mapping[str, Option], prefix: str
) -> dict[str, object]:
    """The keys that are passed to plug-ins: all unknown ones if `values` name a plug-in, else none.

    A key that looks misspelt is passed too, with a warning in the log.

    Args:
        given_values: what the user wrote, by key.
        values: the producer's options by attribute name.
        known_options: the producer's, by key.
        prefix: what the user wrote before each key, for the log.
    """
    if not values["interceptor_classes"] and values["partitioner_class"] in (None, *KAFKAS_PARTITIONERS):
        return {}
    plugin_options = {
        key: value
        for key, value in given_values.items()
        if key not in known_options and key not in PRODUCER_KEYS_WITHOUT_EFFECT and not key.startswith(_PROVIDER_PREFIX)
    }
    for remedy in remedies(names_to_replace(plugin_options, known_options), prefix):
        warn_once("%s. As written, only plug-ins receive it", remedy)
    for key in plugin_options.keys() - _CONSUMER_KEYS:
        nearest = nearest_key(key, known_options)
        if nearest and reason_without_effect(key, prefix) is None:
            warn_once("Option '%s%s' is passed to the plug-ins; did you mean '%s%s'?", prefix, key, prefix, nearest)
    return plugin_options


def warn_of_keys_without_effect(given_keys: Iterable[str], known_options: Mapping[str, Option], prefix: str) -> None:
    """Log each key that has no effect or is unknown. Arguments as for keys_for_plugins."""
    for key in given_keys:
        if key in PRODUCER_KEYS_WITHOUT_EFFECT:
            warn_once("Option '%s%s' has no effect: %s", prefix, key, PRODUCER_KEYS_WITHOUT_EFFECT[key])
        elif key.startswith(_PROVIDER_PREFIX):
            warn_once("Option '%s%s' has no effect: %s", prefix, key, _PROVIDERS)
        elif key in _CONSUMER_KEYS:
            warn_once("Option '%s%s' has no effect: %s", prefix, key, FOR_READING)
        elif key not in known_options and (reason := reason_without_effect(key, prefix)) is not None:
            warn_once("Option '%s%s' has no effect: %s", prefix, key, reason)
        elif key not in known_options:
            nearest = nearest_key(key, [*known_options, *PRODUCER_KEYS_WITHOUT_EFFECT])
            hint = f"; did you mean '{prefix}{nearest}'?" if nearest else ""
            warn_once("Option '%s%s' is not known to the Kafka producer and has no effect%s", prefix, key, hint)
