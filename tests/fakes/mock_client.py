"""NetworkClient without a network, for tests of the Sender: the test acts as the brokers.

Either prepare responses before requests are sent (`prepare_response`), or look at `requests` and `respond` afterwards.
Nodes connect at once by default. poll refreshes metadata when an update is due: from `prepare_metadata_update`, or else with the
last answer again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.clock import NEVER_MS
from spark_kafka_sink.errors import AuthenticationError, KafkaError, UnsupportedVersionError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.network.kafka_client import ClientRequest, ClientResponse
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.producer_identity import speaks_transactions_v2
from spark_kafka_sink.protocol.schema import Message
from tests.fakes.clock import ManualClock


@dataclass
class Prepared:
    message: Message | None
    node_id: int | None
    matcher: Callable[[ClientRequest], bool] | None
    was_disconnected: bool
    has_timed_out: bool
    error: KafkaError | None


@dataclass
class MockNode:
    """The state of a node; `…_until_ms` are times until which it lasts."""

    connected: bool = False
    unreachable_until_ms: int = 0
    backing_off_until_ms: int = 0
    throttled_until_ms: int = 0
    connects_at_ms: int = 0
    authentication_error: AuthenticationError | None = None
    api_versions: NodeApiVersions | None = None


def node_api_versions(ranges: Mapping[ApiKey, tuple[int, int]] | None = None) -> NodeApiVersions:
    """A broker with all versions that this client supports, except for `ranges`."""
    table = {key: (api.min_version, api.max_version) for key, api in API_TABLE.items()} | dict(ranges or {})
    keys = tuple(ApiVersion(api_key=key, min_version=first, max_version=last) for key, (first, last) in table.items())
    return NodeApiVersions(ApiVersionsResponse(api_keys=keys))


class MockClient:
    def __init__(self, clock: ManualClock, metadata: Metadata | None = None, *, max_in_flight: int = 1 << 30) -> None:
        self.clock = clock
        self.metadata = metadata
        self.max_in_flight = max_in_flight
        self.requests: deque[ClientRequest] = deque()  # in flight, oldest first
        self.sent_requests: list[ClientRequest] = []  # every request ever
        self.versions: dict[int, int] = {}  # id(request) -> version it was sent in
        self.wakeups = 0
        self.poll_timeouts_ms: list[int] = []  # of every poll
        self.is_closed = False
        self.rejections: dict[int, AuthenticationError] = {}
        self._sent_ms: dict[int, int] = {}
        self._responses: deque[ClientResponse] = deque()  # for the next poll
        self._prepared: deque[Prepared] = deque()
        self._metadata_updates: deque[MetadataResponse] = deque()
        self._last_metadata: MetadataResponse | None = None
        self._nodes: dict[int, MockNode] = {}
        self._learnt: dict[int, Node] = {}
        self._features: tuple[int, dict[str, int]] = (-1, {})

    # WHAT A TEST SAYS

    def prepare_response(
        self,
        message: Message | None = None,
        *,
        node_id: int | None = None,
        matcher: Callable[[ClientRequest], bool] | None = None,
        was_disconnected: bool = False,
        has_timed_out: bool = False,
        error: KafkaError | None = None,
    ) -> None:
        """The answer to the next request (to `node_id`); it fails the test if `matcher` refuses that request."""
        self._prepared.append(Prepared(message, node_id, matcher, was_disconnected or has_timed_out, has_timed_out, error))

    def respond(
        self,
        message: Message | None = None,
        *,
        request: ClientRequest | None = None,
        was_disconnected: bool = False,
        has_timed_out: bool = False,
        error: KafkaError | None = None,
    ) -> None:
        """Answer the oldest request, or the one given. The callback runs in the next poll."""
        if request is None:
            request = self.requests[0]
        self._remove(request)
        self._answer(request, message, was_disconnected or has_timed_out, has_timed_out, error)

    def prepare_metadata_update(self, response: MetadataResponse) -> None:
        self._metadata_updates.append(response)

    def update_metadata(self, response: MetadataResponse) -> None:
        """Apply at once, outside of poll."""
        assert self.metadata is not None
        self._last_metadata = response
        self.metadata.update(response, self.clock.now_ms())

    def disconnect(self, node_id: int, now_ms: int) -> None:
        self._lose(node_id, now_ms, has_timed_out=False)

    def set_unreachable(self, node_id: int, duration_ms: int) -> None:
        """Lose the connection and refuse new ones for a while."""
        self.disconnect(node_id, self.clock.now_ms())
        self.node(node_id).unreachable_until_ms = self.clock.now_ms() + duration_ms

    def back_off(self, node_id: int, duration_ms: int) -> None:
        self.disconnect(node_id, self.clock.now_ms())
        self.node(node_id).backing_off_until_ms = self.clock.now_ms() + duration_ms

    def delay_ready(self, node_id: int, duration_ms: int) -> None:
        self.node(node_id).connects_at_ms = self.clock.now_ms() + duration_ms

    def throttle(self, node_id: int, duration_ms: int) -> None:
        self.node(node_id).throttled_until_ms = self.clock.now_ms() + duration_ms

    def fail_authentication(self, node_id: int, error: AuthenticationError) -> None:
        """For good: the second time, if one counts as NetworkClient does."""
        self.disconnect(node_id, self.clock.now_ms())
        self.node(node_id).authentication_error = error
        self.rejections[node_id] = error
        self.node(node_id).backing_off_until_ms = NEVER_MS
        if self.metadata is not None:
            self.metadata.report_error(error)

    def set_api_versions(self, node_id: int, ranges: Mapping[ApiKey, tuple[int, int]]) -> None:
        self.node(node_id).api_versions = node_api_versions(ranges)

    def set_features(self, epoch: int, **levels: int) -> None:
        """transaction_version=2 and so on."""
        self._features = epoch, {name.replace("_", "."): level for name, level in levels.items()}

    def node(self, node_id: int) -> MockNode:
        return self._nodes.setdefault(node_id, MockNode())

    def version_of(self, request: ClientRequest) -> int:
        return self.versions[id(request)]

    # NETWORKCLIENT'S INTERFACE

    def ready(self, node_id: int, now_ms: int) -> bool:
        if self._is_unknown(node_id):
            return False
        node = self.node(node_id)
        if now_ms < max(node.unreachable_until_ms, node.backing_off_until_ms, node.connects_at_ms):
            return False
        node.connected = True
        return self.is_ready(node_id, now_ms)

    def learn_node(self, node: Node) -> None:
        self._learnt[node.id] = node

    def api_versions(self, node_id: int) -> NodeApiVersions | None:
        return self._versions_of(node_id) if self.node(node_id).connected else None

    def _versions_of(self, node_id: int) -> NodeApiVersions:
        """Of a node that has just connected: it tells the features that hold now."""
        node = self.node(node_id)
        node.api_versions = node.api_versions or node_api_versions()
        node.api_versions.has_transactions_v2 = speaks_transactions_v2(self._features[1])
        return node.api_versions

    def finalized_features(self) -> tuple[int, Mapping[str, int]]:
        return self._features

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        node = self.node(node_id)
        return node.connected and now_ms >= node.throttled_until_ms and self._in_flight_of(node_id) < self.max_in_flight

    def _connection_delay_ms(self, node_id: int, now_ms: int) -> int:
        node = self.node(node_id)
        if node.connected:
            return NEVER_MS
        return max(node.unreachable_until_ms, node.backing_off_until_ms, node.connects_at_ms, now_ms) - now_ms

    def poll_delay_ms(self, node_id: int, now_ms: int) -> int:
        return self._throttle_delay_ms(node_id, now_ms) or self._connection_delay_ms(node_id, now_ms)

    def _throttle_delay_ms(self, node_id: int, now_ms: int) -> int:
        return max(self.node(node_id).throttled_until_ms - now_ms, 0)

    def is_disconnected(self, node_id: int) -> bool:
        node = self.node(node_id)
        return not node.connected and max(node.unreachable_until_ms, node.backing_off_until_ms) > self.clock.now_ms()

    def login_rejection(self, node_id: int) -> AuthenticationError | None:
        if node_id in self.rejections:
            return self.rejections[node_id]
        return self.node(node_id).authentication_error if self.is_disconnected(node_id) else None

    def rejection_by_all(self) -> AuthenticationError | None:
        assert self.metadata is not None
        rejections = [self.login_rejection(node.id) for node in self.metadata.cluster().nodes]
        return rejections[0] if all(rejections) else None

    def send(self, request: ClientRequest, now_ms: int) -> None:
        assert self.is_ready(request.node_id, now_ms), f"node {request.node_id} is not ready"
        self.sent_requests.append(request)
        versions = self._versions_of(request.node_id)
        try:
            version = versions.latest_usable_version(request.message.API_KEY, request.max_version)
            request.message.encode(version)
        except UnsupportedVersionError as error:
            self._responses.append(ClientResponse(request, None, request.max_version or 0, now_ms, error=error))
            return
        self.versions[id(request)] = version
        self._sent_ms[id(request)] = now_ms
        for prepared in self._prepared:
            if prepared.node_id in (None, request.node_id):
                self._prepared.remove(prepared)
                assert prepared.matcher is None or prepared.matcher(request), f"unexpected request {request}"
                self._answer(request, prepared.message, prepared.was_disconnected, prepared.has_timed_out, prepared.error)
                return
        if request.expect_response:
            self.requests.append(request)
        else:
            self._answer(request, None, False, False, None)

    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]:
        self.poll_timeouts_ms.append(timeout_ms)
        self.rejections = {}
        self._time_requests_out(now_ms)
        self._update_metadata(now_ms)
        responses = list(self._responses)
        self._responses.clear()
        for response in responses:
            if response.request.callback is not None:
                response.request.callback(response)
        return responses

    def wakeup(self) -> None:
        self.wakeups += 1

    def least_loaded_node(self, now_ms: int) -> int | None:
        assert self.metadata is not None
        nodes = [node.id for node in self.metadata.cluster().nodes]
        usable = [node_id for node_id in nodes if not self._connection_delay_ms(node_id, now_ms) or self.node(node_id).connected]
        return min(usable, key=self._in_flight_of, default=None)

    def in_flight_request_count(self, node_id: int | None = None) -> int:
        return len(self.requests) if node_id is None else self._in_flight_of(node_id)

    def close(self) -> None:
        self.is_closed = True

    # INSIDE

    def _is_unknown(self, node_id: int) -> bool:
        """Nobody has told its address; before the first metadata a test need not say any."""
        cluster = None if self.metadata is None else self.metadata.cluster()
        is_known = cluster is None or cluster.is_bootstrap or cluster.node(node_id) is not None
        return not is_known and node_id not in self._learnt

    def _in_flight_of(self, node_id: int) -> int:
        return sum(request.node_id == node_id for request in self.requests)

    def _remove(self, request: ClientRequest) -> None:
        others = [other for other in self.requests if other is not request]
        assert len(others) == len(self.requests) - 1, f"not in flight: {request}"
        self.requests = deque(others)

    def _answer(
        self,
        request: ClientRequest,
        message: Any,
        was_disconnected: bool,
        has_timed_out: bool,
        error: KafkaError | None,
        now_ms: int | None = None,
    ) -> None:
        if was_disconnected:
            self.node(request.node_id).connected = False
        self._responses.append(
            ClientResponse(
                request=request,
                message=None if was_disconnected or error else message,
                version=self.versions[id(request)],
                received_ms=self.clock.now_ms() if now_ms is None else now_ms,
                was_disconnected=was_disconnected,
                has_timed_out=has_timed_out,
                error=error,
            )
        )

    def _lose(self, node_id: int, now_ms: int, has_timed_out: bool) -> None:
        self.node(node_id).connected = False
        for request in [request for request in self.requests if request.node_id == node_id]:
            self._remove(request)
            self._answer(request, None, True, has_timed_out, None, now_ms)

    def _time_requests_out(self, now_ms: int) -> None:
        for request in list(self.requests):
            if now_ms - self._sent_ms[id(request)] > request.request_timeout_ms:
                self._lose(request.node_id, now_ms, has_timed_out=True)

    def _update_metadata(self, now_ms: int) -> None:
        if self.metadata is None or self.metadata.time_to_next_update_ms(now_ms) > 0:
            return
        if self._metadata_updates:
            self._last_metadata = self._metadata_updates.popleft()
        if self._last_metadata is None:
            self.metadata.note_failed_update(now_ms)
        else:
            self.metadata.update(self._last_metadata, now_ms)
