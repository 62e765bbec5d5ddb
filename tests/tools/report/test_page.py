"""page.py and terminal.py: what is shown, that it is safe, and that it needs nothing else. test_browser.py opens the page."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from spark_kafka_sink.sink.commit_summary import VersionSummary
from spark_kafka_sink.tools.report import page, pictures, terminal
from spark_kafka_sink.tools.report.lines import ReportFile, Troubles, parse
from spark_kafka_sink.tools.report.statistics import Statistics
from spark_kafka_sink.tools.report.svg import VARIABLES
from tests.tools.report.samples import BEGAN, QUERY, STORIES, line, write

EVIL = "<script>alert('a')</script>&\"'"


def read(path: Path) -> tuple[Statistics, Troubles]:
    troubles, statistics = Troubles(), Statistics()
    statistics.add(ReportFile(path, troubles).commits())
    return statistics, troubles


def page_of(path: Path, lines: Iterator[str]) -> str:
    return page.html(*read(write(path / "r.jsonl", lines)), ["r.jsonl"])


def few(name: str) -> Iterator[str]:
    return STORIES[name](300) if name == "many" else STORIES[name]()


class Elements(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("name", STORIES)
def test_a_page_needs_nothing_else_and_names_nothing_twice(name: str, tmp_path: Path) -> None:
    text = page_of(tmp_path, few(name))
    elements = Elements(text).tags
    assert "script" not in {tag for tag, _ in elements}
    links = [
        value for _, attributes in elements for key, value in attributes.items() if key in ("href", "src", "xlink:href", "data")
    ]
    assert all(value and value.startswith(("#", "data:")) for value in links), links
    assert not re.search(r"url\((?!#)|@import", text)
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r"url\(#([^)]+)\)", text)) | {value[1:] for value in links if value and value.startswith("#")}
    assert references <= set(ids)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


@pytest.mark.parametrize("name", STORIES)
def test_every_picture_has_words_and_only_colors_of_the_page(name: str, tmp_path: Path) -> None:
    text = page_of(tmp_path, few(name))
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == {"one": 3, "many": 12, "behind": 11, "skewed": 11}[name]
    for each in pictures:
        root = ElementTree.fromstring(each.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        title, description = root[0], root[1]
        assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {description.attrib['id']}"
        assert title.text
        assert description.text
        assert description.text.endswith(".")
        assert re.findall(r"#[0-9a-fA-F]{6}\b", each) == []
        assert set(re.findall(r"var\(--([\w-]+)\)", each)) <= set(VARIABLES.values())
    assert all(f"--{variable}:" in text for variable in VARIABLES.values())


def test_names_of_others_are_shown_as_text(tmp_path: Path) -> None:
    lines = [line(at, topic=EVIL, query=EVIL, skipped={EVIL: 1}, version=VersionSummary("o", 1, EVIL, 0, 0)) for at in (1, 60)]
    text = page_of(tmp_path, iter(lines))
    assert "<script" not in text
    assert "alert(" in text
    shown = "\n".join(terminal.lines(*read(tmp_path / "r.jsonl")))
    assert "alert(" in shown


def test_a_name_cannot_move_the_cursor_of_a_shell(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", iter([line(1, topic="a\x1b[2Jb", skipped={"\x1b]0;x": 1})]))
    assert "\x1b" not in "\n".join(terminal.lines(*read(tmp_path / "r.jsonl")))


def test_the_page_says_what_was_not_as_it_should_be(tmp_path: Path) -> None:
    text = page_of(tmp_path, iter(["nonsense", line(40)]))
    assert "1 line was left out:" in text


def test_a_file_that_holds_no_commit_is_asked_about(tmp_path: Path) -> None:
    assert "No line is a commit's." in page_of(tmp_path, iter(["id,name", "1,a"]))
    assert next(iter(terminal.lines(*read(tmp_path / "r.jsonl")))).startswith("No line is a commit's")


def test_a_page_without_a_commit_says_what_to_do(tmp_path: Path) -> None:
    text = page_of(tmp_path, iter([]))
    assert "No commit has been reported yet." in text
    assert "has no line yet" in text
    assert "nan" not in text
    assert next(iter(terminal.lines(*read(tmp_path / "r.jsonl")))).startswith("No commit has been reported yet")


def test_many_queries_topics_and_partitions_stay_readable(tmp_path: Path) -> None:
    lines = [line(at, query=f"q{at % 20}", topic=f"t{at}", partitions=[1] * 400) for at in range(60)]
    text = page_of(tmp_path, iter(lines))
    assert text.count("<section") == page.MAX_SECTIONS
    assert "Without pictures, as they have fewer rows: query q" in text
    assert len(text) < 1_500_000


def test_commits_at_one_moment_have_bars_and_no_lines(tmp_path: Path) -> None:
    text = page_of(tmp_path, iter([line(5, query=None), line(5, query=None)]))
    assert "Tasks, batches and requests" in text
    assert "Rows per second" not in text


def pieces_of(lines: Iterator[str]) -> list[tuple[list[float], list[int]]]:
    """Hours since BEGAN, and the buckets."""
    statistics = Statistics()
    statistics.add(parse(each.encode()) for each in lines)
    (query,) = statistics.by_rows()
    begin = float(pictures._dates(np.array([BEGAN]))[0])
    return [([round(24 * (each - begin), 3) for each in times], places) for times, places in pictures._unbroken_lines(query)]


def test_a_line_has_a_gap_where_a_stream_has_paused() -> None:
    """Lines were drawn across outages."""
    hours = [1.0, 1.01, 1.02, 1.03, 9.0, 9.01, 9.02]
    assert pieces_of(line(3600 * at, batch=batch) for batch, at in enumerate(hours)) == [
        (hours[:4], [0, 1, 2, 3]),
        (hours[4:], [4, 5, 6]),
    ]


def test_a_pause_within_a_bucket_is_a_gap_too() -> None:
    """400 commits share 100 buckets; the 203 before the pause end amid one of these, which is drawn on both sides."""
    at = [10 * number + (36_000 if number >= 202 else 0) for number in range(400)]
    (before, left), (after, right) = pieces_of(line(each, batch=batch) for batch, each in enumerate(at))
    assert left[-1] == right[0]
    assert max(before) < 0.6 < 10.5 < min(after)


def test_a_line_goes_on_where_every_second_commit_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two writes of a micro-batch, one ends a cycle. A line between numbers that have none on either side is invisible."""
    figures: list[Any] = []
    monkeypatch.setattr(pictures, "_picture", lambda figure, *_: figures.append(figure))
    topics = ("orders", "audit")
    texts = (line(10 * at + 5 * number, batch=at, topic=topic) for at in range(5) for number, topic in enumerate(topics))
    statistics = Statistics()
    statistics.add(parse(each.encode()) for each in texts)
    pictures._busy(statistics.queries[QUERY], "busy")
    assert [len(each.get_ydata()) for each in figures[0].axes[0].lines if len(each.get_ydata())] == [4]
    assert not any(np.isnan(each.get_ydata()).any() for each in figures[0].axes[0].lines)


