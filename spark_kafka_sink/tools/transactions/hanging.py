"""What hangs: transactions that are complete by their coordinator, and open in partitions or groups (exactly_once/settling.py).

Reads only. Partitions tell it by DescribeProducers, which needs READ on the topic. Without that, a partition whose last stable
offset stands still before its end is suspicious: rows hang there, or somebody else's transaction is open. A marker that hangs
shows as an offset of its group that is pending, whoever's it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_kafka_sink.admin.leaders import ActiveProducer
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import (
    AuthorizationError,
    KafkaError,
    ResponseTooLargeError,
    UnsupportedVersionError,
    printable,
    printable_list,
)
from spark_kafka_sink.exactly_once.decisions import OwnersDecision, decisions_of
from spark_kafka_sink.exactly_once.fencing import COMPLETE
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.topic_partition import TopicPartition

MAY_HANG = (TransactionState.EMPTY, *sorted(COMPLETE))  # states in which nothing of an id may be open
_LONGEST_LOOK_MS = 2_000  # a partition without a leader is not waited for any longer

SparkPartition = tuple[str, int]  # owner, as AttemptId has it, and Spark partition


@dataclass(frozen=True, slots=True)
class Hanging:
    """What hangs, or may hang, of the ids of a prefix.

    Args:
        producer_ids: of the ids that were looked at.
        aborted_ids: those of them that are not CompleteCommit: a committed one is settled, unless a decision lists it.
        decided_ids: ids of decisions that are not carried out: their driver may have died before it saw that all is visible.
        open_rows: what partitions know of producers with open rows.
        pending: Spark partitions whose markers are pending.
        hidden: partitions where readers stand still, and the user may not see for whom.
        notes: what was not looked at, and why.
    """

    producer_ids: Mapping[AttemptId, int] = field(default_factory=dict)
    aborted_ids: frozenset[AttemptId] = frozenset()
    decided_ids: frozenset[AttemptId] = frozenset()
    open_rows: Mapping[int, Mapping[TopicPartition, ActiveProducer]] = field(default_factory=dict)
    pending: frozenset[SparkPartition] = frozenset()
    hidden: frozenset[TopicPartition] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> set[AttemptId]:
        """The ids to be described: those that hang, and those that may hang if that cannot be seen."""
        hanging_ids = {
            attempt_id
            for attempt_id, producer_id in self.producer_ids.items()
            if producer_id in self.open_rows or attempt_id[:2] in self.pending
        }
        return hanging_ids | self.decided_ids | (self.aborted_ids if self.hidden else set())


NOTHING_HANGS = Hanging()


class HangingLook:
    """Looks twice: before the ids are described, and after that. What hangs was open at both, and complete in between.

    Args:
        topics: where rows may be; of an owner with a decision, the marker topic is known besides.
    """

    def __init__(self, client: TransactionClient, names: PrefixNames, topics: Collection[str]) -> None:
        self._client = client
        self._names = names
        self._topics = topics
        self._marker_partitions: dict[str, list[TopicPartition]] = {}  # by owner; that of the last decision is the last

    def first(self) -> Hanging:
        """Look at all ids of the prefix whose transactions are complete. Raises KafkaError.

        Where no broker may skip control records, nothing hangs, and nothing is looked at.
        """
        if not self._client.brokers_that_may_skip_control_records():
            return NOTHING_HANGS
        try:
            transactions = self._client.list_transactions(self._names.id_prefix, MAY_HANG)
        except ResponseTooLargeError as error:
            return Hanging(notes=(f"whether rows of complete transactions hang is not known: {error}",))
        parsed = [(self._names.parse(each.transactional_id), each) for each in transactions]
        ids = {attempt_id: each for attempt_id, each in parsed if attempt_id is not None}
        producer_ids = {attempt_id: each.producer_id for attempt_id, each in ids.items()}
        aborted_ids = frozenset(key for key, each in ids.items() if each.state != TransactionState.COMPLETE_COMMIT)
        decided_ids = self._read_decisions({each.owner for each in producer_ids})
        topics = {*self._topics, *(each.topic for partitions in self._marker_partitions.values() for each in partitions)}
        partitions = self._client.partitions_of(topics)
        missing_topics = sorted(set(self._topics) - {each.topic for each in partitions})
        notes = [f"topic {printable(each)} does not exist, or the user may not DESCRIBE it" for each in missing_topics]
        if producer_ids and not topics:
            notes.append(
                "whether rows of complete transactions hang is not known: name the topics that were written to (--topic)"
            )
        rows = self._look_at_rows(partitions, producer_ids.values())
        pending = self._find_pending({each[:2] for each in producer_ids})
        return replace(
            rows,
            producer_ids=producer_ids,
            aborted_ids=aborted_ids,
            decided_ids=decided_ids,
            pending=pending,
            notes=(*notes, *rows.notes),
        )

    def again(self, before: Hanging) -> Hanging:
        """Look again at what the first look has found. Raises KafkaError."""
        partitions = {partition for rows in before.open_rows.values() for partition in rows}
        later = self._look_at_rows(partitions, before.open_rows.keys())
        still_open = {
            producer_id: {
                partition: producer
                for partition, producer in rows.items()
                if later.open_rows.get(producer_id, {}).get(partition) == producer
            }
            for producer_id, rows in before.open_rows.items()
        }
        open_rows = {producer_id: rows for producer_id, rows in still_open.items() if rows}
        return replace(before, open_rows=open_rows, pending=self._find_pending(before.pending))

    @property
    def marker_partitions(self) -> Mapping[str, Sequence[TopicPartition]]:
        """Under which partitions the markers of an owner may be, as decisions and the topics tell. The likeliest is the last."""
        return self._marker_partitions

    def _read_decisions(self, owners: Collection[str]) -> frozenset[AttemptId]:
        """Find the owners' marker topics, and the ids that decisions list. A decision that cannot be read tells neither: whoever
        shows the decisions says so."""
        try:
            decisions: Mapping[str, list[OwnersDecision]] = decisions_of(self._client, self._names, owners)
        except KafkaError:
            decisions = {}
        decided_ids = set()
        for owner in owners:
            self._marker_partitions[owner] = [
                Ledger(self._client, self._names, owner, topic).marker_partition for topic in self._topics
            ]
            for ledger, decision in decisions.get(owner, ()):
                self._marker_partitions[owner].append(ledger.marker_partition)
                if isinstance(decision, Decision):
                    decided_ids |= {AttemptId(owner, each.partition, each.number) for each in decision.entries}
        return frozenset(decided_ids)

    def _look_at_rows(self, partitions: Iterable[TopicPartition], producer_ids: Iterable[int]) -> Hanging:
        """Find the open rows of these producers."""
        answers = self._client.describe_producers(sorted(partitions), frozenset(producer_ids), timeout_ms=_LONGEST_LOOK_MS)
        open_rows: dict[int, dict[TopicPartition, ActiveProducer]] = {}
        hidden: list[TopicPartition] = []
        unanswered: dict[TopicPartition, KafkaError] = {}
        for partition, answer in answers.items():
            if isinstance(answer, AuthorizationError | UnsupportedVersionError):
                hidden.append(partition)
            elif isinstance(answer, KafkaError):
                unanswered[partition] = answer
            else:
                for producer_id, producer in answer.items():
                    if producer.transaction_start_offset is not None:
                        open_rows.setdefault(producer_id, {})[partition] = producer
        notes = []
        if unanswered:
            names, error = printable_list(map(printable, unanswered)), next(iter(unanswered.values()))
            notes.append(f"whether rows hang in {names} is not known: {error}")
        return Hanging(open_rows=open_rows, hidden=self._find_standing(hidden), notes=tuple(notes))

    def _find_standing(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The partitions where readers with read_committed do not reach the end, or whose ends are not known."""
        if not partitions:
            return frozenset()
        ends = [
            reply.read_answer()
            for reply in self._client.ask_together(
                self._client.end_offsets_question(partitions, IsolationLevel.READ_UNCOMMITTED),
                self._client.end_offsets_question(partitions, IsolationLevel.READ_COMMITTED),
                timeout_ms=_LONGEST_LOOK_MS,
            )
        ]
        return frozenset(each for each in partitions if ends[0].get(each) != ends[1].get(each))

    def _find_pending(self, candidates: Iterable[SparkPartition]) -> frozenset[SparkPartition]:
        """The Spark partitions whose marker is pending. One whose group the user may not see counts as not pending."""
        groups = {self._names.marker_group(owner, partition): (owner, partition) for owner, partition in candidates}
        places = {group: self._marker_partitions.get(owner, ()) for group, (owner, _) in groups.items()}
        known_places = {group: partitions for group, partitions in places.items() if partitions}
        if not known_places:
            return frozenset()
        try:
            offsets = self._client.ask(self._client.stable_offsets_question(known_places))
        except UnsupportedVersionError:
            return frozenset()
        return frozenset(groups[group] for group, answer in offsets.items() if answer is None)
