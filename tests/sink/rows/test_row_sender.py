"""row_sender.py: every row is acknowledged, or has the outcome that the user chose for rows like it, or the task fails."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_kafka_sink.config.sink_options import DEAD_LETTER, SKIP
from spark_kafka_sink.errors import BrokerError, InvalidRecordError, KafkaError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.records.row_mapping import RowMapping
from spark_kafka_sink.sink.commit_message import WrittenRange
from spark_kafka_sink.sink.rows import row_sender
from spark_kafka_sink.sink.rows.row_sender import MAX_PENDING_DELIVERIES, RowSender
from spark_kafka_sink.sink.task import Task
from tests.sink.columns import chunk_of, not_utf8, sink_options
from tests.sink.fake_producer import FakeDelivery, FakeProducer

MAPPING = RowMapping(topic="t", value=0, key=1, partition=2, headers=None, timestamp=None)
FAILING: dict[str, Any] = {}
SKIPPING: dict[str, Any] = {"on_record_too_large": SKIP, "on_invalid_record": SKIP}
DEAD_LETTERING: dict[str, Any] = {
    "on_record_too_large": DEAD_LETTER,
    "on_invalid_record": DEAD_LETTER,
    "dead_letter_topic": "dead",
}
NO_KEY = KafkaError("Compacted topic cannot accept message without key", condition="KAFKA_INVALID_RECORD")
TOO_LARGE = BrokerError("t-0 (1 records): too large", error_code=10, condition="KAFKA_MESSAGE_TOO_LARGE")


def batch(values: list[str], partitions: list[int | None] | None = None) -> pa.Table:
    columns = [pa.array(values), pa.array([f"k{value}" for value in values])]
    return pa.Table.from_arrays(
        [*columns, pa.array(partitions or [None] * len(values), pa.int32())], names=["value", "key", "partition"]
    )


class ChoosyProducer(FakeProducer):
    """Raises the given errors for chunks with certain values. Its topics have three partitions."""

    def __init__(self, refusals: dict[str, KafkaError], **how: Any) -> None:
        super().__init__({}, **how)
        self.refusals = refusals
        self.refused = 0
        self.partitions = 3

    def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
        for value in columns["value"].to_pylist():
            if value in self.refusals and topic != "dead":
                self.refused += 1
                raise self.refusals[value]
        return super().send_columns(topic, **columns)

    def partitions_for(self, topic: str) -> range:  # noqa: ARG002
        return range(self.partitions)


class SenderToChoosyProducer(RowSender):
    """Sends tables, and numbers their rows as SparkRows does."""

    def __init__(self, producer: FakeProducer, rules: dict[str, Any], mapping: RowMapping, **options: object) -> None:
        super().__init__(producer, sink_options(options, **rules), FakeProducer)
        self._mapping = mapping

    def send_table(self, table: pa.Table) -> None:
        self.send(chunk_of(table, self._mapping, self.rows))

    @property
    def skipped(self) -> int:
        return self.skipped_by_reason.total()

    @property
    def dead_lettered(self) -> int:
        return self.dead_lettered_by_reason.total()

    def written(self) -> tuple[WrittenRange, ...]:
        return self.commit_message(Task(), 0.0).written


def sender(producer: FakeProducer, rules: dict[str, Any], **options: object) -> SenderToChoosyProducer:
    return SenderToChoosyProducer(producer, rules, MAPPING, **options)


def values(producer: FakeProducer) -> list[list[str]]:
    return [call["value"].to_pylist() for call in producer.calls]


def rejecting(call: int, *, blamed: dict[int, KafkaError], others: list[int]) -> Callable[[FakeProducer, FakeDelivery], None]:
    def on_send(producer: FakeProducer, delivery: FakeDelivery) -> None:
        if len(producer.deliveries) == call:
            delivery.reject(blamed, others)

    return on_send


# REFUSED BEFORE ANYTHING IS QUEUED


def test_a_row_that_the_producer_refuses_fails_the_task_with_its_number() -> None:
    producer = ChoosyProducer({"x" * 200: RecordTooLargeError("row 1 of this chunk: …")})
    sending = sender(producer, FAILING, **{"max.request.size": 200})
    sending.send_table(batch(["a", "b", "c"]))
    with pytest.raises(RecordTooLargeError) as raised:
        sending.send_table(batch(["d", "x" * 200]))
    key = "k" + "x" * 31
    assert raised.value.message == (
        f"row 4 of this task: topic t, key {key.encode()!r}… of 201 bytes, value of 200 bytes: when serialized, the record"
        " exceeds max.request.size=200; raise max.request.size and the topic's max.message.bytes"
    )
    assert values(producer) == [["a", "b", "c"]]


def test_keys_do_not_show_in_errors_and_warnings_if_the_user_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A key may be a name or a number of a customer: errors reach Spark's event log, and warnings the executors' logs."""
    for rules in (FAILING, SKIPPING):
        producer = ChoosyProducer({"bad": InvalidRecordError("…")})
        sending = sender(producer, rules | {"show_keys": False})
        if rules is SKIPPING:
            sending.send_table(batch(["bad"], [-1]))
            assert "partition -1, key of 4 bytes, value of 3 bytes" in caplog.text
        else:
            with pytest.raises(InvalidRecordError, match="partition -1, key of 4 bytes, value of 3 bytes"):
                sending.send_table(batch(["bad"], [-1]))
    assert "kbad" not in caplog.text


