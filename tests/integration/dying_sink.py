"""A sink for exactly-once writes whose driver, executors and workers are killed at steps of the protocol.

Importable, as Spark makes writers anew in processes of its own. The environment variable DYING names a JSON file:

    {"marks": "…/marks", "deaths": [["driver", "6e", "after"], ["worker", "5 wait", "before"], …]}
        each death happens once, in this order, whichever process comes to the next one; for each that has happened there is a
        file in the directory `marks`
    {"marks": "…/marks", "seed": 7, "life": 3, "chance": {"driver": 0.005, …}}
        at each step that it comes to, a process dies with this chance. The dice are made of seed, life and of what the process
        does, not of the time, so that a seed repeats itself as far as Spark does

With SIGKILL. Victims: `driver` and `executor` are the JVM, with the Python worker that got there; `worker` is the latter alone.
A task comes to steps of tasks only, and the driver to its own, though both call the same methods.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_kafka_sink import KafkaDataSource
from spark_kafka_sink.sink.task import Task
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter
from tests.exactly_once.stoppable_processes import ABORT_STEPS, AFTER, BEFORE, COMMIT_STEPS, TASK_STEPS, arm

ENVIRONMENT = "DYING"


def _kill(victim: str) -> None:
    os.kill(_pid_of(victim), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _pid_of(victim: str) -> int:
    pid = os.getpid()
    if victim != "worker":
        while _program(pid) != "java":
            pid = _parent(pid)
    return pid


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# IN ORDER


def _arm_in_order(marks: Path, deaths: list[tuple[str, str, str]]) -> None:
    for number, (victim, step, when) in enumerate(deaths):
        arm(step, when, partial(_is_turn, marks, number, victim, step), partial(_kill, victim))


def _is_turn(marks: Path, number: int, victim: str, step: str) -> bool:
    """Says so to one process only. A mark contains the pid of who dies: its other workers live on for a moment, and must not
    come to the next death meanwhile.
    """
    pid = str(_pid_of(victim))
    died = sorted(marks.iterdir())
    if not _doing.comes_to(step) or len(died) != number or (died and died[-1].read_text() == pid):
        return False
    draft = marks.with_name(f"{number:03} of {os.getpid()}")
    draft.write_text(pid)
    try:
        os.link(draft, marks / f"{number:03}")
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


# BY DICE


@dataclass
class _Doing:
    """What this process does at the moment."""

    what: str = ""
    is_task: bool = False

    def comes_to(self, step: str) -> bool:
        return (step in TASK_STEPS) == self.is_task


_doing = _Doing()


def _arm_by_dice(marks: Path, seed: int, life: int, chance: dict[str, float]) -> None:
    for steps, victims in ((TASK_STEPS, ("worker", "executor")), (COMMIT_STEPS, ("driver",)), (ABORT_STEPS, ("driver",))):
        for step in steps:
            for when in (BEFORE, AFTER):
                for victim in victims:
                    name = f"{seed}-{life}-{step}-{when}-{victim}"
                    is_due = partial(_falls, marks, step, name, chance.get(victim, 0))
                    arm(step, when, is_due, partial(_kill, victim))


def _falls(marks: Path, step: str, name: str, chance: float) -> bool:
    if not _doing.comes_to(step):
        return False
    dice = hashlib.sha256(f"{name}-{_doing.what}".encode()).digest()
    if int.from_bytes(dice[:8], "big") >= chance * 2**64:
        return False
    mark = marks / f"{name}, {_doing.what}"
    if mark.exists():  # another attempt of Spark's with the same numbers
        return False
    mark.touch()
    return True


@cache
def _arm_this_process() -> None:
    settings: dict[str, Any] = json.loads(Path(os.environ[ENVIRONMENT]).read_text())
    marks = Path(settings.pop("marks"))
    if "deaths" in settings:
        _arm_in_order(marks, [tuple(each) for each in settings["deaths"]])
    else:
        _arm_by_dice(marks, **settings)


def _arm_for(what: str, *, is_task: bool = False) -> None:
    _doing.what = what
    _doing.is_task = is_task
    if ENVIRONMENT in os.environ:
        _arm_this_process()


# THE SINK


class _Batch(KafkaBatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _arm_for(str(Task.current()), is_task=True)
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _arm_for(f"commit of batch {_batch_id(messages)}")
        super().commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _arm_for(f"abort of batch {_batch_id(messages)}")
        super().abort(messages)


def _batch_id(messages: list[WriterCommitMessage | None]) -> object:
    return next((each.batch_id for each in messages if each is not None), None)


class _Stream(KafkaStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _arm_for(str(Task.current()), is_task=True)
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _arm_for(f"commit of batch {batchId}")
        super().commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _arm_for(f"abort of batch {batchId}")
        super().abort(messages, batchId)


class Dying(KafkaDataSource):
    @classmethod
    def name(cls) -> str:
        return "pykafka-sink-dying"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        return _Batch(super().writer(schema, overwrite).plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        made = super().streamWriter(schema, overwrite)
        return _Stream(**{each.name: getattr(made, each.name) for each in fields(made)})
