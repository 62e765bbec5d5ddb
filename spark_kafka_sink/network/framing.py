"""The frames of one TCP connection, without a socket: requests in, bytes out; bytes in, responses out.

`send` frames a request and remembers it; `receive_data` takes bytes in pieces of any size and returns the responses that they
complete. NetworkClient decides what is sent, Selector moves the bytes.
Laws: a broker answers in the order of the requests, so the next correlation id is known. The size of a frame is compared with
the limit of its API before the frame is read. A violation of the protocol sets `error`, and nothing is read after it.
Some brokers answer requests that ask for no answer (acks=0): these answers are dropped.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from typing import Any, NamedTuple

from spark_kafka_sink.errors import AuthenticationError, ProtocolError, ResponseTooLargeError
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader, read_response_header, write_request_header
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import Message, Request

logger = logging.getLogger(__name__)

_MAX_CORRELATION_ID = 0x7FFFFFFF

_SIZE = _ID = struct.Struct(">i")
_START = struct.Struct(">ii")  # of a frame: its size, and the correlation id
_TLS_ALERT = b"\x15\x03"  # content type, major version: as a size it would be 352 MB


class _ExpectedResponse(NamedTuple):
    """What recognizing and decoding the response to a request in flight needs."""

    correlation_id: int
    api_key: ApiKey
    version: int
    response_type: type[Message]


class Response(NamedTuple):
    """The message of a response, and the correlation id of its request."""

    correlation_id: int
    version: int
    message: Message


class Framing:
    """Encodes requests, and matches responses to the requests in flight, for one TCP connection.

    Args:
        client_id: for the broker's logs and quotas.
        peer: the broker, for the log.
    """

    def __init__(self, client_id: str, *, peer: str = "broker") -> None:
        self._client_id = client_id
        self._peer = peer
        self._next_correlation_id = 0
        self.last_correlation_id = -1  # of the last request; NetworkClient recognizes the answer by this id
        self._expected_responses: deque[_ExpectedResponse] = deque()  # oldest first
        self._next_answered_id = 0  # the one after that of the last answer
        self._unanswered_api: ApiKey | None = None  # of the latest request that asks for no answer
        self._has_dropped_answer = False
        self._incoming_bytes = bytearray()  # the start of a frame that is not complete
        self._has_answered = False  # a response was read: what listens there is a Kafka broker
        self._logged_surplus: set[ApiKey] = set()  # APIs for which bytes after the last field were logged
        self.error: ProtocolError | AuthenticationError | None = None  # why this connection cannot be used any more

    def send(self, message: Request[Any], version: int, *, expect_response: bool = True) -> list[Buffer]:
        """Return the frame to write. It refers to the opaque buffers of the message instead of copying them.

        Raises:
            UnsupportedVersionError: the version cannot carry the message; nothing must be written.
            ProtocolError: a value does not fit its field.
        """
        body = message.encode(version)
        correlation_id = self._next_correlation_id
        header_writer = Writer()
        write_request_header(header_writer, RequestHeader(message.API_KEY, version, correlation_id, self._client_id))
        header_bytes = b"".join(header_writer.buffers())
        frame: list[Buffer] = [_SIZE.pack(len(header_bytes) + sum(map(len, body))) + header_bytes, *body]
        self._next_correlation_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        self.last_correlation_id = correlation_id
        if expect_response:
            self._expected_responses.append(_ExpectedResponse(correlation_id, message.API_KEY, version, message.RESPONSE))
        else:
            self._unanswered_api = message.API_KEY
        return frame

    @property
    def is_waiting(self) -> bool:
        """Whether a request has not been answered."""
        return bool(self._expected_responses)

    def receive_data(self, data: Buffer) -> list[Response]:
        """The responses that `data` completes, in order. Check `error` afterwards: bytes after them may have set it."""
        self._incoming_bytes += data
        responses: list[Response] = []
        try:
            while self.error is None and (frame := self._next_frame()) is not None:
                if self._is_unexpected(frame):
                    self._drop(frame)
                else:
                    responses.append(self._read_response(frame))
        except (ProtocolError, AuthenticationError) as error:
            self.error = error
        return responses

    def _next_frame(self) -> bytearray | None:
        if len(self._incoming_bytes) < _SIZE.size:
            return None
        (size_bytes,) = _SIZE.unpack_from(self._incoming_bytes)
        if self._incoming_bytes.startswith(_TLS_ALERT):
            raise AuthenticationError(
                "the broker answers with a TLS alert: this listener speaks TLS, and the client does not; set security.protocol to"
                " SSL or SASL_SSL",
                condition="KAFKA_SSL_AUTHENTICATION_FAILED",
            )
        if self._unanswered_api is not None and len(self._incoming_bytes) < _START.size <= _SIZE.size + size_bytes:
            return None  # the correlation id says which request is answered
        is_unexpected = self._is_unexpected(self._incoming_bytes[_SIZE.size : _START.size])
        if not is_unexpected and not self._expected_responses:
            raise ProtocolError(f"the broker announces a response of {size_bytes:,} bytes, but no request waits for one")
        api_key = self._unanswered_api if is_unexpected else self._expected_responses[0].api_key
        assert api_key is not None
        max_bytes = API_TABLE[api_key].max_response_bytes
        if size_bytes > max_bytes and self._has_answered:
            raise ResponseTooLargeError(
                f"the broker announces a response of {size_bytes:,} bytes to {api_key.name}, and this client takes at most"
                f" {max_bytes:,}"
            )
        if not 0 <= size_bytes <= max_bytes:
            raise ProtocolError(
                f"the broker announces a response of {size_bytes:,} bytes to {api_key.name}, which is never larger than"
                f" {max_bytes:,}; is this a Kafka listener with the security protocol of this client?"
            )
        stop = _SIZE.size + size_bytes
        if len(self._incoming_bytes) < stop:
            return None
        frame = self._incoming_bytes[_SIZE.size : stop]
        del self._incoming_bytes[:stop]
        return frame

    def _is_unexpected(self, frame: bytearray) -> bool:
        """Whether this frame, or its start, answers a request that asks for no answer: one that was sent after the last that was
        answered, and before the oldest that waits."""
        if self._unanswered_api is None or len(frame) < _ID.size:
            return False
        (correlation_id,) = _ID.unpack_from(frame)
        stop_id = self._expected_responses[0].correlation_id if self._expected_responses else self._next_correlation_id
        count = (stop_id - self._next_answered_id) & _MAX_CORRELATION_ID
        position: int = (correlation_id - self._next_answered_id) & _MAX_CORRELATION_ID
        return correlation_id >= 0 and position < count

    def _drop(self, frame: bytearray) -> None:
        if not self._has_dropped_answer:
            self._has_dropped_answer = True
            logger.debug("! %s: dropping an answer of %d bytes to a request with acks=0 (logged once)", self._peer, len(frame))

    def _read_response(self, frame: bytearray) -> Response:
        request = self._expected_responses.popleft()
        reader = Reader(frame)
        correlation_id = read_response_header(reader, request.api_key, request.version)
        if correlation_id != request.correlation_id:
            raise ProtocolError(
                f"the broker answered request {correlation_id}, but the oldest unanswered one is {request.correlation_id}"
                f" ({request.api_key.name} v{request.version})"
            )
        self._next_answered_id = (correlation_id + 1) & _MAX_CORRELATION_ID
        message = request.response_type.read(request.version, reader)
        self._log_surplus(request, reader.remaining_bytes())
        self._has_answered = True
        return Response(correlation_id, request.version, message)

    def _log_surplus(self, request: _ExpectedResponse, surplus_bytes: int) -> None:
        """Log bytes after the last field, once for each API. They are ignored, as the Java client and librdkafka do: some brokers
        that are not Apache Kafka send them (librdkafka's mock cluster ends Metadata with one byte too many).
        """
        if surplus_bytes and request.api_key not in self._logged_surplus:
            self._logged_surplus.add(request.api_key)
            logger.debug(
                "! %s: ignoring %d bytes after the last field of %s v%d (logged once per connection)",
                self._peer,
                surplus_bytes,
                request.response_type.__name__,
                request.version,
            )