def test_a_null_topic_has_sparks_error_text_followed_by_its_row() -> None:
    mapping = RowMapping(topic=1, value=0, key=None, partition=None, headers=None, timestamp=None)
    topics = pa.Table.from_arrays([pa.array(["a", "b"]), pa.array(["t", None])], names=["value", "topic"])
    sending = SenderToChoosyProducer(FakeProducer(), FAILING, mapping)
    with pytest.raises(InvalidRecordError) as raised:
        sending.send_table(topics)
    assert str(raised.value) == (
        "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic. Use the `topic` option for"
        " setting a default topic. It is row 1 of this task: topic null, no key, value of 1 bytes"
    )


def test_refused_rows_are_skipped_and_the_others_sent_in_order(caplog: pytest.LogCaptureFixture) -> None:
    producer = ChoosyProducer({"bad": InvalidRecordError("…")})
    sending = sender(producer, SKIPPING)
    sending.send_table(batch(["a", "bad", "b", "bad", "c"], [None, -1, 0, -1, 1]))
    sending.finish()
    assert values(producer) == [["a", "b", "c"]]
    assert (sending.rows, sending.acknowledged, sending.skipped, sending.dead_lettered) == (5, 3, 2, 0)
    assert (sending.skipped_by_reason, sending.dead_lettered_by_reason) == ({"KAFKA_INVALID_PARTITION": 2}, {})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("row 1 of this task: topic t, partition -1, key b'kbad' of 4 bytes, value of 3 bytes")
    assert "[KAFKA_INVALID_PARTITION] Invalid partition: -1." in record.getMessage()


def huge_value() -> pa.Array:
    """The largest that Arrow's binary holds, of pages that nothing has touched: it costs memory only if it is copied."""
    offsets = pa.py_buffer(np.array([0, 2**31 - 1], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(mmap.mmap(-1, 2**31))])


class RefusingHugeValues(FakeProducer):
    def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
        if pc.max(pc.binary_length(columns["value"])).as_py() > 1_000:
            raise RecordTooLargeError("too large")
        return super().send_columns(topic, **columns)


def test_a_value_of_two_gigabytes_is_left_out_without_a_copy() -> None:
    """The value failed the task, for any onRecordTooLarge: "ArrowInvalid: Take operation overflowed binary array capacity"."""
    column = pa.chunked_array([pa.array([b"a", b"b"]), huge_value(), pa.array([b"c", b"bad", b"d"])])
    keys, partitions = pa.array(["k"] * 6), pa.array([None, None, None, None, -1, None], pa.int32())
    producer = RefusingHugeValues()
    sending = sender(producer, SKIPPING, **{"max.request.size": 1_000})
    sending.send_table(pa.Table.from_arrays([column, keys, partitions], names=["value", "key", "partition"]))
    sending.finish()
    assert values(producer) == [[b"a", b"b", b"c", b"d"]]
    assert sending.skipped_by_reason == {"KAFKA_RECORD_TOO_LARGE": 1, "KAFKA_INVALID_PARTITION": 1}


def test_a_chunk_of_refused_rows_alone_sends_nothing() -> None:
    producer = ChoosyProducer({"bad": InvalidRecordError("…")})
    sending = sender(producer, SKIPPING)
    sending.send_table(batch(["bad"], [-1]))
    sending.finish()
    assert (values(producer), sending.skipped) == ([], 1)


