"""Measures how fast a topic can be written from this machine, without Spark, like kafka-producer-perf-test.

    python -m jobs.producer_perf --topic orders --num-records 1000000 --record-size 100 --throughput -1 \\
        --bootstrap-servers localhost:9092

Takes the arguments of Kafka's tool and prints its lines. Records are sent as columns, a chunk at a time, or with --single one by
one with a callback each, as in Java. A record's latency is the time from the call of the producer, which may wait for memory, to
the acknowledgement. All rows of a chunk count with the latency of its last row, so latencies are never too low.
With a transactional id the records are written in transactions, each committed when it is --transaction-duration-ms old.
Laws: only acknowledged records count as sent. The first failure ends the run. Values of options are never printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink import stderr_log
from spark_kafka_sink.clock import Clock, sleep
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.tools.errors import UsageError
from spark_kafka_sink.tools.perf.measurements import NS_PER_MS, Measurements
from spark_kafka_sink.tools.perf.payloads import Payloads, payloads
from spark_kafka_sink.tools.perf.transaction_pace import (
    DEFAULT_DURATION_MS,
    DEFAULT_ID_PREFIX,
    TRANSACTIONAL_ID,
    TransactionPace,
    transactional_options,
)
from spark_kafka_sink.tools.properties import pair, read_properties

if TYPE_CHECKING:
    from spark_kafka_sink.producer.accumulator.delivery import Delivery
    from spark_kafka_sink.producer.producer_record import RecordMetadata

CHUNK_RECORDS = 10_000  # the size of Spark's Arrow batches
THROTTLED_CHUNKS_PER_S = 100  # with --throughput, so that its limit also holds within 10 ms


# --- ARGUMENTS --------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="producer_perf",
        description="Write records to a topic, and print records per second and latencies.",
        epilog="Exit codes: 0 every record was acknowledged, 1 a record failed, 2 usage, 130 Ctrl-C. A MB is 1,048,576 bytes.",
    )
    add = parser.add_argument
    add("--topic", required=True, help="topic to write to")
    add("--num-records", type=_positive, required=True, help="number of records to write")
    add("--throughput", type=float, default=-1, help="limit in records per second; -1: no limit (default)")
    add("--bootstrap-servers", "--bootstrap-server", metavar="HOST:PORT,...", help="brokers; overrides the next two")
    properties = {"type": pair, "nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
    add("--command-property", "--producer-props", **properties, help="producer options; override the file's")  # type: ignore[arg-type]
    add("--command-config", "--producer.config", type=Path, metavar="FILE", help=".properties file with producer options")
    add("--warmup-records", type=int, default=0, help="print a second summary that leaves these first records out")
    add("--reporting-interval", type=_positive, default=5000, metavar="MS", help="between progress lines (default: %(default)s)")
    add("--print-metrics", action="store_true", help="print the producer's metrics at the end")
    add("--single", action="store_true", help="one send() with a callback per record, as in Java (default: columns)")
    transactional_id = f"write in transactions, with this id (default: {DEFAULT_ID_PREFIX}…, with --transaction-duration-ms only)"
    add("--transactional-id", metavar="ID", help=f"{transactional_id}; overrides the option transactional.id")
    duration = f"commit each transaction at this age (default: {DEFAULT_DURATION_MS}, with a transactional id only)"
    add("--transaction-duration-ms", type=_positive, metavar="MS", help=duration)
    chunk = f"records per chunk (default: {CHUNK_RECORDS}, or as many as --throughput allows in 10 ms)"
    add("--chunk-records", type=_positive, default=None, help=chunk)
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=_positive, metavar="BYTES", help="payloads are random letters of this size")
    payload.add_argument(
        "--payload-file", type=Path, metavar="FILE", help="payloads are the lines of a text file, in random order"
    )
    payload.add_argument("--payload-monotonic", action="store_true", help="payloads are 0, 1, 2 …")
    add("--payload-delimiter", default="\\n", help="separates the payloads in --payload-file (default: %(default)s)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def producer_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Named arguments override --command-property, which overrides the file. Raises UsageError."""
    options = {"client.id": "perf-producer-client"}
    if arguments.command_config is not None:
        options |= read_properties(arguments.command_config, "--command-config")
    options |= dict(arguments.command_property)
    if arguments.bootstrap_servers:
        options["bootstrap.servers"] = arguments.bootstrap_servers
    if not options.get("bootstrap.servers"):
        raise UsageError("--bootstrap-servers is missing: pass it, or set bootstrap.servers in a --command-config file.")
    return transactional_options(options, arguments.transactional_id, arguments.transaction_duration_ms)


