"""Reads topics back with clients that are not ours, from the beginning to the end offsets of the moment.

Used by the `read_topic` fixture. confluent-kafka reads fast; kafka-python decodes in Python, with its own checks of CRC and
codec, and is the second opinion. Every read is bounded by `timeout_s` and fails by name of what is missing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReadRecord:
    """One record as a consumer saw it. `timestamp` in ms; `timestamp_type` 0 = CreateTime, 1 = LogAppendTime."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    timestamp_type: int


# What the fixtures `topic` and `read_topic` are.
Topic = Callable[..., str]
ReadTopic = Callable[..., list[ReadRecord]]


def read_with_confluent(
    bootstrap_servers: str, topic: str, *, isolation_level: str = "read_uncommitted", timeout_s: float = 60, **config: object
) -> list[ReadRecord]:
    """All records, ordered by partition and offset."""
    import confluent_kafka as ck

    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "tests-reading",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "check.crcs": True,
            **config,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([ck.TopicPartition(topic, partition, ck.OFFSET_BEGINNING) for partition in partitions])
        unfinished = set(partitions)
        records: list[ReadRecord] = []
        deadline = time.monotonic() + timeout_s
        while unfinished:
            if time.monotonic() > deadline:
                missing = f"partitions {sorted(unfinished)} not read to their end in {timeout_s} s"
                raise TimeoutError(f"{topic}: {missing}; {len(records)} records so far")
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    records.append(_from_confluent(message))
                elif error.code() == ck.KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise ck.KafkaException(error)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _from_confluent(message: Any) -> ReadRecord:
    kind, timestamp = message.timestamp()
    return ReadRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        timestamp,
        kind - 1,  # librdkafka counts from 1
    )


def read_with_kafka_python(
    bootstrap_servers: str, topic: str, *, isolation_level: str = "read_uncommitted", timeout_s: float = 60, **config: object
) -> list[ReadRecord]:
    """All records, ordered by partition and offset."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
        check_crcs=True,
        **config,
    )
    try:
        assignment = [TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic) or ())]
        if not assignment:
            raise LookupError(f"topic {topic} does not exist")
        consumer.assign(assignment)
        consumer.seek_to_beginning(*assignment)
        ends = consumer.end_offsets(assignment)
        records: list[ReadRecord] = []
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                missing = f"not read to its end offsets {ends} in {timeout_s} s"
                raise TimeoutError(f"{topic}: {missing}; {len(records)} records so far")
            for batch in consumer.poll(timeout_ms=200, max_records=10_000).values():
                records += map(_from_kafka_python, batch)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _from_kafka_python(record: Any) -> ReadRecord:
    return ReadRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        list(record.headers),
        record.timestamp,
        record.timestamp_type,
    )


READERS: dict[str, ReadTopic] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
}


def read_with_spark(
    spark: SparkSession, bootstrap_servers: str, *topics: str, isolation_level: str = "read_uncommitted"
) -> DataFrame:
    """What Spark's own Kafka source reads from the topics: key and value are binary, `headers` is null where there are none."""
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": ",".join(topics), "includeHeaders": "true"}
    options["kafka.isolation.level"] = isolation_level
    return spark.read.format("kafka").options(**options).option("startingOffsets", "earliest").load()


def read_values_with_console_consumer(
    jars: Path, bootstrap_servers: str, topic: str, records: int, *, isolation_level: str = "read_uncommitted"
) -> list[str]:
    """The values of so many records, as Kafka's own console consumer prints them; fewer if there are not so many."""
    arguments = ["--bootstrap-server", bootstrap_servers, "--topic", topic, "--isolation-level", isolation_level]
    arguments += ["--from-beginning", "--max-messages", str(records), "--timeout-ms", "30000"]
    command = kafka_tool(jars, "consumer.ConsoleConsumer", *arguments)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
    return answer.stdout.splitlines()


def kafka_tool(jars: Path, name: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's own tools, by its class in org.apache.kafka.tools."""
    logging = f"-Dlog4j2.configurationFile={Path(__file__).resolve().parents[2] / 'conf' / 'kafka-tools-log4j2.properties'}"
    return [str(find_java()), "-Xmx256m", logging, "-cp", f"{jars}/*", f"org.apache.kafka.tools.{name}", *arguments]
