"""`pykafka-sink report`: what commits have reported, as a page of HTML, a table in the shell, or JSON.

This is the command: arguments, the order of the files, --follow, and the exit code.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeVar

from spark_kafka_sink.errors import printable
from spark_kafka_sink.tools.arguments import new_parser, tool_name
from spark_kafka_sink.tools.errors import ToolError
from spark_kafka_sink.tools.exit_codes import DONE, run_tool
from spark_kafka_sink.tools.patience import PATIENCE_S, say_if_slow
from spark_kafka_sink.tools.report import json_output, terminal
from spark_kafka_sink.tools.report.lines import ReportFile, Troubles
from spark_kafka_sink.tools.report.statistics import Statistics
from spark_kafka_sink.tools.words import counted

T = TypeVar("T")

FOLLOW_S = 10  # pause after each page
INSTALL = 'pip install "pykafka-sink[report]"'
PROG = "pykafka-sink report"
EXAMPLES = """
    PROG commits.jsonl -o report.html               a page for the browser
    PROG commits-*.jsonl -o report.html --follow    the same, made anew while streams run, until Ctrl-C
    PROG commits.jsonl --terminal                   a table for the shell, which needs no extra
    PROG commits.jsonl --json                       the sums of each query, for programs
"""


def main(argv: Sequence[str] | None = None, pause: Callable[[float], object] | None = None, prog: str = PROG) -> int:
    """Exit code: 0 done, 1 failed with one sentence, 2 usage, 130 Ctrl-C. `pause`: how --follow waits, for tests."""
    arguments = build_parser(prog).parse_args(argv)
    name = tool_name(prog)
    return run_tool(name, lambda: _run(arguments, pause, name))


def build_parser(prog: str = PROG) -> argparse.ArgumentParser:
    description = "Show what the sink did: a page from the lines that commits have appended to reportPath."
    parser = new_parser(prog, description, EXAMPLES, success="done", failure="failed, with one line on stderr that says why")
    add = parser.add_argument
    files_help = "files of commits' lines, in any order (option reportPath of the sink)"
    add("files", nargs="+", type=Path, metavar="FILE", help=files_help)
    add("-o", "--output", type=Path, metavar="FILE", default=Path("report.html"), help="the page (default: %(default)s)")
    output_group = parser.add_mutually_exclusive_group()
    output_group.add_argument("--terminal", action="store_true", help="print a table with sparklines instead of making a page")
    output_group.add_argument("--json", action="store_true", help="print a JSON object for each query instead of making a page")
    add("--follow", action="store_true", help=f"go on, and show what is new every {FOLLOW_S} s; the page is replaced as a whole")
    return parser


def _run(arguments: argparse.Namespace, pause: Callable[[float], object] | None, name: str) -> int:
    if not (arguments.terminal or arguments.json):
        require_extra()
    reports = Reports(arguments.files, may_be_missing=arguments.follow)
    rounds = reports.read(must_follow=arguments.follow, pause=pause)
    with say_if_slow(lambda: print(_progress_line(reports, name), file=sys.stderr, flush=True)):
        next(rounds)
        _show(reports, arguments)
    for is_new in rounds:
        if is_new:
            _show(reports, arguments)
    return DONE


def _progress_line(reports: Reports, name: str) -> str:
    return f"{name}: at work for {PATIENCE_S} s; {counted(reports.troubles.commit_count, 'commit')} read so far"


def _show(reports: Reports, arguments: argparse.Namespace) -> None:
    if arguments.terminal:
        if arguments.follow and sys.stdout.isatty():
            print("\033[H\033[2J", end="")  # begins at the top of an empty screen
        print("\n".join(terminal.lines(reports.statistics, reports.troubles)), flush=True)
        return
    if not arguments.json:
        write_page(reports, arguments.output, refresh_s=FOLLOW_S if arguments.follow else None)
    for sentence in reports.troubles.sentences():
        print(sentence, file=sys.stderr)
    if arguments.json:
        for line in json_output.json_lines(reports.statistics):
            print(line, flush=True)
        return
    print(f"{counted(reports.troubles.commit_count, 'commit')}: see {arguments.output.resolve().as_uri()}", flush=True)


def require_extra() -> None:
    """Raises ToolError if jinja2 or matplotlib, which the page needs, is not installed."""
    try:
        import jinja2  # noqa: F401 - for page.py and pictures.py
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ToolError(f"The page needs {error.name}: {INSTALL}. --terminal shows the numbers without it.") from error


class Reports:
    """Reads report files. `statistics` and `troubles` have what is known so far.

    Args:
        files: in any order; one that is named twice is read once.
        may_be_missing: whether a file may appear later; otherwise a missing one is an error.
    """

    def __init__(self, files: Sequence[Path], *, may_be_missing: bool = False) -> None:
        self.paths = list(dict.fromkeys(files))
        self._may_be_missing = may_be_missing
        self._begin()

    def _begin(self) -> None:
        self.troubles = Troubles()
        self.statistics = Statistics()
        files = [ReportFile(path, self.troubles) for path in self.paths]
        self._files = sorted(files, key=lambda file: self._read(file, file.first_commit_at_s, if_missing=inf))

    def _read(self, file: ReportFile, read: Callable[[], T], *, if_missing: T) -> T:
        """What `read` returns, or `if_missing` for a file that may appear later. Raises ToolError for one that cannot be read."""
        try:
            return read()
        except OSError as error:
            if self._may_be_missing and isinstance(error, FileNotFoundError):
                return if_missing
            remedy = "name the file that the sink's option reportPath names, on the driver's machine"
            raise ToolError(f"{printable(file.path)} cannot be read ({error.strerror or error}): {remedy}.") from error

    def read(self, *, must_follow: bool = False, pause: Callable[[float], object] | None = None) -> Iterator[bool]:
        """Read the files, and yield. With `must_follow`, go on without end: pause for FOLLOW_S seconds, read what is new, yield.

        Yields whether there is something new to show. Raises ToolError for a file that cannot be read.
        """
        pause = pause or time.sleep
        is_first = True
        while True:
            commits_before = self.troubles.commit_count
            has_begun_anew = self._begin_again_if_cut()
            for file in self._files:
                self._read(file, partial(self.statistics.add, file.commits()), if_missing=None)
            yield is_first or has_begun_anew or self.troubles.commit_count != commits_before
            if not must_follow:
                return
            is_first = False
            pause(FOLLOW_S)

    def _begin_again_if_cut(self) -> bool:
        """If a file was cut or replaced, read all files anew, because the sums are of all. Returns whether one was."""
        cut_files = [str(file.path) for file in self._files if self._read(file, file.has_begun_anew, if_missing=False)]
        if not cut_files:
            return False
        self._begin()
        self.troubles.shortened_files += cut_files
        return True


def write_page(reports: Reports, output: Path, *, refresh_s: int | None = None) -> None:
    """Write the page. Needs the extra `report`. Raises ToolError if the page cannot be written."""
    from spark_kafka_sink.tools.report import page

    names = [path.name for path in reports.paths]
    try:
        page.replace_file(output, page.html(reports.statistics, reports.troubles, names, refresh_s))
    except OSError as error:
        why = f"{printable(output)} ({error.strerror or error})"
        raise ToolError(f"The page cannot be written to {why}: choose another with -o.") from error
