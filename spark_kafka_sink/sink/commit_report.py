"""What the driver does with the messages of tasks, and what is in Kafka after each kind of failure.

A task flushes before it returns its KafkaCommitMessage, so every row that a message counts has been acknowledged. The driver's
commit() checks that no message is missing, adds the messages up, and reports the sums. Only with exactly-once it writes to Kafka.

What is in the topic, and what Spark does next (deliveryGuarantee=at-least-once)

    failure                                         in the topic                    then
    a row is rejected, or not acknowledged in time  rows acknowledged before it     task retried: those rows again
    executor lost, worker killed, task cancelled    rows acknowledged before that   task retried: those rows again
    task done, its executor lost before commit      all its rows                    nothing: the driver has its message already
    brokers die and come back while tasks write     rows acknowledged before that   retries, no duplicates: brokers detect them
    two attempts of a task (speculation)            rows of both                    nothing: the loser's rows are duplicates
    a task fails for good, or the job is cancelled  rows of all tasks so far        abort(); running tasks may write more rows
    driver dies before commit()                     all rows                        a stream re-runs the batch: all rows again
    commit() raises: a message is missing           what the other tasks wrote      abort(), the query or write fails
    driver dies after commit(), before Spark's log  all rows                        a stream re-runs the batch: all rows again
    query.stop() within a batch                     rows of all tasks so far        a restart runs the whole batch again

tests/integration tests these failures with real Spark, most of them in test_sink_faults.py. A batch that runs again appends
another report line and calls onCommit again, with the same (query_id, batch_id). A task's message larger than
spark.task.maxDirectResultSize (1 MiB: some 10,000 topic-partitions) stays on the executor; if the executor is lost before the
driver fetches it, Spark runs the task again. So no row is lost, and rows may be duplicated. With deliveryGuarantee=none rows may
be lost too: those that a failed broker had not replicated (acks=1), and those that did not arrive (acks=0).

With deliveryGuarantee=exactly-once a task leaves its rows in an open transaction, and commit() has VersionCommit (exactly_once/)
commit them all. "Seen" is what readers with isolation.level=read_committed see; the next run is the same write or stream, started
again with the same names (checkpoint, or transactionalIdPrefix with txnAppId and txnVersion).

    crash point                                     in Kafka              seen           the next run
    a task dies, is retried, or has a copy          open transactions     nothing        commit() ends the losers'
    a task fails for good, or the job is cancelled  all ended by abort()  nothing        writes all rows
    the driver dies before the decision             open transactions     nothing        ends them, and writes all rows
    … after the decision                            decided; all open     nothing        commits these, writes nothing
    … among the commits                             decided; some open    their rows     commits the others, writes nothing
    … readers do not see all rows in time           decided               a part or all  completes it, writes nothing
    … after the commits, before Spark's log         carried out           all rows       writes nothing
    the write outlasts the transactions' time-out   ended by the brokers  nothing        writes all rows, if it is faster
    some time out between decision and commit       the others            the others     writes the missing partitions
    … and the repetition brings other rows          the others            the others     fails, writes nothing
    other rows than before, no decision yet         open transactions     nothing        writes the new rows
    other rows than before, all committed           carried out           the first      fails, writes nothing
    an earlier driver goes on beside its successor  transactions of both  no row twice   one of the two fails
    … which is at the next version already          one of the decisions  a part or all  cannot find out which of the two
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Sequence

from spark_kafka_sink import stderr_log
from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.exactly_once.writes import WriteAbortedError
from spark_kafka_sink.sink.commit_message import KafkaCommitMessage
from spark_kafka_sink.sink.commit_summary import CommitSummary, VersionSummary

logger = logging.getLogger(__name__)

_IF_RUN_AGAIN = "If the write is run again, it writes these rows again (at-least-once)"


def require_all(messages: Sequence[KafkaCommitMessage | None]) -> list[KafkaCommitMessage]:
    """The messages of all tasks. Raises DeliveryError when one is missing."""
    missing_count = sum(message is None for message in messages)
    if missing_count:
        error = DeliveryError(
            f"{missing_count} of {len(messages)} tasks report nothing, so it is unknown whether their rows were written. This"
            " happens with trigger(continuous=…): Spark then passes no rows to a sink written in Python, and all of them are LOST"
            " while the query looks healthy. Stop the query and use trigger(processingTime=…) or trigger(availableNow=True)",
            condition="KAFKA_MISSING_COMMIT_MESSAGE",
        )
        logger.error("! %s", error)  # a continuous query runs on for a while, and this line is the only sign of the error
        raise error
    return [message for message in messages if message is not None]


def require_not_aborted(messages: Sequence[KafkaCommitMessage]) -> None:
    """Raises WriteAbortedError when a task found its write aborted, although its driver goes on to commit."""
    aborted_count = sum(message.found_abort for message in messages)
    if aborted_count:
        raise WriteAbortedError(
            f"{aborted_count} of {len(messages)} tasks ended without their rows, as another write with the same"
            " transactionalIdPrefix, which is for one query or job at a time, was aborted meanwhile. Nothing of this write is"
            " seen: it can be run again"
        )


def report_commit(
    messages: Sequence[KafkaCommitMessage],
    report_path: str | None,
    on_commit: str | None = None,
    version: VersionSummary | None = None,
    commit_seconds: float = 0.0,
) -> CommitSummary:
    """Runs on the driver when every task has succeeded. Logs one line, appends one to the report file, and calls `on_commit`.

    If the report or `on_commit` fails, that is only logged: after an error Spark would write the rows again. KeyboardInterrupt is
    raised.
    """
    if logger.level == logging.NOTSET and stderr_log.is_in_spark_worker():
        logger.setLevel(logging.INFO)  # Spark's process shows warnings only, and users cannot set its level
    summary = CommitSummary.of(messages, version, commit_seconds)
    logger.log(logging.WARNING if summary.skipped or summary.dead_lettered else logging.INFO, "%s", summary.line())
    if report_path is not None:
        _append_report(report_path, summary)
    if on_commit is not None:
        _call_on_commit(on_commit, summary)
    return summary


def _call_on_commit(on_commit: str, summary: CommitSummary) -> None:
    try:
        load_callable("onCommit", on_commit)(summary)
    except KeyboardInterrupt:
        raise
    except BaseException:  # also SystemExit and asyncio.CancelledError
        logger.exception("! onCommit=%s failed; the write succeeds all the same, with %d rows", on_commit, summary.rows)


def _append_report(path: str, summary: CommitSummary) -> None:
    line = summary.to_json(time.time_ns() // 1_000_000) + "\n"
    try:
        _append(path, line.encode())
    except (OSError, ValueError) as error:  # ValueError: no path can be like this one
        logger.error("! the report of %d rows could not be written to reportPath=%s: %s", summary.rows, path, error)


def open_regular_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """As os.open. Raises OSError, also for anything but a regular file: to open or read a FIFO could block."""
    if sys.platform != "win32":
        flags |= os.O_NONBLOCK
    file = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is not a regular file")
    return file


def _append(path: str, line: bytes) -> None:
    """Write in one call, so that lines of concurrent writes do not mix. Raises OSError."""
    file = open_regular_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.fstat(file).st_size and _last_byte(file) != b"\n":
            line = b"\n" + line  # an earlier line has no end, as the disk was full or its driver died
        written_bytes = os.write(file, line)
        if written_bytes < len(line):
            raise OSError(f"only {written_bytes} of {len(line)} bytes were written")
    finally:
        os.close(file)


def _last_byte(file: int) -> bytes:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1)


def log_abort(messages: Sequence[KafkaCommitMessage | None]) -> None:
    """Runs on the driver when a task or commit() has failed for good: logs what stays in Kafka. Never raises."""
    reports = [message for message in messages if message is not None]
    rows = sum(message.rows for message in reports)
    others_may_have_written = len(reports) < len(messages) or not messages  # a task that has not completed sends no message
    if rows and others_may_have_written:
        fate = f"Their {rows} rows stay in Kafka, and so do rows that other tasks have written or still write. {_IF_RUN_AGAIN}"
    elif rows:
        fate = f"Their {rows} rows stay in Kafka. {_IF_RUN_AGAIN}"
    elif others_may_have_written:
        fate = "No row is known to be in Kafka, but rows that a task wrote before it failed, or still writes, stay there"
    else:
        fate = "They wrote no rows"
    logger.warning("aborted: %d/%d tasks had completed. %s", len(reports), len(messages), fate)