def test_each_kind_of_row_has_its_own_outcome() -> None:
    producer = ChoosyProducer({"bad": InvalidRecordError("…", condition="KAFKA_INVALID_PARTITION")})
    with pytest.raises(InvalidRecordError, match="KAFKA_INVALID_PARTITION"):
        sender(producer, {"on_record_too_large": SKIP}).send_table(batch(["a", "bad"], [0, -1]))
    assert values(producer) == []


def test_an_error_that_no_row_causes_is_raised_unchanged() -> None:
    for error in (InvalidRecordError("a plug-in found something"), KafkaTimeoutError("no metadata")):
        with pytest.raises(type(error), match=error.message):
            sender(ChoosyProducer({"a": error}), SKIPPING).send_table(batch(["a"]))


def test_a_partition_that_a_topic_lacks_is_awaited_once_and_refused_until_it_exists() -> None:
    absent = InvalidRecordError("after 60000 ms", condition="KAFKA_UNKNOWN_PARTITION")
    producer = ChoosyProducer({"x": absent})
    sending = sender(producer, SKIPPING)
    sending.send_table(batch(["a", "x"], [2, 3]))
    sending.send_table(batch(["b", "x"], [0, 9]))
    assert producer.refused == 1
    producer.partitions, producer.refusals = 10, {}
    sending.send_table(batch(["c", "x"], [0, 9]))
    sending.finish()
    assert values(producer) == [["a"], ["b"], ["c", "x"]]
    assert sending.skipped == 2


class ProducerWithoutTopics(FakeProducer):
    """Has no topic but t and the dead letter topic. Calls others unknown only while its brokers answer."""

    def __init__(self) -> None:
        super().__init__({})
        self.waits: list[str] = []
        self.answers = True

    def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
        missing = [name for name in ([topic] if isinstance(topic, str) else topic.to_pylist()) if name not in ("t", "dead")]
        if missing:
            self.waits.append(missing[0])
            raise KafkaTimeoutError(f"Topic {missing[0]} not present", condition="KAFKA_UNKNOWN_TOPIC")
        return super().send_columns(topic, **columns)

    def ask_for_topics(self, topics: Iterable[str]) -> None:
        list(topics)

    def partitions_for(self, topic: str) -> range:
        if topic != "t":
            self.waits.append(topic)
            raise KafkaTimeoutError(f"Topic {topic} not present", condition="KAFKA_UNKNOWN_TOPIC")
        return range(1)

    def unknown_topics(self, topics: list[str]) -> dict[str, str]:
        return {name: f"Topic {name} not present" for name in topics if name != "t" and self.answers}


def to_topics(*topics: str) -> pa.Table:
    return pa.Table.from_arrays([pa.array([f"v-{each}" for each in topics]), pa.array(topics)], names=["value", "topic"])


def sender_by_column(producer: FakeProducer, rules: dict[str, Any]) -> SenderToChoosyProducer:
    mapping = RowMapping(topic=1, value=0, key=None, partition=None, headers=None, timestamp=None)
    return SenderToChoosyProducer(producer, rules, mapping)


def test_a_topic_that_brokers_lack_is_waited_for_once_and_its_rows_are_refused() -> None:
    """Such rows failed their task after max.block.ms, for every value of onInvalidRecord."""
    producer = ProducerWithoutTopics()
    sending = sender_by_column(producer, DEAD_LETTERING)
    sending.send_table(to_topics("t", "gone", "lost", "t"))
    sending.send_table(to_topics("lost", "t", "gone"))
    sending.send_table(to_topics("other", "t"))
    sending.finish()
    assert producer.waits == ["gone", "other"]
    to_t, dead = ([call for call in producer.calls if (call["topic"] == "dead") is each] for each in (False, True))
    assert [len(call["value"]) for call in to_t] == [2, 1, 1]
    assert [call["value"].to_pylist() for call in dead] == [["v-gone", "v-lost"], ["v-lost", "v-gone"], ["v-other"]]
    assert (sending.acknowledged, sending.dead_lettered) == (4, 5)
    assert sending.dead_lettered_by_reason == {"KAFKA_UNKNOWN_TOPIC": 5}


