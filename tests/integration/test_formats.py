"""Struct columns as Avro with real Spark, a real broker and a registry: batches, streams, foreachBatch, and what goes wrong."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import exactly_once_options
from tests.integration.reading import ReadRecord, ReadTopic, Topic
from tests.integration.writing import FileStream, avro, conditions, error_of, run, save
from tests.schemas.fake_registry import FakeRegistry

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def orders(spark: SparkSession, rows: int = 1000) -> DataFrame:
    return spark.range(rows, numPartitions=2).selectExpr(
        "concat('k', id) key",
        "named_struct('id', id, 'name', if(id % 3 = 0, null, concat('n', id)), 'at', timestamp_micros(id),"
        " 'tags', array('a', null), 'prices', map('eur', cast(id as decimal(9,2)))) value",
    )


def decoded(registry: FakeRegistry, subject: str, octets: bytes | None) -> Any:
    """By the newest schema of the subject."""
    if octets is None:
        return None
    schema = fastavro.parse_schema(json.loads(registry.texts(subject)[-1]))
    assert octets[:1] == b"\0"
    return fastavro.schemaless_reader(io.BytesIO(octets[5:]), schema, None)


def schema_ids(records: list[ReadRecord]) -> set[int]:
    return {int.from_bytes(record.value[1:5], "big") for record in records if record.value is not None}


def test_a_struct_is_avro_with_a_schema_that_was_registered(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, tmp_path: Path
) -> None:
    name, report = topic(), tmp_path / "report.jsonl"
    save(orders(spark), broker, name, **avro(registry, keyFormat="avro", reportPath=str(report)))
    records = read_topic(name)
    assert len(records) == 1000
    values = {decoded(registry, f"{name}-key", each.key): decoded(registry, f"{name}-value", each.value) for each in records}
    assert values["k4"]["name"] == "n4"
    assert values["k3"]["name"] is None
    assert values["k999"]["tags"] == ["a", None]
    assert str(values["k7"]["prices"]["eur"]) == "7.00"
    assert values["k7"]["at"].microsecond == 7
    reported_schemas = {each["part"]: (each["subject"], each["version"]) for each in json.loads(report.read_text())["schemas"]}
    assert reported_schemas == {"key": (f"{name}-key", 1), "value": (f"{name}-value", 1)}


def test_a_null_struct_is_a_tombstone(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name = topic(1)
    rows = spark.range(4, numPartitions=1).selectExpr("'k' key", "if(id = 2, null, named_struct('id', id)) value")
    save(rows, broker, name, **avro(registry))
    assert [decoded(registry, f"{name}-value", each.value) for each in read_topic(name)] == [
        {"id": 0},
        {"id": 1},
        None,
        {"id": 3},
    ]


@pytest.mark.parametrize("zone", ["Etc/UTC", "Europe/Berlin"])
def test_a_left_join_with_a_time_is_written_in_any_time_zone(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, zone: str
) -> None:
    """A row without a match has a null struct, whose field is NOT NULL. It ended the write, in a column unless the session's time
    zone was UTC, as Spark sends that zone and plans with UTC, and in a map always."""
    name = topic(1)
    left = spark.range(2, numPartitions=1)
    right = spark.range(1).selectExpr("id + 1 other_id", "named_struct('number', id) found")
    columns = "named_struct('id', id, 'found', found, 'map', map('found', found), 'at', current_timestamp()) value"
    old_zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = (
            left.join(right, left.id == right.other_id, "left").selectExpr(columns).coalesce(1).sortWithinPartitions("value.id")
        )
        save(rows, broker, name, **avro(registry))
    finally:
        spark.conf.set("spark.sql.session.timeZone", old_zone)
    values = [decoded(registry, f"{name}-value", each.value) for each in read_topic(name)]
    assert [(each["id"], each["found"], each["map"]) for each in values] == [
        (0, None, {"found": None}),
        (1, {"number": 0}, {"found": {"number": 0}}),
    ]


@pytest.mark.usefixtures("one_planner")
def test_a_stream_asks_the_registry_in_its_first_micro_batch_only(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, tmp_path: Path
) -> None:
    name, stream = topic(1), FileStream(spark, tmp_path, "id long, name string")
    request_counts = []
    for number in range(3):
        stream.feed([{"id": number, "name": None}])
        run(stream.writer(stream.read().selectExpr("struct(id, name) value"), broker, name, **avro(registry)))
        request_counts.append(len(registry.requests))
    assert request_counts[0] == request_counts[2]
    assert [decoded(registry, f"{name}-value", each.value)["id"] for each in read_topic(name)] == [0, 1, 2]


@pytest.mark.usefixtures("one_planner")
def test_a_stream_goes_on_while_the_registry_is_gone(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, stream = topic(1), FileStream(spark, tmp_path, "id long")
    with FakeRegistry() as registry:
        stream.feed([{"id": 0}])
        options = avro(registry)
        run(stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **options))
    stream.feed([{"id": 1}])
    run(stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **options))
    assert len(read_topic(name)) == 2


def test_what_a_stream_could_not_write_is_written_by_its_next_run(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, tmp_path: Path
) -> None:
    """The registry refuses the schema, then allows it."""
    name, stream = topic(1), FileStream(spark, tmp_path, "id long")
    registry.register(f"{name}-value", '"string"')
    stream.feed([{"id": 0}, {"id": 1}])
    writer = stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **avro(registry))
    message = error_of(lambda: run(writer))
    assert "[KAFKA_SCHEMA_REGISTRY_INCOMPATIBLE]" in message
    assert read_topic(name) == []
    registry.set_compatibility(f"{name}-value", "NONE")
    run(stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **avro(registry)))
    assert [decoded(registry, f"{name}-value", each.value)["id"] for each in read_topic(name)] == [0, 1]


def test_each_call_of_foreach_batch_is_planned(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry, tmp_path: Path
) -> None:
    name, stream = topic(1), FileStream(spark, tmp_path, "id long")

    def write(rows: DataFrame, number: int) -> None:
        options = exactly_once_options(f"{name}-orders", number) | avro(registry)
        save(rows.selectExpr("struct(id) value"), broker, name, **options)

    for number in range(2):
        stream.feed([{"id": number}])
        writer = stream.read().writeStream.foreachBatch(write).trigger(availableNow=True)
        run(writer.option("checkpointLocation", str(stream.checkpoint)))
    assert [decoded(registry, f"{name}-value", each.value)["id"] for each in read_topic(name)] == [0, 1]


def test_a_new_column_is_a_new_version_that_old_readers_understand(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name = topic(1)
    save(spark.range(1, numPartitions=1).selectExpr("struct(id) value"), broker, name, **avro(registry))
    changed = "struct(id, if(id < 0, null, 'x') note) value"
    save(spark.range(1, numPartitions=1).selectExpr(changed), broker, name, **avro(registry))
    old, new = (fastavro.parse_schema(json.loads(text)) for text in registry.texts(f"{name}-value"))
    first, second = (each.value for each in read_topic(name))
    assert first is not None
    assert second is not None
    assert fastavro.schemaless_reader(io.BytesIO(second[5:]), new, old) == {"id": 0}
    assert fastavro.schemaless_reader(io.BytesIO(first[5:]), old, new) == {"id": 0, "note": None}


def test_topics_from_a_column_have_schemas_of_their_own(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    names = [topic(1), topic(1)]
    rows = spark.range(100, numPartitions=1).selectExpr(f"if(id % 2 = 0, '{names[0]}', '{names[1]}') topic", "struct(id) value")
    save(rows, broker, **avro(registry))
    for number, name in enumerate(names):
        assert [decoded(registry, f"{name}-value", each.value)["id"] for each in read_topic(name)] == list(range(number, 100, 2))


def test_a_row_that_cannot_be_encoded_goes_to_the_dead_letter_topic_as_json(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name, dead = topic(1), topic(1)
    enum = {"type": "enum", "name": "Size", "symbols": ["S", "M"]}
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "size", "type": enum}]})
    registry.register(f"{name}-value", text)
    rows = spark.range(6, numPartitions=1).selectExpr("concat('k', id) key", "struct(if(id = 4, 'XXL', 'S') size) value")
    options = avro(registry, valueSchema="latest")
    message = error_of(lambda: save(rows, broker, name, **options))
    assert "[KAFKA_ROW_NOT_ENCODABLE] row 4 of this task: " in message
    assert "value.size: " in message
    save(rows, broker, name, onInvalidRecord="deadLetter", deadLetterTopic=dead, **options)
    (letter,) = read_topic(dead)
    assert (letter.key, letter.value) == (b"k4", b'{"size": "XXL"}')
    assert dict(letter.headers)["__pykafka_sink.errors.field"] == b"value.size"
    assert len([each for each in read_topic(name) if each.value is not None]) >= 5


def test_bytes_get_the_frame_of_a_registered_schema(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name = topic(1)
    registry.register(f"{name}-value", "message A {}", schemaType="PROTOBUF")
    rows = spark.range(2, numPartitions=1).selectExpr("if(id = 0, X'0801', null) value")
    save(rows, broker, name, valueFormat="framed", valueSchema="latest", schema__registry__url=registry.url)
    assert [each.value for each in read_topic(name)] == [b"\x00\x00\x00\x00\x01\x00\x08\x01", None]


def test_what_is_wrong_fails_the_write_before_a_task_starts(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(1)
    with FakeRegistry(login="me:right") as registry:
        registry.register(f"{name}-value", '"string"')
        right = {"basic__auth__user__info": "me:right"}
        cases: dict[str, dict[str, str]] = {
            "KAFKA_SCHEMA_REGISTRY_UNREACHABLE": avro(registry, schema__registry__url="http://127.0.0.1:1"),
            "KAFKA_SCHEMA_REGISTRY_LOGIN_FAILED": avro(registry, basic__auth__user__info="me:hunter2"),
            "KAFKA_SCHEMA_REGISTRY_INCOMPATIBLE": avro(registry, **right),
            "KAFKA_INVALID_SCHEMA": avro(registry, valueSchema="latest", **right),
            "KAFKA_INVALID_CONFIG": avro(registry, valueSchema="newest"),
        }
        for condition, options in cases.items():
            message = error_of(lambda options=options: save(orders(spark, 10), broker, name, **options))
            assert condition in conditions(message)
            assert "hunter2" not in message
    assert read_topic(name) == []
