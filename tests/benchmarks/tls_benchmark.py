"""What TLS costs: throughput and time to the first acknowledgement, beside the Java client's, on one broker in one run.

    python -m tests.benchmarks.tls_benchmark [--records 3000000] [--repeats 3] [--batch-size 262144] [--versions TLSv1.3 TLSv1.2]

Every run is a process of its own and they take turns: this producer's columns and Java's ProducerPerformance, without and with
TLS. `first ack` is the time from the first send of a new producer to its acknowledgement, which holds two connections (the
bootstrap server's and the leader's) and their handshakes: cold is the first of a process, warm the median of the later producers
of the same process. Figures are medians; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pyarrow as pa

from jobs.java import find_java
from jobs.kafka_jars import fetch_kafka
from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.producer_benchmark import SAMPLES, SMALL_LOGS, children_cpu, sample_values
from tests.fakes.certificates import Authority
from tests.interop.java import run_java

ROOT = Path(__file__).resolve().parents[2]
PLAINTEXT = "PLAINTEXT"
OURS, JAVA = "ours", "java"


# ONE RUN


def send_columns(options: dict[str, str], arguments: argparse.Namespace) -> float:
    """Seconds from the first send to the last acknowledgement."""
    values = pa.array(sample_values(arguments.value_size), pa.binary())
    with KafkaProducer(options) as producer:
        producer.partitions_for(arguments.topic)
        started = time.monotonic()
        deliveries = [
            producer.send_columns(arguments.topic, value=values.slice(0, min(SAMPLES, arguments.records - sent_records)))
            for sent_records in range(0, arguments.records, SAMPLES)
        ]
        producer.flush()
        assert sum(delivery.acknowledged for delivery in deliveries) == arguments.records
        return time.monotonic() - started


def first_acks(options: dict[str, str], arguments: argparse.Namespace) -> list[float]:
    """Seconds to the first acknowledgement of one new producer after another."""
    value, seconds = pa.array([b"x"], pa.binary()), []
    for _ in range(arguments.producers):
        with KafkaProducer(options | {"linger.ms": "0"}) as producer:
            started = time.monotonic()
            producer.send_columns(arguments.topic, value=value).result(30_000)
            seconds.append(time.monotonic() - started)
    return seconds


def run_ours(what: str, options: dict[str, str], arguments: argparse.Namespace) -> list[float]:
    command = [sys.executable, "-m", "tests.benchmarks.tls_benchmark", "--run", what, "--topic", arguments.topic]
    for option in ("records", "value_size", "producers"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    printed = subprocess.run(
        command, input=json.dumps(options), capture_output=True, text=True, check=True, timeout=600, cwd=ROOT
    ).stdout
    seconds: list[float] = json.loads(printed)
    return seconds


def java_rate(options: dict[str, str], arguments: argparse.Namespace, folder: Path) -> float:
    """Records per second."""
    payload = folder / "values.txt"
    payload.write_bytes(b"\n".join(sample_values(arguments.value_size)))
    logging = f"-Dlog4j2.configurationFile={ROOT / 'conf' / 'kafka-tools-log4j2.properties'}"
    command = [str(find_java()), "-Xmx512m", logging, "-cp", f"{fetch_kafka()}/*", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", arguments.topic, "--num-records", str(arguments.records), "--throughput", "-1"]
    command += ["--payload-file", str(payload), "--producer-props", *(f"{key}={value}" for key, value in options.items())]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return float(re.findall(r"([0-9.]+) records/sec", printed)[-1])


def java_first_acks(options: dict[str, str], arguments: argparse.Namespace) -> list[float]:
    program = Path(__file__).with_name("FirstAck.java")
    properties = [f"{key}={value}" for key, value in (options | {"linger.ms": "0"}).items()]
    printed = run_java(fetch_kafka(), program, arguments.producers, arguments.topic, *properties)
    seconds: list[float] = json.loads(printed.splitlines()[-1])
    return seconds


# ALL OF THEM


def compare(arguments: argparse.Namespace, broker: LocalKafka, ways: dict[str, dict[str, str]], folder: Path) -> None:
    broker_pid = broker.nodes[1].pid
    assert broker_pid is not None
    rates: dict[tuple[str, str], list[tuple[float, float, float]]] = {(who, way): [] for way in ways for who in (OURS, JAVA)}
    cold: dict[tuple[str, str], list[float]] = {run: [] for run in rates}
    warm: dict[tuple[str, str], list[float]] = {run: [] for run in rates}
    for _ in range(arguments.repeats):
        for who, way in rates:
            arguments.topic = f"bench-{uuid.uuid4().hex[:12]}"
            broker.create_topic(arguments.topic, arguments.partitions, SMALL_LOGS)
            before = children_cpu(), cpu_seconds(broker_pid)
            if who == OURS:
                rate = arguments.records / run_ours("columns", ways[way], arguments)[0]
            else:
                rate = java_rate(ways[way], arguments, folder)
            millions = arguments.records / 1e6
            client, server = children_cpu() - before[0], cpu_seconds(broker_pid) - before[1]
            rates[who, way].append((rate, client / millions, server / millions))
            run = run_ours("first-acks", ways[way], arguments) if who == OURS else java_first_acks(ways[way], arguments)
            cold[who, way].append(run[0])
            warm[who, way].append(statistics.median(run[1:]))
    print_table(arguments, rates, cold, warm)


def print_table(
    arguments: argparse.Namespace,
    rates: dict[tuple[str, str], list[tuple[float, float, float]]],
    cold: dict[tuple[str, str], list[float]],
    warm: dict[tuple[str, str], list[float]],
) -> None:
    what = f"{arguments.records:,} records of {arguments.value_size} B, batch.size={arguments.batch_size}"
    print(f"\n{what}, linger.ms={arguments.linger_ms}, {arguments.partitions} partitions, medians of {arguments.repeats}")
    columns = f"{'records/s':>12}{'of plain':>10}{'of java':>9}{'client CPU s/M':>16}{'broker CPU s/M':>16}"
    print(f"{'':20}{columns}{'first ack, cold':>17}{'warm':>9}")
    medians = {run: [statistics.median(column) for column in zip(*measured, strict=True)] for run, measured in rates.items()}
    for (who, way), (rate, client, server) in medians.items():
        plain, java = medians[who, PLAINTEXT][0], medians[JAVA, way][0]
        later = f"{statistics.median(warm[who, way]) * 1000:.1f} ms"
        first = f"{statistics.median(cold[who, way]) * 1000:.0f} ms"
        figures = f"{rate:>12,.0f}{rate / plain:>10.2f}{rate / java:>9.2f}{client:>16.2f}{server:>16.2f}"
        print(f"{f'{who}, {way}':20}{figures}{first:>17}{later:>9}", flush=True)


def broker_with_tls(folder: Path) -> LocalKafka:
    authority = Authority("ca")
    certificate = authority.issue("broker")
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "broker.pem").write_text(certificate.key_pem() + certificate.chain_pem)
    properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "broker.pem")}
    return LocalKafka(folder / "kafka", heap="1g", properties=properties, extra_listeners=["SSL"])


def ways_of(arguments: argparse.Namespace, broker: LocalKafka, folder: Path) -> dict[str, dict[str, str]]:
    """The configurations, for both clients."""
    common = {"batch.size": str(arguments.batch_size), "linger.ms": str(arguments.linger_ms)}
    trust = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem")}
    ways = {PLAINTEXT: common | {"bootstrap.servers": broker.bootstrap_servers}}
    for version in arguments.versions:
        ways[version] = common | trust | {
            "bootstrap.servers": broker.bootstrap_servers_for("SSL"),
            "ssl.enabled.protocols": version,
        }  # fmt: skip
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=262_144)
    parser.add_argument("--linger-ms", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--producers", type=int, default=20, help="new producers for `first ack, warm`")
    parser.add_argument("--versions", nargs="+", default=["TLSv1.3"])
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        options = json.load(sys.stdin)
        print(json.dumps([send_columns(options, arguments)] if arguments.run == "columns" else first_acks(options, arguments)))
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with broker_with_tls(folder) as broker:
            compare(arguments, broker, ways_of(arguments, broker, folder), folder)


if __name__ == "__main__":
    main()
