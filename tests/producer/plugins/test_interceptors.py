"""Interceptors: what they see and may change, what they hear, and that their failures harm no row.

First the chain by itself, then KafkaProducer with a chain over sockets against FakeBroker.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import (
    AbortableTransactionError,
    BrokerError,
    ConfigError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    SchemaError,
)
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.plugins.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import (
    BatchMetadata,
    Callback,
    ProducerColumns,
    ProducerRecord,
    RecordDetails,
    RecordMetadata,
)
from spark_kafka_sink.producer.sender.sender import Sender
from spark_kafka_sink.producer.serializers import SerializationError
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle
from spark_kafka_sink.producer.single_records.record_gatherer import RecordGatherer
from spark_kafka_sink.producer.topic_rows import TopicRows
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.records.columns import RecordColumns
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import config
from tests.producer.interrupting import Interrupts
from tests.sink.columns import not_utf8

HERE = __name__
WAIT_MS = 30_000
WAIT_S = 30.0


class Life:
    """Counts configure and close."""

    def __init__(self) -> None:
        self.config: Mapping[str, object] = {}
        self.configured = self.closed = 0

    def configure(self, configuration: Mapping[str, object]) -> None:
        self.config = configuration
        self.configured += 1

    def close(self) -> None:
        self.closed += 1


class Appends(Life):
    """Appends a text to each value, in columns, and notes what it hears. `fails` names the methods that raise."""

    def __init__(self, text: str = "", fails: str = "") -> None:
        super().__init__()
        self.text = text
        self.fails = fails
        self.inputs: list[ProducerColumns] = []
        self.heard: list[tuple[BatchMetadata, Exception | None]] = []

    def on_send_columns(self, columns: ProducerColumns) -> ProducerColumns:
        self.inputs.append(columns)
        if "on_send" in self.fails:
            raise ZeroDivisionError("as planned")
        text = pa.scalar(self.text.encode(), columns.value.type)
        empty = pa.scalar(b"", columns.value.type)
        return replace(columns, value=pc.binary_join_element_wise(columns.value, text, empty))

    def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))
        if "on_acknowledgement" in self.fails:
            raise ZeroDivisionError("as planned")


class AppendsToRecords(Life):
    """The same, record by record."""

    def __init__(self, text: str = "", fails: str = "") -> None:
        super().__init__()
        self.text = text
        self.fails = fails
        self.inputs: list[ProducerRecord] = []
        self.heard: list[tuple[RecordMetadata, Exception | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.inputs.append(record)
        if "on_send" in self.fails:
            raise ZeroDivisionError("as planned")
        text = self.text if isinstance(record.value, str) else self.text.encode()
        return replace(record, value=record.value + text)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))
        if "on_acknowledgement" in self.fails:
            raise ZeroDivisionError("as planned")


class Changing:
    """Applies a function to whatever it sees."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def on_send_columns(self, columns: ProducerColumns) -> Any:
        return self._change(columns)


class ChangingRecords:
    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change

    def on_send(self, record: ProducerRecord) -> Any:
        return self._change(record)


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def chain(*interceptors: object) -> Interceptors:
    return Interceptors(config(interceptor_classes=list(interceptors)))


def through(*interceptors: object, **columns: Any) -> ProducerColumns:
    """What is sent of columns that pass a chain."""
    outputs: list[ProducerColumns] = []
    producer_columns = ProducerColumns(**({"topic": "t"} | columns))
    chain(*interceptors).send_columns(producer_columns, lambda output, _: outputs.append(output))
    return outputs[0]


def values(columns: ProducerColumns) -> list[bytes | None]:
    assert columns.value is not None
    return columns.value.to_pylist()


# THE CHAIN: COLUMNS


@pytest.mark.parametrize("kind", [Appends, AppendsToRecords])
def test_columns_pass_the_interceptors_in_their_order(kind: Any) -> None:
    output = through(kind("1"), kind("2"), value=binary(b"a", b"b"), key=binary(b"k", None))
    assert values(output) == [b"a12", b"b12"]
    assert output.key is not None
    assert (output.topic, output.key.to_pylist()) == ("t", [b"k", None])


def test_values_in_pieces_are_one_array_to_interceptors() -> None:
    def is_one_array(columns: ProducerColumns) -> ProducerColumns:
        return replace(columns, value=binary(b"yes" if isinstance(columns.value, pa.Array) else b"no", b""))

    assert values(through(Changing(is_one_array), value=pa.chunked_array([[b"a"], [b"b"]]))) == [b"yes", b""]


