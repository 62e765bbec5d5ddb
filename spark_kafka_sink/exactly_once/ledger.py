"""One owner's markers, decisions and records of aborted writes: how they are read and written.

Each record is one offset of a consumer group without members (names.py), for partition 0 of the marker topic. A long decision
takes several (overflow groups). ledger_records.py encodes and decodes the records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.question import Question
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_TASKS,
    WIDTH_EXPONENTS,
    Decision,
    DecisionState,
    Marker,
    decision_text,
    digest_of,
    fits_one_offset,
    overflow_group_count,
    overflow_texts,
    pack_entries,
    read_decision,
    read_marker,
    unpack_entries,
)
from spark_kafka_sink.exactly_once.names import PrefixNames
from spark_kafka_sink.exactly_once.writes import CommitFailedError, DriverTime
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

OVERFLOW_SET_COUNT = 2  # of overflow groups: versions n and n + 1 use different sets, n and n + 2 the same


class LedgerView(NamedTuple):
    """What a task has read from its owner's records. `is_aborted`: the driver has aborted its write."""

    decision: Decision | None
    is_aborted: bool
    marker: Marker | None


class AllMarkers(NamedTuple):
    """The markers of all partitions that any version of an owner has had, and the count that record_partition_count recorded."""

    by_partition: dict[int, Marker]
    recorded_partition_count: int


