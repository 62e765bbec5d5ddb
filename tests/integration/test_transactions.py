"""KafkaProducer's transactions against a real broker, seen by other clients: what readers of committed records are shown."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.offsets import CommittedOffset
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionEnd
from spark_kafka_sink.errors import FatalProducerError, ProducerFencedError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.topic_partition import TopicPartition
from tests.integration.reading import ReadTopic, Topic
from tests.integration.transaction_brokers import transactional

ROOT = Path(__file__).parents[2]


def committed(read_topic: ReadTopic, name: str, client: str = "confluent-kafka") -> list[bytes | None]:
    return [record.value for record in read_topic(name, client, isolation_level="read_committed")]


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
def test_readers_of_committed_records_see_what_was_committed_and_nothing_else(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, client: str
) -> None:
    name = topic(partitions=2)
    partition = pa.array([0, 1], pa.int32())
    with transactional(broker.bootstrap_servers) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send_columns(name, value=pa.array([f"{number}-0", f"{number}-1"]), partition=partition)
            if number % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert sorted(committed(read_topic, name, client)) == [b"0-0", b"0-1", b"2-0", b"2-1", b"4-0", b"4-1"]
    assert len(read_topic(name, client)) == 12  # who reads uncommitted records sees the aborted ones too


def test_offsets_take_effect_with_the_commit_and_not_with_an_abort(broker: LocalKafka, topic: Topic) -> None:
    name, group = topic(), f"G-{uuid.uuid4().hex}"
    where = TopicPartition(name, 0)
    with (
        TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client,
        transactional(broker.bootstrap_servers) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(name, value=pa.array(["a"]))
        producer.send_offsets_to_transaction({where: OffsetAndMetadata(5, "first")}, ConsumerGroupMetadata(group))
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send_columns(name, value=pa.array(["b"]))
        producer.send_offsets_to_transaction({where: OffsetAndMetadata(9, "second")}, ConsumerGroupMetadata(group))
        producer.abort_transaction()
        assert client.fetch_offsets({group: [where]}, require_stable=True)[group] == {where: CommittedOffset(5, "first")}


def test_a_successor_aborts_what_its_predecessor_left_open_and_fences_it(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name, transactional_id = topic(), f"T-{uuid.uuid4().hex}"
    with transactional(broker.bootstrap_servers, transactional_id) as successor:
        predecessor = transactional(broker.bootstrap_servers, transactional_id)
        predecessor.init_transactions()
        predecessor.begin_transaction()
        predecessor.send_columns(name, value=pa.array(["left open"]))
        predecessor.flush()
        successor.init_transactions()
        with pytest.raises(ProducerFencedError):
            predecessor.commit_transaction()
        with successor.transaction():
            successor.send_columns(name, value=pa.array(["by the successor"]))
        with pytest.raises(FatalProducerError):
            predecessor.begin_transaction()
        predecessor.close()
    assert committed(read_topic, name) == [b"by the successor"]


def test_librdkafka_and_this_producer_fence_each_other(broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    import confluent_kafka

    name, transactional_id = topic(), f"T-{uuid.uuid4().hex}"

    def theirs() -> confluent_kafka.Producer:
        other = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
        other.init_transactions(60)
        other.begin_transaction()
        return other

    first = theirs()
    first.produce(name, b"theirs, open")
    first.flush(60)
    with transactional(broker.bootstrap_servers, transactional_id) as ours:
        ours.init_transactions()
        ours.begin_transaction()
        ours.send_columns(name, value=pa.array(["ours, open"]))
        ours.flush()
        with pytest.raises(confluent_kafka.KafkaException, match=r"_FENCED|fenced"):
            first.commit_transaction(60)
        last = theirs()
        last.produce(name, b"theirs, committed")
        last.commit_transaction(60)
        with pytest.raises(ProducerFencedError):
            ours.commit_transaction()
    assert committed(read_topic, name) == [b"theirs, committed"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_is_ended_by_another_client(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, commit: bool
) -> None:
    name = topic()
    with TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client:
        with transactional(broker.bootstrap_servers) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_columns(name, value=pa.array(["prepared"]))
            prepared = producer.prepare_transaction()
        assert committed(read_topic, name) == []  # closing has left it open
        assert client.end_transactions([prepared], commit=commit)[prepared.transactional_id].end is TransactionEnd.ENDED
    assert committed(read_topic, name) == ([b"prepared"] if commit else [])


def test_a_transaction_of_many_batches_and_codecs_is_one(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic, codec: str
) -> None:
    name = topic(partitions=3)
    values = pa.array([f"{number:>200}" for number in range(20_000)])
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"T-{uuid.uuid4().hex}"}
    with KafkaProducer({**options, "compression.type": codec, "batch.size": 16_384}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(name, value=values)
        producer.abort_transaction()
        assert committed(read_topic, name) == []
        with producer.transaction():
            producer.send_columns(name, value=values)
    assert Counter(committed(read_topic, name)) == Counter(each.encode() for each in values.to_pylist())


COPY = """
import sys
import confluent_kafka as ck
import pyarrow as pa
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.topic_partition import TopicPartition

