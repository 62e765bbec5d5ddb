"""The README is true."""

from __future__ import annotations

from tests.readme_tables import README, filled_in


def test_its_tables_are_what_the_code_prints() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == filled_in(text), "run: python -m tests.readme_tables"
