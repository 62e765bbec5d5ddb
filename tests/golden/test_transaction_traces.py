"""The fake coordinators answer as Apache Kafka did; and Apache Kafka still answers as it did when that was written down.

The scenarios, and how they were recorded: transaction_scenarios.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_broker import FakeBroker
from tests.fakes.raw_client import DirectClient
from tests.golden.transaction_scenarios import (
    LEVELS,
    PARTITIONS,
    SCENARIOS,
    TOPIC,
    TRACES,
    Steps,
    requests_of_version_2_at_any_level,
    run,
    run_on_kafka,
)

KAFKAS: dict[str, dict[str, list[list[Any]]]] = json.loads(TRACES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_the_fake_answers_as_kafka_did(scenario: Callable[[Steps], None], level: int) -> None:
    broker = FakeBroker(topics={TOPIC: PARTITIONS}, transaction_version=level)
    broker.nodes[0].is_running = True  # it has an address to tell, and nobody connects

    def pass_time() -> None:
        broker.clock.advance(1100)
        broker.transactions.abort_timed_out()

    trace = run(scenario, DirectClient(broker), pass_time=pass_time, level=level)
    assert trace == KAFKAS[str(level)][scenario.__name__]
    assert bool(broker.violations) == (scenario is requests_of_version_2_at_any_level and level < 2)


@pytest.mark.slow
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize("level", LEVELS)
def test_kafka_answers_as_in_the_recorded_traces(tmp_path: Path, level: int) -> None:
    assert run_on_kafka(tmp_path, level) == KAFKAS[str(level)]
