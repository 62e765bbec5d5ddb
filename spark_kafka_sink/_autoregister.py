"""What makes `format("pykafka-sink")` known to Spark without `spark.dataSource.register`.

The build places this file at the top level as `pyspark_kafka_sink.py`: Spark imports every top-level module whose name begins
with `pyspark_` and registers its `DefaultSource`.
Law: nothing here can fail, not even when the package beside it is broken. One such module that does not import makes Spark
skip the data sources of all of them, with no more than a line in the log; so the sink itself is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from spark_kafka_sink.sink.datasource import KafkaDataSource


class DefaultSource(DataSource):
    """Stands for KafkaDataSource until Spark asks for something: a writer, or what explains that there is no reader."""

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
