"""BufferPool: who gets memory, who waits, and that none is ever lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import Clock, Waitable
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.accumulator import buffer_pool
from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES, MIN_POOL_BLOCK_BYTES, BufferPool, PoolMemory
from tests.fakes.clock import ManualClock
from tests.interrupts import Interrupted

BLOCK = 1024
WAIT_S = 10


def pool_of(blocks: int, clock: Clock | None = None) -> BufferPool:
    return BufferPool(blocks * BLOCK, BLOCK, clock or ManualClock())


class WaitingClock(ManualClock):
    """Waits for a notify as long as it takes, and tells when a thread has begun to wait. Time stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        del timeout_ms
        self.waits.release()
        assert waitable.wait(WAIT_S), "nobody woke this waiter"
        return True

    def await_waiter(self) -> None:
        """Wait until one more thread waits. Then that thread is in the pool's line, before any later caller."""
        assert self.waits.acquire(timeout=WAIT_S)


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run on a daemon thread; the future's result has a time limit of its own in each test."""
    future: Future[Any] = Future()

    def body() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            future.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return future


# MEMORY THAT WAS HANDED OUT


@pytest.mark.parametrize(
    ("blocks", "charged", "charge_blocks", "expected", "rest_blocks", "rest_charged"),
    [
        (4, 0, 1, 1, 3, 0),  # one block's bytes are exchanged for a charge
        (0, 4, 1, 1, 0, 3),
        (3, 2, 1, 1, 3, 1),  # charges are used before blocks
        (3, 2, 4, 4, 1, 0),
        (1, 1, 5, 2, 0, 0),  # never more than there is
    ],
)
def test_memory_is_reduced_to_a_charge_and_a_rest(
    blocks: int, charged: int, charge_blocks: int, expected: int, rest_blocks: int, rest_charged: int
) -> None:
    memory = PoolMemory([bytearray(1) for _ in range(blocks)], charged)
    reduced, rest = memory.charge_and_remainder(charge_blocks)
    assert (reduced.blocks, reduced.charge_blocks) == ([], expected)
    assert (len(rest.blocks), rest.charge_blocks) == (rest_blocks, rest_charged)
    assert len(reduced) + len(rest) == len(memory)


# HANDING OUT


def test_blocks_are_counted_out_and_back() -> None:
    pool = pool_of(4)
    assert (pool.total_memory, pool.available_memory) == (4 * BLOCK, 4 * BLOCK)
    memory = pool.allocate(3, 10)
    assert [len(block) for block in memory.blocks] == [BLOCK] * 3
    assert pool.available_memory == BLOCK
    pool.deallocate(memory)
    assert pool.available_memory == 4 * BLOCK


def test_a_block_given_back_is_handed_out_again() -> None:
    pool = pool_of(4)
    memory = pool.allocate(1, 10)
    (block,) = memory.blocks
    pool.deallocate(memory)
    assert pool.allocate(1, 10).blocks[0] is block


def test_giving_back_leaves_the_caller_nothing() -> None:
    """A batch that kept its blocks could give them back twice, and two batches would share memory."""
    pool = pool_of(3)
    memory = pool.allocate(2, 10, charge_blocks=1)
    pool.deallocate(memory)
    assert memory == PoolMemory()
    pool.deallocate(memory)
    assert pool.available_memory == 3 * BLOCK


def test_no_block_is_handed_out_twice() -> None:
    pool = pool_of(8)
    held = [pool.allocate(2, 10) for _ in range(4)]
    assert len({id(block) for memory in held for block in memory.blocks}) == 8


def test_memory_that_a_caller_brings_counts_like_blocks() -> None:
    pool = pool_of(4)
    charge = pool.try_allocate(0, charge_blocks=3)
    assert charge == PoolMemory([], 3)
    assert pool.available_memory == BLOCK
    assert pool.try_allocate(0, charge_blocks=2) is None
    assert pool.try_allocate(2) is None
    assert pool.try_allocate(1, charge_blocks=1) is None
    pool.deallocate(charge)
    assert pool.available_memory == 4 * BLOCK


def test_free_blocks_are_let_go_for_a_charge() -> None:
    """The free blocks and the charge together would be more memory than the pool may use."""
    pool = pool_of(4)
    pool.deallocate(pool.allocate(4, 0))
    charge = pool.allocate(0, 0, charge_blocks=3)
    assert len(pool._free_blocks) == 1
    pool.deallocate(charge)
    assert len(pool.allocate(4, 0)) == 4


