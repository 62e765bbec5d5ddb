"""The tables that say where the scenarios of other clients are found name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import tests.producer
import tests.producer.transactions

TESTS = Path(__file__).parents[1]
NAME = re.compile(r"(?<![\w…])(?:test_|…_)[\w…()|]*")  # … stands for any letters, (a|b) for either of the two


def existing() -> set[str]:
    """Test functions, and files of tests."""
    files = list(TESTS.rglob("test_*.py"))
    functions = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))}
    return functions | {file.stem for file in files}


def as_pattern(name: str) -> str:
    special = {"…": r"\w*", "(": "(?:", ")": ")", "|": "|"}
    return "".join(special.get(letter, letter) for letter in name)


@pytest.mark.parametrize("package", [tests.producer, tests.producer.transactions], ids=lambda package: package.__name__)
def test_every_test_that_a_table_names_exists(package: ModuleType) -> None:
    existing_names = "\n".join(existing())
    names_in_tables = NAME.findall(package.__doc__ or "")
    assert len(names_in_tables) > 50
    assert [name for name in names_in_tables if not re.search(f"^{as_pattern(name)}$", existing_names, re.MULTILINE)] == []
