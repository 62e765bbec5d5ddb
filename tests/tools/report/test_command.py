"""`pykafka-sink report`: what it reads, what it says, its exit code, and how it follows a stream."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kafka_sink.tools.report.command import FOLLOW_S, main
from tests.tools.report.samples import QUERY, line, one_commit, write

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 120


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return write(tmp_path / "commits.jsonl", one_commit())


def test_report_makes_a_page_and_says_where_it_is(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main([str(report), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"1 commit: see {page.as_uri()}\n"
    assert "<h1>What the sink did</h1>" in page.read_text(encoding="utf-8")
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


def test_report_prints_a_table(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(report), "--terminal"]) == 0
    assert "batch writes: 1 write, 337k rows" in capsys.readouterr().out


def test_the_table_needs_no_extra_and_no_spark(report: Path) -> None:
    """A driver's machine need not have matplotlib."""
    code = "import sys; sys.modules.update(dict.fromkeys(['matplotlib', 'jinja2', 'pyspark'])); from jobs.report import main;"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} sys.exit(main([{str(report)!r}, '--terminal']))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "337k rows" in done.stdout


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_without_the_extra_it_says_how_to_get_it(
    name: str, report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert main([str(report)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f'report: error: The page needs {name}: pip install "pykafka-sink[report]".')
    assert said.count("\n") == 1


@pytest.mark.parametrize(("path", "why"), [("gone.jsonl", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(path: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / path), "-o", str(tmp_path / "page.html")]) == 1
    said = capsys.readouterr().err
    assert said == (
        f"report: error: {tmp_path / path} cannot be read ({why}): name the file that the sink's option reportPath names,"
        " on the driver's machine.\n"
    )


def test_a_page_that_cannot_be_written_is_an_error(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(report), "-o", str(tmp_path / "no" / "page.html")]) == 1
    assert "choose another with -o." in capsys.readouterr().err


def test_no_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "FILE" in capsys.readouterr().err


def test_bad_lines_are_reported_on_stderr_and_the_page_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line(1) + "\nnonsense\n" + line(2)[:50])
    assert main([str(path), "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    assert "1 line was left out" in said.err
    assert "has no end" in said.err
    assert said.out.startswith("1 commit: see ")


def test_files_are_put_in_order_and_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rotation leaves r.jsonl.1, older than r.jsonl; a shell sorts them the other way round."""
    new = write(tmp_path / "r.jsonl", (line(at, batch=at) for at in (300, 400)))
    old = write(tmp_path / "r.jsonl.1", (line(at, batch=at) for at in (100, 200)))
    assert main([str(new), str(old), str(new), "--terminal"]) == 0
    shown = capsys.readouterr().out
    assert "4 micro-batches" in shown
    assert "ran again" not in shown


@pytest.mark.parametrize("first_line", ["", "cut}", "\n" * 50])
def test_files_whose_first_line_is_empty_or_cut_are_put_in_order_too(
    first_line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oldest file was read last, as its first line said no time, and all its micro-batches were said to have run again."""
    new = write(tmp_path / "r.jsonl", (line(at, batch=at) for at in (300, 400)))
    old = write(tmp_path / "r.jsonl.1", iter([first_line, *(line(at, batch=at) for at in (100, 200))]))
    assert main([str(new), str(old), "--terminal"]) == 0
    shown = capsys.readouterr().out
    assert "4 micro-batches" in shown
    assert "ran again" not in shown


class Stream:
    """Plays a stream and a clock: at each pause the next thing happens, and at the end Ctrl-C."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)
        self.paused: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.paused.append(seconds)
        if not self._steps:
            raise KeyboardInterrupt
        step = self._steps.pop(0)
        assert callable(step)
        step()


def test_following_writes_the_page_anew_when_there_is_something_new(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, write_times_ns = tmp_path / "page.html", []

    def append() -> None:
        with report.open("a") as file:
            file.write(line(60) + "\n")

    def look() -> None:
        write_times_ns.append(page.stat().st_mtime_ns)

    pause = Stream(look, look, append, look)
    assert main([str(report), "-o", str(page), "--follow"], pause) == 130
    assert pause.paused == [FOLLOW_S] * 5
    assert FOLLOW_S >= 10
    first, unchanged, last = write_times_ns
    assert first == unchanged < last
    assert capsys.readouterr().out.count("see file://") == 2
    assert f'http-equiv="refresh" content="{FOLLOW_S}"' in page.read_text(encoding="utf-8")


def test_following_waits_for_a_file_and_reads_a_cut_one_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "later.jsonl"
    pause = Stream(
        lambda: write(path, (line(at, batch=at) for at in (1, 2, 3))),
        path.unlink,
        lambda: write(path, iter([line(100, batch=4)])),
    )
    assert main([str(path), "--terminal", "--follow"], pause) == 130
    shown = capsys.readouterr().out
    assert shown.startswith("No commit has been reported yet")
    assert "3 micro-batches, " in shown
    assert "1 micro-batch, " in shown
    assert "has become shorter, and was read again" in shown


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert "exit codes:" in shown


@pytest.mark.slow
def test_a_large_file_is_read_in_little_memory(tmp_path: Path) -> None:
    """100 MB here, within 200 MB; a file of 1 GB takes no more, only ten times as long."""
    path, block = tmp_path / "large.jsonl", io.StringIO()
    for at in range(1, 101):
        block.write(line(at, batch=at, partitions=[1] * 100) + "\n")
    with path.open("w") as file:
        while file.tell() < 100_000_000:
            file.write(block.getvalue())
    done = subprocess.run(
        [
            *[sys.executable, "-c"],
            "import sys; from spark_kafka_sink.tools.report.command import main; code = main(sys.argv[1:]);"
            " print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(code)",
            *[str(path), "--terminal"],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    highest = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)  # not ru_maxrss, which counts the process that it was forked from
    assert highest is not None
    assert int(highest[1]) < 200_000
    assert "micro-batches" in done.stdout


# FOR PROGRAMS


def test_json_has_an_object_for_each_query_and_needs_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    lines = [line(at, batch=at, rows=1_000, skipped={"zu groß": 2}) for at in (10, 20)]
    path = write(tmp_path / "r.jsonl", iter([*lines, *one_commit(), "nonsense"]))
    assert main([str(path), "--json"]) == 0
    output = capsys.readouterr()
    batch, stream = (json.loads(text) for text in output.out.splitlines())
    assert (batch["query_id"], batch["commits"], batch["rows"]) == (None, 1, 336_774)
    assert batch["skipped_by_reason"] == {}
    assert batch["exactly_once"] is None
    assert (stream["query_id"], stream["commits"], stream["rows"]) == (QUERY, 2, 2_000)
    assert stream["skipped_by_reason"] == {"zu groß": 4}
    assert output.out.isascii()  # `\xdf`, as a terminal without UTF-8 got it, is no JSON
    assert stream["topics"] == {"orders": 2_000}
    assert stream["last_at_ms"] - stream["first_at_ms"] > 10_000
    assert any("4 rows" in each["text"] and each["trouble"] for each in stream["findings"])
    assert "1 line was left out" in output.err


def test_json_of_a_file_without_numbers_has_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "r.jsonl", iter([line(5, tasks=0)]))
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows_per_second"] is None


def test_json_and_a_table_are_not_printed_together(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([str(report), "--json", "--terminal"])
    assert raised.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_while_a_long_file_is_read_stderr_says_how_many_commits_came(
    report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def at_once(say: Callable[[], object]) -> Iterator[None]:
        yield
        say()

    monkeypatch.setattr("spark_kafka_sink.tools.report.command.say_if_slow", at_once)
    assert main([str(report), "--terminal"]) == 0
    assert capsys.readouterr().err == "report: at work for 10 s; 1 commit read so far\n"
