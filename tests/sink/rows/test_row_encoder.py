"""row_encoder.py: keys and values become bytes, row by row in place; rows that cannot be encoded are told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.config.format_options import AVRO, FRAMED, LATEST, PartOptions, SchemaReference, SchemaUse
from spark_kafka_sink.config.sink_options import DEAD_LETTER, FAIL_TASK, SKIP
from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.exactly_once.writes import WriteId
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.schemas import known_schemas
from spark_kafka_sink.schemas.known_schemas import KnownSchemas
from spark_kafka_sink.schemas.wanted_schema import PlannedPart, plan_schema
from spark_kafka_sink.sink.exactly_once_task import content_to_compare
from spark_kafka_sink.sink.rows.chunk import Chunk
from spark_kafka_sink.sink.rows.dead_letters import HEADER_PREFIX
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.row_encoder import RowEncoder
from spark_kafka_sink.sink.rows.row_sender import RowSender
from tests.fakes.registry_config import registry_config
from tests.schemas.fake_registry import FakeRegistry
from tests.sink.columns import columns, sink_options
from tests.sink.fake_producer import FakeProducer

ROW = pa.struct([pa.field("id", pa.int64())])
ROW_TEXT = '{"type":"record","name":"Row","fields":[{"name":"id","type":"long"}]}'
WIDER_TEXT = ROW_TEXT.replace("}]}", '},{"name":"note","type":["null","string"],"default":null}]}')
DERIVED_TEXT = '{"type":"record","name":"topLevelRecord","fields":[{"name":"id","type":["null","long"],"default":null}]}'
FRAME = b"\x00\x00\x00\x00\x01"
NO_ID = "it is null"


pytestmark = pytest.mark.usefixtures("process_that_knows_no_schema")


@pytest.fixture
def schemas(registry: FakeRegistry) -> Iterator[KnownSchemas]:
    with KnownSchemas(registry_config({"schema.registry.url": registry.url})) as schemas:
        yield schemas


def planned(
    schemas: KnownSchemas, part: str = "value", kind: pa.DataType = ROW, topic: str | None = "t", **options: Any
) -> PlannedPart:
    part_options = {"format": AVRO, "schema": SchemaReference(LATEST)} | options
    wanted_schema = plan_schema(PartOptions(part, **part_options), kind, schemas.config, [])
    return PlannedPart(wanted_schema, None if topic is None else wanted_schema.find_or_register(schemas, topic))


def chunk(values: list[Any], **fields: Any) -> Chunk:
    """A chunk whose rows are numbered from 100 on."""
    numbers = range(100, 100 + len(values))
    return Chunk(columns(value=pa.array(values, fields.pop("kind", ROW)), **fields), numbers, 1_000)


def no_topic(_: Sequence[str]) -> list[str]:
    return []


def encoder(schemas: KnownSchemas, *parts: PlannedPart, **options: Any) -> RowEncoder:
    defaults = {"schema_ids": {}, "keeps_all_refused_rows": True, "missing_topics": no_topic}
    return RowEncoder(parts, schemas, **(defaults | options))


def test_values_and_keys_are_encoded_and_nulls_stay(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    registry.register("t-key", '"string"')
    rows = encoder(schemas, planned(schemas), planned(schemas, "key", pa.string()))
    new_chunk = rows.encode(chunk([{"id": 1}, None, {"id": 2}], key=pa.array(["a", "b", None])))
    assert new_chunk.columns["value"].to_pylist() == [FRAME + b"\x02", None, FRAME + b"\x04"]
    assert new_chunk.columns["key"].to_pylist() == [b"\x00\x00\x00\x00\x02\x02a", b"\x00\x00\x00\x00\x02\x02b", None]
    assert (list(new_chunk.numbers), new_chunk.size_bytes, new_chunk.unencoded_rows) == ([100, 101, 102], 1_000, ())
    assert rows.uses() == (SchemaUse("key", "t-key", 2, 1), SchemaUse("value", "t-value", 1, 1))


def test_rows_that_cannot_be_encoded_leave_the_chunk_as_json(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    rows = encoder(schemas, planned(schemas))
    old_chunk = chunk([{"id": 1}, {"id": None}, None, {"id": None}, {"id": 2}], key=pa.array([b"a", b"b", b"c", b"d", b"e"]))
    new_chunk = rows.encode(old_chunk)
    assert new_chunk.columns["value"].to_pylist() == [FRAME + b"\x02", None, FRAME + b"\x04"]
    assert list(new_chunk.numbers) == [100, 102, 104]
    (unencoded,) = new_chunk.unencoded_rows
    assert (unencoded.field, list(unencoded.chunk.numbers)) == ("value.id", [101, 103])
    assert unencoded.reason.startswith(NO_ID)
    assert unencoded.reason.endswith("(t-value version 1 (id 1))")
    assert unencoded.chunk.columns["value"].to_pylist() == [b'{"id": null}'] * 2
    assert unencoded.chunk.columns["key"].to_pylist() == [b"b", b"d"]


def test_a_row_counts_once_and_only_its_bad_part_is_json(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    registry.register("t-key", ROW_TEXT)
    rows = encoder(schemas, planned(schemas), planned(schemas, "key"))
    bad, good = {"id": None}, {"id": 7}
    new_chunk = rows.encode(chunk([bad, bad, good, good], key=pa.array([bad, good, bad, good], ROW)))
    assert list(new_chunk.numbers) == [103]
    shown = {
        int(number): (value, key)
        for each in new_chunk.unencoded_rows
        for number, value, key in zip(
            each.chunk.numbers,
            each.chunk.columns["value"].to_pylist(),
            each.chunk.columns["key"].to_pylist(),
            strict=True,
        )
    }
    json_text, octets = b'{"id": null}', FRAME + b"\x0e"
    assert shown == {100: (json_text, json_text), 101: (json_text, octets), 102: (octets, json_text)}


def test_where_a_row_fails_the_task_only_the_first_becomes_json(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    rows = encoder(schemas, planned(schemas), keeps_all_refused_rows=False)
    new_chunk = rows.encode(chunk([{"id": 1}, {"id": None}, {"id": None}]))
    (unencoded,) = new_chunk.unencoded_rows
    assert list(unencoded.chunk.numbers) == [101]


# TOPICS FROM A COLUMN


def test_each_topic_has_its_own_schema_and_is_asked_for_once(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("a-value", ROW_TEXT)
    registry.register("b-value", WIDER_TEXT)
    rows = encoder(schemas, planned(schemas, topic=None))
    request_count = len(registry.requests)
    for _ in range(3):
        topics = pa.array(["b", "a", None, "b", "no/topic", "a"])
        new_chunk = rows.encode(chunk([{"id": 1}, {"id": 2}, {"id": 3}, None, {"id": 5}, {"id": 6}], topic=topics))
        assert new_chunk.columns["value"].to_pylist() == [
            b"\x00\x00\x00\x00\x02\x02\x00",
            FRAME + b"\x04",
            b'{"id": 3}',  # refused later, for its topic
            None,
            b'{"id": 5}',
            FRAME + b"\x0c",
        ]
    assert len(registry.requests) == request_count + 2
    assert [use.subject for use in rows.uses()] == ["a-value", "b-value"]


def test_refused_rows_of_topics_keep_their_places(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("a-value", ROW_TEXT)
    registry.register("b-value", WIDER_TEXT)
    rows = encoder(schemas, planned(schemas, topic=None))
    new_chunk = rows.encode(chunk([{"id": 1}, {"id": None}, {"id": None}, {"id": 4}], topic=pa.array(["b", "b", "a", "a"])))
    assert list(new_chunk.numbers) == [100, 103]
    reasons = sorted((list(each.chunk.numbers), each.reason[-24:]) for each in new_chunk.unencoded_rows)
    assert reasons == [([101], "(b-value version 1 (id 2))"[-24:]), ([102], "(a-value version 1 (id 1))"[-24:])]


def test_one_topic_in_the_column_and_one_for_all_rows_are_alike(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("a-value", ROW_TEXT)
    rows = encoder(schemas, planned(schemas, topic=None))
    for topic in ("a", pa.array(["a", "a"])):
        new_chunk = rows.encode(chunk([{"id": 1}, None], topic=topic))
        assert new_chunk.columns["value"].to_pylist() == [FRAME + b"\x02", None]


def test_a_topic_whose_schema_does_not_fit_fails_the_task(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("a-value", '{"type":"record","name":"Row","fields":[{"name":"other","type":"long"}]}')
    with pytest.raises(SchemaError, match="a-value version 1"):
        encoder(schemas, planned(schemas, topic=None)).encode(chunk([{"id": 1}], topic=pa.array(["a"])))


def test_rows_in_random_order_are_what_they_are_one_by_one(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("a-value", ROW_TEXT)
    registry.register("b-value", WIDER_TEXT)
    random = np.random.default_rng(1)
    values: list[Any] = [None if number % 7 == 0 else {"id": None if number % 5 == 0 else number} for number in range(500)]
    topics = random.choice(["a", "b"], 500).tolist()
    rows = encoder(schemas, planned(schemas, topic=None))
    at_once = rows.encode(chunk(values, topic=pa.array(topics)))
    one_by_one = [rows.encode(chunk([value], topic=topic)) for value, topic in zip(values, topics, strict=True)]
    expected = [each.columns["value"][0].as_py() for each in one_by_one if len(each.numbers)]
    assert at_once.columns["value"].to_pylist() == expected
    assert len(at_once.numbers) + sum(len(each.chunk.numbers) for each in at_once.unencoded_rows) == 500


class Topics:
    """Some topics exist. `lookups`: what was asked for, in order."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.lookups: list[str] = []

    def missing(self, topics: Sequence[str]) -> set[str]:
        self.lookups += topics
        return {name for name in topics if name not in self._names}


