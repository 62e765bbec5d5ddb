"""subjects.py: which subject the rows of a topic have, by each strategy."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.registry_config import RegistryConfig
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.schemas.subjects import has_subject_per_topic, needs_record_name, subject_for
from tests.fakes.registry_config import registry_config

RECORD = "com.acme.Order"


def config(strategy: str, part: str = "value") -> RegistryConfig:
    return registry_config({"schema.registry.url": "http://r", f"{part}.subject.name.strategy": strategy})


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("TopicNameStrategy", "orders-value"),
        ("io.confluent.kafka.serializers.subject.TopicNameStrategy", "orders-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "com.acme.Order"),
        ("TopicRecordNameStrategy", "orders-com.acme.Order"),
    ],
)
def test_subjects_are_named_as_confluents_strategies_name_them(strategy: str, expected: str) -> None:
    assert subject_for(config(strategy), "value", "orders", RECORD) == expected


def test_key_and_value_have_strategies_of_their_own() -> None:
    settings = config("RecordNameStrategy", "key")
    assert subject_for(settings, "key", "orders", RECORD) == RECORD
    assert subject_for(settings, "value", "orders", RECORD) == "orders-value"
    assert subject_for(config("RecordNameStrategy"), "key", "orders", None) == "orders-key"


def test_a_strategy_that_needs_a_record_says_what_to_do_without_one() -> None:
    with pytest.raises(ConfigError, match=r"value.subject.name.strategy=TopicRecordNameStrategy .* set valueSubject"):
        subject_for(config("TopicRecordNameStrategy"), "value", "orders", None)


def test_what_a_strategy_needs_is_known_before() -> None:
    needs = {
        strategy: (has_subject_per_topic(config(strategy), "value"), needs_record_name(config(strategy), "value"))
        for strategy in ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
    }
    assert needs == {
        "TopicNameStrategy": (True, False),
        "RecordNameStrategy": (False, True),
        "TopicRecordNameStrategy": (True, True),
    }
