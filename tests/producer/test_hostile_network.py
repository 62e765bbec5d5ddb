"""The Sender and its network together, against brokers whose bytes, values and connections make no sense.

test_hostile_brokers.py (tests/network) does so for the network alone, test_hostile_answers.py for the Sender alone.
"""

from __future__ import annotations

import socket
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.producer_parts import sequencer_of
from spark_kafka_sink.producer.sender.sender import MAX_SLEEP_MS, Sender
from spark_kafka_sink.producer.sender.sender_failures import SenderFailures
from spark_kafka_sink.producer.sender.sender_parts import SenderParts
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector, SentRequest
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.network_config import api_versions, metadata, topic
from tests.network.hostile_answers import answers
from tests.producer.harness import TOPIC, Accumulation, config

DELIVERY_TIMEOUT_MS = 5000
LONGEST_THROTTLE_MS = 1 << 31
SPINNING = 100  # rounds in which no time passes and nothing happens


class Network(Accumulation):
    """Brokers 0 and 1 lead a partition each. While they are hostile, the test decides on each answer."""

    def __init__(self, data: st.DataObject | None, *, idempotence: bool) -> None:
        options: dict[str, object] = {
            "bootstrap_servers": "boot1:9001,boot2:9002",
            "enable_idempotence": idempotence,
            "request_timeout_ms": 1000,
            "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
            "metadata_recovery_rebootstrap_trigger_ms": 3000,
        }
        producer_config, clock = config(**options), ManualClock()
        self.data = data
        self.is_hostile = True
        self.misled: set[int] = set()  # nodes whose connection began with senseless ApiVersions
        self.metadata = Metadata(producer_config, clock, random=Random(0))
        self.metadata.add_topic(TOPIC, clock.now_ms())
        self.selector = FakeSelector(clock)
        self.selector.answer = self.answer
        self.worker = FakeWorker()
        self.client = NetworkClient(
            producer_config,
            self.metadata,
            clock,
            selector=self.selector,
            resolve_host=lambda host, port: [Address(socket.AF_INET, (host, port))],
            random=Random(0),
            worker=self.worker,
        )
        self.sequencer = sequencer_of(producer_config, self.client, clock, Random(0))
        super().__init__(sequencer=self.sequencer, clock=clock, **options)
        metrics, failures = ProducerMetrics(producer_config, clock), SenderFailures(producer_config, self.hand_overs)
        parts = SenderParts(
            producer_config, self.client, self.metadata, self.accumulator, self.sequencer, metrics, failures, clock
        )
        self.sender = Sender(parts, self.make_gatherer())

    @property
    def has_ended(self) -> bool:
        """For good, and rightly: a broker does not know Produce, or says that this producer is fenced."""
        return self.sequencer.fatal_error is not None

    def answer(self, request: SentRequest) -> Message | None:
        key = ApiKey(request.header.api_key)
        if not self.is_hostile or self.data.draw(st.integers(0, 2)):
            if key == ApiKey.API_VERSIONS:
                self.misled.discard(request.node_id)
            return self.honest_answer(key, request)
        kind = self.data.draw(st.sampled_from(["senseless", "bytes", "silent"]))
        if kind == "bytes":
            self.selector.deliver(request.node_id, self.data.draw(st.binary(max_size=20)))
        if kind != "senseless":
            return None
        message: Message = self.data.draw(answers[key])
        try:
            message.encode(request.header.api_version)
        except ProtocolError:
            return None  # what this version cannot carry is not answered at all
        if key == ApiKey.API_VERSIONS:
            self.misled.add(request.node_id)
        return message

    def honest_answer(self, key: ApiKey, request: SentRequest) -> Message:
        if isinstance(request.message, ProduceRequest):
            return ProduceResponse(
                responses=tuple(
                    TopicProduceResponse(
                        topic_id=each.topic_id,
                        name=each.name,
                        partition_responses=tuple(
                            PartitionProduceResponse(index=part.index, base_offset=0) for part in each.partition_data
                        ),
                    )
                    for each in request.message.topic_data
                )
            )
        honest_answers: dict[ApiKey, Message] = {
            ApiKey.API_VERSIONS: api_versions(),
            ApiKey.METADATA: metadata(topic(TOPIC, [0, 1])),
        }
        return honest_answers.get(key, InitProducerIdResponse(producer_id=7, producer_epoch=0))

    def become_honest(self) -> None:
        """Brokers name the versions that they speak once per connection, so a senseless range lasts as long as its connection."""
        self.is_hostile = False
        self.selector.holds_sends = self.selector.holds_connects = False
        self.worker.silent_names = set()
        for node in self.misled:
            self.selector.lose(node)

    def harm(self) -> None:
        kind = self.data.draw(st.sampled_from(["lose", "names", "writes", "connects", "bytes", "nothing"]))
        node = self.data.draw(st.integers(-2, 1))
        if kind == "lose":
            self.selector.lose(node)
        elif kind == "bytes":
            self.selector.deliver(node, self.data.draw(st.binary(max_size=20)))
        self.worker.silent_names = {"boot1", "broker0"} if kind == "names" else set()
        self.selector.holds_sends = kind == "writes"
        self.selector.holds_connects = kind == "connects"

    def run(self, rounds: int) -> None:
        """A round in which nothing happens waits, but no longer than a minute: else the thread spins, or sleeps for ever."""
        idle = 0
        for _ in range(rounds):
            before_ms, before = (
                self.now_ms,
                (len(self.selector.sent_requests), len(self.selector.attempts), len(self.selector.closed)),
            )
            self.sender.run_once()
            happened = before != (len(self.selector.sent_requests), len(self.selector.attempts), len(self.selector.closed))
            idle = 0 if happened or self.now_ms > before_ms else idle + 1
            assert idle < SPINNING
        assert max(self.selector.poll_timeouts_ms, default=0) <= MAX_SLEEP_MS


