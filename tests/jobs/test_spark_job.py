"""What a job does around Spark: checks before it starts, lines while it runs, one line when it fails. No Spark is started."""

from __future__ import annotations

import signal
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jobs import batch_to_kafka, spark_job, stream_to_kafka
from jobs.spark_job import failure_line


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("topik=t", "[KAFKA_INVALID_CONFIG] Unknown option 'topik'. Did you mean 'topic'?"),
        ("kafka.linger.ms=soon", "linger.ms"),
        ("reportPath=/no/such/report.jsonl", "lies in a directory that does not exist on the driver"),
    ],
)
def test_wrong_options_are_reported_before_spark_starts(
    option: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt option was reported after 43 s, when Spark had started and had read the whole input to find its columns."""
    monkeypatch.setattr(spark_job, "start_spark", lambda *_, **__: pytest.fail("Spark was started"))
    for job, more in ((batch_to_kafka, []), (stream_to_kafka, ["--checkpoint", "c"])):
        assert job.main(["--input", "a.csv", "--topic", "t", "--bootstrap-servers", "b:1", "--option", option, *more]) == 2
        assert message in capsys.readouterr().err


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
def test_the_relevant_line_of_a_spark_exception_is_shown(text: str, line: str) -> None:
    assert failure_line(text) == line


def test_a_call_is_made_on_another_thread_and_raises_what_it_raises() -> None:
    threads = []
    spark_job.call_on_other_thread(lambda: threads.append(threading.current_thread()))
    assert threads != [threading.current_thread()]
    with pytest.raises(ZeroDivisionError):
        spark_job.call_on_other_thread(lambda: 1 // 0)


def test_ctrl_c_is_delayed_until_spark_has_started() -> None:
    """An interrupt while PySpark started a JVM left that JVM running for ever."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not have
    started = []

    def start() -> None:
        with spark_job._hold_signals():
            signal.raise_signal(signal.SIGINT)
            started.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert started
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# STATUS LINES


class Option:
    """Scala's Option."""

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


def status_of(failed: list[SimpleNamespace], rows: int) -> spark_job.Status:
    """The status of a stage of four tasks, none of them done, whose attempts have read so many rows in all."""
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
    return spark_job.Status(spark, 10, has_progress=True)


class FakeArrayList(list[object]):
    add = list.append


def test_a_failed_task_is_reported_at_once_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Four attempts took a minute each, and nothing was printed before the last one had failed."""
    status = status_of([failed_attempt(7, 1, 0, 5, f"Traceback …\n{TRACEBACK}")], 5)
    for _ in range(3):
        status._show_status(is_progress_due=False)
    assert capsys.readouterr().err.splitlines()[0] == (
        "task 1 failed (attempt 1 of 4): [KAFKA_DELIVERY_FAILED] 3 rows not acknowledged:"
    )
    status._show_status(is_progress_due=False)
    assert capsys.readouterr().err == ""


def test_rows_that_failed_attempts_have_read_are_not_counted_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The progress line said that 745,971 rows were read, from a file of 336,776."""
    attempts = [failed_attempt(1, 0, 0, 100, "x"), failed_attempt(2, 0, 1, 70, "x"), failed_attempt(3, 1, 0, 9, "x", "KILLED")]
    status_of(attempts, 300)._show_status(is_progress_due=True)
    stderr = capsys.readouterr().err
    assert "0 of 4 tasks done, 121 rows read so far" in stderr
    assert stderr.count("failed (attempt") == 2  # Spark kills attempts that are needed no more


def test_very_many_failures_are_not_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status_of([failed_attempt(number, number, 0, 0, "x") for number in range(100)], 0)._show_status(is_progress_due=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == spark_job.MAX_SHOWN_FAILURES + 1
    assert lines[-1].startswith("more tasks have failed")


def test_the_warning_about_missing_brokers_says_how_long_tasks_wait(capsys: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    with socket.socket() as bound_socket:  # bound and not listening: connections are refused
        bound_socket.bind(("127.0.0.1", 0))
        servers = [bound_socket.getsockname()]
        warning = threading.Thread(target=spark_job.warn_of_missing_brokers, args=(servers, 60_000, 4, ended, 0))
        warning.start()
        until_said = threading.Event()
        while not (said := capsys.readouterr().err) and warning.is_alive():
            until_said.wait(0.05)
        ended.set()
        warning.join(30)
    assert said.startswith("warning: the driver cannot connect to any broker (127.0.0.1:")
    assert said.endswith("a task waits up to 60 s for one (kafka.max.block.ms), and Spark runs a failing task up to 4 times\n")


def test_one_server_that_accepts_connections_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        spark_job.warn_of_missing_brokers([("127.0.0.1", 1), ("127.0.0.1", port)], 60_000, 1, threading.Event(), 0)
    assert capsys.readouterr().err == ""


def test_names_that_do_not_resolve_are_reasons() -> None:
    message = spark_job.reason_unreachable([("no-such-host.invalid", 9092), ("x" * 70, 1)])
    assert message is not None
    assert "no-such-host.invalid:9092: " in message
