"""`value.serializer=avro`: dicts of `send`, columns of `send_columns` and `send_table`, with a fake registry and broker."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import re
import struct
import subprocess
import sys
import threading
from collections import ChainMap, UserDict
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigError, IllegalStateError, InvalidRecordError, KafkaError, KafkaTimeoutError, SchemaError
from spark_kafka_sink.producer.avro.avro_rows import python_rows
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerColumns
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.schemas.avro_schema import parse_schema
from spark_kafka_sink.schemas.registry import SchemaRegistry
from spark_kafka_sink.schemas.registry_errors import RegistryError
from tests.fakes.fake_broker import FakeBroker
from tests.producer.producers import await_answers, give_up_soon
from tests.schemas.fake_registry import FakeRegistry

TOPIC = "orders"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "default": "NEW"},
    ],
}
ORDERS = pa.array(
    [{"id": 1, "customer": "a"}, {"id": 2, "customer": None}], pa.struct([("id", pa.int64()), ("customer", pa.string())])
)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={TOPIC: 1, "other": 1}) as broker:
        yield broker


def producer_of(broker: FakeBroker, registry: FakeRegistry, **options: Any) -> KafkaProducer:
    properties = {"value.serializer": "avro", **{name.replace("_", "."): value for name, value in options.items()}}
    servers = {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": registry.url}
    return KafkaProducer(servers | properties)


def texts(registry: FakeRegistry, subject: str) -> dict[int, Any]:
    """The schemas of a subject, by id."""
    versions = registry._subjects[subject].versions
    return {each.id: json.loads(each.body["schema"]) for each in versions}


def read(registry: FakeRegistry, framed: bytes | None, subject: str = f"{TOPIC}-value") -> Any:
    if framed is None:
        return None
    magic, number = struct.unpack(">bI", framed[:5])
    assert magic == 0
    return fastavro.schemaless_reader(io.BytesIO(framed[5:]), texts(registry, subject)[number], None)


def test_columns_for_a_topic_that_does_not_exist_register_nothing(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry) as producer:
        await_answers(producer, "gone", TOPIC)
        give_up_soon(producer)
        for topics in ("gone", pa.array(["gone", TOPIC])):
            with pytest.raises(KafkaError, match="KAFKA_UNKNOWN_TOPIC"):
                producer.send_columns(topics, value=ORDERS)
    with producer_of(broker, registry) as producer, pytest.raises(KafkaError, match="KAFKA_INVALID_TOPIC_EXCEPTION"):
        producer.send_columns(pa.array([TOPIC, "no/topic"]), value=ORDERS)
    assert not any("gone" in each or "no%2Ftopic" in each for each in registry.requests)


def written_values(broker: FakeBroker, registry: FakeRegistry) -> list[Any]:
    return [read(registry, value) for value in broker.values(TOPIC)]


# COLUMNS


def test_a_struct_column_is_written_with_a_schema_that_is_derived_from_it(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry) as producer:
        producer.send_columns(TOPIC, value=ORDERS)
        producer.send_columns(TOPIC, value=ORDERS)
        request_count = len(registry.requests)
        producer.send_columns(TOPIC, value=pa.nulls(1, ORDERS.type))
    assert written_values(broker, registry) == [*ORDERS.to_pylist(), *ORDERS.to_pylist(), None]
    assert len(registry.requests) == request_count


def test_keys_have_a_schema_and_a_subject_of_their_own(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry, key_serializer="avro") as producer:
        producer.send_columns(TOPIC, key=pa.array(["a", None]), value=ORDERS)
    keys = [record.key for record in broker.records(TOPIC)]
    assert [read(registry, key, f"{TOPIC}-key") for key in keys] == ["a", None]
    assert list(texts(registry, f"{TOPIC}-key").values()) == ["string"]


def test_an_id_is_that_of_the_subjects_context(broker: FakeBroker, registry: FakeRegistry) -> None:
    """Objects of `send` and columns were encoded with the schema that the default context has under this id."""
    other = ORDER | {"fields": [{"name": "id", "type": "string"}, *ORDER["fields"][1:]]}
    registry.register("other-value", json.dumps(other))
    subject = ":.staging:orders-value"
    registry.register(subject, json.dumps(ORDER))
    with producer_of(broker, registry, value_schema="id:1", value_subject=subject) as producer:
        producer.send(TOPIC, {"id": 7, "customer": None, "amount": 1, "state": "PAID"})
    (value,) = broker.values(TOPIC)
    assert read(registry, value, subject)["id"] == 7


def test_only_the_key_may_be_avro(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry, value_serializer=None, key_serializer="avro") as producer:
        producer.send_columns(TOPIC, key=pa.array([7, 8]), value=pa.array(["x", None]))
    assert broker.values(TOPIC) == [b"x", None]
    assert [read(registry, each.key, f"{TOPIC}-key") for each in broker.records(TOPIC)] == [7, 8]


def test_each_topic_of_a_column_has_its_own_schema_and_rows_keep_their_order(broker: FakeBroker, registry: FakeRegistry) -> None:
    registry.register("other-value", '"string"')  # so that ids differ
    registry.set_compatibility("other-value", "NONE")
    rows = pa.array([{"id": number, "customer": "x"} for number in range(5)], ORDERS.type)
    topics = pa.array([TOPIC, "other", TOPIC, "other", TOPIC]).dictionary_encode()
    with producer_of(broker, registry) as producer:
        producer.send_columns(topics, value=rows)
    assert [row["id"] for row in written_values(broker, registry)] == [0, 2, 4]
    assert [read(registry, value, "other-value")["id"] for value in broker.values("other")] == [1, 3]


def test_a_table_may_have_a_struct_column(broker: FakeBroker, registry: FakeRegistry) -> None:
    table = pa.table({"topic": [TOPIC, TOPIC], "value": pa.chunked_array([ORDERS[:1], ORDERS[1:]])})
    with producer_of(broker, registry) as producer:
        delivery = producer.send_table(None, table)
        producer.flush()
        assert delivery.error is None
    assert written_values(broker, registry) == ORDERS.to_pylist()


def test_without_the_serializer_a_struct_column_is_an_error_as_before(broker: FakeBroker) -> None:
    producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})
    with producer, pytest.raises(SchemaError, match="column value has type struct"):
        producer.send_table(TOPIC, pa.table({"value": ORDERS}))


def test_a_row_that_cannot_be_encoded_leaves_no_row_queued(broker: FakeBroker, registry: FakeRegistry) -> None:
    amounts = pa.array([Decimal("1.00"), None, None], pa.decimal128(10, 2))
    rows = pa.StructArray.from_arrays([pa.array([1, 2, 3]), amounts], ["id", "amount"])
    with producer_of(broker, registry, value_schema=json.dumps(ORDER)) as producer:
        with pytest.raises(
            InvalidRecordError, match=r"row 1: the value cannot be encoded, field amount: .*; 1 more row"
        ) as caught:
            producer.send_columns(TOPIC, value=rows)
        assert producer.metrics()["record-error-total"] == 3
        producer.send_columns(TOPIC, value=rows[:1])
    assert caught.value.condition == "KAFKA_ROW_NOT_ENCODABLE"
    assert [row["id"] for row in written_values(broker, registry)] == [1]


@pytest.mark.parametrize("bad", [1, 1_500])
@pytest.mark.parametrize("topics", [[TOPIC], ["other", TOPIC]], ids=["one topic", "two topics"])
def test_a_row_of_a_later_batch_that_cannot_be_encoded_has_the_number_in_the_table(
    broker: FakeBroker, registry: FakeRegistry, bad: int, topics: list[str]
) -> None:
    good = pa.record_batch({"value": pa.array([{"id": 1}] * 2_000), "topic": topics * (2_000 // len(topics))})
    numbers = [{"id": None if row == bad else 1} for row in range(2_000)]
    later = good.set_column(0, "value", pa.array(numbers))
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    with (
        producer_of(broker, registry, value_schema=schema) as producer,
        pytest.raises(
            InvalidRecordError, match=rf"^\[KAFKA_ROW_NOT_ENCODABLE\] row {2_000 + bad} of this table: the value"
        ) as caught,
    ):
        producer.send_table(None, pa.Table.from_batches([good, later]))
    assert caught.value.row == 2_000 + bad


def test_a_column_that_does_not_fit_the_schema_is_an_error_with_both_sides(broker: FakeBroker, registry: FakeRegistry) -> None:
    producer = producer_of(broker, registry, value_schema=json.dumps(ORDER))
    with producer, pytest.raises(SchemaError, match=r"the schema's field amount .* needs a column"):
        producer.send_columns(TOPIC, value=ORDERS)


def test_interceptors_see_the_columns_before_they_are_encoded(broker: FakeBroker, registry: FakeRegistry) -> None:
    value_types = []

    class Sees:
        def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
            value_types.append(columns.value.type)
            return columns

    with producer_of(broker, registry, interceptor_classes=[Sees()]) as producer:
        producer.send_columns(TOPIC, value=ORDERS)
    assert value_types == [ORDERS.type]
    assert written_values(broker, registry) == ORDERS.to_pylist()


# OBJECTS


def test_dicts_are_encoded_by_the_schema_that_is_named(broker: FakeBroker, registry: FakeRegistry) -> None:
    registry.register(f"{TOPIC}-value", json.dumps(ORDER))
    with producer_of(broker, registry, value_schema="latest", linger_ms=10_000) as producer:
        row = {"id": 1, "customer": "ä", "amount": Decimal("1.5")}
        futures = [producer.send(TOPIC, row)]
        row["id"] = 2  # it was copied
        row["state"] = "PAID"
        futures.append(producer.send(TOPIC, row, key="k"))
        futures.append(producer.send(TOPIC, None))
        producer.flush()
        assert [future.result().offset for future in futures] == [0, 1, 2]
    first = {"id": 1, "customer": "ä", "amount": Decimal("1.50"), "state": "NEW"}
    assert written_values(broker, registry) == [first, first | {"id": 2, "state": "PAID"}, None]
    assert len(broker.batches(TOPIC)) == 1


EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "real", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "Inner", "fields": [
            {"name": "x", "type": "int", "default": 7},
            {"name": "ys", "type": {"type": "array", "items": "long"}, "default": [1, 2]},
        ]}], "default": None},
        {
            "name": "fee",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            "default": "\u0001\u0002",
        },
    ],
}  # fmt: skip


def test_an_object_may_have_each_type_of_avro(broker: FakeBroker, registry: FakeRegistry) -> None:
    utc = dt.UTC
    row = {
        **{"flag": True, "real": 1.5, "small": -2.0, "raw": b"\0\xff", "four": b"abcd", "day": dt.date(2024, 2, 29)},
        **{"at": dt.datetime(2024, 1, 1, 2, 3, 4, 5, utc), "local": dt.datetime(2024, 1, 1), "time": dt.time(1, 2, 3)},
        **{"uuid": UUID(int=5), "tags": ["a", None, "ü" * 100], "counts": {"one": 1, "two": 2}, "inner": {"x": 3}},
    }
    with producer_of(broker, registry, value_schema=json.dumps(EVERYTHING)) as producer:
        producer.send(TOPIC, row)
        producer.send(TOPIC, row | {"inner": None, "fee": Decimal("-1.5")})
    first = row | {"inner": {"x": 3, "ys": [1, 2]}, "fee": Decimal("25.8")}
    assert written_values(broker, registry) == [first, first | {"inner": None, "fee": Decimal("-1.5")}]


def test_a_key_may_be_a_plain_string(broker: FakeBroker, registry: FakeRegistry) -> None:
    options = {"key_serializer": "avro", "key_schema": '"string"', "value_schema": '"long"'}
    with producer_of(broker, registry, **options) as producer:
        producer.send(TOPIC, 5, key="k")
    (record,) = broker.records(TOPIC)
    assert (read(registry, record.key, f"{TOPIC}-key"), read(registry, record.value)) == ("k", 5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([("id", 1)], "a dict is expected for record Order, not list"),
        ({"id": 1, "amout": 1}, r"amout is no field of record Order, which has amount, customer, id, state"),
        ({"id": 1.5, "amount": 1}, "id: a whole number is expected, not float, whose fraction would be cut off"),
        ({"id": 1, "amount": 1, "customer": 5}, "customer: text or bytes are expected, not int"),
        (5, "a dict is expected for record Order, not int"),
    ],
)
def test_an_object_of_another_form_is_refused_at_once(broker: FakeBroker, registry: FakeRegistry, row: Any, why: str) -> None:
    producer = producer_of(broker, registry, value_schema=json.dumps(ORDER))
    with producer, pytest.raises(SerializationError, match=f"cannot be serialized as Avro: {why}"):
        producer.send(TOPIC, row)
    assert broker.values(TOPIC) == []


def test_an_object_that_cannot_be_encoded_fails_alone(broker: FakeBroker, registry: FakeRegistry) -> None:
    good = {"id": 1, "amount": Decimal(1)}
    bad = [{"amount": Decimal(1)}, good | {"amount": Decimal("1e9")}, good | {"id": "x"}, good | {"state": "LOST"}]
    calls: list[KafkaError | None] = []
    with producer_of(broker, registry, value_schema=json.dumps(ORDER), linger_ms=10_000) as producer:
        futures = [producer.send(TOPIC, row, callback=lambda _, error: calls.append(error)) for row in [good, *bad, good]]
        producer.flush()
        errors = [future.exception() for future in futures]
    assert [error is None for error in errors] == [True, False, False, False, False, True]
    assert "the value cannot be encoded, field id: " in str(errors[1])
    assert "the value cannot be encoded, field state: 'LOST' is none of the enum's symbols: NEW, PAID" in str(errors[4])
    assert [row["id"] for row in written_values(broker, registry)] == [1, 1]
    assert sum(error is not None for error in calls) == 4


def test_errors_of_objects_do_not_quote_their_values(broker: FakeBroker, registry: FakeRegistry) -> None:
    """The number of a card stood in the log at INFO, with the error for which its transaction had to be aborted."""
    rows = [{"id": "4111-1111", "amount": Decimal(1)}, {"id": 4111_1111_1111_1111_1111, "amount": Decimal(1)}]
    with producer_of(broker, registry, value_schema=json.dumps(ORDER), linger_ms=10_000) as producer:
        futures = [producer.send(TOPIC, row) for row in rows]
        producer.flush()
    texts = [str(future.exception()) for future in futures]
    assert ["4111" in text for text in texts] == [False, False]
    assert "str cannot be converted to int64" in texts[0]


class Lazy(UserDict[str, Any]):
    """Looks its values up when it is asked."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError("4111-1111")


