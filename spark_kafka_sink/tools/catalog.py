"""The tools of `pykafka-sink`. The table names their modules as text, so that a tool is imported only when it is used.

Each module has `main(arguments)`, which returns the exit code, and `build_parser()`, whose --help shows examples and exit codes.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, NamedTuple

from spark_kafka_sink import __version__
from spark_kafka_sink.tools.arguments import new_parser

PROG = "pykafka-sink"
EXAMPLES = """
    pykafka-sink transactions list --prefix orders --bootstrap-servers localhost:9092
    pykafka-sink check --topic orders --bootstrap-servers localhost:9092
    pykafka-sink report commits.jsonl --terminal
    pykafka-sink perf --topic orders --num-records 100000 --record-size 100 --bootstrap-servers localhost:9092
    pykafka-sink options acks
    pykafka-sink transactions --help
"""


class Tool(NamedTuple):
    """One subcommand of `pykafka-sink`."""

    module: str
    summary: str

    def load(self) -> Any:
        """Import the module and return it."""
        return import_module(self.module)


TOOLS = {
    "transactions": Tool(
        "spark_kafka_sink.tools.transactions.command",
        "list the open transactions of exactly-once writes, end what a dead query left, and repair what hangs",
    ),
    "check": Tool("spark_kafka_sink.tools.check.command", "say whether a write would succeed, seen from this host"),
    "report": Tool("spark_kafka_sink.tools.report.command", "show what commits have reported, as a page or as a table"),
    "perf": Tool("spark_kafka_sink.tools.perf.command", "measure how fast a topic can be written, without Spark"),
    "options": Tool("spark_kafka_sink.tools.options.command", "show options with type, default and what they do"),
    "completion": Tool("spark_kafka_sink.tools.completion.command", "print a script that completes this command in a shell"),
}


def build_parser() -> argparse.ArgumentParser:
    """A parser for the first word, which names the tool. The tool's own parser reads the other words."""
    description = "Tools for pykafka-sink, which need no Spark."
    parser = new_parser(PROG, description, EXAMPLES, success="done", failure="failed, with one line on stderr that says why")
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL", title="tools")
    for name, tool in TOOLS.items():
        tools.add_parser(name, help=tool.summary, add_help=False)
    return parser
