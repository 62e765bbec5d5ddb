"""lines.py: every line is read or told of; what is cut off waits for the rest of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from math import isinf
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.sink.commit_summary import VersionSummary
from spark_kafka_sink.tools.report import lines, page, terminal
from spark_kafka_sink.tools.report.lines import CommitLine, NotALine, ReportFile, Troubles, parse
from spark_kafka_sink.tools.report.statistics import Statistics
from tests.tools.report.samples import BEGAN, QUERY, line, write


def read(path: Path) -> tuple[list[CommitLine], Troubles]:
    troubles = Troubles()
    return list(ReportFile(path, troubles).commits()), troubles


def test_a_line_of_the_sink_is_read() -> None:
    text = line(10, batch=7, rows=400, duration_s=3, commit=0.5, partitions=(1, 3), skipped={"KAFKA_X": 2})
    commit = parse(text.encode())
    assert (commit.query, commit.batch, commit.rows, commit.tasks, commit.version) == (QUERY, 7, 400, 4, 4)
    assert (commit.committed_at_s, commit.started_at_s) == (BEGAN + 10, BEGAN + 7)
    assert (commit.commit_s, commit.skipped, commit.dead_lettered) == (0.5, {"KAFKA_X": 2}, {})
    assert commit.partitions == {"orders": {0: 100, 1: 300}}


WRONG_VALUE = "a value is not what it should be"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("\x00\x01", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is JSON, but not the line of a commit"),
        ('{"level": "info"}', "it is JSON, but not the line of a commit"),
        ('{"report_version": 4, "committed_at_ms": "soon", "rows": 1}', WRONG_VALUE),
        ('{"report_version": 0, "committed_at_ms": 1, "rows": 1}', "it is of version 0, before the first release"),
        ('{"report_version": 4, "committed_at_ms": 1e999, "rows": 1}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": -1}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "counters": {"byte-total": NaN}}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "counters": {"byte-total": "7"}}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "counters": [1]}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "offsets": {"t": {"x": {"rows": 1}}}}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "offsets": {"t": {"99999999999": {"rows": 1}}}}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "offsets": {"t": {"0": {}}}}', WRONG_VALUE),
        ('{"report_version": 4, "committed_at_ms": 1, "rows": 1, "exactly_once": 3}', WRONG_VALUE),
    ],
)
def test_the_error_says_why_a_text_is_no_line_of_a_commit(text: str, why: str) -> None:
    with pytest.raises(NotALine, match=why):
        parse(text.encode())


def hostile() -> Iterator[str]:
    """Lines with one value that no sink writes."""
    numbers: list[Any] = [-1, 2**63, 10**400, 1e308, 5e-324, -0.5, 1.5, True, "7", [1], {}, "\ud800"]
    numbers += [float("inf"), float("nan"), 253_402_300_800_000, -62_135_596_800_001]
    plain = json.loads(line(1, version=VersionSummary("o", 1, "committed", 0, 0)))
    names = [name for name, value in plain.items() if isinstance(value, int | float)] + ["batch_id"]
    for name, value in product(names, [*numbers, None]):
        yield json.dumps({**plain, name: value})
    for name, value in product(plain["counters"], numbers):
        yield json.dumps({**plain, "counters": {**plain["counters"], name: value}})
    for name, value in product(["how", "skipped_partitions", "fenced"], numbers):
        yield json.dumps({**plain, "exactly_once": {name: value}})
    for value in numbers:
        yield json.dumps({**plain, "offsets": {"orders": {"3": {"rows": value}}}})
        yield json.dumps({**plain, "offsets": {"orders": {str(value): {"rows": 1}}}})
        yield json.dumps({**plain, "skipped_by_reason": {"KAFKA_X": value}})
    for text in ["\ud800", "a\x1b[2Jb", "a\nb", "\u202eb", "x" * 100_000]:
        yield json.dumps({**plain, "query_id": text})
        yield json.dumps({**plain, "exactly_once": {"how": text}})
        yield json.dumps({**plain, "skipped_by_reason": {text: 1}})
        yield json.dumps({**plain, "offsets": {text: {"0": {"rows": 1}}}})
        yield json.dumps({**plain, "offsets": {text: 1}})
    for name in plain:
        yield json.dumps({**plain, name: [text]})
        yield json.dumps({**plain, name: {text: text}})


def test_a_line_without_its_time_is_left_out_of_the_page(tmp_path: Path) -> None:
    """Its time was NaN: the page of a file with such a line ended in "ValueError: Invalid value NaN"."""
    texts = [line(60), json.dumps({**json.loads(line(1)), "committed_at_ms": None})]
    commits, troubles = read(write(tmp_path / "r.jsonl", iter(texts)))
    statistics = Statistics()
    statistics.add(commits)
    page.html(statistics, troubles, ["r.jsonl"])
    assert (len(commits), troubles.unreadable_count) == (1, 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rest", [[], [line(60), line(120)]], ids=["alone", "among others"])
def test_a_line_that_others_have_made_up_costs_no_more_than_itself(rest: list[str], tmp_path: Path) -> None:
    """12 of 29 such lines ended page and table in a traceback, for ever: times out of datetime's range, integers above int64,
    infinities, lone surrogates, and numbers that were no numbers."""
    for text in hostile():
        path = write(tmp_path / "r.jsonl", iter([text, *rest]))
        commits, troubles = read(path)
        assert len(commits) + troubles.unreadable_count == 1 + len(rest)
        statistics = Statistics()
        statistics.add(commits)
        for query in statistics.by_rows():
            assert not isinf(query.series.highest("rows_per_s")), text
        shown = "\n".join([*terminal.lines(statistics, troubles), *troubles.sentences()])
        assert shown.replace("\n", "").isprintable(), text
        shown.encode()


def test_a_page_can_be_made_of_all_lines_that_others_have_made_up(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", hostile())
    commits, troubles = read(path)
    assert len(commits) > 100
    assert troubles.unreadable_count > 100
    statistics = Statistics()
    statistics.add(commits)
    text = page.html(statistics, troubles, ["a\x1b.jsonl", "b\udcff.jsonl"])
    assert "\x1b" not in text
    page.replace_file(tmp_path / "page.html", text)


def test_unreadable_lines_are_counted_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join([line(1), "nonsense", "", line(2), "{}", "3", "4", line(3)]) + "\n")
    commits, troubles = read(path)
    assert [each.committed_at_s - BEGAN for each in commits] == [1, 2, 3]
    (sentence,) = troubles.sentences()
    assert sentence.startswith(f"4 lines were left out: {path}, line 2: it is not JSON; {path}, line 5: it is JSON, but not")
    assert sentence.endswith(", and 1 more.")


def test_a_last_line_that_is_cut_off_is_left_until_it_is_whole(tmp_path: Path) -> None:
    path, troubles = tmp_path / "r.jsonl", Troubles()
    first, second = line(1) + "\n", line(2) + "\n"
    path.write_text(first + second[:100])
    file = ReportFile(path, troubles)
    assert len(list(file.commits())) == 1
    (sentence,) = troubles.sentences()
    assert sentence == f"The last line of {path} has no end and was left out: the driver is writing it, or died while it did."
    path.write_text(first + second)
    assert [each.committed_at_s - BEGAN for each in file.commits()] == [2]
    assert list(file.commits()) == []
    assert not list(troubles.sentences())


def test_a_line_that_is_too_long_is_left_out_and_the_next_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4096)
    path = tmp_path / "r.jsonl"
    path.write_text(line(1) + "\n" + "x" * 9000 + "\n" + line(2) + "\n" + "y" * 9000)
    commits, troubles = read(path)
    assert len(commits) == 2
    assert "line 2: it has more than" in next(troubles.sentences())
    assert troubles.unfinished_files == [str(path)]


def test_an_empty_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").touch()
    commits, troubles = read(tmp_path / "r.jsonl")
    assert commits == []
    assert "has no line yet" in next(troubles.sentences())


def test_newer_lines_are_read_and_reported(tmp_path: Path) -> None:
    newer = json.dumps({**json.loads(line(2)), "report_version": 5, "what_nobody_knows": [1]})
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join([line(1), newer]) + "\n")
    commits, troubles = read(path)
    assert len(commits) == 2
    assert next(troubles.sentences()).startswith("1 line of a newer version")


def test_lines_from_before_the_first_release_are_left_out_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**json.loads(line(2)), "report_version": 2}) + "\n")
    commits, troubles = read(path)
    assert commits == []
    assert "it is of version 2, before the first release" in next(troubles.sentences())


def test_a_line_of_version_1_is_known_by_its_lack_of_a_version() -> None:
    """Version 1 had no such key, and the error was KeyError 'report_version'."""
    with pytest.raises(NotALine, match="it is of version 1, before the first release"):
        parse(b'{"committed_at_ms":1,"rows":1}')


def test_a_line_before_the_schemas_lacks_nothing_that_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**json.loads(line(2)), "report_version": 3}) + "\n")
    _, troubles = read(path)
    assert list(troubles.sentences()) == []


def test_a_file_that_was_cut_or_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line(1) + "\n" + line(2) + "\n")
    file = ReportFile(path, Troubles())
    assert not file.has_begun_anew()
    list(file.commits())
    assert not file.has_begun_anew()
    path.write_text(line(3) + "\n")
    assert file.has_begun_anew()
    list(ReportFile(path, Troubles()).commits())
    other = tmp_path / "other"
    other.write_text((line(1) + "\n") * 5)
    list(file.commits())
    other.replace(path)
    assert file.has_begun_anew()
