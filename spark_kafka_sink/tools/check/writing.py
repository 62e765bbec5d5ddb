"""`--write`: sends one record as a write would, and says what came of it.

With exactly-once the record is part of a transaction that is aborted: readers with isolation.level=read_committed never see it.
No task has its transactional id. A check fences an earlier check of the same prefix: two must not write at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError, printable
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import RecordMetadata
from spark_kafka_sink.tools.check.results import CheckResult, green, red, remedy_for

WRITE_CHECK = "write"
RECORD_KEY = b"pykafka-sink-check"  # compacted topics reject records without one
RECORD_VALUE = b"One record of `pykafka-sink check --write`."
MIN_TIMEOUT_MS = 500
# Users' plug-ins are for their rows. Executors may have their code when this host does not.
_PLUG_INS = ("interceptor.classes", "partitioner.class")


@dataclass(frozen=True, slots=True)
class Transactional:
    """How the record is sent in a transaction.

    Args:
        timeout_ms: after which brokers abort the transaction if this process cannot.
        longest_ms: the time-out of a write, which a first producer tries with brokers; None: the brokers' limit is known.
    """

    transactional_id: str
    timeout_ms: int
    longest_ms: int | None = None


def write_record(
    topic: str, config: ProducerConfig, transactional: Transactional | None, timeout_ms: int, clock: Clock
) -> CheckResult:
    """Send the record. Green: it is acknowledged. Blocks at most `timeout_ms`."""
    start_ms, subject = clock.now_ms(), printable(topic)
    outcome = outcome_within(partial(_write, topic, config, transactional, timeout_ms), timeout_ms)
    ms = clock.now_ms() - start_ms
    if outcome is None:
        leftover = f"; its transaction ends at its time-out, {transactional.timeout_ms} ms" if transactional else ""
        finding = f"not acknowledged within {timeout_ms} ms; it may be written nevertheless{leftover}"
        remedy = "look at the partitions' leaders and in-sync replicas, and at the user's quotas"
        return red(WRITE_CHECK, subject, finding, remedy, ms)
    if outcome.error is not None:
        return red(WRITE_CHECK, subject, str(outcome.error), remedy_for(outcome.error), ms)
    metadata: RecordMetadata = outcome.result
    how = ", in a transaction that was aborted" if transactional else ""
    finding = f"one record is written to partition {metadata.partition} at offset {metadata.offset}{how}"
    return green(WRITE_CHECK, subject, finding, ms)


def _write(topic: str, config: ProducerConfig, transactional: Transactional | None, timeout_ms: int) -> RecordMetadata:
    if transactional is not None and transactional.longest_ms is not None:
        longest = Transactional(transactional.transactional_id, transactional.longest_ms)
        with KafkaProducer(_options(config, longest, timeout_ms)) as producer:
            producer.init_transactions()
    with KafkaProducer(_options(config, transactional, timeout_ms)) as producer:
        if transactional is None:
            return producer.send(topic, RECORD_VALUE, key=RECORD_KEY).result(timeout_ms / 1000)
        producer.init_transactions()
        producer.begin_transaction()
        try:
            metadata = producer.send(topic, RECORD_VALUE, key=RECORD_KEY).result(timeout_ms / 1000)
        except KafkaError:
            with contextlib.suppress(KafkaError):  # the first error says why
                producer.abort_transaction()
            raise
        producer.abort_transaction()
        return metadata


def _options(config: ProducerConfig, transactional: Transactional | None, timeout_ms: int) -> Mapping[str, object]:
    """The user's options with short waits and without plug-ins. acks=0 becomes 1, so that the broker acknowledges the record."""
    options = {name: value for name, value in config.to_mapping().items() if name not in _PLUG_INS}
    if config.acks == 0:
        options["acks"] = 1
    request_ms = max(timeout_ms - MIN_TIMEOUT_MS, MIN_TIMEOUT_MS)
    options |= {
        "linger.ms": 0,
        "request.timeout.ms": request_ms,
        "delivery.timeout.ms": max(timeout_ms, request_ms),
        "max.block.ms": max(timeout_ms, MIN_TIMEOUT_MS),
    }
    if transactional is not None:
        options |= {"transactional.id": transactional.transactional_id, "transaction.timeout.ms": transactional.timeout_ms}
    return options