@pytest.mark.parametrize("kind", [Appends, AppendsToRecords])
def test_a_failing_interceptor_is_skipped_and_the_next_gets_the_last_good_columns(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(through(kind("1"), kind("2", fails="on_send"), kind("3"), value=binary(b"a", b"b"))) == [b"a13", b"b13"]
    assert f"{HERE}.{kind.__name__}.on_send" in caplog.text
    assert "ZeroDivisionError: as planned" in caplog.text
    assert len(caplog.records) == 1
    assert values(through(kind("1", fails="on_send"), kind("2", fails="on_send"), value=binary(b"a"))) == [b"a"]


def test_interceptors_of_both_kinds_make_one_chain() -> None:
    assert values(through(Appends("1"), AppendsToRecords("2"), Appends("3"), value=binary(b"a"))) == [b"a123"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "TypeError: returned NoneType, not ProducerColumns"),
        (ProducerColumns("t", value=binary(b"a")), "returned columns of {'value': 1} rows for 2 rows"),
        (ProducerColumns("t", value=binary(b"a", b"b"), key=binary(b"a")), "returned columns of"),
        (ProducerColumns("t"), "returned columns of {} rows for 2 rows"),
        (ProducerColumns(pa.array(["t"] * 3), value=binary(b"a", b"b")), "returned columns of"),
    ],
)
def test_as_many_rows_must_come_out_as_went_in(answer: object, message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert values(through(Changing(lambda _: answer), value=binary(b"a", b"b"))) == [b"a", b"b"]
    assert message in caplog.text


def test_every_column_may_change_and_the_topic_too() -> None:
    changed = ProducerColumns(
        pa.array(["x", "y"]),
        value=binary(None, b"v"),
        key=binary(b"k", None),
        partition=pa.array([1, None], pa.int32()),
        headers=pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary())),
        timestamp=pa.array([5, None], pa.int64()),
    )
    assert through(Changing(lambda _: changed), value=binary(b"a", b"b")) is changed


def test_records_made_of_columns_have_all_of_a_row_and_become_one_again() -> None:
    instance = AppendsToRecords()
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None]
    columns = {
        "topic": pa.array(["t", "u"]),
        "value": pa.array(["a", "b"]),
        "key": pa.array([b"k", None], pa.binary()),
        "partition": pa.array([3, None], pa.int32()),
        "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        "timestamp": pa.array([5, None], pa.int64()),
    }
    output = through(instance, **columns)
    assert instance.inputs == [
        ProducerRecord("t", "a", b"k", 3, (("h", b"1"), ("h", None)), 5),
        ProducerRecord("u", "b", None, None, (), None),
    ]
    assert output.headers is not None
    assert output.headers.to_pylist() == [[("h", b"1"), ("h", None)], []]
    assert [each.to_pylist() for each in (output.topic, output.value, output.key, output.partition, output.timestamp)] == [
        ["t", "u"],
        [b"a", b"b"],
        [b"k", None],
        [3, None],
        [5, None],
    ]


@pytest.mark.parametrize("kind", ["list", "large_list", "map"])
def test_text_that_is_not_utf8_passes_as_it_is(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Spark's cast(binary AS string) does not check. One such key ended the call in UnicodeDecodeError."""
    keys, items = not_utf8(b"\xff", b"h"), pa.array([b"1", b"2"])
    headers = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, items)
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    column = headers if kind == "map" else headers.cast(pa.list_(entry) if kind == "list" else pa.large_list(entry))
    instance = AppendsToRecords("!")
    columns = {"value": not_utf8(b"\x80", b"v"), "key": not_utf8(b"\xff\xfe\x80", b"k"), "headers": column}
    output = through(instance, topic=not_utf8(b"t", b"t\xff"), **columns)
    assert [(each.topic, each.key) for each in instance.inputs] == [("t", b"\xff\xfe\x80"), (r"t\xff", "k")]
    assert values(output) == [b"\x80!", b"v!"]
    assert output.headers is not None
    assert output.headers.type == pa.map_(pa.string(), pa.binary())
    assert output.headers.cast(pa.map_(pa.binary(), pa.binary())).to_pylist() == [[(b"\xff", b"1")], [(b"h", b"2")]]
    assert caplog.records == []


def test_interceptors_hear_of_rows_of_an_impossible_topic() -> None:
    instance = Appends()

    def refuse(*_: object) -> None:
        raise KafkaError("no such topic")

    with pytest.raises(KafkaError, match="no such topic"):
        chain(instance).send_columns(ProducerColumns(not_utf8(b"t", b"\xff"), value=binary(b"a", b"b")), refuse)
    assert sorted((metadata.topic, metadata.rows) for metadata, _ in instance.heard) == [(r"\xff", 1), ("t", 1)]


