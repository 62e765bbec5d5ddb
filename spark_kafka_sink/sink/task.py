"""Identifies the running task attempt: by Spark's ids, in commit messages and error texts."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.taskcontext import TaskContext

from spark_kafka_sink.sink.idle_timeout import idle_timeout_s


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt to write a Spark partition. `query_id` and `batch_id` are those of a stream, foreachBatch included."""

    partition: int = 0
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None
    idle_timeout_s: float | None = None  # Spark kills a worker that is idle for this long; None: it does not

    @classmethod
    def current(cls) -> Task:
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
