"""row_mapping.py: which column is which part of a record; then Arrow columns as arguments of send_columns."""

from __future__ import annotations

import datetime
import pickle

import pyarrow as pa
import pytest

from spark_kafka_sink.records.row_mapping import RowMapping, nearest_column


def find(*names: str, topic: str | None = None, with_timestamp: bool = False) -> RowMapping:
    return RowMapping.find(names, topic, with_timestamp=with_timestamp)


def test_every_part_is_found_wherever_it_stands() -> None:
    mapping = find("timestamp", "headers", "extra", "value", "partition", "key", "topic", with_timestamp=True)
    assert mapping == RowMapping(topic=6, value=3, key=5, partition=4, headers=1, timestamp=0)


def test_a_topic_for_all_rows_overrides_the_column() -> None:
    assert find("value", "topic", topic="orders").topic == "orders"
    assert find("value", "topic").topic == 1


def test_names_are_matched_exactly_and_the_first_of_two_counts() -> None:
    mapping = find("Key", "KEY", "value", "value", "offset", "timestamp")
    assert mapping == RowMapping(topic=None, value=2, key=None, partition=None, headers=None, timestamp=None)


def test_the_column_that_is_probably_meant_is_found_in_any_case() -> None:
    assert nearest_column("value", ["id", "VALUE", "Value"]) == "VALUE"
    assert nearest_column("topic", ["Topics", "value"]) == "Topics"
    assert nearest_column("value", ["id", "payload"]) is None


def test_a_mapping_is_plain_data() -> None:
    mapping = find("topic", "value")
    assert pickle.loads(pickle.dumps(mapping)) == mapping


def batch(**columns: pa.Array) -> pa.Table:
    return pa.Table.from_pydict(columns)


def test_columns_are_handed_over_as_they_lie() -> None:
    key, value, part = pa.array([b"k", None]), pa.array(["v", None]), pa.array([None, 3], pa.int32())
    mapping = find("key", "value", "partition", topic="orders")
    columns = mapping.columns(batch(key=key, value=value, partition=part))
    assert columns["topic"] == "orders"
    assert columns["value"].chunk(0).buffers()[2].address == value.buffers()[2].address
    assert columns["key"].equals(key)
    assert columns["partition"].equals(part)
    assert columns["headers"] is None
    assert columns["timestamp"] is None


def test_of_gathered_batches_values_stay_in_pieces_and_the_rest_is_joined() -> None:
    mapping = find("key", "value", topic="orders")
    gathered = pa.concat_tables([batch(key=pa.array([b"k"]), value=pa.array(["v"]))] * 2)
    columns = mapping.columns(gathered)
    assert columns["value"].chunks == [pa.array(["v"])] * 2
    assert columns["key"].equals(pa.array([b"k", b"k"]))


def test_topics_come_from_their_column() -> None:
    mapping = find("topic", "value")
    topics = pa.array(["a", "b"])
    assert mapping.columns(batch(topic=topics, value=pa.array(["", ""])))["topic"].equals(topics)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_timestamp_is_its_instant_in_milliseconds(zone: str) -> None:
    mapping = find("value", "timestamp", topic="t", with_timestamp=True)
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 678_999, tzinfo=datetime.UTC)
    stamps = pa.array([moment, None], pa.timestamp("us", tz=zone))
    columns = mapping.columns(batch(value=pa.array(["", ""]), timestamp=stamps))
    assert columns["timestamp"].to_pylist() == [1_704_164_645_678, None]
    assert columns["timestamp"].type == pa.int64()


def test_a_bigint_timestamp_is_taken_as_it_is() -> None:
    mapping = find("value", "timestamp", topic="t", with_timestamp=True)
    stamps = pa.array([5, None], pa.int64())
    assert mapping.columns(batch(value=pa.array(["", ""]), timestamp=stamps))["timestamp"].equals(stamps)
