"""What tests with a real broker share: one of a module for exactly-once, a world of each test, a planner of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.local_kafka import LocalKafka
from tests.broker_properties import QUICK_TIMEOUTS
from tests.fakes.fault_proxy import ProxiedKafka
from tests.integration.exactly_once_world import BrokerWorld, world_of
from tests.integration.exactly_once_writes import CommittedReader
from tests.integration.reading import ReadTopic
from tests.integration.writing import FileStream

SessionSettings = Callable[[Mapping[str, str]], None]

_planner_memory_mib = itertools.count(16 * 1024)


@pytest.fixture(scope="module")
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:  # noqa: ARG001 - as in conftest
    with ProxiedKafka(tmp_path_factory.mktemp("broker"), properties=QUICK_TIMEOUTS) as cluster:
        yield cluster


@pytest.fixture
def world(cluster: LocalKafka) -> Iterator[BrokerWorld]:
    with world_of(cluster) as world:
        yield world


@pytest.fixture
def session_settings(spark: SparkSession) -> Iterator[SessionSettings]:
    """session_settings({key: value}) for one test."""
    before: dict[str, str | None] = {}

    def change(settings: Mapping[str, str]) -> None:
        for key, value in settings.items():
            before.setdefault(key, spark.conf.get(key, None))
            spark.conf.set(key, value)

    yield change
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture
def verbose_tracebacks(session_settings: SessionSettings) -> None:
    """Spark prints the locals of each frame."""
    session_settings({"spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "true"})


@pytest.fixture
def one_planner(session_settings: SessionSettings) -> None:
    """All writes of the test are planned in one new process, which keeps what it was told by brokers and registries.

    Spark takes turns among the planners that earlier tests have left, if some of these planned at the same time. Planners with
    another limit of memory are a pool of their own.
    """
    session_settings({"spark.sql.planner.pythonExecution.memory": f"{next(_planner_memory_mib)}m"})


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    return FileStream(spark, tmp_path, "value string")


@pytest.fixture
def reader(broker: LocalKafka, read_topic: ReadTopic) -> Iterator[CommittedReader]:
    committed_reader = CommittedReader(broker, read_topic)
    yield committed_reader
    committed_reader.close()


@pytest.fixture(params=["none", "gzip", "lz4"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)
