"""Interceptors: what a chain lets them see and change, what it tells them, and that their failures harm no row.

A KafkaProducer with a chain is in test_intercepted_columns.py and test_intercepted_records.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.network.cluster import Cluster
from spark_kafka_sink.producer.plugins.interceptors import Interceptors
from spark_kafka_sink.producer.plugins.producer_plugins import ProducerPlugins
from spark_kafka_sink.producer.producer_record import (
    BatchMetadata,
    Callback,
    ProducerColumns,
    ProducerRecord,
    RecordDetails,
    RecordMetadata,
)
from spark_kafka_sink.producer.single_records.record_bundle import RecordBundle
from tests.fakes.clock import ManualClock
from tests.interrupts import Interrupts
from tests.producer.calling import WAIT_S, binary
from tests.producer.harness import config
from tests.producer.plugins.sample_interceptors import Appends, AppendsToRecords, Changing, ChangingRecords, Life, chain, values
from tests.sink.columns import not_utf8

MODULE = Appends.__module__


def through(*interceptors: object, **columns: Any) -> ProducerColumns:
    """What is sent of columns that pass a chain."""
    outputs: list[ProducerColumns] = []
    producer_columns = ProducerColumns(**({"topic": "t"} | columns))
    chain(*interceptors).send_columns(producer_columns, lambda output, _: outputs.append(output))
    return outputs[0]


# COLUMNS


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
    assert f"{MODULE}.{kind.__name__}.on_send" in caplog.text
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


def test_headers_of_any_layout_become_pairs_of_key_and_value() -> None:
    """Pairs were made in the order of the struct's fields, so that a struct of value and key had them exchanged. A header without
    a key ended in an AttributeError; now the row stays as it is, and is refused later as without interceptors."""
    entry = pa.struct([("Value", pa.binary_view()), ("key", pa.dictionary(pa.int8(), pa.string()))])
    headers = pa.array([[{"Value": b"1", "key": "h"}], None], pa.list_(entry, 1))
    instance = AppendsToRecords()
    through(instance, topic="t", value=pa.array(["a", "b"]), headers=headers)
    assert [record.headers for record in instance.inputs] == [(("h", b"1"),), ()]
    without_key = pa.array([[{"Value": b"1", "key": None}]], pa.list_(entry))
    assert through(instance, topic="t", value=pa.array(["a"]), headers=without_key).headers is without_key


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
        f"! {MODULE}.ChangingRecords.on_send failed for 2 records; the first:"
    ]


def test_what_is_wrong_with_a_callers_columns_is_left_to_the_producer_to_tell() -> None:
    assert through(AppendsToRecords(), value=pa.array([1, 2])).value.to_pylist() == [1, 2]
    nulls = pa.array([None, "t"], pa.string())
    assert through(AppendsToRecords(), topic=nulls, value=binary(b"a", b"b")).topic.to_pylist() == [None, "t"]


# WHAT INTERCEPTORS HEAR


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

    class EndsTheBundle(Appends):
        def on_batch_acknowledgement(self, metadata: BatchMetadata, error: Exception | None) -> None:
            super().on_batch_acknowledgement(metadata, error)
            if len(self.heard) == 1:
                sender = threading.Thread(target=bundle.fail_all, args=[KafkaError("ended")], daemon=True)
                sender.start()
                sender.join(WAIT_S)

    instance, called_back = EndsTheBundle(), Mock()
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


# LIFE


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
        (Changing, f"interceptor.classes={MODULE}.Changing: an instance cannot be created without arguments"),
        (Life, f"interceptor.classes={MODULE}.Life has none of the methods on_send, on_send_columns, on_acknowledgement,"),
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
