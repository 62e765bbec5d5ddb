"""Compresses batches that are closed, and learns from each how well its topic compresses. Any thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.accumulator.batch_records import Compression, estimated_size
from spark_kafka_sink.producer.accumulator.buffer_pool import BufferPool
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from spark_kafka_sink.records.record_batch import BATCH_HEADER_BYTES

MAX_RAW_BATCH_BYTES = 4 * 1024 * 1024  # of a batch that compresses well: a consumer decompresses a batch as a whole
ESTIMATION_FACTOR = 1.05  # Java's COMPRESSION_RATE_ESTIMATION_FACTOR: the next rows may compress worse than the last ones


class BatchCompressor:
    """Compresses one producer's batches, and says how many bytes of records a batch may take before that."""

    def __init__(self, config: ProducerConfig, pool: BufferPool) -> None:
        self.compression = Compression.of(config)
        self._max_record_bytes = config.batch_size - BATCH_HEADER_BYTES  # of a batch as it is sent
        self._pool = pool  # takes back the memory that compression saves
        self._ratios = CompressionRatioEstimator()

    def max_raw_bytes(self, topic: str) -> int:
        """Bytes of uncompressed records that make a batch full. By estimation, it then has at most batch.size when compressed."""
        limit = self._max_record_bytes
        if self.compression.is_enabled:
            estimated_limit = int(limit / (self._ratio(topic) * ESTIMATION_FACTOR))
            limit = max(limit, min(estimated_limit, MAX_RAW_BATCH_BYTES))
        return max(1, min(limit, self._pool.total_memory))

    def compressed_sizes(self, topic: str, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The estimated bytes that rows of these sizes take when they are compressed."""
        if not self.compression.is_enabled:
            return sizes
        estimated_sizes: npt.NDArray[np.int64] = np.ceil(sizes * self._ratio(topic)).astype(np.int64)
        return estimated_sizes

    def estimated_size(self, batch: ProducerBatch) -> int:
        """Bytes that a batch takes on the wire: exact without compression and once `finish` has run, otherwise estimated."""
        if batch.body or not self.compression.is_enabled:
            return batch.size_bytes
        ratio = min(1.0, self._ratio(batch.topic_partition.topic) * ESTIMATION_FACTOR)
        return BATCH_HEADER_BYTES + estimated_size(batch.segments, ratio)

    def finish(self, batch: ProducerBatch) -> None:
        """Compress a closed batch and give back the memory that this saves."""
        surplus = batch.finish(self.compression)
        if self.compression.is_enabled:
            self._ratios.update_estimation(batch.topic_partition.topic, self.compression.codec, batch.compression_ratio)
        if surplus:
            self._pool.deallocate(surplus)

    def max_raw_bytes_after(self, large_batch: ProducerBatch) -> int:
        """The max_raw_bytes of the batches into which `large_batch`, too large for a broker, is split. Corrects the estimate.

        It is batch.size, or half the size of the large batch if that is less. So each split makes batches smaller, whatever limit
        the broker has. A client that replaces a batch by an equal one repeats this until delivery.timeout.ms (KAFKA-8350).
        """
        if self.compression.is_enabled:
            pessimistic_ratio = max(1.0, large_batch.compression_ratio)
            self._ratios.set_estimation(large_batch.topic_partition.topic, self.compression.codec, pessimistic_ratio)
        return max(1, min(self._max_record_bytes, large_batch.record_bytes // 2))

    def _ratio(self, topic: str) -> float:
        return self._ratios.estimation(topic, self.compression.codec)


class CompressionRatioEstimator:
    """Expected compressed / raw size for each topic and codec; follows worse ratios at once, better ones in small steps.

    An estimate that is too good leads to a batch that the broker rejects as too large and that has to be split.
    Any thread may call; two updates of one topic at the same moment may count as one, which the next batch corrects.
    Steps and initial value are those of Java's class of this name.
    """

    IMPROVING_STEP = 0.005
    DETERIORATE_STEP = 0.05

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], float] = {}  # (topic, codec) -> ratio; 1.0 until a batch was compressed

    def estimation(self, topic: str, codec: str) -> float:
        return self._ratios.get((topic, codec), 1.0)

    def update_estimation(self, topic: str, codec: str, observed_ratio: float) -> float:
        """Update the estimate with a batch's ratio; returns the new estimate."""
        estimate = self.estimation(topic, codec)
        if observed_ratio > estimate:
            estimate = max(estimate + self.DETERIORATE_STEP, observed_ratio)
        elif observed_ratio < estimate:
            estimate = max(estimate - self.IMPROVING_STEP, observed_ratio)
        self._ratios[topic, codec] = estimate
        return estimate

    def set_estimation(self, topic: str, codec: str, ratio: float) -> None:
        """Replace the estimate, after a broker has rejected a batch as too large."""
        self._ratios[topic, codec] = ratio
