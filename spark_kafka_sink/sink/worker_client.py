"""A client for transactions and groups that a Python worker keeps between the tasks of exactly-once writes."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.coordination.transaction_client import TransactionClient

MAX_TIMEOUT_SETTING = "transaction.max.timeout.ms"
DEFAULT_MAX_TIMEOUT_MS = 900_000  # Kafka's


class WorkerClient(TransactionClient):
    """Kept by ProducerCache. Its connections, and the coordinators that it has found, serve the next task."""

    client_id = "exactly-once client"  # for the cache's log

    def __init__(self, options: Mapping[str, object]) -> None:
        super().__init__(options)
        self._longest_timeout_ms: int | None = None

    def longest_transaction_timeout_ms(self) -> int:
        """What brokers allow; Kafka's default if they do not say. Asked once: blocks for one request at most."""
        if self._longest_timeout_ms is None:
            found = self.broker_config(MAX_TIMEOUT_SETTING)
            self._longest_timeout_ms = int(found) if found is not None and found.isdecimal() else DEFAULT_MAX_TIMEOUT_MS
        return self._longest_timeout_ms

    def is_at_rest(self) -> bool:
        """Always: every call has come to its end when it returns."""
        return True

    def rest(self, keep_bytes: int = 0) -> None:
        """Nothing to give back."""

    def resume(self) -> None:
        """Nothing to begin anew."""

    def close(self, timeout_ms: int | None = None) -> None:  # noqa: ARG002 - as KafkaProducer.close
        """Close every connection. Never blocks."""
        super().close()