def test_a_record_may_change_its_topic_and_lose_everything_else() -> None:
    output = through(
        ChangingRecords(lambda record: ProducerRecord("u" if record.value == b"a" else record.topic)),
        value=binary(b"a", b"b"),
        key=binary(b"k", b"k"),
    )
    assert output.topic.to_pylist() == ["u", "t"]
    assert (values(output), output.key, output.headers) == ([None, None], None, None)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "text",
        ProducerRecord("t", 5.0),
        ProducerRecord("t", b"x", partition="1"),
        ProducerRecord("t", b"x", timestamp=2.5),
        ProducerRecord(7, b"x"),
        ProducerRecord("t", b"x", headers=[(None, b"")]),
        ProducerRecord("t", b"x", timestamp=2**70),
    ],
)
def test_a_record_that_is_none_leaves_the_row_as_it_was(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    output = through(ChangingRecords(lambda _: answer), value=pa.array(["a", "b"]), key=binary(b"k", None))
    assert pc.equal(output.value.cast(pa.string()), pa.array(["a", "b"])).to_pylist() == [True, True]
    assert output.key.to_pylist() == [b"k", None]
    assert "ChangingRecords.on_send failed for" in caplog.text


def test_one_bad_record_is_passed_over_alone_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def change(record: ProducerRecord) -> ProducerRecord:
        if record.value in (b"b", b"c"):
            record.value = b"half-way"
            raise ZeroDivisionError
        return replace(record, value=b"new")

    assert values(through(ChangingRecords(change), value=binary(b"a", b"b", b"c"))) == [b"new", b"b", b"c"]
    assert [record.getMessage() for record in caplog.records] == [
        f"! {HERE}.ChangingRecords.on_send failed for 2 records; the first:"
    ]


def test_what_is_wrong_with_a_callers_columns_is_left_to_the_producer_to_tell() -> None:
    assert through(AppendsToRecords(), value=pa.array([1, 2])).value.to_pylist() == [1, 2]
    nulls = pa.array([None, "t"], pa.string())
    assert through(AppendsToRecords(), topic=nulls, value=binary(b"a", b"b")).topic.to_pylist() == [None, "t"]


# THE CHAIN: WHAT IT HEARS


def test_interceptors_hear_of_a_failure_even_when_one_before_them_raises(caplog: pytest.LogCaptureFixture) -> None:
    plugins = [kind(fails=fails) for fails in ("on_acknowledgement", "") for kind in (Appends, AppendsToRecords)]
    chain(*plugins).report_failure("t", 1, 3, ValueError("Test"))
    assert [len(plugin.heard) for plugin in plugins] == [1, 3, 1, 3]
    assert len(caplog.records) == 2


def test_interceptors_hear_what_is_known_of_a_failure_and_each_records_own_error() -> None:
    columns, records = Appends(), AppendsToRecords()
    error, own = ValueError("all"), ValueError("own")
    chain(columns, records).report_failure("t", -1, 2, error, {1: own})
    assert columns.heard == [(BatchMetadata("t", -1, -1, 2, -1), error)]
    assert records.heard == [(RecordMetadata("t", -1, -1, -1, -1, -1), error), (RecordMetadata("t", -1, -1, -1, -1, -1), own)]


def test_an_interceptor_that_hears_batches_hears_no_records() -> None:
    class Both(Appends):
        def on_acknowledgement(self, *_: object) -> None:
            raise AssertionError("told")

    instance = Both()
    chain(instance).report_failure("t", 0, 2, ValueError())
    assert len(instance.heard) == 1


def gathered(callback: Callback, *interceptors: object) -> RecordBundle:
    """Three records, of two partitions."""
    bundle = RecordBundle("t", Cluster(), ManualClock(), chain(*interceptors))
    for partition in (0, 1, 1):
        bundle.add(None, b"v", callback, 10, RecordDetails(partition=partition))
    bundle.seal()
    return bundle


EVERY_ROW = np.arange(3, dtype=np.int32)


def test_interceptors_hear_once_of_records_in_no_batch_while_the_producer_ends() -> None:
    """Forced close in one thread, a refused bundle in another: both told the interceptors of the same records."""

    class Ending(Appends):
        def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
            super().on_batch_acknowledgement(metadata, error)
            if len(self.heard) == 1:
                sender = threading.Thread(target=bundle.fail_all, args=[KafkaError("ended")], daemon=True)
                sender.start()
                sender.join(WAIT_S)

    instance, called_back = Ending(), Mock()
    bundle = gathered(called_back, instance)
    bundle.fail_unbatched(EVERY_ROW[:2], KafkaError("refused"))
    assert Counter((str(error), metadata.partition, metadata.rows) for metadata, error in instance.heard) == {
        ("[KAFKA_ERROR] refused", 0, 1): 1,
        ("[KAFKA_ERROR] refused", 1, 1): 1,
        ("[KAFKA_ERROR] ended", 1, 1): 1,
    }
    assert sorted(str(call.args[1]) for call in called_back.call_args_list) == [
        "[KAFKA_ERROR] ended",
        "[KAFKA_ERROR] refused",
        "[KAFKA_ERROR] refused",
    ]


def rows_heard_of(*at: int) -> tuple[Interrupts, int]:
    """A call fails three records, interrupted at these points; then the producer ends. Of how many do interceptors hear?"""
    instance, called_back = Appends(), Mock()
    bundle = gathered(called_back, instance)
    with suppress(KeyboardInterrupt), Interrupts(*at) as interrupts:
        bundle.fail_unbatched(EVERY_ROW, KafkaError("refused"))
    bundle.fail_all(KafkaError("ended"))
    assert called_back.call_count == 3
    return interrupts, sum(metadata.rows for metadata, _ in instance.heard)


def test_interceptors_hear_nothing_twice_wherever_an_interrupt_comes() -> None:
    """After an interrupt the producer's end told them of all records of the bundle once more."""
    rows_heard_of()  # as Interrupts says
    interrupts, heard = rows_heard_of()
    assert heard == rows_heard_of(0)[1] == rows_heard_of(interrupts.points - 1)[1] == 3
    for at in range(interrupts.points):
        interrupted, heard = rows_heard_of(at)
        assert heard <= 3, interrupted.where


# THE CHAIN: LIFE


def test_interceptors_are_configured_once_with_the_configuration_and_closed_once() -> None:
    instance = Appends()
    interceptors = Interceptors(config(interceptor_classes=[instance], linger_ms="7", audit_name="x"))
    assert (instance.configured, instance.closed) == (1, 0)
    assert {name: instance.config[name] for name in ("linger.ms", "audit.name")} == {"linger.ms": 7, "audit.name": "x"}
    assert interceptors is not None
    interceptors.close()
    assert (instance.configured, instance.closed) == (1, 1)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (
            ZeroDivisionError("as planned"),
            pytest.raises(ConfigError, match=r"Failing.configure failed: ZeroDivisionError: as"),
        ),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
    ids=["an error", "Ctrl-C"],
)
def test_a_failing_configure_closes_all_that_were_made(error: BaseException, raised: AbstractContextManager[object]) -> None:
    class Failing(Appends):
        def configure(self, configuration: Mapping[str, object]) -> None:
            super().configure(configuration)
            raise error

    plugins = [Appends(), AppendsToRecords(), Failing(), Appends()]
    with raised:
        chain(*plugins)
    assert [(plugin.configured, plugin.closed) for plugin in plugins] == [(1, 1), (1, 1), (1, 1), (0, 0)]


