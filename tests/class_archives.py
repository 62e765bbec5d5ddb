"""Archives of the classes that Kafka's and Spark's JVMs load, so that those of tests start in half the time.

A JVM that lives for seconds spends most of them loading classes. One broker and one Spark program run first, once for each
checkout and environment, and leave what they have loaded in a file (class data sharing of HotSpot, JEP 350). A JVM
takes no archive that is absent or does not fit its version or class path, and says nothing of it: it only starts as before.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from unittest import mock

from jobs.java import java_program
from jobs.kafka_jars import file_lock, kafka_version
from jobs.local_kafka import QUICK_JVM_FLAGS, LocalKafka
from spark_kafka_sink.tools.errors import ToolError

ROOT = Path(__file__).resolve().parent.parent
TRAINING_LIMIT_S = 240
# What most tests with Spark do: rows from files go through a shuffle, in a batch and in a stream, and to a Python worker.
SPARK_PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
spark.sparkContext.setLogLevel("WARN")
spark.range(100, numPartitions=2).selectExpr("cast(id as string) value").write.parquet("rows")
rows = spark.read.parquet("rows")
rows.groupBy("value").count().mapInArrow(lambda batches: batches, "value string, count long").collect()
stream = spark.readStream.schema(rows.schema).parquet("rows").writeStream.format("noop")
stream.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def _directory() -> Path:
    """Of this checkout, Java, Kafka and PySpark, which is not imported: few tests need it."""
    installed = [sysconfig.get_path("purelib"), version("pyspark"), kafka_version()]
    try:
        java = java_program().resolve()
        installed += [str(java), str(java.stat().st_mtime)]
    except (ToolError, OSError):  # no Java: whoever starts it says so
        installed += ["no Java"]
    key = hashlib.sha256("\n".join(installed).encode()).hexdigest()[:12]
    return ROOT / ".pytest_cache" / "class-archives" / key


DIRECTORY = _directory()
ARCHIVES = {"KAFKA_JVM_PERFORMANCE_OPTS": DIRECTORY / "kafka.jsa", "SPARK_SUBMIT_OPTS": DIRECTORY / "spark.jsa"}
LOG = DIRECTORY / "spark.log"


def use() -> None:
    """Have the JVMs of this process and of those that it starts take the archives."""
    os.environ.update(_flags("SharedArchiveFile", ARCHIVES))


def make() -> None:
    """Make the archives, unless they are there. Blocks for half a minute, also while another process makes them: what starts
    meanwhile would start slowly, and slow down the other."""
    if _all_there():
        return
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(DIRECTORY / "lock", TRAINING_LIMIT_S, "another test run makes its class archives"):
            if not _all_there():
                _make()
    except (ToolError, subprocess.TimeoutExpired):  # nothing starts here in time, and tests that need it say why
        return


def _all_there() -> bool:
    return all(archive.exists() for archive in ARCHIVES.values())


def _flags(use_or_make: str, archives: dict[str, Path]) -> dict[str, str]:
    return {name: f"{QUICK_JVM_FLAGS} -XX:{use_or_make}={file} -Xlog:cds*=off" for name, file in archives.items()}


def _make() -> None:
    """One that could not be made is empty: no JVM takes it, and no other run tries again."""
    from tests.integration.clusters import SPARK_HOME

    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        directory = Path(name)
        made = {option: directory / archive.name for option, archive in ARCHIVES.items()}
        program = directory / "program.py"
        program.write_text(SPARK_PROGRAM)
        with mock.patch.dict(os.environ, _flags("ArchiveClassesAtExit", made)), LOG.open("w") as log:
            spark = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-submit"), str(program)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                with LocalKafka(directory / "broker") as broker:
                    broker.create_topic("rows", 2)
                spark.wait(TRAINING_LIMIT_S)  # also after a failure, what it has loaded is archived
            finally:
                spark.kill()
                spark.wait()
        for option, archive in ARCHIVES.items():
            made[option].touch()
            made[option].replace(archive)
