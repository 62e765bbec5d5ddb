"""Exactly-once writes with schemas of a registry that has a newer version when a write is repeated, against fake ones."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_kafka_sink import exactly_once_options
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.decisions import commit_entries
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.version_commit import VersionCommit
from spark_kafka_sink.exactly_once.writes import CommitFailedError, ReplayError
from spark_kafka_sink.schemas import known_schemas
from spark_kafka_sink.sink import writer as writer_module
from spark_kafka_sink.sink.commit_message import KafkaCommitMessage
from spark_kafka_sink.sink.datasource import KafkaDataSource
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.worker_cache import CLIENTS, TRANSACTIONAL, TRANSACTIONAL_FOR_LARGE_ROWS
from spark_kafka_sink.sink.writer import KafkaBatchWriter
from tests.fakes.fake_broker import FakeBroker
from tests.schemas.fake_registry import FakeRegistry

ROW = StructType([StructField("id", LongType(), False), StructField("name", StringType())])
WIDER_ROW = StructType([*ROW.fields, StructField("note", StringType())])
FIRST = {
    "type": "record",
    "name": "topLevelRecord",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
NEWER = FIRST | {"fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": "none"}]}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"t": 1}) as broker:
        yield broker
        TRANSACTIONAL_FOR_LARGE_ROWS.close()
        TRANSACTIONAL.close()  # before the broker, as this process goes on to the next test
        CLIENTS.close()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    known_schemas.forget()
    with FakeRegistry() as registry:
        yield registry
    known_schemas.forget()


class Sink:
    """`writer` plans as a new driver would, which knows nothing of the registry."""

    def __init__(
        self, broker: FakeBroker, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, subject: str, **options: str
    ) -> None:
        self._broker, self.registry, self._monkeypatch, self._subject = broker, registry, monkeypatch, subject
        registry.register(subject, json.dumps(FIRST))
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "schema.registry.url": registry.url,
            "topic": "t",
            "valueFormat": "avro",
            "valueSubject": subject,
            **options,
        }

    def writer(self, version: int = 0, row: StructType = ROW, **options: str) -> KafkaBatchWriter:
        known_schemas.forget()
        all_options = self._options | exactly_once_options("p", version) | options
        columns = StructType([StructField("value", row)])
        return KafkaDataSource(CaseInsensitiveDict(all_options)).writer(columns, False)

    def run_tasks(self, writer: KafkaBatchWriter, *partitions: list[dict[str, Any]]) -> list[KafkaCommitMessage]:
        kind = writer.plan.encoded_parts[0].wanted_schema.type
        return [self._run_task(writer, number, pa.array(rows, kind)) for number, rows in enumerate(partitions)]

    def _run_task(self, writer: KafkaBatchWriter, partition: int, values: pa.Array) -> KafkaCommitMessage:
        self._monkeypatch.setattr(writer_module.Task, "current", classmethod(lambda _: Task(partition=partition)))
        return writer.write(iter([pa.RecordBatch.from_arrays([values], names=["value"])]))

    def write(self, version: int = 0, *partitions: list[dict[str, Any]], row: StructType = ROW, **options: str) -> None:
        writer = self.writer(version, row, **options)
        writer.commit(self.run_tasks(writer, *(partitions or ROWS)))

    def register_newer(self) -> None:
        self.registry.register(self._subject, json.dumps(NEWER))

    def visible_schemas_and_ids(self) -> list[tuple[int, int]]:
        """The schema and the id of each row that readers see."""
        return sorted(self._read(value) for value in self._broker.committed_values("t") if value is not None)

    def _read(self, value: bytes) -> tuple[int, int]:
        schema_id = struct.unpack(">bI", value[:5])[1]
        text = self.registry.texts(self._subject)[schema_id - 1]
        row: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(text), None)
        return schema_id, row["id"]


ROWS = ([{"id": 1, "name": "a"}, {"id": 2, "name": None}], [{"id": 3, "name": "c"}])
ALL_WITH_THE_FIRST = [(1, 1), (1, 2), (1, 3)]


@pytest.fixture(params=["latest", "derived", "in a context"])
def sink(broker: FakeBroker, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sink:
    """In a context: the default context has other schemas under the same ids, which repetitions were encoded with."""
    if request.param == "derived":
        return Sink(broker, registry, monkeypatch, "t-value")
    if request.param == "in a context":
        for first_name in ("other", "another"):
            other_names = {"name": f"{first_name}.Record", "fields": FIRST["fields"][::-1]}
            registry.register(f"{first_name}-value", json.dumps(FIRST | other_names))
    subject = "t-value" if request.param == "latest" else ":.staging:t-value"
    return Sink(broker, registry, monkeypatch, subject, valueSchema="latest")


class CrashError(Exception):
    pass


def crash_after_the_decision(sink: Sink, committed: int = 0, fenced: int = 0) -> None:
    """The driver dies among its commits; further transactions time out."""

    def commit_a_part(commit: VersionCommit, decision: Decision, *_: Any) -> None:
        prepared = [each.prepared_transaction(commit.names, commit._write.owner) for each in decision.entries]
        commit.client.end_transactions(prepared[:committed], commit=True)
        commit.client.fence(each.transactional_id for each in prepared[committed : committed + fenced])
        raise CrashError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VersionCommit, "_commit_or_fail", commit_a_part)
        with pytest.raises(CrashError):
            sink.write()


@pytest.mark.parametrize(("committed", "fenced"), [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1), (0, 2)])
def test_a_new_version_between_crash_and_restart_changes_nothing(sink: Sink, committed: int, fenced: int) -> None:
    """Whether the version is decided, carried out by half, or half of it has to be written again."""
    crash_after_the_decision(sink, committed, fenced)
    sink.register_newer()
    sink.write()
    assert sink.visible_schemas_and_ids() == ALL_WITH_THE_FIRST
    sink.write()  # once more, as Spark's log does not have it
    assert sink.visible_schemas_and_ids() == ALL_WITH_THE_FIRST
    sink.write(1, [{"id": 4, "name": "d"}])
    assert sink.visible_schemas_and_ids() == [*ALL_WITH_THE_FIRST, (sink.writer(1).plan.encoded_parts[0].encoder.use.id, 4)]


def test_a_new_version_that_is_incomplete_is_completed_with_its_schema(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver itself found that a transaction had timed out, and only the incomplete decision and a marker are left."""
    with monkeypatch.context() as patch:

        def fence_first(ledger: Any, decision: Decision, *how: Any) -> Any:
            first = decision.entries[0].prepared_transaction(ledger.names, ledger.owner)
            ledger.client.fence([first.transactional_id])
            return commit_entries(ledger, decision, *how)

        patch.setattr("spark_kafka_sink.exactly_once.version_commit.commit_entries", fence_first)
        with pytest.raises(CommitFailedError, match="transactions were gone"):
            sink.write()
    assert sink.visible_schemas_and_ids() == [(1, 3)]
    sink.register_newer()
    sink.write()
    assert sink.visible_schemas_and_ids() == ALL_WITH_THE_FIRST


