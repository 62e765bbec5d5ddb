"""jobs/quickstart: the program end to end, and the failures of its shell script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import quickstart_flights
from jobs.local_kafka import LocalKafka
from jobs.quickstart_flights import draw_page, report_lines
from spark_kafka_sink.sink.commit_summary import CommitSummary

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_every_flight_arrives_and_nothing_is_left_running(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = _quickstart("--work-dir", str(tmp_path / "kafka"), "--report", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the broker's end offsets add up to 336,776 new rows" in done.stdout
    assert done.stdout.rstrip().endswith("nothing that was started still runs")
    assert list(tmp_path.iterdir()) == [page]
    assert f"what the sink did, for your browser: {page.as_uri()}" in done.stdout
    assert "Rows by partition of flights" in page.read_text(encoding="utf-8")


def test_a_topic_that_exists_on_the_users_broker_is_left_alone(broker: LocalKafka) -> None:
    broker.create_topic("taken")
    done = _quickstart("--bootstrap-servers", broker.bootstrap_servers, "--topic", "taken")
    assert done.returncode == 1
    message = f"quickstart: error: Topic taken already exists at {broker.bootstrap_servers}: choose another with --topic.\n"
    assert done.stderr.endswith(message)


def test_ctrl_c_leaves_it_to_the_end_of_the_broker_to_say_what_still_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --keep-broker, "everything that was started has been stopped" followed the command that stops the broker."""

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(quickstart_flights, "_run", interrupt)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert quickstart_flights.main(["--keep-broker"]) == 130
    assert capsys.readouterr().err == "quickstart: interrupted\n"


def test_without_the_extra_the_quick_start_goes_on_and_says_how_to_get_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = draw_page(tmp_path / "r.jsonl", tmp_path / "page.html")
    assert said.startswith("not drawn: The page needs matplotlib: pip install ")
    assert "\n" not in said


def test_a_page_that_cannot_be_written_does_not_fail_the_quick_start(tmp_path: Path) -> None:
    report = tmp_path / "r.jsonl"
    report.touch()
    said = draw_page(report, tmp_path / "missing" / "page.html")
    assert said.startswith("not drawn: The page cannot be written to ")


def test_the_report_shows_each_partition_and_the_sums() -> None:
    counters = {"batch-send-total": 4, "byte-total": 500, "uncompressed-byte-total": 1500}
    offsets = {"t": {str(p): {"first": 0, "last": 9, "rows": 10, "bytes": 50} for p in (0, 2, 10)}}
    report = {"rows": 30, "bytes": 150, "tasks": 2, "running_seconds": 1.5, "counters": counters, "offsets": offsets}
    others = json.loads(CommitSummary.of([]).to_json(1))
    lines = list(report_lines(json.dumps(others | report), 4.0))
    assert [line.split()[0] for line in lines[1:4]] == ["t-0", "t-2", "t-10"]
    assert lines[4].split() == ["all", "30", "150"]
    assert "3.0 times smaller" in lines[5]
    assert lines[6] == "20 rows/s were written while 2 tasks ran (1.5 s)"


@pytest.mark.parametrize(
    ("java", "message"),
    [
        (None, "Java does not run as 'java'"),
        ("echo 'openjdk version \"11.0.1\"' >&2", "Java 11 at 'java' is too old"),
        ("echo 'java version \"1.8.0_1\"' >&2", "Java 1 at 'java' is too old"),
    ],
)
def test_the_shell_checks_java_before_it_makes_an_environment(tmp_path: Path, java: str | None, message: str) -> None:
    if java is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "java").chmod(0o755)
    done = _shell("require_java", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


def test_the_shell_says_which_pythons_it_looked_for(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    done = _shell("make_environment .venv '[spark]'", tmp_path, PYTHON="python2.7")
    assert done.returncode == 1
    assert done.stderr.startswith("error: No Python 3.11 or newer with its venv module was found as python2.7")


PIP = """#!/bin/sh
# Plays Python: makes an environment with itself inside, and installs as FAKE_PIP says.
case "$2" in
    venv) /bin/mkdir -p "$3/bin"; /bin/cp "$0" "$3/bin/python" ;;
    pip)
        echo "Collecting pyspark"
        echo "  Downloading pyspark-4.3.0.tar.gz.metadata (5 kB)"
        echo "  Downloading pyspark-4.3.0.tar.gz (450.0 MB)"
        echo "Installing collected packages: pyspark"
        echo "ERROR: as planned" >&2
        exit $FAKE_PIP ;;
esac
"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_shell_shows_what_pip_does_and_what_it_fails_with(tmp_path: Path, fails: bool) -> None:
    """The script printed nothing for half a minute."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "python3").write_text(PIP)
    (tmp_path / "python3").chmod(0o755)
    done = _shell("make_environment .venv '[spark]'", tmp_path, PYTHON="python3", FAKE_PIP=str(int(fails)))
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("making the Python environment .venv")
    steps = ["  Downloading pyspark-4.3.0.tar.gz (450.0 MB)", "  Installing collected packages: pyspark"]
    assert [line for line in lines if line.startswith(" ")] == steps
    assert "ERROR: as planned" in lines
    assert done.returncode == int(fails)
    assert (tmp_path / ".venv" / ".stamp").exists() != fails
    assert ("error: pip could not install this project" in done.stderr) == fails


CALLS = """#!/bin/sh
# Plays Python: makes an environment with itself inside, and writes down what pip is called with.
case "$2" in
    venv) /bin/mkdir -p "$3/bin"; /bin/cp "$0" "$3/bin/python" ;;
    pip) echo "$@" >>calls ;;
esac
"""


@pytest.mark.parametrize(
    ("what", "installed"),
    [("[spark,report]", ["-e .[spark,report]"]), ("test", ["pip>=25.1", "-e . --group test"])],
)
def test_extras_are_in_brackets_and_a_group_needs_a_new_pip(tmp_path: Path, what: str, installed: list[str]) -> None:
    """The pip of older Pythons rejects --group."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "python3").write_text(CALLS)
    (tmp_path / "python3").chmod(0o755)
    done = _shell(f"make_environment .venv '{what}'", tmp_path, PYTHON="python3")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.partition(" --no-input ")[2] for call in calls] == installed


def _shell(command: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a function of environment.sh. Its path has only `path` and links to the basic tools."""
    tools = path / "tools"
    tools.mkdir()
    for tool in ("bash", "sed", "head", "cat", "rm", "cksum"):
        tool_path = next(Path(d) / tool for d in ("/bin", "/usr/bin") if (Path(d) / tool).exists())
        (tools / tool).symlink_to(tool_path)
    return subprocess.run(
        [str(tools / "bash"), "-c", f". {ROOT}/jobs/environment.sh; {command}"],
        env={"PATH": f"{path}:{tools}", **environment},
        cwd=path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _quickstart(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jobs.quickstart_flights", *arguments],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
        check=False,
    )