class Ledger:
    """One owner's records, as one process reads and writes them. Blocks as TransactionClient does; used by one thread at a time.
    The offsets name `marker_topic`, an existing topic. Who reads or writes an offset needs the permission READ on this topic."""

    def __init__(self, client: TransactionClient, names: PrefixNames, owner: str, marker_topic: str) -> None:
        self.client = client
        self.names = names
        self.owner = owner
        self.marker_partition = TopicPartition(marker_topic, 0)

    # WHAT A TASK READS AND WRITES

    def fetch_view(self, planned_at: DriverTime, partition: int) -> LedgerView:
        """Read what a task has to know before it writes this Spark partition. Raises as `fetch_decision` does."""
        return self.client.ask(self.view_question(planned_at, partition))

    def view_question(self, planned_at: DriverTime, partition: int) -> Question[LedgerView]:
        """The answer is what `fetch_view` returns."""
        groups = (self.names.decision_group(self.owner), self.names.aborted_group, self.marker_group(partition))

        def read(records: dict[str, CommittedOffset]) -> LedgerView:
            decision_record, abort, marker_record = (records.get(group) for group in groups)
            return LedgerView(
                decision=None if decision_record is None else self.decode_decision(decision_record),
                is_aborted=abort is not None and abort.metadata == planned_at.host and planned_at.time_ms < abort.offset,
                marker=None if marker_record is None else read_marker(marker_record, groups[2]),
            )

        return self._read_question(groups).then(read)

    def fetch_marker(self, partition: int) -> Marker | None:
        """Read the marker of a Spark partition. One in an open transaction is not seen."""
        return self.fetch_markers([partition]).get(partition)

    def fetch_markers(self, partitions: Iterable[int]) -> dict[int, Marker]:
        """Read the markers of Spark partitions. A partition without one is left out."""
        return self.client.ask(self.markers_question(partitions))

    def markers_question(self, partitions: Iterable[int]) -> Question[dict[int, Marker]]:
        """The answer is what `fetch_markers` returns."""
        groups = {self.marker_group(partition): partition for partition in partitions}
        if not groups:
            return Question((), lambda _: {})
        question = self._read_question(groups)
        return question.then(lambda records: {groups[key]: read_marker(each, key) for key, each in records.items()})

    def marker_group(self, partition: int) -> str:
        return self.names.marker_group(self.owner, partition)

    # WHAT THE DRIVER READS AND WRITES

    def fetch_decision(self) -> Decision | None:
        """Read the owner's decision; None if there is none. Raises LedgerError if it cannot be understood.

        A decision whose overflow groups are gone counts as INCOMPLETE: nobody can carry it out any more, and markers say what
        is in Kafka. A later version has overwritten the groups, or they have expired.
        """
        return self.client.ask(self.decision_question())

    def decision_question(self) -> Question[Decision | None]:
        """The answer is what `fetch_decision` returns."""
        group = self.names.decision_group(self.owner)
        question = self._read_question([group])
        return question.then(lambda records: self.decode_decision(records[group]) if group in records else None)

    def decode_decision(self, record: CommittedOffset) -> Decision:
        """The decision in an offset that was read already. Reads its overflow groups, if any. Raises as `fetch_decision` does."""
        group = self.names.decision_group(self.owner)
        decision, values = read_decision(record, group)
        if decision.state is not DecisionState.DECIDED:
            return decision
        packed_entries = self._fetch_entries(decision, values, group)
        if packed_entries is None:
            logger.warning("! the transactions that version %d decided to commit are not listed any more", decision.version)
            return decision.with_state(DecisionState.INCOMPLETE)
        return replace(decision, entries=unpack_entries(packed_entries, decision, group))

    def write_decision(self, decision: Decision) -> None:
        """Write a decision, its overflow groups first. Raises KafkaError; after a time-out it may be written all the same."""
        if decision.task_count > MAX_TASKS:
            raise CommitFailedError(
                f"an exactly-once write has at most {MAX_TASKS:,} Spark partitions, and this one has {decision.task_count:,}."
                " Nothing was committed: write with fewer partitions (coalesce)"
            )
        packed_entries = pack_entries(decision.entries)
        text = decision_text(decision)
        entries_text = f"entries={packed_entries}"
        if not fits_one_offset(text, packed_entries):
            texts = overflow_texts(packed_entries)
            for group, overflow_text in zip(self._overflow_groups(decision, len(texts)), texts, strict=True):
                self._write(group, decision.version, overflow_text)
            entries_text = f"overflow={len(texts)} digest={digest_of(packed_entries)}"
        self._write(self.names.decision_group(self.owner), decision.version, f"{text} {entries_text}")

    def write_decision_question(self, decision: Decision) -> Question[None]:
        """A question that, when asked, writes a decision without entries as `write_decision` does; the answer is None."""
        packed_entries = pack_entries(decision.entries)
        text = decision_text(decision)
        if not fits_one_offset(text, packed_entries):
            return Question((), lambda _: self.write_decision(decision))
        record = (decision.version, f"{text} entries={packed_entries}")
        return self.client.commit_offsets_question(self.names.decision_group(self.owner), {self.marker_partition: record})

    def all_markers_question(self, partition_count: int) -> Question[AllMarkers]:
        """The answer has the markers of this many partitions, or of as many as are recorded, if that is more."""
        width_groups = {self.names.width_group(self.owner, exponent): 2**exponent for exponent in WIDTH_EXPONENTS}
        partitions = {self.marker_group(partition): partition for partition in range(partition_count)}

        def read(records: dict[str, CommittedOffset]) -> AllMarkers:
            recorded_count = max((count for group, count in width_groups.items() if group in records), default=0)
            by_partition = {partitions[group]: read_marker(each, group) for group, each in records.items() if group in partitions}
            by_partition |= self.fetch_markers(range(partition_count, recorded_count))
            return AllMarkers(by_partition, recorded_count)

        return self._read_question([*width_groups, *partitions]).then(read)

    def record_partition_count(self, partition_count: int) -> None:
        """Record how many partitions a version has, rounded up to a power of two. Each power has its own group."""
        exponent = (partition_count - 1).bit_length()
        self._write(self.names.width_group(self.owner, exponent), 2**exponent, "")

    def record_abort(self, now: DriverTime) -> None:
        """Record that all writes of the prefix that were planned before `now` on the same machine are aborted."""
        self._write(self.names.aborted_group, now.time_ms, now.host)

    # GROUPS

    def _read(self, groups: Iterable[str]) -> dict[str, CommittedOffset]:
        groups = list(groups)
        return self.client.ask(self._read_question(groups)) if groups else {}

    def _read_question(self, groups: Iterable[str]) -> Question[dict[str, CommittedOffset]]:
        marker_partition = self.marker_partition
        question = self.client.fetch_offsets_question({group: [marker_partition] for group in groups}, require_stable=False)
        return question.then(
            lambda answers: {group: each[marker_partition] for group, each in answers.items() if marker_partition in each}
        )

    def _write(self, group: str, offset: int, metadata: str) -> None:
        self.client.commit_offsets(group, {self.marker_partition: (offset, metadata)})

    def _overflow_groups(self, decision: Decision, group_count: int) -> list[str]:
        first = decision.version % OVERFLOW_SET_COUNT
        indexes = range(first, first + OVERFLOW_SET_COUNT * group_count, OVERFLOW_SET_COUNT)
        return [self.names.overflow_group(self.owner, index) for index in indexes]

    def _fetch_entries(self, decision: Decision, values: Mapping[str, str], group: str) -> str | None:
        """Return the packed entries of a decision; None if its overflow groups do not hold all of them any more."""
        if "entries" in values:
            return values["entries"]
        groups = self._overflow_groups(decision, overflow_group_count(values, group))
        records = self._read(groups)
        packed_entries = "".join(records[each].metadata for each in groups if each in records)
        return packed_entries if digest_of(packed_entries) == values.get("digest") else None
