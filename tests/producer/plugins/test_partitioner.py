"""Partitioners: where rows go that neither name a partition nor have a key, and a user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import ConfigError, InvalidRecordError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.partitioner import RoundRobinPartitioner, StickyPartitioner, UserPartitioner
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import record_columns
from tests.producer.harness import TOPIC, cluster, columns, config

BATCH = 1000


def sizes(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


class Open(dict[int, int]):
    """Filled bytes of each partition's open batch; 0 unless set."""

    def __missing__(self, partition: int) -> int:
        return 0


def sticky(filled: Open | None = None, *, seed: int = 1, batch_size: int = BATCH) -> StickyPartitioner:
    return StickyPartitioner(batch_size, (filled if filled is not None else Open()).__getitem__, Random(seed))


def stays(chosen: npt.NDArray[np.int32]) -> list[int]:
    """Rows per stay."""
    starts = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), len(chosen)]
    return [stop - start for start, stop in pairwise(starts)]


# ---- STICKY


def test_rows_stay_until_a_batch_is_full() -> None:
    chosen = sticky().assign(sizes(*[100] * 2000), range(1000))
    assert set(stays(chosen)) == {10}


def test_the_row_that_crosses_the_limit_still_stays() -> None:
    assert stays(sticky().assign(sizes(*[300] * 400), range(1000))) == [4] * 100


def test_a_stay_goes_on_over_calls() -> None:
    partitioner = sticky()
    chosen = np.concatenate([partitioner.assign(sizes(100), range(1000)) for _ in range(30)])
    assert stays(chosen) == [10, 10, 10]


def test_a_large_row_ends_the_stay_at_once() -> None:
    chosen = sticky().assign(sizes(5000, 5000, 5000), range(1000))
    assert len(set(chosen.tolist())) == 3


def test_every_partition_gets_its_share() -> None:
    drawn = Counter(sticky().assign(sizes(*[BATCH] * 4000), range(4)).tolist())
    assert all(850 < drawn[partition] < 1150 for partition in range(4))


def test_a_partition_whose_batch_is_partly_filled_keeps_rows_until_the_next_is_full() -> None:
    """KIP-794: switching in the middle of a batch would leave two small ones."""
    filled = Open(dict.fromkeys(range(1000), 400))
    chosen = sticky(filled).assign(sizes(*[100] * 160), range(1000))
    assert set(stays(chosen)) == {16}


def test_a_stay_is_never_longer_than_two_batches_nor_shorter_than_one() -> None:
    for level, expected in ((1, 20), (999, 11), (1000, 10), (7000, 10)):
        chosen = sticky(Open(dict.fromkeys(range(1000), level))).assign(sizes(*[100] * 200), range(1000))
        assert stays(chosen)[0] == expected


def test_a_partition_that_is_no_longer_available_is_left_at_the_next_call() -> None:
    partitioner = sticky()
    first = int(partitioner.assign(sizes(1), [0, 1, 2])[0])
    others = [partition for partition in (0, 1, 2) if partition != first]
    assert set(partitioner.assign(sizes(*[1] * 20), others).tolist()) <= set(others)


def test_one_partition_gets_everything() -> None:
    assert set(sticky().assign(sizes(*[400] * 50), [5]).tolist()) == {5}


def test_no_rows_are_no_trouble() -> None:
    assert sticky().assign(sizes(), [0, 1]).tolist() == []


