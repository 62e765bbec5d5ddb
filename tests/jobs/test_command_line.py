"""Arguments, .properties files and error lines of the jobs; no Spark is started here."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import threading
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs import batch_to_kafka, command_line, stream_to_kafka
from jobs.command_line import UsageError, failure_line, input_format, option_name, parse_properties, read_properties, sink_options

CONF = Path(__file__).resolve().parent.parent.parent / "conf"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("acks=all", {"acks": "all"}),
        ("acks : all", {"acks": "all"}),
        ("acks all the way", {"acks": "all the way"}),
        ("  acks\t=  all ", {"acks": "all "}),
        ("# no\n! no\n\n   # no\na=1 # yes", {"a": "1 # yes"}),
        ("a=1,\\\n   2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n#2", {"a": "1#2"}),
        ("a=ends in a backslash\\\\\nb=2", {"a": "ends in a backslash\\", "b": "2"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("a=\\t\\n\\u00e9\\q", {"a": "\t\né" + "q"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ('c.config=x.Module required a="u" b="p=1";', {"c.config": 'x.Module required a="u" b="p=1";'}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def test_a_broken_file_is_named_without_its_values(tmp_path: Path) -> None:
    file = tmp_path / "secret.properties"
    file.write_text("sasl.password=\\u12xyhunter2")
    with pytest.raises(UsageError, match=r"secret.properties.*hexadecimal") as error:
        read_properties(file)
    assert "hunter2" not in str(error.value)
    assert "12xy" not in str(error.value)
    with pytest.raises(UsageError, match=r"none.properties cannot be read"):
        read_properties(tmp_path / "none.properties")


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("acks", "kafka.acks"),
        ("retries", "kafka.retries"),
        ("linger.ms", "kafka.linger.ms"),
        ("kafka.linger.ms", "kafka.linger.ms"),
        ("deliveryGuarantee", "deliveryGuarantee"),
        ("topic", "topic"),
        ("Kafka.Linger.ms", "Kafka.Linger.ms"),  # the sink takes it so; kafka.Kafka.Linger.ms had no effect
        ("Bootstrap.Servers", "kafka.bootstrap.servers"),
    ],
)
def test_kafkas_keys_may_be_written_without_their_prefix(key: str, option: str) -> None:
    assert option_name(key) == option


def test_arguments_win_over_options_over_later_files_over_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("topic=a\nacks=0\nlinger.ms=1\nbatch.size=1")
    (tmp_path / "b").write_text("topic=b\nlinger.ms=2\nbatch.size=2\nbootstrap.servers=b:1")
    files = ["--config", str(tmp_path / "a"), "--config", str(tmp_path / "b")]
    assert sink_options(_batch(*files, "--option", "kafka.batch.size=3", "--topic", "c")) == {
        "topic": "c",
        "kafka.acks": "0",
        "kafka.linger.ms": "2",
        "kafka.batch.size": "3",
        "kafka.bootstrap.servers": "b:1",
    }


def test_the_topic_and_the_brokers_are_found_in_any_case() -> None:
    options = sink_options(_batch("--option", "Topic=a", "--option", "Kafka.Bootstrap.Servers=b:1"))
    assert options == {"topic": "a", "kafka.bootstrap.servers": "b:1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "a.csv", "--topic", "t"], "--bootstrap-servers is missing"),
        (["--input", "a.csv", "--topic", " ", "--bootstrap-servers", "b:1"], "--topic is missing"),
        (["--input", "a.csv", "--bootstrap-servers", "b:1"], "--topic is missing"),
        (["--topic", "t", "--bootstrap-servers", "b:1"], "--input is missing"),
        (["--input", "a.xls", "--topic", "t", "--bootstrap-servers", "b:1"], "cannot be told by its extension"),
        (["--input", "a.csv", "--config", "/none"], "--config /none cannot be read"),
        (["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--value", " "], "--value is empty"),
    ],
)
def test_a_usage_error_is_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch_to_kafka.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("batch_to_kafka: error: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("topik=t", "[KAFKA_INVALID_CONFIG] Unknown option 'topik'. Did you mean 'topic'?"),
        ("kafka.linger.ms=soon", "linger.ms"),
        ("reportPath=/no/such/report.jsonl", "lies in a directory that does not exist on the driver"),
    ],
)
def test_wrong_options_are_told_before_spark_starts(
    option: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt option was told after 43 s: Spark had started and had read the whole input for its columns by then."""
    monkeypatch.setattr(command_line, "start_spark", lambda *_, **__: pytest.fail("Spark was started"))
    for job, more in ((batch_to_kafka, []), (stream_to_kafka, ["--checkpoint", "c"])):
        assert job.main(["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--option", option, *more]) == 2
        assert told in capsys.readouterr().err


