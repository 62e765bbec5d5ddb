"""TaskProducer: what it tells about topics and brokers. tests/sink/test_worker_cache.py shows how it rests between tasks."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.metadata_wait import MetadataWait
from spark_kafka_sink.producer.producer_metrics import ProducerMetrics
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes import network_config as answers
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.producer.calling import WAIT_MS, binary
from tests.producer.producers import await_answers, give_up_soon, task_producer_of


def test_topics_that_were_asked_for_together_are_known_after_one_wait(broker: FakeBroker) -> None:
    with task_producer_of(broker) as producer:
        producer.ask_for_topics(["gone", "single", "lost", "no/topic"])
        await_answers(producer, "gone", "single", "lost")
        give_up_soon(producer)
        with pytest.raises(KafkaTimeoutError, match="Topic gone not present in metadata"):
            producer.partitions_for("gone")
        assert producer.unknown_topics(["gone", "single", "lost"]).keys() == {"gone", "lost"}


def test_all_topics_of_a_chunk_that_brokers_do_not_have_are_known_after_one_wait(broker: FakeBroker) -> None:
    topics = ["gone", "single", "lost"]
    with task_producer_of(broker) as producer:
        await_answers(producer, "single")
        give_up_soon(producer, 3_000)
        with pytest.raises(KafkaTimeoutError, match="Topic gone not present in metadata"):
            producer.send_columns(pa.array(topics), value=binary(b"a", b"b", b"c"))
        unknown = producer.unknown_topics(topics)
        assert unknown.keys() == {"gone", "lost"}
        assert unknown["lost"].startswith("Topic lost not present in metadata after 3000 ms.")
        give_up_soon(producer, WAIT_MS)
        producer.send_columns("other", value=binary(b"a")).result(WAIT_MS)  # with metadata that names no lost topic any more
    last = broker.requests_of(ApiKey.METADATA)[-1].message.topics or ()
    assert not {"gone", "lost"} & {topic.name for topic in last}


def test_brokers_that_are_away_say_of_no_topic_that_it_is_unknown() -> None:
    """The last answer may be older than the topic; rows must not be given up for it."""
    clock = ManualClock()
    config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1"})
    metadata = Metadata(config, clock)
    waiting = MetadataWait(metadata, lambda: None, ProducerMetrics(config, clock), clock, max_block_ms=60_000)
    metadata.add_topic("gone", clock.now_ms())
    assert waiting.unknown_topics(["gone"], 1000) == {}
    nobody_answered = waiting.absence_error(
        "gone", -1, None, 60_000
    )  # be it that all connections stand: to create it was proposed
    assert nobody_answered.condition == "KAFKA_BROKER_UNREACHABLE"
    assert "create the topic" not in nobody_answered.message
    metadata.update(answers.metadata(answers.topic("gone", [], error_code=3)), clock.now_ms())
    clock.advance(1001)
    assert waiting.unknown_topics(["gone"], 1000) == {}
    assert waiting.unknown_topics(["gone"], 2000).keys() == {"gone"}


def test_the_first_broker_can_be_awaited_without_naming_a_topic(broker: FakeBroker) -> None:
    with task_producer_of(broker) as producer:
        producer.await_brokers(WAIT_MS)
        request_count = len(broker.requests_of(ApiKey.METADATA))
        assert [request.message.topics for request in broker.requests_of(ApiKey.METADATA)] == [()] * request_count
        producer.await_brokers(0)  # known already: nobody is asked again
        assert len(broker.requests_of(ApiKey.METADATA)) == request_count
    with FakeBroker() as gone:
        servers = gone.bootstrap_servers
    with (
        TaskProducer({"bootstrap.servers": servers}) as producer,
        pytest.raises(
            KafkaTimeoutError, match=r"^\[KAFKA_BROKER_UNREACHABLE\] no broker answered: .*127\.0\.0\.1.*within 200 ms"
        ),
    ):
        producer.await_brokers(200)
