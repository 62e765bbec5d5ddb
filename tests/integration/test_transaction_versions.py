"""Transactions on brokers whose transaction.version is below 2, and while that feature is raised under a producer at work.

What test_transactions.py claims of Kafka 4.3 holds on 4.3 with transaction.version=1 and 0, on 3.9, and on 2.8.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.errors import FatalProducerError, KafkaError
from spark_kafka_sink.exactly_once.writes import TaskReport
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol.producer_identity import PreparedTransaction
from tests.broker_properties import QUICK_EXPIRY
from tests.exactly_once.stepwise_writes import DriverRun
from tests.fakes.zookeeper_kafka import ZooKeeperKafka
from tests.integration.exactly_once_world import world_of
from tests.integration.processes import until
from tests.integration.reading import READERS, ReadTopic, Topic, kafka_tool
from tests.integration.test_transactions import (  # noqa: F401 - run here too, with this module's broker
    test_a_prepared_transaction_is_ended_by_another_client,
    test_a_successor_aborts_what_its_predecessor_left_open_and_fences_it,
    test_a_transaction_of_many_batches_and_codecs_is_one,
    test_after_a_transaction_that_brokers_ended_for_its_age_the_next_one_commits,
    test_librdkafka_and_this_producer_fence_each_other,
    test_offsets_take_effect_with_the_commit_and_not_with_an_abort,
    test_readers_of_committed_records_see_what_was_committed_and_nothing_else,
)
from tests.integration.test_transactions import (
    test_consume_transform_produce_copies_each_record_once_through_kills as kill_copies,
)
from tests.integration.transaction_brokers import (
    KAFKA_2_8,
    KAFKA_3_9,
    VERSION_0,
    VERSION_1,
    WITH_VERSION_0,
    WITH_VERSION_1,
    transactional,
)


@pytest.fixture(scope="module", params=[WITH_VERSION_1, WITH_VERSION_0, KAFKA_3_9, KAFKA_2_8])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka | ZooKeeperKafka]:
    with request.param(tmp_path_factory.mktemp("broker")) as cluster:
        yield cluster


def write_one(producer: KafkaProducer, topic: str, *values: str) -> PreparedTransaction:
    """A transaction of these values, and what it was."""
    producer.begin_transaction()
    producer.send_columns(topic, value=pa.array(values))
    prepared = producer.prepare_transaction()
    producer.commit_transaction()
    return prepared


def test_these_brokers_have_transactions_of_version_1_and_their_epoch_stays(
    broker: LocalKafka | ZooKeeperKafka, topic: Topic
) -> None:
    name = topic()
    with transactional(broker.bootstrap_servers) as producer:
        producer.init_transactions()
        first, second = (write_one(producer, name, "a") for _ in range(2))
    assert first.transaction_version == 1
    assert first == second


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_consume_transform_produce_copies_each_record_once_here_too(
    broker: LocalKafka, topic: Topic, read_topic: ReadTopic
) -> None:
    """A group joins a transaction of version 1 by a request of its own, AddOffsetsToTxn."""
    kill_copies(broker, topic, read_topic)


@pytest.mark.slow
@pytest.mark.parametrize("format_options", [(), VERSION_0], ids=["2", "0"])
def test_a_replaced_producer_does_not_come_back_after_its_id_has_expired(tmp_path: Path, format_options: tuple[str, ...]) -> None:
    """Brokers forget an id, and who was replaced, a week after its last use; here after three seconds. The replaced producer went
    on under a new identity, and fenced its successor. (Where the leader still knows the successor, an abort comes first.)"""
    with LocalKafka(tmp_path, properties=QUICK_EXPIRY, format_options=format_options) as cluster:
        address = cluster.bootstrap_servers
        cluster.create_topic("t", 2)
        with (
            TransactionClient({"bootstrap.servers": address}) as client,
            transactional(address, "T") as replaced,
            transactional(address, "T") as successor,
        ):
            for producer, value in ((replaced, "a"), (successor, "b")):
                producer.init_transactions()
                write_one(producer, "t", value)
            until(lambda: client.describe_transactions(["T"]) == {"T": None}, 60, "the id has expired")
            for producer in (replaced, successor, replaced):
                with pytest.raises(FatalProducerError, match="INVALID_PRODUCER_ID_MAPPING"), producer.transaction():
                    producer.send_columns("t", value=pa.array(["twice"]))
            with transactional(address, "T") as fresh:
                fresh.init_transactions()
                write_one(fresh, "t", "c")
        read = READERS["confluent-kafka"](address, "t", isolation_level="read_committed")
    assert sorted(record.value for record in read) == [b"a", b"b", b"c"]


def changing_level(jars: Path, cluster: LocalKafka, how: str, level: int) -> Iterator[None]:
    """Change the level by kafka-features. Yields again and again until that is done."""
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, how, "--feature", f"transaction.version={level}"]
    command = kafka_tool(jars, "FeatureCommand", *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tool:
        while tool.poll() is None:
            yield
        assert tool.stdout is not None
        assert tool.returncode == 0, tool.stdout.read()


@pytest.mark.slow
@pytest.mark.parametrize("format_options", [VERSION_0, VERSION_1], ids=["from 0", "from 1"])
def test_a_producer_at_work_takes_version_2_up_after_the_feature_was_raised(
    kafka_jars: Path, tmp_path: Path, format_options: tuple[str, ...]
) -> None:
    """kafka-features raises it while transactions are written. Brokers tell their features with a new connection only: here when
    the broker is restarted, in the middle of a transaction, which ends as it began."""
    written: list[str] = []

    def next_values() -> list[str]:
        values = [str(len(written)), str(len(written) + 1)]
        written.extend(values)
        return values

    with (
        LocalKafka(tmp_path, format_options=format_options) as cluster,
        transactional(cluster.bootstrap_servers) as producer,
    ):
        cluster.create_topic("t", 2)
        producer.init_transactions()
        before = [write_one(producer, "t", *next_values())]
        for _ in changing_level(kafka_jars, cluster, "upgrade", 2):
            before.append(write_one(producer, "t", *next_values()))
        before.append(write_one(producer, "t", *next_values()))
        producer.begin_transaction()
        producer.send_columns("t", value=pa.array(next_values()))
        producer.flush()
        cluster.terminate(1)
        cluster.restart(1)
        producer.send_columns("t", value=pa.array(next_values()))
        producer.commit_transaction()
        after = [write_one(producer, "t", *next_values()) for _ in range(3)]
        read = READERS["confluent-kafka"](cluster.bootstrap_servers, "t", isolation_level="read_committed")
    assert {each.transaction_version for each in before} == {1}
    assert len(set(before)) == 1
    assert {each.transaction_version for each in after} == {2}
    epochs = [each.producer_epoch for each in after]
    assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
    assert epochs[0] > before[0].producer_epoch
    assert {each.producer_id for each in after} == {before[0].producer_id}
    assert Counter(record.value for record in read) == Counter(value.encode() for value in written)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exactly_once_writes_go_on_while_the_level_changes(kafka_jars: Path, tmp_path: Path) -> None:
    """From 0 to 1 to 2, and back to 1, by kafka-features. Transactions are open at a change, decisions are carried out after it,
    and each write fences what others have left. Nothing is lost, doubled or wedged."""
    versions = itertools.count()
    rows: list[str] = []
    levels: list[int] = []

    def write(driver: DriverRun, end: Callable[[list[TaskReport]], object]) -> None:
        version = next(versions)
        new_rows = [f"{version}-{number}" for number in range(3)]
        reports = driver.reports(version, new_rows[:1], [], new_rows[1:])
        levels.append(reports[0].entry.transaction_version)
        end(reports)
        rows.extend(new_rows)

    with LocalKafka(tmp_path, brokers=3, format_options=VERSION_0) as cluster, world_of(cluster) as world:
        lasting = world.run("lasting")  # its connections stay open
        for how, level in (("upgrade", 1), ("upgrade", 2), ("downgrade", 1)):
            dying, amid = world.run(f"dying at {how} to {level}"), world.run(f"amid {how} to {level}")
            write(dying, dying.decide)
            open_reports = amid.reports(next(versions), ["amid"])
            for _ in changing_level(kafka_jars, cluster, how, level):
                orphan = world.run("orphan", owner=f"other{len(levels) % 3}")
                orphan.reports(0, ["orphan"], [])
                write(lasting, lasting.commit)
            write(lasting, lasting.commit)
            with contextlib.suppress(KafkaError):  # later versions have been committed meanwhile
                amid.commit(open_reports)
            fresh = world.run("fresh")
            write(fresh, fresh.commit)
        print(f"{len(levels)} versions, by their level: {dict(Counter(levels))}")
        assert {1, 2} == set(levels)
        world.audit(rows)
        ids = [each.transactional_id for each in world.client.list_transactions(f"{world.prefix}-")]
        assert len(world.client.fence(ids)) == len(ids) > 0  # none is wedged
