"""Kafka's own choice of partitions, for rows that name none and for which a user's partitioner chose none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.record_accumulator import RecordAccumulator
from spark_kafka_sink.protocol.topic_partition import NO_PARTITION
from spark_kafka_sink.records.columns import NULL_LENGTH, RecordColumns
from spark_kafka_sink.records.murmur2 import partition_for_keys


class PartitionChoice:
    def __init__(self, config: ProducerConfig, accumulator: RecordAccumulator) -> None:
        self._by_key = not config.partitioner_ignore_keys and config.partitioner_class is None
        self._accumulator = accumulator

    def choose(
        self, topic: str, columns: RecordColumns, explicit: npt.NDArray[np.int32], cluster: Cluster
    ) -> npt.NDArray[np.int32]:
        """int32[n]: the row's explicit partition; else by the hash of its key; else the sticky or the next one in turn.

        With `partitioner.class` keys do not count.
        """
        partitions = explicit.copy()
        undecided = partitions == NO_PARTITION
        if self._by_key and columns.key is not None and undecided.any():
            hashed = partition_for_keys(columns.key, cluster.partition_count(topic) or 1)
            if columns.key.null_count == 0 and undecided.all():
                return hashed
            has_key = undecided & (columns.key_lengths != NULL_LENGTH)
            np.copyto(partitions, hashed, where=has_key)
            undecided &= ~has_key
        if undecided.any():
            self._accumulator.assign_partitions(topic, columns.base_sizes, undecided, partitions, cluster)
        return partitions
