"""What `send` rejects at once."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.producer.producer_record import ProducerRecord, checked_details, checked_headers
from spark_kafka_sink.producer.serializers import SerializationError
from tests.producer.harness import TOPIC


@pytest.mark.parametrize(("partition", "timestamp"), [(-1, None), (None, -5), (None, 2**63)])
def test_numbers_that_no_record_can_have_are_refused_at_send(partition: int | None, timestamp: int | None) -> None:
    with pytest.raises(ValueError, match=r"^Invalid (partition|timestamp): -?\d+\."):
        checked_details(ProducerRecord(TOPIC, b"v", partition=partition, timestamp=timestamp))


@pytest.mark.parametrize("headers", [[(b"name", b"value")], [("name", "value")], [(None, b"value")]])
def test_headers_of_other_types_are_refused_at_send(headers: Any) -> None:
    with pytest.raises(SerializationError, match=r"^\[KAFKA_SERIALIZATION_FAILED\] a header must be"):
        checked_headers(headers)
