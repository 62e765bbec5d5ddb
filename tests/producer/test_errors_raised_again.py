"""An error that is kept and raised by many calls keeps nothing of these calls.

It used to be one instance that every call raised. Python adds the frames that a raise passes to the instance's traceback, and
frames hold their callers' locals: after 300 calls of a producer with a fatal error, 30 MB of Arrow columns were still alive.
Each test makes calls with a local of its own and asserts that this local is gone when the call is over.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    KafkaError,
    NetworkError,
    closed_error,
    fresh_copy,
)
from spark_kafka_sink.legacy.errors import FailedToSendMessageError, QueueFullError
from spark_kafka_sink.network.metadata import Metadata
from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.producer.single_records.record_bundle import RecordFuture, failed_record
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from tests.fakes.clock import ManualClock
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import config

CALLS = 5
ROWS = np.zeros(1, np.int32)


class Payload:
    """Stands for what a caller has in a local."""


def calls_keep_nothing(call: Callable[[], object]) -> set[str]:
    """Make calls that raise; each one's local must be gone without a garbage collection. Returns what the errors say."""
    locals_of_calls: list[weakref.ref[Payload]] = []
    texts: list[str] = []

    def one_call() -> None:
        payload = Payload()
        locals_of_calls.append(weakref.ref(payload))
        call()

    gc.disable()
    try:
        for _ in range(CALLS):
            try:
                one_call()
            except KafkaError as error:
                texts.append(str(error))
                error.message += " (changed by who caught it)"
        assert len(texts) == CALLS
        assert [reference() for reference in locals_of_calls] == [None] * CALLS
    finally:
        gc.enable()
    return set(texts)


def keep_no_frames(error: BaseException | None) -> bool:
    return error is None or (error.__traceback__ is None and keep_no_frames(error.__context__))


# THE COPY


@pytest.mark.parametrize(
    "original",
    [
        KafkaError("text", condition="KAFKA_LEADER_NOT_AVAILABLE"),
        BrokerError("text", error_code=7, condition="KAFKA_REQUEST_TIMED_OUT"),
        AuthenticationError("text"),
        QueueFullError("text", queued=3),
        FailedToSendMessageError("text", messages=["m"], causes={"t-0": KafkaError("why")}),
    ],
)
def test_a_copy_says_all_that_the_original_says(original: KafkaError) -> None:
    original.__cause__ = OSError("the reason")
    copied = fresh_copy(original)
    assert copied is not original
    assert type(copied) is type(original)
    assert (str(copied), vars(copied), copied.__cause__) == (str(original), vars(original), original.__cause__)


def test_a_copy_leaves_the_frames_of_the_original_behind() -> None:
    try:
        try:
            raise KeyError("context")
        except KeyError:
            raise KafkaError("kept") from None
    except KafkaError as error:
        copied = fresh_copy(error)
    assert copied.__traceback__ is None
    assert copied.__context__ is None


def test_a_copy_leaves_the_frames_of_a_wait_that_failed_behind() -> None:
    """ "Topic not present in metadata" is raised from the time-out of a wait, which has the caller's frames too."""
    try:
        try:
            raise KafkaError("wait")
        except KafkaError as waited:
            raise KafkaError("absent") from waited
    except KafkaError as error:
        copied = fresh_copy(error)
    assert str(copied.__cause__) == "[KAFKA_ERROR] wait"
    assert keep_no_frames(copied.__cause__)


def test_the_error_for_using_a_producer_that_has_ended_keeps_the_cause_of_its_end() -> None:
    ended_by = KafkaError("ended")
    ended_by.__cause__ = OSError("the reason")
    error = closed_error(ended_by, "closed")
    assert error is not ended_by
    assert (str(error), error.__cause__) == (str(ended_by), ended_by.__cause__)


# WHERE ERRORS ARE KEPT


def test_a_delivery_raises_its_error_again_and_again() -> None:
    delivery = Delivery(1, ManualClock())
    delivery.fail_unbatched(ROWS, NetworkError("lost"))
    assert calls_keep_nothing(delivery.result) == {"[KAFKA_NETWORK] lost"}
    assert keep_no_frames(delivery.error)


