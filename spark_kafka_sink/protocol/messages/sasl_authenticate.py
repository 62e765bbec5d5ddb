"""SaslAuthenticate: one message of a SASL exchange, and the broker's reply to it (KIP-152, KIP-368).

The client's message contains credentials: no repr shows it, neither of the message nor of the encoded frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from spark_kafka_sink.config.secret import SecretBytes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import Buffer
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int64, Message, Request, since


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse(Message):
    API_KEY: ClassVar = ApiKey.SASL_AUTHENTICATE

    error_code: Int16 = 0
    error_message: str | None = None
    auth_bytes: bytes = field(default=b"", repr=False)
    session_lifetime_ms: Annotated[Int64, since(1), IGNORABLE] = 0  # above zero: authenticate again before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    auth_bytes: bytes = field(repr=False)

    def encode(self, version: int) -> list[Buffer]:
        """As Message.encode; tracebacks and logs show the buffer as [hidden]."""
        return [SecretBytes(b"".join(super(SaslAuthenticateRequest, self).encode(version)))]
