"""WorkerCache: who gets an idle producer, and when one is closed; first with fakes, then with real ones on FakeBroker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.sink.worker_cache import CLOSE_TIMEOUT_MS, IDLE_BYTES, MAX_IDLE_COUNT, WorkerCache
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.interrupts import Interrupts
from tests.sink.fake_producer import FakeProducer
from tests.threads import assert_ended

KEPT_MS = 60_000
WAIT_S = 20


class StillClock(ManualClock):
    """Time that passes only when the test says so: the cache's own thread waits until something changes."""

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        del timeout_ms
        return waitable.wait(WAIT_S)


class CacheStage:
    """A WorkerCache that makes fake producers, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.made: list[FakeProducer] = []
        self.cache = WorkerCache(self._make, self.clock)

    def _make(self, options: Mapping[str, object]) -> FakeProducer:
        self.made.append(FakeProducer(options))
        return self.made[-1]

    def task(self, timeout_ms: int = KEPT_MS, **options: object) -> TaskProducer:
        with self.cache.lend({name.replace("_", "."): value for name, value in options.items()}, timeout_ms) as producer:
            return producer


@pytest.fixture
def stage() -> Iterator[CacheStage]:
    made = CacheStage()
    yield made
    made.cache.close()


# WHICH TASK GETS IT


def test_the_next_task_gets_the_same_producer_with_counters_at_zero(stage: CacheStage) -> None:
    first, second = stage.task(acks="all"), stage.task(acks="all")
    assert first is second
    (producer,) = stage.made
    assert (producer.resumed, producer.kept_bytes, producer.closed) == (1, IDLE_BYTES, [])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"acks": "all"}, {"acks": "1"}),
        ({"acks": "all"}, {"acks": "all", "linger_ms": 5}),
        ({"bootstrap_servers": ["a:1"]}, {"bootstrap_servers": ["a:1", "b:1"]}),
        ({"sasl_jaas_config": Secret("old")}, {"sasl_jaas_config": Secret("new")}),
    ],
)
def test_other_options_make_another_producer(stage: CacheStage, one: dict[str, object], other: dict[str, object]) -> None:
    assert stage.task(**one) is not stage.task(**other)
    assert stage.task(**one) is stage.made[0]


def test_the_same_password_is_the_same_configuration_and_shows_nowhere(stage: CacheStage) -> None:
    assert stage.task(sasl_jaas_config=Secret("hunter2")) is stage.task(sasl_jaas_config=Secret("hunter2"))
    assert "hunter2" not in repr(stage.cache.__dict__)


def test_a_renewed_certificate_makes_another_producer(stage: CacheStage, tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    file.write_text("old")
    first = stage.task(ssl_keystore_location=str(file))
    assert stage.task(ssl_keystore_location=str(file)) is first
    file.write_text("renewed")
    assert stage.task(ssl_keystore_location=str(file)) is not first


def test_a_renewed_keytab_or_truststore_of_a_login_makes_another_producer(stage: CacheStage, tmp_path: Path) -> None:
    """Only files that an option names by itself counted: the next login went on with what the old keytab had given."""
    file = tmp_path / "renewed"
    for template in ('Krb5LoginModule required keyTab="{}";', 'OAuthBearerLoginModule required ssl.truststore.location="{}";'):
        login = Secret(template.format(file))
        file.write_text("old")
        first = stage.task(sasl_jaas_config=login)
        assert stage.task(sasl_jaas_config=login) is first
        file.write_text("renewed")
        assert stage.task(sasl_jaas_config=login) is not first


def test_a_ticket_cache_in_which_a_login_leaves_tickets_makes_no_other_producer(stage: CacheStage, tmp_path: Path) -> None:
    login = Secret(f'Krb5LoginModule required ticketCache="FILE:{tmp_path / "tickets"}";')
    first = stage.task(sasl_jaas_config=login)
    (tmp_path / "tickets").write_text("that of a broker")
    assert stage.task(sasl_jaas_config=login) is first


def test_two_tasks_at_a_time_have_a_producer_each_and_both_are_kept(stage: CacheStage) -> None:
    with stage.cache.lend({}, KEPT_MS) as one, stage.cache.lend({}, KEPT_MS) as other:
        assert one is not other
    assert stage.cache.idle_count() == 2


def test_many_threads_never_share_a_producer_and_leave_none_open(stage: CacheStage) -> None:
    in_use: set[int] = set()
    lock = threading.Lock()
    shared = []

    def tasks(seed: int) -> None:
        for number in range(200):
            with stage.cache.lend({"client.id": f"c{(seed + number) % 12}"}, KEPT_MS) as producer:
                with lock:
                    shared.extend([producer] if id(producer) in in_use or producer.closed else [])
                    in_use.add(id(producer))
                with lock:
                    in_use.discard(id(producer))

    threads = [threading.Thread(target=tasks, args=(seed,)) for seed in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert shared == []
    assert stage.cache.idle_count() == sum(not made.closed for made in stage.made) <= MAX_IDLE_COUNT
    stage.cache.close()
    assert all(len(made.closed) == 1 for made in stage.made)


# WHEN IT IS CLOSED


def test_a_task_that_fails_has_its_producer_closed_at_once(stage: CacheStage) -> None:
    with pytest.raises(KeyboardInterrupt), stage.cache.lend({}, KEPT_MS):
        raise KeyboardInterrupt
    assert stage.made[0].closed == [0]
    assert stage.cache.idle_count() == 0
    assert stage.task() is stage.made[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that is being closed
def test_wherever_an_interrupt_comes_no_producer_stays_open_and_no_later_task_waits() -> None:
    """Taken from the idle ones and not lent yet, or rested and not kept yet, a producer stayed open for the worker's life."""
    at, where = 0, ["somewhere"]
    while where:
        made = CacheStage()
        made.task()
        interrupts = Interrupts(at)
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            made.task()
        where = interrupts.where
        made.task(a=1)
        made.cache.close_expired()
        assert sum(not each.closed for each in made.made) == made.cache.idle_count(), where
        made.cache.close()
        assert all(each.closed for each in made.made), where
        at += 1
    assert at > 40  # fewer since Python 3.12, where comprehensions are no calls


