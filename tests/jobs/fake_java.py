"""A shell script that is `java` for the code under test."""

from __future__ import annotations

from pathlib import Path

import pytest


def put_on_path(script: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns its file, which a test may write anew. Of other programs the path has only the system's."""
    java = directory / "bin" / "java"
    java.parent.mkdir()
    java.write_text(script)
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}:/bin:/usr/bin")
    return java
