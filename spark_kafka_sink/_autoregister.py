"""Registers `format("pykafka-sink")` with Spark, so that users need not call `spark.dataSource.register`.

The build installs this file as the top-level module `pyspark_kafka_sink.py`. Spark imports every top-level module whose name
begins with `pyspark_` and registers its `DefaultSource`.
Law: where PySpark has data sources, importing this module never fails, not even if the package itself is broken. If one such
module fails, Spark skips the data sources of all of them and only logs a line. So the sink is imported only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from spark_kafka_sink.sink.datasource import KafkaDataSource


class DefaultSource(DataSource):
    """Forwards to KafkaDataSource, which is imported when Spark first calls a method here."""

    @classmethod
    def name(cls) -> str:
        return "pykafka-sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._source().streamWriter(schema, overwrite)

    def schema(self) -> NoReturn:
        self._source().schema()

    def reader(self, schema: StructType) -> NoReturn:
        self._source().reader(schema)

    def streamReader(self, schema: StructType) -> NoReturn:
        self._source().streamReader(schema)

    def _source(self) -> KafkaDataSource:
        from spark_kafka_sink.sink.datasource import KafkaDataSource

        return KafkaDataSource(self.options)
