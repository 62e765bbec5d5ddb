"""Any column that Avro can have, by each way to a topic, is read back by fastavro: no way may change a value.

The columns are those of tests/schemas/avro/any_columns.py: nulls at every level, also where a field below a null struct is
not nullable, slices, pieces with dictionaries that differ, time zones.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.config.format_options import AVRO, TEXT, PartOptions, SchemaReference
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.records.layouts import is_list, is_string
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.schemas.known_schemas import KnownSchemas
from spark_kafka_sink.schemas.wanted_schema import PlannedPart, plan_schema
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.row_encoder import RowEncoder
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.registry_config import registry_config
from tests.schemas.avro.any_columns import TypePair, any_case, with_distinct_names, with_garbage
from tests.schemas.avro.rows import written_by_fastavro
from tests.schemas.fake_registry import FakeRegistry

TOPICS = ("even", "odd")
MAX_EXAMPLES = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics=dict.fromkeys(TOPICS, 1)) as broker:
        yield broker


@pytest.fixture(scope="module")
def any_registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(compatibility="NONE") as registry:
        yield registry


class Rows:
    """Rows of a drawn type, as fastavro writes them and as pieces of a column."""

    def __init__(self, data: st.DataObject, seed: int) -> None:
        self.case: TypePair = data.draw(any_case(depth=3))
        self.schema = with_distinct_names(self.case.schema, [0])
        self.text = json.dumps(self.schema)
        rows = st.none() | self.case.values.filter(lambda value: value is not None)
        self._pieces = data.draw(st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=3))
        self._extra = data.draw(st.lists(rows, max_size=2))
        self._source = random.Random(seed)

    def expected(self) -> list[bytes | None]:
        rows = [None if row is None else self.case.for_fastavro(row) for piece in self._pieces for row in piece]
        return written_by_fastavro(rows, self.schema)

    def pieces(self, data_type: pa.DataType) -> list[pa.Array]:
        """Each piece is a slice, with dictionaries of its own."""
        skipped = len(self._extra)
        columns = [pa.array([*self._extra, *piece, *self._extra], data_type) for piece in self._pieces]
        return [with_garbage(each, self._source).slice(skipped, len(each) - 2 * skipped) for each in columns]

    def check(self, values: list[bytes | None], expected: list[bytes | None]) -> None:
        """The values without their frames are the expected ones, and fastavro reads them."""
        payloads = [None if value is None else value[5:] for value in values]
        assert payloads == expected
        for payload in payloads:
            if payload is not None:
                stream = io.BytesIO(payload)
                row = fastavro.schemaless_reader(stream, fastavro.parse_schema(self.schema), None)
                assert stream.read() == b""
                assert written_by_fastavro([row], self.schema) == [payload]


def rows_of(broker: FakeBroker, send: Any) -> list[list[bytes | None]]:
    """The values of the rows that `send` has a producer send, by topic."""
    counts = [len(broker.records(topic)) for topic in TOPICS]
    send()
    return [[record.value for record in broker.records(topic)[count:]] for topic, count in zip(TOPICS, counts, strict=True)]


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=MAX_EXAMPLES, deadline=None)
def test_producers_send_what_fastavro_reads(
    broker: FakeBroker, any_registry: FakeRegistry, data: st.DataObject, seed: int
) -> None:
    rows = Rows(data, seed)
    expected = rows.expected()
    options = {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": any_registry.url}
    with KafkaProducer(options | {"value.serializer": "avro", "value.schema": rows.text}) as producer:
        pieces = rows.pieces(rows.case.type)
        column = pa.chunked_array(pieces)
        topics = [TOPICS[row % 2] for row in range(len(column))]

        def send_columns() -> None:
            producer.send_columns(pa.array(topics), value=column).result(60_000)

        def send_table() -> None:
            batches = [pa.record_batch({"value": piece}) for piece in pieces]
            delivery = producer.send_table(TOPICS[0], pa.Table.from_batches(batches))
            delivery.result(60_000)

        even, odd = rows_of(broker, send_columns)
        rows.check(even, expected[::2])
        rows.check(odd, expected[1::2])
        rows.check(rows_of(broker, send_table)[0], expected)


@given(data=st.data(), seed=st.integers(0, 2**32), is_one_topic=st.booleans())
@settings(max_examples=MAX_EXAMPLES, deadline=None)
def test_the_sink_writes_what_fastavro_reads_whatever_the_time_zone(
    any_registry: FakeRegistry, data: st.DataObject, seed: int, is_one_topic: bool
) -> None:
    rows = Rows(data, seed)
    expected = rows.expected()
    batches = [
        pa.record_batch({"value": piece, "topic": [TOPICS[row % 2] for row in range(len(piece))]})
        for piece in rows.pieces(as_it_arrives(rows.case.type))
    ]
    with KnownSchemas(registry_config({"schema.registry.url": any_registry.url})) as schemas:
        options = PartOptions("value", format=AVRO, schema=SchemaReference(TEXT, text=rows.text))
        problems: list[str] = []
        wanted_schema = plan_schema(options, rows.case.type, schemas.config, problems)
        assert problems == []
        part = PlannedPart(wanted_schema, wanted_schema.find_or_register(schemas, TOPICS[0]) if is_one_topic else None)
        encoder = RowEncoder([part], schemas, {}, missing_topics=lambda _: [], keeps_all_refused_rows=True)
        mapping = RowMapping.find(["value", "topic"], TOPICS[0] if is_one_topic else None, with_timestamp=False)
        chunks = list(SparkRows(iter(batches), mapping, encoder=encoder).chunks())
    assert [chunk.unencoded_rows for chunk in chunks] == [()] * len(chunks)
    rows.check([value for chunk in chunks for value in chunk.columns["value"].to_pylist()], expected)


def as_it_arrives(data_type: pa.DataType) -> pa.DataType:
    """Spark plans with UTC, and sends the session's time zone and, if told so, 64-bit offsets."""

    def field(each: pa.Field) -> pa.Field:
        return each.with_type(as_it_arrives(each.type))

    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp(data_type.unit, "Asia/Kathmandu")
    if pa.types.is_struct(data_type):
        return pa.struct([field(each) for each in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(as_it_arrives(data_type.key_type), field(data_type.item_field))
    if is_list(data_type) and not pa.types.is_fixed_size_list(data_type):
        return pa.large_list(field(data_type.value_field))
    if is_list(data_type):
        return pa.list_(field(data_type.value_field), data_type.list_size)
    if is_string(data_type):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(data_type) or pa.types.is_binary(data_type) else data_type
