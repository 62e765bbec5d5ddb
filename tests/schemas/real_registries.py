"""Real schema registries on this machine, for tests: Apicurio's through its Confluent-compatible API, and franz-go's srfake.

Apicurio's distribution is fetched once by Ivy into the user's cache, as Kafka's jars are. srfake is built by Go from its module.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.java import find_java
from jobs.kafka_jars import Dependency, cache_dir, fetch, file_lock
from jobs.ports import free_port

APICURIO_VERSION = "3.0.9"  # later ones need Java 21
APICURIO_SHA256 = "?"
START_TIMEOUT_S = 120


@dataclass(frozen=True)
class Distribution(Dependency):
    """An archive with a classifier in place of a jar. Ivy takes its type for a jar's, and its extension from here."""

    classifier: str = "all"
    extension: str = "tar.gz"

    def as_xml(self) -> str:
        return (
            f'<dependency xmlns:m="http://ant.apache.org/ivy/maven" org="{self.organisation}" name="{self.artifact}"'
            f' rev="{self.revision}" conf="default->default" transitive="false"><artifact name="{self.artifact}" type="jar"'
            f' ext="{self.extension}" m:classifier="{self.classifier}"/></dependency>'
        )


APICURIO = Distribution("io.apicurio", "apicurio-registry-app", APICURIO_VERSION, transitive=False)
