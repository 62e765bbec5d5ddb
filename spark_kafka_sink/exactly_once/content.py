"""What a task, or a whole write, has to write: how many rows, and their fingerprint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_FINGERPRINTS = 1 << 64


class Content(NamedTuple):
    """`fingerprint`: the sum of the rows' hashes modulo 2**64, see fingerprint.py; 0 for a write that no other run can repeat."""

    rows: int = 0
    fingerprint: int = 0

    def __str__(self) -> str:
        return f"{self.rows} rows with fingerprint {self.fingerprint:016x}"


def total(contents: Iterable[Content]) -> Content:
    """The content of several partitions together."""
    each = list(contents)
    return Content(sum(one.rows for one in each), sum(one.fingerprint for one in each) % _FINGERPRINTS)
