"""What callers of NetworkClient see: KafkaClient, its requests and responses; and a request that is in flight.

One thread at a time; __init__.py says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spark_kafka_sink.errors import AuthenticationError, KafkaError
from spark_kafka_sink.network.cluster import Node
from spark_kafka_sink.network.handshake import NodeApiVersions
from spark_kafka_sink.protocol.schema import Request


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request to one node.

    Args:
        node_id: of the broker, or of a bootstrap server (below zero).
        message: sent in the newest version that this client and the node support.
        created_ms: when it was created; for metrics and logs.
        expect_response: false for Produce with acks=0; the request is then complete when its last byte is written.
        request_timeout_ms: the connection is closed if no answer comes within this time after sending, plus throttles.
        callback: called with the ClientResponse, inside poll(), on the thread that polls.
        max_version: never use a newer version than this.
    """

    node_id: int
    message: Request[Any]
    created_ms: int
    expect_response: bool
    request_timeout_ms: int
    callback: Callable[[ClientResponse], None] | None = None
    max_version: int | None = None


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """The outcome of a request: a message, a completed write (no answer expected), a lost connection, or an error."""

    request: ClientRequest
    message: Any  # of the type request.message.RESPONSE; None without an answer
    version: int
    received_ms: int
    was_disconnected: bool = False
    has_timed_out: bool = False  # the connection was lost because the client closed it: a request on it had timed out
    correlation_id: int = -1  # for logs; -1: the request was not sent
    error: KafkaError | None = None  # why the request was not sent; or, if the connection was lost: the answer is too large


class KafkaClient(Protocol):
    """The interface of NetworkClient, whose docstrings say what the methods do; tests pass fakes of it."""

    def learn_node(self, node: Node) -> None: ...
    def ready(self, node_id: int, now_ms: int) -> bool: ...
    def poll_delay_ms(self, node_id: int, now_ms: int) -> int: ...
    def is_disconnected(self, node_id: int) -> bool: ...
    def login_rejection(self, node_id: int) -> AuthenticationError | None: ...
    def rejection_by_all(self) -> AuthenticationError | None: ...
    def api_versions(self, node_id: int) -> NodeApiVersions | None: ...
    def finalized_features(self) -> tuple[int, Mapping[str, int]]: ...
    def least_loaded_node(self, now_ms: int) -> int | None: ...
    def in_flight_request_count(self, node_id: int | None = None) -> int: ...
    def send(self, request: ClientRequest, now_ms: int) -> None: ...
    def poll(self, timeout_ms: int, now_ms: int) -> list[ClientResponse]: ...
    def wakeup(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class InFlightRequest:
    """A request that has been handed to a connection and has no response yet."""

    request: ClientRequest
    version: int
    is_internal: bool  # made by NetworkClient itself: handshakes and metadata
    sent_ms: int
    correlation_id: int = -1
    throttled_ms: int = 0  # time in which the broker does not read; it is added to the time-out
    is_written: bool = False

    def __str__(self) -> str:
        name = type(self.request.message).__name__
        return f"node {self.request.node_id}: {name} v{self.version}, correlation id {self.correlation_id}"

    def response(
        self,
        now_ms: int,
        message: Any = None,
        *,
        was_disconnected: bool = False,
        has_timed_out: bool = False,
        error: KafkaError | None = None,
    ) -> ClientResponse:
        """The ClientResponse that ends this request. `message`: None without an answer."""
        return ClientResponse(
            self.request, message, self.version, now_ms, was_disconnected, has_timed_out, self.correlation_id, error
        )

    @property
    def times_out_at_ms(self) -> int:
        """The first millisecond of Clock.now_ms at which the request has taken too long."""
        return self.sent_ms + self.throttled_ms + self.request.request_timeout_ms + 1
