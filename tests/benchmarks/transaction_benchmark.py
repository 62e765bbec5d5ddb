"""What transactions cost: this producer's and Java's, with and without them, on one broker in one run.

    python -m tests.benchmarks.transaction_benchmark [--records 5000000] [--repeats 5] [--durations 100,1000] [--json FILE] …

Every run is a process of its own, and they take turns. First the throughput of columns, and of Java's ProducerPerformance with
the same values: idempotent, and in transactions of each duration. Seconds are from the first send to the end of the last commit,
or to the last acknowledgement where there is none; CPU is that of the whole process, start included (the JVM's start and warm-up
cost Java about 2 s). Then how many transactions of one record each are committed in a second, one after the other.
Figures are medians. "of own" compares with the same client's idempotent mode, "of java" with Java in the same mode. Nothing is
asserted: a time is not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

from jobs.kafka_jars import fetch_kafka, kafka_version
from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.clock import Clock
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.tools.perf.transaction_pace import TransactionPace
from tests.benchmarks import producer_benchmark
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.producer_benchmark import SAMPLES, children_cpu, new_topic, sample_values, settings
from tests.interop.java import run_java

ROOT = Path(__file__).resolve().parents[2]
OURS, JAVA = "ours", "java"


class Way(NamedTuple):
    """Who writes, and for how long a transaction is open; None: without transactions."""

    client: str
    duration_ms: int | None

    def __str__(self) -> str:
        return f"{self.client}, {'idempotent' if self.duration_ms is None else f'transactions of {self.duration_ms} ms'}"


@dataclass(frozen=True, slots=True)
class WayMedians:
    records_per_second: float
    client_cpu_s_per_million: float
    broker_cpu_s_per_million: float


@dataclass(frozen=True, slots=True)
class TransactionBenchmarkRun:
    """One call of this program: medians over the repeats."""

    command: str
    date: str
    machine: str
    versions: dict[str, str]
    what: str
    throughput: dict[Way, WayMedians]
    commits_per_second: dict[str, float]

    def of_own(self, way: Way) -> float:
        return self._rate(way) / self._rate(Way(way.client, None))

    def of_java(self, way: Way) -> float:
        return self._rate(way) / self._rate(Way(JAVA, way.duration_ms))

    def _rate(self, way: Way) -> float:
        return self.throughput[way].records_per_second

    def lines(self) -> Iterator[str]:
        yield self.what
        yield f"{'':32}{'records/s':>12}{'of own':>8}{'of java':>9}{'client CPU s/M':>16}{'broker CPU s/M':>16}"
        for way, measured in self.throughput.items():
            ratios = f"{self.of_own(way):>8.2f}{self.of_java(way):>9.2f}"
            cpu = f"{measured.client_cpu_s_per_million:>16.2f}{measured.broker_cpu_s_per_million:>16.2f}"
            yield f"{way!s:32}{measured.records_per_second:>12,.0f}{ratios}{cpu}"
        yield f"\n{'transactions of one record':32}{'commits/s':>12}{'of java':>17}"
        for client, rate in self.commits_per_second.items():
            yield f"{client:32}{rate:>12,.0f}{rate / self.commits_per_second[JAVA]:>17.2f}"

    def as_json(self) -> str:
        by_way = {str(way): asdict(each) for way, each in self.throughput.items()}
        return json.dumps(asdict(self) | {"throughput": by_way}, indent=2) + "\n"


# ONE RUN


def send_columns(arguments: argparse.Namespace) -> float:
    """Seconds for all records, in transactions when a duration is given."""
    import pyarrow as pa

    values = pa.array(sample_values(arguments.value_size), pa.binary())
    with KafkaProducer(_options(arguments)) as producer:
        producer.partitions_for(arguments.topic)
        pace = None
        if arguments.duration_ms is not None:
            producer.init_transactions()
            pace = TransactionPace(producer, arguments.duration_ms, Clock())
        deliveries = []
        started = time.monotonic()
        for sent_records in range(0, arguments.records, SAMPLES):
            if pace is not None:
                pace.begin_if_none()
            deliveries.append(producer.send_columns(arguments.topic, value=values[: arguments.records - sent_records]))
            if pace is not None:
                pace.commit_if_due(is_last=sent_records + SAMPLES >= arguments.records)
        producer.flush()
        seconds = time.monotonic() - started
        assert sum(delivery.acknowledged for delivery in deliveries) == arguments.records
        return seconds


def commit_one_by_one(arguments: argparse.Namespace) -> float:
    """Seconds for arguments.commits transactions of one record each, after some to warm up."""
    with KafkaProducer(_options(arguments)) as producer:
        producer.init_transactions()
        _commit(producer, arguments.topic, arguments.warm_up)
        started = time.monotonic()
        _commit(producer, arguments.topic, arguments.commits)
        return time.monotonic() - started


def _commit(producer: KafkaProducer, topic: str, transactions: int) -> None:
    for _ in range(transactions):
        producer.begin_transaction()
        producer.send(ProducerRecord(topic, b"x"))
        producer.commit_transaction()


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    return settings(arguments) | ({"transactional.id": arguments.transactional_id} if arguments.transactional_id else {})


RUNS = {"columns": send_columns, "commits": commit_one_by_one}


def run_ours(what: str, arguments: argparse.Namespace, duration_ms: int | None = None) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.transaction_benchmark", "--run", what]
    for option in ("servers", "topic", "records", "batch_size", "linger_ms", "codec", "value_size", "commits", "warm_up"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    if what == "commits" or duration_ms is not None:
        command += ["--transactional-id", _new_id()]
    if duration_ms is not None:
        command += ["--duration-ms", str(duration_ms)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, cwd=ROOT)
    return float(json.loads(done.stdout)["seconds"])


def run_java_columns(arguments: argparse.Namespace, folder: Path, duration_ms: int | None) -> float:
    more = () if duration_ms is None else ("--transactional-id", _new_id(), "--transaction-duration-ms", str(duration_ms))
    return producer_benchmark.run_java(arguments, arguments.records, folder, *more)


def run_java_commits(arguments: argparse.Namespace) -> float:
    options = [f"{key}={value}" for key, value in settings(arguments).items()]
    program = Path(__file__).with_name("CommitRate.java")
    program_arguments = (arguments.warm_up, arguments.commits, arguments.topic, f"transactional.id={_new_id()}", *options)
    return float(run_java(fetch_kafka(), program, *program_arguments).splitlines()[-1])


def _new_id() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


# ALL OF THEM


def measure(arguments: argparse.Namespace, broker: LocalKafka, folder: Path) -> TransactionBenchmarkRun:
    broker_pid = broker.nodes[1].pid
    assert broker_pid is not None
    ways = [Way(client, duration) for duration in (None, *arguments.durations) for client in (OURS, JAVA)]
    measurements: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in ways}
    commits: dict[str, list[float]] = {OURS: [], JAVA: []}
    millions = arguments.records / 1e6
    for repeat in range(arguments.repeats):
        forwards = repeat % 2 == 0  # no way always has the warmer, or the fuller, broker
        for way in ways if forwards else reversed(ways):
            arguments.topic = new_topic(broker, arguments.partitions)
            before = children_cpu(), cpu_seconds(broker_pid)
            if way.client == OURS:
                seconds = run_ours("columns", arguments, way.duration_ms)
            else:
                seconds = run_java_columns(arguments, folder, way.duration_ms)
            client, server = children_cpu() - before[0], cpu_seconds(broker_pid) - before[1]
            measurements[way].append((arguments.records / seconds, client / millions, server / millions))
        for client_name in commits if forwards else reversed(commits):
            arguments.topic = new_topic(broker, 1)
            seconds = run_ours("commits", arguments) if client_name == OURS else run_java_commits(arguments)
            commits[client_name].append(arguments.commits / seconds)
    return TransactionBenchmarkRun(
        command=f"python -m tests.benchmarks.transaction_benchmark {' '.join(sys.argv[1:])}".strip(),
        date=date.today().isoformat(),
        machine=f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})",
        versions={"Python": platform.python_version(), "Apache Kafka": kafka_version()},
        what=f"{arguments.records:,} records of {arguments.value_size} B, batch.size={arguments.batch_size},"
        f" linger.ms={arguments.linger_ms}, {arguments.codec}, {arguments.partitions} partitions,"
        f" medians of {arguments.repeats}",
        throughput={way: WayMedians(*map(statistics.median, zip(*each, strict=True))) for way, each in measurements.items()},
        commits_per_second={name: statistics.median(rates) for name, rates in commits.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=262_144)
    parser.add_argument("--linger-ms", type=int, default=20)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--durations", type=lambda text: [int(each) for each in text.split(",")], default=[100, 1000])
    parser.add_argument("--commits", type=int, default=2_000, help="transactions of one record")
    parser.add_argument("--warm-up", type=int, default=500, help="the same, before")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to a file too")
    for hidden in ("--run", "--servers", "--topic", "--transactional-id"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--duration-ms", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps({"seconds": RUNS[arguments.run](arguments)}))
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name, LocalKafka(Path(name) / "kafka", heap="1g") as broker:
        arguments.servers = broker.bootstrap_servers
        run = measure(arguments, broker, Path(name))
    print("\n".join(run.lines()))
    if arguments.json is not None:
        arguments.json.write_text(run.as_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
