"""What the producer's options require of each other. In Java: ProducerConfig.postProcessParsedConfig and
KafkaProducer.configureDeliveryTimeout.

A rule gets the values of all options by attribute name, and under "given_keys" the set of the keys that the user has set.
A rule either yields what is wrong, or changes values and returns None. ProducerConfig.read applies the rules in order of
declaration. It skips a rule if one of the rule's keys has an invalid value, since that value is reported already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from spark_kafka_sink.config import sasl
from spark_kafka_sink.config.dotted_names import (
    DEFAULT_PARTITIONER,
    KAFKAS_PARTITIONERS,
    ROUND_ROBIN,
    UNIFORM_STICKY,
    is_dotted_name,
    is_java_class,
)
from spark_kafka_sink.config.keys_without_effect import JVM
from spark_kafka_sink.config.option import INT_MAX, MAX_STRING_BYTES, as_text, options_of, warn_once
from spark_kafka_sink.config.security_config import SecurityConfig

logger = logging.getLogger(__name__)

ACKS_ALL = -1
TLS_KEYS = tuple(each.key for each in options_of(SecurityConfig).values() if each.key.startswith("ssl."))
SASL_KEYS = tuple(each.key for each in options_of(SecurityConfig).values() if each.key.startswith("sasl."))

OptionValues = dict[str, Any]
Rule = Callable[[OptionValues], Iterator[str] | None]
PRODUCER_RULES: list[tuple[tuple[str, ...], Rule]] = []
RuleT = TypeVar("RuleT", bound=Rule)


def rule(*keys: str) -> Callable[[RuleT], RuleT]:
    """Add the function below to PRODUCER_RULES. The function is skipped if one of `keys` has an invalid value."""

    def add(function: RuleT) -> RuleT:
        PRODUCER_RULES.append((keys, function))
        return function

    return add


@rule("bootstrap.servers")
def _bootstrap_servers_are_required(values: OptionValues) -> Iterator[str]:
    if not values["bootstrap_servers"]:
        yield (
            "Kafka option 'bootstrap.servers' is not set. Name at least one broker as host:port;"
            ' in Spark: .option("kafka.bootstrap.servers", "host:9092")'
        )


@rule("enable.idempotence", "acks", "retries", "max.in.flight.requests.per.connection")
def _idempotence_requires_acks_and_retries(values: OptionValues) -> Iterator[str]:
    if not values["enable_idempotence"]:
        return
    if values["max_in_flight_requests_per_connection"] > 5:  # a broker remembers the last 5 batches of a producer and partition
        yield (
            "To use the idempotent producer, max.in.flight.requests.per.connection must be set to at most 5."
            f" Current value is {values['max_in_flight_requests_per_connection']}. Or set enable.idempotence=false."
        )
    if "enable.idempotence" in values["given_keys"]:
        for problem, _ in _idempotence_conflicts(values):
            yield problem


@rule("enable.idempotence", "acks", "retries", "max.in.flight.requests.per.connection")
def _switch_idempotence_off(values: OptionValues) -> None:
    """Switch the default enable.idempotence=true off if acks or retries contradict it."""
    if values["enable_idempotence"] and "enable.idempotence" not in values["given_keys"]:
        for _, reason in _idempotence_conflicts(values):
            logger.info("Idempotence will be disabled because %s.", reason)
            values["enable_idempotence"] = False


def _idempotence_conflicts(values: OptionValues) -> list[tuple[str, str]]:
    """What contradicts idempotence: as an error, and as a reason to switch it off."""
    conflicts = []
    if values["retries"] == 0:
        conflicts.append(("Must set retries to non-zero when using the idempotent producer.", "retries is set to 0"))
    if values["acks"] != ACKS_ALL:
        conflicts.append(
            (
                "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence.",
                f"acks is set to {values['acks']}, not set to 'all'",
            )
        )
    return conflicts


@rule("transactional.id", "enable.idempotence", "transaction.two.phase.commit.enable")
def _transactions_require_idempotence(values: OptionValues) -> Iterator[str]:
    if values["transactional_id"] is not None and not values["enable_idempotence"]:
        yield "Cannot set a transactional.id without also enabling idempotence."
    if values["transaction_two_phase_commit_enable"] and "transaction.timeout.ms" in values["given_keys"]:
        yield "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true."


@rule("delivery.timeout.ms", "linger.ms", "request.timeout.ms")
def _delivery_timeout_covers_linger_and_one_request(values: OptionValues) -> Iterator[str]:
    if "delivery.timeout.ms" in values["given_keys"] and values["delivery_timeout_ms"] < _min_delivery_timeout_ms(values):
        yield (
            "delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms;"
            f" it is {values['delivery_timeout_ms']}, they are {values['linger_ms']} + {values['request_timeout_ms']}"
        )


@rule("delivery.timeout.ms", "linger.ms", "request.timeout.ms")
def _raise_delivery_timeout(values: OptionValues) -> None:
    min_timeout_ms = _min_delivery_timeout_ms(values)
    if "delivery.timeout.ms" not in values["given_keys"] and values["delivery_timeout_ms"] < min_timeout_ms:
        warn_once(
            "delivery.timeout.ms is raised from %d to %d, which is linger.ms + request.timeout.ms",
            values["delivery_timeout_ms"],
            min_timeout_ms,
        )
        values["delivery_timeout_ms"] = min_timeout_ms


def _min_delivery_timeout_ms(values: OptionValues) -> int:
    min_timeout_ms: int = values["linger_ms"] + values["request_timeout_ms"]
    return min(min_timeout_ms, INT_MAX)


@rule(
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"),
    *("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
)
def _keep_backoffs_below_their_maximum(values: OptionValues) -> None:
    given_keys = values["given_keys"]
    if "reconnect.backoff.ms" in given_keys and "reconnect.backoff.max.ms" not in given_keys:
        values["reconnect_backoff_max_ms"] = values["reconnect_backoff_ms"]
    for key, maximum_key in (
        ("retry.backoff.ms", "retry.backoff.max.ms"),
        ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
    ):
        if values[_attribute(key)] > values[_attribute(maximum_key)]:
            warn_once("%s is greater than %s and is lowered to %d ms", key, maximum_key, values[_attribute(maximum_key)])
            values[_attribute(key)] = values[_attribute(maximum_key)]


@rule("security.protocol", *TLS_KEYS)
def _tls_options_are_complete(values: OptionValues) -> Iterator[str]:
    """Check what Java checks in DefaultSslEngineFactory.createKeystore and createTruststore."""
    if values["security_protocol"] not in ("SSL", "SASL_SSL"):
        return

    def is_set(key: str) -> bool:
        return values[_attribute(key)] not in (None, "")

    for key, needed_key in (
        ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
        ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
        ("ssl.keystore.password", "ssl.keystore.location"),
        ("ssl.truststore.password", "ssl.truststore.location"),
    ):
        if is_set(key) and not is_set(needed_key):
            yield f"{key} is set, but {needed_key} is not; set both or neither"
    for text_key, store in (("ssl.keystore.key", "ssl.keystore"), ("ssl.truststore.certificates", "ssl.truststore")):
        if is_set(text_key) and is_set(f"{store}.location"):
            yield f"Both {text_key} and {store}.location are set; remove one of them"
        if is_set(text_key) and f"{store}.type" in values["given_keys"] and values[_attribute(f"{store}.type")] != "PEM":
            yield f"{text_key} is PEM, but {store}.type={values[_attribute(f'{store}.type')]}; set it to PEM, or remove it"
    if values["ssl_protocol"] == "TLSv1.2" and "TLSv1.2" not in values["ssl_enabled_protocols"]:
        yield "ssl.protocol=TLSv1.2 excludes all of ssl.enabled.protocols=TLSv1.3; change one of them"


@rule()
def _options_are_available(values: OptionValues) -> Iterator[str]:
    for key, is_refused, remedy in NOT_AVAILABLE:
        value = values[_attribute(key)]
        if is_refused(value):
            yield f"{key}={as_text(value)} is not available in this version: {remedy}"


# Options that are declared but not implemented: (key, which of its values are refused, what to do instead).
NOT_AVAILABLE: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("transaction.two.phase.commit.enable", bool, "no released broker offers it (KIP-939); remove it"),
)


@rule("partitioner.class", "interceptor.classes")
def _plugins_are_python(values: OptionValues) -> Iterator[str]:
    """Checks only the form of a name. The class is loaded where it runs, which in Spark is in the tasks."""
    partitioner = values["partitioner_class"]
    if partitioner not in (None, *KAFKAS_PARTITIONERS):
        yield from _name_problem("partitioner.class", partitioner, f"{_BUILT_IN}, or write a `partition` column")
    for interceptor in values["interceptor_classes"]:
        yield from _name_problem("interceptor.classes", interceptor, "or remove it")


_BUILT_IN = f"or use one that is built in: {ROUND_ROBIN}, or none for Kafka's own choice (hash of the key)"


def _name_problem(key: str, name: object, alternative: str) -> Iterator[str]:
    if not isinstance(name, str):
        return
    if is_java_class(name):
        yield (
            f"{key}={name} is a Java class, which cannot be loaded here: write it in Python (docs/plug-ins.md) and name it"
            f" package.module.Class, {alternative}"
        )
    elif not is_dotted_name(name):
        yield f"{key}={name} is not a dotted name: name a Python class package.module.Class (docs/plug-ins.md), {alternative}"


@rule("security.protocol", *SASL_KEYS)
def _sasl_options_are_complete(values: OptionValues) -> Iterator[str]:
    yield from sasl.problems(values)
    if values["sasl_mechanism"] == sasl.PLAIN and values["security_protocol"] == "SASL_PLAINTEXT":
        warn_once("sasl.mechanism=PLAIN with security.protocol=SASL_PLAINTEXT sends the password in clear text: use SASL_SSL")
    uses_aws_login = values["sasl_mechanism"] == sasl.AWS_MSK_IAM and values["security_protocol"].startswith("SASL_")
    if values["sasl_client_callback_handler_class"] is not None and not uses_aws_login:
        warn_once("Option 'sasl.client.callback.handler.class' has no effect: %s", JVM)


@rule("partitioner.class")
def _replace_removed_partitioners(values: OptionValues) -> None:
    name = values["partitioner_class"]
    if name in (DEFAULT_PARTITIONER, UNIFORM_STICKY):
        logger.info("partitioner.class=%s was removed in Kafka 4.0; the built-in partitioner replaces it", name)
        values["partitioner_class"] = None
        values["partitioner_ignore_keys"] |= name == UNIFORM_STICKY


_client_numbers = count(1)


@rule("client.id")
def _name_the_client(values: OptionValues) -> None:
    if "client.id" not in values["given_keys"]:
        values["client_id"] = f"producer-{values['transactional_id'] or next(_client_numbers)}"


@rule("client.id")
def _name_of_the_client_fits(values: OptionValues) -> Iterator[str]:
    if "client.id" not in values["given_keys"] and len(values["client_id"].encode()) > MAX_STRING_BYTES:
        yield "transactional.id is too long to be part of a client.id; shorten it, or set client.id"


def _attribute(key: str) -> str:
    return key.replace(".", "_")
