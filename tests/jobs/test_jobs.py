"""The jobs with a real Spark and a real broker: what they write, and what they print when they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions

from jobs import batch_to_kafka, spark_job, stream_to_kafka
from jobs.local_kafka import LocalKafka
from jobs.spark_job import ARROW_COMPRESSION
from spark_kafka_sink.config.producer_config import ProducerConfig
from tests.fakes.fake_broker import FakeBroker
from tests.integration.processes import until
from tests.integration.reading import ReadRecord, ReadTopic, Topic
from tests.schemas.fake_registry import FakeRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    directory = tmp_path / "input"
    directory.mkdir()
    (directory / "a.csv").write_text("id,name\n1,ann\n2,bob\n3,\n")
    return directory / "a.csv"


def test_a_batch_writes_every_row_as_json_with_its_key_and_headers(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path
) -> None:
    name = topic(partitions=2)
    headers = "array(named_struct('key', 'source', 'value', cast('csv' AS binary)))"
    arguments = ["--input", str(csv), "--topic", name, "--bootstrap-servers", broker.bootstrap_servers]
    arguments += ["--key", "cast(id AS string)", "--headers", headers, "--config", str(ROOT / "conf" / "sink.properties")]
    said = batch_to_kafka.batch_to_kafka(spark, batch_to_kafka.build_parser().parse_args(arguments))
    assert f"wrote 3 rows of {csv} to topic {name} in " in said
    records = sorted(read_topic(name), key=lambda record: record.key or b"")
    rows = [json.loads(record.value or b"") for record in records]
    assert rows == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3}]
    assert [record.key for record in records] == [b"1", b"2", b"3"]
    assert {tuple(record.headers) for record in records} == {(("source", b"csv"),)}


def test_a_batch_that_is_repeated_under_its_number_is_in_kafka_once(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path
) -> None:
    name = topic()
    arguments = ["--input", str(csv), "--topic", name, "--bootstrap-servers", broker.bootstrap_servers, "--value", "name"]
    parsed = batch_to_kafka.build_parser().parse_args([*arguments, "--exactly-once", name, "--txn-version", "7"])
    said = [batch_to_kafka.batch_to_kafka(spark, parsed) for _ in range(2)]
    assert "wrote 3 rows of " in said[0]
    assert said[0].endswith(" to write)")
    assert "wrote 0 rows of " in said[1]
    assert said[1].endswith("was in Kafka already")
    assert [record.value for record in read_topic(name, isolation_level="read_committed")] == [b"ann", b"bob", None]


def test_a_stream_writes_each_file_once_across_restarts(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path, tmp_path: Path
) -> None:
    name = topic()
    arguments = ["--input", str(csv.parent), "--input-format", "csv", "--topic", name, "--value", "name"]
    arguments += ["--bootstrap-servers", broker.bootstrap_servers, "--trigger", "available-now"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint")]
    parsed = stream_to_kafka.build_parser().parse_args(arguments)
    said = [stream_to_kafka.stream_to_kafka(spark, parsed)]
    (csv.parent / "b.csv").write_text("id,name\n4,dan\n")
    said += [stream_to_kafka.stream_to_kafka(spark, parsed) for _ in range(2)]
    totals = [line.partition("ended: ")[2] for line in said]
    assert totals == ["3 rows processed in 1 batch", "1 row processed in 1 batch", "0 rows processed in 0 batches"]
    assert [record.value for record in read_topic(name)] == [b"ann", b"bob", None, b"dan"]


def read_avro(registry: FakeRegistry, topic: str, records: list[ReadRecord]) -> list[Any]:
    """As another team's reader does it."""
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    return [read(record.value, SerializationContext(topic, MessageField.VALUE)) for record in records]


def test_a_batch_writes_rows_as_avro_with_a_schema_that_it_registers(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path
) -> None:
    name = topic()
    arguments = ["--input", str(csv), "--topic", name, "--bootstrap-servers", broker.bootstrap_servers]
    with FakeRegistry() as registry:
        arguments += ["--value-format", "avro", "--option", f"schema.registry.url={registry.url}"]
        arguments += ["--key", "id", "--key-format", "avro"]
        said = batch_to_kafka.batch_to_kafka(spark, batch_to_kafka.build_parser().parse_args(arguments))
        records = read_topic(name)
        rows = [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3, "name": None}]
        assert read_avro(registry, name, records) == rows
        frame = b"\0" + registry.register(f"{name}-key", '"int"').to_bytes(4)
    assert [record.key for record in records] == [frame + bytes([2 * number]) for number in (1, 2, 3)]
    assert "wrote 3 rows of " in said


