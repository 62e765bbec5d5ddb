"""Tasks and drivers of exactly-once writes in processes of their own, which are killed or stopped at a step of the protocol.

    with Processes(address, topic, prefix) as processes:
        killed = processes.commit("r1", reports, Stop("6e", BEFORE))     # SIGKILL to itself when it gets there
        assert killed.outcome() is KILLED
        zombie = processes.task("r1", 0, 0, ["a"], Stop("2", AFTER, how=PAUSE))
        zombie.await_pause()                                             # SIGSTOP to itself
        ... what others do meanwhile ...
        zombie.resume()
        report = zombie.outcome()

The steps are those of task_attempt.py and version_commit.py. The stops are put around methods of the product, in the process
that is to stop; the product knows nothing of them. Processes are forked from a server that has imported all there is, which takes
some hundredths of a second each.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.ledger import Ledger
from spark_kafka_sink.exactly_once.ledger_records import Decision, DecisionState
from spark_kafka_sink.exactly_once.task_attempt import TaskAttempt
from spark_kafka_sink.exactly_once.version_commit import Committed, VersionCommit
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.exactly_once.stepwise_writes import DriverRun

BEFORE, AMID, AFTER = "before", "amid", "after"
KILL, PAUSE = signal.SIGKILL, signal.SIGSTOP
LIMIT_S = 60.0
POLL_S = 0.005
OVERFLOW_BYTES = 60  # of a decision's metadata: with so few, any decision has overflow groups


class Call(NamedTuple):
    """A call that is a step of the protocol: the first one of this method in the process for which `applies` holds.

    `applies` is told the first argument, and what the task or the driver has begun: "1" and "6f".
    """

    owner: type
    method: str
    applies: Callable[[Any, set[str]], bool] = lambda first, begun: True  # noqa: ARG005


def _before_its_id(first: object, begun: set[str]) -> bool:  # noqa: ARG001
    return "1" not in begun


def _with_its_id(first: object, begun: set[str]) -> bool:  # noqa: ARG001
    return "1" in begun


def _until_the_decision(first: object, begun: set[str]) -> bool:  # noqa: ARG001
    return "6f" not in begun


def _after_the_commits(first: object, begun: set[str]) -> bool:  # noqa: ARG001
    return "6f" in begun


def _says_decided(decision: Decision, begun: set[str]) -> bool:  # noqa: ARG001
    return decision.state is DecisionState.DECIDED


TASK_STEPS: Mapping[str, Call] = {
    "0": Call(Ledger, "fetch_view", _before_its_id),
    "1": Call(KafkaProducer, "init_transactions"),
    "2": Call(Ledger, "fetch_view", _with_its_id),
    "3": Call(TransactionClient, "describe_transactions"),
    "3 marker": Call(Ledger, "fetch_marker"),
    "5 begin": Call(KafkaProducer, "begin_transaction"),
    "5 rows": Call(KafkaProducer, "flush"),
    "5 marker": Call(KafkaProducer, "send_offsets_to_transaction"),
    "5 wait": Call(KafkaProducer, "prepare_transaction"),
}
COMMIT_STEPS: Mapping[str, Call] = {
    "6a": Call(VersionCommit, "_read_decision"),  # 6b is listed beside it, where the client has listed before
    "6b list": Call(TransactionClient, "list_transactions", _until_the_decision),
    "6b fence": Call(TransactionClient, "fence", _until_the_decision),
    "6b complete": Call(TransactionClient, "abort_fenced", _until_the_decision),
    "6c": Call(VersionCommit, "_check"),  # and 6d beside it
    "6e width": Call(Ledger, "record_partition_count"),
    "6e": Call(Ledger, "write_decision", _says_decided),
    "6f": Call(TransactionClient, "end_transactions"),
    "6g mark": Call(VersionCommit, "_ask_to_record"),  # and the list of 6g beside it
    "6g fence": Call(TransactionClient, "fence", _after_the_commits),
    "6g complete": Call(TransactionClient, "abort_fenced", _after_the_commits),
}
ABORT_STEPS: Mapping[str, Call] = {
    "7 record": Call(Ledger, "record_abort"),
    "7 list": Call(TransactionClient, "list_transactions"),
    "7 decision": Call(TransactionClient, "fetch_offsets"),
    "7 fence": Call(TransactionClient, "fence"),
    "7 complete": Call(TransactionClient, "abort_fenced"),
}
STEPS = {**TASK_STEPS, **COMMIT_STEPS, **ABORT_STEPS}
HAS_AMID = ("6b fence", "6f", "6g fence", "7 fence")  # of several transactions, the first one is done


class Stop(NamedTuple):
    """`amid`: of the transactions that the call is about, the first one has been ended or fenced."""

    step: str
    when: str
    how: signal.Signals = KILL

    def __str__(self) -> str:
        return f"{self.when} {self.step}"


Where = Stop | list[Stop] | int | None  # a number: of requests


def stops(steps: Mapping[str, Call]) -> list[Stop]:
    whens = {step: (BEFORE, AMID, AFTER) if step in HAS_AMID else (BEFORE, AFTER) for step in steps}
    return [Stop(step, when) for step in steps for when in whens[step]]


def arm(step: str, when: str, is_due: Callable[[], bool], strike: Callable[[], None]) -> None:
    """From now on `strike` in this process when a call that is this step is made, if it is due then."""
    owner, method, applies = STEPS[step]
    begun: set[str] = set()
    _around(TaskAttempt, "begin", begun.clear)
    _around(KafkaProducer, "init_transactions", lambda: begun.add("1"))
    _around(VersionCommit, "run", begun.clear)
    _around(TransactionClient, "end_transactions", lambda: begun.add("6f"))
    original = getattr(owner, method)

    @functools.wraps(original)
    def hooked(self: object, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self)
        if not applies(args[0] if args else None, begun) or not is_due():
            return call(*args, **kwargs)
        if when == AMID:
            several = list(args[0])
            call(several[:1], *args[1:], **kwargs)
            args = (several, *args[1:])
        if when != AFTER:
            strike()
        result = call(*args, **kwargs)
        if when == AFTER:
            strike()
        return result

    setattr(owner, method, hooked)


def _around(owner: type, method: str, note: Callable[[], object]) -> None:
    original = getattr(owner, method)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return original(*args, **kwargs)

    setattr(owner, method, noted)


def _stop_once(stop: Stop) -> None:
    """Only in a process of this module."""
    left = [stop]
    arm(stop.step, stop.when, lambda: bool(left and left.pop()), lambda: os.kill(os.getpid(), stop.how))


def _arm_requests(number: int) -> None:
    """Die when so many requests have been handed to the network, by whichever of the process's clients."""
    original = NetworkClient.send
    request_numbers = itertools.count(1)

    @functools.wraps(original)
    def hooked(self: NetworkClient, *args: Any) -> None:
        original(self, *args)
        if next(request_numbers) == number:
            os.kill(os.getpid(), KILL)

    NetworkClient.send = hooked