@pytest.mark.parametrize(
    ("interceptor", "message"),
    [
        ("no_such_module.Mine", "interceptor.classes=no_such_module.Mine cannot be loaded: there is no module no_such_module"),
        (Changing, f"interceptor.classes={HERE}.Changing: an instance cannot be created without arguments"),
        (Life, f"interceptor.classes={HERE}.Life has none of the methods on_send, on_send_columns, on_acknowledgement,"),
    ],
)
def test_an_interceptor_that_cannot_be_had_is_a_configuration_error(interceptor: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        chain(interceptor)
    assert message in raised.value.message


@pytest.mark.parametrize("error", [SystemExit(1), ZeroDivisionError("as planned")], ids=lambda error: type(error).__name__)
def test_a_plug_in_that_cannot_close_leaves_none_open(error: BaseException) -> None:
    class Failing(Appends):
        def close(self) -> None:
            super().close()
            raise error

    class Chooses(Life):
        def partition_columns(self, columns: object, cluster: object) -> None: ...

    interceptors, partitioner = [Appends(), Failing(), Appends()], Chooses()
    plugins = ProducerPlugins(config(interceptor_classes=interceptors, partitioner_class=partitioner))
    with pytest.raises(SystemExit) if isinstance(error, SystemExit) else nullcontext():
        plugins.close()
    assert [plugin.closed for plugin in (*interceptors, partitioner)] == [1, 1, 1, 1]


def test_no_interceptors_make_no_chain() -> None:
    assert ProducerPlugins(config(interceptor_classes="")).interceptors is None


# KAFKAPRODUCER


def producer_of(broker: FakeBroker, *interceptors: object, **options: Any) -> KafkaProducer:
    all_options = {"bootstrap_servers": broker.bootstrap_servers, "retry_backoff_ms": 10} | options
    plugins = {"interceptor.classes": list(interceptors)}
    return KafkaProducer({name.replace("_", "."): value for name, value in all_options.items()} | plugins)


def test_an_interceptor_by_name_lives_as_long_as_its_producer(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Appends] = []
    registered = type("Registered", (Appends,), {"configure": lambda self, _: made.append(self)})
    monkeypatch.setattr(sys.modules[HERE], "Registered", registered, raising=False)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": f"{HERE}.Registered"}) as producer:
        producer.send_columns("single", value=binary(b"a")).result(WAIT_MS)
        assert made[0].closed == 0
    producer.close()
    assert [each.closed for each in made] == [1]


def test_a_constructor_that_fails_for_an_interceptor_leaves_nothing_behind(broker: FakeBroker) -> None:
    before, first = threading.active_count(), Appends()
    with pytest.raises(ConfigError, match="no_such_module"):
        producer_of(broker, first, "no_such_module.Mine")
    assert threading.active_count() == before
    assert (first.configured, first.closed) == (1, 1)


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_interrupt_while_the_thread_starts_closes_everything_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_begun: bool
) -> None:
    """The constructor closed interceptors and sockets under the Sender, which ran already and then closed them again."""
    start, run, runs, goes_on = threading.Thread.start, Sender.run, threading.Event(), threading.Event()
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        started.append(thread)
        if has_begun:
            start(thread)
            assert runs.wait(WAIT_S)
        raise KeyboardInterrupt

    def run_slowly(sender: Sender) -> None:
        runs.set()
        assert goes_on.wait(WAIT_S)
        run(sender)

    interceptor = Appends()
    monkeypatch.setattr(Sender, "run", run_slowly)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer_of(broker, interceptor)
    assert interceptor.closed == (0 if has_begun else 1)
    goes_on.set()
    (thread,) = started
    if not has_begun:
        start(thread)  # its first line comes after the interrupt
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert interceptor.closed == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_interceptors_see_the_generated_client_id(broker: FakeBroker) -> None:
    instance = Appends()
    with producer_of(broker, instance) as producer:
        assert instance.config["client.id"] == producer.client_id


@pytest.mark.parametrize("kind", [Appends, AppendsToRecords])
def test_what_interceptors_make_of_columns_is_what_arrives(broker: FakeBroker, kind: Any) -> None:
    with producer_of(broker, kind("1"), kind("2")) as producer:
        producer.send_columns("single", value=binary(b"a", b"b"), key=binary(None, b"k")).result(WAIT_MS)
    assert [(record.key, record.value) for record in broker.records("single")] == [(None, b"a12"), (b"k", b"b12")]