class Unreadable(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("4111-1111 cannot be read")


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "id", "type": "long"}]}
FAILING: list[tuple[Any, Any, type[Exception]]] = [
    (INNER, Lazy(id=1), KeyError),
    ({"type": "array", "items": "long"}, Unreadable([1]), OSError),
    ({"type": "map", "values": "long"}, Lazy(id=1), KeyError),
    ({"type": "map", "values": {"type": "array", "items": "long"}}, {"k": Unreadable([1])}, OSError),
]


@pytest.mark.parametrize(("type", "value", "cause"), FAILING, ids=range(len(FAILING)))
@pytest.mark.parametrize("is_nested", [False, True])
def test_what_the_code_of_an_object_raises_is_the_cause_of_our_error(
    broker: FakeBroker, registry: FakeRegistry, type: Any, value: Any, cause: type[Exception], is_nested: bool
) -> None:
    """`send` raised the KeyError of a lazy mapping and the OSError of an iterator; a serializer's is a SerializationError."""
    schema, sent_value = (one_field(type), {"f": value}) if is_nested else (json.dumps(type), value)
    producer = producer_of(broker, registry, value_schema=schema)
    with producer, pytest.raises(SerializationError, match=f"the object's own code raises {cause.__name__}") as raised:
        producer.send(TOPIC, sent_value)
    assert isinstance(raised.value.__cause__, cause)
    assert "4111" not in str(raised.value)
    assert (" f: " in str(raised.value)) is is_nested


