"""Bounded memory for batches that wait to be sent.

Hands out blocks of one size: a batch grows block by block, so 3,000 partitions with few rows each do not exhaust the pool. Large
segments of records stay in memory of their own, for which the pool charges a number of blocks. Callers get memory in the order in
which they asked, so a large request cannot starve behind small ones. Prepaid records go first (`has_precedence`, `overdraw`).
Law until `end`, whenever the lock is free: blocks free + handed out + charged + balance == total blocks. Only an interrupt
while a call hands rows over may break it, and that interrupt ends the producer (producer/hand_overs.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordTooLargeError, closed_error
from spark_kafka_sink.interrupts import RECHECK_INTERVAL_MS, Waiter
from spark_kafka_sink.metrics import Stat

MAX_POOL_BLOCK_BYTES = 8 * 1024  # 3,000 partitions with a few rows each take 24 MB
MIN_POOL_BLOCK_BYTES = 1024  # below this, the bookkeeping of a block would cost more than its bytes

# At first, a caller that waits is woken only when a quarter of the pool is free. It then lays out and encodes thousands of rows
# together, while the Sender sends the other three quarters. After PATIENCE_MS the caller is woken as soon as it can get what it
# needs, because batches for a broker that is down may hold most of the pool.
MIN_WAKE_SHARE = 0.25
PATIENCE_MS = 100


@dataclass(slots=True)
class PoolMemory:
    """Memory of a pool that a batch or a caller holds: blocks, and a charge, counted in blocks, for memory outside of them."""

    blocks: list[bytearray] = field(default_factory=list)
    charge_blocks: int = 0

    def __len__(self) -> int:
        return len(self.blocks) + self.charge_blocks

    def add(self, other: PoolMemory) -> None:
        """Move all memory from `other` to this object."""
        self.blocks += other.blocks
        self.charge_blocks += other.charge_blocks
        other.blocks, other.charge_blocks = [], 0

    def take(self, block_count: int, charge_blocks: int) -> PoolMemory:
        """Move this many blocks, and a charge of this size, to a new object; returns the new object."""
        kept_count = len(self.blocks) - block_count
        memory = PoolMemory(self.blocks[kept_count:], charge_blocks)
        del self.blocks[kept_count:]
        self.charge_blocks -= charge_blocks
        return memory

    def charge_and_remainder(self, charge_blocks: int) -> tuple[PoolMemory, PoolMemory]:
        """Return a charge of this size, or of all that is held if that is less, and the remainder. Does not change this object.

        The existing charge is used first. Then blocks are exchanged for a charge: the bytes in them are no longer needed.
        """
        charged_memory = PoolMemory([], min(charge_blocks, len(self)))
        exchanged_count = max(0, charged_memory.charge_blocks - self.charge_blocks)
        remainder = PoolMemory(self.blocks[exchanged_count:], self.charge_blocks + exchanged_count - charged_memory.charge_blocks)
        return charged_memory, remainder


@dataclass(slots=True, eq=False)
class _Allocation:
    """What a caller asks for, and its place in the line."""

    block_count: int
    charge_blocks: int
    memory: PoolMemory  # gets what the caller asked for
    on_take: Callable[[], None]
    wake_threshold: int  # wake the caller when this many blocks are free
    waiter: Waiter = field(default_factory=Waiter)
    liveness_lock: threading.Lock = field(default_factory=threading.Lock)  # held until the caller has gone

    @property
    def needed_blocks(self) -> int:
        return self.block_count + self.charge_blocks


class BufferPool:
    """Hands out at most `total_memory` bytes (buffer.memory) at a time, except by `overdraw`. Any thread may call it. A block has
    8 KiB, or `batch_size` if that is less, but at least 1 KiB. A charge is counted in blocks."""

    def __init__(self, total_memory: int, batch_size: int, clock: Clock) -> None:
        self.block_size = max(1, min(MAX_POOL_BLOCK_BYTES, max(batch_size, MIN_POOL_BLOCK_BYTES), total_memory))
        self.total_blocks = total_memory // self.block_size
        self._clock = clock
        self._lock = threading.Lock()  # guards all fields below
        self._free_blocks: list[bytearray] = []  # made once and given back; the last one back is the first out (still in cache)
        # What neither blocks nor charges use: making a block or charging takes from it. Blocks are made when they are needed, so
        # that a small write takes little memory. An overdraft makes the balance negative, until as much has been given back.
        self._balance_blocks = self.total_blocks
        self._line: deque[_Allocation] = deque()  # oldest first; only the first whose caller still waits may take memory
        self._is_closed = False
        self._is_over = False
        self._ended_by: KafkaError | None = None
        self.waits = Stat()  # ns that callers have waited, for metrics
        self.timeouts = Stat()  # waits that timed out, for metrics

    def blocks_for(self, size_bytes: int) -> int:
        """How many blocks these bytes take."""
        return -(-size_bytes // self.block_size)

    def try_allocate(
        self, block_count: int, *, charge_blocks: int = 0, into: PoolMemory | None = None, has_precedence: bool = False
    ) -> PoolMemory | None:
        """Allocate memory without blocking; returns None if there is too little now, or if other callers are waiting.

        Raises only that the pool is closed. `has_precedence`: waiting callers do not count, an equal charge is given back soon.
        """
        memory = PoolMemory() if into is None else into
        with self._lock:
            if not self._are_free_locked(block_count + charge_blocks, has_precedence=has_precedence):
                return None
            self._take_locked(block_count, charge_blocks, memory)
        return memory

    def allocate(
        self,
        block_count: int,
        max_block_ms: int,
        *,
        charge_blocks: int = 0,
        into: PoolMemory | None = None,
        on_take: Callable[[], None] = lambda: None,
    ) -> PoolMemory:
        """Hand out blocks, and charge for memory of the caller's own as large as `charge_blocks` blocks.

        Blocks at most `max_block_ms` until memory is given back. With `into`, the memory is added to what the caller has there.
        `on_take` is called with the lock held, before memory is taken; an interrupt before that changes nothing.

        Raises:
            RecordTooLargeError: the request is larger than the whole pool.
            KafkaTimeoutError: there was not enough memory in time; nothing is handed out.
            ProducerClosedError, or the error that `close` was given: the pool was closed before the call or during the wait.
        """
        memory = PoolMemory() if into is None else into
        needed_blocks = block_count + charge_blocks
        if needed_blocks > self.total_blocks:
            raise RecordTooLargeError(
                f"{needed_blocks * self.block_size} bytes are needed at once, but buffer.memory allows"
                f" {self.total_blocks * self.block_size}; raise buffer.memory"
            )
        wake_threshold = max(needed_blocks, int(self.total_blocks * MIN_WAKE_SHARE))
        allocation = _Allocation(block_count, charge_blocks, memory, on_take, wake_threshold)
        with self._lock:
            if self._are_free_locked(needed_blocks):
                self._grant_locked(allocation)
                return memory
        started_ns = self._clock.now_ns()
        try:
            with allocation.liveness_lock:
                with self._lock:
                    self._line.append(allocation)
                self._wait_in_line(allocation, max_block_ms)
        finally:
            with self._lock:
                self._wake_next_locked()  # the next caller may take what is left
                self.waits.record(self._clock.now_ns() - started_ns)
        return memory

    def _wait_in_line(self, allocation: _Allocation, max_block_ms: int) -> None:
        wake_threshold, patience_ms = allocation.wake_threshold, min(PATIENCE_MS, max_block_ms)
        started_ms = self._clock.now_ms()
        while True:
            waited_ms = self._clock.now_ms() - started_ms
            is_patient = waited_ms < patience_ms
            with self._lock:
                self._check_open_locked()
                allocation.wake_threshold = wake_threshold if is_patient else allocation.needed_blocks
                if self._first_in_line_locked() is allocation and self._available_locked() >= allocation.wake_threshold:
                    self._grant_locked(allocation)
                    return
                if waited_ms >= max_block_ms:
                    self.timeouts.record(1)
                    raise self._timeout_error_locked(allocation.needed_blocks, max_block_ms)
                allocation.waiter = Waiter()
            left_ms = (patience_ms if is_patient else max_block_ms) - waited_ms
            self._clock.wait(allocation.waiter, min(left_ms, RECHECK_INTERVAL_MS))

    def _grant_locked(self, allocation: _Allocation) -> None:
        allocation.on_take()
        self._take_locked(allocation.block_count, allocation.charge_blocks, allocation.memory)

    def _are_free_locked(self, block_count: int, *, has_precedence: bool = False) -> bool:
        self._check_open_locked()
        return (has_precedence or self._first_in_line_locked() is None) and self._available_locked() >= block_count

    def _first_in_line_locked(self) -> _Allocation | None:
        """The entry of the caller who has waited longest. Drops the entries of callers that have gone."""
        while self._line and not self._line[0].liveness_lock.locked():
            self._line.popleft()
        return self._line[0] if self._line else None

    def overdraw(self, charge_blocks: int, into: PoolMemory) -> None:
        """Charge at once, even beyond the total: for records that were charged for when they were gathered.

        Encoded records take no more memory than was charged, but the charge of each batch is rounded up to whole blocks, and
        interceptors may add bytes. The overdraft pays for both. While the balance is negative, no memory is handed out.
        """
        with self._lock:
            dropped_count = min(len(self._free_blocks), max(0, charge_blocks - self._balance_blocks))
            del self._free_blocks[:dropped_count]
            self._balance_blocks -= charge_blocks - dropped_count
            into.charge_blocks += charge_blocks

    def deallocate(self, memory: PoolMemory) -> None:
        """Give back blocks and a charge; `memory` is empty afterwards. No request may refer to the memory any more."""
        with self._lock:
            if not self._is_over:
                self._free_blocks += memory.blocks
                self._balance_blocks += memory.charge_blocks
            memory.blocks, memory.charge_blocks = [], 0
            self._wake_next_locked()

    def reduce_charge(self, memory: PoolMemory, charge_blocks: int) -> None:
        """Give back a part of the charge in `memory`."""
        with self._lock:
            if not self._is_over:
                self._balance_blocks += charge_blocks
            memory.charge_blocks -= charge_blocks
            self._wake_next_locked()

    def release_free(self, keep_bytes: int) -> None:
        """Drop free blocks beyond `keep_bytes`. New ones are made when they are needed."""
        with self._lock:
            kept_count = min(len(self._free_blocks), keep_bytes // self.block_size)
            self._balance_blocks += len(self._free_blocks) - kept_count
            del self._free_blocks[kept_count:]

    def close(self, ended_by: KafkaError | None = None) -> None:
        """Fail all waiting and later allocations, with `ended_by` or else ProducerClosedError. Memory can still be given back.

        A later call without an error keeps the earlier error.
        """
        with self._lock:
            for allocation in self._line:
                allocation.waiter.wake()
            self._is_closed = True
            if ended_by is not None:
                self._ended_by = ended_by

    def end(self) -> None:
        """Count all memory as free. Called after `close`, when no request refers to memory. Python frees what calls hold."""
        with self._lock:
            self._is_over = True
            self._free_blocks, self._balance_blocks = [], self.total_blocks

    def waiter_count(self) -> int:
        """How many callers wait for memory. Takes no lock: the number may change at any time anyway."""
        return sum(allocation.liveness_lock.locked() for allocation in tuple(self._line))

    @property
    def total_memory(self) -> int:
        """buffer.memory, rounded down to whole blocks."""
        return self.total_blocks * self.block_size

    @property
    def available_memory(self) -> int:
        """Bytes that are free now; 0 also while the pool is overdrawn. Takes no lock: a forked child may ask too."""
        return max(0, self._available_locked()) * self.block_size

    def _available_locked(self) -> int:
        return len(self._free_blocks) + self._balance_blocks

    def _take_locked(self, block_count: int, charge_blocks: int, into: PoolMemory) -> None:
        kept_count = max(0, len(self._free_blocks) - block_count)
        recycled_blocks = self._free_blocks[kept_count:]
        new_blocks = [bytearray(self.block_size) for _ in range(block_count - len(recycled_blocks))]  # may raise MemoryError
        balance_blocks = self._balance_blocks - len(new_blocks)
        dropped_count = max(0, charge_blocks - balance_blocks)  # free blocks to drop, because the caller's memory replaces theirs
        del self._free_blocks[kept_count:]
        del self._free_blocks[:dropped_count]
        self._balance_blocks = balance_blocks - charge_blocks + dropped_count
        into.blocks += recycled_blocks + new_blocks
        into.charge_blocks += charge_blocks

    def _wake_next_locked(self) -> None:
        allocation = self._first_in_line_locked()
        if allocation is not None and self._available_locked() >= allocation.wake_threshold:
            allocation.waiter.wake()

    def _check_open_locked(self) -> None:
        if self._is_closed:
            raise closed_error(self._ended_by, "The producer was closed while this write waited for buffer memory")

    def _timeout_error_locked(self, block_count: int, max_block_ms: int) -> KafkaError:
        return KafkaTimeoutError(
            f"Failed to allocate {block_count * self.block_size} bytes of buffer memory within max.block.ms={max_block_ms}"
            f" ({self._available_locked() * self.block_size} of {self.total_memory} bytes free): the brokers acknowledge more"
            " slowly than rows arrive; check the brokers, or raise buffer.memory or max.block.ms",
            condition="KAFKA_BUFFER_EXHAUSTED",
        )
