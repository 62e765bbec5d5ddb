"""A schema registry that goes away and comes back while one query runs, on real Spark and a real broker: each row is there once.

In tests/integration/test_formats.py each run of a stream is a query of its own; here the query lives on.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from jobs.local_kafka import LocalKafka
from tests.integration.reading import ReadRecord, ReadTopic, Topic
from tests.integration.writing import FileStream, avro, conditions, error_of, run
from tests.schemas.fake_registry import FakeRegistry

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.usefixtures("one_planner")]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    return FileStream(spark, tmp_path, "topic string, id long")


@contextmanager
def running(writer: DataStreamWriter) -> Iterator[StreamingQuery]:
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()


def feeding(stream: FileStream, query: StreamingQuery, *topics: str) -> Callable[[int, int], None]:
    """What feeds rows of all topics, and waits until the running query has written them."""

    def feed(start: int, stop: int) -> None:
        stream.feed([{"topic": topic, "id": number} for number in range(start, stop) for topic in topics])
        query.processAllAvailable()

    return feed


def read(registry: FakeRegistry, subject: str, records: list[ReadRecord]) -> list[tuple[int, int]]:
    """The schema's id and the row's of each record."""
    texts = {number: json.loads(text) for number, text in enumerate(registry.texts(subject), 1)}
    id_pairs = []
    for record in records:
        assert record.value is not None
        schema_id = int.from_bytes(record.value[1:5], "big")
        text = texts[schema_id] if schema_id in texts else next(iter(texts.values()))
        row = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), fastavro.parse_schema(text), None)
        id_pairs.append((schema_id, row["id"]))
    return sorted(id_pairs, key=lambda each: each[1])


def test_a_running_query_goes_on_without_its_registry(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name = topic(2)
    with running(stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **avro(registry))) as query:
        feed = feeding(stream, query, name)
        feed(0, 10)
        registry.stop()
        feed(10, 20)
        with registry.started_again() as again:
            feed(20, 30)
            assert again.requests == []
    assert read(registry, f"{name}-value", read_topic(name)) == [(1, number) for number in range(30)]


def test_a_running_query_with_latest_takes_a_new_version_after_an_outage(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    name = topic(1)
    first = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    newer = first | {"fields": [*first["fields"], {"name": "note", "type": "string", "default": "none"}]}
    registry.register(f"{name}-value", json.dumps(first))
    options = avro(registry, valueSchema="latest", latest__cache__ttl__sec="0")
    with running(stream.writer(stream.read().selectExpr("struct(id) value"), broker, name, **options)) as query:
        feed = feeding(stream, query, name)
        feed(0, 2)
        registry.stop()
        feed(2, 4)
        with registry.started_again() as again:
            again.register(f"{name}-value", json.dumps(newer))
            feed(4, 6)
    id_pairs = read(registry, f"{name}-value", read_topic(name))
    assert id_pairs == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


@pytest.mark.slow
def test_a_new_topic_waits_for_the_registry_and_each_row_is_written_once(
    stream: FileStream, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, registry: FakeRegistry
) -> None:
    """Rows name their topics, and tasks ask for the schema of the new one. The query ends, and its restart goes on there."""
    names = [topic(1), topic(1)]
    options = avro(registry, deliveryGuarantee="exactly-once", transactionalIdPrefix=names[0], markerTopic=names[0])

    def writer() -> DataStreamWriter:
        return stream.writer(stream.read().coalesce(1).selectExpr("topic", "struct(id) value"), broker, **options)

    with running(writer()) as query:
        feeding(stream, query, names[0])(0, 10)
        registry.stop()
        message = error_of(lambda: feeding(stream, query, *names)(10, 20))
    assert conditions(message) == {"KAFKA_SCHEMA_REGISTRY_UNREACHABLE"}
    with registry.started_again():
        run(writer())
    numbers_by_topic = {names[0]: range(20), names[1]: range(10, 20)}
    for name, numbers in numbers_by_topic.items():
        id_pairs = read(registry, f"{name}-value", read_topic(name, isolation_level="read_committed"))
        assert [number for _, number in id_pairs] == list(numbers)