def test_without_a_timeout_a_producer_is_closed_with_the_task(stage: CacheStage) -> None:
    stage.task(timeout_ms=0)
    assert (stage.made[0].closed, stage.cache.idle_count()) == ([None], 0)


def test_a_producer_with_unsettled_rows_is_closed_with_the_task(stage: CacheStage) -> None:
    with stage.cache.lend({}, KEPT_MS) as producer:
        producer.send_columns("t", value=pa.array([b"v"]))
    assert (stage.made[0].closed, stage.cache.idle_count()) == ([None], 0)


def test_a_producer_that_fails_while_it_is_idle_is_not_lent_again(stage: CacheStage) -> None:
    stage.task()
    stage.made[0].works = False
    assert stage.task() is stage.made[1]
    assert stage.made[0].closed == [CLOSE_TIMEOUT_MS]


@pytest.mark.parametrize("options", [{"interceptor_classes": ("my.Audit",)}, {"transactional_id": "t"}])
def test_a_producer_with_interceptors_or_a_transactional_id_is_closed_with_the_task(
    stage: CacheStage, options: dict[str, object]
) -> None:
    stage.task(**options)
    assert stage.made[0].closed == [None]


def test_an_idle_producer_is_closed_when_its_timeout_ends_and_not_before(stage: CacheStage) -> None:
    stage.task(acks="all")
    stage.clock.advance(KEPT_MS - 1)
    stage.task(acks="1")
    stage.cache.close_expired()
    assert [each.closed for each in stage.made] == [[], []]
    stage.clock.advance(1)
    stage.cache.close_expired()
    assert [each.closed for each in stage.made] == [[CLOSE_TIMEOUT_MS], []]


def test_each_task_restarts_the_timeout(stage: CacheStage) -> None:
    for _ in range(3):
        stage.task()
        stage.clock.advance(KEPT_MS - 1)
    stage.cache.close_expired()
    assert stage.cache.idle_count() == len(stage.made) == 1


def test_of_many_configurations_the_least_recently_used_are_closed(stage: CacheStage) -> None:
    for number in range(MAX_IDLE_COUNT + 2):
        stage.task(linger_ms=number)
    assert [each.closed for each in stage.made] == [[CLOSE_TIMEOUT_MS]] * 2 + [[]] * MAX_IDLE_COUNT
    assert stage.cache.idle_count() == MAX_IDLE_COUNT


def test_a_thread_closes_expired_producers_and_ends() -> None:
    closed, was_seen = threading.Event(), threading.Event()

    class Telling(FakeProducer):
        def close(self, timeout_ms: int | None = None) -> None:
            assert was_seen.wait(WAIT_S)
            super().close(timeout_ms)
            closed.set()

    others = set(threading.enumerate())
    cache = WorkerCache(Telling)
    with cache.lend({}, timeout_ms=20):
        pass
    (thread,) = [each for each in set(threading.enumerate()) - others if each.name == "kafka-producer-cache"]
    assert thread.daemon
    was_seen.set()
    assert closed.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert cache.idle_count() == 0


