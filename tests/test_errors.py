"""errors.py: what others say is printed on one line and in bounded length."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import printable, printable_list
from spark_kafka_sink.network.background import outcome_of


@pytest.mark.parametrize("text", ["", "Broker not available", "Ünïcödé – «ok» 東京 🙂", 'say "no"', "C:\\path"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kafka\n2026-01-01 ERROR forged", "kafka\\n2026-01-01 ERROR forged"),
        ("a\r\tb\0\x1b[31mred", "a\\r\\tb\\x00\\x1b[31mred"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \ud800", "half \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
    ],
)
def test_what_moves_hides_or_breaks_text_is_escaped(text: str, shown: str) -> None:
    """A host name with a line break in it forged a line of the log."""
    assert printable(text) == shown


def test_long_text_is_cut_and_says_by_how_much() -> None:
    """An error message of 5 MB made an exception of 5 MB."""
    assert printable("x" * 300) == "x" * 300
    assert printable("x" * 5_000_300) == "x" * 300 + "… (5,000,000 more characters)"
    assert printable("abcdef", 2) == "ab… (4 more characters)"


@given(text=st.text(st.characters()) | st.text(st.sampled_from("\n\u202e\ud800a")), limit=st.integers(0, 50))
def test_whatever_comes_in_one_printable_line_of_bounded_length_comes_out(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= limit * len("\\U0001f600") + 40
    shown.encode()


def test_of_an_object_without_a_text_the_type_is_shown() -> None:
    """An exception whose str() raises ended the thread that should have reported it."""

    class NoTextError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert printable(NoTextError()) == "an object of type NoTextError, whose str() raises ValueError"
    outcome = outcome_of(Mock(side_effect=NoTextError()))
    assert "NoTextError: an object of type NoTextError" in str(outcome.error)


def test_lists_are_cut_and_say_by_how_much() -> None:
    assert printable_list([]) == ""
    assert printable_list(["a", "b\n"]) == "a, b\\n"
    assert printable_list(["x" * 400, "b", "c", "d"], 2) == "x" * 300 + "… (100 more characters), b and 2 more"
