"""How fast a topic can be written from here: python -m jobs.producer_perf, a kin of kafka-producer-perf-test, without Spark.

    python -m jobs.producer_perf --topic orders --num-records 1000000 --record-size 100 --throughput -1 \\
        --bootstrap-server localhost:9092

Takes Kafka's arguments and prints Kafka's lines. Records go out as columns, a chunk at a time; with --single one by one with a
callback each, as in Java. A record's latency is the time from its hand-over to the producer, waiting for memory included, to the
acknowledgement; rows of a chunk count from the hand-over of the chunk to the acknowledgement of its last row, never less than
what the single row waited.
Laws: only acknowledged records are counted as sent. The first failure ends the run. Values of options are never printed.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.command_line import UsageError, pair, read_properties
from spark_kafka_sink import stderr_log
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord

if TYPE_CHECKING:
    from spark_kafka_sink.producer.accumulator.delivery import Delivery
    from spark_kafka_sink.producer.producer_record import RecordMetadata

CHUNK_RECORDS = 10_000  # what Spark hands the sink at a time
THROTTLED_CHUNKS_PER_S = 100  # with --throughput, so that its limit holds within 10 ms too
POOL_BYTES = 32 * 1024 * 1024  # random payloads that are made before the clock starts, and then used in turn
PERCENTILES = (0.5, 0.95, 0.99, 0.999)
NS_PER_MS = 1_000_000
BUCKET_NS = 100_000  # latencies are counted by tenths of a millisecond
MB = 1024 * 1024


# --- arguments --------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="producer_perf",
        description="Write records to a topic and tell how many a second went through, and how long each took.",
        epilog="Exit codes: 0 every record was acknowledged, 1 one was not, 2 usage, 130 Ctrl-C. MB are 1,048,576 bytes.",
    )
    add = parser.add_argument
    add("--topic", required=True, help="topic to write to")
    add("--num-records", type=_positive, required=True, help="records to write")
    add("--throughput", type=float, default=-1, help="at most about so many records a second; -1: no limit (default)")
    add("--bootstrap-server", metavar="HOST:PORT,...", help="brokers; goes before the two below")
    properties = {"type": pair, "nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
    add("--command-property", "--producer-props", **properties, help="producer configuration; goes before the file's")  # type: ignore[arg-type]
    add("--command-config", "--producer.config", type=Path, metavar="FILE", help=".properties file of producer configuration")
    add("--warmup-records", type=int, default=0, help="first records left out of a second summary, of the steady state")
    add("--reporting-interval", type=_positive, default=5000, metavar="MS", help="between progress lines (default: %(default)s)")
    add("--print-metrics", action="store_true", help="print the producer's metrics at the end")
    add("--single", action="store_true", help="one send() with a callback per record, as in Java (default: columns)")
    chunk = f"records per chunk (default: {CHUNK_RECORDS}, or what --throughput allows in 10 ms)"
    add("--chunk-records", type=_positive, default=None, help=chunk)
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=_positive, metavar="BYTES", help="payloads of random letters")
    payload.add_argument(
        "--payload-file", type=Path, metavar="FILE", help="text file; its lines are the payloads, in random order"
    )
    payload.add_argument("--payload-monotonic", action="store_true", help="payloads are 0, 1, 2 …")
    add("--payload-delimiter", default="\\n", help="what parts payloads in --payload-file (default: %(default)s)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def producer_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The file, then --command-property, then --bootstrap-server. Raises UsageError."""
    options = {"client.id": "perf-producer-client"}
    if arguments.command_config is not None:
        options |= read_properties(arguments.command_config, "--command-config")
    options |= dict(arguments.command_property)
    if arguments.bootstrap_server:
        options["bootstrap.servers"] = arguments.bootstrap_server
    if not options.get("bootstrap.servers"):
        raise UsageError("--bootstrap-server is missing: pass it, or set bootstrap.servers in a --command-config file.")
    return options


# --- payloads ---------------------------------------------------------------------------------------------------------

Payloads = Callable[[int, int], pa.Array]  # (first record's number, how many) -> their values


def payloads(arguments: argparse.Namespace) -> Payloads:
    """Where values come from. Raises UsageError when the file has none."""
    random = np.random.default_rng(0)
    if arguments.payload_monotonic:
        return lambda first, count: pc.cast(pa.array(np.arange(first, first + count)), pa.string())
    if arguments.payload_file is not None:
        return _chosen_from(_read_payloads(arguments.payload_file, arguments.payload_delimiter), random)
    return _letters(arguments.record_size, arguments.num_records, random)


def _read_payloads(file: Path, delimiter: str) -> pa.Array:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--payload-file {file} cannot be read ({error}).") from error
    lines = text.split(delimiter.replace("\\n", "\n").replace("\\t", "\t") or "\n")
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError(f"--payload-file {file} holds no payload.")
    return pa.array(lines, pa.string())


def _chosen_from(values: pa.Array, random: np.random.Generator) -> Payloads:
    return lambda _first, count: values.take(pa.array(random.integers(0, len(values), count)))


