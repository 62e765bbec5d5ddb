"""exactly_once/names.py: what is written is read back, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.exactly_once.names import AttemptId, PrefixNames, escape_name, unescape_name

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.text(min_size=1), st.text(), NUMBERS, NUMBERS)
def test_a_transactional_id_is_read_back_whatever_its_parts_are(prefix: str, owner: str, partition: int, attempt: int) -> None:
    task = AttemptId(escape_name(owner), partition, attempt)
    names = PrefixNames(prefix)
    assert names.parse(names.transactional_id(task)) == task
    assert unescape_name(task.owner) == owner
    assert PrefixNames(f"{prefix}-2").parse(names.transactional_id(task)) is None


@pytest.mark.parametrize("owner", ["7", "q", "0", ""])
def test_an_id_is_not_taken_for_one_of_a_shorter_prefix(owner: str) -> None:
    """`x-7-5-3-0` is of the prefix `x-7` and its owner 5, and not of `x` and its owner 7."""
    transactional_id = PrefixNames("x-7").transactional_id(AttemptId(escape_name(owner), 3, 0))
    assert PrefixNames("x").parse(transactional_id) is None


@pytest.mark.parametrize("number", ["007", "00", "+1", "", " 1", "1_0", "١", "9" * 5000, "9" * 20])
def test_an_id_that_this_package_would_not_write_is_somebody_elses(number: str) -> None:
    """`P-q-007-0` was read as partition 7: another id, P-q-7-0, was looked at and fenced for it. An id with more digits than
    int() takes raised ValueError, in every driver whose prefix it began with."""
    assert PrefixNames("P").parse(f"P-q-{number}-0") is None
    assert PrefixNames("P").parse(f"P-q-0-{number}") is None


def test_an_id_with_one_part_more_is_somebody_elses() -> None:
    other = "P-q-0-1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed-0"
    assert [PrefixNames(prefix).parse(other) for prefix in ("P", "P-q", "P-q-0")] == [None, None, None]
