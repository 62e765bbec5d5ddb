"""Request and response headers, which stand between the length of a frame and its message.

Header versions follow from the API's version: flexible versions use request header 2 and response header 1, others 1 and 0.
The exception is ApiVersions, whose response header is always 0: a client must be able to read it before it knows the broker.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.primitives import Reader, Writer


class RequestHeader(NamedTuple):
    """What stands before the message of each request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header_version(api_key: ApiKey, api_version: int) -> int:
    return 2 if api_version >= API_TABLE[api_key].flexible_from else 1


def response_header_version(api_key: ApiKey, api_version: int) -> int:
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if api_version >= API_TABLE[api_key].flexible_from else 0


def write_request_header(writer: Writer, header: RequestHeader) -> None:
    writer.int16(header.api_key)
    writer.int16(header.api_version)
    writer.int32(header.correlation_id)
    writer.nullable_string(header.client_id)  # never compact, so that every broker can read every header
    if request_header_version(ApiKey(header.api_key), header.api_version) == 2:
        writer.tagged_fields()


def read_response_header(reader: Reader, api_key: ApiKey, api_version: int) -> int:
    """Read a response header; return its correlation id."""
    correlation_id = reader.int32()
    if response_header_version(api_key, api_version) == 1:
        reader.tagged_fields()
    return correlation_id
