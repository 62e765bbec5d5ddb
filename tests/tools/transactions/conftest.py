"""A fake broker and a scripted console for the tests of `transactions`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.admin.open_transactions import TOPIC
from tests.fakes.fake_broker import FakeBroker
from tests.tools.transactions.scripted import (
    ScriptedConsole,
)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2, topics={TOPIC: 6}) as broker:
        yield broker
        assert broker.violations == []


@pytest.fixture
def console(broker: FakeBroker) -> ScriptedConsole:
    return ScriptedConsole(broker)
