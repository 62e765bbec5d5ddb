"""Tokens and entries of JAAS for the tests of logins."""

from __future__ import annotations

import base64
import json
from typing import Any

from spark_kafka_sink.config.jaas import JaasEntry, parse_jaas
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.network.sasl.tokens import RefreshWindow

CANARY = "canary-7Qx2"


HOUR = 3_600_000


WINDOW = RefreshWindow(0.8, 0.0, 60_000, 300_000)


def entry(options: str) -> JaasEntry:
    parsed = parse_jaas(f"OAuthBearerLoginModule required {options};")
    assert isinstance(parsed, JaasEntry)
    return parsed


def jwt(**claims: object) -> str:
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims)) + ".c2ln"


def claims_of(token: Secret) -> dict[str, Any]:
    payload = token.reveal().split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
