"""`pykafka-sink`: one command for all tools. `python -m spark_kafka_sink` is the same. `--help` imports no tool.

Law: this file and exit_codes.py import little when they are loaded, so that Ctrl-C prints one line even while a tool is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spark_kafka_sink.tools.exit_codes import USAGE, run_tool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tool. Returns its exit code: 0 done, 1 failed, 2 usage, 130 Ctrl-C, 141 nobody reads the output.

    Raises SystemExit after --help and for wrong usage, as argparse does.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    return run_tool("pykafka-sink", lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    from spark_kafka_sink.tools.catalog import TOOLS, build_parser

    parser = build_parser()
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    name = parser.parse_args(words[:1]).tool
    return int(TOOLS[name].load().main(words[1:]))
