"""The old producer's partitioners: by key, of a user's class, and for messages without a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_kafka_sink.errors import (
    ConfigError,
    InvalidRecordError,
)
from spark_kafka_sink.legacy.config import read_config
from spark_kafka_sink.legacy.errors import FailedToSendMessageError
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.partitioner import default_partition, find_legacy_partitioner, java_hash_code
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.fake_broker import FakeBroker
from tests.legacy.harness import HandlerStage, keyless, legacy, written


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", 0),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        (b"\x01\x02\x03", 30817),
        (b"\xff", 30),
        (True, 1231),
        (42, 42),
        (-5, -5),
        (2**32, 1),
        (-(2**40), (2**32 - 2**8) ^ 0xFFFFFFFF ^ 0xFFFFFFFF),
    ],
)
def test_hash_codes_are_those_of_java(key: object, code: int) -> None:
    expected = code if code < 2**31 else code - 2**32
    assert java_hash_code(key) == expected


@pytest.mark.parametrize(("key", "code"), [(-1, 0), (-3, 2), (-(2**31), 2**31 - 1), (42, 42), (2**32, 1), (True, 1231)])
def test_with_long_encoder_ints_are_hashed_as_longs(key: int, code: int) -> None:
    """Negative ones within 32 bits were hashed as Integers, and went to other partitions than with the Scala client."""
    for option_name, encoder in {
        "key.serializer.class": "kafka.serializer.LongEncoder",
        "serializer.class": "org.apache.kafka.common.serialization.LongSerializer",
    }.items():
        _, plugins = read_config({"metadata.broker.list": "one:1", option_name: encoder})
        assert plugins.partition(key, 2**31) == code
    _, plugins = read_config({"metadata.broker.list": "one:1", "key.serializer.class": "kafka.serializer.IntegerEncoder"})
    assert plugins.partition(-3, 2**31) == 3


def test_the_lowest_hash_code_has_a_partition_too() -> None:
    assert default_partition("polygenelubricants", 7) == 0
    assert default_partition(-5, 3) == 2


def test_a_key_whose_hash_code_is_not_known_is_refused_with_a_remedy() -> None:
    with pytest.raises(InvalidRecordError, match=r"partitioner\.class"):
        java_hash_code(1.5)


class PartitionerClass:
    def partition(self, key: object, partitions: int) -> int:
        del key
        return partitions - 1


@pytest.mark.parametrize(
    "option_value", [PartitionerClass, PartitionerClass(), f"{__name__}.PartitionerClass", lambda _, count: count - 1]
)
def test_a_partitioner_may_be_a_class_an_object_a_name_or_a_function(option_value: object) -> None:
    assert find_legacy_partitioner(option_value)("key", 4) == 3


@pytest.mark.parametrize("name", ["no_such_module.Mine", "Mine", "org.example.Mine"])
def test_the_error_of_a_partitioner_that_cannot_be_loaded_names_those_built_in(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"partitioner\.class={name} cannot be loaded: .* kafka\.producer\.ByteArrayPartitioner$"
    ):
        find_legacy_partitioner(name)


def test_a_key_decides_the_partition_and_a_part_key_takes_precedence(fake: FakeBroker) -> None:
    with legacy(fake) as producer:
        producer.send(
            KeyedMessage("orders", "1", "a"), KeyedMessage("orders", "1", "b", part_key=2), KeyedMessage("orders", None, "c", 3)
        )
    assert [written(fake, partition) for partition in (1, 2, 3)] == [["a"], ["b"], ["c"]]
    assert [record.key for record in fake.records("orders")] == [b"1", b"1", None]


def test_a_null_key_stays_with_one_partition_until_the_refresh_draws_another(fake: FakeBroker) -> None:
    with HandlerStage(fake, topic_metadata_refresh_interval_ms=1000) as stage:
        for number in range(3):
            stage.send(keyless(number), keyless(number))
        stage.clock.advance(999)
        stage.send(keyless(3))
        stage.clock.advance(1)
        stage.send(keyless(4))
    assert written(fake, 0) == ["0", "0", "1", "1", "2", "2", "3"]
    assert written(fake, 1) == ["4"]


def test_each_topic_has_its_own_partition_for_null_keys(fake: FakeBroker) -> None:
    with HandlerStage(fake) as stage:
        stage.send(keyless(1), keyless(2, "single"), keyless(3), keyless(4, "single"))
    assert written(fake, 0) == ["1", "3"]
    assert written(fake, 0, "single") == ["2", "4"]


def test_with_interval_0_every_dispatch_draws_a_partition(fake: FakeBroker) -> None:
    with HandlerStage(fake, topic_metadata_refresh_interval_ms=0) as stage:
        for number in range(4):
            stage.send(keyless(number))
    assert [written(fake, partition) for partition in range(4)] == [["0"], ["1"], ["2"], ["3"]]


def test_with_interval_minus_1_only_a_failure_moves_null_keys(fake: FakeBroker) -> None:
    with HandlerStage(fake, topic_metadata_refresh_interval_ms=-1) as stage:
        stage.send(keyless(0))
        stage.clock.advance(10**9)
        stage.send(keyless(1))
        fake.fail_next(ApiKey.PRODUCE, Errors.NOT_ENOUGH_REPLICAS)
        stage.send(keyless(2), keyless(3))
    assert written(fake, 0) == ["0", "1"]
    assert written(fake, 1) == ["2", "3"]


def test_only_partitions_with_a_leader_are_drawn(fake: FakeBroker) -> None:
    fake.move_leader("orders", 0, -1)
    with HandlerStage(fake, message_send_max_retries=0) as stage:
        stage.send(keyless(0))
    assert written(fake, 1) == ["0"]


def test_a_topic_without_any_leader_fails_by_name(fake: FakeBroker) -> None:
    fake.move_leader("single", 0, -1)
    with (
        HandlerStage(fake, message_send_max_retries=0) as stage,
        pytest.raises(FailedToSendMessageError, match="KAFKA_LEADER_NOT_AVAILABLE"),
    ):
        stage.send(keyless(0, "single"))


@pytest.mark.parametrize("partitioner", [lambda _, count: count, lambda key, _: key.no_such_attribute])
def test_a_bad_partitioner_harms_no_other_topic(fake: FakeBroker, partitioner: Callable[[Any, int], int]) -> None:
    with legacy(fake, partitioner_class=partitioner, message_send_max_retries=0) as producer:
        with pytest.raises(FailedToSendMessageError, match="KAFKA_INVALID_PARTITION") as raised:
            producer.send(KeyedMessage("orders", "1", "bad"), keyless(1, "single"))
        assert [message.message for message in raised.value.messages] == ["bad"]
    assert written(fake, 0, "single") == ["1"]
