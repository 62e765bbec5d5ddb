"""What one write has to do: checked on the driver, pickled for every task.

datasource.py makes a WritePlan from the columns and options. writer.py follows it in the tasks and at the commit.
Law: plain data only. A plan opens nothing, and pickling it loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.config.sink_options import EXACTLY_ONCE, SinkOptions
from spark_kafka_sink.sink.exactly_once_plan import ExactlyOncePlan
from spark_kafka_sink.sink.rows.row_mapping import RowMapping
from spark_kafka_sink.sink.rows.row_rules import RowRules


@dataclass(frozen=True, slots=True)
class WritePlan:
    mapping: RowMapping
    producer_options: Mapping[str, object] = field(repr=False)  # KafkaProducer's; secrets are wrapped
    rules: RowRules = field(default_factory=RowRules)
    producer_cache_timeout_ms: int = 0  # 0: the producer is closed when its task ends
    report_path: str | None = None
    on_commit: str | None = None  # dotted name of a function on the driver
    exactly_once: ExactlyOncePlan | None = None

    @classmethod
    def of(cls, mapping: RowMapping, options: SinkOptions, *, is_stream: bool) -> WritePlan:
        is_exactly_once = options.delivery_guarantee == EXACTLY_ONCE
        return cls(
            mapping=mapping,
            producer_options=options.producer.to_mapping(),
            rules=RowRules.of(options),
            producer_cache_timeout_ms=options.producer_cache_timeout_ms,
            report_path=options.report_path,
            on_commit=options.on_commit,
            exactly_once=ExactlyOncePlan.of(options, is_stream=is_stream) if is_exactly_once else None,
        )
