"""What a SASL mechanism is to the handshake, and the simplest of them, PLAIN (RFC 4616)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.background import Background

# Yields a message for the broker and is sent its challenge, or yields work that may block and is sent its result. It ends when
# it has the broker's last word, and raises AuthenticationError when that is not what it must be.
Exchange = Generator[SecretBytes | Background, Any, None]


class Login(Protocol):
    """One producer's credentials. Sender thread only, except for the work that an exchange yields."""

    @property
    def mechanism(self) -> str:
        """As brokers call it."""
        ...

    @property
    def who(self) -> str:
        """Whom it logs in, for errors: "user 'alice'"."""
        ...

    def start(self, host: str) -> Exchange:
        """A new exchange with a broker that is reached as `host`."""
        ...


def illegal_challenge(what: str) -> AuthenticationError:
    """For a broker that does not keep to the mechanism: it may not be the one it claims to be."""
    return AuthenticationError(
        f"the broker's part of the SASL exchange is wrong: {what}", condition="KAFKA_ILLEGAL_SASL_CHALLENGE"
    )


class PlainLogin:
    mechanism = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password
        self.who = f"user '{username}'"

    def start(self, host: str) -> Exchange:  # noqa: ARG002 - Login's signature
        yield SecretBytes(b"\0%b\0%b" % (self._username.encode(), self._password.reveal().encode()))
