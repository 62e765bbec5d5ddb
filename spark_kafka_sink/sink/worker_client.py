"""A client for transactions and groups that a Python worker keeps between the tasks of exactly-once writes."""

from __future__ import annotations

from spark_kafka_sink.admin.transaction_client import TransactionClient


class WorkerClient(TransactionClient):
    """Kept by WorkerCache. Its connections, and the coordinators that it has found, serve the next task."""

    client_id = "exactly-once client"  # for the cache's log

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