def test_a_malformed_option_is_not_repeated_for_it_may_be_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        _batch("--option", "hunter2")
    assert exit_.value.code == 2
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("dir/a.jsonl", "json"),
        ("hdfs://host:9000/a.parquet", "parquet"),
        ("s3a://bucket/part.json.zst", "json"),
    ],
)
def test_the_extension_tells_the_format(path: str, name: str) -> None:
    assert input_format(_batch("--input", path)) == name
    assert input_format(_batch("--input", path, "--input-format", "orc")) == "orc"


def test_a_stream_needs_its_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        stream_to_kafka.main(["--input-format", "rate", "--topic", "t", "--bootstrap-servers", "b:1"])
    assert exit_.value.code == 2
    assert "--checkpoint" in capsys.readouterr().err


TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "writer.py", line 1, in write
    raise
spark_kafka_sink.errors.KafkaTimeoutError: [KAFKA_TIMEOUT] first try

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
spark_kafka_sink.errors.DeliveryError: [KAFKA_DELIVERY_FAILED] 3 rows not acknowledged:
  - orders-1: timed out
  - orders-2: timed out

 SQLSTATE: 38000
\tat org.apache.spark.Thing.run(Thing.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TRACEBACK, "[KAFKA_DELIVERY_FAILED] 3 rows not acknowledged:\n  - orders-1: timed out\n  - orders-2: timed out"),
        ("Traceback (most recent call last):\n  File x\nValueError: no\nother", "ValueError: no"),
        ("[PATH_NOT_FOUND] Path does not exist: a.\n\tat x", "[PATH_NOT_FOUND] Path does not exist: a."),
        ("[KAFKA_INVALID_CONFIG] bad\n SQLSTATE: 38000", "[KAFKA_INVALID_CONFIG] bad"),
        # only "An error occurred while calling o64.load." was shown
        (
            "An error occurred while calling o64.load.\n: org.apache.spark.XException: [NOT_FOUND] no x.\n\tat y",
            "[NOT_FOUND] no x.",
        ),
        ("", "failed without a message"),
    ],
)
def test_of_a_spark_exception_the_line_that_matters_is_shown(text: str, line: str) -> None:
    assert failure_line(text) == line


@pytest.mark.parametrize("name", ["producer.properties", "sink.properties", "tls.properties"])
def test_the_sample_files_are_accepted_by_the_sink(name: str) -> None:
    from spark_kafka_sink.config.sink_options import SinkOptions

    options = sink_options(_batch("--config", str(CONF / name), "--topic", "t", "--bootstrap-servers", "b:1"))
    problems: list[str] = []
    SinkOptions.check(options, problems)
    assert problems == []


def _batch(*arguments: str) -> argparse.Namespace:
    return batch_to_kafka.build_parser().parse_args(list(arguments))


def test_both_jobs_take_the_same_arguments() -> None:
    names = {action.dest for action in command_line.new_parser("job", "", "")._actions}
    assert len(names) > 10
    for module in (batch_to_kafka, stream_to_kafka):
        assert names <= {action.dest for action in module.build_parser()._actions}


