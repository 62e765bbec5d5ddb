"""Struct columns to Avro and Kafka: our `avro` beside Spark's to_avro and beside confluent-kafka's AvroSerializer, in one run.

    python -m tests.benchmarks.schemas_benchmark [--rows 1000000] [--repeats 5] [--codec lz4] [--shapes flat,nested] …

    avro        valueFormat=avro of this sink, with a registry
    to_avro     to_avro of Spark's own Avro, and its own Kafka sink, tuned; no frame and no registry
    confluent   confluent-kafka's AvroSerializer and Producer in mapInArrow, with the registry
    discard     a sink written in Python that throws its rows away: what the way to Python costs

Rows have 6 flat fields, or 20 with nesting; they are kept in Spark's memory, so that making them costs none of the variants.
Variants take turns, each first in some turn; figures are medians. `client` is Spark's JVM with its Python workers.
docs/speed.md quotes a run. encoder_benchmark.py has the encoder alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.local_kafka import LocalKafka
from tests.benchmarks.confluent_writer import ConfluentWriter
from tests.benchmarks.measuring import Usage
from tests.benchmarks.sink_benchmark import (
    AT_ONCE,
    TUNED_OPTIONS,
    WARM_UP_RUNS,
    Bench,
    confluent_writer,
    map_in_arrow,
    session,
    spark_settings,
)
from tests.schemas.fake_registry import FakeRegistry
from tests.spark_connector import fetch_spark_avro, fetch_spark_kafka

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame

FLAT = (
    "id",
    "concat('customer ', id % 1000) as customer",
    "if(id % 7 = 0, null, concat('product ', id % 97)) as product",
    "cast(id % 12 as int) as quantity",
    "id / 7.0D as price",
    "timestamp_micros(1700000000000000 + id * 1000) as at",
)
NESTED = (
    *FLAT,
    "cast(id % 100000 / 100 as decimal(12,2)) as total",
    "date_add(date'2024-01-01', cast(id % 365 as int)) as day",
    "id % 2 = 0 as is_paid",
    "cast(id % 1000 / 3 as float) as discount",
    "array('new', concat('tag ', id % 10), null) as tags",
    "map('a', id, 'b', id + 1) as counts",
    "named_struct('street', concat('street ', id % 500), 'zip', cast(id % 10000 as string), 'city', 'Wien') as address",
    "transform(sequence(0, cast(id % 3 as int)), x -> named_struct('sku', concat('sku ', x), 'quantity', x)) as items",
    "if(id % 3 = 0, null, named_struct('code', id % 5, 'note', 'gift')) as voucher",
    "uuid() as token",
    "cast(concat('raw ', id) as binary) as raw",
    "id * 31 as account",
    "if(id % 11 = 0, null, id * 17) as parent",
    "'EUR' as currency",
)
SHAPES = {"flat": FLAT, "nested": NESTED}
TOPIC_SUBJECT = "bench-value"


class AvroWriter(ConfluentWriter):
    """As ConfluentWriter, with values that AvroSerializer makes of dicts."""

    def __init__(self, topic: str, options: dict[str, Any], registry: str, schema: str) -> None:
        super().__init__(topic, options)
        self._registry = registry
        self._schema = schema

    def _produce(self, producer: Producer, batch: pa.RecordBatch) -> None:
        serialize = self._serializer()
        values = [serialize(row) for row in batch.column("value").to_pylist(maps_as_pydicts="strict")]
        for key, value in zip(batch.column("key").to_pylist(), values, strict=True):
            try:
                producer.produce(self._topic, value, key)
            except BufferError:
                self._produce_when_there_is_room(producer, value, key)

    def _serializer(self) -> Callable[[Any], bytes]:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        if "_made" not in self.__dict__:
            options = {"auto.register.schemas": True, "subject.name.strategy": lambda *_: TOPIC_SUBJECT}
            serializer = AvroSerializer(SchemaRegistryClient({"url": self._registry}), self._schema, conf=options)
            context = SerializationContext(self._topic, MessageField.VALUE)
            self._made = lambda row: serializer(row, context)
        return self._made


@dataclass(frozen=True)
class AvroVariant:
    """What Bench.run needs."""

    name: str
    write: Callable[[DataFrame, dict[str, str]], None]
    uses_kafka: bool = True


def variants(registry: FakeRegistry, partitions: int) -> list[AvroVariant]:
    of_registry = {"valueFormat": "avro", "schema.registry.url": registry.url, "valueSubject": TOPIC_SUBJECT}
    memory = str(max(32 * 1024 * 1024, partitions * 2 * int(TUNED_OPTIONS["kafka.batch.size"])))

    def avro(frame: DataFrame, options: dict[str, str]) -> None:
        frame.write.format("pykafka-sink").options(**options, **of_registry).mode("append").save()

    def to_avro(frame: DataFrame, options: dict[str, str]) -> None:
        from pyspark.sql.avro.functions import to_avro as spark_to_avro

        encoded = frame.select("key", spark_to_avro("value").alias("value"))
        tuned = TUNED_OPTIONS | {"kafka.buffer.memory": memory}
        encoded.write.format("kafka").options(**options, **tuned).mode("append").save()

    def confluent(frame: DataFrame, options: dict[str, str]) -> None:
        plain = confluent_writer(options)
        (text,) = registry.texts(TOPIC_SUBJECT)  # that `avro` has registered
        function = AvroWriter(plain._topic, plain._options, registry.url, text)
        map_in_arrow(frame, function, AvroWriter.SCHEMA).write.format("noop").mode("append").save()

    def discard(frame: DataFrame, _: dict[str, str]) -> None:
        frame.write.format("discard").mode("append").save()

    writes = {"avro": avro, "to_avro": to_avro, "confluent": confluent, "discard": discard}
    return [AvroVariant(name, write, uses_kafka=name != "discard") for name, write in writes.items()]


def compare(
    bench: Bench, frame: DataFrame, avro_variants: Sequence[AvroVariant], codec: str, repeats: int
) -> dict[str, list[Usage]]:
    usages: dict[str, list[Usage]] = {each.name: [] for each in avro_variants}
    for each in [*avro_variants] * WARM_UP_RUNS:
        bench.run(each, frame, codec)
    for repeat in range(repeats):
        turn = repeat % len(avro_variants)
        for each in [*avro_variants[turn:], *avro_variants[:turn]]:
            usages[each.name].append(bench.run(each, frame, codec))
    return usages


def lines(rows: int, usages: dict[str, list[Usage]]) -> Iterator[str]:
    yield f"{'':12}{'rows/s':>12}{'avro is':>10}{'client CPU s/M':>16}{'avro takes':>12}"
    rates = {name: rows / statistics.median(each.wall_s for each in measured) for name, measured in usages.items()}
    costs = {name: statistics.median(each.client_cpu_s for each in measured) / rows * 1e6 for name, measured in usages.items()}
    for name, rate in rates.items():
        faster, cheaper = rates["avro"] / rate, costs["avro"] / costs[name]
        yield f"{name:12}{rate:>12,.0f}{faster:>9.2f}x{costs[name]:>16.2f}{cheaper:>11.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the flat shape; half as many of the nested one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--variants", default="avro,to_avro,confluent,discard")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, repeatable")
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    jars = ",".join(str(jar) for folder in (fetch_spark_kafka(), fetch_spark_avro()) for jar in sorted(folder.glob("*.jar")))
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder), heap="1g", properties=AT_ONCE) as broker:
        settings = {"spark.jars": jars, "spark.sql.session.timeZone": "UTC"} | spark_settings(arguments)
        spark = session(arguments.master, settings)
        bench = Bench(spark, broker, arguments.partitions)
        for shape in arguments.shapes.split(","):
            rows = arguments.rows if shape == "flat" else arguments.rows // 2
            made = spark.range(rows).selectExpr(
                "encode(lpad(cast(id as string), 8, '0'), 'UTF-8') as key", f"{_struct(SHAPES[shape])} as value"
            )
            frame = made.persist()
            frame.count()
            with FakeRegistry() as registry:
                avro_variants = [
                    each for each in variants(registry, arguments.partitions) if each.name in arguments.variants.split(",")
                ]
                usages = compare(bench, frame, avro_variants, arguments.codec, arguments.repeats)
            print(f"\n{shape}: {rows:,} rows, {arguments.codec}, medians of {arguments.repeats}", flush=True)
            print(*lines(rows, usages), sep="\n", flush=True)
            frame.unpersist(blocking=True)
        spark.stop()


def _struct(fields: Sequence[str]) -> str:
    columns = [field.rpartition(" as ") if " as " in field else ("id", "", "id") for field in fields]
    return f"struct({', '.join(f'{expression} as {name}' for expression, _, name in columns)})"


if __name__ == "__main__":
    main()
