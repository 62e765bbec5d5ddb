"""Identifies the running task attempt: by Spark's ids, in commit messages and error texts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.taskcontext import TaskContext

_SECONDS_OF_UNIT = {"us": 1e-6, "ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}  # of Spark's durations
# The session's option overrides the application's. Tasks see both as local properties.
_SESSION_PREFIX, _APPLICATION_PREFIX = "spark.sql.execution.pyspark.udf.", "spark.python.worker."


@dataclass(frozen=True, slots=True)
class Task:
    """The task that runs here: one attempt at a Spark partition. `query_id`, `batch_id`: of a stream, foreachBatch included."""

    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None
    idle_timeout_s: float | None = None  # Spark kills a worker that is idle for this long; None: it does not
    started_monotonic_s: float = field(default_factory=time.monotonic, compare=False)  # for durations
    started_wall_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000, compare=False)  # since 1970

    @classmethod
    def current(cls) -> Task:
        """The task of this process; outside of a task, one with the default values."""
        context = TaskContext.get()
        if context is None:
            return cls()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            context.getLocalProperty("sql.streaming.queryId"),
            None if batch_id is None else int(batch_id),
            idle_timeout_s(context.getLocalProperty),
        )

    def __str__(self) -> str:
        stream = "" if self.batch_id is None else f" of batch {self.batch_id}"
        return f"Spark partition {self.partition}{stream}, attempt {self.attempt}"


def idle_timeout_s(local_property: Callable[[str], str | None]) -> float | None:
    """The idle seconds after which Spark kills this task's worker; None: it does not."""
    kill_setting, timeout = (
        local_property(_SESSION_PREFIX + name) or local_property(_APPLICATION_PREFIX + name) or ""
        for name in ("killOnIdleTimeout", "idleTimeoutSeconds")
    )
    duration = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", timeout.lower())
    if kill_setting.strip().lower() != "true" or duration is None:
        return None
    return int(duration[1]) * _SECONDS_OF_UNIT.get(duration[2], 1) or None
