"""Say whether a write would succeed: names, brokers, TLS, login, topic, permissions, and what exactly-once needs.

Laws: no record is written without --write, which sends one. The first line comes before any broker is asked, the last one within
20 seconds after it, whatever brokers do. Passwords and other secrets are never printed.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys

import spark_kafka_sink
from spark_kafka_sink import stderr_log
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.option import join_problems
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.background import outcome_within
from spark_kafka_sink.tools.arguments import new_parser, tool_name
from spark_kafka_sink.tools.check.inspection import Inspection
from spark_kafka_sink.tools.check.output import Origin, Screen
from spark_kafka_sink.tools.check.results import CheckResult, Light, worst_light
from spark_kafka_sink.tools.exit_codes import DONE, FAILED, run_tool
from spark_kafka_sink.tools.patience import PATIENCE_S, say_if_slow
from spark_kafka_sink.tools.sink_arguments import add_sink_arguments, sink_options

PROG = "pykafka-sink check"
CLIENT_ID = "pykafka-sink-check"
OWN_NAME_MS = 500  # for DNS to say which address this host has
EXAMPLES = """
    PROG --bootstrap-servers localhost:9092 --topic orders
    PROG --config conf/sink.properties --config secrets.properties --topic orders --exactly-once orders
    PROG --bootstrap-servers localhost:9092 --topic orders --write --strict --json
"""


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "Say whether a write would succeed, seen from this host: a line for each thing that it needs, within 20 s."
    failure = "something is red, with --strict also if something is yellow"
    parser = new_parser(prog, description, EXAMPLES, success="nothing is red", failure=failure)
    add_sink_arguments(parser)
    add = parser.add_argument_group("check").add_argument
    write_help = "send one record; with --exactly-once in a transaction that is aborted, of the transactional id NAME-check"
    add("--write", action="store_true", help=write_help)
    add("--strict", action="store_true", help="exit with 1 also if something is yellow")
    json_help = "one JSON object per line: where it runs, each result, and how many there are; times are milliseconds"
    add("--json", action="store_true", help=json_help)
    return parser


def checked_options(arguments: argparse.Namespace) -> SinkOptions:
    """The options of the write. Raises UsageError, or ConfigError with all problems of the options."""
    options = SinkOptions.conceal(sink_options(arguments))
    options.setdefault("kafka.client.id", CLIENT_ID)
    problems: list[str] = []
    checked = SinkOptions.read(options, problems)
    if problems:
        raise ConfigError(join_problems(problems))
    return checked


def origin() -> Origin:
    """This host, with the addresses that its own name has. Blocks for OWN_NAME_MS at most."""
    host = socket.gethostname()
    outcome = outcome_within(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM), OWN_NAME_MS)
    address_infos = [] if outcome is None or outcome.error is not None else outcome.result
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in address_infos))
    return Origin(host, addresses, spark_kafka_sink.__version__)


def run(arguments: argparse.Namespace, name: str) -> int:
    """Check, print, and return the exit code. Blocks about 20 s at most. Raises UsageError or ConfigError before it prints."""
    clock = Clock()
    start_ms = clock.now_ms()
    inspection = Inspection(checked_options(arguments), must_write=arguments.write, clock=clock)
    screen = Screen(is_json=arguments.json)
    screen.begin(origin())
    results: list[CheckResult] = []
    # The results say what warnings in the log would say.
    with stderr_log.without_warnings(logging.CRITICAL), say_if_slow(lambda: _say_it_takes_long(name)):
        for result in inspection.results():
            results.append(result)
            screen.show(result)
    screen.end(results, clock.now_ms() - start_ms)
    light = worst_light(results)
    return FAILED if light is Light.RED or (arguments.strict and light is Light.YELLOW) else DONE


def _say_it_takes_long(name: str) -> None:
    line = f"{name}: brokers have been asked for {PATIENCE_S} s; the last line comes within 20 s of the first"
    print(line, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None, prog: str = PROG) -> int:
    """Exit code: 0 nothing is red, 1 something is red (with --strict: or yellow), 2 usage, 130 Ctrl-C."""
    arguments = build_parser(prog).parse_args(argv)
    name = tool_name(prog)
    stderr_log.add_handler()
    return run_tool(name, lambda: run(arguments, name))
