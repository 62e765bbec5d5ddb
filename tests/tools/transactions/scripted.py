"""`transactions` for its tests: a scripted console, and transactions that writes have left in a fake broker."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.exactly_once.fencing import describe, fence_all
from spark_kafka_sink.exactly_once.names import FIRST_SLOT, AttemptId, PrefixNames, id_number
from spark_kafka_sink.tools.transactions import command as transactions
from spark_kafka_sink.tools.transactions.console import Console
from tests.admin.open_transactions import TOPIC, Writer
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State

QUICK = ["retry.backoff.ms=5", "retry.backoff.max.ms=20", "reconnect.backoff.ms=5", "reconnect.backoff.max.ms=20"]


CANARY = "canary7Qx2zzWq"


MINUTE = 60_000


class ScriptedConsole(Console):
    """Somebody at a terminal. `meanwhile` happens while the job waits, `while_asked` before the question is answered."""

    def __init__(self, broker: FakeBroker, *, answer: str | None = "y") -> None:
        super().__init__()
        self.broker = broker
        self.answer = answer
        self.meanwhile: Callable[[], object] = lambda: None
        self.while_asked: Callable[[], object] = lambda: None
        self.said: list[str] = []
        self.noted: list[str] = []
        self.questions: list[str] = []
        self.waited_ms = 0

    @property
    def is_terminal(self) -> bool:
        return self.answer is not None

    def say(self, *lines: str) -> None:
        self.said += lines

    def note(self, line: str) -> None:
        self.noted.append(line)

    def confirms(self, question: str) -> bool:
        self.questions.append(question)
        self.while_asked()
        return self.answer == "y"

    def wall_ms(self) -> int:
        return self.broker.clock.wall_ms()

    def let_pass(self, ms: int) -> None:
        self.waited_ms += ms
        self.broker.clock.advance(ms)
        self.meanwhile()

    @property
    def text(self) -> str:
        return "\n".join(self.said + self.noted)


def call(console: ScriptedConsole, command: str, *more: str, prefix: str = "P") -> int:
    properties = [word for each in QUICK for word in ("--command-property", each)]
    address = ["--bootstrap-servers", console.broker.bootstrap_servers]
    return transactions.main([command, "--prefix", prefix, *address, *properties, *more], console)


def attempt_id(owner: str = "q", task: int = 0, attempt: int = 0, slot: int = FIRST_SLOT) -> AttemptId:
    return AttemptId(owner, task, id_number(attempt, slot))


def name(owner: str = "q", task: int = 0, attempt: int = 0, prefix: str = "P", slot: int = FIRST_SLOT) -> str:
    return PrefixNames(prefix).transactional_id(attempt_id(owner, task, attempt, slot))


def orphan(broker: FakeBroker, transactional_id: str, *, rows: int = 1, timeout_ms: int = 15 * MINUTE) -> Writer:
    """Its process wrote into as many partitions, and is gone."""
    writer = Writer(broker, transactional_id, timeout_ms=timeout_ms)
    for index in range(rows):
        assert not writer.write(b"row", partition=index)
    return writer


def state_of(broker: FakeBroker, transactional_id: str) -> State:
    return broker.transactions.transactions[transactional_id].state


def is_open(broker: FakeBroker, transactional_id: str) -> bool:
    return state_of(broker, transactional_id) is State.ONGOING


def decided(broker: FakeBroker, *partitions: list[str], owner: str = "q", version: int = 7) -> list[str]:
    """The driver wrote its decision, and died before it ended a transaction. The transactional ids."""
    with DriverRun(broker.bootstrap_servers, TOPIC, "host", owner=owner) as life:
        life.decide(life.reports(version, *partitions))
    return [name(owner, number) for number in range(len(partitions))]


def fence(broker: FakeBroker, *tasks: AttemptId) -> None:
    """As a driver does it, or another operator."""
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        names = PrefixNames("P")
        fence_all(client, names, tasks, describe(client, names, tasks))
