"""Sends the requests of a transaction, one at a time: to the right coordinator, in the order of their priorities, with retries.

Finds coordinators, remembers them, and finds them again when they say that they are not, or are lost. Sender thread only; it
never waits: `step` says when it wants to be called again, and answers wake the Sender by themselves.
Laws: one request is in flight at most, as each may depend on the one before; the end of a transaction is not sent before every
batch is settled.
"""

from __future__ import annotations

import heapq
import logging
from itertools import count
from random import Random
from typing import Protocol

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse
from spark_kafka_sink.producer.transactions.transaction_errors import Effect
from spark_kafka_sink.producer.transactions.txn_request_handlers import (
    CoordinatorKey,
    CoordinatorRequest,
    EndTransaction,
    FindCoordinator,
    Problem,
    TransactionState,
)
from spark_kafka_sink.protocol.error_codes import Errors

logger = logging.getLogger(__name__)

MAX_NODES = 1_000  # coordinators that are remembered, for ids and groups that come back; the oldest are forgotten


class CoordinatorClient(Protocol):
    """What this needs of NetworkClient."""

    def ready(self, node_id: int, now_ms: int) -> bool: ...

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int: ...

    def connection_failed(self, node_id: int) -> bool: ...

    def least_loaded_node(self, now_ms: int) -> int | None: ...

    def learn_node(self, node: Node) -> None: ...

    def send(self, request: ClientRequest, now_ms: int) -> None: ...


class RequestOwner(TransactionState, Protocol):
    """Whose requests these are: Transactions."""

    def refusal_of(self, request: CoordinatorRequest) -> KafkaError | None: ...

    def must_be_ended(self) -> bool:
        """Whether brokers may know of the transaction; otherwise there is nothing to end."""
        ...

    def outcome_unknown(self, request: CoordinatorRequest) -> None:
        """An attempt may have been carried out; nobody will hear of it."""
        ...

    def request_failed(self, request: CoordinatorRequest, problem: Problem) -> None: ...

    def become_fatal(self, error: KafkaError) -> None: ...


