"""RecordGatherer: when records that are sent one by one become a bundle, and the memory they take."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from spark_kafka_sink.clock import NEVER_MS, Clock, Waitable
from spark_kafka_sink.errors import KafkaTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.accumulator.buffer_pool import MAX_POOL_BLOCK_BYTES
from spark_kafka_sink.producer.hand_overs import HandOver
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle
from spark_kafka_sink.producer.single_records.record_gatherer import MIN_BUNDLE_BYTES
from tests.producer.harness import TOPIC
from tests.producer.single_records.gathering import Gathering

# WHEN A CHUNK IS MADE


def test_records_wait_until_there_is_a_batchs_worth() -> None:
    gathering = Gathering()
    gathering.add(b"1", size=MIN_BUNDLE_BYTES - 1)
    assert gathering.bundles == []
    gathering.add(b"2", size=1)
    assert gathering.values == [[b"1", b"2"]]


def test_a_bundle_is_no_larger_than_a_request_however_large_batches_are() -> None:
    """The Sender encodes a bundle after linger.ms, as a whole."""
    options = {"batch_size": 16 << 20, "max_request_size": 1 << 20, "buffer_memory": 512 << 20}
    assert Gathering(**options).gatherer.bundle_bytes == 1 << 20


def test_the_first_record_wakes_the_sender_so_that_it_counts_the_linger() -> None:
    gathering = Gathering()
    gathering.add()
    gathering.add()
    assert gathering.stage.wakeups == 1


def test_records_that_have_lingered_are_taken_by_the_sender() -> None:
    gathering = Gathering(linger_ms=100)
    gathering.add(b"1")
    gathering.clock.advance(60)
    gathering.add(b"2")
    assert gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=False) == 40
    gathering.clock.advance(40)
    assert gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=False) == NEVER_MS
    assert gathering.values == [[b"1", b"2"]]


def test_nobody_lingers_while_everything_is_wanted_at_once() -> None:
    gathering = Gathering(linger_ms=60_000)
    gathering.add(b"1")
    gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=True)
    assert gathering.values == [[b"1"]]


def test_the_next_linger_is_that_of_the_oldest_topic() -> None:
    gathering = Gathering(linger_ms=100)
    gathering.add(topic="a")
    gathering.clock.advance(30)
    gathering.add(topic="b")
    assert gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=False) == 70


def test_flush_waits_as_long_as_asked_for_an_encoder_and_says_that_records_are_left() -> None:
    """flush() returned normally, with the caller's record unsent behind another thread's bundle; and waited so long per topic."""
    is_encoding, go_on = threading.Semaphore(0), threading.Event()

    def encode(_: HandOver, __: RecordBundle) -> None:
        is_encoding.release()
        assert go_on.wait(30)

    gathering = Gathering(encode=encode)
    others = []
    for topic in ("a", "b"):
        gathering.add(b"1", topic=topic)
        others.append(threading.Thread(target=gathering.gatherer.encode_topic, args=[topic], daemon=True))
        others[-1].start()
        assert is_encoding.acquire(timeout=30)
        gathering.add(b"2", topic=topic)
    before_ms = gathering.clock.now_ms()
    assert gathering.gatherer.encode_all(before_ms + 500) is False
    assert gathering.clock.now_ms() - before_ms == 500
    assert list(gathering.gatherer.bundles) == ["a", "b"]  # nothing has failed
    go_on.set()
    for thread in others:
        thread.join(30)
    assert gathering.encode_all() is True
    assert list(gathering.gatherer.bundles) == []


def test_flush_takes_every_topic() -> None:
    gathering = Gathering()
    gathering.add(b"1", topic="a")
    gathering.add(b"2", topic="b")
    gathering.encode_all()
    assert gathering.values == [[b"1"], [b"2"]]
    gathering.encode_all()
    assert len(gathering.bundles) == 2


def test_one_topic_may_be_taken_alone() -> None:
    gathering = Gathering()
    gathering.add(b"1", topic="a")
    gathering.add(b"2", topic="b")
    gathering.gatherer.encode_topic("b")
    gathering.gatherer.encode_topic("never heard of")
    assert gathering.values == [[b"2"]]


def test_a_bundle_remembers_since_when_its_first_record_waits() -> None:
    gathering = Gathering()
    started = gathering.clock.now_ms()
    gathering.add()
    gathering.clock.advance(50)
    gathering.add()
    gathering.encode_all()
    assert gathering.bundles[0].created_ms == started


def test_a_bundle_that_lingered_behind_an_older_one_is_looked_at_again_soon() -> None:
    """The older one's caller wakes the Sender before it is done: the Sender then slept on, up to a minute."""
    delays: list[int] = []

    def encode(_: HandOver, bundle: RecordBundle) -> None:
        if bundle.values[0] == b"1":
            gathering.add(b"2")
            gathering.clock.advance(100)
            sender = threading.Thread(
                target=lambda: delays.append(gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=False))
            )
            sender.start()
            sender.join(30)

    gathering = Gathering(linger_ms=100, encode=encode)
    gathering.add(b"1")
    gathering.encode_all()
    assert len(delays) == 1
    assert delays[0] <= 100


