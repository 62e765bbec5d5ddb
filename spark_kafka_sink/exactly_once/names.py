"""The names of transactional ids and groups.

    P-owner-partition-number        transactional id of a task attempt; the number is the attempt + 1000 * slot, see `id_number`
    P-owner-partition-marker        group of the markers of one Spark partition
    P-owner-decision                group of the owner's decision
    P-owner-index-overflow          groups for the part of a decision that does not fit into one offset
    P-owner-exponent-width          groups that record that a version has had up to 2**exponent partitions
    P-owner-heartbeat               group of the heartbeats of the owner's tasks, see heartbeat.py
    P-aborted                       group of the record that writes were aborted
    P-check                         transactional id of `pykafka-sink check --write`; an id of a task ends with a number instead

No name contains a version or a run of the driver. So an owner has more names only if a write has more partitions or attempts, or
if ids are not settled (settling.py), not with each write. No part but the prefix P contains a dash, so a name can be parsed from
its end. The ids of the prefix `job` are never taken for those of `job-2`, and no two kinds of groups share a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

UNNAMED_OWNER = "%unnamed"  # equals no escaped name: there two hex digits follow each %
FIELDS_AFTER_PREFIX = 3
_MAX_DIGITS = 19  # of the longest partition or attempt that is read


SLOT_SIZE = 1_000  # more than Spark tries a task
FIRST_SLOT = 1  # 0: ids of versions of this package that did not settle them


class AttemptId(NamedTuple):
    """The parts of a transactional id after its prefix. `owner` is escaped, see `escape_name`; `number` is an `id_number`."""

    owner: str
    partition: int
    number: int

    @property
    def attempt(self) -> int:
        """Spark's number of the attempt."""
        return self.number % SLOT_SIZE


def id_number(attempt: int, slot: int) -> int:
    """The last part of a transactional id. An attempt has one id for each slot: it takes the first one that is settled."""
    return attempt + SLOT_SIZE * slot


def escape_name(name: str) -> str:
    """The name with %XX for all but ASCII letters, digits, `_`, `.` and `~`: no dashes. Different names stay different."""
    return quote(name, safe="").replace("-", "%2D")


def unescape_name(escaped_name: str) -> str:
    """The name that `escape_name` has escaped, as users know it. The owner of unnamed writes is no such name, and stays."""
    return unquote(escaped_name)


def shown_owner(owner: str) -> str:
    """An owner as messages name it. 32 hexadecimal digits are a query's id: with the dashes that Spark and reports show."""
    if owner == UNNAMED_OWNER:
        return "writes without a name"
    return f"query {UUID(owner)}" if re.fullmatch("[0-9a-f]{32}", owner) else unescape_name(owner)


@dataclass(frozen=True, slots=True)
class PrefixNames:
    """Makes the transactional ids and group names of one prefix, and reads them."""

    prefix: str  # option transactionalIdPrefix

    @property
    def id_prefix(self) -> str:
        """What every transactional id of this prefix begins with. Ids of other prefixes may begin so too, see `parse`."""
        return f"{self.prefix}-"

    def transactional_id(self, attempt_id: AttemptId) -> str:
        return f"{self.prefix}-{attempt_id.owner}-{attempt_id.partition}-{attempt_id.number}"

    def parse(self, transactional_id: str) -> AttemptId | None:
        """None for an id that is not of this prefix."""
        prefix, *parts = transactional_id.rsplit("-", FIELDS_AFTER_PREFIX)
        if len(parts) < FIELDS_AFTER_PREFIX or prefix != self.prefix:
            return None
        owner, partition, number = parts
        if not (_is_number(partition) and _is_number(number)):
            return None
        return AttemptId(owner, int(partition), int(number))

    def marker_group(self, owner: str, partition: int) -> str:
        return f"{self.prefix}-{owner}-{partition}-marker"

    def decision_group(self, owner: str) -> str:
        return f"{self.prefix}-{owner}-decision"

    def overflow_group(self, owner: str, index: int) -> str:
        return f"{self.prefix}-{owner}-{index}-overflow"

    def width_group(self, owner: str, exponent: int) -> str:
        return f"{self.prefix}-{owner}-{exponent}-width"

    def heartbeat_group(self, owner: str) -> str:
        return f"{self.prefix}-{owner}-heartbeat"

    @property
    def check_id(self) -> str:
        return f"{self.prefix}-check"

    @property
    def aborted_group(self) -> str:
        return f"{self.prefix}-aborted"


def _is_number(text: str) -> bool:
    """Whether `transactional_id` could have written it. Other ids may have more digits than int() takes, or leading zeros."""
    is_short = len(text) <= _MAX_DIGITS
    return is_short and text.isascii() and text.isdecimal() and str(int(text)) == text
