"""What NetworkClient keeps about its connection to one node: protocol, handshake, API versions, session.

ClusterConnectionStates has its state and the times of attempts, InFlightRequests the requests in flight, Selector the socket.
Sender thread only.
"""

from __future__ import annotations

from random import Random

from spark_kafka_sink.clock import LONG_AGO_MS, NEVER_MS
from spark_kafka_sink.network.background import Outcome
from spark_kafka_sink.network.connection import Connection
from spark_kafka_sink.network.handshake import Handshake, HandshakeRequest, NodeApiVersions, Session, Step
from spark_kafka_sink.network.sasl_detection import SaslDetection

RENEW_AFTER_MS = 1000  # the least time between two logins: brokers close connections that log in again sooner
RENEW_AT = (0.85, 0.95)  # the part of a session's lifetime after which it is renewed; random as in Java, so that clients differ


class NodeConnection:
    """Lives as long as the client. `reset` forgets what belongs to one connection only."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.last_warning_ms = LONG_AGO_MS  # when a failure to connect was last logged as a warning
        self.sasl = SaslDetection()
        self.reset()

    def reset(self) -> None:
        """The connection has ended."""
        self.is_resolving = False  # the background worker looks up the node's name
        self.protocol: Connection | None = None  # from the start of a TCP connection on
        self.next_request: HandshakeRequest | None = None  # of the handshake, until it can be sent
        self.api_versions: NodeApiVersions | None = None  # from the end of the first handshake on
        self._handshake: Handshake | None = None  # while the connection is not ready, or its session is being renewed
        self._renew_session_ms = NEVER_MS
        self.sasl.connection_ended()

    def is_session_due(self, now_ms: int) -> bool:
        """Whether it is time to log in again (KIP-368)."""
        return self._renew_session_ms <= now_ms

    def begin_handshake(self, steps: Handshake) -> Step:
        """Returns the first step."""
        self._renew_session_ms = NEVER_MS
        self._handshake = steps
        return next(steps)

    def advance_handshake(self, outcome: Outcome) -> Step | Session:
        """Hand the outcome of the last step to the handshake. Returns its next step, or the session when it is complete.

        Raises:
            KafkaError: the handshake failed.
        """
        assert self._handshake is not None
        try:
            if outcome.error is not None:
                return self._handshake.throw(outcome.error)
            return self._handshake.send(outcome.result)
        except StopIteration as finished:
            self._handshake = None
            session: Session = finished.value
            return session

    def begin_session(self, session: Session, now_ms: int, random: Random) -> None:
        self.api_versions = session.api_versions
        if session.lifetime_ms > 0:
            renew_after_ms = int(session.lifetime_ms * random.uniform(*RENEW_AT))
            self._renew_session_ms = now_ms + max(renew_after_ms, RENEW_AFTER_MS)