def test_an_interrupt_in_the_code_of_an_object_stays_one(broker: FakeBroker, registry: FakeRegistry) -> None:
    class Interrupted(UserDict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            raise KeyboardInterrupt

    producer = producer_of(broker, registry, value_schema=json.dumps(INNER))
    with producer, pytest.raises(KeyboardInterrupt):
        producer.send(TOPIC, Interrupted())


MISFITS: list[tuple[Any, Any, str, str]] = [
    ("long", "x", "f57", "str cannot be converted to int64"),
    ("int", 2**40, "f57", "it does not fit the schema"),
    (INNER | {"name": "Deep"}, {"id": "x"}, "f57.id", "str cannot be converted to int64"),
    ({"type": "array", "items": ["null", "long"]}, [1, None, "x"], "f57[*]", "str cannot be converted to int64"),
    ({"type": "map", "values": "long"}, {"a": 1, "b": "x"}, "f57[*]", "str cannot be converted to int64"),
    ({"type": "array", "items": INNER | {"name": "Item"}}, [{"id": 1}, {"id": 2**64}], "f57[*].id", "it does not fit the schema"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
        Decimal("1.25"),
        "f57",
        "it does not fit the schema",
    ),
]


@pytest.mark.parametrize(("type", "value", "field", "reason"), MISFITS, ids=range(len(MISFITS)))
@pytest.mark.parametrize("kind", [dict, UserDict, ChainMap])
def test_a_value_that_does_not_fit_is_named_by_its_field(
    broker: FakeBroker, registry: FakeRegistry, kind: Any, type: Any, value: Any, field: str, reason: str
) -> None:
    """Of a hundred fields, one did not fit: "an object cannot be serialized as Avro: str cannot be converted to int64"."""
    fields = [{"name": f"f{number}", "type": type if number == 57 else "long"} for number in range(100)]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    with producer_of(broker, registry, value_schema=schema) as producer:
        future = producer.send(TOPIC, kind({f"f{number}": value if number == 57 else number for number in range(100)}))
        producer.flush()
    assert f"the value cannot be serialized as Avro, field {field}: {reason}" in str(future.exception())


@pytest.mark.parametrize("kind", [UserDict, ChainMap])
def test_an_object_may_be_any_mapping(broker: FakeBroker, registry: FakeRegistry, kind: type) -> None:
    """The whole text of the error was "an object cannot be serialized as Avro: 0"."""
    with producer_of(broker, registry, value_schema=json.dumps(ORDER)) as producer:
        producer.send(TOPIC, kind({"id": 1, "amount": Decimal(1)}))
    assert [row["id"] for row in written_values(broker, registry)] == [1]


@pytest.mark.parametrize("truncates", [False, True])
def test_a_time_finer_than_the_schema_is_refused_or_cut_off(broker: FakeBroker, registry: FakeRegistry, truncates: bool) -> None:
    schema = json.dumps({"type": "long", "logicalType": "timestamp-millis"})
    at = dt.datetime(2024, 1, 1, 1, 1, 1, 1500, dt.UTC)
    with producer_of(broker, registry, value_schema=schema, truncate_timestamps=truncates) as producer:
        future = producer.send(TOPIC, at)
        producer.flush()
        error = future.exception()
    assert written_values(broker, registry) == ([at.replace(microsecond=1000)] if truncates else [])
    assert (error is None) is truncates


@pytest.mark.parametrize("unit", ["millis", "micros"])
@pytest.mark.parametrize("truncates", [False, True])
def test_the_nanoseconds_of_pandas_are_refused_or_cut_off(
    broker: FakeBroker, registry: FakeRegistry, unit: str, truncates: bool
) -> None:
    """They were cut off even if truncate.timestamps is false: Arrow does it where it makes microseconds of a pandas.Timestamp."""
    schema = json.dumps({"type": "long", "logicalType": f"timestamp-{unit}"})
    at = Nanoseconds(2024, 1, 1, 1, 1, 1, 1000, dt.UTC)
    with producer_of(broker, registry, value_schema=schema, truncate_timestamps=truncates) as producer:
        if truncates:
            producer.send(TOPIC, at)
        else:
            with pytest.raises(SerializationError, match=r"nanoseconds, .* or set truncate.timestamps=true, which cuts them off"):
                producer.send(TOPIC, at)
    assert written_values(broker, registry) == ([dt.datetime(2024, 1, 1, 1, 1, 1, 1000, dt.UTC)] if truncates else [])


def test_a_number_for_a_time_has_the_unit_of_the_schema(broker: FakeBroker, registry: FakeRegistry) -> None:
    field = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": "at", "type": field}, {"name": "then", "type": field, "default": 2000}]
    schema = json.dumps({"type": "record", "name": "Times", "fields": fields})
    with producer_of(broker, registry, value_schema=schema) as producer:
        producer.send(TOPIC, {"at": 1000})
    begin = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert written_values(broker, registry) == [{"at": begin + dt.timedelta(seconds=1), "then": begin + dt.timedelta(seconds=2)}]


def test_objects_without_a_named_schema_are_an_error_that_says_so(broker: FakeBroker, registry: FakeRegistry) -> None:
    producer = producer_of(broker, registry)
    with producer, pytest.raises(SchemaError, match=r"set value\.schema=latest, a version, an id or the text; send_columns"):
        producer.send(TOPIC, {"id": 1})


def test_an_object_whose_size_bound_is_too_large_may_still_fit(broker: FakeBroker, registry: FakeRegistry) -> None:
    text = "ü" * 300_000  # its bound is four bytes for each
    with producer_of(broker, registry, value_schema='"string"') as producer:
        producer.send(TOPIC, "a")
        producer.send(TOPIC, text)
        future = producer.send(TOPIC, text * 2)
        producer.flush()
        assert "max.request.size" in str(future.exception())
    assert written_values(broker, registry) == ["a", text]


def test_a_partitioner_of_records_gets_the_bytes(broker: FakeBroker, registry: FakeRegistry) -> None:
    values_and_bytes = []

    def partition(topic: str, key: Any, key_bytes: bytes, value: Any, value_bytes: bytes, cluster: Any) -> int:  # noqa: ARG001
        values_and_bytes.append((value, value_bytes))
        return 0

    class ByRecord:
        def partition(self, *args: Any) -> int:
            return partition(*args)

    with producer_of(broker, registry, value_schema='"long"', partitioner_class=ByRecord()) as producer:
        producer.send(TOPIC, 5)
        producer.send(TOPIC, None)
    assert [value for value, _ in values_and_bytes] == [5, None]
    assert values_and_bytes[0][1] == broker.values(TOPIC)[0]
    assert written_values(broker, registry) == [5, None]


def test_a_size_bound_is_never_too_small() -> None:
    rows = python_rows(parse_schema(json.dumps(EVERYTHING)), "value")
    long = {"tags": ["€" * 50] * 20, "counts": {"k" * 9: 2**31 - 1}, "inner": {"x": -(2**31), "ys": [2**63 - 1] * 30}}
    filled = {**{"flag": True, "real": 1.0, "small": 1.0, "raw": b"x" * 99, "four": b"abcd"}, "day": dt.date.max, **long}
    filled |= {"at": dt.datetime.max, "local": dt.datetime.max, "time": dt.time.max, "uuid": "x" * 40}
    copy, size = rows.take(filled)
    out = io.BytesIO()
    plain = copy | {"tags": copy["tags"], "counts": dict(copy["counts"]), "uuid": UUID(int=0)}
    fastavro.schemaless_writer(out, EVERYTHING, plain)
    assert len(out.getvalue()) <= size < 4 * len(out.getvalue())


# VALUES THAT WOULD CHANGE


def one_field(type: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": type, **more}]})


@pytest.mark.parametrize("options", [{"value_schema": json.dumps(ORDER)}, {}], ids=["named", "derived"])
@pytest.mark.parametrize("columns_first", [False, True])
def test_a_tombstone_needs_no_schema(
    broker: FakeBroker, registry: FakeRegistry, options: dict[str, str], columns_first: bool
) -> None:
    """A tombstone before any object of its topic ended the producer: the Sender's thread looked for the schema of objects."""
    rows = pa.array([{"id": 1, "amount": Decimal(1)}], pa.struct([("id", pa.int64()), ("amount", pa.decimal128(10, 2))]))
    with producer_of(broker, registry, **options) as producer:
        if columns_first:
            producer.send_columns(TOPIC, value=rows)
        futures = [producer.send(TOPIC, None, key=b"k") for _ in range(2)]
        producer.flush()
        assert [future.exception() for future in futures] == [None, None]
        if options:
            producer.send(TOPIC, {"id": 2, "amount": 1})
    written = broker.values(TOPIC)[int(columns_first) :]
    assert written[:2] == [None, None]
    assert len(written) == 2 + len(options)


def test_a_bundle_of_encoded_rows_and_tombstones_needs_no_schema(broker: FakeBroker, registry: FakeRegistry) -> None:
    from spark_kafka_sink.producer.avro.avro_serializers import AlreadyEncoded

    with producer_of(broker, registry) as producer:
        assert producer._avro is not None
        values, errors = producer._avro.encode_objects("value", TOPIC, [None, AlreadyEncoded(b"x"), None])
    assert (values.to_pylist(), errors) == ([None, b"x", None], {})


LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
EAST = dt.timezone(dt.timedelta(hours=2), "EET")


class Nanoseconds(dt.datetime):
    """As a pandas.Timestamp: Arrow takes what a datetime has."""

    nanosecond = 789


class Index:
    """An int of another library."""

    def __index__(self) -> int:
        return 1


CHANGED: list[tuple[Any, Any, str]] = [
    ("long", 1.5, "a whole number is expected, not float, whose fraction would be cut off"),
    ("long", Decimal("3.7"), "a whole number is expected, not Decimal"),
    ("long", Fraction(3, 2), "a whole number is expected, not Fraction"),
    ("int", np.array(1.5), "a whole number is expected, not ndarray"),
    (["null", "int"], np.float32(1.5), "a whole number is expected, not float32"),
    (MILLIS, Fraction(3, 2), "a whole number is expected, not Fraction"),
    ("float", 1e300, "a number that a float of 32 bits can hold is expected, at most 3.402823e.38"),
    ("float", -3.5e38, "at most"),
    (
        LOCAL,
        dt.datetime(2024, 1, 1, tzinfo=EAST),
        "the schema's time is local: a datetime without a time zone .* not one with EET",
    ),
    (LOCAL | {"logicalType": "local-timestamp-millis"}, dt.datetime(2024, 1, 1, tzinfo=EAST), "the schema's time is local"),
    ({"type": "int", "logicalType": "time-millis"}, dt.time(1, tzinfo=EAST), "a time without a time zone is expected"),
    ({"type": "int", "logicalType": "date"}, dt.datetime(2024, 1, 1, 5), "a date is expected, not datetime"),
    ({"type": "int", "logicalType": "date"}, 1.5, "a whole number is expected"),
    (FOUR, 5, "text or bytes are expected, not int"),
    (FOUR, np.int32(5), "text or bytes are expected, not int32"),
    ("string", np.int64(5), "text or bytes are expected, not int64"),
    ({"type": "map", "values": "long"}, {np.int64(5): 1}, "text or bytes are expected, not int64"),
    ("double", True, "a number is expected, not bool"),
    ("float", np.True_, "a number is expected, not bool"),
    ("long", True, "a number is expected, not bool"),
    (MILLIS, np.True_, "a number is expected, not bool"),
    (MILLIS, Nanoseconds(2024, 1, 1), "this Nanoseconds has nanoseconds, and the schema's unit is larger: round it"),
    (LOCAL, Nanoseconds(2024, 1, 1), "has nanoseconds"),
    ({"type": "int", "logicalType": "date"}, np.datetime64(5, "ns"), "a date is expected, not datetime64"),
    ({"type": "long", "logicalType": "time-micros"}, np.datetime64(5, "ns"), "a time of day is expected, not datetime64"),
    ("string", np.datetime64(5, "D"), "text or bytes are expected, not datetime64"),
]
if np.finfo(np.longdouble).nmant > np.finfo(np.float64).nmant:
    CHANGED.append(("double", np.longdouble(1) / 3, "a number that a float of 64 bits can hold is expected"))


@pytest.mark.parametrize(("type", "value", "why"), CHANGED, ids=range(len(CHANGED)))
@pytest.mark.parametrize("at", ["f", "f: g", "f[]"])
def test_a_value_that_would_change_is_refused(type: Any, value: Any, why: str, at: str) -> None:
    """Arrow cuts off, rounds to infinity and moves to UTC without a word."""
    inner = json.loads(one_field(type)) | {"name": "Inner"}
    inner["fields"][0]["name"] = "g"
    types = {"f": (type, value), "f: g": (inner, {"g": value}), "f[]": ({"type": "array", "items": type}, [value])}
    schema, field_value = types[at]
    rows = python_rows(parse_schema(one_field(schema)), "value")
    with pytest.raises(TypeError, match=rf"^{at.removesuffix('[]')}: .*{why}"):
        rows.take({"f": field_value})


@pytest.mark.parametrize(
    ("type", "value", "back"),
    [
        ("float", 0.1, np.float32(0.1)),
        ("float", math.inf, math.inf),
        ("float", float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
        ("long", np.int32(5), 5),
        ("double", 2**53, 2.0**53),
        (MILLIS, dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (MILLIS, dt.datetime(2024, 1, 1, tzinfo=EAST), dt.datetime(2023, 12, 31, 22, tzinfo=dt.UTC)),
        (LOCAL, 5, dt.datetime(1970, 1, 1, microsecond=5)),
        (MILLIS, Index(), dt.datetime(1970, 1, 1, microsecond=1000, tzinfo=dt.UTC)),
        ({"type": "int", "logicalType": "date"}, 1, dt.date(1970, 1, 2)),
        (FOUR, b"abcd", b"abcd"),
        (["null", FOUR], None, None),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, UUID(int=5), UUID(int=5).bytes),
    ],
)
def test_what_loses_nothing_is_written(broker: FakeBroker, registry: FakeRegistry, type: Any, value: Any, back: Any) -> None:
    with producer_of(broker, registry, value_schema=one_field(type)) as producer:
        producer.send(TOPIC, {"f": value})
    assert written_values(broker, registry) == [{"f": back}]


@pytest.mark.parametrize("type", [FOUR, ["null", FOUR], "bytes", {"type": "enum", "name": "E", "symbols": ["AAAA", "BBBB"]}])
def test_bytes_are_copied(broker: FakeBroker, registry: FakeRegistry, type: Any) -> None:
    with producer_of(broker, registry, value_schema=one_field(type), linger_ms=10_000) as producer:
        octets = bytearray(b"AAAA")
        producer.send(TOPIC, {"f": octets})
        octets[:] = b"BBBB"
    assert written_values(broker, registry) in ([{"f": b"AAAA"}], [{"f": "AAAA"}])


def test_an_object_whose_own_code_fails_fails_alone(broker: FakeBroker, registry: FakeRegistry) -> None:
    class Nowhere(dt.tzinfo):
        pass  # each of its methods raises NotImplementedError

    with producer_of(broker, registry, value_schema=one_field(MILLIS), linger_ms=10_000) as producer:
        futures = [producer.send(TOPIC, {"f": dt.datetime(2024, 1, 1, tzinfo=zone)}) for zone in (Nowhere(), dt.UTC)]
        producer.flush()
        assert [future.exception() is None for future in futures] == [False, True]


def test_a_fixed_of_another_size_fails_alone_and_names_its_field(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry, value_schema=one_field(FOUR), linger_ms=10_000) as producer:
        future = producer.send(TOPIC, {"f": b"abc"})
        producer.send(TOPIC, {"f": b"abcd"})
        producer.flush()
        assert "field f: it does not have the 4 bytes of the fixed" in str(future.exception())
    assert written_values(broker, registry) == [{"f": b"abcd"}]


# DEFAULTS


def test_a_decimal_default_keeps_all_its_digits(broker: FakeBroker, registry: FakeRegistry) -> None:
    unscaled = -12345678901234567890123456789012345678
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    schema = one_field(decimal, default=unscaled.to_bytes(16, "big", signed=True).decode("latin-1"))
    with producer_of(broker, registry, value_schema=schema) as producer:
        producer.send(TOPIC, {})
    assert written_values(broker, registry) == [{"f": Decimal("-1234567890123456789012345678.9012345678")}]


WRONG_DEFAULTS: list[tuple[Any, Any, str]] = [
    ("bytes", 5, "5 is no bytes"),
    ("bytes", "\u20ac", "characters beyond 255, which are no bytes"),
    ("long", "x", '"x" is no long'),
    (FOUR, "abc", '"abc" is no fixed Four of 4 bytes'),
    ({"type": "record", "name": "Q", "fields": [{"name": "x", "type": "int"}]}, {}, "it lacks field x"),
    ({"type": "map", "values": "int"}, 5, "5 is no map"),
    ({"type": "array", "items": "bytes"}, [5], "5 is no bytes"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 2}, "\u007f\u007f", "precision"),
]


@pytest.mark.parametrize(("type", "default", "why"), WRONG_DEFAULTS, ids=range(len(WRONG_DEFAULTS)))
def test_a_wrong_default_is_an_error_of_the_schema(
    broker: FakeBroker, registry: FakeRegistry, type: Any, default: Any, why: str
) -> None:
    """A wrong default was an AuthenticationError with the name of Python's exception."""
    with (
        producer_of(broker, registry, value_schema=one_field(type, default=default)) as producer,
        pytest.raises(SchemaError, match=rf"default of the schema's field value\.f cannot be written: .*{why}"),
    ):
        producer.send(TOPIC, {})


def test_a_default_may_be_any_number_of_the_type(broker: FakeBroker, registry: FakeRegistry) -> None:
    fields = [{"name": "f", "type": "long", "default": 5.0}, {"name": "g", "type": "double", "default": 2**60 + 1}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    with producer_of(broker, registry, value_schema=schema) as producer:
        producer.send(TOPIC, {})
    assert [value[5:] for value in broker.values(TOPIC)] == [b"\x0a" + struct.pack("<d", 2.0**60)]


@pytest.mark.parametrize("sends_columns", [False, True])
def test_a_fixed_that_is_too_large_is_an_error_of_the_schema(
    broker: FakeBroker, registry: FakeRegistry, sends_columns: bool
) -> None:
    """Arrow was asked for 2 GiB, for seconds, and then raised an error of its own."""
    schema = one_field({"type": "fixed", "name": "F", "size": 2**31 - 1})
    with producer_of(broker, registry, value_schema=schema) as producer:
        send = {
            True: lambda: producer.send_columns(TOPIC, value=pa.array([{"f": b""}])),
            False: lambda: producer.send(TOPIC, {"f": b""}),
        }[sends_columns]
        with pytest.raises(SchemaError, match=r"value\.f is fixed F of 2147483647 bytes in the schema; the limit is 16,777,216"):
            send()


# THE REGISTRY


def test_a_defect_of_planning_is_not_called_a_login_that_failed(
    broker: FakeBroker, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planned badly")

    monkeypatch.setattr("spark_kafka_sink.producer.avro.avro_serializers.plan_schema", fails)
    with producer_of(broker, registry) as producer, pytest.raises(KafkaError, match="planned badly") as raised:
        producer.send_columns(TOPIC, value=ORDERS)
    assert raised.value.condition == "KAFKA_INTERNAL_ERROR"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_planning_leaves_no_connection_to_the_registry(
    broker: FakeBroker, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    make, close = SchemaRegistry.__init__, SchemaRegistry.close
    monkeypatch.setattr(SchemaRegistry, "__init__", lambda self, *arguments: (events.append("made"), make(self, *arguments))[1])
    monkeypatch.setattr(SchemaRegistry, "close", lambda self: (events.append("closed"), close(self))[1])
    with producer_of(broker, registry) as producer:
        producer.send_columns(TOPIC, value=ORDERS)
    assert events == ["made", "closed"]


def test_options_are_checked_together(broker: FakeBroker) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    with pytest.raises(ConfigError, match=r"value\.serializer=avro needs schema\.registry\.url"):
        KafkaProducer(servers | {"value.serializer": "avro"})
    with pytest.raises(ConfigError, match=r"key\.schema has no effect: set key\.serializer=avro"):
        KafkaProducer(servers | {"value.serializer": "avro", "schema.registry.url": "http://localhost:1", "key.schema": "latest"})
    wrong = {"value.schema": "newest", "auto.register.schemas": "perhaps"}
    with pytest.raises(ConfigError) as caught:
        KafkaProducer(servers | {"value.serializer": "avro", "schema.registry.url": "http://localhost:1"} | wrong)
    assert all(key in str(caught.value) for key in wrong)


def test_a_registry_that_does_not_answer_ends_the_call_within_max_block_ms(broker: FakeBroker, registry: FakeRegistry) -> None:
    release = threading.Event()
    with producer_of(broker, registry) as producer:
        await_answers(producer, TOPIC)
        assert producer._avro is not None
        before, producer._avro.max_block_ms = producer._avro.max_block_ms, 300
        hangs = registry.fail_with(lambda _: not release.wait(20))
        with hangs, pytest.raises((KafkaTimeoutError, RegistryError)) as caught:
            producer.send_columns(TOPIC, value=ORDERS)
        release.set()
        producer._avro.max_block_ms = before
        # whoever ends first: the request, which has that limit too, or the call
        assert "max.block.ms=300" in str(caught.value) or caught.value.condition == "KAFKA_SCHEMA_REGISTRY_UNREACHABLE"
        producer.send_columns(TOPIC, value=ORDERS)  # nothing bad was kept
    assert written_values(broker, registry) == ORDERS.to_pylist()


def test_the_senders_thread_never_asks_the_registry(broker: FakeBroker, registry: FakeRegistry) -> None:
    raised: list[Exception] = []
    with producer_of(broker, registry, value_schema='"long"') as producer:

        def again(*_: object) -> None:
            producer.send(TOPIC, 2)  # this topic's is known
            try:
                producer.send("other", 1)
            except IllegalStateError as error:
                raised.append(error)

        producer.send(TOPIC, 1, callback=again)
        producer.flush()
    assert "a callback cannot ask the registry" in str(raised[0])
    assert written_values(broker, registry) == [1, 2]


def test_an_incompatible_schema_is_refused_with_the_registrys_reasons(broker: FakeBroker, registry: FakeRegistry) -> None:
    registry.register(f"{TOPIC}-value", json.dumps(ORDER))
    producer = producer_of(broker, registry)
    with producer, pytest.raises(RegistryError, match="incompatible"):
        producer.send_columns(TOPIC, value=pa.array([{"id": "text"}]))
    assert broker.values(TOPIC) == []


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("options", "column", "message_pattern"),
    [
        ({"subject.name.strategy": "RecordNameStrategy"}, ["x"], "the {part} is string: set {part}.subject, or write a struct"),
        (
            {"subject.name.strategy": "RecordNameStrategy", "schema": '"string"'},
            ["x"],
            "{part}.subject.name.strategy needs a record, and {part}.schema is none: set {part}.subject",
        ),
        ({"schema": '"string"'}, [1], r"has string there; .* \({part}.schema\)"),
        (
            {"schema": "latest"},
            ["x"],
            r"{part}.serializer=avro, but orders-{part} version 1 \(id 1\) is PROTOBUF: encode and frame the {part} before it is"
            " sent, and remove {part}.serializer",
        ),
    ],
)
def test_errors_name_the_producers_options(
    broker: FakeBroker, registry: FakeRegistry, options: dict[str, str], column: list[Any], message_pattern: str, part: str
) -> None:
    """Errors named the sink's: valueSubject, valueSchema, valueFormat."""
    registry.register(f"{TOPIC}-{part}", "message A {}", schemaType="PROTOBUF")
    properties = {f"{part}.serializer": "avro"} | {f"{part}.{name}": value for name, value in options.items()}
    columns = {"value": pa.array([b"x"]), part: pa.array(column)}
    with (
        producer_of(broker, registry, **{"value.serializer": None} | properties) as producer,
        pytest.raises(SchemaError) as caught,
    ):
        producer.send_columns(TOPIC, **columns)
    assert re.search(message_pattern.format(part=part) + "$", caught.value.message)


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_schema_that_is_not_registered_is_named_by_the_producers_option(
    broker: FakeBroker, registry: FakeRegistry, part: str
) -> None:
    """The error said valueSchema=latest, for a key too."""
    properties = {"value.serializer": None, f"{part}.serializer": "avro", "auto.register.schemas": "false"}
    with producer_of(broker, registry, **properties) as producer, pytest.raises(RegistryError, match=rf"{part}\.schema=latest$"):
        producer.send_columns(TOPIC, **{"value": pa.array([b"x"]), part: ORDERS[:1]})


def test_secrets_of_the_registry_are_in_no_attribute(broker: FakeBroker, registry: FakeRegistry) -> None:
    with producer_of(broker, registry, basic_auth_user_info="me:hush-hush") as producer:
        assert "hush-hush" not in repr(vars(producer)) + repr(vars(producer._avro))


def test_a_producer_without_such_a_serializer_loads_nothing_of_it() -> None:
    code = (
        "import sys; from spark_kafka_sink.producer.producer import KafkaProducer;"
        "KafkaProducer({'bootstrap.servers': 'localhost:1', 'value.serializer': 'string'}).close(0);"
        "print([name for name in sys.modules if 'schemas' in name or 'registry' in name or 'avro' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