# --- SENDING ----------------------------------------------------------------------------------------------------------


class ThroughputThrottler:
    """Keeps a rate of records per second, on average since the start: it catches up after a pause. Zero or less: no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._started_ns = clock.now_ns()

    def early_ms(self, sent: int) -> int:
        """How long to wait after this many records in total."""
        if self._per_second <= 0:
            return 0
        return round(sent / self._per_second * 1000) - (self._clock.now_ns() - self._started_ns) // NS_PER_MS

    def wait(self, sent: int) -> None:
        if (early_ms := self.early_ms(sent)) > 0:
            sleep(self._clock, early_ms)


def chunks(records: int, size: int, warmup: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each chunk. No chunk contains records of the warm-up and later ones."""
    first = 0
    while first < records:
        end = min(first + size, records)
        end = min(end, warmup) if first < warmup else end
        yield first, end - first
        first = end


def send_columns(
    producer: KafkaProducer,
    arguments: argparse.Namespace,
    values: Payloads,
    measurements: Measurements,
    clock: Clock,
    transactions: TransactionPace | None = None,
) -> None:
    """Send all chunks and wait until each is settled, at most delivery.timeout.ms after the last. Stops after a failure.

    The transaction of a failure is left open: close() aborts it.
    """
    throttle = ThroughputThrottler(arguments.throughput, clock)
    pending: deque[tuple[int, int, int, Delivery]] = deque()  # first, bytes, time of sending in ns, delivery
    failure: tuple[int, KafkaError] | None = None  # records that were not sent at all
    for first, count in chunks(arguments.num_records, chunk_records(arguments), arguments.warmup_records):
        if first == arguments.warmup_records > 0:
            measurements.begin_steady()
        chunk = values(first, count)
        unsent = count
        try:
            if transactions is not None:
                transactions.begin_if_none()
            started_ns = clock.now_ns()
            pending.append((first, _size(chunk), started_ns, producer.send_columns(arguments.topic, value=chunk)))
            unsent = 0
            if transactions is not None:
                transactions.commit_if_due(is_last=first + count == arguments.num_records)
        except KafkaError as error:
            failure = unsent, error
            break
        _settle(pending, measurements)
        if measurements.error is not None:
            break
        throttle.wait(first + count)
    while pending:
        _wait_for(pending[0][3], measurements.until_next_line_ms())
        _settle(pending, measurements)
        measurements.progress()
    if failure is not None:
        measurements.failed(*failure)  # last: in a transaction, a record that failed before is the reason


def chunk_records(arguments: argparse.Namespace) -> int:
    if arguments.chunk_records is not None:
        return int(arguments.chunk_records)
    allowed = arguments.throughput / THROTTLED_CHUNKS_PER_S
    return CHUNK_RECORDS if allowed <= 0 else max(1, min(CHUNK_RECORDS, int(allowed)))


def _size(values: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(values)).as_py())


def _wait_for(delivery: Delivery, timeout_ms: int) -> None:
    try:
        delivery.result(timeout_ms)
    except KafkaError:
        return  # not settled yet, or failed; _settle tells them apart


def _settle(pending: deque[tuple[int, int, int, Delivery]], measurements: Measurements) -> None:
    """Count and remove the chunks that are settled. A later chunk may be settled before an earlier one."""
    for _ in range(len(pending)):
        first, size_bytes, started_ns, delivery = entry = pending.popleft()
        settled_ns = delivery.settled_ns
        if settled_ns is None:
            pending.append(entry)
            continue
        if delivery.acknowledged:
            size = size_bytes * delivery.acknowledged // delivery.rows
            measurements.acknowledged(first, delivery.acknowledged, size, started_ns, settled_ns)
        if delivery.error is not None:
            measurements.failed(delivery.failed, delivery.error)


