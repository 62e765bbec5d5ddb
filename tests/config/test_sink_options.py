"""config/sink_options.py: what a Spark user may write, what the options of sink and producer mean together."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest

from spark_kafka_sink import exactly_once_options
from spark_kafka_sink.config.option import options_of
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import BULK_DEFAULTS, SinkOptions


def check(**options: str) -> tuple[SinkOptions, list[str]]:
    """Names with double underscores for dots; bootstrap servers unless given."""
    problems: list[str] = []
    spark_options = {"kafka.bootstrap.servers": "localhost:9092"} | {
        name.replace("__", "."): value for name, value in options.items()
    }
    return SinkOptions.read(spark_options, problems), problems


def test_options_are_found_in_any_case() -> None:
    options, problems = check(TOPIC=" orders ", DeliveryGuarantee="At-Least-Once", KAFKA__Linger__ms="7")
    assert problems == []
    assert (options.topic, options.delivery_guarantee, options.producer.linger_ms) == ("orders", "at-least-once", 7)


def test_bulk_defaults_stand_below_what_the_user_says() -> None:
    options, _ = check()
    assert (options.producer.batch_size, options.producer.linger_ms) == (BULK_DEFAULTS["batch_size"], BULK_DEFAULTS["linger_ms"])
    options, _ = check(kafka__batch__size="16384")
    assert (options.producer.batch_size, options.producer.linger_ms) == (16384, BULK_DEFAULTS["linger_ms"])
    assert ProducerConfig.from_mapping(options.producer.to_mapping()).batch_size == 16384


def test_bulk_defaults_shrink_before_they_contradict_what_the_user_says() -> None:
    options, problems = check(kafka__delivery__timeout__ms="30010", kafka__max__request__size="100000")
    assert problems == []
    assert (options.producer.linger_ms, options.producer.batch_size) == (10, 100_000)
    options, problems = check(kafka__delivery__timeout__ms="30005", kafka__max__request__size="1000")
    assert problems == []
    assert (options.producer.linger_ms, options.producer.batch_size) == (5, 16_384)
    _, problems = check(kafka__delivery__timeout__ms="30004")
    assert problems[0].endswith("it is 30004, they are 5 + 30000")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("topik", "topic"),
        ("deliveryGarantee", "deliveryGuarantee"),
        ("acks", "kafka.acks"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafk.bootstrap.servers", "kafka.bootstrap.servers"),
    ],
)
def test_an_unknown_option_of_the_sink_is_a_problem_that_names_the_nearest(name: str, nearest: str) -> None:
    _, problems = check(**{name: "x"})
    assert len(problems) == 1
    assert problems[0].startswith(f"Unknown option '{name.lower()}'. Did you mean '{nearest}'?")


def test_an_unknown_option_near_to_nothing_lists_the_sinks_own() -> None:
    _, problems = check(zzz="x")
    assert "topic, deliveryGuarantee" in problems[0]


def test_an_unknown_producer_option_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, problems = check(kafka__lingr__ms="3")
    assert problems == []
    assert (
        "Option 'kafka.lingr.ms' is not known to the Kafka producer and has no effect; did you mean 'kafka.linger.ms'?"
        in caplog.text
    )


def test_what_spark_adds_is_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    _, problems = check(checkpointLocation="/c", queryName="q")
    assert problems == []
    assert caplog.records == []


def test_a_warning_is_logged_once_in_a_process(caplog: pytest.LogCaptureFixture) -> None:
    """Spark has the options of a stream checked twice in every micro-batch."""
    for _ in range(3):
        check(kafka__lingr__ms="3", path="p", kafka__acks="1")
    assert len(caplog.records) == 3


@pytest.mark.parametrize("written", ["deadletter", "deadLetter", " DEADLETTER "])
def test_outcomes_are_read_in_any_case(written: str) -> None:
    options, problems = check(onRecordTooLarge=written, onInvalidRecord="Skip", deadLetterTopic="dead")
    assert problems == []
    assert (options.on_record_too_large, options.on_invalid_record) == ("deadLetter", "skip")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"onRecordTooLarge": "deadLetter"}, "onRecordTooLarge=deadLetter needs deadLetterTopic, the topic that such rows go to"),
        ({"onInvalidRecord": "deadletter"}, "onInvalidRecord=deadLetter needs deadLetterTopic, the topic that such rows go to"),
        (
            {"deadLetterTopic": "dead", "onInvalidRecord": "skip"},
            "deadLetterTopic has no effect: set onRecordTooLarge=deadLetter, onInvalidRecord=deadLetter, or both",
        ),
        (
            {"deadLetterTopic": "t", "onInvalidRecord": "deadLetter", "topic": "t"},
            "deadLetterTopic=t is the topic that is written to; name another",
        ),
    ],
)
def test_rows_are_dead_lettered_to_a_topic_of_their_own(options: dict[str, str], problem: str) -> None:
    assert check(**options)[1] == [problem]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"onRecordTooLarge": "drop"},
            "Invalid value drop for configuration onRecordTooLarge: String must be one of (case insensitive):"
            " fail, skip, deadLetter",
        ),
        (
            {"maxBytesPerSecond": "0"},
            "Invalid value 0 for configuration maxBytesPerSecond: Value must be at least 1",
        ),
    ],
)
def test_a_value_out_of_range_is_a_problem_that_names_the_range(options: dict[str, str], problem: str) -> None:
    assert check(**options)[1] == [problem]


def test_options_of_sparks_kafka_source_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """format("kafka") ignores them when it writes, and jobs use one set of options to read and to write."""
    shared = {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false", "kafka.group.id": "g"}
    _, problems = check(**shared)
    assert problems == []
    assert "Option 'startingoffsets' has no effect: it is for reading from Kafka" in caplog.messages
    assert len(caplog.records) == 4


@pytest.mark.parametrize("key", ["group.id", "key.deserializer", "value.deserializer", "session.timeout.ms"])
def test_options_of_consumers_are_warnings_that_propose_nothing_else(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The warning for key.deserializer proposed key.serializer, which the sink rejects."""
    _, problems = check(**{f"kafka.{key}": "x"})
    assert problems == []
    assert caplog.messages == [f"Option 'kafka.{key}' has no effect: it is for reading from Kafka"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "  "}, "for configuration topic: a topic's name is 1 to 249 of the characters"),
        ({"includeTimestamp": "yes"}, "Expected value to be either true or false"),
        ({"maxBytesPerSecond": "10MB"}, "Invalid value 10MB for configuration maxBytesPerSecond: Not a number of type LONG"),
    ],
)
def test_values_that_spark_or_a_user_may_spell_otherwise_are_problems(options: dict[str, str], message: str) -> None:
    (problem,) = check(**options)[1]
    assert message in problem


