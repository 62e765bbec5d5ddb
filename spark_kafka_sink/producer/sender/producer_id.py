"""InitProducerId of an idempotent producer without transactions: asks any broker for a producer id, and again until it gets one.

Sender thread only.
"""

from __future__ import annotations

import logging

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse
from spark_kafka_sink.producer.sender.batch_outcomes import BatchOutcomes, idempotent_write_denied
from spark_kafka_sink.producer.sender.kafka_client import KafkaClient
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager, TxnState
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)

NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1  # what Java sends without transactions


class ProducerIdRequests:
    def __init__(
        self,
        config: ProducerConfig,
        client: KafkaClient,
        transactions: TransactionManager,
        outcomes: BatchOutcomes,
        clock: Clock,
    ) -> None:
        self._request_timeout_ms = config.request_timeout_ms
        self._retry_backoff_ms = config.retry_backoff_ms
        self._client = client
        self._transactions = transactions
        self._outcomes = outcomes
        self._clock = clock
        self._in_flight = False
        self._retry_at_ms = 0
        self._was_refused = False

    def is_wanted(self, *, has_rows: bool) -> bool:
        """Whether an id is needed. After a refusal only rows need one."""
        return self._transactions.needs_producer_id and (has_rows or not self._was_refused)

    def maybe_send(self, now_ms: int, *, has_rows: bool) -> None:
        """Ask a broker for an id, if one is needed and can be asked now. Never waits."""
        if not self.is_wanted(has_rows=has_rows) or self._in_flight or now_ms < self._retry_at_ms:
            return
        node = self._client.least_loaded_node(now_ms)
        if node is None or not self._client.ready(node, now_ms):
            return  # connecting; the poll returns when the connection is made or lost
        request = ClientRequest(
            node_id=node,
            message=InitProducerIdRequest(transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS),
            created_ms=now_ms,
            expect_response=True,
            request_timeout_ms=self._request_timeout_ms,
            callback=self._handle_response,
        )
        self._client.send(request, now_ms)  # before the state changes: if it raises, the next round sends a request again
        self._transactions.transition_to(TxnState.INITIALIZING)
        self._in_flight = True

    def _handle_response(self, response: ClientResponse) -> None:
        self._in_flight = False
        if self._transactions.fatal_error is not None:
            return  # it comes too late to be of use
        message = response.message if isinstance(response.message, InitProducerIdResponse) else None
        error = Errors.NETWORK_EXCEPTION if message is None else Errors.for_code(message.error_code)
        is_valid = message is not None and message.producer_id >= 0 and message.producer_epoch >= 0
        if message is not None and not error and is_valid:
            self._was_refused = False
            self._transactions.producer_id_received(message.producer_id, message.producer_epoch)
            return
        self._transactions.transition_to(TxnState.UNINITIALIZED)
        self._retry_at_ms = self._clock.now_ms() + self._retry_backoff_ms
        if not error:
            logger.info("! node %d answers with an invalid producer id: %r; trying again", response.request.node_id, message)
        elif error.retriable and (response.error is None or response.disconnected):
            logger.info("! no producer id yet, trying again: %s", _failure(error, response))
        else:
            # What waits now fails. A later write sends a request again: a permission may have been granted by then.
            self._was_refused = True
            self._outcomes.give_up_all(_failure(error, response))


def _failure(error: ErrorCode, response: ClientResponse) -> KafkaError:
    where = f"InitProducerId on node {response.request.node_id}"
    if error == Errors.CLUSTER_AUTHORIZATION_FAILED:
        return idempotent_write_denied(where)
    return response.error or error.error(where)