def test_the_same_seed_draws_the_same_partitions() -> None:
    draws = [sticky(seed=9).assign(sizes(*[BATCH] * 50), range(10)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


# ---- STICKY, ADAPTIVE


def draw(partitioner: StickyPartitioner, times: int = 8000, partitions: range = range(4)) -> Counter[int]:
    return Counter(partitioner.assign(sizes(*[BATCH] * times), partitions).tolist())


def test_a_partition_is_drawn_the_more_often_the_shorter_its_queue_is() -> None:
    partitioner = sticky()
    partitioner.update_load([5, 0, 3, 0], [0, 1, 2, 3], all_counted=True)
    drawn = draw(partitioner, 16_000)  # weights 1, 6, 3, 6
    for partition, weight in enumerate((1, 6, 3, 6)):
        assert abs(drawn[partition] - weight * 1000) < 250


@pytest.mark.parametrize("lengths", [[], [3], [2, 2, 2, 2]])
def test_equal_queues_say_nothing(lengths: list[int]) -> None:
    partitioner = sticky()
    partitioner.update_load([9, 0, 0, 0], range(4), all_counted=True)
    partitioner.update_load(lengths, range(len(lengths)), all_counted=True)
    drawn = draw(partitioner)
    assert all(1800 < drawn[partition] < 2200 for partition in range(4))


def test_partitions_that_were_left_out_are_not_drawn_even_if_the_others_are_equal() -> None:
    partitioner = sticky()
    partitioner.update_load([1, 1], [0, 3], all_counted=False)
    drawn = draw(partitioner)
    assert set(drawn) <= {0, 3, *drawn.most_common(1)[0][:1]}
    assert drawn[1] + drawn[2] <= 1  # the first row of all may have been assigned before


def test_only_one_partition_left_gets_everything() -> None:
    partitioner = sticky()
    partitioner.update_load([7], [2], all_counted=False)
    assert set(draw(partitioner, 50)) == {2}


# ---- ROUND ROBIN


def test_rows_take_turns_over_all_calls() -> None:
    partitioner = RoundRobinPartitioner()
    chosen = np.concatenate([partitioner.assign(rows, [0, 1, 2]) for rows in (2, 5, 0, 4)]).tolist()
    assert all(later == (earlier + 1) % 3 for earlier, later in pairwise(chosen))


def test_turns_go_over_the_partitions_that_are_available() -> None:
    chosen = RoundRobinPartitioner().assign(8, [1, 4]).tolist()
    assert Counter(chosen) == {1: 4, 4: 4}


# ---- A USER'S PARTITIONER


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


def partitioner_of(wanted: object, **options: object) -> UserPartitioner:
    found = UserPartitioner.of(config(partitioner_class=wanted, **options))
    assert found is not None
    return found


def decide(wanted: object, values: list[bytes | None], explicit: list[int] | None = None, **more: Any) -> list[int]:
    chosen = np.array([NO_PARTITION] * len(values) if explicit is None else explicit, np.int32)
    rows = np.arange(100, 100 + len(values), dtype=np.int32)
    decided = partitioner_of(wanted).decide(TOPIC, columns(values, **more), chosen, rows, CLUSTER)
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
    assert UserPartitioner.of(config(partitioner_class=name)) is None


@pytest.mark.parametrize("wanted", [f"{HERE}.ByLength", ByLength, ByLength()])
def test_a_class_by_name_or_itself_is_asked_for_whole_columns(wanted: object) -> None:
    assert decide(wanted, [b"", b"a", b"bb", b"ccccc"]) == [0, 1, 2, 1]


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
    undecided, rows = np.full(3, NO_PARTITION, np.int32), np.arange(3, dtype=np.int32)
    instance = ByLength()
    assert partitioner_of(instance).decide(TOPIC, in_pieces, undecided, rows, CLUSTER).tolist() == [1, 2, 0]
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
def test_a_partition_that_there_is_not_is_told_with_class_and_row(bad: int) -> None:
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
    ("wanted", "expected"),
    [
        ("no_such_module.Mine", "partitioner.class=no_such_module.Mine cannot be loaded: there is no module no_such_module"),
        (Answering, f"partitioner.class={HERE}.Answering: an instance cannot be created without arguments: TypeError"),
        (failing("configure"), "Failing.configure failed: ZeroDivisionError: as planned"),
        (object(), "has neither partition_columns(topic, key, value, cluster) nor partition(topic, key, key_bytes,"),
    ],
)
def test_a_partitioner_that_cannot_be_loaded_is_a_config_error_with_its_cause(wanted: object, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        partitioner_of(wanted)
    assert expected in raised.value.message


def test_an_instance_whose_configure_fails_is_closed_and_a_failing_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    instance = failing("configure")()
    with pytest.raises(ConfigError, match="configure failed"):
        partitioner_of(instance)
    assert instance.closed == 1
    partitioner_of(failing("close")).close()
    assert "Failing.close failed" in caplog.text
