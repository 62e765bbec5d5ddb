"""The format `pykafka-sink`: checks every option and every column on the driver, before a task starts.

Spark calls `writer` once per batch write. It calls `streamWriter` twice per micro-batch, in two processes: to plan the batch and
to commit it. Both calls check, and return plain data. Planning asks brokers for the topic once (topic_check.py), and a
schema registry if there is one. Nothing stays open.
Law: one error reports all problems at once. A missing topic or a failed registration is reported if there are no other problems.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError, SchemaError
from spark_kafka_sink.exactly_once.writes import DriverTime
from spark_kafka_sink.sink import topic_check
from spark_kafka_sink.sink.rows.spark_columns import find_columns
from spark_kafka_sink.sink.write_plan import WritePlan
from spark_kafka_sink.sink.writer import KafkaBatchWriter, KafkaStreamWriter, freeze_loaded_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from spark_kafka_sink.records.row_mapping import RowMapping
    from spark_kafka_sink.schemas.wanted_schema import PlannedPart

FORMAT = "pykafka-sink"
# The main module of the process that commits a stream's batches. The process that plans them has logged all warnings.
COMMITTING_PROCESS = "pyspark.sql.worker.python_streaming_sink_runner"
ONLY_WRITES = f'{FORMAT} writes and does not read: read from Kafka with format("kafka"); in CREATE TABLE, name the columns'
NO_OPTIONS = (
    "No option came with this write. For a table, Spark passes on the options of the INSERT, not those of CREATE TABLE … OPTIONS:"
    " INSERT INTO … WITH ('kafka.bootstrap.servers' = '…', 'topic' = '…') SELECT …, or df.writeTo(…).options(…).append()"
)


class KafkaDataSource(DataSource):
    """Writes the rows of a DataFrame or a stream to Kafka topics.

    `spark.dataSource.register(KafkaDataSource)`, then `df.write.format("pykafka-sink").mode("append").options(…).save()`, or
    `df.writeStream.format("pykafka-sink")`. Columns: docs/columns.md; options: `python -m spark_kafka_sink.option_tables`.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """Spark calls this for a batch write. Raises ConfigError or SchemaError, naming all problems."""
        problems = []
        if overwrite:
            problems.append(
                "Save mode Overwrite not allowed for Kafka: a write adds rows to a topic and never replaces it."
                ' Use .mode("append"), the only save mode of this sink. (Without a mode, or with "ignore", Spark\'s message'
                " recommends overwrite too; that message is the same for all data sources.)"
            )
        freeze_loaded_modules()
        plan, environment_problems = self._plan(schema, problems, is_stream=False)
        if environment_problems:
            raise ConfigError(join_problems(environment_problems))
        return KafkaBatchWriter(_require_topic_and_register(plan))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Spark calls this for a stream. `overwrite` means output mode complete, where every batch writes all rows again.

        Spark calls it to plan a batch and again to commit it. Problems of the driver's environment must fail only the planning:
        KafkaStreamWriter raises them when Spark pickles it.
        """
        del overwrite
        freeze_loaded_modules()
        is_committing = COMMITTING_PROCESS in sys.modules
        with stderr_log.without_warnings() if is_committing else contextlib.nullcontext():
            problems = list(_only_for_batches(self.options))
            plan, environment_problems = self._plan(schema, problems, is_stream=True, asks_registry=not is_committing)
        if not is_committing and not environment_problems:
            plan = _require_topic_and_register(plan)
        return KafkaStreamWriter(plan, tuple(environment_problems))

    def reader(self, schema: StructType | None = None) -> NoReturn:
        """Raises ConfigError. Spark calls this for a read with given columns, `schema` without, `streamReader` for a stream."""
        del schema
        raise ConfigError(ONLY_WRITES)

    schema = streamReader = reader

    def _plan(
        self, schema: StructType, problems: list[str], *, is_stream: bool, asks_registry: bool = True
    ) -> tuple[WritePlan, list[str]]:
        """The plan of the write, and the problems of the driver's environment. Raises if there are any other problems.

        `problems`: those found already. `asks_registry`: whether to ask a schema registry, if a key or value has a format.
        """
        if not self.options:
            problems.append(NO_OPTIONS)
        options = SinkOptions.read(self.options, problems)
        environment_problems = _environment_problems(options)
        is_topic_refused = options.topic is None and "topic" in self.options
        mapping, schema_problems = find_columns(schema, options, is_topic_refused=is_topic_refused)
        if problems:
            raise ConfigError(join_problems([*problems, *environment_problems, *schema_problems]))
        parts = _encoded_parts(schema, mapping, options, schema_problems, environment_problems) if asks_registry else ()
        if schema_problems and not environment_problems:
            raise SchemaError(join_problems(schema_problems))
        if schema_problems:
            raise ConfigError(join_problems([*environment_problems, *schema_problems]))
        return WritePlan(mapping, options, is_stream, DriverTime.now(), parts), environment_problems


# The two functions below import what formats of keys and values need only if the write has a format.


def _encoded_parts(
    schema: StructType, mapping: RowMapping, options: SinkOptions, problems: list[str], environment_problems: list[str]
) -> tuple[PlannedPart, ...]:
    """The parts that have a format. Adds to `problems`; raises the registry's error instead if there is no other problem."""
    if not options.has_format:
        return ()
    from spark_kafka_sink.sink.schema_planning import plan_parts

    parts, failure = plan_parts(schema, mapping, options, problems)
    if failure is not None and not problems and not environment_problems:
        raise failure
    if failure is not None:
        problems.append(failure.message)
    return parts


