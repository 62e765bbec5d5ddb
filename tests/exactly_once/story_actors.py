"""Tasks and drivers of stories.py: the built code on a simulated network, each a thread that stands still before its requests.

    cluster = StoryCluster(seed, transaction_version=2, may_skip=True)
    with simulated(cluster):
        actor = Actor("task", lambda: cluster.run("r0").commit(reports))
        while not actor.is_over:
            actor.move()        # the next request is carried out by the brokers, and its answer read

Clients are real down to the Selector, brokers are a FakeBroker without sockets. A request is carried out when it is sent. One
actor moves at a time, so a story does not depend on threads. Each actor has a clock of its own, which goes on only while the
actor waits; the brokers' clock, by which transactions time out, is the story's. A producer's Sender runs on its caller's thread
while that waits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.transaction_client import TRANSACTION_LOG, TransactionClient
from spark_kafka_sink.clock import Waitable
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.exactly_once.settling import WrittenPlaces
from spark_kafka_sink.exactly_once.writes import DriverTime, TaskReport
from spark_kafka_sink.network import metadata as metadata_module
from spark_kafka_sink.network.framing import Framing
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.producer import producer as producer_module
from spark_kafka_sink.producer import producer_parts as parts_module
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.producer.txn_requests import txn_request_queue as queue_module
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.exactly_once import stepwise_writes
from tests.exactly_once.runs import TOPIC
from tests.exactly_once.stepwise_writes import DriverRun, Task
from tests.exactly_once.trace_replay import PLAINLY, SteppedThread
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.fake_node import DropConnection, ReceivedRequest
from tests.fakes.fake_selector import FakeSelector, SentRequest
from tests.fakes.fake_worker import FakeWorker
from tests.producer.simulated_producer import IdleThread

NODES = 3
PARTITIONS = 3  # of the topic
FIRST_PORT = 9092
TASK_TIMEOUT_MS = 60_000
OPTIONS = {"max.block.ms": 4_000, "retry.backoff.ms": 20, "retry.backoff.max.ms": 100, "linger.ms": 0}
IDLE = "wait"
STEPS = frozenset(
    (
        *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT),
        *(ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.LIST_TRANSACTIONS),
        *(ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_OFFSETS),
    )
)
_NEVER = threading.Event()


class _Here(threading.local):
    actor: Actor | None = None


here = _Here()  # who is moving; None: the story itself, which does not stand still


class Actor(SteppedThread):
    """A process: one attempt of a task, or a driver in commit() and abort(). `outcome`: see SteppedThread."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        def run() -> object:
            here.actor = self
            return work()

        super().__init__(name, (), run)

    @property
    def at(self) -> str:
        """What it stands before."""
        return self._at or ""

    def move(self) -> None:
        self._tell(PLAINLY)


class StoryClock(ManualClock):
    """Of one actor. Who waits lets the producer's Sender go on."""

    def __init__(self) -> None:
        super().__init__()
        self.producer: StoryProducer | None = None
        self.longest_poll_ms = 1 << 62

    def wait(self, waitable: Waitable, timeout_ms: int) -> bool:
        del waitable
        before_ms, self.longest_poll_ms = self.now_ms(), max(timeout_ms, 1)
        try:
            if self.producer is None:
                self.advance(timeout_ms)
            else:
                self.producer.run_sender()
        finally:
            self.longest_poll_ms = 1 << 62
        return self.now_ms() - before_ms < timeout_ms


