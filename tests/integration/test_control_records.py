"""Brokers that leave out control records: what exactly-once writes lose and double, told by control_records.py with real brokers.

Three versions of Kafka, one without that fault, and each transaction.version. The table at the end has a line for each story.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.errors import KafkaError
from tests.broker_properties import QUICK_SESSIONS, QUICK_TIMEOUTS
from tests.fakes.fault_proxy import ProxiedKafka
from tests.integration.control_records import (
    OWNER,
    Moment,
    Outcome,
    Place,
    Return,
    Storyteller,
    abort,
    leaders,
    make_offsets_topic,
    offsets_properties,
    repetitions,
    rows,
    tell,
)
from tests.integration.sasl_cluster import allow, client_options, sasl_cluster

WITHOUT_FAULT = "4.2.0"
VERSIONS = (WITHOUT_FAULT, "4.3.1", "4.4.0")
PROPERTIES = {**QUICK_SESSIONS, **QUICK_TIMEOUTS}
KILLS = int(os.environ.get("CONTROL_RECORDS_KILLS", "20"))
TIMEOUT_MS = 3_000  # of the transactions that time out
ROLLS = 2


class Brokers(NamedTuple):
    version: str | None  # None: the default
    level: int  # of the feature transaction.version
    place: Place = Place.ROWS

    def __str__(self) -> str:
        return f"{self.version or 'default'}-TV{self.level}-{self.place.value}"

    @property
    def format_options(self) -> tuple[str, str]:
        return "--feature", f"transaction.version={self.level}"

    def start(self, directory: Path) -> ProxiedKafka:
        properties = {**PROPERTIES, **offsets_properties(self.place)}
        return ProxiedKafka(directory, brokers=3, version=self.version, properties=properties, format_options=self.format_options)


EVERY_LEVEL = [Brokers(version, level, place) for version in VERSIONS for level in (2, 1, 0) for place in Place]
_table: list[tuple[str, str, Outcome]] = []


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    """Printed when all stories are told: figures that can be quoted."""
    _table.clear()
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        for brokers, story, outcome in _table:
            print(f"{brokers:22} | {story:72} | {outcome}")


def note(brokers: Brokers, story: str, outcome: Outcome, *, may_suspect: bool = False) -> None:
    """`may_suspect`: the login cannot see whose rows stand still, and repeats a decision without need."""
    if brokers.version == WITHOUT_FAULT and not may_suspect and outcome.repeated:
        outcome.faults.append(f"{outcome.repeated} decisions were repeated on a broker without the fault")
    _table.append((str(brokers), story, outcome))


def fail_of(outcomes: Iterable[Outcome]) -> None:
    """Fail if any of them has a fault."""
    if faults := [fault for outcome in outcomes for fault in outcome.faults]:
        pytest.fail("\n".join(faults), pytrace=False)


def check(brokers: Brokers, story: str, outcome: Outcome, *, may_suspect: bool = False) -> None:
    note(brokers, story, outcome, may_suspect=may_suspect)
    fail_of([outcome])


# THREE BROKERS, AND ONE OF THEM STOPS


@pytest.fixture(scope="module", params=[pytest.param(each, marks=pytest.mark.matrix, id=str(each)) for each in EVERY_LEVEL])
def brokers(request: pytest.FixtureRequest) -> Brokers:
    made: Brokers = request.param
    return made


@pytest.fixture(scope="module")
def cluster(brokers: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:
    with brokers.start(tmp_path_factory.mktemp("brokers")) as cluster:
        make_offsets_topic(cluster)
        yield cluster


@pytest.mark.parametrize("back", Return, ids=lambda back: back.name)
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.name)
def test_a_write_is_seen_once_although_a_partition_had_no_leader_at_its_end(
    brokers: Brokers, cluster: ProxiedKafka, moment: Moment, back: Return
) -> None:
    """Rows were doubled, or reported and lost. With READ on the topic, nothing is repeated without need."""
    if brokers.level < 2 and back is Return.LATER:
        pytest.skip("between the other two, which all levels are tried with")
    check(brokers, f"{moment.value}, back {back.value}", tell(cluster, brokers.place, moment, back))


@pytest.mark.slow
def test_a_broker_that_stops_at_the_end_of_a_write_neither_doubles_nor_loses_rows(tmp_path: Path) -> None:
    """The rows of a failed write were seen beside those of its repetition. Those of a write that was reported were not seen, and
    the next write that failed took them away."""
    brokers = Brokers(None, 2)
    with brokers.start(tmp_path) as cluster:
        make_offsets_topic(cluster)
        for moment in (Moment.ABORT, Moment.DECIDED):
            note(brokers, f"{moment.value}, back at once", tell(cluster, Place.ROWS, moment, Return.AT_ONCE))
    fail_of(outcome for _, _, outcome in _table[-2:])


# TWO BROKERS, ONE AFTER THE OTHER


@pytest.mark.parametrize("replicas", [3, 2])
def test_writes_while_two_brokers_restart_in_turn(brokers: Brokers, cluster: ProxiedKafka, replicas: int) -> None:
    """Each is killed as soon as the other one answers, and is not in sync yet: with two replicas, none can lead for a while."""
    if brokers.place is Place.MARKERS:
        pytest.skip("groups without a coordinator are what the other stories are about")
    chance = random.Random(replicas)
    started = time.monotonic()
    with ExitStack() as stack:
        repeated = stack.enter_context(repetitions())
        teller = Storyteller(cluster, stack, replicas=replicas)
        nodes = sorted(set.union(*leaders(cluster, teller.world.topic).values()))[:2]
        rolling = stack.enter_context(ThreadPoolExecutor(1)).submit(roll, cluster, nodes)
        version = 0
        while not rolling.done() or version < 3:
            if chance.random() < 0.5:
                failing = teller.run()
                with contextlib.suppress(KafkaError):  # it fails in any case
                    failing.reports(version, *rows(version))
                abort(failing)
            teller.recover(version, runs=6, looks=False)
            version += 1
        rolling.result()
        teller.look("at the end")
    teller.outcome.repeated, teller.outcome.took_s = len(repeated), time.monotonic() - started
    teller.outcome.ending = f"{version} versions{teller.outcome.ending}"
    check(brokers, f"two brokers restart in turn, {replicas} replicas", teller.outcome)


def roll(cluster: LocalKafka, nodes: list[int]) -> None:
    for _ in range(ROLLS):
        for node in nodes:
            cluster.kill(node)
            cluster.restart(node)


# ONE BROKER


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("amid", ["open transactions", "commits"])
@pytest.mark.parametrize("brokers", [each for each in EVERY_LEVEL if each.place is Place.ROWS], ids=str)
def test_a_broker_that_is_killed_again_and_again(tmp_path: Path, brokers: Brokers, amid: str) -> None:
    """Its transactions time out while it is down, and end as it starts: its own partitions may have no leader then. Or it dies
    between the word that a commit has begun and the control records. CONTROL_RECORDS_KILLS=4 makes a short run."""
    started = time.monotonic()
    with (
        LocalKafka(tmp_path, version=brokers.version, properties=PROPERTIES, format_options=brokers.format_options) as cluster,
        ExitStack() as stack,
    ):
        repeated = stack.enter_context(repetitions())
        teller = Storyteller(cluster, stack, replicas=1)
        for version in range(KILLS):
            run = teller.run()
            if amid == "commits":
                decision = run.decide(run.reports(version, *rows(version)), run.ledger.fetch_decision())
                transactions = [entry.prepared_transaction(run.names, OWNER) for entry in decision.entries]
                run.client.end_transactions(transactions, commit=True)
                cluster.kill(1)
            else:
                for partition, texts in enumerate(rows(version)):
                    run.task(version, partition, *texts, timeout_ms=TIMEOUT_MS).run()
                cluster.kill(1)
                threading.Event().wait(TIMEOUT_MS / 1000)  # until they are too old
            cluster.restart(1)
            teller.recover(version)
    teller.outcome.repeated, teller.outcome.took_s = len(repeated), time.monotonic() - started
    teller.outcome.ending = f"{KILLS} versions{teller.outcome.ending}"
    check(brokers, f"killed {KILLS} times with {amid}", teller.outcome)


# WITHOUT READ


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_a_login_that_may_not_read_the_topic_settles_on_suspicion(tmp_path: Path, version: str) -> None:
    """It may write and describe; READ on another topic, which the markers name, and on their groups, are as the docs say."""
    brokers = Brokers(version, 2)
    properties = {**PROPERTIES, **offsets_properties(Place.ROWS)}
    with sasl_cluster(tmp_path, properties, brokers.format_options, brokers=3, version=version) as cluster:
        cluster.create_topic("markers")
        make_offsets_topic(cluster)
        allow(cluster, "alice", "WRITE", "prefix-exactly-once-", "TRANSACTIONAL_ID")
        allow(cluster, "alice", "READ", "prefix-exactly-once-", "GROUP")
        allow(cluster, "alice", "READ", "markers")
        allow(cluster, "alice", "WRITE", "topic-exactly-once-")
        alice = {"address": cluster.bootstrap_servers_for("SASL_PLAINTEXT"), "login": client_options("PLAIN")}
        for moment in (Moment.ABORT, Moment.TASKS_END):
            outcome = tell(cluster, Place.ROWS, moment, Return.AT_ONCE, marker_topic="markers", **alice)
            check(brokers, f"without READ on the topic: {moment.value}, back at once", outcome, may_suspect=True)
