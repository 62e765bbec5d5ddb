"""A run of many tests: in which order they run, in which process of pytest-xdist, and what was left out.

One process runs the fast tests first. With several processes (tests/run), each runs whole modules, and starts a broker of its
own for the first module that needs one. The tests that share a Spark session run in two of them. What takes longest starts first.

pytest-xdist has --dist loadgroup for this. Its latest version, 3.8, ignores the groups with pytest 9.2.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What tests/run leaves out, by mark, and what runs it. The first that fits is counted.
REMEDIES = {
    "matrix": "tests/run --all",
    "soak": "tests/run --all",
    "slow": "tests/run --ci",
    "spark": "tests/run --ci",
    "broker": "tests/run --ci",
}
OTHERS = ""
LEFT_OUT = pytest.StashKey[Counter[str]]()
GROUPS = pytest.StashKey[dict[str, str]]()
GROUPS_FILE = "pykafka_sink_groups_file"
SPARK_SESSIONS = 2


def arrange(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, which have their marks already."""
    if not _is_worker(config):
        items.sort(key=lambda item: (_has(item, "spark"), _has(item, "broker")))
        return
    with_session = sorted({_module(item) for item in items if _shares_spark(item)})
    session_of = {module: f"Spark {number % SPARK_SESSIONS}" for number, module in enumerate(with_session)}
    groups = config.stash[GROUPS] = {
        item.nodeid: session_of[_module(item)] if _shares_spark(item) else _module(item) for item in items
    }
    ranks = [{groups[item.nodeid] for item in items if _has(item, kind)} for kind in ("slow", "spark", "broker")]
    items.sort(key=lambda item: (not _shares_spark(item), *(groups[item.nodeid] not in ranked for ranked in ranks)))


def _has(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None


def _module(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def _shares_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _is_worker(config: pytest.Config) -> bool:
    """Whether this is one of pytest-xdist's processes that run tests."""
    return hasattr(config, "workerinput")


# A GROUP OF TESTS RUNS IN ONE PROCESS: these processes know the groups, the one that hands tests out does not collect


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[GROUPS_FILE] = os.path.join(tempfile.gettempdir(), f"pykafka-sink-groups-{node.workerinput['testrunuid']}")


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # ten thousand tests live to the end: no collection of a test's garbage walks through them
    if _is_worker(session.config):
        file = Path(session.config.workerinput[GROUPS_FILE])
        whole = file.with_suffix(f".{os.getpid()}")
        whole.write_text(json.dumps(session.config.stash[GROUPS]), encoding="utf-8")
        whole.replace(file)  # the processes write the same


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:
                file = Path(next(iter(self.nodes)).workerinput[GROUPS_FILE])
                self.groups = json.loads(file.read_text(encoding="utf-8"))
                file.unlink()
            return self.groups[nodeid]

    config.option.loadscopereorder = False  # the largest groups are not the slowest
    return ByGroup(config, log)


# WHAT WAS LEFT OUT


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        excluded = [mark for mark in REMEDIES if f"not {mark}" in item.config.option.markexpr]
        mark = next((mark for mark in excluded if _has(item, mark)), OTHERS)
        item.config.stash.setdefault(LEFT_OUT, Counter())[mark] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker(session.config):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process has collected all tests, so one count is as good as another; one that crashed has none."""
    if counts := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = Counter(counts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """The last line before pytest's own last line."""
    yield
    left_out = config.stash.get(LEFT_OUT, Counter())
    terminalreporter.stats.setdefault("deselected", [None] * left_out.total())  # pytest-xdist does not count them
    counts = [f"{left_out[mark]} {mark} ({remedy})" for mark, remedy in REMEDIES.items() if left_out[mark]]
    counts += [f"{left_out[OTHERS]} by other options"] if left_out[OTHERS] else []
    selection = config.option.markexpr or "all tests"
    terminalreporter.write_line(f"selection: {selection}; left out: {', '.join(counts) or 'nothing'}")