def test_a_charge_waits_its_turn() -> None:
    clock = WaitingClock()
    pool = pool_of(4, clock)
    held = pool.allocate(3, 10)
    first = in_thread(lambda: pool.allocate(0, 10, charge_blocks=3))
    clock.await_waiter()
    assert pool.try_allocate(0, charge_blocks=1) is None  # one is free, but it belongs to the waiter
    pool.deallocate(held)
    assert first.result(WAIT_S) == PoolMemory([], 3)
    assert pool.available_memory == BLOCK


def test_a_charge_beyond_the_total_is_let_go_when_it_ends() -> None:
    pool = pool_of(2)
    held, beyond = pool.allocate(2, 10), PoolMemory()
    pool.overdraw(3, beyond)
    assert (beyond.charge_blocks, pool.available_memory) == (3, 0)
    pool.deallocate(held)
    assert pool.try_allocate(1) is None  # what is overdrawn has to come back first
    pool.deallocate(beyond)
    assert pool.available_memory == 2 * BLOCK


def test_an_overdraft_takes_free_blocks_first() -> None:
    """Free blocks are memory too."""
    pool = pool_of(4)
    pool.deallocate(pool.allocate(3, 10))
    beyond = PoolMemory()
    pool.overdraw(3, beyond)
    assert (len(pool._free_blocks), pool.available_memory) == (1, BLOCK)
    pool.overdraw(3, beyond)
    assert (len(pool._free_blocks), pool.available_memory) == (0, 0)
    held = pool.try_allocate(0)
    pool.deallocate(beyond)
    assert pool.available_memory == 4 * BLOCK
    assert held is None


def test_blocks_given_back_after_an_overdraft_make_up_for_it() -> None:
    pool = pool_of(4)
    held, beyond = pool.allocate(4, 10), PoolMemory()
    pool.overdraw(2, beyond)
    pool.deallocate(held)
    assert pool.available_memory == 2 * BLOCK
    memory = pool.allocate(1, 10)
    assert len(pool._free_blocks) + pool._balance_blocks == 1
    assert len(pool._free_blocks) <= 1  # with it, what is overdrawn and what is taken: no more than the total
    pool.deallocate(beyond)
    pool.deallocate(memory)
    assert pool.available_memory == 4 * BLOCK


def test_a_request_ahead_overtakes_callers_who_wait() -> None:
    """The Sender gives its memory back right afterwards, and must not be held up by callers that wait for memory."""
    clock = WaitingClock()
    pool = pool_of(3, clock)
    held = pool.allocate(2, 10)
    waiter = in_thread(lambda: pool.allocate(2, 10))
    clock.await_waiter()
    memory = pool.try_allocate(1, has_precedence=True)
    assert memory is not None
    pool.deallocate(held)
    pool.deallocate(memory)
    assert len(waiter.result(WAIT_S)) == 2


def test_a_request_for_no_memory_succeeds_when_the_pool_is_empty() -> None:
    pool = pool_of(1)
    held = pool.allocate(1, 10)
    assert pool.allocate(0, 10) == PoolMemory()
    pool.deallocate(held)


@pytest.mark.parametrize(
    ("total", "batch_size", "block_size"),
    [
        (32 * 1024 * 1024, 16_384, MAX_POOL_BLOCK_BYTES),
        (32 * 1024 * 1024, 1_000_000, MAX_POOL_BLOCK_BYTES),
        (32 * 1024 * 1024, 4_000, 4_000),
        (32 * 1024 * 1024, 1, MIN_POOL_BLOCK_BYTES),
        (MAX_POOL_BLOCK_BYTES, 16_384, MAX_POOL_BLOCK_BYTES),
        (500, 16_384, 500),
        (0, 16_384, 1),
    ],
)
def test_block_size_follows_batch_size_within_limits(total: int, batch_size: int, block_size: int) -> None:
    pool = BufferPool(total, batch_size, ManualClock())
    assert pool.block_size == block_size
    assert pool.total_memory <= total


def test_blocks_for_rounds_up() -> None:
    pool = pool_of(4)
    assert [pool.blocks_for(size) for size in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]


def test_a_pool_of_more_than_two_gibibytes_counts_right_and_reserves_nothing() -> None:
    gib = 1024**3
    pool = BufferPool(20 * gib, 16_384, ManualClock())
    blocks = pool.allocate(3, 0)
    assert pool.available_memory == 20 * gib - 3 * MAX_POOL_BLOCK_BYTES
    pool.deallocate(blocks)
    assert pool.available_memory == 20 * gib


def test_more_than_the_whole_pool_is_refused_at_once() -> None:
    pool = pool_of(2)
    with pytest.raises(RecordTooLargeError, match=r"^\[KAFKA_RECORD_TOO_LARGE\] 3072 bytes .* buffer.memory allows 2048"):
        pool.allocate(3, 10)
    assert pool.available_memory == 2 * BLOCK


