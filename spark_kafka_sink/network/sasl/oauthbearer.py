"""OAUTHBEARER: a token instead of a password (RFC 7628, KIP-255, KIP-342)."""

from __future__ import annotations

import re

from spark_kafka_sink.config.secret import SecretBytes
from spark_kafka_sink.errors import AuthenticationError, printable
from spark_kafka_sink.network.sasl.login import Exchange, conceal_sent, login_work
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, TokenCache, token_error

_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7E \t\r\n]+")


class OAuthBearerLogin:
    """The client's side of an OAUTHBEARER login, with a token from the cache."""

    mechanism = "OAUTHBEARER"

    def __init__(self, tokens: TokenCache) -> None:
        self._tokens = tokens

    @property
    def user_text(self) -> str:
        name = self._tokens.principal_name
        return "the bearer of a token" if name is None else f"token principal '{printable(name)}'"

    def start(self, host: str) -> Exchange:  # noqa: ARG002 - Login's signature
        message = yield login_work(lambda: first_message(self._tokens.token()))
        rejection = yield message
        if not rejection:
            return
        yield SecretBytes(b"\x01")  # required by RFC 7628 before the broker ends the exchange with an error
        text = printable(conceal_sent(rejection.decode("ascii", errors="replace"), message))
        raise AuthenticationError(f"the broker rejected the token: '{text}'", condition="KAFKA_SASL_AUTHENTICATION_FAILED")


def first_message(token: OAuthBearerToken) -> SecretBytes:
    """The client's first message. Raises AuthenticationError for a token or extensions that the mechanism cannot carry."""
    if _TOKEN.fullmatch(token.value.reveal()) is None:
        raise token_error("the token has characters that RFC 6750 does not allow")
    for name, value in token.extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise token_error(f"the SASL extension {name!r} has a name or value that OAUTHBEARER does not allow")
    extensions = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
    return SecretBytes(f"n,,\x01auth=Bearer {token.value.reveal()}\x01{extensions}\x01".encode())
