"""`transactions` with a real broker: transactions of processes that were killed, and of one that goes on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer, ProducerRecord
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState
from spark_kafka_sink.exactly_once.names import FIRST_SLOT, AttemptId, PrefixNames, escape_name, id_number
from spark_kafka_sink.exactly_once.version_commit import HowCommitted
from spark_kafka_sink.exactly_once.writes import Content
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.broker_properties import QUICK_SESSIONS, QUICK_TIMEOUTS
from tests.exactly_once.stepwise_writes import DriverRun
from tests.integration.control_records import Outage
from tests.integration.reading import ReadTopic, Topic
from tests.integration.sasl_cluster import allow, client_options, sasl_cluster

pytestmark = pytest.mark.broker

LIMIT_S = 60
# Writes a row to each partition in one transaction, says so, and with `on` goes on writing rows.
WRITER = """
import sys, time
from spark_kafka_sink import KafkaProducer, ProducerRecord
address, topic, transactional_id, partitions, goes_on = sys.argv[1:]
producer = KafkaProducer({"bootstrap.servers": address, "transactional.id": transactional_id, "linger.ms": "0"})
producer.init_transactions()
producer.begin_transaction()
while True:
    for partition in range(int(partitions)):
        producer.send(ProducerRecord(topic, b"row", partition=partition))
    producer.flush()
    print("written", flush=True)
    time.sleep(0.2 if goes_on == "on" else 3600)
"""
# A task of a batch write, as Spark would run it: its rows do not come, or not all of them. Says so, and waits.
WAITING_TASK = """
import sys, time
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType
from spark_kafka_sink.sink.datasource import KafkaDataSource
address, topic, prefix, rows = sys.argv[1:]
def batches():
    if int(rows):
        yield pa.RecordBatch.from_arrays([pa.array(["row"] * int(rows))], names=["value"])
    print("written", flush=True)
    time.sleep(3600)
options = {"kafka.bootstrap.servers": address, "topic": topic, "deliveryGuarantee": "exactly-once",
           "transactionalIdPrefix": prefix, "allowUnnamedWrite": "true"}