def test_a_delivery_keeps_no_frames_of_the_place_where_its_error_was_first_raised() -> None:
    """Rows that find no memory fail by an exception that passes the frames of append, with the caller's columns in them."""
    delivery = Delivery(1, ManualClock())
    try:
        raise NetworkError("lost")
    except NetworkError as error:
        delivery.fail_unbatched(ROWS, error)
    assert keep_no_frames(delivery.error)
    assert keep_no_frames(delivery.failures[0].error)
    assert delivery.failures[0].error is delivery.error


def failed_future(error: KafkaError) -> RecordFuture:
    return failed_record("orders", None, None, error, ManualClock())


def test_a_future_raises_its_error_again_and_again() -> None:
    future = failed_future(NetworkError("lost"))
    calls_keep_nothing(future.result)
    assert keep_no_frames(future.exception())


def test_a_future_keeps_no_frames_of_the_send_that_failed() -> None:
    try:
        raise NetworkError("lost")
    except NetworkError as error:
        future = failed_future(error)
    assert keep_no_frames(future.exception())


def test_metadata_raise_a_permanent_error_to_every_caller() -> None:
    metadata = Metadata(config(), ManualClock())
    metadata.report_other_cluster("another")
    calls_keep_nothing(lambda: metadata.raise_error_for_topic("orders"))
    calls_keep_nothing(lambda: metadata.await_update(0, 0))
    assert keep_no_frames(metadata.permanent_error())


def test_metadata_raise_a_copy_of_an_error_that_batches_have_too() -> None:
    """A refused login fails the batches for that broker and is raised to whoever waits for metadata: by the same instance."""
    metadata, shared = Metadata(config(), ManualClock()), AuthenticationError("refused")

    def refused_again() -> None:
        metadata.report_error(shared)
        metadata.raise_error_for_topic("orders")

    calls_keep_nothing(refused_again)
    assert keep_no_frames(shared)


def test_a_producer_that_has_failed_for_good_keeps_nothing_of_refused_calls(broker: FakeBroker) -> None:
    broker.fail_next(ApiKey.PRODUCE, Errors.CLUSTER_AUTHORIZATION_FAILED)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        with pytest.raises(AuthorizationError, match="KAFKA_CLUSTER_AUTHORIZATION_FAILED"):
            producer.send_columns("orders", value=pa.array([b"v"])).result(30_000)
        record = ProducerRecord("orders", b"v")
        calls: list[Callable[[], Any]] = [
            lambda: producer.send_columns("orders", value=pa.array([b"v"])),
            lambda: producer.send(record),
            lambda: producer.partitions_for("orders"),
        ]
        for call in calls:
            (text,) = calls_keep_nothing(call)
            assert text.startswith("[KAFKA_CLUSTER_AUTHORIZATION_FAILED]")


def test_the_old_producer_raises_a_topics_error_for_every_message_of_it() -> None:
    from spark_kafka_sink.legacy.event_handler import EventHandler
    from spark_kafka_sink.legacy.messages import KeyedMessage

    handler = EventHandler.__new__(EventHandler)
    error = NetworkError("lost")
    calls_keep_nothing(lambda: handler._choose_partition(KeyedMessage("orders", message="m"), error))
    assert keep_no_frames(error)


def test_the_sinks_sender_raises_errors_of_rows_without_changing_the_kept_ones() -> None:
    """The writer adds the task's name to the text of what it raises; a producer that is kept for the next task had it twice."""
    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.sink.rows.chunk import Chunk
    from spark_kafka_sink.sink.rows.row_sender import RowSender

    delivery = Delivery(1, ManualClock())
    delivery.fail_unbatched(ROWS, NetworkError("lost"))
    sender = RowSender(None, SinkOptions(), None)
    assert calls_keep_nothing(lambda: sender._add_pending(delivery, Chunk({}, [], 0))) == {"[KAFKA_NETWORK] lost"}
    assert keep_no_frames(delivery.error)
