"""The schedules of protocol_traces.json, carried out by the built code: each task and each driver is a thread that stands still
before each of its steps until it is told to take it.

    with Replay(trace, make_run, client) as replay:
        replay.run()

A step of a schedule is taken by its process, and before it those that this one has not taken yet; a process that is past it, or
at its end, does nothing. So the built code decides for itself what it does, and only the order is the model's. What cannot be
held back or asked for is done otherwise: brokers complete a transaction by themselves, which is waited for, and a time-out is an
abort by somebody else, which leaves the same state and epoch (transaction version 2). A task's rows are acknowledged before its
marker is sent, which is one of the orders of the model; test_waits.py has the other one.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest import mock

from spark_kafka_sink.admin.question import Question, Reply
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.ledger_records import DecisionState
from spark_kafka_sink.exactly_once.names import AttemptId
from spark_kafka_sink.exactly_once.version_commit import Committed
from spark_kafka_sink.exactly_once.writes import NO_SCHEMAS, DriverTime, ReplayError, SchemaIds, TaskReport
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from tests.exactly_once.model.cases import BY_NAME
from tests.exactly_once.model.exploration import EVERYTHING
from tests.exactly_once.model.traces import DRIVER_ORDER, SPARKS_STEPS, TASK_ORDER
from tests.exactly_once.model.world import FINAL_REASONS, rows_of
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.stoppable_processes import OVERFLOW_BYTES, STEPS
from tests.integration.processes import until

LIMIT_S = 60.0
MOST_RUNS = 3  # that a repetition takes: one finds a transaction gone and says so, the next one writes what is missing
FRESH_RUN = 10  # later than any of a schedule
OWNER = "q"
HOST = "host"  # of all drivers
ASKED_AGAIN_BY_ITSELF = ("1 take own id", "5 write rows", "5 write marker")  # the producer does so, within one call
BECAUSE = "abort(), because: "
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

# The calls that are steps of the model, by their names in stoppable_processes.py, which says what they are.
OF_A_TASK = {
    "1": "1 take own id",
    "2": "2 read decision",
    "3": "3 describe",
    "5 begin": "5 write rows",
    "5 marker": "5 write marker",
}
OF_A_DRIVER = {
    "6a": "6a read decision",
    "6b list": "6b list",
    "6b fence": "6b fence",
    "6c": "6c read markers",
    "6e width": "6e widen",
    "6e": "6e decide",
    "6f": "6f end",
    "6g mark": "6g mark carried out",
    "6g list": "6g list",
    "6g fence": "6g fence",
    "7 record": "7 record abort",
    "7 list": "7 list",
    "7 fence": "7 fence",
}
ONE_BY_ONE = ("6b fence", "6f")  # each of their transactions is a step of its own in the model

Trace = Mapping[str, Any]
Step = Mapping[str, Any]


class Died(BaseException):
    """The process is dead: nothing of it catches this."""


class SteppedThread:
    """A thread that waits before each step."""

    def __init__(self, name: str, order: Sequence[str], work: Callable[[], object]) -> None:
        self.name = name
        self.outcome: object = None  # what `work` returned, or the KafkaError that it raised
        self.phase = ""  # what it has begun, see the subclasses
        self._order = order
        self._work = work
        self._changed = threading.Condition()  # guards the rest
        self._at: str | None = None
        self._next_step: Step | None = None
        self._is_over = False
        self._is_dead = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._await_rest()

    # IN THE PROCESS

    def _run(self) -> None:
        _here.process = self
        try:
            self.outcome = self._work()
        except Died:
            self.outcome = Died
        except KafkaError as error:
            self.outcome = error
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def step(self, name: str, call: Callable[[Step], Any]) -> Any:
        """Stand still before the call, which gets what it was told, until it is told to go on."""
        while True:
            step = self._wait_for_a_word(name)
            if "is not answered in time" in step["words"]:
                raise KafkaTimeoutError("no answer, as scheduled")
            result = call(step)
            if "no answer in time" in step["words"]:
                raise KafkaTimeoutError("no answer, as scheduled")
            if not step["answer_is_lost"] or name in ASKED_AGAIN_BY_ITSELF:
                return result

    def _wait_for_a_word(self, name: str) -> Step:
        with self._changed:
            self._at = name
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._next_step is not None or self._is_dead, LIMIT_S):
                raise AssertionError(f"{self.name} was told nothing for {LIMIT_S} s")
            if self._is_dead:
                raise Died
            step, self._next_step, self._at = self._next_step, None, None
            assert step is not None
            return step

    def model_step(self, call: str, first: Any) -> str | None:
        """The model's name of a call, which has this name in stoppable_processes.py; None if it is no step of the model."""
        raise NotImplementedError

    # FROM OUTSIDE

    @property
    def is_over(self) -> bool:
        with self._changed:
            return self._is_over

    def take(self, step: Step) -> None:
        """Returns when the step has been taken, and the process stands before the next one or is at its end."""
        wanted_index = self._order.index(step["step"])
        while not self.is_over:
            at = self._at
            assert at is not None
            if self._order.index(at) > wanted_index:
                return
            self._tell(step if at == step["step"] else PLAINLY)
            if at == step["step"]:
                return

    def finish(self) -> None:
        while not self.is_over:
            self._tell(PLAINLY)

    def die(self) -> None:
        with self._changed:
            self._is_dead = True
            self._changed.notify_all()
        self._thread.join(LIMIT_S)

    def _tell(self, step: Step) -> None:
        with self._changed:
            self._next_step = step
            self._changed.notify_all()
        self._await_rest()

    def _await_rest(self) -> None:
        with self._changed:
            is_at_rest = self._changed.wait_for(lambda: self._is_over or (self._at is not None and not self._next_step), LIMIT_S)
        if self._error is not None:
            raise self._error
        assert is_at_rest, f"{self.name} comes to no step within {LIMIT_S} s"


