"""option_tables.py: every option has its row, and the module prints what docs/options.md shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_kafka_sink.config.sink_options import BULK_DEFAULTS
from spark_kafka_sink.option_tables import HEADINGS, markdown_table, option_table


def test_every_option_has_one_row_whose_text_ends_with_a_full_stop() -> None:
    rows = option_table()
    assert len({(row.section, row.key) for row in rows}) == len(rows)
    assert {row.section for row in rows} == set(HEADINGS)
    for row in rows:
        assert row.doc
        assert "|" not in "".join((row.key, row.values, row.defaults, row.doc))
        assert row.section == "no effect" or row.doc.endswith(".")


def test_the_table_shows_both_defaults_where_the_sink_has_its_own() -> None:
    (linger,) = (row for row in option_table() if row.key == "kafka.linger.ms")
    assert linger.defaults == f"{BULK_DEFAULTS['linger_ms']} (Kafka: 5)"


def test_the_module_prints_its_tables() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "spark_kafka_sink.option_tables"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parent.parent,
    ).stdout
    for section in HEADINGS:
        assert markdown_table(section) in printed
