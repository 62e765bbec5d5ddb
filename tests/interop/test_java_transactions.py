"""Java's transactional producer and ours under one transactional id, and Java's reader of committed records."""

from __future__ import annotations

import subprocess
import threading
import uuid
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pytest

from jobs.java import find_java
from jobs.local_kafka import LocalKafka
from spark_kafka_sink.errors import AbortableTransactionError, FatalProducerError, ProducerFencedError
from spark_kafka_sink.producer.producer import KafkaProducer
from tests.integration.reading import ReadTopic, Topic, read_values_with_console_consumer

PROGRAM = Path(__file__).with_name("TransactionalProducer.java")
LIMIT_S = 120  # of one JVM's life


class JavaProducer:
    """TransactionalProducer.java in a process of its own, which the end of the `with` block ends."""

    def __init__(self, jars: Path, broker: LocalKafka, transactional_id: str, topic: str) -> None:
        arguments = [broker.bootstrap_servers, transactional_id, topic]
        self._process = subprocess.Popen(
            [str(find_java()), "-Xmx256m", "-cp", f"{jars}/*", str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._watchdog = threading.Timer(LIMIT_S, self._process.kill)  # an answer that does not come is an end of its output
        self._watchdog.start()

    def does(self, *lines: str) -> str:
        """The answer to the last of these lines."""
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        return answer

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer, "the Java producer has ended"
        return answer

    def __enter__(self) -> JavaProducer:
        assert self._answer() == "ready"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.communicate(timeout=LIMIT_S)


@pytest.fixture
def transactional_id() -> str:
    return f"T-{uuid.uuid4().hex}"


def ours(broker: LocalKafka, transactional_id: str) -> KafkaProducer:
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})


def committed(read_topic: ReadTopic, name: str) -> list[bytes | None]:
    return [record.value for record in read_topic(name, isolation_level="read_committed")]


def test_javas_producer_fences_ours_and_ours_fences_javas(
    kafka_jars: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, transactional_id: str
) -> None:
    """Each takes over from the other within a transaction, which is aborted."""
    name = topic()
    with (
        JavaProducer(kafka_jars, broker, transactional_id, name) as first,
        ours(broker, transactional_id) as second,
        JavaProducer(kafka_jars, broker, transactional_id, name) as third,
        ours(broker, transactional_id) as fourth,
    ):
        assert first.does("init", "begin", "send committed by Java", "commit") == "done"
        assert first.does("begin", "send left open by Java") == "done"

        second.init_transactions()
        assert first.does("commit") == "ProducerFencedException"
        with second.transaction():
            second.send_columns(name, value=pa.array(["committed by us"]))
        second.begin_transaction()
        second.send_columns(name, value=pa.array(["left open by us"])).result(60_000)

        assert third.does("init") == "done"
        with pytest.raises(ProducerFencedError):
            second.commit_transaction()
        with pytest.raises(FatalProducerError):
            second.begin_transaction()
        assert third.does("begin", "send committed by Java again", "commit", "begin", "send left open again") == "done"

        fourth.init_transactions()
        with fourth.transaction():
            fourth.send_columns(name, value=pa.array(["committed by us again"]))
        assert third.does("send too late") != "done"
        assert third.does("abort") != "done"
    assert committed(read_topic, name) == [
        b"committed by Java",
        b"committed by us",
        b"committed by Java again",
        b"committed by us again",
    ]


def test_a_row_that_is_sent_after_java_has_taken_over_is_refused(
    kafka_jars: Path, broker: LocalKafka, topic: Topic, read_topic: ReadTopic, transactional_id: str
) -> None:
    name = topic()
    with (
        ours(broker, transactional_id) as zombie,
        JavaProducer(kafka_jars, broker, transactional_id, name) as successor,
    ):
        zombie.init_transactions()
        zombie.begin_transaction()
        assert successor.does("init", "begin", "send by the successor") == "done"
        delivery = zombie.send_columns(name, value=pa.array(["by the zombie"]))
        with pytest.raises(AbortableTransactionError):  # the leader does not say why it knows a newer epoch
            zombie.commit_transaction()
        assert delivery.error is not None
        with pytest.raises(ProducerFencedError):  # the coordinator does
            zombie.abort_transaction()
        assert successor.does("commit") == "done"
    assert [record.value for record in read_topic(name)] == [b"by the successor"]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_javas_console_consumer_shows_what_was_committed_and_nothing_else(
    kafka_jars: Path, broker: LocalKafka, topic: Topic, transactional_id: str, codec: str
) -> None:
    """Transactions of many batches, committed and aborted in turn. Records come in order, so that one of an aborted transaction
    would stand before the last one."""
    name = topic()
    shown = []
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "compression.type": codec}
    with KafkaProducer(options | {"batch.size": 2_000}) as producer:
        producer.init_transactions()
        for number in range(7):
            producer.begin_transaction()
            values = [f"{number}-{row:0100d}" for row in range(100)]
            producer.send_columns(name, value=pa.array(values))
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                shown += values
    read = read_values_with_console_consumer(
        kafka_jars, broker.bootstrap_servers, name, len(shown), isolation_level="read_committed"
    )
    assert read == shown
