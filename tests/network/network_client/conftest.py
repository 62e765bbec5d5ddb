"""The NetworkClient of most tests of this folder."""

from __future__ import annotations

import pytest

from tests.network.network_client.harness import Net


@pytest.fixture
def net() -> Net:
    return Net()
