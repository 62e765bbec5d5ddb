"""Real KafkaProducers on one thread, over a SimulatedCluster and a clock that jumps from event to event.

A KafkaProducer's Sender runs when it would wake up: its poll has timed out, an answer has come, or somebody woke it. A caller
who waits, for memory or for the end of a call, hands over to the Simulation, which lets the next event happen: of those that the
test has planned while there are any, and then the events of a cluster in which nothing goes wrong.
So nothing depends on real time or on the order of threads, and a wake-up that is missing shows as a call that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network import metadata as metadata_module
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer import producer as producer_module
from spark_kafka_sink.producer import producer_parts as parts_module
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.transactions.transaction_manager import TransactionManager
from spark_kafka_sink.producer.txn_requests import txn_request_queue as queue_module
from tests.fakes.clock import ManualClock
from tests.producer.simulated_cluster import SimulatedClient, SimulatedCluster

LATENCY_MS = 1  # of brokers that behave
MOST_ROUNDS_AT_ONCE = 200


class SimulatedClock(ManualClock):
    """Whoever waits lets the simulation go on."""

    def __init__(self) -> None:
        super().__init__()
        self.on_wait: Callable[[int], None] = lambda _: None

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        del waitable
        before_ms = self.now_ms()
        self.on_wait(timeout_ms)
        return self.now_ms() - before_ms < timeout_ms


class IdleThread:
    """Instead of the Sender's thread: the Simulation runs the Sender."""

    def __init__(self, **_: object) -> None:
        self.name = "simulated"

    def start(self) -> None:
        """Nothing runs by itself."""

    def is_alive(self) -> bool:
        return False


class SimulatedProducer(KafkaProducer):
    """Its Sender is run by the Simulation."""

    def __init__(self, simulation: Simulation, options: Mapping[str, object]) -> None:
        super().__init__(options, clock=simulation.clock)
        client = self._sender._client
        assert isinstance(client, SimulatedClient)
        self.client = client
        self._simulation = simulation
        self._is_running = False
        self._wakeups_seen = -1
        self._sleeps_until_ms = 0

    @property
    def manager(self) -> TransactionManager:
        assert isinstance(self._sequencer, TransactionManager)
        return self._sequencer

    @property
    def has_all_memory_back(self) -> bool:
        return self._pool.available_memory == self._pool.total_memory and not self._accumulator.incomplete

    # THE SENDER

    def wakes_at_ms(self) -> int:
        """When the Sender wakes up by itself."""
        return min(self._sleeps_until_ms, self.client.next_event_ms())

    def run_if_due(self) -> bool:
        now_ms = self._clock.now_ms()
        has_news, wakeups = self.client.has_news(), self.client.wakeups
        if self._is_running or not (has_news or wakeups != self._wakeups_seen or now_ms >= self._sleeps_until_ms):
            return False
        self._is_running = True
        try:
            if has_news:
                self.client.poll(0, now_ms)  # the end of the poll that was waiting
            self._wakeups_seen = self.client.wakeups  # a wake-up during the round ends the next poll at once
            self._sender.run_once()
        finally:
            self._is_running = False
        self._sleeps_until_ms = now_ms + self.client.poll_timeouts_ms[-1]
        self.client.poll_timeouts_ms.clear()
        return True

    def shut_down(self, timeout_ms: int | None = None) -> None:
        """close(), with the Sender's thread running on this one. A cluster in which nothing goes wrong answers meanwhile."""
        self._sender.end_signal.signal()  # so close() leaves the rest to this method
        self.close(timeout_ms)
        limit_ms = self._settle_limit_ms() if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.now_ms() + limit_ms
        self._is_running = True
        with mock.patch.object(self.client, "poll", partial(self._poll_in_shutdown, self.client.poll, deadline_ms)):
            self._sender.run()
        assert self._sender.failures.fatal is None
        assert self._clock.now_ms() <= deadline_ms, f"close() takes more than {limit_ms} ms"
        self._simulation.forget(self)

    def _poll_in_shutdown(self, poll: Callable[[int, int], Any], deadline_ms: int, timeout_ms: int, now_ms: int) -> Any:
        responses = poll(timeout_ms, now_ms)
        left_ms = deadline_ms - self._clock.now_ms()
        if left_ms <= 0:
            self._sender.force_close()
            self._clock.advance(1)  # seen by shut_down
        elif timeout_ms > 0 and not responses:
            self._simulation.let_one_thing_happen(min(timeout_ms, left_ms))
            responses = poll(0, self._clock.now_ms())
        return responses


