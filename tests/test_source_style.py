"""The parts of the house style that ruff does not know: headings, names of tests, imports of tests, one class for each name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
LONGEST_TEST_NAME = 79


def sources() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "jobs", ROOT / "tests"):
        yield from sorted(folder.rglob("*.py"))


def found(pattern: str, files: Iterator[Path]) -> list[tuple[str, str]]:
    """Each match's first group, and its file."""
    return [(text, str(file.relative_to(ROOT))) for file in files for text in re.findall(pattern, file.read_text(), re.MULTILINE)]


def test_headings_are_a_comment_in_capitals_without_rulers() -> None:
    assert found(r"^\s*# ?([-=#*]{3,}.*)$", sources()) == []


def test_names_of_tests_are_short() -> None:
    names = found(r"^ *def (test_\w+)", sources())
    assert len(names) > 3_000
    assert [name for name in names if len(name[0]) > LONGEST_TEST_NAME] == []


def test_files_of_tests_take_nothing_but_tests_from_each_other() -> None:
    """Fixtures are in conftest.py, and what else tests share in modules that are no tests."""
    taken = []
    for file in (ROOT / "tests").rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        for module, name in ((node.module or "", each.name) for node in imports for each in node.names):
            is_file_of_tests = module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")
            if is_file_of_tests != name.startswith("test_"):
                taken.append(f"{file.relative_to(ROOT)}: {module}.{name}")
    assert taken == []


def test_tests_that_a_package_lists_are_there() -> None:
    """Four of Spark's scenarios were listed with tests that had been renamed or taken out."""
    names = [name for name, _ in found(r"^ *def (test_\w+)", sources())] + [file.stem for file in sources()]
    there = "\n".join(["", *names, ""])
    listed = found(r"\b(test_\w+…?)", iter([file for file in sources() if file.name == "__init__.py"]))
    assert len(listed) > 300
    assert [name for name in listed if f"\n{name[0]}\n".replace("…\n", "") not in there] == []


def test_no_two_classes_of_the_package_share_a_name() -> None:
    times = Counter(name for name, _ in found(r"^class ([A-Z]\w*)", iter(sorted(PACKAGE.rglob("*.py")))))
    assert [name for name, count in times.items() if count > 1] == []
