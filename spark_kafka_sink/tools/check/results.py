"""What a check says: green, yellow or red, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from spark_kafka_sink.errors import KafkaError

MAX_DIGITS = 19  # of Java's long
WRITE_FINDS_OUT = "not known; `--write` finds out"


class Light(StrEnum):
    """How bad a result is."""

    GREEN = "green"
    YELLOW = "yellow"  # works, but look at it; or not known
    RED = "red"  # a write fails


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of what a check says.

    Args:
        check: what is checked: "TLS", "topic".
        subject: the server or topic that is checked; empty: the cluster.
        finding: what was found, a phrase.
        remedy: what to do about it, a phrase; empty if nothing. Whatever is red has one.
        ms: how long it took to find out.
        other_subjects: those with the same result.
    """

    check: str
    subject: str
    light: Light
    finding: str
    remedy: str = ""
    ms: int = 0
    other_subjects: tuple[str, ...] = ()


def green(check: str, subject: str, finding: str, ms: int = 0) -> CheckResult:
    return CheckResult(check, subject, Light.GREEN, finding, "", ms)


def yellow(check: str, subject: str, finding: str, remedy: str = "", ms: int = 0) -> CheckResult:
    return CheckResult(check, subject, Light.YELLOW, finding, remedy, ms)


def red(check: str, subject: str, finding: str, remedy: str, ms: int = 0) -> CheckResult:
    return CheckResult(check, subject, Light.RED, finding, remedy, ms)


def merge_results(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Results of several servers that say the same become one, in the order of the first."""
    results_by_text: dict[tuple[str, Light, str, str], list[CheckResult]] = {}
    for each in results:
        results_by_text.setdefault((each.check, each.light, each.finding, each.remedy), []).append(each)
    return [
        replace(group[0], ms=max(each.ms for each in group), other_subjects=tuple(each.subject for each in group[1:]))
        for group in results_by_text.values()
    ]


def number_in_setting(answer: object) -> int | None:
    """Read a number from the text of a setting; None for an error, and for any other text."""
    is_number = isinstance(answer, str) and answer.isascii() and answer.isdecimal() and len(answer) <= MAX_DIGITS
    return int(str(answer)) if is_number else None


def worst_light(results: Iterable[CheckResult]) -> Light:
    lights = {each.light for each in results}
    return next((each for each in (Light.RED, Light.YELLOW) if each in lights), Light.GREEN)


def remedy_for(error: KafkaError) -> str:
    """The remedy for an error, where the judge has no better one."""
    return f"see {error.condition} on the page Troubleshooting"
