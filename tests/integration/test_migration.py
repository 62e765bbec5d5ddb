"""docs/migrating.md, for users of format("kafka"): what they may keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.local_kafka import LocalKafka
from tests.integration.reading import ReadTopic, Topic
from tests.integration.writing import FORMAT, FileStream, run


def test_a_stream_keeps_its_checkpoint_when_the_word_is_changed_and_changed_back(
    spark: SparkSession,
    broker: LocalKafka,
    topic: Topic,
    read_topic: ReadTopic,
    tmp_path: Path,
) -> None:
    name, stream = topic(), FileStream(spark, tmp_path, "key string, value string")
    for round_, word in enumerate(("kafka", FORMAT, "kafka")):
        stream.feed([{"key": "k", "value": f"{word} {round_}"}])
        run(stream.writer(stream.read(), broker, name).format(word))
    assert [record.value for record in read_topic(name)] == [b"kafka 0", b"pykafka-sink 1", b"kafka 2"]


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_the_save_mode_that_has_to_be_said_is_named_by_spark(spark: SparkSession, mode: str) -> None:
    """The first thing that a migrating user meets: the words that the page's table lists."""
    writer = spark.sql("SELECT 'a' AS value").write.format(FORMAT).mode(mode)
    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*mode") as raised:
        writer.option("kafka.bootstrap.servers", "127.0.0.1:1").option("topic", "t").save()
    assert ('"ErrorIfExists"' in str(raised.value)) == (mode == "error")
