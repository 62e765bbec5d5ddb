"""What `check` prints: a line for each result, with colors and hanging indents on a terminal; or JSON.

The judges have escaped texts from brokers and users. This file cuts off the end of a text that is too long.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.check.results import CheckResult, Light, worst_light
from spark_kafka_sink.tools.words import seconds

MAX_CHARACTERS = 2_000  # of a line
MIN_COLUMNS = 40  # for the text; on a narrower terminal lines are not broken
NAME_COLUMNS = 30
_COLORS = {Light.GREEN: "32", Light.YELLOW: "33", Light.RED: "31"}
ANOTHER_NETWORK = "executors may see another network"


class Origin(NamedTuple):
    """Where the check runs."""

    host: str
    addresses: tuple[str, ...]
    version: str


class Screen:
    """Prints results as they come."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._has_colors = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._columns = shutil.get_terminal_size().columns if is_terminal else 0

    def begin(self, origin: Origin) -> None:
        """Print the first line: where the check runs."""
        if self._is_json:
            self._say(json.dumps({**origin._asdict(), "note": ANOTHER_NETWORK}))
        else:
            self._say(heading(origin))

    def show(self, result: CheckResult) -> None:
        self._say(json_line(result) if self._is_json else self._with_color(result.light, line(result, self._columns)))

    def end(self, results: Sequence[CheckResult], ms: int) -> None:
        self._say(summary_json(results, ms) if self._is_json else summary(results, ms))

    def _with_color(self, light: Light, text: str) -> str:
        return f"\x1b[{_COLORS[light]}m{light}\x1b[0m{text.removeprefix(light)}" if self._has_colors else text

    def _say(self, text: str) -> None:
        print(text, flush=True)


def heading(origin: Origin) -> str:
    addresses = f" ({', '.join(origin.addresses)})" if origin.addresses else ""
    return f"Seen from {printable(origin.host)}{addresses} by pykafka-sink {origin.version}: {ANOTHER_NETWORK}."


def line(result: CheckResult, columns: int = 0) -> str:
    """A result in one line. If it is longer than `columns`, those of a terminal, it is wrapped and indented; 0: no terminal."""
    more = f" and {len(result.other_subjects)} more" if result.other_subjects else ""
    name = f"{result.check} {result.subject}{more}".rstrip()
    head = f"{result.light:<6} {result.ms:>6,} ms  {printable(name):<{NAME_COLUMNS}}  "
    text = printable(_sentences(result), MAX_CHARACTERS)
    indent = len(f"{'':6} {'':6} ms  ") + 4
    if columns - indent < MIN_COLUMNS or len(head) + len(text) <= columns:
        return head + text
    wrapped_lines = textwrap.wrap(head + text, columns, subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(wrapped_lines)


def _sentences(result: CheckResult) -> str:
    if not result.remedy:
        return result.finding
    full_stop = "" if result.finding.endswith((".", "?")) else "."
    return f"{result.finding}{full_stop} {result.remedy[0].upper()}{result.remedy[1:]}."


def summary(results: Sequence[CheckResult], ms: int) -> str:
    """The last line: how many results are red, yellow and green, and what that means. `ms`: how long the whole check took."""
    sentences = {
        Light.RED: "What is red makes writes fail.",
        Light.YELLOW: "Nothing is red; look at what is yellow.",
        Light.GREEN: "All is well.",
    }
    counts = ", ".join(f"{sum(each.light is light for each in results)} {light}" for light in Light)
    return f"{counts}, in {seconds(ms / 1000)}. {sentences[worst_light(results)]}"


# JSON


def json_line(result: CheckResult) -> str:
    subjects = {"check": result.check, "subject": result.subject, "also": result.other_subjects}
    return json.dumps({**subjects, "result": result.light, "found": result.finding, "remedy": result.remedy, "ms": result.ms})


def summary_json(results: Sequence[CheckResult], ms: int) -> str:
    counts = {str(light): sum(each.light is light for each in results) for light in Light}
    return json.dumps({"result": worst_light(results), **counts, "ms": ms})
