"""What a low rate has to do with Spark's idle time-out, after which Spark kills a task's Python worker if it is told to.

Spark's clock runs while the worker neither reads rows nor writes anything. A task writes once, at its very end, and rows come
some MB ahead of being read (sockets hold them). So Spark hears nothing while a task sends one Arrow batch, nor from the moment
when the last row is on its way until the task ends. No writer can change that: it has no way to Spark but its result.
Law: a task whose rates need longer than the time-out allows is refused before it has sent a row. Killed, it would have written
its first rows, and each retry would write them again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_kafka_sink.errors import ConfigError

HANDED_OVER_AHEAD = 16 * 1024 * 1024  # bytes: 7 MB were measured, over TCP
SHARE = 0.8  # of the time-out for the rates; the rest is for metadata, the last answers and what else takes time
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}  # of Spark's durations
# The option for a session goes before that of the application. Tasks see both as local properties.
_SESSION, _APPLICATION = "spark.sql.execution.pyspark.udf.", "spark.python.worker."


def idle_timeout_s(local_property: Callable[[str], str | None]) -> float | None:
    """After how many idle seconds Spark kills this task's worker; None: it does not."""
    kills, timeout = (
        local_property(_SESSION + name) or local_property(_APPLICATION + name) or ""
        for name in ("killOnIdleTimeout", "idleTimeoutSeconds")
    )
    given = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", timeout.lower())
    if kills.strip().lower() != "true" or given is None:
        return None
    return int(given[1]) * _UNITS.get(given[2], 1) or None


def check_rates(
    batches: Iterator[pa.RecordBatch], seconds_of: Callable[[pa.RecordBatch], float], timeout_s: float
) -> Iterator[pa.RecordBatch]:
    """The same batches; what Spark hands over at once is read before the first is given out.

    Args:
        seconds_of: how long the rates make a batch take.

    Raises ConfigError.
    """
    allowed_s = SHARE * timeout_s
    ahead: deque[pa.RecordBatch] = deque()
    rows, size, seconds = 0, 0, 0.0
    while size < HANDED_OVER_AHEAD and (batch := next(batches, None)) is not None:
        ahead.append(batch)
        rows, size, seconds = rows + batch.num_rows, size + batch.nbytes, seconds + seconds_of(batch)
        if seconds > allowed_s:
            raise _too_slow(rows, seconds, timeout_s)
    while ahead:
        yield ahead.popleft()
    for batch in batches:
        if seconds_of(batch) > allowed_s:
            raise _too_slow(batch.num_rows, seconds_of(batch), timeout_s)
        yield batch


def _too_slow(rows: int, seconds: float, timeout_s: float) -> ConfigError:
    return ConfigError(
        f"maxRecordsPerSecond or maxBytesPerSecond is too low for Spark's idle time-out: {rows} rows that Spark hands over at"
        f" once take {seconds:.0f} s, in which Spark hears nothing from this task. It would kill the task's Python worker after"
        f" {timeout_s:g} s (spark.python.worker.idleTimeoutSeconds, with killOnIdleTimeout=true), and each retry would write its"
        " first rows again. Raise the time-out or the rate, set spark.python.worker.killOnIdleTimeout=false, or give each task"
        " fewer rows"
    )
