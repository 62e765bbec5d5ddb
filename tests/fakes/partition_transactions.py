"""The transactions of one partition: which are open, which were aborted, and which records read_committed readers see.

The fake that uses this holds the log, and calls `write` and `end` for what it appends. No sockets, threads or clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Marker(NamedTuple):
    """A control record at the end of a transaction. It takes one offset of the log, and readers do not see it."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of the marker


@dataclass
class PartitionTransactions:
    first_offsets: dict[int, int] = field(default_factory=dict)  # producer id -> first offset of its open transaction
    aborted: list[AbortedTransaction] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)  # in log order

    def is_open(self, producer_id: int) -> bool:
        return producer_id in self.first_offsets

    def write(self, producer_id: int, base_offset: int) -> None:
        """Called after a transactional batch was appended."""
        self.first_offsets.setdefault(producer_id, base_offset)

    def end(self, marker: Marker) -> None:
        """Called after a marker was appended. A marker of a transaction without records changes nothing for readers."""
        self.markers.append(marker)
        first_offset = self.first_offsets.pop(marker.producer_id, None)
        if first_offset is not None and not marker.committed:
            self.aborted.append(AbortedTransaction(marker.producer_id, first_offset, marker.offset))

    def last_stable_offset(self, end_offset: int) -> int:
        """The end of what read_committed readers can read: the first record of the oldest open transaction, or the log's end."""
        return min(self.first_offsets.values(), default=end_offset)

    def is_visible(self, *, offset: int, producer_id: int, is_transactional: bool, end_offset: int) -> bool:
        """Whether read_committed readers see the record at `offset`."""
        if offset >= self.last_stable_offset(end_offset):
            return False
        return not is_transactional or not any(
            aborted.producer_id == producer_id and aborted.first_offset <= offset <= aborted.last_offset
            for aborted in self.aborted
        )
