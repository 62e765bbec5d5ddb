"""Runs work that may block (DNS, a token endpoint, a Kerberos server, a schema registry) on threads of its own.

BackgroundWorker does this for NetworkClient, which must not wait. `outcome_within` and `outcomes_within` are for callers that
wait, but only for a limited time: the clients of registries and token servers, Avro serializers, DNS and `pykafka-sink check`.
ConnectionSetup starts work here when a handshake yields BackgroundWork, and when a host name has to be looked up. The client
serves its other connections until the outcome arrives. Each piece of work runs on its own daemon thread: work that hangs in
foreign code blocks nothing else. The connection that waits for the work is closed when its time-out has passed. When the program
ends, Python 3.12 and newer start no threads any more: BackgroundWorker's work runs on the thread of its client then.
Law: what `work` raises, SystemExit too, leaves this file as a KafkaError. Neither the error nor its cause keeps the thread's
frames, whose locals may be secrets.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from spark_kafka_sink.clock import Clock, wait_seconds
from spark_kafka_sink.errors import KafkaError, NetworkError, describe_error


class BackgroundWork(NamedTuple):
    """Work that may block, `work()`. A handshake yields it and receives the result; a KafkaError is raised in the handshake."""

    work: Callable[[], Any]


class Outcome(NamedTuple):
    """What the work has returned, or the error that it has raised."""

    result: Any
    error: KafkaError | None


# Work that runs for longer counts as hanging, and work with the same key may start. glibc's resolver has no time-out over TCP.
MIN_HANG_MS = 300_000


class BackgroundWorker:
    """Starts work for nodes and returns the outcomes. NetworkClient's thread only. Work that has finished calls `wakeup`."""

    def __init__(self, wakeup: Callable[[], None], clock: Clock | None = None) -> None:
        self._wakeup = wakeup
        self._clock = clock or Clock()
        self._lock = threading.Lock()  # guards _outcomes and _runs
        self._outcomes: dict[object, Outcome] = {}  # by the run that start() has begun
        self._runs: dict[object, tuple[object, int]] = {}  # key -> the latest run, when it counts as hanging
        self._waiting_nodes: dict[int, tuple[object, int]] = {}  # node id -> run, deadline

    def start(self, node_id: int, work: Callable[[], Any], deadline_ms: int, *, key: object = None) -> None:
        """Start `work` for a node. The node waits for one outcome only: a new start replaces the one before it.

        If work with the same key is running, the node waits for that outcome, and no thread is started. So work that hangs and
        is requested repeatedly takes one more thread only every MIN_HANG_MS. From `deadline_ms` on, the node is overdue.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            run, hangs_from_ms = self._runs.get(key, (None, 0))
            must_start = run is None or now_ms >= hangs_from_ms
            if must_start:
                run = object()
                if key is not None:
                    self._runs[key] = (run, now_ms + MIN_HANG_MS)
        self._waiting_nodes[node_id] = (run, deadline_ms)
        if must_start:
            try:
                _start_thread(lambda: self._finish(run, outcome_of(work), key))
            except RuntimeError as error:  # too many threads or processes, or the program ends
                self._finish(run, _start_failure(error) if threading.main_thread().is_alive() else outcome_of(work), key)

    def _finish(self, run: object, outcome: Outcome, key: object) -> None:
        with self._lock:
            self._outcomes[run] = outcome
            if self._runs.get(key, (None, 0))[0] is run:
                del self._runs[key]
        self._wakeup()

    def take_finished(self) -> list[tuple[int, Outcome]]:
        """Each node id whose work has finished, once, with the outcome. Outcomes that no node waits for are dropped."""
        if not self._waiting_nodes and not self._outcomes:
            return []
        with self._lock:
            outcomes, self._outcomes = self._outcomes, {}
        finished_nodes = [(node_id, outcomes[run]) for node_id, (run, _) in self._waiting_nodes.items() if run in outcomes]
        for node_id, _ in finished_nodes:
            del self._waiting_nodes[node_id]
        return finished_nodes

    def overdue_nodes(self, now_ms: int) -> list[int]:
        """The ids of nodes whose work has not finished by its deadline. They go on waiting until `forget`."""
        return [node_id for node_id, (_, deadline_ms) in self._waiting_nodes.items() if now_ms >= deadline_ms]

    def forget(self, node_id: int) -> None:
        """Let the node wait no longer. Its work, if still running, goes on."""
        self._waiting_nodes.pop(node_id, None)


def outcome_of(work: Callable[[], Any]) -> Outcome:
    """Run `work` on this thread, which is not the main one: there, Ctrl-C would become an outcome.

    Any exception but a KafkaError is a bug: it becomes the cause of a KafkaError that names it.
    Work that runs foreign code must convert the exceptions of that code to KafkaErrors itself.
    """
    cause: BaseException | None = None
    try:
        return Outcome(work(), None)
    except KafkaError as error:
        failure = error
    except BaseException as error:  # noqa: BLE001 - raised again, on the thread that waits
        failure, cause = KafkaError(describe_error(error), condition="KAFKA_INTERNAL_ERROR"), error
        cause.__traceback__ = cause.__context__ = cause.__cause__ = None
    failure.__traceback__ = failure.__context__ = None
    failure.__cause__ = cause
    return Outcome(None, failure)


def outcome_within(work: Callable[[], Any], timeout_ms: int) -> Outcome | None:
    """Run `work` on a thread and wait at most `timeout_ms`; None if it has not finished by then."""
    return outcomes_within([work], timeout_ms)[0]


def outcomes_within(functions: Sequence[Callable[[], Any]], timeout_ms: int, clock: Clock | None = None) -> list[Outcome | None]:
    """Run all functions at the same time, each on a thread; wait at most `timeout_ms`. None: not finished by then."""
    clock = clock or Clock()
    outcome_queue: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
    for position, work in enumerate(functions):
        try:
            _start_thread(partial(_put_outcome, outcome_queue, position, work))
        except RuntimeError as error:  # too many threads or processes, or the interpreter is shutting down
            outcome_queue.put((position, _start_failure(error)))
    outcomes: list[Outcome | None] = [None] * len(functions)
    deadline_ms = clock.now_ms() + timeout_ms
    with contextlib.suppress(queue.Empty):
        for _ in functions:
            position, outcome = outcome_queue.get(timeout=wait_seconds(deadline_ms - clock.now_ms()))
            outcomes[position] = outcome
    return outcomes


def _start_failure(error: RuntimeError) -> Outcome:
    return Outcome(None, NetworkError(f"no background thread could be started: {error}"))


def _put_outcome(outcome_queue: queue.SimpleQueue[tuple[int, Outcome]], position: int, work: Callable[[], Any]) -> None:
    outcome_queue.put((position, outcome_of(work)))


def _start_thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="kafka-producer-background", daemon=True).start()
