"""Plans how keys and values are encoded, on the driver: Spark's types, the schemas, and what the registry says of them.

Runs in the process in which Spark plans, for each micro-batch of a stream anew; known_schemas.py keeps the answers there. The
process that commits asks nothing and does not come here. Imported only when a part has a format.
Laws: all problems are found before a task starts, and before anything is registered. Nothing stays open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.config.format_options import KEY_PART, LATEST, VALUE_PART, PartOptions, part_options
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.schemas.part_format import PartFormat, PlannedFormat, plan_part
from spark_kafka_sink.schemas.registry_errors import ABOUT_SCHEMAS, RegistryError
from spark_kafka_sink.sink.rows.arrow_types import arrow_type
from spark_kafka_sink.sink.shipped_files import known_schemas

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.records.row_mapping import RowMapping
    from spark_kafka_sink.schemas.known_schemas import KnownSchemas
    from spark_kafka_sink.sink.write_plan import WritePlan


class FormatsFound(NamedTuple):
    """What the driver found of the formats of keys and values.

    Args:
        formats: the formats, some of which wait for `register_schemas`.
        failure: why the registry does not give what is needed; None if it does.
    """

    formats: tuple[PlannedFormat, ...]
    failure: KafkaError | None = None


def plan_formats(schema: StructType, mapping: RowMapping, options: SinkOptions, problems: list[str]) -> FormatsFound:
    """The formats of the parts that have one. Asks the registry, and registers nothing. Blocks as the registry does.

    Args:
        schema: of the DataFrame; its columns are checked.
        mapping: which column is which part.
        options: checked.
        problems: gets what is wrong with columns, and what they and registered schemas contradict.
    """
    parts = list(_parts(schema, mapping, options, problems))
    topic = mapping.topic if isinstance(mapping.topic, str) else None
    planned, failures = [], []
    with known_schemas(options) as known:
        for part in parts:
            try:
                planned.append(_look(part, known, topic, problems))
            except KafkaError as error:
                failures.append(error)
                if not isinstance(error, RegistryError) or error.condition not in ABOUT_SCHEMAS:
                    break  # the next question meets the same
    return FormatsFound(tuple(planned), _joined(failures))


def register_schemas(plan: WritePlan) -> WritePlan:
    """The plan with every schema registered that has to be, but for those of topics that only rows name.

    Raises:
        RegistryError: the registry refuses one, or cannot be reached.
    """
    topic = plan.mapping.topic
    waiting = [each for each in plan.formats if each.column is None and not _waits_for_topics(each.wanted, topic)]
    if not waiting:
        return plan
    with known_schemas(plan.options) as known:
        done = {
            each.wanted.part: PlannedFormat(each.wanted, each.wanted.register(known, topic if isinstance(topic, str) else None))
            for each in waiting
        }
    return replace(plan, formats=tuple(done.get(each.wanted.part, each) for each in plan.formats))


def _parts(schema: StructType, mapping: RowMapping, options: SinkOptions, problems: list[str]) -> Iterator[PartFormat]:
    """Those that have a format and no problem."""
    registry = options.registry
    assert registry is not None, "a format needs one, and options are checked"
    for name, position in ((VALUE_PART, mapping.value), (KEY_PART, mapping.key)):
        chosen = part_options(options, registry, name)
        if chosen is None:
            continue
        if position is None:
            if name == KEY_PART:  # a missing value is a problem already
                problems.append(f"keyFormat={chosen.format}, but the DataFrame has no column key: add it, or remove the option")
            continue
        before = len(problems)
        type = arrow_type(schema.fields[position].dataType, name, problems)
        part = plan_part(chosen, type, registry, problems)
        problems.extend(_not_repeatable(chosen, part, mapping, options))
        if len(problems) == before:
            yield part


def _look(part: PartFormat, known: KnownSchemas, topic: str | None, problems: list[str]) -> PlannedFormat:
    waits = part.needs_topic and topic is None
    return PlannedFormat(part, None if waits else part.look(known, topic, problems))


def _waits_for_topics(part: PartFormat, topic: object) -> bool:
    return part.needs_topic and not isinstance(topic, str)


def _not_repeatable(chosen: PartOptions, part: PartFormat, mapping: RowMapping, options: SinkOptions) -> Iterator[str]:
    """A repetition is compared with the first time, and has to encode with the same schemas."""
    is_latest = chosen.schema is not None and chosen.schema.kind == LATEST
    if options.is_exactly_once and is_latest and _waits_for_topics(part, mapping.topic):
        yield (
            f"{chosen.schema_key}={LATEST} with a topic column cannot be exactly once, as each task would ask for the latest"
            f" version of each topic's subject: set {chosen.part}Subject, or name a version or an id"
        )


def _joined(failures: list[KafkaError]) -> KafkaError | None:
    if len(failures) < 2:
        return next(iter(failures), None)
    return RegistryError(join_problems([failure.message for failure in failures]), condition=failures[0].condition)
