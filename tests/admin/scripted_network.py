"""A RequestClient over MockClient and a manual clock: a script answers, and a poll in which nothing happens takes its time.

net = ScriptedNetwork()
net.script[ApiKey.END_TXN] = lambda request: EndTxnResponse() or None       # None: no answer yet
net.client.ask(...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.operation import Ask, Operation, RetryNeeded
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock
from tests.fakes.mock_client import MockClient
from tests.fakes.network_config import metadata, network_config

POLLS = 5_000  # of one call; more is spinning
Script = Callable[[ClientRequest], Message | None]


class PollingClient(MockClient):
    """Answers by script as requests come, and lets time pass while it waits."""

    def __init__(self, clock: ManualClock, metadata: Metadata, *, max_in_flight: int) -> None:
        super().__init__(clock, metadata, max_in_flight=max_in_flight)
        self.script: dict[ApiKey, Script] = {}
        self.most_in_flight = 0  # on one connection
        self.before_poll: Callable[[], None] = lambda: None

    def send(self, request: ClientRequest, now_ms: int) -> None:
        super().send(request, now_ms)
        self.most_in_flight = max(self.most_in_flight, self._in_flight_of(request.node_id))

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]:
        self.before_poll()
        for request in list(self.requests):
            answer = self.script.get(request.message.API_KEY, lambda _: None)(request)
            if answer is not None and request in self.requests:
                self.respond(answer, request=request)
        responses = super().poll(timeout_ms, now_ms)
        assert len(self.poll_timeouts_ms) < POLLS, "spinning"
        if not responses:
            self.clock.advance(min(max(timeout_ms, 0), 1_000))  # no longer, as NetworkClient looks up now and then
        return responses


class ScriptedNetwork:
    """Three brokers, 0 to 2. `coordinators` says who keeps a key; by default broker 1."""

    def __init__(self, *, nodes: int = 3, max_in_flight: int = 5, **options: object) -> None:
        self.clock = ManualClock()
        config = network_config(**options)
        self.metadata = Metadata(config, self.clock, random=Random(0))
        self.network = PollingClient(self.clock, self.metadata, max_in_flight=max_in_flight)
        self.network.set_features(1, transaction_version=2)
        self.network.prepare_metadata_update(metadata(nodes=nodes))
        access = ClusterAccess(config, clock=self.clock, metadata=self.metadata, network=self.network, random=Random(0))
        self.client = RequestClient(access)
        self.coordinators: dict[str, int] = {}
        self.network.script = {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.END_TXN: lambda _: EndTxnResponse(),
        }

    @property
    def script(self) -> dict[ApiKey, Script]:
        return self.network.script

    def find_coordinator(self, request: ClientRequest) -> FindCoordinatorResponse:
        message = request.message
        assert isinstance(message, FindCoordinatorRequest)
        coordinators = [self.coordinator(key) for key in message.coordinator_keys]
        if self.network.version_of(request) >= 4:
            return FindCoordinatorResponse(coordinators=tuple(coordinators))
        (one,) = coordinators
        return FindCoordinatorResponse(error_code=one.error_code, node_id=one.node_id, host=one.host, port=one.port)

    def coordinator(self, key: str) -> Coordinator:
        node_id = self.coordinators.get(key, 1)
        return Coordinator(key=key, node_id=node_id, host=f"broker{node_id}", port=9010 + node_id)

    def requests_of(self, api_key: ApiKey) -> list[ClientRequest]:
        return [request for request in self.network.sent_requests if api_key == request.message.API_KEY]


class Ending(Operation[str, str]):
    """EndTxn of an id; an answer that is not an error gives the id back."""

    api_key = ApiKey.END_TXN

    def message(self, items: Sequence[str], node_id: int, version: int) -> EndTxnRequest:  # noqa: ARG002
        (item,) = items
        return EndTxnRequest(transactional_id=item, producer_id=1, producer_epoch=0, committed=True)

    def judge(self, item: str, answer: EndTxnResponse, version: int) -> str:  # noqa: ARG002
        error = Errors.for_code(answer.error_code)
        if error.is_retriable:
            raise RetryNeeded(error)
        if error:
            raise error.exception(item)
        return item

    def describe(self, item: str) -> str:
        return f"EndTxn of {item}"


ENDING = Ending()


def answers(*outcomes: Any, last: Message | None = None) -> Script:
    """One after the other, each an ErrorCode or a response; afterwards `last`, by default success."""
    left = list(outcomes)

    def answer(_: ClientRequest) -> Message | None:
        if not left:
            return last or EndTxnResponse()
        outcome = left.pop(0)
        return outcome if isinstance(outcome, Message) else EndTxnResponse(error_code=outcome.number)

    return answer


def asks(*ids: str, target: Callable[[str], Any]) -> list[Ask[str, str]]:
    return [Ask(target(each), ENDING, each) for each in ids]
