"""What `check` prints."""

from __future__ import annotations

import io
import json
import sys

import pytest

from spark_kafka_sink.tools.check.output import Origin, Screen, line, summary
from spark_kafka_sink.tools.check.results import Light, green, merge_results, number_in_setting, red, worst_light, yellow

ORIGIN = Origin("driver-1", ("10.0.0.5",), "1.2.3")
RED = red("topic", "orders", "does not exist", "create it", 12)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, is_json: bool = False, columns: int = 80) -> list[str]:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = Screen(is_json=is_json)
    screen.begin(ORIGIN)
    screen.show(RED)
    screen.end([RED, green("name", "a", "is b")], 1_500)
    return stream.getvalue().splitlines()


def test_without_a_terminal_each_result_is_one_line_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    first, result, last = printed(monkeypatch, io.StringIO(), columns=50)
    assert first == "Seen from driver-1 (10.0.0.5) by pykafka-sink 1.2.3: executors may see another network."
    assert result == "red        12 ms  topic orders                    does not exist. Create it."
    assert last == "1 green, 0 yellow, 1 red, in 1.5 s. What is red makes writes fail."


@pytest.mark.parametrize(
    ("variable", "value", "colored"), [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("TERM", "xterm", True)]
)
def test_colors_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    text = "\n".join(printed(monkeypatch, Terminal()))
    assert ("\x1b[31mred\x1b[0m" in text) is colored
    assert ("\x1b" in text) is colored


def test_on_a_terminal_long_lines_are_broken_and_indented() -> None:
    first, *more = line(red("topic", "orders", "it " * 60, "do this"), 100).splitlines()
    assert len(first) <= 100
    assert more
    assert all(each.startswith(" " * 20) and len(each) <= 100 for each in more)
    assert len(line(red("topic", "orders", "it " * 60, ""), 30).splitlines()) == 1  # too narrow


def test_json_is_an_object_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    first, result, last = map(json.loads, printed(monkeypatch, Terminal(), is_json=True))
    assert (first["host"], first["addresses"]) == ("driver-1", ["10.0.0.5"])
    expected = {"check": "topic", "subject": "orders", "also": [], "result": "red"}
    assert result == expected | {"found": "does not exist", "remedy": "create it", "ms": 12}
    assert last == {"result": "red", "green": 1, "yellow": 0, "red": 1, "ms": 1_500}


def test_texts_of_others_stay_on_one_line_and_have_an_end() -> None:
    shown = line(red("topic", "a\nb", "\x1b[31m" + "x" * 5_000, ""))
    assert shown.isprintable()
    assert len(shown) < 2_200


@pytest.mark.parametrize(
    ("answer", "number"), [("0", 0), ("9" * 19, 10**19 - 1), ("9" * 20, None), ("-1", None), ("²", None), (None, None), (7, None)]
)
def test_settings_that_are_no_numbers_are_not_known(answer: object, number: int | None) -> None:
    assert number_in_setting(answer) == number


def test_the_worst_of_all_results_counts() -> None:
    assert worst_light([]) is Light.GREEN
    assert worst_light([green("a", "", ""), yellow("b", "", "")]) is Light.YELLOW
    assert worst_light([red("a", "", "", ""), yellow("b", "", "")]) is Light.RED
    assert "All is well" in summary([green("a", "", "")], 10)


def test_equal_results_are_merged_and_others_are_not() -> None:
    results = [green("TLS", "a", "x", 1), green("TLS", "b", "x", 5), green("TLS", "c", "y", 2)]
    first, second = merge_results(results)
    assert (first.subject, first.other_subjects, first.ms) == ("a", ("b",), 5)
    assert (second.subject, second.other_subjects) == ("c", ())
    assert "TLS a and 1 more" in line(first)
