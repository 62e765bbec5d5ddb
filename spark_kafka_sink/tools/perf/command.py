"""Measures how fast a topic can be written from this machine, without Spark, like kafka-producer-perf-test.

Takes the arguments of Kafka's tool and prints its lines. Records are sent as columns, a chunk at a time, or with --single one by
one with a callback each, as in Java.
With a transactional id the records are written in transactions, each committed when it is --transaction-duration-ms old.
Laws: only acknowledged records count as sent. A failure ends the run, after its chunk. Secrets are never printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from math import isfinite, nan
from pathlib import Path

from spark_kafka_sink import stderr_log
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.tools.arguments import new_parser, parse_pair, parse_positive_int, tool_name, with_bootstrap_servers
from spark_kafka_sink.tools.exit_codes import DONE, FAILED, run_tool
from spark_kafka_sink.tools.patience import PATIENCE_S, say_if_slow
from spark_kafka_sink.tools.perf.measurements import Measurements
from spark_kafka_sink.tools.perf.payloads import POOL_BYTES, PayloadSource, payloads
from spark_kafka_sink.tools.perf.sending import CHUNK_RECORDS, Sending
from spark_kafka_sink.tools.perf.transaction_pace import (
    DEFAULT_DURATION_MS,
    DEFAULT_ID_PREFIX,
    TRANSACTIONAL_ID,
    TransactionPace,
    transactional_options,
)
from spark_kafka_sink.tools.properties import read_properties

PROG = "pykafka-sink perf"
EXAMPLES = """
    PROG --topic orders --num-records 1000000 --record-size 100 --bootstrap-servers localhost:9092
    PROG --topic orders --num-records 1000000 --record-size 100 --throughput 50000 --command-config producer.properties
    PROG --topic orders --num-records 100000 --record-size 100 --transaction-duration-ms 1000 --bootstrap-servers localhost:9092
"""
MIN_RECORDS_PER_S = 0.001  # a record in a quarter of an hour
MAX_RECORD_BYTES = 2**31 - 1  # what an Arrow column and a Kafka request can hold
say = partial(print, flush=True)


# ARGUMENTS


def parse_rate(text: str) -> float:
    """Read records per second; zero or less: no limit. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number) or 0 < number < MIN_RECORDS_PER_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {MIN_RECORDS_PER_S}, or -1 for no limit")
    return number


