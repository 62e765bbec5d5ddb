"""deliveryGuarantee=exactly-once with real Spark and a real broker: what readers of committed records see, whatever dies.

Programs with a `dying` sink are killed at steps of the protocol, one life after the other, and started again from their
checkpoint until they come to their end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import exactly_once_options
from tests.integration.dying_sink import Dying
from tests.integration.exactly_once_writes import CommittedReader, Options, exactly_once, fed, lines, numbered, once, unnamed
from tests.integration.failing_sink import CommitFailsWhenAsked, file_that_fails_commits
from tests.integration.plugins import commits_file
from tests.integration.processes import until
from tests.integration.programs import (
    ALL,
    DYING_STREAM,
    ROWS,
    SETTINGS,
    SINKS,
    TASKS,
    Program,
    committed_rows,
    options_of,
)
from tests.integration.reading import ReadTopic, Topic, read_with_spark
from tests.integration.writing import FileStream, conditions, error_of, run, save

pytestmark = [pytest.mark.slow]


def ways(report: Path) -> list[tuple[int, str]]:
    return [(each["exactly_once"]["version"], each["exactly_once"]["how"]) for each in lines(report)]


# BATCH WRITES


def test_a_batch_write_is_read_back_as_it_was(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    name = topic(3)
    rows = spark.range(1_000, numPartitions=3).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value", "cast(id % 3 as int) partition"
    )
    save(rows, broker, **unnamed(name))
    until(lambda: reader.nothing_is_open(name), 30, "no transaction is open")
    read = read_with_spark(spark, broker.bootstrap_servers, name, isolation_level="read_committed")
    rows_read = read.selectExpr("cast(key as string) key", "cast(value as string) value", "partition")
    assert_df_equality(rows_read, rows, ignore_row_order=True, ignore_nullable=True)


def test_a_version_that_is_repeated_is_found_and_the_next_one_is_written(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    name, report = topic(2), tmp_path / "report.jsonl"
    options = exactly_once(name, txnAppId="an app", reportPath=str(report))
    save(numbered(spark, 0, 100), broker, **options, txnVersion="7")
    save(numbered(spark, 0, 100), broker, **options, txnVersion="7")
    save(numbered(spark, 0, 100, partitions=5), broker, **options, txnVersion="7")  # all is there: the partitions do not matter
    save(numbered(spark, 100, 150), broker, **options, txnVersion="8")
    save(numbered(spark, 0, 100), broker, **options, txnVersion="7")
    for version in ("3", "7"):
        write = partial(save, numbered(spark, 500, 550), broker, **options, txnVersion=version)
        assert "KAFKA_NON_DETERMINISTIC_REPLAY" in conditions(error_of(write))
    assert reader.values(name, name) == once(0, 150)
    assert ways(report) == [(7, "committed"), (7, "found"), (7, "found"), (8, "committed"), (7, "superseded")]


def test_writes_without_a_name_are_other_writes(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    name = topic(2)
    for _ in range(2):
        save(numbered(spark, 0, 10), broker, **unnamed(name))
    assert reader.values(name, name) == Counter({str(number): 2 for number in range(10)})


def test_of_a_write_that_fails_no_row_is_seen(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, read_topic: ReadTopic
) -> None:
    """Two partitions of three have been written by then. Their transactions are aborted at once, not when they time out."""
    name = topic(2)
    rows = spark.range(300, numPartitions=3).withColumn("value", F.udf(lambda each: str(each) if each < 299 else 1 / 0)("id"))
    message = error_of(lambda: save(rows.select("value"), broker, **unnamed(name)))
    assert "ZeroDivisionError" in message
    assert reader.nothing_is_open(name)
    assert reader.values(name, name) == Counter()
    assert len(read_topic(name)) >= 100  # who does not ask for committed records sees them
    save(numbered(spark, 0, 300), broker, **unnamed(name))
    assert reader.values(name, name) == once(0, 300)


def test_on_commit_is_called_once_for_each_commit_with_what_was_found(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    name = topic(2)
    owner = name.replace("-", "_")
    options = exactly_once(name, txnAppId=owner, onCommit="tests.integration.plugins.note_commit")
    try:
        for version in ("0", "0", "1"):
            save(numbered(spark, 0, 10), broker, **options, txnVersion=version)
        assert commits_file(owner).read_text().splitlines() == ["0 committed 10", "0 found 0", "1 committed 10"]
    finally:
        commits_file(owner).unlink(missing_ok=True)


def test_dead_letters_and_skipped_rows_belong_to_the_transaction(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """A failed write dead-letters nothing; a repeated one dead-letters nothing twice."""
    name, dead_letters, report = topic(2), topic(1), tmp_path / "report.jsonl"
    rows = spark.range(100, numPartitions=2).selectExpr(
        "if(id % 10 = 0, null, 't') topic", "if(id % 25 = 1, repeat('x', 3000), cast(id as string)) value", "id"
    )
    rows = rows.withColumn("topic", F.when(F.col("topic").isNotNull(), F.lit(name)))
    options = exactly_once(
        name,
        txnAppId="dead-letters",
        txnVersion="0",
        markerTopic=name,
        onInvalidRecord="deadLetter",
        onRecordTooLarge="skip",
        deadLetterTopic=dead_letters,
        kafka__max__request__size="2000",
        reportPath=str(report),
    )
    del options["topic"]
    failing = rows.withColumn("value", F.udf(lambda each, value: value if each != 99 else 1 / 0)("id", "value"))
    error_of(lambda: save(failing.select("topic", "value"), broker, **options))
    assert reader.values(dead_letters, name) == Counter()
    for _ in range(2):
        save(rows.select("topic", "value"), broker, **options)
    assert reader.values(dead_letters, name) == Counter(str(number) for number in range(0, 100, 10))
    assert reader.values(name, name) == Counter(str(number) for number in range(100) if number % 10 and number % 25 != 1)
    first, second = lines(report)
    assert (first["rows"], first["skipped"], first["dead_lettered"]) == (86, 4, 10)
    assert second["exactly_once"]["how"] == "found"


# STREAMS


def test_a_stream_and_its_restart_write_each_batch_once(
    stream: FileStream, spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    name, report = topic(2), tmp_path / "report.jsonl"
    options = exactly_once(name, reportPath=str(report))
    for batch in range(3):
        fed(stream, batch * 100, batch * 100 + 100)
    run(stream.writer(stream.read().repartition(3, "value"), broker, **options))
    fed(stream, 300, 400)
    run(stream.writer(stream.read().repartition(3, "value"), broker, **options))
    assert ways(report) == [(0, "committed"), (1, "committed"), (2, "committed"), (3, "committed")]
    until(lambda: reader.nothing_is_open(name), 30, "no transaction is open")
    read = read_with_spark(spark, broker.bootstrap_servers, name, isolation_level="read_committed")
    assert_df_equality(
        read.selectExpr("cast(value as string) value"), numbered(spark, 0, 400), ignore_row_order=True, ignore_nullable=True
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_fails_is_made_good_by_the_restart(
    stream: FileStream, spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path, when: str
) -> None:
    """Before anything was committed, or after everything was. Spark calls abort() and writes the batch again."""
    name, report = topic(2), tmp_path / "report.jsonl"
    spark.dataSource.register(CommitFailsWhenAsked)
    failure_file = file_that_fails_commits(str(report))

    def write() -> None:
        writer = stream.writer(stream.read().repartition(2, "value"), broker, **exactly_once(name, reportPath=str(report)))
        run(writer.format(CommitFailsWhenAsked.name()))

    fed(stream, 0, 10)
    write()
    failure_file.write_text(when)
    fed(stream, 10, 20)
    assert "no commit, as planned" in error_of(write)
    assert reader.values(name, name) == once(0, 10 if when == "before" else 20)
    failure_file.unlink()
    write()
    fed(stream, 20, 30)
    write()
    assert reader.values(name, name) == once(0, 30)
    assert ways(report)[-2:] == [(1, "committed" if when == "before" else "found"), (2, "committed")]


def test_foreach_batch_writes_each_batch_once_by_itself(
    stream: FileStream, broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """The function fails after its write; the restart runs it again with the same batch."""
    name, report = topic(2), tmp_path / "report.jsonl"
    failures = [1]

    def write(df: DataFrame, batch_id: int) -> None:
        save(df, broker, **exactly_once(name, reportPath=str(report)))
        if batch_id in failures:
            raise RuntimeError("after the write, as planned")

    def begin() -> None:
        rows = stream.read().repartition(2, "value").writeStream.foreachBatch(write)
        run(rows.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True))

    for batch in range(3):
        fed(stream, batch * 10, batch * 10 + 10)
    assert "as planned" in error_of(begin)
    failures.clear()
    begin()
    assert reader.values(name, name) == once(0, 30)
    assert ways(report) == [(0, "committed"), (1, "committed"), (1, "found"), (2, "committed")]


def test_a_write_from_a_thread_of_foreach_batch_has_a_name_or_writes_nothing(
    stream: FileStream, spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader, read_topic: ReadTopic
) -> None:
    """Spark tells a thread of the user's own neither the query nor the batch. The write took another name each time: a batch that
    was repeated was in Kafka twice, without a word."""
    name = topic(2)
    fails_after_its_write = [True]

    def begin(options: Callable[[int], Options]) -> None:
        def write(df: DataFrame, batch_id: int) -> None:
            def in_a_thread() -> None:
                spark.createDataFrame([], "x int")  # makes the session active there, as docs/migrating.md says
                save(df, broker, **{"topic": name, **options(batch_id)})

            with ThreadPoolExecutor(1) as pool:
                pool.submit(in_a_thread).result()
            if batch_id == 1 and fails_after_its_write.pop():
                raise RuntimeError("after the write, as planned")

        rows = stream.read().repartition(2, "value").writeStream.foreachBatch(write)
        run(rows.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True))

    for batch in range(3):
        fed(stream, batch * 10, batch * 10 + 10)
    message = error_of(lambda: begin(lambda _: exactly_once(name)))
    assert conditions(message) == {"KAFKA_UNNAMED_WRITE"}
    assert "txnAppId and txnVersion" in message
    assert read_topic(name) == []
    assert reader.transactional_ids(name) == []
    assert "as planned" in error_of(lambda: begin(lambda batch_id: exactly_once_options(name, batch_id)))
    fails_after_its_write.append(False)
    begin(lambda batch_id: exactly_once_options(name, batch_id))
    assert reader.values(name, name) == once(0, 30)


@pytest.mark.parametrize("same_rows", [True, False], ids=["the same rows", "other rows"])
def test_two_writes_of_one_batch_under_one_prefix_are_told_apart(
    stream: FileStream, broker: LocalKafka, topic: Topic, reader: CommittedReader, same_rows: bool
) -> None:
    """The second one has the name of the first. If it were taken for its repetition, its rows would be in Kafka nowhere. The
    same rows are other rows in another topic."""
    name, other = topic(), topic()

    def write(df: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        save(df, broker, **exactly_once(name))
        second = df if same_rows else df.selectExpr("concat(value, '!') value")
        save(second, broker, **{**exactly_once(name), "topic": other, "markerTopic": name})

    fed(stream, 0, 10)
    writer = stream.read().writeStream.foreachBatch(write).option("checkpointLocation", str(stream.checkpoint))
    message = error_of(lambda: run(writer.trigger(availableNow=True)))
    assert conditions(message) == {"KAFKA_NON_DETERMINISTIC_REPLAY"}
    assert "in a second write of one micro-batch: give them a txnVersion or transactionalIdPrefix of their own" in message
    assert reader.values(name, name) == once(0, 10)
    assert reader.values(other, name) == Counter()


def test_two_writes_of_one_batch_with_a_prefix_each_are_both_there(
    stream: FileStream, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    names = [topic(), topic()]

    def write(df: DataFrame, batch_id: int) -> None:  # noqa: ARG001
        for name in names:
            save(df, broker, **exactly_once(name))

    fed(stream, 0, 10)
    fed(stream, 10, 20)
    writer = stream.read().writeStream.foreachBatch(write).option("checkpointLocation", str(stream.checkpoint))
    run(writer.trigger(availableNow=True))
    for name in names:
        assert reader.values(name, name) == once(0, 20)


STOPPED = """
import time
from spark_kafka_sink.admin.transaction_client import TransactionClient
spark = session("local[2]", {settings})
stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1000, numPartitions=100).load()
def write(df, batch_id):
    spark.sparkContext.setJobGroup("a group of the user's", "")
    df.write.format("pykafka-sink").options(**{options}).mode("append").save()
