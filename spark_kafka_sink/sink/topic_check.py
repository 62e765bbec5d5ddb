"""Asks the brokers, while the driver plans a write, whether its topic exists: a mistyped name fails before a task starts.

Runs in the Python process in which Spark plans, once for the same brokers and topic: Spark plans a stream anew for each
micro-batch. Creates nothing.
Laws: a write fails here only if brokers answer that the topic does not exist and that they create none. Whatever else happens,
such as a driver that reaches no broker or must not read that setting, is left to the tasks. Takes TIMEOUT_MS at most, and leaves
nothing open.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink import stderr_log
from spark_kafka_sink.errors import BrokerError, ConfigError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.admin.request_client import RequestClient
    from spark_kafka_sink.sink.write_plan import WritePlan

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5_000
MAX_LOOKS = 4  # with retry.backoff.ms in between, as brokers learn of a new topic late
CREATE_KEY = "auto.create.topics.enable"

_settled_topics: set[tuple[tuple[str, ...], str]] = set()  # brokers and topics that were found, or could not be asked for


def require_topic(plan: WritePlan) -> None:
    """Raises ConfigError if the topic of all rows neither exists nor will be created. No check if rows name topics."""
    topic = plan.mapping.topic
    options = plan.options.producer.to_mapping()
    brokers: tuple[str, ...] = tuple(options["bootstrap.servers"])  # type: ignore[arg-type]
    if not isinstance(topic, str) or (brokers, topic) in _settled_topics:
        return
    if _is_known_to_be_missing(options, topic):
        addresses = ",".join(brokers)
        raise ConfigError(
            f"topic {topic} does not exist at {addresses}, and the brokers create none ({CREATE_KEY}=false): correct the option"
            f" topic, or create it, for example with kafka-topics.sh --bootstrap-server {addresses} --create --topic {topic}",
            condition="KAFKA_UNKNOWN_TOPIC",
        )
    _settled_topics.add((brokers, topic))


def _is_known_to_be_missing(options: Mapping[str, object], topic: str) -> bool:
    # Imported here, as the driver plans every micro-batch and needs these once.
    from dataclasses import replace

    from spark_kafka_sink.admin.cluster_access import ClusterAccess
    from spark_kafka_sink.admin.request_client import RequestClient
    from spark_kafka_sink.clock import Clock
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.sink.shipped_files import with_shipped_files

    try:
        with stderr_log.without_warnings():  # of connections: the tasks have their own
            clock = Clock()
            deadline_ms = clock.now_ms() + TIMEOUT_MS
            config = ProducerConfig.from_mapping(with_shipped_files(options))
            # An address that does not answer must leave time for the others.
            limit_ms = min(config.socket_connection_setup_timeout_ms, TIMEOUT_MS // 2)
            config = replace(config, socket_connection_setup_timeout_ms=limit_ms)
            with RequestClient(ClusterAccess(config, clock=clock)) as client:
                return is_missing(client, topic, deadline_ms)
    except KafkaError as error:
        logger.debug("= whether topic %s exists is not known: %s", topic, error)
        return False


def is_missing(client: RequestClient, topic: str, deadline_ms: int) -> bool:
    """Whether the topic does not exist and will not be created. Raises KafkaError if the brokers do not answer that."""
    from spark_kafka_sink.admin.brokers import DescribeBrokerConfig
    from spark_kafka_sink.admin.leaders import FindLeaders
    from spark_kafka_sink.admin.operation import ANY_BROKER, Ask
    from spark_kafka_sink.protocol.error_codes import Errors

    def left_ms() -> int:
        return max(deadline_ms - client.clock.now_ms(), 0)

    def is_unknown() -> bool:
        (answer,) = client.ask([Ask(ANY_BROKER, FindLeaders(), topic)], left_ms())
        if isinstance(answer, BrokerError) and answer.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION.number:
            return True
        if isinstance(answer, KafkaError):
            raise answer
        return False

    if not is_unknown() or client.ask_all([Ask(ANY_BROKER, DescribeBrokerConfig(), CREATE_KEY)], left_ms()) != ["false"]:
        return False
    for look in range(1, MAX_LOOKS):
        client.back_off(look, left_ms())
        if not is_unknown():
            return False
    return True
