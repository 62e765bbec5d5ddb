"""A broker's half of PLAIN, SCRAM and OAUTHBEARER, written from the RFCs without our client's code.

`SaslServer(mechanism, users)` takes the client's messages one after another with `evaluate`, and is `complete` in the end; it
raises Refused where a broker would answer SASL_AUTHENTICATION_FAILED. `SaslGate` is what a listener makes of it: it answers the
requests of the login, and lets nothing else through before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from spark_kafka_sink.protocol.schema import Message

SALT = b"salt of the server"
NONCE = "the-servers-part"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class Refused(Exception):
    """The text that a broker sends with the error."""


class SaslServer:
    def __init__(self, mechanism: str, users: Mapping[str, str], *, iterations: int = 4096) -> None:
        self.mechanism = mechanism
        self.complete = False
        self.user = ""
        self._users = users
        self._iterations = iterations
        self._round = 0
        self._first = ""
        self._challenge = ""

    def evaluate(self, message: bytes) -> bytes:
        self._round += 1
        if self.mechanism == "PLAIN":
            return self._plain(message)
        if self.mechanism == "OAUTHBEARER":
            return self._oauthbearer(message)
        return self._scram_first(message) if self._round == 1 else self._scram_final(message)

    def _plain(self, message: bytes) -> bytes:
        authorize, user, password = message.decode().split("\0")
        if authorize not in ("", user) or self._users.get(user) != password:
            raise Refused("Authentication failed: Invalid username or password")
        self.user, self.complete = user, True
        return b""

    def _oauthbearer(self, message: bytes) -> bytes:
        if self._round > 1:
            assert message == b"\x01"
            raise Refused('{"status":"invalid_token"}')
        token = message.decode().split("\x01")[1].removeprefix("auth=Bearer ")
        for user, expected in self._users.items():
            if token == expected:
                self.user, self.complete = user, True
                return b""
        return b'{"status":"invalid_token"}'

    def _scram_first(self, message: bytes) -> bytes:
        text = message.decode()
        assert text.startswith("n,,")
        self._first = text.removeprefix("n,,")
        fields = dict(field.split("=", 1) for field in self._first.split(","))
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        salt = base64.b64encode(SALT).decode()
        self._challenge = f"r={fields['r']}{NONCE},s={salt},i={self._iterations}"
        return self._challenge.encode()

    def _scram_final(self, message: bytes) -> bytes:
        without_proof, proof = message.decode().rsplit(",p=", 1)
        name = self.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        password = self._users.get(self.user, "no such user")
        salted = hashlib.pbkdf2_hmac(name, password.encode(), SALT, self._iterations)
        stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        auth_message = f"{self._first},{self._challenge},{without_proof}".encode()
        signature = hmac.digest(stored_key, auth_message, name)
        client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(name, client_key).digest() != stored_key:
            raise Refused("Authentication failed during authentication due to invalid credentials")
        self.complete = True
        server_key = hmac.digest(salted, b"Server Key", name)
        return b"v=" + base64.b64encode(hmac.digest(server_key, auth_message, name))


class SaslGate:
    """One connection. Without users it belongs to a listener without SASL."""

    def __init__(self, users: Mapping[str, str] | None, lifetime_ms: int = 0) -> None:
        self._users = users
        self._lifetime_ms = lifetime_ms
        self._server: SaslServer | None = None
        self._is_open = users is None

    def lets_through(self, message: Message) -> bool:
        return self._is_open or isinstance(message, ApiVersionsRequest)

    def answer(self, message: Message) -> Message | None:
        """None for what is no part of a login."""
        if isinstance(message, SaslHandshakeRequest):
            return self._handshake(message.mechanism)
        if isinstance(message, SaslAuthenticateRequest):
            return self._authenticate(message.auth_bytes)
        return None

    def _handshake(self, mechanism: str) -> SaslHandshakeResponse:
        if self._users is None:
            return SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE.number)
        if mechanism not in MECHANISMS:
            return SaslHandshakeResponse(error_code=Errors.UNSUPPORTED_SASL_MECHANISM.number, mechanisms=MECHANISMS)
        self._server = SaslServer(mechanism, self._users)
        return SaslHandshakeResponse(mechanisms=MECHANISMS)

    def _authenticate(self, auth_bytes: bytes) -> SaslAuthenticateResponse:
        if self._server is None:
            return SaslAuthenticateResponse(error_code=Errors.ILLEGAL_SASL_STATE.number)
        try:
            challenge = self._server.evaluate(auth_bytes)
        except Refused as refused:
            error = Errors.SASL_AUTHENTICATION_FAILED.number
            return SaslAuthenticateResponse(error_code=error, error_message=str(refused))
        self._is_open = self._is_open or self._server.complete
        return SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=self._lifetime_ms)
