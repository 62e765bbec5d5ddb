"""Archives of the classes that Kafka's and Spark's JVMs load, so that those of tests start in half the time.

A JVM that lives for seconds spends most of them loading classes. One broker and one Spark program run first, once for each
checkout and environment, and leave what they have loaded in a file (class data sharing of HotSpot, JEP 350). A JVM
takes no archive that is absent or does not fit its version or class path, and says nothing of it: it only starts as before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from jobs.kafka_jars import file_lock, kafka_version
from jobs.local_kafka import QUICK_JVM, LocalKafka
from spark_kafka_sink.tools.errors import ToolError

ROOT = Path(__file__).resolve().parent.parent
SPARK_HOME = Path(find_spec("pyspark").origin).parent  # type: ignore[union-attr,arg-type]  # not imported: few tests need it
TRAINING_LIMIT_S = 240
TOPIC = "rows"


def _directory() -> Path:
    """Of this checkout, Java, Kafka and PySpark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    installed = [(str(path.resolve()), path.stat().st_mtime) for path in (java, SPARK_HOME) if path.exists()]
    key = hashlib.sha256(repr((installed, kafka_version())).encode()).hexdigest()[:12]
    return ROOT / ".pytest_cache" / "class-archives" / key


DIRECTORY = _directory()
ARCHIVES = {"KAFKA_JVM_PERFORMANCE_OPTS": DIRECTORY / "kafka.jsa", "SPARK_SUBMIT_OPTS": DIRECTORY / "spark.jsa"}
LOG = DIRECTORY / "spark.log"


def use() -> None:
    """Have the JVMs of this process and of those that it starts take the archives."""
    os.environ.update(_flags("SharedArchiveFile", ARCHIVES))


def make() -> None:
    """Make the archives, unless they are there. Blocks for half a minute, but not while another process makes them."""
    if _all_there():
        return
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(DIRECTORY / "lock", 0, "another test run makes its class archives"):
            if not _all_there():
                _make()
    except ToolError:  # locked; or no broker starts here, and the tests that need one say why
        return


def _all_there() -> bool:
    return all(archive.exists() for archive in ARCHIVES.values())


def _flags(use_or_make: str, archives: dict[str, Path]) -> dict[str, str]:
    return {name: f"{QUICK_JVM} -XX:{use_or_make}={file} -Xlog:cds*=off" for name, file in archives.items()}


def _make() -> None:
    """One that could not be made is empty: no JVM takes it, and no other run tries again."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        directory = Path(name)
        made = {option: directory / archive.name for option, archive in ARCHIVES.items()}
        with mock.patch.dict(os.environ, _flags("ArchiveClassesAtExit", made)), LocalKafka(directory / "broker") as broker:
            broker.create_topic(TOPIC, 2)
            program = directory / "program.py"
            program.write_text(f"from tests.class_archives import work_of_tests\nwork_of_tests{broker.bootstrap_servers, name}\n")
            with LOG.open("w") as log:
                subprocess.run(
                    [str(SPARK_HOME / "bin" / "spark-submit"), str(program)],
                    cwd=directory,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=TRAINING_LIMIT_S,
                    check=False,  # what it has loaded is archived all the same
                )
        for option, archive in ARCHIVES.items():
            made[option].touch()
            made[option].replace(archive)


def work_of_tests(bootstrap_servers: str, directory: str) -> None:
    """What most tests with Spark do: rows from files go through a shuffle and to the sink, in a batch and in a stream."""
    from pyspark.sql import SparkSession

    from spark_kafka_sink import KafkaDataSource

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.master("local[2]").config(map=dict(settings)).getOrCreate()
    spark.dataSource.register(KafkaDataSource)
    sink = {"kafka.bootstrap.servers": bootstrap_servers, "topic": TOPIC}
    files = f"{directory}/rows"
    spark.range(100, numPartitions=2).selectExpr("cast(id as string) value").write.parquet(files)
    rows = spark.read.parquet(files)
    assert rows.repartition("value").groupBy("value").count().count() == 100
    rows.write.format("pykafka-sink").options(**sink).mode("append").save()
    stream = spark.readStream.schema(rows.schema).parquet(files).writeStream.format("pykafka-sink").options(**sink)
    query = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()
