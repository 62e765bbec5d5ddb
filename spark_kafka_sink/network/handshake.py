"""What a new connection says before it may be used, as a generator that reads like the protocol page.

`handshake()` yields requests and receives their responses; what it returns is what the connection then knows of its broker.
It computes only: NetworkClient sends what it yields and keeps the time.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.schema import Message, Request

SOFTWARE_NAME = (
    "pykafka-sink"  # brokers count clients by name and version (KIP-511); letters, digits, - and . only, or they refuse
)


class HandshakeRequest(NamedTuple):
    message: Request[Any]
    version: int


Handshake = Generator[HandshakeRequest, Message, "NodeApiVersions"]


class NodeApiVersions:
    """The versions that one broker speaks."""

    def __init__(self, response: ApiVersionsResponse) -> None:
        self._ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.finalized_features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    def latest_usable_version(self, api_key: ApiKey, max_version: int | None = None) -> int:
        """The newest version that the broker and we speak, and that is not above `max_version`.

        Raises:
            UnsupportedVersionError: there is none.
        """
        ours = API_TABLE[api_key]
        newest = ours.max_version if max_version is None else min(max_version, ours.max_version)
        their_min, their_max = self._ranges.get(api_key, (0, -1))
        usable = min(newest, their_max)
        if usable < max(ours.min_version, their_min):
            theirs = f"speaks {their_min} to {their_max}" if api_key in self._ranges else "does not know it"
            raise UnsupportedVersionError(
                f"no version of {api_key.name} in common: the broker {theirs}, this client can use {ours.min_version} to {newest}"
            )
        return usable

    def __repr__(self) -> str:
        return f"NodeApiVersions({self._ranges}, {self.finalized_features})"


def handshake() -> Handshake:
    """Yield each request a new connection sends before it is ready; receive its response.

    Raises:
        KafkaError: the broker refuses; the connection is of no use.
    """
    newest = API_TABLE[ApiKey.API_VERSIONS].max_version
    answer = yield HandshakeRequest(
        ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=_software_version()), newest
    )
    assert isinstance(answer, ApiVersionsResponse)
    if answer.error_code == Errors.UNSUPPORTED_VERSION.number:
        answer = yield HandshakeRequest(ApiVersionsRequest(), 0)
        assert isinstance(answer, ApiVersionsResponse)
    error = Errors.for_code(answer.error_code)
    if error:
        raise error.error("ApiVersions")
    return NodeApiVersions(answer)


@cache
def _software_version() -> str:
    try:
        return version(SOFTWARE_NAME).replace("+", "-")
    except PackageNotFoundError:  # used from a source tree
        return "0"
