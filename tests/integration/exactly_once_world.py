"""A broker, a topic, and exactly-once writes to it by runs that come and go: what the tests of crashes share.

Runs live in the test's process (`BrokerWorld.run`) or in processes that stop (`BrokerWorld.processes`); whatever became of them,
`BrokerWorld.recover` writes the version again as a fresh run would, and `BrokerWorld.audit` looks at what readers see.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from jobs.local_kafka import LocalKafka
from spark_kafka_sink.admin.transaction_client import TransactionClient
from spark_kafka_sink.admin.transaction_operations import TransactionState
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.version_commit import Committed
from tests.exactly_once.stepwise_writes import DriverRun
from tests.exactly_once.stoppable_processes import Processes
from tests.integration.processes import until
from tests.integration.reading import READERS
from tests.integration.transaction_brokers import VERSION_0, VERSION_1

Rows = Sequence[Sequence[str]]  # by Spark partition

FIRST: Rows = (["a", "b"], ["c"], [])
SECOND: Rows = (["d"], ["e"], ["f"])
OPEN = frozenset((TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
FORMATS = [  # of a cluster: by the level of transaction.version
    pytest.param((), id="TV2"),
    pytest.param(VERSION_1, id="TV1", marks=pytest.mark.matrix),
    pytest.param(VERSION_0, id="TV0", marks=pytest.mark.matrix),
]
MOST_RUNS = 3  # that recovery takes: one finds a transaction gone and says so, the next one writes what is missing

_names = itertools.count(1)


def rows_of(*versions: Rows) -> list[str]:
    return [row for version in versions for rows in version for row in rows]


class BrokerWorld:
    """Each has a topic and a prefix of its own, or the prefix that is given. `replicas` of the topic's partitions: None, up to
    three."""

    def __init__(
        self, cluster: LocalKafka, stack: ExitStack, *, partitions: int = 2, replicas: int | None = None, prefix: str = ""
    ) -> None:
        name = f"exactly-once-{next(_names)}"
        self.cluster = cluster
        self.topic = f"topic-{name}"
        self.prefix = prefix or f"prefix-{name}"
        self._stack = stack
        cluster.create_topic(self.topic, partitions, replication_factor=replicas)
        self.client = stack.enter_context(TransactionClient({"bootstrap.servers": cluster.bootstrap_servers}))
        self.processes = stack.enter_context(Processes(cluster.bootstrap_servers, self.topic, {"prefix": self.prefix}))

    def run(self, name: str, address: str | None = None, **how: object) -> DriverRun:
        """A life of the driver, in this process. It ends with the test, without a word to the brokers."""
        made = DriverRun(address or self.cluster.bootstrap_servers, self.topic, name, prefix=self.prefix, **how)
        return self._stack.enter_context(made)

    def open_transactions(self) -> list[str]:
        return [each.transactional_id for each in self.client.list_transactions(f"{self.prefix}-", OPEN)]

    def visible_counts(self) -> Counter[str]:
        """What readers of committed records see now: how many times each row."""
        read = READERS["confluent-kafka"]
        how = {"isolation_level": "read_committed", "fetch.wait.max.ms": 20}  # the end of a partition is an empty answer
        records = read(self.cluster.bootstrap_servers, self.topic, **how)
        return Counter((record.value or b"").decode() for record in records)

    def recover(self, rows: Rows = FIRST, *, version: int = 0, runs: int = 1) -> list[Committed | KafkaError]:
        """Write the version as fresh runs would, until one of them commits it; the last result is a Committed.

        Args:
            runs: the most that may be needed.
        """
        results: list[Committed | KafkaError] = []
        for number in range(runs):
            fresh = self.run(f"fresh{version}x{number}")
            try:
                results.append(fresh.write_version(version, *rows))
            except KafkaError as error:
                results.append(error)
                fresh.abort()
            else:
                return results
        raise AssertionError(f"not committed by {runs} fresh runs: {results}")

    def audit(self, rows: Iterable[str]) -> None:
        """Nothing is open, and each row is seen once. Commits are answered before their markers are written: waits for these."""
        until(lambda: not self.open_transactions(), 30, "no transaction is open")
        assert self.visible_counts() == Counter(rows)

    def check(self, *, runs: int = 1) -> list[Committed | KafkaError]:
        """A fresh run finishes the first version, a later version works, and each row is there once. What recovery took."""
        results = self.recover(runs=runs)
        self.run("later").write_version(1, *SECOND)
        self.audit(rows_of(FIRST, SECOND))
        return results


@contextmanager
def world_of(cluster: LocalKafka) -> Iterator[BrokerWorld]:
    with ExitStack() as stack:
        yield BrokerWorld(cluster, stack)
