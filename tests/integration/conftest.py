"""What the tests of exactly-once share: a broker of each module, and a topic, a prefix and runs of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.local_kafka import LocalKafka
from tests.broker_properties import QUICK_TIMEOUTS
from tests.fakes.fault_proxy import ProxiedKafka
from tests.integration.exactly_once_world import World, world_of


@pytest.fixture(scope="module")
def cluster(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:  # noqa: ARG001 - as in conftest
    with ProxiedKafka(tmp_path_factory.mktemp("broker"), properties=QUICK_TIMEOUTS) as cluster:
        yield cluster


@pytest.fixture
def world(cluster: LocalKafka) -> Iterator[World]:
    with world_of(cluster) as world:
        yield world