class StorySelector(FakeSelector):
    def __init__(self, clock: StoryClock, cluster: StoryCluster) -> None:
        super().__init__(clock)
        self.refused = cluster.refused
        self.answer = self._answer
        self._cluster = cluster
        self._story_clock = clock
        self._ports: dict[int, int] = {}
        cluster.selectors.append(self)

    def connect(self, node_id: int, address: Address, framing: Framing) -> None:
        self._ports[node_id] = address.socket_address[1]
        super().connect(node_id, address, framing)

    def lose_port(self, port: int) -> None:
        for node_id, own_port in self._ports.items():
            if own_port == port:
                self.lose(node_id)

    def _answer(self, request: SentRequest) -> Message | None:
        actor = here.actor
        if actor is not None and request.header.api_key in STEPS:
            return actor.step(words_of(request), lambda _: self._carry_out(request))
        return self._carry_out(request)

    def _carry_out(self, request: SentRequest) -> Message | None:
        port = self._ports[request.node_id]
        if port in self.refused:
            self.lose(request.node_id)
            return None
        try:
            return self._cluster.handle(ReceivedRequest(port - FIRST_PORT, request.header, request.message))
        except DropConnection:
            self.lose(request.node_id)
            return None

    def poll(self, timeout_ms: int) -> None:
        before_ms = self._story_clock.now_ms()
        super().poll(min(timeout_ms, self._story_clock.longest_poll_ms))
        self.poll_timeouts_ms.clear()
        if self._story_clock.now_ms() > before_ms and here.actor is not None:
            here.actor.step(IDLE, lambda _: None)


class StoryProducer(TaskProducer):
    """Its Sender runs while its caller waits."""

    def __init__(self, options: Mapping[str, object], clock: StoryClock) -> None:
        super().__init__(options, clock=clock)
        clock.producer = self
        self._is_running = False

    def run_sender(self) -> None:
        assert not self._is_running
        self._is_running = True
        try:
            self._sender._run_round()
        finally:
            self._is_running = False

    def close(self, timeout_ms: int | None = None) -> None:
        """Its process ends. A prepared transaction stays open."""


class StoryCluster:
    """Three brokers without sockets.

    Args:
        may_skip: brokers are Kafka 4.3, so that control records may be skipped.
    """

    def __init__(self, seed: object, *, transaction_version: int, may_skip: bool) -> None:
        self.clock = ManualClock()
        self.broker = FakeBroker(
            nodes=NODES,
            topics={TOPIC: PARTITIONS, TRANSACTION_LOG: 50},
            transaction_version=transaction_version,
            clock=self.clock,
        )
        self.skipped = _Skipped()
        self.transactions = self.broker.transactions
        self.transactions.skipped = self.skipped
        self.refused: dict[int, str] = {}
        self.selectors: list[StorySelector] = []
        self.on_request: Callable[[ReceivedRequest], None] = lambda _: None
        self._seeds = (f"{seed} {number}" for number in itertools.count())
        self._times = itertools.count(1)
        for node in self.broker.nodes.values():
            node.port, node.is_running = FIRST_PORT + node.node_id, True
            self.broker.supported_features[node.node_id]["metadata.version"] = 30 if may_skip else 29

    def random(self) -> Random:
        return Random(next(self._seeds))

    def handle(self, request: ReceivedRequest) -> Message | None:
        self.on_request(request)
        if isinstance(
            request.message, SaslHandshakeRequest
        ):  # a client that lost connections asks whether brokers demand a login
            return SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE.number)
        return self.broker.handle(request, _NEVER)

    def stop_node(self, node_id: int) -> None:
        port = FIRST_PORT + node_id
        self.broker.nodes[node_id].is_running = False
        self.refused[port] = "connection refused"
        for selector in self.selectors:
            selector.lose_port(port)

    def start_node(self, node_id: int) -> None:
        self.broker.nodes[node_id].is_running = True
        self.refused.pop(FIRST_PORT + node_id, None)

    def run(self, host: str, has_ends: bool = False) -> StoryRun:
        return StoryRun(self, host, has_ends=has_ends)

    def now(self, host: str) -> DriverTime:
        return DriverTime(host, next(self._times))

    # THE CLIENTS OF ACTORS

    def network(self, config: ProducerConfig, metadata: Metadata, clock: StoryClock, **more: Any) -> NetworkClient:
        return NetworkClient(
            config,
            metadata,
            clock,
            selector=StorySelector(clock, self),
            resolve_host=lambda host, port: [Address(2, (host, port))],
            random=self.random(),
            worker=FakeWorker(),
            **more,
        )

    def transaction_client(self, options: Mapping[str, object]) -> TransactionClient:
        clock = StoryClock()
        config = ProducerConfig.from_mapping(ProducerConfig.conceal(options))
        metadata = Metadata(config, clock, random=self.random())
        network = self.network(config, metadata, clock)
        access = ClusterAccess(config, clock=clock, metadata=metadata, network=network, random=self.random())
        return TransactionClient(options, requests=RequestClient(access))

    def producer(self, options: Mapping[str, object]) -> StoryProducer:
        return StoryProducer(options, StoryClock())