@pytest.mark.parametrize("schema", [None, SchemaReference(LATEST)])
def test_the_registry_hears_only_of_topics_that_exist(
    registry: FakeRegistry, schemas: KnownSchemas, schema: SchemaReference | None
) -> None:
    """A mistyped topic registered a subject for good, or failed the task where the schema is the latest."""
    registry.register("a-value", DERIVED_TEXT)
    topics = Topics("a")
    rows = encoder(schemas, planned(schemas, topic=None, schema=schema), missing_topics=topics.missing)
    for _ in range(2):
        old_chunk = chunk([{"id": 1}, {"id": 2}, {"id": 3}], topic=pa.array(["typo", "a", "no/topic"]))
        new_chunk = rows.encode(old_chunk)
        shown = new_chunk.columns["value"].to_pylist()
        assert (shown[0], shown[2], new_chunk.unencoded_rows) == (b'{"id": 1}', b'{"id": 3}', ())
    assert not any("typo" in each for each in registry.requests)
    assert topics.lookups == ["typo", "a", "typo"]
    assert [use.subject for use in rows.uses()] == ["a-value"]


# REPETITIONS


def test_a_repetition_encodes_with_the_schema_that_was_decided(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    first = encoder(schemas, planned(schemas)).encode(chunk([{"id": 1}]))
    known_schemas.forget()
    registry.register("t-value", WIDER_TEXT)
    newer = planned(schemas)
    assert newer.encoder is not None
    assert newer.encoder.use.id == 2
    again = encoder(schemas, newer, schema_ids={"value": 1})
    assert again.encode(chunk([{"id": 1}])).columns["value"].to_pylist() == first.columns["value"].to_pylist()
    assert again.uses() == (SchemaUse("value", "t-value", 1, None),)


def test_rows_that_cannot_be_encoded_are_content_too(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", ROW_TEXT)
    rows, write = encoder(schemas, planned(schemas)), WriteId("q", 1)
    both = content_to_compare(rows.encode(chunk([{"id": 1}, {"id": None}])), write)
    assert both.rows == 2
    assert both == content_to_compare(rows.encode(chunk([{"id": None}, {"id": 1}])), write)
    assert both != content_to_compare(rows.encode(chunk([{"id": 1}])), write)


# WITH THE SENDER


def read(registry: FakeRegistry, schemas: KnownSchemas, rules: dict[str, Any]) -> tuple[RowSender, FakeProducer]:
    """A task that reads two batches, of which the second has a row that cannot be encoded."""
    registry.register("t-value", ROW_TEXT)
    mapping = RowMapping(topic="t", value=0, key=None, partition=None, headers=None, timestamp=None)
    values = [[{"id": 1}], [{"id": 2}, {"id": None}]]
    batches = iter([pa.record_batch([pa.array(each, ROW)], names=["value"]) for each in values])
    producer = FakeProducer({})
    sender = RowSender(producer, sink_options(**rules), FakeProducer)
    for each in SparkRows(batches, mapping, encoder=encoder(schemas, planned(schemas))).chunks():
        sender.send(each)
    sender.finish()
    return sender, producer


def test_a_row_that_cannot_be_encoded_fails_its_task_by_name(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    with pytest.raises(InvalidRecordError) as raised:
        read(registry, schemas, {"on_invalid_record": FAIL_TASK})
    assert raised.value.condition == "KAFKA_ROW_NOT_ENCODABLE"
    assert raised.value.message.startswith("row 2 of this task: topic t, no key, value of 12 bytes: value.id: it is null")


def test_a_row_that_cannot_be_encoded_is_skipped_and_counted(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    sender, _ = read(registry, schemas, {"on_invalid_record": SKIP})
    assert (sender.rows, sender.acknowledged, dict(sender.skipped_by_reason)) == (3, 2, {"KAFKA_ROW_NOT_ENCODABLE": 1})


def test_the_dead_letter_of_an_unencodable_row_is_json_and_names_the_field(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    sender, producer = read(registry, schemas, {"on_invalid_record": DEAD_LETTER, "dead_letter_topic": "dead"})
    assert dict(sender.dead_lettered_by_reason) == {"KAFKA_ROW_NOT_ENCODABLE": 1}
    (letter,) = [call for call in producer.calls if call["topic"] == "dead"]
    assert json.loads(letter["value"][0].as_py()) == {"id": None}
    headers = {each["key"]: each["value"] for each in letter["headers"][0].as_py()}
    assert headers[f"{HEADER_PREFIX}field"] == b"value.id"
    assert headers[f"{HEADER_PREFIX}condition"] == b"KAFKA_ROW_NOT_ENCODABLE"
    assert headers[f"{HEADER_PREFIX}message"].startswith(b"value.id: it is null")


def test_bytes_get_a_frame_where_they_are_encoded_already(registry: FakeRegistry, schemas: KnownSchemas) -> None:
    registry.register("t-value", "{}", schemaType="JSON")
    rows = encoder(schemas, planned(schemas, kind=pa.string(), format=FRAMED))
    new_chunk = rows.encode(chunk(['{"a":1}', None], kind=pa.string()))
    assert new_chunk.columns["value"].to_pylist() == [FRAME + b'{"a":1}', None]
