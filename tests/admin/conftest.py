"""A fake cluster for the tests of admin/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.admin.clusters import NODES, Cluster
from tests.admin.open_transactions import TOPIC
from tests.fakes.fake_broker import FakeBroker


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """cluster(**options of FakeBroker): running; what a broker would not have minded fails the test."""
    with ExitStack() as stack:
        brokers: list[FakeBroker] = []

        def start(**options: Any) -> FakeBroker:
            brokers.append(stack.enter_context(FakeBroker(**({"nodes": NODES, "topics": {TOPIC: 6}} | options))))
            return brokers[-1]

        yield start
        for broker in brokers:
            assert broker.violations == []
