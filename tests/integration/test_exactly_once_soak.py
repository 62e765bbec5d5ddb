"""Hundreds of micro-batches while workers, executors, driver and brokers are killed by a seeded schedule; an audit of each row.

The dice for processes of Spark are thrown at each step of the protocol (dying_sink.py), those for brokers between two looks at
the stream. A failure names its seed, and leaves the list of deaths in the order in which they came: EXACTLY_ONCE_SOAK_SEED=7
repeats what a seed can repeat, EXACTLY_ONCE_SOAK_BATCHES=40 makes a short run, in which not everything need die, and
EXACTLY_ONCE_SOAK_LEVEL=0 has brokers with this level of transaction.version.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from tests.broker_properties import QUICK_SESSIONS, QUICK_TIMEOUTS
from tests.integration.exactly_once_world import OPEN
from tests.integration.processes import until
from tests.integration.programs import DYING_STREAM, SETTINGS, SINKS, Program
from tests.integration.reading import READERS

ENOUGH_BATCHES = 240  # for each victim to die
BATCHES = int(os.environ.get("EXACTLY_ONCE_SOAK_BATCHES", ENOUGH_BATCHES))
LEVEL = int(os.environ.get("EXACTLY_ONCE_SOAK_LEVEL", "2"))
BATCH_ROWS, PARTITIONS = 60, 3
MOST_LIVES = 150
LIFE_LIMIT_S = 1_200
BROKER_LIVES_S = (5.0, 25.0)  # between the return of a broker and the death of the next one
BROKER_DEATH_S = (0.0, 6.0)
CHANCE = {"driver": 0.004, "executor": 0.0008, "worker": 0.0015}  # at each of some 25 steps of a commit, 18 of a task attempt
NAME = "soak"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(9_000)]


class DyingBrokers:
    """Kills one broker of three after the other, while the block runs; each is back before the next one dies."""

    def __init__(self, cluster: LocalKafka, seed: int) -> None:
        self.deaths = 0
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._kill_all)

    def __enter__(self) -> DyingBrokers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(120)
        if self._error is not None:
            raise self._error

    def _kill_all(self) -> None:
        try:
            while not self._ends.wait(self._chance.uniform(*BROKER_LIVES_S)):
                node = self._chance.randrange(1, 4)
                self._cluster.kill(node)
                self.deaths += 1
                self._ends.wait(self._chance.uniform(*BROKER_DEATH_S))
                self._cluster.restart(node)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._error = error


@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize(
    ("sink", "seed"),
    [pytest.param("stream", 1), pytest.param("foreachBatch", 2)],
    ids=["stream", "foreachBatch"],
)
def test_hundreds_of_batches_amid_deaths_are_there_once(tmp_path: Path, sink: str, seed: int) -> None:
    seed = int(os.environ.get("EXACTLY_ONCE_SOAK_SEED", seed))
    level = ("--feature", f"transaction.version={LEVEL}")
    properties = {**QUICK_TIMEOUTS, **QUICK_SESSIONS}
    with LocalKafka(tmp_path / "kafka", brokers=3, properties=properties, format_options=level) as cluster:
        cluster.create_topic(NAME, 4, {"min.insync.replicas": "2"})
        code = _program(cluster, tmp_path, sink)
        started = time.monotonic()
        with DyingBrokers(cluster, seed) as brokers:
            lives = _live(tmp_path, code, seed)
        took_s = time.monotonic() - started
        deaths = Counter(mark.name.partition(", ")[0].rpartition("-")[2] for mark in (tmp_path / "marks").iterdir())
        print(
            f"{sink}, seed {seed}: {BATCHES} batches in {took_s:.0f} s and {lives} lives; died: {dict(deaths)}, brokers"
            f" {brokers.deaths} times"
        )
        _audit(cluster, tmp_path)
        if BATCHES >= ENOUGH_BATCHES:
            assert min(deaths[victim] for victim in CHANCE) >= 1, deaths
            assert brokers.deaths >= 3


def _program(cluster: LocalKafka, directory: Path, sink: str) -> str:
    source = directory / "source"
    source.mkdir()
    for batch in range(BATCHES):
        rows = range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)
        (source / f"{batch:05}.json").write_text("".join(f'{{"value": "{number}"}}\n' for number in rows))
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": NAME,
        "deliveryGuarantee": "exactly-once",
        "transactionalIdPrefix": NAME,
        "reportPath": str(directory / "report.jsonl"),
    }
    settings = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.sql.adaptive.enabled": "false"}
    return DYING_STREAM.format(
        master="local-cluster[2,1,1024]",
        settings=SETTINGS | settings,
        source=str(source),
        options=options,
        sink=SINKS[sink],
        checkpoint=str(directory / "checkpoint"),
    )


def _live(directory: Path, code: str, seed: int) -> int:
    """Start the program until it has come to its end; how many lives that took."""
    marks, settings = directory / "marks", directory / "dying.json"
    marks.mkdir()
    commits = directory / "checkpoint" / "commits"
    for life in range(1, MOST_LIVES + 1):
        settings.write_text(json.dumps({"marks": str(marks), "seed": seed, "life": life, "chance": CHANCE}))
        before = _committed(commits)
        program = Program(directory, code, DYING=str(settings))
        if program.wait(LIFE_LIMIT_S) == 0:
            return life
        print(f"life {life}: batches {before} to {_committed(commits)}")
    raise AssertionError(f"seed {seed}: not at its end after {MOST_LIVES} lives: {program.log()[-6000:]}")


def _committed(commits: Path) -> int:
    """How many micro-batches; Spark removes the files of old ones."""
    return max((int(file.name) + 1 for file in commits.glob("[0-9]*")), default=0)


def _audit(cluster: LocalKafka, directory: Path) -> None:
    with TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}) as client:
        until(lambda: not client.list_transactions(f"{NAME}-", OPEN), 60, "no transaction is open")
    records = READERS["confluent-kafka"](cluster.bootstrap_servers, NAME, isolation_level="read_committed")
    counts = Counter(int(record.value or b"-1") for record in records)
    lost_rows = [row for row in range(BATCHES * BATCH_ROWS) if not counts[row]]
    doubled_rows = [row for row, times in counts.items() if times > 1]
    assert (lost_rows, doubled_rows) == ([], [])
    assert counts.total() == BATCHES * BATCH_ROWS
    reports = [json.loads(line)["exactly_once"] for line in (directory / "report.jsonl").read_text().splitlines()]
    assert {each["version"] for each in reports} == set(range(BATCHES))
    print(f"how: {dict(Counter(each['how'] for each in reports))}")