def test_a_write_that_nobody_has_decided_takes_the_newer_version(sink: Sink) -> None:
    writer = sink.writer()
    sink.run_tasks(writer, *ROWS)  # and the driver dies
    sink.register_newer()
    sink.write()
    expected = sink.writer().plan.encoded_parts[0].encoder.use.id
    assert [schema for schema, _ in sink.visible_schemas_and_ids()] == [expected] * 3


def test_the_schemas_of_a_write_are_seen_in_its_decision(sink: Sink, broker: FakeBroker) -> None:
    sink.write()
    (metadata,) = (
        offset.metadata
        for name, group in broker.offsets.groups.items()
        if name.endswith("-decision")
        for offset in group.offsets.values()
    )
    assert " value_schema=1" in metadata


def test_a_repetition_asks_the_registry_for_the_schema_by_its_id(sink: Sink) -> None:
    sink.write()
    sink.register_newer()
    writer = sink.writer(valueSchema="latest")
    before = len(sink.registry.requests)
    writer.commit(sink.run_tasks(writer, *ROWS))
    assert [each.partition("?")[0] for each in sink.registry.requests[before:]] == ["GET /schemas/ids/1"]


# A DATAFRAME WITH ANOTHER COLUMN


WIDER_ROWS = tuple([each | {"note": "n"} for each in rows] for rows in ROWS)


def test_a_repetition_with_a_new_column_is_other_rows(sink: Sink) -> None:
    sink.write()
    sink.register_newer()
    with pytest.raises(ReplayError, match=r"encoded with value schema 1, and this write of version 0 has 3 rows"):
        sink.write(0, *WIDER_ROWS, row=WIDER_ROW)
    sink.write(0, *WIDER_ROWS, row=WIDER_ROW, onNonDeterministicReplay="keepFirst")
    assert sink.visible_schemas_and_ids() == ALL_WITH_THE_FIRST


def test_a_repetition_with_a_new_column_cannot_complete_a_part(sink: Sink) -> None:
    crash_after_the_decision(sink, committed=1, fenced=1)
    sink.register_newer()
    with pytest.raises(ReplayError, match=r"begun this version with value schema 1, and only a part .*note is no field of"):
        sink.write(0, *WIDER_ROWS, row=WIDER_ROW)
    assert sink.visible_schemas_and_ids() == [(1, 1), (1, 2)]
    sink.write()
    assert sink.visible_schemas_and_ids() == ALL_WITH_THE_FIRST


def test_a_registry_that_is_gone_fails_the_repetition_and_loses_nothing(sink: Sink) -> None:
    crash_after_the_decision(sink, committed=1, fenced=1)
    sink.register_newer()
    writer = sink.writer(valueSchema="latest", **{"schema.registry.max.retries": "0"})
    sink.registry.stop()
    with pytest.raises(KafkaError, match=r"KAFKA_SCHEMA_REGISTRY_UNREACHABLE.*cannot get schema 1"):
        sink.run_tasks(writer, *ROWS)