# WITH REAL PRODUCERS


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(topics={"orders": 4}) as cluster:
        yield cluster
        assert cluster.violations == []


@pytest.fixture
def cache() -> Iterator[WorkerCache]:
    made = WorkerCache(TaskProducer)
    yield made
    made.close()


def write(cache: WorkerCache, broker: FakeBroker, rows: int, value_bytes: int = 8) -> dict[str, float]:
    """Runs one task. Returns its counters."""
    with cache.lend({"bootstrap.servers": [broker.bootstrap_servers], "client.id": "cached"}, KEPT_MS) as producer:
        values = pa.array([b"v" * value_bytes] * rows)
        delivery = producer.send_columns("orders", value=values)
        producer.flush()
        assert delivery.result(WAIT_S).acknowledged == rows
        return producer.metrics(since_start=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        threading.Event().wait(0.01)  # polled: there is no notification


def test_a_later_task_sends_only_produce_requests(broker: FakeBroker, cache: WorkerCache) -> None:
    first = write(cache, broker, 100)
    before = {key: len(broker.requests_of(key)) for key in ApiKey}
    second = write(cache, broker, 10)
    more = {key: len(broker.requests_of(key)) - count for key, count in before.items()}
    assert {key for key, count in more.items() if count} == {ApiKey.PRODUCE}
    assert (first["connection-creation-total"] > 0, second["connection-creation-total"]) == (True, 0)
    assert len({batch.producer_id for batch in broker.batches("orders")}) == 1


def test_counters_are_the_tasks_own(broker: FakeBroker, cache: WorkerCache) -> None:
    first = write(cache, broker, 100, value_bytes=1000)
    second = write(cache, broker, 10)
    assert (first["record-send-total"], second["record-send-total"]) == (100, 10)
    assert second["byte-total"] < 1000 < first["byte-total"]
    assert second["record-size-max"] < 100 < first["record-size-max"]
    assert second["batch-size-max"] < 1000 < first["batch-size-max"]


def test_an_idle_producer_keeps_little_memory(broker: FakeBroker, cache: WorkerCache) -> None:
    write(cache, broker, 5_000, value_bytes=1000)
    (idle,) = cache._entries
    free = idle.item._pool._free_blocks
    assert 0 < sum(map(len, free)) <= IDLE_BYTES
    assert idle.item.metrics()["buffer-available-bytes"] == idle.item.metrics()["buffer-total-bytes"]


def test_a_connection_that_the_broker_closes_while_idle_causes_no_failure(broker: FakeBroker, cache: WorkerCache) -> None:
    write(cache, broker, 10)
    (idle,) = cache._entries
    broker.drop_connections(0)
    until(lambda: idle.item.metrics()["connection-count"] == 0)
    counters = write(cache, broker, 10)
    assert (counters["record-retry-total"], counters["record-error-total"]) == (0, 0)
    assert len(broker.values("orders")) == 20


def test_a_producer_that_finds_another_cluster_while_idle_is_not_lent_again(broker: FakeBroker, cache: WorkerCache) -> None:
    """Such a producer can never write again. If the cache lent it, it would fail a task for which a new producer works."""
    write(cache, broker, 10)
    (idle,) = cache._entries
    idle.item._metadata.report_other_cluster("another")
    assert not idle.item.is_at_rest()
    assert write(cache, broker, 10)["record-error-total"] == 0


def test_a_closed_producer_leaves_no_thread_and_no_socket(broker: FakeBroker, cache: WorkerCache) -> None:
    write(cache, broker, 10)
    (idle,) = cache._entries
    cache.close()
    assert not idle.item.is_at_rest()
    assert_ended("| cached")
    assert idle.item.metrics()["connection-count"] == 0


def test_a_fork_does_not_touch_its_parents_producers(broker: FakeBroker) -> None:
    """The child writes with a new producer, and the parent continues with its own."""
    program = f"""
import os, sys, pyarrow as pa
from spark_kafka_sink.sink.worker_cache import PRODUCERS
def write():
    with PRODUCERS.lend({{"bootstrap.servers": [{broker.bootstrap_servers!r}]}}, 60_000) as producer:
        delivery = producer.send_columns("orders", value=pa.array([b"v"]))
        producer.flush()
        delivery.result({WAIT_S})
    return producer
mine = write()
child = os.fork()
if child == 0:
    assert PRODUCERS.idle_count() == 0 and not mine.is_at_rest()
    os._exit(0 if write() is not mine else 1)
assert os.waitpid(child, 0)[1] == 0
assert write() is mine
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert len(broker.values("orders")) == 3
    assert len({batch.producer_id for batch in broker.batches("orders")}) == 2