class _Here(threading.local):
    process: SteppedThread | None = None


_here = _Here()
PLAINLY: Step = {"words": "", "arguments": {}, "answer_is_lost": False}


class TaskProcess(SteppedThread):
    """`phase`: "looks", or "has its id" once it takes it."""

    def __init__(self, name: str, work: Callable[[], object], *, has_rows: bool) -> None:
        self._has_rows = has_rows
        super().__init__(name, TASK_ORDER, work)

    def model_step(self, call: str, first: Any) -> str | None:  # noqa: ARG002
        has_its_id = self.phase.startswith("has")
        if call == "1":
            self.phase = "has its id"
        elif call == "2":
            self.phase = "has its id" if has_its_id else "looks"
            return "2 read decision" if has_its_id else "0 look"
        elif call == "3":
            return "3 describe" if has_its_id else "0 describe"
        elif call == "3 marker":
            return "3 read marker" if has_its_id else "0 read marker"
        elif call == "6f":
            return "2 commit earlier" if has_its_id else "0 commit earlier"
        elif call == "5 begin" and not self._has_rows:
            return None  # brokers are not asked
        return OF_A_TASK.get(call)


class DriverProcess(SteppedThread):
    """`phase`: "checks markers" once it has read them, "closing" once it records what has become of its own version, "aborting"
    in abort().
    """

    def __init__(self, name: str, version: int, work: Callable[[DriverProcess], object]) -> None:
        self._version = version
        super().__init__(name, DRIVER_ORDER, lambda: work(self))

    def model_step(self, call: str, first: Any) -> str | None:
        line = {"aborting": "7", "closing": "6g"}.get(self.phase, "6b")
        call = {"6b list": f"{line} list", "6b fence": f"{line} fence"}.get(call, call)
        if call == "6c":
            self.phase = "checks markers"
        elif call == "6g mark" and first.version == self._version:
            self.phase = "closing"
        if call == "6e" and first.state is not DecisionState.DECIDED:
            if first.state is DecisionState.CARRIED_OUT:
                return None  # a long record of what was carried out is a part of 6g
            return "6c record schema" if self.phase == "checks markers" else "6g mark incomplete"
        if call != "6c" and self.phase == "checks markers":
            self.phase = ""
        return OF_A_DRIVER.get(call)


# THE CALLS THAT ARE STEPS

# One for each method.
CALLS = (
    *("1", "2", "3", "3 marker", "5 begin", "5 marker"),
    *("6a", "6b list", "6b fence", "6c", "6e width", "6e", "6f", "6g mark", "7 record"),
)


def patched() -> ExitStack:
    """While it is open, a SteppedThread stands still before its steps; others notice nothing."""
    stack = ExitStack()
    for call in CALLS:
        owner, method, _ = STEPS[call]
        stack.enter_context(mock.patch.object(owner, method, _hooked(getattr(owner, method), call)))
    return stack


