"""`python -m spark_kafka_sink.option_tables` prints all options as the markdown tables of docs/options.md.

The options are declared in config/ and legacy/config.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.config.format_options import FormatOptions
from spark_kafka_sink.config.keys_without_effect import PRODUCER_KEYS_WITHOUT_EFFECT, SERIALIZERS
from spark_kafka_sink.config.option import BOOLEAN, Option, options_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.registry_config import REGISTRY_KEYS_WITHOUT_EFFECT, RegistryConfig
from spark_kafka_sink.config.security_config import SecurityConfig
from spark_kafka_sink.config.serializer_config import SerializerConfig
from spark_kafka_sink.config.sink_options import BULK_DEFAULTS, PRODUCER_PREFIX, SinkOptions
from spark_kafka_sink.legacy.config import LegacyProducerConfig

# What most writes set, in the order in which the table shows it.
MOST_USED = (
    "topic", "kafka.bootstrap.servers", "deliveryGuarantee", "transactionalIdPrefix", "onRecordTooLarge", "onInvalidRecord",
    "reportPath", "kafka.compression.type", "kafka.security.protocol", "kafka.sasl.mechanism", "kafka.sasl.jaas.config",
    "kafka.ssl.truststore.location",
)  # fmt: skip


class TableRow(NamedTuple):
    """One option as text: a row of the tables of options, in docs and tools."""

    section: str  # a key of HEADINGS
    key: str  # as users of the sink write it: options of KafkaProducer begin with `kafka.`
    type: str  # Kafka's name of the type; empty for an option without effect
    allowed: str  # empty if every value of the type is allowed
    choices: tuple[str, ...]  # the allowed values, where they are few
    default: str
    kafka_default: str  # empty unless the sink's default differs from it
    doc: str

    @property
    def values(self) -> str:
        """The type and which of its values are allowed; without the type if there are only a few choices."""
        return self.allowed if self.choices else ", ".join(filter(None, (self.type, self.allowed)))

    @property
    def defaults(self) -> str:
        """The sink's default, and Kafka's if it differs."""
        return f"{self.default} (Kafka: {self.kafka_default})" if self.kafka_default else self.default


def option_table() -> list[TableRow]:
    """Every option that is accepted, the most used ones first, and then in order of declaration."""
    security = options_of(SecurityConfig)
    formats = options_of(FormatOptions)
    rows = [_table_row("format" if attribute in formats else "sink", row) for attribute, row in options_of(SinkOptions).items()]
    for attribute, row in options_of(ProducerConfig).items():
        rows.append(_table_row("security" if attribute in security else "producer", row, BULK_DEFAULTS.get(attribute)))
    by_key = {row.key: row for row in rows}
    most_used = [by_key.pop(key)._replace(section="most used") for key in MOST_USED]
    serializers = [_table_row("serializers", row) for row in options_of(SerializerConfig).values()]
    reasons = {PRODUCER_PREFIX + key: reason for key, reason in PRODUCER_KEYS_WITHOUT_EFFECT.items() if key not in SERIALIZERS}
    reasons |= REGISTRY_KEYS_WITHOUT_EFFECT
    without_effect = [TableRow("no effect", key, "", "", (), "", "", reason) for key, reason in reasons.items()]
    registry = [_table_row("registry", row) for row in options_of(RegistryConfig).values()]
    legacy = [_table_row("legacy", row) for row in options_of(LegacyProducerConfig).values()]
    return [*most_used, *by_key.values(), *registry, *serializers, *without_effect, *legacy]


def _table_row(section: str, option: Option, sink_default: object = None) -> TableRow:
    key = option.key if section in ("sink", "format", "registry", "serializers", "legacy") else PRODUCER_PREFIX + option.key
    choices = ("true", "false") if option.kind is BOOLEAN else option.choices
    default = "" if option.default is None else str(option.default).lower() if option.kind is BOOLEAN else str(option.default)
    defaults = (default, "") if sink_default is None else (str(sink_default), default)
    return TableRow(section, key, option.kind.name, option.allowed_values(), choices, *defaults, option.doc)


def markdown_table(section: str) -> str:
    """The rows of one section as a markdown table."""
    rows = [row for row in option_table() if row.section == section]
    if section == "no effect":
        return _table_by_reason(rows)
    lines = [f"| `{row.key}` | {row.values} | {row.defaults} | {row.doc} |" for row in rows]
    return "\n".join(["| Option | Values | Default | What it does |", "|---|---|---|---|", *lines])


def _table_by_reason(rows: Sequence[TableRow]) -> str:
    keys_by_reason: dict[str, list[str]] = {}
    for row in rows:
        keys_by_reason.setdefault(row.doc, []).append(f"`{row.key}`")
    lines = [f"| {reason} | {', '.join(keys)} |" for reason, keys in keys_by_reason.items()]
    return "\n".join(["| Why | Options |", "|---|---|", *lines])


HEADINGS = {
    "most used": "The options that most writes use",
    "sink": "More options of the sink",
    "format": "Formats of keys and values",
    "producer": "More options of the producer",
    "security": "More options for security",
    "registry": "Options of a schema registry",
    "serializers": "Options of the producer's Avro serializers",
    "no effect": "Accepted without effect, with a warning",
    "legacy": "Options of the old producer",
}


def main() -> None:
    for section, heading in HEADINGS.items():
        print(f"### {heading}\n\n{markdown_table(section)}\n")


if __name__ == "__main__":
    main()
