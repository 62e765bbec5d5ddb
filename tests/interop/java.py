"""Runs a single-file Java program against Apache Kafka's jars."""

from __future__ import annotations

import subprocess
from pathlib import Path

from jobs.java import find_java


def run_java(jars: Path, source: Path, *arguments: object) -> str:
    """What the program printed. Blocks for at most two minutes; fails with what it complained about."""
    command = [str(find_java()), "-Xmx512m", "-cp", f"{jars}/*", str(source), *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
