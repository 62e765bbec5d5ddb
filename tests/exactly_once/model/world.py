"""What the model is about: the plan, a case to try it in, and the state of everything at one moment.

A ModelWorld never changes. A step of a process (task.py, driver.py), of Spark (spark.py) or of the brokers yields ModelMoves:
what happened, and the ModelWorld after it. Each request is one step; what a process computes between two requests is part of the
step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from tests.exactly_once.model.broker import (
    COMPLETE_ABORT,
    DECIDED,
    EMPTY,
    FENCER,
    ONGOING,
    PREPARED,
    TAKER,
    TASK,
    Broker,
    Decision,
    Earlier,
    Entry,
    ModelMarker,
    ModelTransaction,
    Place,
    Rows,
    State,
    TakenBy,
    TransactionalId,
    encoded,
)


@dataclass(frozen=True)
class Plan:
    """The full plan. A field that is set to False is one step left out, or one rule broken: plans.py tells what comes of it.

    Numbers of steps are those of protocol_model.py.
    """

    # A task attempt
    empty_tasks_do_all_steps: bool = True
    looks_before_it_takes_its_id: bool = True  # 0: the id may be one that an earlier run has decided to commit
    skips_before_it_takes_its_id: bool = True  # 0: the marker may be of an id that is not settled
    takes_only_settled_ids: bool = True  # 0: none whose earlier rows may hang; another slot instead
    leaves_decided_ids: bool = True  # 0: none that a decision lists which is not carried out
    compares_epoch_of_id: bool = True  # 1: with what was described before: somebody may have had the id meanwhile
    confirms_id: bool = True  # 1: so that nobody finds the id settled before the epochs are compared
    takes_own_id_first: bool = True  # 1: before it reads what decides whether it writes
    id_has_attempt: bool = True  # 1
    id_has_stage_attempt: bool = False  # 1: tasks in Python do not see it, so another attempt can have the same id
    incomplete_is_not_decided: bool = True  # 2
    carries_out_earlier: bool = True  # 6a: what is decided of a version that nobody repeats
    state_tells_commit: bool = True  # 3, 6f: a transaction is committed if its coordinator says so, whatever its marker says
    state_tells_abort: bool = True  # 6f: rows of an aborted transaction are not to be committed, whatever its marker says
    awaits_pending_markers: bool = True  # 3, 6f: rows are not lost while a marker may still become visible
    looks_at_decided: bool = True  # 3: whether what is decided for its partition is still open, or in Kafka
    compares_content_of_decided: bool = True  # 3: before it takes the own rows for those of the marker
    reads_marker_first: bool = True  # 2: or after the decision: the two requests are sent together
    reads_marker_at_once: bool = True  # 2: without require_stable
    skips_by_marker: bool = True  # 4
    marker_is_in_transaction: bool = True  # 5
    marker_beside_rows: bool = True  # 5: or behind them, when they are acknowledged
    waits_for_rows: bool = True  # 5: reports when rows and marker are there, not as soon as the marker is
    encodes_as_recorded: bool = True  # 2, 4: with the schema of the version's first run, whatever the own plan has
    marker_has_schema: bool = True  # 5
    # The driver's commit()
    reads_decision_again: bool = True  # 6a
    unreadable_is_incomplete: bool = True  # 2, 6a: a decision whose overflow groups were overwritten
    goes_on_without_lost: bool = True  # 6a: the tasks have written again what was decided and is gone
    records_before_it_goes_on: bool = True  # 6a: that it is incomplete
    fences_all_others: bool = True  # 6b
    lists_empty_ids: bool = True  # 6b, 6g, 7
    lists_aborted_ids: bool = True  # 6b, 6g, 7: their rows may hang
    reads_decision_after_list: bool = True  # 6b, 6g, 7: another driver may have decided on what is listed
    aborts_exactly: bool = True  # 6b, 6g, 7: EndTxn(abort) at the epoch that was described, with transaction version 2
    rests_ids: bool = True  # 6h: an id that is settled, and not used since, is not listed again
    repeats_aborts: bool = True  # 6h: where rows of it hang
    spares_empty_tasks: bool = True  # 6b: the ids in the messages of tasks that had no rows
    reads_markers: bool = True  # 6c
    reads_markers_after_fencing: bool = True  # 6c: not beside 6a and 6b
    reads_decision_beside_markers: bool = True  # 6c: another driver may have decided since 6a
    reads_all_markers: bool = True  # 6c: those of partitions that this run does not have, too
    refuses_later_markers: bool = True  # 6c: of a task that was SKIPPED by one, when no decision reaches it
    checks_decided_tasks: bool = True  # 6c: that what they have not written is in Kafka, and the same
    compares_content_of_reached: bool = True  # 6c: another run's rows are no other rows if they are the same
    checks_transactions: bool = True  # 6d
    checks_empty_tasks: bool = True  # 6d: that nobody has taken the ids of tasks that had no rows
    decides_before_it_ends: bool = True  # 6e
    records_width: bool = True  # 6e: how many partitions there are, before the decision
    overflow_has_parity: bool = True  # 6e: two versions that follow each other have different overflow groups
    looks_at_marker_of_lost: bool = True  # 6f
    compares_content_of_lost: bool = True  # 6f
    later_marker_counts: bool = True  # 6f: of an earlier version
    settles: bool = True  # 6g: before the version is recorded, all places of its transactions have their control records
    settles_markers: bool = True  # 6g: those of the markers too
    reads_decision_before_repeat: bool = True  # 6g: the next version may use the id by now
    repeats_exactly: bool = True  # 6g: at the described epoch, without InitProducerId, which hides that the id was committed
    only_warns_without_mark: bool = True  # 6g
    fences_losers: bool = True  # 6g
    spares_only_exact: bool = True  # 6g: an own id that is listed again is another's, but for an empty task's at its epoch
    spares_later_decision: bool = True  # 6g: of a driver whose version is long carried out
    decision_has_schema: bool = True  # 6e: the schema that the version's rows are encoded with
    incomplete_keeps_schema: bool = True  # 6g
    earlier_keep_schema: bool = True  # 6e: those of the versions before
    checks_schemas: bool = True  # 6c, at the end: whether all tasks have encoded with one schema, that of the version
    records_schema_of_markers: bool = True  # 6c: for the next run, if they have not
    compares_schema_of_reached: bool = True  # 6c: rows of another schema are no other rows
    compares_content: bool = True  # at the end: with what was committed as the same version before
    # The driver's abort()
    records_abort: bool = True  # 7
    keeps_decided: bool = True  # 7
    keeps_only_exact: bool = True  # 7: not a transaction that a later task has begun under the id of a decided one
    fences_by_init_producer_id: bool = True  # 7


FULL_PLAN: Final = Plan()

Kind = Literal["stream", "batch", "foreachBatch"]
When = Literal["ever", "while tasks run", "before the decision", "after the decision", "before the first restart"]


class Faults(NamedTuple):
    """How often each may still happen."""

    time_outs: int = 0  # of transactions
    lost_answers: int = 0
    copies: int = 0  # speculation
    deaths: int = 0  # of task attempts
    stages: int = 0  # a stage is submitted again, while its tasks run
    runs: int = 0  # Spark starts the query again
    writes: int = 0  # foreachBatch catches the error of a write, and writes again
    hangs: int = 0  # foreachBatch does so while commit() of the write before still works
    gives_up: int = 0  # commit() raises, because an answer does not come
    skips: int = 0  # a coordinator skips the control record of a place


NO_FAULTS: Final = Faults()


@dataclass(frozen=True)
class ModelCase:
    """
    Args:
        first: which rows are in which partition, see SPLITS.
        replay: the same in each later run; None if every run has the same.
        versions: written one after the other.
        zombies: whether a run may start while an earlier one is still alive.
        attempts: spark.task.maxFailures, and the limit of speculative copies.
        when: transactions time out. "before the first restart": other faults happen only then, too.
        skips: whether a new run writes the version after the one that has failed, as a job may that counts by itself.
        has_overflow: whether a decision is too long for one offset's metadata.
        coordinators: of transactional ids; each is listed by a request of its own.
        frames: how many DataFrames one foreachBatch writes with the same prefix; more than one is a mistake of the user.
        healthy_from: no write may fail that is neither among the first `healthy_from` runs nor writes of a foreachBatch.
        may_be_cut_off: whether a write may end in the error that it is not known what is committed: a repetition has timed out,
            or a task that has stood still has taken the id amid it.
        repeats_time_out: whether a transaction can time out that is open only to repeat its decision.
        overwrites: whether the decision of one driver may replace that of another one which decides at the same time. If not, an
            OffsetCommit compares before it writes, which Kafka's does not: what holds then holds where this does not happen.
        apart: whether the control records of a transaction come one after the other.
        evolves: whether the schema has a newer version each time that a write is planned.
        limit: of states; what is beyond is tried by `walks` random walks.
    """

    name: str
    kind: Kind = "stream"
    first: str = "a|b"
    replay: str | None = None
    versions: tuple[int, ...] = (1,)
    faults: Faults = NO_FAULTS
    zombies: bool = False
    attempts: int = 1
    when: When = "ever"
    transaction_version: int = 2
    skips: bool = False
    has_overflow: bool = False
    coordinators: int = 1
    frames: int = 1
    healthy_from: int | None = None
    evolves: bool = False
    apart: bool = False
    may_be_cut_off: bool = False
    repeats_time_out: bool = False
    overwrites: bool = True
    limit: int = 3_000_000
    walks: int = 1_000

    def schema(self, run: int, write: int) -> int:
        """What a write finds when it is planned."""
        return run + write if self.evolves else 0

    @property
    def may_skip(self) -> bool:
        """Whether brokers may skip control records, by their versions. If not, nobody repeats a decision."""
        return self.faults.skips > 0

    def split(self, run: int) -> str:
        return self.first if run == 0 or self.replay is None else self.replay


class Setting(NamedTuple):
    plan: Plan
    case: ModelCase


# Rows by partition. A second DataFrame of the same foreachBatch has rows c and d instead.
SPLITS: Final = {"a|b": ("a", "b"), "b|a": ("b", "a"), "ab|": ("ab", ""), "|ab": ("", "ab"), "ab": ("ab",)}
SECOND_FRAME: Final = str.maketrans("ab", "cd")


def rows_of(version: int, split: str, frame: int) -> tuple[Rows, ...]:
    """Make the rows of each partition."""
    parts = SPLITS[split] if frame == 0 else [each.translate(SECOND_FRAME) for each in SPLITS[split]]
    return tuple(tuple(f"{version}{letter}" for letter in part) for part in parts)


class Message(NamedTuple):
    """What a task attempt returns to the driver."""

    result: Literal["OPEN", "EMPTY", "SKIPPED", "DECIDED"]
    id: TransactionalId
    epoch: int
    content: Rows
    schema: int = 0  # with which it has encoded the rows


class ModelTask(NamedTuple):
    """A task attempt. Spark gives the number of its partition, stage attempt and attempt."""

    run: int
    write: int
    version: int
    stage: int
    partition: int
    attempt: int
    rows: Rows
    planned: int  # when
    step: str  # the next one
    epoch: int = -1
    id: TransactionalId | None = None  # which it takes
    first_slot: int = 1  # of the ids that it may take
    is_confirmed: bool = False
    candidates: tuple[tuple[TransactionalId, int], ...] = ()  # ids that are settled, and the epochs that they have
    marker: ModelMarker | None = None  # of its partition, as it has read it
    decided: tuple[Entry, ...] = ()  # for its partition
    schema: int = 0  # with which it encodes its rows

    @property
    def content(self) -> Rows:
        return encoded(self.rows, self.schema)

    def __str__(self) -> str:
        stage = f" stage attempt {self.stage}" if self.stage else ""
        return f"task of {_write(self)}, partition {self.partition}{stage} attempt {self.attempt}"


class Described(NamedTuple):
    """A transactional id as its coordinator describes it."""

    id: TransactionalId
    state: State
    epoch: int
    places: tuple[Place, ...] = ()
    taken_by: TakenBy = TASK


class Driver(NamedTuple):
    """One write of one run."""

    run: int
    write: int
    version: int
    split: str
    frame: int
    step: str
    planned: int  # when
    messages: tuple[Message | None, ...]  # by partition
    attempts: tuple[int, ...]  # by partition, of the current stage attempt
    stage: int = 0
    coordinators_asked: int = 0  # for a list
    to_fence: tuple[Described, ...] = ()
    left: tuple[TransactionalId, ...] = ()  # ids whose transactions are aborted, and whose rows may hang
    held: Described | None = None  # an id of these, or of a decided transaction, whose decision is being repeated
    has_seen_hanging: bool = False  # since it has committed
    to_end: tuple[Entry, ...] = ()
    committed_ids: tuple[TransactionalId, ...] = ()  # whose transactions are committed; they are to be settled
    doubtful_entries: tuple[Entry, ...] = ()  # which EndTxn did not find open
    lost_entries: tuple[Entry, ...] = ()
    markers: tuple[ModelMarker | None, ...] | None = None  # by partition, where they were read before 6b
    is_untouched: bool | None = None  # what 6d has found beside 6c
    found_decision: Decision | None = None  # of another driver: it is carried out first, or instead
    earlier: tuple[Earlier, ...] = ()  # the contents of versions before this one
    reason: str = ""

    def __str__(self) -> str:
        return f"driver of {_write(self)}"

    @property
    def content(self) -> Rows:
        """Add up the whole write, as the tasks report it: DECIDED and SKIPPED ones have read their rows, too."""
        return tuple(sorted(row for message in self.messages if message for row in message.content))

    def reported(self, plan: Plan) -> tuple[TransactionalId, ...]:
        """The ids that it does not fence."""
        results = ("OPEN", "EMPTY") if plan.spares_empty_tasks else ("OPEN",)
        return tuple(message.id for message in self.messages if message is not None and message.result in results)

    @property
    def empty(self) -> tuple[Message, ...]:
        return tuple(message for message in self.messages if message is not None and message.result == "EMPTY")

    @property
    def results(self) -> tuple[str, ...]:
        return tuple("" if message is None else message.result for message in self.messages)

    @property
    def has_written_again(self) -> bool:
        """Whether the tasks have written, or found, what is lost of the version that was decided."""
        partitions = [entry.partition for entry in self.lost_entries]
        messages = [self.messages[each] if each < len(self.messages) else None for each in partitions]
        return all(message is not None and message.result != "DECIDED" for message in messages)

    @property
    def schemas(self) -> set[int]:
        """With which its tasks have encoded their rows."""
        return {message.schema for message in self.messages if message is not None}

    @property
    def carries_earlier(self) -> bool:
        """Whether it is about to carry out a decision of an earlier version, before its own."""
        return self.found_decision is not None and self.found_decision.version < self.version

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(partition, message.id, message.epoch, message.content)
            for partition, message in enumerate(self.messages)
            if message is not None and message.result == "OPEN"
        )


def _write(process: ModelTask | Driver) -> str:
    number = f" write {process.write}" if process.write else ""
    return f"run {process.run} version {process.version}{number}"


# Where Spark begins: a task attempt, its message, commit() and abort(). The steps themselves are in task.py and driver.py.
DESCRIBE_IDS: Final = "0 describe ids"
LOOK: Final = "0 look"
TAKE_ID: Final = "1 take own id"
READ_DECISION: Final = "2 read decision"
TASKS_RUN: Final = "tasks run"
COMMIT: Final = "6a read decision"
ABORT: Final = "7 record abort"

# The last steps of a driver.
DONE: Final = "done"
FAILED: Final = "failed"  # to be run again
ERROR: Final = "ended in an error"  # running it again does not help, and the message says so
ENDED: Final = (DONE, FAILED, ERROR)

# Why a write fails, where running it again does not help.
OTHER_ROWS: Final = "[KAFKA_NON_DETERMINISTIC_REPLAY]"
UNREADABLE: Final = "the decision cannot be read"
CUT_OFF: Final = "the repetition of a decision has timed out"
UNKNOWN: Final = "it is not known whether a transaction was committed"
FINAL_REASONS: Final = (OTHER_ROWS, UNREADABLE, CUT_OFF)


class ModelWorld(NamedTuple):
    broker: Broker = Broker()
    log: int = 0  # the latest version that Spark's own log has as committed
    drivers: tuple[Driver, ...] = ()  # the latest is the last one
    tasks: tuple[ModelTask, ...] = ()  # those that still run
    faults: Faults = NO_FAULTS
    runs: int = 0  # started so far
    begun: int = 0  # the latest version that was tried
    planned: int = 0  # writes so far

    @property
    def latest(self) -> Driver:
        return self.drivers[-1]

    def with_task(self, old: ModelTask, new: ModelTask | None) -> ModelWorld:
        tasks = [each for each in self.tasks if each != old]
        return self._replace(tasks=tuple(sorted([*tasks, new] if new else tasks)))

    def with_driver(self, old: Driver, **change: Any) -> ModelWorld:
        """Ended drivers are forgotten, but for the latest: they never move again."""
        new = old._replace(**change)
        drivers = [new if each is old else each for each in self.drivers]
        return self._replace(drivers=tuple([each for each in drivers[:-1] if each.step not in ENDED] + drivers[-1:]))

    def spend(self, fault: str) -> ModelWorld:
        return self._replace(faults=self.faults._replace(**{fault: getattr(self.faults, fault) - 1}))


class ModelEvent(NamedTuple):
    """What happened: the process, its step, and a sentence with the arguments to be filled in."""

    process: ModelTask | Driver | str
    step: str
    sentence: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.process}: [{self.step}] {self.sentence.format(**self.arguments)}"


LOST_ANSWER: Final = "; the answer is lost"


class ModelMove(NamedTuple):
    event: ModelEvent
    world: ModelWorld
    is_fault: bool = False


def happened(process: ModelTask | Driver, sentence: str, **arguments: Any) -> ModelEvent:
    return ModelEvent(process, process.step, sentence, arguments)


def answered(world: ModelWorld, broker: Broker, after: ModelWorld, event: ModelEvent) -> Iterator[ModelMove]:
    """A request had its effect on the broker. Its answer arrives, or is lost, so that the process asks again."""
    yield ModelMove(event, after)
    if world.faults.lost_answers:
        event_without_answer = event._replace(sentence=event.sentence + LOST_ANSWER)
        yield ModelMove(event_without_answer, world._replace(broker=broker).spend("lost_answers"), is_fault=True)


def ids_to_fence(
    setting: Setting, broker: Broker, driver: Driver, spared: tuple[TransactionalId, ...] = (), *, ends: bool = False
) -> tuple[Described, ...]:
    """ListTransactions of the next coordinator, and DescribeTransactions: what is not at rest so far.

    `ends`: nor what ends by itself.
    """
    plan, coordinators = setting.plan, setting.case.coordinators
    states = {
        ONGOING,
        *(() if ends else PREPARED),
        *((EMPTY,) if plan.lists_empty_ids else ()),
        *((COMPLETE_ABORT,) if plan.lists_aborted_ids else ()),
    }
    ids = tuple(
        Described(each.id, each.state, each.epoch, each.places, each.taken_by)
        for each in broker.transactions
        if sum(each.id[:3]) % coordinators == driver.coordinators_asked and each.id not in spared and each.state in states
    )
    return driver.to_fence + ids


def decided_ids(decision: Decision | None) -> set[TransactionalId]:
    """The ids that a decision lists which is not carried out: only who carries it out touches them."""
    return {entry.id for entry in decision.entries} if decision is not None and decision.state == DECIDED else set()


MAX_REPEATS: Final = 2
Fate = Literal["open", "committed", "aborted", "cut off", "unknown"]


def fate_of(setting: Setting, transaction: ModelTransaction | None, entry: Entry) -> Fate:
    """What has become of a decided transaction by its coordinator. It is committed, or its decision is being repeated, which may
    time out; or it was aborted by brokers or by who fences it. "unknown": somebody has taken the id since.

    An id that was aborted has these epochs, one after the other: aborted, taken by who fences it, put to rest, taken by a task,
    confirmed. So a task's id that is less far from the decided epoch was committed, and repeated MAX_REPEATS times at most.
    """
    if transaction is None:
        return "unknown"
    if transaction.taken_by == FENCER:
        return "aborted"
    distance = transaction.epoch - entry.epoch
    if transaction.taken_by == TAKER and distance > 2 and setting.case.transaction_version == 2:
        return "cut off"  # perhaps: a repetition was open when the id was taken
    if transaction.taken_by != TASK or not 0 <= distance <= 1 + MAX_REPEATS:
        return "unknown"
    match transaction.state:
        case "Ongoing":
            return "committed" if distance else "open"
        case "PrepareCommit" | "CompleteCommit":
            return "committed"
        case "PrepareAbort" | "CompleteAbort":
            return "aborted" if distance <= 1 else "cut off"
    return "unknown"
