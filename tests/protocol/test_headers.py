"""protocol/headers.py against bytes, and the exception for ApiVersions."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.api_keys import API_TABLE, ApiKey
from spark_kafka_sink.protocol.headers import RequestHeader, read_response_header, write_request_header
from spark_kafka_sink.protocol.primitives import Reader, Writer
from tests.fakes.headers import read_request_header, write_response_header

CASES = [(api.key, version) for api in API_TABLE.values() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize(
    ("api_key", "version", "expected"),
    [
        (ApiKey.PRODUCE, 8, "000000080000000700026964"),
        (ApiKey.PRODUCE, 9, "00000009000000070002696400"),
        (ApiKey.API_VERSIONS, 3, "00120003000000070002696400"),
    ],
)
def test_flexible_requests_have_tags_but_never_a_compact_client_id(api_key: ApiKey, version: int, expected: str) -> None:
    writer = Writer()
    write_request_header(writer, RequestHeader(api_key, version, 7, "id"))
    assert b"".join(writer.buffers()).hex() == expected


def test_the_answer_to_api_versions_never_has_tags() -> None:
    for version in range(5):
        writer = Writer()
        write_response_header(writer, ApiKey.API_VERSIONS, version, 7)
        assert b"".join(writer.buffers()).hex() == "00000007"


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_headers_are_read_as_they_were_written(api_key: ApiKey, version: int) -> None:
    header = RequestHeader(api_key, version, 123, None)
    writer = Writer()
    write_request_header(writer, header)
    reader = Reader(b"".join(writer.buffers()))
    assert read_request_header(reader) == header
    reader.expect_end()

    writer = Writer()
    write_response_header(writer, api_key, version, 123)
    reader = Reader(b"".join(writer.buffers()))
    assert read_response_header(reader, api_key, version) == 123
    reader.expect_end()