class _Skipped(set[TopicPartition]):
    """Counts the control records that were skipped."""

    count = 0

    def __contains__(self, partition: object) -> bool:
        is_skipped = super().__contains__(partition)
        self.count += is_skipped
        return is_skipped


@contextmanager
def simulated(cluster: StoryCluster) -> Iterator[None]:
    """All clients that are made inside of this are the cluster's."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(stepwise_writes, "TransactionClient", cluster.transaction_client))
        stack.enter_context(mock.patch.object(stepwise_writes, "TaskProducer", cluster.producer))
        stack.enter_context(mock.patch.object(parts_module, "NetworkClient", cluster.network))
        stack.enter_context(mock.patch.object(producer_module.threading, "Thread", _thread_or_idle))
        for module in (parts_module, metadata_module, queue_module):
            stack.enter_context(mock.patch.object(module, "Random", cluster.random))
        yield


_Thread = threading.Thread


def _thread_or_idle(**how: Any) -> Any:
    return IdleThread() if str(how.get("name", "")).startswith("kafka-producer-network-thread") else _Thread(**how)


class StoryRun(DriverRun):
    """As one process sees a life of the driver."""

    def __init__(self, cluster: StoryCluster, host: str, *, has_ends: bool) -> None:
        super().__init__(cluster.broker.bootstrap_servers, TOPIC, host, **OPTIONS)
        self._cluster = cluster
        self._has_ends = has_ends

    def _now(self) -> DriverTime:
        return self._cluster.now(self.name)

    def story_task(self, version: int, partition: int, rows: Sequence[str], attempt: int, planned_at: DriverTime) -> StoryTask:
        return StoryTask(self, version, partition, rows, attempt, TASK_TIMEOUT_MS, planned_at)

    def commit_reports(self, reports: Sequence[TaskReport]) -> object:
        if self._has_ends:
            self.places = WrittenPlaces(self._ends(reports), frozenset({TOPIC}))
        return self.commit(reports)

    def _ends(self, reports: Sequence[TaskReport]) -> dict[TopicPartition, int]:
        """As tasks tell the sink."""
        producers = {each.entry.producer_id for each in reports}
        return {
            TopicPartition(TOPIC, partition): batch.base_offset + len(batch.records)
            for partition in range(PARTITIONS)
            for batch in self._cluster.broker.batches(TOPIC, partition)
            if batch.producer_id in producers
        }


class StoryTask(Task):
    """Its rows go to several partitions."""

    def _hand_over(self) -> None:
        self._are_read = True
        if self.rows:
            self.attempt.add_rows(self._content())
            if self.attempt.must_write:
                partitions = [(len(row) + number) % PARTITIONS for number, row in enumerate(self.rows)]
                columns = {"value": pa.array(self.rows, pa.string()), "partition": pa.array(partitions, pa.int32())}
                self.producer.send_columns(self._topic, **columns)


def words_of(request: SentRequest) -> str:
    message: Any = request.message
    name = type(message).__name__.removesuffix("Request")
    details = [getattr(message, each, None) for each in ("transactional_id", "group_id")]
    if isinstance(getattr(message, "transactional_ids", None), tuple):
        details += message.transactional_ids
    if getattr(message, "groups", None):
        details += [each.group_id for each in message.groups]
    if hasattr(message, "committed"):
        details.append("commit" if message.committed else "abort")
    return " ".join([name, *(str(each) for each in details if each)])