def send_single(
    producer: KafkaProducer,
    arguments: argparse.Namespace,
    values: Payloads,
    measurements: Measurements,
    clock: Clock,
    transactions: TransactionPace | None = None,
) -> None:
    """As send_columns, with one send() per record. Callbacks count the latencies, on the Sender's thread."""
    failure: KafkaError | None = None
    try:
        _send_one_by_one(producer, arguments, values, measurements, clock, transactions)
    except KafkaError as error:
        failure = error
    producer.flush()
    if failure is not None:
        measurements.failed(0, failure)


def _send_one_by_one(
    producer: KafkaProducer,
    arguments: argparse.Namespace,
    values: Payloads,
    measurements: Measurements,
    clock: Clock,
    transactions: TransactionPace | None,
) -> None:
    throttle = ThroughputThrottler(arguments.throughput, clock)
    throttled = arguments.throughput > 0
    last = arguments.num_records - 1
    for first, count in chunks(arguments.num_records, chunk_records(arguments), arguments.warmup_records):
        if first == arguments.warmup_records > 0:
            measurements.begin_steady()
        for number, value in enumerate(values(first, count).cast(pa.binary()).to_pylist(), first):
            if transactions is not None:
                transactions.begin_if_none()
            callback = partial(_count_single, measurements, clock, number, len(value), clock.now_ns())
            producer.send(ProducerRecord(arguments.topic, value), callback)
            if transactions is not None:
                transactions.commit_if_due(is_last=number == last)
            if throttled:
                throttle.wait(number + 1)
        if measurements.error is not None:
            return


def _count_single(
    measurements: Measurements,
    clock: Clock,
    number: int,
    size_bytes: int,
    started_ns: int,
    _metadata: RecordMetadata | None,
    error: KafkaError | None,
) -> None:
    if error is None:
        measurements.acknowledged(number, 1, size_bytes, started_ns, clock.now_ns())
    else:
        measurements.failed(1, error)


# --- RUNNING ----------------------------------------------------------------------------------------------------------


def metric_lines(producer: KafkaProducer) -> list[str]:
    """The producer's metrics as Kafka's tool prints them: group, name, tags, value."""
    named = {f"producer-metrics:{name}": value for name, value in producer.metrics().items()}
    for topic, metrics in producer.topic_metrics().items():
        named |= {f"producer-topic-metrics:{name}:{{topic={topic}}}": value for name, value in metrics.items()}
    for node, metrics in producer.node_metrics().items():
        named |= {f"producer-node-metrics:{name}:{{node-id=node-{node}}}": value for name, value in metrics.items()}
    width = max(map(len, named))
    return [f"{name:<{width}} : {value:.3f}" for name, value in sorted(named.items())]


def run(arguments: argparse.Namespace, options: dict[str, str], values: Payloads, clock: Clock) -> int:
    """Write all records and print the lines. Returns the exit code; blocks until the last record is settled."""
    say = partial(print, flush=True)
    interrupted = False
    with KafkaProducer(options) as producer:
        measurements = Measurements(clock, arguments.reporting_interval, arguments.warmup_records, say)
        send = send_single if arguments.single else send_columns
        transactions: TransactionPace | None = None
        try:
            if TRANSACTIONAL_ID in options:
                producer.init_transactions()
                transactions = TransactionPace(producer, arguments.transaction_duration_ms or DEFAULT_DURATION_MS, clock)
                measurements.begin()
            send(producer, arguments, values, measurements, clock, transactions)
        except KafkaError as error:
            measurements.failed(0, error)
        except KeyboardInterrupt:
            interrupted = True
            producer.close(0)
        measurements.say_totals()
        if arguments.print_metrics:
            say("\n".join(metric_lines(producer)))
    if interrupted:
        print("producer_perf: interrupted", file=sys.stderr)
        return 130
    if measurements.error is not None:
        failures = f" ({measurements.failures} records failed)" if measurements.failures else ""
        print(f"producer_perf: error: {measurements.error}{failures}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 every record was acknowledged, 1 a record failed, 2 usage, 130 Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    stderr_log.add_handler()
    try:
        return run(arguments, producer_options(arguments), payloads(arguments), Clock())
    except UsageError as error:
        print(f"producer_perf: error: {error}", file=sys.stderr)
        return 2
    except KafkaError as error:
        print(f"producer_perf: error: {error}", file=sys.stderr)
        return 1