def test_a_stream_of_avro_dead_letters_as_json_what_the_schema_does_not_take(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path, tmp_path: Path
) -> None:
    name, dead_letters = topic(), topic()
    enum = {"type": "enum", "name": "Name", "symbols": ["ann", "bob"]}
    fields = [{"name": "id", "type": ["null", "int"]}, {"name": "name", "type": enum}]
    arguments = ["--input", str(csv.parent), "--input-format", "csv", "--topic", name, "--trigger", "available-now"]
    arguments += ["--bootstrap-servers", broker.bootstrap_servers, "--checkpoint", str(tmp_path / "checkpoint")]
    with FakeRegistry() as registry:
        registry.register(f"{name}-value", json.dumps({"type": "record", "name": "Person", "fields": fields}))
        options = {"schema.registry.url": registry.url, "valueSchema": "latest"}
        options |= {"onInvalidRecord": "deadLetter", "deadLetterTopic": dead_letters}
        arguments += ["--value-format", "avro", *(f"--option={key}={value}" for key, value in options.items())]
        said = stream_to_kafka.stream_to_kafka(spark, stream_to_kafka.build_parser().parse_args(arguments))
        assert read_avro(registry, name, read_topic(name)) == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]
    (letter,) = read_topic(dead_letters)
    assert letter.value == b'{"id": 3, "name": null}'
    assert dict(letter.headers)["__pykafka_sink.errors.field"] == b"value.name"
    assert "rows processed in 1 batch" in said


