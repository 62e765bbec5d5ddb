"""The format `pykafka-sink`: every option and every column is checked here, on the driver, before a task starts.

Spark calls `writer` once per batch write, and `streamWriter` twice per micro-batch in two processes (to plan it and to commit
it): both only check and hand out plain data, and open nothing.
Law: what is wrong is told all at once, in one error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.sink.commit_protocol import find_function
from spark_kafka_sink.sink.row_mapping import RowMapping
from spark_kafka_sink.sink.row_rules import RowRules
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter, spare_collections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

FORMAT = "pykafka-sink"
ONLY_WRITES = f'{FORMAT} writes and does not read: read from Kafka with format("kafka"); for CREATE TABLE, name the columns'
NO_OPTIONS = (
    "No option came with this write. Of a table, Spark hands over what the INSERT says, not what CREATE TABLE … OPTIONS said:"
    " INSERT INTO … WITH ('kafka.bootstrap.servers' = '…', 'topic' = '…') SELECT …, or df.writeTo(…).options(…).append()"
)


class KafkaDataSource(DataSource):
    """Writes the rows of a DataFrame or a stream to Kafka topics.

    `spark.dataSource.register(KafkaDataSource)`, then `df.write.format("pykafka-sink").mode("append").options(…).save()`, or
    `df.writeStream.format("pykafka-sink")`. Columns: `row_mapping.py`; options: `python -m spark_kafka_sink.option_tables`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """Spark's entry for a batch write. Raises ConfigError or SchemaError, naming all problems."""
        problems = []
        if overwrite:
            problems.append(
                "Save mode Overwrite not allowed for Kafka: rows are added to a topic and never replace it."
                ' Use .mode("append"), the only save mode of this sink. (Where no mode is given, or "ignore", Spark\'s message'
                " recommends overwrite too; that message is the same for all data sources.)"
            )
        spare_collections()
        checked, environment_problems = self._check(schema, problems)
        if environment_problems:
            raise ConfigError(join_problems(environment_problems))
        return KafkaBatchWriter(*checked)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Spark's entry for a stream; `overwrite` is output mode complete, which adds all rows anew with every batch.

        Spark calls it to plan a batch, and again to commit it. What is wrong with the driver's environment is an error only of
        the plan: KafkaStreamWriter raises it when Spark pickles it there.
        """
        del overwrite
        spare_collections()
        checked, environment_problems = self._check(schema, [])
        return KafkaStreamWriter(*checked, environment_problems=tuple(environment_problems))

    def schema(self) -> NoReturn:
        """Spark's entry for reading, and for a table without columns."""
        raise ConfigError(ONLY_WRITES)

    def reader(self, schema: StructType) -> NoReturn:
        """The same, where the user or a table says the columns."""
        del schema
        raise ConfigError(ONLY_WRITES)

    def streamReader(self, schema: StructType) -> NoReturn:
        """The same for `readStream`."""
        del schema
        raise ConfigError(ONLY_WRITES)

    def _check(
        self, schema: StructType, problems: list[str]
    ) -> tuple[tuple[RowMapping, dict[str, object], str | None, int, RowRules, str | None], list[str]]:
        """What writers are made of, and what is wrong with the driver's environment. Raises what else is wrong, with that."""
        if not self.options:
            problems.append(NO_OPTIONS)
        options = SinkOptions.check(self.options, problems)
        environment_problems = _environment_problems(options)
        schema_problems: list[str] = []
        topic_is_refused = options.topic is None and "topic" in self.options
        mapping = RowMapping.check(schema, options, schema_problems, topic_is_refused=topic_is_refused)
        if problems:
            raise ConfigError(join_problems([*problems, *environment_problems, *schema_problems]))
        if schema_problems and not environment_problems:
            raise SchemaError(join_problems(schema_problems))
        if schema_problems:
            raise ConfigError(join_problems([*environment_problems, *schema_problems]))
        cache_ms = options.producer_cache_timeout_ms
        checked = mapping, options.producer.to_mapping(), options.report_path, cache_ms, RowRules.of(options), options.on_commit
        return checked, environment_problems


def _environment_problems(options: SinkOptions) -> list[str]:
    """What may change between the plan of a write and its commit."""
    problems = _report_path_problems(options)
    if options.on_commit is not None:
        try:
            find_function(options.on_commit)
        except ConfigError as error:
            problems.append(error.message)
    return problems


def _report_path_problems(options: SinkOptions) -> list[str]:
    if options.report_path is None or os.path.isdir(os.path.dirname(os.path.abspath(options.report_path))):
        return []
    return [f"reportPath={options.report_path} lies in a directory that does not exist on the driver"]


def check_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write, as far as they can be checked without its columns and without Spark. Raises ConfigError."""
    problems: list[str] = []
    checked = SinkOptions.check(options, problems)
    problems += _report_path_problems(checked)
    if problems:
        raise ConfigError(join_problems(problems))
    return checked
