"""A user's own partitioner and interceptors, as one producer uses them."""

from __future__ import annotations

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.plugins.partitioner import UserPartitioner
from spark_kafka_sink.producer.record_chunk import RecordChunk


class ProducerPlugins:
    """Each is None where the configuration names none. Raises ConfigError when one cannot be made; none is left open then."""

    def __init__(self, config: ProducerConfig) -> None:
        self.interceptors: Interceptors | None = None
        self.partitioner = UserPartitioner.of(config)
        try:
            self.interceptors = Interceptors.of(config)
        except BaseException:
            self.close()
            raise
        self.intercepts_gathered = self.interceptors is not None and self.interceptors.any_wants_gathered
        # The partitioner, if `send` asks it for each record as Java does. Interceptors of gathered records come before it.
        asks_per_record = self.partitioner is not None and self.partitioner.asks_per_record and not self.intercepts_gathered
        self.record_partitioner = self.partitioner if asks_per_record else None
        self.chunk_partitioner = None if asks_per_record else self.partitioner  # asked when a gathered chunk is encoded

    def new_chunk(self, topic: str, cluster: Cluster, clock: Clock) -> RecordChunk:
        make = RecordChunk if self.interceptors is None else self.interceptors.new_chunk
        return make(topic, cluster, clock)

    def close(self) -> None:
        """Never raises."""
        for plugin in (self.interceptors, self.partitioner):
            if plugin is not None:
                plugin.close()