def test_topics_that_were_found_to_be_missing_are_not_waited_for_again() -> None:
    producer = ProducerWithoutTopics()
    sending = sender_by_column(producer, DEAD_LETTERING)
    for _ in range(2):
        assert sending.missing_topics(["t", "gone", "lost"]) == {"gone", "lost"}
    sending.send_table(to_topics("gone", "t", "lost"))
    sending.finish()
    assert producer.waits == ["gone"]
    assert sending.dead_lettered_by_reason == {"KAFKA_UNKNOWN_TOPIC": 2}
    assert sending.acknowledged == 1


def test_a_topic_that_was_found_to_be_missing_fails_the_task_by_its_first_row() -> None:
    sending = sender_by_column(ProducerWithoutTopics(), FAILING)
    assert sending.missing_topics(["gone"]) == {"gone"}
    with pytest.raises(KafkaTimeoutError) as raised:
        sending.send_table(to_topics("t", "gone"))
    assert str(raised.value) == (
        "[KAFKA_UNKNOWN_TOPIC] row 1 of this task: topic gone, no key, value of 6 bytes: Topic gone not present"
    )


def test_a_topic_is_missing_only_if_brokers_say_so() -> None:
    away = ProducerWithoutTopics()
    away.answers = False
    with pytest.raises(KafkaTimeoutError, match="Topic gone not present"):
        sender_by_column(away, SKIPPING).missing_topics(["t", "gone"])


def test_text_that_is_not_utf8_has_its_outcome_and_keeps_its_bytes() -> None:
    """A row with such a key that was too large failed its task with UnicodeDecodeError, for every value of onRecordTooLarge."""

    class Limited(FakeProducer):
        def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
            if topic != "dead" and len(columns["value"]) == 3:
                raise InvalidRecordError("…")
            return super().send_columns(topic, **columns)

    mapping = RowMapping(topic=1, value=0, key=2, partition=None, headers=3, timestamp=None)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.StructArray.from_arrays([not_utf8(b"\xfe", b"h", b"i"), pa.array([b"1", b"2", b"3"])], ["key", "value"]),
    )
    cells = [pa.array([b"x" * 300, b"b", b"c"]), not_utf8(b"t", b"\xff", b"t"), not_utf8(b"\xff\xfe\x80", b"k", b"\x80"), headers]
    table = pa.Table.from_arrays(cells, names=["value", "topic", "key", "headers"])
    limits = {"max.request.size": 200}
    with pytest.raises(InvalidRecordError, match=r"row 1 of this task: topic \\xff, key b'k'"):
        SenderToChoosyProducer(Limited(), {"on_record_too_large": SKIP}, mapping, **limits).send_table(table)
    producer = Limited()
    sending = SenderToChoosyProducer(producer, DEAD_LETTERING, mapping, **limits)
    sending.send_table(table)
    sending.finish()
    assert (sending.acknowledged, sending.dead_lettered) == (1, 2)
    impossible, too_large, good = producer.calls
    assert too_large["key"].cast(pa.binary()).to_pylist() == [b"\xff\xfe\x80"]
    kinds = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    assert too_large["headers"].cast(kinds)[0].as_py()[0] == {"key": b"\xfe", "value": b"1"}
    assert impossible["headers"].cast(kinds)[0].as_py()[1] == {"key": b"__pykafka_sink.errors.topic", "value": b"\xff"}
    assert good["key"].cast(pa.binary()).to_pylist() == [b"\x80"]


def test_a_topic_that_brokers_do_not_have_fails_the_task_by_its_first_row() -> None:
    with pytest.raises(KafkaTimeoutError) as raised:
        sender_by_column(ProducerWithoutTopics(), FAILING).send_table(to_topics("t", "t", "gone"))
    assert str(raised.value) == (
        "[KAFKA_UNKNOWN_TOPIC] row 2 of this task: topic gone, no key, value of 6 bytes: Topic gone not present"
    )


def test_no_row_is_skipped_for_a_topic_that_brokers_have_not_called_unknown() -> None:
    """Either the brokers do not answer, or the option `topic` names the topic, so that all rows would be skipped."""
    away = ProducerWithoutTopics()
    away.answers = False
    with pytest.raises(KafkaTimeoutError, match="Topic gone not present"):
        sender_by_column(away, SKIPPING).send_table(to_topics("t", "gone"))
    mapping = RowMapping(topic="gone", value=0, key=None, partition=None, headers=None, timestamp=None)
    sending = SenderToChoosyProducer(ProducerWithoutTopics(), SKIPPING, mapping)
    with pytest.raises(KafkaTimeoutError, match="Topic gone not present"):
        sending.send_table(to_topics("t"))


