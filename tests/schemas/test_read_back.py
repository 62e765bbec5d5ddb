"""What is written with a registry's schemas is read by others: confluent-kafka's AvroDeserializer and fastavro, old readers too.

tests/integration/test_read_back_by_spark.py has the same with Spark's from_avro.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink.producer.producer import KafkaProducer
from tests.fakes.fake_broker import FakeBroker
from tests.schemas.fake_registry import FakeRegistry

TOPIC = "orders"
ADDRESS = pa.struct([("zip", pa.string()), ("city", pa.string())])
ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int32())),
        pa.field("address", ADDRESS),
        pa.field("raw", pa.binary()),
        pa.field("rate", pa.float32()),
        pa.field("is_paid", pa.bool_()),
    ]
)
FULL = {
    **{"id": 1, "customer": "Ürün", "amount": Decimal("12.34"), "at": dt.datetime(2024, 2, 29, 1, 2, 3, 456789, dt.UTC)},
    **{"day": dt.date(1969, 12, 31), "tags": ["a", None, ""], "counts": {"x": 1, "y": None}},
    **{"address": {"zip": "1010", "city": None}, "raw": b"\0\xff", "rate": 0.5, "is_paid": True},
}
EMPTY = {"id": 2**63 - 1, "tags": [], "counts": {}} | dict.fromkeys(
    ("customer", "amount", "at", "day", "address", "raw", "rate", "is_paid")
)
ROWS = [FULL, None, EMPTY]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={TOPIC: 1}) as broker:
        yield broker


def write(broker: FakeBroker, registry: FakeRegistry, rows: list[Any], kind: pa.DataType) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": registry.url}
    with KafkaProducer(servers | {"value.serializer": "avro", "key.serializer": "avro"}) as producer:
        keys = pa.array([None if row is None else row["id"] for row in rows], pa.int64())
        producer.send_columns(TOPIC, key=keys, value=pa.array(rows, kind))


def read(broker: FakeBroker, registry: FakeRegistry, reader_schema: str | None = None) -> list[Any]:
    deserializer = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), reader_schema)
    context = SerializationContext(TOPIC, MessageField.VALUE)
    return [deserializer(value, context) for value in broker.values(TOPIC)]


def test_confluents_deserializer_reads_keys_and_values(broker: FakeBroker, registry: FakeRegistry) -> None:
    write(broker, registry, ROWS, ORDER)
    assert read(broker, registry) == ROWS
    keys = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(TOPIC, MessageField.KEY)
    assert [keys(record.key, context) for record in broker.records(TOPIC)] == [1, None, 2**63 - 1]


def test_fastavro_reads_what_stands_behind_the_frame(broker: FakeBroker, registry: FakeRegistry) -> None:
    write(broker, registry, ROWS, ORDER)
    (text,) = registry.texts(f"{TOPIC}-value")
    schema = fastavro.parse_schema(json.loads(text))
    rows: list[Any] = []
    for value in broker.values(TOPIC):
        if value is None:
            rows.append(None)
            continue
        assert struct.unpack(">bI", value[:5])[0] == 0
        rest = io.BytesIO(value[5:])
        rows.append(fastavro.schemaless_reader(rest, schema, None))
        assert rest.read() == b""
    assert rows == ROWS


def test_an_old_reader_goes_on_when_a_column_is_added(broker: FakeBroker, registry: FakeRegistry) -> None:
    """The new column may be null: readers with the first schema leave it out, those with the second find null in old rows."""
    write(broker, registry, ROWS, ORDER)
    wider = pa.struct([*ORDER, pa.field("note", pa.string())])
    write(broker, registry, [FULL | {"note": "new"}], wider)
    first, second = registry.texts(f"{TOPIC}-value")
    assert read(broker, registry, first) == [*ROWS, FULL]
    with_note = [None if row is None else row | {"note": None} for row in ROWS]
    assert read(broker, registry, second) == [*with_note, FULL | {"note": "new"}]
    assert read(broker, registry) == [*ROWS, FULL | {"note": "new"}]
