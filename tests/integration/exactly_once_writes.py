"""What tests of exactly-once writes with Spark share: their options, and what is in Kafka."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from tests.integration.exactly_once_world import OPEN
from tests.integration.processes import until
from tests.integration.reading import ReadRecord, ReadTopic
from tests.integration.writing import FileStream

Options = dict[str, str]


class CommittedReader:
    """Reads what is committed to a topic, when nothing is open under the prefix any more."""

    def __init__(self, broker: LocalKafka, read_topic: ReadTopic) -> None:
        self._read = read_topic
        self._client = TransactionClient({"bootstrap.servers": broker.bootstrap_servers})

    def close(self) -> None:
        self._client.close()

    def nothing_is_open(self, prefix: str) -> bool:
        return not self._client.list_transactions(f"{prefix}-", OPEN)

    def transactional_ids(self, prefix: str) -> list[str]:
        """All that brokers know, those at rest included."""
        return [each.transactional_id for each in self._client.list_transactions(f"{prefix}-") or ()]

    def records(self, topic: str, prefix: str) -> list[ReadRecord]:
        until(lambda: self.nothing_is_open(prefix), 30, "no transaction is open")
        return self._read(topic, isolation_level="read_committed")

    def values(self, topic: str, prefix: str) -> Counter[str]:
        return Counter((record.value or b"").decode() for record in self.records(topic, prefix))


def exactly_once(topic: str, **more: str) -> Options:
    """With double underscores for dots. The topic's name is the prefix too: no other test has it."""
    return {"topic": topic, "deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic, **more}


def unnamed(topic: str) -> Options:
    """For a df.write that nobody repeats."""
    return exactly_once(topic, allowUnnamedWrite="true")


def numbered(spark: SparkSession, start: int, stop: int, partitions: int = 3) -> DataFrame:
    return spark.range(start, stop, numPartitions=partitions).selectExpr("cast(id as string) value")


def once(start: int, stop: int) -> Counter[str]:
    return Counter(str(number) for number in range(start, stop))


def lines(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()]


def fed(stream: FileStream, start: int, stop: int) -> None:
    stream.feed([{"value": str(number)} for number in range(start, stop)])