class Simulation:
    """Args:
    cluster: with the clock that all share.
    markers_every: brokers that behave write one marker in so many steps.
    """

    def __init__(self, clock: SimulatedClock, cluster: SimulatedCluster, *, markers_every: int = 1) -> None:
        self.clock = clock
        self.cluster = cluster
        self.producers: list[SimulatedProducer] = []
        self.plan: Callable[[int], bool] = lambda _: False  # lets a planned event happen within so many ms; false: there is none
        self.others: list[Iterator[None]] = []  # what they do does not wait: each goes on a little after every event
        self._markers_every = markers_every
        self._steps = 0
        clock.on_wait = self._while_somebody_waits

    def new_producer(self, **options: object) -> SimulatedProducer:
        all_options = {"bootstrap_servers": "node-0:9092", "linger_ms": 0} | options
        with self._parts():
            producer = SimulatedProducer(self, {name.replace("_", "."): value for name, value in all_options.items()})
        self.producers.append(producer)
        return producer

    @contextmanager
    def _parts(self) -> Iterator[None]:
        """A KafkaProducer made inside of this has a simulated network and no thread, and draws the same back-offs each time."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(parts_module, "NetworkClient", self._new_client))
            stack.enter_context(mock.patch.object(producer_module.threading, "Thread", IdleThread))
            for module in (parts_module, metadata_module, queue_module):
                stack.enter_context(mock.patch.object(module, "Random", partial(Random, 0)))
            yield

    def _new_client(self, config: ProducerConfig, metadata: Metadata, clock: SimulatedClock, **_: object) -> SimulatedClient:
        return SimulatedClient(self.cluster, metadata, clock, config.max_in_flight_requests_per_connection)

    def forget(self, producer: SimulatedProducer) -> None:
        """It is closed, or its process has ended."""
        self.producers.remove(producer)
        self.cluster.forget(producer.client)

    # WHAT HAPPENS

    def settle(self) -> bool:
        """Run every Sender that has a reason to run, until none has one. Returns whether any had one."""
        for number in range(MOST_ROUNDS_AT_ONCE):
            if not sum(producer.run_if_due() for producer in list(self.producers)):
                return number > 0
        raise AssertionError("a Sender does not come to rest")

    def pass_time(self, duration_ms: int) -> None:
        """Senders wake up when they want to; nobody answers."""
        until_ms = self.clock.now_ms() + duration_ms
        self.settle()
        while (now_ms := self.clock.now_ms()) < until_ms:
            next_ms = min((producer.wakes_at_ms() for producer in self.producers), default=until_ms)
            self.clock.advance(max(1, min(next_ms, until_ms) - now_ms))
            self.settle()

    def let_one_thing_happen(self, limit_ms: int) -> None:
        """In a cluster in which nothing goes wrong: requests are answered, or time passes until a Sender wakes up.

        At most `limit_ms` pass.
        """
        self.settle()
        self._steps += 1
        if any(producer.client.requests for producer in self.producers):
            self.clock.advance(min(LATENCY_MS, limit_ms))
            self.cluster.answer_all()
        else:
            wakes_ms = min((producer.wakes_at_ms() for producer in self.producers), default=1 << 62)
            wait_ms = max(1, wakes_ms - self.clock.now_ms())
            if self.cluster.has_markers_to_write:
                wait_ms = LATENCY_MS
            self.clock.advance(min(wait_ms, limit_ms))
        if self._steps % self._markers_every == 0:
            self.cluster.transactions.write_markers(limit=1)
        self.settle()
        self.go_on_with_others()

    def go_on_with_others(self) -> None:
        others, self.others = self.others, []
        self.others += [other for other in others if next(other, self) is None]

    def _while_somebody_waits(self, timeout_ms: int) -> None:
        if not self.settle() and not self.plan(timeout_ms):
            self.let_one_thing_happen(timeout_ms)
