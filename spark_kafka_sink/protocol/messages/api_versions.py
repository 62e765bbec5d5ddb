"""ApiVersions: the first request on every connection; the answer has the versions that the broker supports (KIP-35, KIP-511)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.errors import ProtocolError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.primitives import Reader
from spark_kafka_sink.protocol.schema import IGNORABLE, Int16, Int32, Int64, Message, Request, since, tagged


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeatureKey(Message):
    name: str
    min_version: Int16
    max_version: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeatureKey(Message):
    name: str
    max_version_level: Int16
    min_version_level: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(Message):
    API_KEY: ClassVar = ApiKey.API_VERSIONS

    error_code: Int16 = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    supported_features: Annotated[tuple[SupportedFeatureKey, ...], tagged(0, since=3), IGNORABLE] = ()
    finalized_features_epoch: Annotated[Int64, tagged(1, since=3), IGNORABLE] = -1
    finalized_features: Annotated[tuple[FinalizedFeatureKey, ...], tagged(2, since=3), IGNORABLE] = ()
    zk_migration_ready: Annotated[bool, tagged(3, since=3), IGNORABLE] = False

    @classmethod
    def read(cls, version: int, reader: Reader) -> ApiVersionsResponse:
        """As Message.read, but a broker that does not support the version answers in another one.

        Kafka answers in v0, and from 2.4 on (KIP-511) names the versions of this API that it supports. The answer of librdkafka's
        mock broker has no valid version: only its error is read.
        """
        if version == 0 or Reader(reader.unread()).int16() != Errors.UNSUPPORTED_VERSION.number:
            return super(ApiVersionsResponse, cls).read(version, reader)
        try:
            return cls.decode(0, reader.take(reader.remaining_bytes()))
        except ProtocolError:
            return cls(error_code=Errors.UNSUPPORTED_VERSION.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    client_software_name: Annotated[str, since(3), IGNORABLE] = ""
    client_software_version: Annotated[str, since(3), IGNORABLE] = ""
