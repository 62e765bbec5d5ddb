"""group_offsets.py: what the consumers of others return is read, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import kafka.structs
import pytest
from confluent_kafka import Consumer

from spark_kafka_sink.producer.txn_requests.group_offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    checked_group,
    checked_offsets,
)
from spark_kafka_sink.protocol.topic_partition import TopicPartition

WHERE = TopicPartition("orders", 3)


@pytest.mark.parametrize(
    "offsets",
    [
        {WHERE: OffsetAndMetadata(7)},
        {WHERE: 7},
        {("orders", 3): 7},
        {kafka.structs.TopicPartition("orders", 3): kafka.structs.OffsetAndMetadata(7, None, -1)},
        {confluent_kafka.TopicPartition("orders", 3): 7},
        [confluent_kafka.TopicPartition("orders", 3, 7), confluent_kafka.TopicPartition("orders", 4)],  # of 4 nothing was read
        iter([SimpleNamespace(topic="orders", partition=3, offset=7)]),
    ],
)
def test_positions_of_other_consumers_are_taken(offsets: Any) -> None:
    """confluent-kafka's list and its TopicPartition as a key, and an int as an offset, each ended in a raw error of Python."""
    assert checked_offsets(offsets) == {WHERE: OffsetAndMetadata(7)}


def test_metadata_and_leader_epoch_come_along() -> None:
    expected = {WHERE: OffsetAndMetadata(7, "note", 2)}
    assert checked_offsets([confluent_kafka.TopicPartition("orders", 3, 7, "note", 2)]) == expected
    theirs = kafka.structs.OffsetAndMetadata(7, "note", 2)
    assert checked_offsets({kafka.structs.TopicPartition("orders", 3): theirs}) == expected


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (None, "offsets must map a TopicPartition to .*, not a NoneType"),
        ("orders", "offsets must map a TopicPartition to .*, not a str"),
        (7, "not a int"),
        ([WHERE], "the offset of orders-3 must be an int"),
        ([7], "there is a int"),
        ([confluent_kafka.TopicPartition("orders", 3, -1)], "the offset of orders-3 must be from 0 to"),
        ([SimpleNamespace(topic="orders", partition=3, offset=7, error="no such")], "no position in orders-3: no such"),
    ],
)
def test_what_holds_no_positions_is_refused_in_words(offsets: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        checked_offsets(offsets)


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer({"group.id": "gr\u00fcn", "group.instance.id": "one", "bootstrap.servers": ""})
    yield made
    made.close()


def test_the_group_metadata_of_confluent_kafka_is_read(consumer: Consumer) -> None:
    assert checked_group(consumer.consumer_group_metadata()) == ConsumerGroupMetadata("gr\u00fcn", -1, "", "one")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_member_and_its_generation_are_read(kind: Any) -> None:
    data = b"CGMDv2:" + (5).to_bytes(4, "little") + b"readers\0member-1\0\1"
    assert checked_group(kind(data)) == ConsumerGroupMetadata("readers", 5, "member-1")


def test_the_group_metadata_of_kafka_python_is_read() -> None:
    names = kafka.structs.ConsumerGroupMetadata._fields
    theirs = dict.fromkeys(names) | {"group_id": "readers", "generation_id": 5, "member_id": "m", "group_instance_id": None}
    assert checked_group(kafka.structs.ConsumerGroupMetadata(**theirs)) == ConsumerGroupMetadata("readers", 5, "m")


@pytest.mark.parametrize(
    "group",
    [
        None,
        "readers",
        b"",
        b"CGMDv3:\0\0\0\0g\0\0\1",
        b"CGMDv2:\0\0",
        b"CGMDv2:\0\0\0\0g\0m",
        b"CGMDv2:\0\0\0\0g\0m\0",
        b"CGMDv2:\0\0\0\0g\0m\0\2",
        b"CGMDv2:\0\0\0\0g\0m\0\1more",
        b"CGMDv2:\0\0\0\0\xff\0m\0\1",
    ],
)
def test_what_holds_no_group_is_refused_with_what_is_wanted(group: Any) -> None:
    with pytest.raises(TypeError, match=r"group_metadata must be a ConsumerGroupMetadata, what consumer_group_metadata\(\) of"):
        checked_group(group)
