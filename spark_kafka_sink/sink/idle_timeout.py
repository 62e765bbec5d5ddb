"""Checks the user's rates against Spark's idle timeout, after which Spark may kill a task's Python worker.

Spark counts a worker as idle while it neither reads rows nor writes to Spark. A sink's task writes to Spark once, at its end,
and sockets hold some MB of rows that Spark has delivered and the task has not read. So a worker looks idle while its task sends
one Arrow batch, and from the moment when Spark has delivered the last row until the task ends. A writer cannot prevent that:
its result is its only way to write to Spark.
Law: a task whose rates need longer than the timeout allows fails before it has sent a row. Otherwise Spark would kill it after
it had written its first rows, and each retry would write them again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_kafka_sink.errors import ConfigError

DELIVERED_AHEAD = 16 * 1024 * 1024  # bytes that sockets may hold; 7 MB were measured, over TCP
SHARE = 0.8  # of the timeout for the rates; the rest is for metadata, the last responses and everything else
_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}  # of Spark's durations
# The session's option overrides the application's. Tasks see both as local properties.
_SESSION, _APPLICATION = "spark.sql.execution.pyspark.udf.", "spark.python.worker."


def idle_timeout_s(local_property: Callable[[str], str | None]) -> float | None:
    """The idle seconds after which Spark kills this task's worker; None: it does not."""
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
    """The same batches. Those that Spark may deliver at once are read and checked before the first is yielded.

    Args:
        seconds_of: how long a batch takes at the user's rates.

    Raises ConfigError when the rates are too low.
    """
    allowed_s = SHARE * timeout_s
    ahead: deque[pa.RecordBatch] = deque()
    rows, size, seconds = 0, 0, 0.0
    while size < DELIVERED_AHEAD and (batch := next(batches, None)) is not None:
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
        f"maxRecordsPerSecond or maxBytesPerSecond is too low for Spark's idle timeout: the task needs {seconds:.0f} s for {rows}"
        f" rows that Spark may deliver at once. After {timeout_s:g} s Spark would kill the task's Python worker as idle"
        " (spark.python.worker.idleTimeoutSeconds, with killOnIdleTimeout=true), and each retry would write the first rows"
        " again. Raise the timeout or the rate, set spark.python.worker.killOnIdleTimeout=false, or give each task fewer rows"
    )