def test_columns_may_be_sent_to_another_topic(broker: FakeBroker) -> None:
    with producer_of(broker, Changing(lambda columns: replace(columns, topic=pa.array(["single", "other"])))) as producer:
        producer.send_columns("gone", value=binary(b"a", b"b"), partition=pa.array([0, 0], pa.int32())).result(WAIT_MS)
    assert (broker.values("single"), broker.values("other", 0)) == ([b"a"], [b"b"])


def test_the_chain_hears_where_rows_are_before_the_caller_does(broker: FakeBroker) -> None:
    instance = Appends()
    with producer_of(broker, instance, linger_ms=0) as producer:
        for _ in range(2):
            partition = pa.array([0, 3, 3], pa.int32())
            producer.send_columns("orders", value=binary(b"a", b"b", b"c"), partition=partition).result(WAIT_MS)
        heard = instance.heard[:]
    assert {metadata for metadata, error in heard if error is None} == {
        BatchMetadata("orders", 0, 0, 1, -1),
        BatchMetadata("orders", 0, 1, 1, -1),
        BatchMetadata("orders", 3, 0, 2, -1),
        BatchMetadata("orders", 3, 2, 2, -1),
    }
    assert len(heard) == 4


def test_an_interceptor_of_records_hears_of_each_row_of_a_column_call(broker: FakeBroker) -> None:
    instance = AppendsToRecords("!")
    with producer_of(broker, instance) as producer:
        producer.send_columns(
            pa.array(["single", "other", "single"]),
            value=binary(b"a", b"bb", b"ccc"),
            key=binary(b"k", None, None),
            partition=pa.array([0, 1, 0], pa.int32()),
            timestamp=pa.array([1, 2, 3], pa.int64()),
        ).result(WAIT_MS)
    assert {metadata for metadata, error in instance.heard if error is None} == {
        RecordMetadata("single", 0, 0, 1, 1, 2),
        RecordMetadata("other", 1, 0, 2, -1, 3),
        RecordMetadata("single", 0, 1, 3, -1, 4),
    }
    assert len(instance.heard) == 3