source = KafkaDataSource(CaseInsensitiveDict(options))
source.writer(StructType([StructField("value", StringType())]), False).write(batches())
"""


@contextmanager
def writer(broker: LocalKafka, topic: str, transactional_id: str, *, goes_on: bool, partitions: int = 2) -> Iterator[None]:
    """A process with an open transaction. Killed at the end of the block."""
    with script(WRITER, broker.bootstrap_servers, topic, transactional_id, str(partitions), "on" if goes_on else "off"):
        yield


@contextmanager
def script(*arguments: str) -> Iterator[None]:
    """A Python process that has written. Killed at the end of the block."""
    process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        assert readable, "the writer has not written in time"
        assert process.stdout.readline() == b"written\n"
        yield
    finally:
        process.kill()
        process.wait(LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()


def run(broker: LocalKafka, command: str, prefix: str, *more: str, address: str = "") -> subprocess.CompletedProcess[str]:
    arguments = [command, "--prefix", prefix, "--bootstrap-servers", address or broker.bootstrap_servers, *more]
    return subprocess.run(
        [sys.executable, "-m", "jobs.transactions", *arguments],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )


def listing(broker: LocalKafka, prefix: str, address: str = "", *more: str) -> dict[str, dict[str, Any]]:
    done = run(broker, "list", prefix, "--json", *more, address=address)
    assert done.returncode == 0, done.stderr
    return {each["transactional_id"]: each for each in map(json.loads, done.stdout.splitlines()[:-1])}


def last_stable_offset(broker: LocalKafka, topic: str, partition: int) -> int:
    place = Place(topic, partition)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    futures = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(futures[place].result(30).offset)


def names_of_a_query() -> tuple[PrefixNames, str]:
    """With dashes in the prefix and in the owner."""
    return PrefixNames(f"job-{uuid.uuid4().hex[:8]}"), escape_name(str(uuid.uuid4()))


def test_what_a_killed_process_left_is_listed_and_aborted_and_readers_go_on(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(partitions=2)
    names, owner = names_of_a_query()
    other = PrefixNames(f"{names.prefix}-2")
    orphan, begun, foreign = (
        names.transactional_id(AttemptId(owner, 0, 0)),
        names.transactional_id(AttemptId(owner, 1, 0)),
        other.transactional_id(AttemptId(owner, 0, 0)),
    )
    with writer(broker, name, orphan, goes_on=False), writer(broker, name, foreign, goes_on=False, partitions=1):
        pass
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        client.fence([begun])  # as a task does that has begun
    transactions = listing(broker, names.prefix)
    assert {each: transactions[each]["state"] for each in transactions} == {orphan: "Ongoing", begun: "Empty"}
    assert transactions[orphan]["partitions"] == [{"topic": name, "partition": 0}, {"topic": name, "partition": 1}]
    assert 0 <= transactions[orphan]["age_ms"] < transactions[orphan]["timeout_ms"] == 60_000
    assert transactions[orphan]["owner"].count("-") == 4
    assert last_stable_offset(broker, name, 1) == 0

    refused = run(broker, "abort", names.prefix)
    assert refused.returncode == 2
    assert "pass --yes" in refused.stderr
    done = run(broker, "abort", names.prefix, "--yes", "--watch-seconds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("Aborted: 1 open transaction and 1 transactional id of a task without a row.\n")
    assert last_stable_offset(broker, name, 1) == 2  # the row, and the marker that ends its transaction
    assert last_stable_offset(broker, name, 0) < 2  # the other prefix holds it back
    assert listing(broker, names.prefix) == {}
    assert listing(broker, other.prefix)[foreign]["state"] == "Ongoing"
    again = run(broker, "abort", names.prefix, "--yes")
    assert (again.returncode, again.stdout.split(":")[0]) == (0, "Nothing to abort")
    assert run(broker, "abort", other.prefix, "--yes", "--watch-seconds", "1").returncode == 0
    assert read_topic(name, isolation_level="read_committed") == []


def test_a_process_that_goes_on_is_left_alone_until_it_is_forced(broker: LocalKafka, topic: Topic) -> None:
    name = topic(partitions=2)
    names, owner = names_of_a_query()
    alive = names.transactional_id(AttemptId(owner, 0, 0))
    with writer(broker, name, alive, goes_on=True):
        done = run(broker, "abort", names.prefix, "--yes", "--watch-seconds", "2")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "The query is alive: the transaction of task 0, attempt 0, has new rows in" in done.stdout
        assert listing(broker, names.prefix)[alive]["state"] == "Ongoing"
        forced = run(broker, "abort", names.prefix, "--yes", "--watch-seconds", "2", "--force")
        assert forced.returncode == 0, forced.stdout + forced.stderr
        assert "To be aborted all the same" in forced.stdout
        assert listing(broker, names.prefix) == {}


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        pytest.param(0, "Empty", id="before its first row"),
        pytest.param(40_000, "Ongoing", id="amid its rows", marks=pytest.mark.matrix),
    ],
)
def test_a_task_that_waits_for_rows_is_left_alone_until_it_is_killed(
    broker: LocalKafka, topic: Topic, rows: int, state: str
) -> None:
    name = topic(partitions=1)
    names, _ = names_of_a_query()
    with script(WAITING_TASK, broker.bootstrap_servers, name, names.prefix, str(rows)):
        for _ in range(2):
            done = run(broker, "abort", names.prefix, "--yes")
            assert done.returncode == 1, done.stdout + done.stderr
            (alive,) = (line for line in done.stdout.splitlines() if "The query is alive: " in line)
            assert alive.endswith("a task has shown that it is at work.")  # its last rows may be new, too
        assert [each["state"] for each in listing(broker, names.prefix).values()] == [state]
    done = run(broker, "abort", names.prefix, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert listing(broker, names.prefix) == {}


def test_a_decided_version_is_left_alone_and_the_next_run_commits_it(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(partitions=1)
    names, owner = names_of_a_query()
    how = {"owner": owner, "prefix": names.prefix}
    with DriverRun(broker.bootstrap_servers, name, "r1", **how) as first:
        first.write_version(0, ["a"])
        first.decide(first.reports(1, ["b"], ["c"]), first.ledger.fetch_decision())  # and dies before it ends a transaction
    open_transactions = [each for each in listing(broker, names.prefix).values() if each["state"] == "Ongoing"]
    assert [each["version"] for each in open_transactions] == [1, 1]
    done = run(broker, "abort", names.prefix, "--yes", "--watch-seconds", "1", "--force")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Decided: run the query again, it will be committed; or `commit` it now." in done.stdout
    with DriverRun(broker.bootstrap_servers, name, "r2", **how) as second:
        second.write_version(1, ["b"], ["c"])
    assert sorted(row.value or b"" for row in read_topic(name, isolation_level="read_committed")) == [b"a", b"b", b"c"]
    assert run(broker, "abort", names.prefix, "--yes").returncode == 0


def test_what_a_query_has_decided_that_never_runs_again_is_committed(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """A batch write without txnAppId, say, whose driver died amid its commits."""
    name = topic(partitions=1)
    names, owner = names_of_a_query()
    with DriverRun(broker.bootstrap_servers, name, "r1", owner=owner, prefix=names.prefix) as first:
        reports = first.reports(0, ["a"], ["b"], ["c"])
        decision = first.decide(reports)
        first.client.end_transactions([decision.entries[1].prepared_transaction(names, owner)], commit=True)  # and dies
    refused = run(broker, "commit", names.prefix)
    assert refused.returncode == 2
    assert "pass --yes to commit without a question" in refused.stderr
    done = run(broker, "commit", names.prefix, "--yes", "--watch-seconds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"Committed: version 0 of owner {unquote(owner)}, 3 rows.\n")
    assert sorted(row.value or b"" for row in read_topic(name, isolation_level="read_committed")) == [b"a", b"b", b"c"]
    assert listing(broker, names.prefix) == {}
    with DriverRun(broker.bootstrap_servers, name, "r2", owner=owner, prefix=names.prefix) as again:
        assert again.write_version(0, ["a"], ["b"], ["c"]).how is HowCommitted.FOUND


@pytest.mark.slow
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_rows_that_hang_are_listed_and_repaired(
    kafka_jars: Path,  # noqa: ARG001 - fetched first
    tmp_path: Path,
    commit: bool,
) -> None:
    """A partition had no leader when its transaction ended, and its broker left out the control record. `list` said that nothing
    was open, and readers stood still for ever."""
    names, owner = names_of_a_query()
    transactional_id = names.transactional_id(AttemptId(owner, 0, id_number(0, FIRST_SLOT)))
    with LocalKafka(tmp_path, brokers=3, properties={**QUICK_SESSIONS, **QUICK_TIMEOUTS}) as cluster:
        cluster.create_topic("orders", 2, replication_factor=1)
        cluster.create_topic("markers")
        with DriverRun(cluster.bootstrap_servers, "markers", "r1", owner=owner, prefix=names.prefix) as life:
            life.ledger.write_decision(Decision(0, DecisionState.CARRIED_OUT, 1, 1, Content()))
        options = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": transactional_id}
        with KafkaProducer(options) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(2):
                producer.send(ProducerRecord("orders", b"row", partition=partition))
            prepared = producer.prepare_transaction()
        with Outage(cluster, TopicPartition("orders", 1)) as outage, TransactionClient({**options}) as client:
            outage.begin(None)
            client.end_transactions([prepared], commit=commit)
        (transaction,) = listing(cluster, names.prefix, "", "--topic", "orders").values()
        assert transaction["state"] == ("CompleteCommit" if commit else "CompleteAbort")
        assert {"topic": "orders", "partition": 1} in transaction["hanging_partitions"]
        assert last_stable_offset(cluster, "orders", 1) == 0
        done = run(cluster, "repair", names.prefix, "--topic", "orders", "--yes", "--watch-seconds", "1", "--force")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("Repaired: 1 transactional id.\n")
        assert last_stable_offset(cluster, "orders", 1) >= 2
        assert listing(cluster, names.prefix, "", "--topic", "orders") == {}


def test_permissions_that_are_missing_are_named(
    kafka_jars: Path,  # noqa: ARG001 - fetched first
    tmp_path: Path,
) -> None:
    names, owner = PrefixNames("P-1"), "q"
    orphan = names.transactional_id(AttemptId(owner, 0, 0))
    file = tmp_path / "alice.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in client_options("PLAIN").items()))
    with sasl_cluster(tmp_path) as cluster:
        cluster.create_topic("orders", 1)
        with writer(cluster, "orders", orphan, goes_on=False, partitions=1):
            pass
        alice = cluster.bootstrap_servers_for("SASL_PLAINTEXT")

        def call(command: str, *more: str) -> subprocess.CompletedProcess[str]:
            return run(cluster, command, "P-1", "--command-config", str(file), *more, address=alice)

        def grant(operation: str, resource: str, prefix: str) -> None:
            allow(cluster, "alice", operation, prefix, resource)

        nothing = call("list")
        assert nothing.returncode == 1
        assert "DESCRIBE to read" in nothing.stderr
        grant("DESCRIBE", "TRANSACTIONAL_ID", "P-1-")
        no_group = call("list")
        assert no_group.returncode == 0, no_group.stderr
        assert "Grant the user READ on the group 'P-1-q-decision'" in no_group.stderr
        grant("READ", "GROUP", "P-1-")
        hidden = call("abort", "--yes", "--watch-seconds", "1")
        assert hidden.returncode == 1
        assert "grant the user READ on the topics" in hidden.stdout
        grant("DESCRIBE", "TOPIC", "orders")
        unread = call("abort", "--yes", "--watch-seconds", "1")
        assert unread.returncode == 1
        assert "Grant the user READ on the topic 'orders'" in unread.stdout
        grant("READ", "TOPIC", "orders")
        unwritten = call("abort", "--yes", "--watch-seconds", "1")
        assert unwritten.returncode == 1
        assert "Grant the user WRITE on the transactional id" in unwritten.stderr
        grant("WRITE", "TRANSACTIONAL_ID", "P-1-")
        done = call("abort", "--yes", "--watch-seconds", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert last_stable_offset(cluster, "orders", 0) == 2
