"""Show options with their type, their default and what they do: all of them, or those in which words occur.

The options are those of docs/options.md, from the same tables. Needs no broker.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from spark_kafka_sink.config.option import nearest_key
from spark_kafka_sink.option_tables import HEADINGS, TableRow, option_table
from spark_kafka_sink.tools.arguments import new_parser, tool_name
from spark_kafka_sink.tools.exit_codes import DONE, FAILED

PROG = "pykafka-sink options"
EXAMPLES = """
    PROG acks
    PROG transaction timeout    those in which both words occur
    PROG kafka.ssl --json
"""
MAX_LINE_CHARACTERS = 110


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "Show the options of the sink and of the producer: type, default and what they do."
    parser = new_parser(prog, description, EXAMPLES, success="options were found", failure="no option has these words")
    words_help = "show options that have this in their name or description, in upper or lower case; several: each of them"
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"{words_help} (default: show all)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Exit code: 0 options were found, 1 none has these words, 2 usage."""
    arguments = build_parser(prog).parse_args(argv)
    rows = option_table()
    matching_rows = [row for row in rows if all(word.lower() in f"{row.key} {row.doc}".lower() for word in arguments.words)]
    if not matching_rows:
        print(f"{tool_name(prog)}: {_no_match_line(rows, arguments.words)}", file=sys.stderr)
        return FAILED
    for line in map(_json_line, matching_rows) if arguments.json else _text(matching_rows):
        print(line)
    return DONE


def _no_match_line(rows: Iterable[TableRow], words: Sequence[str]) -> str:
    """The error line, with the option whose name is most alike; names are compared with and without `kafka.`."""
    by_name = {name: row.key for row in rows for name in (row.key, row.key.removeprefix("kafka."))}
    nearest_name = nearest_key(" ".join(words), by_name)
    suggestion = "" if nearest_name is None else f"; the name that is most alike is {by_name[nearest_name]}"
    return f"no option has {' and '.join(map(repr, words))} in its name or description{suggestion}."


# WHAT IS SHOWN


def _text(rows: Sequence[TableRow]) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns, MAX_LINE_CHARACTERS)
    by_section = {heading: [row for row in rows if row.section == section] for section, heading in HEADINGS.items()}
    for heading in filter(by_section.get, by_section):
        yield f"# {heading}"
        for row in by_section[heading]:
            yield ""
            yield f"{row.key}  ({_values_and_default(row)})" if row.type else row.key
            yield textwrap.fill(row.doc, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        yield ""


def _values_and_default(row: TableRow) -> str:
    return f"{row.values}; default: {row.defaults}" if row.defaults else row.values


def _json_line(row: TableRow) -> str:
    """`type`, `allowed` and `default` are null if there is none; `kafka_default` is null unless it differs from `default`."""
    return json.dumps(
        {
            "name": row.key,
            "section": HEADINGS[row.section],
            "type": row.type or None,
            "allowed": row.allowed or None,
            "choices": list(row.choices),
            "default": row.default or None,
            "kafka_default": row.kafka_default or None,
            "doc": row.doc,
        }
    )
