"""Our producer beside Java's, confluent-kafka, aiokafka and kafka-python: one broker, one run, the same settings.

    python -m tests.benchmarks.producer_benchmark [--records 5000000] [--repeats 3] [--partition-counts 6,300] [--codec none] …

Every peer runs in a process of its own and in turn; rows/s is what it reports from its first send to its last acknowledgement,
CPU is that of its whole process, start included (the JVM's start and warm-up cost Java about 2 s). Records have a value of
printable text and, but for "keyed columns", no key. A topic has a record in each partition before anything is measured. Java
takes its values from a file, because making random ones costs ProducerPerformance more than sending them. Figures are medians,
ratios are against Java at the same batch.size. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from jobs.java import find_java
from jobs.kafka_jars import fetch_kafka
from jobs.local_kafka import LocalKafka
from tests.benchmarks.measuring import cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 20_000  # different values


def settings(arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "bootstrap.servers": arguments.servers,
        "batch.size": str(arguments.batch_size),
        "linger.ms": str(arguments.linger_ms),
        "compression.type": arguments.codec,
    }


def sample_values(size: int) -> list[bytes]:
    """Half of each value is a number that differs, half is text that does not."""
    half, text = size // 2, b"order shipped " * size
    return [b"%0*d%s" % (half, number * 2_654_435_761 % 10**half, text[: size - half]) for number in range(SAMPLES)]


# PEERS: each sends arguments.records records and returns the seconds from first send to last acknowledgement


def our_columns(arguments: argparse.Namespace, keyed: bool = False) -> float:
    import pyarrow as pa

    from spark_kafka_sink import KafkaProducer

    values = pa.array(sample_values(arguments.value_size), pa.binary())
    keys = pa.array([b"%08d" % number for number in range(SAMPLES)], pa.binary()) if keyed else None
    with KafkaProducer(settings(arguments)) as producer:
        producer.partitions_for(arguments.topic)
        started = time.monotonic()
        deliveries = [
            producer.send_columns(
                arguments.topic,
                value=values[: arguments.records - sent_records],
                key=keys and keys[: arguments.records - sent_records],
            )
            for sent_records in range(0, arguments.records, SAMPLES)
        ]
        producer.flush()
        assert sum(delivery.acknowledged for delivery in deliveries) == arguments.records
        return time.monotonic() - started


def our_records(arguments: argparse.Namespace) -> float:
    from spark_kafka_sink import KafkaProducer
    from spark_kafka_sink.producer.producer_record import ProducerRecord

    values, acknowledged = sample_values(arguments.value_size), 0

    def count(_: object, error: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    with KafkaProducer(settings(arguments)) as producer:
        producer.partitions_for(arguments.topic)
        started = time.monotonic()
        for number in range(arguments.records):
            producer.send(ProducerRecord(arguments.topic, values[number % SAMPLES]), count)
        producer.flush()
        assert acknowledged == arguments.records
        return time.monotonic() - started


def confluent(arguments: argparse.Namespace, with_callback: bool) -> float:
    from confluent_kafka import Producer

    values, acknowledged = sample_values(arguments.value_size), 0

    def count(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    more = {"enable.idempotence": True, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 65_536}
    producer = Producer(settings(arguments) | more)
    producer.list_topics(arguments.topic, timeout=10)
    callback = count if with_callback else None
    started = time.monotonic()
    for number in range(arguments.records):
        while True:
            try:
                producer.produce(arguments.topic, values[number % SAMPLES], on_delivery=callback)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    assert not with_callback or acknowledged == arguments.records
    return time.monotonic() - started


def kafka_python(arguments: argparse.Namespace) -> float:
    from kafka import KafkaProducer

    codec = None if arguments.codec == "none" else arguments.codec
    values = sample_values(arguments.value_size)
    producer = KafkaProducer(
        bootstrap_servers=arguments.servers,
        batch_size=arguments.batch_size,
        linger_ms=arguments.linger_ms,
        compression_type=codec,
    )
    producer.partitions_for(arguments.topic)
    started = time.monotonic()
    for number in range(arguments.records):
        producer.send(arguments.topic, values[number % SAMPLES])
    producer.flush()
    seconds = time.monotonic() - started
    producer.close()
    return seconds


def aiokafka(arguments: argparse.Namespace) -> float:
    return asyncio.run(_aiokafka(arguments))


async def _aiokafka(arguments: argparse.Namespace) -> float:
    from aiokafka import AIOKafkaProducer

    codec = None if arguments.codec == "none" else arguments.codec
    values = sample_values(arguments.value_size)
    producer = AIOKafkaProducer(
        bootstrap_servers=arguments.servers,
        max_batch_size=arguments.batch_size,
        linger_ms=arguments.linger_ms,
        compression_type=codec,
        enable_idempotence=True,
    )
    await producer.start()
    started = time.monotonic()
    for number in range(arguments.records):
        await producer.send(arguments.topic, values[number % SAMPLES])
    await producer.flush()
    seconds = time.monotonic() - started
    await producer.stop()
    return seconds


PEERS: dict[str, Callable[[argparse.Namespace], float]] = {
    "ours, columns": our_columns,
    "ours, keyed columns": lambda arguments: our_columns(arguments, keyed=True),
    "ours, records": our_records,
    "confluent-kafka": lambda arguments: confluent(arguments, with_callback=False),
    "confluent-kafka, callback": lambda arguments: confluent(arguments, with_callback=True),
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}
JAVA = "java"
SMALL_LOGS = {"retention.bytes": "100000000", "segment.bytes": "50000000"}
SHARES = {  # the slow ones send so many times fewer records
    "ours, records": 5,
    "confluent-kafka": 2,
    "confluent-kafka, callback": 2,
    "aiokafka": 25,
    "kafka-python": 50,
}


# RUNNING THEM


def run_java(arguments: argparse.Namespace, records: int, folder: Path, *more: str) -> float:
    """Seconds of ProducerPerformance, with `more` arguments."""
    payload = folder / "values.txt"
    payload.write_bytes(b"\n".join(sample_values(arguments.value_size)))
    logging = f"-Dlog4j2.configurationFile={ROOT / 'conf' / 'kafka-tools-log4j2.properties'}"
    command = [str(find_java()), "-Xmx512m", logging, "-cp", f"{fetch_kafka()}/*", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", arguments.topic, "--num-records", str(records), "--throughput", "-1"]
    command += ["--payload-file", str(payload), *more, "--producer-props"]
    command += [f"{key}={value}" for key, value in settings(arguments).items()]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    rates = re.findall(r"([0-9.]+) records/sec", printed)
    return records / float(rates[-1])


def run_peer(name: str, arguments: argparse.Namespace, records: int) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.producer_benchmark", "--run", name, "--records", str(records)]
    for option in ("servers", "topic", "batch_size", "linger_ms", "codec", "value_size"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, cwd=ROOT).stdout
    return float(json.loads(printed)["seconds"])


def new_topic(broker: LocalKafka, partitions: int) -> str:
    """With a record in each partition: what a new log costs the broker is not to be measured."""
    import pyarrow as pa

    from spark_kafka_sink import KafkaProducer

    topic = f"bench-{uuid.uuid4().hex[:12]}"
    broker.create_topic(topic, partitions, SMALL_LOGS)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_columns(
            topic, value=pa.array([b"first"] * partitions), partition=pa.array(range(partitions), pa.int32())
        ).result()
    return topic


def compare(arguments: argparse.Namespace, broker: LocalKafka, folder: Path) -> None:
    broker_pid = broker.nodes[1].pid
    assert broker_pid is not None
    names = [JAVA, *(name for name in PEERS if name in arguments.peers or not arguments.peers)]
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for _ in range(arguments.repeats):
        for name in names:
            arguments.topic = new_topic(broker, arguments.partitions)
            records = arguments.records // SHARES.get(name, 1)
            before = children_cpu(), cpu_seconds(broker_pid)
            seconds = run_java(arguments, records, folder) if name == JAVA else run_peer(name, arguments, records)
            client, server = children_cpu() - before[0], cpu_seconds(broker_pid) - before[1]
            results[name].append((records / seconds, client / records * 1e6, server / records * 1e6))
    what = f"{arguments.records:,} records of {arguments.value_size} B, batch.size={arguments.batch_size}"
    more = (
        f"linger.ms={arguments.linger_ms}, {arguments.codec}, {arguments.partitions} partitions, medians of {arguments.repeats}"
    )
    print(f"\n{what}, {more}")
    print(f"{'':28}{'records/s':>12}{'ratio':>8}{'client CPU s/M':>16}{'broker CPU s/M':>16}")
    java = statistics.median(rate for rate, _, _ in results[JAVA])
    for name, measured in results.items():
        rate, client, server = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"{name:28}{rate:>12,.0f}{rate / java:>8.2f}{client:>16.2f}{server:>16.2f}", flush=True)


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000, help="of the fast peers; the slow ones send a share of them")
    parser.add_argument("--value-size", type=int, default=100)
    parser.add_argument("--batch-sizes", default="262144,16384")
    parser.add_argument("--batch-size", type=int, default=16_384, help=argparse.SUPPRESS)
    parser.add_argument("--linger-ms", type=int, default=20)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--partition-counts", default="6", help="one or more, like 6,300")
    parser.add_argument("--partitions", type=int, default=6, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=[], help=f"of {', '.join(PEERS)}; Java is always there")
    for hidden in ("--run", "--servers", "--topic"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps({"seconds": PEERS[arguments.run](arguments)}))
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as name, LocalKafka(Path(name) / "kafka", heap="1g") as broker:
        arguments.servers = broker.bootstrap_servers
        for batch_size in map(int, arguments.batch_sizes.split(",")):
            for partitions in map(int, arguments.partition_counts.split(",")):
                arguments.batch_size, arguments.partitions = batch_size, partitions
                compare(arguments, broker, Path(name))


if __name__ == "__main__":
    main()
