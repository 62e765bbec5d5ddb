"""The names of transactional ids and groups.

    P-owner-partition-run-attempt     transactional id of a task attempt
    P-owner-partition-marker          group of the markers of one Spark partition
    P-owner-decision                  group of the owner's decision
    P-owner-run-number-chunk          groups of what a decision is too long for
    P-write-aborted                   group of the record that a write was aborted
    P-owner-run-pulse                 group of the pulse of a run's tasks, see pulse.py

No part but the prefix P contains a dash, so each name is read from its end without doubt: the ids of the prefix `job` are never
taken for those of `job-2`, and no two kinds of groups share a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

_PARTS_AFTER_PREFIX = 4
_MOST_DIGITS = 19  # of a partition or an attempt, whatever of Spark's numbers stands there


class TaskId(NamedTuple):
    """What a transactional id says. All parts but the numbers are escaped, see `escaped`."""

    owner: str
    partition: int
    run: str
    attempt: int


def escaped(name: str) -> str:
    """The name without dashes: they and all but letters, digits, `_`, `.` and `~` become %XX. Different names stay different."""
    return quote(name, safe="").replace("-", "%2D")


@dataclass(frozen=True, slots=True)
class Names:
    """Args: prefix: option transactionalIdPrefix."""

    prefix: str

    @property
    def listed(self) -> str:
        """What every transactional id of this prefix begins with. Ids of other prefixes may begin so too, see `parse`."""
        return f"{self.prefix}-"

    def transactional_id(self, task: TaskId) -> str:
        return f"{self.prefix}-{task.owner}-{task.partition}-{task.run}-{task.attempt}"

    def of_partition(self, owner: str, partition: int) -> str:
        """What the transactional ids of one Spark partition begin with."""
        return f"{self.prefix}-{owner}-{partition}-"

    def parse(self, transactional_id: str) -> TaskId | None:
        """None for an id that is not of this prefix."""
        parts = transactional_id.rsplit("-", _PARTS_AFTER_PREFIX)
        if len(parts) <= _PARTS_AFTER_PREFIX or parts[0] != self.prefix:
            return None
        _, owner, partition, run, attempt = parts
        if not (_is_number(partition) and _is_number(attempt)):
            return None
        return TaskId(owner, int(partition), run, int(attempt))

    def marker_group(self, owner: str, partition: int) -> str:
        return f"{self.prefix}-{owner}-{partition}-marker"

    def decision_group(self, owner: str) -> str:
        return f"{self.prefix}-{owner}-decision"

    def chunk_group(self, owner: str, run: str, number: int) -> str:
        return f"{self.prefix}-{owner}-{run}-{number}-chunk"

    def aborted_group(self, write: str) -> str:
        return f"{self.prefix}-{write}-aborted"

    def pulse_group(self, owner: str, run: str) -> str:
        return f"{self.prefix}-{owner}-{run}-pulse"


def _is_number(text: str) -> bool:
    """As `transactional_id` writes it. Others may have ids with any digits: more than int() takes, or zeros that it loses."""
    is_short = len(text) <= _MOST_DIGITS
    return is_short and text.isascii() and text.isdecimal() and str(int(text)) == text
