"""writer.py: every row that comes in is acknowledged, or the task fails; the producer is returned or closed in any case."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext

from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import DeliveryError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink import writer
from spark_kafka_sink.sink.commit_message import COUNTERS, KafkaCommitMessage, WrittenRange
from spark_kafka_sink.sink.rows import gathering
from spark_kafka_sink.sink.rows.gathering import SparkRows
from spark_kafka_sink.sink.rows.row_sender import MAX_PENDING_DELIVERIES, RowSender
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.worker_cache import WorkerCache
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter
from tests.sink.columns import sink_options, write_plan
from tests.sink.fake_producer import FakeDelivery, FakeProducer

MAPPING = RowMapping(topic="t", value=0, key=None, partition=None, headers=None, timestamp=None)
TASK = Task(partition=3, attempt=1, query_id="q", batch_id=8)


class Batches:
    """Arrow batches with the given numbers of rows; counts how many were taken."""

    def __init__(self, *rows: int) -> None:
        self._rows = rows
        self.taken_count = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for rows in self._rows:
            self.taken_count += 1
            yield pa.RecordBatch.from_arrays([pa.array(["v"] * rows, pa.string())], names=["value"])
        self.exhausted = True


def write(batches: Iterable[pa.RecordBatch], producer: FakeProducer) -> KafkaCommitMessage:
    """Write as a task does with a producer."""
    sender = RowSender(producer, sink_options(), FakeProducer)
    rows = SparkRows(iter(batches), MAPPING)
    for chunk in rows.chunks():
        sender.send(chunk)
        del chunk
    sender.finish()
    return sender.commit_message(TASK, rows.waited_s)


@pytest.fixture(autouse=True)
def each_batch_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_GATHERED_BYTES", 1)


def acknowledge_at_once(_: FakeProducer, delivery: FakeDelivery) -> None:
    delivery.acknowledge()


# WHAT A TASK DOES


@pytest.mark.parametrize("on_send", [None, acknowledge_at_once])
def test_every_batch_is_sent_flushed_and_counted(on_send: object) -> None:
    producer, batches = FakeProducer(on_send=on_send), Batches(3, 2, 1)
    message = write(batches, producer)
    assert [len(call["value"]) for call in producer.calls] == [3, 2, 1]
    assert batches.exhausted
    assert producer.flushed == 1
    assert message.rows == 6
    assert message.written == (WrittenRange("t", 0, 0, 5, 6, 60),)
    assert message.bytes == 60
    assert (message.spark_partition, message.attempt, message.query_id, message.batch_id) == (3, 1, "q", 8)
    assert dict(zip(COUNTERS, message.counters, strict=True))["batch-send-total"] == 3


@pytest.mark.parametrize(("limit", "value"), [("MAX_GATHERED_BYTES", 20), ("MAX_GATHERED_ROWS", 4)])
def test_small_neighbours_are_gathered_up_to_a_size(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(gathering, "MAX_GATHERED_BYTES", 1_000)  # a row of these is 5 bytes: its character and its offset
    monkeypatch.setattr(gathering, limit, value)
    producer = FakeProducer()
    assert write(Batches(2, 0, 1, 3, 10, 1), producer).rows == 17
    assert [len(call["value"]) for call in producer.calls] == [3, 3, 10, 1]


def test_the_first_rows_are_sent_before_as_many_are_gathered_as_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_GATHERED_BYTES", 1_000)
    monkeypatch.setattr(gathering, "MAX_GATHERED_ROWS_AT_FIRST", 4)
    monkeypatch.setattr(gathering, "MAX_GATHERED_ROWS", 8)
    producer = FakeProducer()
    assert write(Batches(*[2] * 11), producer).rows == 22
    assert [len(call["value"]) for call in producer.calls] == [4, 8, 8, 2]


@pytest.mark.parametrize("gathered_bytes", [1, 2_500_000])
def test_sent_batches_are_released_before_more_is_read(monkeypatch: pytest.MonkeyPatch, gathered_bytes: int) -> None:
    """Three batches of 64 MB were in memory at a time: the one being sent, the next one, and the one being read."""
    monkeypatch.setattr(gathering, "MAX_GATHERED_BYTES", gathered_bytes)
    alive: list[weakref.ref[np.ndarray]] = []
    at_read, at_send = [], []

    def count() -> int:
        return sum(each() is not None for each in alive)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(6):
            at_read.append(count())
            memory = np.zeros(1_000_000, np.uint8)
            alive.append(weakref.ref(memory))
            offsets = pa.array([0, 1_000_000], pa.int32()).buffers()[1]
            column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(memory)])
            del memory
            made = [pa.RecordBatch.from_arrays([column], names=["value"])]
            del column
            yield made.pop()

    class Counting(FakeProducer):
        def send_columns(self, topic: object, **columns: object) -> FakeDelivery:
            at_send.append(count())
            delivery = super().send_columns(topic, **columns)
            self.calls.clear()
            delivery.acknowledge()
            return delivery

    assert write(batches(), Counting()).rows == 6
    together = 1 if gathered_bytes == 1 else 3
    assert max(at_send) <= together
    assert max(at_read) < together


@pytest.mark.parametrize("rows", [(), (0,), (0, 0)])
def test_a_partition_without_rows_sends_nothing_and_reports(rows: tuple[int, ...]) -> None:
    producer = FakeProducer()
    message = write(Batches(*rows), producer)
    assert producer.calls == []
    assert (message.rows, message.written) == (0, ())


def test_a_failure_ends_the_task_before_it_has_read_all_rows() -> None:
    def fail_the_first_when_the_third_comes(producer: FakeProducer, _: FakeDelivery) -> None:
        if len(producer.deliveries) == 3:
            producer.deliveries[1].error = KafkaTimeoutError("no answer")

    batches = Batches(*[1] * 10)
    with pytest.raises(KafkaTimeoutError, match="no answer"):
        write(batches, FakeProducer(on_send=fail_the_first_when_the_third_comes))
    assert batches.taken_count == 3


def test_a_failure_of_the_last_batch_fails_the_task() -> None:
    class FailingFlush(FakeProducer):
        def flush(self, *, until: FakeDelivery | None = None) -> None:  # noqa: ARG002
            self.deliveries[-1].error = KafkaError("too late")

    with pytest.raises(KafkaError, match="too late"):
        write(Batches(1, 1), FailingFlush())


def test_a_row_that_is_neither_acknowledged_nor_failed_is_an_error() -> None:
    with pytest.raises(DeliveryError, match="the task read 5 rows, of which 4 are acknowledged, 0 skipped and 0 dead-lettered"):
        write(Batches(2, 3), FakeProducer(on_send=lambda _, each: each.acknowledge(2)))


def test_deliveries_of_unanswered_batches_stay_few() -> None:
    open_handles = []

    def count_open(producer: FakeProducer, _: FakeDelivery) -> None:
        open_handles.append(sum(not each.done() for each in producer.deliveries))

    message = write(Batches(*[1] * (MAX_PENDING_DELIVERIES + 50)), FakeProducer(on_send=count_open))
    assert message.rows == MAX_PENDING_DELIVERIES + 50
    assert max(open_handles) == MAX_PENDING_DELIVERIES + 1


def test_ranges_of_many_batches_are_merged_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.sink.rows.row_sender.MAX_RANGES", 2)
    assert write(Batches(*[1] * 9), FakeProducer(on_send=acknowledge_at_once)).written == (WrittenRange("t", 0, 0, 8, 9, 90),)


# WHAT SPARK CALLS


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    """The producers that writers have made."""
    made: list[FakeProducer] = []

    def make(config: Mapping[str, object]) -> FakeProducer:
        made.append(FakeProducer(config))
        return made[-1]

    monkeypatch.setattr("spark_kafka_sink.sink.worker_cache.PRODUCERS", WorkerCache(make))
    return made


@pytest.mark.parametrize("kind", [KafkaBatchWriter, KafkaStreamWriter])
def test_a_writer_makes_its_producer_inside_the_task_and_closes_it(
    kind: type[KafkaBatchWriter | KafkaStreamWriter], producers: list[FakeProducer]
) -> None:
    writer = pickle.loads(pickle.dumps(kind(write_plan(MAPPING, sink_options({"acks": "all"}, producer_cache_timeout_ms=0)))))
    assert producers == []
    message = writer.write(iter(Batches(2)))
    assert message.rows == 2
    (producer,) = producers
    assert producer.config == {"bootstrap.servers": ["a:1"], "acks": -1}
    assert producer.closed == [None]


def test_tasks_with_the_same_options_share_a_producer_that_is_kept(producers: list[FakeProducer]) -> None:
    for task_rows in (2, 3):
        writer = KafkaBatchWriter(write_plan(MAPPING, sink_options()))
        assert pickle.loads(pickle.dumps(writer)).write(iter(Batches(task_rows))).rows == task_rows
    (producer,) = producers
    assert (len(producer.calls), producer.closed) == (2, [])


def test_after_a_failure_the_producer_is_closed_at_once_and_the_error_says_where(producers: list[FakeProducer]) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from Batches(1)
        raise KafkaError("no luck", condition="KAFKA_SOMETHING")

    with pytest.raises(KafkaError) as raised:
        KafkaBatchWriter(write_plan(MAPPING, sink_options())).write(broken())
    assert str(raised.value) == "[KAFKA_SOMETHING] no luck (Spark partition 0, attempt 0)"
    assert producers[0].closed == [0]


def test_an_attempt_after_one_that_found_no_broker_does_not_wait_as_long_again(
    producers: list[FakeProducer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's four attempts needed four times max.block.ms to report a wrong address."""

    def nobody_answers(*_: object, **__: object) -> None:
        raise KafkaTimeoutError("no broker answered", condition="KAFKA_BROKER_UNREACHABLE")

    monkeypatch.setattr(FakeProducer, "send_columns", nobody_answers)
    monkeypatch.setattr(FakeProducer, "await_brokers", nobody_answers, raising=False)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    for attempt in (0, 1):
        context = SimpleNamespace(
            stageId=lambda: 7,
            partitionId=lambda: 3,
            attemptNumber=lambda attempt=attempt: attempt,
            getLocalProperty=lambda _: None,
        )
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        with pytest.raises(KafkaTimeoutError) as raised:
            KafkaBatchWriter(write_plan(MAPPING, sink_options())).write(iter(Batches(1)))
        assert raised.value.condition == "KAFKA_BROKER_UNREACHABLE"
        assert ("an earlier task on this executor has already waited" in raised.value.message) == (attempt == 1)
        assert raised.value.message.endswith(f"(Spark partition 3, attempt {attempt})")
    assert [producer.closed for producer in producers] == [[0], [0]]