address, source, target, group, records = sys.argv[1:]
consumer = ck.Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False,
                        "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
producer = KafkaProducer({"bootstrap.servers": address, "transactional.id": group})
producer.init_transactions()  # the predecessor's transaction is at its end: its offsets are, or never will be
position = max(0, consumer.committed([ck.TopicPartition(source, 0)], 60)[0].offset)
consumer.assign([ck.TopicPartition(source, 0, position)])
while position < int(records):
    messages = [each for each in consumer.consume(50, timeout=0.2) if each.error() is None]
    if not messages:
        continue
    position = messages[-1].offset() + 1
    with producer.transaction():
        producer.send_columns(target, value=pa.array([each.value() for each in messages]))
        offsets = {TopicPartition(source, 0): OffsetAndMetadata(position)}
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))
    print(position, flush=True)
producer.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_consume_transform_produce_copies_each_record_once_through_kills(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """Killed with SIGKILL between any two lines, ten times; the successor goes on where the last commit was."""
    source, target, group, records = topic(), topic(partitions=2), f"G-{uuid.uuid4().hex}", 3_000
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_columns(source, value=pa.array([str(number) for number in range(records)]))
    command = [sys.executable, "-c", COPY, broker.bootstrap_servers, source, target, group, str(records)]
    chance = random.Random(7)
    for _ in range(10):
        copier = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert copier.stdout is not None
        for _ in range(chance.randrange(1, 4)):
            copier.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):  # it is never done before the last run
            copier.wait(chance.random() / 20)
        copier.send_signal(signal.SIGKILL)
        copier.communicate(timeout=60)
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=120)
    assert Counter(committed(read_topic, target)) == Counter(str(number).encode() for number in range(records))


def test_after_a_transaction_that_brokers_ended_for_its_age_the_next_one_commits(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    name, transactional_id = topic(), f"T-{uuid.uuid4().hex}"
    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
    with (
        TransactionClient({"bootstrap.servers": broker.bootstrap_servers}) as client,
        KafkaProducer(options) as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(name, value=pa.array(["late"]))
        prepared = producer.prepare_transaction()
        # what the coordinator does when transaction.timeout.ms has passed
        ended = client.end_transactions([prepared], commit=False)
        assert ended[prepared.transactional_id].end is TransactionEnd.ENDED
        with pytest.raises(FatalProducerError, match=r"^\[KAFKA_INVALID_TXN_STATE\] "):
            producer.commit_transaction()
    with transactional(broker.bootstrap_servers, transactional_id) as successor:
        successor.init_transactions()
        with successor.transaction():
            successor.send_columns(name, value=pa.array(["next"]))
    assert committed(read_topic, name) == [b"next"]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_producer_whose_epochs_run_out_goes_on_with_another_id(broker: LocalKafka, topic: Topic, read_topic: ReadTopic) -> None:
    """Each end of a transaction bumps the epoch (KIP-890), up to 32,767: then the coordinator gives another producer id."""
    name, transactions = topic(), 2**15 + 10
    value = pa.array(["a"])
    with transactional(broker.bootstrap_servers) as producer:
        producer.init_transactions()
        prepared = []
        for number in range(transactions):
            producer.begin_transaction()
            producer.send_columns(name, value=value)
            if number in (0, transactions - 1):
                prepared.append(producer.prepare_transaction())
            producer.commit_transaction()
    first, last = prepared
    assert first.producer_id != last.producer_id
    assert last.producer_epoch < 20
    assert len(committed(read_topic, name)) == transactions