class Coordinators:
    """Args:
    owner: hears of every request that is done or has failed for good.
    client, config, clock, random: as for the Sender.
    """

    def __init__(
        self, owner: RequestOwner, client: CoordinatorClient, config: ProducerConfig, clock: Clock, random: Random | None = None
    ) -> None:
        self._owner = owner
        self._client = client
        self._clock = clock
        self._request_timeout_ms = config.request_timeout_ms
        self._retry_backoff_ms = config.retry_backoff_ms
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())
        self._nodes: dict[CoordinatorKey, int] = {}
        self._queue: list[tuple[int, int, CoordinatorRequest]] = []  # a heap: priority, then the order of arrival
        self._numbers = count()
        self._in_flight: CoordinatorRequest | None = None
        self._trouble = ""  # why the last retry was needed

    def enqueue(self, request: CoordinatorRequest) -> None:
        heapq.heappush(self._queue, (request.PRIORITY, next(self._numbers), request))

    @property
    def has_work(self) -> bool:
        return self._in_flight is not None or bool(self._queue)

    def waiting_for(self) -> str:
        """The request that is under way, in words; empty when there is none. Any thread."""
        queued = self._queue[:1]  # at once: the Sender may take the request meanwhile
        request = self._in_flight or (queued[0][2] if queued else None)
        if request is None:
            return ""
        trouble = f"; last trouble: {self._trouble}" if self._trouble else ""
        return f"{type(request).__name__} to {request.coordinator or 'any broker'} is not answered yet{trouble}"

    def drop_all(self, error: KafkaError) -> None:
        """Nothing is asked any more: whoever waits hears why."""
        requests = [request for _, _, request in self._queue]
        if self._in_flight is not None:
            requests.append(self._in_flight)
        self._queue.clear()
        for request in requests:
            if request.operation is not None:
                request.operation.fail(error)

    def step(self, now_ms: int, all_settled: bool) -> int:
        """Send the next request, if it can be sent; returns in how many ms to ask again.

        Args:
            all_settled: whether every batch is acknowledged or has failed.
        """
        wait_ms = NEVER_MS
        while self._in_flight is None and self._queue:
            request = self._queue[0][2]
            refusal = self._owner.refusal_of(request)
            if refusal is not None:  # at once: what the request waits for is of no use any more
                heapq.heappop(self._queue)
                _tell(request, refusal)
                continue
            if isinstance(request, EndTransaction) and not all_settled:
                return NEVER_MS  # the answer that settles the last batch wakes the Sender
            if isinstance(request, EndTransaction) and not self._owner.must_be_ended():
                logger.debug("= %r is not sent: nothing was written", request)
                heapq.heappop(self._queue)
                self._owner.transaction_ended(None)
                _tell(request, None)
                wait_ms = 0  # there is no answer that would wake the Sender, and close() may wait for this end
                continue
            if request.not_before_ms > now_ms:
                return request.not_before_ms - now_ms
            node = self._node_for(request, now_ms)
            if node is None and request.coordinator is not None:
                self.enqueue(FindCoordinator(request.coordinator))  # of higher priority, so it is sent first
                continue
            if node is None:
                return self._backoff.backoff_ms(0)
            if not self._client.ready(node, now_ms):
                if request.coordinator is not None and self._client.connection_failed(node):
                    self._forget(request.coordinator, now_ms)
                    continue
                return self._client.poll_delay_ms(node, now_ms)
            heapq.heappop(self._queue)
            try:
                self._send(request, node, now_ms)
            except Exception as error:  # noqa: BLE001 - logged and told in _broken
                self._broken(request, error)
        return wait_ms

    def _node_for(self, request: CoordinatorRequest, now_ms: int) -> int | None:
        """The node to ask; None when the coordinator is not known, or any broker would do and none can be asked now."""
        if request.coordinator is None:
            return self._client.least_loaded_node(now_ms)
        return self._nodes.get(request.coordinator)

    def _forget(self, key: CoordinatorKey, now_ms: int) -> None:
        self._nodes.pop(key, None)
        request = FindCoordinator(key)
        request.not_before_ms = now_ms + self._backoff.backoff_ms(0)
        self.enqueue(request)

    def _send(self, request: CoordinatorRequest, node: int, now_ms: int) -> None:
        logger.debug("> node %d: %r, attempt %d", node, request, request.attempts + 1)
        self._in_flight = request
        self._client.send(
            ClientRequest(
                node_id=node,
                message=request.message(),
                created_ms=now_ms,
                expect_response=True,
                request_timeout_ms=self._request_timeout_ms,
                callback=lambda response: self._answered(request, response),
                max_version=request.max_version,
            ),
            now_ms,
        )

    def node_of(self, key: CoordinatorKey) -> int | None:
        """The coordinator's node; None when it is not known."""
        return self._nodes.get(key)

    def coordinator_found(self, key: CoordinatorKey, node: Node) -> None:
        logger.debug("= the coordinator of %s is node %d at %s:%d", key, node.id, node.host, node.port)
        self._client.learn_node(node)
        self._nodes[key] = node.id
        if len(self._nodes) > MAX_NODES:
            del self._nodes[next(iter(self._nodes))]

    # ANSWERS

    def _answered(self, request: CoordinatorRequest, response: ClientResponse) -> None:
        self._in_flight = None
        node = response.request.node_id
        if response.disconnected:
            logger.debug("! node %d: %r was lost with the connection", node, request)
            self._trouble = f"the connection to node {node} was lost"
            if request.coordinator is not None:
                self._nodes.pop(request.coordinator, None)
            self._owner.outcome_unknown(request)
            self.retry(request)
        elif response.error is not None:
            self._end_producer(request, response.error)
        else:
            try:
                self._read(request, response)
            except Exception as error:  # noqa: BLE001 - logged and told in _broken
                self._broken(request, error)

    def _broken(self, request: CoordinatorRequest, error: Exception) -> None:
        """A defect of ours. What the coordinator knows is not known here: the caller is told, and the producer has ended."""
        logger.exception("! %r: failed", request)
        self._in_flight = None
        self._end_producer(request, KafkaError(f"{request!r} failed: {error!r}", condition="KAFKA_INTERNAL_ERROR"))

    def _end_producer(self, request: CoordinatorRequest, error: KafkaError) -> None:
        self._owner.become_fatal(error)
        _tell(request, self._owner.refusal_of(request) or error)

    def _read(self, request: CoordinatorRequest, response: ClientResponse) -> None:
        problem = next(request.errors(response.message, response.version), None)
        if problem is None:
            logger.debug("< node %d: %r is done", response.request.node_id, request)
            self._trouble = ""
            request.succeed(self._owner, response.message, response.version)
            if request.completes_operation:
                _tell(request, None)
            return
        logger.debug("< node %d: %r: %s: %s -> %s", response.request.node_id, request, *problem[1:3], problem.effect.value)
        if problem.effect is Effect.FIND_COORDINATOR and request.coordinator is not None:
            self._nodes.pop(request.coordinator, None)
        if problem.effect is Effect.FIND_COORDINATOR or problem.error == Errors.UNKNOWN_SERVER_ERROR:
            self._owner.outcome_unknown(request)  # a coordinator that moves may have recorded it before it answered so
        if problem.effect in (Effect.RETRY, Effect.FIND_COORDINATOR):
            self._trouble = f"{problem.where}: {problem.error}"
            if problem.error == Errors.UNKNOWN_TOPIC_OR_PARTITION and not request.attempts:
                logger.warning("! %s. Trying again for max.block.ms: it may be created meanwhile", self._trouble)
            self.retry(request, request.backoff_ms(problem.error))
        else:
            self._owner.request_failed(request, problem)

    def retry(self, request: CoordinatorRequest, at_most_ms: int | None = None) -> None:
        """Send it again after a back-off, which grows with the attempts, or after `at_most_ms`."""
        delay_ms = self._backoff.backoff_ms(request.attempts) if at_most_ms is None else min(at_most_ms, self._retry_backoff_ms)
        request.attempts += 1
        request.not_before_ms = self._clock.now_ms() + delay_ms
        self.enqueue(request)


def _tell(request: CoordinatorRequest, error: KafkaError | None) -> None:
    if request.operation is not None:
        if error is None:
            request.operation.succeed()
        else:
            request.operation.fail(error)
