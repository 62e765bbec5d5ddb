"""Finds the Java for Spark and the local Kafka broker. Raises ToolError if there is none or it is too old.

`kafka_jars` and `local_kafka` start JVMs with it. Looks where Spark looks, in the same order: JAVA_HOME, then the path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_kafka_sink.tools.errors import ToolError

MIN_JAVA_VERSION = 17  # Spark 4 and Kafka 4 brokers both need it
VERSION_TIMEOUT_S = 30

_REMEDY = f"install a JDK or JRE {MIN_JAVA_VERSION} or newer, or point JAVA_HOME at one"


def find_java() -> Path:
    """The `java` program. Raises ToolError if it is missing or too old; blocks VERSION_TIMEOUT_S at most, for `java -version`."""
    java = java_program()
    version = _major_version(java)
    if version < MIN_JAVA_VERSION:
        raise ToolError(f"Java {version} at {java} is too old for Spark and Kafka: {_REMEDY}.")
    return java


def java_program() -> Path:
    """The `java` program of any version. Raises ToolError when there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ToolError(f"JAVA_HOME is {home}, but there is no program {java}: {_REMEDY}.")
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise ToolError(f"No Java was found, neither in JAVA_HOME nor on the path: {_REMEDY}.")
    return Path(on_path)


def _major_version(java: Path) -> int:
    try:
        command = [str(java), "-version"]
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{java} does not run ({error}): {_REMEDY}.") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise ToolError(f"{java} does not run (`java -version` ended with {answer.returncode}): {_REMEDY}.")
    major, minor = match.groups()
    return int(minor) if major == "1" and minor else int(major)  # Java 8 and older call themselves 1.8
