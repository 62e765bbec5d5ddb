"""pykafka-sink: writes Spark DataFrames and streams, or plain Arrow columns, to Apache Kafka.

    from spark_kafka_sink import KafkaDataSource     # with Spark: spark.dataSource.register(KafkaDataSource)
    from spark_kafka_sink import KafkaProducer       # without

Names are loaded when first asked for, so that the producer works where pyspark is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_kafka_sink.errors import KafkaError as KafkaError
    from spark_kafka_sink.producer.producer import KafkaProducer as KafkaProducer
    from spark_kafka_sink.sink.datasource import KafkaDataSource as KafkaDataSource

__version__ = "0.1.0"  # pyproject.toml reads it from here

__all__ = ["KafkaDataSource", "KafkaError", "KafkaProducer", "__version__"]

_HOMES = {
    "KafkaDataSource": "spark_kafka_sink.sink.datasource",
    "KafkaError": "spark_kafka_sink.errors",
    "KafkaProducer": "spark_kafka_sink.producer.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
