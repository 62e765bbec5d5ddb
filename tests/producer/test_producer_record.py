"""What `send` rejects at once."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.producer.producer_record import ProducerRecord, checked_details, checked_headers, max_headers_bytes
from spark_kafka_sink.producer.serializers import SerializationError
from tests.producer.harness import TOPIC


@pytest.mark.parametrize(("partition", "timestamp"), [(-1, None), (None, -5), (None, 2**63)])
def test_numbers_that_no_record_can_have_are_refused_at_send(partition: int | None, timestamp: int | None) -> None:
    with pytest.raises(ValueError, match=r"^Invalid (partition|timestamp): -?\d+\."):
        checked_details(ProducerRecord(TOPIC, b"v", partition=partition, timestamp=timestamp))


def test_header_pairs_become_tuples() -> None:
    """A list of two, as JSON gives it, failed in Arrow with all records that were gathered with it; and it may change later."""
    assert checked_headers([["trace", b"1"], ("other", None)]) == (("trace", b"1"), ("other", None))


def test_the_name_of_a_header_must_be_text_that_utf_8_can_encode() -> None:
    """It raised UnicodeEncodeError, where each error of `send` is to be a KafkaError."""
    with pytest.raises(SerializationError, match="the name of a header cannot be encoded: surrogates not allowed"):
        max_headers_bytes(checked_headers([("half \ud800", b"1")]))


@pytest.mark.parametrize("headers", [[(b"name", b"value")], [("name", "value")], [(None, b"value")]])
def test_headers_of_other_types_are_refused_at_send(headers: Any) -> None:
    with pytest.raises(SerializationError, match=r"^\[KAFKA_SERIALIZATION_FAILED\] a header must be"):
        checked_headers(headers)
