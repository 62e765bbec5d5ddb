"""The Sender: one daemon thread per producer that turns queued batches into requests, and handles the answers.

`run_once` is one round: begin_round → prepare_drain → encode_lingered → ready → expire → drop nodes that are not connected →
drain → send → coordinators → poll. After a fatal error, a round fails all rows instead.
Uses RecordAccumulator, Sequencer and a KafkaClient; KafkaProducer starts and stops it.

    sender_failures     what happens when code raises on this thread
    produce_requests    builds Produce requests and reads their answers
    batch_outcomes      what an answer or a failure means for a batch (retry.py decides)
    expiry              delivery.timeout.ms
    idempotence/        the producer's id and epoch, the numbering of batches; transactions/ for transactional producers
"""

from __future__ import annotations

import logging

from spark_kafka_sink.errors import AuthenticationError, KafkaError, ProducerClosedError
from spark_kafka_sink.interrupts import Signal
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.drainer import ReadyCheckResult
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.producer.sender.batch_outcomes import BatchOutcomes
from spark_kafka_sink.producer.sender.expiry import Expiry
from spark_kafka_sink.producer.sender.produce_requests import ProduceRequests
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer

logger = logging.getLogger(__name__)

MAX_SLEEP_MS = 60_000  # how long the Sender sleeps when there is nothing to do
MIN_ROUND_MS = 50  # between rounds that only look again, however small retry.backoff.ms is