def test_other_errors_pass_unchanged_and_close_the_producer_too(producers: list[FakeProducer]) -> None:
    def killed() -> Iterator[pa.RecordBatch]:
        yield from Batches(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KafkaStreamWriter(write_plan(MAPPING, sink_options())).write(killed())
    assert producers[0].closed == [0]


def test_a_writer_shows_no_options() -> None:
    writer = KafkaBatchWriter(write_plan(MAPPING, sink_options({"ssl.key.password": Secret("hunter2"), "client.id": "c"})))
    assert "client.id" not in repr(writer)
    assert pickle.loads(pickle.dumps(writer)) == writer


def test_a_task_names_itself() -> None:
    assert str(TASK) == "Spark partition 3 of batch 8, attempt 1"
    assert str(Task(2, 0)) == "Spark partition 2, attempt 0"


# GARBAGE COLLECTION


@pytest.mark.parametrize(
    ("program", "module", "freezes"), [("pyspark.daemon", None, 1), ("my.daemon", "pyspark.daemon", 1), (None, None, 0)]
)
def test_only_sparks_own_workers_freeze_loaded_modules_and_once(
    program: str | None, module: str | None, freezes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    main = ModuleType("__main__")
    main.__spec__ = None if program is None else ModuleSpec(program, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delitem(sys.modules, "pyspark.daemon", raising=False)  # whatever tests before this one have loaded
    if module is not None:
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    writer.freeze_loaded_modules.cache_clear()
    try:
        writer.freeze_loaded_modules()
        writer.freeze_loaded_modules()
    finally:
        writer.freeze_loaded_modules.cache_clear()
    assert len(done) == freezes


FREEZING = """
import gc, sys, types
from types import SimpleNamespace
from spark_kafka_sink.sink.writer import KafkaBatchWriter

sys.modules["pyspark.daemon"] = types.ModuleType("pyspark.daemon")
gc.freeze = lambda: print(*(name in sys.modules for name in sys.argv[2:]))
try:
    KafkaBatchWriter(SimpleNamespace(options=SimpleNamespace(is_exactly_once=sys.argv[1] == "True"))).write(iter(()))
except AttributeError:
    pass  # the plan has no more options
"""


@pytest.mark.parametrize("is_exactly_once", [False, True])
def test_a_task_freezes_what_it_has_imported_itself(is_exactly_once: bool) -> None:
    """Frozen before these imports, every task paid for a walk through the producer: 16 ms of CPU."""
    modules = ["spark_kafka_sink.producer.producer", "spark_kafka_sink.sink.rows.row_sender"]
    command = [sys.executable, "-c", FREEZING, str(is_exactly_once), *modules]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "True True\n"
