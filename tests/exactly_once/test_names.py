"""exactly_once/names.py: what is written is read back, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.exactly_once.names import Names, TaskId, escaped

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.text(min_size=1), st.text(), NUMBERS, st.text(), NUMBERS)
def test_a_transactional_id_is_read_back_whatever_its_parts_are(
    prefix: str, owner: str, partition: int, run: str, attempt: int
) -> None:
    task = TaskId(escaped(owner), partition, escaped(run), attempt)
    names = Names(prefix)
    assert names.parse(names.transactional_id(task)) == task
    assert Names(f"{prefix}-2").parse(names.transactional_id(task)) is None


@pytest.mark.parametrize("number", ["007", "00", "+1", "", " 1", "1_0", "١", "9" * 5000, "9" * 20])
def test_an_id_that_this_package_would_not_write_is_somebody_elses(number: str) -> None:
    """`P-q-007-r-0` was read as partition 7: another id, P-q-7-r-0, was looked at and fenced for it. An id with more digits
    than int() takes raised ValueError, in every driver whose prefix it began with."""
    assert Names("P").parse(f"P-q-{number}-r-0") is None
    assert Names("P").parse(f"P-q-0-r-{number}") is None
