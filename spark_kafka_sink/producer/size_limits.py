"""How large a record may be. Larger ones are refused before they are queued."""

from __future__ import annotations

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import RecordTooLargeError


class SizeLimits:
    """The largest size of a record: max.request.size, or `largest_record` if that is more, but at most the pool's memory."""

    def __init__(self, config: ProducerConfig, largest_record: int, total_memory: int) -> None:
        request_limit = max(config.max_request_size, largest_record)
        self._limits = {"max.request.size": request_limit, "buffer.memory": total_memory}
        self.largest_record = min(self._limits.values())

    def check(self, size_bytes: int, where: str, row: int | None = None) -> None:
        """Raises the error of `too_large_error` for a record larger than `largest_record`."""
        if size_bytes > self.largest_record:
            raise self.too_large_error(size_bytes, where, row)

    def too_large_error(self, size_bytes: int, where: str, row: int | None = None) -> RecordTooLargeError:
        """The error for a record larger than `largest_record`. Its text begins with `where`; `row` becomes its attribute."""
        option, limit = next((option, limit) for option, limit in self._limits.items() if size_bytes > limit)
        remedy = f"; raise {option} and the topic's max.message.bytes"
        if option == "buffer.memory":
            remedy = " (in whole blocks); raise buffer.memory"
        return RecordTooLargeError(
            f"{where}: the record is {size_bytes} bytes when serialized, which exceeds {option}={limit}{remedy}", row=row
        )
