"""The plug-ins of one producer: a user's own partitioner and interceptors, and Avro serializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.config.dotted_names import KAFKAS_PARTITIONERS
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.plugins.partitioner import UserPartitioner
from spark_kafka_sink.producer.plugins.plugin import close_all

if TYPE_CHECKING:
    from spark_kafka_sink.producer.avro.avro_serializers import AvroSerializers


class ProducerPlugins:
    """The plug-ins and Avro serializers of one producer; each is None if the configuration names none. Raises ConfigError when
    one cannot be made, and closes the others then."""

    def __init__(self, config: ProducerConfig, avro: AvroSerializers | None = None) -> None:
        self.avro = avro  # encodes keys, values or both
        self.interceptors: Interceptors | None = None
        self.partitioner = None if config.partitioner_class in (None, *KAFKAS_PARTITIONERS) else UserPartitioner(config)
        try:
            self.interceptors = Interceptors(config) if config.interceptor_classes else None
        except BaseException:
            self.close()
            raise
        takes_gathered = self.interceptors is not None and self.interceptors.takes_gathered
        self.interceptors_of_gathered = self.interceptors if takes_gathered else None
        # The partitioner, if `send` asks it for each record as in Java; not if interceptors of gathered records come first.
        asks_per_record = self.partitioner is not None and self.partitioner.asks_per_record and not takes_gathered
        self.record_partitioner = self.partitioner if asks_per_record else None
        self.bundle_partitioner = None if asks_per_record else self.partitioner  # asked when a gathered bundle is encoded

    def close(self) -> None:
        """Close the interceptors and the partitioner, see close_all."""
        close_all(plugin for plugin in (self.interceptors, self.partitioner) if plugin is not None)
