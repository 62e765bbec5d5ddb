"""The built code survives the schedules that break plans with a step left out: hand-driven tasks and drivers on a real broker.

Each schedule is one of the model's traces, see tests/exactly_once/trace_replay.py. Afterwards a repetition completes what is
missing, a later version works, and an audit finds each row once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.local_kafka import LocalKafka
from tests.exactly_once.protocol_model import TRACES_FILE
from tests.exactly_once.trace_replay import OWNER, Replay
from tests.integration.exactly_once_world import SECOND, rows_of, world_of

pytestmark = [pytest.mark.slow, pytest.mark.broker]

TRACES = json.loads(TRACES_FILE.read_text(encoding="utf-8"))
ROWS_AT_STAKE = ("I1", "I2")  # promises: no row twice, no row lost
LATER = 9  # a version after those of any schedule


@contextmanager
def started(factory: pytest.TempPathFactory, *format_options: str) -> Iterator[LocalKafka]:
    with LocalKafka(factory.mktemp("broker"), format_options=format_options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def version_2(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001 - fetched first
    with started(tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def version_1(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001 - fetched first
    with started(tmp_path_factory, "--feature", "transaction.version=1") as cluster:
        yield cluster


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            trace,
            id=trace["name"],
            marks=[]
            if trace["transaction_version"] == 2 and trace["violation"].startswith(ROWS_AT_STAKE)
            else [pytest.mark.matrix],
        )
        for trace in TRACES
    ],
)
def test_the_built_code_survives_the_schedule_that_breaks_a_plan_without_this_step(
    request: pytest.FixtureRequest, trace: dict[str, Any]
) -> None:
    cluster = request.getfixturevalue(f"version_{trace['transaction_version']}")
    with world_of(cluster) as world:
        with Replay(trace, world.run, world.client) as replay:
            replay.run()
            assert replay.has_ended_well() == trace["full_plan_ends"].startswith("done"), replay.description()
            assert replay.wrong_errors() == {}
        world.audit(trace["full_plan_visible"])
        expected = replay.recover()
        world.run("later", owner=OWNER).write_version(LATER, *SECOND)
        world.audit([*expected.elements(), *rows_of(SECOND)])
