"""Checks of a commit before it decides: what tasks report is compared with what coordinators say.

Nothing here asks brokers: version_commit.py reads the markers and descriptions, and calls these functions in its steps 6c and 6d.
All reports are of one write, which check_writes makes sure of.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from spark_kafka_sink.admin.transaction_operations import TransactionDescription, TransactionState
from spark_kafka_sink.errors import printable_list
from spark_kafka_sink.exactly_once.decisions import WHY_GONE
from spark_kafka_sink.exactly_once.ledger_records import Marker
from spark_kafka_sink.exactly_once.writes import (
    AttemptResult,
    CommitFailedError,
    Content,
    ReplayError,
    TaskReport,
    TaskTransaction,
)

logger = logging.getLogger(__name__)

OTHER_SCHEMAS = (
    "Another run has begun this version with other ones while this one wrote. Nothing of this run is committed; run the write"
    " again: its tasks encode with the schemas of what is in Kafka"
)
LOOK_FIRST = "look whether these rows are in Kafka before you write them under another number"
_WHAT_TO_DO = (
    "Nothing of this run is committed. If its rows are other rows, as after a checkpoint that was restored or shared, or in"
    " a second write of one micro-batch: give them a txnVersion or transactionalIdPrefix of their own. If they are the same rows"
    " and their values change with each run: make the query repeatable, or set onNonDeterministicReplay=keepFirst, which keeps"
    " what is in Kafka"
)


def check_writes(reports: Sequence[TaskReport]) -> None:
    """Raise CommitFailedError unless all reports are of the write of the first one."""
    writes = dict.fromkeys(each.write for each in reports)
    if len(writes) > 1:
        raise CommitFailedError(
            f"the tasks' reports are of different writes: {printable_list(map(str, writes))}. Nothing was committed"
        )


def refuse_other_rows(text: str, *, keeps_first: bool) -> None:
    """Raise ReplayError, or log `text` if the rows that are in Kafka are to be kept."""
    if not keeps_first:
        raise ReplayError(f"{text}. {_WHAT_TO_DO}")
    logger.warning("! %s. Its rows were not written (onNonDeterministicReplay=keepFirst)", text)


def check_markers(
    reports: Sequence[TaskReport], markers: Mapping[int, Marker], decision_group: str, *, keeps_first: bool
) -> None:
    """Compare the markers with what the tasks have seen. Checks first what a repetition cannot mend:

        1  a later version is in Kafka, so that tasks wrote nothing: ReplayError, or only a warning with `keeps_first`
        2  other rows of this version are in Kafka: ReplayError
        3  tasks found this version decided, and their rows are not in Kafka: CommitFailedError
        4  another run has committed the same rows meanwhile, or has encoded with other schemas: CommitFailedError

    `reports`: of tasks that have encoded with the same schemas. `markers`: by Spark partition, of all that there ever were.
    """
    first_report, reports_by_partition = reports[0], {each.entry.partition: each for each in reports}
    version = first_report.write.version
    unseen_markers = {
        partition: marker
        for partition, marker in markers.items()
        if marker.version >= version and not _has_seen(reports_by_partition.get(partition), marker)
    }
    comparable_markers = {
        partition: marker
        for partition, marker in unseen_markers.items()
        if marker.version > version or marker.content.schemas == first_report.content.schemas
    }
    in_kafka = f"version {version} is in Kafka already for the Spark partitions {printable_list(unseen_markers)}"
    _check_later(version, reports_by_partition, markers, keeps_first=keeps_first)
    if comparable_markers != {key: (version, _content_of(reports_by_partition.get(key))) for key in comparable_markers}:
        raise ReplayError(
            f"{in_kafka}, written by an earlier run; this one has {len(reports)} partitions, and its tasks had not seen that."
            " Nothing of this run is committed. Run the write again with as many partitions and the same rows in each"
            " (spark.sql.shuffle.partitions, repartition, the same input splits), or begin anew with another"
            " transactionalIdPrefix"
        )
    _check_missing(reports, markers, decision_group)
    if unseen_markers:
        raise CommitFailedError(
            f"{in_kafka}, with {'the same rows' if comparable_markers else 'other schemas'}: another run has committed them"
            " while this one wrote. End that one: a prefix is for one query or job at a time. Nothing of this run is"
            " committed; the write can be run again, and finds them"
        )


def _check_later(version: int, reports: Mapping[int, TaskReport], markers: Mapping[int, Marker], *, keeps_first: bool) -> None:
    """Refuse a write if its tasks wrote nothing because a later version is in Kafka for their partitions."""
    skipped_partitions = {partition for partition, report in reports.items() if report.result is AttemptResult.SKIPPED}
    later_markers = {key: marker for key, marker in markers.items() if key in skipped_partitions and marker.version > version}
    if later_markers:
        refuse_other_rows(
            f"a later version, {max(marker.version for marker in later_markers.values())}, is in Kafka for the Spark partitions"
            f" {printable_list(later_markers)}, and no decision says so: it was reset or has expired, or another run works with"
            f" this transactionalIdPrefix. What was committed as version {version} is not known: {LOOK_FIRST}",
            keeps_first=keeps_first,
        )


def _check_missing(reports: Sequence[TaskReport], markers: Mapping[int, Marker], decision_group: str) -> None:
    missing_partitions = [each.entry.partition for each in reports if _is_missing(each, markers.get(each.entry.partition))]
    if missing_partitions:
        raise CommitFailedError(
            f"tasks found that version {reports[0].write.version} was decided, and the decision is gone: group {decision_group}"
            " was reset or has expired, or another run works with this transactionalIdPrefix. The rows of the Spark partitions"
            f" {printable_list(missing_partitions)} are not in Kafka. Nothing was committed; run the write again"
        )


def _has_seen(report: TaskReport | None, marker: Marker) -> bool:
    """Whether the task knows that its rows are in Kafka."""
    if report is None:
        return False
    is_its_own = marker.version > report.write.version or marker.content == report.content
    return report.result is AttemptResult.SKIPPED or (report.result is AttemptResult.DECIDED and is_its_own)


def _content_of(report: TaskReport | None) -> Content | None:
    """None if no task reports the partition, or its task found the version decided: then any content in Kafka is another."""
    return None if report is None or report.result is AttemptResult.DECIDED else report.content


def _is_missing(report: TaskReport, marker: Marker | None) -> bool:
    """Whether the task wrote nothing because the version was decided, but its marker is missing or of a later version."""
    if report.result is not AttemptResult.DECIDED:
        return False
    if marker is None or marker.version < report.write.version:
        return bool(report.content.rows)
    return marker.version > report.write.version


def check_untouched(
    descriptions: Mapping[str, TransactionDescription | None], entries: Mapping[str, TaskTransaction], empty_ids: Iterable[str]
) -> None:
    """Raise CommitFailedError unless the transactions are as the tasks have left them: coordinators end those that time out.

    `descriptions` and `entries` are by transactional id; `empty_ids` are those of tasks without rows.
    """
    empty = set(empty_ids)
    gone_partitions = [
        entry.partition for id_, entry in entries.items() if not is_untouched(descriptions[id_], entry, is_empty=id_ in empty)
    ]
    if gone_partitions:
        raise CommitFailedError(
            f"the transactions of {len(gone_partitions)} of {len(entries)} tasks are not theirs any more (Spark partitions"
            f" {printable_list(gone_partitions)}): {WHY_GONE}. Nothing is visible; the write can be run again"
        )


def is_untouched(description: TransactionDescription | None, entry: TaskTransaction, *, is_empty: bool) -> bool:
    """Whether a task's transaction is as the task has left it: open, or Empty if the task had no rows."""
    state = TransactionState.EMPTY if is_empty else TransactionState.ONGOING
    return description is not None and description.state == state and description.identity == entry.identity