def test_a_path_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, problems = check(path="x")
    assert problems == []
    assert "Option 'path' has no effect" in caplog.text


def test_serializers_are_refused_in_sparks_words_and_with_a_remedy() -> None:
    """What to do instead was not said: a job from Java has StringSerializer, which is how text is written anyway."""
    _, problems = check(kafka__key__serializer="x", kafka__value__serializer="y")
    assert problems == [
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer. Remove it: a key column"
        " of text or bytes is written as it is, keyFormat=avro encodes other types as Avro, and to_json(key) AS key makes a"
        " struct text",
        "Kafka option 'value.serializer' is not supported as value are serialized with ByteArraySerializer. Remove it: a value"
        " column of text or bytes is written as it is, valueFormat=avro encodes other types as Avro, and to_json(value) AS value"
        " makes a struct text",
    ]


def test_acks_alone_lower_the_guarantee_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    options, problems = check(kafka__acks="1")
    assert problems == []
    assert options.delivery_guarantee == "none"
    assert "kafka.acks=1 lowers the delivery guarantee from at-least-once to none" in caplog.text


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acks_against_an_explicit_guarantee_are_a_problem(acks: str) -> None:
    _, problems = check(deliveryGuarantee="at-least-once", kafka__acks=acks)
    assert problems == [f"deliveryGuarantee=at-least-once needs kafka.acks=all, but kafka.acks={acks}; remove one of the two"]


def test_no_guarantee_takes_any_acks_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    options, problems = check(deliveryGuarantee="none", kafka__acks="0")
    assert problems == []
    assert (options.delivery_guarantee, options.producer.acks) == ("none", 0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


ONCE = {"deliveryGuarantee": "Exactly-Once", "transactionalIdPrefix": "p", "topic": "t"}


def test_exactly_once_takes_a_prefix_and_a_topic() -> None:
    options, problems = check(**ONCE)
    assert problems == []
    assert (options.delivery_guarantee, options.transactional_id_prefix) == ("exactly-once", "p")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"transactionalIdPrefix": None}, "needs transactionalIdPrefix"),
        ({"transactionalIdPrefix": "p" * 1001}, "at most 1000 bytes"),
        ({"transactionalIdPrefix": "a\tb"}, "printable"),
        ({"txnAppId": '"; $(touch /tmp/x) #', "txnVersion": "1"}, "letters, digits, blanks and"),
        ({"topic": None}, "needs markerTopic"),
        ({"topic": None, "markerTopic": "a b"}, "markerTopic"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion"),
        ({"kafka__acks": "1"}, "needs kafka.acks=all"),
        ({"kafka__enable__idempotence": "false"}, "needs kafka.enable.idempotence=true"),
        ({"kafka__retries": "0"}, "needs kafka.retries of at least 1, but kafka.retries=0; remove one of the two"),
        ({"kafka__retries": "9" * 5000}, "Not a number of type INT"),  # more digits than Python reads
        ({"kafka__max__in__flight__requests__per__connection": "9"}, "of at most 5, but kafka.max.in.flight"),
        ({"onNonDeterministicReplay": "skip"}, "fail, keepFirst"),
    ],
)
def test_what_exactly_once_cannot_do_with_is_one_problem(changed: dict[str, str | None], problem: str) -> None:
    _, problems = check(**{name: value for name, value in (ONCE | changed).items() if value is not None})
    assert len(problems) == 1
    assert problem in problems[0]