def test_refused_rows_go_to_the_dead_letter_topic() -> None:
    producer = ChoosyProducer({"bad": InvalidRecordError("…")})
    sending = sender(producer, DEAD_LETTERING)
    sending.send_table(batch(["a", "bad", "bad"], [0, -1, -2]))
    sending.finish()
    assert [(call["topic"], call["value"].to_pylist()) for call in producer.calls] == [("dead", ["bad", "bad"]), ("t", ["a"])]
    assert producer.calls[0]["key"].to_pylist() == ["kbad", "kbad"]
    assert (sending.acknowledged, sending.dead_lettered) == (1, 2)
    assert [each.topic for each in sending.written()] == ["t"]


# REJECTED BY THE BROKER


def test_the_error_of_a_row_that_the_broker_blames_has_number_partition_and_key() -> None:
    producer = FakeProducer(on_send=rejecting(2, blamed={1: NO_KEY}, others=[0]))
    sending = sender(producer, FAILING)
    sending.send_table(batch(["a", "b", "c"]))
    with pytest.raises(KafkaError) as raised:
        sending.send_table(batch(["d", "e"]))
    assert str(raised.value) == (
        "[KAFKA_INVALID_RECORD] row 4 of this task: topic t, partition 0, key b'ke' of 2 bytes, value of 1 bytes:"
        " Compacted topic cannot accept message without key"
    )


def test_rows_that_shared_a_batch_with_a_rejected_one_are_sent_again() -> None:
    producer = FakeProducer(on_send=rejecting(1, blamed={1: NO_KEY, 3: NO_KEY}, others=[2, 4]))
    sending = sender(producer, SKIPPING)
    sending.send_table(batch(["a", "b", "c", "d", "e"]))
    sending.finish()
    assert values(producer) == [["a", "b", "c", "d", "e"], ["c", "e"]]
    assert (sending.acknowledged, sending.skipped) == (3, 2)
    assert sum(each.rows for each in sending.written()) == 3


def test_rows_are_sent_again_while_those_behind_them_are_settled() -> None:
    """SenderToChoosyProducer again settles deliveries that are done by then. finish() relied on all of them being pending."""

    class RejectingTheFirst(FakeProducer):
        def flush(self, *, until: FakeDelivery | None = None) -> None:
            if not self.deliveries[0].done():
                self.deliveries[0].reject({0: NO_KEY}, [1])
            super().flush(until=until)

    producer = RejectingTheFirst()
    sending = sender(producer, SKIPPING)
    for _ in range(3):
        sending.send_table(batch(["a", "b"]))
    sending.finish()
    assert values(producer) == [["a", "b"]] * 3 + [["b"]]
    assert (sending.acknowledged, sending.skipped) == (5, 1)


def test_rows_sent_again_may_be_rejected_again() -> None:
    def on_send(_: FakeProducer, delivery: FakeDelivery) -> None:
        if delivery.rows > 1:
            delivery.reject({0: NO_KEY}, range(1, delivery.rows))

    producer = FakeProducer(on_send=on_send)
    sending = sender(producer, SKIPPING)
    sending.send_table(batch(["a", "b", "c"]))
    sending.finish()
    assert values(producer) == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert (sending.acknowledged, sending.skipped) == (1, 2)


def test_any_number_of_pending_chunks_may_have_rows_that_are_sent_again() -> None:
    """Sending a chunk's rows again settled the next chunk, whose rows were sent again from within: with some 250 chunks that
    each had a rejected row, a RecursionError ended the task."""

    class RejectingWhenTheLastIsSent(FakeProducer):
        def send_columns(self, topic: Any, **columns: Any) -> FakeDelivery:
            delivery = super().send_columns(topic, **columns)
            if len(self.deliveries) == MAX_PENDING_DELIVERIES:
                for each in self.deliveries:
                    each.reject({0: NO_KEY}, [1])
            return delivery

    producer = RejectingWhenTheLastIsSent()
    sending = sender(producer, SKIPPING)
    for _ in range(MAX_PENDING_DELIVERIES):
        sending.send_table(batch(["a", "b"]))
    sending.finish()
    assert values(producer) == [["a", "b"]] * MAX_PENDING_DELIVERIES + [["b"]] * MAX_PENDING_DELIVERIES
    assert (sending.acknowledged, sending.skipped) == (MAX_PENDING_DELIVERIES, MAX_PENDING_DELIVERIES)