class Killed:
    """The process was killed before it was done."""

    def __repr__(self) -> str:
        return "KILLED"


KILLED = Killed()


@dataclass(frozen=True)
class Failed:
    """The process ended with a KafkaError."""

    kind: str
    message: str


Outcome = Killed | Failed | TaskReport | Committed | int


@dataclass(frozen=True)
class _Life:
    """What a process needs to make a DriverRun."""

    address: str
    topic: str
    run: str
    how: Mapping[str, Any]
    stop: Where = None
    has_overflow: bool = False

    def start(self) -> DriverRun:
        if self.has_overflow:
            ledger_records.MAX_METADATA_BYTES = OVERFLOW_BYTES
        if isinstance(self.stop, int):
            _arm_requests(self.stop)
        elif isinstance(self.stop, Stop):
            _stop_once(self.stop)
        else:
            for each in self.stop or ():
                _stop_once(each)
        return DriverRun(self.address, self.topic, self.run, **self.how)


def _process(life: _Life, work: Callable[..., object], arguments: Sequence[Any], answers: Connection) -> None:
    try:
        with life.start() as run:
            answers.send(work(run, *arguments))
    except KafkaError as error:
        answers.send(Failed(type(error).__name__, str(error)))


def _write(run: DriverRun, version: int, partition: int, rows: Sequence[str], attempt: int, timeout_ms: int) -> TaskReport:
    return run.task(version, partition, *rows, attempt=attempt, timeout_ms=timeout_ms).run()


