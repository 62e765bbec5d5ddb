"""What tests of the sink share: writing a DataFrame, running a stream over files, and telling what went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from jobs.local_kafka import LocalKafka
from tests.schemas.fake_registry import FakeRegistry

FORMAT = "pykafka-sink"
STREAM_LIMIT_S = 120
QUICK = {"schema__registry__max__retries": "0"}


def save(df: DataFrame, broker: LocalKafka | str, topic: str | None = None, mode: str = "append", **options: str) -> None:
    """Write a DataFrame; options have double underscores for dots."""
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers
    writer = df.write.format(FORMAT).mode(mode).option("kafka.bootstrap.servers", servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**_dotted(options)).save()


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def error_of(action: Callable[[], object]) -> str:
    """The text of the error that an action ends with."""
    with pytest.raises(PySparkException) as raised:
        action()
    return str(raised.value)


def conditions(text: str) -> set[str]:
    """The codes of ours in a text."""
    return set(re.findall(r"\[(KAFKA_[A-Z_]+)\]", text))


class FileStream:
    """A stream over a directory of JSON files, which each test feeds; its checkpoint lies beside it."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str) -> None:
        self._spark = spark
        self._schema = schema
        self.source = directory / "source"
        self.checkpoint = directory / "checkpoint"
        self.source.mkdir()
        self._files = 0

    def feed(self, rows: Sequence[dict[str, Any]]) -> None:
        self._files += 1
        staged = self.source.parent / "staged"
        staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
        staged.rename(self.source / f"{self._files:05}.json")

    def read(self) -> DataFrame:
        return self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).json(str(self.source))

    def writer(self, df: DataFrame, broker: LocalKafka | str, topic: str | None = None, **options: str) -> DataStreamWriter:
        servers = broker if isinstance(broker, str) else broker.bootstrap_servers
        writer = df.writeStream.format(FORMAT).option("kafka.bootstrap.servers", servers).options(**_dotted(options))
        writer = writer if topic is None else writer.option("topic", topic)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)


def run(writer: DataStreamWriter) -> StreamingQuery:
    """Run a stream until it has read all there is. Raises what the query ended with."""
    query = writer.start()
    try:
        assert query.awaitTermination(STREAM_LIMIT_S), "the stream did not end in time"
    finally:
        query.stop()
    return query


def avro(registry: FakeRegistry, **more: str) -> dict[str, str]:
    return {"valueFormat": "avro", "schema__registry__url": registry.url, **QUICK, **more}