def test_interceptors_hear_the_partition_of_rows_that_the_broker_rejects(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    with producer_of(broker, columns, records) as producer:
        broker.fail_next(ApiKey.PRODUCE, Errors.INVALID_RECORD)
        with pytest.raises(BrokerError, match="KAFKA_INVALID_RECORD"):
            producer.send_columns("single", value=binary(b"a", b"b")).result(WAIT_MS)
    ((batch, error),) = columns.heard
    assert batch == BatchMetadata("single", 0, -1, 2, -1)
    assert isinstance(error, BrokerError)
    assert [metadata for metadata, _ in records.heard] == [RecordMetadata("single", 0, -1, -1, -1, -1)] * 2


def test_interceptors_hear_of_each_row_of_a_split_batch_once(broker: FakeBroker) -> None:
    instance = AppendsToRecords()
    with producer_of(broker, instance, linger_ms=0) as producer:
        broker.fail_next(ApiKey.PRODUCE, Errors.MESSAGE_TOO_LARGE)
        producer.send_columns("single", value=binary(*[bytes(100)] * 50)).result(WAIT_MS)
    assert [metadata.offset for metadata, _ in instance.heard] == list(range(50))


@pytest.mark.parametrize(
    ("topic", "options", "condition"),
    [
        ("gone", {"max_block_ms": 500}, "KAFKA_UNKNOWN_TOPIC"),
        ("single", {"max_request_size": 10}, "KAFKA_RECORD_TOO_LARGE"),
        ("a topic", {"max_block_ms": 50}, None),
    ],
)
def test_interceptors_hear_once_of_rows_that_fail_before_they_are_queued(
    broker: FakeBroker, topic: str, options: dict[str, int], condition: str | None
) -> None:
    columns, records = Appends(), AppendsToRecords()
    with producer_of(broker, columns, records, **options) as producer:
        with pytest.raises(KafkaError) as raised:
            producer.send_columns(topic, value=binary(b"a", b"b"))
        assert condition in (None, raised.value.condition)
    assert columns.heard == [(BatchMetadata(topic, -1, -1, 2, -1), raised.value)]
    assert records.heard == [(RecordMetadata(topic, -1, -1, -1, -1, -1), raised.value)] * 2


def test_interceptors_hear_by_topic_of_rows_of_many_topics_that_fail(broker: FakeBroker) -> None:
    instance = Appends()
    unknown = pytest.raises(KafkaError, match="gone not present in metadata")
    with producer_of(broker, instance, max_block_ms=50) as producer, unknown:
        producer.send_columns(pa.array(["single", "gone", "single"]), value=binary(b"a", b"b", b"c"))
    assert Counter({metadata.topic: metadata.rows for metadata, _ in instance.heard}) == {"single": 2, "gone": 1}


def test_rows_without_a_topic_reach_no_interceptor(broker: FakeBroker) -> None:
    """As in Java, where there is no such record."""
    instance = Appends()
    null = pytest.raises(InvalidRecordError, match="row 1 of this chunk has a null topic: fill it in")
    with producer_of(broker, instance) as producer, null:
        producer.send_columns(pa.array(["single", None]), value=binary(b"a", b"b"))
    assert instance.heard == []


def test_interceptors_hear_once_of_each_row_when_half_were_queued(broker: FakeBroker) -> None:
    """Memory runs out after some slices: those are sent, the rest is given up, and the chain hears of all rows."""
    instance = Appends()
    row = bytes(3_000)
    rows = 2_000  # three slices
    with producer_of(broker, instance, buffer_memory=3_000_000, max_block_ms=100, batch_size=100_000) as producer:
        producer._parts.metadata_wait.max_block_ms = WAIT_MS  # a busy machine takes longer than 100 ms for it
        producer.partitions_for("single")
        release = broker.hold_next(ApiKey.PRODUCE, times=5)
        with pytest.raises(KafkaTimeoutError, match="KAFKA_BUFFER_EXHAUSTED"):
            producer.send_columns("single", value=binary(*[row] * rows))
        release.set()
    assert 0 < len(broker.records("single")) < rows
    assert sum(metadata.rows for metadata, error in instance.heard if error is None) == len(broker.records("single"))
    assert sum(metadata.rows for metadata, _ in instance.heard) == rows


def test_interceptors_hear_the_schema_error_of_wrong_columns(broker: FakeBroker) -> None:
    instance = Appends(fails="on_send")
    with producer_of(broker, instance) as producer, pytest.raises(SchemaError, match="column value has type int64"):
        producer.send_columns("single", value=pa.array([1, 2]))
    assert [(metadata.rows, type(error)) for metadata, error in instance.heard] == [(2, SchemaError)]


# KAFKAPRODUCER: SINGLE RECORDS


def test_a_record_passes_before_it_is_serialized(broker: FakeBroker) -> None:
    instance = AppendsToRecords("!")
    with producer_of(broker, instance, value_serializer="string") as producer:
        future = producer.send(ProducerRecord("single", "a", key=b"k"))
        producer.flush(WAIT_MS)
        assert future.result(0).serialized_value_size == 2
    assert instance.inputs == [ProducerRecord("single", "a", key=b"k")]
    assert broker.values("single") == [b"a!"]
    assert instance.heard == [(future.result(0), None)]


def test_a_record_may_be_replaced_by_one_for_another_topic(broker: FakeBroker) -> None:
    with producer_of(broker, ChangingRecords(lambda record: replace(record, topic="other", partition=1))) as producer:
        future = producer.send(ProducerRecord("gone", b"a"))
        producer.flush(WAIT_MS)
        assert future.result(0)[:2] == ("other", 1)


def test_an_interceptor_that_fails_for_a_record_is_passed_over(broker: FakeBroker) -> None:
    def spoil(record: ProducerRecord) -> None:
        record.value = b"half-way"

    with producer_of(broker, AppendsToRecords("1"), ChangingRecords(spoil), AppendsToRecords("2")) as producer:
        producer.send(ProducerRecord("single", b"a"))
    assert broker.values("single") == [b"a12"]


def test_an_interceptor_of_columns_sees_gathered_records_and_hears_by_batch(broker: FakeBroker) -> None:
    instance = Appends("!")
    with producer_of(broker, instance, linger_ms=10_000) as producer:
        futures = [
            producer.send(ProducerRecord("orders", b"%d" % number, key="k", partition=2, headers=[("h", None)], timestamp=number))
            for number in range(5)
        ]
        producer.flush(WAIT_MS)
        assert [future.result(0) for future in futures] == [RecordMetadata("orders", 2, n, n, 1, 2) for n in range(5)]
    (columns,) = instance.inputs
    assert columns.topic == "orders"
    assert [columns.key.to_pylist(), columns.partition.to_pylist(), columns.timestamp.to_pylist()] == [
        [b"k"] * 5,
        [2] * 5,
        [0, 1, 2, 3, 4],
    ]
    assert columns.headers.to_pylist() == [[("h", None)]] * 5
    assert broker.values("orders", 2) == [b"%d!" % number for number in range(5)]
    assert broker.records("orders", 2)[0].headers == (("h", None),)
    assert instance.heard == [(BatchMetadata("orders", 2, 0, 5, -1), None)]


def test_interceptors_hear_of_no_failure_after_a_success(broker: FakeBroker) -> None:
    """Ctrl-C when all records of a bundle were in batches: its call was not over, and at the end all of them failed again."""
    columns, records = Appends(), AppendsToRecords()
    producer = producer_of(broker, columns, records, linger_ms=600_000, delivery_timeout_ms=700_000)
    futures = [producer.send(ProducerRecord("orders", b"a", partition=partition)) for partition in (0, 1, 1)]

    def finish(*_: object) -> None:
        producer._accumulator.flush(WAIT_MS)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordGatherer, "_finish_bundle", finish)
        with pytest.raises(KeyboardInterrupt):
            producer.flush(WAIT_MS)
    producer.close(WAIT_MS)
    assert [future.result(0).partition for future in futures] == [0, 1, 1]
    assert {metadata.partition: (metadata.rows, error) for metadata, error in columns.heard} == {0: (1, None), 1: (2, None)}
    assert [error for _, error in records.heard] == [None] * 3


def test_an_interceptor_with_methods_for_both_sees_a_record_once(broker: FakeBroker) -> None:
    both = type("Both", (Appends,), {"on_send": AppendsToRecords.on_send})("!")
    with producer_of(broker, both) as producer:
        producer.send(ProducerRecord("single", b"a"))
        producer.flush(WAIT_MS)
        producer.send_columns("single", value=binary(b"b"))
    assert broker.values("single") == [b"a!", b"b!"]
    assert len(both.inputs) == 2


