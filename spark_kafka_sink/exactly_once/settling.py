"""Settling: whether the control records of a transaction have come to all of its places, and what to do where they have not.

A coordinator that ends a transaction while a partition has no leader may skip its control record there, and say all the same that
the transaction is complete (KAFKA-20734; brokers 4.3.0 and newer). The transaction's records hang: readers with read_committed
stand still before them, until the next control record of the same producer id decides about them, whatever that one says.

    place       where a transaction has records: a topic partition with its rows, or the group of its marker
    to hang     to be open in a place under a producer id whose transaction is complete
    settled     nothing of its producer id hangs anywhere

So nobody takes an id that is not settled (task_attempt.py), and a version is recorded as carried out only when all that it has
committed is settled (step 6g). What hangs is decided by the same decision once more, which needs no right on the cluster:
AddPartitionsToTxn and AddOffsetsToTxn with these places, then EndTxn. Where nothing hangs, that only adds a control record.
Commits are repeated at exactly the producer id and epoch that the coordinator has, while the decision lists the transaction:
only who carries it out touches the id then. To take the id first would hide that it was committed.
Aborted ids are taken first, with the time-out of who fences, so that nobody finds them settled. One that is settled is put to
rest by an empty commit: CompleteCommit means settled, or listed in a decision that is not carried out.

What hangs is seen by DescribeProducers, which needs READ on the topic. Without it, a partition whose last stable offset does not
pass the rows may hang, or be held back by somebody else: the decision is repeated there, MAX_SUSPICIONS times.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from spark_kafka_sink.admin.operation import BrokerGoneError
from spark_kafka_sink.admin.question import Question, Reply
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import (
    EndToRepeat,
    TransactionDescription,
    TransactionEnd,
    TransactionState,
)
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
    printable,
    printable_list,
)
from spark_kafka_sink.exactly_once.fencing import ENDING, TAKING_TIMEOUT_MS, is_taken_by_fencer
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState, is_in_kafka
from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames
from spark_kafka_sink.exactly_once.writes import CommitFailedError, NotVisibleError, TaskTransaction
from spark_kafka_sink.protocol.messages.list_offsets import IsolationLevel
from spark_kafka_sink.protocol.producer_identity import FIRST_LEVEL_OF_V2, PreparedTransaction
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TAKEN_AFTER_ITS_END = 2  # how much higher the epoch is of an id that is aborted, or taken, once its transaction was committed
MAX_SUSPICIONS = 2  # repetitions for a partition where it cannot be seen what hangs
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1, 100
_FIRST_REPEAT_PAUSE_MS = 1_000
_SHORTEST_LOOK_MS, _LONGEST_LOOK_MS = 500, 2_000  # a leader that does not answer may not lead any more

Ends = Mapping[TopicPartition, int]  # the offset behind the last row that was written to each partition


@dataclass(frozen=True)
class WrittenPlaces:
    """Where a write has rows: the ends of what its tasks have written, as far as they are known, and the topics."""

    ends: Ends = field(default_factory=dict)
    topics: frozenset[str] = frozenset()

    @property
    def all_topics(self) -> frozenset[str]:
        return self.topics | {each.topic for each in self.ends}


NO_PLACES = WrittenPlaces()


class Visibility:
    """Looks where partitions stand still, until one deadline. Used for one settling."""

    def __init__(self, client: TransactionClient, targets: Mapping[TopicPartition, int | None], timeout_ms: int | None) -> None:
        """`targets`: the offsets that last stable offsets are to reach; None: the high watermark of the first look."""
        self.client = client
        self.targets = dict(targets)
        self.timeout_ms = client.default_timeout_ms if timeout_ms is None else timeout_ms
        self.began_ms = client.clock.now_ms()
        self.standing: dict[TopicPartition, int | None] = dict.fromkeys(targets)  # and their last stable offsets, if known
        self._pause_ms = _FIRST_PAUSE_MS

    @property
    def left_ms(self) -> int:
        return max(self.began_ms + self.timeout_ms - self.client.clock.now_ms(), 0)

    def pause(self) -> None:
        self.client.pause(min(self._pause_ms, self.left_ms))
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)

    def look(self, *others: Question[Any]) -> list[Reply[Any]]:
        """Ask for the ends of what stands still, and beside that other questions, whose replies it returns."""
        unknown = [each for each in self.standing if self.targets[each] is None]
        stable_reply, high_reply, *replies = self.client.ask_together(
            self.client.end_offsets_question(self.standing, IsolationLevel.READ_COMMITTED),
            self.client.end_offsets_question(unknown, IsolationLevel.READ_UNCOMMITTED),
            *others,
            timeout_ms=min(max(self.left_ms, _SHORTEST_LOOK_MS), _LONGEST_LOOK_MS),
        )
        self.targets |= {each: end for each, end in high_reply.read_answer().items() if isinstance(end, int)}
        stable_ends = stable_reply.read_answer()
        still_standing: dict[TopicPartition, int | None] = {}
        for partition in self.standing:
            end, target = stable_ends.get(partition), self.targets[partition]
            if isinstance(end, AuthorizationError | BrokerError):
                logger.debug("= %s is not looked at: %s", printable(partition), end)  # hidden from this user, or deleted
            elif not isinstance(end, int) or target is None or end < target:
                still_standing[partition] = end if isinstance(end, int) else None
        self.standing = still_standing
        return replies

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not look at these any more: what holds readers back there is none of ours."""
        for partition in partitions:
            self.standing.pop(partition, None)

    def standing_text(self) -> str:
        return printable_list(
            f"{printable(partition)}{'' if end is None else f' at offset {end}'}" for partition, end in self.standing.items()
        )


