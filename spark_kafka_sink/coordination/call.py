"""One call of RequestClient: asks queue for their brokers, are sent, come back, and are tried again, until each has an outcome.

    ask ──▶ look-up of the coordinator ──▶ queue of a broker ──▶ in flight ──▶ outcome
     ▲                                          │                   │
     └───────────────── back-off ◀──────────────┴───────────────────┘

Law: every ask without an outcome is in exactly one of these places, so that none is forgotten and none is sent twice at a time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.coordination.brokers import FindCoordinator
from spark_kafka_sink.coordination.cluster_access import ClusterAccess
from spark_kafka_sink.coordination.operation import (
    ANY_BROKER,
    AnyBroker,
    Ask,
    Broker,
    BrokerGoneError,
    CoordinatorOf,
    Operation,
    Retry,
)
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType

log = logging.getLogger(__name__)

LEAST_WAIT_MS = 10  # for a node of which no event tells
LOOK_AGAIN_MS = 50  # while every broker is busy, throttled or backing off


@dataclass(eq=False, slots=True)
class _Pending:
    """An ask that has no outcome yet."""

    ask: Ask[Any, Any]
    settle: Callable[[Any], None]  # called once, with the result or a KafkaError
    failures: int = 0
    trouble: str = ""


_Place = AnyBroker | Broker | int  # where asks queue; a number is a coordinator's node id


class Call:
    def __init__(self, access: ClusterAccess, asks: Sequence[Ask[Any, Any]], timeout_ms: int) -> None:
        self._access = access
        self._network = access.network
        self._timeout_ms = timeout_ms
        self._deadline_ms = access.clock.now_ms() + timeout_ms
        self._outcomes: dict[int, Any] = {}  # by position in `asks`
        self._asked = [_Pending(ask, partial(self._outcomes.setdefault, position)) for position, ask in enumerate(asks)]
        self._queues: dict[_Place, dict[Operation[Any, Any], deque[_Pending]]] = {}  # never an empty one
        self._backing_off: list[tuple[int, int, _Pending]] = []  # a heap: until when, a number that tells equals apart
        self._numbers = count()
        self._looked_up: dict[CoordinatorOf, list[_Pending]] = {}  # who waits for the answer
        self._is_over = False

    def run(self) -> list[Any]:
        """The outcomes, in the order of the asks: results and KafkaErrors. Blocks until the deadline at most."""
        self._access.fatal_error()  # one of earlier attempts is of no interest
        self._route(self._asked)
        try:
            while len(self._outcomes) < len(self._asked) and self._take_turn():
                continue
        finally:
            self._is_over = True
        return [self._outcomes[position] for position in range(len(self._asked))]

    def _take_turn(self) -> bool:
        """Send what can be sent, and wait for what comes. False when there is no point in waiting any longer."""
        now_ms = self._access.clock.now_ms()
        error = self._access.fatal_error()
        if error is not None or now_ms >= self._deadline_ms:
            self._give_up(error)
            return False
        self._end_backoffs(now_ms)
        wait_ms = self._send(now_ms)
        if len(self._outcomes) < len(self._asked):
            self._network.poll(max(min(wait_ms, self._deadline_ms - now_ms), 0), now_ms)
        return True

    def _give_up(self, error: KafkaError | None) -> None:
        for position, pending in enumerate(self._asked):
            if position not in self._outcomes:
                what = pending.ask.operation.describe(pending.ask.item)
                pending.settle(error or self._access.timeout_error(what, self._timeout_ms, pending.trouble))

    # ---- whom to ask ---------------------------------------------------------------------------------------------------------

    def _route(self, asks: Iterable[_Pending]) -> None:
        for pending in asks:
            target = pending.ask.target
            if not isinstance(target, CoordinatorOf):
                self._enqueue(target, pending)
                continue
            coordinator = self._access.coordinator(target)
            if coordinator is None:
                self._look_up(target, pending)
            else:
                self._enqueue(coordinator.id, pending)

    def _enqueue(self, place: _Place, pending: _Pending) -> None:
        self._queues.setdefault(place, {}).setdefault(pending.ask.operation, deque()).append(pending)

    def _look_up(self, key: CoordinatorOf, pending: _Pending) -> None:
        waiting = self._looked_up.setdefault(key, [])
        waiting.append(pending)
        if len(waiting) == 1:
            ask = Ask(ANY_BROKER, FindCoordinator(KeyType(key.key_type)), key.key)
            self._enqueue(ANY_BROKER, _Pending(ask, partial(self._found, key)))

    def _found(self, key: CoordinatorOf, outcome: Node | KafkaError) -> None:
        waiting = self._looked_up.pop(key)
        if isinstance(outcome, KafkaError):
            for pending in waiting:
                pending.settle(outcome)
            return
        log.debug("= the coordinator of %s is %s", key, outcome)
        self._access.coordinator_found(key, outcome)
        for pending in waiting:
            self._enqueue(outcome.id, pending)

    def _end_backoffs(self, now_ms: int) -> None:
        while self._backing_off and self._backing_off[0][0] <= now_ms:
            self._route([heappop(self._backing_off)[2]])

    def _retry(self, pending: _Pending, trouble: str, *, find: bool) -> None:
        """After a back-off. `find` the coordinator anew, if it is one that was asked."""
        log.debug("= %s is asked again: %s", pending.ask.operation.describe(pending.ask.item), trouble)
        target = pending.ask.target
        if find and isinstance(target, CoordinatorOf):
            self._access.coordinator_lost(target)
        self._tell(pending, trouble)
        pending.failures += 1
        due_ms = self._access.clock.now_ms() + self._access.backoff_ms(pending.failures)
        heappush(self._backing_off, (due_ms, next(self._numbers), pending))

    def _tell(self, pending: _Pending, trouble: str) -> None:
        """What keeps it, for the error if nothing comes of it. What keeps a look-up keeps all who wait for it."""
        operation = pending.ask.operation
        pending.trouble = trouble
        if isinstance(operation, FindCoordinator):
            for waiting in self._looked_up.get(CoordinatorOf(operation.key_type, pending.ask.item), ()):
                waiting.trouble = f"FindCoordinator: {trouble}"

    # ---- sending ---------------------------------------------------------------------------------------------------------------

    def _send(self, now_ms: int) -> int:
        """Send what can be sent now. Returns how long to wait, in milliseconds, when no event ends the wait before."""
        waits = [self._send_to(place, now_ms) for place in list(self._queues)]
        next_ms = self._backing_off[0][0] - now_ms if self._backing_off else NEVER_MS
        return min(*waits, next_ms) if waits else next_ms

    def _send_to(self, place: _Place, now_ms: int) -> int:
        node_id = self._node_at(place, now_ms)
        if node_id is None:
            return LOOK_AGAIN_MS
        while place in self._queues and self._network.ready(node_id, now_ms):
            self._send_batch(place, node_id, now_ms)
        if place not in self._queues:
            return NEVER_MS
        if place is not ANY_BROKER:
            self._drop_what_waits_in_vain(place, node_id)
        return max(self._network.poll_delay_ms(node_id, now_ms), LEAST_WAIT_MS)

    def _node_at(self, place: _Place, now_ms: int) -> int | None:
        """None when there is none at the moment. Before the first metadata no broker goes by its real id."""
        if isinstance(place, int):
            return place
        cluster = self._access.cluster()
        if place is ANY_BROKER:
            return None if cluster.is_bootstrap else self._network.least_loaded_node(now_ms)
        assert isinstance(place, Broker)
        if cluster.is_bootstrap:
            return None
        if cluster.node(place.node_id) is None:
            for pending in self._take_all(place):
                what = pending.ask.operation.describe(pending.ask.item)
                pending.settle(BrokerGoneError(f"{what}: node {place.node_id} is not part of the cluster any more"))
            return None
        return place.node_id

    def _drop_what_waits_in_vain(self, place: _Place, node_id: int) -> None:
        """A broker that does not let us in for good ends all asks for it; another coordinator may be found for a lost one."""
        refusal = self._network.refusal(node_id)
        if refusal is not None:
            for pending in self._take_all(place):
                pending.settle(refusal)
        elif isinstance(place, int) and self._network.connection_failed(node_id):
            trouble = self._access.metadata.last_connection_error() or f"node {node_id} cannot be reached"
            for pending in self._take_all(place):
                self._retry(pending, trouble, find=True)

    def _take_all(self, place: _Place) -> list[_Pending]:
        return [pending for queue in self._queues.pop(place, {}).values() for pending in queue]

    def _send_batch(self, place: _Place, node_id: int, now_ms: int) -> None:
        queues = self._queues[place]
        operation, queue = next(iter(queues.items()))
        batch = [queue.popleft()]
        versions = self._network.api_versions(node_id)
        assert versions is not None
        try:
            version = operation.usable_version(versions)
            while queue and len(batch) < operation.batch_size(version):
                batch.append(queue.popleft())
            message = operation.message([pending.ask.item for pending in batch], node_id, version)
            callback = partial(self._answered, batch)
            self._network.send(
                ClientRequest(node_id, message, now_ms, True, self._access.request_timeout_ms, callback, version), now_ms
            )
        except KafkaError as error:
            for pending in batch:
                pending.settle(error)
        for pending in batch:
            self._tell(pending, f"node {node_id} has not answered")
        if not queue:
            del queues[operation]
        if not queues:
            del self._queues[place]

    # ---- answers ---------------------------------------------------------------------------------------------------------------

    def _answered(self, batch: Sequence[_Pending], response: ClientResponse) -> None:
        if self._is_over:
            return  # nobody waits any more
        for pending in batch:
            if response.error is not None:
                pending.settle(response.error)
            elif response.disconnected:
                self._retry(pending, _loss(response), find=True)
            else:
                self._judge(pending, response)

    def _judge(self, pending: _Pending, response: ClientResponse) -> None:
        try:
            verdict = pending.ask.operation.judge(pending.ask.item, response.message, response.version)
        except KafkaError as error:
            pending.settle(error)
            return
        if isinstance(verdict, Retry):
            trouble = f"node {response.request.node_id} answers {verdict.error}"
            self._retry(pending, trouble, find=verdict.error.find_coordinator)
        else:
            pending.settle(verdict.value)


def _loss(response: ClientResponse) -> str:
    node_id = response.request.node_id
    return f"node {node_id} did not answer in time" if response.timed_out else f"the connection to node {node_id} was lost"
