"""The driver's part of an exactly-once write: hands the tasks' reports to VersionCommit, or gives the write up."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_kafka_sink.coordination.transaction_client import TransactionClient
from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.exactly_once.names import escaped
from spark_kafka_sink.exactly_once.version_commit import Committed, How, VersionCommit, abort
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.sink.commit_protocol import VersionSummary
from spark_kafka_sink.sink.exactly_once_plan import ExactlyOncePlan
from spark_kafka_sink.sink.producer_cache import CLIENTS

logger = logging.getLogger(__name__)

TIMEOUT_OPTION = "kafka.transaction.timeout.ms"


def commit_version(
    plan: ExactlyOncePlan, options: Mapping[str, object], reports: Sequence[TaskReport | None], cache_timeout_ms: int
) -> VersionSummary | None:
    """Blocks until every transaction is committed. None for a write without tasks.

    `cache_timeout_ms`: how long the client stays connected for the next commit; a stream's commits share a process.

    Raises KafkaError: see VersionCommit.run.
    """
    known = [report for report in reports if report is not None]
    if len(known) < len(reports):
        raise DeliveryError("a task has written without exactly-once: the executors run another version of pykafka-sink")
    if not known:
        return None
    with CLIENTS.lend(options, cache_timeout_ms) as client:
        is_repeated = plan.can_be_repeated(known[0].write.owner)
        committed = VersionCommit(client, plan.names, known, plan.marker_topic, is_repeated=is_repeated).run()
    return _summary(known[0], committed)


def _summary(report: TaskReport, committed: Committed) -> VersionSummary:
    write = report.write
    if committed.how is not How.COMMITTED:
        logger.warning("version %d of %s: %s", write.version, write.owner, committed.how.value)
    how = committed.how.name.lower().replace("_", "-")
    return VersionSummary(write.owner, write.version, how, committed.skipped, committed.fenced)


def abort_version(plan: ExactlyOncePlan, options: Mapping[str, object], reports: Sequence[TaskReport | None]) -> None:
    """Give the write up: rows that it has written are not seen, unless it is decided. Never raises KafkaError."""
    write = next((report.write for report in reports if report is not None), None)
    # A batch write knows its own names; a stream's are known from a task's report only.
    record = (None if write is None else write.write) if plan.is_stream else plan.nonce
    owner = write.owner if write is not None else escaped(plan.app_id) if plan.app_id is not None else plan.nonce
    try:
        with TransactionClient(options) as client:
            fenced = abort(client, plan.names, plan.marker_topic, owner, record, is_repeated=plan.can_be_repeated(owner))
    except KafkaError as error:
        logger.warning(
            "! transactions of transactionalIdPrefix=%s that may be open could not be aborted: %s. The next run does that, or"
            " brokers do after %s; until then readers with isolation.level=read_committed wait at the partitions of an open one",
            plan.prefix,
            str(error).rstrip("."),
            TIMEOUT_OPTION,
        )
    else:
        logger.warning("aborted: %d transactions; their rows are not seen by read_committed readers", fenced)
