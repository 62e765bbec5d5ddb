"""The interface between a SASL mechanism and the handshake, and the simplest mechanism, PLAIN (RFC 4616)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from spark_kafka_sink.config.secret import Secret, SecretBytes, concealer
from spark_kafka_sink.errors import AuthenticationError, KafkaError, describe_error
from spark_kafka_sink.network.background import BackgroundWork

# Yields a message for the broker and receives its challenge, or yields work that may block and receives its result. It ends after
# the broker's last message, and raises AuthenticationError if that message is wrong.
Exchange = Generator[SecretBytes | BackgroundWork, Any, None]


class Login(Protocol):
    """One producer's credentials. Any thread. An exchange is for NetworkClient's thread, except for the work that it yields."""

    @property
    def mechanism(self) -> str:
        """The name that brokers know."""
        ...

    @property
    def user_text(self) -> str:
        """The user or principal, for errors: "user 'alice'"."""
        ...

    def start(self, host: str) -> Exchange:
        """A new exchange with the broker at `host`."""
        ...


def login_work(work: Callable[[], Any]) -> BackgroundWork:
    """Work for the background. What a token callback or a library raises in it becomes an AuthenticationError."""
    return BackgroundWork(partial(_with_login_errors, work))


def _with_login_errors(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except KafkaError:
        raise
    except BaseException as error:  # a callback may call sys.exit()
        raise AuthenticationError(describe_error(error), condition="KAFKA_LOGIN_FAILED") from error


def illegal_challenge(problem: str) -> AuthenticationError:
    """The error for a broker that violates the mechanism: it may not be the broker that it claims to be."""
    return AuthenticationError(
        f"the broker's part of the SASL exchange is wrong: {problem}", condition="KAFKA_ILLEGAL_SASL_CHALLENGE"
    )


# The messages that hold what a login is made of: of PLAIN and of OAUTHBEARER.
_MESSAGE_WITH_SECRET = re.compile(rb"\0[^\0]*\0([^\0]+)|n,,\x01auth=Bearer ([^\x01]+)\x01.*", re.DOTALL)


def conceal_sent(text: str, message: bytes) -> str:
    """A broker's text, with [hidden] where it repeats the password or the token of the client's message that it answers."""
    match = _MESSAGE_WITH_SECRET.fullmatch(message)
    return text if match is None else concealer([(match[1] or match[2]).decode()])(text)


class PlainLogin:
    """The client's side of a PLAIN login: sends user name and password as they are."""

    mechanism = "PLAIN"

    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password
        self.user_text = f"user '{username}'"

    def start(self, host: str) -> Exchange:  # noqa: ARG002 - Login's signature
        yield SecretBytes(b"\0%b\0%b" % (self._username.encode(), self._password.reveal().encode()))