@dataclass
class _Hanging:
    """What hangs of some producer ids: partitions by producer id, and where that cannot be known."""

    by_producer: dict[int, set[TopicPartition]]
    hidden: list[TopicPartition]
    foreign: list[TopicPartition]
    unanswered: list[TopicPartition]


def _find_hanging(visibility: Visibility, producer_ids: Collection[int]) -> _Hanging:
    """Ask the leaders of what stands still for these producers' open records."""
    standing = list(visibility.standing)
    answers = visibility.client.describe_producers(standing, producer_ids, timeout_ms=min(visibility.left_ms, 2_000))
    hanging = _Hanging({}, [], [], [])
    for partition, answer in answers.items():
        if isinstance(answer, AuthorizationError | UnsupportedVersionError):
            hanging.hidden.append(partition)
        elif isinstance(answer, KafkaError):
            hanging.unanswered.append(partition)
        elif ours := [each for each, producer in answer.items() if producer.transaction_start_offset is not None]:
            for producer_id in ours:
                hanging.by_producer.setdefault(producer_id, set()).add(partition)
        else:
            hanging.foreign.append(partition)
    return hanging


# COMMITS


class Beside(NamedTuple, Generic[T]):
    """A question that is asked beside something else, and who reads the reply."""

    question: Question[T]
    read: Callable[[Reply[T]], None]


class Fate(enum.Enum):
    """What has become of a decided transaction, by its coordinator."""

    OPEN = "open"
    COMMITTED = "committed, or its commit is being repeated"
    ABORTED = "aborted, by brokers or by who fences it"
    CUT_OFF = "its commit was repeated, and that has timed out or was fenced: rows that hung may be lost"
    UNKNOWN = "somebody else has taken the id since, or it has expired"


def fate_of(description: TransactionDescription | None, entry: TaskTransaction) -> Fate:
    """What has become of a transaction that a decision lists which is not carried out.

    With transaction.version 2, an id that was aborted has these epochs, one after the other: aborted, taken by who fences it,
    taken by a task, confirmed. A commit raises the epoch by one, and its repetitions do not. So a task's id whose epoch is at
    most one higher than the decided one was committed; if two higher, its repetition was aborted. Below 2, only an abort raises
    it.
    """
    if description is None or description.producer_id != entry.producer_id:
        return Fate.UNKNOWN
    if is_taken_by_fencer(description):
        return Fate.ABORTED
    distance = description.producer_epoch - entry.producer_epoch
    if description.timeout_ms == TAKING_TIMEOUT_MS:  # by a task that had described it before
        is_repetition_lost = distance > _TAKEN_AFTER_ITS_END and entry.transaction_version >= FIRST_LEVEL_OF_V2
        return Fate.CUT_OFF if is_repetition_lost else Fate.UNKNOWN
    match description.state:
        case TransactionState.ONGOING if distance in (0, 1):
            return Fate.COMMITTED if distance else Fate.OPEN
        case TransactionState.PREPARE_COMMIT | TransactionState.COMPLETE_COMMIT if distance in (0, 1):
            return Fate.COMMITTED
        case TransactionState.PREPARE_ABORT | TransactionState.COMPLETE_ABORT if distance in (0, 1, 2):
            return Fate.CUT_OFF if distance == _TAKEN_AFTER_ITS_END else Fate.ABORTED
    return Fate.UNKNOWN


