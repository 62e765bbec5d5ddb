"""The Spark side, and the only package that imports pyspark: options and columns checked on the driver, tasks that write.

Importing it says in one sentence when pyspark is missing or too old.
"""

from __future__ import annotations

MINIMUM_PYSPARK = (4, 1)  # the first with DataSourceStreamArrowWriter


def require_pyspark() -> None:
    """Raises ImportError unless pyspark is here and new enough."""
    try:
        import pyspark
    except ImportError as error:
        raise ImportError(
            "[KAFKA_PYSPARK_MISSING] the sink runs inside Spark, and pyspark is not installed: run it with spark-submit, or"
            " pip install 'pykafka-sink[spark]'. KafkaProducer works without"
        ) from error
    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if (major, minor) < MINIMUM_PYSPARK:
        raise ImportError(
            f"[KAFKA_PYSPARK_TOO_OLD] pyspark {pyspark.__version__} has no Arrow writers for streams:"
            f" the sink needs {'.'.join(map(str, MINIMUM_PYSPARK))} or newer. KafkaProducer works with any"
        )


require_pyspark()