query = stream.selectExpr("cast(value as string) value").writeStream.foreachBatch(write)
query = query.option("checkpointLocation", {checkpoint!r}).start()
with TransactionClient({{"bootstrap.servers": {servers!r}}}) as client:
    while len(client.list_transactions({name!r}, ["Ongoing"])) < 3:
        assert query.exception() is None
        time.sleep(0.01)
query.stop()
spark.stop()
"""


def test_a_query_that_is_stopped_is_no_error_of_its_tasks(
    broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """Spark stops the tasks of the query's job group. In foreachBatch a user may have set another: its tasks went on, found that
    the driver had aborted the write, and filled the log with stack traces of WriteAbortedError."""
    name = topic(2)
    options = exactly_once(name) | {"kafka.bootstrap.servers": broker.bootstrap_servers}
    program = Program(
        tmp_path,
        STOPPED.format(
            settings=SETTINGS,
            options=options,
            checkpoint=str(tmp_path / "checkpoint"),
            servers=broker.bootstrap_servers,
            name=f"{name}-",
        ),
    )
    program.succeed()
    assert "aborted: " in program.log()
    assert "KAFKA_WRITE_ABORTED" not in program.log()
    assert reader.values(name, name) == Counter()


# TASKS AND EXECUTORS THAT DIE: those of a single write are in test_sink_faults.py


SHUFFLED = """
spark = session("local-cluster[2,1,1024]", {settings})
rows = spark.range({tasks} * {rows}, numPartitions=4).selectExpr("rpad(lpad(id, 8, '0'), 1024, ' x') value")
rows.repartition({tasks}, "value").write.format("pykafka-sink").options(**{options}).mode("append").save()
spark.stop()
"""


@pytest.mark.matrix
def test_an_executor_lost_with_its_shuffle_files_doubles_nothing(
    broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path
) -> None:
    """Spark runs a part of the stage before again, then the tasks that are left: their attempt numbers begin at 0 once more."""
    name = topic(3)
    settings = SETTINGS | {"spark.sql.adaptive.enabled": "false"}
    options = options_of(broker, name, tmp_path, "kill-jvm", TASKS * ROWS // 2) | unnamed(name)
    Program(tmp_path, SHUFFLED.format(settings=settings, tasks=TASKS, rows=ROWS, options=options)).succeed()
    assert (tmp_path / "marker").exists()
    assert committed_rows(reader, name) == dict.fromkeys(ALL, 1)


SPECULATION = """
import subprocess, socket
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
settings = {settings} | {{
    "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "1s",
}}
spark = session("spark://127.0.0.1:" + port, settings)
rows(spark, {tasks}, {rows}).write.format("pykafka-sink").options(**{options}).mode("append").save()
spark.stop()
"""


@pytest.mark.matrix
def test_the_rows_of_a_speculative_copy_or_of_its_twin_are_not_seen(
    broker: LocalKafka, topic: Topic, reader: CommittedReader, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """Two workers with different host names, because Spark runs no copy of a task on the host of the first attempt. The first
    attempt stands still amid its rows until Spark kills it."""
    name = topic(3)
    options = options_of(broker, name, tmp_path, "wait") | unnamed(name)
    Program(tmp_path, SPECULATION.format(settings=SETTINGS, tasks=TASKS, rows=ROWS, options=options)).succeed()
    assert (tmp_path / "marker").exists()
    assert committed_rows(reader, name) == dict.fromkeys(ALL, 1)
    assert len(read_topic(name)) > len(ALL)


# DRIVERS THAT DIE

BATCHES, BATCH_ROWS = 4, 50
DRIVER_DEATHS = {
    "before the decision": [("driver", "6b list", "after"), ("driver", "6c", "after"), ("driver", "6e", "before")],
    "after the decision": [("driver", "6e", "after"), ("driver", "6f", "before"), ("driver", "6f", "amid")],
    "after the commits": [("driver", "6f", "after"), ("driver", "6g mark", "after"), ("driver", "6g mark", "before")],
    "tasks": [("driver", "1", "after"), ("driver", "5 rows", "after"), ("driver", "5 wait", "after")],
}
TASK_DEATHS = {
    "workers": [("worker", step, "after") for step in ("0", "1", "2", "5 rows", "5 marker", "5 wait")],
    "executors": [("executor", step, "after") for step in ("2", "5 marker", "5 wait")],
}


class DyingProgram:
    """A stream that is started again as often as it dies."""

    def __init__(self, directory: Path, code: str, deaths: list[tuple[str, str, str]]) -> None:
        self._directory = directory
        self._code = code
        self._marks = directory / "marks"
        self._marks.mkdir()
        self._deaths = deaths
        self._settings = directory / "dying.json"
        self._settings.write_text(json.dumps({"marks": str(self._marks), "deaths": deaths}))

    def run_to_the_end(self) -> int:
        """How many lives it took."""
        for life in range(1, len(self._deaths) + 3):
            program = Program(self._directory, self._code, DYING=str(self._settings))
            if program.wait() == 0:
                assert len(list(self._marks.iterdir())) == len(self._deaths)
                return life
        raise AssertionError(f"{len(self._deaths) + 2} lives, and not at its end: {program.log()[-6000:]}")


def dying_stream(broker: LocalKafka, name: str, directory: Path, sink: str, master: str) -> str:
    source = directory / "source"
    source.mkdir()
    for batch in range(BATCHES):
        rows = range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)
        (source / f"{batch}.json").write_text("".join(f'{{"value": "{number}"}}\n' for number in rows))
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "reportPath": str(directory / "report.jsonl")}
    settings = SETTINGS | {"spark.sql.shuffle.partitions": "3", "spark.sql.adaptive.enabled": "false"}
    return DYING_STREAM.format(
        master=master,
        settings=settings,
        source=str(source),
        options=options | exactly_once(name),
        sink=SINKS[sink],
        checkpoint=str(directory / "checkpoint"),
    )


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("deaths", DRIVER_DEATHS.values(), ids=DRIVER_DEATHS)
def test_a_stream_whose_driver_is_killed_time_and_again_writes_each_row_once(
    broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path, sink: str, deaths: list[tuple[str, str, str]]
) -> None:
    """test_formats_exactly_once.py has a shorter life of this kind, for every run of CI."""
    name = topic(2)
    program = DyingProgram(tmp_path, dying_stream(broker, name, tmp_path, sink, "local[2]"), deaths)
    assert program.run_to_the_end() == len(deaths) + 1
    assert reader.values(name, name) == once(0, BATCHES * BATCH_ROWS)
    assert {version for version, _ in ways(tmp_path / "report.jsonl")} == set(range(BATCHES))


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deaths", TASK_DEATHS.values(), ids=TASK_DEATHS)
def test_a_stream_whose_workers_or_executors_are_killed_writes_each_row_once(
    broker: LocalKafka, topic: Topic, reader: CommittedReader, tmp_path: Path, deaths: list[tuple[str, str, str]]
) -> None:
    name = topic(2)
    program = DyingProgram(tmp_path, dying_stream(broker, name, tmp_path, "stream", "local-cluster[2,1,1024]"), deaths)
    program.run_to_the_end()
    assert reader.values(name, name) == once(0, BATCHES * BATCH_ROWS)


def test_the_dying_sink_lives_where_nobody_says_otherwise(
    spark: SparkSession, broker: LocalKafka, topic: Topic, reader: CommittedReader
) -> None:
    name = topic(2)
    spark.dataSource.register(Dying)
    options = {**unnamed(name), "kafka.bootstrap.servers": broker.bootstrap_servers}
    numbered(spark, 0, 10).write.format(Dying.name()).options(**options).mode("append").save()
    assert reader.values(name, name) == once(0, 10)
