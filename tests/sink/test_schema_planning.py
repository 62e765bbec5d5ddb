"""schema_planning.py: all problems before a task starts, each question to the registry once, none at the commit."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType, YearMonthIntervalType

from spark_kafka_sink import KafkaDataSource
from spark_kafka_sink.config.format_options import SchemaUse
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.schemas.registry_errors import INCOMPATIBLE, LOGIN_FAILED, UNREACHABLE, RegistryError
from spark_kafka_sink.sink import datasource, topic_check
from spark_kafka_sink.sink.datasource import COMMITTING_PROCESS
from spark_kafka_sink.sink.write_plan import WritePlan
from tests.schemas.fake_registry import FakeRegistry

ROOT = Path(__file__).resolve().parent.parent.parent
ROW = StructType([StructField("id", LongType(), False), StructField("at", TimestampType(), True, {"comment": "when"})])
ROW_TEXT = (
    '{"type":"record","name":"topLevelRecord","fields":[{"name":"id","type":"long"},{"name":"at","type":["null",'
    '{"type":"long","logicalType":"timestamp-micros"}],"default":null,"doc":"when"}]}'
)
WIDER_TEXT = ROW_TEXT.replace("}]}", '},{"name":"note","type":["null","string"],"default":null}]}')


pytestmark = pytest.mark.usefixtures("process_that_knows_no_schema")


def source(registry: FakeRegistry, **options: str | None) -> KafkaDataSource:
    """Names with double underscores for dots; None leaves an option out."""
    all_options = {"kafka.bootstrap.servers": "a:1", "topic": "t", "valueFormat": "avro", "schema.registry.url": registry.url}
    all_options |= {"schema.registry.max.retries": "0"} | {name.replace("__", "."): value for name, value in options.items()}
    return KafkaDataSource(CaseInsensitiveDict({name: value for name, value in all_options.items() if value is not None}))


def table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def uses(plan: WritePlan) -> list[SchemaUse | None]:
    return [each.encoder and each.encoder.use for each in plan.encoded_parts]


GOOD = table(value=ROW)


def test_a_struct_is_planned_with_a_schema_of_its_own(registry: FakeRegistry) -> None:
    plan = source(registry).writer(GOOD, False).plan
    assert registry.texts("t-value") == [ROW_TEXT]
    assert uses(plan) == [SchemaUse("value", "t-value", 1, 1)]
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_keys_are_planned_too_and_a_string_is_a_primitive_schema(registry: FakeRegistry) -> None:
    plan = source(registry, keyFormat="avro").writer(table(key=StringType(), value=ROW), False).plan
    assert registry.texts("t-key") == ['"string"']
    assert [each.wanted_schema.part for each in plan.encoded_parts] == ["value", "key"]


def test_names_of_the_record_are_the_users(registry: FakeRegistry) -> None:
    source(registry, valueRecordName="Order", valueRecordNamespace="shop.orders").writer(GOOD, False)
    assert '"name":"Order","namespace":"shop.orders"' in registry.texts("t-value")[0]


def test_a_micro_batch_asks_nothing_once_the_answers_are_known(registry: FakeRegistry) -> None:
    first = source(registry, keyFormat="avro").streamWriter(table(key=StringType(), value=ROW), False)
    request_count = len(registry.requests)
    for _ in range(5):
        again = source(registry, keyFormat="avro").streamWriter(table(key=StringType(), value=ROW), False)
        assert uses(again.plan) == uses(first.plan)
    assert len(registry.requests) == request_count


def test_another_topic_or_type_is_asked_for(registry: FakeRegistry) -> None:
    source(registry).writer(GOOD, False)
    source(registry, topic="u").writer(GOOD, False)
    source(registry).writer(table(value=StructType([*ROW.fields, StructField("note", StringType())])), False)
    assert [len(registry.texts(subject)) for subject in ("t-value", "u-value")] == [2, 1]


@pytest.mark.parametrize("schema", ["latest", "1", "id:1"])
def test_a_named_schema_is_used_and_nothing_registered(registry: FakeRegistry, schema: str) -> None:
    registry.register("t-value", ROW_TEXT)
    plan = source(registry, valueSchema=schema).writer(GOOD, False).plan
    assert plan.encoded_parts[0].encoder is not None
    assert plan.encoded_parts[0].encoder.use.id == 1
    assert all(each.startswith("GET") for each in registry.requests)


def test_the_process_that_commits_asks_nothing(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, COMMITTING_PROCESS, ModuleType(COMMITTING_PROCESS))
    writer = source(registry).streamWriter(GOOD, False)
    assert (registry.requests, writer.plan.encoded_parts) == ([], ())
    writer.commit([], 7)


# PROBLEMS


def test_all_problems_of_options_are_one_error_and_nobody_is_asked(registry: FakeRegistry) -> None:
    with pytest.raises(ConfigError) as raised:
        source(registry, valueSchema="newest", kafka__acks="7").writer(GOOD, False)
    assert raised.value.message.startswith("2 things are wrong:")
    assert registry.requests == []


def test_all_problems_of_columns_and_schemas_are_one_error(registry: FakeRegistry) -> None:
    registry.register("t-key", ROW_TEXT)
    wrong = StructType([StructField("x-y", LongType()), StructField("i", YearMonthIntervalType())])
    with pytest.raises(SchemaError) as raised:
        source(registry, keyFormat="avro", keySchema="latest").writer(
            table(key=table(id=StringType(), more=LongType()), value=wrong, headers=StringType()), False
        )
    message = raised.value.message
    assert message.startswith("5 things are wrong:")
    for part in (
        "headers attribute unsupported type string",
        "value.i is of the type interval",
        "value has a field 'x-y'",
        "column key.more is no field",
        "column key.id has type string, and the schema has long there",
    ):
        assert part in message
    assert registry.texts("t-value") == []


def test_what_the_registry_refuses_is_in_one_error_with_the_other_problems(registry: FakeRegistry) -> None:
    registry.register("t-value", ROW_TEXT.replace('"long"', '"string"', 1))
    with pytest.raises(SchemaError) as raised:
        source(registry).writer(table(value=ROW, headers=StringType()), False)
    assert raised.value.message.startswith("2 things are wrong:")
    assert "rejects the schema as incompatible" in raised.value.message


def test_schemas_that_the_registry_lacks_are_one_error(registry: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match="2 things are wrong") as raised:
        source(registry, valueSchema="3", keyFormat="framed", keySchema="id:9").writer(table(key=StringType(), value=ROW), False)
    assert "get version 3 of subject t-value" in raised.value.message
    assert "get schema 9" in raised.value.message


def test_an_incompatible_schema_fails_alone_with_its_own_condition(registry: FakeRegistry) -> None:
    registry.register("t-value", ROW_TEXT.replace('"long"', '"string"', 1))
    with pytest.raises(RegistryError) as raised:
        source(registry).streamWriter(GOOD, False)
    assert raised.value.condition == INCOMPATIBLE


def test_a_format_for_a_key_needs_a_key(registry: FakeRegistry) -> None:
    with pytest.raises(SchemaError, match="keyFormat=avro, but the DataFrame has no column key"):
        source(registry, keyFormat="avro").writer(GOOD, False)


def test_framed_takes_bytes_and_strings_as_ever(registry: FakeRegistry) -> None:
    with pytest.raises(SchemaError, match="value attribute unsupported type struct<"):
        source(registry, valueFormat="framed", valueSchema="id:1").writer(GOOD, False)


def test_a_registry_that_cannot_be_reached_is_asked_once(registry: FakeRegistry) -> None:
    with pytest.raises(RegistryError) as raised:
        source(registry, schema__registry__url="http://127.0.0.1:1", keyFormat="avro").writer(
            table(key=StringType(), value=ROW), False
        )
    assert raised.value.condition == UNREACHABLE
    assert "http://127.0.0.1:1" in raised.value.message


def test_the_error_of_a_wrong_password_does_not_show_it() -> None:
    with FakeRegistry(login="me:right") as registry, pytest.raises(RegistryError) as raised:
        source(registry, basic__auth__user__info="me:hunter2").writer(GOOD, False)
    assert raised.value.condition == LOGIN_FAILED
    assert "hunter2" not in str(raised.value)


def test_nothing_is_registered_for_a_topic_that_does_not_exist(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource.stderr_log, "is_in_spark_worker", lambda: True)
    monkeypatch.setattr(topic_check, "_is_known_to_be_missing", lambda *_: True)
    for plan in (source(registry).writer, source(registry).streamWriter):
        with pytest.raises(ConfigError, match="topic t does not exist"):
            plan(GOOD, False)
    assert registry.texts("t-value") == []


def test_nothing_is_registered_while_the_drivers_environment_has_problems(registry: FakeRegistry) -> None:
    with pytest.raises(ConfigError, match="onCommit"):
        source(registry, onCommit="nowhere.f").writer(GOOD, False)
    writer = source(registry, onCommit="nowhere.f").streamWriter(GOOD, False)
    assert registry.texts("t-value") == []
    with pytest.raises(ConfigError, match="onCommit"):
        pickle.dumps(writer)


# TOPICS FROM A COLUMN


def test_schemas_of_topics_are_left_to_the_tasks(registry: FakeRegistry) -> None:
    plan = source(registry, topic=None).writer(table(topic=StringType(), value=ROW), False).plan
    assert uses(plan) == [None]
    assert registry.requests == []


def test_a_subject_of_its_own_is_one_schema_for_all_topics(registry: FakeRegistry) -> None:
    plan = source(registry, topic=None, valueSubject="s").writer(table(topic=StringType(), value=ROW), False).plan
    assert uses(plan) == [SchemaUse("value", "s", 1, 1)]


def test_the_latest_schemas_of_many_topics_cannot_be_exactly_once(registry: FakeRegistry) -> None:
    exactly_once = {
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": "p",
        "markerTopic": "m",
        "valueSchema": "latest",
        "topic": None,
    }
    columns = table(topic=StringType(), value=ROW)
    with pytest.raises(SchemaError, match="valueSchema=latest with a topic column cannot be exactly once"):
        source(registry, **exactly_once).writer(columns, False)
    source(registry, **exactly_once | {"valueSchema": None}).writer(columns, False)


# IMPORTS


def test_a_write_without_a_format_imports_nothing_of_schemas() -> None:
    """DriverTime, pickled, and carried out up to the first row's bytes."""
    code = """
        import pickle, sys
        import pyarrow as pa
        from pyspark.sql.datasource import CaseInsensitiveDict
        from pyspark.sql.types import StringType, StructField, StructType
        from spark_kafka_sink import KafkaDataSource
        from spark_kafka_sink.sink import exactly_once_task
        from spark_kafka_sink.sink.rows import row_sender
        from spark_kafka_sink.sink.rows.gathering import SparkRows
        from spark_kafka_sink.sink.writer import encoder_of
        options = CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "topic": "t"})
        writer = KafkaDataSource(options).writer(StructType([StructField("value", StringType())]), False)
        plan = pickle.loads(pickle.dumps(writer)).plan
        with encoder_of(plan, list, {}) as encoder:
            batches = iter([pa.record_batch([pa.array(["a"])], names=["value"])])
            assert [len(chunk.numbers) for chunk in SparkRows(batches, plan.mapping, encoder=encoder).chunks()] == [1]
        others = ("spark_kafka_sink.schemas", "spark_kafka_sink.config.registry", "urllib3")
        print([name for name in sys.modules if name.startswith(others)])
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_another_arrow_type_than_sparks_is_never_assumed(registry: FakeRegistry) -> None:
    """What was planned is what Spark sends, but for the session's time zone."""
    plan = source(registry).writer(GOOD, False).plan
    (planned,) = plan.encoded_parts
    assert planned.wanted_schema.type == pa.struct([pa.field("id", pa.int64(), False), ("at", pa.timestamp("us", "UTC"))])