def test_batch_writes_are_dots() -> None:
    """A line joined independent writes."""
    writes = [line(3600 * at, query=None) for at in (1, 2, 5)]
    assert pieces_of(iter(writes)) == [([1], [0]), ([2], [1]), ([5], [2])]


def test_a_heat_map_has_a_gap_where_a_stream_has_paused() -> None:
    statistics = Statistics()
    at = [10, 20, 30, 40, 9000, 9010]
    statistics.add(parse(line(each, batch=batch).encode()) for batch, each in enumerate(at))
    (query,) = statistics.by_rows()
    columns = pictures._spans(query, query.heat_maps["orders"].times_s)
    assert [(round(begin - BEGAN), round(end - BEGAN)) for ((begin, end),) in columns] == [
        *((10, 20), (20, 30), (30, 40), (40, 112)),
        *((9000, 9010), (9010, 9082)),
    ]


def test_a_heat_map_of_a_topic_that_some_commits_lack_ends_at_the_pause_too() -> None:
    statistics = Statistics()
    at = {10: "a", 20: "b", 30: "b", 40: "b", 50: "b", 9000: "a", 9010: "a"}
    statistics.add(parse(line(each, batch=batch, topic=topic).encode()) for batch, (each, topic) in enumerate(at.items()))
    (query,) = statistics.by_rows()
    ((begin, end),), *_ = pictures._spans(query, query.heat_maps["a"].times_s)
    assert (round(begin - BEGAN), round(end - BEGAN)) == (10, 82)  # at least as wide as a bar, and not up to 9000


def test_bars_have_no_legend_of_shades_and_no_footer_about_lines(tmp_path: Path) -> None:
    alone = page_of(tmp_path, iter([line(5, query=None, outside=1)]))
    assert "most rows" not in alone
    assert "A line is" not in alone
    assert "A dot is" not in alone
    of_a_stream = page_of(tmp_path, few("skewed"))
    assert "most rows" in of_a_stream
    assert "A line is" in of_a_stream
    assert "A dot is" not in of_a_stream
    several = page_of(tmp_path, (line(60 * at, query=None) for at in range(1, 5)))
    assert "A line is" not in several
    assert "A dot is" in several


def test_a_single_bar_is_a_number_in_the_table(tmp_path: Path) -> None:
    """A page had a card with one bar for the memory that tasks had waited for, and one for a topic's only partition."""
    waits = {"bufferpool_wait_time_ms_total": 50, "metadata_wait_time_ns_total": 0, "record_retry_total": 4}
    text = page_of(tmp_path, iter([line(5, query=None, rows=4000, partitions=[1], **waits)]))
    assert "What tasks wait for" not in text
    assert "Rows by partition" not in text
    assert "that were sent again" not in text
    assert "tasks waited for memory" in text
    assert "4,000 rows, all in partition 0." in text
    assert ("sent again", "0.4 %") in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)


def test_a_page_is_replaced_as_a_whole(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    page.replace_file(output, "old")
    inode = output.stat().st_ino
    page.replace_file(output, "new")
    assert output.read_text() == "new"
    assert output.stat().st_ino != inode
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_page_can_be_read_by_those_only_whom_the_umask_allows(tmp_path: Path) -> None:
    """A page became 0644 whatever the umask was: topics, queries and volumes were shown to everybody on the machine."""
    before = os.umask(0o077)
    try:
        page.replace_file(tmp_path / "report.html", "page")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o600


def test_the_table_for_a_shell_has_the_sentences_the_numbers_and_a_sparkline(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", STORIES["skewed"]())
    shown = list(terminal.lines(*read(tmp_path / "r.jsonl")))
    assert shown[0].startswith("1. ")
    (slowest,) = [each for each in shown if each.startswith("slowest task")]
    assert re.search(r"8 s +8 s +8 s +█+$", slowest)
    (topic,) = [each for each in shown if each.startswith("orders: ")]
    assert topic.startswith("orders: Skewed: partition 3 got ")
    assert max(len(each) for each in shown[4:]) <= 120


def test_a_sparkline_is_from_nothing_to_the_highest() -> None:
    assert terminal.sparkline(np.array([0.0, 1, 2, 4, 8, np.nan])) == "▁▂▃▅█ "
    assert terminal.sparkline(np.array([3.0])) == ""
    assert len(terminal.sparkline(np.arange(1000.0))) == terminal.SPARKLINE_WIDTH
