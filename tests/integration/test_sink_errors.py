"""What a user reads when something is wrong: the code, what, where, and what to do; and nothing half written where avoidable."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.sink.rows.spark_columns import ATTRIBUTES, PARTITION
from tests.integration.reading import READERS, ReadTopic, Topic
from tests.integration.writing import FORMAT, FileStream, conditions, error_of, run, save

SERVERS = "127.0.0.1:9"  # never reached: what is tested with it fails on the driver


# TOLD ON THE DRIVER, BEFORE A TASK RUNS


def test_the_error_of_a_wrong_schema_is_sparks(spark: SparkSession) -> None:
    message = error_of(lambda: save(spark.range(1).selectExpr("'t' topic", "id as value"), SERVERS))
    assert "value attribute unsupported type bigint. value must be a(n) string or binary" in message
    assert "KAFKA_INVALID_SCHEMA" in conditions(message)


SHAPE = "X'0101000000000000000000F03F0000000000000040'"  # POINT(1 2)
VALUES_OF_TYPES = [
    *("true", "1Y", "1S", "1", "1L", "1F", "1D", "1.5BD", "'2026-01-01'", "X'31'", "DATE'2026-01-01'", "TIMESTAMP'2026-01-01'"),
    *("TIMESTAMP_NTZ'2026-01-01'", "INTERVAL 1 DAY", "INTERVAL 1 MONTH", "make_interval(1, 1)", "parse_json('1')", "NULL"),
    *("array(1)", "map(1, 2)", "struct(1 AS a)", "array(parse_json('1'))", "map('a', DATE'2026-01-01')"),
    *(f"st_geomfromwkb({SHAPE})", f"st_geogfromwkb({SHAPE})", f"array(st_geomfromwkb({SHAPE}))", "TIME'10:00:00'"),
]


def test_spark_accepts_the_expression_that_an_error_of_a_type_shows(spark: SparkSession) -> None:
    """The error of a geometry said "Select cast(value AS string)", which Spark rejects: DATATYPE_MISMATCH."""
    for value in VALUES_OF_TYPES:
        df = spark.sql("SELECT " + ", ".join(f"{value} AS {attribute.name}" for attribute in ATTRIBUTES))
        remedies = {attribute: attribute.remedy(df.schema[attribute.name].dataType) for attribute in ATTRIBUTES}
        expressions = {attribute: remedy for attribute, remedy in remedies.items() if remedy is not None}
        if value == "'2026-01-01'":
            del expressions[PARTITION]  # of text, Spark looks at the rows
        rows = df.selectExpr(*(f"{remedy} AS {attribute.name}" for attribute, remedy in expressions.items()))
        assert [attribute.name for attribute in expressions if not attribute.fits(rows.schema[attribute.name].dataType)] == []
        rows.write.format("noop").mode("overwrite").save()


def test_overwrite_is_refused_with_the_remedy(spark: SparkSession) -> None:
    message = error_of(lambda: save(spark.range(1).selectExpr("'v' value"), SERVERS, "t", mode="overwrite"))
    assert "[KAFKA_INVALID_CONFIG] Save mode Overwrite not allowed for Kafka" in message
    assert '.mode("append")' in message


def test_one_error_names_all_misspelt_options_and_no_secret(spark: SparkSession) -> None:
    options = {"topik": "t", "kafka.acks": "7", "bootstrap.servers": SERVERS, "kafka.sasl.jaas.config": "hunter2"}
    writer = spark.range(1).selectExpr("'v' value").write.format(FORMAT).mode("append").options(**options)
    message = error_of(writer.save)
    for part in (
        "Did you mean 'topic'?",
        "Did you mean 'kafka.bootstrap.servers'?",
        "Invalid value 7 for configuration acks: String must be",
    ):
        assert part in message
    assert "hunter2" not in message


# TOLD BY A TASK


def test_a_null_topic_fails_in_sparks_words(spark: SparkSession, broker: LocalKafka, topic: Topic) -> None:
    df = spark.createDataFrame([(None, "v")], "topic string, value string").coalesce(1)
    message = error_of(lambda: save(df, broker))
    assert (
        "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic."
        " Use the `topic` option for setting a default topic."
        " It is row 0 of this task: topic null, no key, value of 1 bytes (Spark partition 0"
    ) in message
    save(df, broker, topic())


def test_the_error_of_a_partition_that_does_not_exist_has_their_count(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    name = topic(3)
    df = spark.range(1).selectExpr("'v' value", "3 partition")
    message = error_of(lambda: save(df, broker, name, kafka__max__block__ms="1000"))
    assert f"Partition 3 of topic {name} with partition count 3 is not present in metadata after 1000 ms." in message


@pytest.fixture(scope="module")
def strict_broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:  # noqa: ARG001 - fetched first
    """A broker that does not make topics up when they are written to, as most in production do not."""
    with LocalKafka(tmp_path_factory.mktemp("strict"), properties={"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


def test_a_topic_that_does_not_exist_fails_the_planning(spark: SparkSession, strict_broker: LocalKafka) -> None:
    """The write was silent for a minute, in each attempt of each task."""
    df = spark.range(1).selectExpr("'v' value")
    message = error_of(lambda: save(df, strict_broker, "no-such-topic"))
    assert f"topic no-such-topic does not exist at {strict_broker.bootstrap_servers}, and the brokers create none" in message
    assert "KAFKA_UNKNOWN_TOPIC" in conditions(message)
    assert "Spark partition" not in message  # no task has run


def test_a_topic_that_does_not_exist_fails_the_planning_of_a_stream(
    spark: SparkSession, strict_broker: LocalKafka, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path, "value string")
    stream.feed([{"value": "a"}])
    message = error_of(lambda: run(stream.writer(stream.read(), strict_broker, topic="no-such-topic")))
    assert "topic no-such-topic does not exist at" in message
    assert "Spark partition" not in message


def test_a_topic_of_a_row_that_does_not_exist_ends_a_stream(
    spark: SparkSession, strict_broker: LocalKafka, tmp_path: Path
) -> None:
    stream = FileStream(spark, tmp_path, "topic string, value string")
    stream.feed([{"topic": "no-such-topic", "value": "a"}])
    message = error_of(lambda: run(stream.writer(stream.read(), strict_broker, kafka__max__block__ms="1000")))
    assert "Topic no-such-topic not present in metadata after 1000 ms." in message
    assert "of batch 0, attempt 0)" in message


@pytest.mark.timeout(30, func_only=True)  # one wait for seven topics, not one for each of them, or for each chunk
def test_rows_for_topics_that_do_not_exist_are_dead_lettered_after_one_wait(
    spark: SparkSession, strict_broker: LocalKafka, tmp_path: Path
) -> None:
    """Such rows failed the task, as if no broker were there, whatever onInvalidRecord said."""
    for name in ("there", "dead"):
        strict_broker.create_topic(name, 2)
    topic = "case id % 10 when 3 then concat('gone-', id % 70) when 4 then concat('no/topic-', id) else 'there' end topic"
    df = spark.range(30_000, numPartitions=1).selectExpr(topic, "cast(id as string) value")
    report = tmp_path / "report.jsonl"
    options = {"onInvalidRecord": "deadLetter", "deadLetterTopic": "dead", "kafka__max__block__ms": "3000"}
    save(df, strict_broker, reportPath=str(report), **options)
    read = READERS["confluent-kafka"]
    numbers = [sorted(int(r.value or b"") for r in read(strict_broker.bootstrap_servers, name)) for name in ("there", "dead")]
    assert numbers == [[i for i in range(30_000) if (i % 10 in (3, 4)) is dead_lettered] for dead_lettered in (False, True)]
    letter = next(each for each in read(strict_broker.bootstrap_servers, "dead") if each.value == b"3")
    headers = {name.rpartition(".")[2]: value or b"" for name, value in letter.headers}
    assert (headers["topic"], headers["condition"]) == (b"gone-3", b"KAFKA_UNKNOWN_TOPIC")
    assert headers["message"].startswith(b"Topic gone-3 not present in metadata after 3000 ms.")
    assert json.loads(report.read_text())["dead_lettered"] == 6_000


def test_the_option_topic_must_exist_whatever_becomes_of_invalid_rows(spark: SparkSession, strict_broker: LocalKafka) -> None:
    """A misspelt topic would otherwise skip every row."""
    df = spark.range(1).selectExpr("'v' value")
    message = error_of(lambda: save(df, strict_broker, "no-such-topic", onInvalidRecord="skip", kafka__max__block__ms="1000"))
    assert "KAFKA_UNKNOWN_TOPIC" in conditions(message)


@pytest.mark.parametrize("name", ["'a/b'", "''", "repeat('y', 40000)"])
def test_a_name_that_no_topic_can_have_fails_at_once(spark: SparkSession, strict_broker: LocalKafka, name: str) -> None:
    df = spark.range(1).selectExpr(f"{name} topic", "'v' value")
    message = error_of(lambda: save(df, strict_broker, kafka__max__block__ms="600000"))  # longer than a test may take
    assert "[KAFKA_INVALID_TOPIC_EXCEPTION] row 0 of this task: topic " in message


@pytest.mark.timeout(40, func_only=True)  # a second, and the time that Spark takes
def test_an_unreachable_broker_fails_the_write_within_max_block_ms(spark: SparkSession) -> None:
    with socket.socket() as bound_socket:  # bound and not listening: connections are refused
        bound_socket.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{bound_socket.getsockname()[1]}"
        message = error_of(lambda: save(spark.range(1).selectExpr("'v' value"), servers, "t", kafka__max__block__ms="1000"))
    assert "Topic t not present in metadata after 1000 ms." in message
    assert servers in message
    assert "KAFKA_BROKER_UNREACHABLE" in conditions(message)


def test_the_error_of_a_row_above_max_request_size_has_size_and_limit(
    spark: SparkSession, broker: LocalKafka, topic: Topic
) -> None:
    df = spark.range(10, numPartitions=1).selectExpr("repeat('x', if(id = 7, 2000000, 1)) value")
    message = error_of(lambda: save(df, broker, topic()))
    assert "KAFKA_RECORD_TOO_LARGE" in conditions(message)
    assert "max.request.size=1048576" in message
    assert "row 7 of this task: " in message
    assert "no key, value of 2000000 bytes" in message
    assert "(Spark partition 0, attempt 0)" in message


def test_batches_above_the_topics_limit_are_split(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(1, {"max.message.bytes": "10000"})
    save(spark.range(5000, numPartitions=1).selectExpr("concat('value-', id) value"), broker, name)
    assert [record.value for record in read_topic(name)] == [f"value-{i}".encode() for i in range(5000)]


def test_a_failed_write_can_be_repeated_by_the_same_session(
    spark: SparkSession, broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name = topic(2)
    df = spark.range(100, numPartitions=2).selectExpr("cast(id as string) value", "cast(null as int) partition")
    error_of(lambda: save(df.withColumn("partition", F.lit(9)), broker, name, kafka__max__block__ms="500"))
    save(df, broker, name)
    assert len(read_topic(name)) == 100


@pytest.mark.usefixtures("verbose_tracebacks")
def test_no_secret_shows_in_a_traceback_with_locals(spark: SparkSession, broker: LocalKafka) -> None:
    df = spark.createDataFrame([(None, "v")], "topic string, value string")
    message = error_of(lambda: save(df, broker, kafka__sasl__jaas__config="hunter2", kafka__ssl__key__password="hunter2"))
    assert "KAFKA_NULL_TOPIC_IN_DATA" in conditions(message)
    assert "hunter2" not in message