def test_the_topic_of_gathered_records_stays(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    with producer_of(broker, Changing(lambda columns: replace(columns, topic="other")), Appends("!")) as producer:
        producer.send(ProducerRecord("single", b"a"))
    assert broker.values("single") == [b"a!"]
    assert "returned topic other for records that were gathered for single" in caplog.text


def test_a_gathered_record_that_an_interceptor_spoils_fails_alone(broker: FakeBroker) -> None:
    def change(columns: ProducerColumns) -> ProducerColumns:
        return replace(
            columns,
            value=binary(b"good", bytes(2000), b"b", b"c"),
            partition=pa.array([0, 0, 9, 1], pa.int32()),
        )

    listener = Appends()
    with producer_of(broker, Changing(change), listener, max_request_size=1000, linger_ms=10_000) as producer:
        futures = [producer.send(ProducerRecord("other", b"x")) for _ in range(4)]
        producer.flush(WAIT_MS)
        conditions = [error.condition if error is not None else None for error in (future.exception(0) for future in futures)]
        assert conditions == [None, "KAFKA_RECORD_TOO_LARGE", "KAFKA_UNKNOWN_PARTITION", None]
        assert (futures[0].result(0).serialized_value_size, futures[3].result(0).partition) == (4, 1)
    assert (broker.values("other", 0), broker.values("other", 1)) == ([b"good"], [b"c"])
    assert sum(metadata.rows for metadata, _ in listener.heard) == 4


def test_each_callback_fires_once_when_plug_ins_spoil_gathered_records(broker: FakeBroker) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    heard: list[str] = []
    spoil = Changing(lambda columns: replace(columns, partition=pa.array([9, None], pa.int32())))
    with producer_of(broker, spoil, partitioner_class=fail, linger_ms=10_000) as producer:
        for _ in range(2):
            producer.send(ProducerRecord("other", b"x"), lambda _, error: heard.append(error.condition))
        producer.flush(WAIT_MS)
    assert heard == ["KAFKA_UNKNOWN_PARTITION", "KAFKA_PARTITIONER_FAILED"]


def fail_for_want_of_memory(broker: FakeBroker, patched: type, name: str, failure: Any) -> list[str]:
    """What callbacks hear of three gathered records, the second of which an interceptor spoils. Nothing is counted twice."""
    heard: list[str] = []
    listener = Appends()
    spoil = Changing(lambda columns: replace(columns, partition=pa.array([None, 9, None], pa.int32())))
    with producer_of(broker, spoil, listener, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        futures = [producer.send(ProducerRecord("other", b"x"), lambda _, error: heard.append(error.condition)) for _ in range(3)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patched, name, failure)
            producer.flush(WAIT_MS)
        assert all(future.done() for future in futures)
        assert producer.metrics()["record-error-total"] == 3
    assert sum(metadata.rows for metadata, _ in listener.heard) == 3
    return heard


def test_a_spoiled_record_is_counted_once_when_memory_ends_after_it(broker: FakeBroker) -> None:
    """The record had failed alone, and then failed, was counted and was reported once more with all others of its bundle."""
    assert fail_for_want_of_memory(broker, TopicRows, "take", Mock(side_effect=MemoryError)) == ["KAFKA_INVALID_RECORD"] * 3


def test_gathered_records_fail_when_memory_ends_as_their_callback_is_made(broker: FakeBroker) -> None:
    """Nobody heard of them again: they were in no batch, and the producer took them for failed."""
    expected = ["KAFKA_UNKNOWN_PARTITION", *["KAFKA_INVALID_RECORD"] * 2]
    no_callback = property(Mock(side_effect=MemoryError))
    assert fail_for_want_of_memory(broker, RecordBundle, "rows_callback", no_callback) == expected


def test_gathered_records_that_an_interceptor_makes_unwritable_fail_together(broker: FakeBroker) -> None:
    wrong = Changing(lambda columns: replace(columns, value=pa.array([1.5] * columns.rows)))
    with producer_of(broker, wrong) as producer:
        future = producer.send(ProducerRecord("single", b"a"))
        producer.flush(WAIT_MS)
        assert isinstance(future.exception(0), SchemaError)


def test_callback_and_interceptors_hear_of_a_record_that_cannot_be_gathered(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    heard: list[KafkaError | None] = []
    with producer_of(broker, columns, records, max_block_ms=50) as producer:
        future = producer.send(ProducerRecord("gone", b"a"), lambda _, error: heard.append(error))
    error = future.exception(0)
    assert heard == [error]
    assert columns.heard == [(BatchMetadata("gone", -1, -1, 1, -1), error)]
    assert records.heard == [(RecordMetadata("gone", -1, -1, -1, -1, -1), error)]


def test_interceptors_hear_the_partition_that_a_too_large_record_names(broker: FakeBroker) -> None:
    instance = AppendsToRecords()
    with producer_of(broker, instance, max_request_size=100) as producer:
        producer.send(ProducerRecord("orders", bytes(200), partition=3))
    ((metadata, error),) = instance.heard
    assert metadata == RecordMetadata("orders", 3, -1, -1, -1, -1)
    assert isinstance(error, KafkaError)


def test_interceptors_hear_what_send_raises(broker: FakeBroker) -> None:
    columns, records = Appends(), AppendsToRecords()
    with producer_of(broker, columns, records, key_serializer="long") as producer:
        with pytest.raises(SerializationError) as raised:
            producer.send(ProducerRecord("single", b"a", key="one"))
        with pytest.raises(ValueError, match="Invalid partition"):
            producer.send(ProducerRecord("single", b"a", partition=-7))
    assert columns.heard[0] == (BatchMetadata("single", -1, -1, 1, -1), raised.value)
    assert [type(error) for _, error in records.heard] == [SerializationError, ValueError]


def test_interceptors_hear_of_records_that_a_forced_close_gives_up_and_then_close(broker: FakeBroker) -> None:
    class Listening(Appends):
        def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
            assert not self.closed
            super().on_batch_acknowledgement(metadata, error)

    instance = Listening()
    producer = producer_of(broker, instance, linger_ms=600_000, delivery_timeout_ms=700_000)
    for number in range(3):
        producer.send(ProducerRecord("orders", b"a", partition=number % 2))
    producer.close(0)
    assert {metadata.partition: metadata.rows for metadata, _ in instance.heard} == {0: 2, 1: 1}
    assert {type(error) for _, error in instance.heard} == {ProducerClosedError}
    assert instance.closed == 1


def test_a_producer_closed_by_a_callback_closes_its_interceptors_once(broker: FakeBroker) -> None:
    instance = Appends()
    producer = producer_of(broker, instance)
    producer.send(ProducerRecord("single", b"a"), lambda *_: producer.close())
    producer.flush(WAIT_MS)
    producer.close()
    assert instance.closed == 1
    assert len(instance.heard) == 1


@pytest.mark.parametrize("kind", ["columns", "single"])
def test_rows_are_settled_although_an_interceptor_ends_the_senders_thread(broker: FakeBroker, kind: str) -> None:
    """Interceptors hear of rows first: with sys.exit() in one, the rows themselves never learnt that they were written."""

    class Leaving:
        def on_acknowledgement(self, *_: object) -> None:
            sys.exit("enough")

    with producer_of(broker, Leaving()) as producer:
        if kind == "columns":
            assert producer.send_columns("single", value=binary(b"a")).result(WAIT_MS).acknowledged == 1
        else:
            assert producer.send(ProducerRecord("single", b"a")).result(WAIT_S).offset == 0


def test_interceptors_hear_before_the_callback(broker: FakeBroker) -> None:
    order: list[str] = []

    class Listening:
        def on_acknowledgement(self, *_: object) -> None:
            order.append("interceptor")

    with producer_of(broker, Listening()) as producer:
        producer.send(ProducerRecord("single", b"a"), lambda *_: order.append("callback"))
    assert order == ["interceptor", "callback"]


def test_a_partitioner_sees_what_interceptors_leave(broker: FakeBroker) -> None:
    class ByValue:
        def partition(self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: bytes, cluster: Cluster) -> int:
            del topic, key, key_bytes, value, cluster
            return len(value_bytes)

    for kind in (Appends, AppendsToRecords):
        with producer_of(broker, kind("22"), partitioner_class=ByValue()) as producer:
            assert producer.send(ProducerRecord("orders", b"1")).result(WAIT_S).partition == 3
            delivery = producer.send_columns("orders", value=binary(b"", b"1")).result(WAIT_MS)
            assert {part.partition for part in delivery.offsets} == {2, 3}


def test_interceptors_hear_once_of_each_of_many_rows_and_records(broker: FakeBroker) -> None:
    columns, records = Appends("!"), AppendsToRecords("?")
    rng = np.random.default_rng(7)
    with producer_of(broker, columns, records, linger_ms=5, batch_size=500) as producer:
        for _ in range(20):
            producer.send_columns("orders", value=binary(*[b"v"] * int(rng.integers(1, 40))))
            for _ in range(int(rng.integers(1, 40))):
                producer.send(ProducerRecord("orders", b"v"))
    total = sum(len(broker.records("orders", partition)) for partition in range(4))
    assert sum(metadata.rows for metadata, error in columns.heard if error is None) == total == len(records.heard)
    offsets = {(metadata.partition, metadata.offset) for metadata, _ in records.heard}
    assert len(offsets) == total
    assert {record.value for partition in range(4) for record in broker.records("orders", partition)} == {b"v!?", b"v?!"}


def test_a_transaction_of_which_some_rows_got_into_no_batch_cannot_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends between the topics of a call: the first one's row is queued, and the transaction must not show it alone."""
    calls = itertools.count()
    without_payloads = RecordColumns.without_payloads

    def fails_once(columns: RecordColumns) -> RecordColumns:
        if next(calls) == 1:
            raise MemoryError
        return without_payloads(columns)

    monkeypatch.setattr(RecordColumns, "without_payloads", fails_once)
    with FakeBroker(nodes=1, topics={"a": 1, "b": 1}, transaction_version=2) as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers, "interceptor.classes": [Appends("x")], "transactional.id": "t"}
        with KafkaProducer(options) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            with pytest.raises(MemoryError):
                producer.send_columns(pa.array(["a", "b"]), value=pa.array([b"1", b"2"]))
            with pytest.raises(AbortableTransactionError, match="MemoryError"):
                producer.commit_transaction()
            producer.abort_transaction()
