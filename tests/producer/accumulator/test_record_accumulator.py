"""RecordAccumulator: reservations, expiry, and many callers at once.

Memory and splitting are in test_accumulator_memory.py; flush, close, abort and transactions in test_flush_and_abort.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from spark_kafka_sink.clock import NEVER_MS, Clock
from spark_kafka_sink.errors import KafkaError, ProducerClosedError
from spark_kafka_sink.producer.accumulator import batch_records, sorted_slice
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.accumulator.producer_batch import ProducerBatch
from tests.producer.accumulator.small_batches import BATCH, ONE_NODE, VALUE
from tests.producer.harness import TOPIC, Accumulation, OpenAppend, payload, tp

# RESERVATIONS


def test_a_batch_that_is_being_written_is_not_drained() -> None:
    """The batch would go out half written."""
    stage = Accumulation(linger_ms=0)
    writing = OpenAppend(stage, b"1")
    assert stage.ready(ONE_NODE) == set()
    assert stage.drain(ONE_NODE, 0) == {0: []}
    writing.fill()
    assert stage.ready(ONE_NODE) == {0}
    assert payload(stage.drain_one(ONE_NODE)) == [b"1"]


def test_a_batch_that_is_being_written_does_not_expire() -> None:
    """The batch's memory would be handed out again while a caller writes into it."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    writing = OpenAppend(stage, b"1")
    stage.clock.advance(10_000)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    writing.fill()
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1


def test_queues_are_searched_for_expired_batches_only_when_one_may_be_there() -> None:
    """With a thousand partitions the Sender looked into a thousand queues in each round, to find nothing for two minutes."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    stage.append(b"1")
    searched: list[int] = []
    queue = stage.accumulator.queues.of_partitions(TOPIC, [0])[0]
    queue.batches = Searched(queue.batches, searched)
    stage.clock.advance(150)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 50
    assert searched == []
    stage.clock.advance(50)
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS


class Searched(deque[ProducerBatch]):
    def __init__(self, batches: Iterable[ProducerBatch], searched: list[int]) -> None:
        super().__init__(batches)
        self._searched = searched

    def __bool__(self) -> bool:
        self._searched.append(1)
        return len(self) > 0


def test_a_batch_that_is_put_back_expires_with_its_own_age() -> None:
    """The batch left its queue, younger ones came, and the search for expired ones had forgotten it."""
    stage = Accumulation(linger_ms=0, request_timeout_ms=100, delivery_timeout_ms=200)
    stage.append(b"1")
    old = stage.drain_one(ONE_NODE)
    stage.clock.advance(200)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS
    stage.append(b"2")
    stage.accumulator.queues.put_back(old)
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 0
    assert stage.accumulator.take_expired(stage.now_ms) == [old]
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 200


def test_a_poisoned_batch_behind_others_is_removed_when_it_is_the_first() -> None:
    stage = Accumulation(linger_ms=1000, batch_size=BATCH)
    stage.append(bytes(BATCH))
    writing = OpenAppend(stage, b"1")
    stage.accumulator.take_undrained(KafkaError("the transaction is aborted"))
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.take_expired(stage.now_ms) == []
    writing.fill()
    assert len(stage.accumulator.take_expired(stage.now_ms)) == 1
    assert stage.accumulator.take_expired(stage.now_ms) == []


def test_the_sender_that_found_a_batch_being_written_is_woken_when_it_is_done() -> None:
    stage = Accumulation(linger_ms=0)
    stage.append(b"1")
    stage.wakeups = 0
    writing = OpenAppend(stage, b"2")
    stage.ready(ONE_NODE)
    writing.fill()
    assert stage.wakeups == 1


def test_two_callers_may_write_into_one_batch_and_end_in_any_order() -> None:
    stage = Accumulation(linger_ms=0)
    first, second = OpenAppend(stage, b"1", b"22"), OpenAppend(stage, b"333", b"4444")
    second.fill()
    assert stage.ready(ONE_NODE) == set()
    first.fill()
    assert payload(stage.drain_one(ONE_NODE)) == [b"1", b"22", b"333", b"4444"]


def test_the_caller_that_releases_a_new_batch_last_wakes_the_sender() -> None:
    """The first row's caller was done while another still wrote, and the other's rows were no news: the batch lingered
    unknown to the Sender until it looked by itself, a minute later.
    """
    stage = Accumulation(linger_ms=1000)
    first, second = OpenAppend(stage, b"1"), OpenAppend(stage, b"2")
    first.fill()
    second.fill()
    assert stage.wakeups == 1


def test_a_sender_that_waits_for_two_callers_is_woken_by_the_later_one() -> None:
    """The earlier one cleared the note that the Sender waits."""
    stage = Accumulation(linger_ms=0)
    stage.append(b"0")
    stage.wakeups = 0
    first, second = OpenAppend(stage, b"1"), OpenAppend(stage, b"2")
    stage.ready(ONE_NODE)
    first.fill()
    assert stage.wakeups == 0
    second.fill()
    assert stage.wakeups == 1


def test_a_batch_in_which_writing_failed_is_never_sent_and_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Accumulation(linger_ms=0)
    before = stage.append(b"earlier row of the same batch")

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(sorted_slice, "RecordRows", fail)
        with pytest.raises(MemoryError):
            stage.append(b"1")
    assert stage.drain(ONE_NODE, 0) == {0: []}
    (poisoned,) = stage.accumulator.take_expired(stage.now_ms)
    assert poisoned.poison is not None
    poisoned.fail(poisoned.poison)
    stage.accumulator.deallocate(poisoned)
    assert before.failed == 1
    assert stage.is_whole
    assert not stage.accumulator.incomplete


def test_when_compression_fails_every_reservation_ends_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation left behind keeps its batch from being sent and from expiring: its rows would never be settled."""
    stage = Accumulation(compression_type="lz4", batch_size=BATCH)

    def fail(*_: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(batch_records, "compress", fail)
        with pytest.raises(MemoryError):
            stage.append(*[bytes(500)] * 10, partition=[0] * 5 + [1] * 5)
    batches = [batch for queue in stage.accumulator.queues.of_partitions(TOPIC, [0, 1]) for batch in queue.batches]
    assert batches
    assert [batch.reservation_count for batch in batches] == [0] * len(batches)


def test_rows_that_had_room_at_the_close_are_sent_and_the_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """close() beside another thread's send_columns: places that were taken before the check raised stayed reserved for ever.

    Their rows were neither acknowledged nor failed, and close() waited for them until its time was over.
    """
    stage = Accumulation(batch_size=BATCH)
    callback = Delivery(3, stage.clock)
    new_batch = stage.accumulator.new_batch

    def closed_after_the_second(*args: Any) -> ProducerBatch:
        if args[0].topic_partition.partition == 1:
            stage.accumulator.close()
        return new_batch(*args)

    monkeypatch.setattr(stage.accumulator, "new_batch", closed_after_the_second)
    with pytest.raises(ProducerClosedError):
        stage.append(VALUE, VALUE, VALUE, partition=[0, 1, 2], callback=callback)
    drained = stage.drain(ONE_NODE, 0)[0]
    assert [batch.topic_partition.partition for batch in drained] == [0, 1]
    for batch in drained:
        stage.give_back(batch)
    assert (callback.acknowledged, callback.failed) == (2, 1)
    assert not stage.accumulator.has_queued_batches()
    assert stage.is_whole


# EXPIRY


@pytest.mark.parametrize("muted", [False, True])
@pytest.mark.parametrize("linger_ms", [0, 300])
def test_a_batch_expires_after_delivery_timeout_ms_even_if_muted(linger_ms: int, muted: bool) -> None:
    stage = Accumulation(linger_ms=linger_ms, request_timeout_ms=700, delivery_timeout_ms=1000)
    stage.append(b"1")
    if muted:
        stage.accumulator.queues.of_partition(tp()).is_muted = True
    stage.clock.advance(999)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 1
    stage.clock.advance(1)
    (batch,) = stage.accumulator.take_expired(stage.now_ms)
    assert batch.is_closed
    assert not stage.accumulator.has_queued_batches()


def test_the_largest_delivery_timeout_never_expires() -> None:
    stage = Accumulation(delivery_timeout_ms=2**31 - 1)
    stage.append(b"1")
    stage.clock.advance(2**31 - 2)
    assert stage.accumulator.take_expired(stage.now_ms) == []


def test_batches_expire_oldest_first_and_the_rest_stay() -> None:
    stage = Accumulation(batch_size=BATCH, request_timeout_ms=100, delivery_timeout_ms=1000)
    stage.append(bytes(900))
    stage.clock.advance(300)
    stage.append(bytes(901))
    stage.clock.advance(300)
    stage.append(bytes(902))
    stage.clock.advance(700)
    assert [len(payload_of(batch)) for batch in stage.accumulator.take_expired(stage.now_ms)] == [900, 901]
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == 300


def payload_of(batch: ProducerBatch) -> bytes:
    """The only value of a batch that was never drained."""
    batch.body = batch.uncompressed_records()
    (value,) = payload(batch)
    assert value is not None
    return value


def test_nothing_queued_never_expires() -> None:
    stage = Accumulation()
    assert stage.accumulator.next_expiry_delay_ms(stage.now_ms) == NEVER_MS


def test_a_retried_batch_expires_counted_from_its_creation() -> None:
    stage = Accumulation(request_timeout_ms=100, delivery_timeout_ms=1000)
    stage.append(b"1")
    batch = stage.drain_one(ONE_NODE)
    stage.clock.advance(900)
    stage.accumulator.reenqueue(batch, stage.now_ms)
    assert stage.accumulator.take_expired(stage.now_ms) == []
    stage.clock.advance(100)
    assert stage.accumulator.take_expired(stage.now_ms) == [batch]


# ALL AT ONCE


def test_five_callers_at_a_time_lose_nothing_and_keep_their_order() -> None:
    stage = Accumulation(clock=Clock(), batch_size=BATCH, buffer_memory=64 * BATCH, linger_ms=0, max_block_ms=60_000)
    deliveries: list[Delivery] = []
    failures: list[BaseException] = []

    def work(caller: int) -> None:
        random = Random(caller)
        try:
            for first in range(0, 400, 40):
                values = [b"%d:%04d:" % (caller, first + row) + bytes(random.randrange(300)) for row in range(40)]
                deliveries.append(stage.append(*values, partition=[random.randrange(4) for _ in values]))
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=work, args=[caller], daemon=True) for caller in range(5)]
    for thread in threads:
        thread.start()
    values_by_partition: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
    while any(thread.is_alive() for thread in threads) or stage.accumulator.has_queued_batches():
        for batch in stage.drain(ONE_NODE, 0)[0]:
            values_by_partition[batch.topic_partition.partition] += [value or b"" for value in payload(batch)]
            stage.give_back(batch)
    assert failures == []
    ids = [
        (partition, value[0] - ord("0"), int(value[2:6])) for partition, values in values_by_partition.items() for value in values
    ]
    assert sorted((caller, row) for _, caller, row in ids) == [(caller, row) for caller in range(5) for row in range(400)]
    for partition in range(4):
        for caller in range(5):
            rows = [row for where, who, row in ids if (where, who) == (partition, caller)]
            assert rows == sorted(rows)
    assert sum(delivery.acknowledged for delivery in deliveries) == 2000
    assert stage.is_whole
