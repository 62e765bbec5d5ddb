"""A user's own partitioner: what it is asked, and what its answers may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import ConfigError, InvalidRecordError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.partitioner import UserPartitioner
from spark_kafka_sink.producer.plugins.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import record_columns
from tests.producer.harness import TOPIC, cluster, columns, config


class ByLength:
    """Sends a row where the length of its value says; notes what it was called with."""

    def __init__(self) -> None:
        self.config: Mapping[str, object] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.kinds: set[type] = set()
        self.closed = 0

    def configure(self, config: Mapping[str, object]) -> None:
        self.config = config

    def partition_columns(self, topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> Any:
        self.kinds |= {type(key), type(value)}
        self.calls.append((topic, key.to_pylist(), value.to_pylist()))
        return pc.binary_length(value).to_numpy(zero_copy_only=False) % (cluster.partition_count(topic) or 1)

    def close(self) -> None:
        self.closed += 1


class JavasWay:
    """Per record; a tombstone is left to the sticky partitioner."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def partition(self, *record: Any) -> int | None:
        self.calls.append(record[:-1])
        return None if record[3] is None else len(record[4])


class Answering:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def partition_columns(self, *_: object) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def by_key_length(topic: str, key: pa.Array, value: pa.Array, cluster: Cluster) -> pa.Array:
    assert (topic, len(value), cluster.partition_count(topic)) == (TOPIC, len(key), 4)
    return pc.binary_length(key)


CLUSTER = cluster({TOPIC: (0, 1, None, 0)})
HERE = __name__


def partitioner_of(partitioner: object, **options: object) -> UserPartitioner:
    return UserPartitioner(config(partitioner_class=partitioner, **options))


def decide(partitioner: object, values: list[bytes | None], explicit: list[int] | None = None, **more: Any) -> list[int]:
    partitions = np.array([NO_PARTITION] * len(values) if explicit is None else explicit, np.int32)
    positions = np.arange(100, 100 + len(values), dtype=np.int32)
    decided = partitioner_of(partitioner).decide(TopicRows(TOPIC, columns(values, **more), partitions, positions), CLUSTER)
    assert decided.dtype == np.int32
    return decided.tolist()


@pytest.mark.parametrize(
    "name",
    [
        None,
        "org.apache.kafka.clients.producer.RoundRobinPartitioner",
        "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
        "org.apache.kafka.clients.producer.UniformStickyPartitioner",
    ],
)
def test_kafkas_partitioners_need_no_class_of_a_users(name: str | None) -> None:
    assert ProducerPlugins(config(partitioner_class=name)).partitioner is None


@pytest.mark.parametrize("partitioner", [f"{HERE}.ByLength", ByLength, ByLength()])
def test_a_class_by_name_or_itself_is_asked_for_whole_columns(partitioner: object) -> None:
    assert decide(partitioner, [b"", b"a", b"bb", b"ccccc"]) == [0, 1, 2, 1]


def test_a_function_is_a_partitioner_too() -> None:
    assert decide(by_key_length, [b"v", None], keys=[b"kkk", None]) == [3, NO_PARTITION]
    assert decide(f"{HERE}.by_key_length", [b"v"], keys=[b"k"]) == [1]


def test_only_rows_that_name_no_partition_are_shown_with_null_for_what_they_lack() -> None:
    instance = ByLength()
    assert decide(instance, [b"a", b"bb", None, b"ccc"], [NO_PARTITION, 0, 3, NO_PARTITION]) == [1, 0, 3, 3]
    assert decide(instance, [b"a", b"a"], [2, 2]) == [2, 2]
    assert instance.calls == [(TOPIC, [None, None], [b"a", b"ccc"])]


def test_values_in_pieces_are_one_array_to_a_partitioner() -> None:
    in_pieces = record_columns(pa.chunked_array([[b"a"], [b"bb", b""]], pa.binary()))
    undecided, positions = np.full(3, NO_PARTITION, np.int32), np.arange(3, dtype=np.int32)
    instance = ByLength()
    assert partitioner_of(instance).decide(TopicRows(TOPIC, in_pieces, undecided, positions), CLUSTER).tolist() == [1, 2, 0]
    assert instance.kinds == {pa.BinaryArray}


@pytest.mark.parametrize(
    "answer",
    [
        np.array([3, -1, 0], np.int64),
        np.array([3, -1, 0], np.int8),
        pa.array([3, None, 0], pa.int32()),
        pa.array([3, None, 0], pa.uint64()),
        pa.chunked_array([[3], [None, 0]], pa.int16()),
    ],
)
def test_whole_numbers_of_any_width_will_do_and_null_or_minus_one_leaves_the_choice(answer: object) -> None:
    assert decide(Answering(answer), [b"a", b"b", b"c"]) == [3, NO_PARTITION, 0]


