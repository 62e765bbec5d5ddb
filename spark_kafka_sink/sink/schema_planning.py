"""Plans how keys and values are encoded, on the driver: Spark's types, the schemas, and what the registry says of them.

Runs in the process in which Spark plans, for each micro-batch of a stream anew; known_schemas.py keeps the answers there. The
process that commits asks nothing and does not come here. Imported only when a part has a format.
Laws: all problems are found before a task starts, and before anything is registered. Nothing stays open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.config.format_options import KEY_PART, LATEST, VALUE_PART, part_options
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.schemas.registry_errors import ABOUT_SCHEMAS, RegistryError
from spark_kafka_sink.schemas.wanted_schema import PlannedPart, WantedSchema, plan_schema
from spark_kafka_sink.sink.registry_of_write import registry_of
from spark_kafka_sink.sink.rows.arrow_types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.records.row_mapping import RowMapping
    from spark_kafka_sink.sink.write_plan import WritePlan


def plan_parts(
    schema: StructType, mapping: RowMapping, options: SinkOptions, problems: list[str]
) -> tuple[tuple[PlannedPart, ...], KafkaError | None]:
    """The parts that have a format, and why the registry does not give what is needed; None if it does.

    A part whose schema is not registered yet has no encoder. Asks the registry, registers nothing. Blocks as the registry does.

    Args:
        schema: of the DataFrame; its columns are checked.
        mapping: which column is which part.
        options: checked.
        problems: gets what is wrong with columns, and where columns contradict registered schemas.
    """
    wanted_schemas = list(_wanted_schemas(schema, mapping, options, problems))
    topic = _topic_of_all(mapping)
    parts, failures = [], []
    with registry_of(options) as registry:
        for each in wanted_schemas:
            try:
                encoder = None if topic is None and each.needs_topic else each.find_encoder(registry, topic, problems)
                parts.append(PlannedPart(each, encoder))
            except KafkaError as error:
                failures.append(error)
                if not isinstance(error, RegistryError) or error.condition not in ABOUT_SCHEMAS:
                    break  # the next question would fail in the same way
    return tuple(parts), _join_failures(failures)


def register_schemas(plan: WritePlan) -> WritePlan:
    """Register all schemas that the plan needs, except those of topics that only rows name. Returns the plan with encoders.

    Raises:
        RegistryError: the registry rejects a schema, or cannot be reached.
    """
    topic = _topic_of_all(plan.mapping)
    parts = []
    with registry_of(plan.options) as registry:
        for each in plan.encoded_parts:
            is_done = each.encoder is not None or (topic is None and each.wanted_schema.needs_topic)
            parts.append(each if is_done else each._replace(encoder=each.wanted_schema.register(registry, topic)))
    return replace(plan, encoded_parts=tuple(parts))


def _wanted_schemas(schema: StructType, mapping: RowMapping, options: SinkOptions, problems: list[str]) -> Iterator[WantedSchema]:
    """The wanted schemas of the parts that have a format and no problem. Adds to `problems`."""
    registry = options.registry
    assert registry is not None, "a format needs one, and options are checked"
    for name, position in ((VALUE_PART, mapping.value), (KEY_PART, mapping.key)):
        part = part_options(options, registry, name)
        if part is None:
            continue
        if position is None:
            if name == KEY_PART:  # a missing value is a problem already
                problems.append(f"keyFormat={part.format}, but the DataFrame has no column key: add it, or remove the option")
            continue
        problem_count = len(problems)
        data_type = arrow_type(schema.fields[position].dataType, name, problems)
        wanted_schema = plan_schema(part, data_type, registry, problems)
        problems.extend(_repeatability_problem(wanted_schema, mapping, options))
        if len(problems) == problem_count:
            yield wanted_schema


def _topic_of_all(mapping: RowMapping) -> str | None:
    """None if each row names its topic."""
    return mapping.topic if isinstance(mapping.topic, str) else None


def _repeatability_problem(wanted_schema: WantedSchema, mapping: RowMapping, options: SinkOptions) -> Iterator[str]:
    """The problem of an exactly-once write whose repetition could encode with other schemas: the two could not be compared."""
    part = wanted_schema.options
    is_latest = part.schema is not None and part.schema.kind == LATEST
    if options.is_exactly_once and is_latest and wanted_schema.needs_topic and _topic_of_all(mapping) is None:
        yield (
            f"{part.name_of('schema')}={LATEST} with a topic column cannot be exactly once, as each task would ask for the"
            f" latest version of each topic's subject: set {part.name_of('subject')}, or name a version or an id"
        )


def _join_failures(failures: list[KafkaError]) -> KafkaError | None:
    if len(failures) < 2:
        return next(iter(failures), None)
    return RegistryError(join_problems([failure.message for failure in failures]), condition=failures[0].condition)