def _hooked(original: Callable[..., Any], call: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(self: object, *args: Any, **kwargs: Any) -> Any:
        process = _here.process
        if process is None:
            return original(self, *args, **kwargs)
        if call == "7 record":
            return process.step(call + " abort", lambda step: original(self, _aborted(step, args[0])))
        if call not in ONE_BY_ONE:
            step = process.model_step(call, args[0] if args else None)
            plain = functools.partial(original, self, *args, **kwargs)
            try:
                return plain() if step is None else process.step(step, lambda _: plain())
            except KafkaTimeoutError as error:
                if call != "6g mark":
                    raise
                return _unanswered(error, self, *args[1:])
        left = list(args[0])
        answers: dict[str, Any] = {}

        def one(step: Step) -> dict[str, Any]:
            transaction = next((each for each in left if _is_meant(each, step)), left[0])
            answer: dict[str, Any] = original(self, [transaction], *args[1:], **kwargs)
            if not step["answer_is_lost"]:
                left.remove(transaction)
            return answer

        while left:
            answers |= process.step(process.model_step(call, left[0]) or call, one)
        return answers

    return hooked


def _unanswered(error: KafkaTimeoutError, commit: Any, *others: Question[Any]) -> list[Reply[Any]]:
    """A record is not answered in time; what was asked beside it is."""

    def fail(_: object) -> None:
        raise error

    return [Reply(Question((), fail), (), 0), *commit.client.ask_together(*others)]


def _aborted(step: Step, now: DriverTime) -> DriverTime:
    """What the model's abort() stops. A moment of the model is how many writes were planned before."""
    return DriverTime(HOST, step["arguments"].get("planned", now.time_ms))


def _is_meant(each: str | PreparedTransaction, step: Step) -> bool:
    """Whether the step names this transactional id."""
    transactional_id = each if isinstance(each, str) else each.transactional_id
    return "id" in step["arguments"] and transactional_id.endswith(_end_of_id(step["arguments"]["id"]))


def _end_of_id(model_id: str) -> str:
    partition, *_, attempt = model_id.split("-")
    return f"-{partition}-{attempt}"


# THE SCHEDULE


class Replay:
    """Args:
    trace: of protocol_traces.json.
    make_run: makes a DriverRun with this name and these arguments, which ends with the test.
    client: of somebody else, who looks and lets transactions time out.
    """

    def __init__(self, trace: Trace, make_run: Callable[..., DriverRun], client: TransactionClient) -> None:
        self.trace = trace
        self.processes: dict[str, SteppedThread] = {}
        self._make_run = make_run
        self._client = client
        self._runs: dict[tuple[int, int], DriverRun] = {}
        self._reports: dict[tuple[int, int, int, int], TaskReport] = {}  # by run, write, version, partition
        self._stack = ExitStack()

    def __enter__(self) -> Replay:
        self._stack.enter_context(patched())
        if self.trace["has_overflow"]:
            self._stack.enter_context(mock.patch.object(ledger_records, "MAX_METADATA_BYTES", OVERFLOW_BYTES))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self.processes.values():
            process.die()
        self._stack.close()

    def run(self) -> None:
        """The schedule, then every process to its end."""
        for step in self.trace["full_plan"]:
            self._take(step)
        for process in self.processes.values():
            process.finish()

    def has_ended_well(self) -> bool:
        """Whether the latest driver has committed its version."""
        descriptions = self.trace["processes"]
        drivers = [name for name, each in self.processes.items() if isinstance(each, DriverProcess)]
        latest = max(
            drivers, key=lambda name: (descriptions[name]["run"], descriptions[name]["version"], descriptions[name]["write"])
        )
        return isinstance(self.processes[latest].outcome, Committed)

    def wrong_errors(self) -> dict[str, object]:
        """The drivers whose error has not the kind that the model's has: whether running the write again can help.

        Where the model finds a transaction gone whose commit is not complete yet, 6c may read its marker here.
        """
        aborts = [step for step in self.trace["full_plan"] if BECAUSE in step["words"]]
        all_reasons = {step["process"]: step["words"].partition(BECAUSE)[2] for step in aborts}
        reasons = {name: reason for name, reason in all_reasons.items() if reason != "transaction gone"}
        return {
            name: self.processes[name].outcome
            for name, reason in reasons.items()
            if isinstance(self.processes[name].outcome, ReplayError) != (reason in FINAL_REASONS)
        }

    def description(self) -> str:
        """What each process has ended with."""
        return "\n".join(f"{name}: {process.outcome}" for name, process in self.processes.items())

    def recover(self) -> Counter[str]:
        """Each version once more, in fresh runs, as Spark or a user repeats it. The rows that readers have to see then."""
        case = BY_NAME[self.trace["case"]]
        expected: Counter[str] = Counter()
        for version in case.versions:
            rows = rows_of(version, case.first, 0)
            expected.update(row for part in rows for row in part)
            self._repeat(version, rows)
        return expected

    def _repeat(self, version: int, rows: Sequence[Sequence[str]]) -> None:
        failures = []
        for number in range(MOST_RUNS):
            run = self._make_run(f"fresh{version}x{number}", owner=OWNER, schemas=self._schemas(FRESH_RUN, number))
            try:
                run.write_version(version, *rows)
            except KafkaError as error:
                failures.append(error)
                run.abort()
            else:
                return
        raise AssertionError(f"version {version} is not committed by {MOST_RUNS} fresh runs: {failures}")

    def _schemas(self, run: int, write: int) -> SchemaIds:
        """What a write finds when it is planned."""
        case = BY_NAME[self.trace["case"]]
        return SchemaIds(value=case.schema(run, write)) if case.evolves else NO_SCHEMAS

    def _take(self, step: Step) -> None:
        name = step["process"]
        if name == EVERYTHING:
            for process in self.processes.values():
                process.die()
        elif name == "brokers":
            self._do_as_brokers(step["step"], step["arguments"]["id"])
        elif name != "Spark":
            process = self._process(name, step["step"])
            if step["step"] in SPARKS_STEPS:
                process.die()
            elif step["step"] in (*TASK_ORDER, *DRIVER_ORDER):
                process.take(step)
            else:
                process.finish()

    def _do_as_brokers(self, what: str, model_id: str) -> None:
        partition, *_, attempt = model_id.split("-")
        transactional_id = self._run(0, 0).names.transactional_id(AttemptId(OWNER, int(partition), int(attempt)))
        if what == "time-out":
            assert self.trace["transaction_version"] == 2, "an abort by somebody else does not bump the epoch"
            transaction = self._client.describe_transactions([transactional_id])[transactional_id]
            assert transaction is not None
            prepared = PreparedTransaction(transactional_id, transaction.producer_id, transaction.producer_epoch, 2)
            self._client.end_transactions([prepared], commit=False)
        until(lambda: self._is_complete(transactional_id), LIMIT_S, f"{transactional_id} is complete")

    def _is_complete(self, transactional_id: str) -> bool:
        transaction = self._client.describe_transactions([transactional_id])[transactional_id]
        return transaction is None or transaction.state not in PREPARED

    def _process(self, name: str, first_step: str) -> SteppedThread:
        if name not in self.processes:
            description = self.trace["processes"][name]
            make = self._task if description["kind"] == "task" else self._driver
            self.processes[name] = make(name, description, first_step)
        return self.processes[name]

    def _run(self, run: int, write: int) -> DriverRun:
        """The writes of a foreachBatch have one each. All have one host, as in the model."""
        if (run, write) not in self._runs:
            self._runs[run, write] = self._make_run(HOST, owner=OWNER)
        return self._runs[run, write]

    def _task(self, name: str, description: Mapping[str, Any], first_step: str) -> SteppedThread:  # noqa: ARG002
        place = (description["run"], description["write"], description["version"], description["partition"])
        planned_at = DriverTime(HOST, description["planned"])
        how = {"attempt": description["attempt"], "planned_at": planned_at, "schemas": self._schemas(*place[:2])}
        task = self._run(*place[:2]).task(*place[2:], *description["rows"], **how)

        def work() -> TaskReport:
            report = task.begin().send().finish()
            return self._reports.setdefault(place, report)  # the first attempt that returns wins

        return TaskProcess(name, work, has_rows=bool(description["rows"]))

    def _failure_of_tasks(self, write: tuple[int, int, int]) -> object:
        """What Spark fails the write with."""
        for name, process in self.processes.items():
            description = self.trace["processes"][name]
            own_write = (description["run"], description["write"], description["version"])
            if own_write == write and isinstance(process.outcome, KafkaError):
                return process.outcome
        return "its tasks have failed"

    def _driver(self, name: str, description: Mapping[str, Any], first_step: str) -> SteppedThread:
        write = (description["run"], description["write"], description["version"])
        run = self._run(*write[:2])
        places = {
            (*write, each["partition"])
            for each in self.trace["processes"].values()
            if each["kind"] == "task" and (each["run"], each["write"], each["version"]) == write
        }

        def work(process: DriverProcess) -> object:
            try:
                if not first_step.startswith("7") and places <= self._reports.keys():
                    return run.commit([self._reports[place] for place in sorted(places)])
                outcome: object = self._failure_of_tasks(write)
            except KafkaError as error:
                outcome = error
            process.phase = "aborting"
            run.abort()
            return outcome

        return DriverProcess(name, write[2], work)