def test_an_answer_of_nulls_alone_leaves_all_to_the_sticky_partitioner() -> None:
    assert decide(Answering(pa.nulls(2)), [b"a", b"b"]) == [NO_PARTITION] * 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (np.array([0.0, 1.0]), "returned an array of float64, not a numpy or Arrow array of whole numbers"),
        (np.array([True, False]), "returned an array of bool"),
        (pa.array(["0", "1"]), "returned string, not"),
        (pa.array([2**64 - 1, 0], pa.uint64()), "returned numbers that are not partitions"),
        ([0, 1], "returned list, not"),
        (None, "returned NoneType, not"),
        (np.zeros(3, np.int32), "returned 3 partitions for 2 rows"),
        (np.zeros((2, 1), np.int32), "returned 2 partitions for 2 rows"),
        (ZeroDivisionError("by nought"), "raised ZeroDivisionError: by nought"),
    ],
)
def test_the_error_for_a_wrong_answer_names_the_class(answer: object, expected: str) -> None:
    with pytest.raises(KafkaError) as raised:
        decide(Answering(answer), [b"a", b"b"])
    assert raised.value.condition == "KAFKA_PARTITIONER_FAILED"
    assert f"partitioner {HERE}.Answering {expected}" in raised.value.message
    assert isinstance(raised.value.__cause__, ZeroDivisionError | pa.ArrowInvalid | None)


@pytest.mark.parametrize("bad", [4, -2, 2**31, 200])
def test_the_error_of_a_partition_that_does_not_exist_names_class_and_row(bad: int) -> None:
    answer = np.array([0, bad], np.uint8 if bad == 200 else np.int64)
    with pytest.raises(InvalidRecordError) as raised:
        decide(Answering(answer), [b"a", b"b", b"c"], [NO_PARTITION, 3, NO_PARTITION])
    assert raised.value.condition == "KAFKA_INVALID_PARTITION"
    for part in (f"{HERE}.Answering chose partition {bad}", "row 102 of this chunk", "partitions 0 to 3"):
        assert part in raised.value.message


def test_javas_method_is_called_for_each_row_with_bytes() -> None:
    instance = JavasWay()
    assert decide(instance, [b"a", None, b"ccc"], keys=[b"k", None, None]) == [1, NO_PARTITION, 3]
    assert instance.calls[0] == (TOPIC, b"k", b"k", b"a", b"a")
    assert instance.calls[1] == (TOPIC, None, None, None, None)


def test_a_single_record_shows_its_own_key_and_value_to_javas_method() -> None:
    instance = JavasWay()
    partitioner = partitioner_of(instance)
    assert partitioner.asks_per_record
    assert partitioner.decide_record(TOPIC, "key", b"key", 5, b"555", CLUSTER) == 3
    assert partitioner.decide_record(TOPIC, None, None, None, None, CLUSTER) == NO_PARTITION
    assert instance.calls[0] == (TOPIC, "key", b"key", 5, b"555")
    with pytest.raises(InvalidRecordError, match="chose partition 4"):
        partitioner.decide_record(TOPIC, None, None, "", b"4444", CLUSTER)
    with pytest.raises(KafkaError, match="raised TypeError"):
        partitioner.decide_record(TOPIC, None, None, 5, None, CLUSTER)


def test_numpys_integer_is_an_answer_per_record_and_text_is_none() -> None:
    def answering(answer: object) -> object:
        return type("Answers", (), {"partition": lambda *_: answer})()

    for good in (np.int64(2), 2):
        assert partitioner_of(answering(good)).decide_record(TOPIC, None, None, None, None, CLUSTER) == 2
    with pytest.raises(KafkaError, match="not a numpy or Arrow array of whole numbers"):
        partitioner_of(answering("2")).decide_record(TOPIC, None, None, None, None, CLUSTER)


def test_configure_gets_the_configuration_with_client_id_and_keys_of_its_own() -> None:
    instance = ByLength()
    partitioner = partitioner_of(instance, by_length="5", linger_ms="7")
    assert {name: instance.config[name] for name in ("by.length", "linger.ms")} == {"by.length": "5", "linger.ms": 7}
    assert str(instance.config["client.id"]).startswith("producer-")
    partitioner.close()
    assert instance.closed == 1


def failing(method: str) -> type[ByLength]:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("as planned")

    return type("Failing", (ByLength,), {method: fail})


@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        ("no_such_module.Mine", "partitioner.class=no_such_module.Mine cannot be loaded: there is no module no_such_module"),
        (Answering, f"partitioner.class={HERE}.Answering: an instance cannot be created without arguments: TypeError"),
        (failing("configure"), "Failing.configure failed: ZeroDivisionError: as planned"),
        (object(), "has neither partition_columns(topic, key, value, cluster) nor partition(topic, key, key_bytes,"),
    ],
)
def test_a_partitioner_that_cannot_be_loaded_is_a_config_error_with_its_cause(partitioner: object, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        partitioner_of(partitioner)
    assert expected in raised.value.message


def test_an_instance_whose_configure_fails_is_closed_and_a_failing_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    instance = failing("configure")()
    with pytest.raises(ConfigError, match="configure failed"):
        partitioner_of(instance)
    assert instance.closed == 1
    partitioner_of(failing("close")).close()
    assert "Failing.close failed" in caplog.text
