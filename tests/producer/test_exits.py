"""A program that ends with rows in a producer's queues: they are sent, or it says how many are lost.

`producer.send("orders", b"v")` as the last line of a script lost the row, with exit code 0 and without a word: the Sender is a
daemon thread. `atexit.register(producer.close)` lost it too where pandas was installed: the columns of the row were made by
pa.array, which imports pandas, and that fails in an exit handler.
"""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.background import BackgroundWorker
from spark_kafka_sink.producer import exits
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.fakes.fake_broker import FakeBroker
from tests.producer.producers import producer_of
from tests.producer.programs import run_program

MAKE = "producer = KafkaProducer(OPTIONS)\n"


# ALL ROWS ARRIVE


@pytest.mark.parametrize("method", ["close", "flush"])
def test_an_exit_handler_of_the_program_may_close_or_flush_the_producer(broker: FakeBroker, method: str) -> None:
    code = f"{MAKE}atexit.register(producer.{method})\nproducer.send('orders', b'v', key=b'k', headers=[('h', b'1')])"
    done = run_program(code, broker)
    assert broker.values("orders") == [b"v"]
    assert done.stderr == ""


SENDS = {
    "one record": "producer.send('orders', b'v')",
    "a record with details": "producer.send('orders', b'v', key=b'k', partition=1, headers=[('h', None)], timestamp=5)",
    "columns": "producer.send_columns('orders', value=bytes_array([b'v']))",
    "in a thread": "threading.Thread(target=producer.send, args=('orders', b'v'), daemon=True).run()",
}


@pytest.mark.parametrize("send", SENDS)
def test_rows_arrive_though_nobody_closes_the_producer(broker: FakeBroker, send: str) -> None:
    done = run_program(MAKE + SENDS[send], broker)
    assert broker.values("orders") == [b"v"]
    assert done.stderr == ""


def test_all_producers_of_the_program_are_closed(broker: FakeBroker) -> None:
    code = "for value in (b'a', b'b', b'c'):\n    KafkaProducer(OPTIONS).send('single', value)"  # only their threads know them
    assert run_program(code, broker).stderr == ""
    assert sorted(broker.values("single")) == [b"a", b"b", b"c"]  # type: ignore[type-var]


def test_messages_of_the_old_producer_arrive_too(broker: FakeBroker) -> None:
    """Its queue is sent by a thread of its own, which needs an inner producer that is still open."""
    code = (
        "from spark_kafka_sink.legacy.producer import KeyedMessage, Producer\n"
        "producer = Producer({'metadata.broker.list': sys.argv[1], 'producer.type': 'async', 'request.required.acks': -1,"
        " 'queue.buffering.max.ms': 600_000})\n"
        "producer.send(*[KeyedMessage('single', None, b'%d' % number) for number in range(450)])"
    )
    assert run_program(code, broker).stderr == ""
    assert broker.values("single") == [b"%d" % number for number in range(450)]


def test_an_open_transaction_is_aborted(broker: FakeBroker) -> None:
    """As by close(); it would have stayed open until transaction.timeout.ms, and readers would have waited behind it."""
    code = (
        "producer = KafkaProducer(OPTIONS | {'transactional.id': 'id'})\nproducer.init_transactions()\n"
        "producer.begin_transaction()\nproducer.send('single', b'v')"
    )
    run_program(code, broker)
    assert broker.committed_values("single") == []
    assert broker.last_stable_offset("single", 0) == 2  # behind the row and the marker: nothing is open


def test_a_name_is_resolved_though_python_starts_no_threads_any_more(broker: FakeBroker) -> None:
    """Python 3.12 and newer refuse new threads when the program ends. The address of a broker that the producer had not met was
    looked up on a new thread, so its rows were lost."""
    code = (
        "import threading\nstart = threading.Thread.start\n"
        "def refuse(thread):\n"
        '    if not threading.main_thread().is_alive():\n        raise RuntimeError("can\'t create new thread")\n'
        "    start(thread)\n"
        "threading.Thread.start = refuse\n"
        "OPTIONS['bootstrap.servers'] = OPTIONS['bootstrap.servers'].replace('127.0.0.1', 'localhost')\n"
        f"{MAKE}atexit.register(producer.send, 'orders', b'v')"  # nothing is connected yet
    )
    assert run_program(code, broker).stderr == ""
    assert broker.values("orders") == [b"v"]


def test_while_the_program_runs_a_refused_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    worker = BackgroundWorker(lambda: None)
    worker.start(1, lambda: "not run here", 10_000)
    ((_, outcome),) = worker.take_finished()
    assert isinstance(outcome.error, NetworkError)


# ROWS ARE LOST

SHORT_MS = 500  # for what never comes


def lost_line(count: str, names: str) -> str:
    return (
        f"pykafka-sink: the program ends, and {count} lost, as no broker has acknowledged them ({names}); some may be written."
        " Call flush() or close() of the producer before the end, or make it by `with`\n"
    )


