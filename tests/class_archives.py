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
# What most tests with Spark do: rows from files go through a shuffle, in a batch and in a stream.
SPARK_PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", 2)
spark.sparkContext.setLogLevel("WARN")
spark.range(100, numPartitions=2).selectExpr("cast(id as string) value").write.parquet("rows")
rows = spark.read.parquet("rows")
rows.groupBy("value").count().collect()
stream = spark.readStream.schema(rows.schema).parquet("rows").writeStream.format("noop")
stream.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def _directory() -> Path:
    """Of this checkout, Java, Kafka and PySpark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    installed = [(str(path.resolve()), path.stat().st_mtime) for path in (java, SPARK_HOME / "jars") if path.exists()]
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