def test_all_that_exactly_once_cannot_do_with_is_said_at_once_without_contradiction() -> None:
    wrong = {
        "transactionalIdPrefix": " ",
        "txnVersion": "-1",
        "kafka__transactional__id": "t",
        "kafka__acks": "1",
        "kafka__enable__idempotence": "false",
        "kafka__retries": "0",
        "kafka__max__in__flight__requests__per__connection": "9",
    }
    _, problems = check(**(ONCE | wrong))
    assert sorted(name for name in wrong if any(name.replace("__", ".") in each for each in problems)) == sorted(wrong)
    assert len(problems) == 8  # txnVersion without txnAppId, too
    assert not any("enable.idempotence=false." in each for each in problems)


def test_a_wrong_guarantee_hides_no_other_wrong_option_of_exactly_once() -> None:
    _, problems = check(deliveryGuarantee="once", txnAppId="a", transactionalIdPrefix="p" * 1001)
    assert [each.split(" ")[0] for each in problems] == ["Invalid", "Invalid", "txnAppId"]


def test_one_transactional_id_for_all_tasks_is_refused() -> None:
    """The tasks would fence each other."""
    _, problems = check(kafka__transactional__id="t")
    assert len(problems) == 1
    assert "all tasks would fence each other" in problems[0]
    assert "transactionalIdPrefix" in problems[0]


@pytest.mark.parametrize("guarantee", [{}, {"deliveryGuarantee": "at-least-once"}, {"deliveryGuarantee": "none"}])
def test_options_of_exactly_once_are_refused_without_it(guarantee: dict[str, str]) -> None:
    _, problems = check(transactionalIdPrefix="p", allowUnnamedWrite="true", markerTopic="t", **guarantee)
    assert problems == ["transactionalIdPrefix and allowUnnamedWrite and markerTopic are for deliveryGuarantee=exactly-once"]


def test_the_options_of_exactly_once_options_are_all_that_a_write_needs() -> None:
    options, problems = check(topic="t", **exactly_once_options("orders", 7))
    assert problems == []
    assert (options.transactional_id_prefix, options.txn_app_id, options.txn_version) == ("orders", "orders", 7)
    assert options.allow_unnamed_write is False


def test_exactly_once_options_needs_neither_spark_nor_arrow() -> None:
    """A function of foreachBatch imports it, wherever that runs."""
    code = (
        "import sys; from spark_kafka_sink import exactly_once_options; print({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["", "a b", "ä", ".", "..", "x" * 250])
def test_an_impossible_topic_name_is_a_problem(name: str) -> None:
    _, problems = check(topic=name)
    assert "for configuration topic: a topic's name is 1 to 249 of the characters" in problems[0]


def test_all_problems_of_sink_and_producer_come_together() -> None:
    _, problems = check(topik="x", kafka__acks="7", includeHeaders="perhaps", kafka__security__protocol="SASL_SSL")
    assert len(problems) == 4


def test_sink_options_are_picklable_and_show_no_secret() -> None:
    options, _ = check(kafka__sasl__jaas__config="hunter2", topic="t")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hunter2" not in repr(options)


def test_the_sink_takes_plugins_and_hands_their_keys_on() -> None:
    options, problems = check(kafka__partitioner__class="a.B", kafka__interceptor__classes="c.D", kafka__audit__file="f")
    assert problems == []
    task = ProducerConfig.from_mapping(options.producer.to_mapping())
    assert (task.partitioner_class, task.interceptor_classes, task.for_plugins()["audit.file"]) == ("a.B", ("c.D",), "f")
    _, problems = check(kafka__partitioner__class="org.a.B", kafka__interceptor__classes="org.c.D")
    assert [each.split(" is ")[0] for each in problems] == ["partitioner.class=org.a.B", "interceptor.classes=org.c.D"]


def test_a_reference_in_an_option_of_the_sink_is_a_problem() -> None:
    problems: list[str] = []
    options = {"topic": "t", "kafka.bootstrap.servers": "h:1", "kafka.ssl.key.password": "${a:b}", "reportPath": "${env:HOME}/r"}
    SinkOptions.read(options, problems)
    assert [each.partition(" holds")[0] for each in problems] == ["The value of reportPath", "The value of ssl.key.password"]


def test_bulk_defaults_name_options_and_fit_their_checks() -> None:
    rows = options_of(ProducerConfig)
    for attribute, value in BULK_DEFAULTS.items():
        assert rows[attribute].read(value) == value
