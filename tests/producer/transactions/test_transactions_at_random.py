"""Transactions under faults at random: each one ends, and readers see the rows of those whose commit has returned, each once.

The faults are what brokers and networks do to a healthy producer: errors that pass, errors that cost the transaction, connections
that are lost before or after a request was carried out, coordinators and leaders that move. None of them may end the producer.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import FatalProducerError, KafkaError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.txn_requests.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import Errors
from spark_kafka_sink.protocol.messages.find_coordinator import KeyType
from tests.fakes.fake_broker import FakeBroker
from tests.producer.harness import tp
from tests.producer.transactions.transactional_brokers import COORDINATOR_APIS

ID, GROUP = "copies-1", "readers"
PARTITIONS = 3
TRANSACTIONS = 25
PASSING = [
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_COORDINATOR,
    Errors.CONCURRENT_TRANSACTIONS,
    Errors.REQUEST_TIMED_OUT,
]
COSTING = {
    ApiKey.ADD_PARTITIONS_TO_TXN: [Errors.TOPIC_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE, Errors.UNKNOWN_SERVER_ERROR],
    ApiKey.ADD_OFFSETS_TO_TXN: [Errors.GROUP_AUTHORIZATION_FAILED, Errors.TRANSACTION_ABORTABLE],
    ApiKey.TXN_OFFSET_COMMIT: [Errors.ILLEGAL_GENERATION, Errors.TRANSACTION_ABORTABLE, Errors.GROUP_AUTHORIZATION_FAILED],
    ApiKey.PRODUCE: [
        Errors.INVALID_RECORD,
        Errors.TOPIC_AUTHORIZATION_FAILED,
        Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Errors.TRANSACTION_ABORTABLE,
        Errors.UNKNOWN_SERVER_ERROR,
    ],
}


def disturb(broker: FakeBroker, chance: Random) -> None:
    """One fault for one of the next requests, or something that moves."""
    kind = chance.randrange(7)
    if kind == 0:
        broker.fail_next(chance.choice(COORDINATOR_APIS), chance.choice(PASSING), after_append=chance.random() < 0.5)
    elif kind == 1:
        broker.drop_next(chance.choice([*COORDINATOR_APIS, ApiKey.PRODUCE]), after_append=chance.random() < 0.5)
    elif kind == 2:
        api = chance.choice(list(COSTING))
        broker.fail_next(api, chance.choice(COSTING[api]))
    elif kind == 3:
        passing = [Errors.NOT_ENOUGH_REPLICAS, Errors.NOT_LEADER_OR_FOLLOWER, Errors.CONCURRENT_TRANSACTIONS]
        broker.fail_next(ApiKey.PRODUCE, chance.choice(passing), times=2)
    elif kind == 4:
        broker.fail_next(ApiKey.PRODUCE, Errors.REQUEST_TIMED_OUT, after_append=True)
    elif kind == 5:
        broker.move_leader("orders", chance.randrange(PARTITIONS), chance.randrange(2))
    else:
        key_type, key = chance.choice([(KeyType.TRANSACTION, ID), (KeyType.GROUP, GROUP)])
        broker.move_coordinator(key_type, key, chance.randrange(2))


def write(producer: KafkaProducer, chance: Random, number: int) -> list[bytes]:
    """A few calls of both kinds; the values."""
    values = []
    for call in range(chance.randrange(4)):
        rows = [b"%d-%d-%d" % (number, call, row) for row in range(chance.randrange(1, 4))]
        if chance.random() < 0.5:
            producer.send_columns("orders", value=pa.array(rows))
        else:
            for value in rows:
                producer.send("orders", value, partition=chance.randrange(PARTITIONS))
        values += rows
    return values


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("version", [1, 2], ids=["TV1", "TV2"])
def test_each_transaction_ends_and_only_committed_rows_are_seen_each_once(version: int, seed: int) -> None:
    chance = Random(seed)
    committed: list[bytes] = []
    offset = 0
    with FakeBroker(nodes=2, topics={"orders": PARTITIONS}, transaction_version=version) as broker:
        options = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": ID,
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 10,
            "reconnect.backoff.ms": 1,
            "reconnect.backoff.max.ms": 5,
            "linger.ms": chance.choice([0, 1, 100]),
            "max.block.ms": 20_000,
            "batch.size": chance.choice([100, 16_384]),
        }
        with KafkaProducer(options) as producer:
            producer.init_transactions()
            for number in range(TRANSACTIONS):
                producer.begin_transaction()
                for _ in range(chance.randrange(3)):
                    disturb(broker, chance)
                try:
                    values = write(producer, chance, number)
                    with_offsets = chance.random() < 0.4
                    if with_offsets:
                        producer.send_offsets_to_transaction({tp(0): OffsetAndMetadata(number)}, ConsumerGroupMetadata(GROUP))
                    if chance.random() < 0.2:
                        producer.abort_transaction()
                        continue
                    producer.commit_transaction()
                except FatalProducerError:
                    raise
                except KafkaError:
                    producer.abort_transaction()
                else:
                    committed += values
                    offset = number if with_offsets else offset
        broker.transactions.write_markers()
        assert Counter(broker.committed_values("orders")) == Counter(committed)
        committed_offsets = broker.offsets.committed(GROUP)
        assert (committed_offsets[tp(0)].offset if committed_offsets else 0) == offset
        assert broker.violations == []