def test_bundles_of_a_topic_are_encoded_one_at_a_time_and_in_their_order() -> None:
    """A caller that waits for memory with the older bundle must not be overtaken by one with the younger."""
    order: list[bytes | None] = []
    first_is_encoding, go_on = threading.Event(), threading.Event()

    def encode(_: HandOver, bundle: RecordBundle) -> None:
        if bundle.values[0] == b"1":
            first_is_encoding.set()
            assert go_on.wait(30)
        order.append(bundle.values[0])

    gathering = Gathering(encode=encode)
    gathering.add(b"1")
    slow = threading.Thread(target=gathering.encode_all, daemon=True)
    slow.start()
    assert first_is_encoding.wait(30)
    gathering.add(b"2")
    fast = threading.Thread(target=gathering.encode_all, daemon=True)
    fast.start()
    assert order == []
    go_on.set()
    for thread in (slow, fast):
        thread.join(30)
    assert order == [b"1", b"2"]


def test_a_full_bundle_behind_a_slow_encoder_takes_no_more_records() -> None:
    """The bundle went on growing. Each later send waited for max.block.ms again, without an error, until memory ended."""
    encoded: list[list[bytes | None]] = []
    is_encoding, go_on = threading.Event(), threading.Event()

    def encode(_: HandOver, bundle: RecordBundle) -> None:
        is_encoding.set()
        assert go_on.wait(30)
        encoded.append(bundle.values)

    gathering = Gathering(encode=encode)
    gathering.add(b"1")
    other = threading.Thread(target=gathering.gatherer.encode_topic, args=[TOPIC], daemon=True)
    other.start()
    assert is_encoding.wait(30)
    assert not gathering.add(b"2", size=MIN_BUNDLE_BYTES).done()
    for _ in range(2):
        with pytest.raises(KafkaTimeoutError, match=r"still encoding earlier records for orders after max\.block\.ms"):
            gathering.add(b"refused")
    go_on.set()
    other.join(30)
    gathering.add(b"3")
    gathering.encode_all()
    assert encoded == [[b"1"], [b"2"], [b"3"]]


def test_many_callers_lose_no_record_and_keep_their_own_order() -> None:
    gathering = Gathering()

    def work(caller: int) -> None:
        for number in range(300):
            gathering.add(b"%d:%03d" % (caller, number), size=2000)

    threads = [threading.Thread(target=work, args=[caller], daemon=True) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    gathering.encode_all()
    all_values = [value for values in gathering.values for value in values]
    assert len(all_values) == 1200
    for caller in range(4):
        own = [value for value in all_values if value is not None and value.startswith(b"%d:" % caller)]
        assert own == sorted(own)
        assert len(own) == 300


# MEMORY


def bounds_of(gathering: Gathering) -> int:
    return sum(bundle.size_bytes for bundle in gathering.gatherer.bundles.values())


def test_gathered_records_are_charged_for_and_the_charge_ends_when_they_are_queued() -> None:
    gathering = Gathering()
    pool = gathering.stage.pool
    for number in range(500):
        gathering.add(b"%d" % number, size=1000)
        charged = pool.total_memory - pool.available_memory
        assert bounds_of(gathering) <= charged <= 2 * bounds_of(gathering) + pool.block_size
    gathering.encode_all()
    assert gathering.stage.is_whole


def test_a_caller_waits_for_memory_before_its_record_is_gathered() -> None:
    """With a silent broker, 11.6 MB were held of buffer.memory=1 MiB, and it grew: the Sender overdrew for each bundle."""
    gathering = Gathering(buffer_memory=64 * 1024)
    gathering.gatherer.bundle_bytes = 1_000_000  # nobody has it encoded
    for number in range(65):
        gathering.add(b"%d" % number, size=1000)
    with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
        gathering.add(b"65", size=1000)
    assert bounds_of(gathering) == 65 * 1000
    assert gathering.stage.pool.available_memory == 0
    gathering.encode_all()
    assert gathering.stage.is_whole


def test_while_a_caller_waits_for_memory_nothing_lingers() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=MAX_POOL_BLOCK_BYTES)
    gathering.gatherer.bundle_bytes = 1_000_000
    gathering.add(b"1", topic="a", size=1000)

    def wait(waitable: Waitable, timeout_ms: int) -> bool:
        del waitable, timeout_ms
        assert gathering.stage.accumulator.must_hurry()
        gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=True)
        return True

    gathering.clock.wait = wait
    gathering.add(b"2", topic="b", size=1000)
    assert gathering.values == [[b"1"]]
    assert list(gathering.gatherer.bundles) == ["b"]


