"""A fake broker for the old producer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.fake_broker import FakeBroker
from tests.producer.lock_order import lock_order as lock_order  # watches every test of this folder


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={"orders": 4, "single": 1}) as cluster:
        yield cluster
        assert cluster.violations == []
