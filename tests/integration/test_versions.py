"""Other versions of Kafka, pyspark and Python than the ones that everything else is tested on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink import KafkaProducer
from tests import pythons
from tests.integration import clusters
from tests.integration.clusters import BESIDE, KAFKA_VERSIONS
from tests.integration.reading import READERS, ReadTopic, Topic

ROWS = 50_000

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]


@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_brokers_of_other_versions_take_every_row(tmp_path: Path, version: str) -> None:
    values = pa.array([f"value-{number}" for number in range(ROWS)], pa.string())
    written = Counter(value.encode() for value in values.to_pylist())
    with LocalKafka(tmp_path, version=version) as cluster:
        for codec in ("none", "zstd"):
            cluster.create_topic(codec, 4)
            with KafkaProducer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec}) as producer:
                delivery = producer.send_columns(codec, key=values, value=values)
                producer.flush()
                assert delivery.result(0).acknowledged == ROWS
            read = READERS["confluent-kafka"](cluster.bootstrap_servers, codec)
            assert Counter(record.value for record in read) == written


@pytest.fixture(scope="module")
def package_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, renamed, as docs/cluster.md sends it along."""
    directory = tmp_path_factory.mktemp("wheel")
    return clusters.wheel(directory).rename(directory / "pykafka_sink.zip")


PROGRAM = """
import sys
from pyspark.sql import SparkSession

brokers, batch, stream, package, rows = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.addPyFile(package)
from spark_kafka_sink import KafkaDataSource

spark.dataSource.register(KafkaDataSource)
options = {"kafka.bootstrap.servers": brokers}
df = spark.range(int(rows)).selectExpr("cast(id as string) key", "cast(id as string) value")
df.write.format("pykafka-sink").options(**options, topic=batch).mode("append").save()
df.write.json("in")
query = (
    spark.readStream.schema("key string, value string").json("in")
    .writeStream.format("pykafka-sink").options(**options, topic=stream, deliveryGuarantee="exactly-once")
    .option("transactionalIdPrefix", stream).option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
print("{}.{}".format(*sys.version_info))
"""
NEEDED = ["pyarrow", "numpy", "crc32c", "lz4"]  # what docs/cluster.md installs on the nodes


@pytest.mark.parametrize(("spark_version", "version"), BESIDE)
def test_other_pysparks_and_pythons_write_with_the_wheel_sent_along(
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    package_zip: Path,
    tmp_path: Path,
    spark_version: str,
    version: str,
) -> None:
    interpreter = pythons.find(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    python = clusters.make_environment(tmp_path / "env", f"pyspark~={spark_version}.0", *NEEDED, interpreter=interpreter)
    batch, stream = topic(2), topic(2)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [python, "program.py", broker.bootstrap_servers, batch, stream, package_zip, str(ROWS)]
    assert clusters.run(command, tmp_path, PYSPARK_PYTHON=str(python)).splitlines()[-1] == version
    for name in (batch, stream):
        records = read_topic(name, isolation_level="read_committed")
        assert Counter(record.value for record in records) == Counter(str(number).encode() for number in range(ROWS))