@pytest.mark.parametrize("module", [batch_to_kafka, stream_to_kafka])
def test_help_explains_every_argument_and_ends_with_examples_that_parse_and_the_exit_codes(module: types.ModuleType) -> None:
    parser = module.build_parser()
    assert all(action.help for action in parser._actions)
    shown = parser.format_help()
    assert shown.rstrip().endswith(command_line.EXIT_CODES)
    examples = shown.split("examples:\n")[1].split("exit codes:")[0].replace("\\\n", " ").strip().splitlines()
    assert len(examples) == 2
    for line in examples:
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", f"jobs.{parser.prog}"]
        parser.parse_args(words[3:])


def test_every_batch_of_a_stream_is_counted_once() -> None:
    def progress(batch: int, timestamp: str, rows: int) -> dict[str, object]:
        return {"batchId": batch, "timestamp": timestamp, "sink": {"numOutputRows": rows}}

    written = stream_to_kafka.Written()
    first, second, idle, third = progress(0, "a", 10), progress(1, "b", 5), progress(2, "c", -1), progress(2, "d", 1000)
    for recent in ([], [first], [first, second, idle], [first, second, idle], [idle, third]):
        written.add(recent)
    assert str(written) == "1,015 rows written in 3 batches"


def test_a_call_apart_is_made_on_another_thread_and_raises_what_it_raises() -> None:
    threads = []
    command_line.call_apart(lambda: threads.append(threading.current_thread()))
    assert threads != [threading.current_thread()]
    with pytest.raises(ZeroDivisionError):
        command_line.call_apart(lambda: 1 // 0)


def test_ctrl_c_is_put_off_until_spark_has_started() -> None:
    """An interrupt in the middle of PySpark's start once left a JVM behind that nothing would ever end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not have
    started = []

    def start() -> None:
        with command_line._signals_held():
            signal.raise_signal(signal.SIGINT)
            started.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert started
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# --- what is said while a write runs ----------------------------------------------------------------------------------


class Option:
    """Scala's."""

    def __init__(self, value: object = None) -> None:
        self.isDefined = lambda: value is not None
        self.get = lambda: value


def scala_list(values: list[Any]) -> SimpleNamespace:
    return SimpleNamespace(size=lambda: len(values), apply=values.__getitem__)


def failed_attempt(task_id: int, index: int, attempt: int, rows: int, message: str, status: str = "FAILED") -> SimpleNamespace:
    metrics = SimpleNamespace(inputMetrics=lambda: SimpleNamespace(recordsRead=lambda: rows))
    return SimpleNamespace(
        taskId=lambda: task_id,
        index=lambda: index,
        attempt=lambda: attempt,
        status=lambda: status,
        errorMessage=lambda: Option(message),
        taskMetrics=lambda: Option(metrics),
    )


def status_of(failed: list[SimpleNamespace], rows: int) -> command_line.Status:
    """Of a stage of four tasks, none done, in which all attempts together have read so many rows."""
    counts = {"stageId": 3, "attemptId": 0, "numTasks": 4, "numCompleteTasks": 0, "inputRecords": rows, "numKilledTasks": 0}
    stage = SimpleNamespace(**{name: lambda value=value: value for name, value in counts.items()})
    stage.numFailedTasks = lambda: len(failed)
    store = SimpleNamespace(activeStages=lambda: scala_list([stage]), taskList=lambda *_: scala_list(failed))
    scheduler = SimpleNamespace(maxTaskFailures=lambda: 4)
    context = SimpleNamespace(statusStore=lambda: store, taskScheduler=lambda: scheduler)
    v1 = SimpleNamespace(TaskStatus=SimpleNamespace(FAILED="FAILED", KILLED="KILLED"), TaskSorting=SimpleNamespace(ID="ID"))
    packages: dict[str, Any] = {"org": SimpleNamespace(), "java": SimpleNamespace(util=SimpleNamespace(ArrayList=FakeArrayList))}
    packages["org"].apache = SimpleNamespace(spark=SimpleNamespace(status=SimpleNamespace(api=SimpleNamespace(v1=v1))))
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), _jvm=SimpleNamespace(**packages))
    )
    return command_line.Status(spark, 10, progress=True)  # type: ignore[arg-type]


