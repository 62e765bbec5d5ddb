"""The steps of a story about transactions: what the application does, and what happens around it.

transactional_application.py plays them: steps of the application are calls of its producer, in the order of the story. An Event
happens when its turn comes, also while a call waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.producer.simulated_cluster import ClusterFate, SimulatedCluster
from tests.producer.simulated_producer import Simulation

TOPICS = {"orders": 3, "audit": 1}
PLACES = [TopicPartition(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
ID = "copies-1"
GROUP = ConsumerGroupMetadata("readers")


# THE APPLICATION


@dataclass(frozen=True)
class Begin:
    """begin_transaction()"""


@dataclass(frozen=True)
class Write:
    """send_columns() of all rows, or send() of each."""

    rows: Sequence[tuple[int, int]]  # (index of PLACES, size)
    singly: bool = False


@dataclass(frozen=True)
class SendOffsets:
    """send_offsets_to_transaction(), of these partitions and one that only this transaction has."""

    partitions: Sequence[int] = ()


@dataclass(frozen=True)
class Flush:
    """flush()"""


@dataclass(frozen=True)
class Idle:
    """The application has nothing to do."""

    duration_ms: int


class End(Enum):
    COMMIT = "commit_transaction(), again and again until it ends"
    ABORT = "abort_transaction()"
    COMMIT_AND_LEAVE = "commit_transaction(), and close() if that times out"
    PREPARE_AND_COMMIT = "prepare_transaction() and commit_transaction()"
    PREPARE_AND_ABORT = "prepare_transaction() and abort_transaction()"
    OTHERS_COMMIT = "prepare_transaction() and close(); another client commits"
    OTHERS_ABORT = "prepare_transaction() and close(); another client aborts"
    BOTH_COMMIT = "prepare_transaction(); another client and this one commit"
    OTHERS_COMMIT_OWN_ABORT = "prepare_transaction(); another client commits, and then this one aborts"
    OTHERS_ABORT_OWN_COMMIT = "prepare_transaction(); another client aborts, and then this one commits"
    CLOSE = "close() in the transaction"
    CRASH = "the process ends in the transaction"
    CRASH_IN_COMMIT = "the process ends while it waits for commit_transaction()"

    def __repr__(self) -> str:
        return str(self)


OWN_ENDS = [End.COMMIT, End.ABORT, End.PREPARE_AND_COMMIT, End.PREPARE_AND_ABORT]


# EVENTS


class Surroundings(Protocol):
    """Where events happen."""

    cluster: SimulatedCluster
    simulation: Simulation

    def start_rival(self) -> None: ...


class Event(ABC):
    @abstractmethod
    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        """No more than `limit_ms` pass: a call waits no longer."""


@dataclass(frozen=True)
class Answer(Event):
    """See SimulatedCluster.answer."""

    place: int = 0
    fate: ClusterFate = ClusterFate.ANSWER
    which: int = 0

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.answer(self.place, self.fate, self.which)


@dataclass(frozen=True)
class Prepare(Event):
    """See SimulatedCluster.prepare."""

    api: ApiKey
    fate: ClusterFate
    which: int = 0

    def __repr__(self) -> str:
        return f"Prepare(ApiKey.{self.api.name}, {self.fate!r}, {self.which})"

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.prepare(self.api, self.fate, self.which)


@dataclass(frozen=True)
class Behave(Event):
    """For so many steps requests are answered, unless something else is prepared, and Senders wake up."""

    steps: int = 1

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        clock = surroundings.simulation.clock
        until_ms = clock.now_ms() + limit_ms
        for _ in range(self.steps):
            left_ms = until_ms - clock.now_ms()
            if left_ms > 0:
                surroundings.simulation.let_one_thing_happen(left_ms)


@dataclass(frozen=True)
class Pass(Event):
    """Nobody answers for a while."""

    duration_ms: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        surroundings.simulation.pass_time(min(self.duration_ms, limit_ms))


@dataclass(frozen=True)
class Stall(Event):
    """As Pass, and Senders do not run either."""

    duration_ms: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        surroundings.simulation.clock.advance(min(self.duration_ms, limit_ms))


@dataclass(frozen=True)
class MoveLeader(Event):
    place: int
    node: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.move_leader(PLACES[self.place], self.node)


@dataclass(frozen=True)
class MoveCoordinator(Event):
    of_group: bool
    node: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        key_type, key = (KeyType.GROUP, GROUP.group_id) if self.of_group else (KeyType.TRANSACTION, ID)
        surroundings.cluster.coordinators.move(key_type, key, self.node)


@dataclass(frozen=True)
class StopNode(Event):
    """A node is gone for a while."""

    node: int
    duration_ms: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.stop(self.node, self.duration_ms)


@dataclass(frozen=True)
class Markers(Event):
    """So many markers are written."""

    limit: int

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.transactions.write_markers(limit=self.limit)


@dataclass(frozen=True)
class Arrive(Event):
    """A late request arrives."""

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.arrive()


@dataclass(frozen=True)
class Sweep(Event):
    """After a while coordinators abort the transactions that are older than transaction.timeout.ms."""

    after_ms: int = 0

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        surroundings.simulation.pass_time(min(self.after_ms, limit_ms))
        surroundings.cluster.abort_timed_out()


@dataclass(frozen=True)
class Upgrade(Event):
    """To transaction.version 2."""

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.cluster.upgrade()


@dataclass(frozen=True)
class TakeOver(Event):
    """A second producer with the same transactional id starts, and commits a transaction."""

    def happen(self, surroundings: Surroundings, limit_ms: int) -> None:
        del limit_ms
        surroundings.start_rival()


Step = Begin | Write | SendOffsets | Flush | Idle | End | Event
