"""A NetworkClient over a fake Selector, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.dns import Resolver
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.network.network_client import NetworkClient
from spark_kafka_sink.network.transport import Address
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.fake_selector import FakeSelector, SentRequest
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.network_config import api_versions, metadata, network_config, topic

INIT = InitProducerIdRequest(transaction_timeout_ms=1000)
INIT_RESPONSE = InitProducerIdResponse(producer_id=7, producer_epoch=0)
PRODUCE = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=())


class Net:
    """A NetworkClient with brokers 0 and 1, which answer handshakes and metadata; the test answers all else."""

    def __init__(self, config: ProducerConfig | None = None, **options: object) -> None:
        self.clock = ManualClock()
        self.config = config or network_config(**options)
        self.metadata = Metadata(self.config, self.clock, random=Random(0))
        self.selector = FakeSelector(self.clock)
        self.worker = FakeWorker()
        self.names: Resolver = lambda host, port: [Address(2, (host, port))]
        self.client = NetworkClient(
            self.config,
            self.metadata,
            self.clock,
            selector=self.selector,
            resolve_host=self.resolve,
            random=Random(0),
            worker=self.worker,
        )
        self.ranges: dict[ApiKey, tuple[int, int]] = {}
        self.logins = SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE.number)
        self.cluster: MetadataResponse | None = metadata(topic("orders", [0, 1]))
        self.selector.answer = self.answer
        self.responses: list[ClientResponse] = []  # in the order of the callbacks

    def resolve(self, host: str, port: int) -> Sequence[Address]:
        return self.names(host, port)

    def answer(self, request: SentRequest) -> Message | None:
        if isinstance(request.message, ApiVersionsRequest):
            return api_versions(self.ranges)
        if isinstance(request.message, MetadataRequest):
            return self.cluster
        if isinstance(request.message, SaslHandshakeRequest):
            return self.logins
        return None

    def poll(self, times: int = 1, timeout_ms: int = 10) -> list[ClientResponse]:
        return [response for _ in range(times) for response in self.client.poll(timeout_ms, self.clock.now_ms())]

    def ready(self, node_id: int) -> bool:
        return self.client.ready(node_id, self.clock.now_ms())

    def connect(self, *node_ids: int) -> None:
        """Until metadata is known and all these nodes are ready."""
        for _ in range(30):
            missing = [node_id for node_id in node_ids if not self.ready(node_id)]
            if not missing and not self.metadata.cluster().is_bootstrap:
                return
            self.poll()
        raise AssertionError(f"{node_ids} are not ready")

    def request(self, node_id: int = 0, message: Any = INIT, **fields: Any) -> ClientRequest:
        values: dict[str, Any] = {"expect_response": True, "request_timeout_ms": 1000, "callback": self.responses.append}
        return ClientRequest(node_id, message, self.clock.now_ms(), **(values | fields))

    def send(self, node_id: int = 0, message: Any = INIT, **fields: Any) -> SentRequest:
        self.client.send(self.request(node_id, message, **fields), self.clock.now_ms())
        return self.selector.sent_requests[-1]

    def ask_for_metadata(self, polls: int = 6) -> None:
        self.metadata.request_update("test", is_urgent=True)
        for _ in range(polls):
            self.clock.advance(1000)
            self.poll()