class FakeArrayList(list[object]):
    add = list.append


def test_a_task_that_fails_is_told_at_once_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Of four attempts of a minute each, nothing was said before the last one had failed."""
    status = status_of([failed_attempt(7, 1, 0, 5, f"Traceback …\n{TRACEBACK}")], 5)
    for _ in range(3):
        status._look(says_progress=False)
    assert capsys.readouterr().err.splitlines()[0] == (
        "task 1 failed (attempt 1 of 4): [KAFKA_DELIVERY_FAILED] 3 rows not acknowledged:"
    )
    status._look(says_progress=False)
    assert capsys.readouterr().err == ""


def test_rows_that_failed_attempts_have_read_are_not_counted_again(capsys: pytest.CaptureFixture[str]) -> None:
    """745,971 rows were said to be read, of a file of 336,776."""
    attempts = [failed_attempt(1, 0, 0, 100, "x"), failed_attempt(2, 0, 1, 70, "x"), failed_attempt(3, 1, 0, 9, "x", "KILLED")]
    status_of(attempts, 300)._look(says_progress=True)
    told = capsys.readouterr().err
    assert "0 of 4 tasks done, 121 rows read so far" in told
    assert told.count("failed (attempt") == 2  # Spark kills attempts that are needed no more


def test_very_many_failures_are_not_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    status_of([failed_attempt(number, number, 0, 0, "x") for number in range(100)], 0)._look(says_progress=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == command_line.TOLD_FAILURES + 1
    assert lines[-1].startswith("more tasks have failed")


def test_a_missing_broker_is_warned_of_with_how_long_it_will_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        servers = [taken.getsockname()]
        warning = threading.Thread(target=command_line.warn_of_missing_brokers, args=(servers, 60_000, 4, ended, 0))
        warning.start()
        until_said = threading.Event()
        while not (said := capsys.readouterr().err) and warning.is_alive():
            until_said.wait(0.05)
        ended.set()
        warning.join(30)
    assert said.startswith("warning: no broker takes a connection, as seen from the driver (127.0.0.1:")
    assert said.endswith(
        "a task waits up to 60 s for one (kafka.max.block.ms), and Spark runs a task that has failed again, 4 times in all\n"
    )


def test_one_server_that_takes_connections_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command_line.warn_of_missing_brokers([("127.0.0.1", 1), ("127.0.0.1", port)], 60_000, 1, threading.Event(), 0)
    assert capsys.readouterr().err == ""


def test_names_that_do_not_resolve_are_reasons() -> None:
    told = command_line.unreachable([("no-such-host.invalid", 9092), ("x" * 70, 1)])
    assert told is not None
    assert "no-such-host.invalid:9092: " in told


def test_the_rows_are_those_of_the_report_which_this_write_has_added(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"rows": 1}\n')
    with command_line.reported({"REPORTPATH": str(path)}) as (options, report):
        assert options == {"REPORTPATH": str(path)}
        assert report.read() is None  # the line there is another write's
        with path.open("a") as file:
            file.write(json.dumps({"rows": 336_776, "skipped": 0, "dead_lettered": 2}) + "\n")
        assert batch_to_kafka.in_words(report.read()) == "336,776 rows (2 dead-lettered) of "
    with command_line.reported({"topic": "t"}) as (options, report):
        own = Path(options["reportPath"])
        assert own.parent.is_dir()
        assert batch_to_kafka.in_words(report.read()) == ""
    assert not own.parent.exists()
