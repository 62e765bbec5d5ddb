"""Fake clusters with transactions, and clients of them, for the tests of TransactionClient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_kafka_sink.admin.cluster_access import ClusterAccess
from spark_kafka_sink.admin.request_client import RequestClient
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.admin.open_transactions import partition
from tests.fakes.fake_broker import FakeBroker
from tests.fakes.transaction_coordinator import State

NODES = 3


QUICK = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20}


Cluster = Callable[..., FakeBroker]


CALLS: dict[ApiKey, Callable[[TransactionClient], object]] = {
    ApiKey.OFFSET_FETCH: lambda client: client.fetch_offsets({"g": [partition()]}, False),
    ApiKey.OFFSET_COMMIT: lambda client: client.commit_offsets("g", {partition(): (1, "")}),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda client: client.describe_transactions(["P"]),
    ApiKey.DESCRIBE_CONFIGS: lambda client: client.broker_config("transaction.max.timeout.ms"),
}


@contextmanager
def client_of(
    broker: FakeBroker, make_requests: Callable[[ClusterAccess], RequestClient] = RequestClient, **options: object
) -> Iterator[TransactionClient]:
    """A client of the fake cluster; `make_requests` may make a RequestClient that errs or watches."""
    overrides = {name.replace("_", "."): value for name, value in options.items()}
    config = {"bootstrap.servers": broker.bootstrap_servers} | QUICK | overrides
    requests = make_requests(ClusterAccess(ProducerConfig.from_mapping(config)))
    with TransactionClient(config, requests=requests) as client:
        yield client


def count(broker: FakeBroker, api_key: ApiKey) -> int:
    return len(broker.requests_of(api_key))


def state_of(broker: FakeBroker, transactional_id: str) -> State:
    return broker.transactions.transactions[transactional_id].state
