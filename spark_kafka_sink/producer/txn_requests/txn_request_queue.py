"""Sends requests to coordinators, one at a time: to the right one, in the order of their priorities, with retries.

Finds coordinators, and finds them again when the connection is lost or a broker is no longer the coordinator. Sender thread only.
It never waits: `send_due_requests` says when it wants to be called again, and answers wake the Sender by themselves.
Laws: one request is in flight at most, as each may depend on the one before. Requests of one priority go in the order in which
they were queued; one that is sent again gets its place back. The end of a transaction is sent only after every batch is settled.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.backoff import ExponentialBackoff
from spark_kafka_sink.network.coordinators import CoordinatorDirectory, CoordinatorKey
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse, KafkaClient
from spark_kafka_sink.producer.txn_requests.transaction_errors import ErrorEffect
from spark_kafka_sink.producer.txn_requests.txn_request_handlers import (
    AnswerProblem,
    EndTxnHandler,
    FindCoordinatorHandler,
    InitProducerIdHandler,
    TxnRequestHandler,
)
from spark_kafka_sink.protocol.error_codes import Errors

logger = logging.getLogger(__name__)

MIN_WAIT_MS = 50  # between looks for a broker that can be asked, however small retry.backoff.ms is


class RequestSequencer(Protocol):
    """What TxnRequestQueue needs of the NumberingSequencer that owns it."""

    def refusal_of_request(self, request: TxnRequestHandler) -> KafkaError | None: ...

    def handle_rejected_request(self, request: TxnRequestHandler, problem: AnswerProblem) -> None: ...

    def handle_broken_request(self, request: TxnRequestHandler, error: KafkaError) -> None: ...


class TxnRequestQueue:
    """One producer's requests to coordinators: those that wait, and the one in flight."""

    def __init__(
        self, sequencer: RequestSequencer, config: ProducerConfig, client: KafkaClient, clock: Clock, random: Random | None
    ) -> None:
        self.coordinators = CoordinatorDirectory(client)
        self._sequencer = sequencer  # is told of every request that has failed for good
        self._client = client
        self._clock = clock
        self._request_timeout_ms = config.request_timeout_ms
        self._retry_backoff_ms = config.retry_backoff_ms
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random or Random())
        self._queue: list[tuple[int, int, TxnRequestHandler]] = []  # a heap: priority, then the order of arrival
        self._numbers = count()
        self._in_flight: TxnRequestHandler | None = None
        self.last_trouble = ""  # why the last retry was needed; any thread may read it

    def enqueue(self, request: TxnRequestHandler) -> None:
        """Queue a request behind the others of its priority. A retry gets the place back that it had among them."""
        if request.number < 0:
            request.number = next(self._numbers)
        heapq.heappush(self._queue, (request.priority, request.number, request))

    @property
    def has_work(self) -> bool:
        return self._in_flight is not None or bool(self._queue)

    @property
    def waits_for_rows(self) -> bool:
        """Whether the first request must follow rows, and others wait for it."""
        return len(self._queue) > 1 and self._queue[0][2].must_follow_rows

    def delay_reason(self) -> str:
        """The request that is under way, in words; empty when there is none. Any thread."""
        first_entries = self._queue[:1]  # a copy in one step: the Sender may take the request meanwhile
        request = self._in_flight or (first_entries[0][2] if first_entries else None)
        if request is None:
            return ""
        return f"{request.NAME} to {request.coordinator or 'any broker'} is not answered yet"

    def drop_all(self, error: KafkaError) -> None:
        """Drop all requests, also the one in flight, whose answer is ignored. The calls that wait for them get `error`."""
        requests = [request for _, _, request in self._queue]
        if self._in_flight is not None:
            requests.append(self._in_flight)
        self._queue, self._in_flight = [], None
        for request in requests:
            request.settle(error)

    def send_due_requests(self, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]) -> int:
        """As Sequencer.send_due_requests: sends the next request, if it can be sent."""
        wait_ms = NEVER_MS
        while self._in_flight is None and self._queue:
            request = self._queue[0][2]
            if self._settle_unsent(request, is_all_settled):
                wait_ms = 0  # there is no answer that would wake the Sender, and close() may wait for this end
                continue
            if isinstance(request, EndTxnHandler) and not is_all_settled:
                return NEVER_MS  # the answer that settles the last batch wakes the Sender
            if request.not_before_ms > now_ms:
                return request.not_before_ms - now_ms
            node_id = self._node_id_for(request, now_ms)
            must_wait = request.must_follow_rows and not is_all_settled
            if must_wait and node_id is not None and not self._are_all_batches_ahead(node_id, is_all_sent):
                return NEVER_MS  # an answer that settles batches wakes the Sender
            if node_id is not None and self._client.ready(node_id, now_ms):
                heapq.heappop(self._queue)
                self._send(request, node_id, now_ms)
            elif request.coordinator is not None and (node_id is None or self._client.is_disconnected(node_id)):
                self._look_for(request.coordinator, now_ms if node_id is None else now_ms + self._backoff.backoff_ms(0))
            else:
                backoff_ms = max(MIN_WAIT_MS, self._backoff.backoff_ms(0))
                return backoff_ms if node_id is None else self._client.poll_delay_ms(node_id, now_ms)
        return wait_ms

    def _are_all_batches_ahead(self, node_id: int, is_all_sent: Callable[[], bool]) -> bool:
        """Whether all batches are on their way to this node. It handles them first, because it handles the requests of one
        connection in order. If two brokers begin the same transaction at once, one rejects its request, which is then retried."""
        in_flight = self._client.in_flight_request_count
        return in_flight() == in_flight(node_id) and is_all_sent()

    def _settle_unsent(self, request: TxnRequestHandler, is_all_settled: bool) -> bool:
        """Settle the first request without sending it, if it is of no use any more. True if so."""
        reason = self._sequencer.refusal_of_request(request)
        if reason is None:
            if not isinstance(request, EndTxnHandler) or not is_all_settled or request.transaction.must_be_ended:
                return False
            logger.debug("= %r is not sent: nothing was written", request)
        heapq.heappop(self._queue)
        if reason is None and isinstance(request, EndTxnHandler):
            request.on_ended(None)
        request.settle(reason)
        return True

    def _node_id_for(self, request: TxnRequestHandler, now_ms: int) -> int | None:
        """The node to ask; None when the coordinator is not known, or any broker would do and none can be asked now."""
        if request.coordinator is None:
            return self._client.least_loaded_node(now_ms)
        coordinator = self.coordinators.get(request.coordinator)
        return None if coordinator is None else coordinator.id

    def _look_for(self, key: CoordinatorKey, not_before_ms: int) -> None:
        """Queue a FindCoordinator, which goes before all others."""
        self.coordinators.forget(key)
        request = FindCoordinatorHandler(key=key, directory=self.coordinators)
        request.not_before_ms = not_before_ms
        self.enqueue(request)

    def _send(self, request: TxnRequestHandler, node_id: int, now_ms: int) -> None:
        logger.debug("> node %d: %r, attempt %d", node_id, request, request.attempt_count + 1)
        self._in_flight, request.node_id = request, node_id
        try:
            self._client.send(
                ClientRequest(
                    node_id=node_id,
                    message=request.message(),
                    created_ms=now_ms,
                    expect_response=True,
                    request_timeout_ms=self._request_timeout_ms,
                    callback=partial(self._handle_response, request),
                    max_version=request.max_version,
                ),
                now_ms,
            )
        except Exception as error:  # noqa: BLE001 - logged and reported in _handle_own_error
            self._handle_own_error(request, error)

    # ANSWERS

    def _handle_response(self, request: TxnRequestHandler, response: ClientResponse) -> None:
        if request is not self._in_flight:
            return  # it was dropped meanwhile
        self._in_flight, request.version = None, response.version
        if response.was_disconnected:
            logger.debug("! node %d: %r was lost with the connection", request.node_id, request)
            self.last_trouble = f"the connection to node {request.node_id} was lost"
            self._forget_coordinator_of(request)
            request.note_unknown_outcome()
            self.retry(request)
        elif response.error is not None:
            self._sequencer.handle_broken_request(request, response.error)
        else:
            try:
                self._handle_answer(request, response.message)
            except Exception as error:  # noqa: BLE001 - logged and reported in _handle_own_error
                self._handle_own_error(request, error)

    def _handle_own_error(self, request: TxnRequestHandler, error: Exception) -> None:
        """Handle an error of this code. What the coordinator knows is not known then. The sequencer decides what follows."""
        logger.exception("! %r: failed", request)
        self._in_flight = None
        self.last_trouble = repr(error)
        internal_error = KafkaError(f"{request!r} failed: {error!r}", condition="KAFKA_INTERNAL_ERROR")
        self._sequencer.handle_broken_request(request, internal_error)

    def _handle_answer(self, request: TxnRequestHandler, answer: Any) -> None:
        problem = next(request.errors(answer), None)
        if problem is None:
            logger.debug("< node %d: %r is done", request.node_id, request)
            self.last_trouble = ""
            request.succeed(answer)
            if request.completes_call:
                request.settle()
            return
        logger.debug("< node %d: %r: %s: %s -> %s", request.node_id, request, *problem[1:3], problem.effect.value)
        if problem.effect is ErrorEffect.FIND_COORDINATOR:
            self._forget_coordinator_of(request)
        if problem.effect is ErrorEffect.FIND_COORDINATOR or problem.error == Errors.UNKNOWN_SERVER_ERROR:
            request.note_unknown_outcome()  # a coordinator that moves may have recorded the request before
        if problem.effect in (ErrorEffect.RETRY, ErrorEffect.FIND_COORDINATOR):
            self.last_trouble = f"{problem.where}: {problem.error}"
            if problem.error == Errors.UNKNOWN_TOPIC_OR_PARTITION and not request.attempt_count:
                logger.warning("! %s. Trying again for max.block.ms: it may be created meanwhile", self.last_trouble)
            self.retry(request, request.max_backoff_ms(problem.error))
        else:
            self._sequencer.handle_rejected_request(request, problem)

    def _forget_coordinator_of(self, request: TxnRequestHandler) -> None:
        if request.coordinator is not None:
            self.coordinators.forget(request.coordinator)

    def retry(self, request: TxnRequestHandler, max_ms: int | None = None) -> None:
        """Queue the request again, after a back-off that grows with the attempts, or after at most `max_ms`."""
        if isinstance(request, InitProducerIdHandler) and request.transactional_id is None:
            logger.info("! no producer id yet, trying again: %s", self.last_trouble)
        delay_ms = self._backoff.backoff_ms(request.attempt_count) if max_ms is None else min(max_ms, self._retry_backoff_ms)
        request.attempt_count += 1
        request.not_before_ms = self._clock.now_ms() + delay_ms
        self.enqueue(request)
