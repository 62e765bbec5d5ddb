"""SaslHandshake: names the SASL mechanism to use; a broker without it answers with those it supports (KIP-43)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Message, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse(Message):
    API_KEY: ClassVar = ApiKey.SASL_HANDSHAKE

    error_code: Int16 = 0
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    mechanism: str
