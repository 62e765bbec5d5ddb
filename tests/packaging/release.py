"""What keeps this checkout from being released: python -m tests.packaging.release v0.1.0

Prints one sentence for each problem; exit code 1 if there is one. Needs nothing but Python.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "OWNER"


def problems(root: Path, tag: str) -> list[str]:
    """Of the checkout at `root`, if it is to be released as this tag."""
    version = version_of(root)
    messages = []
    if PLACEHOLDER in repository(root).split("/"):
        messages.append(
            f"[project.urls] of pyproject.toml has a placeholder, {repository(root)}: put the repository's address there."
        )
    if tag != f"v{version}":
        messages.append(f"The tag is {tag}, but __version__ of spark_kafka_sink is {version}: the tag must be v{version}.")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", _read(root, "CHANGELOG.md"), re.MULTILINE):
        messages.append(f"CHANGELOG.md has no line '## {version} - YYYY-MM-DD': write the day of the release there.")
    return messages


def version_of(root: Path) -> str:
    return re.findall(r'^__version__ = "(.+?)"', _read(root, "spark_kafka_sink/__init__.py"), re.MULTILINE)[0]


def repository(root: Path) -> str:
    return str(tomllib.loads(_read(root, "pyproject.toml"))["project"]["urls"]["Repository"])


def _read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def main(tag: str) -> int:
    messages = problems(ROOT, tag)
    print("\n".join(messages) or f"{tag} can be released.")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