class Sender:
    """Sends the batches of one producer. `run` is the body of its thread; other threads tell it to end."""

    def __init__(self, parts: SenderParts, gatherer: RecordGatherer) -> None:
        self._config = parts.config
        self._recheck_interval_ms = max(self._config.retry_backoff_ms, MIN_ROUND_MS)
        self._client = parts.client
        self._metadata = parts.metadata
        self._accumulator = parts.accumulator
        self._sequencer = parts.sequencer
        self._metrics = parts.metrics
        self.failures = parts.failures
        self._clock = parts.clock
        self._gatherer = gatherer
        self._outcomes = BatchOutcomes(parts)
        self._expiry = Expiry(parts, self._outcomes)
        self._produce_requests = ProduceRequests(parts, self._outcomes)
        self._is_running = True  # written by initiate_close, read by run
        self._exit_deadline_ms: int | None = None  # written by close_within, read by run
        self._failed_before_exit = 0.0  # rows that had failed then
        self._forced_end_signal = Signal()  # by force_close
        self.end_signal = Signal()  # by KafkaProducer, when `run` has returned and plugins are closed

    # THE THREAD

    def run(self) -> None:
        """The thread's body. Ends after close() when everything queued is settled, or at once when forced.

        An Exception in a round, MemoryError too, is logged, and the next round follows after a back-off like that of retries.
        Rows still expire meanwhile. After delivery.timeout.ms without a round that works, the Sender ends. SystemExit and
        KeyboardInterrupt end it too: after the round if a step raises them that `failures.guard_step` guards, otherwise at once.
        Rows that are left, and later calls, fail with an error that names the cause.
        """
        logger.debug("= sender started")
        try:
            while self._is_running and self.failures.fatal is None:
                self._run_round()
            self._hand_over_gathered_at_exit()
            self._settle_rows()
            self._abort_open_transaction()
        except BaseException as error:
            logger.exception("! the sender thread failed")
            self.failures.end(error)
        finally:
            self._end()
        logger.debug("= sender ended")

    def _can_continue(self) -> bool:
        """After close(): whether there is time left, and the thread works."""
        return not self._forced_end_signal.is_signaled and self.failures.fatal is None and self._left_at_exit_ms() > 0

    def _left_at_exit_ms(self) -> int:
        return MAX_SLEEP_MS if self._exit_deadline_ms is None else self._exit_deadline_ms - self._clock.now_ms()

    def _hand_over_gathered_at_exit(self) -> None:
        """What KafkaProducer.close does on its caller's thread, after `close_within`."""
        if self._exit_deadline_ms is not None and self.failures.fatal is None:
            self._gatherer.close()
            self._gatherer.encode_all(self._exit_deadline_ms)
            self._accumulator.close()

    def _settle_rows(self) -> None:
        """Run rounds until every row is settled. Does not wait for other requests: if they got no answer, close() would hang."""
        while self._can_continue() and (self._accumulator.has_queued_batches() or not self.is_settled()):
            self._run_round()

    def _abort_open_transaction(self) -> None:
        """Run rounds until the open transaction is aborted. A prepared one stays open for others, if its caller knows of it."""
        while self._can_continue() and self._fatal_error() is None and self._sequencer.abort_for_close():
            self._run_round()

    def _run_round(self) -> None:
        try:
            self.run_once()
        except Exception as error:
            logger.exception("! a round of the sender failed; the sender goes on")
            self._back_off(error)
        else:
            self.failures.note_round_success()

    def _back_off(self, error: Exception) -> None:
        now_ms = self._clock.now_ms()
        backoff_ms = self.failures.note_round_failure(error, now_ms)
        if self.failures.fatal is not None:
            return
        with self.failures.guard_step("expiring batches after a failed round"):
            self._expiry.expire(now_ms)
        self._forced_end_signal.wait(self._clock, backoff_ms)

    def _end(self) -> None:
        self._accumulator.close(self.failures.error())
        with self.failures.guard_step("closing the connections"):
            self._client.close()  # before batches fail: from here on no request refers to a batch
        ended_by = self.failures.error()  # closing may have raised what ends the thread
        error = ended_by or ProducerClosedError(
            "The producer was closed forcefully before this row was acknowledged; it may have been written"
        )
        self._accumulator.close(ended_by)
        self._metadata.close(ended_by)
        for batch in self._outcomes.in_flight.clear():
            if batch.is_done:  # it had failed already, and only the request still needed its memory
                self._accumulator.deallocate(batch)
        self._gatherer.close(ended_by)
        self._outcomes.abort_all(error)
        self._fail_gathered(error)
        for bundle in self._gatherer.take_unfinished_bundles():
            with self.failures.guard_step(f"failing records for {bundle.topic}"):
                bundle.fail_all(error)
        self._accumulator.end()
        self._sequencer.fail_all_calls(error)

    # ANY THREAD

    def initiate_close(self) -> None:
        """Make the Sender refuse new rows, settle the queued ones, then end. Does not wait for that."""
        self._accumulator.close(self.failures.error())  # rows that are refused from here on say why, if the producer has failed
        self._is_running = False
        self._client.wakeup()

    def force_close(self) -> None:
        """Make the Sender end at once. Rows that are not acknowledged fail. Does not wait for that."""
        self._forced_end_signal.signal()
        self.initiate_close()

    # WHEN THE PROGRAM ENDS (exits.py): the main thread, which takes no lock here

    def close_within(self, timeout_ms: int) -> None:
        """Have the Sender do what close() does, the callers' part too, for at most `timeout_ms`. Does not wait for that."""
        self._failed_before_exit = self._metrics.errors.total
        self._exit_deadline_ms = self._clock.now_ms() + timeout_ms
        self._is_running = False
        self._client.wakeup()

    def count_lost_rows(self) -> int:
        """How many rows have failed since `close_within`, or are not settled yet."""
        unsettled_count = self._gatherer.unfinished_record_count() + self._accumulator.incomplete.record_count()
        return int(self._metrics.errors.total - self._failed_before_exit) + unsettled_count

    # ONE ROUND: Sender thread

    def run_once(self) -> None:
        """One round: send what is ready, expire what is late, take answers, and sleep until something is to be done."""
        now_ms = self._clock.now_ms()
        self._metrics.samples.roll(now_ms)
        self._sequencer.begin_round()
        fatal_error = self._fatal_error()
        if fatal_error is not None:
            self._fail_everything(fatal_error, now_ms)
            self._client.poll(self._recheck_interval_ms, now_ms)
            return
        have_rows_failed = self._prepare_producer()
        timeout_ms = self._send_producer_data(now_ms)
        if have_rows_failed:
            timeout_ms = 0  # they may have been all that close() waits for
        timeout_ms = min(timeout_ms, self._sequencer.send_due_requests(now_ms, self.is_settled(), self._is_all_sent))
        timeout_ms = max(0, min(timeout_ms, self._left_at_exit_ms()))
        self._client.poll(timeout_ms, now_ms)
        denial = self._sequencer.take_denial()
        if denial is not None:
            self._outcomes.abort_all(denial)

    def is_settled(self) -> bool:
        """Whether every batch is acknowledged or has failed, and no answer is due, not even for a batch that has expired."""
        return not self._outcomes.in_flight and not self._accumulator.incomplete

    def _is_all_sent(self) -> bool:
        """Whether every batch that is not settled is in flight."""
        return not self._accumulator.has_queued_batches()

    def _fatal_error(self) -> KafkaError | None:
        """The error because of which nothing can be sent any more, if there is one."""
        return self._sequencer.fatal_error or self._metadata.permanent_error()

    def _fail_everything(self, error: KafkaError, now_ms: int) -> None:
        if self._accumulator.incomplete:
            self._outcomes.abort_all(error)
        self._expiry.expire(now_ms)  # fails the batches that a caller was still writing into
        self._fail_gathered(error)
        self._sequencer.fail_all_calls(error)

    def _fail_gathered(self, error: KafkaError) -> None:
        """Fail the single records that are in no batch yet."""
        for bundle in self._gatherer.take_gathered_bundles():
            with self.failures.guard_step(f"failing {len(bundle)} records for {bundle.topic}"):
                self._metrics.records_failed(bundle.topic, len(bundle))
                bundle.fail_all(error)

    def _prepare_producer(self) -> bool:
        """Before draining: resolve sequences, bump the epoch, fail rows of an aborted transaction. Returns whether any failed."""
        self._sequencer.prepare_drain()
        self._accumulator.transaction_waits_for_rows = self._sequencer.transaction_waits_for_rows
        error = self._sequencer.error_of_lost_rows()
        if error is not None:
            return self._fail_lost_rows(error)
        if self._sequencer.has_open_transaction:
            self._accumulator.refuse_rows(None)  # accept rows again: the next transaction has begun
        return False

    def _fail_lost_rows(self, error: KafkaError) -> bool:
        """Fail the rows of an aborted transaction that were never sent. Returns whether there were any in batches.

        Callers who are still writing get the error too, until the next transaction begins, which waits for them.
        """
        self._accumulator.refuse_rows(error)
        lost_batches = self._accumulator.take_undrained(error)
        for batch in lost_batches:
            self._outcomes.abort(batch, error)
        self._fail_gathered(error)
        return bool(lost_batches)

    def _send_producer_data(self, now_ms: int) -> int:
        """Drain and send what is ready, expire what is late; returns for how many ms the Sender may sleep."""
        cluster = self._metadata.cluster()
        gathering_ms = self._gatherer.encode_lingered(now_ms, self._accumulator.must_hurry())
        result = self._accumulator.ready(cluster, now_ms)
        self._ask_for_leaders(result, now_ms)
        has_expired = self._expiry.expire(now_ms)  # before draining: an expired batch must not go into a request

        nodes, connecting_ms = self._connected_nodes(result, now_ms)
        self._fail_if_login_rejected(result, cluster)
        if not self._sequencer.has_producer_id:
            nodes = []  # batches cannot be numbered yet; the answer with the id ends the poll
        max_bytes = self._config.request_bytes
        batches_by_node = self._accumulator.drainer.drain(cluster, nodes, max_bytes, now_ms, result.indexes_by_leader)
        self._send_requests(batches_by_node, cluster, now_ms)
        if has_expired or any(batches_by_node.values()):
            return 0  # batches may have waited for an expired one of their partition; there may be more for the same nodes
        delays = [gathering_ms, result.next_ready_check_delay_ms, connecting_ms, self._expiry.next_delay_ms(now_ms)]
        if nodes:
            # Ready, yet nothing was drained: a caller may have begun to write into the batch, and wakes the poll at its end.
            # Still look again after a while, because ready() measures no more delays of a node that it has found ready.
            delays.append(self._recheck_interval_ms)
        return max(0, min(MAX_SLEEP_MS, *delays))

    def _ask_for_leaders(self, result: ReadyCheckResult, now_ms: int) -> None:
        if result.unknown_leader_topics:
            for topic in result.unknown_leader_topics:
                self._metadata.add_topic(topic, now_ms)
            self._metadata.request_update("no leader known for a partition of " + ", ".join(sorted(result.unknown_leader_topics)))

    def _connected_nodes(self, result: ReadyCheckResult, now_ms: int) -> tuple[list[int], int]:
        """The ready nodes that take a request now, and in how many ms to look at the others again."""
        nodes, delay_ms = [], MAX_SLEEP_MS
        for node in result.ready_nodes:
            can_drain = self._client.ready(node, now_ms)
            self._accumulator.built_in_partitioner.update_node_wait(node, now_ms, can_drain)
            if can_drain:
                nodes.append(node)
            else:
                delay_ms = min(delay_ms, self._client.poll_delay_ms(node, now_ms))
        return nodes, delay_ms

    def _fail_if_login_rejected(self, result: ReadyCheckResult, cluster: Cluster) -> None:
        """Fail batches whose leader rejects the login, or has a certificate that is not trusted, without waiting longer.

        Batches without a leader fail too when every broker does so. Batches that are in flight, or wait for another broker,
        go on: they may be written, and a retried Spark task would write them twice. Rows sent later cause a new login.
        """
        login_errors: dict[int | None, AuthenticationError | None] = {
            node: self._client.login_rejection(node) for node in result.ready_nodes
        }
        if result.unknown_leader_topics:
            login_errors[None] = self._client.rejection_by_all()
        for leader, error in login_errors.items():
            if error is not None:
                for batch in self._accumulator.take_waiting_for(leader, cluster, error):
                    self._outcomes.abort(batch, error)

    def _send_requests(self, batches_by_node: dict[int, list[ProducerBatch]], cluster: Cluster, now_ms: int) -> None:
        for node, batches in batches_by_node.items():
            if batches:
                with self.failures.guard_step(f"sending to node {node}"):
                    self._produce_requests.send(node, batches, cluster, now_ms)
