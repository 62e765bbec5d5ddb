"""`python -m spark_kafka_sink.option_tables` prints all options as markdown tables, those of docs/options.md.

The options are declared in config/ and legacy/config.py.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.config.keys_without_effect import NO_EFFECT, SERIALIZERS
from spark_kafka_sink.config.option import BOOLEAN, Option, rows_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.security_config import SecurityConfig
from spark_kafka_sink.config.sink_options import BULK_DEFAULTS, PRODUCER_PREFIX, SinkOptions
from spark_kafka_sink.legacy.config import LegacyProducerConfig


class TableRow(NamedTuple):
    """One row of a printed table. `section` is a key of HEADINGS."""

    section: str
    key: str
    type: str
    default: str
    allowed: str
    doc: str


def option_table() -> list[TableRow]:
    """Every option that is accepted, in order of declaration."""
    security = rows_of(SecurityConfig)
    rows = [_table_row("sink", row) for row in rows_of(SinkOptions).values()]
    for attribute, row in rows_of(ProducerConfig).items():
        rows.append(_table_row("security" if attribute in security else "producer", row, BULK_DEFAULTS.get(attribute)))
    rows += [TableRow("no effect", key, "", "", "", reason) for key, reason in NO_EFFECT.items() if key not in SERIALIZERS]
    rows += [_table_row("legacy", row) for row in rows_of(LegacyProducerConfig).values()]
    return rows


def _table_row(section: str, row: Option, sink_default: object = None) -> TableRow:
    key = row.key if section in ("sink", "legacy") else PRODUCER_PREFIX + row.key
    default = "" if row.default in (None, "") else str(row.default).lower() if row.kind is BOOLEAN else str(row.default)
    if sink_default is not None:
        default = f"{sink_default} (Kafka: {default})"
    return TableRow(section, key, row.kind.name, default, row.allowed(), row.doc)


def markdown_table(section: str) -> str:
    """The rows of one section as a markdown table."""
    rows = [row for row in option_table() if row.section == section]
    if section == "no effect":
        return "\n".join(["| Option | Why |", "|---|---|", *(f"| `{PRODUCER_PREFIX}{row.key}` | {row.doc} |" for row in rows)])
    lines = [f"| `{row.key}` | {row.type} | {row.default} | {row.allowed} | {row.doc} |" for row in rows]
    return "\n".join(["| Option | Type | Default | Allowed | What it does |", "|---|---|---|---|---|", *lines])


HEADINGS = {
    "sink": "Options of the sink",
    "producer": "Options of the producer",
    "security": "Security",
    "no effect": "Accepted without effect, with a warning",
    "legacy": "Options of the old producer",
}


def main() -> None:
    for section, heading in HEADINGS.items():
        print(f"### {heading}\n\n{markdown_table(section)}\n")


if __name__ == "__main__":
    main()
