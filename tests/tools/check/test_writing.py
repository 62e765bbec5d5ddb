"""tools/check/writing.py: what is said of a record that could not be sent."""

from __future__ import annotations

import pytest

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.tools.check import writing
from spark_kafka_sink.tools.check.results import Light


def test_a_defect_of_the_producer_is_not_called_a_login_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError("made badly")

    monkeypatch.setattr(writing, "KafkaProducer", fails)
    config = ProducerConfig.from_mapping({"bootstrap.servers": "localhost:1"})
    result = writing.write_record("orders", config, None, 30_000, Clock())
    assert result.light is Light.RED
    assert result.finding == "[KAFKA_INTERNAL_ERROR] ZeroDivisionError: made badly"
