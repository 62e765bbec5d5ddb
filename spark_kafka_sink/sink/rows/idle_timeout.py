"""Checks the user's rates against Spark's idle time-out, after which Spark may kill a task's Python worker.

Spark counts a worker as idle while it neither reads rows nor writes to Spark. A sink's task writes to Spark once, at its end,
and sockets hold some MB of rows that Spark has delivered and the task has not read. So a worker looks idle while its task sends
one Arrow batch, and from the moment when Spark has delivered the last row until the task ends. A writer cannot prevent that:
its result is its only way to write to Spark.
Law: a task whose rates need longer than the time-out fails, before its first row if the rows that sockets may hold show it.
Otherwise Spark would kill it after it had written its first rows, and each retry would write them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.sink.rows.chunk import Chunk

MAX_BYTES_AHEAD = 16 * 1024 * 1024  # of rows that sockets may hold; 7 MB were measured, over TCP
RATES_SHARE = 0.8  # of the time-out that the rates may take; the rest is for metadata, the last responses and everything else


def checked_chunks(chunks: Iterator[Chunk], seconds_of: Callable[[Chunk], float], timeout_s: float) -> Iterator[Chunk]:
    """Yield the same chunks. Reads and checks those that Spark may deliver at once before it yields the first.

    `seconds_of`: how long a chunk takes at the user's rates. Raises ConfigError when the rates are too low.
    """
    allowed_s = RATES_SHARE * timeout_s
    chunks_ahead: deque[Chunk] = deque()
    row_count, size_bytes, needed_s = 0, 0, 0.0
    while size_bytes < MAX_BYTES_AHEAD and (chunk := next(chunks, None)) is not None:
        chunks_ahead.append(chunk)
        row_count += len(chunk.numbers)
        size_bytes += chunk.size_bytes
        needed_s += seconds_of(chunk)
        if needed_s > allowed_s:
            raise _too_slow_error(row_count, needed_s, timeout_s)
    while chunks_ahead:
        yield chunks_ahead.popleft()
    for chunk in chunks:
        if seconds_of(chunk) > allowed_s:
            raise _too_slow_error(len(chunk.numbers), seconds_of(chunk), timeout_s)
        yield chunk


def _too_slow_error(row_count: int, needed_s: float, timeout_s: float) -> ConfigError:
    return ConfigError(
        f"maxRecordsPerSecond or maxBytesPerSecond is too low for Spark's idle time-out: the task needs {needed_s:.0f} s for"
        f" {row_count} rows that Spark may deliver at once. After {timeout_s:g} s Spark would kill the task's Python worker as"
        " idle (spark.python.worker.idleTimeoutSeconds, with killOnIdleTimeout=true), and each retry would write the first rows"
        " again. Raise the time-out or the rate, set spark.python.worker.killOnIdleTimeout=false, or give each task fewer rows"
    )
