"""What the Sender asks of a producer's identity, its numbering of batches and its transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import KafkaError, fresh_copy
from spark_kafka_sink.producer.accumulator.drainer import DrainSequencer
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.topic_partition import TopicPartition


class SequenceFacts(NamedTuple):
    """The sequence of one batch among the others, and what that means for a retry. The defaults: without idempotence."""

    is_idempotent: bool = False
    is_transactional: bool = False  # no epoch is bumped within a transaction: the transaction is aborted
    sequence_has_been_reset: bool = False
    is_first: bool = True  # no batch of the partition with a lower sequence is being sent or retried
    is_next: bool = True  # its sequence directly follows the last acknowledged one
    is_unresolved: bool = False  # a batch of the partition has failed: its sequences may be missing in the log


class Sequencer(DrainSequencer):
    """The sequencer of a producer without idempotence, which numbers nothing, and the base class of the others. Only the Sender
    calls it, except the methods below ANY THREAD."""

    transactional_id: str | None = None
    fatal_error: KafkaError | None = None  # why nothing can be sent any more; callers read it

    # ANY THREAD

    def current_error(self) -> KafkaError | None:
        """Why no row can be written now, as a new exception each time; None when nothing is wrong."""
        error = self.fatal_error
        return None if error is None else fresh_copy(error)

    def handle_failed_row(self, error: KafkaError) -> None:
        """Note that a row failed before it got into a batch."""

    @property
    def is_at_rest(self) -> bool:
        """Whether another task could use the producer: it has not failed, and nothing is under way under its transactional id."""
        return self.fatal_error is None

    # EACH ROUND OF THE SENDER

    def begin_round(self) -> None:
        """Take what callers have posted since the last round."""

    def prepare_drain(self) -> None:
        """Resolve sequences and bump the epoch, where that is due."""

    def send_due_requests(self, now_ms: int, is_all_settled: bool, is_all_sent: Callable[[], bool]) -> int:  # noqa: ARG002
        """Send what is due to coordinators, after batches were drained and sent; returns in how many ms to call again.

        Called in every round while there is no fatal error. Never waits; the answer to a request ends the poll that follows.

        Args:
            is_all_settled: every batch is acknowledged or has failed, and no answer to a Produce request is due.
            is_all_sent: tells whether every batch that is not settled is in flight.
        """
        return NEVER_MS

    def take_denial(self) -> KafkaError | None:
        """The error of all rows that wait for a producer id, if brokers denied it. Returned once for each denial."""
        return None

    def error_of_lost_rows(self) -> KafkaError | None:
        """The error of rows that were never sent, while their transaction must be aborted or is being aborted; else None."""
        return None

    @property
    def transaction_waits_for_rows(self) -> bool:
        """Whether a commit, a preparation or offsets wait for rows, so that nothing may linger."""
        return False

    @property
    def has_open_transaction(self) -> bool:
        """Whether this producer has a transaction to end."""
        return False

    def abort_for_close(self) -> bool:
        """Abort the open transaction if nobody else ends it. Returns whether there is one that has not ended yet."""
        return False

    def fail_all_calls(self, error: KafkaError) -> None:
        """Nothing more will be sent: fail every call that waits, and later ones."""

    # BATCHES

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce requests to use; None: the newest that the node knows."""
        return None

    def handle_completed_batch(self, batch: ProducerBatch) -> None:
        """Note that a batch is in the log."""

    def handle_failed_batch(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Stop tracking a batch that will not be sent again. If it was not written, its sequences are a gap."""

    def become_fatal(self, error: KafkaError) -> None:
        """Send no more batches. The Sender fails all of them with `error`, and callers get it at their next call."""

    def replace_in_flight(self, large: ProducerBatch, smaller: list[ProducerBatch]) -> None:
        """Track the smaller batches of a split instead of the large one. They have its sequences."""

    def max_backoff_ms(self, error: ErrorCode) -> int | None:  # noqa: ARG002
        """At most how many ms a batch waits for its next attempt; None: as retry.backoff.ms says."""
        return None

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        """Have a partition's batches renumbered as soon as no request contains one. By then none of them may be in the log.

        An idempotent producer can do that, but not within a transaction. The others raise RuntimeError.
        """
        raise RuntimeError(f"{topic_partition}: the epoch cannot be bumped")

    def sequence_facts(self, batch: ProducerBatch) -> SequenceFacts:  # noqa: ARG002
        """The facts about a batch's sequence that retry.py needs."""
        return SequenceFacts()