def test_many_topics_are_charged_no_more_than_a_block_each_until_they_need_it() -> None:
    gathering = Gathering()
    for number in range(1000):
        gathering.add(topic=f"topic-{number}")
    pool = gathering.stage.pool
    assert pool.total_memory - pool.available_memory == 1000 * pool.block_size


def test_a_callback_does_not_wait_for_memory_that_only_its_own_thread_gives_back() -> None:
    gathering = Gathering(buffer_memory=MAX_POOL_BLOCK_BYTES)
    gathering.add(b"1", topic="a")
    gathering.may_wait = False
    before = gathering.clock.now_ms()
    with pytest.raises(KafkaTimeoutError, match=r"KAFKA_BUFFER_EXHAUSTED.*in a callback"):
        gathering.add(b"2", topic="b")
    assert gathering.clock.now_ms() == before


def test_a_gatherer_that_is_closed_while_a_caller_waits_takes_nothing_from_it() -> None:
    gathering = Gathering(buffer_memory=MAX_POOL_BLOCK_BYTES)
    gathering.add(b"1", topic="a")

    def close(waitable: Waitable, timeout_ms: int) -> bool:
        del waitable, timeout_ms
        gathering.gatherer.close()
        gathering.encode_all()
        return True

    gathering.clock.wait = close
    with pytest.raises(ProducerClosedError):
        gathering.add(b"2", topic="b")
    assert gathering.stage.is_whole


def test_what_is_aborted_gives_its_charge_back() -> None:
    gathering = Gathering()
    gathering.add()
    gathering.gatherer.take_gathered_bundles()
    assert gathering.stage.is_whole


def test_many_callers_and_little_memory_lose_no_record_and_no_charge() -> None:
    gathering = Gathering(buffer_memory=128 * 1024, clock=Clock())
    stop = threading.Event()

    def send(caller: int) -> None:
        for number in range(200):
            gathering.add(b"%d:%03d" % (caller, number), topic=f"topic-{number % 3}", size=1500)

    def encode() -> None:
        while not stop.is_set():
            gathering.gatherer.encode_lingered(gathering.clock.now_ms(), is_all_due=True)

    callers = [threading.Thread(target=send, args=[caller], daemon=True) for caller in range(4)]
    sender = threading.Thread(target=encode, daemon=True)
    for thread in (*callers, sender):
        thread.start()
    for thread in callers:
        thread.join(60)
    stop.set()
    sender.join(30)
    gathering.encode_all()
    assert sorted(value for values in gathering.values for value in values if value) == sorted(
        b"%d:%03d" % (caller, number) for caller in range(4) for number in range(200)
    )
    assert gathering.stage.is_whole


def test_half_a_record_left_by_an_interrupt_is_dropped_and_the_next_begins_a_bundle() -> None:
    """Ctrl-C in between left a value without a key: the whole bundle could not be encoded, and failed."""
    gathering = Gathering()
    gathering.add(b"1")
    gathering.gatherer.bundles[TOPIC]._clock = Mock(wall_s=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gathering.add(b"half")
    gathering.add(b"2")
    gathering.encode_all()
    assert gathering.values == [[b"1"], [b"2"]]
    for bundle in gathering.bundles:
        assert (len(bundle.keys), len(bundle.sent_s), len(bundle.callbacks), len(bundle)) == (1, 1, 0, 1)
    assert gathering.stage.is_whole


# CLOSE


def test_a_closed_gatherer_takes_no_records_and_keeps_what_it_has() -> None:
    gathering = Gathering()
    gathering.add(b"1")
    gathering.gatherer.close()
    with pytest.raises(ProducerClosedError):
        gathering.add(b"2")
    gathering.encode_all()
    assert gathering.values == [[b"1"]]


def test_what_is_gathered_can_be_taken_to_be_failed() -> None:
    gathering = Gathering()
    future = gathering.add(b"1")
    error = ProducerClosedError("closed forcefully")
    (bundle,) = gathering.gatherer.take_gathered_bundles()
    bundle.fail_all(error)
    assert gathering.gatherer.take_gathered_bundles() == []
    assert future.exception(0) is error
    assert gathering.bundles == []