def test_a_long_write_prints_its_progress(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    slow = functions.udf(lambda number: time.sleep(1) or str(number), useArrow=False)
    with spark_job.status_lines(spark, interval_s=0.2):
        spark.range(4, numPartitions=4).select(slow("id")).collect()
    lines = [line for line in capfd.readouterr().err.splitlines() if "rows read so far" in line]
    assert lines
    assert all(re.fullmatch(r"[0-4] of 4 tasks done, \d rows read so far", line) for line in lines)


def sample_spark_settings() -> dict[str, str]:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def test_spark_knows_every_setting_of_the_sample(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    spark.range(1).select(functions.udf(str, useArrow=False)("id")).collect()  # declares the settings of Python workers
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    settings = sample_spark_settings()
    assert len(settings) >= 3
    if pyspark.__version__.startswith("4.0."):
        del settings["spark.python.unix.domain.socket.enabled"]
    for name, value in settings.items():
        entry = find(name)
        assert entry is not None, name
        entry.valueConverter().apply(value)


PRINTS_ARROW_BATCH_SETTINGS = """
from jobs.spark_job import ARROW_COMPRESSION, ARROW_BATCH_SETTINGS, start_spark
for who in ("user", "job"):
    spark = start_spark("settings", verbose=False)
    print(who, [spark.conf.get(key) for key in ARROW_BATCH_SETTINGS])
    for key in (*ARROW_BATCH_SETTINGS, ARROW_COMPRESSION):
        spark._jvm.System.clearProperty(key)  # where spark-submit keeps what the user has set
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_jobs_set_small_arrow_batches_unless_the_user_sets_others(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS_ARROW_BATCH_SETTINGS)
    user = ["--conf", "spark.sql.execution.arrow.maxBytesPerBatch=2m", "--conf", f"{ARROW_COMPRESSION}=lz4"]
    done = _run([*submit(*user), str(program)], tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(user|job) \['(.*)'\]$", done.stdout, re.MULTILINE) == [("user", "2m"), ("job", "1m")]
    assert done.stdout.count(f"warning: {ARROW_COMPRESSION}=lz4 makes every sink") == 1  # of the session with it


def test_an_idle_worker_is_left_alone_as_long_as_a_batch_may_take() -> None:
    idle_s = int(sample_spark_settings()["spark.python.worker.idleTimeoutSeconds"])
    assert idle_s * 1000 > ProducerConfig.from_mapping({"bootstrap.servers": "b:1"}).delivery_timeout_ms


def submit(*arguments: str) -> list[str]:
    return [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]", *arguments]


@pytest.mark.matrix
@pytest.mark.spark
def test_spark_submit_runs_a_job_with_the_package_as_a_zip_and_the_sample_settings(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, csv: Path, tmp_path: Path
) -> None:
    """Outside the checkout, as on a cluster: driver and workers have only the files in --py-files.

    test_the_job_commands_run_in_a_fresh_copy runs the same command within the checkout.
    """
    name = topic()
    package = tmp_path / "pykafka_sink.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for source in (ROOT / "spark_kafka_sink").rglob("*.py"):
            archive.write(source, source.relative_to(ROOT))
    job = tmp_path / "batch_to_kafka.py"
    job.write_bytes((ROOT / "jobs" / "batch_to_kafka.py").read_bytes())
    command = submit("--verbose", "--properties-file", str(ROOT / "conf" / "spark-defaults.conf"))
    shared = [ROOT / "jobs" / name for name in ("command_line.py", "spark_job.py")]
    command += ["--py-files", ",".join(map(str, [package, *shared])), str(job)]
    command += ["--input", str(csv), "--topic", name, "--value", "name", "--bootstrap-servers", broker.bootstrap_servers]
    done = _run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr  # of Spark's workers, with Unix sockets, when Spark ended
    assert len(read_topic(name)) == 3
    for setting, value in sample_spark_settings().items():
        assert f"({setting},{value})" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("start", [[sys.executable], submit()], ids=["python", "spark-submit"])
def test_a_usage_error_is_exit_code_2(start: list[str]) -> None:
    done = _run(
        [*start, str(ROOT / "jobs" / "stream_to_kafka.py"), "--topic", "t", "--checkpoint", "c"], ROOT, PYTHONPATH=str(ROOT)
    )
    assert done.returncode == 2, done.stderr
    assert "stream_to_kafka: error: --bootstrap-servers is missing" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "start",
    [pytest.param([sys.executable], id="python", marks=pytest.mark.matrix), pytest.param(submit(), id="spark-submit")],
)
def test_a_failing_job_ends_with_one_line_and_exit_code_1(start: list[str], csv: Path) -> None:
    arguments = ["--input", str(csv), "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", "--option", "onCommit=no.such"]
    done = _run([*start, str(ROOT / "jobs" / "batch_to_kafka.py"), *arguments], ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    said = done.stdout + done.stderr  # spark-submit sends both to its stdout
    assert "batch_to_kafka: error: [KAFKA_INVALID_CONFIG] " in said
    assert "\tat org.apache" not in said
    assert "Traceback" not in said


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.parametrize("job", ["batch_to_kafka", "stream_to_kafka"])
def test_a_warning_about_an_option_is_logged_once(job: str, csv: Path, tmp_path: Path) -> None:
    """The job logged it, without a time, when it checked the options, and Spark's planner logged it again.

    The test of Ctrl-C sees it too.
    """
    (csv.parent / "b.csv").write_text("id,name\n4,dan\n")
    arguments = ["--input", str(csv.parent), "--input-format", "csv", "--topic", "orders", "--option", "kafka.lingr.ms=1"]
    if job == "stream_to_kafka":  # two batches: each is planned anew
        arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--trigger", "available-now"]
        arguments += ["--input-option", "maxFilesPerTrigger=1"]
    with FakeBroker(topics={"orders": 1}) as broker:
        command = [sys.executable, "-m", f"jobs.{job}", *arguments, "--bootstrap-servers", broker.bootstrap_servers]
        done = _run(command, tmp_path, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        assert len(broker.values("orders")) == 4
    assert_warned_once(done.stderr)


def assert_warned_once(said: str) -> None:
    (line,) = [line for line in said.splitlines() if "lingr.ms" in line]
    assert re.match(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING spark_kafka_sink\.", line)


WITH_CHILDREN = """
import os, sys
from pathlib import Path
from jobs import batch_to_kafka
code = batch_to_kafka.main(sys.argv[1:])
stats = [each.read_text().rpartition(")")[2].split() for each in Path("/proc").glob("[0-9]*/stat")]
print("children that run on:", sum(stat[0] != "Z" and stat[1] == str(os.getpid()) for stat in stats))
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_missing_broker_is_reported_during_the_write_and_spark_ends_with_the_job(csv: Path, tmp_path: Path) -> None:
    """The job printed nothing for minutes: Spark made four attempts of max.block.ms each before the job failed."""
    arguments = ["--input", str(csv), "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", "--option", "kafka.max.block.ms=9000"]
    where = {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": "--master local[1,4] pyspark-shell"}
    done = _run([sys.executable, "-c", WITH_CHILDREN, *arguments], tmp_path, **where)
    assert done.returncode == 1, done.stderr
    assert "warning: the driver cannot connect to any broker (127.0.0.1:1: Connection refused)" in done.stderr
    assert "Spark runs a failing task up to 4 times" in done.stderr
    failures = re.findall(r"^task 0 failed \(attempt (\d) of 4\): \[KAFKA_BROKER_UNREACHABLE\] (.*)$", done.stderr, re.MULTILINE)
    assert [attempt for attempt, _ in failures][:3] == ["1", "2", "3"]
    assert "Topic t not present in metadata after 9000 ms." in failures[0][1]
    assert all("(within 1450 ms); an earlier task on this executor has already waited" in text for _, text in failures[1:])
    assert "batch_to_kafka: error: [KAFKA_BROKER_UNREACHABLE] no broker answered" in done.stderr
    assert "children that run on: 0" in done.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_a_trigger_that_spark_does_not_take_is_a_usage_error() -> None:
    arguments = ["--input-format", "rate", "--topic", "t", "--checkpoint", "c", "--bootstrap-servers", "b:1", "--trigger", "soon"]
    done = _run([sys.executable, str(ROOT / "jobs" / "stream_to_kafka.py"), *arguments], ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 2, done.stderr
    assert "stream_to_kafka: error: --trigger soon: not available-now, once, or an interval like '10 seconds' (" in done.stderr


@pytest.mark.spark
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--input", "/no/such.csv"], "[PATH_NOT_FOUND]"),
        (["--input", str(ROOT / "README.md"), "--input-format", "text", "--key", "no_such_column"], "`no_such_column`"),
        (["--input-format", "rate"], "rate is not a valid Spark SQL Data Source."),
        (["--input-format", "nonsense"], "nonsense"),
    ],
)
def test_what_spark_refuses_is_one_line(more: list[str], message: str, spark: SparkSession) -> None:
    arguments = batch_to_kafka.build_parser().parse_args([*more, "--topic", "t", "--bootstrap-servers", "127.0.0.1:9"])
    with pytest.raises((PySparkException, Py4JError)) as raised:
        batch_to_kafka.batch_to_kafka(spark, arguments)
    line = spark_job.failure_line(str(raised.value))
    assert message in line
    assert "\n" not in line


# What Spark's server for accumulators writes when Java ends before it.
ACCUMULATORS_END = re.compile(r"-{40}\nException occurred during processing of request.*?EOFError\n-{40}\n", re.DOTALL)


@pytest.mark.slow
@pytest.mark.spark
def test_ctrl_c_ends_a_stream_with_130_and_what_it_wrote_stays(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, tmp_path: Path
) -> None:
    """And of all batches, each of which is planned anew, one warns of an option."""
    name = topic()
    arguments = ["--input-format", "rate", "--value", "cast(value AS string)", "--topic", name, "--option", "kafka.lingr.ms=1"]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--bootstrap-servers", broker.bootstrap_servers]
    command = [sys.executable, str(ROOT / "jobs" / "stream_to_kafka.py"), *arguments]
    with (tmp_path / "log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: job.poll() is not None or commits(tmp_path / "log") > 1, 120, "the stream writes")
        job.send_signal(signal.SIGINT)
        assert job.wait(60) == 130, (tmp_path / "log").read_text()
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(30)
    said = (tmp_path / "log").read_text()
    assert "stream_to_kafka: interrupted\n" in said
    assert "Traceback" not in ACCUMULATORS_END.sub("", said)
    assert_warned_once(said)
    values = [record.value for record in read_topic(name)]
    assert 0 < len(set(values)) == len(values)


def commits(log: Path) -> int:
    return log.read_text().count("INFO spark_kafka_sink.sink.commit_report: wrote ")


def _run(command: list[str], directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    return subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
        check=False,
    )
