"""The Sender: one daemon thread that turns queued batches into requests, and answers into fates.

run_once is the whole of it: producer id → ready → drop nodes that are not → drain → expire → send → poll. It decides
nothing about an answer itself: retry.decide does, and this file applies. Stands on RecordAccumulator, TransactionManager and
a KafkaClient; KafkaProducer starts and stops it.
Laws: a batch's memory is given back only when no request refers to it any more, be it done or not (KAFKA-19012). Every batch is
settled, whatever is raised while others are: by callbacks, or by our own code (`_going_on`, `run`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AuthenticationError, KafkaError, KafkaTimeoutError, ProducerClosedError, printable
from spark_kafka_sink.network.cluster import Cluster, Node
from spark_kafka_sink.network.in_flight_requests import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import LeaderAndEpoch, Metadata
from spark_kafka_sink.producer.accumulator.drainer import ReadyCheckResult
from spark_kafka_sink.producer.accumulator.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.sender.retry import Attempt, Decision, decide
from spark_kafka_sink.producer.sender.transaction_manager import State, TransactionManager
from spark_kafka_sink.protocol.error_codes import ErrorCode, Errors, Persisted
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

MAX_POLL_MS = 60_000  # nothing to do: look up now and then all the same
LAST_PRODUCE_VERSION_BY_NAME = 12  # from 13 on a topic goes by its id; one whose id is unknown has to go by its name
NO_TIMEOUT_MS = 2**31 - 1
LEAST_BACK_OFF_MS = 50  # after a round that failed, however small retry.backoff.ms is: each such round logs a traceback


class KafkaClient(Protocol):
    """What the Sender needs of NetworkClient; tests hand in another."""

    def ready(self, node_id: int, now_ms: int) -> bool: ...

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int: ...

    def send(self, request: ClientRequest, now_ms: int) -> None: ...

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]: ...

    def least_loaded_node(self, now_ms: int) -> int | None: ...

    def refusal(self, node_id: int) -> AuthenticationError | None: ...

    def refusal_by_all(self) -> AuthenticationError | None: ...

    def in_flight_request_count(self, node_id: int | None = None) -> int: ...

    def wakeup(self) -> None: ...

    def close(self) -> None: ...


class Sender:
    """Args: see KafkaProducer, which makes all of them. `transaction_manager` is None without idempotence."""

    def __init__(
        self,
        config: ProducerConfig,
        client: KafkaClient,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        transaction_manager: TransactionManager | None,
        metrics: ProducerMetrics,
        clock: Clock,
        gatherer: RecordGatherer | None = None,
    ) -> None:
        self._config = config
        self._client = client
        self._metadata = metadata
        self._accumulator = accumulator
        self._transactions = transaction_manager
        self._metrics = metrics
        self._clock = clock
        self._gatherer = gatherer
        self._guarantee_message_order = config.max_in_flight_requests_per_connection == 1
        self._in_flight: dict[TopicPartition, list[ProducerBatch]] = {}  # oldest first; done ones stay until their answer comes
        self._producer_id_requested = False
        self._producer_id_retry_at_ms = 0
        self._running = True  # written by initiate_close, read by run
        self._force_close = False  # the same
        self._closing = threading.Condition()  # notified by initiate_close; guards nothing
        self._failing_since_ms: int | None = None  # no round has worked since
        self._failed_rounds = 0  # since then
        self._round_failure: Exception | None = None  # of the last of them
        self.failure: BaseException | None = None  # what ended the thread before it was asked to, or is about to

    # LIFE: any thread may ask the Sender to end

    def run(self) -> None:
        """The thread's body. Ends when asked to, after everything queued has been settled, or at once when forced.

        An Exception in a round, MemoryError too, is logged, and the next round follows after a back-off as that of retries. Rows
        expire meanwhile as ever. After delivery.timeout.ms without a round that works the Sender gives up and ends.
        What is no Exception (SystemExit of a callback that calls sys.exit(), KeyboardInterrupt) ends it after the round in which
        it was raised: whoever raises it wants the thread to end. All rows that are left then fail with what ended it, and so do
        later calls.
        """
        logger.debug("= sender started")
        try:
            while self._running and self.failure is None:
                self._run_round()
            while self._must_go_on():
                self._run_round()
        except BaseException as error:
            logger.exception("! the sender thread failed")
            self.failure = self.failure or error
        finally:
            self._end()
        logger.debug("= sender ended")

    def _must_go_on(self) -> bool:
        """After close(): whether rows are left to be settled."""
        if self._force_close or self.failure is not None:
            return False
        return self._accumulator.has_undrained() or self._client.in_flight_request_count() > 0

    def _run_round(self) -> None:
        try:
            self.run_once()
        except Exception as error:
            logger.exception("! a round of the sender failed; it goes on")
            self._after_failed_round(error)
        else:
            self._failing_since_ms, self._failed_rounds, self._round_failure = None, 0, None

    def _after_failed_round(self, error: Exception) -> None:
        now_ms = self._clock.now_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        if now_ms - self._failing_since_ms >= self._config.delivery_timeout_ms:
            self.failure = error
            return
        self._round_failure = error
        with self._going_on("expiring batches after a failed round"):
            self._expire(now_ms)
        first_ms = max(LEAST_BACK_OFF_MS, self._config.retry_backoff_ms)
        backoff_ms = min(first_ms * 2 ** min(self._failed_rounds, 30), max(first_ms, self._config.retry_backoff_max_ms))
        self._failed_rounds += 1
        with self._closing:
            if not self._force_close:
                self._clock.wait(self._closing, backoff_ms)

    @contextmanager
    def _going_on(self, step: object) -> Iterator[None]:
        """Around one step of several that must all be taken, like settling each of a request's batches, whatever one raises.

        An Exception is logged. What is none ends the Sender, after the round.
        """
        try:
            yield
        except Exception:
            logger.exception("! %s: failed; the sender goes on", step)
        except BaseException as error:
            logger.exception("! %s: ends the sender", step)
            self.failure = self.failure or error

    def failure_error(self) -> KafkaError | None:
        """For callers: what ended the Sender before it was asked to, if so. Any thread."""
        if self.failure is None:
            return None
        error = KafkaError(f"The producer's sender thread failed: {self.failure!r}", condition="KAFKA_INTERNAL_ERROR")
        error.__cause__ = self.failure
        return error

    def _end(self) -> None:
        ended_by = self.failure_error()
        self._accumulator.close(ended_by)
        error = ended_by or ProducerClosedError(
            "The producer was closed forcefully before this row was acknowledged; it may have been written"
        )
        with self._going_on("closing the connections"):
            self._client.close()  # first: from here on no request refers to a batch
        self._metadata.close(ended_by)
        for batch in [batch for batches in self._in_flight.values() for batch in batches]:
            batch.in_flight = False
        self._in_flight.clear()
        if self._gatherer is not None:
            self._gatherer.close(ended_by)
        self._abort_batches(error)
        self._abort_gathered(error)

    def initiate_close(self) -> None:
        """Refuse new rows, settle what is there, then end."""
        self._accumulator.close()
        self._running = False
        with self._closing:
            self._closing.notify_all()
        self.wakeup()

    def force_close(self) -> None:
        """End at once; what is not acknowledged fails."""
        self._force_close = True
        self.initiate_close()

    def wakeup(self) -> None:
        self._client.wakeup()

    # ONE ROUND: Sender thread

    def run_once(self) -> None:
        now_ms = self._clock.now_ms()
        self._metrics.samples.roll(now_ms)
        fatal_error = self._fatal_error()
        if fatal_error is not None:
            self._fail_everything(fatal_error, now_ms)
            self._client.poll(self._config.retry_backoff_ms, now_ms)
            return
        if self._transactions is not None:
            self._prepare_producer(self._transactions, now_ms)
        timeout_ms = self._send_producer_data(now_ms)
        self._client.poll(timeout_ms, now_ms)

    def _fatal_error(self) -> KafkaError | None:
        """Why nothing can ever be sent again, if so."""
        error = None if self._transactions is None else self._transactions.fatal_error
        return error or self._metadata.permanent_error()

    def _fail_everything(self, error: KafkaError, now_ms: int) -> None:
        if self._accumulator.has_incomplete():
            self._abort_batches(error)
        self._expire(now_ms)  # collects what a caller was still writing into
        self._abort_gathered(error)

    def _prepare_producer(self, transactions: TransactionManager, now_ms: int) -> None:
        """Advance the producer's identity."""
        transactions.maybe_resolve()
        transactions.maybe_bump_epoch()
        if transactions.needs_producer_id and not self._producer_id_requested and now_ms >= self._producer_id_retry_at_ms:
            self._request_producer_id(transactions, now_ms)

    def _send_producer_data(self, now_ms: int) -> int:
        """Drain and send what is ready, expire what is late; returns for how long the Sender may sleep."""
        cluster = self._metadata.cluster()
        gathering_ms = MAX_POLL_MS
        if self._gatherer is not None:
            gathering_ms = self._gatherer.encode_lingered(now_ms, self._accumulator.wants_all_at_once())
        result = self._accumulator.ready(cluster, now_ms)
        if result.unknown_leader_topics:
            for topic in result.unknown_leader_topics:
                self._metadata.add_topic(topic, now_ms)
            self._metadata.request_update("no leader known for a partition of " + ", ".join(sorted(result.unknown_leader_topics)))
        timeout_ms = min(MAX_POLL_MS, gathering_ms, result.next_ready_check_delay_ms)
        if self._expire(now_ms):  # before draining: what is late must not go into a request
            timeout_ms = 0  # it may have been what others of its partition waited for

        nodes = []
        for node in result.ready_nodes:
            takes_batches = self._client.ready(node, now_ms)
            self._accumulator.node_looked_at(node, now_ms, takes_batches)
            if takes_batches:
                nodes.append(node)
            else:
                timeout_ms = min(timeout_ms, self._client.poll_delay_ms(node, now_ms))
        self._fail_if_refused(result, cluster)
        if self._transactions is not None and not self._transactions.has_producer_id:
            nodes = []  # nothing can be numbered yet; the answer wakes the poll below
            timeout_ms = min(timeout_ms, self._config.retry_backoff_ms)
        drained = self._accumulator.drain(cluster, nodes, self._config.max_request_size, now_ms, result.occupied)
        self._track(drained)
        timeout_ms = min(timeout_ms, self._next_expiry_delay_ms(now_ms))
        for node, batches in drained.items():
            if batches:
                with self._going_on(f"sending to node {node}"):
                    self._send_produce_request(node, batches, cluster, now_ms)
        if any(drained.values()):
            return 0  # there may be more for the same nodes
        if nodes:
            # Ready, yet nothing could be taken: a caller has begun to write into it since, and wakes the poll when it is done.
            # A look now and then all the same, because ready() stops measuring delays at a node that it has found ready.
            timeout_ms = min(timeout_ms, self._config.retry_backoff_ms)
        return max(0, timeout_ms)

    def _fail_if_refused(self, result: ReadyCheckResult, cluster: Cluster) -> None:
        """Batches that wait for a broker which does not let us in, or which we do not trust, fail now, not at their time-out.

        So do those without a leader when no broker is left that could tell it. What is in flight, or waits for another broker,
        goes on: it may be written, and a retried Spark task would write it twice.

        The broker is asked again for rows that come later.
        """
        refused: dict[int | None, AuthenticationError | None] = {node: self._client.refusal(node) for node in result.ready_nodes}
        if result.unknown_leader_topics:
            refused[None] = self._client.refusal_by_all()
        for leader, error in refused.items():
            if error is not None:
                for batch in self._accumulator.take_waiting_for(leader, cluster, error):
                    with self._going_on(batch):
                        self._fail(batch, error, final_state=FinalState.ABORTED)

    def _track(self, drained: dict[int, list[ProducerBatch]]) -> None:
        for batches in drained.values():
            for batch in batches:
                batch.in_flight = True
                self._in_flight.setdefault(batch.topic_partition, []).append(batch)
                if self._guarantee_message_order:
                    self._accumulator.mute_partition(batch.topic_partition)

    # EXPIRY

    def _expire(self, now_ms: int) -> bool:
        """Fail what delivery.timeout.ms has caught up with, in queues and in flight; returns whether there was any."""
        expired = self._accumulator.expired_batches(now_ms) + self._expired_in_flight(now_ms)
        for batch in expired:
            logger.debug("- %s: delivery.timeout.ms has run out", batch)
            with self._going_on(batch):
                self._fail(batch, batch.poison or self._expiry_error(batch, now_ms), final_state=FinalState.ABORTED)
        return bool(expired)

    def _expired_in_flight(self, now_ms: int) -> list[ProducerBatch]:
        limit_ms = self._config.delivery_timeout_ms
        return [
            batch
            for batches in self._in_flight.values()
            for batch in batches
            if not batch.is_done and batch.has_reached_delivery_timeout(limit_ms, now_ms)
        ]

    def _next_expiry_delay_ms(self, now_ms: int) -> int:
        in_flight = [batch.created_ms for batches in self._in_flight.values() for batch in batches if not batch.is_done]
        oldest = min(in_flight, default=NEVER_MS)
        return min(self._accumulator.next_expiry_delay_ms(now_ms), oldest + self._config.delivery_timeout_ms - now_ms)

    def _expiry_error(self, batch: ProducerBatch, now_ms: int) -> KafkaError:
        leader = self._metadata.last_known_leader(batch.topic_partition)
        led_by = "" if leader is None else f", led by node {leader.id} at {leader.address}"
        return KafkaTimeoutError(
            f"Expiring {batch.record_count} record(s) for {batch.topic_partition}{led_by}: {now_ms - batch.created_ms} ms"
            f" have passed since batch creation, delivery.timeout.ms={self._config.delivery_timeout_ms};"
            f" {batch.attempts} attempt(s) were answered; last trouble: {self._trouble(batch)}",
            condition="KAFKA_DELIVERY_TIMEOUT",
        )

    def _trouble(self, batch: ProducerBatch) -> str:
        """What became of the last attempt, and why there is no connection to make the next one on."""
        own = None if self._round_failure is None else f"the producer's sender thread fails: {self._round_failure!r}"
        troubles = [each for each in (batch.last_error, self._metadata.last_connection_error(), own) if each]
        return "; ".join(troubles) or self._waiting_for(batch)

    def _waiting_for(self, batch: ProducerBatch) -> str:
        leader = self._metadata.cluster().leader_for(batch.topic_partition)
        if leader is None:
            return "the partition has no leader"
        if self._transactions is not None and not self._transactions.has_producer_id:
            return "no broker has given this producer an id"
        return f"no answer from node {leader}, the partition's leader"

    # PRODUCE REQUESTS

    def _send_produce_request(self, node: int, batches: list[ProducerBatch], cluster: Cluster, now_ms: int) -> None:
        in_flight = self._client.in_flight_request_count(node)
        try:
            self._metrics.request_sent(batches)
            request = self._produce_request(node, batches, cluster, now_ms)
            if logger.isEnabledFor(logging.DEBUG):
                for batch in batches:
                    logger.debug("> node %d: %r", node, batch)
            self._client.send(request, now_ms)
        except BaseException:
            if self._client.in_flight_request_count(node) == in_flight:  # else the client has it, and will call back
                self._take_back(batches, now_ms)
            raise

    def _produce_request(self, node: int, batches: list[ProducerBatch], cluster: Cluster, now_ms: int) -> ClientRequest:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.topic_partition.partition, records=batch.wire_buffers())
            by_topic.setdefault(batch.topic_partition.topic, []).append(data)
        topics = tuple(
            TopicProduceData(name=topic, topic_id=cluster.topic_id(topic) or ZERO_UUID, partition_data=tuple(partitions))
            for topic, partitions in by_topic.items()
        )
        ids_known = all(topic.topic_id != ZERO_UUID for topic in topics)
        message = ProduceRequest(acks=self._config.acks, timeout_ms=self._config.request_timeout_ms, topic_data=topics)
        names = {topic.topic_id: topic.name for topic in topics}
        return ClientRequest(
            node_id=node,
            message=message,
            created_ms=now_ms,
            expect_response=self._config.acks != 0,
            request_timeout_ms=self._config.request_timeout_ms,
            callback=lambda response: self._handle_produce_response(response, batches, names),
            max_version=None if ids_known else LAST_PRODUCE_VERSION_BY_NAME,
        )

    def _take_back(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """No request was made of these batches: queue them again."""
        for batch in batches:
            self._no_longer_in_flight(batch)
            self._accumulator.reenqueue(batch, now_ms)
            if self._guarantee_message_order:
                self._accumulator.unmute_partition(batch.topic_partition)

    def _handle_produce_response(self, response: ClientResponse, batches: list[ProducerBatch], names: dict[UUID, str]) -> None:
        """Raises nothing: the client has other answers of the same poll to call back for."""
        now_ms = self._clock.now_ms()
        for batch in batches:
            self._no_longer_in_flight(batch)
        answers: dict[TopicPartition, PartitionProduceResponse] = {}
        with self._going_on(f"the answer of node {response.request.node_id}"):
            answers = self._answers(response, batches, names)
        for batch in batches:
            missing = PartitionProduceResponse(
                index=batch.topic_partition.partition,
                error_code=Errors.UNKNOWN_SERVER_ERROR.number,
                error_message="the response says nothing of this partition",
            )
            with self._going_on(batch):
                self._complete(batch, answers.get(batch.topic_partition, missing), response, now_ms)

    def _answers(
        self, response: ClientResponse, batches: list[ProducerBatch], names: dict[UUID, str]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        if response.message is None:
            error, text = self._answer_without_message(response)
            return {
                batch.topic_partition: PartitionProduceResponse(
                    index=batch.topic_partition.partition, error_code=error.number, error_message=text
                )
                for batch in batches
            }
        message: ProduceResponse = response.message
        latency_ms = response.received_ms - response.request.created_ms
        self._metrics.request_answered(response.request.node_id, latency_ms)
        answers = {
            TopicPartition(topic.name or names.get(topic.topic_id, ""), answer.index): answer
            for topic in message.responses
            for answer in topic.partition_responses
        }
        self._learn_leaders(message, answers)
        return answers

    def _answer_without_message(self, response: ClientResponse) -> tuple[ErrorCode, str | None]:
        """What no answer means: with acks=0 success, else the connection's end."""
        node = response.request.node_id
        if response.error is not None and not response.disconnected:
            return Errors.UNSUPPORTED_VERSION, response.error.message
        if response.timed_out:
            limit_ms = response.request.request_timeout_ms
            return (
                Errors.REQUEST_TIMED_OUT,
                f"disconnected from node {node}, which did not answer within request.timeout.ms={limit_ms}",
            )
        if response.disconnected:
            return Errors.NETWORK_EXCEPTION, f"disconnected from node {node} before it answered"
        return Errors.NONE, None

    def _learn_leaders(self, message: ProduceResponse, answers: dict[TopicPartition, PartitionProduceResponse]) -> None:
        """Brokers that refuse a batch may name the new leader at once, which saves a metadata round trip (KIP-951)."""
        moved = {
            topic_partition: LeaderAndEpoch(answer.current_leader.leader_id, answer.current_leader.leader_epoch)
            for topic_partition, answer in answers.items()
            if answer.error_code in (Errors.NOT_LEADER_OR_FOLLOWER.number, Errors.FENCED_LEADER_EPOCH.number)
            and answer.current_leader.leader_id >= 0
            and answer.current_leader.leader_epoch >= 0
        }
        if moved:
            nodes = [Node(each.node_id, each.host, each.port, each.rack) for each in message.node_endpoints]
            self._metadata.update_partition_leadership(moved, nodes)

    # FATES

    def _complete(self, batch: ProducerBatch, answer: PartitionProduceResponse, response: ClientResponse, now_ms: int) -> None:
        error = Errors.for_code(answer.error_code)
        decision = decide(error, self._attempt(batch, answer, now_ms))
        where = (response.request.node_id, batch, response.correlation_id)
        logger.debug("< node %d: %r, correlation id %d: %s -> %s", *where, error, decision.value)
        if error:
            batch.last_error = str(error) + (f": {printable(answer.error_message)}" if answer.error_message else "")
            batch.in_doubt |= error.persisted is not Persisted.NO  # an answer says nothing of the attempts before
        try:
            if batch.is_done:
                self._settle_late_answer(batch, decision, answer)
            else:
                self._apply(batch, decision, error, answer, now_ms)
        except Exception as raised:
            if not batch.is_done and not self._accumulator.is_queued(batch):
                text = f"{batch.topic_partition}: the producer failed at the broker's answer, {error}: {raised!r}"
                self._fail(batch, KafkaError(text, condition="KAFKA_INTERNAL_ERROR"), final_state=FinalState.ABORTED)
            raise
        finally:
            if self._guarantee_message_order:
                self._accumulator.unmute_partition(batch.topic_partition)
        if error.refresh_metadata:
            self._metadata.request_update(f"{batch.topic_partition}: {error}")

    def _attempt(self, batch: ProducerBatch, answer: PartitionProduceResponse, now_ms: int) -> Attempt:
        expired = batch.has_reached_delivery_timeout(self._config.delivery_timeout_ms, now_ms)
        may_retry = batch.attempts < self._config.retries and not expired and not batch.is_done
        if self._transactions is None:
            return Attempt(batch.record_count, may_retry, done=batch.is_done)
        transactions = self._transactions
        return Attempt(
            batch.record_count,
            may_retry,
            done=batch.is_done,
            idempotent=True,
            sequence_was_reset=batch.sequence_has_been_reset,
            is_first=transactions.is_first_in_flight(batch),
            is_next=transactions.sequences[batch.topic_partition].is_next(batch.base_sequence),
            unresolved=transactions.has_unresolved(batch.topic_partition),
            log_start_offset=answer.log_start_offset,
        )

    def _settle_late_answer(self, batch: ProducerBatch, decision: Decision, answer: PartitionProduceResponse) -> None:
        """The answer for a batch that expired in flight: its rows have failed already, only the numbering learns from it."""
        if self._transactions is not None and decision is Decision.COMPLETE:
            self._transactions.batch_completed(batch, answer.base_offset)
        self._accumulator.deallocate(batch)

    def _apply(
        self, batch: ProducerBatch, decision: Decision, error: ErrorCode, answer: PartitionProduceResponse, now_ms: int
    ) -> None:
        if decision is Decision.COMPLETE:
            self._succeed(batch, answer)
        elif decision in (Decision.RETRY, Decision.RETRY_IN_NEW_EPOCH):
            if decision is Decision.RETRY_IN_NEW_EPOCH and self._transactions is not None:
                self._transactions.request_epoch_bump(batch.topic_partition)
            logger.info("! %s: retrying after attempt %d: %s", batch.topic_partition, batch.attempts + 1, batch.last_error)
            self._metrics.records_retried(batch.topic_partition.topic, batch.record_count)
            self._accumulator.reenqueue(batch, now_ms)
        elif decision is Decision.SPLIT:
            self._split(batch)
        else:
            failure = self._failure(batch, error, answer)
            if decision is Decision.FATAL and self._transactions is not None:
                self._transactions.become_fatal(failure)
            self._fail(batch, failure, _record_errors(failure, error, answer, batch.record_count))

    def _split(self, batch: ProducerBatch) -> None:
        logger.info("! %s: %d bytes are too large for the broker; splitting", batch.topic_partition, batch.size_in_bytes)
        self._metrics.splits.record(1)
        # An earlier attempt of unknown outcome was as large: the broker did not write it either. The children are in no doubt.
        children = self._accumulator.split_and_reenqueue(batch)
        if self._transactions is not None:
            self._transactions.replace_in_flight(batch, children)
        for child in reversed(children):  # without sequences each goes to the front
            self._accumulator.insert(child)

    def _succeed(self, batch: ProducerBatch, answer: PartitionProduceResponse) -> None:
        if self._transactions is not None:
            self._transactions.batch_completed(batch, answer.base_offset)
        # A duplicate that the broker no longer remembers is a success whose offset it cannot tell.
        base_offset = -1 if answer.error_code else answer.base_offset
        try:
            batch.complete(base_offset, answer.log_append_time_ms)
        finally:
            self._accumulator.deallocate(batch)

    def _fail(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
        *,
        final_state: FinalState = FinalState.FAILED,
    ) -> None:
        if not batch.is_done:  # counted before it is told
            self._metrics.records_failed(batch.topic_partition.topic, batch.record_count)
        try:
            batch.fail(error, record_errors, final_state)
        finally:
            if self._transactions is not None:
                self._transactions.batch_failed(batch)
            if batch.in_flight or batch.reservations:
                # Its memory is in use, but flush() need not wait for an answer that nobody is waiting for.
                self._accumulator.remove_incomplete(batch)
            else:
                self._accumulator.deallocate(batch)

    def _abort_gathered(self, error: KafkaError) -> None:
        for chunk in [] if self._gatherer is None else self._gatherer.take_all():
            with self._going_on(f"failing {len(chunk)} records for {chunk.topic}"):
                self._metrics.records_failed(chunk.topic, len(chunk))
                chunk.abandon_all(error)

    def _abort_batches(self, error: KafkaError) -> None:
        for batch in self._accumulator.withdraw_batches(error):
            with self._going_on(batch):
                self._fail(batch, error, final_state=FinalState.ABORTED)

    def _failure(self, batch: ProducerBatch, error: ErrorCode, answer: PartitionProduceResponse) -> KafkaError:
        where = f"{batch.topic_partition} ({batch.record_count} records, {batch.size_in_bytes} bytes)"
        if error == Errors.CLUSTER_AUTHORIZATION_FAILED:
            return _idempotent_write_denied(where)
        if error.retriable:
            where += f", attempt {batch.attempts + 1}, retries={self._config.retries} or delivery.timeout.ms exhausted"
        return error.error(where, answer.error_message)

    def _no_longer_in_flight(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        batches = self._in_flight[batch.topic_partition]
        batches.remove(batch)
        if not batches:
            del self._in_flight[batch.topic_partition]

    # PRODUCER ID

    def _request_producer_id(self, transactions: TransactionManager, now_ms: int) -> None:
        node = self._client.least_loaded_node(now_ms)
        if node is None or not self._client.ready(node, now_ms):
            return  # connecting; the poll comes back when there is news
        request = ClientRequest(
            node_id=node,
            message=InitProducerIdRequest(transaction_timeout_ms=NO_TIMEOUT_MS),
            created_ms=now_ms,
            expect_response=True,
            request_timeout_ms=self._config.request_timeout_ms,
            callback=lambda response: self._handle_producer_id(transactions, response),
            max_version=None,
        )
        self._client.send(request, now_ms)  # first: were it to raise, the id is asked for again
        transactions.transition_to(State.INITIALIZING)
        self._producer_id_requested = True

    def _handle_producer_id(self, transactions: TransactionManager, response: ClientResponse) -> None:
        self._producer_id_requested = False
        if transactions.fatal_error is not None:
            return  # it has come too late to be of use
        message = response.message
        error = Errors.for_code(message.error_code) if isinstance(message, InitProducerIdResponse) else Errors.NETWORK_EXCEPTION
        is_given = isinstance(message, InitProducerIdResponse) and not error
        if is_given and message.producer_id >= 0 and message.producer_epoch >= 0:
            transactions.producer_id_received(message.producer_id, message.producer_epoch)
            return
        transactions.transition_to(State.UNINITIALIZED)
        self._producer_id_retry_at_ms = self._clock.now_ms() + self._config.retry_backoff_ms
        if is_given:
            logger.info("! node %d gives no producer id but %r; asking again", response.request.node_id, message)
            return
        failure = response.error or error.error(f"InitProducerId on node {response.request.node_id}")
        if error == Errors.CLUSTER_AUTHORIZATION_FAILED:
            failure = _idempotent_write_denied(f"InitProducerId on node {response.request.node_id}")
        elif error.retriable and (response.error is None or response.disconnected):
            logger.info("! no producer id yet, trying again: %s", failure)
            return
        # What waits now fails; a later write asks again, so that a permission granted meanwhile is enough.
        self._abort_batches(failure)


def _idempotent_write_denied(where: str) -> KafkaError:
    return Errors.CLUSTER_AUTHORIZATION_FAILED.error(
        f"{where}: idempotent writes are not allowed for this user; grant IDEMPOTENT_WRITE on the cluster"
        " (brokers from 2.8 on also accept WRITE on any topic), or set enable.idempotence=false"
    )


# Whatever the broker says of the batch with one of these, it says of its records.
_OF_RECORDS = (Errors.MESSAGE_TOO_LARGE, Errors.RECORD_LIST_TOO_LARGE, Errors.INVALID_RECORD, Errors.INVALID_TIMESTAMP)


def _record_errors(
    failure: KafkaError, error: ErrorCode, answer: PartitionProduceResponse, record_count: int
) -> dict[int, KafkaError]:
    """The rows that the broker blames, by offset delta (KIP-467). Only a single one shares the batch's error for certain."""
    if record_count == 1 and error in _OF_RECORDS and not answer.record_errors:
        return {0: failure}
    condition = failure.condition if len(answer.record_errors) == 1 else "KAFKA_INVALID_RECORD"
    return {
        each.batch_index: KafkaError(
            printable(each.batch_index_error_message or answer.error_message or "") or failure.message, condition=condition
        )
        for each in answer.record_errors
        if 0 <= each.batch_index < record_count
    }