def _commit(run: DriverRun, reports: Sequence[TaskReport]) -> Committed:
    return run.commit(reports)


def _abort(run: DriverRun) -> int:
    return run.abort()


def _write_all(run: DriverRun, version: int, partitions: Sequence[Sequence[str]]) -> Committed:
    return run.write_version(version, *partitions)


class Process:
    """A task or a driver that is under way."""

    def __init__(self, life: _Life, work: Callable[..., object], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._answers, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_process, args=(life, work, arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def outcome(self, limit_s: float = LIMIT_S) -> Any:
        """What it returned: an Outcome. Waits for its end."""
        assert self._answers.poll(limit_s), f"the process is not at its end after {limit_s} s, state {self._state()}"
        try:
            outcome = self._answers.recv()
        except EOFError:
            outcome = None
        self._process.join(limit_s)
        if outcome is None:
            assert self._process.exitcode == -KILL, f"exit code {self._process.exitcode}, see its traceback on stderr"
            return KILLED
        return outcome

    def is_done_within(self, limit_s: float) -> bool:
        return self._answers.poll(limit_s)

    def await_pause(self) -> None:
        assert self.pauses(), f"it ended with {self.outcome()} and did not stop"

    def pauses(self) -> bool:
        """Waits until it stands still, or is at its end: then it has not come to its stop."""
        deadline = time.monotonic() + LIMIT_S
        while (state := self._state()) != "T":
            if self._answers.poll():
                return False
            assert time.monotonic() < deadline, f"it does not stop, state {state}"
            time.sleep(POLL_S)  # another process tells nobody that it has stopped
        return True

    def resume(self) -> Process:
        self._signal(signal.SIGCONT)
        return self

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.join(LIMIT_S)

    def _signal(self, which: signal.Signals) -> None:
        assert self._process.pid is not None
        if self._process.is_alive():
            os.kill(self._process.pid, which)

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):  # the latter: gone between opening and reading
            return "gone"


@dataclass
class Processes:
    """Tasks and drivers of one prefix. Those that are left at the end of the block are killed.

    Args: how: further arguments of DriverRun.
    """

    address: str
    topic: str
    how: Mapping[str, Any] = field(default_factory=dict)
    _started: list[Process] = field(default_factory=list)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self._started:
            process.kill()

    def task(
        self,
        run: str,
        version: int,
        partition: int,
        rows: Sequence[str],
        stop: Where = None,
        *,
        attempt: int = 0,
        timeout_ms: int = 60_000,
    ) -> Process:
        """Its outcome: TaskReport."""
        return self._start(self._life(run, stop), _write, version, partition, rows, attempt, timeout_ms)

    def commit(
        self, run: str, reports: Sequence[TaskReport], stop: Where = None, *, has_overflow: bool = False, has_listed: bool = False
    ) -> Process:
        """A driver's commit(). Its outcome: Committed. `has_listed`: see DriverRun."""
        return self._start(self._life(run, stop, has_overflow, has_listed=has_listed), _commit, list(reports))

    def abort(self, run: str, stop: Where = None) -> Process:
        """A driver's abort(). Its outcome: how many transactional ids were fenced."""
        return self._start(self._life(run, stop), _abort)

    def write_all(self, run: str, version: int, partitions: Sequence[Sequence[str]], stop: Where = None) -> Process:
        """A version from its first task to the end of commit(), in one process. Its outcome: Committed."""
        return self._start(self._life(run, stop), _write_all, version, partitions)

    def _life(self, run: str, stop: Where, has_overflow: bool = False, **how: Any) -> _Life:
        return _Life(self.address, self.topic, run, {**self.how, **how}, stop, has_overflow)

    def _start(self, life: _Life, work: Callable[..., object], *arguments: Any) -> Process:
        process = Process(life, work, *arguments)
        self._started.append(process)
        return process
