"""`send(record, callback)` and `send(topic, value, key=…)`: two forms of one call, and clear errors for what is neither.

ProducerRecord had to be found in a module that no document named; `producer.send("orders", b"v", key=b"k")`, which other clients
for Python take, was a bare TypeError.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

import spark_kafka_sink
from spark_kafka_sink import errors
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord, RecordMetadata
from tests.fakes.fake_broker import FakeBroker

WAIT_MS = 30_000
WAIT_S = 30.0


def test_a_record_may_be_sent_by_its_fields(broker: FakeBroker, producer: KafkaProducer) -> None:
    heard: list[RecordMetadata | None] = []
    future = producer.send(
        "orders",
        b"v",
        key=b"k",
        partition=3,
        headers=[("h", b"1")],
        timestamp=77,
        callback=lambda metadata, _: heard.append(metadata),
    )
    producer.flush(WAIT_MS)  # callbacks have been called when it returns
    metadata = future.result(0)
    assert (metadata.topic, metadata.partition, metadata.timestamp) == ("orders", 3, 77)
    assert heard == [metadata]
    (record,) = broker.records("orders", 3)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))


def test_each_field_but_the_topic_may_be_left_out(broker: FakeBroker, producer: KafkaProducer) -> None:
    producer.send("orders", partition=0)
    producer.send("orders", None, partition=0)
    producer.send("orders", value="text", partition=0)
    producer.send(topic="orders", value=b"named", partition=0)
    producer.flush(WAIT_MS)
    assert broker.values("orders") == [None, None, b"text", b"named"]


def test_a_records_callback_may_stand_second_or_be_named(producer: KafkaProducer) -> None:
    heard: list[tuple[RecordMetadata | None, KafkaError | None]] = []

    def hear(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        heard.append((metadata, error))

    record = ProducerRecord("orders", b"v")
    producer.send(record, hear)
    producer.send(record, callback=hear)
    producer.send(record, None)
    producer.send(record=record, callback=hear)
    producer.flush(WAIT_MS)
    assert [error for _, error in heard] == [None] * 3


def test_both_forms_keep_their_common_order(broker: FakeBroker, producer: KafkaProducer) -> None:
    for number in range(0, 20, 2):
        producer.send(ProducerRecord("orders", b"%d" % number, partition=0))
        producer.send("orders", b"%d" % (number + 1), partition=0)
    producer.flush(WAIT_MS)
    assert broker.values("orders", 0) == [b"%d" % number for number in range(20)]


def test_a_subclass_of_record_is_a_record(broker: FakeBroker, producer: KafkaProducer) -> None:
    class Order(ProducerRecord):
        pass

    heard: list[object] = []
    producer.send(Order("orders", b"v"), lambda *outcome: heard.append(outcome))
    producer.flush(WAIT_MS)
    assert broker.values("orders") == [b"v"]
    assert len(heard) == 1


RECORD = ProducerRecord("orders", b"v")
WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "nothing": ((), {}, "needs a ProducerRecord or the name of a topic first, not NoneType"),
    "a number": ((5,), {}, "needs a ProducerRecord or the name of a topic first, not int"),
    "a number and a callback": ((5, print), {}, "needs a ProducerRecord or the name of a topic first, not int"),
    "bytes for a topic": ((b"orders", b"v"), {}, "needs a ProducerRecord or the name of a topic first, not bytes"),
    "value beside a record": ((RECORD, b"v"), {}, r"with a ProducerRecord send\(\) takes only a callback, not bytes"),
    "value named beside a record": ((RECORD,), {"value": b"v"}, r"with a ProducerRecord send\(\) takes only a callback"),
    "key beside a record": ((RECORD,), {"key": b"k"}, "key cannot be given with a ProducerRecord"),
    "several beside a record": ((RECORD,), {"key": b"k", "partition": 1}, "key, partition cannot be given with a ProducerRecord"),
    "topic beside a record": ((RECORD,), {"topic": "orders"}, "topic cannot be given with a ProducerRecord"),
    "two callbacks": ((RECORD, print, print), {}, "two arguments after a ProducerRecord"),
    "callback twice": ((RECORD, print), {"callback": print}, "two arguments after a ProducerRecord"),
    "callback of another type": ((RECORD,), {"callback": 5}, "takes only a callback, not int"),
    "callback of another type beside a topic": (("orders",), {"callback": 5}, "callback must be callable, not int"),
    "key by its place": (("orders", b"v", b"k"), {}, "callback must be callable, not bytes; use .*key=…"),
    "topic twice": (("orders", b"v"), {"topic": "orders"}, "two topics"),
    "topic and record": ((), {"record": RECORD, "topic": "orders"}, "topic cannot be given with a ProducerRecord"),
    "value twice": (("orders", b"v"), {"value": b"v"}, "multiple values"),
    "timestamp_ms": (("orders", b"v"), {"timestamp_ms": 5}, r"send\(\) has no argument timestamp_ms; .*timestamp"),
    "a misspelt one": (("orders", b"v"), {"kye": b"k"}, r"send\(\) has no argument kye; .*key"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arguments_of_no_form_of_send_raise_with_what_is_wrong(broker: FakeBroker, producer: KafkaProducer, wrong: str) -> None:
    arguments, keywords, text = WRONG[wrong]
    with pytest.raises(TypeError, match=text):
        producer.send(*arguments, **keywords)
    producer.flush(WAIT_MS)
    assert broker.values("orders") == []


def test_interceptors_see_records_that_are_sent_by_their_fields(broker: FakeBroker) -> None:
    class Upper:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord(record.topic, record.value.upper(), record.key)

    heard: list[object] = []
    options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [Upper()]}
    with KafkaProducer(options) as producer:
        producer.send("orders", b"v", callback=lambda *outcome: heard.append(outcome))
        producer.send(ProducerRecord("orders", b"w"), lambda *outcome: heard.append(outcome))
    assert sorted(filter(None, broker.values("orders"))) == [b"V", b"W"]
    assert len(heard) == 2


@pytest.mark.parametrize("wrong", WRONG)
def test_interceptors_do_not_see_what_is_neither_form(broker: FakeBroker, wrong: str) -> None:
    class Spy:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise AssertionError(record)

    arguments, keywords, text = WRONG[wrong]
    options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [Spy()]}
    with KafkaProducer(options) as producer, pytest.raises(TypeError, match=text):
        producer.send(*arguments, **keywords)


def test_a_topic_of_a_subclass_of_str_is_a_topic(broker: FakeBroker, producer: KafkaProducer) -> None:
    class Topic(str):
        __slots__ = ()

    producer.send(Topic("orders"), b"v")
    producer.flush(WAIT_MS)
    assert broker.values("orders") == [b"v"]


# THE PACKAGE'S NAMES


def test_what_a_user_of_the_producer_needs_comes_from_the_package() -> None:
    own = ("KafkaProducer", "ProducerRecord", "RecordMetadata", "Delivery", "RecordFuture", "SerializationError")
    for name in (*own, "ConsumerGroupMetadata", "OffsetAndMetadata", "TopicPartition"):
        assert name in spark_kafka_sink.__all__
        assert getattr(spark_kafka_sink, name).__name__ == name


def test_every_error_comes_from_the_package() -> None:
    declared = {
        name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, KafkaError) and name[0] != "_"
    }
    assert declared <= set(spark_kafka_sink.__all__)
    assert all(getattr(spark_kafka_sink, name) is getattr(errors, name) for name in declared)


def test_the_package_loads_nothing_before_a_name_is_asked_for() -> None:
    script = (
        "import sys, spark_kafka_sink; print(sorted(name for name in sys.modules if name.startswith('spark_kafka_sink.')));"
        "from spark_kafka_sink import ProducerRecord, KafkaTimeoutError; print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_a_record_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(RECORD)) == RECORD
