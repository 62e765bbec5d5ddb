"""RecordBundle: a bundle becomes columns, and each record gets its own outcome."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.accumulator.delivery import BatchRows
from spark_kafka_sink.producer.producer_record import LONE_RECORD_OVERHEAD_BYTES, RecordDetails, RecordMetadata, max_headers_bytes
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle, RecordFuture, failed_record
from spark_kafka_sink.producer.topic_rows import record_rows
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_batch import size_upper_bounds
from tests.fakes.clock import ManualClock
from tests.interrupts import Interrupts
from tests.producer.harness import TOPIC, tp
from tests.producer.single_records.gathering import Gathering


class BundledRecord(NamedTuple):
    """What send hands to a bundle."""

    value: bytes | None = b"v"
    key: bytes | None = None
    callback: Any = None
    headers: Any = ()
    timestamp: int | None = 1234


def rows_of(bundle: RecordBundle, positions: list[int], *, first_delta: int = 0, partition: int = 0) -> BatchRows:
    return BatchRows(
        bundle,
        tp(partition),
        first_delta,
        np.array(positions, np.int32),
        np.full(len(positions), 10, np.int32),
        10 * len(positions),
    )


def filled(*records: BundledRecord, clock: ManualClock | None = None) -> tuple[RecordBundle, list[RecordFuture]]:
    bundle = RecordBundle(TOPIC, Cluster(), clock or ManualClock())
    futures = []
    for each in records:
        future = bundle.add(each.key, each.value, each.callback, 10, RecordDetails(None, each.headers, each.timestamp))
        assert future is not None
        futures.append(future)
    bundle.seal()
    return bundle, futures


def bundle_of(*records: BundledRecord, clock: ManualClock | None = None) -> tuple[RecordBundle, list[RecordFuture]]:
    """A bundle whose records are queued, and their futures."""
    bundle, futures = filled(*records, clock=clock)
    bundle.keep_columns(record_rows(bundle.as_columns(), len(bundle), 0))
    return bundle, futures


def columns_of(*records: BundledRecord) -> RecordColumns:
    return record_rows(filled(*records)[0].as_columns(), len(records), 0)


# OUTCOMES


def test_a_future_tells_where_its_record_is() -> None:
    bundle, (first, second) = bundle_of(BundledRecord(b"abc", key=b"k"), BundledRecord(None))
    assert not first.done()
    bundle.acknowledge(rows_of(bundle, [0], first_delta=4, partition=2), 100, -1)
    assert first.done()
    assert not second.done()
    assert first.result(0) == RecordMetadata(TOPIC, 2, 104, 1234, serialized_key_size=1, serialized_value_size=3)
    bundle.acknowledge(rows_of(bundle, [1]), 7, -1)
    assert second.result(0) == RecordMetadata(TOPIC, 0, 7, 1234, serialized_key_size=-1, serialized_value_size=-1)


def test_a_log_append_time_takes_the_place_of_the_records_timestamp() -> None:
    bundle, (future,) = bundle_of(BundledRecord())
    bundle.acknowledge(rows_of(bundle, [0]), 7, 999)
    assert future.result(0).timestamp == 999


def test_an_offset_that_the_broker_did_not_tell_is_minus_one() -> None:
    bundle, futures = bundle_of(BundledRecord(), BundledRecord())
    bundle.acknowledge(rows_of(bundle, [0, 1], first_delta=3), -1, -1)
    assert [future.result(0).offset for future in futures] == [-1, -1]


def test_rows_of_a_part_may_stand_in_any_order() -> None:
    bundle, futures = bundle_of(*[BundledRecord() for _ in range(4)])
    bundle.acknowledge(rows_of(bundle, [3, 1]), 50, -1)
    bundle.acknowledge(rows_of(bundle, [0, 2], partition=1), 70, -1)
    assert [(future.result(0).partition, future.result(0).offset) for future in futures] == [(1, 70), (0, 51), (1, 71), (0, 50)]


def test_a_future_raises_its_records_error() -> None:
    bundle, (future,) = bundle_of(BundledRecord())
    error = KafkaError("refused")
    bundle.fail(rows_of(bundle, [0]), error, {})
    assert future.done()
    assert future.exception(0) is error
    with pytest.raises(KafkaError, match="refused"):
        future.result(0)


def test_only_the_record_to_blame_gets_the_blame() -> None:
    """KIP-467: the others are told that they may be sent again."""
    bundle, (good, bad) = bundle_of(BundledRecord(), BundledRecord())
    blamed = KafkaError("no key on a compacted topic", condition="KAFKA_INVALID_RECORD")
    bundle.fail(rows_of(bundle, [0, 1], first_delta=5), KafkaError("batch rejected"), {6: blamed})
    assert bad.exception(0) is blamed
    assert good.exception(0).condition == "KAFKA_BATCH_HAS_INVALID_RECORDS"


def test_a_future_waits_no_longer_than_asked() -> None:
    clock = ManualClock()
    _, (future,) = bundle_of(BundledRecord(), clock=clock)
    before = clock.now_ms()
    with pytest.raises(KafkaTimeoutError, match=r"not acknowledged after 0.25 s"):
        future.result(0.25)
    assert clock.now_ms() - before == 250


def test_a_future_of_a_bundle_that_is_still_gathered_is_not_done() -> None:
    gathering = Gathering()
    future = gathering.add()
    assert not future.done()
    with pytest.raises(KafkaTimeoutError, match="a record for orders is not acknowledged"):
        future.result(0)


def test_callbacks_hear_metadata_or_error_once_and_in_order() -> None:
    heard: list[tuple[int, int | None, str | None]] = []

    def callback(number: int) -> Any:
        return lambda metadata, error: heard.append((number, metadata and metadata.offset, error and error.message))

    bundle, _ = bundle_of(*[BundledRecord(callback=callback(number)) for number in range(3)], BundledRecord())
    bundle.acknowledge(rows_of(bundle, [0, 1]), 10, -1)
    bundle.fail(rows_of(bundle, [2, 3]), KafkaError("refused"), {})
    assert heard == [(0, 10, None), (1, 11, None), (2, None, "refused")]


def test_a_callback_that_raises_does_not_keep_the_others_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def breaks(*_: object) -> None:
        raise ZeroDivisionError("the application's bug")

    bundle, _ = bundle_of(BundledRecord(callback=breaks), BundledRecord(callback=lambda *_: heard.append(1)))
    bundle.acknowledge(rows_of(bundle, [0, 1]), 10, -1)
    assert heard == [1]
    assert "the callback of a record for orders raised" in caplog.text


def test_a_record_that_could_not_be_gathered_has_a_future_and_a_callback_too() -> None:
    heard: list[KafkaError] = []
    error = KafkaError("unknown topic")
    future = failed_record(TOPIC, lambda _, failure: heard.append(failure), None, error, ManualClock())
    assert future.exception(0) is error
    assert heard == [error]


def fail_and_end(*at: int) -> Interrupts:
    """Records are abandoned, with an interrupt at these points, and then the producer ends."""
    heard: list[list[KafkaError]] = [[], [], []]
    bundle, futures = bundle_of(
        BundledRecord(), *[BundledRecord(callback=lambda _, error, own=own: own.append(error)) for own in heard]
    )
    with suppress(KeyboardInterrupt), Interrupts(*at) as interrupts:
        bundle.fail_unbatched(np.arange(4, dtype=np.int32), KafkaError("refused"))
    bundle.fail_all(KafkaError("ended"))
    assert all(future.done() for future in futures)
    assert heard == [[future.exception(0)] for future in futures[1:]], interrupts.where
    return interrupts


def test_callbacks_that_an_interrupt_has_left_are_called_when_the_producer_ends() -> None:
    """Ctrl-C between the failure of records and their callbacks: their futures were done, and no callback ever ran."""
    fail_and_end()  # as Interrupts says
    points = fail_and_end().points
    assert points >= 10
    for at in range(points):
        fail_and_end(at)
        fail_and_end(at, at + 1)


def test_a_producer_that_ends_while_a_caller_calls_back_calls_nothing_twice() -> None:
    heard: list[tuple[int, str]] = []

    def callback(number: int) -> Any:
        def hear(_: object, error: KafkaError) -> None:
            heard.append((number, error.message))
            if number == 1:
                sender = threading.Thread(target=bundle.fail_all, args=[KafkaError("ended")], daemon=True)
                sender.start()
                sender.join(30)

        return hear

    bundle, _ = bundle_of(*[BundledRecord(callback=callback(number)) for number in range(5)])
    bundle.fail_unbatched(np.arange(4, dtype=np.int32), KafkaError("refused"))
    assert sorted(heard) == [(0, "refused"), (1, "refused"), (2, "refused"), (3, "refused"), (4, "ended")]


# COLUMNS


def test_records_become_columns_row_by_row() -> None:
    columns = columns_of(
        BundledRecord(b"1", key=b"k", timestamp=5, headers=[("h", b"x"), ("h", None)]),
        BundledRecord(None, key=None, timestamp=7),
    )
    assert columns.value is not None
    assert columns.value.to_pylist() == [b"1", None]
    assert columns.key is not None
    assert columns.key.to_pylist() == [b"k", None]
    assert np.asarray(columns.timestamps).tolist() == [5, 7]
    assert columns.headers is not None


def test_columns_that_nobody_uses_are_left_out() -> None:
    columns = columns_of(BundledRecord(b"1"), BundledRecord(b"2"))
    assert columns.key is None
    assert columns.headers is None


@pytest.mark.parametrize(
    "each",
    [
        BundledRecord(b""),
        BundledRecord(None),
        BundledRecord(bytes(100_000), key=bytes(300)),
        BundledRecord(b"v", headers=[("name", b"value"), ("ä", None), ("", b"")]),
    ],
)
def test_what_send_lets_pass_is_not_refused_later(each: BundledRecord) -> None:
    """Then the caller is gone. The bound is that of columns, but for lengths, whose varints are part of the overhead."""
    bound = LONE_RECORD_OVERHEAD_BYTES + len(each.key or b"") + len(each.value or b"") + max_headers_bytes(each.headers)
    exact = int(size_upper_bounds(columns_of(each))[0])
    assert exact - 2 * 5 - 1 <= bound


def test_a_record_that_says_nothing_has_the_time_of_send_and_no_partition() -> None:
    clock = ManualClock()
    bundle = RecordBundle(TOPIC, Cluster(), clock)
    sent_ms = []
    for _ in range(50):
        clock.advance(7)
        sent_ms.append(clock.wall_ms())
        bundle.add(None, b"v", None, 10)
    bundle.add(None, b"v", None, 10, RecordDetails(partition=3, timestamp=2**62))
    bundle.seal()
    columns = bundle.as_columns()
    assert columns.partition is not None
    assert columns.timestamp is not None
    assert columns.partition.to_pylist() == [None] * 50 + [3]
    assert columns.timestamp.to_pylist() == [*sent_ms, 2**62]


def test_a_bundle_that_is_taken_refuses_records() -> None:
    bundle, _ = filled(BundledRecord())
    assert bundle.add(None, b"late", None, 10) is None
    assert len(bundle) == 1