def cut_off_error(version: int, entry: TaskTransaction) -> CommitFailedError:
    return CommitFailedError(
        f"version {version} was committed, but of its Spark partition {entry.partition} a part may be lost: its control record"
        " was skipped in a topic partition, and its repetition was cut off for longer than the transaction's time-out. Compare"
        " the rows of this Spark partition with the topic, as `pykafka-sink transactions list` shows them, before anything else"
        " is written under this name. A repetition does not help"
    )


class CommitSettling:
    """Step 6g: sees to it that readers see everything that a decision has committed.

    Args:
        entries: whose transactions are committed.
        places: where the rows are.
    """

    def __init__(
        self, ledger: Ledger, decision: Decision, entries: Sequence[TaskTransaction], places: WrittenPlaces, fate_text: str
    ) -> None:
        self.ledger = ledger
        self.client = ledger.client
        self.decision = decision
        self._entries = {each.prepared_transaction(ledger.names, ledger.owner).transactional_id: each for each in entries}
        self._unmarked = dict(self._entries)  # whose marker has not been seen
        self._fate_text = fate_text
        targets: dict[TopicPartition, int | None] = dict(places.ends)
        others = places.all_topics - {each.topic for each in targets}
        if others and entries:
            targets |= dict.fromkeys(self.client.partitions_of(others))
        self._visibility = Visibility(self.client, targets, None)
        self._suspicions = 0
        self._next_repeat_ms = 0
        self._repeat_pause_ms = _FIRST_REPEAT_PAUSE_MS

    def settle(self, beside: Beside[Any] | None = None) -> None:
        """Wait until all is visible. `beside`: asked beside the first look, and read after it.

        Raises:
            NotVisibleError: it is not in time.
            CommitFailedError: another run has gone on.
        """
        visibility = self._visibility
        more = () if beside is None else (beside.question,)
        marker_reply, *replies = visibility.look(self._marker_question(), *more)
        self._note_markers(_answer_or(marker_reply, None))
        if beside is not None:
            beside.read(replies[0])
        was_complete = False  # before the last look: what stands still after that hangs, or is somebody else's
        while visibility.standing or self._unmarked:
            if not visibility.left_ms:
                raise NotVisibleError(self._text())
            visibility.pause()
            marker_reply, description_reply = visibility.look(
                self._marker_question(), self.client.describe_transactions_question(self._entries)
            )
            are_markers_known = self._note_markers(_answer_or(marker_reply, None))
            descriptions: Mapping[str, TransactionDescription | None] = _answer_or(description_reply, {})
            if was_complete and are_markers_known and descriptions and self._may_repeat():
                self._repeat(descriptions)
                was_complete = False
            else:
                was_complete = bool(descriptions) and not any(each and each.state in ENDING for each in descriptions.values())

    def _may_repeat(self) -> bool:
        """Whether it is time to repeat what hangs: at once, then after pauses that grow, as repetitions may be skipped too."""
        now_ms = self.client.clock.now_ms()
        is_due = bool(self._visibility.standing or self._unmarked) and now_ms >= self._next_repeat_ms
        if is_due:
            self._next_repeat_ms = now_ms + self._repeat_pause_ms
            self._repeat_pause_ms *= 4
        return is_due

    def _marker_question(self) -> Question[dict[int, Any]]:
        return self.ledger.markers_question(each.partition for each in self._unmarked.values() if each.content.rows)

    def _note_markers(self, markers: Mapping[int, Any] | None) -> bool:
        """Note which markers are visible. Returns whether their coordinators have answered: then they have leaders."""
        if markers is None:
            return False
        self._unmarked = {
            transactional_id: entry
            for transactional_id, entry in self._unmarked.items()
            if entry.content.rows and not is_in_kafka(markers.get(entry.partition), self.decision.version, entry)
        }
        return True

    def _repeat(self, descriptions: Mapping[str, TransactionDescription | None]) -> None:
        """Repeat the commits of what hangs, when the coordinators have completed all."""
        visibility = self._visibility
        described = {key: each for key, each in descriptions.items() if each is not None}
        by_id = {each.producer_id: key for key, each in described.items()}
        hanging = _find_hanging(visibility, by_id.keys()) if visibility.standing else _Hanging({}, [], [], [])
        if not may_skip(self.client):
            hanging = _Hanging({}, [], [*hanging.foreign, *hanging.hidden], [])  # complete: all has its control records
            self._unmarked = {}
        if hanging.foreign:
            logger.warning(
                "= version %d is committed; somebody else's open transaction holds readers back in %s",
                self.decision.version,
                printable_list(map(printable, hanging.foreign)),
            )
            visibility.give_up(hanging.foreign)
        places = {by_id[each]: frozenset(partitions) for each, partitions in hanging.by_producer.items()}
        with_leader = [each for each in hanging.hidden if visibility.standing[each] is not None]
        if with_leader:
            if self._suspicions >= MAX_SUSPICIONS:
                logger.warning(
                    "= version %d is committed, and its decision was repeated; without READ on the topics it cannot be seen"
                    " what holds readers back in %s",
                    self.decision.version,
                    printable_list(map(printable, with_leader)),
                )
                visibility.give_up(with_leader)
            else:
                self._suspicions += 1
                places = {key: places.get(key, frozenset()) | frozenset(with_leader) for key in described}
        ids = places.keys() | (self._unmarked.keys() & described.keys())
        if not ids:
            return
        self._require_same_decision()
        repetitions = []
        for transactional_id in sorted(ids):
            description, entry = described[transactional_id], self._entries[transactional_id]
            fate = fate_of(description, entry)
            if fate is Fate.CUT_OFF:
                raise cut_off_error(self.decision.version, entry)
            if fate in (Fate.ABORTED, Fate.UNKNOWN):
                raise NotVisibleError(self._text(" Another run has taken a transactional id of it meanwhile."))
            if description.producer_id != entry.producer_id:
                raise NotVisibleError(self._text(f" Transactional id {printable(transactional_id)} has another producer id."))
            transaction = PreparedTransaction(transactional_id, *description.identity, 0)  # EndTxn leaves the epoch
            repetitions.append(
                EndToRepeat(transaction, places.get(transactional_id, frozenset()), self.ledger.marker_group(entry.partition))
            )
        _log_repetitions("commit", repetitions)
        self.client.end_again(repetitions, commit=True, timeout_ms=max(visibility.left_ms, 1))

    def _require_same_decision(self) -> None:
        """The ids are only for who carries out the decision, as long as the ledger has it."""
        decision = self.ledger.fetch_decision()
        if decision is None or (decision.version, decision.state) != (self.decision.version, DecisionState.DECIDED):
            raise CommitFailedError(
                f"another run has gone on to {'no decision' if decision is None else f'version {decision.version}'} while this"
                f" one settled version {self.decision.version}. Its rows are in Kafka. A prefix is for one query or job at a"
                " time: end this one"
            )

    def _text(self, more: str = "") -> str:
        visibility = self._visibility
        where = f" Readers stand still in {visibility.standing_text()}." if visibility.standing else ""
        markers = printable_list(each.partition for each in self._unmarked.values()) if self._unmarked else ""
        unmarked = f" The markers of the Spark partitions {markers} are not visible yet." if markers else ""
        return (
            f"version {self.decision.version} is decided and its transactions are committed, but after {visibility.timeout_ms} ms"
            f" (max.block.ms) readers do not see all of its rows.{where}{unmarked}{more} {self._fate_text}"
        )


