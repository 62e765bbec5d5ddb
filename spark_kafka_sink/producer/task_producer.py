"""TaskProducer: the KafkaProducer that a task of the sink uses, and after it the next task of the same Python worker."""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafka_sink.producer import forks
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.producer_identity import ProducerIdentity


class TaskProducer(KafkaProducer):
    """A KafkaProducer that also tells which topics do not exist, and can rest between tasks. Arguments as KafkaProducer."""

    closes_at_exit = False  # tasks flush, and Spark's workers may run exit handlers

    # METADATA

    def ask_for_topics(self, topics: Iterable[str]) -> None:
        """Have the metadata of several topics fetched together, before partitions_for is called for each. Never blocks."""
        self.check_usable()
        self._parts.metadata_wait.ask_for(topics)

    def await_brokers(self, timeout_ms: int) -> None:
        """Wait at most `timeout_ms` until a broker has described the cluster to this producer.

        Raises KafkaTimeoutError (KAFKA_BROKER_UNREACHABLE) when none has by then, and fatal errors such as a rejected login.
        """
        self.check_usable()
        self._parts.metadata_wait.await_brokers(timeout_ms)

    def unknown_topics(self, topics: Iterable[str]) -> dict[str, str]:
        """After KAFKA_UNKNOWN_TOPIC: which of these topics do not exist by the brokers' latest answer, with an error text each.

        Empty when that answer is older than about half of max.block.ms. Never blocks.
        """
        self._check_process()
        max_age_ms = max(self._config.max_block_ms // 2, 2 * self._config.retry_backoff_max_ms)  # waiting callers ask this often
        return self._parts.metadata_wait.unknown_topics(topics, max_age_ms)

    # TRANSACTIONS

    @property
    def transaction_timeout_ms(self) -> int:
        """transaction.timeout.ms of the configuration."""
        return self._config.transaction_timeout_ms

    def go_on_as(self, transactional_id: str, identity: ProducerIdentity) -> None:
        """Go on under a transactional.id that another client has taken, instead of init_transactions(). Sends no request.

        Blocks and raises as use_transactional_id().
        """
        self._checked_caller_side().init(transactional_id, identity)

    # RESTING BETWEEN TASKS

    def is_at_rest(self) -> bool:
        """Whether another task could use this producer: it is open and has not failed for good, its thread runs in this process,
        every row is settled, and it has no transaction to end."""
        is_alive = not forks.is_forked(self._generation) and self._thread.is_alive()
        is_usable = is_alive and self._sender.failures.fatal is None and not self._accumulator.is_closed
        is_usable = is_usable and self._sequencer.is_at_rest and self._metadata.permanent_error() is None
        return is_usable and not self._accumulator.incomplete and not self._gatherer.bundles

    def rest(self, keep_bytes: int = 0) -> None:
        """Give buffer memory beyond `keep_bytes` back to Python. Connections and producer id stay. Never blocks."""
        self._check_process()
        self._pool.release_free(keep_bytes)

    def resume(self) -> None:
        """The next task begins: `since_start=True` in metrics calls means since now. Never blocks."""
        self._metrics.restart()
