"""The sink as the format `timed-sink`, whose streams write down how long each part of a task and of a commit takes.

    spark.dataSource.register(TimedSink)
    stream.writeStream.format("timed-sink").option("timesFolder", folder)…
    for (of, part), times in parts_in(Path(folder), first_batch=3).items(): …

The times are put around methods of the product, in the Python processes of such streams. The product knows nothing of them.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_kafka_sink import KafkaDataSource
from spark_kafka_sink.sink.task import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_kafka_sink.sink.writer import KafkaStreamWriter

TASK, COMMIT = "task", "commit"


class Part(NamedTuple):
    """What is timed: a function of a module, or a method of a class in it. `of`: TASK or COMMIT, within which it is called."""

    of: str
    name: str
    module: str
    owner: str
    function: str


_CLIENT = "spark_kafka_sink.admin.transaction_client", "TransactionClient"
_COMMIT = "spark_kafka_sink.exactly_once.version_commit", "VersionCommit"
_LEDGER = "spark_kafka_sink.exactly_once.ledger", "Ledger"
_PRODUCER = "spark_kafka_sink.producer.producer", "KafkaProducer"
_SENDER = "spark_kafka_sink.sink.rows.row_sender", "RowSender"
PARTS = (
    Part(TASK, "producer", *_PRODUCER, "__init__"),
    Part(TASK, "1 own id", *_PRODUCER, "init_transactions"),
    Part(TASK, "0, 2 look", *_LEDGER, "look"),
    Part(TASK, "fingerprint", "spark_kafka_sink.sink.exactly_once_task", "", "content_to_compare"),
    Part(TASK, "5 begin", *_PRODUCER, "begin_transaction"),
    Part(TASK, "5 rows", *_SENDER, "send"),
    Part(TASK, "5 marker", *_PRODUCER, "send_offsets_to_transaction"),
    Part(TASK, "5 flush", *_SENDER, "finish"),
    Part(TASK, "5 prepare", *_PRODUCER, "prepare_transaction"),
    Part(TASK, "close", *_PRODUCER, "close"),
    Part(COMMIT, "6a decision, 6b list", *_COMMIT, "_read_decision"),
    Part(COMMIT, "6b list again", *_CLIENT, "list_transactions"),
    Part(COMMIT, "6b, 6g fence", *_CLIENT, "fence"),
    Part(COMMIT, "6c markers, 6d open?", *_COMMIT, "_check"),
    Part(COMMIT, "6e decide", *_LEDGER, "write_decision"),
    Part(COMMIT, "6f commit", *_CLIENT, "end_transactions"),
    Part(COMMIT, "6g record, list", *_COMMIT, "_ask_to_record"),
)


class Times(NamedTuple):
    """Milliseconds of one task or commit: on the clock, and of its process's CPU."""

    wall_ms: float
    cpu_ms: float


class TimedSink(KafkaDataSource):
    @classmethod
    def name(cls) -> str:
        return "timed-sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:
        sink_options = {name: value for name, value in self.options.items() if name.lower() != "timesfolder"}
        return TimedWriter(KafkaDataSource(sink_options).streamWriter(schema, overwrite), self.options["timesFolder"])


@dataclass(frozen=True)
class TimedWriter(DataSourceStreamArrowWriter):
    writer: KafkaStreamWriter
    folder: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = Task.current().batch_id
        assert batch is not None
        return self._timed(TASK, batch, lambda: self.writer.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._timed(COMMIT, batchId, lambda: self.writer.commit(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.writer.abort(messages, batchId)

    def _timed(self, what: str, batch: int, call: Callable[[], Any]) -> Any:
        _watch_parts()
        _times.clear()
        result = _watched(what, call)
        line = json.dumps([what, batch, _times])
        with Path(self.folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        return result


_times: dict[str, Times] = {}  # of the task or commit that this process is at


@functools.cache
def _watch_parts() -> None:
    for part in PARTS:
        module = importlib.import_module(part.module)
        _watch(getattr(module, part.owner) if part.owner else module, part.function)


def _watch(owner: Any, function: str) -> None:
    original: Callable[..., Any] = getattr(owner, function)
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        return _watched(function, lambda: original(*arguments, **keywords))

    setattr(owner, function, watched)


def _watched(name: str, call: Callable[[], Any]) -> Any:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        return call()
    finally:
        before = _times.get(name, Times(0, 0))
        wall_ms, cpu_ms = (time.perf_counter() - wall_s) * 1000, (time.process_time() - cpu_s) * 1000
        _times[name] = Times(before[0] + wall_ms, before[1] + cpu_ms)


def parts_in(folder: Path, first_batch: int) -> dict[tuple[str, str], list[Times]]:
    """The times of each part, and of TASK and COMMIT as a whole, in the micro-batches from this one on.

    TASK and COMMIT come first, then their parts in the order in which they are called.
    """
    times_by_part: dict[tuple[str, str], list[Times]] = {(what, what): [] for what in (TASK, COMMIT)}
    times_by_part |= {(part.of, part.name): [] for part in PARTS}
    names = {(part.of, part.function): part.name for part in PARTS} | {(what, what): what for what in (TASK, COMMIT)}
    for file in folder.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            what, batch, times_by_function = json.loads(line)
            for function, times in times_by_function.items():
                if batch >= first_batch and (what, function) in names:
                    times_by_part[what, names[what, function]].append(Times(*times))
    return {part: times for part, times in times_by_part.items() if times}