def _log_repetitions(verb: str, repetitions: Iterable[EndToRepeat]) -> None:
    for transaction, partitions, group in repetitions:
        logger.warning(
            "! the %s of transactional id %s is repeated: its control record was skipped, perhaps, in %s",
            verb,
            printable(transaction.transactional_id),
            printable_list([*map(printable, sorted(partitions)), *([] if group is None else [f"group {printable(group)}"])]),
        )


# ABORTS


def settle_left(
    client: TransactionClient,
    names: PrefixNames,
    marker_partition: TopicPartition,
    left: Mapping[AttemptId, TransactionDescription | None],
    places: WrittenPlaces,
    *,
    timeout_ms: int | None = None,
) -> list[AttemptId]:
    """Settle ids whose transactions are aborted, and put them to rest. Blocks at most max.block.ms, or `timeout_ms`.

    Args:
        left: what fence_all has returned. Where a transaction was not open any more, nobody knows where its rows are: then in
            `places`.

    Returns:
        The ids that could not be settled in time. They stay listed, and no task takes them. Raises KafkaError.
    """
    if not left:
        return []
    partitions = {partition for each in left.values() if each is not None for partition in each.partitions}
    if any(each is None or not each.partitions for each in left.values()):
        partitions |= {*places.ends, *client.partitions_of(places.all_topics)}
    rows = [each for each in partitions if not each.topic.startswith("__")]  # the others are of the markers' groups
    settling = _AbortSettling(client, names, marker_partition, list(left), Visibility(client, dict.fromkeys(rows), timeout_ms))
    return settling.settle()


