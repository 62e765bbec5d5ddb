"""The jars of Spark's own Kafka connector, and of its Avro functions, for comparisons in tests and benchmarks."""

from __future__ import annotations

from pathlib import Path

from jobs.kafka_jars import Dependency, fetch

NAME = "spark-kafka"
DEPENDENCIES = (  # PySpark has the others
    Dependency("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", is_transitive=False),
    Dependency("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", is_transitive=False),
    Dependency("org.apache.kafka", "kafka-clients", "3.9.2", is_transitive=False),
    Dependency("org.apache.commons", "commons-pool2", "2.13.1", is_transitive=False),
)


def fetch_spark_kafka() -> Path:
    """Their directory, fetched if absent."""
    return fetch(NAME, DEPENDENCIES)


def fetch_spark_avro() -> Path:
    """The directory of the jar with to_avro and from_avro, fetched if absent. PySpark has Avro itself."""
    return fetch("spark-avro", (Dependency("org.apache.spark", "spark-avro_2.13", "4.1.1", is_transitive=False),))
