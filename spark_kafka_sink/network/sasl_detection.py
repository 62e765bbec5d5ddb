"""Finds out whether a listener demands a SASL login from a client that is configured without one.

A listener with SASL answers ApiVersions from any client, and closes the connection without an answer at the next request. After
a connection is lost that way, the handshake of the next one asks for the SASL mechanisms that the listener offers (handshake.py).
If the listener offers some, and that connection is lost the same way too, the listener demands a login.
"""

from __future__ import annotations

from spark_kafka_sink.errors import AuthenticationError, printable_list

CONNECTIONS_NEEDED = 2  # lost connections until the answer is known


class SaslDetection:
    """For one node, over all connections to it. Sender thread only."""

    def __init__(self) -> None:
        self._is_suspect = False
        self._mechanisms: tuple[str, ...] = ()  # that the listener offered in the handshake of the present connection
        self.is_unproven = False  # the present connection is ready, without a login, and no request on it has been answered

    def take_suspicion(self) -> bool:
        """Whether the handshake that begins now has to ask for mechanisms. The suspicion ends with this question."""
        is_suspect, self._is_suspect = self._is_suspect, False
        return is_suspect

    def connection_ready(self, mechanisms: tuple[str, ...]) -> None:
        self.is_unproven = True
        self._mechanisms = mechanisms

    def answered(self) -> None:
        """A request has been answered without a login."""
        self.is_unproven = False

    def demanded_login(self) -> AuthenticationError | None:
        """The error for a connection that the broker has just closed, if it closed it because there was no login."""
        return login_demanded(self._mechanisms) if self.is_unproven and self._mechanisms else None

    def connection_lost(self) -> None:
        """The broker closed the connection. Call `connection_ended` afterwards."""
        self._is_suspect |= self.is_unproven

    def connection_ended(self) -> None:
        self.is_unproven = False
        self._mechanisms = ()


def login_demanded(mechanisms: tuple[str, ...]) -> AuthenticationError:
    return AuthenticationError(
        "this listener demands a login, and security.protocol has none: set it to SASL_PLAINTEXT, or SASL_SSL with TLS, and"
        f" sasl.mechanism to one of those it offers: {printable_list(mechanisms)}"
    )