class _AbortSettling:
    """Step 6h: sees to it that nothing hangs of ids whose transactions are aborted."""

    def __init__(
        self,
        client: TransactionClient,
        names: PrefixNames,
        marker_partition: TopicPartition,
        attempt_ids: Sequence[AttemptId],
        visibility: Visibility,
    ) -> None:
        self._client = client
        self._names = names
        self._marker_partition = marker_partition
        self._visibility = visibility
        self._ids = {names.transactional_id(each): each for each in attempt_ids}  # that are not settled yet
        self._doubtful_ids: list[AttemptId] = []  # whose marker may hang, however often the abort was repeated
        self._suspicions = 0

    def settle(self) -> list[AttemptId]:
        visibility = self._visibility
        was_complete = False  # before the last look: what stands still after that hangs, or is somebody else's
        while True:
            group_reply, description_reply = visibility.look(
                self._client.stable_offsets_question({self._group(key): [self._marker_partition] for key in self._ids}),
                self._client.describe_transactions_question(self._ids),
            )
            groups = _answer_or(group_reply, {})
            descriptions: Mapping[str, TransactionDescription | None] = _answer_or(description_reply, {})
            if was_complete and descriptions:
                self._act({key: each for key, each in descriptions.items() if each is not None and _is_left(each)}, groups)
            was_complete = bool(descriptions) and not any(each and each.state in ENDING for each in descriptions.values())
            if not self._ids or not visibility.left_ms:
                unsettled_ids = list(dict.fromkeys([*self._ids.values(), *self._doubtful_ids]))
                if unsettled_ids:
                    self._log_rest(unsettled_ids)
                return unsettled_ids
            visibility.pause()

    def _group(self, transactional_id: str) -> str:
        attempt_id = self._ids[transactional_id]
        return self._names.marker_group(attempt_id.owner, attempt_id.partition)

    def _act(self, ours: Mapping[str, TransactionDescription], groups: Mapping[str, Any]) -> None:
        """Repeat the aborts of what hangs, and put the other ids to rest. An id that is not ours any more is somebody else's."""
        if not may_skip(self._client):
            _rest(self._client, self._names, ours)
            self._ids = {}
            return
        hung, is_all_known = self._find_hung(ours, groups)
        if is_all_known:
            doubtful = {*self._doubtful_ids}
            settled = {key: each for key, each in ours.items() if key not in hung and self._ids[key] not in doubtful}
            _rest(self._client, self._names, settled)
            self._ids = {key: self._ids[key] for key in hung}
        transactions = _take(self._client, {key: ours[key] for key in hung})
        repetitions = [EndToRepeat(each, hung[key], self._group(key)) for key, each in transactions.items()]
        _log_repetitions("abort", repetitions)
        self._client.end_again(repetitions, commit=False)

    def _find_hung(
        self, ours: Mapping[str, TransactionDescription], groups: Mapping[str, Any]
    ) -> tuple[dict[str, frozenset[TopicPartition]], bool]:
        """Find the ids of which something hangs, and in which partitions, and whether all of that could be seen."""
        visibility = self._visibility
        by_id = {each.producer_id: key for key, each in ours.items()}
        hanging = _find_hanging(visibility, by_id.keys()) if visibility.standing and ours else _Hanging({}, [], [], [])
        hung = {by_id[each]: frozenset(rows) for each, rows in hanging.by_producer.items()}
        hidden = [each for each in hanging.hidden if visibility.standing[each] is not None]  # they have a leader
        pending = [key for key in ours if groups.get(self._group(key), 0) is None]
        if self._suspicions < MAX_SUSPICIONS:
            if hidden:
                hung |= {key: hung.get(key, frozenset()) | frozenset(hidden) for key in ours}
            hung |= {key: hung.get(key, frozenset()) for key in pending}
        else:
            visibility.give_up(hidden)
            # Another run's open transaction may hold the group, or a control record was skipped each time. Once at rest, the id
            # would be taken, and its next commit would make the marker of the aborted transaction visible.
            self._doubtful_ids = [self._ids[key] for key in pending if key not in hung]
        self._suspicions += bool(hidden or pending)
        visibility.give_up(hanging.foreign)
        is_all_known = not hanging.unanswered and len(hidden) == len(hanging.hidden)
        return hung, is_all_known and not any(isinstance(each, KafkaTimeoutError) for each in groups.values())

    def _log_rest(self, unsettled_ids: Sequence[AttemptId]) -> None:
        logger.warning(
            "! %d transactional ids are not settled: %s. Readers may stand still in %s; the next write, or `pykafka-sink"
            " transactions repair`, settles them",
            len(unsettled_ids),
            printable_list(printable(self._names.transactional_id(each)) for each in unsettled_ids),
            self._visibility.standing_text() or "no partition that is known",
        )