@given(data=st.data(), idempotence=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
def test_whatever_the_network_brings_each_row_settles_once_and_the_sender_goes_on(data: st.DataObject, idempotence: bool) -> None:
    network = Network(data, idempotence=idempotence)
    deliveries = []
    for _ in range(data.draw(st.integers(1, 8))):
        network.harm()
        deliveries.append(network.append(*[b"x"] * data.draw(st.integers(1, 3)), partition=data.draw(st.integers(0, 1))))
        network.run(data.draw(st.integers(1, 30)))
    network.become_honest()
    network.run(100 + SPINNING)
    network.clock.advance(max(DELIVERY_TIMEOUT_MS, LONGEST_THROTTLE_MS))
    network.run(100)
    assert [delivery.acknowledged + delivery.failed for delivery in deliveries] == [delivery.rows for delivery in deliveries]
    assert network.is_whole
    last = network.append(b"last", partition=0)
    for _ in range(300):
        network.run(1)
        if last.acknowledged or network.has_ended:
            return
        if last.failed:  # unlucky with back-off or a throttle that began late: once more
            network.clock.advance(LONGEST_THROTTLE_MS)
            last = network.append(b"last", partition=0)
    raise AssertionError(f"nothing is written any more: {last.error}")


def test_rows_for_a_broker_without_a_usable_produce_version_fail_until_its_upgrade() -> None:
    """An upgrade ends the broker's connections, and the next one begins with the versions of the new broker."""
    network = Network(None, idempotence=False)
    network.is_hostile = False
    old = api_versions({ApiKey.PRODUCE: (0, 2)})
    network.selector.answer = lambda request: old if request.header.api_key == ApiKey.API_VERSIONS else network.answer(request)
    refused = network.append(b"x", partition=0)
    network.run(30)
    assert refused.failed == 1
    assert "KAFKA_UNSUPPORTED_VERSION" in str(refused.error)
    network.selector.answer = network.answer
    for node in (0, 1):
        network.selector.lose(node)
    network.run(30)
    written = network.append(b"y", partition=0)
    network.run(30)
    assert (written.acknowledged, written.failed) == (1, 0)
    assert network.is_whole
