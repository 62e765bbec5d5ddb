"""A sink whose commits fail while a file exists: before they have done anything, or after all, if the file says `after`.

Importable, as Spark makes its writers anew in processes of its own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_kafka_sink import KafkaDataSource
from spark_kafka_sink.sink.writer import KafkaStreamWriter


def file_that_fails_commits(report_path: str) -> Path:
    return Path(report_path).with_suffix(".fail")


class _Writer(KafkaStreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        failure_file = file_that_fails_commits(self.plan.options.report_path or "")
        if not failure_file.exists():
            super().commit(messages, batchId)
            return
        if failure_file.read_text() == "after":
            super().commit(messages, batchId)
        raise RuntimeError("no commit, as planned")


class CommitFailsWhenAsked(KafkaDataSource):
    @classmethod
    def name(cls) -> str:
        return "pykafka-sink-failing-commits"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        made = super().streamWriter(schema, overwrite)
        return _Writer(**{each.name: getattr(made, each.name) for each in fields(made)})