def _letters(size: int, records: int, random: np.random.Generator) -> Payloads:
    """Values of `size` letters: a pool of them, made once, of which each chunk takes the next."""
    rows = max(1, min(records, max(CHUNK_RECORDS, POOL_BYTES // size)))
    rows = min(rows, 2**31 // size - 1 or 1)
    letters = random.integers(65, 91, rows * size, np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(size)
    pool = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])

    def next_of_pool(first: int, count: int) -> pa.Array:
        start = first % rows
        if start + count <= rows:
            return pool.slice(start, count)
        return pool.take(pa.array(np.arange(start, start + count) % rows))

    return next_of_pool


# --- statistics -------------------------------------------------------------------------------------------------------


class Statistics:
    """Counts acknowledged records and their latencies, in total and since the last progress line.

    Exact to a tenth of a millisecond, whatever the number of records. One thread at a time adds.
    """

    def __init__(self, started_ns: int, kind: str = "") -> None:
        self.records = 0
        self.bytes = 0
        self._kind = kind
        self._started_ns = started_ns
        self._last_ns = started_ns
        self._latency_ns = 0
        self._longest_ns = 0
        self._counts: Counter[int] = Counter()  # records by latency in BUCKET_NS, rounded up

    def add(self, records: int, size_bytes: int, latency_ns: int, settled_ns: int) -> None:
        self.records += records
        self.bytes += size_bytes
        self._latency_ns += latency_ns * records
        self._longest_ns = max(self._longest_ns, latency_ns)
        self._last_ns = max(self._last_ns, settled_ns)
        self._counts[-(-latency_ns // BUCKET_NS)] += records

    def percentiles_ms(self) -> list[float]:
        """Latencies that 50, 95, 99 and 99.9 % of the records did not exceed: nearest rank, every record counting once."""
        buckets = sorted(self._counts)
        ranks = np.cumsum([self._counts[bucket] for bucket in buckets])
        wanted = np.ceil(np.array(PERCENTILES) * self.records)
        found = np.searchsorted(ranks, wanted)
        return [buckets[index] * BUCKET_NS / NS_PER_MS for index in found.tolist()]

    def line(self, until_ns: int | None = None) -> str:
        """Rates from the start to the last acknowledgement, or until `until_ns`; latencies."""
        seconds = max(1, (until_ns or self._last_ns) - self._started_ns) / 1e9
        average_ms = self._latency_ns / max(1, self.records) / NS_PER_MS
        return (
            f"{self.records}{self._kind} records sent, {self.records / seconds:.1f} records/sec"
            f" ({self.bytes / seconds / MB:.2f} MB/sec), {average_ms:.1f} ms avg latency,"
            f" {self._longest_ns / NS_PER_MS:.1f} ms max latency"
        )

    def total_line(self) -> str:
        if not self.records:
            return f"0{self._kind} records sent."
        median, *others = self.percentiles_ms()
        names = ("95th", "99th", "99.9th")
        return (
            f"{self.line()}, {median:.1f} ms 50th, {', '.join(f'{ms:.1f} ms {n}' for ms, n in zip(others, names, strict=True))}."
        )


class Report:
    """What the run tells: a line each interval, the totals, and the first failure.

    `acknowledged` and `failed` are called by one thread: the caller's for columns, the Sender's for single records.
    """

    def __init__(self, clock: Clock, interval_ms: int, warmup_records: int, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._interval_ns = interval_ms * NS_PER_MS
        self._warmup_records = warmup_records
        self._say = say
        self._window_ns = self._started_ns = clock.now_ns()
        self._window = Statistics(self._window_ns)
        self.total = Statistics(self._started_ns)
        self.steady: Statistics | None = None
        self.failures = 0
        self.error: KafkaError | None = None

    def begin_steady(self) -> None:
        """The warm-up has been handed over: from now on, the steady state."""
        self.steady = Statistics(self._clock.now_ns(), " steady state")

    def acknowledged(self, first: int, records: int, size_bytes: int, started_ns: int, settled_ns: int) -> None:
        """Count records of which the first was the `first`-th handed over."""
        kinds = [self.total, self._window]
        if self.steady is not None and first >= self._warmup_records:
            kinds.append(self.steady)
        for statistics in kinds:
            statistics.add(records, size_bytes, settled_ns - started_ns, settled_ns)
        self.progress()

    def failed(self, records: int, error: KafkaError) -> None:
        self.failures += records
        self.error = self.error or error

    def progress(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns - self._window_ns >= self._interval_ns:
            self._say(f"{self._window.line(now_ns)}.")
            self._window_ns, self._window = now_ns, Statistics(now_ns)

    def until_next_line_ms(self) -> int:
        return max(1, (self._window_ns + self._interval_ns - self._clock.now_ns()) // NS_PER_MS)

    def say_totals(self) -> None:
        self._say(self.total.total_line())
        if self.steady is not None:
            self._say(self.steady.total_line())


# --- sending ----------------------------------------------------------------------------------------------------------


class Throttle:
    """Keeps a rate of records a second, counted from the start; after a pause it catches up. No limit below or at zero."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._started_ns = clock.now_ns()
        self._condition = threading.Condition()  # nobody notifies it: waiting for it is waiting for time

    def early_ms(self, sent: int) -> int:
        """How long to wait after so many records."""
        if self._per_second <= 0:
            return 0
        return round(sent / self._per_second * 1000) - (self._clock.now_ns() - self._started_ns) // NS_PER_MS

    def wait(self, sent: int) -> None:
        while (early_ms := self.early_ms(sent)) > 0:
            with self._condition:
                self._clock.wait(self._condition, early_ms)


def chunks(records: int, size: int, warmup: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each chunk; one ends where the warm-up does."""
    first = 0
    while first < records:
        end = min(first + size, records)
        end = min(end, warmup) if first < warmup else end
        yield first, end - first
        first = end


def send_columns(producer: KafkaProducer, arguments: argparse.Namespace, values: Payloads, report: Report, clock: Clock) -> None:
    """Hand all chunks over and wait until each is settled, which delivery.timeout.ms bounds; ends early after a failure."""
    throttle = Throttle(arguments.throughput, clock)
    pending: deque[tuple[int, int, int, Delivery]] = deque()  # first, bytes, hand-over in ns, handle
    for first, count in chunks(arguments.num_records, chunk_records(arguments), arguments.warmup_records):
        if first == arguments.warmup_records > 0:
            report.begin_steady()
        chunk = values(first, count)
        started_ns = clock.now_ns()
        try:
            delivery = producer.send_columns(arguments.topic, value=chunk)
        except KafkaError as error:
            report.failed(count, error)
            break
        pending.append((first, _size(chunk), started_ns, delivery))
        _settle(pending, report)
        if report.error is not None:
            break
        throttle.wait(first + count)
    while pending:
        _wait_for(pending[0][3], report.until_next_line_ms())
        _settle(pending, report)
        report.progress()


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
        return  # not settled yet, or failed: _settle looks


def _settle(pending: deque[tuple[int, int, int, Delivery]], report: Report) -> None:
    """Count chunks that are settled, and take them away. A later one may be settled before an earlier one."""
    for _ in range(len(pending)):
        first, size_bytes, started_ns, delivery = entry = pending.popleft()
        settled_ns = delivery.settled_ns
        if settled_ns is None:
            pending.append(entry)
            continue
        if delivery.acknowledged:
            size = size_bytes * delivery.acknowledged // delivery.rows
            report.acknowledged(first, delivery.acknowledged, size, started_ns, settled_ns)
        if delivery.error is not None:
            report.failed(delivery.failed, delivery.error)


def send_single(producer: KafkaProducer, arguments: argparse.Namespace, values: Payloads, report: Report, clock: Clock) -> None:
    """The same with one send() per record. Latencies are counted by the callbacks, on the Sender's thread."""
    throttle = Throttle(arguments.throughput, clock)
    throttled = arguments.throughput > 0
    for first, count in chunks(arguments.num_records, chunk_records(arguments), arguments.warmup_records):
        if first == arguments.warmup_records > 0:
            report.begin_steady()
        for number, value in enumerate(values(first, count).cast(pa.binary()).to_pylist(), first):
            callback = partial(_count_single, report, clock, number, len(value), clock.now_ns())
            producer.send(ProducerRecord(arguments.topic, value), callback)
            if throttled:
                throttle.wait(number + 1)
        if report.error is not None:
            break
    producer.flush()


def _count_single(
    report: Report,
    clock: Clock,
    number: int,
    size_bytes: int,
    started_ns: int,
    _metadata: RecordMetadata | None,
    error: KafkaError | None,
) -> None:
    if error is None:
        report.acknowledged(number, 1, size_bytes, started_ns, clock.now_ns())
    else:
        report.failed(1, error)


# --- running ----------------------------------------------------------------------------------------------------------


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
    """Write, and print lines. Returns the exit code; blocks until the last record is settled."""
    say = partial(print, flush=True)
    interrupted = False
    with KafkaProducer(options) as producer:
        report = Report(clock, arguments.reporting_interval, arguments.warmup_records, say)
        send = send_single if arguments.single else send_columns
        try:
            send(producer, arguments, values, report, clock)
        except KafkaError as error:
            report.failed(0, error)
        except KeyboardInterrupt:
            interrupted = True
            producer.close(0)
        report.say_totals()
        if arguments.print_metrics:
            say("\n".join(metric_lines(producer)))
    if interrupted:
        print("producer_perf: interrupted", file=sys.stderr)
        return 130
    if report.error is not None:
        failures = f" ({report.failures} records failed)" if report.failures else ""
        print(f"producer_perf: error: {report.error}{failures}", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 every record was acknowledged, 1 one was not, 2 usage, 130 Ctrl-C."""
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


if __name__ == "__main__":
    sys.exit(main())
