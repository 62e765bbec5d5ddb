"""What is tested in both versions of transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.fake_broker import FakeBroker
from tests.producer.transactions.transactional_brokers import cluster_of


@pytest.fixture(params=[1, 2], ids=["TV1", "TV2"])
def version(request: pytest.FixtureRequest) -> int:
    """transaction.version, by the tests' names for it: below 2, or 2."""
    return int(request.param)


@pytest.fixture
def broker(version: int) -> Iterator[FakeBroker]:
    with cluster_of(version) as cluster:
        yield cluster
