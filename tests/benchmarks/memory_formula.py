"""The formula of docs/tuning.md, Memory: what a Python worker takes at most, in MiB. Needs neither Spark nor a broker."""

from __future__ import annotations

import re
from collections.abc import Mapping

PYTHON_AND_SCRATCH = 200  # Python with pyarrow and pyspark, the encoder's scratch, and what allocators keep
BUFFER_MEMORY = 32  # kafka.buffer.memory
LARGER_PRODUCER = 100  # of rows that are too large for the task's own producer
MAX_ARROW_BATCH = 64  # spark.sql.execution.arrow.maxBytesPerBatch
MAX_ARROW_ROWS = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch
ROW_OVERHEAD = 16  # bytes of a row for the offsets and validity of two columns

_BYTES, _ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNITS = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def arrow_batch_mb(row_bytes: int, rows: int = MAX_ARROW_ROWS, limit_mb: float = MAX_ARROW_BATCH) -> float:
    """An Arrow batch of `rows` rows, or as many as the limit lets through; rows <= 0 set no limit of their own."""
    return min(rows * row_bytes / 2**20, limit_mb) if rows > 0 else limit_mb


def formula_mb(batch_mb: float, rejects: bool = False) -> float:
    """`rejects`: the task may refuse rows, which takes a copy of the batch, and a second producer for large dead letters."""
    return PYTHON_AND_SCRATCH + BUFFER_MEMORY + (3 if rejects else 2) * batch_mb + (LARGER_PRODUCER if rejects else 0)


def formula_of_settings_mb(spark_settings: Mapping[str, str], row_bytes: int) -> float:
    """What the formula allows under these settings of Spark; its defaults for those that are missing."""
    limit = spark_settings.get(_BYTES)
    limit_mb = MAX_ARROW_BATCH if limit is None else _bytes(limit) / 2**20
    rows = int(spark_settings.get(_ROWS, MAX_ARROW_ROWS))
    return formula_mb(arrow_batch_mb(row_bytes + ROW_OVERHEAD, rows, limit_mb))


def _bytes(size: str) -> int:
    """As Spark reads sizes: 1m is 2**20 bytes."""
    match = re.fullmatch(r"(\d+)([a-z]*)", size.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{_BYTES}={size} is not a size: write a number of bytes, or one with k, m or g")
    return int(match[1]) * _UNITS[match[2]]