def test_when_memory_cannot_be_had_from_the_system_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(3)
    pool.deallocate(pool.allocate(1, 10))

    def refuse(_: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr(buffer_pool, "bytearray", refuse, raising=False)
    with pytest.raises(MemoryError):
        pool.allocate(2, 10)
    assert pool.available_memory == 3 * BLOCK


# TRYING


def test_trying_takes_what_is_free() -> None:
    pool = pool_of(2)
    blocks = pool.try_allocate(2)
    assert blocks is not None
    assert len(blocks) == 2


def test_trying_never_waits() -> None:
    pool = pool_of(2)
    pool.allocate(1, 10)
    assert pool.try_allocate(2) is None
    assert pool.available_memory == BLOCK


def test_trying_does_not_overtake_waiting_callers() -> None:
    clock = WaitingClock()
    pool = pool_of(3, clock)
    first = pool.allocate(2, 10)
    waiter = in_thread(lambda: pool.allocate(3, 10))
    clock.await_waiter()
    assert pool.try_allocate(1) is None  # one block is free, but it belongs to the waiter
    pool.deallocate(first)
    assert len(waiter.result(WAIT_S)) == 3


# WAITING


def test_a_waiter_gets_memory_that_is_given_back() -> None:
    clock = WaitingClock()
    pool = pool_of(5, clock)
    held = pool.allocate(3, 10)
    waiter = in_thread(lambda: pool.allocate(5, 10))
    clock.await_waiter()
    assert pool.waiter_count() == 1
    pool.deallocate(held)
    assert len(waiter.result(WAIT_S)) == 5
    assert pool.waiter_count() == 0


@pytest.mark.parametrize("max_block_ms", [10, buffer_pool.PATIENCE_MS + 30])
def test_time_runs_out_after_max_block_ms_and_the_error_says_what_to_do(max_block_ms: int) -> None:
    clock = ManualClock()
    pool = pool_of(2, clock)
    pool.allocate(1, 10)
    before = clock.now_ms()
    with pytest.raises(KafkaTimeoutError) as raised:
        pool.allocate(2, max_block_ms)
    assert clock.now_ms() - before == max_block_ms
    assert str(raised.value) == (
        f"[KAFKA_BUFFER_EXHAUSTED] Failed to allocate 2048 bytes of buffer memory within max.block.ms={max_block_ms} (1024 of"
        " 2048 bytes free): the brokers acknowledge more slowly than rows arrive; check the brokers, or raise buffer.memory or"
        " max.block.ms"
    )


def test_with_max_block_ms_zero_nobody_waits() -> None:
    clock = ManualClock()
    pool = pool_of(1, clock)
    pool.allocate(1, 0)
    before = clock.now_ms()
    with pytest.raises(KafkaTimeoutError):
        pool.allocate(1, 0)
    assert clock.now_ms() == before


def test_a_waiter_whose_time_runs_out_leaves_no_trace() -> None:
    clock = ManualClock()
    pool = pool_of(2, clock)
    held = pool.allocate(1, 10)
    with pytest.raises(KafkaTimeoutError):
        pool.allocate(2, 10)
    assert pool.waiter_count() == 0
    assert pool.available_memory == BLOCK
    pool.deallocate(held)
    assert len(pool.allocate(2, 10)) == 2


def test_a_waiter_that_is_interrupted_leaves_no_trace() -> None:
    class Interrupting(ManualClock):
        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            del waitable, timeout_ms
            raise KeyboardInterrupt

    pool = pool_of(2, Interrupting())
    held = pool.allocate(1, 10)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(2, 10)
    assert pool.waiter_count() == 0
    pool.deallocate(held)
    assert pool.available_memory == 2 * BLOCK


def test_memory_goes_to_the_one_who_has_waited_longest() -> None:
    """A large request is not starved by small ones that arrive after it."""
    clock = WaitingClock()
    pool = pool_of(4, clock)
    held = [pool.allocate(1, 10) for _ in range(4)]
    large = in_thread(lambda: pool.allocate(3, 10))
    clock.await_waiter()
    small = in_thread(lambda: pool.allocate(1, 10))
    clock.await_waiter()
    for _ in range(2):
        pool.deallocate(held.pop())
        assert pool.try_allocate(1) is None  # free, but kept for the large one
    assert not small.done()
    pool.deallocate(held.pop())
    assert len(large.result(WAIT_S)) == 3
    assert not small.done()
    pool.deallocate(held.pop())
    assert len(small.result(WAIT_S)) == 1


def test_what_the_first_in_line_leaves_goes_to_the_next() -> None:
    clock = WaitingClock()
    pool = pool_of(4, clock)
    held = pool.allocate(4, 10)
    first = in_thread(lambda: pool.allocate(1, 10))
    clock.await_waiter()
    second = in_thread(lambda: pool.allocate(3, 10))
    clock.await_waiter()
    pool.deallocate(held)
    assert len(first.result(WAIT_S)) == 1
    assert len(second.result(WAIT_S)) == 3


def test_a_waiter_that_gives_up_lets_the_next_one_have_what_is_there() -> None:
    """Two wait; the first wants everything and is interrupted: the second must not go on waiting for memory that is free."""

    class InterruptsTheFirst(WaitingClock):
        def __init__(self) -> None:
            super().__init__()
            self.first_gives_up = threading.Event()
            self.waiting = 0

        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            self.waiting += 1
            if self.waiting > 1:
                return super().wait(waitable, timeout_ms)
            self.waits.release()
            while not self.first_gives_up.is_set():
                waitable.wait(0.001)
            raise KeyboardInterrupt

    clock = InterruptsTheFirst()
    pool = pool_of(2, clock)
    pool.allocate(1, 10)
    first = in_thread(lambda: pool.allocate(2, 10))
    clock.await_waiter()
    second = in_thread(lambda: pool.allocate(1, 10))
    clock.await_waiter()
    clock.first_gives_up.set()
    assert isinstance(first.exception(WAIT_S), KeyboardInterrupt)
    assert len(second.result(WAIT_S)) == 1


def test_a_caller_that_waits_is_woken_when_it_is_worth_it() -> None:
    """Woken for each batch that is sent, a caller would encode as many rows at a time as one batch holds."""
    clock = WaitingClock()
    pool = pool_of(4 * 3, clock)
    held = [pool.allocate(1, 10) for _ in range(12)]
    waiter = in_thread(lambda: pool.allocate(1, 10))
    clock.await_waiter()
    for _ in range(2):
        pool.deallocate(held.pop())
    assert not waiter.done()
    assert pool.waiter_count() == 1
    pool.deallocate(held.pop())
    assert len(waiter.result(WAIT_S)) == 1
    assert pool.available_memory == 2 * BLOCK


@pytest.mark.parametrize("max_block_ms", [10, 60_000])
def test_after_patience_ms_a_caller_takes_the_little_that_is_free(max_block_ms: int) -> None:
    """Most of the pool may be held by batches for a broker that is away."""

    class GivesBackOnce(ManualClock):
        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            del waitable
            self.advance(timeout_ms)
            pool._free_blocks += held.pop().blocks
            return False

    clock = GivesBackOnce()
    pool = pool_of(12, clock)
    held = [pool.allocate(1, 10) for _ in range(12)]
    before = clock.now_ms()
    assert len(pool.allocate(1, max_block_ms)) == 1
    assert clock.now_ms() - before == min(max_block_ms, buffer_pool.PATIENCE_MS)
    assert (pool.available_memory, pool.timeouts.total) == (0, 0)


def test_before_patience_ms_a_caller_waits_for_a_quarter_of_the_pool() -> None:
    class GivesBackOneByOne(ManualClock):
        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            del waitable, timeout_ms
            self.advance(1)
            pool._free_blocks += held.pop().blocks
            return True

    pool = pool_of(12, GivesBackOneByOne())
    held = [pool.allocate(1, 10) for _ in range(12)]
    pool.allocate(1, 60_000)
    assert (len(held), pool.available_memory) == (9, 2 * BLOCK)


def test_who_waits_long_is_woken_by_as_little_as_he_needs() -> None:
    class LosesPatience(WaitingClock):
        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            if timeout_ms > buffer_pool.PATIENCE_MS:
                return super().wait(waitable, timeout_ms)
            self.advance(timeout_ms)
            return False

    clock = LosesPatience()
    pool = pool_of(12, clock)
    held = [pool.allocate(1, 10) for _ in range(12)]
    waiter = in_thread(lambda: pool.allocate(1, 60_000))
    clock.await_waiter()
    pool.deallocate(held.pop())
    assert len(waiter.result(WAIT_S)) == 1


def test_waits_are_measured() -> None:
    clock = ManualClock()
    pool = pool_of(1, clock)
    pool.allocate(1, 10)
    with pytest.raises(KafkaTimeoutError):
        pool.allocate(1, 25)
    assert (pool.waits.total, pool.timeouts.total) == (25_000_000, 1)


def test_a_waiter_that_is_interrupted_at_any_point_is_out_of_the_line() -> None:
    """A caller that stays in the line keeps all others from memory for ever."""
    at, happened = 1, True
    while happened:
        pool = pool_of(2)
        other = pool.allocate(2, 0)

        def wait(pool: BufferPool = pool) -> None:
            with pytest.raises(KafkaTimeoutError):
                pool.allocate(1, 10)

        interrupted = Interrupted(at)
        interrupted.run(wait)
        assert pool.waiter_count() == 0, interrupted.where
        pool.deallocate(other)
        assert pool.available_memory == 2 * BLOCK
        happened = interrupted.happened
        at += 1


def test_memory_moves_to_where_it_is_added() -> None:
    pool = pool_of(4)
    memory, more = pool.allocate(1, 10, charge_blocks=1), pool.allocate(1, 10, charge_blocks=1)
    memory.add(more)
    assert (len(memory.blocks), memory.charge_blocks, len(more)) == (2, 2, 0)


def test_a_part_of_a_charge_is_given_back_without_any_block() -> None:
    pool = pool_of(4)
    memory = pool.allocate(1, 10, charge_blocks=3)
    pool.reduce_charge(memory, 2)
    assert (len(memory.blocks), memory.charge_blocks, pool.available_memory) == (1, 1, 2 * BLOCK)


def test_an_overdraft_drops_free_blocks_only_when_nothing_else_is_left() -> None:
    pool = pool_of(3)
    pool.deallocate(pool.allocate(1, 10))
    for charge, free_blocks in ((2, 1), (1, 0), (4, 0)):
        pool.overdraw(charge, PoolMemory())
        assert len(pool._free_blocks) == free_blocks
    assert pool.available_memory == 0


# CLOSING


def test_a_closed_pool_takes_back_but_gives_nothing() -> None:
    pool = pool_of(2)
    held = pool.allocate(1, 10)
    pool.close()
    with pytest.raises(ProducerClosedError, match="The producer was closed while this write waited for buffer memory"):
        pool.allocate(1, 10)
    with pytest.raises(ProducerClosedError):
        pool.try_allocate(1)
    pool.deallocate(held)
    assert pool.available_memory == 2 * BLOCK


def test_what_ended_the_producer_is_raised_after_the_end_when_all_memory_is_free() -> None:
    pool = pool_of(2)
    held = pool.allocate(2, 10)
    pool.close(ended_by=KafkaError("the cluster is another one"))
    pool.end()
    assert pool.available_memory == 2 * BLOCK
    pool.deallocate(held)
    assert pool.available_memory == 2 * BLOCK
    with pytest.raises(KafkaError, match="the cluster is another one"):
        pool.try_allocate(1)


def test_closing_wakes_every_waiter_with_an_error() -> None:
    clock = WaitingClock()
    pool = pool_of(1, clock)
    held = pool.allocate(1, 10)
    waiters = []
    for _ in range(3):
        waiters.append(in_thread(lambda: pool.allocate(1, 10)))
        clock.await_waiter()
    pool.close()
    for waiter in waiters:
        assert isinstance(waiter.exception(WAIT_S), ProducerClosedError)
    pool.deallocate(held)
    assert pool.available_memory == BLOCK
    assert pool.waiter_count() == 0


# ALL AT ONCE


def test_ten_threads_that_take_and_give_back_lose_nothing() -> None:
    pool = BufferPool(20 * BLOCK, BLOCK, Clock())

    def work(seed: int) -> int:
        random = Random(seed)
        for _ in range(300):
            memory = pool.allocate(random.randint(1, 8), 30_000, charge_blocks=random.randint(0, 2))
            marks = [random.randrange(256) for _ in memory.blocks]
            for block, mark in zip(memory.blocks, marks, strict=True):
                block[0] = mark
            assert [block[0] for block in memory.blocks] == marks  # nobody else writes here
            pool.deallocate(memory)
        return seed

    workers = [in_thread(lambda seed=seed: work(seed)) for seed in range(10)]
    assert [worker.result(WAIT_S) for worker in workers] == list(range(10))
    assert pool.available_memory == 20 * BLOCK
    assert pool.waiter_count() == 0


def test_free_memory_beyond_a_size_is_let_go_and_made_anew() -> None:
    pool = pool_of(8)
    pool.deallocate(pool.allocate(6, 0))
    pool.release_free(2 * BLOCK)
    assert len(pool._free_blocks) == 2
    assert pool.available_memory == 8 * BLOCK
    assert len(pool.allocate(8, 0)) == 8
    pool.release_free(0)
    assert pool.available_memory == 0
