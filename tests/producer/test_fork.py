"""A process that was forked off refuses to use its parent's producers.

A fork has the parent's memory and sockets, and none of its threads. Its calls of `send` used to be accepted and never settled,
since no Sender lives there, and `flush` or `result` waited for the whole time-out or for ever. Multiprocessing's workers and
pre-forking web servers fork so.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import IllegalStateError, KafkaError
from spark_kafka_sink.legacy.messages import KeyedMessage
from spark_kafka_sink.legacy.producer import Producer
from spark_kafka_sink.producer.producer_record import ProducerRecord
from spark_kafka_sink.producer.task_producer import TaskProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.fake_broker import FakeBroker

WAIT_MS = 30_000
CHILD_LIMIT_S = 20  # a child that hangs is ended, which fails the test

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_a_fork(function: Callable[[], object]) -> Any:
    """What the function returns in a forked process; of a KafkaError that it raises there, the text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_LIMIT_S)
        try:
            answer = function()
        except KafkaError as error:
            answer = str(error)
        except BaseException as error:  # noqa: BLE001 - a child that is a copy of pytest must not go on
            answer = repr(error)
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answered = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(answered)


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[TaskProducer]:
    with TaskProducer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000}) as made:
        made.partitions_for("orders")
        yield made


CALLS: dict[str, Callable[[TaskProducer], object]] = {
    "send": lambda producer: producer.send(ProducerRecord("orders", b"v")),
    "send with details": lambda producer: producer.send(ProducerRecord("orders", b"v", partition=1)),
    "send_columns": lambda producer: producer.send_columns("orders", value=pa.array([b"v"])),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("orders"),
    "ask_for_topics": lambda producer: producer.ask_for_topics(["orders"]),
    "unknown_topics": lambda producer: producer.unknown_topics(["orders"]),
    "rest": lambda producer: producer.rest(),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_error_in_a_child_says_to_make_its_own_producer(producer: TaskProducer, call: str) -> None:
    producer.send(ProducerRecord("orders", b"gathered"))  # the child finds a bundle that takes records without any check
    answer = in_a_fork(lambda: CALLS[call](producer))
    assert answer.startswith("[KAFKA_ILLEGAL_STATE]")
    assert "make a KafkaProducer in the child process" in answer


def test_a_child_closes_its_parents_producer_at_once_and_the_parent_goes_on(broker: FakeBroker, producer: TaskProducer) -> None:
    producer.send(ProducerRecord("orders", b"first", partition=0))
    producer.flush(WAIT_MS)  # all connections are made now
    connections = len(broker.requests_of(ApiKey.API_VERSIONS))
    future = producer.send(ProducerRecord("orders", b"gathered", partition=0))
    assert in_a_fork(producer.close) is None
    assert in_a_fork(lambda: producer.close(0)) is None
    assert in_a_fork(lambda: producer.__exit__(None, None, None)) is None
    producer.flush(WAIT_MS)
    assert future.result(0).topic == "orders"
    assert broker.values("orders") == [b"first", b"gathered"]
    assert len(broker.requests_of(ApiKey.API_VERSIONS)) == connections  # none was lost


@pytest.mark.parametrize("wait", ["result", "exception"])
def test_a_child_does_not_wait_for_what_its_parent_sent(producer: TaskProducer, wait: str) -> None:
    future = producer.send(ProducerRecord("orders", b"v"))
    delivery = producer.send_columns("orders", value=pa.array([b"w"]), partition=pa.array([0], pa.int32()))
    for waiting in (getattr(future, wait), delivery.result):
        answer = in_a_fork(waiting)
        assert answer is not None
        assert "[KAFKA_ILLEGAL_STATE]" in answer
    assert in_a_fork(future.done) is False


def test_a_child_can_read_what_was_settled_before_the_fork(producer: TaskProducer) -> None:
    future = producer.send(ProducerRecord("orders", b"v", partition=1))
    delivery = producer.send_columns("orders", value=pa.array([b"w"]), partition=pa.array([0], pa.int32()))
    producer.flush(WAIT_MS)
    assert in_a_fork(lambda: future.result().offset) == 0
    assert in_a_fork(lambda: delivery.result().acknowledged) == 1


def test_locks_that_another_thread_held_at_the_fork_do_not_stop_a_child(producer: TaskProducer) -> None:
    """A lock that was held stays locked in the child for ever. The Sender holds each of these for moments all the time."""
    future = producer.send(ProducerRecord("orders", b"v"))
    delivery = producer.send_columns("orders", value=pa.array([b"w"]), partition=pa.array([0], pa.int32()))
    locks = [
        future._bundle._outcome_lock,
        delivery._lock,
        producer._metadata._lock,
        producer._gatherer.hand_overs._lock,
        producer._accumulator.incomplete._lock,
        producer._pool._lock,
        producer._metrics._lock,
    ]
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        leave.wait(WAIT_MS / 1000)
        for lock in locks:
            lock.release()

    def everything() -> list[str]:
        answers = []
        for call in [*(lambda call=call: call(producer) for call in CALLS.values()), future.result, delivery.result]:
            try:
                call()
            except IllegalStateError as error:
                answers.append(error.condition)
        answers += [str(future.done()), str(producer.is_at_rest()), str(producer.metrics()["buffer-available-bytes"] > 0)]
        producer.close()
        return answers

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_MS / 1000)
    try:
        answers = in_a_fork(everything)
    finally:
        leave.set()
        thread.join(WAIT_MS / 1000)
    assert answers == ["KAFKA_ILLEGAL_STATE"] * (len(CALLS) + 2) + ["False", "False", "True"]


def test_a_child_may_make_a_producer_of_its_own(broker: FakeBroker, producer: TaskProducer) -> None:
    def write() -> int:
        with TaskProducer({"bootstrap.servers": broker.bootstrap_servers}) as own:
            delivery = own.send_columns("orders", value=pa.array([b"of the child"]))
            return delivery.result(WAIT_MS).acknowledged

    assert in_a_fork(write) == 1
    assert broker.values("orders") == [b"of the child"]
    producer.send(ProducerRecord("orders", b"of the parent"))
    producer.flush(WAIT_MS)
    assert sorted(filter(None, broker.values("orders"))) == [b"of the child", b"of the parent"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_child_refuses_its_parents_old_producer(broker: FakeBroker, kind: str) -> None:
    options = {"metadata.broker.list": broker.bootstrap_servers, "producer.type": kind}
    with Producer({**options, "serializer.class": "kafka.serializer.StringEncoder"}) as producer:
        answer = in_a_fork(lambda: producer.send(KeyedMessage("orders", message="m")))
        assert answer.startswith("[KAFKA_ILLEGAL_STATE]")
        assert in_a_fork(producer.close) is None


@pytest.mark.parametrize("raises", [False, True], ids=["ends", "raises"])
def test_a_transaction_whose_block_ends_in_a_fork_is_left_to_the_parent(broker: FakeBroker, raises: bool) -> None:
    """The child waited for max.block.ms for a Sender that it does not have."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "copies-1"}
    with TaskProducer(options) as producer:
        producer.init_transactions()
        block = producer.transaction()
        block.__enter__()
        producer.send_columns("orders", value=pa.array([b"a"]), partition=pa.array([0], pa.int32())).result(WAIT_MS)
        error = KeyError("of the block") if raises else None
        answer = in_a_fork(lambda: block.__exit__(error and KeyError, error, None))
        block.__exit__(None, None, None)
        broker.transactions.write_markers()
    assert answer is False if raises else "[KAFKA_ILLEGAL_STATE]" in answer
    assert broker.committed_values("orders") == [b"a"]
