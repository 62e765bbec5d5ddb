from __future__ import annotations

import pytest

from tests.fakes.certificates import Authority, Certificate


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("ca")


@pytest.fixture(scope="module")
def me(authority: Authority) -> Certificate:
    return authority.issue("me", hosts=())
