"""SCRAM-SHA-256 and SCRAM-SHA-512: both sides prove that they know the password without sending it (RFC 5802, RFC 7677).

The client checks the server too. The server's nonce must continue the client's, and its signature must be right. The iteration
count must not be so small that it weakens the proof, nor so large that it takes long to compute.
Names and passwords are UTF-8 without SASLprep, as Kafka stores and sends them: a password that SASLprep changes would not match.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import AuthenticationError, printable
from spark_kafka_sink.network.sasl.login import Exchange, illegal_challenge

MIN_ITERATIONS = 4096  # RFC 7677; brokers store no fewer
MAX_ITERATIONS = 131_072  # eight times what brokers store at most; about 100 ms of work
_MAX_CHALLENGE_BYTES = 4096
_NONCE_BYTES = 24

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_SERVER_FIRST = re.compile(r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?")
_SERVER_FINAL = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/]+={0,2})|e=(?P<error>[^,]*))(?:,.*)?")


class ServerFirst(NamedTuple):
    """The server's first message, parsed: what the password is hashed with."""

    nonce: str
    salt: bytes
    iterations: int


class ScramKeys:
    """The keys derived from a password. Its repr shows nothing."""

    __slots__ = ("_client_key", "_hash", "_server_key")

    def __init__(self, mechanism: str, password: Secret, salt: bytes, iterations: int) -> None:
        self._hash = _HASHES[mechanism]
        salted_password = SecretBytes(hashlib.pbkdf2_hmac(self._hash, password.reveal().encode(), salt, iterations))
        self._client_key = SecretBytes(hmac.digest(salted_password, b"Client Key", self._hash))
        self._server_key = SecretBytes(hmac.digest(salted_password, b"Server Key", self._hash))

    def proof(self, auth_message: bytes) -> bytes:
        """The client's proof that it knows the password: ClientProof of RFC 5802, not encoded."""
        stored_key = SecretBytes(hashlib.new(self._hash, self._client_key).digest())
        signature = SecretBytes(hmac.digest(stored_key, auth_message, self._hash))
        return SecretBytes(key_byte ^ other for key_byte, other in zip(self._client_key, signature, strict=True))

    def has_signed(self, auth_message: bytes, signature: bytes) -> bool:
        """Whether a server that knows the password too has made `signature`."""
        return hmac.compare_digest(hmac.digest(self._server_key, auth_message, self._hash), signature)


class ScramLogin:
    """The client's side of a SCRAM login.

    Args:
        token_auth: name and password belong to a delegation token (KIP-48).
        nonce: for tests.
    """

    def __init__(self, mechanism: str, username: str, password: Secret, *, token_auth: bool = False, nonce: str = "") -> None:
        self.mechanism = mechanism
        self.user_text = f"delegation token '{username}'" if token_auth else f"user '{username}'"
        self._username = username
        self._password = password
        self._extensions = ",tokenauth=true" if token_auth else ""
        self._nonce = nonce

    def start(self, host: str) -> Exchange:  # noqa: ARG002 - Login's signature
        nonce = self._nonce or secrets.token_urlsafe(_NONCE_BYTES)
        saslname = self._username.replace("=", "=3D").replace(",", "=2C")
        client_first = f"n={saslname},r={nonce}{self._extensions}"
        challenge = yield SecretBytes(f"n,,{client_first}".encode())
        server_first = read_server_first(challenge, nonce)
        without_proof = f"c=biws,r={server_first.nonce}"  # biws: "n,,", no channel binding
        auth_message = b",".join((client_first.encode(), challenge, without_proof.encode()))
        keys = ScramKeys(self.mechanism, self._password, server_first.salt, server_first.iterations)
        server_final = yield SecretBytes(b"%b,p=%b" % (without_proof.encode(), _encode_base64(keys.proof(auth_message))))
        check_server_final(server_final, auth_message, keys)


def read_server_first(challenge: bytes, client_nonce: str) -> ServerFirst:
    """Check and read the broker's first message. Raises AuthenticationError if the client must not continue."""
    match = _SERVER_FIRST.fullmatch(_decode_challenge(challenge))
    if match is None:
        raise illegal_challenge("the first message of SCRAM cannot be read")
    if not match["nonce"].startswith(client_nonce) or match["nonce"] == client_nonce:
        raise illegal_challenge("its nonce does not continue ours")
    iterations = int(match["iterations"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise illegal_challenge(f"it asks for {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted")
    return ServerFirst(match["nonce"], _decode_base64(match["salt"]), iterations)


def check_server_final(challenge: bytes, auth_message: bytes, keys: ScramKeys) -> None:
    """Check the broker's last message. Raises AuthenticationError if it rejects the proof, or does not know the password."""
    match = _SERVER_FINAL.fullmatch(_decode_challenge(challenge))
    if match is None:
        raise illegal_challenge("the last message of SCRAM cannot be read")
    if match["error"] is not None:
        raise AuthenticationError(
            f"the broker rejected the proof: '{printable(match['error'])}'", condition="KAFKA_SASL_AUTHENTICATION_FAILED"
        )
    if not keys.has_signed(auth_message, _decode_base64(match["signature"])):
        raise illegal_challenge("its signature is not that of a server that knows this user's password")


def _decode_challenge(challenge: bytes) -> str:
    if len(challenge) > _MAX_CHALLENGE_BYTES:
        raise illegal_challenge(f"a message of SCRAM with {len(challenge)} bytes")
    return challenge.decode("utf-8", errors="replace")


def _encode_base64(value: bytes) -> SecretBytes:
    return SecretBytes(binascii.b2a_base64(value, newline=False))


def _decode_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise illegal_challenge("it holds malformed base64") from None
