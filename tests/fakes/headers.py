"""Request and response headers from the broker's side: the other half of protocol/headers.py."""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader, request_header_version, response_header_version
from spark_kafka_sink.protocol.primitives import Reader, Writer


def read_request_header(reader: Reader) -> RequestHeader:
    header = RequestHeader(reader.int16(), reader.int16(), reader.int32(), reader.nullable_string())
    if request_header_version(ApiKey(header.api_key), header.api_version) == 2:
        reader.tagged_fields()
    return header


def write_response_header(writer: Writer, api_key: ApiKey, api_version: int, correlation_id: int) -> None:
    writer.int32(correlation_id)
    if response_header_version(api_key, api_version) == 1:
        writer.tagged_fields()
