"""What conftest.py sets up for all tests."""

from __future__ import annotations

from hypothesis import settings


def test_no_generated_example_has_a_time_limit() -> None:
    """A proof of SCRAM took 275 ms on a busy machine, more than hypothesis allows by default, and failed a whole run."""
    assert settings().deadline is None