def _is_left(description: TransactionDescription) -> bool:
    """Whether an id is still as who fenced it, or brokers, have left it. Others belong to somebody, or are at rest."""
    is_taken = description.state == TransactionState.EMPTY and is_taken_by_fencer(description)
    return is_taken or description.state == TransactionState.COMPLETE_ABORT


def may_skip(client: TransactionClient) -> bool:
    """Whether a broker may skip control records. Without one that may, nothing is repeated: what stands still is somebody else's,
    or will be decided."""
    return bool(client.brokers_that_may_skip_control_records(timeout_ms=_LONGEST_LOOK_MS))


def _answer_or(reply: Reply[Any], default: Any) -> Any:
    """The answer of a look; `default` if there is none in time, or this user or a broker does not know it."""
    try:
        return reply.read_answer()
    except (AuthorizationError, UnsupportedVersionError, KafkaTimeoutError, BrokerGoneError):
        return default


def _take(client: TransactionClient, descriptions: Mapping[str, TransactionDescription]) -> dict[str, PreparedTransaction]:
    """Take ids that are still as described. One that who fences has taken already stays as it is."""
    transactions = {
        key: PreparedTransaction(key, *each.identity, 0)
        for key, each in descriptions.items()
        if each.state == TransactionState.EMPTY and is_taken_by_fencer(each)
    }
    identities = client.take_over({key: each.identity for key, each in descriptions.items() if key not in transactions})
    return transactions | {key: PreparedTransaction(key, *each, 0) for key, each in identities.items() if each is not None}


def _rest(client: TransactionClient, names: PrefixNames, descriptions: Mapping[str, TransactionDescription]) -> None:
    """Put settled ids to rest by an empty commit. One that cannot be now is listed again."""
    transactions = _take(client, descriptions)
    repetitions = [EndToRepeat(each, frozenset(), names.aborted_group) for each in transactions.values()]
    for transactional_id, outcome in client.end_again(repetitions, commit=True).items():
        if outcome.end is not TransactionEnd.ENDED:
            logger.debug("! transactional id %s is not at rest: %s", printable(transactional_id), outcome.error)
