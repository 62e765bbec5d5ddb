"""A clock for the tests of logins."""

from __future__ import annotations

import pytest

from tests.fakes.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
