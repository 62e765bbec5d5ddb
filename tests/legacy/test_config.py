"""The old producer's options: which are taken, translated, ignored or refused."""

from __future__ import annotations

import logging
import traceback
from typing import Any

import pytest

from spark_kafka_sink.config.option import INT_MAX, LONG_MAX
from spark_kafka_sink.errors import (
    ConfigError,
)
from spark_kafka_sink.legacy.config import LegacyProducerConfig, read_config
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.producer import Producer
from spark_kafka_sink.producer.serializers import SerializationError, serialize


def read(**options: Any) -> LegacyProducerConfig:
    properties = {name.replace("_", "."): value for name, value in options.items()}
    return read_config({"metadata.broker.list": "one:1,two:2"} | properties)[0]


def test_defaults_are_those_of_the_old_producer() -> None:
    config = read()
    assert (config.producer_type, config.request_required_acks, config.request_timeout_ms) == ("sync", 0, 10_000)
    assert (config.message_send_max_retries, config.retry_backoff_ms) == (3, 100)
    assert config.topic_metadata_refresh_interval_ms == 600_000
    assert (config.queue_buffering_max_ms, config.queue_buffering_max_messages) == (5000, 10_000)
    assert (config.queue_enqueue_timeout_ms, config.batch_num_messages) == (-1, 200)
    assert (config.compression_codec, config.client_id, config.send_buffer_bytes) == ("none", "", 102_400)


def test_old_keys_become_those_of_today() -> None:
    producer = read(
        request_required_acks="1",
        request_timeout_ms="4000",
        compression_codec="2",
        client_id="me",
        send_buffer_bytes=5000,
        topic_metadata_refresh_interval_ms=7000,
    ).producer
    assert producer.bootstrap_servers == (("one", 1), ("two", 2))
    assert (producer.acks, producer.request_timeout_ms, producer.compression_type) == (1, 4000, "snappy")
    assert (producer.client_id, producer.send_buffer_bytes, producer.metadata_max_age_ms) == ("me", 5000, 7000)
    assert (producer.retries, producer.enable_idempotence, producer.linger_ms) == (0, False, 0)


@pytest.mark.parametrize(("interval_ms", "age_ms"), [(-1, LONG_MAX), (0, 100), (INT_MAX, INT_MAX)])
def test_metadata_is_refreshed_at_the_old_interval_but_ten_times_a_second_at_most(interval_ms: int, age_ms: int) -> None:
    assert read(topic_metadata_refresh_interval_ms=interval_ms).producer.metadata_max_age_ms == age_ms


def test_all_problems_are_one_error() -> None:
    options = {
        "producer.type": "both",
        "queue.enqueue.timeout.ms": -2,
        "compression.codec": "brotli",
        "client.id": "my client",
        "batch.num.messages": 500,
        "queue.buffering.max.messages": 100,
        "serializer.class": "no.such.encoder",
        "partitioner.class": "no.such.partitioner",
        "serializer.encoding": "utf-13",
        "security.protocol": "TELEPATHY",
    }
    with pytest.raises(ConfigError) as raised:
        Producer(options)
    assert raised.value.message.startswith("11 things are wrong:")  # serializer.class twice: it is that of keys too
    for key in (*options, "metadata.broker.list", "key.serializer.class"):
        assert key in raised.value.message


@pytest.mark.parametrize(
    ("encoding", "text", "data"),
    [
        ("UTF-16", "a", b"\xfe\xff\0a"),
        ("UTF-16", "", b""),
        ("UTF-16LE", "a", b"a\0"),
        ("UTF-32", "a", b"\0\0\0a"),
        ("UTF8", "é", b"\xc3\xa9"),
    ],
)
def test_string_encoder_writes_what_java_writes(encoding: str, text: str, data: bytes) -> None:
    """UTF-16 and UTF-32 were those of Python, in the machine's byte order, with a mark before the empty text too."""
    options = {"serializer.class": "kafka.serializer.StringEncoder", "serializer.encoding": encoding}
    _, plugins = read_config({"metadata.broker.list": "one:1"} | options)
    assert serialize(plugins.serialize_message, text, "message") == data
    with pytest.raises(SerializationError):
        serialize(plugins.serialize_message, b"", "message")


def test_an_unknown_key_is_a_warning_that_names_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    read(queue_bufering_max_ms=1, broker_list="x:1", compressed_topics="a", request_required_acks=1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "Option 'broker.list' is not known to the old producer and has no effect; did you mean 'metadata.broker.list'?",
        "Option 'compressed.topics' has no effect: compression.codec applies to all topics",
        "Option 'queue.bufering.max.ms' is not known to the old producer and has no effect; did you mean"
        " 'queue.buffering.max.ms'?",
    ]


def test_acks_that_are_not_asked_for_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    read()
    assert "request.required.acks is not set" in caplog.text


def test_secrets_of_todays_security_are_handed_on_and_show_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    config = read(sasl_jaas_config="hunter2", pasword="hunter2")
    assert config.producer.sasl_jaas_config is not None
    assert config.producer.sasl_jaas_config.reveal() == "hunter2"
    assert "hunter2" not in repr(config) + caplog.text


def test_a_traceback_with_locals_shows_no_secret() -> None:
    try:
        Producer({"sasl.jaas.config": "".join(["hunt", "er2"])})
    except ConfigError as error:
        frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack[1:]  # without this test's own
        shown = str([frame.locals for frame in frames])
        assert "sasl.jaas.config" in shown
        assert "hunter2" not in shown
    else:
        pytest.fail("a configuration without brokers was accepted")


def test_a_message_must_be_given_and_a_topic_too() -> None:
    with pytest.raises(TypeError, match="message=…"):
        KeyedMessage("orders", "the message of old code")
    with pytest.raises(ValueError, match="Topic cannot be null"):
        KeyedMessage(None, message="x")


@pytest.mark.parametrize("topic", [b"orders", 7, ["orders"]])
def test_a_topic_that_is_no_str_is_refused(topic: Any) -> None:
    """The async producer queued such a message, and then all the messages of its batch failed."""
    with pytest.raises(TypeError, match=f"is a str, not {type(topic).__name__}"):
        KeyedMessage(topic, message="x")
