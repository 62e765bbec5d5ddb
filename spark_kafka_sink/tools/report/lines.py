"""Reads the lines that commits append to `reportPath`. Yields a CommitLine for each; counts and describes those it cannot read.

Lines of later versions are read: they only have more keys. A file is read line by line, and a line only up to MAX_LINE_BYTES.
The last line of a file may lack its end while the driver is writing it, or after its disk was full.
Law: a CommitLine can be counted, drawn and printed, whoever wrote the line. Its numbers are within limits, its names printable.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.words import counted

MAX_LINE_BYTES = 64 * 1024 * 1024  # a commit of 100,000 topic-partitions has 8 MB
LAST_KNOWN_VERSION = 4
FIRST_VERSION = 3  # of the first release; lines of version 1 do not say their version
MAX_EXAMPLES = 3  # of lines that cannot be read
MAX_LINES_BEFORE_COMMIT = 100  # when files are ordered

Partitions = Mapping[int, int]  # partition -> rows
MAX_PARTITIONS = 1_000_000  # no topic has as many
MAX_TIME_MS = 32_503_680_000_000  # the year 3000
MAX_SECONDS = 1e12  # of all tasks together
MAX_COUNTER = 1e24  # nanoseconds of all tasks
MAX_COUNT = 2**63 - 1
MAX_NAME_CHARACTERS = 500  # Kafka's topics have 249 characters
NUMBER_TYPES = (int, float)


class VersionOutcome(NamedTuple):
    """What became of a version, see VersionSummary of the sink."""

    how: str
    owner: str
    skipped_partitions: int
    fenced_count: int
    other_rows: int


@dataclass(frozen=True, slots=True)
class CommitLine:
    """The report of one commit: a line of a report file. Times and seconds are NaN where the line does not tell them."""

    version: int
    query: str | None
    batch: int | None
    committed_at_s: float  # since 1970
    started_at_s: float
    tasks: int
    rows: int
    bytes: int
    slowest_task_s: float
    median_task_s: float
    all_tasks_s: float
    spark_s: float
    held_back_s: float
    commit_s: float
    running_s: float  # in which at least one task ran
    counters: Mapping[str, float]
    skipped: Mapping[str, int]  # reason -> rows
    dead_lettered: Mapping[str, int]
    exactly_once: VersionOutcome | None
    partitions: Mapping[str, Partitions]  # by topic

    @property
    def destinations(self) -> Set[str]:
        """What tells a write of foreachBatch from the other writes of its micro-batch: its topics, or its owner."""
        return self.partitions.keys() if self.exactly_once is None else {self.exactly_once.owner}


class NotALine(ValueError):
    """A line that cannot be read. The text says what is wrong with it."""


def parse(text: bytes) -> CommitLine:
    """Read one line. Raises NotALine for text that is not the line of a commit, or has a wrong value."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise NotALine("it is not JSON") from None
    if not isinstance(line, dict) or "committed_at_ms" not in line or "rows" not in line:
        raise NotALine("it is JSON, but not the line of a commit: committed_at_ms and rows are missing")
    version = line.get("report_version", 1)
    if version in range(FIRST_VERSION):
        raise NotALine(f"it is of version {version}, before the first release")
    try:
        return _read_commit(line)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NotALine(f"a value is not what it should be: {type(error).__name__} {printable(error)}") from None


def _read_commit(line: Mapping[str, Any]) -> CommitLine:
    batch = line.get("batch_id")
    query = line.get("query_id")
    return CommitLine(
        version=_read_count(line["report_version"]),
        query=None if query is None else _read_name(query),
        batch=None if batch is None else _read_count(batch),
        committed_at_s=_read_number(line["committed_at_ms"], MAX_TIME_MS) / 1000,
        started_at_s=_read_time_s(line.get("started_at_ms")),
        tasks=_read_count(line.get("tasks", 0)),
        rows=_read_count(line["rows"]),
        bytes=_read_count(line.get("bytes", 0)),
        slowest_task_s=_read_seconds(line.get("slowest_task_seconds")),
        median_task_s=_read_seconds(line.get("median_task_seconds")),
        all_tasks_s=_read_seconds(line.get("task_seconds")),
        spark_s=_read_seconds(line.get("spark_seconds")),
        held_back_s=_read_seconds(line.get("held_back_seconds")),
        commit_s=_read_seconds(line.get("commit_seconds")),
        running_s=_read_seconds(line.get("running_seconds")),
        counters={_read_name(name): _read_number(value, MAX_COUNTER) for name, value in line.get("counters", {}).items()},
        skipped=_read_reasons(line["skipped_by_reason"]),
        dead_lettered=_read_reasons(line["dead_lettered_by_reason"]),
        exactly_once=_read_version(line.get("exactly_once")),
        partitions={_read_name(topic): _read_partitions(partitions) for topic, partitions in line.get("offsets", {}).items()},
    )


def _read_name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name")
    return printable(value, MAX_NAME_CHARACTERS)


def _read_number(value: object, max_value: float) -> float:
    """Keep three digits after the point, as the sink writes them. Division by a smaller number could give infinity."""
    if type(value) not in NUMBER_TYPES or not 0 <= value <= max_value:  # type: ignore[operator]
        raise ValueError(f"{value!r} is not a number from 0 to {max_value:g}")
    return round(float(value), 3)  # type: ignore[arg-type]


def _read_time_s(milliseconds: object) -> float:
    return nan if milliseconds is None else _read_number(milliseconds, MAX_TIME_MS) / 1000


