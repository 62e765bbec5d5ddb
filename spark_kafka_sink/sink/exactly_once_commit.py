"""The driver's part of an exactly-once write: hands the tasks' reports to VersionCommit, or aborts the write."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.config.sink_options import KEEP_FIRST
from spark_kafka_sink.errors import DeliveryError, KafkaError, printable
from spark_kafka_sink.exactly_once.decisions import TIMEOUT_OPTION, abort_prefix
from spark_kafka_sink.exactly_once.names import shown_owner, unescape_name
from spark_kafka_sink.exactly_once.settling import WrittenPlaces
from spark_kafka_sink.exactly_once.version_commit import Committed, HowCommitted, VersionCommit
from spark_kafka_sink.exactly_once.writes import DriverTime, WriteId
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from spark_kafka_sink.sink.commit_message import KafkaCommitMessage
from spark_kafka_sink.sink.commit_summary import VersionSummary
from spark_kafka_sink.sink.shipped_files import with_shipped_files
from spark_kafka_sink.sink.worker_cache import CLIENTS
from spark_kafka_sink.sink.write_plan import WritePlan, has_name

logger = logging.getLogger(__name__)


def commit_version(plan: WritePlan, messages: Sequence[KafkaCommitMessage]) -> VersionSummary | None:
    """Commit the tasks' transactions, and block until readers see all of their rows. None for a write without tasks. Raises
    KafkaError: see VersionCommit.run."""
    reports = [each.exactly_once for each in messages]
    task_reports = [report for report in reports if report is not None]
    if len(task_reports) < len(reports):
        raise DeliveryError("a task has written without exactly-once: the executors run another version of pykafka-sink")
    if not task_reports:
        return None
    write, options = task_reports[0].write, plan.options
    keeps_first = options.on_non_deterministic_replay == KEEP_FIRST
    # The client stays connected for the next commit: all commits of a stream run in one process.
    with CLIENTS.lend(with_shipped_files(options.producer.to_mapping()), options.producer_cache_timeout_ms) as client:
        commit = VersionCommit(
            client,
            plan.names,
            task_reports,
            plan.marker_topic,
            is_named=has_name(write),
            keeps_first=keeps_first,
            places=_places_of(plan, messages),
        )
        return _summary(write, commit.run())


def _places_of(plan: WritePlan, messages: Iterable[KafkaCommitMessage | None]) -> WrittenPlaces:
    """Where the rows of a write are: where its tasks have written, and in the topics that its options name."""
    ends: dict[TopicPartition, int] = {}
    for each in (written for message in messages if message is not None for written in message.written):
        partition = TopicPartition(each.topic, each.partition)
        ends[partition] = max(ends.get(partition, 0), each.last + 1)
    topics = (plan.options.topic, plan.options.dead_letter_topic)
    return WrittenPlaces(ends, frozenset(each for each in topics if each is not None))


def _summary(write: WriteId, committed: Committed) -> VersionSummary:
    owner = unescape_name(write.owner)  # as txnAppId names it
    if committed.how is not HowCommitted.COMMITTED:
        logger.warning("version %d of %s: %s", write.version, printable(shown_owner(write.owner)), committed.how.value)
    how = committed.how.name.lower().replace("_", "-")
    return VersionSummary(owner, write.version, how, committed.skipped_partitions, committed.fenced, committed.other_rows)


def abort_version(plan: WritePlan, messages: Sequence[KafkaCommitMessage | None]) -> None:
    """Abort the write: rows that it has written are not seen, unless it is decided. Logs a KafkaError and does not raise it."""
    try:
        with TransactionClient(with_shipped_files(plan.options.producer.to_mapping())) as client:
            fenced_count = abort_prefix(client, plan.names, plan.marker_topic, DriverTime.now(), _places_of(plan, messages))
    except KafkaError as error:
        logger.warning(
            "! transactions of transactionalIdPrefix=%s that may be open could not be aborted: %s. The next run does that, or"
            " brokers do after %s; until then readers with isolation.level=read_committed wait at the partitions of an open one",
            plan.options.transactional_id_prefix,
            str(error).rstrip("."),
            TIMEOUT_OPTION,
        )
    else:
        logger.warning(
            "aborted: fenced %d transactional ids; read_committed readers see no rows of this write, unless it is decided",
            fenced_count,
        )
