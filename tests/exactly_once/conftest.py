"""A fake broker with each version of transactions, and runs of a query or job there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG
from tests.exactly_once.runs import TOPIC, Runs
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.fake_broker import FakeBroker


@pytest.fixture(params=[2, 1, 0], ids=["TV2", "TV1", "TV0"])
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={TOPIC: 1, TRANSACTION_LOG: 50}) as broker:
        broker.set_transaction_version(request.param)
        yield broker


@pytest.fixture
def run(broker: FakeBroker) -> Iterator[Runs]:
    """run("r1", owner=…): a life of the driver, which ends with the test."""
    with ExitStack() as stack:
        yield lambda name, **how: stack.enter_context(DriverRun(broker.bootstrap_servers, TOPIC, name, **how))