def test_rows_rejected_by_the_broker_go_to_the_dead_letter_topic_by_reason() -> None:
    blamed = {0: NO_KEY, 1: TOO_LARGE, 2: NO_KEY}
    producer = FakeProducer(on_send=rejecting(1, blamed=blamed, others=[]))
    sending = sender(producer, DEAD_LETTERING)
    sending.send_table(batch(["a", "b", "c"]))
    sending.finish()
    assert values(producer)[1:] == [["a", "c"], ["b"]]
    headers = {each["key"]: each["value"] for each in producer.calls[1]["headers"][0].as_py()}
    assert headers["__pykafka_sink.errors.condition"] == b"KAFKA_INVALID_RECORD"
    assert headers["__pykafka_sink.errors.partition"] == b"0"
    assert (sending.acknowledged, sending.dead_lettered) == (0, 3)


def test_a_failure_that_names_no_row_fails_the_task_whatever_the_rules() -> None:
    class Lost(FakeProducer):
        def flush(self, *, until: FakeDelivery | None = None) -> None:  # noqa: ARG002
            self.deliveries[0].fail_all(KafkaTimeoutError("no answer"))

    sending = sender(Lost(), SKIPPING)
    sending.send_table(batch(["a"]))
    with pytest.raises(KafkaTimeoutError, match="no answer"):
        sending.finish()


# WHAT IS KEPT


def test_chunks_that_may_be_sent_again_are_awaited_before_too_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sender, "MAX_KEPT_BYTES", 3 * batch(["a"]).nbytes)
    open_handles = []

    def count_open(producer: FakeProducer, _: FakeDelivery) -> None:
        open_handles.append(sum(not each.done() for each in producer.deliveries))

    sending = sender(FakeProducer(on_send=count_open), SKIPPING)
    for _ in range(10):
        sending.send_table(batch(["a"]))
    assert max(open_handles) == 4
    sending.finish()
    assert sending.acknowledged == 10


def test_nothing_lingers_while_a_chunk_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task would wait for linger.ms each time, as no row follows meanwhile that could fill the batch."""
    monkeypatch.setattr(row_sender, "MAX_KEPT_BYTES", batch(["a"]).nbytes)
    flushed = []

    class Lingering(FakeProducer):
        def flush(self, *, until: FakeDelivery | None = None) -> None:
            flushed.append(None if until is None else self.deliveries.index(until))
            super().flush(until=until)

    sending = sender(Lingering(), SKIPPING)
    for _ in range(3):
        sending.send_table(batch(["a"]))
    sending.finish()
    assert flushed == [0, 1, None]


def test_chunks_that_need_not_be_sent_again_are_dropped_rather_than_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a dropped chunk does not name the row; those of kept chunks do."""
    monkeypatch.setattr(row_sender, "MAX_KEPT_BYTES", 1)

    class LateRefusals(FakeProducer):
        refused = 0

        def flush(self) -> None:
            self.deliveries[self.refused].reject({0: NO_KEY})
            super().flush()

    for refused, message in ((0, "Compacted topic"), (4, "row 4 of this task")):
        producer = LateRefusals()
        producer.refused = refused
        sending = sender(producer, FAILING)
        for _ in range(5):
            sending.send_table(batch(["a"]))
        with pytest.raises(KafkaError) as raised:
            sending.finish()
        assert raised.value.message.startswith(message)


def test_ranges_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sender, "MAX_RANGES", 2)
    sending = sender(FakeProducer(), SKIPPING)
    for _ in range(6):
        sending.send_table(batch(["a", "b"]))
    sending.finish()
    assert sending.written() == (WrittenRange("t", 0, 0, 11, 12, 120),)


def test_rows_are_sent_in_portions_when_rates_are_given() -> None:
    rules = {"max_records_per_second": 400_000}
    producer = FakeProducer()
    sending = sender(producer, rules)
    sending.send_table(batch(["a"] * 150_000))
    sending.finish()
    assert [len(call["value"]) for call in producer.calls] == [100_000, 50_000]
