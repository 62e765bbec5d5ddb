"""What fails while Spark writes, on real Spark and real brokers: every row is there, and those there twice are explained.

Rows are numbered; a Spark partition has ROWS of them, in order. plugins.HarmfulPartitioner does the harm when it sees a
certain row, so that the rows before it have been sent: buffer.memory holds 1 MiB of the 12 MiB of a partition. The table in
docs/guarantees.md and in commit_report.py says what these tests see.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from tests.broker_properties import QUICK_SESSIONS
from tests.integration.conftest import SessionSettings
from tests.integration.exactly_once_writes import CommittedReader, unnamed
from tests.integration.processes import until
from tests.integration.programs import (
    ALL,
    DOOMED,
    FAULT_ROW,
    LIMIT_S,
    ROWS,
    SETTINGS,
    TASKS,
    Program,
    batch_writes,
    committed_rows,
    count_rows,
    options_of,
)
from tests.integration.reading import READERS, ReadTopic, Topic
from tests.integration.writing import FORMAT, error_of

CERTAIN = 6_000  # rows before the faulty one that must have been acknowledged: 1 MiB waits, 8 MiB come at a time

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def rows_twice(counts: Counter[int]) -> set[int]:
    assert counts.keys() == set(ALL), f"{len(set(ALL) - counts.keys())} rows are lost"
    return {row for row, times in counts.items() if times > 1}


def reports(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "report.jsonl").read_text().splitlines()]


# TASKS


def write_twice(master: str, kind: str, row: int, broker: LocalKafka, topics: tuple[str, str], directory: Path) -> None:
    """One program writes at-least-once, then exactly-once to the other topic; in each write the harm is done once."""
    first, second = topics
    once = directory / "exactly-once"
    once.mkdir()
    at_least_once = options_of(broker, first, directory, kind, row)
    exactly_once = options_of(broker, second, once, kind, row) | unnamed(second)
    Program(directory, batch_writes(master, at_least_once, exactly_once)).succeed()
    assert (directory / "marker").exists()
    assert (once / "marker").exists()


def test_a_killed_python_worker_doubles_rows_of_its_task_or_with_exactly_once_none(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, reader: CommittedReader, tmp_path: Path
) -> None:
    """Thousands of its rows were acknowledged before; with exactly-once the driver ends that transaction."""
    names = topic(3), topic(3)
    write_twice("local[2, 3]", "kill-worker", FAULT_ROW, broker, names, tmp_path)
    counts = count_rows(read_topic(names[0]))
    twice = rows_twice(counts)
    assert twice <= set(DOOMED)
    assert len(twice) >= CERTAIN
    assert max(counts.values()) == 2
    (report,) = reports(tmp_path)
    assert (report["tasks"], report["rows"]) == (TASKS, len(ALL))  # attempts that failed are not counted
    assert committed_rows(reader, names[1]) == dict.fromkeys(ALL, 1)


def test_a_lost_executor_doubles_rows_of_its_tasks_or_with_exactly_once_none(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, reader: CommittedReader, tmp_path: Path
) -> None:
    """Tasks that have ended on that executor before are not run again: the driver has their messages. With exactly-once their
    transactions stay open, and are committed."""
    names = topic(3), topic(3)
    last = range((TASKS - 1) * ROWS, TASKS * ROWS)
    write_twice("local-cluster[2,1,1024]", "kill-jvm", last[-100], broker, names, tmp_path)
    twice = rows_twice(count_rows(read_topic(names[0])))
    assert twice <= set(last)
    assert len(twice) >= CERTAIN
    assert [(report["tasks"], report["rows"]) for report in reports(tmp_path)] == [(TASKS, len(ALL))]
    assert committed_rows(reader, names[1]) == dict.fromkeys(ALL, 1)


def test_a_write_that_fails_for_good_leaves_rows_behind_which_a_repetition_doubles(
    spark: SparkSession,
    session_settings: SessionSettings,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    tmp_path: Path,
) -> None:
    """abort() comes while another task still writes; it has nothing to undo."""
    name = topic(3)
    session_settings({key: SETTINGS[key] for key in ["spark.sql.execution.arrow.maxRecordsPerBatch"]})

    def write(df: DataFrame) -> None:
        df.write.format(FORMAT).options(**options_of(broker, name, tmp_path, None)).mode("append").save()

    failing = F.udf(lambda value: value if int(value[:8]) != FAULT_ROW else 1 / 0, useArrow=False)
    assert "ZeroDivisionError" in error_of(lambda: write(frame(spark).select(failing("value").alias("value"))))
    write(frame(spark))
    counts = count_rows(read_topic(name))
    twice = rows_twice(counts)
    assert twice & set(DOOMED)
    assert twice <= set(range(3 * ROWS))  # the tasks that had begun; the last never did
    assert [report["rows"] for report in reports(tmp_path)] == [len(ALL)]


def test_a_cancelled_job_says_what_stays_and_leaves_nothing_open(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """One task has ended and one stands still when the user cancels the job; Spark ends the worker of the latter."""
    name = topic(3)
    options = options_of(broker, name, tmp_path, "wait") | {"producerCacheTimeoutMs": "500"}
    code = f"""
    import threading
    from tests.integration.processes import connections, until

    spark = session("local[2]", {SETTINGS})
    marker = {str(tmp_path / "marker")!r}
    done = lambda: len(spark.sparkContext.statusTracker().getActiveStageIds()) == 1 and [
        spark.sparkContext.statusTracker().getStageInfo(each).numCompletedTasks
        for each in spark.sparkContext.statusTracker().getActiveStageIds()
    ] == [1]
    def cancel():
        until(lambda: os.path.exists(marker) and done(), {LIMIT_S // 2}, "one task is done and one stands still")
        spark.sparkContext.cancelJobGroup("writing")
    threading.Thread(target=cancel, daemon=True).start()
    spark.sparkContext.setJobGroup("writing", "a write", interruptOnCancel=True)
    try:
        rows(spark, 2, {ROWS}).write.format("pykafka-sink").options(**{options}).mode("append").save()
    except Exception as error:
        assert "cancelled" in str(error), error
        print("cancelled as planned")
    until(lambda: not connections(spark, {broker.bootstrap_servers!r}), 60, "workers let their connections go")
    print("nothing is open")
    spark.stop()
    """
    program = Program(tmp_path, code)
    program.succeed()
    assert "cancelled as planned" in program.log()
    assert "nothing is open" in program.log()
    assert f"aborted: 1/2 tasks had completed. Their {ROWS} rows stay in Kafka" in program.log()
    counts = count_rows(read_topic(name))
    assert {row for row in counts if row not in DOOMED} == set(range(ROWS))
    assert max(counts.values()) == 1
    assert not (tmp_path / "report.jsonl").exists()


@pytest.mark.soak
def test_with_speculation_the_rows_of_the_attempt_that_lost_are_doubles(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Two workers with different host names, because Spark runs no copy of a task on the host of the first attempt."""
    name = topic(3)
    options = options_of(broker, name, tmp_path, "wait")
    code = f"""
    import subprocess, socket, time
    from pyspark.find_spark_home import _find_spark_home
    spark_class = os.path.join(_find_spark_home(), "bin", "spark-class")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    def launch(*command):
        return subprocess.Popen([spark_class, *command], env={{**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}})
    master = launch("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
    for host in ("127.0.0.1", "localhost"):
        launch("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0", "-c", "1", "-m", "600m",
               "spark://127.0.0.1:" + port)
    settings = {SETTINGS} | {{
        "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "1s",
    }}
    spark = session("spark://127.0.0.1:" + port, settings)
    rows(spark, {TASKS}, {ROWS}).write.format("pykafka-sink").options(**{options}).mode("append").save()
    spark.stop()
    """
    Program(tmp_path, code).succeed()
    twice = rows_twice(count_rows(read_topic(name)))
    assert (tmp_path / "marker").exists()
    assert len(twice) >= CERTAIN
    assert twice <= set(DOOMED)
    assert [report["rows"] for report in reports(tmp_path)] == [len(ALL)]


# DRIVER

STREAM = """
spark = session("local[2]", {settings})
stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 4).parquet({source!r})
query = (
    stream.writeStream.format("pykafka-sink").options(**{options}).option("checkpointLocation", {checkpoint!r})
    .trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.mark.soak
def test_a_killed_driver_repeats_the_batch_it_was_at_and_no_other(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    name, source = topic(3), tmp_path / "source"
    prepare = f"""
    spark = session("local[2]", {{"spark.ui.enabled": "false"}})
    rows(spark, {TASKS}, {ROWS}).write.parquet({str(source)!r})
    spark.stop()
    """
    Program(tmp_path, prepare).succeed()
    files = sorted(source.glob("*.parquet"))
    read_first = files.index(max(files, key=lambda file: file.stat().st_size))  # Spark begins with the largest
    stream = STREAM.format(
        settings=SETTINGS | {"spark.sql.files.openCostInBytes": str(1024**3)},  # a task for each file
        source=str(source),
        options=options_of(broker, name, tmp_path, "kill-jvm", (read_first + 1) * ROWS - 100),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    killed = Program(tmp_path, stream)
    assert killed.wait() != 0
    before = count_rows(read_topic(name))
    assert CERTAIN < before.total() < len(ALL)
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    Program(tmp_path, stream).succeed()
    counts = count_rows(read_topic(name))
    twice = rows_twice(counts)
    assert twice >= set(before)
    assert max(counts.values()) == 2
    assert [(report["batch_id"], report["rows"]) for report in reports(tmp_path)] == [(0, len(ALL))]


def test_a_driver_killed_after_commit_repeats_the_batch_with_its_report_line(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Spark logs a batch as done only after commit(). Readers of reports know the repetition by its query_id and batch_id."""
    name, source = topic(3), tmp_path / "source"
    source.mkdir()
    (source / "a.json").write_text("".join(f'{{"value": "{number:08}"}}\n' for number in range(100)))
    options = options_of(broker, name, tmp_path, None) | {"onCommit": "tests.integration.plugins.kill_driver_once"}
    stream = STREAM.replace(".parquet(", ".json(").format(
        settings=SETTINGS, source=str(source), options=options, checkpoint=str(tmp_path / "checkpoint")
    )
    marker = tmp_path / "marker"
    killed = Program(tmp_path, stream, KILL_DRIVER_MARKER=str(marker))
    assert killed.wait() != 0
    assert marker.exists(), killed.log()[-6000:]
    assert count_rows(read_topic(name)).total() == 100
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    Program(tmp_path, stream, KILL_DRIVER_MARKER=str(marker)).succeed()
    assert count_rows(read_topic(name)) == dict.fromkeys(range(100), 2)
    first, second = reports(tmp_path)
    assert first["rows"] == second["rows"] == 100
    assert (first["query_id"], first["batch_id"]) == (second["query_id"], second["batch_id"])
    assert first["batch_id"] == 0
    assert first["query_id"] is not None


# BROKER


@pytest.mark.usefixtures("kafka_jars")
def test_a_broker_killed_and_restarted_while_spark_writes_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Within an attempt, brokers know what they have: the producer is idempotent."""
    with LocalKafka(tmp_path / "broker", properties=QUICK_SESSIONS) as cluster:
        cluster.create_topic("t", 3)
        options = options_of(cluster, "t", tmp_path, "wait") | {"kafka.request.timeout.ms": "5000"}
        marker = tmp_path / "marker"

        def restart_broker() -> None:
            """While one task stands still in the middle of its rows; others go on."""
            until(marker.exists, LIMIT_S, "a task has sent its first rows")
            cluster.kill(1)
            marker.write_text("go on")
            cluster.restart(1)

        with ThreadPoolExecutor(1) as beside:
            restarted = beside.submit(restart_broker)
            frame(spark).write.format(FORMAT).options(**options).mode("append").save()
            restarted.result()
        counts = count_rows(READERS["confluent-kafka"](cluster.bootstrap_servers, "t", timeout_s=120))
        assert rows_twice(counts) == set()


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(len(ALL), numPartitions=TASKS).selectExpr("rpad(lpad(id, 8, '0'), 1024, ' x') value")