def test_rows_that_no_broker_acknowledges_are_counted(broker: FakeBroker) -> None:
    """The limit holds for all producers together: with one second for each, a program with many would not end."""
    broker.hold_next(ApiKey.PRODUCE, times=100)
    code = (
        "producers = [KafkaProducer(OPTIONS | {'client.id': f'p{number}'}) for number in range(3)]\n"
        "for producer in producers[:2]:\n"
        "    [producer.send('orders', b'v') for _ in range(600)]\n"
        "    producer.send_columns('other', value=bytes_array([b'w'] * 400))"
    )
    done = run_program(code, broker, SHORT_MS)
    assert done.stderr == lost_line("2,000 rows that it sent are", "1,000 of KafkaProducer(p0), 1,000 of KafkaProducer(p1)")


def test_rows_that_fail_at_the_end_are_counted(broker: FakeBroker) -> None:
    broker.drop_next(ApiKey.PRODUCE, times=10_000)
    code = (
        "producer = KafkaProducer(OPTIONS | {'client.id': 'p', 'delivery.timeout.ms': 300, 'request.timeout.ms': 100,"
        " 'linger.ms': 0, 'retry.backoff.ms': 5})\n"
        "producer.send('orders', b'v', callback=lambda _, error: print(error.condition))"
    )
    done = run_program(code, broker)
    assert done.stderr.endswith(lost_line("1 row that it sent is", "1 of KafkaProducer(p)"))
    assert done.stdout == "KAFKA_DELIVERY_TIMEOUT\n"


def test_callbacks_of_rows_that_are_left_get_an_error(broker: FakeBroker) -> None:
    broker.hold_next(ApiKey.PRODUCE, times=100)
    done = run_program(f"{MAKE}producer.send('orders', b'v', callback=lambda _, error: print(error.condition))", broker, SHORT_MS)
    assert done.stdout == "KAFKA_PRODUCER_CLOSED\n"


def test_messages_of_the_old_producer_are_counted(broker: FakeBroker) -> None:
    broker.hold_next(ApiKey.PRODUCE, times=100)
    code = (
        "from spark_kafka_sink.legacy.producer import KeyedMessage, Producer\n"
        "producer = Producer({'metadata.broker.list': sys.argv[1], 'producer.type': 'async', 'request.required.acks': -1,"
        " 'client.id': 'old'})\n"
        "producer.send(*[KeyedMessage('single', None, b'%d' % number) for number in range(450)])"
    )
    assert run_program(code, broker, SHORT_MS, SHORT_MS).stderr == lost_line("450 rows that it sent are", "450 of Producer(old)")


LOCKS = {
    "the signal": "producer._sender.end_signal._lock",
    "the forced end": "producer._sender._forced_end_signal._lock",
    "the bundle": "producer._gatherer._encodings['orders'].bundle_lock",
    "the records of the bundle": "producer._gatherer.bundles['orders']._lock",
    "the pool": "producer._pool._lock",
    "the metrics": "producer._metrics._lock",
    "the batches": "producer._accumulator.incomplete._lock",
    "the hand-overs": "producer._gatherer.hand_overs._lock",
}


@pytest.mark.parametrize("lock", LOCKS)
def test_the_program_ends_though_an_interrupt_left_a_lock_locked(broker: FakeBroker, lock: str) -> None:
    code = f"{MAKE}producer.send('orders', b'v')\n{LOCKS[lock]}.acquire()"
    done = run_program(code, broker, SHORT_MS, SHORT_MS)
    assert done.stderr in ("", lost_line("1 row that it sent is", "1 of KafkaProducer(producer-1)"))
    assert len(broker.values("orders")) + len(done.stderr.splitlines()) >= 1  # it is there, or reported


def test_the_program_ends_though_a_callback_never_returns(broker: FakeBroker) -> None:
    code = f"{MAKE}producer.send('orders', b'v', callback=lambda *_: threading.Event().wait())\nproducer.send('other', b'w')"
    run_program(code, broker, SHORT_MS, SHORT_MS)
    assert broker.values("orders") == [b"v"]


# WHO IS LEFT ALONE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_leaves_its_parents_rows_alone(broker: FakeBroker) -> None:
    code = (
        f"{MAKE}import os\nproducer.send('orders', b'v')\n"
        "child = os.fork()\nif child:\n    print(os.waitpid(child, 0)[1])\nelse:\n    sys.exit(0)"
    )
    done = run_program(code, broker)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert broker.values("orders") == [b"v"]


def test_producers_of_the_sinks_tasks_are_left_alone(broker: FakeBroker) -> None:
    """Spark's workers run exit handlers with spark.python.use.daemon=false. A task that has ended has flushed, and the rows of
    one that was killed must not be sent: Spark runs it again."""
    code = (
        "from spark_kafka_sink.producer.task_producer import TaskProducer\n"
        "producer = TaskProducer(OPTIONS)\nproducer.send('orders', b'v')"
    )
    assert run_program(code, broker).stderr == ""
    assert broker.values("orders") == []


def test_the_exit_handler_keeps_no_producer_alive(broker: FakeBroker) -> None:
    producer = producer_of(broker)
    reference, sender_reference = weakref.ref(producer), weakref.ref(producer._sender)
    producer.close()
    producer._thread.join(30)
    del producer
    gc.collect()
    assert (reference(), sender_reference()) == (None, None)
    assert all(each() is not None for each in exits._registrations)


def test_a_closed_producer_is_not_mentioned(broker: FakeBroker) -> None:
    code = f"{MAKE}producer.send('orders', b'v')\nproducer.close()"
    assert run_program(code, broker).stderr == ""