def _read_seconds(value: object) -> float:
    return nan if value is None else _read_number(value, MAX_SECONDS)


def _read_count(value: object, max_value: int = MAX_COUNT) -> int:
    if type(value) is not int or not 0 <= value <= max_value:
        raise ValueError(f"{value!r} is not a number from 0 to {max_value}")
    return value


def _read_partitions(offsets: Mapping[str, Any]) -> Partitions:
    return {_read_count(int(number), MAX_PARTITIONS): _read_count(part["rows"]) for number, part in offsets.items()}


def _read_version(outcome: Mapping[str, Any] | None) -> VersionOutcome | None:
    if outcome is None:
        return None
    counts = (_read_count(outcome.get(name, 0)) for name in ("skipped_partitions", "fenced", "other_rows"))
    return VersionOutcome(_read_name(outcome.get("how", "committed")), _read_name(outcome.get("owner", "")), *counts)


def _read_reasons(rows_by_reason: Mapping[str, Any]) -> dict[str, int]:
    return {_read_name(reason): _read_count(rows) for reason, rows in rows_by_reason.items()}


@dataclass
class Troubles:
    """The problems of all files, which `sentences` describes."""

    commit_count: int = 0  # read
    newer_count: int = 0
    unreadable_count: int = 0
    examples: list[str] = field(default_factory=list)  # the first unreadable lines, and why
    unfinished_files: list[str] = field(default_factory=list)  # files whose last line has no end
    empty_files: list[str] = field(default_factory=list)  # files without a line
    shortened_files: list[str] = field(default_factory=list)  # files that became shorter while they were followed

    def sentences(self) -> Iterator[str]:
        """A sentence for each trouble, or each file with one."""
        if self.unreadable_count:
            more_count = self.unreadable_count - len(self.examples)
            more = f", and {more_count:,} more" if more_count else ""
            verb = "was" if self.unreadable_count == 1 else "were"
            yield f"{counted(self.unreadable_count, 'line')} {verb} left out: {'; '.join(self.examples)}{more}."
        for name in self.unfinished_files:
            name = printable(name)
            yield f"The last line of {name} has no end and was left out: the driver is writing it, or died while it did."
        if self.newer_count:
            yield f"{counted(self.newer_count, 'line')} of a newer version of the sink may tell more than is shown here."
        for name in self.shortened_files:
            yield f"{printable(name)} has become shorter, and was read again from its beginning."
        for name in self.empty_files:
            yield f"{printable(name)} has no line yet: nothing was committed, or reportPath names another file."


class ReportFile:
    """One file, read from where the last call ended.

    Args:
        troubles: where it notes problems.
    """

    def __init__(self, path: Path, troubles: Troubles) -> None:
        self.path = path
        self._troubles = troubles
        self._offset = 0
        self._line_count = 0
        self._identity: tuple[int, int] | None = None

    def first_commit_at_s(self) -> float:
        """When the first commit was, to order files by; infinity if none of the first MAX_LINES_BEFORE_COMMIT lines is a
        commit's: a rotation may cut a line. Raises OSError."""
        with self.path.open("rb") as file:
            for _ in range(MAX_LINES_BEFORE_COMMIT):
                with contextlib.suppress(NotALine):
                    return parse(file.readline(MAX_LINE_BYTES)).committed_at_s
        return inf

    def has_begun_anew(self) -> bool:
        """Whether the file is another one than at the last call, or was cut. Raises OSError."""
        if self._identity is None:
            return False
        status = self.path.stat()
        return (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset

    def commits(self) -> Iterator[CommitLine]:
        """The lines since the last call. A last line without an end is left for the next call. Raises OSError."""
        name = str(self.path)
        for file_names in (self._troubles.unfinished_files, self._troubles.empty_files):
            if name in file_names:
                file_names.remove(name)
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._identity = (status.st_dev, status.st_ino)
            file.seek(self._offset)
            yield from self._read(file)
        if not self._offset and name not in self._troubles.unfinished_files:
            self._troubles.empty_files.append(name)

    def _read(self, file: BinaryIO) -> Iterator[CommitLine]:
        while text := file.readline(MAX_LINE_BYTES):
            is_too_long = len(text) == MAX_LINE_BYTES and not text.endswith(b"\n")
            if is_too_long:
                text = _skip_to_line_end(file)
            if not text.endswith(b"\n"):
                self._troubles.unfinished_files.append(str(self.path))
                return
            self._offset = file.tell()
            self._line_count += 1
            if is_too_long:
                self._leave_out(f"it has more than {MAX_LINE_BYTES >> 20} MB")
            elif not text.isspace():
                try:
                    commit = parse(text)
                except NotALine as error:
                    self._leave_out(str(error))
                else:
                    self._troubles.commit_count += 1
                    self._troubles.newer_count += commit.version > LAST_KNOWN_VERSION
                    yield commit

    def _leave_out(self, why: str) -> None:
        self._troubles.unreadable_count += 1
        if len(self._troubles.examples) < MAX_EXAMPLES:
            self._troubles.examples.append(f"{printable(self.path)}, line {self._line_count}: {why}")


def _skip_to_line_end(file: BinaryIO) -> bytes:
    """Read to the end of a line that is too long. Returns its last bytes; empty if the line has no end."""
    while (last_bytes := file.readline(MAX_LINE_BYTES)) and not last_bytes.endswith(b"\n"):
        pass
    return last_bytes