def parse_record_size(text: str) -> int:
    """Read a number of bytes, from 1 to MAX_RECORD_BYTES. Raises ArgumentTypeError."""
    number = parse_positive_int(text)
    if number > MAX_RECORD_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_RECORD_BYTES}")
    return number


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "Write records to a topic, and print records per second and latencies. A MB is 1,048,576 bytes."
    parser = new_parser(prog, description, EXAMPLES, success="every record was acknowledged", failure="a record failed")
    add = parser.add_argument
    add("--topic", required=True, help="topic to write to")
    add("--num-records", type=parse_positive_int, required=True, help="number of records to write")
    add("--throughput", type=parse_rate, default=-1, help="limit in records per second; -1: no limit (default)")
    add("--bootstrap-servers", "--bootstrap-server", metavar="HOST:PORT,...", help="brokers; overrides the next two")
    properties = {"type": parse_pair, "nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
    add("--command-property", "--producer-props", **properties, help="producer options; override the file's")  # type: ignore[arg-type]
    add("--command-config", "--producer.config", type=Path, metavar="FILE", help=".properties file with producer options")
    add("--warmup-records", type=int, default=0, help="print a second summary that leaves these first records out")
    interval_help = "between progress lines (default: %(default)s)"
    add("--reporting-interval", type=parse_positive_int, default=5000, metavar="MS", help=interval_help)
    add("--print-metrics", action="store_true", help="print the producer's metrics at the end")
    add("--json", action="store_true", help="print the totals as one JSON object; progress lines go to stderr")
    add("--single", action="store_true", help="one send() with a callback per record, as in Java (default: columns)")
    id_help = f"write in transactions, with this id (default: {DEFAULT_ID_PREFIX}…, with --transaction-duration-ms only)"
    add("--transactional-id", metavar="ID", help=f"{id_help}; overrides the option transactional.id")
    duration_help = f"commit each transaction at this age (default: {DEFAULT_DURATION_MS}, with a transactional id only)"
    add("--transaction-duration-ms", type=parse_positive_int, metavar="MS", help=duration_help)
    fewer = f"as many as {POOL_BYTES >> 20} MiB hold, or as --throughput allows in 10 ms"
    chunk_help = f"records per chunk (default: {CHUNK_RECORDS}, or {fewer})"
    add("--chunk-records", type=parse_positive_int, default=None, help=chunk_help)
    payload = parser.add_mutually_exclusive_group(required=True).add_argument
    payload("--record-size", type=parse_record_size, metavar="BYTES", help="payloads are random letters of this size")
    payload("--payload-file", type=Path, metavar="FILE", help="payloads are the lines of a text file, in random order")
    payload("--payload-monotonic", action="store_true", help="payloads are 0, 1, 2 …")
    add("--payload-delimiter", default="\\n", help="separates the payloads in --payload-file (default: %(default)s)")
    return parser


def producer_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Named arguments override --command-property, which overrides the file. Raises UsageError."""
    options = {"client.id": "perf-producer-client"}
    if arguments.command_config is not None:
        options |= read_properties(arguments.command_config, "--command-config")
    options |= dict(arguments.command_property)
    options = with_bootstrap_servers(options, arguments.bootstrap_servers)
    return transactional_options(options, arguments.transactional_id, arguments.transaction_duration_ms)


# RUNNING


def named_metrics(producer: KafkaProducer) -> dict[str, float]:
    """The producer's metrics by the names that Kafka's tool prints: group, name, tags."""
    metrics_by_name = {f"producer-metrics:{name}": value for name, value in producer.metrics().items()}
    for topic, metrics in producer.topic_metrics().items():
        metrics_by_name |= {f"producer-topic-metrics:{name}:{{topic={topic}}}": value for name, value in metrics.items()}
    for node, metrics in producer.node_metrics().items():
        metrics_by_name |= {f"producer-node-metrics:{name}:{{node-id=node-{node}}}": value for name, value in metrics.items()}
    return dict(sorted(metrics_by_name.items()))


def run(arguments: argparse.Namespace, options: dict[str, str], values: PayloadSource, clock: Clock, name: str) -> int:
    """Write all records and print the lines. Returns the exit code; blocks until the last record is settled.

    Raises KeyboardInterrupt after Ctrl-C, when it has printed the totals so far.
    """
    is_interrupted = False
    with KafkaProducer(options) as producer:
        progress = partial(say, file=sys.stderr) if arguments.json else say
        measurements = Measurements(clock, arguments.reporting_interval, arguments.warmup_records, progress)
        try:
            with say_if_slow(lambda: _say_if_nothing_arrived(measurements, name)):
                transactions = _start_transactions(producer, arguments, options, measurements, clock)
                sending = Sending(producer, arguments, values, measurements, transactions, clock)
                (sending.send_single if arguments.single else sending.send_columns)()
        except KafkaError as error:
            measurements.add_failure(0, error)
        except KeyboardInterrupt:
            is_interrupted = True
            producer.close(0)
        _say_totals(producer, measurements, arguments)
    if is_interrupted:
        raise KeyboardInterrupt
    if measurements.error is not None:
        failures = f" ({measurements.failure_count} records failed)" if measurements.failure_count else ""
        print(f"{name}: error: {measurements.error}{failures}", file=sys.stderr)
        return FAILED
    return DONE


def _say_totals(producer: KafkaProducer, measurements: Measurements, arguments: argparse.Namespace) -> None:
    metrics = named_metrics(producer) if arguments.print_metrics else {}
    if arguments.json:
        known_metrics = {name: value if isfinite(value) else None for name, value in metrics.items()}
        say(json.dumps({**measurements.figures(), **({"metrics": known_metrics} if arguments.print_metrics else {})}))
        return
    measurements.say_totals()
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        say(f"{name:<{width}} : {value:.3f}")


def _say_if_nothing_arrived(measurements: Measurements, name: str) -> None:
    if not measurements.total.records:
        limits = "max.block.ms and delivery.timeout.ms limit the wait"
        print(f"{name}: no record has been acknowledged for {PATIENCE_S} s; {limits}", file=sys.stderr, flush=True)


def _start_transactions(
    producer: KafkaProducer, arguments: argparse.Namespace, options: dict[str, str], measurements: Measurements, clock: Clock
) -> TransactionPace:
    if TRANSACTIONAL_ID not in options:
        return TransactionPace(producer, duration_ms=None, clock=clock)
    producer.init_transactions()
    measurements.begin()
    return TransactionPace(producer, arguments.transaction_duration_ms or DEFAULT_DURATION_MS, clock)


def main(argv: list[str] | None = None, prog: str = PROG) -> int:
    """Exit code: 0 every record was acknowledged, 1 a record failed, 2 usage, 130 Ctrl-C."""
    arguments = build_parser(prog).parse_args(argv)
    stderr_log.add_handler()
    name = tool_name(prog)
    return run_tool(name, lambda: run(arguments, producer_options(arguments), payloads(arguments), Clock(), name))
