"""The rule of interrupts.py, where a reader of the sources can see it: how code that callers run takes locks and waits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spark_kafka_sink"
ELSEWHERE = {
    "interrupts.py": "has the tools",
    "clock.py": "sleeps on a condition that nobody else knows",
    "exactly_once/heartbeat.py": "its thread waits there, for a lock that the task holds",
    "network/sasl/tokens.py": "only threads of background.py wait there",
    "producer/exits.py": "joins daemon threads when the program ends; nothing runs after it",
    "sink/prometheus/text_file.py": "Spark's commit waits there, for an event that nobody else knows",
    "tools/check/inspection.py": "joins a daemon thread of its own, which nobody else knows, when no lock is held",
    "tools/report/page.py": "its join is of markup",
}
UNSAFE = {"Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "acquire", "join"}


def unsafe_uses(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in UNSAFE:
            continue
        if not isinstance(node.func.value, ast.Constant | ast.JoinedStr):  # "".join
            yield f"line {node.lineno}: {ast.unparse(node.func)}"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_locks_are_taken_by_with_and_nobody_waits_with_one(file: Path) -> None:
    """Each of these left a lock locked, or a caller waiting for ever, when Ctrl-C came at the wrong moment."""
    if str(file.relative_to(PACKAGE)) not in ELSEWHERE:
        assert list(unsafe_uses(file.read_text())) == []


def test_what_is_said_of_other_files_is_still_needed() -> None:
    assert [name for name in ELSEWHERE if not list(unsafe_uses((PACKAGE / name).read_text()))] == []


@pytest.mark.parametrize("use", ["thread.join()", "thread.join(30)", "thread.join(timeout_s)", "self._thread.join(timeout=1)"])
def test_a_join_of_a_thread_is_seen_and_one_of_texts_is_not(use: str) -> None:
    assert list(unsafe_uses(f"names = ', '.join(each)\n{use}")) == [f"line 2: {use.partition('(')[0]}"]