def _require_topic_and_register(plan: WritePlan) -> WritePlan:
    """Require the topic, then register schemas, when there are no other problems."""
    if stderr_log.is_in_spark_worker():  # not in a program that calls `writer` itself
        topic_check.require_topic(plan)
    if not plan.encoded_parts:
        return plan
    from spark_kafka_sink.sink.schema_planning import register_schemas

    return register_schemas(plan)


def _only_for_batches(options: Mapping[str, object]) -> Iterator[str]:
    option_names = {name.lower() for name in options}
    batch_only_names = [name for name in ("txnAppId", "txnVersion", "allowUnnamedWrite") if name.lower() in option_names]
    if batch_only_names:
        yield f"{' and '.join(batch_only_names)}: only for df.write; a stream is known by its query's id and its batches' numbers"


def _environment_problems(options: SinkOptions) -> list[str]:
    """Problems that may come and go between the planning of a write and its commit."""
    problems = [*_report_path_problems(options), *_store_problems(options)]
    if options.on_commit is not None:
        try:
            load_callable("onCommit", options.on_commit)
        except ConfigError as error:
            problems.append(error.message)
    return problems


def _report_path_problems(options: SinkOptions) -> list[str]:
    if options.report_path is None:
        return []
    if "\0" in options.report_path:
        return [f"reportPath={options.report_path!r} contains NUL, which no path can: name a file"]
    if os.path.exists(options.report_path) and not os.path.isfile(options.report_path):
        kind = "a directory" if os.path.isdir(options.report_path) else "no regular file"
        return [f"reportPath={options.report_path} is {kind} on the driver: name a file"]
    if os.path.isdir(os.path.dirname(os.path.abspath(options.report_path))):
        return []
    return [f"reportPath={options.report_path} lies in a directory that does not exist on the driver"]


def _store_problems(options: SinkOptions) -> Iterator[str]:
    """Problems of keystores and truststores, if the files are on this machine, too. Each task would fail with such a problem."""
    producer = options.producer
    stores = {"ssl.keystore": producer.ssl_keystore_location, "ssl.truststore": producer.ssl_truststore_location}
    for store, location in stores.items():
        if location:
            from spark_kafka_sink.network.tls.stores import java_store_problem  # costs time, and few writes have a store

            problem = java_store_problem(store, location)
            if problem:
                yield f"kafka.{problem}"


def check_options(options: Mapping[str, object], *, is_stream: bool = False) -> SinkOptions:
    """The options of a write, checked without columns and Spark, as jobs do before they start Spark. Raises ConfigError."""
    options = SinkOptions.conceal(options)  # a traceback with locals shows this variable
    problems = list(_only_for_batches(options)) if is_stream else []
    sink_options = SinkOptions.read(options, problems)
    problems += [*_report_path_problems(sink_options), *_store_problems(sink_options)]
    if problems:
        raise ConfigError(join_problems(problems))
    return sink_options
