"""One table makes the same records, whether Spark's task or `KafkaProducer.send_table` sends it. Hypothesis writes the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.row_sender import RowSender
from tests.fakes.fake_broker import FakeBroker
from tests.producer.transactions.transactional_brokers import producer_of
from tests.sink.columns import HEADERS, sink_options

TOPICS = {"orders": 3, "other": 3}
ENTRY = pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])

# What Spark delivers, and other layouts of the same.
SPARKS = {
    "key": pa.binary(),
    "value": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("us", "UTC"),
}
OTHERS: dict[str, list[pa.DataType]] = {
    "key": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())],
    "value": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "topic": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "partition": [pa.int32(), pa.int64(), pa.uint8()],
    "headers": [HEADERS, pa.large_list(ENTRY), pa.map_(pa.string(), pa.binary())],
    "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Tokyo")],
}

moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
entries = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=20))
rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=30),
        "value": st.none() | st.text(max_size=40),
        "topic": st.sampled_from(list(TOPICS)),
        "partition": st.integers(0, 2),
        "headers": st.none() | st.lists(entries, max_size=3, unique_by=lambda pair: pair[0]),
        "timestamp": moments,
    }
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.RecordBatch], pa.Table, str | None]:
    """Batches as Spark delivers them, the same rows in other layouts and batches, and the topic of all rows, if there is one.

    Rows without a partition have a key: where others go is random.
    """
    cells = draw(st.lists(rows, max_size=30))
    left_out = draw(st.sets(st.sampled_from(["key", "headers", "partition"])))
    if left_out >= {"key", "partition"}:
        left_out.discard("partition")
    for row in cells:
        if "key" not in left_out and row["key"] is not None and draw(st.booleans()):
            row["partition"] = None
    if "partition" in left_out:
        cells = [row | {"key": row["key"] or b"k"} for row in cells]
    names = [name for name in draw(st.permutations(list(SPARKS))) if name not in left_out]
    sparks = pa.Table.from_batches([record_batch(cells, {name: SPARKS[name] for name in names})])
    kinds = {name: draw(st.sampled_from(OTHERS[name])) for name in names}
    other = pa.Table.from_batches([record_batch(cells, kinds)])
    topic = draw(st.none() | st.sampled_from(list(TOPICS)))
    return sparks.to_batches(draw(st.integers(1, 12))), in_batches(other, draw(st.integers(1, 12))), topic


def record_batch(cells: list[dict[str, Any]], kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    return pa.record_batch({name: column([row[name] for row in cells], name, kind) for name, kind in kinds.items()})


def column(cells: list[Any], name: str, kind: pa.DataType) -> pa.Array:
    if name == "headers" and not pa.types.is_map(kind):
        cells = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in cells]
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode()
    return pa.array(cells, kind)


def in_batches(table: pa.Table, most_rows: int) -> pa.Table:
    return pa.Table.from_batches(table.to_batches(most_rows), table.schema)


Ends = tuple[FakeBroker, TaskProducer, FakeBroker, TaskProducer]


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    """Two clusters with a producer each."""
    with FakeBroker(topics=TOPICS) as first, FakeBroker(topics=TOPICS) as second:
        with producer_of(first, transactional_id=None) as sinks, producer_of(second, transactional_id=None) as own:
            yield first, sinks, second, own
        assert first.violations == second.violations == []


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(tables())
def test_a_table_makes_the_records_that_the_sink_makes_of_it(
    ends: Ends, made: tuple[list[pa.RecordBatch], pa.Table, str | None]
) -> None:
    first, sinks, second, own = ends
    batches, table, topic = made
    by_sink, by_table = (lengths(cluster) for cluster in (first, second))
    send_as_spark_does(sinks, batches, table.schema.names, topic)
    delivery = own.send_table(topic, table)
    own.flush()
    assert delivery.result(0).rows == table.num_rows
    for (name, partition), start in by_sink.items():
        expected, records = (
            [(each.timestamp, each.key, each.value, each.headers) for each in cluster.records(name, partition)[begin:]]
            for cluster, begin in ((first, start), (second, by_table[name, partition]))
        )
        assert records == expected


def send_as_spark_does(producer: TaskProducer, batches: list[pa.RecordBatch], names: list[str], topic: str | None) -> None:
    mapping = RowMapping.find(names, topic, with_timestamp=True)
    sender = RowSender(producer, sink_options(topic=topic), lambda: producer)
    for chunk in SparkRows(iter(batches), mapping).chunks():
        sender.send(chunk)
    sender.finish()


def lengths(cluster: FakeBroker) -> dict[tuple[str, int], int]:
    return {(name, each): len(cluster.records(name, each)) for name, count in TOPICS.items() for each in range(count)}
