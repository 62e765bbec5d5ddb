"""What makes `format("pykafka-sink")` known to Spark without `spark.dataSource.register`.

The build places this file at the top level as `pyspark_kafka_sink.py`: Spark imports every top-level module whose name begins
with `pyspark_` and registers its `DefaultSource`.
Law: nothing here can fail, not even when the package beside it is broken. One such module that does not import makes Spark
skip the data sources of all of them, with no more than a line in the log; so the sink itself is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Stands for KafkaDataSource until a write begins."""

    @classmethod
    def name(cls) -> str:
        return "pykafka-sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_kafka_sink.sink.datasource import KafkaDataSource

        return KafkaDataSource(self.options).writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_kafka_sink.sink.datasource import KafkaDataSource

        return KafkaDataSource(self.options).streamWriter(schema, overwrite)
