"""What every test may ask for: a real broker, a Spark session, topics, and a way to read them back.

Nothing here starts unless a test names it. Tests that use the broker or Spark are marked by their fixtures. The broker and
Spark live for the whole session: a test takes a topic of its own from `topic`. The order of tests: whole_runs.py.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from jobs.kafka_jars import fetch_kafka
from jobs.local_kafka import LocalKafka
from jobs.spark_job import end_jvm
from spark_kafka_sink.config import option
from spark_kafka_sink.schemas import known_schemas
from tests import class_archives, left_behind, whole_runs
from tests.integration.reading import READERS, ReadRecord, ReadTopic, Topic
from tests.schemas.fake_registry import FakeRegistry
from tests.spark_connector import fetch_spark_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# Spark's workers otherwise take the first python3 on the path, which need not have pyarrow, and do not see this checkout.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# Each JVM and each Python worker of a test works for seconds. numpy's library of linear algebra, which nothing here uses, makes
# threads when it is imported.
class_archives.use()
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# A generated example may take long on a busy machine: times are measured by benchmarks, never asserted in tests.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")

BROKER_FIXTURES = {"broker", "topic", "read_topic", "kafka_jars"}
SPARK_FIXTURES = {"spark", "spark_kafka_jars"}


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(left_behind.watch())
    config.pluginmanager.register(whole_runs)
    # kafka-python's, at each of its hundred schemas
    config.addinivalue_line("filterwarnings", r"ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by fixture, before -m selects. What starts JVMs takes the class archives."""
    for item in items:
        fixtures = _fixtures_from_here(item)
        if fixtures & BROKER_FIXTURES:
            item.add_marker("broker")
        if fixtures & SPARK_FIXTURES:
            item.add_marker("spark")
        starts_jvms = item.get_closest_marker("broker") or item.get_closest_marker("spark")
        if starts_jvms and isinstance(item, pytest.Function) and "archived_classes" not in item.fixturenames:
            item.fixturenames.insert(0, "archived_classes")
    whole_runs.arrange(config, items)


@pytest.fixture(autouse=True)
def warnings_of_options_are_logged_again() -> None:
    """Each is logged once per process, and all tests share one process."""
    option._logged_messages.clear()


def _fixtures_from_here(item: pytest.Item) -> set[str]:
    """The names of this file's fixtures that a test uses; a module's own `broker`, a fake one, is not among them."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.items() if info is not None else ()
    return {name for name, fixtures in definitions if fixtures[-1].func.__module__ == __name__}


@pytest.fixture(scope="session")
def archived_classes() -> None:
    """JVMs that start after it start fast. Tests with a broker or Spark ask for it first."""
    class_archives.make()


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The directory of Apache Kafka's jars, with its command-line tools."""
    return fetch_kafka()


@pytest.fixture(scope="session")
def spark_kafka_jars() -> Path:
    """The directory of the jars of Spark's own Kafka connector."""
    return fetch_spark_kafka()


@pytest.fixture(scope="session")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001 - fetched before the start is timed
    """One real broker for the session. A test that kills brokers, or changes their properties, starts its own LocalKafka."""
    properties = {"log.retention.ms": "-1"}  # some tests write records of 2023, which the next check would delete
    with LocalKafka(tmp_path_factory.mktemp("broker"), properties=properties) as cluster:
        yield cluster


@pytest.fixture
def topic(broker: LocalKafka, request: pytest.FixtureRequest) -> Topic:
    """topic(partitions=1, config=None) creates a topic with a new name and returns the name."""
    numbers = itertools.count(1)
    stem = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]

    def create(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}-{next(numbers)}"
        broker.create_topic(name, partitions, config)
        return name

    return create


@pytest.fixture
def read_topic(broker: LocalKafka) -> ReadTopic:
    """read_topic(name, client="confluent-kafka" | "kafka-python", isolation_level=…, timeout_s=…): all of the topic's records."""

    def read(name: str, client: str = "confluent-kafka", **how: Any) -> list[ReadRecord]:
        return READERS[client](how.pop("bootstrap_servers", broker.bootstrap_servers), name, **how)

    return read


@pytest.fixture(scope="session")
def spark(spark_kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One quiet local[2] session, with our data source registered and Spark's own connector on its class path for comparisons."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from spark_kafka_sink.sink.datasource import KafkaDataSource

    # It makes any handler that it is given write JSON, and pytest gives it the handler of `caplog`, which later tests have too.
    PySparkLogger.addHandler = logging.Logger.addHandler
    options: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={ROOT / 'conf' / 'log4j2.properties'}",
        "spark.jars": ",".join(map(str, sorted(spark_kafka_jars.glob("*.jar")))),
        "spark.python.worker.faulthandler.enabled": "true",
    }
    session = SparkSession.builder.master("local[2]").appName("pykafka-sink tests").config(map=options).getOrCreate()
    session.dataSource.register(KafkaDataSource)
    yield session
    session.stop()
    end_jvm()  # here, so that no thread of it writes below pytest's last line


@pytest.fixture
def process_that_knows_no_schema() -> Iterator[None]:
    known_schemas.forget()
    yield
    known_schemas.forget()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry
