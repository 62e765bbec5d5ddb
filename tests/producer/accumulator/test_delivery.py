"""Delivery: one handle for many rows, which gets their outcomes batch by batch."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from spark_kafka_sink.clock import Clock, Waitable
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.producer.accumulator.delivery import UNKNOWN_OFFSET, BatchRows, Delivery, OffsetRange
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.fakes.clock import ManualClock
from tests.producer.harness import tp


def batch_rows(
    callback: Delivery, positions: list[int], *, first_delta: int = 0, where: TopicPartition | None = None, size: int = 10
) -> BatchRows:
    sizes = np.full(len(positions), size, np.int32)
    return BatchRows(callback, where or tp(), first_delta, np.array(positions, np.int32), sizes, size * len(positions))


def test_a_handle_is_done_when_its_last_row_is_settled() -> None:
    delivery = Delivery(3, ManualClock())
    delivery.acknowledge(batch_rows(delivery, [0, 1]), 5, -1)
    assert not delivery.done()
    delivery.acknowledge(batch_rows(delivery, [2]), 7, -1)
    assert delivery.done()
    assert delivery.result() is delivery


def test_a_handle_of_no_rows_is_done_from_the_start() -> None:
    assert Delivery(0, ManualClock()).result(0).acknowledged == 0


def test_offsets_count_from_the_batchs_base_offset() -> None:
    delivery = Delivery(2, ManualClock())
    delivery.acknowledge(batch_rows(delivery, [0, 1], first_delta=4), 100, -1)
    assert delivery.offsets == {tp(): OffsetRange(first=104, last=105, rows=2, bytes=20)}


def test_offsets_of_several_batches_make_one_range_whatever_their_order() -> None:
    delivery = Delivery(4, ManualClock())
    delivery.acknowledge(batch_rows(delivery, [2, 3]), 50, -1)
    delivery.acknowledge(batch_rows(delivery, [0, 1]), 40, -1)
    assert delivery.offsets == {tp(): OffsetRange(first=40, last=51, rows=4, bytes=40)}


def test_each_topic_partition_has_a_range_of_its_own() -> None:
    delivery = Delivery(2, ManualClock())
    delivery.acknowledge(batch_rows(delivery, [0]), 3, -1)
    delivery.acknowledge(batch_rows(delivery, [1], where=tp(1)), 9, -1)
    assert {where.partition: offset_range.first for where, offset_range in delivery.offsets.items()} == {0: 3, 1: 9}


@pytest.mark.parametrize("unknown_first", [False, True])
def test_an_unknown_offset_does_not_spoil_the_known_ones(unknown_first: bool) -> None:
    """A duplicate that the broker no longer remembers is acknowledged without an offset."""
    delivery = Delivery(2, ManualClock())
    offsets = [UNKNOWN_OFFSET, 7] if unknown_first else [7, UNKNOWN_OFFSET]
    for row, offset in enumerate(offsets):
        delivery.acknowledge(batch_rows(delivery, [row], first_delta=2), offset, -1)
    assert delivery.offsets[tp()] == OffsetRange(first=9, last=9, rows=2, bytes=20)


def test_rows_without_any_known_offset_have_none() -> None:
    delivery = Delivery(3, ManualClock())
    delivery.acknowledge(batch_rows(delivery, [0, 1, 2]), UNKNOWN_OFFSET, -1)
    assert delivery.offsets[tp()] == OffsetRange(first=-1, last=-1, rows=3, bytes=30)


def test_the_first_error_is_kept_and_raised() -> None:
    delivery = Delivery(3, ManualClock())
    first, second = KafkaError("first"), KafkaError("second")
    delivery.fail(batch_rows(delivery, [0]), first, {})
    delivery.fail(batch_rows(delivery, [1, 2]), second, {})
    assert delivery.error is first
    assert (delivery.acknowledged, delivery.failed) == (0, 3)
    with pytest.raises(KafkaError, match="first"):
        delivery.result(0)


def test_an_error_is_raised_when_all_rows_are_settled_not_before() -> None:
    delivery = Delivery(2, ManualClock())
    delivery.fail(batch_rows(delivery, [0]), KafkaError("first"), {})
    with pytest.raises(KafkaTimeoutError, match=r"1 of 2 rows are not acknowledged after 10 ms"):
        delivery.result(10)


def test_waiting_ends_after_its_time() -> None:
    clock = ManualClock()
    delivery = Delivery(5, clock)
    before = clock.now_ms()
    with pytest.raises(KafkaTimeoutError, match=r"^\[KAFKA_TIMEOUT\] 5 of 5 rows"):
        delivery.result(250)
    assert clock.now_ms() - before == 250


def test_waiting_no_time_only_looks() -> None:
    with pytest.raises(KafkaTimeoutError, match="1 of 1 rows are not acknowledged"):
        Delivery(1, ManualClock()).result(0)


def test_a_caller_that_waits_is_woken_by_the_last_row() -> None:
    class Telling(Clock):
        def __init__(self) -> None:
            self.waits = threading.Event()

        def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
            self.waits.set()  # the waiter is in the list already
            return super().wait(waitable, timeout_ms)

    clock = Telling()
    delivery = Delivery(2, clock)
    results: list[Delivery] = []
    waiter = threading.Thread(target=lambda: results.append(delivery.result(30_000)), daemon=True)
    waiter.start()
    assert clock.waits.wait(30)
    delivery.acknowledge(batch_rows(delivery, [0]), 0, -1)
    delivery.acknowledge(batch_rows(delivery, [1]), 1, -1)
    waiter.join(30)
    assert results == [delivery]


# RECORD ERRORS (KIP-467)


def test_the_blamed_row_is_named_by_its_place_in_the_callers_chunk() -> None:
    delivery = Delivery(3, ManualClock())
    blamed = RecordTooLargeError("too large")
    delivery.fail(batch_rows(delivery, [17, 23, 42], first_delta=5), KafkaError("batch rejected"), {6: blamed})
    assert str(delivery.error) == "[KAFKA_RECORD_TOO_LARGE] row 23 of this chunk, orders-0: too large"


def test_of_several_blamed_rows_the_first_is_named() -> None:
    delivery = Delivery(3, ManualClock())
    delivery.fail(batch_rows(delivery, [17, 23, 42]), KafkaError("batch rejected"), {2: KafkaError("c"), 1: KafkaError("b")})
    assert "row 23" in str(delivery.error)


def test_every_failed_row_is_listed_with_its_batch_and_if_the_broker_named_rows() -> None:
    delivery = Delivery(5, ManualClock())
    refused, late = KafkaError("no key"), KafkaTimeoutError("too late")
    delivery.fail(batch_rows(delivery, [17, 23], first_delta=5), KafkaError("batch rejected"), {6: refused})
    delivery.fail(batch_rows(delivery, [3], where=tp(1)), KafkaError("batch rejected"), {9: refused})
    delivery.fail_unbatched(np.array([4, 5], np.int32), late)
    failures = [(each.rows.tolist(), each.topic_partition, dict(each.blamed), each.rows_are_named) for each in delivery.failures]
    assert failures == [([17, 23], tp(), {23: refused}, True), ([3], tp(1), {}, True), ([4, 5], None, {}, False)]
    assert delivery.failures[0].error is delivery.error
    assert delivery.failures[2].error is late


def test_an_error_keeps_its_kind_when_its_row_is_named() -> None:
    delivery = Delivery(1, ManualClock())
    delivery.fail(
        batch_rows(delivery, [7]), KafkaError("batch rejected"), {0: RecordTooLargeError(f"{tp()} (1 records): too large")}
    )
    assert isinstance(delivery.error, RecordTooLargeError)
    assert delivery.error.message == f"row 7 of this chunk: {tp()} (1 records): too large"


@pytest.mark.parametrize("index", [4, 8])
def test_a_row_of_another_caller_is_not_blamed_on_this_one(index: int) -> None:
    delivery = Delivery(3, ManualClock())
    whole = KafkaError("batch rejected")
    delivery.fail(batch_rows(delivery, [0, 1, 2], first_delta=5), whole, {index: KafkaError("not ours")})
    assert delivery.error is whole


def test_rows_that_are_queued_later_count_on_whatever_their_number() -> None:
    """Batches count the rows of one step from 0, as int32; a table may have more."""
    delivery = Delivery(0, ManualClock(), whole_name="table")
    first, later, last = (delivery.expect(row_count) for row_count in (2**31, 3, 2))
    assert first is delivery
    assert delivery.rows == 2**31 + 5
    invalid = KafkaError("no key", condition="KAFKA_INVALID_RECORD")
    later.fail(batch_rows(delivery, [1, 2]), KafkaError("invalid records"), {1: invalid})
    last.fail_unbatched(np.array([0], np.int32), KafkaError("no memory"))
    last.acknowledge(batch_rows(delivery, [1]), 9, -1)
    assert [each.rows.tolist() for each in delivery.failures] == [[2**31 + 1, 2**31 + 2], [2**31 + 3]]
    assert list(delivery.failures[0].blamed) == [2**31 + 2]
    assert (delivery.acknowledged, delivery.failed, delivery.done()) == (1, 3, False)
    assert delivery.error is not None
    assert delivery.error.message == f"row {2**31 + 2} of this table, orders-0: no key"
    assert delivery.offsets[tp()].first == 9
