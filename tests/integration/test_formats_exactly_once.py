"""Exactly-once with schemas on real Spark and a real broker: the restart of a driver that died encodes with the decided schemas.

tests/sink/test_schemas_exactly_once.py goes through more moments of death, against a fake broker.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from tests.integration.exactly_once_world import OPEN
from tests.integration.processes import until
from tests.integration.programs import SETTINGS, Program
from tests.integration.reading import ReadRecord, ReadTopic, Topic
from tests.schemas.fake_registry import FakeRegistry

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STREAM = """
from tests.integration.dying_sink import Dying
spark = session("local[2]", {settings})
spark.dataSource.register(Dying)
stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json({source!r}).repartition(3, "id")
rows = stream.selectExpr("struct(id) key", "struct(id, concat('n', id) name) value")
writer = rows.writeStream.format("pykafka-sink-dying").options(**{options})
writer.option("checkpointLocation", {checkpoint!r}).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""
VALUE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "name", "type": ["null", "string"]}],
}
KEY = {"type": "record", "name": "topLevelRecord", "fields": [{"name": "id", "type": ["null", "long"], "default": None}]}
ADDED = {"name": "note", "type": "string", "default": "none"}


def wider(schema: dict[str, Any]) -> str:
    return json.dumps(schema | {"fields": [*schema["fields"], ADDED]})


def decoded(octets: bytes | None, texts: dict[int, str]) -> tuple[int, Any]:
    assert octets is not None
    schema_id = int.from_bytes(octets[1:5], "big")
    schema = fastavro.parse_schema(json.loads(texts[schema_id]))
    return schema_id, fastavro.schemaless_reader(io.BytesIO(octets[5:]), schema, None)


def texts_by_id(registry: FakeRegistry, *subjects: str) -> dict[int, str]:
    return {registry.register(subject, text): text for subject in subjects for text in registry.texts(subject)}


class Crash:
    """A stream of two batches whose driver dies when the first one is decided, and is started again."""

    def __init__(self, broker: LocalKafka, registry: FakeRegistry, name: str, directory: Path) -> None:
        self._directory = directory
        self._client = {"bootstrap.servers": broker.bootstrap_servers}
        self._name = name
        marks, source = directory / "marks", directory / "source"
        marks.mkdir()
        source.mkdir()
        for batch in range(2):
            lines = (f'{{"id": {number}}}\n' for number in range(batch * 50, batch * 50 + 50))
            (source / f"{batch}.json").write_text("".join(lines))
            os.utime(source / f"{batch}.json", (batch, batch))  # Spark reads the older file first
        self._settings = directory / "dying.json"
        self._settings.write_text(json.dumps({"marks": str(marks), "deaths": [("driver", "6e", "after")]}))
        options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "topic": name,
            "deliveryGuarantee": "exactly-once",
            "transactionalIdPrefix": name,
            "schema.registry.url": registry.url,
            "keyFormat": "avro",
            "valueFormat": "avro",
            "valueSchema": "latest",
        }
        settings = SETTINGS | {"spark.sql.shuffle.partitions": "3", "spark.sql.adaptive.enabled": "false"}
        self._code = STREAM.format(
            settings=settings, source=str(source), options=options, checkpoint=str(directory / "checkpoint")
        )

    def run(self) -> Program:
        return Program(self._directory, self._code, DYING=str(self._settings))

    def time_out_one_transaction(self) -> None:
        """Of those that are decided: its rows are gone, and have to be written again."""
        with TransactionClient(self._client) as client:
            client.fence([client.list_transactions(f"{self._name}-", OPEN)[0].transactional_id])

    def await_the_end_of_transactions(self) -> None:
        with TransactionClient(self._client) as client:
            until(lambda: not client.list_transactions(f"{self._name}-", OPEN), 30, "no transaction is open")


@pytest.mark.parametrize("is_lost", [True, pytest.param(False, marks=pytest.mark.matrix)], ids=["a part is lost", "all is there"])
def test_a_restart_encodes_with_the_decided_schemas_and_later_batches_with_newer(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, tmp_path: Path, is_lost: bool
) -> None:
    """Others register newer versions of both subjects between the driver's death and its restart."""
    name = topic(2)
    decided = registry.register(f"{name}-value", json.dumps(VALUE))
    crash = Crash(broker, registry, name, tmp_path)
    assert crash.run().wait() != 0
    assert [json.loads(text) for text in registry.texts(f"{name}-key")] == [KEY]  # derived, and registered by the first life
    if is_lost:
        crash.time_out_one_transaction()
    newer, key = registry.register(f"{name}-value", wider(VALUE)), registry.register(f"{name}-key", json.dumps(KEY))
    registry.register(f"{name}-key", wider(KEY))
    crash.run().succeed()
    crash.await_the_end_of_transactions()
    texts = texts_by_id(registry, f"{name}-key", f"{name}-value")
    records: list[ReadRecord] = read_topic(name, isolation_level="read_committed")
    decoded_rows = sorted(
        ((decoded(each.key, texts), decoded(each.value, texts)) for each in records), key=lambda each: each[0][1]["id"]
    )
    first = [((key, {"id": number}), (decided, {"id": number, "name": f"n{number}"})) for number in range(50)]
    second = [((key, {"id": number}), (newer, {"id": number, "name": f"n{number}", "note": "none"})) for number in range(50, 100)]
    assert decoded_rows == [*first, *second]
