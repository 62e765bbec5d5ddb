"""One call of RequestClient: asks are queued for their brokers, sent, answered and retried, until each has an outcome.

    ask ──▶ look-up of coordinator or leader ──▶ queue of a broker ──▶ in flight ──▶ outcome
     ▲                                                │                   │
     └───────────────────── back-off ◀────────────────┴───────────────────┘

Law: every ask without an outcome is in exactly one of these places, so that none is forgotten and none is sent twice at once.
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

from spark_kafka_sink.admin.brokers import FindCoordinator
from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.leaders import FindLeaders, unknown_partition_error
from spark_kafka_sink.admin.operation import (
    ANY_BROKER,
    AnyBroker,
    Ask,
    Broker,
    BrokerGoneError,
    Leader,
    Operation,
    RetryNeeded,
)
from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.coordinators import CoordinatorKey
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse

logger = logging.getLogger(__name__)

MIN_POLL_MS = 10  # between two checks of a node that takes no request now
BUSY_PAUSE_MS = 50  # between two checks while no broker is known, or none takes a request


@dataclass(eq=False, slots=True)
class _PendingAsk:
    """An ask that has no outcome yet."""

    ask: Ask[Any, Any]
    settle: Callable[[Any], None]  # called once, with the result or a KafkaError
    failure_count: int = 0
    last_failure: str = ""  # why the last attempt has failed
    trouble: str = ""  # why it has no outcome yet, for the error if time runs out


_Destination = AnyBroker | Broker | int  # where asks queue; a number is the node id of a coordinator or leader
_LookUp = CoordinatorKey | str  # a coordinator's, or the leaders of a topic


class Call:
    """Asks that are in progress, each on its way to a broker or to its outcome.

    Args:
        on_outcome: called with the position of each ask when it has its outcome.
    """

    def __init__(
        self,
        access: ClusterAccess,
        asks: Sequence[Ask[Any, Any]],
        timeout_ms: int,
        on_outcome: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._access = access
        self._on_outcome = on_outcome
        self._network = access.network
        self._timeout_ms = timeout_ms
        self._deadline_ms = access.clock.now_ms() + timeout_ms
        self._outcomes: dict[int, Any] = {}  # by position in `asks`
        self._pending_asks = [_PendingAsk(ask, partial(self._settle, position)) for position, ask in enumerate(asks)]
        self._queues: dict[_Destination, dict[Operation[Any, Any], deque[_PendingAsk]]] = {}  # without empty queues
        self._backoffs: list[tuple[int, int, _PendingAsk]] = []  # a heap: end of the back-off, a number for equal times
        self._tie_breakers = count()
        self._asks_awaiting_look_up: dict[_LookUp, list[_PendingAsk]] = {}
        self._is_over = False

    def run(self) -> list[Any]:
        """The outcomes, in the order of the asks: results and KafkaErrors. Blocks until the deadline at most."""
        self._access.metadata.take_error()  # discards an error of earlier calls
        for ask in (pending_ask.ask for pending_ask in self._pending_asks):
            if isinstance(ask.target, Leader) and not ask.operation.is_for_leader_alone:
                self._access.leaders.forget(ask.target.partition.topic)
        self._route(self._pending_asks)
        try:
            while len(self._outcomes) < len(self._pending_asks) and self._send_and_poll():
                continue
        finally:
            self._is_over = True
        return [self._outcomes[position] for position in range(len(self._pending_asks))]

    def _send_and_poll(self) -> bool:
        """Send what can be sent, and wait for answers. False if the call is over: by a fatal error or at its deadline."""
        now_ms = self._access.clock.now_ms()
        error = self._access.metadata.take_error()
        if error is not None or now_ms >= self._deadline_ms:
            self._fail_all(error)
            return False
        self._end_backoffs(now_ms)
        wait_ms = self._send(now_ms)
        if len(self._outcomes) < len(self._pending_asks):
            self._network.poll(max(min(wait_ms, self._deadline_ms - now_ms), 0), now_ms)
        return True

    def _fail_all(self, error: KafkaError | None) -> None:
        for position, pending_ask in enumerate(self._pending_asks):
            if position not in self._outcomes:
                ask_text = pending_ask.ask.operation.describe(pending_ask.ask.item)
                pending_ask.settle(error or self._access.timeout_error(ask_text, self._timeout_ms, pending_ask.trouble))

    def _settle(self, position: int, outcome: Any) -> None:
        self._outcomes.setdefault(position, outcome)
        self._on_outcome(position)

    # TARGETS

    def _route(self, asks: Iterable[_PendingAsk]) -> None:
        for pending_ask in asks:
            target = pending_ask.ask.target
            if not isinstance(target, CoordinatorKey | Leader):
                self._enqueue(target, pending_ask)
                continue
            node = self._known_node(target)
            if node is None:
                self._look_up(target, pending_ask)
            else:
                self._enqueue(node.id, pending_ask)

    def _known_node(self, target: CoordinatorKey | Leader) -> Node | None:
        if isinstance(target, Leader):
            return self._access.leaders.get(target.partition)
        return self._access.coordinators.get(target)

    def _enqueue(self, destination: _Destination, pending_ask: _PendingAsk) -> None:
        self._queues.setdefault(destination, {}).setdefault(pending_ask.ask.operation, deque()).append(pending_ask)

    def _look_up(self, target: CoordinatorKey | Leader, pending_ask: _PendingAsk) -> None:
        key: _LookUp = target.partition.topic if isinstance(target, Leader) else target
        waiting_asks = self._asks_awaiting_look_up.setdefault(key, [])
        waiting_asks.append(pending_ask)
        if len(waiting_asks) == 1:
            ask: Ask[Any, Any]
            if isinstance(key, str):
                ask = Ask(ANY_BROKER, FindLeaders(), key)
                self._enqueue(ANY_BROKER, _PendingAsk(ask, partial(self._end_look_up_of_leaders, key)))
            else:
                ask = Ask(ANY_BROKER, FindCoordinator(key.key_type), key)
                self._enqueue(ANY_BROKER, _PendingAsk(ask, partial(self._end_look_up, key)))

    def _end_look_up(self, key: CoordinatorKey, outcome: Node | KafkaError) -> None:
        waiting_asks = self._asks_awaiting_look_up.pop(key)
        if isinstance(outcome, KafkaError):
            for pending_ask in waiting_asks:
                pending_ask.settle(outcome)
            return
        logger.debug("= the coordinator of %s is %s", key, outcome)
        self._access.coordinators.remember(key, outcome)
        for pending_ask in waiting_asks:
            self._enqueue(outcome.id, pending_ask)

    def _end_look_up_of_leaders(self, topic: str, outcome: dict[int, Node | None] | KafkaError) -> None:
        waiting_asks = self._asks_awaiting_look_up.pop(topic)
        if not isinstance(outcome, KafkaError):
            self._access.leaders.remember(topic, outcome)
        for pending_ask in waiting_asks:
            target = pending_ask.ask.target
            assert isinstance(target, Leader)
            partition = target.partition
            if isinstance(outcome, KafkaError):
                pending_ask.settle(outcome)
            elif partition.partition not in outcome:
                pending_ask.settle(unknown_partition_error(partition))
            elif (leader := self._access.leaders.get(partition)) is not None:
                self._enqueue(leader.id, pending_ask)
            elif pending_ask.ask.operation.awaits_leader:
                self._retry(pending_ask, "it has no leader", must_look_up=True)
            else:
                pending_ask.settle(None)

    def _end_backoffs(self, now_ms: int) -> None:
        while self._backoffs and self._backoffs[0][0] <= now_ms:
            self._route([heappop(self._backoffs)[2]])

    def _retry(self, pending_ask: _PendingAsk, trouble: str, *, must_look_up: bool) -> None:
        """Queue an ask again after a back-off. `must_look_up`: look up its coordinator or leader again first, if it has one."""
        logger.debug("= %s is retried: %s", pending_ask.ask.operation.describe(pending_ask.ask.item), trouble)
        target = pending_ask.ask.target
        if must_look_up and isinstance(target, CoordinatorKey):
            self._access.coordinators.forget(target)
        elif must_look_up and isinstance(target, Leader):
            self._access.leaders.forget(target.partition.topic)
        self._note_trouble(pending_ask, trouble)
        pending_ask.last_failure = trouble
        pending_ask.failure_count += 1
        due_ms = self._access.clock.now_ms() + self._access.backoff_ms(pending_ask.failure_count)
        heappush(self._backoffs, (due_ms, next(self._tie_breakers), pending_ask))

    def _note_trouble(self, pending_ask: _PendingAsk, trouble: str) -> None:
        """Remember why an ask waits. The asks that wait for a look-up get its reason."""
        pending_ask.trouble = trouble
        operation = pending_ask.ask.operation
        if isinstance(operation, FindCoordinator | FindLeaders):
            for waiting_ask in self._asks_awaiting_look_up.get(pending_ask.ask.item, ()):
                waiting_ask.trouble = f"{type(operation).__name__}: {trouble}"

    # SENDING

    def _send(self, now_ms: int) -> int:
        """Send what can be sent now. Returns for how many milliseconds to wait for events."""
        waits_ms = [self._send_to(destination, now_ms) for destination in list(self._queues)]
        backoff_left_ms = self._backoffs[0][0] - now_ms if self._backoffs else NEVER_MS
        return min(*waits_ms, backoff_left_ms) if waits_ms else backoff_left_ms

    def _send_to(self, destination: _Destination, now_ms: int) -> int:
        node_id = self._find_node(destination, now_ms)
        if node_id is None:
            return BUSY_PAUSE_MS
        while destination in self._queues and self._network.ready(node_id, now_ms):
            self._send_batch(destination, node_id, now_ms)
        if destination not in self._queues:
            return NEVER_MS
        if destination is not ANY_BROKER:
            self._react_to_unreachable(destination, node_id)
        return max(self._network.poll_delay_ms(node_id, now_ms), MIN_POLL_MS)

    def _find_node(self, destination: _Destination, now_ms: int) -> int | None:
        """The node to send to; None if there is none at the moment. Fails the asks for a broker that has left the cluster."""
        if isinstance(destination, int):
            return destination
        cluster = self._access.metadata.cluster()
        if destination is ANY_BROKER:
            return None if cluster.is_bootstrap else self._network.least_loaded_node(now_ms)
        assert isinstance(destination, Broker)
        if cluster.is_bootstrap:
            return None
        if cluster.node(destination.node_id) is None:
            for pending_ask in self._take_all(destination):
                ask_text = pending_ask.ask.operation.describe(pending_ask.ask.item)
                pending_ask.settle(BrokerGoneError(f"{ask_text}: node {destination.node_id} is not part of the cluster any more"))
            return None
        return destination.node_id

    def _react_to_unreachable(self, destination: _Destination, node_id: int) -> None:
        """Fail the asks for a broker that rejects the login. Retry those for a coordinator or leader that cannot be reached."""
        rejection = self._network.login_rejection(node_id)
        if rejection is not None:
            for pending_ask in self._take_all(destination):
                pending_ask.settle(rejection)
        elif isinstance(destination, int) and self._network.is_disconnected(node_id):
            trouble = self._access.metadata.last_connection_error() or f"node {node_id} cannot be reached"
            for pending_ask in self._take_all(destination):
                self._retry(pending_ask, trouble, must_look_up=True)

    def _take_all(self, destination: _Destination) -> list[_PendingAsk]:
        return [pending_ask for queue in self._queues.pop(destination, {}).values() for pending_ask in queue]

    def _send_batch(self, destination: _Destination, node_id: int, now_ms: int) -> None:
        queues = self._queues[destination]
        operation, queue = next(iter(queues.items()))
        batch = [queue.popleft()]
        versions = self._network.api_versions(node_id)
        assert versions is not None
        try:
            version = operation.usable_version(versions)
            while queue and len(batch) < operation.batch_size(version):
                batch.append(queue.popleft())
            message = operation.message([pending_ask.ask.item for pending_ask in batch], node_id, version)
            handle = partial(self._handle_response, batch)
            limit_ms = self._access.request_timeout_ms
            request = ClientRequest(
                node_id, message, now_ms, expect_response=True, request_timeout_ms=limit_ms, callback=handle, max_version=version
            )
            self._network.send(request, now_ms)
        except KafkaError as error:
            for pending_ask in batch:
                pending_ask.settle(error)
        for pending_ask in batch:
            earlier_text = f"; before that, {pending_ask.last_failure}" if pending_ask.last_failure else ""
            self._note_trouble(pending_ask, f"node {node_id} has not answered{earlier_text}")
        if not queue:
            del queues[operation]
        if not queues:
            del self._queues[destination]

    # ANSWERS

    def _handle_response(self, batch: Sequence[_PendingAsk], response: ClientResponse) -> None:
        if self._is_over:
            return  # the call has returned already
        for pending_ask in batch:
            if response.error is not None:
                pending_ask.settle(response.error)
            elif response.was_disconnected:
                self._retry(pending_ask, _describe_loss(response), must_look_up=True)
            else:
                self._judge(pending_ask, response)

    def _judge(self, pending_ask: _PendingAsk, response: ClientResponse) -> None:
        try:
            result = pending_ask.ask.operation.judge(pending_ask.ask.item, response.message, response.version)
        except RetryNeeded as retry:
            trouble = f"node {response.request.node_id} answers {retry.error}"
            is_for_leader = isinstance(pending_ask.ask.target, Leader)
            must_look_up = retry.error.must_refresh_metadata if is_for_leader else retry.error.must_find_coordinator
            self._retry(pending_ask, trouble, must_look_up=must_look_up)
        except KafkaError as error:
            pending_ask.settle(error)
        else:
            pending_ask.settle(result)


def _describe_loss(response: ClientResponse) -> str:
    node_id = response.request.node_id
    return f"node {node_id} did not answer in time" if response.has_timed_out else f"the connection to node {node_id} was lost"
