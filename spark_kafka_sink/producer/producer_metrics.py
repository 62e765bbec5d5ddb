"""What a producer has done so far, under Kafka's metric names. Counters only: cheap to keep, read as one snapshot.

Written by the Sender thread; a snapshot taken by a caller may be a moment old.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class ProducerMetrics:
    record_send_total: int = 0  # acknowledged or failed for good
    record_error_total: int = 0
    record_retry_total: int = 0
    batch_send_total: int = 0  # acknowledged batches
    batch_split_total: int = 0
    byte_total: int = 0  # acknowledged, on the wire
    uncompressed_byte_total: int = 0  # the same batches' records before compression
    request_total: int = 0
    request_latency_max: int = 0  # ms
    record_queue_time_max: int = 0  # ms between a batch's creation and its drain
    produce_throttle_time_max: int = 0  # ms

    def snapshot(self) -> dict[str, int]:
        return {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
